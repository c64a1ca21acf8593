"""Mechanisms from outside: what an accountant must know of a record that this package does not
have.

    @dataclasses.dataclass(frozen=True)
    class Coin(events.Mechanism):
        epsilon: float

    accounting.register(Coin, describe=lambda coin: "a coin", pld=lambda coin, relation: Pair(p, q))

From then on `Coin` may stand in a `PrivacyEvent`, alone, composed or Poisson-sampled, and in JSON.
An installed package that names a module of its own under the entry-point group `fljax.mechanisms`
has it imported when a JSON holds a record that is not known yet.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np

from fljax import _plugins
from fljax.accounting import events
from fljax.accounting.events import Mechanism, NeighboringRelation
from fljax.errors import PrivacyPreconditionError, UnsupportedEventError

MOST_OUTCOMES = 512
_SUM_ERROR = 1e-13  # of masses, as floats round them


class Pair(NamedTuple):
    """Two distributions on the same outcomes that dominate a mechanism's on any two neighbours.

    p, q: chances `[J]` of the outcomes, J <= 512: with the protected unit and without it (one unit
    or the other, where one is exchanged). They sum to 1 each. Both orders of the two are accounted,
    and the larger epsilon counts.
    """

    p: tuple[float, ...]
    q: tuple[float, ...]


class Rules(NamedTuple):
    """What was registered for a record; `rdp` and `pld` are None where the record has no such
    bound.
    """

    describe: Callable[[Any], str]
    rdp: Callable[[Any, NeighboringRelation, np.ndarray], Any] | None
    pld: Callable[[Any, NeighboringRelation], Pair] | None


_RULES: dict[type[Mechanism], Rules] = {}
_REMEMBERED: list[Callable[[], None]] = []
_Record = TypeVar("_Record", bound=type[Mechanism])


def register(
    record: _Record,
    *,
    describe: Callable[[Any], str],
    rdp: Callable[[Any, NeighboringRelation, np.ndarray], Any] | None = None,
    pld: Callable[[Any, NeighboringRelation], Pair] | None = None,
) -> _Record:
    """Teaches all accountants a mechanism.

    Guarantee: none of its own. Epsilon is certified as far as the given bounds are true; every
    statement names the record.

    Args:
      record: a frozen dataclass that extends `events.Mechanism`; its fields are numbers, strings,
        tuples of these, or other mechanisms. Its name goes into JSON.
      describe: mechanism -> what it does, as part of a sentence.
      rdp: (mechanism, relation, orders `[K]` > 1) -> upper bounds `[K]` on the Renyi divergence
        between the outputs on neighbours, in both orders. None: from `pld`, if there is one.
      pld: (mechanism, relation) -> `Pair`. Under ADD_OR_REMOVE_ONE or REPLACE_SPECIAL it serves
        Poisson samples, too. Either function raises `UnsupportedEventError` for a relation under
        which it proves nothing.

    Returns:
      `record`.

    Raises:
      ValueError: no frozen dataclass, another record of this name, or neither bound.
    """
    if not (
        isinstance(record, type)
        and issubclass(record, Mechanism)
        and dataclasses.is_dataclass(record)
    ):
        raise ValueError(
            "Expected record to be a dataclass that extends events.Mechanism, got "
            f"record={record!r}."
        )
    frozen: bool = record.__dataclass_params__.frozen  # type: ignore[attr-defined]
    if not frozen:
        raise ValueError(
            f"Expected record to be a frozen dataclass, got record={record!r}: accountants "
            "remember it."
        )
    unseen = [field.name for field in dataclasses.fields(record) if not field.compare]
    if unseen:
        raise ValueError(
            f"Expected fields that all count in a comparison, got record={record!r} with "
            f"{unseen[0]!r}: records that are equal are accounted as one."
        )
    known = events.RECORDS.get(record.__name__)
    # A module that is imported anew defines its record anew.
    if known is not None and (known.__module__, known.__qualname__) != (
        record.__module__,
        record.__qualname__,
    ):
        raise ValueError(
            f"Expected a name that no other record has, got record={record!r} beside {known!r}."
        )
    if known is not None and known not in _RULES:
        raise ValueError(
            f"Expected a record of your own, got record={record!r}, which fljax accounts itself."
        )
    if rdp is None and pld is None:
        raise ValueError("Expected rdp or pld to be a function, got rdp=None and pld=None.")
    events.RECORDS[record.__name__] = record
    _RULES[record] = Rules(describe, rdp, pld)
    for forget in _REMEMBERED:
        forget()
    return record


def remembered(forget: Callable[[], None]) -> None:
    """Has `forget` called whenever a record is registered: what was found by its rules before must
    not outlive them.
    """
    _REMEMBERED.append(forget)


def listed() -> Iterator[_plugins.Listed]:
    """All records with where they come from, those of installed packages included; then those that
    fail to load.
    """
    failed = _plugins.load_all("mechanisms")
    for name, record in events.RECORDS.items():
        own = record.__module__ == events.__name__
        yield _plugins.Listed(
            name, "fljax" if own else f"registered by {record.__module__}", record
        )
    for sentence in failed:
        name, _, why = sentence.partition(" ")
        yield _plugins.Listed(name, "", None, why)


def rules(mechanism: Mechanism) -> Rules | None:
    """What was registered for this record; None for records of this package and for unknown
    ones.
    """
    return _RULES.get(type(mechanism))


def divergence(
    mechanism: Mechanism, relation: NeighboringRelation, orders: tuple[float, ...]
) -> np.ndarray:
    """Renyi divergences `[K]` by what was registered.

    Raises:
      UnsupportedEventError: nothing was, or not for this relation.
      PrivacyPreconditionError: the registered function gave no bound: another shape, NaN, or a
        number below 0.
    """
    found = rules(mechanism)
    if found is None or (found.rdp is None and found.pld is None):
        raise unknown(mechanism)
    grid = np.asarray(orders, np.float64)
    if found.rdp is None:
        p, q = pair(mechanism, relation)
        return np.maximum(pair_divergence(p, q, grid), pair_divergence(q, p, grid))
    values = np.asarray(found.rdp(mechanism, relation, grid), np.float64)
    if values.shape != grid.shape or not np.all(values >= 0):
        raise PrivacyPreconditionError(
            f"Expected rdp of {type(mechanism).__name__} to give numbers >= 0 of shape "
            f"{grid.shape}, got {values.tolist()} of shape {values.shape} for {mechanism!r}."
        )
    return values


def has_pair(mechanism: Mechanism) -> bool:
    """Whether a dominating pair was registered for this record."""
    found = rules(mechanism)
    return found is not None and found.pld is not None


def pair(mechanism: Mechanism, relation: NeighboringRelation) -> tuple[np.ndarray, np.ndarray]:
    """The checked dominating pair, `[J]` each.

    Raises:
      UnsupportedEventError: none was registered, or not for this relation.
      PrivacyPreconditionError: what the registered function gave is no pair of distributions.
    """
    found = rules(mechanism)
    if found is None:
        raise unknown(mechanism)
    if found.pld is None:
        raise UnsupportedEventError(
            f"Expected {type(mechanism).__name__} to be registered with pld, got {mechanism!r}."
        )
    given = found.pld(mechanism, relation)
    p, q = (np.asarray(masses, np.float64) for masses in (given.p, given.q))
    good = p.ndim == 1 and p.shape == q.shape and 1 <= p.size <= MOST_OUTCOMES
    for masses in (p, q):
        good = (
            good and bool(np.all(masses >= 0)) and abs(math.fsum(masses.ravel()) - 1) <= _SUM_ERROR
        )
    if not good:
        raise PrivacyPreconditionError(
            f"Expected pld of {type(mechanism).__name__} to give two lists of at most "
            f"{MOST_OUTCOMES} chances that sum to 1, got shapes {p.shape} and {q.shape} with sums "
            f"{p.sum()!r} and {q.sum()!r} for {mechanism!r}."
        )
    return p, q


def effective_noise(mechanism: Mechanism) -> float | None:
    """Noise multiplier of the one Gaussian mechanism that equals a tree of Gaussians, or bounds it
    from above where `takes_draws_for_known`; None for other trees.

    Several Gaussian releases are one release of their precision-weighted mean: precisions 1 /
    sigma^2 add.
    """
    if isinstance(mechanism, events.Gaussian):
        return mechanism.noise_multiplier
    if isinstance(mechanism, events.CorrelatedGaussian):
        return _correlated_noise(mechanism)
    if isinstance(mechanism, events.SampledCorrelatedGaussian):
        return _correlated_noise(told_when(mechanism))
    if isinstance(mechanism, events.PoissonSampled) and mechanism.sampling_prob == 1:
        return effective_noise(mechanism.event)
    if (
        isinstance(mechanism, events.SampledWithoutReplacement)
        and mechanism.sample_size == mechanism.population
    ):
        return effective_noise(mechanism.event)
    if isinstance(mechanism, events.SelfComposed):
        parts: list[tuple[Mechanism, int]] = [(mechanism.event, mechanism.count)]
    elif isinstance(mechanism, events.Composed):
        parts = [(event, 1) for event in mechanism.events]
    else:
        return None
    # root of the precision: its square would overflow for little noise, and vanish for much
    mu = 0.0
    for event, count in parts:
        noise = effective_noise(event)
        if noise is None:
            return None
        if count:
            mu = math.hypot(mu, math.sqrt(count) / noise if noise > 0 else math.inf)
    return 1 / mu if mu > 0 else math.inf


def told_when(mechanism: events.SampledCorrelatedGaussian) -> events.CorrelatedGaussian:
    """What is left of the mechanism where it is known in which rounds each unit is."""
    return events.CorrelatedGaussian(
        mechanism.noise_multiplier,
        mechanism.kind,
        mechanism.coefs,
        mechanism.num_rounds,
        mechanism.cycle,
        cyclic=True,
    )


def takes_draws_for_known(mechanism: Mechanism) -> bool:
    """Whether `effective_noise`, and whoever goes by it, bounds a part of the mechanism from above
    alone: its units' rounds are drawn, and are taken for known.
    """
    match mechanism:
        case events.SampledCorrelatedGaussian(sampling="balls_in_bins", cycle=bins):
            return bins > 1
        case events.SampledCorrelatedGaussian(sampling_prob=prob):
            return prob < 1
        case events.SelfComposed(event, count):
            return count > 0 and takes_draws_for_known(event)
        case events.Composed(parts):
            return any(map(takes_draws_for_known, parts))
        case events.PoissonSampled(_, event) | events.SampledWithoutReplacement(_, _, event):
            return takes_draws_for_known(event)
    return False


def _correlated_noise(mechanism: events.CorrelatedGaussian) -> float:
    """Noise multiplier of the one Gaussian mechanism that equals a matrix mechanism."""
    from fljax.accounting import correlated  # which imports jax
    from fljax_kernels.correlated import Strategy

    strategy = Strategy(mechanism.kind, mechanism.coefs, mechanism.num_rounds)
    moved = correlated.sensitivity(
        strategy, min_separation=mechanism.min_separation, cyclic=mechanism.cyclic
    )
    return mechanism.noise_multiplier / moved


def without_failures(mechanism: Mechanism) -> tuple[Mechanism, float]:
    """A tree of compositions with the deltas of its (epsilon, delta) claims set to 0, and their
    sum, rounded up.

    With chance at most delta the worst mechanism of a claim tells all, and else it is pure:
    arXiv:1311.0776, section 3. So the tree spends at delta what the other one does at the rest.
    """
    if isinstance(mechanism, events.EpsilonDelta):
        return dataclasses.replace(mechanism, delta=0.0), mechanism.delta
    if isinstance(mechanism, events.SelfComposed):
        inner, failure = without_failures(mechanism.event)
        if failure == 0:
            return mechanism, 0.0
        total = mechanism.count * failure * (1 + 2.0**-51)
        return dataclasses.replace(mechanism, event=inner), total
    if isinstance(mechanism, events.Composed):
        parts = [without_failures(event) for event in mechanism.events]
        total = math.fsum(failure for _, failure in parts) * (1 + 2.0**-51)
        return (
            (events.Composed(tuple(part for part, _ in parts)), total)
            if total
            else (mechanism, 0.0)
        )
    return mechanism, 0.0


def tree_noise(mechanism: events.TreeAggregation, relation: NeighboringRelation) -> float:
    """Noise multiplier of the one Gaussian mechanism that equals the trees.

    A unit is in at most one step, and so in one node of each floor of one tree.

    Raises:
      UnsupportedEventError: under another relation than REPLACE_SPECIAL.
    """
    if relation != NeighboringRelation.REPLACE_SPECIAL:
        why = "trees are analysed for REPLACE_SPECIAL, which leaves all other units where they are"
        raise refuse(mechanism, relation, "rdp' or 'pld", why)
    return mechanism.noise_multiplier / math.sqrt(max(mechanism.step_counts).bit_length())


def refuse(
    mechanism: Mechanism, relation: NeighboringRelation, method: str, why: str
) -> UnsupportedEventError:
    """The error for a combination without a bound."""
    return UnsupportedEventError(
        f"Expected an event that method={method!r} has a bound for under {relation}: {why}; got "
        f"{mechanism!r}."
    )


def unknown(mechanism: Mechanism) -> UnsupportedEventError:
    """The error for a record that nobody has registered."""
    return UnsupportedEventError(
        f"Expected a mechanism that fljax knows, got {mechanism!r}: teach it with "
        "fljax.accounting.register."
    )


def describe(mechanism: Mechanism) -> str | None:
    """The registered words; None where nothing was registered."""
    found = rules(mechanism)
    return None if found is None else found.describe(mechanism)


def pair_divergence(p: np.ndarray, q: np.ndarray, orders: np.ndarray) -> np.ndarray:
    """Renyi divergence `[K]` of p from q `[J]`, rounded up: log(sum p^a q^(1 - a)) / (a - 1)."""
    missed = sum(abs(math.fsum(masses) - 1) for masses in (p, q))
    there = p > 0
    p, q = p[there], q[there]
    if np.any(q == 0):
        return np.full(orders.shape, np.inf)
    terms = orders[:, None] * np.log(p) + (1 - orders[:, None]) * np.log(q)
    most = terms.max(axis=1)
    total = most + np.log(np.exp(terms - most[:, None]).sum(axis=1))
    # Two logs of relative error 2^-52, and what the sums of the chances are from 1, times the
    # order; a sum of J terms.
    error = orders * missed + 2.0**-50 * (
        orders * (np.abs(np.log(p)).max() + np.abs(np.log(q)).max()) + p.size
    )
    return np.maximum((total + error) / (orders - 1), 0.0)
