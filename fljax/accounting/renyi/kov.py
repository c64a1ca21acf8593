"""Composition of equal (epsilon, delta)-DP rounds, the forms that papers quote; Renyi composition
is sharper.

Source: Kairouz, Oh, Viswanath (2013), arXiv:1311.0776, Theorems 3.3 and 3.4.
"""

import math

import numpy as np

from fljax import _validate
from fljax.accounting import search


def exact_slack(epsilon: float, count: int, total: float) -> float:
    """Least delta at which `count` rounds of (epsilon, 0)-DP are always (total, delta)-DP.

    Args:
      epsilon: of one round, > 0. count: >= 1. total: >= 0.
    """
    _check(epsilon, count)
    _validate.non_negative(total=total)
    ell = np.arange(count + 1)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1.0, count + 1)))])
    log_binomial = log_factorial[count] - log_factorial - log_factorial[::-1]
    # C(T, l) (e^((T - l) eps) - e^(total + l eps)) / (1 + e^eps)^T, positive where (T - 2 l) eps >
    # total.
    gap = (count - 2 * ell) * epsilon - total
    log_terms = log_binomial + (count - ell) * epsilon - count * np.logaddexp(0.0, epsilon)
    return float(
        np.sum(np.where(gap > 0, np.exp(log_terms) * -np.expm1(-np.maximum(gap, 0.0)), 0.0))
    )


def grid(epsilon: float, delta: float, count: int, slack: float) -> tuple[float, float]:
    """(total epsilon, total delta), epsilon from the grid count * epsilon, (count - 2) * epsilon,
    ... of the theorem.

    Args:
      epsilon, delta: of one round; delta in [0, 1).
      count: rounds.
      slack: what may be added to delta, in (0, 1). All of it is reported as spent, as papers do.
    """
    _check(epsilon, count)
    _validate.below_one(delta=delta)
    _validate.open_unit(slack=slack)

    def within(i: int) -> bool:  # the slack grows with i
        return exact_slack(epsilon, count, (count - 2 * i) * epsilon) <= slack

    last = search.last_whole(within, 0, count // 2 + 1)
    return (count - 2 * last) * epsilon, _total_delta(delta, count, slack)


def real(epsilon: float, delta: float, count: int, slack: float) -> tuple[float, float]:
    """As `grid`, with the smallest real epsilon whose exact slack is within the budget."""
    high, total = grid(epsilon, delta, count, slack)
    low = max(high - 2 * epsilon, 0.0)

    def beyond(total: float) -> bool:
        return not exact_slack(epsilon, count, total) <= slack

    return (float(search.bisect(beyond, low, high, 80)[1]) if beyond(low) else low), total


def simplified(epsilon: float, delta: float, count: int, slack: float) -> tuple[float, float]:
    """As `grid`, by the closed form of the smallest of three bounds."""
    _check(epsilon, count)
    _validate.below_one(delta=delta)
    _validate.open_unit(slack=slack)
    base = count * epsilon * math.tanh(epsilon / 2)
    spread = epsilon * math.sqrt(2 * count * math.log(1 / slack))
    other = epsilon * math.sqrt(2 * count * math.log(math.e + math.sqrt(count) * epsilon / slack))
    return min(count * epsilon, base + spread, base + other), _total_delta(delta, count, slack)


def _check(epsilon: float, count: int) -> None:
    _validate.positive(epsilon=epsilon)
    _validate.positive_int(count=count)


def _total_delta(delta: float, count: int, slack: float) -> float:
    return -math.expm1(count * math.log1p(-delta) + math.log1p(-slack))
