"""Standard normals at any position of a key's stream, in one fused pass.

The bits are those of `jax.random.normal(key, (D,), float32)` with threefry keys and JAX's default (partitionable)
layout: number d is a function of the key and d alone. On a CPU, JAX rolls the cipher's 20 rounds into a loop that
passes over memory five times. Written out, XLA makes one loop of cipher, uniform and inverse error function, three
times faster, and blocks of a long vector can be drawn apart.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)
_ABOVE_MINUS_ONE = np.nextafter(np.float32(-1), np.float32(0))


def bits(key_data: jax.Array, position: jax.Array) -> jax.Array:
    """Random uint32 `[...]` at `position` uint32 `[...]` of the stream of `key_data` uint32 `[2]`.

    Source: Salmon et al. (2011), "Parallel Random Numbers: As Easy as 1, 2, 3", Threefry-2x32 with 20 rounds.
    """
    schedule = (key_data[0], key_data[1], key_data[0] ^ key_data[1] ^ _PARITY)
    x = jnp.broadcast_to(schedule[0], position.shape)
    y = position + schedule[1]
    for group in range(5):
        for by in _ROTATIONS[group % 2]:
            x = x + y
            y = x ^ ((y << np.uint32(by)) | (y >> np.uint32(32 - by)))
        x = x + schedule[(group + 1) % 3]
        y = y + schedule[(group + 2) % 3] + np.uint32(group + 1)
    return x ^ y


def half_variance_normals(key_data: jax.Array, position: jax.Array) -> jax.Array:
    """N(0, 1/2) float32 `[...]`: normals short of their factor sqrt(2), which belongs to the caller's stddev."""
    mantissa = (bits(key_data, position) >> np.uint32(9)) | np.uint32(0x3F800000)
    unit = lax.bitcast_convert_type(mantissa, jnp.float32) - np.float32(1)
    uniform = jnp.maximum(_ABOVE_MINUS_ONE, unit * (np.float32(1) - _ABOVE_MINUS_ONE) + _ABOVE_MINUS_ONE)
    return lax.erf_inv(uniform)
