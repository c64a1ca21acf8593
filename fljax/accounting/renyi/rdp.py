"""Renyi differential privacy: curves over orders for whole grids of mechanisms at once.

Every function maps arrays of parameters `[...]` and `K` orders (> 1) to `[..., K]` Renyi
divergences in nats. Composition is addition. `fljax.accounting.renyi.conversion` turns curves into
(epsilon, delta).
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from fljax import _validate
from fljax.accounting import _x64
from fljax.accounting._arrays import is_jax, jax, jnp
from fljax.accounting.renyi import mixture_moments, poisson_moments, without_replacement
from fljax.accounting.renyi.gaussian_pair import LowRank, gaussian_pair
from fljax.errors import PrivacyPreconditionError

__all__ = [
    "DEFAULT_ORDERS",
    "LowRank",
    "as_orders",
    "gaussian",
    "gaussian_mixture",
    "gaussian_pair",
    "group",
    "laplace",
    "poisson_gaussian",
    "pure",
    "sampled_without_replacement",
]

# Orders at which most epsilons between 0.02 and 50 have their optimum, to within 1e-4 of the best
# real order.
DEFAULT_ORDERS: tuple[float, ...] = (
    *(1 + x / 200 for x in range(1, 20)),
    *(1 + x / 10 for x in range(1, 100)),
    *(float(x) for x in range(11, 64)),
    *(float(round(64 * 2 ** (x / 6))) for x in range(25)),
)

_TRACED_NODES = 2048
_LARGEST_RANGE = 600.0  # beyond, exp(epsilon) leaves float64
_ON_HOST = 4096  # numbers that NumPy computes; more repay a compilation
_LEAST_NOISE = 0.5  # nodes are chosen for this noise multiplier where the true ones are traced
_CHUNK = 64  # configurations per step of a sweep: bounds memory, keeps the work in cache


def as_orders(orders: Any) -> tuple[float, ...]:
    """Concrete orders as a tuple of floats; raises ValueError unless each is finite and > 1."""
    given = np.asarray(orders)
    if not given.size:
        raise ValueError("Expected orders to hold at least one order, got orders=().")
    if not np.issubdtype(given.dtype, np.number) or np.iscomplexobj(given):
        raise ValueError(f"Expected orders > 1 and finite, got orders={orders!r}.")
    values = tuple(float(a) for a in given.astype(np.float64).ravel())
    for value in values:
        if not 1 < value < math.inf:
            raise ValueError(f"Expected orders > 1 and finite, got orders={value!r}.")
    return values


@_x64.float64(host=_ON_HOST)
def gaussian(noise_multiplier: Any, orders: Any) -> jax.Array:
    """Renyi divergence of the Gaussian mechanism: a / (2 noise_multiplier^2).

    Args:
      noise_multiplier: `[...]`, noise standard deviation / L2 sensitivity; 0 gives +inf.
      orders: `[K]`, each > 1.

    Returns:
      `[..., K]`, nats.

    Source: Mironov (2017), arXiv:1702.07476, Corollary 3.
    """
    sigma, orders = _x64.as64(noise_multiplier)[..., None], _x64.renyi_orders(orders)
    safe = jnp.where(sigma > 0, sigma, 1.0)
    return jnp.where(sigma > 0, orders / (2 * safe**2), jnp.inf)


@_x64.float64(host=_ON_HOST)
def laplace(noise_multiplier: Any, orders: Any) -> jax.Array:
    """Renyi divergence of the Laplace mechanism.

    Args:
      noise_multiplier: `[...]`, scale of the noise / L1 sensitivity; 0 gives +inf.
      orders: `[K]`, each > 1.

    Returns:
      `[..., K]`, nats.

    Source: Mironov (2017), arXiv:1702.07476, Proposition 6.
    """
    b, a = _x64.as64(noise_multiplier)[..., None], _x64.renyi_orders(orders)
    epsilon = 1 / jnp.where(b > 0, b, 1.0)
    inner = (a - 1) * jnp.expm1((1 - 2 * a) * epsilon) / (2 * a - 1)
    far = epsilon + jnp.log1p(inner) / (a - 1)
    # The moment is (a e^((a - 1) epsilon) + (a - 1) e^(-a epsilon)) / (2 a - 1), whose terms of
    # first order cancel: without them what exceeds one keeps its digits, however small.
    small = a * epsilon <= 30
    x = jnp.where(small, epsilon, 0.0)
    excess = (a * _beyond_line((a - 1) * x) + (a - 1) * _beyond_line(-a * x)) / (2 * a - 1)
    near = jnp.log1p(excess) / (a - 1)
    return jnp.where(b > 0, jnp.maximum(jnp.where(small, near, far), 0.0), jnp.inf)


def _beyond_line(x: Any) -> Any:
    """e^x - 1 - x, to a few units of itself."""
    near = jnp.abs(x) < 0.5
    y = jnp.where(near, x, 0.0)
    series = jnp.ones_like(y)
    for k in range(16, 2, -1):
        series = 1.0 + y * series / k
    return jnp.where(near, 0.5 * y * y * series, jnp.expm1(x) - x)


@_x64.float64(host=_ON_HOST)
def pure(epsilon: Any, orders: Any) -> jax.Array:
    """Largest Renyi divergence `[..., K]` of any (epsilon, 0)-DP mechanism, that of randomised
    response.

    Args:
      epsilon: `[...]`, >= 0.
      orders: `[K]`, each > 1.

    Source: Bun, Steinke (2016), arXiv:1605.02065, Proposition 3.3 and its proof.
    """
    epsilon, a = _x64.non_negative(epsilon)[..., None], _x64.renyi_orders(orders)
    # p^a r^(1-a) + r^a p^(1-a) with p = 1 - r = 1 / (1 + e^-epsilon) is cosh((a - 1/2) epsilon) /
    # cosh(epsilon / 2). A difference of logs would leave nothing of a small epsilon, and a great
    # many compositions of nothing would cost nothing: one is added to a product that keeps its
    # digits.
    small = a * epsilon <= 600
    x = jnp.where(small, epsilon, 1.0) / 2
    excess = 2 * jnp.sinh(jnp.where(small, a, 2.0) * x)
    excess *= jnp.sinh(jnp.where(small, a - 1, 1.0) * x) / jnp.cosh(x)
    far = (a - 1) * epsilon + jnp.log1p(jnp.exp((1 - 2 * a) * epsilon))
    far -= jnp.log1p(jnp.exp(-epsilon))
    return jnp.where(small, jnp.log1p(excess), far) / (a - 1)


def bounded_range(epsilon: Any, orders: Any) -> np.ndarray:
    """Largest Renyi divergence `[K]` of any mechanism whose losses on two neighbours lie within
    some interval of length `epsilon`, as those of the exponential mechanism do; in NumPy.

    Two outcomes are the worst, of losses t and t - epsilon; the best t is in closed form.

    Args:
      epsilon: >= 0, infinity included.
      orders: `[K]`, each > 1, concrete.

    Source: Dong, Durfee, Rogers (2020), arXiv:1909.13830, for the pairs.
    """
    if not epsilon >= 0:
        raise ValueError(f"Expected epsilon >= 0, got epsilon={epsilon!r}.")
    a = np.asarray(as_orders(orders))
    if epsilon == 0 or epsilon == math.inf:
        return np.full(a.shape, float(epsilon))
    if epsilon > _LARGEST_RANGE:
        return np.asarray(pure(epsilon, a))
    # E[ratio^(a - 1)] is v^(a - 1) (A - B v) with v = e^t in [1, e^epsilon].
    shrunk = np.exp(-(a - 1) * epsilon)
    share = -np.expm1(-(a - 1) * epsilon) / -math.expm1(-epsilon)
    first, second = shrunk + share, share * math.exp(-epsilon)
    t = np.clip(np.log(first * (a - 1) / (a * second)), 0.0, epsilon)
    # A - B v at v = e^t is 1 - B (v - 1), as A - B = 1: what exceeds one keeps its digits.
    moment = (a - 1) * t + np.log1p(-second * np.expm1(t))
    # t is rounded; the moment is flat there. Nothing exceeds epsilon^2 a / 8 (arXiv:2004.07223).
    rounding = 2.0**-50 * ((a - 1) * t + 2)
    return np.minimum((moment + rounding) / (a - 1), a * epsilon**2 / 8)


def gaussian_mixture(
    stddev: float, sensitivities: Any, sampling_probs: Any, orders: Any
) -> np.ndarray:
    """Renyi divergence of Gaussian noise on a sum that one unit moves by a random amount; adding or
    removing the unit.

    The pair is sum_j sampling_probs_j N(sensitivities_j, stddev^2) against N(0, stddev^2), in the
    worse direction, by quadrature with its error bound added, as in `poisson_gaussian`; time grows
    with the number of amounts, not with a power of it.

    Args:
      stddev: noise, in the unit of the sensitivities. > 0.
      sensitivities: `[J]`, >= 0.
      sampling_probs: `[J]`, >= 0, with a sum of at most 1; the rest of the time the unit moves
        nothing.
      orders: `[K]`, each > 1, concrete.

    Returns:
      `[K]`, nats, NumPy; +inf at an order that would need more than 250,000 nodes. Of more than
      1024 orders some come
        by chords, as in `poisson_gaussian`.

    Raises:
      ValueError: an argument out of range.
    """
    weights, shifts = _shifts(stddev, sensitivities, sampling_probs)
    if not weights.size:
        return np.zeros(len(as_orders(orders)))
    return poisson_moments.with_chords(
        lambda grid: mixture_moments.mixture_curve(weights, shifts, grid), as_orders(orders)
    )


def replaced_gaussian_mixture(
    stddev: float, sensitivities: Any, sampling_probs: Any, orders: Any
) -> np.ndarray:
    """Upper bound on the Renyi divergence of `gaussian_mixture` where the unit's data are replaced,
    not removed.

    Before and after, the unit moves the sum by vectors of the same random length, so that the sum
    moves by twice that at most; the bound takes both lengths as known (joint convexity). Loose: for
    amounts of rare chance it is dominated by the largest, and no tight pair is known.

    Args:
      stddev, sensitivities, sampling_probs, orders: as for `gaussian_mixture`; the sensitivities
        are those of removing.

    Returns:
      `[K]`, nats, NumPy.

    Raises:
      ValueError: an argument out of range.

    Source: the joint convexity of e^((a - 1) D_a); see "Subject Granular Differential Privacy in
    Federated Learning", arXiv:2206.03617, for the setting.
    """
    weights, shifts = _shifts(stddev, sensitivities, sampling_probs)
    a = np.asarray(as_orders(orders))[:, None]
    with np.errstate(over="ignore"):
        exponents = 2 * a * (a - 1) * shifts**2  # (2 s)^2 a (a - 1) / 2
    most = np.max(exponents, axis=1, initial=0.0)
    if not np.all(np.isfinite(most)):
        return np.full(len(most), np.inf)  # hardly any noise
    rest = max(0.0, 1 - math.fsum(weights))
    moment = rest * np.exp(-most) + np.sum(weights * np.exp(exponents - most[:, None]), axis=1)
    return (most + np.log(moment)) / (a[:, 0] - 1)


def _shifts(
    stddev: float, sensitivities: Any, sampling_probs: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Chances and sizes (in units of the noise) of the amounts that move something, checked."""
    _validate.positive(stddev=stddev)
    shifts, weights = (
        np.asarray(sensitivities, np.float64) / stddev,
        np.asarray(sampling_probs, np.float64),
    )
    if not (
        shifts.shape == weights.shape
        and shifts.ndim == 1
        and np.all(np.isfinite(shifts))
        and np.all(shifts >= 0)
    ):
        raise ValueError(
            "Expected sensitivities >= 0, one for each probability, got "
            f"sensitivities={sensitivities!r}."
        )
    if not (np.all(weights >= 0) and math.fsum(weights) <= 1 + 1e-9):
        raise ValueError(
            "Expected sampling_probs >= 0 with a sum of at most 1, got "
            f"sampling_probs={sampling_probs!r}."
        )
    moves = (shifts > 0) & (weights > 0)
    return weights[moves], shifts[moves]


