"""Epsilon or delta of an event, and the parameter that reaches a target: what most users call."""

import dataclasses
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from fljax import _validate
from fljax.accounting import gaussian, mechanisms, pld, pure, renyi_of_mechanism, search
from fljax.accounting.events import PrivacyEvent, check_event
from fljax.accounting.pld import without_replacement
from fljax.accounting.renyi import conversion, rdp
from fljax.accounting.renyi.conversion import OrderWarning

Method = Literal["auto", "rdp", "pld", "gdp"]


@dataclasses.dataclass(frozen=True)
class Spent:
    """What an accountant found: the truth lies in [`lower`, `upper`] under the event's claim.

    Attributes:
      epsilon_lower, epsilon_upper: at `delta`; equal to the asked value in answers of `delta`.
      delta_lower, delta_upper: at epsilon; equal to the asked value in answers of `epsilon`.
      method: "rdp", "pld" or "gdp": whose bound it is.
      certified: True if the upper value is a proved bound; False where it is infinite, or a delta
        of 1: no claim.
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


def _best(
    event: PrivacyEvent,
    orders: Sequence[float] | Literal["adaptive"] | None,
    convert: Callable[[np.ndarray, np.ndarray], np.ndarray],
    of_pure: Callable[[float], float],
) -> tuple[float, float]:
    """Smallest value of `convert(curve, orders) -> [K]` and its order; looks further when the
    grid's end is best. `of_pure`: the same of a largest loss, which is the curve at infinity.
    """
    ours = orders is None or isinstance(orders, str)
    if isinstance(orders, str):
        _validate.one_of(["adaptive"], orders=orders)
    grid = rdp.DEFAULT_ORDERS if orders is None or isinstance(orders, str) else _orders(orders)

    def search(grid: tuple[float, ...]) -> tuple[float, float]:
        curve = renyi_of_mechanism.curve(event.mechanism, event.neighboring_relation, grid)
        # order 1 proves by its divergence, which is no more than that of the next one
        usual = np.maximum([a for a in grid if a < math.inf], renyi_of_mechanism.NEAR_ONE)
        found = np.asarray(convert(curve[np.isfinite(grid)], usual)).tolist()
        known = [
            found.pop(0) if a < math.inf else of_pure(float(c))
            for a, c in zip(grid, curve, strict=True)
        ]
        place = int(np.argmin(known))
        return known[place], grid[place]

    value, order = search(grid)
    if ours and order == max(grid):
        far = (*renyi_of_mechanism.FAR_ORDERS, math.inf)
        value, order = min((value, order), search(far))
        grid = grid + far
    if (
        math.isfinite(value)
        and len(grid) > 1
        and order in (min(grid), max(a for a in grid if a < math.inf))
        and not _settled(value)
    ):
        warnings.warn(
            f"The best Renyi order, {order:g}, is at the end of the grid: more orders would give "
            "less.",
            OrderWarning,
            stacklevel=4,
        )
    if isinstance(orders, str) and order < math.inf:
        grid = tuple(a for a in grid if a < math.inf)
        grid = tuple(sorted(set(grid)))
        for _ in range(
            3
        ):  # each round looks at 9 orders on either side of the best, up to its neighbours
            place = grid.index(order)
            low, high = grid[max(place - 1, 0)], grid[min(place + 1, len(grid) - 1)]
            near = (
                (low + (order - low) * x / 10 for x in range(10)),
                (order + (high - order) * x / 10 for x in range(11)),
            )
            grid = tuple(sorted({a for side in near for a in side}))
            value, order = min((value, order), search(grid))
    return value, order


def _orders(orders: Sequence[float]) -> tuple[float, ...]:
    """Orders of the caller, 1 and infinity among them or not."""
    if isinstance(orders, bytes):
        return rdp.as_orders(orders)  # which refuses them
    ends = [a for a in orders if _validate.is_number(a) and a in (1, math.inf)]
    rest = [a for a in orders if not (_validate.is_number(a) and a in (1, math.inf))]
    return (*map(float, ends), *(rdp.as_orders(rest) if rest or not ends else ()))


def _settled(value: float) -> bool:
    """Nothing left to gain: epsilon 0, or log delta -inf or 0."""
    return value == 0 or math.isinf(value)


def spent(
    event: PrivacyEvent,
    *,
    delta: float | None = None,
    epsilon: float | None = None,
    method: Method = "rdp",
    orders: Sequence[float] | Literal["adaptive"] | None = None,
) -> Spent:
    """What `event` costs at `delta` (or at `epsilon`), with how it is known.

    Args:
      event: mechanism, unit and relation.
      delta: in [0, 1); at 0 epsilon is the largest privacy loss, +inf where there is none; or
      epsilon: >= 0. Just one of both.
      method: "auto": the tightest certified upper bound: "gdp" where that is exact, else the
        smaller of "pld", where there is one, and "rdp"; the answer names it. "rdp": upper bound by
        Renyi divergences. "pld": both bounds by privacy-loss distributions; for samples without
        replacement the upper one. "gdp": exact, for unsampled Gaussian mechanisms and their
        compositions; from above alone where rounds of `SampledCorrelatedGaussian` are drawn.
      orders: Renyi orders >= 1 for "rdp", infinity included. The default grid grows where its end
        is best; "adaptive" also looks between its best order and the neighbours of that, for the
        last 1e-4 of epsilon.

    Raises:
      ValueError: an argument out of range, or `event` is no `PrivacyEvent`.
      UnsupportedEventError: the method has no bound for this event under its relation.
    """
    check_event("event", event)
    _validate.one_of(_ANSWERS, method=method)
    if (delta is None) == (epsilon is None):
        raise ValueError(
            f"Expected one of delta and epsilon, got delta={delta!r} and epsilon={epsilon!r}."
        )
    if delta is not None:
        _validate.below_one(delta=delta)
    if epsilon is not None:
        _validate.non_negative(epsilon=epsilon)
    found = _pure(event, method) if delta == 0 else _ANSWERS[method](event, delta, epsilon, orders)
    # `not <` rather than the opposite comparison: NaN is no claim either.
    if epsilon is None and not found.epsilon_upper < math.inf:
        return dataclasses.replace(
            found, epsilon_upper=math.inf, certified=False, reason="no bound: epsilon is infinite"
        )
    if delta is None and not found.delta_upper < 1:
        return dataclasses.replace(
            found, delta_upper=1.0, certified=False, reason="no bound: delta is 1"
        )
    return found


def _pure(event: PrivacyEvent, method: str) -> Spent:
    """Epsilon at delta 0."""
    if method == "gdp":
        return _gdp(event, 0.0, None, None)
    value = pure.largest_loss(event.mechanism, event.neighboring_relation)
    known_as = "rdp" if method == "auto" else method
    return Spent(0.0, value, 0.0, 0.0, known_as, True, "the largest privacy loss")


def _rdp(
    event: PrivacyEvent,
    delta: float | None,
    epsilon: float | None,
    orders: Sequence[float] | Literal["adaptive"] | None,
) -> Spent:
    why = "Renyi composition; conversion of arXiv:2004.00010, Proposition 12"
    mechanism, failure = mechanisms.without_failures(event.mechanism)
    if failure > 0:
        event = dataclasses.replace(event, mechanism=mechanism)
        why += f", at what the failures, {failure:.6g} in all, leave of delta"
    if delta is not None:
        if not delta > failure:
            return Spent(0.0, math.inf, delta, delta, "rdp", True, why)
        left = delta - failure
        value, order = _best(
            event,
            orders,
            lambda curve, grid: conversion.rdp_to_epsilons(curve, grid, left),
            of_pure=lambda loss: loss,
        )
        return Spent(0.0, value, delta, delta, "rdp", True, why, order)
    assert epsilon is not None
    value, order = _best(
        event,
        orders,
        lambda curve, grid: conversion.rdp_to_log_deltas(curve, grid, epsilon),
        of_pure=lambda loss: -math.inf if loss <= epsilon else 0.0,
    )
    upper = min(math.exp(value) + failure, 1.0)
    return Spent(epsilon, epsilon, 0.0, upper, "rdp", True, why, order)


def _gdp(
    event: PrivacyEvent,
    delta: float | None,
    epsilon: float | None,
    orders: Sequence[float] | Literal["adaptive"] | None,
) -> Spent:
    noise = mechanisms.effective_noise(event.mechanism)
    if noise is None:
        why = "only unsampled Gaussian mechanisms are exactly Gaussian-DP"
        raise mechanisms.refuse(event.mechanism, event.neighboring_relation, "gdp", why)
    mu = 1 / noise if noise > 0 else math.inf
    above = mechanisms.takes_draws_for_known(event.mechanism)
    why = f"{mu:.6g}-GDP, were each unit's rounds known" if above else f"exact: {mu:.6g}-GDP"
    if delta is not None:
        value = float(gaussian.mu_to_epsilon(mu, delta)) if delta > 0 else (math.inf if mu else 0.0)
        return Spent(0.0 if above else value, value, delta, delta, "gdp", True, why)
    assert epsilon is not None
    value = float(gaussian.mu_to_delta(mu, epsilon))
    return Spent(epsilon, epsilon, 0.0 if above else value, value, "gdp", True, why)


def _pld(
    event: PrivacyEvent,
    delta: float | None,
    epsilon: float | None,
    orders: Sequence[float] | Literal["adaptive"] | None,
) -> Spent:
    why = (
        "privacy-loss distributions, connect the dots of arXiv:2207.04380; all truncation and "
        "rounding counted"
    )
    if (rounds := without_replacement.rounds_of(event)) is not None:
        lower, upper = 0.0, _sampled(rounds, delta, epsilon)
        why += "; worst case of a sample without replacement of arXiv:2106.08567"
    else:
        lower, upper = pld.interval(event, delta=delta, epsilon=epsilon)
    if delta is not None:
        return Spent(lower, upper, delta, delta, "pld", True, why)
    assert epsilon is not None
    return Spent(epsilon, epsilon, lower, upper, "pld", True, why)


def _sampled(
    rounds: without_replacement.Rounds, delta: float | None, epsilon: float | None
) -> float:
    """Upper bound for samples without replacement, one unit replaced."""
    if rounds.num_rounds == 0:
        return 0.0
    if delta is not None:
        return (
            math.inf
            if rounds.noise_multiplier == 0
            else without_replacement.sampled_epsilon(*rounds, delta)
        )
    assert epsilon is not None
    return 1.0 if rounds.noise_multiplier == 0 else without_replacement.delta(*rounds, epsilon)


def _estimate(event: PrivacyEvent, delta: float) -> float:
    """Near what "pld" answers, for a twentieth of its work."""
    rounds = without_replacement.rounds_of(event)
    return (
        pld.estimate(event, delta)
        if rounds is None
        else without_replacement.estimate(rounds, delta)
    )


def _auto(
    event: PrivacyEvent,
    delta: float | None,
    epsilon: float | None,
    orders: Sequence[float] | Literal["adaptive"] | None,
) -> Spent:
    """The exact answer, or the smaller of two proved upper bounds, which is one."""
    if mechanisms.effective_noise(event.mechanism) is not None:
        return _gdp(event, delta, epsilon, orders)
    found: list[Spent] = []
    refused: list[ValueError] = []
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for answer in (_pld, _rdp):
            try:
                found.append(answer(event, delta, epsilon, orders))
            except (
                ValueError
            ) as why:  # no bound for this event, or so little noise that lattices do not reach it
                refused.append(why)
    if not found:
        raise refused[-1]

    def upper(one: Spent) -> float:
        bound = one.epsilon_upper if epsilon is None else one.delta_upper
        return bound if bound == bound else math.inf

    best = min(found, key=upper)
    category: type[Warning] = OrderWarning if best.method == "rdp" else pld.WideIntervalWarning
    for warning in heard:  # of the bound that is not taken nobody need hear
        if issubclass(warning.category, category) or not issubclass(
            warning.category, OrderWarning | pld.WideIntervalWarning
        ):
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
    if (
        best.method == "rdp" and len(found) == 2
    ):  # what losses prove from below holds for every upper bound
        low = found[0]
        best = dataclasses.replace(
            best,
            epsilon_lower=min(low.epsilon_lower, best.epsilon_upper),
            delta_lower=min(low.delta_lower, best.delta_upper),
        )
    return best


_ANSWERS: dict[str, Callable[..., Spent]] = {"auto": _auto, "rdp": _rdp, "gdp": _gdp, "pld": _pld}
METHODS = ("rdp", "gdp", "pld")
ACCOUNTANTS = ("auto", *METHODS)


def epsilon(
    event: PrivacyEvent,
    *,
    delta: float,
    method: Method = "rdp",
    orders: Sequence[float] | Literal["adaptive"] | None = None,
) -> float:
    """Upper bound on epsilon of `event` at `delta`, +inf where there is none; arguments and errors
    as in `spent`.
    """
    return spent(event, delta=delta, method=method, orders=orders).epsilon_upper


def interval(event: PrivacyEvent, *, delta: float, method: Method = "rdp") -> tuple[float, float]:
    """(lower, upper) bound on epsilon of `event` at `delta`; the lower is 0 for methods that have
    none.
    """
    found = spent(event, delta=delta, method=method)
    return found.epsilon_lower, found.epsilon_upper


def delta(
    event: PrivacyEvent,
    *,
    epsilon: float,
    method: Method = "rdp",
    orders: Sequence[float] | Literal["adaptive"] | None = None,
) -> float:
    """Upper bound on delta of `event` at `epsilon` >= 0; other arguments and errors as in
    `spent`.
    """
    return spent(event, epsilon=epsilon, method=method, orders=orders).delta_upper


def calibrate(
    event_fn: Callable[[float], PrivacyEvent],
    *,
    epsilon: float,
    delta: float,
    method: Method = "rdp",
    bracket: tuple[float, float] | None = None,
    integer: bool = False,
    tolerance: float = 1e-6,
    orders: Sequence[float] | Literal["adaptive"] | None = None,
) -> float:
    """The value of one parameter that spends as much of `epsilon` as it may, and never more.

    Guarantee: the epsilon that the same method reports for `event_fn(result)` is at most `epsilon`.

    Args:
      event_fn: parameter -> event of the whole run. Epsilon must fall (noise) or rise (steps,
        sampling) with it.
      epsilon: target, > 0.
      delta: in [0, 1).
      method, orders: as in `spent`.
      bracket: (low, high) positive values to search between. The default starts at 1 and doubles or
        halves, which suits noise and steps; a probability needs (low, 1.0).
      integer: search whole numbers only, as for steps.
      tolerance: relative width at which the search for a real number stops.

    Returns:
      The parameter; an `int` if `integer`.

    Raises:
      ValueError: an argument out of range.
      PrivacyPreconditionError: no value in reach meets the target.
    """
    _validate.positive(epsilon=epsilon, tolerance=tolerance)
    _validate.below_one(delta=delta)
    if not callable(event_fn):
        raise ValueError(
            f"Expected event_fn to be a function, parameter -> event, got event_fn={event_fn!r}."
        )

    def cost(value: float) -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OrderWarning)
            return spent(event_fn(value), delta=delta, method=method, orders=orders).epsilon_upper

    def estimate(value: float) -> float:
        if delta == 0:  # a largest loss costs nothing to find
            return math.inf
        try:
            return _estimate(event_fn(value), delta)
        except ValueError:  # no privacy-loss distribution here: no guide either
            return math.inf

    good = search.within(
        cost,
        epsilon,
        of="epsilon",
        bracket=bracket,
        integer=integer,
        tolerance=tolerance,
        # The saddle-point estimate costs a twentieth: few certified answers are needed beside it.
        estimate=estimate if method in ("auto", "pld") else None,
    )
    if method in ("auto", "rdp"):
        spent(
            event_fn(good), delta=delta, method=method, orders=orders
        )  # for its warning, should there be one
    return good
