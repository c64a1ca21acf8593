"""Sums of rows of whole numbers about rows of floats, none of which is held where it is an outer
product.

Integers X about x and Y about y make integers X (outer) Y about x (outer) y, whose squared norm is
|X|^2 |Y|^2. Their sum over rows is one matrix product. The grids of x and y may be the row's own,
since only their product has to be the grid of all.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fljax_kernels import _meshes, _threefry
from fljax_kernels.discrete import alias, rounding

# Of whole numbers float32 tells each from the next below this. A sum of squares that comes out
# below it is right: none of its terms and partial sums was above.
_KNOWN = 2.0**24
# Rows in one product. None is longer than 65536, so that all partial sums, also of the halves in
# which a TPU multiplies numbers of 16 bits, stay below 2**24: in any order, float32 rounds nothing.
_TOGETHER = 128
_LONGEST_FACTOR = 1024.0  # in steps of its own grid, so that its square is known
# By how much a row is shorter, if it came out too long by the one before. After that it is 0.
_SHORTER = (0.0, 2.0**-6, 2.0**-5, 2.0**-4, 2.0**-3, 2.0**-2, 2.0**-1)
_MARGIN = 4.0  # standard deviations of a squared norm, where rows are held


class Part(NamedTuple):
    """Of rows: y float32 `[B, Q]`, or x (outer) y where x `[B, P]` is not None. outer_sum: of X
    `[b, P]` and Y `[b, Q]`, their product's sum over rows; it adds up float32 in any order.
    """

    y: jax.Array
    x: jax.Array | None = None
    outer_sum: Callable[[jax.Array, jax.Array], jax.Array] | None = None


class _Scaled(NamedTuple):
    """The same in steps, x in whole numbers. size: |x|^2 `[B]`, or 1. entries: uint32 `[Q]`."""

    part: Part
    x: jax.Array | None
    size: jax.Array
    y: jax.Array
    entries: jax.Array


def is_number(bound: Any) -> bool:
    """Whether it is one bound on squared norms of all rows, known before tracing."""
    good = isinstance(bound, int) and not isinstance(bound, bool)
    return good and 0 <= bound <= rounding.MOST


def check(most_squared_norms: Any, places: Any, size: int) -> None:
    """Raises ValueError unless they are of `size` rows, as `api.grid_sum` takes them."""
    of_rows = lambda x, kind: jnp.shape(x) == (size,) and jnp.issubdtype(jnp.result_type(x), kind)
    if not is_number(most_squared_norms) and not of_rows(most_squared_norms, jnp.uint32):
        raise ValueError(
            f"Expected most_squared_norms to be uint32 [{size}] or an int in [0, 2**32 - 2], got "
            f"most_squared_norms={_told(most_squared_norms)}."
        )
    if not of_rows(places, jnp.integer):
        raise ValueError(f"Expected places to be integers [{size}], got places={_told(places)}.")


def _told(x: Any) -> str:
    return repr(x) if isinstance(x, int | float) else f"{jnp.result_type(x)} {[*jnp.shape(x)]}"


def add_up(
    parts: list[Part], c: jax.Array, bound: jax.Array | int, key: jax.Array, places: jax.Array
) -> list[jax.Array]:
    """Int32: of each part `[Q]`, or what its `outer_sum` gives. c: float32 `[B]` and the rest as of
    `api.grid_sum`.
    """
    # Squares of a few entries may pass what float32 knows, and those of long rows take longer.
    known = isinstance(bound, int) and bound < _KNOWN
    # One more would stand for any norm. Made of c: inside shard_map they differ between devices as
    # it does.
    most = jnp.minimum(jnp.asarray(bound, jnp.uint32), np.uint32(rounding.MOST))
    most = jnp.where(c == c, most, np.uint32(0))
    factors = [z for part in parts for z in (part.x, part.y) if z is not None]
    entries, shifts = _drawn(key, places, sum(z.shape[1] for z in factors))
    scaled = _scaled(parts, c, entries, shifts[:, 0])
    length = _to_fit(scaled, most)

    def attempt(state: Any) -> Any:
        step, _, _ = state
        scale = (length * (1 - jnp.asarray(_SHORTER, jnp.float32)[step]))[:, None]
        ys = [_rounded(one.y * scale, one.entries, shifts[:, 1]) for one in scaled]
        fits = _fits(scaled, ys, most, known)
        done = fits | (step + 1 >= len(_SHORTER))
        return jnp.where(done, step, step + 1), done, ys

    zero = most * np.uint32(0)
    nothing = [one.y * zero.astype(jnp.float32)[:, None] for one in scaled]
    start = zero.astype(jnp.int32), zero > 0, nothing
    ys = _meshes.while_loop(lambda state: ~jnp.all(state[1]), attempt, start)[2]
    # Of the numbers that are added up: who computed them again might round one otherwise.
    counts = _fits(scaled, ys, most, known) & (c > 0)
    return [_sum(one, y, counts) for one, y in zip(scaled, ys, strict=True)]


def _drawn(key: jax.Array, places: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """Uint32 `[size]`, a number for each entry, and `[B, 2]`, for x and y of each row.

    Added up modulo 2**32 each is uniform, and those of any two rows in one entry are independent.
    Entries of a row are apart as far as a hash of their places tells: it is cheaper than a cipher,
    and nothing depends on them but by how much the length of a row varies.
    """
    of_rows, of_entries = _threefry.fold_in(key, 0), _threefry.fold_in(key, 1)
    first = alias.bits(of_entries, 0, (1,))

    def draw(part: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        at, mine = part
        each = jax.vmap(lambda place: alias.bits(of_rows, place, (2,)))(mine)
        return _hashed(at * np.uint32(0x9E3779B9) + first), each

    # In a loop: of what it gives, XLA on a CPU draws nothing anew for each use.
    halves = _halved(lax.iota(jnp.uint32, size)), _halved(places.astype(jnp.uint32))
    entries, shifts = lax.map(draw, halves)
    return entries.reshape(-1), shifts.reshape(-1, 2)[: places.size]


def _hashed(x: jax.Array) -> jax.Array:
    """Uint32: a permutation of them, by two rounds of shifts and products."""
    for factor in (0x7FEB352D, 0x846CA68B):
        x = (x ^ (x >> np.uint32(16))) * np.uint32(factor)
    return x ^ (x >> np.uint32(16))


def _halved(rows: jax.Array) -> jax.Array:
    """`[B, ...]` as `[2, B / 2, ...]`."""
    widths = [(0, rows.shape[0] % 2), *[(0, 0)] * (rows.ndim - 1)]
    return jnp.pad(rows, widths).reshape(2, -1, *rows.shape[1:])


def _scaled(
    parts: list[Part], c: jax.Array, entries: jax.Array, shifts: jax.Array
) -> list[_Scaled]:
    """Rows times `c`, in steps. shifts: `[B]`, of x."""
    at, xs, ys = 0, [], []
    for part in parts:
        x, scale, y = _balanced(part, c)
        if x is not None:
            xs.append((x, scale, entries[at : at + x.shape[1]]))
            at += x.shape[1]
        ys.append((y, entries[at : at + y.shape[1]]))
        at += y.shape[1]

    def whole(half: Any) -> list[jax.Array]:
        mine, shifts = half
        pairs = zip(mine, xs, strict=True)
        return [_rounded(x * scale[:, None], drawn, shifts) for (x, scale), (_, _, drawn) in pairs]

    # In a loop, too: squares and product are of the same numbers then.
    halves = [(_halved(x), _halved(scale)) for x, scale, _ in xs], _halved(shifts)
    found = iter(lax.map(whole, halves) if xs else [])
    out = []
    for part, (y, drawn) in zip(parts, ys, strict=True):
        if part.x is None:
            out.append(_Scaled(part, None, jnp.ones_like(c), y, drawn))
            continue
        x = next(found)
        x = x.reshape(-1, x.shape[-1])[: c.size]
        out.append(_Scaled(part, x, _squares(x), y, drawn))
    return out


def _balanced(part: Part, c: jax.Array) -> tuple[jax.Array | None, jax.Array, jax.Array]:
    """Of a product c x (outer) y: x `[B, P]`, what scales it `[B]`, and y `[B, Q]` with the rest.

    Errors e and f of x and y, about as long as the roots of how many entries are not 0, make the
    squared norm (|x|^2 + e^2) (|y|^2 + f^2): at least (|x| |y| + e f)^2, where |x| / |y| is e / f.
    """
    counts = (c > 0)[:, None]
    y = jnp.where(counts, part.y, 0.0)  # not times 0, which NaN stays
    if part.x is None:
        return None, c, y * c[:, None]
    x = jnp.where(counts, part.x, 0.0)
    long_x, long_y = (jnp.sqrt(_squares(z)) for z in (x, y))
    many_x, many_y = (jnp.sum((z != 0).astype(jnp.float32), axis=1) for z in (x, y))
    steps = c * long_x * long_y
    long = jnp.sqrt(steps * jnp.sqrt(many_x / jnp.maximum(many_y, 1.0)))
    long = jnp.clip(long, steps / _LONGEST_FACTOR, _LONGEST_FACTOR)
    scale = jnp.where(steps > 0, long / long_x, 0.0)
    return x, scale, y * jnp.where(scale > 0, c / scale, 0.0)[:, None]


def _squares(z: jax.Array) -> jax.Array:
    return jnp.sum(jnp.square(z), axis=1)


def _rounded(x: jax.Array, entries: jax.Array, shifts: jax.Array) -> jax.Array:
    """Float32 `[B, P]` of whole numbers."""
    return rounding.at_random(entries[None] + shifts[:, None], rounding.in_range(x))


def _to_fit(parts: list[_Scaled], most: jax.Array) -> jax.Array:
    """Float32 `[B]`, at most 1: times which rows have the squared norm `most` on average, where
    they would be longer.
    """
    mean = jnp.zeros(most.shape, jnp.float32)
    room = most.astype(jnp.float32)
    for one in parts:
        fraction = one.y - jnp.floor(one.y)
        square = jnp.sum(jnp.square(one.y) + fraction * (1 - fraction), axis=1)
        mean += one.size * square
        if one.x is None:  # one that is held is dear to round again
            mean += _MARGIN * (jnp.sqrt(jnp.minimum(square, room)) + one.y.shape[1] ** 0.5 / 2)
    return jnp.where(mean > room, jnp.sqrt(room / jnp.maximum(mean, 1.0)), 1.0)


def _fits(parts: list[_Scaled], ys: list[jax.Array], most: jax.Array, known: bool) -> jax.Array:
    """Bool `[B]`: whether squared norms add up to no more than `most`, in whole numbers; known: it
    is below what float32 knows.
    """
    fits, left = most >= 0, most
    for one, y in zip(parts, ys, strict=True):
        if one.x is None and not known:
            square = rounding.squared_norms(y.astype(jnp.int32))
            fits &= square <= left
            left -= jnp.where(fits, square, np.uint32(0))
            continue
        of_y = _squares(y)
        fits &= (one.size < _KNOWN) & (of_y < _KNOWN)
        sizes = jnp.where(fits, one.size, 0.0), jnp.where(fits, of_y, 0.0)
        of_x, square = (size.astype(jnp.uint32) for size in sizes)
        # of_x * square <= left; where it is false, the product may not fit into 32 bits.
        fits &= (square == 0) | (of_x <= left // jnp.maximum(square, np.uint32(1)))
        left -= jnp.where(fits, of_x * square, np.uint32(0))
    return fits


def _sum(one: _Scaled, y: jax.Array, counts: jax.Array) -> jax.Array:
    """Int32: over the rows that count."""
    y = jnp.where(counts[:, None], y, 0.0)
    if one.x is None or one.part.outer_sum is None:
        return jnp.sum(y.astype(jnp.int32), axis=0, dtype=jnp.int32)
    pieces = []
    for at in range(0, max(1, y.shape[0]), _TOGETHER):
        few = one.x[at : at + _TOGETHER], y[at : at + _TOGETHER]
        pieces.append(one.part.outer_sum(*few).astype(jnp.int32))
    return functools.reduce(jnp.add, pieces)