def sampled_without_replacement(noise_multiplier: Any, sampling_rate: Any, orders: Any) -> Any:
    """Upper bound on the Renyi divergence of the Gaussian mechanism on a fixed-size sample, one
    unit replaced.

    Guarantee: for REPLACE_ONE, with `noise_multiplier` relative to the sensitivity under that
      relation.

    Args:
      noise_multiplier: `[...]`, noise standard deviation / L2 sensitivity. >= 0; 0 gives +inf.
      sampling_rate: `[...]`, sample size / population, in [0, 1].
      orders: `[K]`, each > 1, concrete. Time and memory grow with the square of the largest; above
        2048 the unsampled divergence stands for the sampled one, which it bounds.

    Returns:
      `[..., K]`, nats.

    Source: Wang, Balle, Kasiviswanathan (2019), arXiv:1808.00087, Theorem 27 and Corollary 10.
    """
    return without_replacement.sampled_curves(
        noise_multiplier, sampling_rate, _x64.Static(as_orders(orders))
    )


def group(rdp: Any, orders: Any, doublings: int) -> tuple[Any, np.ndarray]:
    """Curve for groups of up to 2^doublings units from the curve for one.

    For a Gaussian mechanism divide its noise multiplier by the group's size instead: that is exact.

    Args:
      rdp: `[..., K]`.
      orders: `[K]`, concrete. Only those >= 2^(doublings + 1) give a bound; the others are left
        out.
      doublings: >= 0.

    Returns:
      (`[..., k]` curve, `[k]` orders / 2^doublings).

    Raises:
      PrivacyPreconditionError: no order is large enough.

    Source: Mironov (2017), arXiv:1702.07476, Proposition 2.
    """
    _validate.non_negative_int(doublings=doublings)
    grid = np.asarray(as_orders(orders))
    keep = np.flatnonzero(grid >= 2.0 ** (doublings + 1)) if doublings else np.arange(grid.size)
    if not keep.size:
        raise PrivacyPreconditionError(
            f"Expected an order >= {2 ** (doublings + 1)} for doublings={doublings}, got at most "
            f"{grid.max():g}."
        )
    xp = jnp if is_jax(rdp) else np
    curve = 3.0**doublings * rdp[..., keep]
    return xp.where(curve >= 0, curve, np.nan), grid[keep] / 2**doublings


