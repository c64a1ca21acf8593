"""The bits of `jax.random` with threefry keys, each draw in one fused pass.

Number d of a key's stream, in JAX's default (partitionable) layout, is a function of the key and d
alone. On a CPU, JAX rolls the cipher's 20 rounds into a loop that passes over memory five times.
Written out, XLA makes one loop of cipher, uniform and inverse error function: three times faster
for long vectors, of which blocks can be drawn apart, and tens of microseconds less for a short one,
which a training loop notices. For accelerators JAX writes the cipher out as well.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)
_ABOVE_MINUS_ONE = np.nextafter(np.float32(-1), np.float32(0))


def bits(key_data: jax.Array, position: jax.Array) -> jax.Array:
    """Random uint32 `[...]` at `position` uint32 `[...]` of the stream of `key_data` uint32 `[2]`.

    `key_data` `[2, ...]` is a key for each position.

    Source: Salmon et al. (2011), "Parallel Random Numbers: As Easy as 1, 2, 3", Threefry-2x32 with
      20 rounds.
    """
    x, y = _block(key_data[0], key_data[1], position)
    return x ^ y


@functools.partial(jax.jit, inline=True)  # one dispatch where nobody has jitted
def _block(first: jax.Array, second: jax.Array, position: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The cipher of counter (0, `position`) under the key (`first`, `second`); arrays that
    broadcast.
    """
    schedule = (first, second, first ^ second ^ _PARITY)
    x = jnp.broadcast_to(schedule[0], jnp.broadcast_shapes(first.shape, position.shape))
    y = position + schedule[1]
    for group in range(5):
        for by in _ROTATIONS[group % 2]:
            x = x + y
            y = x ^ ((y << np.uint32(by)) | (y >> np.uint32(32 - by)))
        x = x + schedule[(group + 1) % 3]
        y = y + schedule[(group + 2) % 3] + np.uint32(group + 1)
    return x, y


def _unit(drawn: jax.Array) -> jax.Array:
    """Float32 in [0, 1) from uint32."""
    mantissa = (drawn >> np.uint32(9)) | np.uint32(0x3F800000)
    return lax.bitcast_convert_type(mantissa, jnp.float32) - np.float32(1)


def half_variance_normals(key_data: jax.Array, position: jax.Array) -> jax.Array:
    """N(0, 1/2) float32 `[...]`: normals short of their factor sqrt(2), which belongs to the
    caller's stddev.
    """
    return half_variance_of(bits(key_data, position))


def half_variance_of(drawn: jax.Array) -> jax.Array:
    """N(0, 1/2) float32 `[...]` of uint32 `[...]`, as `jax.random.normal` makes them."""
    unit = _unit(drawn)
    uniform = jnp.maximum(
        _ABOVE_MINUS_ONE, unit * (np.float32(1) - _ABOVE_MINUS_ONE) + _ABOVE_MINUS_ONE
    )
    return lax.erf_inv(uniform)


@functools.cache
def _threefry_dtype() -> Any:
    return jax.eval_shape(lambda: jax.random.key(0, impl="threefry2x32")).dtype


def covers(key: jax.Array) -> bool:
    """Whether `key` is threefry with JAX's default layout of bits."""
    partitionable = bool(getattr(jax.config, "jax_threefry_partitionable"))  # noqa: B009 (untyped)
    return key.dtype == _threefry_dtype() and partitionable


def is_kind(key: Any) -> bool:
    """Whether `key` is typed threefry, of any layout of bits."""
    return bool(key.dtype == _threefry_dtype())


def fold_in(key: jax.Array, data: jax.Array | int) -> jax.Array:
    """As `jax.random.fold_in`, for any kind of typed key."""
    if jnp.ndim(key) or jnp.ndim(data) or not covers(key):  # JAX refuses more than one
        return jax.random.fold_in(key, data)
    words = jax.random.key_data(key)
    folded = jnp.stack(_block(words[0], words[1], jnp.uint32(data)))
    return jax.random.wrap_key_data(folded, impl="threefry2x32")


def uniform(key: jax.Array, size: int) -> jax.Array:
    """As `jax.random.uniform(key, (size,))`, float32 in [0, 1), for any kind of typed key. Draw
    once from a key.
    """
    if jnp.ndim(key) or not covers(key):
        return jax.random.uniform(key, (size,), jnp.float32)
    return _unit(bits(jax.random.key_data(key), lax.iota(jnp.uint32, size)))


def uint32s(key: jax.Array, size: int) -> jax.Array:
    """As `jax.random.bits(key, (size,))`, for any kind of typed key `[]`."""
    if not covers(key):
        return jax.random.bits(key, (size,), jnp.uint32)
    return bits(jax.random.key_data(key), lax.iota(jnp.uint32, size))
