"""The one writer of claims: what a run guarantees, in words, and as rows of a table.

The API, the terminal, privacy.json and the report all take their sentences from here.
"""

import math
from collections.abc import Sequence

from fljax import _validate
from fljax.accounting import accountant, events, mechanisms
from fljax.accounting.accountant import Method, Spent
from fljax.accounting.events import NeighboringRelation, PrivacyEvent, check_event
from fljax.accounting.rounding import at_least, at_most, rounded_up, shown_epsilon

__all__ = [
    "NOT_COVERED",
    "answered_by",
    "at_least",
    "at_most",
    "claim",
    "describe",
    "in_integers",
    "large_delta",
    "neighbors",
    "rounded_up",
    "shown_epsilon",
    "statement",
    "table",
]

_LARGE_DELTA = 0.1  # times the units: about the chance of publishing the data of one of them

_UNITS = {
    "client": "one client with all its data",
    "example": "one example, features and label",
    "subject": "one subject with all its examples, in all silos",
}
_RELATIONS = {
    NeighboringRelation.ADD_OR_REMOVE_ONE: ("adding or removing {}", "one {} more or less"),
    NeighboringRelation.REPLACE_ONE: (
        "exchanging {} for another; how many there are is public",
        "one {} exchanged for another",
    ),
    NeighboringRelation.REPLACE_SPECIAL: (
        "exchanging {} for one that adds zero; how many there are is public",
        "one {} exchanged for one that contributes nothing",
    ),
}
_FLOATS = (
    "attacks on floating-point noise: the proof is about real-valued noise, which is drawn in "
    "float32"
)
NOT_COVERED = (
    "losses, norms, cohort sizes and other diagnostics of the run, which carry no noise if you "
    "publish them",
    "choices made by looking at the data, such as hyper-parameters",
    _FLOATS,
    "whoever sees individual uploads, where the noise is added after their sum",
)


