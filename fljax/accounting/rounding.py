"""Numbers of a claim as text: rounded so that printing never makes a claim stronger."""

import decimal
import math


def rounded_up(value: float, digits: int = 6) -> str:
    """`value` with so many significant digits, never less than it is: printing must not make a
    claim stronger.

    Of a float the shortest decimal number that reads back as it counts: 0.001 is exact at any
    number of digits.
    """
    return _rounded(value, digits, decimal.ROUND_CEILING)


def at_most(value: float, digits: int = 6) -> str:
    """As `rounded_up`, without zeros at the end: "4", "1e-05"."""
    return _short(rounded_up(value, digits), digits)


def at_least(value: float, digits: int = 6) -> str:
    """A lower bound, never more than it is, without zeros at the end."""
    return _short(_rounded(value, digits, decimal.ROUND_FLOOR), digits)


def _rounded(value: float, digits: int, rounding: str) -> str:
    value = float(value)
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    number = decimal.Decimal(repr(value))
    step = decimal.Decimal(1).scaleb(number.adjusted() - digits + 1)
    number = number.quantize(step, rounding=rounding)
    return f"{number:f}" if 1e-4 <= abs(value) < 1e9 else f"{number:.{digits - 1}e}"


def _short(text: str, digits: int) -> str:
    return f"{float(text):.{digits}g}"


def shown_epsilon(epsilon: float) -> str:
    """Rounded up to three decimals, and no fewer than three digits: the short form for tables and
    terminals.
    """
    if not math.isfinite(epsilon) or epsilon == 0:
        return f"{epsilon:.3f}"
    before_the_point = decimal.Decimal(repr(float(epsilon))).adjusted() + 1
    return rounded_up(epsilon, min(max(3, before_the_point + 3), 17))
