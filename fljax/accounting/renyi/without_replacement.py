"""Renyi bound for Gaussian noise on a fixed-size sample without replacement, one unit replaced.

Source: Wang, Balle, Kasiviswanathan (2019), arXiv:1808.00087, Theorem 27. Its even moments B(l) =
E[(p/q - 1)^l] are usually taken as alternating sums, which lose all digits where the noise is
large; here they are integrals of something positive, with a bound on the quadrature error added.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from fljax.accounting import _x64
from fljax.accounting._arrays import jax, jnp, logsumexp, mapped

_NODES = 512
_LARGEST = 2048  # order: above, the unsampled divergence stands for the sampled one


def _log_even_moments(shift: jax.Array, powers: np.ndarray) -> jax.Array:
    """Log upper bounds `[L]` on E[(exp(w) - 1)^l], w ~ N(-shift^2/2, shift^2), for even l.

    Trapezoid rule over t = (w + shift^2/2) / shift. On the line Im t = y the integrand is at most
    exp(y^2/2) ((e^w - 1)^2 + e^w (shift y)^2)^(l/2) phi(t); 2 / (exp(2 pi y/h) - 1) of its integral
    bounds the error.
    """
    power = np.asarray(powers, np.float64)[:, None]
    reach = 12 + np.sqrt(2 * power)
    step = (power * shift + 2 * reach) / (_NODES - 1)
    t = np.arange(float(_NODES)) * step - reach
    w = shift * t - shift**2 / 2
    log_weight = -(t**2) / 2 + jnp.log(step / math.sqrt(2 * math.pi))
    log_gap = jnp.log(jnp.maximum(jnp.abs(jnp.expm1(-jnp.abs(w))), 1e-300)) + jnp.maximum(w, 0.0)
    total = logsumexp(log_weight + power * log_gap, -1)
    errors = []
    for part in (0.25, 0.5, 0.75, 1.0):
        y = part * 2 * math.pi / step
        log_size = jnp.logaddexp(2 * log_gap, w + 2 * jnp.log(shift * y)) / 2
        size = logsumexp(log_weight + power * log_size, -1)
        turns = (2 * math.pi * y / step)[:, 0]
        errors.append(math.log(2) + size + y[:, 0] ** 2 / 2 - turns - jnp.log(-jnp.expm1(-turns)))
    return jnp.logaddexp(total, functools.reduce(jnp.minimum, errors))


def _log_moments_at_integers(shift: jax.Array, rate: jax.Array, top: int) -> jax.Array:
    """Log moments at orders 0, 1, .., top of the sampled mechanism with unsampled divergence a
    shift^2 / 2.
    """
    j = np.arange(2, top + 1)
    weight = np.asarray(j, np.float64)
    single = shift**2 / 2
    even = np.arange(2, top + 3, 2)
    log_even = _log_even_moments(shift, even)
    low, high = log_even[j // 2 - 1], log_even[(j + 1) // 2 - 1]
    # exp((j - 1) eps(j)) is E[(p/q)^j] under q: the bound that needs no cancellation.
    crude = math.log(2) + weight * (weight - 1) * single
    # j = 2: 4 (exp(eps(2)) - 1) is 4 B(2), which is exact.
    log_second = math.log(4) + 2 * single + jnp.log(-jnp.expm1(-2 * single))
    factor = jnp.minimum(math.log(4) + (low + high) / 2, crude)
    factor = jnp.where(j == 2, jnp.minimum(log_second, crude), factor)
    a = np.arange(2, top + 1)[:, None]
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1.0, top + 1)))])
    log_binomial = np.where(
        j <= a, log_factorial[a] - log_factorial[j] - log_factorial[np.maximum(a - j, 0)], -np.inf
    )
    log_sum = logsumexp(log_binomial + weight * jnp.log(rate) + factor, -1)
    return jnp.concatenate([jnp.zeros(2), jnp.logaddexp(0.0, log_sum)])


@_x64.float64(host=3000, static_argnums=2)
def sampled_curves(noise_multiplier: Any, rate: Any, orders: tuple[float, ...]) -> jax.Array:
    """`[..., K]`; see `rdp.sampled_without_replacement`."""
    sigma, q = jnp.broadcast_arrays(_x64.as64(noise_multiplier), _x64.as64(rate))
    grid = np.asarray(orders)
    asked = np.where(grid > _LARGEST, 2.0, grid)
    top = math.ceil(max(asked))
    below = np.floor(asked).astype(int)
    part = asked - below
    proper = (sigma > 0) & jnp.isfinite(sigma) & (q > 0) & (q < 1)

    def one(pair: tuple[jax.Array, jax.Array]) -> jax.Array:
        moments = _log_moments_at_integers(1 / pair[0], pair[1], top)
        # The log moment is convex in the order, so a chord between integers lies above it.
        return (1 - part) * moments[below] + part * moments[np.minimum(below + 1, top)]

    pairs = (jnp.where(proper, sigma, 1.0).ravel(), jnp.where(proper, q, 0.5).ravel())
    sampled = mapped(one, pairs).reshape(*sigma.shape, -1) / (grid - 1)
    sampled = jnp.where(grid > _LARGEST, jnp.inf, sampled)
    valid = (sigma >= 0) & (q >= 0) & (q <= 1)
    sigma, q = sigma[..., None], q[..., None]
    full = jnp.where(sigma > 0, grid / (2 * jnp.where(sigma > 0, sigma, 1.0) ** 2), jnp.inf)
    # Sampling never hurts: the unsampled mechanism bounds every sampled one.
    out = jnp.where(proper[..., None], jnp.minimum(sampled, full), jnp.where(q == 0, 0.0, full))
    return jnp.where(valid[..., None], out, jnp.nan)
