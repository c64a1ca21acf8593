"""What an attack can gain from a run of several rounds: trade-off curves, TPR at FPR, advantage,
reconstruction; and the noise that keeps one of them below a target.

Each is a bound on every attack, on the same unit and relation as epsilon, and certified as that is:
all come from upper bounds on delta, of which any one, at any epsilon, gives a true bound; the best
is looked for. Of a run that is a plain Gaussian composition all are exact.
"""

import math
import warnings
from collections.abc import Callable
from typing import Any

from fljax import _validate
from fljax.accounting import accountant, gaussian, mechanisms, search
from fljax.accounting.accountant import Method
from fljax.accounting.events import PrivacyEvent, check_event
from fljax.accounting.pld import WideIntervalWarning
from fljax.accounting.renyi.conversion import OrderWarning

_GOLDEN = (math.sqrt(5) - 1) / 2
_WIDTH = 5e-3  # of the search for an epsilon: what is found is flat there, and always true
_SMALLEST, _LITTLE = 1e-9, 1e-3
_FAR = 40.0


def trade_off(event: PrivacyEvent, fpr: float, *, method: Method = "auto") -> float:
    """A false-negative rate that no membership test with false-positive rate `fpr` goes below.

    Guarantee: for every test of whether the unit took part (or which of two units did), under the
    event's claim; a test that reaches less does not exist.

    Args:
      event: all rounds.
      fpr: in [0, 1].
      method: whose bounds on delta are taken, as in `accounting.spent`.

    Raises:
      ValueError: an argument out of range.
      UnsupportedEventError: the method has no bound for this event under its relation.

    Source: Dong, Roth, Su (2019), arXiv:1905.02383, Proposition 2.12; Wasserman, Zhou (2010).
    """
    return 1 - tpr_at_fpr(event, fpr, method=method)


def tpr_at_fpr(event: PrivacyEvent, fpr: float, *, method: Method = "auto") -> float:
    """Upper bound on the true-positive rate of any membership test at false-positive rate `fpr`;
    arguments, errors and guarantee as in `trade_off`.
    """
    check_event("event", event)
    _validate.closed_unit(fpr=fpr)
    noise = mechanisms.effective_noise(event.mechanism)
    if method in ("auto", "gdp") and noise is not None and noise > 0 and 0 < fpr < 1:
        return float(gaussian.tpr_at_fpr(1 / noise, fpr))
    delta = _Deltas(event, method)

    def bound(epsilon: float) -> float:
        """e^epsilon fpr + delta(epsilon), convex in e^epsilon; at a negative epsilon delta is that
        of the exchanged pair, and the worse of both directions serves for either.
        """
        if epsilon >= 0:
            return math.exp(min(epsilon, 700.0)) * fpr + delta(epsilon)
        return 1 - math.exp(epsilon) * max(1 - delta(-epsilon) - fpr, 0.0)

    # e^epsilon fpr is at most 1; and where delta is little of 1 - fpr, a larger epsilon is worse.
    high = min(_FAR, -math.log(max(fpr, _SMALLEST)))
    little = max(_LITTLE * (1 - fpr), _SMALLEST)
    low = -min(_FAR, accountant.epsilon(event, delta=little, method=method))
    best = min(bound(0.0), bound(low), bound(high), 1.0)
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = bound(left), bound(right)
    while high - low > _WIDTH:
        best = min(best, at_left, at_right)
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = bound(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = bound(right)
    return min(max(best, fpr), 1.0)


def advantage(event: PrivacyEvent, *, method: Method = "auto") -> float:
    """Upper bound on TPR - FPR of any membership test, twice its accuracy above one half: the total
    variation, which is delta at epsilon 0. Arguments and errors as in `trade_off`.
    """
    return accountant.delta(event, epsilon=0.0, method=method)


def reconstruction(event: PrivacyEvent, prior: float, *, method: Method = "auto") -> float:
    """Upper bound on the chance that any attack reconstructs the unit within its tolerance.

    Args:
      prior: chance of success of the best guess that does not see the run, in [0, 1].
      event, method: as in `trade_off`, with its errors.

    Source: Kulynych, Gomez, Kaissis, Calmon, Troncoso (2025), arXiv:2507.06969; Hayes, Mahloujifar,
    Balle (2023), arXiv:2302.07225.
    """
    _validate.closed_unit(prior=prior)
    return tpr_at_fpr(event, prior, method=method)


def calibrate(
    event_fn: Callable[[float], PrivacyEvent],
    *,
    advantage: float | None = None,
    tpr: float | None = None,
    fpr: float | None = None,
    reconstruction: float | None = None,
    prior: float | None = None,
    method: Method = "auto",
    bracket: tuple[float, float] | None = None,
    integer: bool = False,
    tolerance: float = 1e-5,
) -> float:
    """The value of one parameter with which a risk is at most its target, and next to it.

    Guarantee: the risk that the same method reports for `event_fn(result)` is at most the target.

    Args:
      event_fn: parameter -> event of the whole run.
      advantage: target for `advantage`, in (0, 1); or
      tpr, fpr: target for `tpr_at_fpr` at `fpr`, fpr < tpr < 1; or
      reconstruction, prior: target for `reconstruction` at `prior`, prior < reconstruction < 1.
      method, bracket, integer, tolerance: as in `accounting.calibrate`.

    Raises:
      ValueError: an argument out of range, or not just one target.
      PrivacyPreconditionError: no value in reach meets the target.
    """
    risk, target, name = of_target(
        advantage=advantage, tpr=tpr, fpr=fpr, reconstruction=reconstruction, prior=prior
    )

    def cost(value: float) -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OrderWarning)
            warnings.simplefilter("ignore", WideIntervalWarning)
            return risk(event_fn(value), method)

    return search.within(
        cost, target, of=name, bracket=bracket, integer=integer, tolerance=tolerance
    )


