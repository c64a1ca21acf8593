"""Was this example trained on? A client that holds a disguised model asks it, and then asks the model it makes of that.

Threat: a client that is sent parameters and transition, knows a few members with their labels, and knows half of the
examples' membership, to set its threshold by. It gets no confidences but the disguised network's own outputs, whose
losses say nothing; once the secret vector is found by least squares from the members it knows, they say all.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax import _validate, data, models
from fljax.attacks import known_network, metrics
from fljax.models import scaling
from fljax.models.functional import Apply
from fljax.server import perturbation
from fljax.types import Batch, Params


class Success(NamedTuple):
    """Shares of right answers of a loss threshold; 1/2 is a guess.

    true_model: on the model as it is. as_sent: on the disguised one. corrected: on that with `known_network`'s estimate
    taken away. The last two are means over draws of secrets.
    """

    true_model: float
    as_sent: float
    corrected: float


class Overfitted(NamedTuple):
    """model: trained on `members`, and not on `others`; batches `{"x": [n, ...], "y": [n]}`."""

    model: models.Functional
    members: Batch
    others: Batch


def overfitted(
    seed: int,
    *,
    size: int = 200,
    wrong: float = 0.2,
    num_steps: int = 4000,
    learning_rate: float = 0.2,
    hidden: tuple[int, ...] = (64, 64),
) -> Overfitted:
    """An mlp on so few digits, some with wrong labels, that it knows them by heart.

    Args:
      seed: of the choice of digits, their labels and the initial weights. size: of the members, and of the others.
      wrong: share of labels, of both groups, that are drawn at random.
      num_steps, learning_rate: of gradient descent on the mean of `models.squared_error` over all members.
      hidden: widths.
    """
    _validate.positive_int(size=size, num_steps=num_steps)
    rng = np.random.default_rng(seed)
    digits = data.load("digits").train
    rows = rng.permutation(len(digits["y"]))[: 2 * size]
    labels = np.where(rng.random(rows.size) < wrong, rng.integers(0, 10, rows.size), digits["y"][rows])
    examples = {"x": jnp.asarray(digits["x"][rows]), "y": jnp.asarray(labels, jnp.int32)}
    members, others = (
        {name: leaf[part] for name, leaf in examples.items()} for part in np.split(np.arange(2 * size), 2)
    )
    model = models.create(
        "mlp", example_shape=examples["x"].shape[1:], num_classes=10, key=jax.random.key(seed), hidden=hidden
    )
    loss = models.squared_error(model.apply)

    def step(params: Params, _: Any) -> tuple[Params, None]:
        gradient = jax.grad(lambda p: jnp.mean(jax.vmap(loss, (None, 0))(p, members)))(params)
        return jax.tree.map(lambda p, g: p - learning_rate * g, params, gradient), None

    params, _ = jax.jit(lambda p: jax.lax.scan(step, p, None, length=num_steps))(model.params)
    return Overfitted(models.Functional(params, model.apply), members, others)


def attack(task: Overfitted, key: jax.Array, *, additive_norm: float, known: int = 20, num_draws: int = 8) -> Success:
    """How often the threshold on losses is right, before and after the client has corrected the model.

    Args:
      task: the model, and who was trained on.
      key: of the secrets, of `num_draws` rounds: all side by side.
      additive_norm: ||r||; 0: the client sees the true outputs.
      known: members from whose labels r is estimated; they are of the half that sets the threshold.

    Raises:
      ValueError: `known` is more than that half.
    """
    size = len(task.members["y"])
    _validate.positive_int(known=known, num_draws=num_draws)
    _validate.non_negative(additive_norm=additive_norm)
    if not known <= size // 2:
        raise ValueError(f"Expected known <= {size // 2}, half of the members, got known={known}.")
    x, y = (jnp.concatenate([task.members[name], task.others[name]]) for name in ("x", "y"))
    true, sent, corrected = _losses(task.model.apply, known)(
        task.model.params, x, y, jax.random.split(key, num_draws), jnp.asarray(additive_norm, jnp.float32)
    )
    rates = [np.mean([success(row[:size], row[size:]) for row in np.asarray(rows)]) for rows in (sent, corrected)]
    return Success(success(true[:size], true[size:]), float(rates[0]), float(rates[1]))


@functools.lru_cache(maxsize=8)
def _losses(apply: Apply, known: int) -> Callable[..., tuple[jax.Array, jax.Array, jax.Array]]:
    """Jitted (params, x `[N, ...]`, y `[N]`, keys `[S]`, ||r||) -> losses `[N]`, and `[S, N]` as sent and corrected.

    Compiled once for all lengths of r.
    """

    @jax.jit
    def losses(params: Params, x: jax.Array, y: jax.Array, keys: jax.Array, norm: jax.Array) -> Any:
        plan = scaling.plan(apply, params, x[0])
        targets = jax.nn.one_hot(y, plan.num_outputs)

        def of(outputs: jax.Array) -> jax.Array:
            return jnp.sum(jnp.square(outputs - targets), axis=-1) / 2

        def one(key: jax.Array) -> tuple[jax.Array, jax.Array]:
            secrets = perturbation.draw(plan, key, additive_norm=1.0)
            sent, transition = perturbation.perturb(plan, params, secrets._replace(additive=norm * secrets.additive))
            found = known_network.client_outputs(plan, sent, transition, x)
            r = known_network.estimate_r(found.outputs[:known], found.alpha[:known], targets[:known])
            return of(found.outputs), of(known_network.corrected(found, r))

        return of(jax.vmap(apply, (None, 0))(params, x)), *jax.vmap(one)(keys)

    return losses


def success(member_losses: Any, other_losses: Any) -> float:
    """Share of right answers on the second halves, of the threshold that is best on the first; `[n]` and `[m]`.

    Source: Yeom et al. (2018), arXiv:1709.01604, Adversary 1, with a fitted threshold.
    """
    yes, no = (-np.asarray(losses, np.float64) for losses in (member_losses, other_losses))
    fit = yes[: len(yes) // 2], no[: len(no) // 2]
    seen = np.unique(np.concatenate(fit))
    between = np.concatenate([[-np.inf], (seen[1:] + seen[:-1]) / 2])
    best = max(between, key=lambda threshold: metrics.asr(*fit, float(threshold)))
    return metrics.asr(yes[len(yes) // 2 :], no[len(no) // 2 :], float(best))
