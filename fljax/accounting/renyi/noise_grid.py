"""Noise multipliers for whole grids of runs in one XLA program."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax.accounting import _x64
from fljax.accounting.renyi import conversion, rdp

_LOW, _HIGH = 0.05, 2e4
_ITERATIONS = 24


def poisson_gaussian_noise(
    sampling_prob: Any,
    num_steps: Any,
    *,
    epsilon: Any,
    delta: Any,
    orders: tuple[float, ...] = rdp.DEFAULT_ORDERS,
) -> Any:
    """Least noise multipliers, by Renyi accounting, of runs of the Poisson-sampled Gaussian
    mechanism.

    Guarantee: `conversion.rdp_to_epsilon(num_steps * rdp.poisson_gaussian(result, ...))` is at most
      `epsilon`.

    Args:
      sampling_prob: in [0, 1]; num_steps: >= 0; epsilon: target, > 0; delta: in (0, 1). Arrays
        `[...]` that broadcast.
      orders: `[K]` Renyi orders, concrete.

    Returns:
      `[...]`, within a relative 1e-7 of the least that keeps the target; between 0.05 and 20,000.
      NaN where even the latter is not enough, and for a number out of its range.

    For one run, other mechanisms or other accountants see `fljax.accounting.calibrate`.
    """
    return _noise(sampling_prob, num_steps, epsilon, delta, _x64.Static(rdp.as_orders(orders)))


@_x64.float64
@functools.partial(jax.jit, static_argnums=4)
def _noise(
    sampling_prob: Any, num_steps: Any, epsilon: Any, delta: Any, orders: tuple[float, ...]
) -> jax.Array:
    values = jnp.broadcast_arrays(*map(_x64.as64, (sampling_prob, num_steps, epsilon, delta)))
    shape = values[0].shape
    q, steps, target, delta = (v.ravel() for v in values)

    def excess(log_noise: jax.Array) -> jax.Array:
        """Log of epsilon over target, nearly linear in the log of the noise."""
        curve = steps[:, None] * rdp.poisson_gaussian(jnp.exp(log_noise), q, orders)
        spent = conversion.rdp_to_epsilon(curve, np.asarray(orders), delta)
        return jnp.clip(jnp.log(jnp.maximum(spent, 1e-300) / target), -50.0, 50.0)

    def narrow(step: jax.Array, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        """Both ends first, then secant steps with the Illinois rule: an end that stays twice has
        its value halved.
        """
        low, high, at_low, at_high, last = state
        wide = high - low
        # Secants approach from one side only: step a little beyond, so that the other end moves up
        # as well.
        middle = high - at_high * wide / (at_high - at_low) + 1e-8
        middle = jnp.clip(middle, low + 0.001 * wide, high - 0.001 * wide)
        found = excess(jnp.where(step == 0, low, jnp.where(step == 1, high, middle)))
        safe = found <= 0
        following = (
            jnp.where(safe, low, middle),
            jnp.where(safe, middle, high),
            jnp.where(safe, jnp.where(last == 1, at_low / 2, at_low), found),
            jnp.where(safe, found, jnp.where(last == -1, at_high / 2, at_high)),
            jnp.where(safe, 1.0, -1.0),
        )
        ends = (
            low,
            high,
            jnp.where(step == 0, found, at_low),
            jnp.where(step == 1, found, at_high),
            last,
        )
        return tuple(
            jnp.where(step < 2, end, new) for end, new in zip(ends, following, strict=True)
        )

    zero = jnp.zeros(q.shape)
    start = (zero + jnp.log(_LOW), zero + jnp.log(_HIGH), zero + 1.0, zero - 1.0, zero)
    _, high, at_low, at_high, _ = jax.lax.fori_loop(0, _ITERATIONS + 2, narrow, start)
    # An end that was never replaced keeps the sign it had: no noise needed, or none that would do.
    noise = jnp.where(at_low <= 0, _LOW, jnp.exp(high))
    proper = (
        (q >= 0)
        & (q <= 1)
        & (steps >= 0)
        & (target > 0)
        & jnp.isfinite(target)
        & (delta > 0)
        & (delta < 1)
    )
    # `at_high` is NaN where steps are infinite: not > 0, and no answer either.
    return jnp.where(proper & (at_high <= 0), noise, jnp.nan).reshape(shape)