def describe(mechanism: events.Mechanism) -> str:
    """What the mechanism does, as part of a sentence."""
    match mechanism:
        case events.Gaussian(noise):
            return f"Gaussian noise of {at_least(noise)} times the L2 sensitivity"
        case events.Laplace(noise):
            return f"Laplace noise of scale {at_least(noise)} times the L1 sensitivity"
        case events.DiscreteGaussian(stddev, sensitivity):
            return (
                f"discrete Gaussian noise of parameter {at_least(stddev)} at sensitivity "
                f"{sensitivity}"
            )
        case events.DiscreteGaussianSum(stddev, count, l2_sensitivity):
            return (
                f"the sum of {count} discrete Gaussians of parameter {at_least(stddev)} in each "
                f"coordinate of a vector of integers of L2 sensitivity {at_most(l2_sensitivity)}"
            )
        case events.Skellam(variance, l2_sensitivity):
            return (
                f"Skellam noise of variance {at_least(variance)} in each coordinate of a vector "
                f"of integers of L2 sensitivity {at_most(l2_sensitivity)}"
            )
        case events.DiscreteLaplace(noise, sensitivity):
            return (
                f"discrete Laplace noise of parameter {at_most(noise)} at sensitivity {sensitivity}"
            )
        case events.RandomizedResponse(noise, buckets):
            return (
                f"a bucket of {buckets} for each unit, with chance {at_least(noise)} one drawn "
                "from all"
            )
        case events.Staircase(epsilon, _):
            return f"staircase noise of epsilon {at_most(epsilon)}"
        case events.NoisyMax(noise, law, _):
            return (
                f"which of some scores is the largest, with {law} noise of {at_least(noise)} "
                "times what one unit moves a score"
            )
        case events.SparseVector(threshold, query, most, _):
            return (
                f"which queries are above a threshold, until {most} were, with Laplace noise of "
                f"{at_least(threshold)} (threshold) and {at_least(query)} (query) times what one "
                "unit moves a query"
            )
        case events.TreeAggregation(noise, counts):
            return (
                f"sums of steps by {len(counts)} binary trees of {max(counts)} steps at most with "
                f"Gaussian noise of {at_least(noise)} times the L2 sensitivity in each node"
            )
        case events.CorrelatedGaussian(noise, kind, coefs, num_rounds, separation, cyclic):
            apart = "just" if cyclic else "at least"
            size = f" of {len(coefs)} numbers" if coefs else ""
            return (
                f"sums of {num_rounds} rounds with Gaussian noise of {at_least(noise)} times what "
                f"one unit moves a round, correlated over rounds ({kind.replace('_', ' ')}{size}); "
                f"a unit's rounds are {apart} {separation} apart"
            )
        case events.SampledCorrelatedGaussian(cycle=cycle, sampling=sampling):
            told = describe(mechanisms.told_when(mechanism))
            if sampling == "balls_in_bins":
                return f"{told}, from a round drawn for it of the first {cycle} on"
            chance = at_most(mechanism.sampling_prob)
            return f"{told}, each of which it joins with chance {chance}"
        case events.RepeatAndSelect(event, mean, shape):
            number = "Poisson" if shape == "poisson" else f"negative binomial, shape {shape:g}"
            return (
                f"the best of a random number of runs ({number}, {at_most(mean)} in the mean) of "
                f"{describe(event)}"
            )
        case events.SampledWithReplacement(population, size, event):
            return f"{describe(event)} on {size} draws from {population} units"
        case events.TruncatedPoissonGaussian(population, prob, most, noise):
            return (
                f"Gaussian noise of {at_least(noise)} times what one unit adds, on a Poisson "
                f"sample of {population} units (each joins with chance {at_most(prob)}), cut to "
                f"{most}"
            )
        case events.RandomAllocation(rounds, times, noise):
            return (
                f"Gaussian noise of {at_least(noise)} times what one unit adds in each of {rounds} "
                f"rounds, of which each unit is in {times}, drawn at random"
            )
        case events.MixtureOfGaussians(stddev, sensitivities, _):
            amounts = len(sensitivities)
            return (
                f"Gaussian noise of {at_least(stddev)} on a sum that one unit moves by one of "
                f"{amounts} amounts"
            )
        case events.PoissonSampled(prob, event):
            once = " that is drawn once for all rounds" if _of_rounds(event) else ""
            return (
                f"{describe(event)} on a Poisson sample{once} (each unit joins with chance "
                f"{at_most(prob)})"
            )
        case events.SampledWithoutReplacement(population, size, event):
            return f"{describe(event)} on {size} of {population} units drawn without replacement"
        case events.GaussianWeighted(noise, rate, lifted):
            kind = "water-filling" if lifted else "Gaussian"
            return (
                f"Gaussian weights of scale {at_most(rate)} and {kind} noise of {at_least(noise)} "
                "times the sensitivity of the mean"
            )
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


def _of_rounds(mechanism: events.Mechanism) -> bool:
    """Whether the mechanism is several rounds, of which a sample around it draws no other."""
    match mechanism:
        case events.SelfComposed(event, count):
            return count > 1 or _of_rounds(event)
        case events.Composed(parts):
            return len(parts) > 1 or any(map(_of_rounds, parts))
    return isinstance(
        mechanism,
        events.CorrelatedGaussian
        | events.SampledCorrelatedGaussian
        | events.TreeAggregation
        | events.RandomAllocation,
    )


def in_integers(mechanism: events.Mechanism) -> bool:
    """Whether all noise is of integers, on integers: then the proof is about what is drawn."""
    match mechanism:
        case events.DiscreteGaussianSum() | events.Skellam():
            return True
        case events.SelfComposed(event, _) | events.PoissonSampled(_, event):
            return in_integers(event)
        case events.Composed(parts):
            return bool(parts) and all(map(in_integers, parts))
    return False


def neighbors(relation: NeighboringRelation | str, unit: str) -> str:
    """How two neighbouring data sets differ."""
    return _RELATIONS[NeighboringRelation(relation)][1].format(unit)


