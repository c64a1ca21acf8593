"""Clipped sums of what a function gives for each row: rows are held, a microbatch at a time."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fljax.local import clipping
from fljax_kernels.clipped_sum import reference


def sum_rows(
    row: Callable[[Any], tuple[Any, Any]],
    batch: Any,
    mask: jax.Array | None,
    weigh: Callable[[Any, jax.Array], Any],
    weights: jax.Array,
    microbatch_size: int | None,
    per_leaf: bool,
) -> tuple[Any, jax.Array, Any]:
    """(sum_i c_i t_i in float32 at least, norms of the t_i `[B]`, extras) of (t_i, extra_i) =
    row(example_i).

    The coefficients are c = weigh(norms, weights); weigh takes norms `[b]`, or per leaf a tree of
    them. Norms are 0 where masked.
    """
    size = weights.shape[0]
    present = jnp.ones(size, bool) if mask is None else mask

    def chunk(part: tuple[Any, jax.Array, jax.Array]) -> tuple[Any, Any]:
        examples, here, w = part
        rows, extras = jax.vmap(row, axis_size=here.shape[0])(examples)
        parts = jax.tree.map(functools.partial(zero_absent, here), clipping.leaf_norms(rows))
        norms = clipping.joint_norm(parts)
        coefficients = weigh(parts if per_leaf else norms, w)
        if not per_leaf:
            shared = coefficients
            coefficients = jax.tree.map(lambda _: shared, rows)
        total = jax.tree.map(functools.partial(_weighted_sum, here), coefficients, rows)
        return total, (norms, extras)

    parts = (batch, present, weights)
    if microbatch_size is None or microbatch_size >= size:
        total, (norms, extras) = chunk(parts)
        return total, norms, extras
    padding = -size % microbatch_size
    if padding:
        # Copies of the last row: keys and integers have no neutral value. They are absent.
        parts = jax.tree.map(
            lambda x: jnp.concatenate([x, jnp.repeat(x[-1:], padding, axis=0)]), parts
        )
        parts = (parts[0], jnp.concatenate([present, jnp.zeros(padding, bool)]), parts[2])
    parts = jax.tree.map(lambda x: x.reshape((-1, microbatch_size) + x.shape[1:]), parts)
    zeros = jax.tree.map(
        lambda s: jnp.zeros(s.shape, s.dtype),
        jax.eval_shape(chunk, jax.tree.map(lambda x: x[0], parts))[0],
    )

    def step(total: Any, part: Any) -> tuple[Any, Any]:
        more, per_row = chunk(part)
        return jax.tree.map(jnp.add, total, more), per_row

    total, per_row = jax.lax.scan(step, zeros, parts)
    norms, extras = jax.tree.map(lambda x: x.reshape((-1,) + x.shape[2:])[:size], per_row)
    return total, norms, extras


def zero_absent(here: jax.Array, x: jax.Array) -> jax.Array:
    """`[B]` numbers of rows, 0 for those that are not here."""
    return jnp.where(here, x, jnp.zeros((), x.dtype))


def _weighted_sum(here: jax.Array, coefficients: jax.Array, rows: jax.Array) -> jax.Array:
    keep = (here & (coefficients != 0)).reshape((-1,) + (1,) * (rows.ndim - 1))
    # where, not multiply: NaN * 0 is NaN.
    kept = reference.wide(jnp.where(keep, rows, jnp.zeros((), rows.dtype)))
    return jnp.tensordot(coefficients.astype(kept.dtype), kept, axes=1, precision="highest")
