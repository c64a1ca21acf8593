"""Attacks on the arithmetic of noise: outputs that one of two sums could not have given.

A guarantee for real-valued noise says nothing of them, however large the noise is. Each attack
knows both sums and looks at one noisy sum. It is right whenever it says which sum was meant, and
counts how often it can say so; with integers and noise of an exact law it never can, but at the
ends of the law's table.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fljax_kernels
from fljax import _validate
from fljax_kernels import discrete
from fljax_kernels.discrete import alias

_ROWS = 1000  # of the sum whose order is changed
_LARGE = 2**24  # float32 loses a 1 that is added to it
_BITS = 2**23  # uniform values of which `jax.random.normal` makes its draws
_ROOT = np.float32(np.sqrt(2))


class Told(NamedTuple):
    """attack, noise: names. told: share of noisy sums that give away which sum was meant; None
    where the attack does not apply. trials: of each sum.
    """

    attack: str
    noise: str
    told: float | None
    trials: int


@functools.cache
def half_variance_normals() -> np.ndarray:
    """All values of variance 1/2 that `jax.random.normal` multiplies by sqrt(2), sorted."""
    low = np.nextafter(np.float32(-1), np.float32(0))
    steps = jnp.arange(_BITS, dtype=jnp.uint32).astype(jnp.float32) / _BITS
    uniform = jnp.maximum(low, steps * (np.float32(1) - low) + low)
    found = np.sort(np.asarray(jax.lax.erf_inv(uniform)))
    found.flags.writeable = False  # all callers have the same
    return found


def whole_numbers(stddev: float) -> np.ndarray:
    """All values that `discrete_gaussian_noise` draws, sorted: those with mass in its table."""
    columns = alias.table("discrete_gaussian", float(stddev))
    other = (columns.entries % (1 << columns.column_bits)).astype(np.int64)
    first = columns.entries >> np.uint32(columns.column_bits)
    below = first.astype(bool) | columns.rest.astype(bool).any(axis=0)
    # No threshold is a whole column: from it on, a column gives its other value.
    return columns.least + np.union1d(np.flatnonzero(below), other)


def _not_among(noisy: np.ndarray, other: float, all_noise: np.ndarray) -> np.ndarray:
    """Which whole numbers no draw makes of the other sum."""
    return ~np.isin(noisy - int(other), all_noise)


def reach(total: float, stddev: float, draws: np.ndarray, *, joined: bool = False) -> np.ndarray:
    """All sums of a total and noise, float32, sorted; draws: `half_variance_normals`.

    joined: as a compiler adds, which joins the product of a draw and its scale with the sum and
    rounds them once. Else the product is rounded before.
    """
    whole = np.float32(total)
    if not joined:
        return np.asarray(whole + np.float32(stddev) * (_ROOT * draws))
    # 24 bits times 24 bits: exact. The sum is rounded to odd, so that the last rounding is the only
    # one: Boldo and Melquiond (2008), "Emulation of a FMA and correctly rounded sums".
    product = draws.astype(np.float64) * np.float64(np.float32(stddev) * _ROOT)
    near = product + np.float64(whole)
    moved = near - product
    lost = (product - (near - moved)) + (np.float64(whole) - moved)
    even = near.view(np.int64) % 2 == 0
    odd = np.nextafter(near, np.where(lost > 0, np.inf, -np.inf))
    return np.asarray(np.where((lost != 0) & even, odd, near), np.float32)


def cannot_be(
    noisy: np.ndarray, other: float, stddev: float, draws: np.ndarray, *, joined: bool = False
) -> np.ndarray:
    """Mironov (2012): which of the float32 numbers no draw makes of the other sum, see `reach`.

    Sums grow with their draws: the first draw that is enough is found by halving, and few of the
    sums are made.
    """
    low, high = np.zeros(len(noisy), int), np.full(len(noisy), len(draws) - 1)
    while (low < high).any():
        middle = (low + high) // 2
        too_little = reach(other, stddev, draws[middle], joined=joined) < noisy
        low = np.where(too_little, np.minimum(middle + 1, high), low)
        high = np.where(too_little, high, middle)
    return np.asarray(reach(other, stddev, draws[low], joined=joined) != noisy)


def too_fine(
    noisy: np.ndarray, other: float, stddev: float = 1.0, *, joined: bool = False
) -> np.ndarray:
    """Haney et al. (2022), arXiv:2207.13793: which are no multiple of the steps in which the other
    sum, not zero, and a draw near it add up.

    For |y| <= |other| / 4 the draw is at least 3 / 4 |other| long, hence a multiple of 2**-23 of
    the power of two below that; so is the other sum, and what they add up to. Where product and sum
    are `joined`, see `reach`, the draw is a multiple of its steps before it is scaled by stddev
    sqrt(2), and y is off by half of its own last bit.
    """
    if other == 0:
        return np.zeros(noisy.shape, bool)
    exact, least = noisy.astype(np.float64), 0.75 * abs(float(other))
    near = np.abs(exact) <= abs(other) / 4
    if not joined:
        return near & (np.remainder(exact, _last_bit(least)) != 0)
    scale = float(np.float32(stddev) * _ROOT)
    step = scale * _last_bit(least / scale)
    draw = exact - float(other)
    off = np.abs(draw - np.round(draw / step) * step)
    # What float64 rounds here is below 2**-50 of the draw.
    return np.asarray(near & (off > np.spacing(np.abs(noisy)) / 2 + 2.0**-50 * np.abs(draw)))


def _last_bit(size: float) -> float:
    """Of a float32 of that size."""
    return 2.0 ** (math.floor(math.log2(size)) - 23)


def _float32(key: jax.Array, total: float, stddev: float, trials: int) -> np.ndarray:
    unit = fljax_kernels.add_gaussian_noise(key, jnp.zeros(trials, jnp.float32), 1.0)
    # On the host: a compiler may join the product and the sum, and round once.
    return np.float32(total) + np.float32(stddev) * np.asarray(unit)


def _whole(key: jax.Array, total: float, stddev: float, trials: int) -> np.ndarray:
    noise = np.asarray(discrete.discrete_gaussian_noise(key, (trials,), stddev))
    return noise.astype(np.int64) + int(total)


def play(key: jax.Array, *, stddev: float, trials: int = 20_000) -> list[Told]:
    """Three attacks, on float32 noise and on a discrete Gaussian, as `distributed_dgauss` draws it.

    - low bits: is the noisy sum among those that the other sum and any draw make?
    - precision: is it finer than the other sum allows? Whole numbers have no precision to look at.
    - order of summation: the same 1001 rows added up in two orders, which float32 tells apart.

    Args:
      key: `[]` typed key.
      stddev: of the noise, in units of the difference of the two sums. In [1, 64].
      trials: noisy sums of each.

    Returns:
      Six results, of each attack the one of float32 first.

    Raises:
      ValueError: an argument is out of range.

    Source: Mironov (2012), CCS '12; arXiv:2207.13793; arXiv:2207.10635.
    """
    _validate.positive_int(trials=trials)
    if not 1 <= stddev <= 64:
        raise ValueError(f"Expected stddev in [1, 64], got stddev={stddev!r}.")
    # Below 2**24 every sum of whole numbers is exact, above it each single 1 is lost.
    rows = np.array([_LARGE, *[1] * _ROWS])
    single = rows.astype(np.float32)
    in_order = [float(np.add.accumulate(each)[-1]) for each in (single, single[::-1])]
    exact = [int(rows.sum()), int(rows[::-1].sum())]
    draws = half_variance_normals()
    all_whole = whole_numbers(stddev)

    def whole_cannot_be(noisy: np.ndarray, other: float) -> np.ndarray:
        return _not_among(noisy, other, all_whole)

    def low_bits(noisy: np.ndarray, other: float) -> np.ndarray:
        return cannot_be(noisy, other, stddev, draws)

    kinds: list[tuple[str, str, _Draw, list[float], _Rule | None]] = [
        ("low bits", "float32", _float32, [0, 1], low_bits),
        ("low bits", "whole numbers", _whole, [0, 1], whole_cannot_be),
        ("precision", "float32", _float32, [0, 1], too_fine),
        ("precision", "whole numbers", _whole, [0, 1], None),
        ("order of summation", "float32", _float32, in_order, low_bits),
        ("order of summation", "whole numbers", _whole, [*exact], whole_cannot_be),
    ]
    found = []
    for place, (attack, noise, draw, totals, rule) in enumerate(kinds):
        if rule is None:
            found.append(Told(attack, noise, None, trials))
            continue
        keys = jax.random.split(jax.random.fold_in(key, place), 2)
        pairs = zip(keys, totals, reversed(totals), strict=True)
        told = [rule(draw(one, mine, stddev, trials), other) for one, mine, other in pairs]
        found.append(Told(attack, noise, float(np.mean(told)), trials))
    return found


_Draw = Callable[[jax.Array, float, float, int], np.ndarray]
_Rule = Callable[[np.ndarray, float], np.ndarray]
