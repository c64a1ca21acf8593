"""Renyi curve of a mechanism record: the tree walk behind `method="rdp"`."""

import functools
import math

import numpy as np

from fljax.accounting import events, mechanisms
from fljax.accounting.events import Mechanism, NeighboringRelation
from fljax.accounting.renyi import rdp
from fljax.accounting.weighted_sums import curves as weighted_curves

_MOST_WITHOUT_REPLACEMENT = 256
_ADD_REMOVE_LIKE = (NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_SPECIAL)


@functools.lru_cache(maxsize=4096)
def curve(
    mechanism: Mechanism, relation: NeighboringRelation, orders: tuple[float, ...]
) -> np.ndarray:
    """Renyi divergences `[K]` of `mechanism`; read-only. Cached: a ledger asks for the same round
    again and again.
    """
    out = np.array(_curve(mechanism, relation, orders), np.float64)
    out.setflags(write=False)
    return out


mechanisms.remembered(curve.cache_clear)


def _curve(
    mechanism: Mechanism, relation: NeighboringRelation, orders: tuple[float, ...]
) -> np.ndarray:
    nothing = np.zeros(len(orders))
    if isinstance(mechanism, events.NonPrivate):
        return nothing + np.inf
    if isinstance(mechanism, events.Gaussian):
        return np.asarray(rdp.gaussian(mechanism.noise_multiplier, orders))
    if isinstance(mechanism, events.ZCdp):
        return mechanism.xi + mechanism.rho * np.asarray(orders)
    if isinstance(mechanism, events.Laplace):
        return np.asarray(rdp.laplace(mechanism.noise_multiplier, orders))
    if isinstance(mechanism, events.DiscreteGaussian):
        # Never above its continuous twin: Canonne, Kamath, Steinke (2020), arXiv:2004.00010,
        # Proposition 5.
        return np.asarray(rdp.gaussian(mechanism.stddev / mechanism.sensitivity, orders))
    if isinstance(mechanism, events.EpsilonDelta):
        if mechanism.delta > 0:
            raise mechanisms.refuse(
                mechanism, relation, "rdp", "a delta > 0 leaves Renyi divergences unbounded"
            )
        return np.asarray(rdp.pure(mechanism.epsilon, orders))
    if isinstance(mechanism, events.SelfComposed):
        return (
            mechanism.count * curve(mechanism.event, relation, orders)
            if mechanism.count
            else nothing
        )
    if isinstance(mechanism, events.Composed):
        return sum((curve(event, relation, orders) for event in mechanism.events), nothing)
    if mechanisms.effective_noise(mechanism) is not None:  # a sample of everybody
        return np.asarray(rdp.gaussian(mechanisms.effective_noise(mechanism), orders))
    if isinstance(mechanism, events.PoissonSampled):
        if relation not in _ADD_REMOVE_LIKE:
            raise mechanisms.refuse(
                mechanism,
                relation,
                "rdp",
                "Poisson sampling is analysed for ADD_OR_REMOVE_ONE or REPLACE_SPECIAL",
            )
        if isinstance(mechanism.event, events.MixtureOfGaussians):
            return _mixture(mechanism.event, mechanism.sampling_prob, orders)
        noise = mechanisms.effective_noise(mechanism.event)
        if noise is None:
            raise mechanisms.refuse(
                mechanism, relation, "rdp", "only Gaussian mechanisms and mixtures can be sampled"
            )
        if noise == math.inf or mechanism.sampling_prob == 0:
            return nothing
        return np.asarray(rdp.poisson_gaussian(noise, mechanism.sampling_prob, orders))
    if isinstance(mechanism, events.MixtureOfGaussians):
        if relation not in _ADD_REMOVE_LIKE:
            raise mechanisms.refuse(
                mechanism,
                relation,
                "rdp",
                "mixtures are analysed for ADD_OR_REMOVE_ONE or REPLACE_SPECIAL",
            )
        return _mixture(mechanism, 1.0, orders)
    if isinstance(mechanism, events.SampledWithoutReplacement):
        if relation != NeighboringRelation.REPLACE_ONE:
            raise mechanisms.refuse(
                mechanism,
                relation,
                "rdp",
                "sampling without replacement is analysed for REPLACE_ONE",
            )
        noise = mechanisms.effective_noise(mechanism.event)
        if noise is None:
            raise mechanisms.refuse(
                mechanism, relation, "rdp", "only Gaussian mechanisms can be sampled"
            )
        if noise == math.inf:
            return nothing
        grid = np.asarray(orders)
        usual = grid <= _MOST_WITHOUT_REPLACEMENT
        out = (
            nothing + np.inf
        )  # no bound is asked for at the others: its cost grows with the square of the order
        if usual.any():
            rate = mechanism.sample_size / mechanism.population
            out[usual] = rdp.sampled_without_replacement(noise, rate, grid[usual])
        return out
    if isinstance(mechanism, events.GaussianWeighted):
        if relation != NeighboringRelation.REPLACE_ONE:
            raise mechanisms.refuse(
                mechanism, relation, "rdp", "Gaussian-weighted sums are analysed for REPLACE_ONE"
            )
        noise, rate = mechanism.noise_multiplier, mechanism.sampling_rate
        return np.asarray(
            weighted_curves.gaussian_weights(noise, rate, orders, lifted=mechanism.lifted)
        )
    return mechanisms.divergence(mechanism, relation, orders)


def _mixture(
    mechanism: events.MixtureOfGaussians, sampling_prob: float, orders: tuple[float, ...]
) -> np.ndarray:
    probs = (
        sampling_prob * np.asarray(mechanism.sampling_probs) / math.fsum(mechanism.sampling_probs)
    )
    moves = (probs > 0) & (np.asarray(mechanism.sensitivities) > 0)
    if not moves.any():
        return np.zeros(len(orders))
    if mechanism.stddev == 0:
        return np.full(len(orders), np.inf)
    return rdp.gaussian_mixture(
        mechanism.stddev, np.asarray(mechanism.sensitivities)[moves], probs[moves], orders
    )
