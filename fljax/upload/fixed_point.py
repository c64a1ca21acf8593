"""Updates as integers modulo 2**32, in which masks and pair noise cancel exactly, and back.

A number becomes round(x * 2**fraction_bits) modulo 2**32. Words add up without rounding, in any
order, and the sum of K of them is the sum of the rounded numbers as long as it stays within 31
bits, which clipping before has to ensure.

Source: Yang et al., "Efficiently Achieving Secure Model Training and Secure Aggregation to Ensure
Bidirectional Privacy-Preservation in Federated Learning", section 5.2, whose masks are real
numbers; the ring is ours.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

from fljax import _validate
from fljax.types import PyTree


def encode(tree: PyTree, *, fraction_bits: int, bound: float, num_clients: int) -> PyTree:
    """Uint32 words of a tree of floating arrays `[...]`.

    Guarantee: entries are clipped to [-bound, bound], so that the sum of `num_clients` encoded
    trees never wraps: num_clients * bound * 2**fraction_bits < 2**31 is checked. NaN becomes 0.
    Each number is off by at most 2**-(fraction_bits + 1), and float32 has 24 bits: more than that
    many are only exact where numbers are.

    Args:
      tree: floating leaves.
      fraction_bits: in [0, 30].
      bound: on the size of each entry, > 0: a norm that updates were clipped to will do.
      num_clients: that add up, >= 1.

    Raises:
      ValueError: an argument is out of range, or the sum might wrap.
    """
    _validate.positive_int(num_clients=num_clients)
    _validate.positive(bound=bound)
    _check_bits(fraction_bits)
    most = num_clients * math.ceil(bound * 2**fraction_bits)
    if not most < 2**31:
        raise ValueError(
            "Expected num_clients * bound * 2**fraction_bits < 2**31, else sums wrap, got "
            f"{num_clients} * {bound!r} * 2**{fraction_bits}."
        )

    def words(leaf: jax.Array) -> jax.Array:
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            raise ValueError(f"Expected floating leaves, got {jnp.result_type(leaf)}.")
        x = jnp.nan_to_num(jnp.asarray(leaf).astype(jnp.float32), nan=0.0)
        x = jnp.clip(x, jnp.float32(-bound), jnp.float32(bound))
        rounded = jnp.round(x * jnp.float32(2.0**fraction_bits)).astype(jnp.int32)
        return jax.lax.bitcast_convert_type(rounded, jnp.uint32)

    return jax.tree.map(words, tree)


def decode(words: Any, *, fraction_bits: int) -> PyTree:
    """Float32 numbers of a tree of uint32 words, sums of encoded ones included.

    Raises:
      ValueError: fraction_bits is not in [0, 30], or a leaf is not uint32.
    """
    _check_bits(fraction_bits)

    def numbers(leaf: jax.Array) -> jax.Array:
        if jnp.result_type(leaf) != jnp.uint32:
            raise ValueError(f"Expected uint32 leaves, got {jnp.result_type(leaf)}.")
        return jax.lax.bitcast_convert_type(leaf, jnp.int32).astype(jnp.float32) / jnp.float32(
            2.0**fraction_bits
        )

    return jax.tree.map(numbers, words)


def _check_bits(fraction_bits: int) -> None:
    _validate.non_negative_int(fraction_bits=fraction_bits)
    if fraction_bits > 30:
        raise ValueError(f"Expected fraction_bits <= 30, got fraction_bits={fraction_bits}.")
