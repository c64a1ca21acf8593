"""Renyi divergences of integer noise on vectors of integers: sums of discrete Gaussians, Skellam.

A unit moves a vector of integers by v, with |v|_2 and |v|_1 bounded. Coordinates that do not move
cost nothing, so that all bounds count the most that can move, min(dimension, |v|_1), and hold for
vectors of any length. Both laws are symmetric: the two directions cost the same.
"""

import functools
import math
from typing import Any

import numpy as np

from fljax import _validate
from fljax.accounting.renyi.rdp import as_orders

_EXACT_SHIFTS = 16  # moves of one coordinate whose Skellam divergence is summed up
_EXACT_VARIANCE = 4096.0  # above, the closed form is within 2 % / variance of the truth
_MOST_MOVED = 2048.0  # order times move: beyond, sums would be long


def lengths(
    l2_sensitivity: float, l1_sensitivity: float | None = None, dimension: int | None = None
) -> tuple[float, float, int]:
    """(L2, L1, coordinates) that a vector of integers of these bounds moves at most.

    Integers are at least as small as their squares, so that L1 <= L2**2, and no more coordinates
    move than that; L1 <= sqrt(coordinates) L2 by Cauchy and Schwarz.

    Args:
      l2_sensitivity, l1_sensitivity: in [1, 1e100], in whole steps of the grid: a vector of
        integers moves by one at least. None: no bound beside that of L2.
      dimension: of the vector, >= 1; None: any.

    Raises:
      ValueError: an argument is out of range.
    """
    _validate.grid_steps(l2_sensitivity=l2_sensitivity)
    l1 = l2_sensitivity**2
    if l1_sensitivity is not None:
        _validate.grid_steps(l1_sensitivity=l1_sensitivity)
        l1 = min(l1, l1_sensitivity)
    # Norms are floats: one that is a whole number but for rounding counts as that number.
    moved = math.floor(l1 * (1 + 1e-12))
    if dimension is not None:
        _validate.positive_int(dimension=dimension)
        moved = min(moved, dimension)
    return l2_sensitivity, min(l1, math.sqrt(moved) * l2_sensitivity), moved


def log_distance(stddev: float, count: int) -> float:
    """Largest minus smallest log ratio of the law of a sum of `count` discrete Gaussians to that of
    one with the summed variance.

    Adding one of variance v to one of variance w gives, at x, the discrete Gaussian of variance
    v + w times sum_y exp(-(y - t)**2 / (2 u)), 1 / u = 1 / v + 1 / w, t = x v / (v + w). By Poisson
    summation that is a theta function of t, largest for whole t and smallest half-way between:
    its log varies by log(theta_3(q) / theta_4(q)), q = exp(-2 pi**2 u), about 4 q. Adding noise
    keeps a ratio within its bounds, so that these add up over the clients.

    Args:
      stddev: of one of them, in [1e-100, 1e100]. count: >= 1.

    Raises:
      ValueError: an argument is out of range.

    Source: ours; Kairouz, Liu, Steinke (2021), arXiv:2102.06387, Theorem 1 has 10 q in its place.
    """
    _validate.squarable(stddev=stddev)
    _validate.positive_int(count=count)
    _validate.squarable(count=count)
    # u = stddev**2 k / (k + 1) grows with k: all after the first thousand count as the last one.
    k = np.arange(1.0, min(count, 1000))
    if not k.size:
        return 0.0
    q = np.exp(-2 * (math.pi * stddev) ** 2 * (k / (k + 1)))
    if q[0] > 0.5:
        return math.inf
    powers = q[:, None] ** (np.arange(1, 12.0) ** 2)  # the next is 2**-144
    signs = (-1.0) ** np.arange(1, 12)
    each = np.log1p(2 * powers.sum(axis=1)) - np.log1p(2 * (signs * powers).sum(axis=1))
    return float(each.sum() + (count - 1 - k.size) * each[-1]) * (1 + 1e-12)


def discrete_gaussian_sum(
    stddev: float,
    count: int,
    orders: Any,
    *,
    l2_sensitivity: float,
    l1_sensitivity: float | None = None,
    dimension: int | None = None,
) -> np.ndarray:
    """Upper bounds `[K]` for the sum of `count` discrete Gaussians in each coordinate.

    With S = stddev sqrt(count) and t = `log_distance`, each coordinate that moves by v costs at
    most a v**2 / (2 S**2) + t at order a: its log ratio is that of one discrete Gaussian but for t,
    and a sum's moments are no larger than a Gaussian's. And at most a (|v| / S + t)**2 / 2: two
    laws whose log ratio varies by t are t**2 / 8-zCDP, once on either side.

    Args:
      stddev: parameter of one of them, in [1e-100, 1e100].
      count: whom nobody knows the noise of, >= 1.
      orders: `[K]`, each > 1.
      l2_sensitivity, l1_sensitivity, dimension: as in `lengths`, in whole steps of the grid.

    Raises:
      ValueError: an argument is out of range.

    Source: Canonne, Kamath, Steinke (2020), arXiv:2004.00010, Theorem 4 for count 1; Cesar, Rogers
      (2020), arXiv:2009.03868, Lemma 3.2 for bounded ranges; Bun, Steinke (2016), arXiv:1605.02065,
      Proposition 27 for the sum of three distances.
    """
    a = np.asarray(as_orders(orders))
    l2, l1, moved = lengths(l2_sensitivity, l1_sensitivity, dimension)
    t = log_distance(stddev, count)
    s = stddev * math.sqrt(count)
    more = 0.0 if t == 0 else np.minimum(t * moved, a * (l1 / s * t + t**2 * moved / 2))
    return (a / 2 * (l2 / s) ** 2 + more) * (1 + 1e-14)


