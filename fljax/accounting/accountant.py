"""Epsilon or delta of an event, and the parameter that reaches a target: what most users call."""

import dataclasses
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from fljax import _validate
from fljax.accounting import _curves, conversion, rdp
from fljax.accounting.conversion import OrderWarning
from fljax.accounting.events import PrivacyEvent
from fljax.errors import PrivacyPreconditionError

METHODS = ("rdp",)
Method = Literal["rdp", "pld", "gdp"]
# Tried when the best of the default orders is the last one.
_FAR_ORDERS = tuple(float(round(1024 * 2 ** (x / 4))) for x in range(1, 17))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spent:
    """What an accountant found: the truth lies in [`lower`, `upper`] under the event's claim.

    Attributes:
      epsilon_lower, epsilon_upper: at `delta`; equal to the asked value in answers of `delta`.
      delta_lower, delta_upper: at epsilon; equal to the asked value in answers of `epsilon`.
      method: "rdp", "pld" or "gdp".
      certified: True if the upper value is a proved bound.
      reason: how it was proved, or why not.
      order: best Renyi order, None for other methods.
    """

    epsilon_lower: float
    epsilon_upper: float
    delta_lower: float
    delta_upper: float
    method: str
    certified: bool
    reason: str
    order: float | None = None


def _checked(event: PrivacyEvent, method: str) -> None:
    if not isinstance(event, PrivacyEvent):
        raise ValueError(
            f"Expected event to be a PrivacyEvent (a mechanism with its unit and relation), got event={event!r}."
        )
    _validate.one_of(METHODS, method=method)


