"""What the end of float32 normals costs: a delta of its own, beside the one of real-valued noise.

`jax.random.normal` makes float32 normals of 2**23 uniform values, the largest 1 - 3 * 2**-24: they
end at 5.2201 above and at 5.4200 below. An output that lies within reach of the noise on one data
set only gives away which of two it was. Here the noise is a normal cut off at `END`, and otherwise
continuous; what its lowest bits give away is not counted.

Proof, of one release y = f + z of so many numbers, z of normals that are cut off, with P and Q the
laws of y on either data set. Cut off, a density is c = (1 - 2 Q(END))^-D times as large, where it
is not zero. Let A be what all data sets reach: there (epsilon, delta) of real-valued noise gives
P(S in A) <= c (e^epsilon Q'(S in A) + delta), Q' real-valued, and c Q' is Q there. What is outside
of A counts whole. Releases follow one another: c is to the power of their number, and each has a
chance of its own to be outside, whatever came before.

- What is sampled, and what a unit adds if it is, may be random. Who else is in the sample, and what
  the unit would add, is told to the adversary: it is drawn alike on both data sets, and given that,
  the accountants' bound holds. A unit that adds one vector, or nothing, makes one other reach; one
  with several vectors, as a mixture has, or under REPLACE_ONE with sampling, makes as many.
- A sample of fixed size, one of its units replaced: who else is in the sample of a data set where
  the unit is in it, and who is there instead of it where it is not, is told to the adversary. Given
  that, either data set is a mixture of two sums, any two of the three sums in all are one move
  apart, and the accountants' bounds are of such mixtures. Let A be what all three reach: each of
  the two sums may be out of reach of two others.
- Noise that is any linear function L z of independent normals (sums of clients' shares, noise of
  pairs, noise that is correlated over rounds) is no other case. For the move v of the release there
  is a u with L u = v, whose norm is that of v in units of the noise: 1 / its noise multiplier. So
  the release is a function of u + z, to which all of the above applies, with as many numbers as
  there are normals.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fljax import _validate
from fljax.accounting import events, mechanisms

END = 5.22  # standard deviations that every float32 normal may reach; it ends beyond
_SMALL = np.geomspace(1e-6, 0.19, 200)  # see `_out_of_reach`


def _above(at: float | np.ndarray) -> np.ndarray:
    """Chance of a normal above `at`."""
    from scipy import special  # here: `import fljax.accounting` does without

    return np.asarray(special.ndtr(-np.asarray(at, np.float64)), np.float64)


def _density(at: float | np.ndarray) -> np.ndarray:
    return np.exp(-np.square(at) / 2) / math.sqrt(2 * math.pi)


def _out_of_reach(num_coordinates: int, shift: float) -> float:
    """Most chance that a normal vector, moved by `shift` in L2 norm, is in some coordinate above
    what it could reach unmoved: the sum over coordinates of g(s) = Q(END - s) - Q(END), Q the upper
    tail.

    Coordinates that move by at most b have g(s) <= s * phi(END - b), in all sqrt(D) * shift times
    that. For the others g(s) / s**2, which first falls and then rises up to s = END - 0.2, is at
    most the larger of its values at b and at `shift`, and their s**2 sum to shift**2 at most. This
    holds for every b: the least is taken.
    """
    if shift > END - 0.2:
        return 1.0

    def gain(s: float | np.ndarray) -> np.ndarray:
        return np.maximum(_above(END - np.asarray(s)) - _above(END), 0.0)

    b = np.minimum(_SMALL, shift)
    few = math.sqrt(num_coordinates) * shift * _density(END - b)
    far = np.maximum(gain(b) / b**2, gain(shift) / shift**2) * shift**2
    # A coordinate that moves by b = shift leaves none that move by more.
    return float(np.min(few + np.where(b < shift, far, 0.0)))


class Release(NamedTuple):
    """A kind of Gaussian mechanism.

    noise_multiplier: noise stddev / L2 sensitivity, > 0 and without unit. times: how often, >= 1.
    rounds: each is of so many times the numbers of one release, >= 1. reaches: where a unit's data
    may let a release be, beside where it is without them, in so many ways, >= 1.
    """

    noise_multiplier: float
    times: int
    rounds: int = 1
    reaches: int = 1


def delta(
    releases: Sequence[Release | tuple[float, int]], *, num_coordinates: int, delta: float
) -> float:
    """What has to be added to delta, at the same epsilon, because float32 normals end.

    Guarantee: if Gaussian mechanisms of `num_coordinates` numbers each, composed adaptively and
    sampled or not, are (epsilon, delta)-DP with real-valued noise, they are (epsilon, delta +
    result)-DP with noise cut off at `END` or beyond: a density is then 1 / (1 - 2 Q(END)) times as
    large a coordinate where both data sets reach, and what one alone reaches is counted whole, in
    every release. Idealisation: below its end the noise is continuous. float32 numbers are not, and
    their lowest bits tell more.

    Args:
      releases: of each kind. Of a pair (noise multiplier, times) the rest is 1.
      num_coordinates: normals in the noise of one release. >= 1.
      delta: of real-valued noise, in [0, 1).

    Returns:
      At most 1 - delta.

    Raises:
      ValueError: an argument is out of range.

    Source: this module; what else is wrong with such noise, Mironov (2012), CCS '12.
    """
    _validate.positive_int(num_coordinates=num_coordinates)
    _validate.below_one(delta=delta)
    inside = 1 - 2 * float(_above(END))
    found, count = 0.0, 0
    for one in (Release(*given) for given in releases):
        _validate.positive(noise_multiplier=one.noise_multiplier)
        _validate.positive_int(times=one.times, rounds=one.rounds, reaches=one.reaches)
        outside = _out_of_reach(num_coordinates * one.rounds, 1 / one.noise_multiplier) / inside
        found += one.times * one.reaches * outside
        count += one.times * one.rounds
    larger = math.expm1(min(-num_coordinates * count * math.log(inside), 700.0))
    return min(found + delta * larger, 1.0 - delta)


def releases(event: events.PrivacyEvent) -> list[Release] | None:
    """All Gaussian releases of an event; None where there are others."""
    replaced = event.neighboring_relation is events.NeighboringRelation.REPLACE_ONE
    return _of(event.mechanism, 2 if replaced else 1)


def _of(mechanism: events.Mechanism, sampled: int) -> list[Release] | None:
    """sampled: reaches of a release of which a unit may be a part or not."""
    match mechanism:
        case events.Gaussian(noise):
            return [Release(noise, 1)]
        case events.CorrelatedGaussian(num_rounds=rounds):
            of_all = mechanisms.effective_noise(mechanism)
            return None if of_all is None else [Release(of_all, 1, rounds)]
        case events.SampledCorrelatedGaussian(num_rounds=rounds, sampling="balls_in_bins"):
            of_all = mechanisms.effective_noise(mechanism)  # of the bin that moves most
            if sampled > 1 or of_all is None:
                return None
            return [Release(of_all, 1, rounds, reaches=mechanism.cycle)]
        case events.MixtureOfGaussians(stddev, sensitivities):
            moves = [move for move in sensitivities if move > 0]
            if sampled > 1 or not moves:
                return None
            return [Release(stddev / max(moves), 1, reaches=len(moves))]
        case events.RandomAllocation(rounds, _, noise):
            return None if sampled > 1 else [Release(noise, rounds)]
        case events.PoissonSampled(_, inner):
            found = _of(inner, sampled)
            return found and [one._replace(reaches=sampled * one.reaches) for one in found]
        case events.SampledWithoutReplacement(_, _, inner):
            found = _of(inner, sampled) if sampled > 1 else None  # no accountant has other ones
            return found and [one._replace(reaches=2 * one.reaches) for one in found]
        case events.EpsilonDelta(0.0, _):  # a chance that all is given away: no noise of ours
            return []
        case events.SelfComposed(inner, count):
            found = _of(inner, sampled)
            return found and [one._replace(times=one.times * count) for one in found]
        case events.Composed(parts):
            each = [_of(part, sampled) for part in parts]
            return None if None in each else [one for part in each for one in part or []]
    return None


def of_event(event: events.PrivacyEvent, num_coordinates: int, delta_: float) -> float | None:
    """`delta` of an event; None where its noise is other than that of Gaussian mechanisms, or
    none.
    """
    found = releases(event)
    if not found or not all(0 < one.noise_multiplier < math.inf for one in found):
        return None
    return delta(found, num_coordinates=num_coordinates, delta=delta_)
