"""Clipping styles: pure functions from the norms of gradient rows to the coefficients of their sum."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from fljax import _validate


def flat(norms: jax.Array, l2_clip_norm: float | jax.Array) -> jax.Array:
    """min(1, l2_clip_norm / norm) for each of `norms` `[B]`; 0 where a norm is not finite.

    Guarantee: each row times its coefficient has norm at most `l2_clip_norm` (>= 0, may be infinite), up to one
    float32 rounding.

    Source: Abadi et al. (2016), "Deep Learning with Differential Privacy", arXiv:1607.00133, Algorithm 1.
    """
    return to_bound(norms, l2_clip_norm)


def to_bound(
    norms: jax.Array, l2_clip_norm: float | jax.Array, *, rescale_to_unit_norm: bool = False, nan_safe: bool = True
) -> jax.Array:
    """`flat`, with options: coefficients divided by `l2_clip_norm`, or 1 where a norm is NaN."""
    one, clip = jnp.ones((), norms.dtype), jnp.asarray(l2_clip_norm, norms.dtype)
    # where, not minimum: with a zero or infinite bound, clip / norm may be NaN where it is not needed.
    factor = jnp.where(norms > clip, clip / jnp.where(norms > 0, norms, one), one)
    if rescale_to_unit_norm:
        # The limit clip -> 0 leaves the direction of the row.
        factor = jnp.where(clip > 0, factor / clip, one / jnp.where(norms > 0, norms, one))
    return jnp.where(jnp.isfinite(norms), factor, jnp.zeros((), norms.dtype)) if nan_safe else factor


def to_bounds(norms: Any, l2_clip_norms: Any, *, rescale_to_unit_norm: bool = False, nan_safe: bool = True) -> Any:
    """One bound per subtree: `l2_clip_norms` is a prefix of `norms`, a tree of `[B]`; so is the result.

    Guarantee: the row stays within sqrt(sum_l C_l**2) (rescaled: within sqrt(number of bounds)); a row which is not
    finite anywhere gets 0 everywhere.
    """
    finite = jnp.isfinite(joint_norm(norms))

    def group(clip: Any, part: Any) -> Any:
        factor = to_bound(joint_norm(part), clip, rescale_to_unit_norm=rescale_to_unit_norm, nan_safe=nan_safe)
        factor = jnp.where(finite, factor, jnp.zeros((), factor.dtype)) if nan_safe else factor
        return jax.tree.map(lambda _: factor, part)

    return jax.tree.map(group, l2_clip_norms, norms)


def auto_s(norms: jax.Array, l2_clip_norm: float | jax.Array, *, stability: float = 0.01) -> jax.Array:
    """Automatic clipping: l2_clip_norm / (norm + stability); 0 where a norm is not finite.

    Guarantee: each row times its coefficient is shorter than `l2_clip_norm`, up to float32 rounding. Long rows all
    come to nearly that length, so `l2_clip_norm` only scales the sum and needs no tuning; `stability` (> 0, in the unit
    of the norms) keeps short rows short.

    Source: Bu et al. (2022), "Automatic Clipping", arXiv:2206.07136, AUTO-S.
    """
    _validate.positive(stability=stability)
    return _scaled_inverse(norms + jnp.asarray(stability, norms.dtype), norms, l2_clip_norm)


def psac(norms: jax.Array, l2_clip_norm: float | jax.Array, *, stability: float = 0.1) -> jax.Array:
    """Per-sample adaptive clipping: l2_clip_norm / (norm + r / (norm + r)), r = stability; 0 where not finite.

    Guarantee: each row times its coefficient is shorter than `l2_clip_norm`, up to float32 rounding. Unlike `auto_s`,
    it gives rows near zero coefficients near `l2_clip_norm`, not l2_clip_norm / stability. `stability` > 0.

    Source: Xia et al. (2022), "Differentially Private Learning with Per-Sample Adaptive Clipping", arXiv:2212.00328.
    """
    _validate.positive(stability=stability)
    r = jnp.asarray(stability, norms.dtype)
    return _scaled_inverse(norms + r / (norms + r), norms, l2_clip_norm)


def _scaled_inverse(divisor: jax.Array, norms: jax.Array, l2_clip_norm: float | jax.Array) -> jax.Array:
    factor = jnp.asarray(l2_clip_norm, norms.dtype) / divisor
    return jnp.where(jnp.isfinite(norms), factor, jnp.zeros((), norms.dtype))


def joint_norm(norms: Any) -> jax.Array:
    """`[B]`: the norm of rows whose parts have these norms, a tree of `[B]`."""
    parts = jax.tree.leaves(norms)
    dtype = jnp.float64 if any(n.dtype == jnp.float64 for n in parts) else jnp.float32
    return jnp.sqrt(functools.reduce(jnp.add, [jnp.square(n.astype(dtype)) for n in parts]))
