"""From Renyi curves to (epsilon, delta) and back, and what (epsilon, delta) pairs alone prove."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fljax import _validate
from fljax.accounting import _x64, groups
from fljax.accounting._arrays import fori_loop, jax, jnp, stop_gradient
from fljax.errors import PrivacyPreconditionError

_ON_HOST = 4096  # numbers that NumPy computes; more repay a compilation


class OrderWarning(UserWarning):
    """The best Renyi order is at the end of the grid: more orders would give a smaller epsilon."""


def _log_delta_kl(rdp: jax.Array) -> jax.Array:
    """Log of sqrt(1 - exp(-KL)), a bound on total variation, hence on delta at every epsilon; KL <=
    `rdp`.
    """
    positive = jnp.where(rdp > 0, rdp, 1.0)
    # Neither > 0 nor 0 is NaN, which proves nothing.
    return jnp.where(
        rdp > 0, 0.5 * jnp.log(-jnp.expm1(-positive)), jnp.where(rdp == 0, -jnp.inf, jnp.nan)
    )


def _curve(rdp: Any, orders: Any) -> tuple[jax.Array, jax.Array]:
    """Divergences and orders in float64, both NaN where the order is not > 1 or the divergence not
    >= 0.
    """
    orders = _x64.renyi_orders(orders)
    return jnp.where(orders > 1, _x64.non_negative(rdp), jnp.nan), orders


@_x64.float64(host=_ON_HOST)
def rdp_to_epsilons(rdp: Any, orders: Any, delta: Any) -> jax.Array:
    """Epsilon that each single order proves.

    Args:
      rdp: `[..., K]` Renyi divergences in nats, >= 0.
      orders: `[K]`, each > 1.
      delta: `[...]` in [0, 1], broadcast against `rdp` without its last axis.

    Returns:
      `[..., K]`; the epsilon of the whole curve is the minimum over the last axis. NaN for a number
      out of its range, also of the minimum.

    Source: Canonne, Kamath, Steinke (2020), arXiv:2004.00010, Proposition 12; epsilon 0 by
      Bretagnolle-Huber.
    """
    rdp, orders = _curve(rdp, orders)
    log_delta = jnp.log(_x64.unit(delta))[..., None]
    epsilon = rdp + jnp.log1p(-1 / orders) - (log_delta + jnp.log(orders)) / (orders - 1)
    return jnp.where(_log_delta_kl(rdp) <= log_delta, 0.0, jnp.maximum(epsilon, 0.0))


@_x64.float64(host=_ON_HOST)
def rdp_to_epsilon(rdp: Any, orders: Any, delta: Any) -> jax.Array:
    """Smallest epsilon `[...]` that the curve `rdp` `[..., K]` proves at `delta`; see
    `rdp_to_epsilons`.
    """
    return rdp_to_epsilons(rdp, orders, delta).min(-1)


@_x64.float64(host=_ON_HOST)
def rdp_to_log_deltas(rdp: Any, orders: Any, epsilon: Any) -> jax.Array:
    """Log delta that each single order proves at `epsilon` `[...]` >= 0; shapes and source as in
    `rdp_to_epsilons`.
    """
    rdp, orders = _curve(rdp, orders)
    epsilon = _x64.non_negative(epsilon)[..., None]
    log_delta = (orders - 1) * (rdp - epsilon + jnp.log1p(-1 / orders)) - jnp.log(orders)
    return jnp.minimum(jnp.minimum(log_delta, _log_delta_kl(rdp)), 0.0)


@_x64.float64(host=_ON_HOST)
def rdp_to_delta(rdp: Any, orders: Any, epsilon: Any) -> jax.Array:
    """Smallest delta `[...]` that the curve `rdp` `[..., K]` proves at `epsilon`; see
    `rdp_to_log_deltas`.
    """
    return jnp.exp(rdp_to_log_deltas(rdp, orders, epsilon).min(-1))


@_x64.float64(host=_ON_HOST)
def epsilon_to_rdp(epsilon: Any, delta: Any, orders: Any) -> jax.Array:
    """Largest Renyi divergence `[..., K]` per order that still proves (epsilon, delta);
    `rdp_to_epsilons` inverted.

    A mechanism whose curve lies below this one at any single order is (epsilon, delta)-DP: the
    budget of a calibration. Negative where an order proves nothing at this delta; NaN for a number
    out of its range.
    """
    epsilon, orders = _x64.as64(epsilon)[..., None], _x64.renyi_orders(orders)
    epsilon = jnp.where((epsilon >= 0) & jnp.isfinite(epsilon), epsilon, jnp.nan)
    log_delta = jnp.log(_x64.unit(delta))[..., None]
    return epsilon - jnp.log1p(-1 / orders) + (log_delta + jnp.log(orders)) / (orders - 1)


@_x64.float64(host=_ON_HOST)
def zcdp_to_epsilon(rho: Any, delta: Any) -> jax.Array:
    """Epsilon `[...]` of rho-zCDP at `delta`: the conversion of `rdp_to_epsilons` at the best of
    all real orders.

    Args:
      rho: `[...]`, >= 0.
      delta: `[...]`, in (0, 1).

    Returns:
      `[...]`, NaN for a number out of its range.

    Source: Canonne, Kamath, Steinke (2020), arXiv:2004.00010, Corollary 13; Bun, Steinke (2016),
      arXiv:1605.02065.
    """
    rho, log_delta = jnp.broadcast_arrays(_x64.non_negative(rho), jnp.log(_x64.unit(delta)))
    safe = jnp.where(rho > 0, rho, 1.0)

    def value(log_excess: jax.Array) -> jax.Array:
        a = 1 + jnp.exp(log_excess)
        return safe * a + jnp.log1p(-1 / a) - (log_delta + jnp.log(a)) / (a - 1)

    # Any order gives a bound; thirds of the interval close in on the best, as the function has one
    # valley.
    def third(_: Any, bracket: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bracket
        left, right = low + (high - low) / 3, high - (high - low) / 3
        lower = value(left) < value(right)
        return jnp.where(lower, low, left), jnp.where(lower, right, high)

    start = (jnp.full_like(safe, -16.0), jnp.full_like(safe, 28.0))
    low, high = fori_loop(0, 120, third, stop_gradient(start))
    epsilon = jnp.maximum(value(stop_gradient(low + high) / 2), 0.0)
    epsilon = jnp.where(rho == 0, 0.0, epsilon)
    return jnp.where((rho >= 0) & (log_delta <= 0), epsilon, jnp.nan)


def group_privacy(epsilon: float, delta: float, size: int) -> tuple[float, float]:
    """(epsilon, delta) for groups of `size` units from that of one unit.

    Args:
      epsilon: >= 0. delta: in [0, 1). size: >= 1.

    Returns:
      (size * epsilon, delta * sum_{i<size} exp(i epsilon)), the second at most 1. Loose; a Gaussian
      mechanism with its noise multiplier divided by `size` is exact.

    Source: Vadhan (2017), The complexity of differential privacy, Lemma 2.2, with its sum kept.
    """
    return size * epsilon, groups.group_delta(epsilon, delta, size)


def compose_optimal(epsilon: float, delta: float, count: int) -> list[tuple[float, float]]:
    """The exact frontier of `count` equal, otherwise arbitrary (epsilon, delta)-DP mechanisms.

    Args:
      epsilon: of one mechanism, >= 0. delta: of one mechanism, in [0, 1). count: >= 1.

    Returns:
      (epsilon, delta) pairs, epsilon falling from count * epsilon to 0 or epsilon in steps of 2
      epsilon. No better bound holds for mechanisms known by (epsilon, delta) alone.

    Source: Kairouz, Oh, Viswanath (2013), arXiv:1311.0776, Theorem 3.3.
    """
    _validate.non_negative(epsilon=epsilon)
    _validate.below_one(delta=delta)
    _validate.positive_int(count=count)
    ell = np.arange(count + 1)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1.0, count + 1)))])
    log_binomial = log_factorial[count] - log_factorial - log_factorial[::-1]
    log_failure = count * math.log1p(-delta)
    pairs = []
    for i in range(count // 2 + 1):
        # sum_{l<i} C(k, l) (e^((k-l) eps) - e^((k-2i+l) eps)) / (1 + e^eps)^k, term by term without
        # overflow.
        l = ell[:i]
        log_terms = log_binomial[:i] + (count - l) * epsilon - count * np.logaddexp(0.0, epsilon)
        inner = float(np.sum(np.exp(log_terms) * -np.expm1(-2 * (i - l) * epsilon)))
        pairs.append(
            (
                (count - 2 * i) * epsilon,
                -math.expm1(log_failure + math.log1p(-min(inner, 1 - 1e-16))),
            )
        )
    return pairs


def compose_advanced(epsilon: float, delta: float, count: int, slack: float) -> tuple[float, float]:
    """Advanced composition, the bound many papers print; `compose_optimal` is never worse.

    Args:
      epsilon, delta, count: as in `compose_optimal`.
      slack: the additional delta, in (0, 1).

    Returns:
      (epsilon sqrt(2 count log(1 / slack)) + count epsilon (e^epsilon - 1), count delta + slack),
      delta at most 1.

    Source: Dwork, Rothblum, Vadhan (2010), Boosting and differential privacy, Theorem III.3.
    """
    _validate.non_negative(epsilon=epsilon)
    _validate.below_one(delta=delta)
    _validate.positive_int(count=count)
    _validate.open_unit(slack=slack)
    spread = epsilon * math.sqrt(2 * count * math.log(1 / slack))
    return spread + count * epsilon * math.expm1(epsilon), min(1.0, count * delta + slack)


def classic_gaussian_noise(epsilon: float, delta: float) -> float:
    """Noise multiplier sqrt(2 log(1.25 / delta)) / epsilon of the textbook; proved for epsilon < 1
    only.

    `gaussian.epsilon_to_mu` gives the exact, smaller one for every epsilon.

    Raises:
      ValueError: `delta` not in (0, 1) or `epsilon` <= 0.
      PrivacyPreconditionError: `epsilon` >= 1, where the formula can give too little noise.

    Source: Dwork, Roth (2014), The algorithmic foundations of differential privacy, Theorem A.1.
    """
    _validate.positive(epsilon=epsilon)
    _validate.open_unit(delta=delta)
    if not epsilon < 1:
        raise PrivacyPreconditionError(
            f"Expected epsilon < 1 for the classic Gaussian formula, got epsilon={epsilon!r}."
        )
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def epsilon_delta_trade_off(epsilon: float, delta: float, fpr: Any) -> np.ndarray:
    """Least false-negative rate of any test at `fpr` `[...]` in [0, 1] against an (epsilon,
    delta)-DP mechanism.

    Source: Kairouz, Oh, Viswanath (2013), arXiv:1311.0776, Theorem 2.1.
    """
    _validate.non_negative(epsilon=epsilon)
    _validate.closed_unit(delta=delta)
    _validate.each(_validate.closed_unit, fpr=fpr)
    fpr = np.asarray(fpr, np.float64)
    both = np.maximum(
        1 - delta - np.exp(min(epsilon, 700.0)) * fpr, np.exp(-epsilon) * (1 - delta - fpr)
    )
    return np.maximum(both, 0.0)


def reconstruction_bound(trade_off: Callable[[float], float], prior: float) -> float:
    """Largest chance that any attack reconstructs a record within its tolerance.

    Args:
      trade_off: the mechanism's trade-off function: false-positive rate -> least false-negative
        rate, decreasing. For mu-GDP, `lambda a: gaussian.trade_off(mu, a)`.
      prior: chance of success of the best guess without the output, in [0, 1].

    Returns:
      1 - trade_off(prior). Proved for each target record; no attack does better on average over the
      prior.

    Source: Kulynych, Gomez, Kaissis, Calmon, Troncoso (2025), arXiv:2507.06969; Hayes, Mahloujifar,
    Balle (2023), arXiv:2302.07225.
    """
    _validate.closed_unit(prior=prior)
    return min(max(1.0 - float(trade_off(prior)), prior), 1.0)
