"""Log moments of the Poisson-sampled Gaussian's likelihood ratio, for one configuration and many orders.

The same lines serve NumPy (one epsilon at once, nothing to compile) and JAX (sweeps, `vmap`, `grad`): `xp` is the array
module. The moment of order a is E[(1 + x)^a] with x = q (exp(t / sigma - 1 / (2 sigma^2)) - 1), t standard normal.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import numpy as np

_TAIL = 10.0  # nodes reach this many standard deviations beyond both bumps; less than 1e-21 of the sum lies outside
_BLOCK = 64
_MAX_NODES = 16384


class Plan(NamedTuple):
    """What depends on the orders alone. `K` orders = whole ones, then real ones bucket by bucket.

    i: `[64 n]`, 0 to the largest whole order and on to a full block; 0 and 1, never counted, stand as 2.
    log_binomial: `[blocks, 64]`, log C(a, i), rows of one order cut into blocks of consecutive i, padded with -inf.
    position: `[blocks]`, which 64 values of i. members: `[whole, most]`, blocks of each order; the last block is empty.
    real: buckets of orders that are not integers. place: `[K]`, where each asked order is among the computed ones.
    """

    i: np.ndarray
    log_binomial: np.ndarray
    position: np.ndarray
    members: np.ndarray
    whole: np.ndarray
    real: tuple[np.ndarray, ...]
    place: np.ndarray


@functools.lru_cache(maxsize=64)
def plan(orders: tuple[float, ...]) -> Plan:
    """The plan of these orders, each finite and > 1."""
    whole = sorted({a for a in orders if a == int(a)})
    groups: dict[int, set[float]] = {}
    for a in orders:
        if a != int(a):  # one group shares its nodes, which reach up to its largest order
            groups.setdefault(max(4, math.ceil(math.log2(a))), set()).add(a)
    real = tuple(np.asarray(sorted(groups[k])) for k in sorted(groups))
    column = {a: i for i, a in enumerate([*whole, *(a for group in real for a in group)])}
    blocks, position, members = [np.full(_BLOCK, -np.inf)], [0], []
    top = int(max(whole, default=2))
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1.0, top + 1)))])
    for order in whole:
        a = int(order)
        row = np.full(math.ceil((a + 1) / _BLOCK) * _BLOCK, -np.inf)
        row[2 : a + 1] = log_factorial[a] - log_factorial[2 : a + 1] - log_factorial[: a - 1][::-1]
        members.append(list(range(len(blocks), len(blocks) + row.size // _BLOCK)))
        blocks += list(row.reshape(-1, _BLOCK))
        position += range(row.size // _BLOCK)
    most = max((len(m) for m in members), default=0)
    return Plan(
        i=np.maximum(np.arange((max(position) + 1) * _BLOCK, dtype=np.float64), 2.0),
        log_binomial=np.asarray(blocks),
        position=np.asarray(position),
        members=np.asarray([m + [0] * (most - len(m)) for m in members], np.int64).reshape(len(members), most),
        whole=np.asarray(whole),
        real=real,
        place=np.asarray([column[a] for a in orders]),
    )


def num_nodes(order: float, least_noise: float) -> int:
    """Nodes that make the error bound of `_real` about 1e-20 for orders up to `order` and noise >= `least_noise`."""
    wanted = (order / least_noise + 2 * _TAIL) * (0.25 * least_noise + 2.33 / least_noise)
    return min(max(math.ceil(wanted), 64), _MAX_NODES)


def log_moments(xp: Any, sigma: Any, q: Any, plan: Plan, nodes: tuple[int, ...]) -> Any:
    """Log moments `[K]`, >= 0, for scalars sigma > 0 and 0 < q < 1; `nodes`: how many per bucket of real orders."""
    found = [_whole(xp, sigma, q, plan)] if plan.whole.size else []
    found += [real(xp, sigma, q, orders, n) for orders, n in zip(plan.real, nodes, strict=True)]
    return xp.concatenate(found)[plan.place]


def _log_sum_exp(xp: Any, terms: Any) -> Any:
    """Over the last axis; rows of -inf stay -inf. `terms` holds no +inf."""
    top = _constant(xp, xp.maximum(terms.max(-1), -1e300))
    return top + xp.log(xp.maximum(xp.exp(terms - top[..., None]).sum(-1), 1e-300))


def _constant(xp: Any, value: Any) -> Any:
    return value if xp is np else jax.lax.stop_gradient(value)


def _whole(xp: Any, sigma: Any, q: Any, plan: Plan) -> Any:
    """log(1 + sum_{i>=2} C(a, i) q^i (1-q)^(a-i) (exp((i^2-i) / 2 sigma^2) - 1)) at integer orders a.

    The ones are taken out of the binomial sum so that a moment of 1 + 1e-20 is not rounded to 1.
    """
    i = plan.i
    exponent = (i * i - i) / (2 * sigma**2)
    log_p = xp.log1p(-q)
    shared = i * (xp.log(q) - log_p) + exponent + xp.log(-xp.expm1(-exponent))
    terms = plan.log_binomial + shared.reshape(-1, _BLOCK)[plan.position]
    by_order = _log_sum_exp(xp, _log_sum_exp(xp, terms)[plan.members])
    return xp.logaddexp(by_order + plan.whole * log_p, 0.0)


def real(xp: Any, sigma: Any, q: Any, orders: Any, num_nodes: int) -> Any:
    """Log moments at any real orders, by the trapezoid rule on nodes that all orders share, plus a bound on its error.

    The moment minus 1 is E[(1+x)^a - 1 - a x], an integral of something positive. The integrand is analytic for
    |Im t| < pi sigma and there at most exp((Im t)^2 / 2) times its size on the real line, so that the rule with step h
    errs by at most 2 exp(y^2 / 2) / (exp(2 pi y / h) - 1) of that size, y < pi sigma (Trefethen, Weideman (2014), The
    exponentially convergent trapezoidal rule, Theorem 5.1).
    """
    span = _constant(xp, orders.max() / sigma) + 2 * _TAIL
    step = span / (num_nodes - 1)
    t = np.arange(float(num_nodes)) * step - _TAIL
    w = t / sigma - 1 / (2 * sigma**2)
    x = q * xp.expm1(xp.minimum(w, 300.0))  # beyond 300 only the logarithm is used
    log_ratio = xp.where(x < 1, xp.log1p(x), xp.logaddexp(xp.log1p(-q), xp.log(q) + w))
    log_weight = xp.log(step / math.sqrt(2 * math.pi))
    log_phi = log_weight - t**2 / 2
    phi, shifted = xp.exp(log_phi), xp.exp(log_weight - (t - 1 / sigma) ** 2 / 2)
    a = orders[:, None]
    log_main = log_phi + a * log_ratio
    top = _constant(xp, xp.maximum(log_main.max(-1, keepdims=True), 0.0))
    # Taylor's series where the three terms cancel; its first missing term is below 1e-14 of the sum.
    small = a * xp.abs(x) < 0.1
    y = xp.where(small, x, 0.0)
    series = xp.ones_like(a * y)
    for k in range(9, 1, -1):
        series = 1 + series * (a - k) * y / (k + 1)
    near = phi * (a * (a - 1) / 2 * y**2 * series) * xp.exp(-top)
    far = xp.exp(log_main - top) - xp.exp(-top) * (phi + a * q * (shifted - phi))
    total = xp.where(small, near, far).sum(-1)
    log_excess = top[:, 0] + xp.log(xp.maximum(total, 1e-300))
    reach = xp.minimum(math.pi * sigma, 2 * math.pi / step)
    turns = 2 * math.pi * reach / step
    log_rule = math.log(2) + reach**2 / 2 - turns - xp.log(-xp.expm1(-turns))
    log_error = xp.logaddexp(log_rule, math.log(1e-21)) + xp.logaddexp(log_excess, xp.log(2 + 2 * orders * q))
    return xp.logaddexp(xp.logaddexp(log_excess, _constant(xp, log_error)), 0.0)
