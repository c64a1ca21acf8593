"""Two reads of the rows, whatever they hold: for accelerators, where bytes are what it costs.

The first read gives the norms. No square over- or underflows: entries are squared in three ranges,
each scaled by a power of two, side by side in one pass (Blue's way to a norm). The second scales
and adds up. A row that is not finite is left out by a select, which XLA fuses with the read, so no
branch for unusual rows is needed; under `vmap` there is none to become a select.

Source: Blue (1978), "A Portable Fortran Program to Find the Euclidean Norm of a Vector".
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fljax_kernels.clipped_sum import reference

# Between these, squares of float32 and sums of 2**27 of them are ordinary numbers.
_SMALL, _LARGE = 2.0**-40, 2.0**50
_UP, _DOWN = 2.0**80, 2.0**-90  # what the others are multiplied with, so that theirs are, too


def scales(
    rows: Any, l2_clip_norm: jax.Array, mask: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """(down, factors, counts, norms), all `[C]`, as `reference.scales`."""
    dtype = reference.compute_dtype(rows)
    if dtype == jnp.float64:  # its range is another one
        return reference.scales(rows, l2_clip_norm, mask)
    sums = [jnp.zeros(mask.shape, dtype)] * 3
    for leaf in jax.tree.leaves(rows):
        sums = [total + part for total, part in zip(sums, _ranges(leaf, dtype), strict=True)]
    small, usual, large = sums
    # The norm is `up` times `root`: up is a power of two, root is far from both ends of the range.
    is_large = ~(large == 0)  # where it is NaN, too
    is_small = (large == 0) & (usual == 0)
    up = jnp.where(is_large, 1 / _DOWN, jnp.where(is_small, 1 / _UP, 1)).astype(dtype)
    down = jnp.where(is_large, _DOWN, jnp.where(is_small, _UP, 1)).astype(dtype)
    # The sum of the next range in the unit of this one; that of the range after it is nothing here.
    # A root is scaled: XLA would make one constant, 0, of the square of a scale.
    with_usual = large + jnp.square(jnp.sqrt(usual) * _DOWN)
    with_small = usual + jnp.square(jnp.sqrt(small) * (1 / _UP))
    square = jnp.where(is_large, with_usual, jnp.where(is_small, small, with_small))
    root = jnp.sqrt(square)
    factors = jnp.minimum(up, l2_clip_norm / jnp.where(root > 0, root, 1))
    return down, factors, mask & jnp.isfinite(square), jnp.where(mask, up * root, 0)


def _ranges(leaf: jax.Array, dtype: Any) -> list[jax.Array]:
    """Sums of squares of small entries times _UP, of usual ones, of large ones times _DOWN."""
    # In lax: `jnp.where` and comparisons take five times as long to trace, for each leaf.
    x = reference.flat(leaf).astype(dtype)
    size, zero = lax.abs(x), lax.full_like(x, 0)
    small = lax.lt(size, lax.full_like(x, _SMALL))
    # A NaN is neither small nor usual: it goes with the large ones.
    ordinary = lax.le(size, lax.full_like(x, _LARGE))
    parts = (
        lax.select(small, lax.mul(x, lax.full_like(x, _UP)), zero),
        lax.select(small, zero, lax.select(ordinary, x, zero)),
        lax.select(ordinary, zero, lax.mul(x, lax.full_like(x, _DOWN))),
    )
    return [lax.reduce_sum(lax.square(part), (1,)) for part in parts]


@functools.partial(jax.jit, static_argnames="num_segments")
def clip_and_sum(
    rows: Any,
    l2_clip_norm: float | jax.Array,
    mask: jax.Array,
    segment_ids: jax.Array | None = None,
    num_segments: int | None = None,
) -> tuple[Any, jax.Array]:
    clip = jnp.asarray(l2_clip_norm, reference.compute_dtype(rows))
    scaled = scales(rows, clip, mask)
    return reference.added(rows, scaled, segment_ids, num_segments)
