"""Clipping styles: pure functions from the norms of gradient rows to the coefficients of their sum."""

import jax
import jax.numpy as jnp


def flat(norms: jax.Array, l2_clip_norm: float) -> jax.Array:
    """min(1, l2_clip_norm / norm) for each of `norms` `[B]`; 0 where a norm is not finite.

    Guarantee: each row times its coefficient has norm at most `l2_clip_norm`, up to one float32 rounding.

    Source: Abadi et al. (2016), "Deep Learning with Differential Privacy", arXiv:1607.00133, Algorithm 1.
    """
    # maximum, not division and then minimum: 0 / 0 would be NaN for a zero row.
    factor = l2_clip_norm / jnp.maximum(norms, jnp.asarray(l2_clip_norm, norms.dtype))
    return jnp.where(jnp.isfinite(norms), factor, jnp.zeros((), norms.dtype))
