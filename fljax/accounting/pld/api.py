"""Epsilon and delta by privacy-loss distributions, with a lower bound to every upper one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fljax import _validate
from fljax.accounting import gaussian, renyi_of_mechanism
from fljax.accounting._arrays import host, tree_map
from fljax.accounting.events import PrivacyEvent, check_event
from fljax.accounting.mechanisms import effective_noise, takes_draws_for_known
from fljax.accounting.pld import closed, of_mechanism, solve
from fljax.accounting.pld.solve import ACCURACY
from fljax.errors import UnsupportedEventError


def _arrays(steps: Any, **values: Any) -> tuple[tuple[int, ...], np.ndarray, list[np.ndarray]]:
    """Broadcast, flattened; the shape; `steps` as integers."""
    counts = np.asarray(steps)
    if not np.all(np.isfinite(counts) & (counts == np.floor(counts)) & (counts >= 1)):
        raise ValueError(f"Expected steps to be integers >= 1, got steps={steps!r}.")
    arrays = np.broadcast_arrays(counts, *(np.asarray(v, np.float64) for v in values.values()))
    return arrays[0].shape, arrays[0].ravel().astype(np.int64), [a.ravel() for a in arrays[1:]]


def _check_all(rule: Any, **values: np.ndarray) -> None:
    for name, value in values.items():
        for number in (value.min(initial=np.inf), value.max(initial=-np.inf)) if value.size else ():
            rule(**{name: float(number)})


def _sampled_gaussian(noise: np.ndarray, prob: np.ndarray, counts: np.ndarray) -> solve.Batch:
    return solve.Batch(
        ("mixture",), ((prob[:, None, None], (1.0 / noise)[:, None, None]),), counts[:, None]
    )


def poisson_gaussian_interval(
    noise_multiplier: Any,
    sampling_prob: Any,
    steps: Any,
    *,
    delta: Any = None,
    epsilon: Any = None,
    accuracy: float = ACCURACY,
) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of many Poisson-sampled Gaussian runs at once, under adding or removing one unit.

    Guarantee: the true value (of the mechanism with real-valued noise) lies in [lower, upper],
      whatever the accuracy.

    Args:
      noise_multiplier: noise stddev / sensitivity, > 0; like all arguments but `accuracy` an array
        of any shape, broadcast together.
      sampling_prob: in (0, 1].
      steps: integers >= 1.
      delta: in (0, 1), to get epsilon; or
      epsilon: >= 0, to get delta. Just one of both.
      accuracy: aimed-at upper - lower, relative to epsilon (or to delta).

    Returns:
      (lower, upper) of epsilon (or delta), float64 arrays of the broadcast shape. A
      WideIntervalWarning where upper is more than twice lower.

    Raises:
      ValueError: an argument out of range, or so little noise that losses of one step exceed 600.

    Source: arXiv:2207.04380 for the upper bound; docs/appendix/accounting_bounds.md for the rest.
    """
    _validate.positive(accuracy=accuracy)
    if (delta is None) == (epsilon is None):
        raise ValueError(
            f"Expected one of delta and epsilon, got delta={delta!r} and epsilon={epsilon!r}."
        )
    for_delta = delta is None
    shape, counts, (noise, prob, given) = _arrays(
        steps,
        noise_multiplier=noise_multiplier,
        sampling_prob=sampling_prob,
        given=epsilon if for_delta else delta,
    )
    _check_all(_validate.positive, noise_multiplier=noise)
    _check_all(_validate.probability, sampling_prob=prob)
    if for_delta:
        _check_all(_validate.non_negative, epsilon=given)
    else:
        _check_all(_validate.open_unit, delta=given)
    out = np.zeros((len(given), 2))
    exact = prob == 1  # a Gaussian mechanism, whatever the number of steps
    if exact.any():
        mu = np.sqrt(counts[exact]) / noise[exact]
        found = (
            gaussian.mu_to_delta(mu, given[exact])
            if for_delta
            else gaussian.mu_to_epsilon(mu, given[exact])
        )
        out[exact] = np.asarray(found)[:, None]
    rest = np.flatnonzero(~exact)
    if len(rest):
        batch = _sampled_gaussian(noise[rest], prob[rest], counts[rest])
        target = given[rest] if for_delta else np.log(given[rest])
        found = solve.solve(batch, target, for_delta=for_delta, symmetric=False, accuracy=accuracy)
        found = closed.tightened(
            found, noise[rest], prob[rest], counts[rest], target, for_delta=for_delta
        )
        closed.warn_of_wide(found, for_delta=for_delta)
        out[rest] = np.exp(found) if for_delta else found
    return out[:, 0].reshape(shape), out[:, 1].reshape(shape)


def poisson_gaussian_epsilon(
    noise_multiplier: Any, sampling_prob: Any, steps: Any, delta: Any, *, accuracy: float = ACCURACY
) -> np.ndarray:
    """The upper bound of `poisson_gaussian_interval` on epsilon; same arguments and errors."""
    return poisson_gaussian_interval(
        noise_multiplier, sampling_prob, steps, delta=delta, accuracy=accuracy
    )[1]


def poisson_gaussian_delta(
    noise_multiplier: Any,
    sampling_prob: Any,
    steps: Any,
    epsilon: Any,
    *,
    accuracy: float = ACCURACY,
) -> np.ndarray:
    """The upper bound of `poisson_gaussian_interval` on delta; same arguments and errors."""
    return poisson_gaussian_interval(
        noise_multiplier, sampling_prob, steps, epsilon=epsilon, accuracy=accuracy
    )[1]


