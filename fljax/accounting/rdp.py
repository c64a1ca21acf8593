"""Renyi differential privacy: curves over orders for whole grids of mechanisms at once.

Every function maps arrays of parameters `[...]` and `K` orders (> 1) to `[..., K]` Renyi divergences in nats.
Composition is addition. `fljax.accounting.conversion` turns curves into (epsilon, delta).
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax.accounting import _x64

# Orders at which most epsilons between 0.02 and 50 have their optimum, to within 1e-4 of the best real order.
DEFAULT_ORDERS: tuple[float, ...] = (
    *(1 + x / 200 for x in range(1, 20)),
    *(1 + x / 10 for x in range(1, 100)),
    *(float(x) for x in range(11, 64)),
    *(float(round(64 * 2 ** (x / 6))) for x in range(25)),
)

_TAIL = 10.0  # nodes reach this many standard deviations beyond both bumps; less than 1e-21 of the sum lies outside
_TRACED_NODES = 2048
_LEAST_NOISE = 0.4  # nodes are chosen for this noise multiplier where the true ones are traced
_CHUNK = 64  # configurations per step of a sweep: bounds memory, keeps the work in cache


def as_orders(orders: Any) -> tuple[float, ...]:
    """Concrete orders as a tuple of floats; raises ValueError unless each is finite and > 1."""
    values = tuple(float(a) for a in np.asarray(orders, np.float64).ravel())
    if not values:
        raise ValueError("Expected orders to hold at least one order, got orders=().")
    for value in values:
        if not 1 < value < math.inf:
            raise ValueError(f"Expected orders > 1 and finite, got orders={value!r}.")
    return values


@_x64.float64
@jax.jit
def gaussian(noise_multiplier: Any, orders: Any) -> jax.Array:
    """Renyi divergence of the Gaussian mechanism: a / (2 noise_multiplier^2).

    Args:
      noise_multiplier: `[...]`, noise standard deviation / L2 sensitivity; 0 gives +inf.
      orders: `[K]`, each > 1.

    Returns:
      `[..., K]`, nats.

    Source: Mironov (2017), arXiv:1702.07476, Corollary 3.
    """
    sigma, orders = _x64.as64(noise_multiplier)[..., None], _x64.as64(orders)
    safe = jnp.where(sigma > 0, sigma, 1.0)
    return jnp.where(sigma > 0, orders / (2 * safe**2), jnp.inf)


def poisson_gaussian(noise_multiplier: Any, sampling_prob: Any, orders: Any) -> Any:
    """Renyi divergence of the Poisson-sampled Gaussian mechanism, adding or removing one unit.

    Integer orders use the binomial sum, others a trapezoid rule whose error bound is part of the result: the value is
    never below the truth by more than rounding, and relative precision survives where the divergence is tiny. Traced
    orders all take the second way, with nodes spread up to the largest of them: keep such a set narrow, a set too wide
    for its nodes gives +inf.

    Args:
      noise_multiplier: `[...]`, noise standard deviation / L2 sensitivity. >= 0; 0 gives +inf.
      sampling_prob: `[...]`, in [0, 1], broadcast against `noise_multiplier`.
      orders: `[K]`, each > 1; concrete ones (a tuple, an array) are planned for at trace time.

    Returns:
      `[..., K]`, nats. Differentiable; derivatives are finite where 0 < sampling_prob and 0 < noise_multiplier.

    Source: Mironov, Talwar, Zhang (2019), arXiv:1908.10530, sections 3.2 and 3.3: the moment is that of
    (1 - q + q N(1, s^2) / N(0, s^2)) under N(0, s^2), which dominates its mirror image. The quadrature is ours.
    """
    if isinstance(orders, jax.core.Tracer):
        return _poisson_traced(noise_multiplier, sampling_prob, orders)
    return _poisson_static(noise_multiplier, sampling_prob, as_orders(orders), _least(noise_multiplier))


def _least(noise_multiplier: Any) -> float:
    """The noise the nodes are planned for: a rung of a short ladder, so that few programs are compiled."""
    if isinstance(noise_multiplier, jax.core.Tracer):
        return _LEAST_NOISE
    values = np.asarray(noise_multiplier, np.float64).ravel()
    values = values[(values > 0) & np.isfinite(values)]
    least = min(max(float(values.min()), 0.05), 1.0) if values.size else 1.0
    return 2.0 ** (math.floor(2 * math.log2(least) + 1e-9) / 2)


@_x64.float64
@functools.partial(jax.jit, static_argnums=(2, 3))
def _poisson_static(noise_multiplier: Any, sampling_prob: Any, orders: tuple[float, ...], least: float) -> jax.Array:
    whole = _buckets([a for a in orders if a == int(a)], smallest=16)
    parts = _buckets([a for a in orders if a != int(a)], smallest=2)
    column = {a: i for i, a in enumerate(a for bucket in whole + parts for a in bucket)}
    place = np.asarray([column[a] for a in orders])

    def one(pair: tuple[jax.Array, jax.Array]) -> jax.Array:
        found = [_whole_orders(*pair, bucket) for bucket in whole]
        found += [_real_orders(*pair, np.asarray(bucket), _nodes(bucket[-1], least)) for bucket in parts]
        return jnp.concatenate(found)[place]

    return _over_configurations(one, noise_multiplier, sampling_prob, np.asarray(orders))


@_x64.float64
@jax.jit
def _poisson_traced(noise_multiplier: Any, sampling_prob: Any, orders: Any) -> jax.Array:
    orders = _x64.as64(orders)

    def one(pair: tuple[jax.Array, jax.Array]) -> jax.Array:
        return _real_orders(*pair, orders, _TRACED_NODES)

    return _over_configurations(one, noise_multiplier, sampling_prob, orders)


def _over_configurations(one: Any, noise_multiplier: Any, sampling_prob: Any, orders: Any) -> jax.Array:
    """Edge cases and chunks around `one(sigma, q) -> log moments [K]`."""
    sigma, q = jnp.broadcast_arrays(_x64.as64(noise_multiplier), _x64.as64(sampling_prob))
    proper = (sigma > 0) & jnp.isfinite(sigma) & (q > 0) & (q < 1)
    # Harmless stand-ins: a NaN in the branch not taken would still poison the gradient.
    pairs = (jnp.where(proper, sigma, 1.0).ravel(), jnp.where(proper, q, 0.5).ravel())
    if sigma.size == 1:
        log_moments = one((pairs[0][0], pairs[1][0]))[None]
    else:
        log_moments = jax.lax.map(one, pairs, batch_size=min(_CHUNK, sigma.size))
    sampled = log_moments.reshape(*sigma.shape, -1) / (orders - 1)
    valid = (sigma >= 0) & (q >= 0) & (q <= 1)
    sigma, q = sigma[..., None], q[..., None]
    full = jnp.where(sigma > 0, orders / (2 * jnp.where(sigma > 0, sigma, 1.0) ** 2), jnp.inf)
    out = jnp.where(proper[..., None], sampled, jnp.where(q == 0, 0.0, full))
    return jnp.where(valid[..., None], out, jnp.nan)


def _buckets(orders: list[float], smallest: int) -> list[tuple[float, ...]]:
    """Distinct orders grouped by power of two: a group shares padding or nodes, and wastes at most half of them."""
    groups: dict[int, set[float]] = {}
    for order in orders:
        groups.setdefault(max(smallest, 2 ** math.ceil(math.log2(order))), set()).add(order)
    return [tuple(sorted(groups[k])) for k in sorted(groups)]


def _whole_orders(sigma: jax.Array, q: jax.Array, orders: tuple[float, ...]) -> jax.Array:
    """Log moments `[K]` at integer orders: log(1 + sum_{i>=2} C(a, i) q^i (1-q)^(a-i) (exp((i^2-i) / 2 sigma^2) - 1)).

    The ones are taken out of the binomial sum so that a moment of 1 + 1e-20 is not rounded to 1.
    """
    i = np.arange(2.0, orders[-1] + 1)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1.0, orders[-1] + 1)))])
    log_binomial = np.full((len(orders), i.size), -np.inf)
    for row, order in zip(log_binomial, orders, strict=True):
        a, k = int(order), int(order) - 1
        row[:k] = log_factorial[a] - log_factorial[2 : a + 1] - log_factorial[a - 2 :: -1][:k]
    exponent = (i * i - i) / (2 * sigma**2)
    log_q, log_p = jnp.log(q), jnp.log1p(-q)
    shared = i * (log_q - log_p) + exponent + jnp.log(-jnp.expm1(-exponent))
    terms = log_binomial + shared + np.asarray(orders)[:, None] * log_p
    return jax.nn.softplus(jax.nn.logsumexp(terms, axis=-1))


def _nodes(order: float, least: float) -> int:
    """Nodes that make the error bound of `_real_orders` about 1e-20 for orders up to `order` and noise >= `least`."""
    return min(max(math.ceil((order / least + 2 * _TAIL) * (0.25 * least + 2.33 / least)), 64), 8192)


def _real_orders(sigma: jax.Array, q: jax.Array, orders: Any, num_nodes: int) -> jax.Array:
    """Log moments `[K]` at real orders, by the trapezoid rule on nodes that all orders share.

    With t standard normal and x = q (exp(t / sigma - 1 / (2 sigma^2)) - 1), a variable of mean 0, the moment minus 1 is
    E[(1+x)^a - 1 - a x], an integral of something positive. The integrand is analytic for |Im t| < pi sigma and there
    at most exp((Im t)^2 / 2) times its size on the real line, so that the rule with step h errs by at most
    2 exp(y^2 / 2) / (exp(2 pi y / h) - 1) of that size, y < pi sigma (Trefethen, Weideman (2014), The exponentially
    convergent trapezoidal rule, Theorem 5.1).
    """
    span = jax.lax.stop_gradient(jnp.max(orders) / sigma) + 2 * _TAIL
    step = span / (num_nodes - 1)
    t = np.arange(num_nodes) * step - _TAIL
    w = t / sigma - 1 / (2 * sigma**2)
    x = q * jnp.expm1(jnp.minimum(w, 300.0))  # beyond 300 only the logarithm is used
    log_ratio = jnp.where(x < 1, jnp.log1p(x), jnp.logaddexp(jnp.log1p(-q), jnp.log(q) + w))
    log_weight = jnp.log(step / math.sqrt(2 * math.pi))
    log_phi = log_weight - t**2 / 2
    phi, shifted = jnp.exp(log_phi), jnp.exp(log_weight - (t - 1 / sigma) ** 2 / 2)
    a = orders[:, None]
    log_main = log_phi + a * log_ratio
    top = jax.lax.stop_gradient(jnp.maximum(log_main.max(-1, keepdims=True), 0.0))
    # Taylor's series where the three terms cancel; its first missing term is below 1e-14 of the sum.
    small = a * jnp.abs(x) < 0.1
    y = jnp.where(small, x, 0.0)
    series = jnp.ones_like(a * y)
    for k in range(9, 1, -1):
        series = 1 + series * (a - k) * y / (k + 1)
    near = phi * (a * (a - 1) / 2 * y**2 * series) * jnp.exp(-top)
    far = jnp.exp(log_main - top) - jnp.exp(-top) * (phi + a * q * (shifted - phi))
    total = jnp.where(small, near, far).sum(-1)
    log_excess = top[:, 0] + jnp.log(jnp.maximum(total, 1e-300))
    reach = jnp.minimum(math.pi * sigma, 2 * math.pi / step)
    turns = 2 * math.pi * reach / step
    log_rule = math.log(2) + reach**2 / 2 - turns - jnp.log(-jnp.expm1(-turns))
    log_error = jnp.logaddexp(log_rule, math.log(1e-21)) + jnp.logaddexp(log_excess, jnp.log(2 + 2 * orders * q))
    return jax.nn.softplus(jnp.logaddexp(log_excess, jax.lax.stop_gradient(log_error)))
