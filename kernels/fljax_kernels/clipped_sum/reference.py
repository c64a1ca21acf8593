"""Plain jax.numpy. It defines the result."""

import functools
from typing import Any

import jax
import jax.numpy as jnp


def wide(leaf: jax.Array) -> jax.Array:
    """The leaf in float32, or float64 where it has that already."""
    return leaf.astype(jnp.float64 if leaf.dtype == jnp.float64 else jnp.float32)


def compute_dtype(rows: Any) -> Any:
    """float32, or float64 where a leaf is float64."""
    return (
        jnp.float64
        if any(leaf.dtype == jnp.float64 for leaf in jax.tree.leaves(rows))
        else jnp.float32
    )


def flat(leaf: jax.Array) -> jax.Array:
    """`[C, ...]` as `[C, D]`; -1 cannot be inferred when C is 0."""
    size = 1
    for n in leaf.shape[1:]:
        size *= n
    return leaf.reshape(leaf.shape[0], size)


def scaled_squares(rows: Any) -> tuple[jax.Array, jax.Array]:
    """(s, e), both `[C]`: the squared norm of row * 2**-e, in which nothing large overflows or gets
    lost.
    """
    dtype = compute_dtype(rows)
    leaves = [flat(leaf).astype(dtype) for leaf in jax.tree.leaves(rows)]
    # initial=0: a leaf may have no entries.
    largest = jnp.stack([jnp.max(jnp.abs(leaf), axis=1, initial=0) for leaf in leaves]).max(axis=0)
    # A power of two scales without rounding (ldexp: XLA's exp2 rounds). Within the bounds 2**e and
    # 2**-e are normal numbers and squares neither over- nor underflow.
    exponent = jnp.floor(jnp.log2(jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1)))
    exponent = jnp.clip(exponent, -100, 100).astype(jnp.int32)
    down = jnp.ldexp(jnp.ones_like(largest), -exponent)[:, None]
    return sum(
        (jnp.sum(jnp.square(leaf * down), axis=1) for leaf in leaves), jnp.zeros_like(largest)
    ), exponent


def scales(
    rows: Any, l2_clip_norm: float | jax.Array, mask: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """(down, factors, counts, norms), all `[C]`: row c adds (row * down) * factor where it counts,
    else zero.
    """
    squares, exponent = scaled_squares(rows)
    up, down = (jnp.ldexp(jnp.ones_like(squares), e) for e in (exponent, -exponent))
    root = jnp.sqrt(squares)
    # Of the row * 2**-e: at 2**e the row is left as it is.
    factors = jnp.minimum(
        up, jnp.asarray(l2_clip_norm, squares.dtype) / jnp.where(root > 0, root, 1)
    )
    return down, factors, mask & jnp.isfinite(squares), jnp.where(mask, up * root, 0)


def added(
    rows: Any,
    scaled: tuple[jax.Array, jax.Array, jax.Array, jax.Array],
    segment_ids: jax.Array | None,
    num_segments: int | None,
) -> tuple[Any, jax.Array]:
    """(clipped_sum, norms) of rows and their `scales`."""
    down, factors, counts, norms = scaled

    def add(leaf: jax.Array) -> jax.Array:
        x = wide(leaf)
        column = (leaf.shape[0],) + (1,) * (leaf.ndim - 1)
        clipped = (x * down.astype(x.dtype).reshape(column)) * factors.astype(x.dtype).reshape(
            column
        )
        # where, not multiply: NaN * 0 is NaN.
        clipped = jnp.where(counts.reshape(column), clipped, 0)
        if segment_ids is None or num_segments is None:
            return jnp.sum(clipped, axis=0)
        inside = (segment_ids >= 0) & (segment_ids < num_segments)
        clipped = jnp.where(inside.reshape(column), clipped, 0)
        return jax.ops.segment_sum(clipped, jnp.where(inside, segment_ids, 0), num_segments)

    return jax.tree.map(add, rows), norms


@functools.partial(jax.jit, static_argnames="num_segments")
def clip_and_sum(
    rows: Any,
    l2_clip_norm: float | jax.Array,
    mask: jax.Array,
    segment_ids: jax.Array | None = None,
    num_segments: int | None = None,
) -> tuple[Any, jax.Array]:
    return added(rows, scales(rows, l2_clip_norm, mask), segment_ids, num_segments)
