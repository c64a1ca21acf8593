"""Searches for a number: the parameter that meets a target, and bisection of arrays. Written once,
for everybody.

`within` asks a costly function as seldom as it can; `bisect` and `last_whole` ask a cheap question.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fljax import _validate
from fljax.accounting._arrays import is_jax, jax, jnp
from fljax.errors import PrivacyPreconditionError

Cost = Callable[[float], float]
End = tuple[float, float]  # a value and its cost
_MOST_DOUBLINGS = 60


def bisect(above: Callable[[Any], Any], low: Any, high: Any, steps: int) -> tuple[Any, Any]:
    """Halves [low, high] `steps` times.

    Args:
      above: middle `[...]` -> bool `[...]`, whether the root lies above it.
      low, high: `[...]`, arrays.
      steps: 53 leave nothing to halve where both ends have one sign and size.

    Returns:
      (low, high); where `above` holds at the first `low` and not at the first `high`, it still
      does.
    """
    traced = is_jax(low) or is_jax(high)
    xp: Any = jnp if traced else np

    def halve(_: Any, ends: tuple[Any, Any]) -> tuple[Any, Any]:
        low, high = ends
        middle = 0.5 * (low + high)
        more = above(middle)
        return xp.where(more, middle, low), xp.where(more, high, middle)

    if traced:
        found: tuple[Any, Any] = jax.lax.fori_loop(0, steps, halve, (low, high))
        return found
    for step in range(steps):
        middle = 0.5 * (low + high)
        if np.all((middle == low) | (middle == high)):
            break  # nothing is left to halve
        low, high = halve(step, (low, high))
    return low, high


def last_whole(within: Callable[[int], bool], good: int, bad: int) -> int:
    """The last whole number from `good`, which is within the target, towards `bad`, which is
    not.
    """
    while abs(good - bad) > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if within(middle) else (good, middle)
    return good


def within(
    cost: Cost,
    target: float,
    *,
    of: str,
    bracket: tuple[float, float] | None = None,
    start: float = 1.0,
    integer: bool = False,
    tolerance: float = 1e-6,
    estimate: Cost | None = None,
) -> float:
    """A value that costs at most `target`, next to one that costs more.

    Args:
      cost: value -> cost; it falls or rises all the way.
      target: > 0.
      of: what the cost is, for errors.
      bracket: (low, high), positive values to search between. None: from `start`, doubling or
        halving.
      start: the first value asked for, > 0.
      integer: search whole numbers only.
      tolerance: relative width at which the search for a real number stops.
      estimate: near `cost`, and much cheaper; asked first where there is no bracket.

    Raises:
      ValueError: a bracket that is none.
      PrivacyPreconditionError: no value in reach meets the target.
    """
    ends: tuple[End, End | None] | None = None
    if estimate is not None and bracket is None and not integer:
        ends = _near(cost, estimate, target, start)
    ends = ends or _ends(cost, target, of, bracket, start, integer)
    good, bad = ends
    if bad is None:
        return good[0]
    if integer:
        return last_whole(lambda value: cost(value) <= target, int(good[0]), int(bad[0]))
    return _narrow(cost, target, good, bad, tolerance)


def _narrow(cost: Cost, target: float, good: End, bad: End, tolerance: float) -> float:
    """A value within the target, at most `tolerance` from one beyond it.

    Secants between logs; every third step is a bisection, which bounds their number.
    """

    def logs(end: End) -> tuple[float, float]:
        return math.log(end[0]), math.log(max(end[1], 1e-300) / target)

    steps = 0
    while abs(good[0] - bad[0]) > tolerance * abs(good[0]):
        (x_good, at_good), (x_bad, at_bad) = logs(good), logs(bad)
        middle = 0.5 * (x_good + x_bad)
        if steps % 3 < 2 and math.isfinite(at_bad) and at_bad > at_good:
            root = x_good + (x_bad - x_good) * at_good / (at_good - at_bad)
            # Beyond the root, towards the farther end: that end comes near, next time the other.
            farther = max(x_good, x_bad, key=lambda end: abs(end - root))
            step = min(0.4 * tolerance, 0.5 * abs(farther - root))
            middle = root + math.copysign(step, farther - root)
        value = math.exp(middle)
        if value in (good[0], bad[0]):
            break
        found = cost(value)
        good, bad = ((value, found), bad) if found <= target else (good, (value, found))
        steps += 1
    return good[0]


def _near(cost: Cost, estimate: Cost, target: float, start: float) -> tuple[End, End] | None:
    """Ends for `_narrow`, close to where `estimate` meets the target; None where it is no guide."""
    try:
        good, bad = _ends(estimate, target, "estimate", None, start, integer=False)
    except PrivacyPreconditionError:
        return None
    assert bad is not None  # without a bracket the walk ends on both sides or raises
    value = _narrow(estimate, target, good, bad, 1e-3)
    here, beyond = estimate(value), estimate(1.01 * value)
    if not (0 < here < math.inf and 0 < beyond < math.inf) or here == beyond:
        return None
    slope = math.log(beyond / here) / math.log(1.01)
    end = value, cost(value)
    for _ in range(8):
        if not 0 < end[1] < math.inf:
            return None
        # To where the tangent meets the target, and a little beyond.
        side = -slope if end[1] > target else slope
        step = 1.1 * math.log(target / end[1]) / slope + math.copysign(1e-6, side)
        if not abs(step) < 0.2:  # a good estimate is right to a percent or so
            return None
        following = end[0] * math.exp(step)
        last = following, cost(following)
        if (last[1] <= target) != (end[1] <= target):
            return (end, last) if end[1] <= target else (last, end)
        end = last
    return None


def _check_bracket(bracket: tuple[float, float]) -> None:
    if not isinstance(bracket, Sequence) or isinstance(bracket, str) or len(bracket) != 2:
        raise ValueError(f"Expected bracket to be a pair of numbers, got bracket={bracket!r}.")
    for end in bracket:
        _validate.positive(bracket=end)


def _ends(
    cost: Cost,
    target: float,
    of: str,
    bracket: tuple[float, float] | None,
    start: float,
    integer: bool,
) -> tuple[End, End | None]:
    """A value within the target and one beyond it; None for the latter if all of `bracket` is."""
    if bracket is not None:
        return _ends_of(cost, target, of, bracket, integer)
    value = max(1, round(start)) if integer else float(start)
    here = cost(value)
    rising = cost(2 * value) > here
    for _ in range(_MOST_DOUBLINGS):
        # Walk up while that stays on the same side of the target, else down.
        inside = here <= target
        if integer and inside != rising and value == 1:
            break
        following = 2 * value if inside == rising else value // 2 if integer else 0.5 * value
        there = cost(following)
        if (there <= target) != inside:
            ends = (value, here), (following, there)
            return ends if inside else (ends[1], ends[0])
        value, here = following, there
    raise PrivacyPreconditionError(
        f"Expected a value with {of} <= {target!r}, got {of} {here!r} at {value!r}."
    )


def _ends_of(
    cost: Cost, target: float, of: str, bracket: tuple[float, float], integer: bool
) -> tuple[End, End | None]:
    _check_bracket(bracket)
    low, high = (int(b) if integer else float(b) for b in bracket)
    _validate.positive(bracket=low)
    if not low < high:
        raise ValueError(f"Expected bracket to rise, got bracket={bracket!r}.")
    costs = {low: cost(low), high: cost(high)}
    cheap, dear = (low, high) if costs[low] <= costs[high] else (high, low)
    if not costs[cheap] <= target:
        raise PrivacyPreconditionError(
            f"Expected a value in bracket={bracket!r} with {of} <= {target!r}, got {of} >= "
            f"{costs[cheap]!r}."
        )
    ends = (cheap, costs[cheap]), (dear, costs[dear])
    return (ends[1], None) if costs[dear] <= target else ends
