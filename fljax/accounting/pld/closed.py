"""Bounds that need no lattice, for what lattices in float64 do not resolve: tiny deltas, and losses
near rounding.

One step of the Poisson-sampled Gaussian has delta(epsilon) = q delta_G(log(1 + (e^epsilon - 1) /
q)) exactly, with delta_G that of the Gaussian, and so has one on a sample without replacement, one
unit replaced. T steps spend at least what one does, and at most T times its epsilon at delta / T.
Renyi divergences bound what neither does.

Source: Balle, Barthe, Gaboardi (2018), arXiv:1807.01647, Theorems 8, 9 and 10, with tightness by
  their section 5.
"""

import math
import warnings

import numpy as np

from fljax.accounting import gaussian
from fljax.accounting.renyi import conversion, rdp
from fljax.accounting.rounding import at_least, at_most

ORDERS = (*rdp.DEFAULT_ORDERS, *(float(2**k) for k in range(11, 31)))
_ROUNDING = 1e-9  # relative, of the closed forms
_WIDE = 2.0  # ratio of the bounds


class WideIntervalWarning(UserWarning):
    """Privacy-loss distributions in float64 do not resolve the answer: its bounds are true, and far
    apart.
    """


def step_epsilon(noise: np.ndarray, prob: np.ndarray, log_delta: np.ndarray) -> np.ndarray:
    """Epsilon `[N]` of one step."""
    log_prob = np.log(prob)
    # Never at or above 0: where delta >= prob the answer is 0, and so it is just below.
    inner = np.asarray(
        gaussian.mu_to_epsilon(1 / noise, log_delta=np.minimum(log_delta - log_prob, -1e-300))
    )
    small = np.log1p(prob * np.expm1(np.minimum(inner, 30.0)))
    return np.where(inner < 30, small, np.logaddexp(np.log1p(-prob), log_prob + inner))


def step_log_delta(noise: np.ndarray, prob: np.ndarray, epsilon: np.ndarray) -> np.ndarray:
    """Log delta `[N]` of one step at `epsilon` `[N]`."""
    log_prob = np.log(prob)
    with np.errstate(divide="ignore"):  # epsilon 0 grows by nothing
        log_growth = np.where(epsilon < 30, np.log(np.expm1(np.minimum(epsilon, 30.0))), epsilon)
    return log_prob + np.asarray(
        gaussian.log_delta(1 / noise, np.logaddexp(0.0, log_growth - log_prob))
    )


def steps_interval(
    noise: np.ndarray, prob: np.ndarray, counts: np.ndarray, target: np.ndarray, *, for_delta: bool
) -> np.ndarray:
    """`[N, 2]` bounds on epsilon of `counts` steps at log delta = `target`, or on log delta at
    epsilon = `target`.
    """
    if for_delta:
        upper = np.minimum(
            step_log_delta(noise, prob, target / counts) + np.log(counts) + _ROUNDING, 0.0
        )
        return np.stack([step_log_delta(noise, prob, target) - _ROUNDING, upper], 1)
    upper = counts * step_epsilon(noise, prob, target - np.log(counts))
    return np.stack(
        [step_epsilon(noise, prob, target) * (1 - _ROUNDING), upper * (1 + _ROUNDING)], 1
    )


def by_renyi(curve: np.ndarray, target: float, *, for_delta: bool) -> float:
    """Upper bound from Renyi divergences at `ORDERS`."""
    grid = np.asarray(ORDERS)
    if for_delta:
        return float(conversion.rdp_to_log_deltas(curve, grid, target).min())
    return float(conversion.rdp_to_epsilon(curve, grid, math.exp(target)))


def tightened(
    bounds: np.ndarray,
    noise: np.ndarray,
    prob: np.ndarray,
    counts: np.ndarray,
    target: np.ndarray,
    *,
    for_delta: bool,
) -> np.ndarray:
    """`bounds` `[N, 2]` of Poisson-sampled Gaussians, closer where they were wide; arguments as
    `steps_interval`.
    """
    wide = is_wide(bounds, for_delta=for_delta)
    if not wide.any():
        return bounds
    some = noise[wide], prob[wide], counts[wide], target[wide]
    known = steps_interval(*some, for_delta=for_delta)
    renyi = [
        by_renyi(count * rdp.poisson_gaussian(sigma, q, ORDERS), goal, for_delta=for_delta)
        for sigma, q, count, goal in zip(*(values.tolist() for values in some), strict=True)
    ]
    out = bounds.copy()
    out[wide, 0] = np.fmax(out[wide, 0], known[:, 0])
    out[wide, 1] = np.fmin(np.fmin(out[wide, 1], known[:, 1]), renyi)
    return out


def is_wide(bounds: np.ndarray, *, for_delta: bool) -> np.ndarray:
    """Where the upper of `bounds` `[N, 2]` is more than twice the lower one; those of delta come as
    logarithms.
    """
    lower, upper = bounds.T
    if for_delta:
        with np.errstate(invalid="ignore"):  # -inf less -inf: delta is 0
            return np.asarray(upper - lower > math.log(_WIDE))
    return np.asarray(~(upper <= _WIDE * lower))


def warn_of_wide(bounds: np.ndarray, *, for_delta: bool) -> None:
    """Says so where bounds stayed wide."""
    wide = is_wide(bounds, for_delta=for_delta)
    if wide.any():
        low, high = np.exp(bounds[wide][0]) if for_delta else bounds[wide][0]
        warnings.warn(
            f"The true {'delta' if for_delta else 'epsilon'} lies in [{at_least(low)}, "
            f"{at_most(high)}], and no closer bounds are known: lattices in float64 resolve "
            "neither deltas below about 1e-160 nor losses near 1e-16. Ask for a larger delta, or "
            "count on the upper bound.",
            WideIntervalWarning,
            stacklevel=3,
        )