def claim(event: PrivacyEvent, found: Spent, *, released: str = "") -> str:
    """What is guaranteed, in sentences.

    Guarantee: the printed epsilon and delta are never below those of `found`, by six digits.

    Args:
      event: what was released.
      found: what it costs, from `spent(event, delta=...)`.
      released: what it was, before the mechanism's own words.
    """
    unit, relation = _UNITS[event.privacy_unit], event.neighboring_relation
    differ = (
        f"{_RELATIONS[relation][0].format(unit)} ({relation}: "
        f"{neighbors(relation, event.privacy_unit)})"
    )
    what = f"Released: {released}{describe(event.mechanism)}."
    if not found.epsilon_upper < math.inf:
        return (
            f"No guarantee at delta {at_most(found.delta_upper)} for {differ}: epsilon is "
            f"infinite. {what}"
        )
    order = f", best order {found.order:g}" if found.order is not None else ""
    return (
        f"({at_most(found.epsilon_upper)}, {at_most(found.delta_upper)})-differential privacy for "
        f"{differ}. {what} Epsilon is a proved upper bound by the {found.method.upper()} "
        f"accountant ({found.reason}{order})."
    )


def statement(event: PrivacyEvent, *, delta: float, method: Method = "rdp") -> str:
    """The `claim` of `event` at `delta`, and what is not covered.

    Args:
      event: what the run released.
      delta: in (0, 1).
      method: as in `spent`.

    Raises:
      As `spent`.
    """
    found = accountant.spent(event, delta=delta, method=method)
    lines = [claim(event, found)]
    if found.epsilon_upper < math.inf:
        rest = [x for x in NOT_COVERED if x != _FLOATS or not in_integers(event.mechanism)]
        lines.append("Not covered: " + "; ".join(rest) + ".")
    return "\n".join(lines)


def large_delta(delta: float, unit: str, count: int) -> str | None:
    """What `delta` allows where the data of some unit of all may be given away; None where it is
    small.
    """
    if count * delta <= _LARGE_DELTA:
        return None
    percent = math.ceil(-100 * math.expm1(count * math.log1p(-delta)))  # 1 - (1 - delta) ** count
    chance = f"up to {percent} %" if percent < 100 else "more than 99 %"
    small = 10.0 ** math.floor(math.log10(_LARGE_DELTA / count))
    return (
        f"delta {rounded_up(delta, 3)} is large for {count} {unit}s: publishing the data of each "
        f"{unit} whole with that chance would keep to the guarantee, and publish those of at least "
        f"one with a chance of {chance}. A target_delta of {small:g} leaves a chance of at most "
        f"{math.ceil(1000 * count * small) / 10:g} %."
    )


def answered_by(method: str, found: Spent) -> str:
    """The accountant that was asked, with the one that answered where that is another."""
    return method if method == found.method else f"{method}: {found.method}"


def table(
    event: PrivacyEvent, *, delta: float, methods: Sequence[str] | None = None
) -> list[dict[str, object]]:
    """One row per accountant: method, epsilon_lower, epsilon_upper, order, certified, note.

    A method without a bound for this event gives a row of None with the reason as its note.
    """
    check_event("event", event)
    _validate.below_one(delta=delta)
    rows: list[dict[str, object]] = []
    for method in methods or accountant.METHODS:
        found: Spent | None = None
        note = ""
        try:
            found = accountant.spent(event, delta=delta, method=method)  # type: ignore[arg-type]
            note = found.reason
        except (
            ValueError
        ) as error:  # no bound for this event, or numbers out of this accountant's reach
            note = str(error)
        rows.append(
            {
                "method": answered_by(method, found) if found else method,
                "epsilon_lower": found.epsilon_lower if found else None,
                "epsilon_upper": found.epsilon_upper if found else None,
                "order": found.order if found else None,
                "certified": found.certified if found else None,
                "note": note,
            }
        )
    return rows