def poisson_gaussian(noise_multiplier: Any, sampling_prob: Any, orders: Any) -> Any:
    """Renyi divergence of the Poisson-sampled Gaussian mechanism, adding or removing one unit.

    Integer orders use the binomial sum, others a trapezoid rule whose error bound is part of the
    result: the value is never below the truth by more than rounding, and relative precision
    survives where the divergence is tiny. Traced orders all take the second way, with nodes spread
    up to the largest of them: keep such a set narrow, a set too wide for its nodes gives +inf. Of
    more than 1024 concrete orders 256 for each doubling of order - 1 are computed; between them the
    log moment, which is convex, lies below its chord. Above order 2^14 Jensen's inequality gives
    the bound log(1 - q + q exp(a (a - 1) / (2 noise_multiplier^2))) / (a - 1).

    Args:
      noise_multiplier: `[...]`, noise standard deviation / L2 sensitivity. >= 0; 0 gives +inf.
      sampling_prob: `[...]`, in [0, 1], broadcast against `noise_multiplier`.
      orders: `[K]`, each > 1; concrete ones (a tuple, an array) are planned for at trace time.

    Returns:
      `[..., K]`, nats. Differentiable; derivatives are finite where 0 < sampling_prob and 0 <
      noise_multiplier.

    Source: Mironov, Talwar, Zhang (2019), arXiv:1908.10530, sections 3.2 and 3.3: the moment is
    that of (1 - q + q N(1, s^2) / N(0, s^2)) under N(0, s^2), which dominates its mirror image. The
    quadrature is ours.
    """
    if _x64.is_traced(orders):
        return _poisson_traced(noise_multiplier, sampling_prob, orders)
    return poisson_moments.with_chords(
        functools.partial(_poisson, noise_multiplier, sampling_prob), as_orders(orders)
    )


