"""The randomised Hadamard rotation: signs, then the Walsh-Hadamard matrix over the root of its
size.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fljax_kernels.discrete import alias


def size(num: int) -> int:
    """The least power of two that is not below `num`."""
    return 1 << max(num - 1, 0).bit_length()


def signs(key: jax.Array, num: int) -> jax.Array:
    """Float32 `[num]` of +-1."""
    return alias.once(
        lambda drawn, _: 1.0 - 2.0 * (drawn >> np.uint32(31)).astype(jnp.float32),
        key,
        0,
        lax.iota(jnp.int32, num),
    )


def transform(x: jax.Array) -> jax.Array:
    """`[..., P]` times the orthogonal Walsh-Hadamard matrix, P a power of two.

    By sums and differences alone, so that bits do not depend on what lies beside a row.
    """
    shape, half = x.shape, 1
    while half < shape[-1]:
        pairs = x.reshape(*shape[:-1], shape[-1] // (2 * half), 2, half)
        first, second = (lax.index_in_dim(pairs, i, pairs.ndim - 2) for i in (0, 1))
        x = lax.concatenate([first + second, first - second], pairs.ndim - 2).reshape(shape)
        half *= 2
    return x * np.float32(1 / math.sqrt(shape[-1]))
