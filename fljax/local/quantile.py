"""A clipping bound that follows a quantile of the norms, privately."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

import fljax_kernels
from fljax import _validate, errors


class QuantileState(NamedTuple):
    """l2_clip_norm: float32 `[]`, the bound for the coming round; it was made from earlier rounds
    only.
    """

    l2_clip_norm: jax.Array


def init(l2_clip_norm: float) -> QuantileState:
    """Starts from a bound that was chosen without the data. > 0."""
    _validate.positive(l2_clip_norm=l2_clip_norm)
    return QuantileState(jnp.float32(l2_clip_norm))


def centred_count(state: QuantileState, norms: jax.Array, mask: jax.Array) -> jax.Array:
    """float32 `[]`: over the rows that count, 1/2 for each norm within the bound and -1/2 for each
    other one.

    Counts of parts of a round add up. Adding or removing one row moves it by 1/2, exactly (below
    2**23 rows).

    Args:
      state: the bound that this round clips with.
      norms: `[B]`, before clipping. A norm that is not finite counts as above the bound.
      mask: bool `[B]`, True where a row counts.
    """
    within = jnp.where(norms <= state.l2_clip_norm.astype(norms.dtype), 0.5, -0.5).astype(
        jnp.float32
    )
    return jnp.sum(jnp.where(mask, within, jnp.float32(0)))


def update(
    key: jax.Array,
    state: QuantileState,
    count: jax.Array,
    *,
    expected_count: float,
    count_stddev: float,
    target_quantile: float = 0.5,
    learning_rate: float = 0.2,
) -> QuantileState:
    """Moves the bound towards the `target_quantile` of the norms.

    The centred count of norms within the bound is released with Gaussian noise; the bound is
    multiplied by exp(-learning_rate * (noisy fraction - target_quantile)), and kept within [2**-39,
    2**99].

    Guarantee: adding or removing one row moves the centred count by 1/2, so one update is a
    Gaussian mechanism of noise multiplier 2 * count_stddev. Together with a sum that has the noise
    multiplier of `sum_noise_multiplier`, the round is one Gaussian mechanism. Clip a round with the
    bound from before its update, never after.

    Args:
      key: typed PRNG key, used once.
      state: the bound that this round clipped with.
      count: `centred_count` of the round's rows.
      expected_count: expected number of rows, a public constant (never the count of this round). >
        0.
      count_stddev: standard deviation of the noise on the count, in rows. >= 0. expected_count / 20
        is a usual choice.
      target_quantile: in (0, 1).
      learning_rate: > 0.

    Returns:
      The state for the next round.

    Raises:
      ValueError: an argument is out of range.

    Source: Andrew et al. (2021), "Differentially Private Learning with Adaptive Clipping",
    arXiv:1905.03871, Algorithm 1.
    """
    _validate.typed_key(key=key)
    _validate.positive(expected_count=expected_count, learning_rate=learning_rate)
    _validate.non_negative(count_stddev=count_stddev)
    _validate.open_unit(target_quantile=target_quantile)
    fraction = 0.5 + fljax_kernels.add_gaussian_noise(key, count, count_stddev) / expected_count
    bound = state.l2_clip_norm * jnp.exp(-learning_rate * (fraction - target_quantile))
    # A bound of 0 or infinity would stay so for ever.
    return QuantileState(jnp.clip(bound, 2.0**-39, 2.0**99))


def sum_noise_multiplier(noise_multiplier: float, count_stddev: float) -> float:
    """The noise multiplier that is left for the clipped sum when the count takes its share.

    Guarantee: a sum with noise multiplier z_s (noise stddev z_s * bound of this round) and a
    centred count with stddev s_b, released together, are one Gaussian mechanism with noise
    multiplier z if z**-2 = z_s**-2 + (2 s_b)**-2. So the round's event is that of
    `noise_multiplier`, as without adaptation.

    Args:
      noise_multiplier: z, of the whole round. > 0.
      count_stddev: s_b, in rows. > noise_multiplier / 2.

    Raises:
      PrivacyPreconditionError: the count alone costs more than the whole round may.
      ValueError: an argument is out of range.

    Source: Andrew et al. (2021), arXiv:1905.03871, Theorem 1.
    """
    _validate.positive(noise_multiplier=noise_multiplier, count_stddev=count_stddev)
    left = noise_multiplier**-2 - (2 * count_stddev) ** -2
    if not left > 0:
        raise errors.PrivacyPreconditionError(
            f"Expected count_stddev > noise_multiplier / 2, got count_stddev={count_stddev!r} "
            f"and noise_multiplier={noise_multiplier!r}."
        )
    return left**-0.5
