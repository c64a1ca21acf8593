"""The kernels of `conv_kernel`, in Pallas for Triton.

A row `[entries * C, O]` of one example is the product of its patches with its cotangent, and a
program makes a block of it: for some positions at a time it reads what the block's entries see
straight from the input, by arithmetic on places, and multiplies in float32 registers. What lies
outside is a zero that is selected, never multiplied.

Programs of one example follow one another, and are of equal length: they read the same places of
its input and cotangent at about the same time. So these come from the memory once, and for the
other programs from L2: that is what the cost estimate counts.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from fljax_kernels.per_example.batches import varying_axes
from fljax_kernels.per_example.conv_operands import Window, operands, room
from fljax_kernels.per_example.terms import HIGHEST

LEAST, MOST = 16, 64  # of a block's sides: what a matrix unit takes, what registers hold
POSITIONS = 32  # that are multiplied at once
PROGRAMS = 264  # of a sum: two for each of an H200's multiprocessors
OPTIONS = triton.CompilerParams(num_warps=4, num_stages=2)


class Sizes(NamedTuple):
    """samples: of an example. block: (of a row's entries, of features). across: blocks of features.
    parts: blocks of a row.
    """

    samples: int
    sides: tuple[int, int]
    channels: int
    features: int
    block: tuple[int, int]
    across: int
    parts: int


def _sizes(x: Any, y: Any, window: Window) -> Sizes:
    *_, samples, height, width, channels = x.shape
    features, entries = y.shape[-1], math.prod(window.kernel) * channels
    block = _side(entries), _side(features)
    down, across = -(-entries // block[0]), -(-features // block[1])
    return Sizes(samples, (height, width), channels, features, block, across, down * across)


def _side(size: int) -> int:
    return min(MOST, max(LEAST, pl.next_power_of_2(size)))


def _divided(z: jax.Array, by: int) -> tuple[jax.Array, jax.Array]:
    """Quotients and remainders of what is not negative."""
    by_all = jnp.full_like(z, by)
    return lax.div(z, by_all), lax.rem(z, by_all)


def _count(size: int) -> jax.Array:
    return lax.iota(jnp.int32, size)


def _block(
    x_ref: Any, y_ref: Any, example: Any, part: Any, sizes: Sizes, window: Window, exact: bool
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(a block of a row, the squares of all that met in it, of inputs and of cotangents)."""
    down, across = _divided(part, sizes.across)
    entry = down * sizes.block[0] + _count(sizes.block[0])
    feature = across * sizes.block[1] + _count(sizes.block[1])
    offset, channel = _divided(entry, sizes.channels)
    of_row, of_column = _divided(offset, window.kernel[1])
    real = entry < math.prod(window.kernel) * sizes.channels
    of_row = of_row * window.dilation[0] - window.before[0]
    of_column = of_column * window.dilation[1] - window.before[1]
    height, width = sizes.sides
    positions = sizes.samples * math.prod(window.out)

    def step(k: Any, carry: Any) -> Any:
        block, of_x, of_y = carry
        at = k * POSITIONS + _count(POSITIONS)
        sample, place = _divided(at, math.prod(window.out))
        row, column = _divided(place, window.out[1])
        row = (row * window.strides[0])[:, None] + of_row[None]
        column = (column * window.strides[1])[:, None] + of_column[None]
        there = (at < positions)[:, None]
        inside = there & real[None] & (row >= 0) & (row < height) & (column >= 0)
        inside = inside & (column < width)
        image = (example * sizes.samples + sample)[:, None]
        from_x = ((image * height + row) * width + column) * sizes.channels + channel[None]
        wanted = there & (feature < sizes.features)[None]
        from_y = (example * positions + at)[:, None] * sizes.features + feature[None]
        x, y = operands(_read(x_ref, from_x, inside), _read(y_ref, from_y, wanted), exact)
        precision = HIGHEST if exact else lax.Precision.DEFAULT
        block = block + lax.dot_general(
            x, y, (((0,), (0,)), ((), ())), precision=precision, preferred_element_type=jnp.float32
        )
        x, y = x.astype(jnp.float32), y.astype(jnp.float32)
        return block, of_x + x * x, of_y + y * y

    tall, wide = sizes.block
    start = (
        jnp.zeros((tall, wide), jnp.float32),
        jnp.zeros((POSITIONS, tall), jnp.float32),
        jnp.zeros((POSITIONS, wide), jnp.float32),
    )
    found: tuple[jax.Array, jax.Array, jax.Array] = lax.fori_loop(
        0, -(-positions // POSITIONS), step, start
    )
    return found


def _read(ref: Any, places: jax.Array, wanted: jax.Array) -> jax.Array:
    places = jnp.where(wanted, places, jnp.zeros_like(places))
    return triton.load(ref.at[places], mask=wanted, other=0.0)


def _squares_kernel(
    x_ref: Any, y_ref: Any, out_ref: Any, *, sizes: Sizes, window: Window, exact: bool
) -> None:
    here = pl.program_id(0)
    example, part = _divided(here, sizes.parts)
    block, of_x, of_y = _block(x_ref, y_ref, example, part, sizes, window, exact)
    out_ref[here] = jnp.sum(block * block) + room(jnp.sum(of_x), jnp.sum(of_y))


def _sums_kernel(
    x_ref: Any,
    y_ref: Any,
    weights_ref: Any,
    out_ref: Any,
    *,
    examples: int,
    shares: int,
    sizes: Sizes,
    window: Window,
    exact: bool,
) -> None:
    here = pl.program_id(0)
    rest, part = _divided(here, sizes.parts)
    group, share = _divided(rest, shares)
    each = -(-examples // shares)

    def step(k: Any, total: jax.Array) -> jax.Array:
        mine = share * each + k
        example = group * examples + jnp.minimum(mine, examples - 1)
        weight = jnp.where(mine < examples, weights_ref[example], 0.0)
        block = _block(x_ref, y_ref, example, part, sizes, window, exact)[0]
        return total + jnp.where(weight != 0, weight * block, jnp.zeros_like(block))

    out_ref[here] = lax.fori_loop(0, each, step, jnp.zeros(sizes.block, jnp.float32))


def _call(
    kernel: Any, arrays: tuple[jax.Array, ...], shape: tuple[int, ...], work: int, interpret: bool
) -> jax.Array:
    """A program of `kernel` over flat arrays for each of its results, float32 `shape`."""
    moved = sum(z.size * z.dtype.itemsize for z in arrays) + 4 * math.prod(shape)
    of_mesh: dict[str, Any] = {}
    if varying_axes(*arrays):
        of_mesh["manual_axis_type"] = jax.typeof(arrays[0]).manual_axis_type
    found: jax.Array = pl.pallas_call(
        kernel,
        grid=shape[:1],
        out_shape=jax.ShapeDtypeStruct(shape, jnp.float32, **of_mesh),
        compiler_params=OPTIONS,
        cost_estimate=pl.CostEstimate(flops=2 * work, bytes_accessed=moved, transcendentals=0),
        interpret=interpret,
    )(*(z.reshape(-1) for z in arrays))
    return found


def _work(x: jax.Array, y: jax.Array, window: Window) -> int:
    """Multiply-adds of all rows."""
    return y.size * math.prod(window.kernel) * x.shape[-1]


def squares(
    x: jax.Array, y: jax.Array, *, window: Window, exact: bool, interpret: bool = False
) -> jax.Array:
    """As `conv_kernel.squares`. interpret: on any platform, slowly."""
    sizes = _sizes(x, y, window)
    kernel = functools.partial(_squares_kernel, sizes=sizes, window=window, exact=exact)
    programs = x.shape[0] * sizes.parts
    parts = _call(kernel, (x, y), (programs,), _work(x, y, window), interpret)
    return jnp.sum(parts.reshape(x.shape[0], sizes.parts), axis=1)


def _shares(x: Any, y: Any, weights: Any, window: Window) -> tuple[Sizes, int]:
    """(sizes, how many programs share the examples of a block of a sum)."""
    sizes = _sizes(x, y, window)
    groups, examples = weights.shape
    return sizes, min(examples, max(1, PROGRAMS // (groups * sizes.parts)))


def shape_of_sums(x: Any, y: Any, weights: Any, window: Window) -> tuple[int, int, int]:
    """Of what the kernel of `sums` writes, from what has the shapes of its arguments."""
    sizes, shares = _shares(x, y, weights, window)
    return weights.shape[0] * shares * sizes.parts, *sizes.block


def sums(
    x: jax.Array,
    y: jax.Array,
    weights: jax.Array,
    *,
    window: Window,
    exact: bool,
    interpret: bool = False,
) -> jax.Array:
    """`[G, entries, C, O]` of x `[G, E, n, H, W, C]`, y and weights `[G, E]`: `weighted_sum` of
    each of G groups.
    """
    sizes, shares = _shares(x, y, weights, window)
    groups, examples = weights.shape
    kernel = functools.partial(
        _sums_kernel, examples=examples, shares=shares, sizes=sizes, window=window, exact=exact
    )
    arrays, shape = (x, y, weights), shape_of_sums(x, y, weights, window)
    found, (_, tall, wide) = _call(kernel, arrays, shape, _work(x, y, window), interpret), shape
    down = sizes.parts // sizes.across
    total = jnp.sum(found.reshape(groups, shares, down, sizes.across, tall, wide), axis=1)
    total = total.transpose(0, 1, 3, 2, 4).reshape(groups, down * tall, sizes.across * wide)
    total = total[:, : math.prod(window.kernel) * sizes.channels, : sizes.features]
    return total.reshape(groups, math.prod(window.kernel), sizes.channels, sizes.features)
