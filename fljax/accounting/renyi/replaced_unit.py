"""Renyi divergences of Gaussian noise on a Poisson sample, one unit replaced by another; NumPy.

The worst pair is P = (1 - q) N(0, 1) + q N(s, 1), Q = (1 - q) N(0, 1) + q N(-s, 1), q the chance
that the unit is sampled and s = how far one unit moves the sum by being there / noise stddev. It
dominates all others by hockey-stick divergences, and so by Renyi's, which are integrals of them.

With A = P / N(0, 1) = 1 - q + q e^(s z - s^2 / 2) and B = Q / N(0, 1) the same of -z, the moment of
order a is E[A^a B^(1 - a)], z standard normal: by the trapezoid rule, whose error is bounded as in
`mixture_moments`. On the line Im z = y, |A| <= A, and |B| >= B cos(s y / 2) where s y < pi, so that
the rule of step h errs by at most 2 e^(y^2 / 2) c / (e^(2 pi y / h) - 1) of the moment,
c = cos(s y / 2)^(1 - a). A^a B^(1 - a) lies above its tangent plane at A = B = 1, and A and B are 1
in the mean: what is summed is the distance from the plane, of which every term is positive.

Source: arXiv:2405.20769, section 5, for the pair.
"""

import math

import numpy as np

from fljax.accounting.renyi import mixture_moments
from fljax.accounting.renyi.mixture_moments import NEGLIGIBLE, UNIT


def _log_part(z: np.ndarray, prob: float, shift: float) -> tuple[np.ndarray, np.ndarray]:
    """(log A, A - 1 where that is small, else inf) at `z` `[N]`."""
    exponent = shift * z - 0.5 * shift**2
    x = prob * np.expm1(np.minimum(exponent, 700.0))
    far = np.logaddexp(math.log1p(-prob), math.log(prob) + exponent)
    near = (x > -0.5) & (x < 1)
    return np.where(near, np.log1p(np.where(near, x, 0.0)), far), np.where(near, x, np.inf)


def _reach(most: float, prob: float, shift: float) -> tuple[float, float]:
    """Between which z all of A^a B^(1 - a) N(0, 1) lies but for e^-46 of 1 <= its sum, a <= `most`.

    Left of -s / 2 it is below N(0, 1). A^a is at most (1 - q) + q e^(a s z - a s^2 / 2), convex,
    and B at least one of its terms.
    """
    tail = math.sqrt(2 * NEGLIGIBLE)
    grown = most * (most - 1) * shift**2
    ends = []
    if prob < 1:
        lost = 2 * NEGLIGIBLE - 2 * (most - 1) * math.log1p(-prob)
        ends.append(most * shift + math.sqrt(lost + grown))
    # B >= q e^(-s z - s^2 / 2): the normal moves by (a - 1) s more
    lost = 2 * NEGLIGIBLE - 2 * (most - 1) * math.log(prob)
    ends.append((2 * most - 1) * shift + math.sqrt(lost + 4 * grown))
    return -shift - tail, max(min(ends), shift + tail)


def _integrated(orders: np.ndarray, prob: float, shift: float) -> np.ndarray:
    """Upper bounds on the log moments of orders of similar size; +inf where there are too many
    nodes.
    """
    most = float(orders.max())
    y = min(2.0, 2.0 / math.sqrt(most - 1)) / shift

    def log_factor(y: float) -> float:
        return -(most - 1) * math.log(math.cos(0.5 * shift * y))

    step = min(2 * math.pi * y / (NEGLIGIBLE + log_factor(y) + 0.5 * min(y, 9.0) ** 2), 0.65)
    y = min(y, 2 * math.pi / step)
    nodes = mixture_moments.nodes(*_reach(most, prob, shift), step)
    if nodes is None:
        return np.full(len(orders), np.inf)
    z, log_phi = nodes
    error = mixture_moments.rule_error(y, step, log_factor(y))
    log_a, x_a = _log_part(z, prob, shift)
    log_b, x_b = _log_part(-z, prob, shift)
    phi, sizes = np.exp(log_phi), np.abs(log_a) + np.abs(log_b)
    mean_a, mean_b = np.exp(log_phi + log_a), np.exp(log_phi + log_b)
    found = []
    for a in orders:
        power = a * log_a + (1 - a) * log_b
        logs = log_phi + power
        top = logs.max()
        log_sum = float(top + np.log(np.exp(logs - top).sum()))
        if log_sum > 30:
            rounding = 16 * UNIT * (2.0 + a * float(sizes.max()))
            found.append(log_sum + rounding + error)
            continue
        small = np.isfinite(x_a) & np.isfinite(x_b) & (np.abs(power) < 1)
        plane = a * np.where(small, x_a, 0.0) + (1 - a) * np.where(small, x_b, 0.0)
        grown = np.exp(logs)
        with np.errstate(over="ignore", invalid="ignore"):  # in the branch not taken
            near = phi * (np.expm1(power) - plane)
            far = grown - phi - a * (mean_a - phi) - (1 - a) * (mean_b - phi)
        # what the differences lose: some units of their terms
        terms = np.where(
            small,
            phi * a * sizes * (1 + np.exp(np.minimum(power, 1.0))),
            grown * (1 + a * sizes) + a * (mean_a + mean_b + 2 * phi),
        )
        found_at = np.where(small, near, far)
        terms += np.abs(found_at * log_phi)
        excess = max(float(found_at.sum()), 0.0) + 32 * UNIT * float(terms.sum())
        found.append(math.log1p(excess + error * (2.0 + 4.0 * a + math.exp(log_sum))))
    return np.array(found)


def curve(orders: np.ndarray, prob: float, shift: float) -> np.ndarray:
    """Upper bounds `[K]` on the divergence of P from Q, or Q from P: the same, by reflection.

    Args:
      orders: `[K]`, > 1. prob: q in [0, 1]. shift: s >= 0, finite.
    """
    if prob == 0 or shift == 0:
        return np.zeros(orders.shape)
    # What is not sampled is equal in both: no more than N(s, 1) from N(-s, 1).
    found = orders * (2 * shift**2)
    if prob == 1:
        return found
    sizes = np.ceil(np.maximum(np.log2(orders), 2.0))
    for size in np.unique(sizes):
        members = sizes == size
        some = _integrated(orders[members], prob, shift) / (orders[members] - 1)
        found[members] = np.minimum(found[members], some)
    return found
