"""Sums of whole numbers about per-example gradients, none of which is held where it is an outer
product.

Integers X about x and Y about y make integers X (outer) Y about x (outer) y, whose squared norm is
|X|^2 |Y|^2. Their sum over examples is one matrix product. The grids of x and y may be the
example's own, since only their product has to be the grid of all.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax_kernels import _threefry
from fljax_kernels.discrete import alias, rounding
from fljax_kernels.per_example.reference import flat, keep_rows, sum_of_squares, weigh_rows
from fljax_kernels.per_example.terms import Product, Rows

Term = Product | Rows | None
# Of whole numbers float32 tells each from the next below this. A sum of squares that comes out
# below it is right: none of its terms and partial sums was above.
_KNOWN = 2.0**24
# Rows in one product. None is longer than 65535, so that all partial sums, also of the halves in
# which a TPU multiplies numbers of 16 bits, stay below 2**24: in any order, float32 rounds nothing.
_TOGETHER = 128
_LONGEST_FACTOR = 1024.0  # in steps of its own grid, so that its square is known
# By how much a row is shorter, if it came out too long by the one before. After that it is 0.
_SHORTER = (0.0, 2.0**-6, 2.0**-5, 2.0**-4, 2.0**-3, 2.0**-2, 2.0**-1)
_MARGIN = 4.0  # standard deviations of a squared norm, where rows are held


class Part(NamedTuple):
    """Of the rows of one parameter array, x (outer) y in steps, or y alone. x: float32 `[B, P]` of
    whole numbers, or None. size: |x|^2 `[B]`. y: float32 `[B, Q]`, still to be rounded, with random
    numbers: one for each entry, uint32 `[Q]`.
    """

    term: Product | Rows
    x: jax.Array | None
    size: jax.Array
    y: jax.Array
    entries: jax.Array


def terms_of(engine: Any) -> list[Term]:
    """Of each parameter array, as an engine of `per_example_grads` has them; None: no gradient."""
    if hasattr(engine, "outer_terms"):
        found: list[Term] = engine.outer_terms()
        return found
    return [Rows(rows) for rows in engine.rows()]


def sums(
    terms: list[Term],
    norms: jax.Array,
    coefficients: jax.Array,
    most: jax.Array,
    key: jax.Array,
    places: jax.Array,
) -> list[jax.Array | None]:
    """Int32, like each array: see `PerExampleGrads.grid_sum`."""
    longest = jnp.sqrt(most.astype(jnp.float32)) / jnp.maximum(norms, 1e-30).astype(jnp.float32)
    c = jnp.minimum(coefficients.astype(jnp.float32), longest)
    c = jnp.where(jnp.isfinite(norms) & (c > 0), c, 0.0)
    there = [term for term in terms if term is not None]
    entries, shifts = _drawn(key, places, sum(map(_num_factors, there)))
    parts = _parts(there, c, entries, shifts[:, 0])
    length = _to_fit(parts, most)

    def attempt(state: Any) -> Any:
        step, _, _ = state
        scale = (length * (1 - jnp.asarray(_SHORTER, jnp.float32)[step]))[:, None]
        ys = [_rounded(part.y * scale, part.entries, shifts[:, 1]) for part in parts]
        fits = _fits(parts, ys, most)
        done = fits | (step + 1 >= len(_SHORTER))
        return jnp.where(done, step, step + 1), done, ys

    # Made of `most`: inside shard_map they differ between devices as it does.
    zero = most * np.uint32(0)
    nothing = [part.y * zero.astype(jnp.float32)[:, None] for part in parts]
    start = zero.astype(jnp.int32), zero > 0, nothing
    ys = jax.lax.while_loop(lambda state: ~jnp.all(state[1]), attempt, start)[2]
    # Of the numbers that are added up: who computed them again might round one otherwise.
    counts = _fits(parts, ys, most) & (c > 0)
    added = iter([_sum(part, y, counts) for part, y in zip(parts, ys, strict=True)])
    return [None if term is None else next(added) for term in terms]


def _num_factors(term: Product | Rows) -> int:
    """Numbers of a row that are rounded."""
    return sum(term.extents[2:]) if isinstance(term, Product) else math.prod(term.shape)


def _drawn(key: jax.Array, places: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """Uint32 `[size]`, a number for each entry, and `[B, 2]`, for x and y of each row.

    Added up modulo 2**32 they are independent in a row, and so are those of any two rows in one
    entry, at the price of one row's.
    """
    of_rows, of_entries = _threefry.fold_in(key, 0), _threefry.fold_in(key, 1)
    half = -(-size // 2)

    def draw(part: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        which, mine = part
        each = jax.vmap(lambda place: alias.bits(of_rows, place, (2,)))(mine)
        return alias.bits(of_entries, which, (half,)), each

    # In a loop: of what it gives, XLA on a CPU draws nothing anew for each use.
    halves = jnp.arange(2, dtype=jnp.uint32), _halved(places.astype(jnp.uint32))
    entries, shifts = jax.lax.map(draw, halves)
    return entries.reshape(-1), shifts.reshape(-1, 2)[: places.size]


def _halved(rows: jax.Array) -> jax.Array:
    """`[B, ...]` as `[2, B / 2, ...]`."""
    widths = [(0, rows.shape[0] % 2), *[(0, 0)] * (rows.ndim - 1)]
    return jnp.pad(rows, widths).reshape(2, -1, *rows.shape[1:])


def _parts(
    terms: list[Product | Rows], c: jax.Array, entries: jax.Array, shifts: jax.Array
) -> list[Part]:
    """Rows times `c`, in steps. shifts: `[B]`, of x."""
    at, xs, found = 0, [], []
    for term in terms:
        if isinstance(term, Product):
            x, scale, y = _balanced(term, c)
            xs.append((x, scale, entries[at : at + x.shape[1]]))
            at += x.shape[1]
        else:
            y = weigh_rows(flat(term.data).astype(jnp.float32), c)
        found.append((term, y, entries[at : at + y.shape[1]]))
        at += y.shape[1]

    def whole(half: Any) -> list[jax.Array]:
        mine, shifts = half
        pairs = zip(mine, xs, strict=True)
        return [_rounded(x * scale[:, None], drawn, shifts) for (x, scale), (_, _, drawn) in pairs]

    # In a loop, too: squares and product are of the same numbers then.
    halves = [(_halved(x), _halved(scale)) for x, scale, _ in xs], _halved(shifts)
    of_x = iter(jax.lax.map(whole, halves))
    parts = []
    for term, y, drawn in found:
        if isinstance(term, Product):
            x = next(of_x)
            x = x.reshape(-1, x.shape[-1])[: c.size]
            parts.append(Part(term, x, sum_of_squares(x, 1), y, drawn))
        else:
            parts.append(Part(term, None, jnp.ones_like(c), y, drawn))
    return parts


def _balanced(term: Product, c: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Of a product c x (outer) y: x `[B, P]`, what scales it `[B]`, and y `[B, Q]` with the rest.

    Errors e and f of x and y, about as long as the roots of how many entries are not 0, make the
    squared norm (|x|^2 + e^2) (|y|^2 + f^2): at least (|x| |y| + e f)^2, where |x| / |y| is e / f.
    """
    x, y = (keep_rows(flat(z).astype(jnp.float32), c > 0) for z in (term.x, term.y))
    long_x, long_y = (jnp.sqrt(sum_of_squares(z, 1)) for z in (x, y))
    many_x, many_y = (jnp.sum((z != 0).astype(jnp.float32), axis=1) for z in (x, y))
    steps = c * long_x * long_y
    long = jnp.sqrt(steps * jnp.sqrt(many_x / jnp.maximum(many_y, 1.0)))
    long = jnp.clip(long, steps / _LONGEST_FACTOR, _LONGEST_FACTOR)
    scale = jnp.where(steps > 0, long / long_x, 0.0)
    return x, scale, y * jnp.where(scale > 0, c / scale, 0.0)[:, None]


