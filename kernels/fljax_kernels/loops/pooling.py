"""Max pooling over windows that tile, as a reshape and a chain of comparisons.

`reduce_max` would give the gradient of a tie to all of its elements in equal parts; XLA's own rule
(`select_and_scatter` with "greater or equal") gives it to the first. The chain below keeps the
earlier element unless a later one is strictly greater, and remembers its place, so its gradient is
the native one, ties included.
"""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def tiles(operand: Any, params: dict[str, Any]) -> bool:
    """Whether the windows of this `reduce_window_max` (or of its gradient) lie side by side without
    padding.
    """
    ones = (1,) * len(operand.shape)
    return (
        jnp.issubdtype(operand.dtype, jnp.floating)
        and tuple(params["window_dimensions"]) == tuple(params["window_strides"])
        and all(tuple(pair) == (0, 0) for pair in params["padding"])
        and tuple(params.get("base_dilation", ones)) == ones
        and tuple(params.get("window_dilation", ones)) == ones
        and all(
            size >= window
            for size, window in zip(operand.shape, params["window_dimensions"], strict=True)
        )
        and 0 not in operand.shape
    )


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def max_pool(operand: jax.Array, window: tuple[int, ...], native: bool) -> jax.Array:
    """The maximum of each window; what does not fill a window at the end is dropped.

    Args:
      operand: floating array. NaN in a window gives NaN.
      window: size along each axis, <= the axis.
      native: leave it to XLA where no derivative is taken; it is slow at derivatives, and at both
        in loops.
    """
    if native:
        least = np.array(
            -np.inf, operand.dtype
        )  # not traced: only so does XLA know that it is the maximum's identity
        return lax.reduce_window(operand, least, lax.max, window, window, "VALID")
    return _first_best(operand, window)[0]


@max_pool.defjvp
def _max_pool_jvp(
    window: tuple[int, ...], native: bool, primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    # One comparison with the place of the maximum, whose transpose is one too: the chain's own
    # derivative would be a chain of selections for each element.
    best, place = _first_best(primals[0], window)
    moved, axes = _windows(tangents[0], window)
    return best, jnp.sum(
        jnp.where(_is_place(place, moved, axes), moved, jnp.zeros((), moved.dtype)), axis=axes
    )


def max_pool_gradient(source: jax.Array, operand: jax.Array, window: tuple[int, ...]) -> jax.Array:
    """`source` [one entry a window] put back where each window of `operand` has its maximum."""
    place = _first_best(operand, window)[1]
    shape, axes = jax.eval_shape(lambda x: _windows(x, window)[0], operand), _axes(window)
    spread = jnp.broadcast_to(jnp.expand_dims(source, axes), shape.shape)
    out = jnp.where(_is_place(place, shape, axes), spread, jnp.zeros((), source.dtype))
    kept = [size // width * width for size, width in zip(operand.shape, window, strict=True)]
    rest = [(0, size - keep, 0) for size, keep in zip(operand.shape, kept, strict=True)]
    return lax.pad(out.reshape(kept), jnp.zeros((), source.dtype), rest)


def _axes(window: tuple[int, ...]) -> tuple[int, ...]:
    """Of the places of a window, in the form of `_windows`."""
    axes, position = [], 0
    for width in window:
        if width > 1:
            axes.append(position + 1)
        position += 2 if width > 1 else 1
    return tuple(axes)


def _windows(x: jax.Array, window: tuple[int, ...]) -> tuple[jax.Array, tuple[int, ...]]:
    """Each axis that windows share split into (windows, places of a window); the axes of places."""
    counts = [size // width for size, width in zip(x.shape, window, strict=True)]
    kept = [count * width for count, width in zip(counts, window, strict=True)]
    x = lax.slice(x, (0,) * x.ndim, kept) if tuple(kept) != x.shape else x
    pairs = zip(counts, window, strict=True)
    return x.reshape(
        [n for count, width in pairs for n in ((count, width) if width > 1 else (count,))]
    ), _axes(window)


def _first_best(operand: jax.Array, window: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """The maximum of each window, and its place: int32, counted along the window's axes in turn."""
    x, axes = _windows(operand, window)
    best = place = None
    for number, offsets in enumerate(itertools.product(*(range(x.shape[axis]) for axis in axes))):
        index: list[Any] = [slice(None)] * x.ndim
        for axis, offset in zip(axes, offsets, strict=True):
            index[axis] = offset
        candidate = x[tuple(index)]
        if best is None or place is None:
            best, place = candidate, jnp.zeros(candidate.shape, jnp.int32)
            continue
        # NaN is never less nor greater: keep it where it is, take it where it comes.
        stays = (best >= candidate) | (best != best)
        best, place = jnp.where(stays, best, candidate), jnp.where(stays, place, jnp.int32(number))
    assert best is not None and place is not None  # windows are not empty
    return best, place


def _is_place(place: jax.Array, windows: Any, axes: tuple[int, ...]) -> jax.Array:
    """Where `windows` has the element that `place` numbers."""
    number = jnp.zeros((1,) * len(windows.shape), jnp.int32)
    for axis in axes:
        number = number * windows.shape[axis] + lax.broadcasted_iota(
            jnp.int32, [n if a == axis else 1 for a, n in enumerate(windows.shape)], axis
        )
    return jnp.broadcast_to(number == jnp.expand_dims(place, axes), windows.shape)
