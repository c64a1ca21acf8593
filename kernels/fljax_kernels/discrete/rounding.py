"""Vectors of integers whose norm is bounded, drawn about vectors of floats."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fljax_kernels import _meshes
from fljax_kernels.discrete import alias

TRIES = 64
MOST = 2**32 - 2  # of squared norms: the largest uint32 stands for all above


def squared_norms(z: jax.Array) -> jax.Array:
    """Uint32 `[...]` of int32 `[..., P]` of absolute values below 2**16; the largest for all above
    it.
    """
    squares = jnp.square(jnp.abs(z).astype(jnp.uint32))

    def sums(a: Any, b: Any) -> Any:
        """Of 64 bits, the low 32 first: XLA makes vectors of it on a CPU, not of saturation."""
        low = a[0] + b[0]
        return low, a[1] + b[1] + (low < a[0]).astype(jnp.uint32)

    zero = np.uint32(0)
    parts = (squares, jnp.zeros_like(squares))
    low, high = lax.reduce(parts, (zero, zero), sums, (z.ndim - 1,))
    return jnp.where(high > 0, np.uint32(2**32 - 1), low)


def conditional(key: jax.Array, x: jax.Array, most: int) -> jax.Array:
    """Int32 `[P]` of float32 `[P]` with squared norm at most `most`: see `api.grid_round`."""
    x = in_range(x)

    def another(state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        turn = state[0]

        def rounded(drawn: jax.Array, x: jax.Array) -> jax.Array:
            # In one loop, and not behind it: nearly always nobody reads them.
            last = jnp.where(turn == TRIES, jnp.trunc(x), 0.0)
            return jnp.where(turn < TRIES, at_random(drawn, x), last).astype(jnp.int32)

        z = alias.once(rounded, key, turn, x)
        return turn + 1, z, squared_norms(z) <= np.uint32(most)

    start: tuple[jax.Array, ...] = (
        jnp.int32(0),
        jnp.zeros(x.shape, jnp.int32),
        jnp.zeros((), bool),
    )
    return _meshes.while_loop(lambda state: ~state[2], another, start)[1]


def in_range(x: jax.Array) -> jax.Array:
    """Finite numbers: 0 for those that are not."""
    # where: NaN is no integer. 65535: no norm above it is allowed, and its square is a uint32.
    return jnp.clip(jnp.where(jnp.isfinite(x), x, 0.0), -65535.0, 65535.0)


def at_random(drawn: jax.Array, x: jax.Array) -> jax.Array:
    """Whole numbers next to x, in float32: the upper one with the chance that keeps the mean, given
    uniform uint32 `drawn`.
    """
    low = jnp.floor(x)
    up = (drawn >> np.uint32(8)).astype(jnp.float32) < (x - low) * np.float32(2**24)
    return low + up.astype(jnp.float32)
