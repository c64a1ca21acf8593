"""The same draws with the cipher written out: on a CPU a third of the time of `jax.random` for long leaves."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax_kernels import _threefry
from fljax_kernels.gaussian import reference

LEAST = 1024  # numbers in a leaf; below, time goes elsewhere, and the written-out cipher takes longer to compile
_MOST = 2**32  # positions have 32 bits


def draw(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """As `reference.draw`, bit for bit: whatever this form does not cover goes there."""
    size = math.prod(shape)
    if not (is_faster(key) and dtype == np.float32 and LEAST <= size < _MOST):
        return reference.draw(key, shape, dtype)
    position = jax.lax.iota(jnp.uint32, size)
    flat = _threefry.half_variance_normals(jax.random.key_data(key), position)
    return flat if len(shape) == 1 else _in_memory(flat).reshape(shape)


def _in_memory(normals: jax.Array) -> jax.Array:
    """The same numbers, as the carry of a loop that never turns, which XLA does not fuse across.

    Fused with a reshape, the cipher would run over the innermost axis: one of 3 colours leaves a vector unit idle, at
    five times the time. An optimization barrier does not help: on a CPU XLA drops it before it fuses.
    """
    never = normals[0] > 100  # no draw is beyond 3.9; XLA does not know that
    return jax.lax.while_loop(lambda c: c[1], lambda c: (-c[0], jnp.zeros_like(c[1])), (normals, never))[0]


def is_faster(key: jax.Array) -> bool:
    """Whether `key` is threefry, on a CPU, with JAX's default layout of bits."""
    threefry = jax.eval_shape(lambda: jax.random.key(0, impl="threefry2x32")).dtype
    partitionable = bool(getattr(jax.config, "jax_threefry_partitionable"))  # noqa: B009 (untyped)
    return key.dtype == threefry and partitionable and jax.default_backend() == "cpu"
