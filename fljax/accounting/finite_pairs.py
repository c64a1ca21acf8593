"""Mechanisms whose worst case on two neighbours has few outcomes: their dominating pairs.

A pair (p, q) of distributions on at most 512 outcomes dominates a mechanism if no test tells the
mechanism's outputs on two neighbours apart better than p from q. Pairs compose, and may be
Poisson-sampled; Renyi divergences and privacy-loss distributions come from them alike.

All pairs here are symmetric: q is p in another order, so that neighbours may be exchanged; but for
randomised response against the null unit.
"""

import math
from typing import NamedTuple

import numpy as np

from fljax.accounting import events, mechanisms
from fljax.accounting.events import Mechanism, NeighboringRelation
from fljax.accounting.renyi import integer_noise

CELLS = 510  # of a curve that is joined by chords
_LARGEST_RANGE = 600.0  # beyond, no distribution of losses is built


class Dominating(NamedTuple):
    """p, q: chances `[J]`; `exact`: some two neighbours have just this pair, so that it also bounds
    what is spent from below.
    """

    p: np.ndarray
    q: np.ndarray
    exact: bool


_NO_NOISE = Dominating(np.array([1.0, 0.0]), np.array([0.0, 1.0]), True)
_NOTHING = Dominating(np.array([1.0]), np.array([1.0]), True)


def pair(mechanism: Mechanism, relation: NeighboringRelation) -> Dominating | None:
    """The pair of `mechanism` alone, unsampled; None where it has none of few outcomes.

    Raises:
      UnsupportedEventError: its pair is not known under `relation`.
    """
    match mechanism:
        case events.EpsilonDelta(epsilon, delta):
            return _pure_and_failure(epsilon, delta)
        case events.RandomizedResponse(noise, buckets):
            return _randomized_response(mechanism, noise, buckets, relation)
        case events.DiscreteLaplace(noise, sensitivity):
            return _discrete_laplace(noise, sensitivity)
        case events.DiscreteGaussianSum() | events.Skellam() if mechanism.dimension == 1:
            return _integer_noise(mechanism)
        case events.Staircase(epsilon, gamma):
            return _staircase(epsilon, gamma)
        case events.NoisyMax(noise, kind, _) if kind == "gumbel" and noise > 0:
            return _bounded_range(epsilon_of_noise(mechanism))
        case events.NoisyMax() | events.SparseVector():
            epsilon = epsilon_of_noise(mechanism)
            return _NO_NOISE if epsilon == math.inf else _pure_and_failure(epsilon, 0.0)
    return None


def epsilon_of_noise(mechanism: events.NoisyMax | events.SparseVector) -> float:
    """The epsilon of pure differential privacy, +inf without noise.

    Source: McSherry, Talwar (2007) for Gumbel noise; McKenna, Sheldon (2020), arXiv:2010.12603, for
    exponential noise; Dwork, Roth (2014), Claim 3.9, for Laplace noise; Lyu, Su, Li (2017),
    arXiv:1603.01699, Theorem 4, for the sparse vector.
    """

    def per(noise: float, moves: float) -> float:
        return moves / noise if noise > 0 else math.inf

    moves = 1.0 if mechanism.monotonic else 2.0
    if isinstance(mechanism, events.NoisyMax):
        return per(mechanism.noise_multiplier, moves)
    return per(mechanism.threshold_noise_multiplier, 1.0) + per(
        mechanism.query_noise_multiplier, moves * mechanism.most_above
    )


def _pure_and_failure(epsilon: float, delta: float) -> Dominating:
    """The pair of all that is (epsilon, delta)-DP: Kairouz, Oh, Viswanath (2015), arXiv:1311.0776,
    section 3.
    """
    if epsilon == 0 == delta:
        return _NOTHING
    high = 1 / (1 + math.exp(-epsilon))
    low = math.exp(-epsilon) * high  # not 1 / (1 + exp(epsilon)), which overflows
    p = np.array([delta, (1 - delta) * high, (1 - delta) * low, 0.0])
    return Dominating(p, p[::-1].copy(), False)


def _randomized_response(
    mechanism: Mechanism, noise: float, buckets: int, relation: NeighboringRelation
) -> Dominating:
    if relation == NeighboringRelation.ADD_OR_REMOVE_ONE:
        raise mechanisms.refuse(
            mechanism,
            relation,
            "rdp' or 'pld",
            "who publishes a bucket is seen to be there: it hides what a unit says, under "
            "REPLACE_ONE or REPLACE_SPECIAL",
        )
    if buckets == 1 or noise == 1:
        return _NOTHING
    other = noise / buckets
    own = 1 - noise + other
    if relation == NeighboringRelation.REPLACE_SPECIAL:  # against a bucket drawn from all
        return Dominating(
            np.array([own, (buckets - 1) * other]),
            np.array([1 / buckets, (buckets - 1) / buckets]),
            True,
        )
    p = np.array([own, other, (buckets - 2) * other])
    return Dominating(p, p[[1, 0, 2]], True)


