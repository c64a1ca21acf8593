"""Renyi divergences of a mixture of Gaussians against its centre, in both directions, for many
orders; NumPy.

In units of the noise, P = sum_j w_j N(s_j, 1), Q = N(0, 1), R = P / Q = sum_j w_j e^(s_j z - s_j^2
/ 2). Moments: E_Q[R^a]    (P against Q, order a)    and    E_Q[R^-b]    (Q against P, order b + 1),
by the trapezoid rule, whose error is bounded: on the line Im z = y, |R^a| <= R^a, and where s_max y
< pi, |R| >= R cos(s_max y / 2). So the rule of step h errs by at most 2 e^(y^2 / 2) c / (e^(2 pi y
/ h) - 1) of the moment, with c = 1, or c = cos(s_max y / 2)^-b (Trefethen, Weideman (2014), The
exponentially convergent trapezoidal rule, Theorem 5.1). Steps are chosen to make that 1e-20, and it
is added. R^a Q is a sum of normal densities with means from 0 to a s_max, so that little is left
out beyond.

No multinomial sum: the work grows with nodes times terms, at any real order.
"""

import math

import numpy as np

UNIT = 2.0**-52
NEGLIGIBLE = 46.0  # -log 1e-20
MOST_NODES = 2**18
TERMS_OF_SERIES = 10


