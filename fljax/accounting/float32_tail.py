"""What the end of float32 normals costs: a delta of its own, beside the one of real-valued noise.

`jax.random.normal` makes float32 normals of 2**23 uniform values, the largest 1 - 3 * 2**-24: they
end at 5.2201 above and at 5.4200 below. An output that lies within reach of the noise on one data
set only gives away which of two it was. Here the noise is a normal cut off at `END`, and otherwise
continuous; what its lowest bits give away is not counted.
"""

import math
from collections.abc import Sequence

import numpy as np

from fljax import _validate
from fljax.accounting import events
from fljax.accounting._arrays import log_ndtr

END = 5.22  # standard deviations that every float32 normal may reach; it ends beyond
_SMALL = np.geomspace(1e-6, 0.19, 200)  # see `_out_of_reach`


def _above(at: float | np.ndarray) -> np.ndarray:
    """Chance of a normal above `at`."""
    return np.exp(np.asarray(log_ndtr(-np.asarray(at, np.float64)), np.float64))


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


def delta(releases: Sequence[tuple[float, int]], *, num_coordinates: int, delta: float) -> float:
    """What has to be added to delta, at the same epsilon, because float32 normals end.

    Guarantee: if Gaussian mechanisms of `num_coordinates` numbers each, composed adaptively and
    Poisson sampled or not, are (epsilon, delta)-DP with real-valued noise, they are (epsilon,
    delta + result)-DP with noise cut off at `END` or beyond: a density is then 1 / (1 - 2 Q(END))
    times as large a coordinate where both data sets reach, and what one alone reaches is counted
    whole, in every release. Idealisation: below its end the noise is continuous. float32 numbers
    are not, and their lowest bits tell more.

    Args:
      releases: (noise stddev / L2 sensitivity, > 0 and without unit; how often, >= 1) of each kind.
      num_coordinates: numbers of one release. >= 1.
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
    for noise_multiplier, times in releases:
        _validate.positive(noise_multiplier=noise_multiplier)
        _validate.positive_int(times=times)
        found += times * _out_of_reach(num_coordinates, 1 / noise_multiplier) / inside
        count += times
    larger = math.expm1(min(-num_coordinates * count * math.log(inside), 700.0))
    return min(found + delta * larger, 1.0 - delta)


def releases(mechanism: events.Mechanism) -> list[tuple[float, int]] | None:
    """(noise multiplier, how often) of all Gaussian releases; None where there are others."""
    if isinstance(mechanism, events.Gaussian):
        return [(mechanism.noise_multiplier, 1)]
    if isinstance(mechanism, events.PoissonSampled):
        return releases(mechanism.event)
    if isinstance(mechanism, events.SelfComposed):
        inner = releases(mechanism.event)
        return None if inner is None else [(z, n * mechanism.count) for z, n in inner]
    if isinstance(mechanism, events.Composed):
        found = [releases(part) for part in mechanism.events]
        return None if None in found else [pair for part in found for pair in part or []]
    return None


def of_event(event: events.PrivacyEvent, num_coordinates: int, delta_: float) -> float | None:
    """`delta` of an event; None where its noise is other than that of Gaussian mechanisms, or
    none.
    """
    found = releases(event.mechanism)
    if found is None or not all(z > 0 for z, _ in found):
        return None
    return delta(found, num_coordinates=num_coordinates, delta=delta_)
