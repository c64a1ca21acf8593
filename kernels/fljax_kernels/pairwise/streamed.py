"""Streams over edges: each edge's noise is drawn once, in blocks, and added in place at both of its
ends.

Memory is the result and one block. Every client meets its edges in the order of its neighbours'
numbers, in the cohort form as in the client's own, so that both add up the same floats in the same
order.

The block drawn in one step of the loop is added in the next: what a loop carries is in memory,
rounded. Within one step XLA would draw it again for the second end (it drops optimization barriers
before it fuses), and merge the product with stddev into one end's sum, rounding once where the
other end rounds twice: the ends would not cancel.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fljax_kernels import _threefry as threefry

# Numbers drawn at a time: 128 KiB, which stays in a core's cache until it is added at both ends.
BLOCK = 2**15


def _blocks(size: int) -> tuple[int, int]:
    """(number of blocks, length of each); the last one may overlap the one before."""
    count = max(1, -(-size // BLOCK))
    return count, -(-size // count)


def _folded(like: jax.Array, data: jax.Array, number: jax.Array) -> jax.Array:
    key = jax.random.wrap_key_data(data, impl=jax.random.key_impl(like))
    return jax.random.fold_in(key, number)


class _Block(NamedTuple):
    """noise `[P, length]` of P edges, their ends `[P, 2]` (-1: nobody), and the column where it
    starts.
    """

    noise: jax.Array
    ends: jax.Array
    start: jax.Array


def _add(rows: jax.Array, block: _Block) -> jax.Array:
    def add_at(rows: jax.Array, noise: jax.Array, row: jax.Array) -> jax.Array:
        at = (jnp.maximum(row, 0), block.start)
        old = lax.dynamic_slice(rows, at, (1, noise.shape[0]))
        noise = jnp.where(row < 0, jnp.zeros_like(noise), noise)
        return lax.dynamic_update_slice(rows, old + noise[None], at)

    def one_edge(e: jax.Array | int, rows: jax.Array) -> jax.Array:
        rows = add_at(rows, block.noise[e], block.ends[e, 0])
        return add_at(rows, -block.noise[e], block.ends[e, 1])

    group = block.noise.shape[0]
    return one_edge(0, rows) if group == 1 else lax.fori_loop(0, group, one_edge, rows)


@functools.partial(jax.jit, static_argnames=("num_rows", "size", "ring"))
def stream(
    keys: jax.Array,
    stddev: jax.Array,
    plus: jax.Array,
    minus: jax.Array,
    *,
    num_rows: int,
    size: int,
    ring: bool,
) -> jax.Array:
    """Adds edge e's noise to row plus[e] and subtracts it from row minus[e]; a row of -1 is
    nobody's.

    Args:
      keys: typed `[E]`, threefry or ChaCha20. stddev: float32 `[E]`. plus, minus: int32 `[E]`.
      num_rows, size: of the result. ring: whole numbers modulo 2**32.

    Returns:
      `[num_rows, size]`, float32 or uint32.
    """
    dtype = jnp.uint32 if ring else jnp.float32
    rows = jnp.zeros((num_rows, size), dtype)
    num_edges = keys.shape[0]
    if 0 in (num_rows, size, num_edges):
        return rows
    count, length = _blocks(size)
    group = min(num_edges, max(1, BLOCK // size))
    pad = -num_edges % group
    data = jax.random.key_data(keys)
    of_steps = jnp.pad(data, ((0, pad), (0, 0))).reshape(-1, group, data.shape[1])
    scales = (jnp.pad(stddev, (0, pad)) * np.float32(np.sqrt(2))).reshape(-1, group, 1)
    ends = jnp.pad(jnp.stack([plus, minus], 1), ((0, pad), (0, 0)), constant_values=-1).reshape(
        -1, group, 2
    )

    def draw(step: jax.Array) -> _Block:
        edges, first = step // count, step % count * length
        start = jnp.minimum(first, size - length)
        position = start + lax.iota(jnp.int32, length)
        if threefry.is_kind(keys):
            bits = jax.vmap(threefry.bits, (0, None))(of_steps[edges], position.astype(jnp.uint32))
        else:  # whose blocks of the cipher want numbers side by side: a key a block
            of_block = jax.vmap(lambda data: _folded(keys, data, step % count))(of_steps[edges])
            bits = jax.vmap(lambda key: jax.random.bits(key, (length,), jnp.uint32))(of_block)
        normals = threefry.half_variance_of(bits)
        noise = normals * scales[edges]
        if ring:
            noise = jnp.round(noise).astype(jnp.int32).astype(dtype)
        # What the block before has drawn already.
        noise = jnp.where((position >= first)[None], noise, jnp.zeros((), dtype))
        return _Block(noise, ends[edges], start)

    def body(step: jax.Array, carry: tuple[jax.Array, _Block]) -> tuple[jax.Array, _Block]:
        rows, block = carry
        return _add(rows, block), draw(step)

    nothing = _Block(jnp.zeros((group, length), dtype), jnp.full((group, 2), -1), jnp.int32(0))
    return _add(*lax.fori_loop(0, of_steps.shape[0] * count, body, (rows, nothing)))
