"""Updates as integers modulo 2**bits, rounded to a grid, with integer noise; and back.

Where sums may wrap around, updates are rotated first, which spreads their length over all entries
and so makes it rare. Where they cannot, a rotation would only cost time.

Source: Kairouz, Liu, Steinke (2021), arXiv:2102.06387, Algorithms 1 and 2.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fljax import _validate
from fljax_kernels import discrete
from fljax_kernels.discrete import laws, rotation

_LOG_REFUSED = 0.5  # -log of how often rounding is drawn anew at most: that paper's choice


class Grid(NamedTuple):
    """num_params: of an update; size: of what is sent of it, a power of two where it is rotated.
    rotated: whether it is. scale: steps of the grid / unit of the update. most_norm: longest vector
    of integers. bits: of a sum's word.
    """

    num_params: int
    size: int
    rotated: bool
    scale: float
    most_norm: int
    bits: int


def plan(
    num_params: int,
    *,
    l2_clip_norm: float,
    most_norm: int,
    num_clients: int,
    most_noise: int,
    bits: int | None = None,
) -> Grid:
    """The finest grid on which a clipped update, rounded, is no longer than `most_norm` steps with
    a chance of 39 % at least, by the paper's bound; nearly always in fact.

    Args:
      num_params: >= 1. most_norm: steps, in [1, 65535].
      l2_clip_norm: in [1e-30, 1e30], which float32 holds on any grid.
      num_clients: whose sum is taken, >= 1. most_noise: of a client in one coordinate, steps.
      bits: of the ring, in [1, 32]; fewer than needed: sums wrap around, at no cost of privacy.
        None: the fewest with which none can.

    Raises:
      ValueError: an argument is out of range, rounding alone is longer than `most_norm`, or sums
        can wrap around at any number of bits up to 32.
    """
    _validate.positive_int(num_params=num_params, most_norm=most_norm, num_clients=num_clients)
    _validate.positive(l2_clip_norm=l2_clip_norm)
    # Beyond, products in float32 are 0 or infinite, and nothing but noise would be sent.
    if not 1e-30 <= l2_clip_norm <= 1e30:
        raise ValueError(
            f"Expected l2_clip_norm in [1e-30, 1e30], got l2_clip_norm={l2_clip_norm!r}."
        )
    _validate.non_negative_int(most_noise=most_noise)
    if bits is not None:
        _validate.one_of(range(1, 33), bits=bits)
    needed = bits_needed(most_norm=most_norm, num_clients=num_clients, most_noise=most_noise)
    rotated = bits is not None and bits < needed
    size = rotation.size(num_params) if rotated else num_params
    root = math.sqrt(size)
    length = length_before(most_norm, size)
    if not (length >= 1 and most_norm <= 65535):
        raise ValueError(
            f"Expected grid_norm in [{math.ceil(root / 2) + 2}, 65535] for {num_params} parameters "
            f"(rounding alone has the length of {root / 2:.0f} steps), got grid_norm={most_norm!r}."
        )
    if bits is None:
        bits = needed
        if bits > 32:
            raise ValueError(
                f"Expected sums of {num_clients} clients within 32 bits, got {bits}: a smaller "
                "grid_norm needs fewer."
            )
    return Grid(num_params, size, rotated, length / l2_clip_norm, most_norm, bits)


def length_before(most_norm: float, size: int, log_refused: float = _LOG_REFUSED) -> float:
    """Longest vector `[size]` that, rounded at random, is no longer than `most_norm` with a chance
    of 1 - exp(-log_refused) at least, 39 % by default; below 1 where rounding alone is longer.

    Length c before rounding: c + root after it for certain, root**2 = size; and with that chance no
    more than the root of c**2 + size / 4 + sqrt(2 log_refused) (c + root / 2).
    """
    root, slope = math.sqrt(size), math.sqrt(2 * log_refused)
    rest = most_norm**2 - size / 4 - slope * root / 2
    likely = -slope / 2 + math.sqrt(slope**2 / 4 + rest) if rest > 0 else 0.0
    return max(likely, most_norm - root)


def bits_needed(*, most_norm: int, num_clients: int, most_noise: int) -> int:
    """The fewest bits with which no sum can wrap around, whatever the number of parameters; it may
    be more than 32. Arguments are those of `plan`.
    """
    return (num_clients * (most_norm + most_noise)).bit_length() + 1


def most_noise(law: str, parameter: float) -> int:
    """Largest noise of a law of `fljax_kernels.discrete.laws` in one coordinate."""
    return laws.reach(law, parameter)


def rounded(grid: Grid, x: jax.Array, *, rotation_key: jax.Array, key: jax.Array) -> jax.Array:
    """Int32 `[size]` of a clipped update, float32 `[num_params]`, on the grid.

    Guarantee: its squared norm is at most most_norm**2, in whole numbers, whatever x is.
    """
    steps = x.astype(jnp.float32) * jnp.float32(grid.scale)
    if grid.rotated:
        steps = discrete.rotate(rotation_key, jnp.pad(steps, (0, grid.size - x.size)))
    return discrete.grid_round(key, steps, grid.most_norm**2)


def words(grid: Grid, integers: jax.Array) -> jax.Array:
    """Uint32 `[size]` modulo 2**bits of int32 `[size]`: what a client sends."""
    return discrete.to_ring(integers, grid.bits)


def decoded(grid: Grid, total: jax.Array, *, rotation_key: jax.Array) -> jax.Array:
    """Float32 `[num_params]` of a sum of words, uint32 `[size]`."""
    steps = discrete.from_ring(total, grid.bits).astype(jnp.float32)
    if grid.rotated:
        steps = discrete.rotate_back(rotation_key, steps)[: grid.num_params]
    return steps / jnp.float32(grid.scale)