def _poisson(noise_multiplier: Any, sampling_prob: Any, orders: tuple[float, ...]) -> Any:
    least = _least(noise_multiplier)
    if not any(is_jax(v) or np.ndim(v) for v in (noise_multiplier, sampling_prob)):
        return _poisson_host(float(noise_multiplier), float(sampling_prob), orders, least)
    plan = poisson_moments.plan(orders)
    return _poisson_static(
        noise_multiplier, sampling_prob, np.asarray(orders), plan, _nodes(plan, least)
    )


def _least(noise_multiplier: Any) -> float:
    """The noise that nodes are planned for: one of few values, so that few programs are
    compiled.
    """
    if _x64.is_traced(noise_multiplier):
        return _LEAST_NOISE
    values = np.asarray(noise_multiplier, np.float64).ravel()
    values = values[(values > 0) & np.isfinite(values)]
    least = float(values.min()) if values.size else 1.0
    return next((rung for rung in (1.0, 0.5, 0.25) if least >= rung), 0.1)


def _nodes(plan: poisson_moments.Plan, least: float) -> tuple[tuple[int, bool], ...]:
    return tuple(poisson_moments.num_nodes(float(bucket[-1]), least) for bucket in plan.real)


def _poisson_host(sigma: float, q: float, orders: tuple[float, ...], least: float) -> np.ndarray:
    """One configuration in NumPy: nothing to compile, and a ledger asks for one after another."""
    grid = np.asarray(orders)
    if not (sigma >= 0 and 0 <= q <= 1):
        return np.full(grid.shape, np.nan)
    if q == 0 or sigma == math.inf:
        return np.zeros(grid.shape)
    if sigma == 0:
        return np.full(grid.shape, np.inf)
    if q == 1:
        return grid / (2 * sigma**2)
    plan = poisson_moments.plan(orders)
    with np.errstate(all="ignore"):  # branches not taken overflow
        moments = poisson_moments.log_moments(
            np, np.float64(sigma), np.float64(q), plan, _nodes(plan, least)
        )
    return moments / (grid - 1)


@_x64.float64(static_argnums=4)
def _poisson_static(
    noise_multiplier: Any,
    sampling_prob: Any,
    orders: Any,
    plan: poisson_moments.Plan,
    nodes: tuple[tuple[int, bool], ...],
) -> jax.Array:
    def one(pair: tuple[jax.Array, jax.Array]) -> jax.Array:
        return poisson_moments.log_moments(jnp, *pair, plan, nodes)

    return _over_configurations(one, noise_multiplier, sampling_prob, orders)


@_x64.float64(host=0)
def _poisson_traced(noise_multiplier: Any, sampling_prob: Any, orders: Any) -> jax.Array:
    orders = _x64.renyi_orders(orders)

    def one(pair: tuple[jax.Array, jax.Array]) -> jax.Array:
        return poisson_moments.real(jnp, *pair, orders, _TRACED_NODES)

    return _over_configurations(one, noise_multiplier, sampling_prob, orders)


def _over_configurations(
    one: Any, noise_multiplier: Any, sampling_prob: Any, orders: Any
) -> jax.Array:
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
