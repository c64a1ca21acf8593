"""Clipped sums of functions of the gradients: such rows must be held, a microbatch at a time."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fljax.local import clipping
from fljax_kernels.clip_and_sum import reference


def sum_rows(
    loss: Callable[[Any, Any], Any],
    params: Any,
    batch: Any,
    mask: jax.Array | None,
    transform: Callable[[Any], Any],
    weigh: Callable[[Any, jax.Array], Any],
    weights: jax.Array,
    microbatch_size: int | None,
    has_aux: bool,
    per_leaf: bool,
) -> tuple[Any, jax.Array, jax.Array, Any]:
    """(sum_i c_i t_i, norms of the gradients g_i `[B]`, losses `[B]`, aux) with t_i = transform(g_i).

    The coefficients are c = weigh(norms of t, weights); weigh takes norms `[b]`, or per leaf a tree of them.
    Norms and losses are 0 where masked.
    """
    size = weights.shape[0]
    present = jnp.ones(size, bool) if mask is None else mask

    def row(example: Any) -> tuple[Any, jax.Array, jax.Array, Any]:
        result, grad = jax.value_and_grad(loss, has_aux=has_aux)(params, example)
        value, aux = result if has_aux else (result, None)
        return transform(grad), clipping.joint_norm(_norms(jax.tree.map(lambda g: g[None], grad)))[0], value, aux

    def chunk(part: tuple[Any, jax.Array, jax.Array]) -> tuple[Any, Any]:
        examples, here, w = part
        rows, norms, values, aux = jax.vmap(row, axis_size=here.shape[0])(examples)
        row_norms = _norms(rows)
        row_norms = jax.tree.map(lambda n: jnp.where(here, n, jnp.zeros((), n.dtype)), row_norms)
        coefficients = weigh(row_norms if per_leaf else clipping.joint_norm(row_norms), w)
        if not per_leaf:
            shared = coefficients
            coefficients = jax.tree.map(lambda _: shared, rows)
        total = jax.tree.map(functools.partial(_weighted_sum, here), coefficients, rows)
        zero = functools.partial(jnp.where, here)
        return total, (zero(norms, jnp.zeros((), norms.dtype)), zero(values, jnp.zeros((), values.dtype)), aux)

    parts = (batch, present, weights)
    if microbatch_size is None or microbatch_size >= size:
        total, (norms, values, aux) = chunk(parts)
        return total, norms, values, aux
    padding = -size % microbatch_size
    if padding:
        # Copies of the last row: keys and integers have no neutral value. They are absent.
        parts = jax.tree.map(lambda x: jnp.concatenate([x, jnp.repeat(x[-1:], padding, axis=0)]), parts)
        parts = (parts[0], _padded(present, padding), parts[2])
    parts = jax.tree.map(lambda x: x.reshape((-1, microbatch_size) + x.shape[1:]), parts)
    zeros = jax.tree.map(
        lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(chunk, jax.tree.map(lambda x: x[0], parts))[0]
    )

    def step(total: Any, part: Any) -> tuple[Any, Any]:
        more, per_row = chunk(part)
        return jax.tree.map(jnp.add, total, more), per_row

    total, per_row = jax.lax.scan(step, zeros, parts)
    norms, values, aux = jax.tree.map(lambda x: x.reshape((-1,) + x.shape[2:])[:size], per_row)
    return total, norms, values, aux


def _padded(present: jax.Array, padding: int) -> jax.Array:
    return jnp.concatenate([present, jnp.zeros(padding, bool)])


def _wide(x: jax.Array) -> jax.Array:
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _norms(rows: Any) -> Any:
    """A tree of `[b]`: the norm of each leaf of each row, in float32 at least."""

    def norm(leaf: jax.Array) -> jax.Array:
        squares, exponent = reference.scaled_squares(leaf)
        return jnp.ldexp(jnp.sqrt(squares), exponent)

    return jax.tree.map(norm, rows)


def _weighted_sum(here: jax.Array, coefficients: jax.Array, rows: jax.Array) -> jax.Array:
    keep = (here & (coefficients != 0)).reshape((-1,) + (1,) * (rows.ndim - 1))
    # where, not multiply: NaN * 0 is NaN.
    kept = jnp.where(keep, rows, jnp.zeros((), rows.dtype))
    return jnp.tensordot(coefficients.astype(_wide(kept).dtype), _wide(kept), axes=1, precision="highest")
