"""What the kernels for a convolution's rows are told of it, and what they multiply."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fljax_kernels.per_example.terms import room_for_rounding


class Window(NamedTuple):
    """Of a convolution over two axes, `(rows, columns)` each: kernel entries, strides, dilation of
    the kernel, padding before, positions of the output.
    """

    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilation: tuple[int, int]
    before: tuple[int, int]
    out: tuple[int, int]


def to_tf32(z: jax.Array) -> jax.Array:
    """float32 with the ten bits behind the point that a matrix unit reads, to nearest; what is not
    finite stays.
    """
    bits = lax.bitcast_convert_type(z, jnp.int32)
    half, kept = jnp.full_like(bits, 1 << 12), jnp.full_like(bits, ~((1 << 13) - 1))
    near = lax.bitcast_convert_type(lax.bitwise_and(lax.add(bits, half), kept), jnp.float32)
    return jnp.where(jnp.abs(z) < jnp.inf, near, z)


def operands(x: jax.Array, y: jax.Array, exact: bool) -> tuple[jax.Array, jax.Array]:
    """As they are multiplied: bfloat16 as it is, else float32, of TF32's bits unless `exact`. Norm
    and sum see the same, and products of these are float32 as they are.
    """
    if x.dtype == y.dtype == jnp.bfloat16:
        return x, y
    x, y = x.astype(jnp.float32), y.astype(jnp.float32)
    return (x, y) if exact else (to_tf32(x), to_tf32(y))


def room(of_x: jax.Array, of_y: jax.Array) -> jax.Array:
    """As `room_for_rounding`, and infinite where squares of one are past float32's range and the
    other is zero: their product would be NaN.
    """
    found = room_for_rounding(of_x, of_y)
    return jnp.where(found == found, found, jnp.full_like(found, jnp.inf))
