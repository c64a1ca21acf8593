"""From Renyi curves to (epsilon, delta) and back."""

from typing import Any

import jax
import jax.numpy as jnp

from fljax.accounting import _x64


class OrderWarning(UserWarning):
    """The best Renyi order is at the end of the grid: more orders would give a smaller epsilon."""


def _log_delta_kl(rdp: jax.Array) -> jax.Array:
    """Log of sqrt(1 - exp(-KL)), a bound on total variation, hence on delta at every epsilon; KL <= `rdp`."""
    positive = jnp.where(rdp > 0, rdp, 1.0)
    return jnp.where(rdp > 0, 0.5 * jnp.log(-jnp.expm1(-positive)), -jnp.inf)


@_x64.float64
@jax.jit
def rdp_to_epsilons(rdp: Any, orders: Any, delta: Any) -> jax.Array:
    """Epsilon that each single order proves.

    Args:
      rdp: `[..., K]` Renyi divergences in nats.
      orders: `[K]`, each > 1.
      delta: `[...]` in [0, 1], broadcast against `rdp` without its last axis.

    Returns:
      `[..., K]`; the epsilon of the whole curve is the minimum over the last axis.

    Source: Canonne, Kamath, Steinke (2020), arXiv:2004.00010, Proposition 12; epsilon 0 by Bretagnolle-Huber.
    """
    rdp, orders = _x64.as64(rdp), _x64.as64(orders)
    log_delta = jnp.log(_x64.as64(delta))[..., None]
    epsilon = rdp + jnp.log1p(-1 / orders) - (log_delta + jnp.log(orders)) / (orders - 1)
    epsilon = jnp.where(_log_delta_kl(rdp) <= log_delta, 0.0, jnp.maximum(epsilon, 0.0))
    return jnp.where(rdp == 0, 0.0, epsilon)


@_x64.float64
@jax.jit
def rdp_to_epsilon(rdp: Any, orders: Any, delta: Any) -> jax.Array:
    """Smallest epsilon `[...]` that the curve `rdp` `[..., K]` proves at `delta`; see `rdp_to_epsilons`."""
    return rdp_to_epsilons(rdp, orders, delta).min(-1)


@_x64.float64
@jax.jit
def rdp_to_log_deltas(rdp: Any, orders: Any, epsilon: Any) -> jax.Array:
    """Log delta that each single order proves at `epsilon` `[...]` >= 0; shapes and source as in `rdp_to_epsilons`."""
    rdp, orders = _x64.as64(rdp), _x64.as64(orders)
    epsilon = _x64.as64(epsilon)[..., None]
    log_delta = (orders - 1) * (rdp - epsilon + jnp.log1p(-1 / orders)) - jnp.log(orders)
    return jnp.minimum(jnp.minimum(log_delta, _log_delta_kl(rdp)), 0.0)


@_x64.float64
@jax.jit
def rdp_to_delta(rdp: Any, orders: Any, epsilon: Any) -> jax.Array:
    """Smallest delta `[...]` that the curve `rdp` `[..., K]` proves at `epsilon`; see `rdp_to_log_deltas`."""
    return jnp.exp(rdp_to_log_deltas(rdp, orders, epsilon).min(-1))
