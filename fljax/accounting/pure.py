"""The largest privacy loss of an event: epsilon at delta 0, and the Renyi divergence of infinite
order.
"""

import math

import numpy as np

from fljax.accounting import events, finite_pairs, mechanisms
from fljax.accounting.events import Mechanism, NeighboringRelation

_ROUNDED_UP = 1 + 2.0**-49  # covers a logarithm and what it is taken of


def largest_loss(mechanism: Mechanism, relation: NeighboringRelation) -> float:
    """Upper bound on the loss of any output on any two neighbours; +inf where there is none.

    Raises:
      UnsupportedEventError: a sample or a mechanism that nothing is proved of under `relation`.

    Source: of samples Balle, Barthe, Gaboardi (2018), arXiv:1807.01647, Theorems 8 and 9; of
      repeated mechanisms Papernot, Steinke (2022), arXiv:2110.03620, Corollary 3 and the limit of
      Theorem 6.
    """
    match mechanism:
        case events.SelfComposed(event, count):
            return count * largest_loss(event, relation) if count else 0.0
        case events.Composed(parts):
            return math.fsum(largest_loss(part, relation) for part in parts)
        case events.ZCdp(rho, xi):
            return xi if rho == 0 else math.inf
        case events.Laplace(noise):
            return 1 / noise if noise > 0 else math.inf
        case events.DiscreteLaplace(noise, sensitivity):
            return noise * sensitivity if noise > 0 else math.inf
        case events.EpsilonDelta(epsilon, delta):
            return epsilon if delta == 0 else math.inf
        case events.Staircase(epsilon, _):
            return epsilon
        case events.NoisyMax() | events.SparseVector():
            return finite_pairs.epsilon_of_noise(mechanism)
        case events.RandomizedResponse():
            found = finite_pairs.pair(mechanism, relation)
            return 0.0 if found is None else _of_pair(found.p, found.q)
        case events.RepeatAndSelect(event, mean, shape):
            inner = largest_loss(event, relation)
            if shape == "poisson":
                return inner + mean * math.tanh(inner / 2)
            return inner if mean == 1 else (2 + shape) * inner
        case events.PoissonSampled(prob, event):
            inner = largest_loss(event, relation)
            if relation == NeighboringRelation.REPLACE_ONE:
                return inner if prob > 0 else 0.0
            return _amplified(inner, prob)
        case events.SampledWithoutReplacement(population, size, event):
            inner = largest_loss(event, relation)
            if size == population:
                return inner
            if relation != NeighboringRelation.REPLACE_ONE:
                why = "sampling without replacement is analysed for REPLACE_ONE"
                raise mechanisms.refuse(mechanism, relation, "pure", why)
            return _amplified(inner, size / population)
        case events.MixtureOfGaussians(_, sensitivities, _):
            return math.inf if any(sensitivities) else 0.0
        case events.TruncatedPoissonGaussian(population, prob, most, _):
            return 0.0 if 0 in (population, prob, most) else math.inf
        case events.SampledWithReplacement():
            raise mechanisms.refuse(mechanism, relation, "pure", "nothing is proved of it")
    if mechanisms.has_pair(mechanism):
        return _of_pair(*mechanisms.pair(mechanism, relation))
    return math.inf


def _amplified(epsilon: float, prob: float) -> float:
    """Of a unit that takes part with chance `prob`: log(1 + prob (e^epsilon - 1))."""
    if prob == 0 or epsilon == math.inf:
        return 0.0 if prob == 0 else math.inf
    if epsilon > 30:
        return (
            float(
                np.logaddexp(math.log1p(-prob) if prob < 1 else -math.inf, math.log(prob) + epsilon)
            )
            * _ROUNDED_UP
        )
    return math.log1p(prob * math.expm1(epsilon)) * _ROUNDED_UP


def _of_pair(p: np.ndarray, q: np.ndarray) -> float:
    there = (p > 0) | (q > 0)
    with np.errstate(divide="ignore"):
        return float(np.abs(np.log(p[there]) - np.log(q[there])).max()) * _ROUNDED_UP
