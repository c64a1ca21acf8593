"""Reconstruction through a scheme: real records behind its real rounds, and the bound that its
certificate implies.

Threat: the server (or whoever sees the models before and after a round) knows the model, the loss,
the label and the mechanism. The record is the only data of its client, and all others send nothing
but noise: a worst case. There are two
attackers: one that has no idea of the record and inverts the gradient, one that knows K candidates
  and picks.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax import _validate, schemes
from fljax.accounting.events import PrivacyEvent
from fljax.accounting.information.spent import Spent
from fljax.accounting.renyi import conversion
from fljax.attacks import gradient_inversion, rounds
from fljax.data import Dataset
from fljax.data.cohorts import ClientData, cohort
from fljax.data.subjects import SUBJECT
from fljax.types import LossFn, Params, PyTree

# One record of one client in each round: what a scheme's Config is given where it has the field.
ALONE: dict[str, Any] = {
    "batch_size": 1,
    "buffer_size": 2,  # both of two parties: a release that waits for one leaves the other out
    "expected_subjects": 1.0,
    "expected_items": 1.0,
    "grid_norm": 640,  # all of the noise drawn alone: at most 4,096 steps, 6.4 times the norm
    "item_sampling_prob": 1.0,
    "local_batch_size": 1,
    "max_colluders": 0,
    "max_items_per_subject": 1,
    "max_stragglers": 0,
    "num_local_epochs": 1,
    "num_local_steps": 1,
    "num_parties": 2,
    "records_per_client": 1,
    "sampling_prob": 1.0,
    "server_momentum": 0.0,
    "silos_per_round": None,
    "straggler_law": "fixed",
}


# On some CPUs XLA's fused products crash the process in searches through examples that are clipped
# each by itself: a fault of jaxlib 0.10.2, which 0.12 does not have.
_WITHOUT_YNN = {"xla_cpu_experimental_ynn_fusion_type": ""}
_PROBES = 256  # rounds that tell how a scheme clips: weights of records may be random
_SHORT, _LONG = 1e3, 1e9  # gradients, both beyond what clipping lets through

# Of these fields one for each record of the client that is attacked.
_EACH = (
    "batch_size",
    "expected_subjects",
    "expected_items",
    "local_batch_size",
    "records_per_client",
)


class Seen(NamedTuple):
    """What a simulated run of a scheme has: the part of it that a scheme's `inputs` and `spent` ask
    for.
    """

    dataset: Dataset
    client_data: ClientData


def config(name: str, num_records: int = 1, *, num_clients: int = 1, **changes: Any) -> Any:
    """The Config of scheme `name` with `num_records` of each of `num_clients` in each round;
    `changes` go before.

    Raises:
      ValueError: no such scheme, or a value out of range. TypeError: the Config has no field of
        that name.
    """
    scheme = schemes.get(name)
    values = _alone(scheme, num_records, num_clients) | changes
    return rounds.small(scheme.Config, values, required=changes)


def alone(
    scheme: schemes.Scheme, config: Any, num_records: int = 1, *, num_clients: int = 1
) -> Any:
    """`config` with `num_records` of each of `num_clients` in each round; all else as it is.

    Raises:
      ValueError: what is left does not go together with that.
    """
    names = {field.name for field in dataclasses.fields(config)}
    values = _alone(scheme, num_records, num_clients)
    return dataclasses.replace(config, **{name: values[name] for name in names & set(values)})


def _alone(scheme: schemes.Scheme, num_records: int, num_clients: int) -> dict[str, Any]:
    each = {name: type(ALONE[name])(num_records) for name in _EACH}
    least = 1 if scheme.noise_at == "silo" else ALONE["num_parties"]
    parties = max(num_clients, least)
    return ALONE | each | {"num_parties": parties, "buffer_size": max(parties, 2)}


def updates(
    name: str,
    config: Any,
    loss: LossFn,
    params: Params,
    examples: PyTree,
    keys: jax.Array,
    dataset: Dataset,
    *,
    beside: PyTree | None = None,
    sent: dict[str, PyTree] | None = None,
    num_clients: int = 1,
) -> PyTree:
    """How far one round moves the model, for each of T records as the only data, or beside others
    of the same client, and of others: leaves `[T, ...]`.

    Args:
      name, config: the scheme; its noise must be set.
      examples: {"x", "y"}, leaves `[T, ...]`.
      keys: `[T]`, of the rounds.
      dataset: what a scheme that calibrates its noise on data may look at.
      beside: like examples, leaves `[T, C B - 1, ...]`: records of other subjects, with a config of
        B records of each of C = num_clients. The first B - 1 are of the same client.
      sent: parts of params, by their names, of which each round has its own: leaves `[T, ...]`.
      num_clients: that have records, each as many.

    Raises:
      As the scheme's `make`.
    """
    scheme = schemes.get(name)
    num_units = scheme.population(config).num_clients or num_clients
    batch = jax.tree.map(lambda leaf: leaf[:, None], examples)
    if beside is not None:
        batch = jax.tree.map(lambda *leaves: jnp.concatenate(leaves, 1), batch, beside)
    num_records = jax.tree.leaves(batch)[0].shape[1]
    each = num_records // num_clients
    one_each = np.full((num_units, each), -1, np.int32)
    one_each[:num_clients] = np.arange(num_clients * each).reshape(num_clients, each)
    seen = Seen(
        dataset, ClientData(jax.tree.map(jnp.asarray, dataset.train), jnp.asarray(one_each))
    )
    inputs = scheme.inputs(config, seen) if scheme.inputs is not None else {}
    algorithm = scheme.make(config, loss, num_units=num_units, **inputs)

    def one(records: PyTree, key: jax.Array, sent: dict[str, PyTree]) -> PyTree:
        start = {**params, **sent} if sent else params
        records = records | {SUBJECT: jnp.arange(num_records, dtype=jnp.int32)}
        here = cohort(ClientData(records, jnp.asarray(one_each)), jnp.arange(num_units))
        after, _ = algorithm.round(algorithm.init(start), here, key)
        return jax.tree.map(jnp.subtract, start, after.params)

    # One by one: some schemes work through their clients in loops, which XLA is slow at side by
    # side.
    run = jax.jit(lambda *given: jax.lax.map(lambda each: one(*each), given))
    return run(batch, keys, {} if sent is None else sent)


def clips_each(name: str, config: Any, dataset: Dataset) -> bool:
    """Whether a scheme bounds what each record of a client adds, not the client's sum: of two
    records whose gradients are far from equally long.

    The short one points along the first parameter, which the long one points a little against. So
    the first parameter falls where both are clipped to one length, and grows where their sum is,
    whatever optimizer the server has.

    Args:
      name, config: the scheme, without noise. dataset: as for `updates`.
    """
    x = np.asarray([[_SHORT, 0.0], [-0.6 * _LONG, 0.8 * _LONG]], np.float32)
    many = np.broadcast_to(x[:, None], (2, _PROBES, 2))
    moved = updates(
        name,
        alone(schemes.get(name), config, 2),
        lambda params, record: jnp.vdot(params["w"], record["x"]),
        {"w": jnp.zeros(2)},
        {"x": jnp.asarray(many[0])},
        jax.random.split(jax.random.key(0, impl="threefry2x32"), _PROBES),
        dataset,
        beside={"x": jnp.asarray(many[1][:, None])},
    )
    return float(np.asarray(moved["w"])[:, 0].mean()) > 0


def of_channel(name: str, config: Any, seen: Seen) -> tuple[dict[str, Any], Spent]:
    """(inputs, what one use of a record tells) of a scheme that promises nats.

    Raises:
      ValueError: it promises none, or adds no noise.
    """
    scheme = schemes.get(name)
    if scheme.promise != "nats" or scheme.inputs is None or scheme.spent is None:
        raise ValueError(f"Expected a scheme that promises nats, got scheme={name!r}.")
    inputs = scheme.inputs(config, seen)
    spent = scheme.spent(config, seen, inputs, 1)
    if spent is None:
        raise ValueError(f"Expected a channel with noise, got none of scheme={name!r}.")
    return inputs, spent


def nearest(found: Any, candidates: Any) -> np.ndarray:
    """Which of the candidates `[K, ...]` each of `found` `[T, ...]` is closest to: int `[T]`, -1
    where not finite.

    Raises:
      ValueError: a candidate is not finite.
    """
    a, b = (np.asarray(v, np.float64).reshape(len(v), -1) for v in (found, candidates))
    kept = _finite(a, b)
    a = np.where(kept[:, None], a, 0.0)
    return np.where(kept, (np.square(b).sum(1)[None] - 2 * a @ b.T).argmin(1), -1)


def iip(
    found: Any, candidates: Any, own: Any, *, features: Callable[[Any], Any] | None = None
) -> float:
    """Identification precision: the share of reconstructions `[T, ...]` whose nearest candidate is
    their own.

    Args:
      candidates: `[n, ...]`. The more, the harder: whoever guesses has 1 / n.
      own: which of them each was made of, int `[T]`, T >= 1.
      features: in which nearness is measured, `[N, ...]` to `[N, k]`, such as `perceptual.names`.
        None: the values themselves.

    Raises:
      ValueError: `own` is not T places of candidates, or a candidate is not finite.

    Source: Yin et al. (2021), See through gradients, arXiv:2104.07586, section 4.
    """
    places = np.asarray(own)
    fits = places.shape == (len(found),) and places.size and places.dtype.kind in "iu"
    if not fits or not (0 <= places.min() and places.max() < len(candidates)):
        raise ValueError(
            f"Expected own to be {len(found)} places of {len(candidates)} candidates, at least "
            f"one, got own={own!r}."
        )
    if features is not None:
        found, candidates = features(found), features(candidates)
    return float(np.mean(nearest(found, candidates) == places))


def best_match(moved: PyTree, gradients: PyTree) -> np.ndarray:
    """Which of K candidates' gradients each of T updates points along most, int `[T]`: the informed
    attacker.

    The likelihood-ratio choice where the round clips every gradient to one length and adds equal
    noise to all numbers. A candidate without a gradient has no direction, and scores 0; -1 where an
    update is not finite.

    Raises:
      ValueError: a candidate's gradient is not finite.
    """
    rows, columns = (
        np.concatenate(
            [np.asarray(v, np.float64).reshape(len(v), -1) for v in jax.tree.leaves(tree)], 1
        )
        for tree in (moved, gradients)
    )
    kept = _finite(rows, columns)
    norms = np.linalg.norm(columns, axis=1, keepdims=True)
    units = np.divide(columns, norms, out=np.zeros_like(columns), where=norms > 0)
    return np.where(kept, (np.where(kept[:, None], rows, 0.0) @ units.T).argmax(1), -1)


def _finite(found: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """Which rows of `found` are finite: the others are no guess at all. All candidates must be."""
    if not np.isfinite(candidates).all():
        raise ValueError("Expected candidates of finite numbers, got some that are not.")
    return ~diverged(found)


def diverged(found: Any) -> np.ndarray:
    """Which reconstructions `[T, ...]` are not finite, bool `[T]`: there the attack failed, and
    proves nothing.
    """
    rows = np.asarray(found, np.float64).reshape(len(found), -1)
    return np.logical_not(np.isfinite(rows).all(1))


def identification_bound(event: PrivacyEvent, num_candidates: int) -> float:
    """Largest chance that anybody picks the right one of K equally likely records, from what
    `event` certifies.

    By the trade-off curve at false-positive rate 1 / K, taken from proved (epsilon, delta) pairs;
    exact for Gaussian mechanisms up to the grid of epsilons.

    Raises:
      ValueError: num_candidates < 1.
    """
    _validate.positive_int(num_candidates=num_candidates)
    share = 1 / num_candidates
    least = float(rounds.certified_curve(event, np.asarray(share)))
    return conversion.reconstruction_bound(lambda _: least, share)


def error_bound(event: PrivacyEvent, candidates: Any) -> float:
    """Least mean squared error, per number, of anybody who reconstructs one of K equally likely
    records `[K, ...]`, from what `event` certifies.

    A guess made without the record lies within r of it in m / K of cases at most, where no ball of
    radius r holds m + 1 records; so one made with it does in at most 1 - f(m / K), f the certified
    trade-off curve. The mean of the squared distance is the integral of what is left over r^2. The
    ball of m records is no smaller than their spread about their mean, which is taken at its least
    by the nearest records of each.

    Args:
      candidates: of finite numbers, K >= 1.

    Raises:
      ValueError: there is none, or one is not finite.

    Source: Balle, Cherubin, Hayes (2022), Reconstructing training data with informed adversaries,
      arXiv:2201.04845, definition 2; its baseline by the trade-off curve as in
      `conversion.reconstruction_bound`.
    """
    given = np.asarray(candidates, np.float64)
    if not given.size or not np.isfinite(given).all():
        raise ValueError("Expected candidates of finite numbers, at least one, got others.")
    rows = given.reshape(len(given), -1)
    squares = np.square(rows).sum(1)
    apart = np.maximum(squares[:, None] + squares[None] - 2 * rows @ rows.T, 0)
    np.fill_diagonal(apart, 0)
    many = np.arange(1, len(rows) + 1)
    # Of each record the sum over the m nearest, itself among them; then over the m least of those.
    sums = np.cumsum(np.sort(apart, axis=1), axis=1)
    least = np.cumsum(np.sort(sums, axis=0), axis=0).diagonal() / (2 * many**2)
    radii = np.maximum.accumulate(least)  # squared, of a ball of m records
    fnr = rounds.certified_curve(event, many / len(rows))
    return float((fnr[:-1] * np.diff(radii)).sum() / rows.shape[1])


def gradients_of(loss: LossFn, params: Params, examples: PyTree) -> PyTree:
    """Plain gradients of T records, leaves `[T, ...]`: what an informed attacker expects to see a
    direction of.
    """
    return jax.jit(jax.vmap(jax.grad(loss), (None, 0)))(params, examples)


def invert(
    apply: Any,
    params: Params,
    moved: PyTree,
    y: jax.Array,
    key: jax.Array,
    *,
    shape: tuple[int, ...],
    settings: gradient_inversion.Settings,
    prior: gradient_inversion.Prior | None = None,
    observe: gradient_inversion.Observe | None = None,
    penalty: Callable[[jax.Array], jax.Array] | None = None,
) -> jax.Array:
    """Reconstructs the record behind each of T updates, `[T, *shape]`, knowing its label `y` int
    `[T]`, or all records behind it, `[T, ..., *shape]`, by theirs, `[T, ...]`, in one program.

    The uninformed attacker. It compares directions, so that learning rates and clipping do not
    matter. NaN where no step of the search had a finite loss: the random start is no
    reconstruction.

    Args:
      observe: what an upload would be, of records `[..., *shape]` by soft labels. None: the
        gradient of their mean loss.
      penalty: as `gradient_inversion.invert` takes it.
    """
    if observe is None:
        observe = gradient_inversion.gradient(gradient_inversion.soft_cross_entropy(apply))

    options = _WITHOUT_YNN if jax.default_backend() == "cpu" else None

    @functools.partial(jax.jit, compiler_options=options)
    def run(moved: PyTree, y: jax.Array, key: jax.Array) -> jax.Array:
        num_classes = jax.eval_shape(
            apply, params, jax.ShapeDtypeStruct(shape, np.dtype(np.float32))
        ).shape[0]
        labels = jax.nn.one_hot(y, num_classes)
        found = gradient_inversion.invert(
            observe,
            params,
            moved,
            labels if y.ndim > 1 else labels[:, None],
            key,
            shape=(*(y.shape[1:] or (1,)), *shape),
            settings=settings,
            prior=prior,
            penalty=penalty,
        )
        x = jax.vmap(lambda x, loss: jnp.where(jnp.isfinite(loss), x, jnp.nan))(found.x, found.loss)
        return x if y.ndim > 1 else x[:, 0]

    return run(moved, y, key)
