"""Epsilon of noise and sampling whose privacy loss is drawn, not summed: with a confidence that is
stated, never as a point.

A unit that is in random rounds S moves what is seen by m_S, the sum of C's columns of S: the pair
is the mixture of the normals around all m_S against noise alone. Its loss is a log of a sum of
exponentials, easy to draw and hard to integrate. What is reported is the upper end of a confidence
interval for delta, whose failure is a part of delta.

That no unit tells more, whatever vectors of norm <= 1 it adds and however they depend on earlier
releases: given the past, what a round adds to the exponents of all S is Gaussian, and its
covariances are at most those of all-equal vectors under |C|, entry by entry. By Kahane's inequality
(1985, "Sur le chaos multiplicatif") the mean of any convex function of a sum of such exponentials
only grows with them, round after round from the last on; and delta is one, in both orders.

Source: Choquette-Choo et al. (2024), "Near Exact Privacy Amplification for Matrix Mechanisms",
arXiv:2410.06266; the interval: Hoeffding (1963), Theorem 1.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from scipy import optimize, special

from fljax import _validate
from fljax.accounting import accountant, correlated, events, mechanisms
from fljax.accounting.correlated import matrices
from fljax.accounting.events import Mechanism, NeighboringRelation, PrivacyEvent
from fljax.errors import UnsupportedEventError
from fljax_kernels.correlated import Strategy

__all__ = ["Bound", "calibrate", "delta", "epsilon"]

MOST_PATTERNS = 4096  # sets of rounds that a unit may be in
_AT_ONCE = 2**22  # numbers of a block of draws
_ROUNDED = 1e-9  # of a loss, by float64: a hundred times what thousands of terms are off


class Bound(NamedTuple):
    """value: an upper bound on epsilon or delta, which is below the truth with chance
    `failure_prob` at most. estimate: what the draws say, no bound. failure_prob: part of the delta
    that is asked for, or of `value` where that is a delta. num_samples: of each order of the pair.
    """

    value: float
    estimate: float
    failure_prob: float
    num_samples: int


class Mixture(NamedTuple):
    """The pair of a unit in random rounds against noise alone. weights: `[S]`, chances. means:
    `[S, K]`, in standard deviations of the noise, in coordinates of their span.
    """

    weights: np.ndarray
    means: np.ndarray


def epsilon(
    event: PrivacyEvent,
    *,
    delta: float,
    num_samples: int,
    rng: np.random.Generator,
    failure_prob: float | None = None,
) -> Bound:
    """The least epsilon at `delta` that draws of the privacy loss prove.

    Guarantee: with chance 1 - failure_prob over the draws it is no less than the epsilon at `delta`
    - failure_prob, and so all of `delta` is spent. Idealisation: `rng` draws normal numbers in
    float64.

    Args:
      event: of `SampledCorrelatedGaussian`, `RandomAllocation`, `CorrelatedGaussian` or `Gaussian`,
        repeated or composed, under ADD_OR_REMOVE_ONE or REPLACE_SPECIAL.
      delta: in (0, 1).
      num_samples: of the loss in each order. Some 30 / delta tell epsilon well.
      rng: whose draws the caller must not have seen.
      failure_prob: in (0, delta); None: delta / 100.

    Returns:
      `Bound`; infinite where so few draws prove nothing.

    Raises:
      ValueError: a number is out of range.
      UnsupportedEventError: another mechanism or relation, or more than 4096 sets of rounds.
    """
    _validate.open_unit(delta=delta)
    return _proved(event, delta, _failure(failure_prob, delta), num_samples, rng)


def _proved(
    event: PrivacyEvent,
    delta: float,
    failure: float,
    num_samples: int,
    rng: np.random.Generator,
) -> Bound:
    losses = _losses(event, num_samples, rng)
    error = failure / len(losses)
    # The bound falls with epsilon. So a report below the truth means that it failed just below the
    # truth, at one place that no draw has chosen.
    spent = max(_least(each, delta - failure, error) for each in losses)
    told = max(_least(each, delta, None) for each in losses)
    return Bound(spent, told, failure, num_samples)


def delta(
    event: PrivacyEvent,
    *,
    epsilon: float,
    num_samples: int,
    rng: np.random.Generator,
    failure_prob: float,
) -> Bound:
    """The least delta at `epsilon` that draws of the privacy loss prove, with `failure_prob` in it.

    Guarantee: with chance 1 - failure_prob over the draws, `value` - failure_prob is no less than
    the event's delta.

    Args, Raises: as `epsilon`; epsilon >= 0, failure_prob in (0, 1).
    """
    _validate.non_negative(epsilon=epsilon)
    _validate.open_unit(failure_prob=failure_prob)
    losses = _losses(event, num_samples, rng)
    error = failure_prob / len(losses)
    means = [_mean(each, epsilon) for each in losses]
    most = max(upper_mean(mean, num_samples, error) for mean in means)
    return Bound(min(1.0, most + failure_prob), max(means), failure_prob, num_samples)


def calibrate(
    event_fn: Callable[[float], PrivacyEvent],
    *,
    epsilon: float,
    delta: float,
    num_samples: int,
    rng: np.random.Generator,
    failure_prob: float | None = None,
    tries: int = 12,
) -> tuple[float, Bound]:
    """Noise with which draws of the privacy loss prove `epsilon` at `delta`, near the least such.

    Guarantee: with chance 1 - failure_prob over the draws, `event_fn(noise)` spends at most
    `epsilon` at `delta` - failure_prob, and so all of `delta` is spent. Each try may fail with
    chance failure_prob / tries: whichever noise is taken, and for whatever reason, it has not.
    Idealisation: as `epsilon`.

    Args:
      event_fn: noise multiplier -> event of the whole run. Epsilon must fall with it.
      epsilon: target, > 0.
      num_samples: of the loss in each order, drawn anew in each try.
      delta, rng, failure_prob: as for `epsilon`.
      tries: noise multipliers that are tried, >= 1: from the noise without chances, which needs no
        draws, down by three tenths each until one is too little, then between that and the last.

    Returns:
      `(noise multiplier, its bound)`. Where no try proves the target it is the noise without
      chances, of which `failure_prob` is 0.

    Raises:
      ValueError, UnsupportedEventError: as `epsilon`.
      PrivacyPreconditionError: no noise in reach meets the target.
    """
    _validate.positive(epsilon=epsilon)
    _validate.open_unit(delta=delta)
    _validate.positive_int(num_samples=num_samples, tries=tries)
    failure = _failure(failure_prob, delta)
    noise = accountant.calibrate(event_fn, epsilon=epsilon, delta=delta, method="auto")
    known = accountant.epsilon(event_fn(noise), delta=delta, method="auto")
    bound, low, share = Bound(known, known, 0.0, 0), 0.0, failure / tries
    for _ in range(tries):
        middle = math.sqrt(low * noise) if low else 0.7 * noise
        # All tries may fail together with chance `failure`, which each leaves out of its delta.
        found = _proved(event_fn(middle), delta - failure + share, share, num_samples, rng)
        if found.value <= epsilon:
            noise, bound = middle, found._replace(failure_prob=failure)
        else:
            low = middle
    return noise, bound


def _failure(failure_prob: float | None, delta: float) -> float:
    failure = delta / 100 if failure_prob is None else failure_prob
    if not 0 < failure < delta:
        raise ValueError(f"Expected failure_prob in (0, delta), got failure_prob={failure!r}.")
    return failure


def upper_mean(mean: float, count: int, error: float) -> float:
    """Above the mean of independent numbers in [0, 1] whose sample of `count` has this `mean`, but
    with chance `error`.

    Raises:
      ValueError: a number is out of range.

    Source: Hoeffding (1963), Theorem 1: count KL(sample mean, mean) exceeds x from below with
      chance exp(-x) at most.
    """
    _validate.closed_unit(mean=mean)
    _validate.positive_int(count=count)
    _validate.open_unit(error=error)
    allowed = -math.log(error) / count

    def excess(high: float) -> float:
        return float(special.rel_entr(mean, high) + special.rel_entr(1 - mean, 1 - high) - allowed)

    top = 1 - 1e-15
    if mean >= top or excess(top) <= 0:
        return 1.0
    found = optimize.brentq(excess, mean, top, xtol=1e-18, rtol=1e-13)
    return min(1.0, float(found) * (1 + 1e-12))


def loss(mixture: Mixture, seen: np.ndarray) -> np.ndarray:
    """Log of how much likelier `seen` `[n, K]` is with the unit than without it: `[n]`."""
    with np.errstate(divide="ignore"):
        offset = np.log(mixture.weights) - np.sum(mixture.means**2, axis=1) / 2
    return np.asarray(special.logsumexp(seen @ mixture.means.T + offset, axis=1))


def mixtures(mechanism: Mechanism) -> tuple[Mixture, ...]:
    """The pairs of a mechanism that is not composed, one for each turn that a unit may have: the
    worst of them counts.

    Raises:
      UnsupportedEventError: there is none, or too many sets of rounds.
    """
    match mechanism:
        case events.Gaussian(noise):
            return (_mixture(np.ones(1), np.ones((1, 1)), noise),)
        case events.CorrelatedGaussian():
            one = mechanisms.effective_noise(mechanism)
            return (_mixture(np.ones(1), np.ones((1, 1)), 0.0 if one is None else one),)
        case events.RandomAllocation(num_rounds, times, noise):
            if math.comb(num_rounds, times) > MOST_PATTERNS:
                raise _too_many(mechanism)
            sets = np.zeros((math.comb(num_rounds, times), num_rounds))
            for row, rounds in enumerate(itertools.combinations(range(num_rounds), times)):
                sets[row, list(rounds)] = 1.0
            return (_mixture(np.full(len(sets), 1 / len(sets)), sets, noise),)
        case events.SampledCorrelatedGaussian():
            return _sampled(mechanism)
    raise UnsupportedEventError(
        "Expected an event of SampledCorrelatedGaussian, RandomAllocation, CorrelatedGaussian or "
        f"Gaussian, got {mechanism!r}."
    )


def _sampled(mechanism: events.SampledCorrelatedGaussian) -> tuple[Mixture, ...]:
    strategy = Strategy(mechanism.kind, mechanism.coefs, mechanism.num_rounds)
    columns = np.abs(correlated.encoder(strategy))
    cycle = min(mechanism.cycle, mechanism.num_rounds)
    if mechanism.sampling == "balls_in_bins":
        if mechanism.cycle > MOST_PATTERNS:
            raise _too_many(mechanism)
        # Bins beyond the last round hold nobody of it.
        means = np.zeros((mechanism.cycle, mechanism.num_rounds))
        for first in range(cycle):
            means[first] = columns[:, first :: mechanism.cycle].sum(axis=1)
        weights = np.full(mechanism.cycle, 1 / mechanism.cycle)
        return (_mixture(weights, means, mechanism.noise_multiplier),)
    # Of Toeplitz matrices the first turn's rounds show all that those of a later one do, and more.
    turns = range(cycle) if matrices.toeplitz(strategy) is None else range(1)
    found = []
    for first in turns:
        mine = columns[:, first :: mechanism.cycle]
        count = mine.shape[1]
        if 2**count > MOST_PATTERNS:
            raise _too_many(mechanism)
        joins = np.stack(np.meshgrid(*[[0.0, 1.0]] * count, indexing="ij"), -1).reshape(-1, count)
        prob = mechanism.sampling_prob
        weights = np.prod(np.where(joins == 1, prob, 1 - prob), axis=1)
        found.append(_mixture(weights, joins @ mine.T, mechanism.noise_multiplier))
    return tuple(found)


def _mixture(weights: np.ndarray, means: np.ndarray, noise: float) -> Mixture:
    """With `means` `[S, T]` in units of the sensitivity."""
    # Noise outside of their span tells nothing. Rotations of it stay what they are.
    _, upper = np.linalg.qr(means.T, mode="reduced")
    with np.errstate(divide="ignore", invalid="ignore"):
        return Mixture(weights, np.where(upper.T == 0, 0.0, upper.T / noise))


def _too_many(mechanism: Mechanism) -> UnsupportedEventError:
    return UnsupportedEventError(
        f"Expected a unit to be in one of at most {MOST_PATTERNS} sets of rounds, got more with "
        f"{mechanism!r}: other accountants take the rounds for known."
    )


def _parts(mechanism: Mechanism, count: int = 1) -> Iterator[tuple[Mechanism, int]]:
    """What is composed, each with how often."""
    match mechanism:
        case events.SelfComposed(inner, times):
            yield from _parts(inner, count * times)
        case events.Composed(parts):
            for part in parts:
                yield from _parts(part, count)
        case _:
            yield mechanism, count


def _losses(event: PrivacyEvent, num_samples: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Losses `[n]` of each choice of turns, in both orders of the pair."""
    events.check_event("event", event)
    _validate.positive_int(num_samples=num_samples)
    if event.neighboring_relation == NeighboringRelation.REPLACE_ONE:
        raise UnsupportedEventError(
            "Expected ADD_OR_REMOVE_ONE or REPLACE_SPECIAL, whose pair is drawn, got REPLACE_ONE."
        )
    parts = [(mixtures(part), count) for part, count in _parts(event.mechanism) if count]
    if any(not np.isfinite(each.means).all() for pairs, _ in parts for each in pairs):
        return [np.full(num_samples, np.inf)]
    # A unit has one turn in all of them, which each part may count differently.
    choices = itertools.product(*[pairs for pairs, _ in parts])
    counts = [count for _, count in parts]
    found = []
    for chosen in choices:
        for there in (True, False):
            total = np.zeros(num_samples)
            for mixture, count in zip(chosen, counts, strict=True):
                for _ in range(count):
                    total += _drawn(mixture, num_samples, rng, there=there)
            found.append(total)
    return found


