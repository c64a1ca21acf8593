"""Log moments of the Poisson-sampled Gaussian's likelihood ratio, for one configuration and many
orders.

The same lines serve NumPy (one epsilon at once, nothing to compile) and JAX (sweeps, `vmap`,
`grad`): `xp` is the array module. The moment of order a is E[(1 + x)^a] with x = q (exp(t / sigma -
1 / (2 sigma^2)) - 1), t standard normal.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fljax.accounting._arrays import is_jax, jax, jnp

# nodes reach this many standard deviations beyond both bumps; less than 1e-21 of the sum lies
# outside
_TAIL = 10.0
_BLOCK = 64
_MAX_NODES = 16384
_FAR = 2.0**14  # above, orders take the bound of `_far`: sums and nodes would grow with them
_MOST, _PER_DOUBLING = (
    1024,
    256,
)  # orders that are all computed; of more, those for each doubling of order - 1


def with_chords(curve: Callable[[tuple[float, ...]], Any], orders: tuple[float, ...]) -> Any:
    """`curve(orders)` `[..., K]`, Renyi divergences; of a great many orders a part, the others from
    chords above it.

    (order - 1) times the divergence is convex in the order, so that a chord of upper bounds is one.
    """
    if len(orders) <= _MOST:
        return curve(orders)
    distinct, place = np.unique(orders, return_inverse=True)
    kept = []
    doublings = np.floor(np.log2(distinct - 1))
    for doubling in np.unique(doublings):
        members = np.flatnonzero(doublings == doubling)
        kept.append(
            members[
                np.unique(np.linspace(0, members.size - 1, _PER_DOUBLING).round().astype(np.int64))
            ]
        )
    grid = distinct[np.concatenate(kept)]
    found = curve(tuple(grid.tolist())) * (grid - 1)
    right = np.searchsorted(grid, distinct)
    left = np.maximum(right - 1, 0)
    inside = right > left
    share = np.where(
        inside, (distinct - grid[left]) / np.where(inside, grid[right] - grid[left], 1.0), 1.0
    )
    xp = jnp if is_jax(found) else np
    # where: at an order that was computed, 0 times an infinite neighbour is NaN
    with np.errstate(invalid="ignore"):
        between = (1 - share) * found[..., left] + share * found[..., right]
    values = xp.where(share == 1, found[..., right], between) / (distinct - 1)
    return values[..., place]


class Plan(NamedTuple):
    """What depends on the orders alone. `K` orders = whole ones, then real ones bucket by bucket.

    i: `[64 n]`, 0 to the largest whole order and on to a full block; 0 and 1, never counted, stand
      as 2.
    log_binomial: `[blocks, 64]`, log C(a, i), rows of one order cut into blocks of consecutive i,
      padded with -inf.
    position: `[blocks]`, which 64 values of i. members: `[whole, most]`, blocks of each order; the
      last block is empty.
    real: buckets of orders that are not integers. far: orders above 2^14. place: `[K]`, where each
    asked order is among the computed ones.
    """

    i: np.ndarray
    log_binomial: np.ndarray
    position: np.ndarray
    members: np.ndarray
    whole: np.ndarray
    real: tuple[np.ndarray, ...]
    far: np.ndarray
    place: np.ndarray


@functools.lru_cache(maxsize=64)
def plan(orders: tuple[float, ...]) -> Plan:
    """The plan of these orders, each finite and > 1."""
    far = sorted({a for a in orders if a > _FAR})
    whole = sorted({a for a in orders if a == int(a) and a <= _FAR})
    groups: dict[int, set[float]] = {}
    for a in orders:
        if (
            a != int(a) and a <= _FAR
        ):  # one group shares its nodes, which reach up to its largest order
            groups.setdefault(max(4, math.ceil(math.log2(a))), set()).add(a)
    real = tuple(np.asarray(sorted(groups[k])) for k in sorted(groups))
    column = {a: i for i, a in enumerate([*whole, *(a for group in real for a in group), *far])}
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
        members=np.asarray([m + [0] * (most - len(m)) for m in members], np.int64).reshape(
            len(members), most
        ),
        whole=np.asarray(whole),
        real=real,
        far=np.asarray(far),
        place=np.asarray([column[a] for a in orders]),
    )


def num_nodes(order: float, least_noise: float) -> tuple[int, bool]:
    """Nodes that make the error bound of `_real` about 1e-20 for orders up to `order` and noise >=
    `least_noise`.

    With it whether `order` is low enough for the quicker scaling.
    """
    wanted = (order / least_noise + 2 * _TAIL) * (0.25 * least_noise + 2.33 / least_noise)
    return min(max(math.ceil(wanted), 64), _MAX_NODES), order < 500


def log_moments(
    xp: Any, sigma: Any, q: Any, plan: Plan, nodes: tuple[tuple[int, bool], ...]
) -> Any:
    """Log moments `[K]`, >= 0, for scalars sigma > 0 and 0 < q < 1; `nodes`: `num_nodes` of each
    real bucket.
    """
    found = [_whole(xp, sigma, q, plan)] if plan.whole.size else []
    found += [real(xp, sigma, q, orders, *n) for orders, n in zip(plan.real, nodes, strict=True)]
    found += [_far(xp, sigma, q, plan.far)] if plan.far.size else []
    return xp.concatenate(found)[plan.place]


def _far(xp: Any, sigma: Any, q: Any, orders: Any) -> Any:
    """Upper bound on log moments by Jensen's inequality: (1 - q + q r)^a <= 1 - q + q r^a for each
    ratio r.
    """
    exponent = orders * ((orders - 1) / (2 * sigma**2))
    small = xp.log1p(q * xp.expm1(xp.minimum(exponent, 30.0)))
    return xp.where(exponent < 30, small, xp.logaddexp(xp.log1p(-q), xp.log(q) + exponent))


def _log_sum_exp(xp: Any, terms: Any, factor: Any) -> Any:
    """Log of the sum of exp(terms) * factor over the last axis; a row of -inf gives about
    -1e300.
    """
    top = _constant(xp, xp.maximum(terms.max(-1), -1e300))
    return top + xp.log(xp.maximum((xp.exp(terms - top[..., None]) * factor).sum(-1), 1e-300))


def _constant(xp: Any, value: Any) -> Any:
    return value if xp is np else jax.lax.stop_gradient(value)


def _whole(xp: Any, sigma: Any, q: Any, plan: Plan) -> Any:
    """log(1 + sum_{i>=2} C(a, i) q^i (1-q)^(a-i) (exp((i^2-i) / 2 sigma^2) - 1)) at integer orders
    a.

    The ones are taken out of the binomial sum so that a moment of 1 + 1e-20 is not rounded to 1.
    """
    i = plan.i
    exponent = (i * i - i) / (2 * sigma**2)
    log_p = xp.log1p(-q)
    shared = i * (xp.log(q) - log_p) + exponent
    factor = -xp.expm1(-exponent)
    terms = plan.log_binomial + shared.reshape(-1, _BLOCK)[plan.position]
    by_block = _log_sum_exp(xp, terms, factor.reshape(-1, _BLOCK)[plan.position])
    by_order = _log_sum_exp(xp, by_block[plan.members], 1.0)
    return xp.logaddexp(by_order + plan.whole * log_p, 0.0)


def real(xp: Any, sigma: Any, q: Any, orders: Any, num_nodes: int, low: bool = False) -> Any:
    """Log moments at any real orders, by the trapezoid rule on nodes that all orders share, plus a
    bound on its error.

    The moment minus 1 is E[(1+x)^a - 1 - a x], an integral of something positive. The integrand is
    analytic for |Im t| < pi sigma and there at most exp((Im t)^2 / 2) times its size on the real
    line, so that the rule with step h errs by at most 2 exp(y^2 / 2) / (exp(2 pi y / h) - 1) of
    that size, y < pi sigma (Trefethen, Weideman (2014), The exponentially convergent trapezoidal
    rule, Theorem 5.1). `low`: all orders are known to be below 500.
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
    # Nodes where the three terms cancel: Taylor's series about x = 0, whose first missing term is
    # below 1e-14 of the sum. Its powers of x are summed over the nodes once, for all orders.
    near = orders.max() * xp.abs(x) < 0.1
    y = xp.where(near, x, 0.0)
    binomial, power, series = a, y, 0.0
    for k in range(2, 10):
        binomial, power = binomial * (a - (k - 1)) / k, power * y
        series = series + binomial * (phi * power).sum()
    # The other nodes need one exponential for each order.
    log_main = xp.where(near, -np.inf, log_phi) + a * log_ratio
    if low:  # the moment is at most 2^a exp(max(this, 0)): no overflow, and no pass over the nodes
        top = a * (xp.log(q) + (a - 1) / (2 * sigma**2))
    else:
        top = log_main.max(-1, keepdims=True)
    top = _constant(xp, xp.maximum(top, 0.0))
    ones, slopes = xp.where(near, 0.0, phi).sum(), xp.where(near, 0.0, shifted - phi).sum()
    rest = series - ones - a * q * slopes
    total = (xp.exp(log_main - top).sum(-1, keepdims=True) + xp.exp(-top) * rest)[:, 0]
    log_excess = top[:, 0] + xp.log(xp.maximum(total, 1e-300))
    reach = xp.minimum(math.pi * sigma, 2 * math.pi / step)
    turns = 2 * math.pi * reach / step
    log_rule = math.log(2) + reach**2 / 2 - turns - xp.log(-xp.expm1(-turns))
    log_error = xp.logaddexp(log_rule, math.log(1e-21)) + xp.logaddexp(
        log_excess, xp.log(2 + 2 * orders * q)
    )
    return xp.logaddexp(xp.logaddexp(log_excess, _constant(xp, log_error)), 0.0)
