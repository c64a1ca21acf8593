"""Composition of lattice distributions in the Fourier domain, with every error on the account.

The masses p_k at losses l_k are tilted first: p_k e^(t l_k) / M(t). Then the composed distribution
is centred where the answer lies, and an error of size e in it costs about e * delta instead of e:
rounding of the FFT matters no more at delta = 1e-12 than at 0.1 (compare Alghamdi et al., "The
Saddle-Point Accountant for Differential Privacy", arXiv:2208.09595).

Accounted for:
 - FFT rounding. Every intermediate value of an FFT is at most the sum of the absolute inputs, so
   each output is off by at most `FFT_UNITS * log2(n) * 2^-52` times that sum (Higham, "Accuracy and
   Stability of Numerical Algorithms", section 24.1, entrywise); a power of T multiplies that by T
   |z|^(T-1).
 - Wrap-around. The tilted mass outside the window is bounded by Chernoff at two more tilts, from
   the lattice masses. Mass above the window is added to the upper bound (it may have come back too
   low); all mass outside is taken from the lower one.
 - Infinite losses: their mass goes into delta. Roundings of the tilt and of the sums: a relative
   term in both bounds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fljax.accounting._arrays import jax, jnp, logsumexp, put, vmap, while_loop
from fljax.accounting.pld.pair_masses import UNIT, steps

FFT_UNITS = 4.0
BLOCK = 64
SUM_ERROR = 1e-11  # n * 2^-52 for the largest n, with room


class Tilts(NamedTuple):
    """`[]` each: the tilt t of the sums, one above and one below it for the Chernoff bounds."""

    middle: jax.Array
    above: jax.Array
    below: jax.Array


class Curve(NamedTuple):
    """A bound on delta at the losses `start + k * h`: `delta + outside`, `[n]` each, in units of
    `exp(log_unit)`.
    """

    delta: jax.Array
    outside: jax.Array
    start: jax.Array
    log_unit: jax.Array


def _power(z: jax.Array, exponent: jax.Array) -> jax.Array:
    """To the power `exponent`, by squaring; the relative error is below 8 * exponent * 2^-52."""

    def body(
        carry: tuple[jax.Array, jax.Array, jax.Array],
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        left, base, result = carry
        return left // 2, base * base, jnp.where(left % 2 == 1, result * base, result)

    return while_loop(lambda carry: carry[0] > 0, body, (exponent, z, jnp.ones_like(z)))[2]


def _fold(x: jax.Array, n: int) -> jax.Array:
    """`[K, m]` -> `[K, n]`: padded with zeros, or wrapped around, which the FFT would do anyway."""
    if x.shape[-1] <= n:
        return jnp.pad(x, ((0, 0), (0, n - x.shape[-1])))
    return jnp.sum(x.reshape(x.shape[0], -1, n), axis=1)


def _decaying_sums(v: jax.Array, h: jax.Array) -> jax.Array:
    """s_i = sum_{k >= i} v_k e^(-(k - i) h), by blocks: each level is one product with a triangular
    matrix of positive entries.
    """
    n = v.shape[0]
    block = min(BLOCK, n)
    apart = steps(block) - steps(block)[:, None]
    decay = jnp.where(apart >= 0, jnp.exp(-h * jnp.maximum(apart, 0.0)), 0.0)
    inside = v.reshape(-1, block) @ decay.T
    if block == n:
        return inside[0]
    heads = _decaying_sums(inside[:, 0], h * block)
    after = jnp.concatenate([heads[1:], jnp.zeros((1,), v.dtype)])
    return (inside + after[:, None] * jnp.exp(-h * (block - steps(block)))).reshape(n)


def _one_bound(
    masses: jax.Array,
    offsets: jax.Array,
    infinite: jax.Array,
    upper: jax.Array,
    first: jax.Array,
    counts: jax.Array,
    h: jax.Array,
    tilts: Tilts,
    window: jax.Array,
    center: jax.Array,
    n: int,
) -> Curve:
    times = counts.astype(masses.dtype)
    loss = (first[:, None] + steps(masses.shape[1])) * h + offsets[:, None]
    logs = jnp.where(masses > 0, jnp.log(jnp.where(masses > 0, masses, 1.0)), -jnp.inf)
    moments = vmap(lambda t: logsumexp(logs + t * loss, axis=1))(jnp.stack(tilts))  # [3, K]
    tilted = jnp.exp(logs + tilts.middle * loss - moments[0][:, None])
    # Relative error of one tilted mass: of exp, whose argument carries the rounding of its three
    # terms.
    sizes = (
        jnp.where(masses > 0, jnp.abs(logs), 0.0)
        + jnp.abs(tilts.middle * loss)
        + jnp.abs(moments[0])[:, None]
    )
    relative = SUM_ERROR + jnp.sum(times * (4 * UNIT) * (1.0 + jnp.max(sizes, axis=1)))

    total = jnp.sum(times * moments[0])
    shift = jnp.sum(times * offsets)
    start_index = jnp.floor((window[0] - shift) / h)
    start = start_index * h + shift
    start_error = 4 * UNIT * (jnp.sum(times * jnp.abs(offsets)) + jnp.abs(start_index * h) + n * h)
    start = start + jnp.where(upper, start_error, -start_error)
    top = start + (n - 1) * h

    # Composition. The spectrum of real input: interior frequencies count twice.
    unit = FFT_UNITS * UNIT * jnp.log2(float(n))
    z = jnp.fft.rfft(_fold(tilted, n), axis=1)
    spectrum = jnp.prod(vmap(_power)(z, counts), axis=0)
    size = jnp.abs(z) + unit
    log_size = jnp.sum(times[:, None] * jnp.log(size), axis=0)
    composed_size = jnp.exp(log_size)
    power_error = jnp.sum(times[:, None] * (unit / size + 8 * UNIT), axis=0)
    twice = put(jnp.full((n // 2 + 1,), 2.0), np.array([0, -1]), 1.0)
    error = jnp.sum(twice * composed_size * (power_error + unit)) / n
    mass = jnp.fft.irfft(spectrum, n=n)
    turn = start_index.astype(jnp.int64) - jnp.sum(counts * first.astype(jnp.int64))
    mass = jnp.roll(mass, -(turn % n))

    # Mass outside the window, by Chernoff: the tilted one (what wraps around), and the true one
    # above it.
    log_unit = total - tilts.middle * center
    beyond = top + h
    totals = jnp.sum(times * moments, axis=1)
    # Twice each bound, for its rounding.
    above = 2.0 * jnp.exp(
        jnp.minimum(totals[1] - total - (tilts.above - tilts.middle) * beyond, 0.0)
    )
    below = 2.0 * jnp.exp(
        jnp.minimum(totals[2] - total + (tilts.middle - tilts.below) * start, 0.0)
    )

    points = start + steps(n) * h
    grow = jnp.expm1(relative + 4 * UNIT * jnp.abs(total))
    weight = -tilts.middle * (points - center)
    mass = jnp.where(
        upper,
        (jnp.maximum(mass, 0.0) + error) * (1.0 + grow),
        jnp.maximum(mass - error, 0.0) * (1.0 - jnp.minimum(grow, 1.0)),
    )
    # The masses of the upper bound may add up to a little more than 1.
    sums = jnp.sum(times * jnp.maximum(jnp.log(jnp.sum(masses, axis=1) + infinite), 0.0))
    chernoff = jnp.where(tilts.above > 0, totals[1] - tilts.above * beyond, sums)
    # Of mass x at point j, delta at point i <= j holds x e^weight_j (1 - e^(l_i - l_j)): with a
    # tilt t > 0 at most x e^weight_i / (1 + t), and always at most what the top of the window
    # allows. Small losses need this.
    reach = -jnp.expm1(jnp.minimum(points - top, -h))
    capped = jnp.minimum(weight, 690.0)  # a bound from below stays finite
    decays = (tilts.middle > 0) & (weight <= 690.0)
    reach = jnp.where(
        decays, jnp.minimum(reach, 1.0 / (1.0 + jnp.maximum(tilts.middle, 0.0))), reach
    )
    outside = jnp.where(
        upper,
        2.0 * jnp.exp(chernoff - log_unit)
        + jnp.sum(times * infinite) * jnp.exp(sums - log_unit) * (1.0 + SUM_ERROR),
        -(above + below) * jnp.exp(jnp.maximum(capped, capped[-1])) * reach,
    )
    weight = jnp.where(upper, weight, capped)

    # With v the P-masses: r_i = sum_{k > i} v_k e^(l_i - l_k), delta_i = sum_{j >= i} (e^h - 1)
    # r_j. All terms are positive, so every digit of delta counts.
    v = jnp.where(mass > 0, mass * jnp.exp(weight), 0.0)
    r = jnp.concatenate([jnp.exp(-h) * _decaying_sums(v, h)[1:], jnp.zeros((1,), v.dtype)])
    delta = _decaying_sums(jnp.expm1(h) * r, 0.0 * h)
    return Curve(delta=delta, outside=outside, start=start, log_unit=log_unit)


def compose(
    masses: jax.Array,
    offsets: jax.Array,
    infinite: jax.Array,
    first: jax.Array,
    counts: jax.Array,
    h: jax.Array,
    tilts: Tilts,
    window: jax.Array,
    center: jax.Array,
    n: int,
) -> Curve:
    """Delta curves of K mechanisms, the k-th composed `counts[k]` times with itself; leaves `[2,
    ...]`, upper then lower bound.

    masses `[2, K, m]`, offsets and infinite `[2, K]`, first `[K]` (integers, as float64), counts
    `[K]` int64; window `[2]`: the losses to keep;
    center: about where the answer is. n: a power of two, at least the window in steps of h.
    """

    def one(masses: jax.Array, offsets: jax.Array, infinite: jax.Array, upper: jax.Array) -> Curve:
        return _one_bound(
            masses, offsets, infinite, upper, first, counts, h, tilts, window, center, n
        )

    return vmap(one)(masses, offsets, infinite, jnp.array([True, False]))


def epsilon_of(curve: Curve, log_delta: jax.Array, h: jax.Array, upper: bool) -> jax.Array:
    """The epsilon at which the bound reaches `log_delta`; inf (upper) or 0 (lower) where the window
    does not hold it.

    Between lattice points the curve of a lattice distribution is linear in e^epsilon.
    """
    n = curve.delta.shape[0]
    target = jnp.exp(log_delta - curve.log_unit)
    values = curve.delta + curve.outside
    # The last point that does not meet the target. A NaN (where a mass left float64) meets none
    # from above.
    missed = (values > target) | (jnp.isnan(values) & upper)
    left = jnp.max(jnp.where(missed, jnp.arange(n), -1))
    at = jnp.clip(left, 0, n - 2)
    # What is outside is constant in the upper bound, and in the lower one only falls: keep its left
    # value.
    before, after = values[at], curve.delta[at + 1] + curve.outside[at]
    falls = (before > after) & jnp.isfinite(before)
    share = jnp.clip((before - target) / jnp.where(falls, before - after, 1.0), 0.0, 1.0)
    share = jnp.where(falls, share, 1.0 if upper else 0.0)
    epsilon = curve.start + at.astype(curve.delta.dtype) * h + jnp.log1p(jnp.expm1(h) * share)
    margin = 1e-13 * jnp.abs(epsilon)
    if upper:
        epsilon = jnp.where(
            left < 0, curve.start, jnp.where(left >= n - 1, jnp.inf, epsilon + margin)
        )
        return jnp.where(jnp.isnan(epsilon), jnp.inf, epsilon)
    held = (left >= 0) & (left < n - 1) & jnp.isfinite(epsilon) & jnp.all(jnp.isfinite(values))
    return jnp.where(held, jnp.maximum(epsilon - margin, 0.0), 0.0)


def log_delta_of(curve: Curve, epsilon: jax.Array, h: jax.Array, upper: bool) -> jax.Array:
    """The log of the bound on delta at `epsilon`; 0 (upper) or -inf (lower) where the window does
    not hold it.
    """
    n = curve.delta.shape[0]
    epsilon = epsilon + (-1e-13 if upper else 1e-13) * jnp.abs(epsilon)
    position = (epsilon - curve.start) / h
    left = jnp.clip(jnp.floor(position), 0, n - 2).astype(jnp.int64)
    share = jnp.clip(
        jnp.expm1(epsilon - curve.start - left.astype(position.dtype) * h) / jnp.expm1(h), 0.0, 1.0
    )
    chord = (1.0 - share) * curve.delta[left] + share * curve.delta[left + 1]
    value = jnp.log(jnp.maximum(chord + curve.outside[left], 0.0)) + curve.log_unit
    if upper:
        inside = (position >= 0) & (position <= n - 1) & ~jnp.isnan(value)
        return jnp.where(inside, jnp.minimum(value, 0.0), 0.0)
    inside = (position <= n - 1) & jnp.all(jnp.isfinite(curve.delta)) & ~jnp.isnan(value)
    return jnp.where(inside, value, -jnp.inf)
