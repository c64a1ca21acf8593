"""Max pooling over windows that tile, as a reshape and a chain of comparisons.

`reduce_max` would give the gradient of a tie to all of its elements in equal parts; XLA's own rule
(`select_and_scatter` with "greater or equal") gives it to the first. The chain below keeps the earlier element unless a
later one is strictly greater, so its gradient is the native one, ties included.
"""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def tiles(operand: Any, params: dict[str, Any]) -> bool:
    """Whether the windows of this `reduce_window_max` (or of its gradient) lie side by side without padding."""
    ones = (1,) * len(operand.shape)
    return (
        jnp.issubdtype(operand.dtype, jnp.floating)
        and tuple(params["window_dimensions"]) == tuple(params["window_strides"])
        and all(tuple(pair) == (0, 0) for pair in params["padding"])
        and tuple(params.get("base_dilation", ones)) == ones
        and tuple(params.get("window_dilation", ones)) == ones
        and all(size >= window for size, window in zip(operand.shape, params["window_dimensions"], strict=True))
        and 0 not in operand.shape
    )


def max_pool(operand: jax.Array, window: tuple[int, ...]) -> jax.Array:
    """The maximum of each window; what does not fill a window at the end is dropped.

    Args:
      operand: floating array. NaN in a window gives NaN.
      window: size along each axis, <= the axis.
    """
    counts = [size // width for size, width in zip(operand.shape, window, strict=True)]
    kept = [count * width for count, width in zip(counts, window, strict=True)]
    x = lax.slice(operand, (0,) * operand.ndim, kept) if tuple(kept) != operand.shape else operand
    pairs = zip(counts, window, strict=True)
    x = x.reshape([size for count, width in pairs for size in ((count, width) if width > 1 else (count,))])
    axes, position = [], 0
    for width in window:
        if width > 1:
            axes.append(position + 1)
        position += 2 if width > 1 else 1
    best = None
    for offsets in itertools.product(*(range(width) for width in window if width > 1)):
        index: list[Any] = [slice(None)] * x.ndim
        for axis, offset in zip(axes, offsets, strict=True):
            index[axis] = offset
        candidate = x[tuple(index)]
        # NaN is never less nor greater: keep it where it is, take it where it comes.
        best = candidate if best is None else jnp.where((best >= candidate) | (best != best), best, candidate)
    return x if best is None else best


def max_pool_gradient(source: jax.Array, operand: jax.Array, window: tuple[int, ...]) -> jax.Array:
    """`source` [one entry a window] put back where each window of `operand` has its maximum."""
    return jax.vjp(lambda x: max_pool(x, window), operand)[1](source)[0]