def _drawn(
    mixture: Mixture, num_samples: int, rng: np.random.Generator, *, there: bool
) -> np.ndarray:
    """Losses `[n]` of what is seen with the unit, or, in the other order, without it."""
    patterns, size = mixture.means.shape
    block = max(1, _AT_ONCE // max(patterns, size))
    found = np.empty(num_samples)
    for start in range(0, num_samples, block):
        stop = min(start + block, num_samples)
        seen = rng.normal(size=(stop - start, size))
        if there:
            seen += mixture.means[rng.choice(patterns, size=stop - start, p=mixture.weights)]
        found[start:stop] = loss(mixture, seen)
    return (found if there else -found) + _ROUNDED


def _mean(losses: np.ndarray, epsilon: float) -> float:
    """Of what is above epsilon: the sample's delta."""
    over = losses[losses > epsilon]
    return float(np.sum(-np.expm1(epsilon - over)) / len(losses))


def _least(losses: np.ndarray, delta: float, error: float | None) -> float:
    """The epsilon from which on the sample's delta, or its upper end, is at most `delta`."""

    def spent(epsilon: float) -> float:
        mean = _mean(losses, epsilon)
        return mean if error is None else upper_mean(mean, len(losses), error)

    if spent(0.0) <= delta:
        return 0.0
    low, high = 0.0, float(losses.max())
    if not spent(high) <= delta:
        return math.inf
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if spent(middle) <= delta else (middle, high)
    return high
