"""The sum as one matrix product: factors [S, C] times rows [C, D].

XLA on CPU fuses "multiply, then sum over rows" into one slow loop; the product is 9 to 50 times
faster there. A product cannot leave out NaN (NaN * 0), nor scale a row whose square overflows: such
batches take the reference.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from fljax_kernels import _meshes
from fljax_kernels.clipped_sum import reference

# Below it a squared norm may have lost entries that underflowed; they sum to less than 2**-96 for D
# <= 2**30.
_SMALLEST_SQUARE = 2.0**-80


# jit: an eager cond would compile its branches at every call.
@functools.partial(jax.jit, static_argnames="num_segments")
def clip_and_sum(
    rows: Any,
    l2_clip_norm: float | jax.Array,
    mask: jax.Array,
    segment_ids: jax.Array | None = None,
    num_segments: int | None = None,
) -> tuple[Any, jax.Array]:
    dtype = reference.compute_dtype(rows)
    clip = jnp.asarray(l2_clip_norm, dtype)
    if mask.shape == (1,) and segment_ids is None:
        return _one_row(rows, clip, mask)
    squares = sum(
        (
            jnp.sum(jnp.square(reference.flat(leaf).astype(dtype)), axis=1)
            for leaf in jax.tree.leaves(rows)
        ),
        jnp.zeros(mask.shape, dtype),
    )
    # A row of tiny norm has factor 1, however roughly its norm is known, unless the bound is tiny
    # as well.
    ordinary = jnp.isfinite(squares) & ((squares >= _SMALLEST_SQUARE) | (clip >= 2.0**-39))

    def fast() -> tuple[Any, jax.Array]:
        norms = jnp.sqrt(squares)
        factors = jnp.where(mask, jnp.minimum(1, clip / jnp.where(norms > 0, norms, 1)), 0)
        if segment_ids is None:
            weights = factors[None]
        else:
            assert num_segments is not None  # checked in api
            segments = jnp.arange(num_segments, dtype=segment_ids.dtype)
            weights = jnp.where(segments[:, None] == segment_ids[None], factors[None], 0)

        def add(leaf: jax.Array) -> jax.Array:
            x = reference.wide(reference.flat(leaf))
            # HIGHEST: an accelerator's default would round the float32 factors and rows to fewer
            #   bits.
            out = jnp.matmul(weights.astype(x.dtype), x, precision=jax.lax.Precision.HIGHEST)
            return out.reshape(
                leaf.shape[1:] if segment_ids is None else (num_segments, *leaf.shape[1:])
            )

        return jax.tree.map(add, rows), jnp.where(mask, norms, 0)

    def slow() -> tuple[Any, jax.Array]:
        return reference.clip_and_sum(rows, clip, mask, segment_ids, num_segments)

    return jax.lax.cond(_meshes.all_have(jnp.all(ordinary)), fast, slow)


def _one_row(rows: Any, clip: jax.Array, mask: jax.Array) -> tuple[Any, jax.Array]:
    """The same for C = 1, a chunk of one client: no product, and only numbers per row come out of
    the `cond`.

    So XLA makes one pass of scaling the row and adding it to the caller's running sum; that is half
    the price.
    """
    exact = jax.lax.Precision.HIGHEST  # a norm in TF32 would be off by more than the margin
    squares = jnp.stack(
        [sum(jnp.vdot(x, x, precision=exact) for x in map(reference.wide, jax.tree.leaves(rows)))]
    )
    squares = squares.astype(clip.dtype)
    ordinary = jnp.isfinite(squares) & ((squares >= _SMALLEST_SQUARE) | (clip >= 2.0**-39))

    def fast() -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        norms = jnp.sqrt(squares)
        factors = jnp.minimum(1, clip / jnp.where(norms > 0, norms, 1))
        return jnp.ones_like(norms), factors, mask, jnp.where(mask, norms, 0)

    def slow() -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        return reference.scales(rows, clip, mask)

    usual = _meshes.all_have(jnp.all(ordinary))
    down, factors, counts, norms = jax.lax.cond(usual, fast, slow)

    def add(leaf: jax.Array) -> jax.Array:
        x = reference.wide(leaf[0])
        # where, not multiply: NaN * 0 is NaN.
        return jnp.where(counts[0], (x * down[0].astype(x.dtype)) * factors[0].astype(x.dtype), 0)

    return jax.tree.map(add, rows), norms
