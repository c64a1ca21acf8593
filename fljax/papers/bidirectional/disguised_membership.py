"""Was this example trained on? A client that holds a disguised model asks it, and then asks the
model it makes of that.

Threat: a client that is sent parameters and transition, knows a few members with their labels, and
knows half of the examples' membership, to set its threshold by. It gets no confidences but the
disguised network's own outputs, whose losses say nothing; once the secret vector is found by least
squares from the members it knows, they say all.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fljax_kernels
from fljax import _validate, data, models
from fljax.attacks import metrics
from fljax.models import scaling
from fljax.models.functions import Apply
from fljax.papers.bidirectional import known_network
from fljax.server import perturbation
from fljax.types import Batch, Params


class Success(NamedTuple):
    """Shares of right answers of a loss threshold; 1/2 is a guess.

    true_model: on the model as it is. as_sent: on the disguised one. corrected: on that with
    `known_network`'s estimate taken away. The last two are means over draws of secrets.
    """

    true_model: float
    as_sent: float
    corrected: float


class Overfitted(NamedTuple):
    """model: trained on `members`, and not on `others`; batches `{"x": [n, ...], "y": [n]}`."""

    model: models.Functional
    members: Batch
    others: Batch


def fit(
    model: models.Functional,
    examples: Batch,
    *,
    num_steps: int,
    learning_rate: float,
    momentum: float = 0.0,
) -> models.Functional:
    """`model` after descent on the mean of `models.squared_error` over all `examples` at once.

    Args:
      model: where to start.
      examples: `{"x": [n, ...], "y": [n]}`.
      num_steps, learning_rate, momentum: of gradient descent; momentum in [0, 1), 0: plain.

    Raises:
      ValueError: a number is out of its range.
    """
    _validate.positive_int(num_steps=num_steps)
    _validate.positive(learning_rate=learning_rate)
    _validate.non_negative(momentum=momentum)
    if not momentum < 1:
        raise ValueError(f"Expected momentum < 1, got momentum={momentum!r}.")
    loss = models.squared_error(model.apply)

    def run(params: Params, examples: Batch) -> Params:
        def step(now: tuple[Params, Params], _: Any) -> tuple[tuple[Params, Params], None]:
            gradient = jax.grad(lambda p: jnp.mean(jax.vmap(loss, (None, 0))(p, examples)))(now[0])
            speed = jax.tree.map(lambda v, g: momentum * v + g, now[1], gradient)
            return (jax.tree.map(lambda p, v: p - learning_rate * v, now[0], speed), speed), None

        return jax.lax.scan(
            step, (params, jax.tree.map(jnp.zeros_like, params)), None, length=num_steps
        )[0][0]

    # The steps are a loop, where XLA's convolutions are slow on a CPU.
    params = jax.jit(fljax_kernels.loop_friendly(run))(
        model.params, jax.tree.map(jnp.asarray, examples)
    )
    return models.Functional(params, model.apply)


def overfitted(
    seed: int,
    *,
    size: int = 200,
    wrong: float = 0.2,
    num_steps: int = 4000,
    learning_rate: float = 0.2,
    momentum: float = 0.0,
    hidden: tuple[int, ...] = (64, 64),
    dataset: str | data.Dataset = "digits",
    start: models.Functional | None = None,
) -> Overfitted:
    """A network on so few examples, some with wrong labels, that it knows them by heart.

    Args:
      seed: of the choice of examples, their labels and the mlp's initial weights.
      size: of the members, and of the others.
      wrong: share of labels, of both groups, that are drawn at random, in [0, 1].
      num_steps, learning_rate, momentum: of `fit`.
      hidden: widths of an mlp, where there is no `start`.
      dataset: whose training examples are drawn from, or its name.
      start: the network to begin with.

    Raises:
      ValueError: `dataset` has not that many training examples, or a number is out of range.
    """
    _validate.positive_int(size=size)
    _validate.non_negative(wrong=wrong)
    if not wrong <= 1:
        raise ValueError(f"Expected wrong <= 1, got wrong={wrong!r}.")
    rng = np.random.default_rng(seed)
    found = data.load(dataset) if isinstance(dataset, str) else dataset
    train, classes = found.train, found.num_classes
    if not 2 * size <= len(train["y"]):
        raise ValueError(
            f"Expected size <= {len(train['y']) // 2}, half of the training examples, got "
            f"size={size}."
        )
    rows = rng.permutation(len(train["y"]))[: 2 * size]
    labels = np.where(
        rng.random(rows.size) < wrong, rng.integers(0, classes, rows.size), train["y"][rows]
    )
    examples = {"x": jnp.asarray(train["x"][rows]), "y": jnp.asarray(labels, jnp.int32)}
    members, others = (
        {name: leaf[part] for name, leaf in examples.items()}
        for part in np.split(np.arange(2 * size), 2)
    )
    if start is None:
        shape = examples["x"].shape[1:]
        start = models.create(
            "mlp", example_shape=shape, num_classes=classes, key=jax.random.key(seed), hidden=hidden
        )
    model = fit(start, members, num_steps=num_steps, learning_rate=learning_rate, momentum=momentum)
    return Overfitted(model, members, others)


def attack(
    task: Overfitted,
    key: jax.Array,
    *,
    additive_norm: float,
    known: int = 20,
    num_draws: int = 8,
    allow_plain: bool = False,
    **law: Any,
) -> Success:
    """How often the threshold on losses is right, before and after the client has corrected the
    model.

    Args:
      task: the model, and who was trained on.
      key: of the secrets, of `num_draws` rounds.
      additive_norm: ||r||; 0: the client sees the true outputs.
      known: members from whose labels r is estimated; they are of the half that sets the threshold.
      allow_plain: as `scaling.plan` takes it.
      law: of the scales, as `perturbation.draw` takes it: `form`, `law`, `scale_range`.

    Raises:
      ValueError: `known` is more than that half.
    """
    size = len(task.members["y"])
    _validate.positive_int(known=known, num_draws=num_draws)
    _validate.non_negative(additive_norm=additive_norm)
    if not known <= size // 2:
        raise ValueError(f"Expected known <= {size // 2}, half of the members, got known={known}.")
    x, y = (jnp.concatenate([task.members[name], task.others[name]]) for name in ("x", "y"))
    params = task.model.params
    plan = scaling.plan(task.model.apply, params, x[0], allow_plain=allow_plain)
    true, disguised = _losses(task.model.apply, known, allow_plain)
    rates = []
    # One by one: convolutions whose kernels differ by draw are slow side by side.
    for draw_key in jax.random.split(key, num_draws):
        secrets = perturbation.draw(plan, draw_key, additive_norm=additive_norm, **law)
        rows = disguised(params, x, y, secrets)
        rates.append([success(row[:size], row[size:]) for row in rows])
    plain = true(params, x, y)
    return Success(
        success(plain[:size], plain[size:]), *(float(rate) for rate in np.mean(rates, axis=0))
    )


@functools.lru_cache(maxsize=8)
def _losses(
    apply: Apply, known: int, allow_plain: bool
) -> tuple[Callable[..., jax.Array], Callable[..., Any]]:
    """Jitted (params, x `[N, ...]`, y `[N]`) -> losses `[N]`; the same with secrets -> as sent
    `[N]`, corrected `[N]`.

    Compiled once for all secrets.
    """

    def of(outputs: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.sum(jnp.square(outputs - jax.nn.one_hot(y, outputs.shape[1])), axis=-1) / 2

    @jax.jit
    def true(params: Params, x: jax.Array, y: jax.Array) -> jax.Array:
        return of(jax.vmap(apply, (None, 0))(params, x), y)

    @jax.jit
    def disguised(
        params: Params, x: jax.Array, y: jax.Array, secrets: perturbation.Secrets
    ) -> tuple[jax.Array, jax.Array]:
        plan = scaling.plan(apply, params, x[0], allow_plain=allow_plain)
        sent, transition = perturbation.perturb(plan, params, secrets)
        found = known_network.client_outputs(plan, sent, transition, x)
        targets = jax.nn.one_hot(y[:known], plan.num_outputs)
        r = known_network.estimate_r(found.outputs[:known], found.alpha[:known], targets)
        return of(found.outputs, y), of(known_network.corrected(found, r), y)

    return true, disguised


def success(member_losses: Any, other_losses: Any) -> float:
    """Share of right answers on the second halves, of the threshold that is best on the first;
    `[n]` and `[m]`.

    Source: Yeom et al. (2018), arXiv:1709.01604, Adversary 1, with a fitted threshold.
    """
    yes, no = (-np.asarray(losses, np.float64) for losses in (member_losses, other_losses))
    fit = yes[: len(yes) // 2], no[: len(no) // 2]
    seen = np.unique(np.concatenate(fit))
    between = np.concatenate([[-np.inf], (seen[1:] + seen[:-1]) / 2])
    best = max(between, key=lambda threshold: metrics.asr(*fit, float(threshold)))
    return metrics.asr(yes[len(yes) // 2 :], no[len(no) // 2 :], float(best))
