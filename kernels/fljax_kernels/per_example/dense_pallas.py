"""The kernel of `dense_kernel`, in Pallas for Triton.

A program makes a block of the sum from some of the examples: it reads their inputs and cotangents
where they lie, leaves out rows of weight 0 as it reads, weighs cotangents in registers, and
multiplies on a matrix unit. That takes TF32, so each float32 operand goes in as three numbers of
eleven bits, which are all of it, and of their nine products the six that float32 can tell from
nothing are added up, the smallest first.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from fljax_kernels.per_example.batches import varying_axes
from fljax_kernels.per_example.dense_operands import Sizes, sizes_of, thirds

OPTIONS = triton.CompilerParams(num_warps=4, num_stages=2)


def _divided(z: jax.Array, by: int) -> tuple[jax.Array, jax.Array]:
    """Quotients and remainders of what is not negative."""
    by_all = jnp.full_like(z, by)
    return lax.div(z, by_all), lax.rem(z, by_all)


def _read(ref: Any, places: jax.Array, wanted: jax.Array) -> jax.Array:
    places = jnp.where(wanted, places, jnp.zeros_like(places))
    return triton.load(ref.at[places], mask=wanted, other=0.0)


def _product(x: jax.Array, y: jax.Array) -> jax.Array:
    """`x^T y` of float32 `[k, a]` and `[k, b]`."""
    of_x, of_y = thirds(x), thirds(y)
    total: Any = None
    for i, j in ((0, 2), (1, 1), (2, 0), (0, 1), (1, 0), (0, 0)):
        part = lax.dot_general(
            of_x[i],
            of_y[j],
            (((0,), (0,)), ((), ())),
            precision=lax.Precision.DEFAULT,
            preferred_element_type=jnp.float32,
        )
        total = part if total is None else total + part
    return total


def _kernel(x_ref: Any, y_ref: Any, weights_ref: Any, out_ref: Any, *, sizes: Sizes) -> None:
    here = pl.program_id(0)
    rest, part = _divided(here, sizes.down * sizes.across)
    group, share = _divided(rest, sizes.shares)
    down, across = _divided(part, sizes.across)
    row = down * sizes.block[0] + lax.iota(jnp.int32, sizes.block[0])
    column = across * sizes.block[1] + lax.iota(jnp.int32, sizes.block[1])
    inside, wanted = row < sizes.inputs, column < sizes.features

    def step(k: Any, total: jax.Array) -> jax.Array:
        mine = k * sizes.at_once + lax.iota(jnp.int32, sizes.at_once)
        at = share * sizes.each + mine
        there = (mine < sizes.each) & (at < sizes.examples)
        example = group * sizes.examples + at
        weight = _read(weights_ref, example, there)
        taken = (weight != 0)[:, None]
        places = example[:, None] * sizes.inputs + row[None]
        x = _read(x_ref, places, taken & inside[None])
        places = example[:, None] * sizes.features + column[None]
        y = _read(y_ref, places, taken & wanted[None])
        return total + _product(x, weight[:, None] * y)

    total = lax.fori_loop(
        0, -(-sizes.each // sizes.at_once), step, jnp.zeros(sizes.block, jnp.float32)
    )
    places = (rest * sizes.inputs + row)[:, None] * sizes.features + column[None]
    there = inside[:, None] & wanted[None]
    # Behind the last, where the interpreter writes nothing either.
    places = jnp.where(there, places, jnp.full_like(places, out_ref.shape[0]))
    triton.store(out_ref.at[places], total, mask=there)


def of_shares(x: Any, y: Any) -> jax.ShapeDtypeStruct:
    """What the kernel of `sums` writes, of arguments with these shapes."""
    sizes = sizes_of(x, y)
    shape = (x.shape[0], sizes.shares, sizes.inputs, sizes.features)
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def sums(x: jax.Array, y: jax.Array, weights: jax.Array, *, interpret: bool = False) -> jax.Array:
    """`[G, p, q]` of x `[G, E, p]`, y `[G, E, q]`, weights `[G, E]`: `dense_kernel.weighted_sum` of
    each of G groups. interpret: on any platform, slowly.
    """
    sizes = sizes_of(x, y)
    groups = x.shape[0]
    shape = of_shares(x, y).shape
    moved = 4 * (x.size + y.size + weights.size + math.prod(shape))
    of_mesh: dict[str, Any] = {}
    if varying_axes(x, y, weights):
        of_mesh["manual_axis_type"] = jax.typeof(x).manual_axis_type
    found: jax.Array = pl.pallas_call(
        functools.partial(_kernel, sizes=sizes),
        grid=(groups * sizes.shares * sizes.down * sizes.across,),
        out_shape=jax.ShapeDtypeStruct((math.prod(shape),), jnp.float32, **of_mesh),
        compiler_params=OPTIONS,
        cost_estimate=pl.CostEstimate(
            flops=12 * x.size * sizes.features, bytes_accessed=moved, transcendentals=0
        ),
        interpret=interpret,
    )(*(z.reshape(-1) for z in (x, y, weights)))
    return jnp.sum(found.reshape(shape), axis=1)
