"""Where to look: tilt, window and lattice step, from a saddle-point estimate of the answer.

Nothing here needs to be exact. The bounds of `compose` hold for every plan; a good plan makes them
tight and cheap.

One composition is a few hundred nodes (log P-mass, loss). With K(t) the sum over mechanisms of
count * log E_P[e^(t loss)], the composed loss tilted by t has mean K'(t) and variance K''(t), and
with it taken as normal
    log delta(K'(t)) = K(t) - t K'(t) + log(psi(t s) - psi((t + 1) s)), s^2 = K''(t), psi(y) =
    e^(y^2 / 2) Phi(-y)
(Alghamdi et al., arXiv:2208.09595): exact for the Gaussian mechanism, good to a percent elsewhere.
"""

from __future__ import annotations

from typing import NamedTuple

from fljax.accounting import search
from fljax.accounting._arrays import jax, jnp, log_ndtr, logsumexp, softmax
from fljax.accounting.pld.compose import Tilts

LOG_NEGLIGIBLE = 14.0  # a tail of T * mass <= 1e-6 delta may count as an infinite loss
LOG_OUTSIDE = 14.0  # tilted mass outside the window: 8e-7 of the accuracy
LOG_SLACK = 4.0  # see `find`
BISECTIONS = 24  # a tilt to a part in a million: the estimate itself is good to a percent
SMALLEST_TILT, LARGEST_TILT = -0.5, 1e6
SMALLEST_SPREAD = 1e-9  # of a loss that does not vary: some window must be looked at


class Nodes(NamedTuple):
    """`[K, m]`: log of the P-mass (not normalised), loss. One composition of each mechanism."""

    logs: jax.Array
    loss: jax.Array


class Plan(NamedTuple):
    """`[]` unless said: estimates `epsilon`, `log_delta`; tilts; window `[2]`; spread: tilted
    standard deviation.

    The bounds differ in epsilon by about h^2 * curvature / 8.
    """

    epsilon: jax.Array
    log_delta: jax.Array
    tilts: Tilts
    window: jax.Array
    curvature: jax.Array
    spread: jax.Array


def _log_moment(nodes: Nodes, times: jax.Array, tilt: jax.Array) -> jax.Array:
    """K(t), for tilts of any shape."""
    exponents = nodes.logs + tilt[..., None, None] * nodes.loss
    total = logsumexp(exponents, axis=-1) - logsumexp(nodes.logs, axis=1)
    return jnp.sum(times * total, axis=-1)


