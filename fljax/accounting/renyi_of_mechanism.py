"""Renyi curve of a mechanism record: the tree walk behind `method="rdp"`."""

import functools
import math
from typing import Any

import numpy as np

from fljax.accounting import _cut_samples, events, finite_pairs, mechanisms, pure
from fljax.accounting.events import Mechanism, NeighboringRelation
from fljax.accounting.renyi import (
    allocation,
    integer_noise,
    poisson_of_curve,
    rdp,
    repeat_select,
    replaced_unit,
)
from fljax.accounting.weighted_sums import curves as weighted_curves

_MOST_WITHOUT_REPLACEMENT = 256
_ADD_REMOVE_LIKE = (NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_SPECIAL)
NEAR_ONE = 1 + 2.0**-20  # stands for order 1, whose divergence is smaller
FAR_ORDERS = tuple(float(round(1024 * 2 ** (x / 4))) for x in range(1, 17))


@functools.lru_cache(maxsize=4096)
def curve(
    mechanism: Mechanism, relation: NeighboringRelation, orders: tuple[float, ...]
) -> np.ndarray:
    """Renyi divergences `[K]` of `mechanism`; read-only. Cached: a ledger asks for the same round
    again and again.

    Orders are >= 1. At 1 stands a bound on the Kullback-Leibler divergence, at infinity one on the
    largest loss.
    """
    out = np.empty(len(orders))
    grid = np.maximum(orders, NEAR_ONE)
    usual = np.isfinite(grid)
    if usual.any():
        out[usual] = _curve(mechanism, relation, tuple(grid[usual].tolist()))
    if not usual.all():
        out[~usual] = pure.largest_loss(mechanism, relation)
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
    if isinstance(mechanism, events.DiscreteGaussianSum | events.Skellam):
        return _integer_noise(mechanism, orders)
    if isinstance(mechanism, events.RandomAllocation):
        if relation not in _ADD_REMOVE_LIKE:
            why = "random allocation is analysed for ADD_OR_REMOVE_ONE or REPLACE_SPECIAL"
            raise mechanisms.refuse(mechanism, relation, "rdp", why)
        if mechanism.noise_multiplier == 0:
            return nothing + np.inf
        return allocation.gaussian(
            mechanism.noise_multiplier, mechanism.num_rounds, mechanism.times, orders
        )
    if isinstance(mechanism, events.EpsilonDelta):
        if mechanism.delta > 0:
            raise mechanisms.refuse(
                mechanism, relation, "rdp", "a delta > 0 leaves Renyi divergences unbounded"
            )
        return np.asarray(rdp.pure(mechanism.epsilon, orders))
    if isinstance(mechanism, events.TreeAggregation):
        return np.asarray(rdp.gaussian(mechanisms.tree_noise(mechanism, relation), orders))
    if isinstance(mechanism, events.CorrelatedGaussian | events.SampledCorrelatedGaussian):
        return np.asarray(rdp.gaussian(mechanisms.effective_noise(mechanism), orders))
    if isinstance(mechanism, events.RepeatAndSelect):
        return _repeated(mechanism, relation, orders)
    if isinstance(mechanism, events.NoisyMax) and mechanism.noise == "gumbel":
        return np.asarray(rdp.bounded_range(pure.largest_loss(mechanism, relation), orders))
    if isinstance(mechanism, events.NoisyMax | events.SparseVector):
        return np.asarray(rdp.pure(pure.largest_loss(mechanism, relation), orders))
    if (found := finite_pairs.pair(mechanism, relation)) is not None:
        grid = np.asarray(orders)
        return np.maximum(
            mechanisms.pair_divergence(found.p, found.q, grid),
            mechanisms.pair_divergence(found.q, found.p, grid),
        )
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
            noise = mechanisms.effective_noise(mechanism.event)
            if noise is None:
                why = (
                    "of Poisson samples, those of Gaussian mechanisms are analysed for "
                    "REPLACE_ONE, others for ADD_OR_REMOVE_ONE or REPLACE_SPECIAL"
                )
                raise mechanisms.refuse(mechanism, relation, "rdp", why)
            # relative to the distance of an exchange, twice that of a removal
            return _replaced(mechanism.sampling_prob, 2 * noise, orders)
        if isinstance(mechanism.event, events.MixtureOfGaussians):
            return _mixture(mechanism.event, mechanism.sampling_prob, orders)
        noise = mechanisms.effective_noise(mechanism.event)
        if noise is None:
            return _sampled(mechanism, relation, orders)
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
    if isinstance(mechanism, events.TruncatedPoissonGaussian):
        return _truncated(mechanism, relation, orders)
    if isinstance(mechanism, events.SampledWithReplacement):
        raise mechanisms.refuse(
            mechanism, relation, "rdp", f"{type(mechanism).__name__} has no Renyi bound"
        )
    return mechanisms.divergence(mechanism, relation, orders)