def interval(
    event: PrivacyEvent,
    *,
    delta: float | None = None,
    epsilon: float | None = None,
    accuracy: float = ACCURACY,
) -> tuple[float, float]:
    """(lower, upper) bound on epsilon of `event` at `delta`, or on its delta at `epsilon`.

    Guarantee: the true value under the event's claim lies in [lower, upper], whatever the accuracy.
    "Add" and "remove" are composed apart; the larger one counts.

    Args:
      event: mechanism, unit and relation. Gaussian mechanisms and mixtures of Gaussians,
        Poisson-sampled or not, Laplace, discrete Gaussian, (epsilon, delta) claims and registered
        pairs, Poisson-sampled or not, and any composition of these.
      delta: in (0, 1); or epsilon: >= 0. Just one of both.
      accuracy: aimed-at upper - lower, relative to epsilon (or to delta).

    Returns:
      Bounds, with a WideIntervalWarning where upper is more than twice lower. (inf, inf) (or (1,
      1)) where something was released without noise. The lower bound is 0 where a part is known by
      a dominating pair only: (epsilon, delta) claims, mechanisms that were registered, and units
      whose rounds are drawn for `SampledCorrelatedGaussian`, but are taken for known.

    Raises:
      ValueError: an argument out of range.
      UnsupportedEventError: no privacy-loss distribution for a part of the event under its
        relation.
    """
    check_event("event", event)
    _validate.positive(accuracy=accuracy)
    if (delta is None) == (epsilon is None):
        raise ValueError(
            f"Expected one of delta and epsilon, got delta={delta!r} and epsilon={epsilon!r}."
        )
    if delta is not None:
        _validate.open_unit(delta=delta)
    if epsilon is not None:
        _validate.non_negative(epsilon=epsilon)
    noise = effective_noise(event.mechanism)
    above = takes_draws_for_known(event.mechanism)
    if noise is not None and 0 < noise < math.inf:
        mu = 1 / noise
        value = float(
            gaussian.mu_to_epsilon(mu, delta)
            if epsilon is None
            else gaussian.mu_to_delta(mu, epsilon)
        )
        return (0.0 if above else value), value
    found = of_mechanism.leaves(event.mechanism, event.neighboring_relation)
    if of_mechanism.NO_NOISE in found:
        return (math.inf, math.inf) if epsilon is None else (1.0, 1.0)
    if not found:
        return 0.0, 0.0
    target = np.array([math.log(delta) if delta is not None else epsilon], np.float64)
    bounds = solve.solve(
        of_mechanism.batch(found),
        target,
        for_delta=epsilon is not None,
        symmetric=of_mechanism.symmetric(found),
        accuracy=accuracy,
    )
    bounds = _tightened(bounds, event, found, target, for_delta=epsilon is not None)
    of_pairs = above or not all(leaf.exact for leaf in found)
    if not of_pairs or bounds[0, 1] == math.inf:
        closed.warn_of_wide(bounds, for_delta=epsilon is not None)
    lower, upper = (float(x) for x in (bounds if epsilon is None else np.exp(bounds))[0])
    if of_pairs:
        return 0.0, upper  # a pair dominates the mechanism: how nearly is not known
    return lower, upper


def _tightened(
    bounds: np.ndarray,
    event: PrivacyEvent,
    found: dict[of_mechanism.Leaf, int],
    target: np.ndarray,
    *,
    for_delta: bool,
) -> np.ndarray:
    """`bounds` `[1, 2]`, closer if they were wide."""
    if not closed.is_wide(bounds, for_delta=for_delta).any():
        return bounds
    ((leaf, count), *more) = found.items()
    if not more and leaf.kind == "mixture" and len(leaf.numbers[0]) == 1:
        prob, shift = np.asarray(leaf.numbers)
        return closed.tightened(
            bounds, 1 / shift, prob, np.array([count]), target, for_delta=for_delta
        )
    try:
        curve = renyi_of_mechanism.curve(event.mechanism, event.neighboring_relation, closed.ORDERS)
    except UnsupportedEventError:
        return bounds
    renyi = closed.by_renyi(curve, float(target[0]), for_delta=for_delta)
    return np.array([[bounds[0, 0], np.fmin(bounds[0, 1], renyi)]])


def epsilon(event: PrivacyEvent, delta: float, *, accuracy: float = ACCURACY) -> float:
    """Certified upper bound on epsilon of `event` at `delta`; arguments and errors as in
    `interval`.
    """
    return interval(event, delta=delta, accuracy=accuracy)[1]


def delta(event: PrivacyEvent, epsilon: float, *, accuracy: float = ACCURACY) -> float:
    """Certified upper bound on delta of `event` at `epsilon`; arguments and errors as in
    `interval`.
    """
    return interval(event, epsilon=epsilon, accuracy=accuracy)[1]


def estimate(event: PrivacyEvent, delta: float) -> float:
    """Epsilon by a saddle-point formula: within a percent or so, NOT a bound, and about a
    millisecond's work.

    Args and errors as in `interval`. Meant for choosing where to call `interval`.
    """
    check_event("event", event)
    _validate.open_unit(delta=delta)
    noise = effective_noise(event.mechanism)
    if noise is not None and 0 < noise < math.inf:
        return float(gaussian.mu_to_epsilon(1 / noise, delta))
    found = of_mechanism.leaves(event.mechanism, event.neighboring_relation)
    if of_mechanism.NO_NOISE in found:
        return math.inf
    if not found:
        return 0.0
    batch = of_mechanism.batch(found)
    signs = np.array([1.0] if of_mechanism.symmetric(found) else [1.0, -1.0])
    with host():
        params, counts = tree_map(
            lambda x: np.repeat(x, len(signs), axis=0), (batch.params, batch.counts)
        )
        plans = solve.plans(
            batch.structure,
            False,
            params,
            counts,
            signs,
            np.full(len(signs), math.log(delta)),
            ACCURACY,
        )[0]
        return float(np.max(plans.epsilon))