def _moments(
    nodes: Nodes, times: jax.Array, tilt: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """K(t), K'(t), K''(t) and the tilted one-step masses `[K, m]`."""
    exponents = nodes.logs + tilt * nodes.loss
    total = logsumexp(exponents, axis=1)
    masses = jnp.exp(exponents - total[:, None])
    mean = jnp.sum(masses * nodes.loss, axis=1)
    variance = jnp.sum(masses * (nodes.loss - mean[:, None]) ** 2, axis=1)
    total = total - logsumexp(nodes.logs, axis=1)
    return jnp.sum(times * total), jnp.sum(times * mean), jnp.sum(times * variance), masses


def _log_delta(k: jax.Array, k1: jax.Array, k2: jax.Array, tilt: jax.Array) -> jax.Array:
    s = jnp.sqrt(k2)

    def log_psi(y: jax.Array) -> jax.Array:
        # log_ndtr loses its digits against y^2 / 2 far out; there psi(y) is 1 / y up to 1 / y^3.
        safe = jnp.clip(y, -1e4, 1e4)
        return jnp.where(y > 1e4, -jnp.log(jnp.maximum(y, 1.0)), 0.5 * safe**2 + log_ndtr(-safe))

    first, second = log_psi(tilt * s), log_psi((tilt + 1.0) * s)
    return k - tilt * k1 + first + jnp.log(-jnp.expm1(jnp.minimum(second - first, -1e-300)))


def anchor(nodes: Nodes, edge: jax.Array, tilt: jax.Array, h: jax.Array) -> jax.Array:
    """`[K]`: a loss that the lattice should hold, for steps of h. edge `[K]`: where the range of
    the loss ends, or not finite.

    Next to an end it is the mean of the mass within one step, be it spread out or in a heap much
    narrower than h; elsewhere a median.
    """
    masses = softmax(nodes.logs + tilt * nodes.loss, axis=1)
    middle = jnp.argmax(jnp.cumsum(masses, axis=1) >= 0.5, axis=1)
    median = jnp.take_along_axis(nodes.loss, middle[:, None], axis=1)[:, 0]
    near = jnp.where(jnp.abs(nodes.loss - edge[:, None]) < h, masses, 0.0)
    weight = jnp.sum(near, axis=1)
    mean = jnp.sum(near * nodes.loss, axis=1) / jnp.where(weight > 1e-12, weight, 1.0)
    return jnp.where(jnp.isfinite(edge) & (weight > 1e-12), mean, median)


def find(
    nodes: Nodes, times: jax.Array, target: jax.Array, for_delta: bool, accuracy: jax.Array
) -> Plan:
    """The plan for `target`: log delta where epsilon is asked, epsilon where delta is asked. times:
    `[K]` counts.
    """

    def too_low(y: jax.Array) -> jax.Array:
        tilt = jnp.sinh(y) * 1e-7
        k, k1, k2, _ = _moments(nodes, times, tilt)
        if for_delta:
            return k1 < target
        # delta falls as the tilt grows. A negative epsilon is of no interest.
        return (_log_delta(k, k1, k2, tilt) > target) | (k1 < 0)

    ends = jnp.arcsinh(jnp.array([SMALLEST_TILT, LARGEST_TILT], nodes.loss.dtype) / 1e-7)
    low, high = search.bisect(too_low, ends[0], ends[1], BISECTIONS)
    tilt = jnp.sinh(0.5 * (low + high)) * 1e-7
    k, mean, k2, _ = _moments(nodes, times, tilt)
    epsilon = target if for_delta else jnp.maximum(mean, 0.0)
    log_delta = _log_delta(k, mean, k2, tilt) - tilt * (target - mean) if for_delta else target
    curvature = jnp.sum(times) * (tilt + 1.0)

    # A smaller tilt than the saddle point's costs digits that we have (e^LOG_SLACK), and keeps the
    # window small where rare
    # large losses make the tail heavy: tilted, they could outweigh all the rest.
    budget = k - tilt * epsilon + LOG_SLACK

    def too_small(middle: jax.Array) -> jax.Array:
        return _log_moment(nodes, times, middle) - middle * epsilon > budget

    tilt = search.bisect(too_small, jnp.minimum(tilt, 0.0), tilt, 12)[1]
    k, _, k2, _ = _moments(nodes, times, tilt)
    spread = jnp.maximum(jnp.sqrt(k2), SMALLEST_SPREAD)

    # Window: outside of it the tilted mass is e^-LOG_OUTSIDE. Tilts on the scale of 1 / spread, 24
    #   on each side.
    offsets = jnp.logspace(-1.0, 2.0, 24, dtype=nodes.loss.dtype) / spread

    def edges(shifts: jax.Array) -> jax.Array:
        beyond = _log_moment(nodes, times, tilt + shifts) - k
        return (beyond + LOG_OUTSIDE - jnp.log(accuracy)) / shifts

    uppers, lowers = edges(offsets), edges(-offsets)
    # The certificate above the window bounds true mass, too, so its tilt is positive.
    uppers = jnp.where(tilt + offsets > 0, uppers, jnp.inf)
    i, j = jnp.argmin(uppers), jnp.argmax(lowers)
    tilts = Tilts(tilt, tilt + offsets[i], tilt - offsets[j])
    return Plan(
        epsilon=epsilon,
        log_delta=log_delta,
        tilts=tilts,
        window=jnp.stack([lowers[j], uppers[i]]),
        curvature=curvature,
        spread=spread,
    )