def log_ratio(
    z: np.ndarray, weights: np.ndarray, shifts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Log R at `z` `[N]`, and R - 1 where that is small (elsewhere inf); `weights` of positive
    `shifts` `[J]`.
    """
    exponents = shifts * z[:, None] - 0.5 * shifts**2
    stays = max(1.0 - math.fsum(weights), 0.0)
    x = np.expm1(np.minimum(exponents, 1.0)) @ weights
    # Where nobody stays the largest exponent may be far below 0: of 0 the sum would underflow.
    top = np.maximum(exponents.max(1), 0.0 if stays else -np.inf)
    far = top + np.log(
        np.exp(exponents - top[:, None]) @ weights + (stays * np.exp(-top) if stays else 0.0)
    )
    near = (exponents.max(1) < 1.0) & (x > -0.5)
    return np.where(near, np.log1p(np.maximum(x, -0.75)), far), np.where(near, x, np.inf)


def _log_moment(
    power: float, log_r: np.ndarray, x: np.ndarray, log_phi: np.ndarray, error: float
) -> float:
    """Upper bound on log E[R^power] from its nodes: E[R^p - 1 - p (R - 1)], of which every term is
    positive.
    """
    logs = log_phi + power * log_r
    top = logs.max()
    log_sum = float(top + np.log(np.exp(logs - top).sum()))
    # Of the logarithms, and of the differences below, which keep a share of x (power - 1) or x
    # power.
    rounding = 16 * UNIT * (1.0 + abs(power) * float(np.abs(log_r).max()))
    rounding += 2000 * UNIT * (1.0 + 1.0 / min(abs(power), abs(power - 1.0)))
    if log_sum > 30:
        return log_sum + rounding + error
    phi = np.exp(log_phi)
    # Three ways to take R^p - 1 - p (R - 1) without cancelling digits that count: a series, expm1,
    # plain.
    near = max(abs(power), 10.0) * np.abs(x) < 0.1
    y = np.where(near, x, 0.0)
    series, binomial, term = 0.0, power, y
    for k in range(2, TERMS_OF_SERIES):
        binomial, term = binomial * (power - (k - 1)) / k, term * y
        series = series + binomial * float((phi * term).sum())
    middle = np.isfinite(x) & (np.abs(power * log_r) < 1.0)
    with np.errstate(over="ignore", invalid="ignore"):  # in the branches not taken
        plain = np.exp(logs) - phi - power * (np.exp(log_phi + log_r) - phi)
        rest = np.where(middle, phi * (np.expm1(power * log_r) - power * x), plain)
    rest = np.where(near, 0.0, rest)
    excess = max(series + float(rest.sum()), 0.0) * (1.0 + rounding)
    return math.log1p(excess + error * (2.0 + 2.0 * abs(power) + math.exp(min(log_sum, 40.0))))


def nodes(low: float, high: float, step: float) -> tuple[np.ndarray, np.ndarray] | None:
    """Nodes and the logs of their normal weights; None if there would be too many."""
    span = (high - low) / step if step > 0 else math.inf
    if not span < MOST_NODES:  # NaN of an order beyond all measure, too
        return None
    count = math.ceil(span) + 1
    z = low + step * np.arange(float(count))
    return z, -0.5 * z**2 + math.log(step / math.sqrt(2 * math.pi))


def rule_error(reach: float, step: float, log_factor: float) -> float:
    """Share of a moment that the rule errs by at most, of a function that grows by e^log_factor
    times a normal density's growth as far as `reach` off the real line.
    """
    return 2.0 * math.exp(
        0.5 * reach**2 + log_factor - 2 * math.pi * reach / step
    ) + 2.0 * math.exp(-NEGLIGIBLE)


def _forward(orders: np.ndarray, weights: np.ndarray, shifts: np.ndarray) -> np.ndarray:
    """Log moments E_Q[R^a] of orders of similar size."""
    largest = float(shifts.max())
    reach = 3.0 / largest  # below pi / s_max; more is not useful than 2 pi / step
    step = min(2 * math.pi * reach / (NEGLIGIBLE + 0.5 * min(reach, 9.0) ** 2), 0.65)
    reach = min(reach, 2 * math.pi / step)
    tail = math.sqrt(2 * NEGLIGIBLE)
    rule = nodes(-tail, float(orders.max()) * largest + tail, step)
    if rule is None:
        return np.full(len(orders), np.inf)
    error = rule_error(reach, step, 0.0)
    log_r, x = log_ratio(rule[0], weights, shifts)
    return np.array([_log_moment(a, log_r, x, rule[1], error) for a in orders])


def _backward(orders: np.ndarray, weights: np.ndarray, shifts: np.ndarray) -> np.ndarray:
    """Log moments E_Q[R^-(a - 1)] of orders of similar size."""
    largest, most = float(shifts.max()), float(orders.max()) - 1.0
    reach = min(2.0, 2.0 / math.sqrt(most)) / largest
    log_factor = -most * math.log(math.cos(0.5 * largest * reach))
    step = min(2 * math.pi * reach / (NEGLIGIBLE + log_factor + 0.5 * min(reach, 9.0) ** 2), 0.65)
    reach = min(reach, 2 * math.pi / step)
    log_factor = -most * math.log(math.cos(0.5 * largest * reach))
    # R is at least any one of its terms, w exp(s z - s^2 / 2), and the moment at least 1.
    stay = 1.0 - math.fsum(weights)
    terms = [(stay, 0.0)] if stay > 0 else list(zip(weights, shifts, strict=True))
    low = min(
        most * s + math.sqrt(2 * (NEGLIGIBLE - most * math.log(w)) + most * (most + 1) * s**2)
        for w, s in terms
    )
    rule = nodes(
        -low, largest + math.sqrt(2 * NEGLIGIBLE), step
    )  # E[R] = 1 needs the bumps of P, too
    if rule is None:
        return np.full(len(orders), np.inf)
    error = rule_error(reach, step, log_factor)
    log_r, x = log_ratio(rule[0], weights, shifts)
    return np.array([_log_moment(1.0 - a, log_r, x, rule[1], error) for a in orders])


def mixture_curve(weights: np.ndarray, shifts: np.ndarray, orders: tuple[float, ...]) -> np.ndarray:
    """`[K]` upper bounds on the larger of the two divergences; +inf at an order that needs too many
    nodes.

    weights, shifts: `[J]`, of the parts that move, shifts > 0; the rest of the weight stays.
      orders: each > 1.
    """
    grid = np.asarray(orders)
    out = np.empty(len(grid))
    sizes = np.ceil(np.maximum(np.log2(grid), 2.0))
    for size in np.unique(sizes):
        members = sizes == size
        some = grid[members]
        both = np.maximum(_forward(some, weights, shifts), _backward(some, weights, shifts))
        out[members] = both / (some - 1.0)
    return out