def skellam(
    variance: float,
    orders: Any,
    *,
    l2_sensitivity: float,
    l1_sensitivity: float | None = None,
    dimension: int | None = None,
) -> np.ndarray:
    """Upper bounds `[K]` for Skellam noise of `variance` in each coordinate: the smaller of two.

    A closed form, at whole orders a:
    a L2**2 / (2 variance) + min(((2 a - 1) L2**2 + 6 L1) / (4 variance**2), 3 L1 / (2 variance));
    between them the log of the moment is convex, and a chord lies above it. And L2**2 times the
    largest divergence of one coordinate / its move squared, which up to 16 steps is summed up, and
    beyond is the closed form's, which falls.

    Args:
      variance: in [1e-100, 1e100]. orders: `[K]`, each > 1.
      l2_sensitivity, l1_sensitivity, dimension: as in `lengths`, in whole steps of the grid.

    Raises:
      ValueError: an argument is out of range.

    Source: Agarwal, Kairouz, Liu (2021), arXiv:2110.04995, Theorem 3.5; the second bound is ours.
    """
    a = np.asarray(as_orders(orders))
    _validate.squarable(variance=variance)
    l2, l1, _ = lengths(l2_sensitivity, l1_sensitivity, dimension)
    found = _closed(variance, a, l2, l1)
    if variance <= _EXACT_VARIANCE:
        most = min(math.floor(l2 * (1 + 1e-12)), _EXACT_SHIFTS)
        beyond = _EXACT_SHIFTS + 1
        worst = np.asarray(_per_square(float(variance), tuple(a.tolist()), most))
        if l2 >= beyond:
            worst = np.maximum(worst, _closed(variance, a, beyond, beyond) / beyond**2)
        found = np.minimum(found, l2**2 * worst)
    return found * (1 + 1e-12)


def _closed(variance: float, orders: np.ndarray, l2: float, l1: float) -> np.ndarray:
    def log_moment(a: np.ndarray) -> np.ndarray:
        both = ((2 * a - 1) * l2**2 + 6 * l1) / (2 * variance) ** 2, 3 * l1 / (2 * variance)
        return (a - 1) * (a * l2**2 / (2 * variance) + np.minimum(*both))

    low = np.floor(orders)
    share = orders - low
    return ((1 - share) * log_moment(low) + share * log_moment(low + 1)) / (orders - 1)


@functools.lru_cache(maxsize=4096)
def _per_square(variance: float, orders: tuple[float, ...], most: int) -> tuple[float, ...]:
    """Largest of D(v) / v**2 over the moves v = 1, .., `most` of one coordinate; inf where sums
    would be long.
    """
    a = np.asarray(orders)
    out = np.full(a.shape, np.inf)
    near = a * most <= _MOST_MOVED
    if not near.any():
        return tuple(out.tolist())
    reach = math.ceil((a[near].max() + 1) * most + 12 * math.sqrt(variance) + 100)
    logs = log_masses(variance, reach)
    x = np.arange(-reach, reach + 1)
    worst = np.zeros(near.sum())
    for move in range(1, most + 1):
        here = logs[np.abs(x[move:])]
        terms = a[near, None] * here + (1 - a[near, None]) * logs[np.abs(x[move:] - move)]
        top = terms.max(axis=1)
        # Both ends lie far below the top, where terms fall by more than half a step.
        far = np.maximum(terms[:, 0], terms[:, -1]) - top < -60
        total = top + np.log(np.exp(terms - top[:, None]).sum(axis=1) + 1e-24)
        total += 2.0**-44 * (1 + a[near])  # logs that are sums of some thousand rounded ones
        worst = np.maximum(worst, np.where(far, total / (a[near] - 1), np.inf) / move**2)
    out[near] = worst
    return tuple(out.tolist())


@functools.lru_cache(maxsize=8)
def log_masses(variance: float, reach: int) -> np.ndarray:
    """Logs `[2 reach + 1]` of Skellam masses at 0, 1, .., by ratios of neighbouring Bessel
    functions, from far outside inwards: sums of positive terms, which cancel nothing.

    Args:
      variance: in [1e-100, 1e100]. reach: >= 1, beyond some standard deviations.

    Raises:
      ValueError: an argument is out of range.
    """
    _validate.squarable(variance=variance)
    _validate.positive_int(reach=reach)
    ratio, ratios = 0.0, np.zeros(2 * reach + 1)
    for n in range(4 * reach + 64, 0, -1):
        ratio = 1 / (2 * n / variance + ratio)
        if n <= 2 * reach:
            ratios[n] = math.log(ratio)
    logs = np.cumsum(ratios)
    return np.asarray(logs - math.log1p(2 * np.exp(logs[1:]).sum()))