def _discrete_laplace(noise: float, sensitivity: int) -> Dominating:
    """Outcomes x <= 0, 1, ..., sensitivity - 1, >= sensitivity of the noise alone and moved by the
    sensitivity: beyond the ends the ratio does not change.
    """
    if noise == 0:
        return _NO_NOISE
    if sensitivity > CELLS:
        return _pure_and_failure(noise * sensitivity, 0.0)
    tail = 1 / (1 + math.exp(-noise))  # of x <= 0
    middle = math.tanh(noise / 2) * np.exp(-noise * np.arange(1, sensitivity))
    far = math.exp(-noise * sensitivity) * tail
    p = np.concatenate([[tail], middle, [far]])
    return Dominating(p, p[::-1].copy(), True)


def _integer_noise(mechanism: events.DiscreteGaussianSum | events.Skellam) -> Dominating | None:
    """Noise of one integer, alone and moved as far as it may be: laws here are log-concave, so that
    no smaller move is told apart better. None: 512 outcomes do not hold it.

    What lies beyond the outcomes is told apart for certain.
    """
    l2, l1, _ = integer_noise.lengths(
        mechanism.l2_sensitivity, mechanism.l1_sensitivity, mechanism.dimension
    )
    move = math.floor(min(l2, l1) * (1 + 1e-12))
    if isinstance(mechanism, events.Skellam):
        variance, count = mechanism.variance, 1
    else:
        variance, count = mechanism.count * mechanism.stddev**2, mechanism.count
    reach = (CELLS - move - 1) // 2
    if reach < 8.5 * math.sqrt(variance) + 12:  # beyond lies less than 2e-16
        return None
    if isinstance(mechanism, events.Skellam):
        one_side = np.exp(integer_noise.log_masses(variance, reach)[: reach + 1])
        law = np.concatenate([one_side[:0:-1], one_side])
    else:
        x = np.arange(-reach, reach + 1)
        one = np.exp(-0.5 * (x / mechanism.stddev) ** 2)
        law = _power(one / one.sum(), count)
    beyond = max(1.0 - float(law.sum()), 0.0)
    none = np.zeros(move)
    p = np.concatenate([law, none, [beyond, 0.0]])
    return Dominating(p, np.concatenate([none, law, [0.0, beyond]]), False)


def _power(law: np.ndarray, count: int) -> np.ndarray:
    """The law of a sum of `count` draws, as far out as `law` goes; all terms are positive."""
    found, reach = None, len(law) // 2
    while count:
        if count % 2:
            found = law if found is None else np.convolve(found, law)[reach:-reach]
        law, count = np.convolve(law, law)[reach:-reach], count // 2
    assert found is not None
    return found


def _staircase(epsilon: float, gamma: float | None) -> Dominating:
    """Neighbours one sensitivity apart, which is the worst of all distances: losses are -epsilon, 0
    and epsilon, and the set where the density falls on the way only grows with the distance.
    """
    if gamma is None:
        gamma = math.exp(-epsilon / 2) / (1 + math.exp(-epsilon / 2))
    ratio = math.exp(-epsilon)
    height = -math.expm1(-epsilon) / (2 * (gamma + ratio * (1 - gamma)))  # of the density at 0
    high = 0.5 + height * min(gamma, 1 - gamma)
    p = np.array([high, max(1 - high - ratio * high, 0.0), ratio * high])
    return Dominating(p, p[::-1].copy(), True)


def _bounded_range(epsilon: float) -> Dominating:
    """The worst of all mechanisms whose losses on two neighbours lie in some [t - epsilon, t].

    Each t has a worst pair of two outcomes; the largest of their deltas at log a is
    (1 - sqrt(a e^-epsilon))^2 / (1 - e^-epsilon) between e^-epsilon and e^epsilon, convex in a, and
    so is the curve that joins its values on a grid by chords, which lies above: a pair of its own.

    Source: Dong, Durfee, Rogers (2020), arXiv:1909.13830, for the pairs of two outcomes.
    """
    if epsilon > _LARGEST_RANGE:
        return _pure_and_failure(epsilon, 0.0)
    c = math.exp(-epsilon / 2)
    rest = -math.expm1(-epsilon)
    step = epsilon / CELLS
    v = np.exp(0.5 * epsilon * np.linspace(-1.0, 1.0, CELLS + 1))  # roots of the grid's a
    # The curve's change of slope at each point of the grid, in closed form: no differences.
    inner = 2 * c / rest * v[:-2] * math.expm1(2 * step)
    inner /= (v[:-2] + v[1:-1]) * (v[1:-1] + v[2:])
    first = c * math.expm1(step) / ((c + v[1]) * rest)
    last = -(c**2) * math.expm1(-step) / ((1 + c * v[-2]) * rest)
    q = np.concatenate([[first], inner, [last]])
    p = v**2 * q
    return Dominating(p / p.sum(), q / q.sum(), False)
