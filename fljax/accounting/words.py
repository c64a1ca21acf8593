"""A privacy claim in words, and as rows of a table."""

import decimal
import math
from collections.abc import Sequence

from fljax import _validate
from fljax.accounting import accountant, events, mechanisms
from fljax.accounting.accountant import Method, Spent
from fljax.accounting.events import NeighboringRelation, PrivacyEvent, check_event

_UNITS = {
    "client": "one client with all of its data",
    "example": "one example",
    "subject": "one subject with all of its examples, on whichever clients they lie",
}
_RELATIONS = {
    NeighboringRelation.ADD_OR_REMOVE_ONE: "adding or removing {unit}",
    NeighboringRelation.REPLACE_ONE: "exchanging {unit} for another; how many there are is public",
    NeighboringRelation.REPLACE_SPECIAL: "exchanging {unit} for one that adds zero; how many there are is public",
}
NOT_COVERED = (
    "losses, norms, cohort sizes and other diagnostics of the run, which carry no noise if you publish them",
    "choices made by looking at the data, such as hyper-parameters",
    "attacks on floating-point noise: the proof is about real-valued noise, which is drawn in float32",
    "whoever sees individual uploads, where the noise is added after their sum",
)


def rounded_up(value: float, digits: int = 6) -> str:
    """`value` with so many significant digits, never less than it is: printing must not make a claim stronger.

    Of a float the shortest decimal number that reads back as it counts: 0.001 is exact at any number of digits.
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


def describe(mechanism: events.Mechanism) -> str:
    """What the mechanism does, as part of a sentence."""
    match mechanism:
        case events.Gaussian(noise):
            return f"Gaussian noise of {noise:g} times the L2 sensitivity"
        case events.Laplace(noise):
            return f"Laplace noise of scale {noise:g} times the L1 sensitivity"
        case events.DiscreteGaussian(stddev, sensitivity):
            return f"discrete Gaussian noise of parameter {stddev:g} at sensitivity {sensitivity}"
        case events.MixtureOfGaussians(stddev, sensitivities, _):
            return f"Gaussian noise of {stddev:g} on a sum that one unit moves by one of {len(sensitivities)} amounts"
        case events.PoissonSampled(prob, event):
            return f"{describe(event)} on a Poisson sample (each unit joins with chance {prob:g})"
        case events.SampledWithoutReplacement(population, size, event):
            return f"{describe(event)} on {size} of {population} units drawn without replacement"
        case events.GaussianWeighted(noise, rate, lifted):
            kind = "water-filling" if lifted else "Gaussian"
            return f"Gaussian weights of scale {rate:g} and {kind} noise of {noise:g} times the sensitivity of the mean"
        case events.ZCdp(rho, xi):
            return f"a mechanism of ({at_most(xi)}, {at_most(rho)})-zCDP"
        case events.EpsilonDelta(epsilon, delta):
            return f"a mechanism of ({at_most(epsilon)}, {at_most(delta)})-DP"
        case events.SelfComposed(event, count):
            return f"{count} times {describe(event)}"
        case events.Composed(parts):
            return "; then ".join(describe(part) for part in parts) or "nothing"
        case events.NonPrivate():
            return "a release without any guarantee"
    found = mechanisms.describe(mechanism)
    if found is None:
        raise mechanisms.unknown(mechanism)
    return found


def statement(event: PrivacyEvent, *, delta: float, method: Method = "rdp") -> str:
    """The claim in words: unit, relation, epsilon, delta, mechanism, accountant, and what is not covered.

    Epsilon and delta have six digits and are rounded up.

    Args:
      event: what the run released.
      delta: in (0, 1).
      method: as in `spent`.

    Raises:
      As `spent`.
    """
    found = accountant.spent(event, delta=delta, method=method)
    relation = _RELATIONS[event.neighboring_relation].format(unit=_UNITS[event.privacy_unit])
    if found.epsilon_upper == math.inf:
        return f"No guarantee at delta {at_most(delta)} for {relation}: epsilon is infinite.\nReleased: " + (
            f"{describe(event.mechanism)}."
        )
    order = f", best order {found.order:g}" if found.order is not None else ""
    lines = [
        f"({at_most(found.epsilon_upper)}, {at_most(delta)})-differential privacy for {relation}.",
        f"Released: {describe(event.mechanism)}.",
        f"Epsilon is a proved upper bound by the {method.upper()} accountant ({found.reason}{order}).",
        "Not covered: " + "; ".join(NOT_COVERED) + ".",
    ]
    return "\n".join(lines)


def table(event: PrivacyEvent, *, delta: float, methods: Sequence[str] | None = None) -> list[dict[str, object]]:
    """One row per accountant: method, epsilon_lower, epsilon_upper, order, certified, note.

    A method without a bound for this event gives a row of None with the reason as its note.
    """
    check_event("event", event)
    _validate.open_unit(delta=delta)
    rows: list[dict[str, object]] = []
    for method in methods or accountant.METHODS:
        found: Spent | None = None
        note = ""
        try:
            found = accountant.spent(event, delta=delta, method=method)  # type: ignore[arg-type]
            note = found.reason
        except ValueError as error:  # no bound for this event, or numbers out of this accountant's reach
            note = str(error)
        rows.append(
            {
                "method": method,
                "epsilon_lower": found.epsilon_lower if found else None,
                "epsilon_upper": found.epsilon_upper if found else None,
                "order": found.order if found else None,
                "certified": found.certified if found else None,
                "note": note,
            }
        )
    return rows
