"""Exact Renyi divergence between two Gaussians whose covariances differ."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fljax.accounting import _x64
from fljax.accounting._arrays import jax, jnp


class LowRank(NamedTuple):
    """The covariance scale * I + factor factor^T, never built. factor: `[D, r]`; scale: `[]`, >
    0.
    """

    factor: Any
    scale: Any


@_x64.float64(host=0)
def gaussian_pair(mean_shift: Any, cov1: Any, cov2: Any, orders: Any) -> jax.Array:
    """Renyi divergences of N(mean_shift, cov1) from N(0, cov2).

    Args:
      mean_shift: `[D]`.
      cov1, cov2: each a scalar `[]` (a multiple of the identity), a diagonal `[D]`, a dense `[D,
        D]` or a `LowRank`. Scalar goes with every kind; diagonal with diagonal and dense. With
        `LowRank` nothing of size D x D is formed.
      orders: `[K]`, each > 1.

    Returns:
      `[K]`, nats. +inf where a * cov2 + (1 - a) * cov1 is not positive definite, where the
      divergence is infinite, and where a covariance is singular. Vectorises with `jax.vmap`,
      differentiable where finite.

    Raises:
      ValueError: shapes do not fit, or a `LowRank` meets a diagonal or dense covariance.

    Source: Gil, Alajaji, Linder (2013), Renyi divergence measures for commonly used univariate
    continuous distributions, multivariate Gaussians.
    """
    shift, orders = _x64.as64(mean_shift), _x64.renyi_orders(orders)
    if shift.ndim != 1:
        raise ValueError(
            f"Expected mean_shift of shape [D], got mean_shift of shape {shift.shape}."
        )
    low_rank = [isinstance(c, LowRank) for c in (cov1, cov2)]
    if any(low_rank):
        return _low_rank(
            shift, _as_low_rank(cov1, shift.size), _as_low_rank(cov2, shift.size), orders
        )
    first, second = _x64.as64(cov1), _x64.as64(cov2)
    for name, cov in (("cov1", first), ("cov2", second)):
        if cov.shape not in {(), shift.shape, shift.shape * 2}:
            raise ValueError(
                f"Expected {name} of shape [], [D] or [D, D] with D={shift.size}, got shape "
                f"{cov.shape}."
            )
    if max(first.ndim, second.ndim) == 2:
        return _dense(shift, _as_dense(first, shift.size), _as_dense(second, shift.size), orders)
    excess = _excess(first, second)
    if first.ndim == second.ndim == 0:
        return _divergence(excess, shift @ shift / second, np.float64(shift.size), orders)
    return _divergence(excess, shift**2 / second, np.ones(shift.size), orders)


def _excess(first: jax.Array, second: jax.Array) -> jax.Array:
    """The ratio of variances minus 1. Below -1, for an infinite divergence, where `second` is no
    variance.
    """
    return jnp.where(second > 0, (first - second) / second, -2.0)


def _divergence(excess: jax.Array, squares: jax.Array, times: Any, orders: jax.Array) -> jax.Array:
    """From the generalised eigenvalues 1 + `excess` of (cov1, cov2), in whose basis the shift has
    these squares.

    `times`: how often each eigenvalue stands; `squares` is already summed over these.
    """
    excess, squares, times = (
        jnp.atleast_1d(jnp.asarray(v, jnp.float64)) for v in (excess, squares, times)
    )
    a = orders[:, None]
    mixed = 1 + (1 - a) * excess
    defined = jnp.all((mixed > 0) & (excess > -1), -1)
    safe = jnp.where(defined[:, None], excess, 0.0)
    mixed = 1 + (1 - a) * safe
    # log(mixed) - (1 - a) log(1 + e) loses digits where e is small: Taylor's series there.
    small = jnp.abs(a * safe) < 0.03
    e = jnp.where(small, safe, 0.0)
    series = sum(((-1) ** (k + 1) / k) * e**k * ((1 - a) ** k - (1 - a)) for k in range(2, 12))
    plain = jnp.log(jnp.where(small, 1.0, mixed)) - (1 - a) * jnp.log1p(jnp.where(small, 0.0, safe))
    log_ratio = jnp.where(small, series, plain)
    out = (a / 2 * squares / mixed - times * log_ratio / (2 * (a - 1))).sum(-1)
    return jnp.where(defined, jnp.maximum(out, 0.0), jnp.inf)


def _as_dense(cov: jax.Array, size: int) -> jax.Array:
    return cov if cov.ndim == 2 else jnp.diag(jnp.broadcast_to(cov, (size,)))


def _dense(shift: jax.Array, first: jax.Array, second: jax.Array, orders: jax.Array) -> jax.Array:
    return _divergence(*_pencil(shift, first, second), np.ones(shift.size), orders)


def _pencil(shift: jax.Array, first: jax.Array, second: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Eigenvalues of cov2^-1 cov1 minus 1, and the squares of the whitened shift in their basis."""
    root = jnp.linalg.cholesky(second)
    solve = jax.scipy.linalg.solve_triangular
    inner = solve(root, solve(root, first - second, lower=True).T, lower=True)
    excess, basis = jnp.linalg.eigh((inner + inner.T) / 2)
    # A cov2 that is not positive definite gives NaN: undefined, so the divergence is infinite.
    good = jnp.all(jnp.isfinite(root)) & jnp.all(jnp.isfinite(excess))
    squares = (basis.T @ solve(root, shift, lower=True)) ** 2
    return jnp.where(good, excess, -2.0), jnp.where(good, squares, 0.0)


def _as_low_rank(cov: Any, size: int) -> LowRank:
    if not isinstance(cov, LowRank):
        if np.ndim(cov) != 0:
            raise ValueError(
                "Expected a scalar or LowRank covariance beside a LowRank one, got shape "
                f"{np.shape(cov)}."
            )
        cov = LowRank(np.zeros((size, 0)), cov)
    if np.ndim(cov.factor) != 2 or np.shape(cov.factor)[0] != size or np.ndim(cov.scale) != 0:
        raise ValueError(
            f"Expected LowRank(factor [D, r], scale []) with D={size}, got factor "
            f"{np.shape(cov.factor)} and scale {np.shape(cov.scale)}."
        )
    return LowRank(_x64.as64(cov.factor), _x64.as64(cov.scale))


def _low_rank(shift: jax.Array, first: LowRank, second: LowRank, orders: jax.Array) -> jax.Array:
    """Within the span of both factors a small dense problem; outside it, multiples of the
    identity.
    """
    basis, _ = jnp.linalg.qr(jnp.concatenate([first.factor, second.factor], axis=1))
    rank = basis.shape[1]
    inside = basis.T @ shift
    rest = shift - basis @ inside

    def small(cov: LowRank) -> jax.Array:
        part = basis.T @ cov.factor
        return cov.scale * jnp.eye(rank) + part @ part.T

    excess, squares = _pencil(inside, small(first), small(second))
    outside = shift.size - rank
    if outside == 0:
        return _divergence(excess, squares, np.ones(rank), orders)
    return _divergence(
        jnp.append(excess, _excess(first.scale, second.scale)),
        jnp.append(squares, rest @ rest / second.scale),
        np.append(np.ones(rank), float(outside)),
        orders,
    )
