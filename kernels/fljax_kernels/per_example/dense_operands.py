"""How the kernel for a dense layer's sum is cut, and what it multiplies."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

LEAST, MOST = 16, 64  # of a block's sides: what a matrix unit takes, what registers hold
AT_ONCE = 32  # examples that are multiplied at once
PROGRAMS = 264  # two for each of an H200's multiprocessors


class Sizes(NamedTuple):
    """examples: of a group. block: of the sum, of which there are `down` times `across`. shares: in
    which examples are summed, `each` of them.
    """

    examples: int
    inputs: int
    features: int
    block: tuple[int, int]
    down: int
    across: int
    shares: int
    each: int
    at_once: int


def sizes_of(x: Any, y: Any) -> Sizes:
    """Of x `[G, E, p]` and y `[G, E, q]`, by their shapes."""
    groups, examples, inputs = x.shape
    features = y.shape[-1]
    block = _side(inputs), _side(features)
    down, across = -(-inputs // block[0]), -(-features // block[1])
    # Sums of shares are written and read: together no more than a copy of x would be.
    shares = min(max(1, examples // features), max(1, PROGRAMS // (groups * down * across)))
    each = -(-examples // shares)
    return Sizes(examples, inputs, features, block, down, across, shares, each, AT_ONCE)


def _side(size: int) -> int:
    return min(MOST, max(LEAST, 1 << (size - 1).bit_length()))


def thirds(z: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """float32 as the sum of three numbers of eleven bits; what is not finite is in the first."""
    first = _leading(z)
    rest = jnp.where(jnp.abs(z) < jnp.inf, z - first, jnp.zeros_like(z))
    second = _leading(rest)
    return first, second, rest - second


def _leading(z: jax.Array) -> jax.Array:
    """The eleven leading bits, the first of which is not written; what is not finite stays."""
    bits = lax.bitcast_convert_type(z, jnp.int32)
    kept = lax.bitwise_and(bits, jnp.full_like(bits, ~((1 << 13) - 1)))
    return jnp.where(jnp.abs(z) < jnp.inf, lax.bitcast_convert_type(kept, jnp.float32), z)
