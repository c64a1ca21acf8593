"""Membership through a scheme: a target and shadow models, all trained by the scheme's own rounds,
in one program.

Threat: the attacker has the last model, or those between all rounds, the pool of examples with
their labels, and knows how training goes; it trains models of its own in the same way on random
halves of the pool. What it must not beat is the trade-off curve that the scheme certifies for one
example, or for one person.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax import _keys, _validate, attacks, schemes
from fljax.accounting.events import PrivacyEvent
from fljax.attacks import membership, metrics, rounds, shadow, white_box
from fljax.data.cohorts import ClientData, cohort
from fljax.data.subjects import SUBJECT
from fljax.models.functions import Apply
from fljax.types import Batch, LossFn, Params

FPRS = (0.001, 0.01, 0.05)


class Rate(NamedTuple):
    """tpr: of members above a threshold that a share `fpr` of the others is above; low, high: of
    `metrics.tpr_interval` at 95 %.
    """

    fpr: float
    tpr: float
    low: float
    high: float


def rate(members: np.ndarray, others: np.ndarray, fpr: float) -> Rate:
    """Of scores of members and of others."""
    found = metrics.tpr_at_fpr(members, others, fpr)
    return Rate(fpr, found, *metrics.tpr_interval(members, others, fpr))


class Membership(NamedTuple):
    """Scores `[N]` of a pool's examples, or of its persons, who was trained on `[N]`, and what they
    amount to.

    rates: at 0.1 %, 1 % and 5 % of false positives. largest_auc: of any attack, from the certified
    trade-off curve (1 where nothing is certified).
    """

    scores: np.ndarray
    members: np.ndarray
    auc: float
    rates: tuple[Rate, ...]
    largest_auc: float


class Trained(NamedTuple):
    """What an attacker here has: model 0 is the target, the others are its own.

    apply: `(params, x) -> logits`. params: leaves `[1 + S, ...]`. pool: {"x", "y"}, leaves `[N,
    ...]`. included: bool `[1 + S, N]`, of which row 0 is what is asked. population: {"x", "y"} that
    no model was trained on. passed: leaves `[1 + S, 1 + rounds, ...]`, of every model before each
    round and after the last; None: nobody kept them. loss: what was trained by, for attacks that
    take gradients. subjects: int `[N]`, whose each example of the pool is, from 0; None: each is of
    a subject of its own.
    """

    apply: Apply
    params: Params
    pool: Batch
    included: np.ndarray
    population: Batch
    passed: Params | None = None
    loss: LossFn | None = None
    subjects: np.ndarray | None = None

    def model(self, at: int) -> Params:
        """One of the models."""
        return jax.tree.map(lambda leaf: leaf[at], self.params)

    def confidences(self, examples: Batch) -> np.ndarray:
        """`[1 + S, M]`, of all models."""
        of = jax.jit(lambda p, x, y: shadow.confidences(self.apply, p, x, y))
        return np.asarray(of(self.params, examples["x"], examples["y"]))


def models(
    name: str,
    config: Any,
    loss: LossFn,
    params: Params,
    pool: Batch,
    included: jax.Array,
    keys: jax.Array,
    *,
    num_rounds: int,
    subjects: np.ndarray | None = None,
    every_round: bool = False,
) -> Params:
    """Models after `num_rounds` rounds of a scheme, each on its own members of the pool: leaves
    `[S, ...]`.

    Members are dealt to the scheme's clients in turn.

    Args:
      included: bool `[S, N]`. keys: `[S]`, of the runs.
      subjects: int `[N]`, whose each example is, from 0. None: each is a subject of its own.
      every_round: the models before each round, too: leaves `[S, 1 + num_rounds, ...]`.
    """
    _validate.positive_int(num_rounds=num_rounds)
    scheme = schemes.get(name)
    num_clients = scheme.population(config).num_clients or 2
    size = included.shape[1]
    unit = scheme.event(config).privacy_unit
    whose = np.arange(size) if subjects is None else np.asarray(subjects)
    num_units = {"client": num_clients, "subject": int(whose.max()) + 1}.get(unit, size)
    algorithm = scheme.make(config, loss, num_units=num_units)
    everyone = np.full((num_clients, -(-size // num_clients)), -1, np.int32)
    for client in range(num_clients):
        mine = np.arange(client, size, num_clients)
        everyone[client, : mine.size] = mine
    examples = jax.tree.map(jnp.asarray, pool) | {SUBJECT: jnp.asarray(whose, jnp.int32)}

    def one(members: jax.Array, key: jax.Array) -> Params:
        rows = jnp.where((everyone >= 0) & members[jnp.maximum(everyone, 0)], everyone, -1)
        rows = jnp.take_along_axis(rows, jnp.argsort(rows < 0, axis=1, stable=True), axis=1)
        clients = ClientData(examples, rows)
        coin_key, round_key = jax.random.split(key)

        def one_round(state: Any, index: jax.Array) -> tuple[Any, Params | None]:
            coins = _keys.coins(
                jax.random.fold_in(coin_key, index), (num_clients,), algorithm.client_sampling_prob
            )
            here = cohort(clients, jnp.where(coins, jnp.arange(num_clients), -1))
            state = algorithm.round(state, here, round_key)[0]
            return state, state.params if every_round else None

        start = algorithm.init(params)
        last, passed = jax.lax.scan(one_round, start, jnp.arange(num_rounds))
        if not every_round:
            return last.params
        return jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), start.params, passed)

    return jax.jit(jax.vmap(one))(included, keys)


def _shadowed(attack: Callable[..., np.ndarray], online: bool) -> "Attack":
    """LiRA or RMIA, with the population where that takes one."""

    def scores(given: Trained, key: jax.Array) -> np.ndarray:
        own = given.confidences(given.pool)
        found = [own[0], own[1:], given.included[1:]]
        how: dict[str, Any] = {"online": online}
        if attack is membership.rmia:
            rest = given.confidences(given.population)
            found += [rest[0], rest[1:]]
            if not online:
                how["offline_slope"] = membership.rmia_slope(own[1:], given.included[1:], rest[1:])
        return attack(*found, **how)

    return scores


def _loss_threshold(given: Trained, key: jax.Array) -> np.ndarray:
    return membership.loss_threshold(given.confidences(given.pool)[0])


def _reference(given: Trained, key: jax.Array) -> np.ndarray:
    own = given.confidences(given.pool)
    return membership.reference(own[0], own[1:], given.included[1:])


def _exposure(given: Trained, key: jax.Array) -> np.ndarray:
    pool, others = (given.confidences(part)[0] for part in (given.pool, given.population))
    return membership.exposure(pool, others)


def _attack_network(given: Trained, key: jax.Array) -> np.ndarray:
    """Learnt from the outputs of the attacker's first own model, whose members it knows."""
    x, y = given.pool["x"], given.pool["y"]
    seen = jax.jit(lambda p: white_box.features(given.apply, p, x, y, last_layer=None))
    score = white_box.fit(seen(given.model(1)), given.included[1], key)
    return np.asarray(score(seen(given.model(0))), np.float64)


