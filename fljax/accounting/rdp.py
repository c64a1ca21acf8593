"""Renyi differential privacy: curves over orders for whole grids of mechanisms at once.

Every function maps arrays of parameters `[...]` and `K` orders (> 1) to `[..., K]` Renyi divergences in nats.
Composition is addition. `fljax.accounting.conversion` turns curves into (epsilon, delta).
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax.accounting import _moments, _x64

# Orders at which most epsilons between 0.02 and 50 have their optimum, to within 1e-4 of the best real order.
DEFAULT_ORDERS: tuple[float, ...] = (
    *(1 + x / 200 for x in range(1, 20)),
    *(1 + x / 10 for x in range(1, 100)),
    *(float(x) for x in range(11, 64)),
    *(float(round(64 * 2 ** (x / 6))) for x in range(25)),
)

_TRACED_NODES = 2048
_LEAST_NOISE = 0.4  # nodes are chosen for this noise multiplier where the true ones are traced
_CHUNK = 64  # configurations per step of a sweep: bounds memory, keeps the work in cache


def as_orders(orders: Any) -> tuple[float, ...]:
    """Concrete orders as a tuple of floats; raises ValueError unless each is finite and > 1."""
    values = tuple(float(a) for a in np.asarray(orders, np.float64).ravel())
    if not values:
        raise ValueError("Expected orders to hold at least one order, got orders=().")
    for value in values:
        if not 1 < value < math.inf:
            raise ValueError(f"Expected orders > 1 and finite, got orders={value!r}.")
    return values


@_x64.float64
@jax.jit
def gaussian(noise_multiplier: Any, orders: Any) -> jax.Array:
    """Renyi divergence of the Gaussian mechanism: a / (2 noise_multiplier^2).

    Args:
      noise_multiplier: `[...]`, noise standard deviation / L2 sensitivity; 0 gives +inf.
      orders: `[K]`, each > 1.

    Returns:
      `[..., K]`, nats.

    Source: Mironov (2017), arXiv:1702.07476, Corollary 3.
    """
    sigma, orders = _x64.as64(noise_multiplier)[..., None], _x64.as64(orders)
    safe = jnp.where(sigma > 0, sigma, 1.0)
    return jnp.where(sigma > 0, orders / (2 * safe**2), jnp.inf)


def poisson_gaussian(noise_multiplier: Any, sampling_prob: Any, orders: Any) -> Any:
    """Renyi divergence of the Poisson-sampled Gaussian mechanism, adding or removing one unit.

    Integer orders use the binomial sum, others a trapezoid rule whose error bound is part of the result: the value is
    never below the truth by more than rounding, and relative precision survives where the divergence is tiny. Traced
    orders all take the second way, with nodes spread up to the largest of them: keep such a set narrow, a set too wide
    for its nodes gives +inf.

    Args:
      noise_multiplier: `[...]`, noise standard deviation / L2 sensitivity. >= 0; 0 gives +inf.
      sampling_prob: `[...]`, in [0, 1], broadcast against `noise_multiplier`.
      orders: `[K]`, each > 1; concrete ones (a tuple, an array) are planned for at trace time.

    Returns:
      `[..., K]`, nats. Differentiable; derivatives are finite where 0 < sampling_prob and 0 < noise_multiplier.

    Source: Mironov, Talwar, Zhang (2019), arXiv:1908.10530, sections 3.2 and 3.3: the moment is that of
    (1 - q + q N(1, s^2) / N(0, s^2)) under N(0, s^2), which dominates its mirror image. The quadrature is ours.
    """
    if isinstance(orders, jax.core.Tracer):
        return _poisson_traced(noise_multiplier, sampling_prob, orders)
    orders = as_orders(orders)
    least = _least(noise_multiplier)
    if not isinstance(noise_multiplier, jax.Array) and not isinstance(sampling_prob, jax.Array):
        if np.ndim(noise_multiplier) == np.ndim(sampling_prob) == 0:
            return _poisson_host(float(noise_multiplier), float(sampling_prob), orders, least)
    plan = _moments.plan(orders)
    return _poisson_static(noise_multiplier, sampling_prob, np.asarray(orders), plan, _nodes(plan, least))


def _least(noise_multiplier: Any) -> float:
    """The noise that nodes are planned for: one of few values, so that few programs are compiled."""
    if isinstance(noise_multiplier, jax.core.Tracer):
        return _LEAST_NOISE
    values = np.asarray(noise_multiplier, np.float64).ravel()
    values = values[(values > 0) & np.isfinite(values)]
    least = float(values.min()) if values.size else 1.0
    return next((rung for rung in (1.0, 0.5, 0.25) if least >= rung), 0.1)


def _nodes(plan: _moments.Plan, least: float) -> tuple[int, ...]:
    return tuple(_moments.num_nodes(float(bucket[-1]), least) for bucket in plan.real)


def _poisson_host(sigma: float, q: float, orders: tuple[float, ...], least: float) -> np.ndarray:
    """One configuration in NumPy: nothing to compile, and a ledger asks for one after another."""
    grid = np.asarray(orders)
    if not (sigma >= 0 and 0 <= q <= 1):
        return np.full(grid.shape, np.nan)
    if q == 0 or sigma == math.inf:
        return np.zeros(grid.shape)
    if sigma == 0:
        return np.full(grid.shape, np.inf)
    if q == 1:
        return grid / (2 * sigma**2)
    plan = _moments.plan(orders)
    with np.errstate(all="ignore"):  # branches not taken overflow
        moments = _moments.log_moments(np, np.float64(sigma), np.float64(q), plan, _nodes(plan, least))
    return moments / (grid - 1)


@_x64.float64
@functools.partial(jax.jit, static_argnums=4)
def _poisson_static(
    noise_multiplier: Any, sampling_prob: Any, orders: Any, plan: _moments.Plan, nodes: tuple[int, ...]
) -> jax.Array:
    def one(pair: tuple[jax.Array, jax.Array]) -> jax.Array:
        return _moments.log_moments(jnp, *pair, plan, nodes)

    return _over_configurations(one, noise_multiplier, sampling_prob, orders)


@_x64.float64
@jax.jit
def _poisson_traced(noise_multiplier: Any, sampling_prob: Any, orders: Any) -> jax.Array:
    orders = _x64.as64(orders)

    def one(pair: tuple[jax.Array, jax.Array]) -> jax.Array:
        return _moments.real(jnp, *pair, orders, _TRACED_NODES)

    return _over_configurations(one, noise_multiplier, sampling_prob, orders)


def _over_configurations(one: Any, noise_multiplier: Any, sampling_prob: Any, orders: Any) -> jax.Array:
    """Edge cases and chunks around `one(sigma, q) -> log moments [K]`."""
    sigma, q = jnp.broadcast_arrays(_x64.as64(noise_multiplier), _x64.as64(sampling_prob))
    proper = (sigma > 0) & jnp.isfinite(sigma) & (q > 0) & (q < 1)
    # Harmless stand-ins: a NaN in the branch not taken would still poison the gradient.
    pairs = (jnp.where(proper, sigma, 1.0).ravel(), jnp.where(proper, q, 0.5).ravel())
    if sigma.size == 1:
        log_moments = one((pairs[0][0], pairs[1][0]))[None]
    else:
        log_moments = jax.lax.map(one, pairs, batch_size=min(_CHUNK, sigma.size))
    sampled = log_moments.reshape(*sigma.shape, -1) / (orders - 1)
    valid = (sigma >= 0) & (q >= 0) & (q <= 1)
    sigma, q = sigma[..., None], q[..., None]
    full = jnp.where(sigma > 0, orders / (2 * jnp.where(sigma > 0, sigma, 1.0) ** 2), jnp.inf)
    out = jnp.where(proper[..., None], sampled, jnp.where(q == 0, 0.0, full))
    return jnp.where(valid[..., None], out, jnp.nan)
