"""A problem that the utility bounds of arXiv:2206.03617 hold for, trained: what noisy steps lose of
its training loss, beside the bound.

Logistic regression: its loss is 1-Lipschitz where records lie in the unit ball, its weights stay in
a ball of diameter M around 0, from which steps start, and what counts is the average iterate. Each
method draws items, weighs and noises their gradients as one silo's step does; no gradient is
clipped, since none is longer than the clip norm, which is 1.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax import accounting
from fljax.accounting import events
from fljax.papers.subject_dp import utility
from fljax.schemes.silos import higradavg, local_item_dp, user_ldp

STEPS = (25, 100, 400)
SUBJECTS, ITEMS, SAMPLED, SIZE = 400, 4, 0.05, 20
DIAMETER, EPSILON, DELTA = 4.0, 4.0, 1e-4
ITEMS_DRAWN = SUBJECTS * ITEMS * SAMPLED  # in the mean
_SOLVED = 4000  # steps without noise


class Method(NamedTuple):
    """config: of one silo. event: of a step, for a subject. weights: of items' gradients in a step,
    `[subjects, items]`, by which of them are drawn. over: how many clip norms a noise multiplier of
    1 is. divisor: of the noise; that of a sum, which is a public number.
    """

    config: Any
    event: Callable[[Any], events.PrivacyEvent]
    weights: Callable[[jax.Array], jax.Array]
    over: float
    divisor: float

    @property
    def lipschitz(self) -> float:
        """Root of what a direction's squared length is at most, in the mean over batches: a sum of
        n parts, each no longer than 1, over their expected number has at most n^2 over its square,
        1 + 1 / divisor in the mean; a batch's mean is no longer than 1.
        """
        return 1.0 if self.divisor == 1 else math.sqrt(1 + 1 / self.divisor)


def methods() -> dict[str, Method]:
    """By the paper's names, with sound accounts."""
    silo: dict[str, Any] = {
        "num_parties": 1,
        "num_local_steps": 1,
        "item_sampling_prob": SAMPLED,
        "l2_clip_norm": 1.0,
    }
    caps = silo | {"max_items_per_subject": ITEMS}
    items, subjects = ITEMS_DRAWN, SUBJECTS * -math.expm1(ITEMS * math.log1p(-SAMPLED))

    def items_of_a_subject(config: Any) -> events.PrivacyEvent:
        return local_item_dp.subject_event(config, max_items_per_subject=ITEMS, silos_per_subject=1)

    return {
        "LocalItemDP": Method(
            local_item_dp.Config(**silo),
            items_of_a_subject,
            lambda drawn: drawn / items,
            1.0,
            items,
        ),
        "HiGradAvg": Method(
            higradavg.Config(**caps),
            higradavg.event,
            lambda drawn: drawn / jnp.maximum(1, drawn.sum(1, keepdims=True)) / subjects,
            1.0,
            subjects,
        ),
        "UserLDP": Method(
            user_ldp.Config(**caps),
            user_ldp.event,
            lambda drawn: drawn / jnp.maximum(1, drawn.sum()),
            2.0,
            1.0,
        ),
    }


def stddev(method: Method, num_steps: int) -> float:
    """Of the noise on the direction of a step, for (EPSILON, DELTA) of a subject in all steps."""

    def run(noise: float) -> events.PrivacyEvent:
        config = dataclasses.replace(method.config, noise_multiplier=noise)
        return method.event(config).repeat(num_steps)

    noise = accounting.calibrate(run, epsilon=EPSILON, delta=DELTA, method="rdp", tolerance=1e-3)
    return noise * method.over / method.divisor


def measured(settings: Any) -> dict[str, Any]:
    """By method and number of steps: noise, learning rate, the bound at it, and the "excess" of
    training loss, lists over seeds.
    """
    rows = []
    problems = [_problem(seed) for seed in settings.each_seed]
    least = [float(_solve(*problem)) for problem in problems]
    for name, method in methods().items():
        train = jax.jit(functools.partial(_train, method.weights))
        for num_steps in STEPS:
            noise, longest = stddev(method, num_steps), method.lipschitz
            rate = DIAMETER / math.sqrt(num_steps * (longest**2 + SIZE * noise**2))  # least bound
            excess = [
                float(train(*problem, num_steps, rate, noise, jax.random.key(seed))) - best
                for seed, problem, best in zip(settings.each_seed, problems, least, strict=True)
            ]
            bound = utility.excess_empirical(
                diameter=DIAMETER,
                lipschitz=longest,
                learning_rate=rate,
                num_steps=num_steps,
                num_params=SIZE,
                noise_stddev=noise,
                l2_clip_norm=longest,  # of a sum: no item of it is clipped
            )
            row = {"method": name, "steps": num_steps, "stddev": noise, "rate": rate}
            rows.append(row | {"bound": bound, "excess": excess})
    return {"rows": rows}


def _problem(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Records `[N, d]` in the unit ball, alike within a subject, and signs `[N]`."""
    rng = np.random.default_rng([seed, 9])
    centres = rng.normal(size=(SUBJECTS, 1, SIZE))
    x = (centres + 0.5 * rng.normal(size=(SUBJECTS, ITEMS, SIZE))).reshape(-1, SIZE)
    truth = rng.normal(size=SIZE)
    y = np.sign(x @ truth + 0.5 * rng.normal(size=len(x)))
    x /= np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True))
    return x.astype(np.float32), y.astype(np.float32)


def _losses(weights: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """Of each record, `[N]`."""
    return jax.nn.softplus(-y * jnp.matmul(x, weights))


def _inside(weights: jax.Array) -> jax.Array:
    norm = jnp.linalg.norm(weights)
    return weights * jnp.minimum(1.0, DIAMETER / 2 / jnp.maximum(norm, 1e-12))


@jax.jit
def _solve(x: jax.Array, y: jax.Array) -> jax.Array:
    """The least loss in the ball, by steps of 1, below 2 / smoothness."""
    zero = jnp.zeros(SIZE)
    loss = lambda w: jnp.mean(_losses(w, x, y))
    return loss(jax.lax.fori_loop(0, _SOLVED, lambda _, w: _inside(w - jax.grad(loss)(w)), zero))


def _train(
    weigh: Callable[[jax.Array], jax.Array],
    x: jax.Array,
    y: jax.Array,
    num_steps: Any,
    rate: Any,
    noise: Any,
    key: jax.Array,
) -> jax.Array:
    """The loss of the average iterate."""

    def step(index: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        weights, total = carry
        rows_key, noise_key = jax.random.split(jax.random.fold_in(key, index))
        drawn = jax.random.bernoulli(rows_key, SAMPLED, (SUBJECTS, ITEMS))
        share = weigh(drawn.astype(jnp.float32)).reshape(-1)
        away = jax.grad(lambda w: jnp.sum(share * _losses(w, x, y)))(weights)
        away = away + noise * jax.random.normal(noise_key, (SIZE,))
        return _inside(weights - rate * away), total + weights

    zero = jnp.zeros(SIZE)
    _, total = jax.lax.fori_loop(0, num_steps, step, (zero, zero))
    return jnp.mean(_losses(total / jnp.asarray(num_steps, jnp.float32), x, y))
