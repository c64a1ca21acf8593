"""Renyi divergence of a Poisson-sampled mechanism whose worst pair is symmetric, from its curve at
whole orders.

With R the ratio of the pair (p, q) and s the sampling chance, the moment of a whole order a is
E_q[(1 - s + s R)^a], a binomial sum of the E_q[R^k] = exp((k - 1) D_k): a curve above gives a bound
above. The other direction costs no more where some map of the outcomes exchanges p and q (arXiv:
1908.10530, Theorem 5). The log of the moment is convex in the order and 0 at order 1, so that a
chord between whole orders lies above it.
"""

import math
from collections.abc import Callable

import numpy as np

MOST_WHOLE = 1024  # larger orders cost what the unsampled mechanism does


def divergence(
    curve: Callable[[tuple[float, ...]], np.ndarray], prob: float, orders: np.ndarray
) -> np.ndarray:
    """Upper bounds `[K]`, adding or removing one unit.

    Args:
      curve: orders > 1 -> divergences of the unsampled mechanism.
      prob: in (0, 1).
      orders: `[K]`, > 1.
    """
    out = np.empty(orders.shape)
    far = orders > MOST_WHOLE
    if far.any():
        out[far] = curve(tuple(orders[far].tolist()))
    near = orders[~far]
    if not near.size:
        return out
    last = math.ceil(near.max())
    wholes = np.arange(2.0, last + 1)
    log_moments = (wholes - 1) * curve(tuple(wholes.tolist()))  # of R, orders 2 to last
    kept = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1.0, last + 1)))])  # log factorials
    needed = np.unique(np.concatenate([np.floor(near), np.ceil(near)]).astype(int))
    sampled = {1: 0.0}
    with np.errstate(over="ignore", divide="ignore"):
        # log(R's moment - 1): what exceeds one keeps its digits, however small
        excess = np.where(
            log_moments < 30, np.log(np.expm1(np.minimum(log_moments, 30.0))), log_moments
        )
    for a in needed[needed > 1].tolist():
        k = np.arange(2, a + 1)
        logs = kept[a] - kept[k] - kept[a - k] + k * math.log(prob) + excess[: a - 1]
        logs += np.where(a > k, (a - k) * math.log1p(-prob), 0.0)
        top = logs.max()
        total = top + math.log(np.exp(logs - top).sum()) if math.isfinite(top) else top
        sampled[a] = float(np.logaddexp(0.0, total) if total > -30 else math.exp(total))
    low, high = np.floor(near), np.ceil(near)
    share = near - low
    at = [np.array([sampled[int(a)] for a in ends]) for ends in (low, high)]
    with np.errstate(invalid="ignore"):
        chord = np.where(share == 0, at[0], (1 - share) * at[0] + share * at[1])
    # A sum of a few hundred positive terms, each rounded some ten times.
    out[~far] = chord * (1 + 1e-12) / (near - 1)
    return out