def _white_box(given: Trained, key: jax.Array) -> np.ndarray:
    if given.loss is None:
        raise ValueError("Expected loss with white_box, got none.")
    own, inside = given.confidences(given.pool), given.included[1:]
    rest = jax.tree.map(lambda leaf: leaf[1:], given.params)
    target, shadows = white_box.pulls(given.loss, given.model(0), rest, inside, given.pool)
    return white_box.likelihood_ratio(
        np.stack([own[0], target], -1), np.stack([own[1:], shadows], -1), inside
    )


def _label_only(given: Trained, key: jax.Array) -> np.ndarray:
    target = given.model(0)
    predict = jax.jit(lambda x: jax.vmap(given.apply, (None, 0))(target, x).argmax(-1))
    x = np.asarray(given.pool["x"])
    spread = float(x.std()) or 1.0
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel().tolist())
    return membership.label_only(
        predict, x, given.pool["y"], rng, stddevs=tuple(spread * s for s in (0.1, 0.2, 0.4, 0.8))
    )


def _views(x: jax.Array) -> list[jax.Array]:
    """Of images `[N, H, W, channels]`: themselves, mirrored, and moved by a pixel each way."""
    if x.ndim != 4:
        raise ValueError(
            "Expected images [N, height, width, channels] for lira_of_views, which mirrors and "
            f"moves them, got x of shape {x.shape}."
        )
    moves = [
        (down, right) for down in (-1, 0, 1) for right in (-1, 0, 1) if down == 0 or right == 0
    ]
    return [x[:, :, ::-1], *(jnp.roll(x, move, (1, 2)) for move in moves)]


