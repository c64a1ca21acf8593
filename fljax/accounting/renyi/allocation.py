"""Renyi divergence of Gaussian noise on rounds of which a unit is in some, drawn at random.

A unit is in `times` of `num_rounds` rounds, each choice as likely. Told which round of which block
of num_rounds // times it was, an adversary knows more: so it costs no more than `times` runs of one
round of a block. Those are the pair of a mixture of m normals of unit means, P, and noise alone, Q.

- P from Q at whole orders a: the moment is a! / m**a times the coefficient of x**a in
  (sum_c x**c exp(c (c - 1) / (2 s**2)) / c!)**m, exactly.
- Q from P at any order: the mean of m ratios is at least their geometric mean, which gives
  (a + m - 1) / (2 m s**2).

Source: Feldman, Shenfeld (2025), arXiv:2502.08202, for the reduction and both directions.
"""

import functools
import math
from typing import Any

import numpy as np

from fljax import _validate
from fljax.accounting.renyi.rdp import as_orders

_MOST_WHOLE = 128  # larger orders cost what rounds without a choice do


def gaussian(noise_multiplier: float, num_rounds: int, times: int, orders: Any) -> np.ndarray:
    """Upper bounds `[K]` for all rounds together, adding or removing a unit.

    Args:
      noise_multiplier: > 0. num_rounds: >= 1. times: of one unit, in [1, num_rounds].
      orders: `[K]`, each > 1.

    Raises:
      ValueError: an argument is out of range.
    """
    a = np.asarray(as_orders(orders))
    _validate.positive(noise_multiplier=noise_multiplier)
    _validate.positive_int(num_rounds=num_rounds, times=times)
    if times > num_rounds:
        raise ValueError(f"Expected times <= num_rounds={num_rounds}, got times={times}.")
    block = num_rounds // times
    plain = a / (2 * noise_multiplier**2)
    without = (a + block - 1) / (2 * block * noise_multiplier**2)
    log_moments = np.asarray(_log_moments(float(noise_multiplier), block))
    near = np.minimum(a, _MOST_WHOLE)
    low = np.minimum(np.floor(near).astype(int), _MOST_WHOLE - 1)
    share = near - low
    # The log of the moment is convex in the order and 0 at order 1: a chord lies above it.
    chord = (1 - share) * log_moments[low] + share * log_moments[low + 1]
    with_unit = np.where(a <= _MOST_WHOLE, chord / (near - 1), plain)
    return times * np.minimum(np.maximum(with_unit, without), plain) * (1 + 1e-12)


@functools.lru_cache(maxsize=256)
def _log_moments(noise_multiplier: float, block: int) -> tuple[float, ...]:
    """E_Q[(P / Q)**a] in logs for a = 0, 1, .., by squaring a power series of positive terms."""
    a = np.arange(_MOST_WHOLE + 1.0)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(a[1:]))])
    power = a * (a - 1) / (2 * noise_multiplier**2) - log_factorial
    found, left = np.where(a == 0, 0.0, -np.inf), block
    while left:
        if left % 2:
            found = _product(found, power)
        power, left = _product(power, power), left // 2
    logs = found + log_factorial - a * math.log(block)
    return tuple(np.maximum(np.where(a < 2, 0.0, logs), 0.0).tolist())


def _product(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Logs of the coefficients of a product, as far as both go."""
    size = len(one)
    back = np.arange(size)[:, None] - np.arange(size)
    terms = np.where(back >= 0, one[None, :] + other[np.maximum(back, 0)], -np.inf)
    top = terms.max(axis=1, keepdims=True)
    return np.asarray(np.log(np.exp(terms - top).sum(axis=1)) + top[:, 0])