def _replaced(prob: float, noise: float, orders: tuple[float, ...]) -> np.ndarray:
    """One unit of a Poisson sample replaced; `noise`: stddev / how far one moves the sum by being
    there.
    """
    if prob == 0 or noise == math.inf:
        return np.zeros(len(orders))
    if noise == 0:
        return np.full(len(orders), np.inf)
    return replaced_unit.curve(np.asarray(orders), prob, 1 / noise)


def _truncated(
    mechanism: events.TruncatedPoissonGaussian,
    relation: NeighboringRelation,
    orders: tuple[float, ...],
) -> np.ndarray:
    """Two cases, seen apart, whose chances the unit does not change: others fill the sample, or
    they do not.

    Where they do, the unit is in another's place: a replaced unit's pair of twice the shift.
    """
    noise, prob = mechanism.noise_multiplier, mechanism.sampling_prob
    if prob == 0 or mechanism.most == 0 or mechanism.population == 0:
        return np.zeros(len(orders))
    if noise == 0:
        return np.full(len(orders), np.inf)
    if relation in _ADD_REMOVE_LIKE:
        plain = curve(events.PoissonSampled(prob, events.Gaussian(noise)), relation, orders)
    else:
        plain = _replaced(prob, noise, orders)
    full, share = _cut_samples.chances(mechanism)
    if full == 0:
        return plain
    error = _cut_samples.TAIL_ERROR
    beyond = _replaced(min(share * (1 + 3 * error), 1.0), noise / 2, orders)
    grid = np.asarray(orders) - 1
    parts, most = (grid * plain, grid * beyond), grid * np.maximum(plain, beyond)
    weights = 1 - full * (1 - error), min(full * (1 + error), 1.0)
    with np.errstate(over="ignore", invalid="ignore"):  # in the branches not taken
        # a small mean of the moments less 1 keeps its digits
        small = sum(w * np.expm1(part) for w, part in zip(weights, parts, strict=True))
        large = sum(w * np.exp(part - most) for w, part in zip(weights, parts, strict=True))
        found = np.where(most < 1, np.log1p(small), most + np.log(large))
    return np.where(most < np.inf, np.minimum(found * (1 + 1e-14), most), np.inf) / grid


def _integer_noise(
    mechanism: events.DiscreteGaussianSum | events.Skellam, orders: tuple[float, ...]
) -> np.ndarray:
    moves: dict[str, Any] = {
        "l2_sensitivity": mechanism.l2_sensitivity,
        "l1_sensitivity": mechanism.l1_sensitivity,
        "dimension": mechanism.dimension,
    }
    if isinstance(mechanism, events.Skellam):
        return integer_noise.skellam(mechanism.variance, orders, **moves)
    return integer_noise.discrete_gaussian_sum(mechanism.stddev, mechanism.count, orders, **moves)


def _is_symmetric(mechanism: Mechanism) -> bool:
    """Whether some map of the outcomes exchanges the two of the worst pair."""
    if isinstance(mechanism, events.Composed):
        return all(map(_is_symmetric, mechanism.events))
    if isinstance(mechanism, events.SelfComposed):
        return _is_symmetric(mechanism.event)
    if isinstance(mechanism, events.EpsilonDelta):
        return mechanism.delta == 0
    return isinstance(
        mechanism,
        events.Gaussian
        | events.CorrelatedGaussian
        | events.SampledCorrelatedGaussian
        | events.Laplace
        | events.DiscreteGaussian
        | events.DiscreteGaussianSum
        | events.Skellam
        | events.DiscreteLaplace
        | events.Staircase
        | events.SparseVector,
    ) or (isinstance(mechanism, events.NoisyMax) and mechanism.noise != "gumbel")


def _sampled(
    mechanism: events.PoissonSampled, relation: NeighboringRelation, orders: tuple[float, ...]
) -> np.ndarray:
    """A Poisson sample of what is no Gaussian mechanism."""
    if mechanism.sampling_prob == 0:
        return np.zeros(len(orders))
    if mechanism.sampling_prob == 1:
        return curve(mechanism.event, relation, orders)
    if not _is_symmetric(mechanism.event):
        why = "no mechanism of this kind can be sampled"
        raise mechanisms.refuse(mechanism, relation, "rdp", why)

    def unsampled(grid: tuple[float, ...]) -> np.ndarray:
        return curve(mechanism.event, relation, grid)

    return poisson_of_curve.divergence(unsampled, mechanism.sampling_prob, np.asarray(orders))


def _repeated(
    mechanism: events.RepeatAndSelect, relation: NeighboringRelation, orders: tuple[float, ...]
) -> np.ndarray:
    """The bound at one order takes the best of other orders."""
    grid = tuple(sorted({1.0, *rdp.DEFAULT_ORDERS, *FAR_ORDERS, *orders, math.inf}))
    inner, wide = curve(mechanism.event, relation, grid), np.asarray(grid)
    if mechanism.shape == "poisson":
        found = repeat_select.poisson(inner, wide, mechanism.mean)
    else:
        found = repeat_select.truncated_negative_binomial(
            inner, wide, mechanism.mean, float(mechanism.shape)
        )
    return found[np.searchsorted(wide, orders)]


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
