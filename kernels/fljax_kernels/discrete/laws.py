"""Chances of integer noise as whole numbers of 2**-192, computed on the host by integers alone.

A law is a list of numerators that sum to 2**192, of the integers -reach to reach. They are within
2**-160 of the true law in total variation: rounding costs each of fewer than 2**20 integers less
than 2**-180, and what lies beyond the reach has less than 2**-190.
"""

import decimal
import functools
import math
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

BITS = 192
_POINT = 448  # bits behind the point of all intermediate numbers
_TAIL = 212  # integers of weight below 2**-_TAIL of the largest are left out
LARGEST_STDDEV = 4096.0
LARGEST_ROUNDED = 8192.0  # of a rounded Gaussian


class Law(NamedTuple):
    """numerators: of the integers -reach to reach, of the denominator 2**192."""

    reach: int
    numerators: list[int]


@functools.lru_cache(maxsize=32)
def discrete_gaussian(stddev: float) -> Law:
    """Mass proportional to exp(-x**2 / (2 stddev**2)), stddev > 0 as the fraction that it is.

    Source: Canonne, Kamath, Steinke (2020), arXiv:2004.00010, for the law.
    """
    return _symmetric(list(_gaussian_weights(Fraction(stddev) ** 2)))


@functools.lru_cache(maxsize=32)
def skellam(variance: float) -> Law:
    """The difference of two Poisson counts of mean variance / 2 each, variance > 0 as the fraction
    that it is.

    Its mass at x is proportional to the Bessel function I_x(variance), and these obey
    I_{x-1} = I_{x+1} + (2 x / variance) I_x. Taken downwards from far beyond the reach, the
    recurrence forgets where it began.

    Source: Agarwal, Kairouz, Liu (2021), arXiv:2110.04995, for the law; Miller's recurrence.
    """
    mu = Fraction(variance)
    # Chernoff: P(X > x) <= exp(-x**2 / (2 (mu + x / 3))), below 2**-_TAIL there.
    nats = _TAIL * math.log(2)
    reach = math.ceil(nats / 3 + math.sqrt((nats / 3) ** 2 + 2 * nats * float(mu))) + 1
    # Numbers begin with 512 bits and are cut to them as they grow; `shift` counts what was cut.
    above, here, shift = 0, 1 << (_POINT + 64), 0
    values: list[tuple[int, int]] = []
    for x in range(2 * reach + 64, 0, -1):
        above, here = here, above + here * 2 * x * mu.denominator // mu.numerator
        extra = here.bit_length() - _POINT - 64
        if extra > 0:
            above, here, shift = above >> extra, here >> extra, shift + extra
        if x - 1 <= reach:
            values.append((here, shift))
    weights = [value >> (shift - at) for value, at in reversed(values)]
    return _symmetric([weight for weight in weights if weight])


@functools.lru_cache(maxsize=32)
def rounded_gaussian(stddev: float) -> Law:
    """The whole number next to a draw from N(0, stddev**2), stddev >= 1 as the fraction that it is.

    Its mass at x is the integral of exp(-(x + t)**2 / (2 stddev**2)) over t from -1/2 to 1/2, but
    for a factor: that of a discrete Gaussian times the sum over even k of He_k(x / stddev)
    / ((2 stddev)**k (k + 1)!), by the generating function of Hermite polynomials. Its terms are no
    larger than exp(9): errors of some units of 2**-448 stay below 2**-400.
    """
    variance, one = Fraction(stddev) ** 2, 1 << _POINT
    slope, square_term = ((one * part) // 1 for part in (1 / (2 * variance), 1 / (4 * variance)))
    weights = []
    for x, weight in enumerate(_gaussian_weights(variance)):
        before, here, total, k, last = 0, one, one, 0, 0
        while last < 2:  # two small terms in turn, since one of them may be zero by chance
            step = x * slope * here - square_term * before
            before, here, k = here, (step >> _POINT) // (k + 1), k + 1
            total += 0 if k % 2 else here // (k + 1)
            last = last + 1 if abs(here) >> (_POINT - 256) == 0 else 0
        weights.append((weight * total) >> _POINT)
    return _symmetric(weights)


@functools.lru_cache(maxsize=32)
def reach(law: str, parameter: float) -> int:
    """`Law.reach` of a name of `LAWS`. A rounded Gaussian's needs none of its chances, which take
    seconds where the noise is wide.
    """
    if law == "rounded_gaussian":
        return sum(1 for _ in _gaussian_weights(Fraction(parameter) ** 2)) - 1
    return LAWS[law](parameter).reach


def _gaussian_weights(variance: Fraction) -> Iterator[int]:
    """exp(-x**2 / (2 variance)) of x = 0, 1, .. in units of 2**-448, down to 2**-_TAIL.

    The weight of x + 1 is that of x times r**(2 x + 1), r = exp(-1 / (2 variance)): x steps lose
    x**2 units, less than 2**-408.
    """
    ratio = _exp(-1 / (2 * variance))
    square, factor, weight = (ratio * ratio) >> _POINT, ratio, 1 << _POINT
    while weight >> (_POINT - _TAIL):
        yield weight
        weight = (weight * factor) >> _POINT
        factor = (factor * square) >> _POINT


def _exp(power: Fraction) -> int:
    """2**_POINT e**power, power < 0, rounded: decimal's exp is right to its last digit."""
    with decimal.localcontext() as context:
        context.prec = 160  # 531 bits
        context.Emin, context.Emax = decimal.MIN_EMIN, decimal.MAX_EMAX
        exact = decimal.Decimal(power.numerator) / decimal.Decimal(power.denominator)
        return int(exact.exp() * (1 << _POINT))


def _symmetric(weights: list[int]) -> Law:
    """The law of weights of 0, 1, 2, ... on both sides; what rounding leaves goes to 0."""
    total = weights[0] + 2 * sum(weights[1:])
    one_side = [(weight << BITS) // total for weight in weights[1:]]
    middle = (1 << BITS) - 2 * sum(one_side)
    return Law(len(one_side), [*reversed(one_side), middle, *one_side])


LAWS = {
    "discrete_gaussian": discrete_gaussian,
    "rounded_gaussian": rounded_gaussian,
    "skellam": skellam,
}