def of_target(
    *,
    advantage: float | None,
    tpr: float | None,
    fpr: float | None,
    reconstruction: float | None,
    prior: float | None,
) -> tuple[Callable[[PrivacyEvent, Method], float], float, str]:
    """The risk that is meant, (event, method) -> bound; its target; its name. Arguments and errors
    as in `calibrate`.
    """
    given = [target for target in (advantage, tpr, reconstruction) if target is not None]
    pairs: list[tuple[str, Any, str, Any]] = [
        ("tpr", tpr, "fpr", fpr),
        ("reconstruction", reconstruction, "prior", prior),
    ]
    if len(given) != 1 or any((a is None) != (b is None) for _, a, _, b in pairs):
        raise ValueError(
            "Expected one target: advantage, tpr with fpr, or reconstruction with prior; got "
            f"advantage={advantage!r}, tpr={tpr!r}, fpr={fpr!r}, "
            f"reconstruction={reconstruction!r}, prior={prior!r}."
        )
    if advantage is not None:
        _validate.open_unit(advantage=advantage)
        return lambda event, method: _advantage(event, method=method), advantage, "advantage"
    name, target, base_name, base = pairs[0] if tpr is not None else pairs[1]
    _validate.open_unit(**{name: target, base_name: base})
    if not target > base:
        raise ValueError(
            f"Expected {name} > {base_name}={base!r}, which needs no attack, got {name}={target!r}."
        )
    return (
        lambda event, method: tpr_at_fpr(event, base, method=method),
        target,
        f"{name} at {base_name} {base:g}",
    )


_advantage = advantage


class _Deltas:
    """Upper bounds on delta of one event; nothing is asked for twice."""

    def __init__(self, event: PrivacyEvent, method: Method) -> None:
        self._event, self._method = event, method
        self._known: dict[float, float] = {}

    def __call__(self, epsilon: float) -> float:
        if epsilon not in self._known:
            with (
                warnings.catch_warnings()
            ):  # a wide bound is true, and another epsilon may be better
                warnings.simplefilter("ignore", OrderWarning)
                warnings.simplefilter("ignore", WideIntervalWarning)
                found = accountant.delta(self._event, epsilon=epsilon, method=self._method)
            self._known[epsilon] = found
        return self._known[epsilon]
