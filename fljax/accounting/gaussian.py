"""Gaussian differential privacy: mu <-> (epsilon, delta), exact in log space.

A mechanism is mu-GDP if telling two neighbours apart is no easier than N(0, 1) from N(mu, 1). The
Gaussian mechanism is exactly (1 / noise_multiplier)-GDP, and so is any composition of unsampled
Gaussian mechanisms with root of summed squares. Subsampling is not of this form: its central-limit
approximation can under-report and is not offered here.

Source: Dong, Roth, Su (2019), arXiv:1905.02383; Balle, Wang (2018), arXiv:1805.06530.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fljax.accounting import _x64, search
from fljax.accounting._arrays import erf, erfc, jax, jnp, log_ndtr, ndtri, stop_gradient

# Nodes of integrals over (0, inf) by the trapezoid rule in log s; the step meets 1e-16 for
# exp(-s^2/2 - x s).
_LOG_NODES = np.arange(-40.0, 4.3, 0.125)
_STEP = 0.125
_BISECTIONS = 100
_ON_HOST = 128  # numbers that NumPy computes; more repay a compilation


def _integral(x: jax.Array, weight: Any) -> jax.Array:
    """Integral over s > 0 of exp(-s^2/2 - x s) weight(s), for x >= -0.5: positive terms only."""
    x = x[..., None]
    log_s = _LOG_NODES - jnp.log1p(jnp.maximum(x, 0.0))
    s = jnp.exp(log_s)
    return _STEP * jnp.sum(jnp.exp(log_s - s * (s / 2 + x)) * weight(s), -1)


def _log_delta(mu: jax.Array, epsilon: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Log delta and its derivative in epsilon, mu > 0.

    With x = epsilon/mu - mu/2, delta = Phi(-x) - e^epsilon Phi(-x - mu) = phi(x) (m(x) - m(x +
    mu)), m Mills' ratio. The difference of two integrals of one kind is the integral of their
    difference, which does not cancel.
    """
    x = epsilon / mu - mu / 2
    tail = x >= -0.5
    x_tail = jnp.where(tail, x, 0.0)
    log_phi = -(x**2) / 2 - 0.5 * math.log(2 * math.pi)
    gap = _integral(x_tail, lambda s: -jnp.expm1(-mu[..., None] * s))
    mills = _integral(x_tail + mu, lambda s: 1.0)
    # Where Phi(-x) is near 1 (then mu > 1) the plain difference is good, and the second term small.
    x_bulk = jnp.where(tail, -1.0, x)
    mills_bulk = _integral(jnp.where(tail, 1.0, jnp.maximum(x + mu, 0.0)), lambda s: 1.0)
    second = jnp.exp(-(x_bulk**2) / 2) / math.sqrt(2 * math.pi) * mills_bulk
    bulk = erfc(x_bulk / math.sqrt(2)) / 2 - second
    value = jnp.where(tail, log_phi + jnp.log(gap), jnp.log(bulk))
    return value, jnp.where(tail, -mills / gap, -second / bulk)


@_x64.float64(host=_ON_HOST)
def log_delta(mu: Any, epsilon: Any) -> jax.Array:
    """Log of the exact delta of a mu-GDP mechanism at `epsilon` >= 0; arrays broadcast.

    mu 0 gives -inf, mu inf gives 0; a number out of its range, here and in the functions below,
    gives NaN.
    """
    mu, epsilon = jnp.broadcast_arrays(_x64.as64(mu), _x64.as64(epsilon))
    proper = (mu > 0) & jnp.isfinite(mu) & (epsilon >= 0) & jnp.isfinite(epsilon)
    value, _ = _log_delta(jnp.where(proper, mu, 1.0), jnp.where(proper, epsilon, 1.0))
    edge = jnp.where((mu == 0) | (epsilon == jnp.inf), -jnp.inf, 0.0)
    return jnp.where(proper, value, jnp.where((mu >= 0) & (epsilon >= 0), edge, jnp.nan))


@_x64.float64(host=_ON_HOST)
def mu_to_delta(mu: Any, epsilon: Any) -> jax.Array:
    """Exact delta of a mu-GDP mechanism at `epsilon` >= 0; `log_delta` goes on where this
    underflows.
    """
    return jnp.exp(log_delta(mu, epsilon))