def _rounded(x: jax.Array, entries: jax.Array, shifts: jax.Array) -> jax.Array:
    """Float32 `[B, P]` of whole numbers."""
    return rounding.at_random(entries[None] + shifts[:, None], rounding.in_range(x))


def _to_fit(parts: list[Part], most: jax.Array) -> jax.Array:
    """Float32 `[B]`, at most 1: times which rows have the squared norm `most` on average, where
    they would be longer.
    """
    mean = jnp.zeros(most.shape, jnp.float32)
    room = most.astype(jnp.float32)
    for part in parts:
        fraction = part.y - jnp.floor(part.y)
        square = jnp.sum(jnp.square(part.y) + fraction * (1 - fraction), axis=1)
        mean += part.size * square
        if part.x is None:  # one that is held is dear to round again
            mean += _MARGIN * (jnp.sqrt(jnp.minimum(square, room)) + part.y.shape[1] ** 0.5 / 2)
    return jnp.where(mean > room, jnp.sqrt(room / jnp.maximum(mean, 1.0)), 1.0)


def _fits(parts: list[Part], ys: list[jax.Array], most: jax.Array) -> jax.Array:
    """Bool `[B]`: whether squared norms add up to no more than `most`, in whole numbers."""
    fits, left = most >= 0, most
    for part, y in zip(parts, ys, strict=True):
        if part.x is None:
            square = rounding.squared_norms(y.astype(jnp.int32))
            fits &= square <= left
            left -= jnp.where(fits, square, np.uint32(0))
            continue
        of_y = sum_of_squares(y, 1)
        fits &= (part.size < _KNOWN) & (of_y < _KNOWN)
        sizes = jnp.where(fits, part.size, 0.0), jnp.where(fits, of_y, 0.0)
        of_x, square = (size.astype(jnp.uint32) for size in sizes)
        # of_x * square <= left; where it is false, the product may not fit into 32 bits.
        fits &= (square == 0) | (of_x <= left // jnp.maximum(square, np.uint32(1)))
        left -= jnp.where(fits, of_x * square, np.uint32(0))
    return fits


def _sum(part: Part, y: jax.Array, counts: jax.Array) -> jax.Array:
    """Int32: over the rows that count."""
    y = keep_rows(y, counts)
    if part.x is None:
        return jnp.sum(y.astype(jnp.int32), axis=0, dtype=jnp.int32).reshape(part.term.shape)
    assert isinstance(part.term, Product)
    pieces = [
        part.term.outer_sum(part.x[at : at + _TOGETHER], y[at : at + _TOGETHER]).astype(jnp.int32)
        for at in range(0, y.shape[0], _TOGETHER)
    ]
    return functools.reduce(jnp.add, pieces)