def _best(
    event: PrivacyEvent, orders: Sequence[float] | None, convert: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> tuple[float, float]:
    """Smallest value of `convert(curve, orders) -> [K]` and its order; looks further when the grid's end is best."""
    grid = rdp.DEFAULT_ORDERS if orders is None else rdp.as_orders(orders)

    def search(grid: tuple[float, ...]) -> tuple[float, float]:
        curve = _curves.curve(event.mechanism, event.neighboring_relation, grid)
        found = np.asarray(convert(curve, np.asarray(grid)))
        place = int(np.argmin(found))
        return float(found[place]), grid[place]

    value, order = search(grid)
    if orders is None and order == max(grid):
        value, order = min((value, order), search(_FAR_ORDERS))
        grid = grid + _FAR_ORDERS
    if math.isfinite(value) and len(grid) > 1 and order in (min(grid), max(grid)) and not _settled(value):
        warnings.warn(
            f"The best Renyi order, {order:g}, is at the end of the grid: more orders would give less.",
            OrderWarning,
            stacklevel=4,
        )
    return value, order


def _settled(value: float) -> bool:
    """Nothing left to gain: epsilon 0, or log delta -inf or 0."""
    return value == 0 or math.isinf(value)


def spent(event: PrivacyEvent, *, delta: float, method: Method = "rdp", orders: Sequence[float] | None = None) -> Spent:
    """What `event` costs at `delta`, with how it is known.

    Args:
      event: mechanism, unit and relation.
      delta: in (0, 1).
      method: "rdp", an upper bound by Renyi divergences.
      orders: Renyi orders for "rdp"; the default grid grows where its end is best.

    Raises:
      ValueError: `delta` or `method` out of range, or `event` is no `PrivacyEvent`.
      UnsupportedEventError: the method has no bound for this event under its relation.
    """
    _checked(event, method)
    _validate.open_unit(delta=delta)
    epsilon, order = _best(event, orders, lambda curve, grid: conversion.rdp_to_epsilons(curve, grid, delta))
    return Spent(
        epsilon_lower=0.0,
        epsilon_upper=epsilon,
        delta_lower=delta,
        delta_upper=delta,
        method=method,
        certified=True,
        reason="Renyi composition; conversion of arXiv:2004.00010, Proposition 12",
        order=order,
    )


def epsilon(
    event: PrivacyEvent, *, delta: float, method: Method = "rdp", orders: Sequence[float] | None = None
) -> float:
    """Upper bound on epsilon of `event` at `delta`, +inf where there is none; arguments and errors as in `spent`."""
    return spent(event, delta=delta, method=method, orders=orders).epsilon_upper


def delta(
    event: PrivacyEvent, *, epsilon: float, method: Method = "rdp", orders: Sequence[float] | None = None
) -> float:
    """Upper bound on delta of `event` at `epsilon` >= 0; other arguments and errors as in `spent`."""
    _checked(event, method)
    _validate.non_negative(epsilon=epsilon)
    log_delta, _ = _best(event, orders, lambda curve, grid: conversion.rdp_to_log_deltas(curve, grid, epsilon))
    return math.exp(log_delta)


def calibrate(
    event_fn: Callable[[float], PrivacyEvent],
    *,
    epsilon: float,
    delta: float,
    method: Method = "rdp",
    bracket: tuple[float, float] | None = None,
    integer: bool = False,
    tolerance: float = 1e-6,
    orders: Sequence[float] | None = None,
) -> float:
    """The value of one parameter that spends as much of `epsilon` as it may, and never more.

    Guarantee: the epsilon that the same method reports for `event_fn(result)` is at most `epsilon`.

    Args:
      event_fn: parameter -> event of the whole run. Epsilon must fall (noise) or rise (steps, sampling) with it.
      epsilon: target, > 0.
      delta: in (0, 1).
      method, orders: as in `spent`.
      bracket: (low, high) positive values to search between. The default starts at 1 and doubles or halves, which
        suits noise and steps; a probability needs (low, 1.0).
      integer: search whole numbers only, as for steps.
      tolerance: relative width at which the search for a real number stops.

    Returns:
      The parameter; an `int` if `integer`.

    Raises:
      ValueError: an argument out of range.
      PrivacyPreconditionError: no value in reach meets the target.
    """
    _validate.positive(epsilon=epsilon, tolerance=tolerance)
    _validate.open_unit(delta=delta)

    def cost(value: float) -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OrderWarning)
            return spent(event_fn(value), delta=delta, method=method, orders=orders).epsilon_upper

    good, bad = _bracket(cost, epsilon, bracket, integer)
    while bad is not None and (abs(good - bad) > 1 if integer else abs(good - bad) > tolerance * abs(good)):
        middle = (good + bad) // 2 if integer else math.sqrt(good * bad)
        if cost(middle) <= epsilon:
            good = middle
        else:
            bad = middle
    spent(event_fn(good), delta=delta, method=method, orders=orders)  # for its warning, should there be one
    return good


def _bracket(
    cost: Callable[[float], float], target: float, bracket: tuple[float, float] | None, integer: bool
) -> tuple[float, float | None]:
    """A value within the target and one beyond it; None for the latter if all of `bracket` is within."""
    if bracket is not None:
        low, high = (int(b) if integer else float(b) for b in bracket)
        _validate.positive(bracket=low)
        if not low < high:
            raise ValueError(f"Expected bracket to rise, got bracket={bracket!r}.")
        costs = {low: cost(low), high: cost(high)}
        cheap, dear = (low, high) if costs[low] <= costs[high] else (high, low)
        if not costs[cheap] <= target:
            raise PrivacyPreconditionError(
                f"Expected a value in bracket={bracket!r} with epsilon <= {target!r}, got epsilon >= {costs[cheap]!r}."
            )
        return (dear, None) if costs[dear] <= target else (cheap, dear)
    start = 1 if integer else 1.0
    here = cost(start)
    rising = cost(2 * start) > here
    value = start
    for _ in range(60):
        # Walk up while that stays on the same side of the target, else down.
        within = here <= target
        step = 2 if within == rising else 0.5
        if integer and step == 0.5:
            break
        following = value * step
        there = cost(following)
        if (there <= target) != within:
            return (value, following) if within else (following, value)
        value, here = following, there
    raise PrivacyPreconditionError(f"Expected a value with epsilon <= {target!r}, got epsilon {here!r} at {value!r}.")