def _lira_of_views(given: Trained, key: jax.Array) -> np.ndarray:
    each = [given.confidences({"x": x, "y": given.pool["y"]}) for x in _views(given.pool["x"])]
    views = np.stack(each, -1)
    return membership.lira_of_views(views[0], views[1:], given.included[1:])


def _subject_lira(given: Trained, key: jax.Array) -> np.ndarray:
    own, included = given.confidences(given.pool), given.included
    if given.subjects is not None:
        own = membership.of_subjects(own, given.subjects)[1]
        included = membership.of_subjects(included, given.subjects)[1] > 0
    return membership.lira(own[0], own[1:], included[1:])


def _gradient_alignment(given: Trained, key: jax.Array) -> np.ndarray:
    if given.passed is None or given.loss is None:
        raise ValueError("Expected passed and loss with gradient_alignment, got none.")
    loss = given.loss
    of = jax.jit(lambda passed, pool: membership.gradient_alignment(loss, passed, pool))
    seen = np.asarray(of(given.passed, given.pool), np.float64)
    return membership.lira(seen[0], seen[1:], given.included[1:])


def _quantile_regression(given: Trained, key: jax.Array) -> np.ndarray:
    pool, rest = given.pool, given.population
    known = (rest["x"], rest["y"], given.confidences(rest)[0])
    return membership.quantile_regression(
        known, pool["x"], pool["y"], given.confidences(pool)[0], key
    )


Attack = Callable[[Trained, jax.Array], np.ndarray]
# `(what the attacker has, key) -> scores [N]` of the pool's examples.
ATTACKS: dict[str, Attack] = {
    "lira": _shadowed(membership.lira, True),
    "lira_offline": _shadowed(membership.lira, False),
    "lira_of_views": _lira_of_views,
    "rmia": _shadowed(membership.rmia, True),
    "rmia_offline": _shadowed(membership.rmia, False),
    "loss_threshold": _loss_threshold,
    "reference": _reference,
    "exposure": _exposure,
    "attack_network": _attack_network,
    "white_box": _white_box,
    "label_only": _label_only,
    "quantile_regression": _quantile_regression,
    "gradient_alignment": _gradient_alignment,
    "subject_lira": _subject_lira,
}
EVERY_ROUND = ("gradient_alignment",)  # those that see the models between rounds, too


# Those that need no model of the attacker's own, and those that know labels where a text has none.
ALONE = ("loss_threshold", "exposure", "label_only", "quantile_regression")
OF_CLASSES = (
    "lira_of_views",
    "attack_network",
    "label_only",
    "quantile_regression",
)


def attacked(
    attack: str, given: Trained, key: jax.Array, event: PrivacyEvent | None = None
) -> Membership:
    """An attack on model 0, and the largest area that `event` allows.

    Args:
      attack: a name of ATTACKS.
      given: what the attacker has.
      key: of what an attack draws.
      event: of all rounds; None: nothing is certified.

    Raises:
      ValueError: no such attack.
    """
    _validate.one_of(ATTACKS, attack=attack)
    scores = np.asarray(ATTACKS[attack](given, key), np.float64)
    members = np.asarray(given.included[0], bool)
    if attack in attacks.OF_SUBJECTS and given.subjects is not None:
        members = membership.of_subjects(members, given.subjects)[1] > 0
    yes, no = scores[members], scores[~members]
    at = np.linspace(0, 1, 2001)
    return Membership(
        scores=scores,
        members=members,
        auc=metrics.auc(yes, no),
        rates=tuple(rate(yes, no, fpr) for fpr in FPRS),
        largest_auc=1.0 if event is None else largest_auc(rounds.certified_curve(event, at), at),
    )


def largest_auc(fnr: np.ndarray, fpr: np.ndarray) -> float:
    """An upper bound on the area under the curve of rates, from least false-negative rates `[n]` at
    rising `fpr` `[n]`.

    Each step counts with its right end, where a falling curve is least: trapezia of a convex one
    would be too large.
    """
    return float(1 - np.sum(fnr[1:] * np.diff(fpr)))