@_x64.float64(host=_ON_HOST)
def mu_to_epsilon(mu: Any, delta: Any = None, *, log_delta: Any = None) -> jax.Array:
    """Exact epsilon of a mu-GDP mechanism.

    Args:
      mu: `[...]`, >= 0.
      delta: `[...]` in (0, 1); or
      log_delta: its logarithm, for deltas below 1e-308.

    Returns:
      `[...]`, the epsilon >= 0 at which the mechanism has just this delta, 0 where it has less at
      epsilon 0.
    """
    target = jnp.log(_x64.as64(delta)) if log_delta is None else _x64.as64(log_delta)
    mu, target = jnp.broadcast_arrays(_x64.as64(mu), target)
    proper = (mu > 0) & jnp.isfinite(mu) & (target < 0) & jnp.isfinite(target)
    safe_mu, safe = jnp.where(proper, mu, 1.0), jnp.where(proper, target, -1.0)
    # delta <= Phi(-x) <= exp(-x^2 / 2), so x need not exceed sqrt(-2 log delta).
    high = safe_mu * (jnp.sqrt(-2 * safe) + safe_mu / 2)

    def spent(middle: jax.Array) -> jax.Array:
        return _log_delta(stop_gradient(safe_mu), middle)[0] > stop_gradient(safe)

    start = (jnp.zeros_like(safe_mu), stop_gradient(high))
    _, found = search.bisect(spent, *start, _BISECTIONS)
    # One step of Newton's method: no change in value beyond rounding, and the exact derivative.
    value, slope = _log_delta(safe_mu, found)
    polished = jnp.maximum(found - (value - safe) / stop_gradient(slope), 0.0)
    free = _log_delta(safe_mu, jnp.zeros_like(safe_mu))[0] <= safe
    # Beyond the largest float, as mu^2 / 2 is where it overflows.
    epsilon = jnp.where(free, 0.0, jnp.where(jnp.isfinite(high), polished, jnp.inf))
    edge = jnp.where(mu == 0, 0.0, jnp.where(mu == jnp.inf, jnp.inf, jnp.nan))
    return jnp.where(proper, epsilon, jnp.where(target <= 0, edge, jnp.nan))


@_x64.float64(host=_ON_HOST)
def epsilon_to_mu(epsilon: Any, delta: Any = None, *, log_delta: Any = None) -> jax.Array:
    """Largest mu with which a mu-GDP mechanism is (epsilon, delta)-DP: the analytic Gaussian
    calibration.

    Args:
      epsilon: `[...]`, >= 0.
      delta, log_delta: as in `mu_to_epsilon`.

    Returns:
      `[...]`; 1 / mu is the smallest noise multiplier that does.
    """
    target = jnp.log(_x64.as64(delta)) if log_delta is None else _x64.as64(log_delta)
    epsilon, target = jnp.broadcast_arrays(_x64.as64(epsilon), target)
    proper = (epsilon >= 0) & jnp.isfinite(epsilon) & (target < 0) & jnp.isfinite(target)
    safe, goal = jnp.where(proper, epsilon, 1.0), jnp.where(proper, target, -1.0)
    reach = jnp.sqrt(-2 * goal)
    # delta <= Phi(-x) and delta <= mu / sqrt(2 pi) from below, Phi(12) = 1 - 2e-33 from above.
    low = jnp.maximum(
        2 * safe / (reach + jnp.sqrt(reach**2 + 2 * safe)), jnp.exp(goal) * math.sqrt(2 * math.pi)
    )
    low, high = jnp.log(jnp.maximum(low, 1e-307)), jnp.log(12 + jnp.sqrt(144 + 2 * safe))
    low, high, fixed, fixed_goal = stop_gradient((low, high, safe, goal))

    def kept(middle: jax.Array) -> jax.Array:
        return ~(_log_delta(jnp.exp(middle), fixed)[0] > fixed_goal)

    found, _ = search.bisect(kept, low, high, _BISECTIONS)
    found = jnp.exp(found)
    # d delta / d mu = phi(x): the exact derivative of the solution, with a step of Newton's method
    # of no size.
    value, _ = _log_delta(found, safe)
    x = fixed / found - found / 2
    slope = jnp.exp(-(x**2) / 2 - 0.5 * math.log(2 * math.pi) - stop_gradient(value))
    change = (value - goal) - stop_gradient(value - goal)
    return jnp.where(proper, found - change / slope, jnp.nan)


@_x64.float64(host=_ON_HOST)
def compose(mus: Any) -> jax.Array:
    """The mu `[...]` of a composition of mu-GDP mechanisms `[..., k]`: the root of the summed
    squares.
    """
    return jnp.sqrt(jnp.sum(_x64.non_negative(mus) ** 2, -1))


@_x64.float64(host=_ON_HOST)
def trade_off(mu: Any, fpr: Any) -> jax.Array:
    """Least false-negative rate of any test with false-positive rate `fpr` in [0, 1] against a
    mu-GDP mechanism.
    """
    return jnp.exp(log_ndtr(-ndtri(_x64.unit(fpr)) - _x64.non_negative(mu)))


@_x64.float64(host=_ON_HOST)
def tpr_at_fpr(mu: Any, fpr: Any) -> jax.Array:
    """Largest true-positive rate of any membership test at `fpr` in [0, 1] against a mu-GDP
    mechanism.
    """
    return jnp.exp(log_ndtr(ndtri(_x64.unit(fpr)) + _x64.non_negative(mu)))


@_x64.float64(host=_ON_HOST)
def advantage(mu: Any) -> jax.Array:
    """Largest TPR - FPR of any test, the total variation: 2 Phi(mu / 2) - 1."""
    return erf(_x64.non_negative(mu) / (2 * math.sqrt(2)))
