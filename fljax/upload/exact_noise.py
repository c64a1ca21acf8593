"""A Gaussian mechanism without floating point: rows and their sum in whole numbers, and noise that
is a rounded Gaussian.

Rounding x + N(0, s**2), where x is whole, adds a rounded Gaussian to x. So a sum of whole numbers
with such noise is a function of what a Gaussian mechanism releases whose noise has s steps, and
costs what that costs, by any accountant. Whole numbers add up to the same bits in any order.
"""

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from fljax import _validate
from fljax.types import Params, PyTree
from fljax.upload import integer_grid
from fljax_kernels import PerExampleGrads, discrete

STDDEV = 2048.0  # of noise, in steps, whatever its unit: one table serves all
# Where rows are products of rounded factors, of which each has far fewer steps than the row, noise
# has more steps until a row has so many. Its table takes longer to make.
_FINEST = 8192.0
_ENOUGH = 1024
_LONGEST = 65535  # a row in steps, such that its squared norm is a uint32
_LOG_REFUSED = 8.0  # -log of how often a rounded row is too long at most: 3 in 10,000


class Grid(NamedTuple):
    """most_squared_norm: of a row in steps. noisy: whether noise is added. l2_clip_norm: of a row
    in the unit of the updates; a step follows from these and the number of parameters. most_parts:
    rows that may be parts of one, each as many times shorter. stddev: of the noise in steps.
    """

    most_squared_norm: int
    noisy: bool
    l2_clip_norm: float
    most_parts: int = 1
    stddev: float = STDDEV


def grid(
    noise_multiplier: float,
    *,
    l2_clip_norm: float,
    most_rows: int,
    norms_moved: float = 1.0,
    most_parts: int = 1,
    noise_of_each: bool = False,
    of_factors: bool = False,
) -> Grid:
    """The grid on which noise of `stddev` steps is `noise_multiplier` times the sensitivity.

    Guarantee: neighbouring data that move a sum of rows by at most `norms_moved` times the longest
    row move it by at most stddev / noise_multiplier steps, in whole numbers. Sums of `most_rows`
    rows do not wrap around, and if they did, a sum modulo 2**32 would tell no more.

    Args:
      noise_multiplier: >= 0; 0: no noise, on the finest grid.
      l2_clip_norm: > 0. most_rows: that a sum may have. norms_moved: > 0.
      most_parts: rows that together are no longer than one, at most.
      noise_of_each: whether each row has noise of its own, and not their sum.
      of_factors: whether rows are rounded by `total_of_gradients`: up to four times finer.

    Raises:
      ValueError: an argument is out of range, noise is too little for any row of whole numbers, or
        sums may wrap around.
    """
    _validate.non_negative(noise_multiplier=noise_multiplier)
    _validate.positive(l2_clip_norm=l2_clip_norm, norms_moved=norms_moved)
    _validate.positive_int(most_rows=most_rows, most_parts=most_parts)
    if not 1e-30 <= l2_clip_norm <= 1e30:
        raise ValueError(
            f"Expected l2_clip_norm in [1e-30, 1e30], got l2_clip_norm={l2_clip_norm!r}."
        )
    most, stddev = _LONGEST**2, STDDEV
    if noise_multiplier:
        moved = Fraction(noise_multiplier) * Fraction(norms_moved)
        # Parts may be short where the whole row is as long as it may be.
        while (
            of_factors
            and stddev < _FINEST
            and stddev < _ENOUGH * moved * most_parts
            and 2 * stddev <= _LONGEST * moved
        ):
            stddev *= 2
        longest = Fraction(stddev) / moved
        most = math.floor(longest**2)
        least = STDDEV / (_LONGEST * norms_moved)
        if most > _LONGEST**2:
            raise ValueError(
                f"Expected noise_multiplier to be 0 or >= {least:.4g} with noise='exact', got "
                f"noise_multiplier={noise_multiplier!r}."
            )
    made = Grid(most, noise_multiplier > 0, float(l2_clip_norm), most_parts, stddev)
    check_rows(made, most_rows, noise_of_each=noise_of_each)
    return made


def check_rows(of: Grid, most_rows: int, *, noise_of_each: bool = False) -> None:
    """Raises ValueError where a sum of so many rows may wrap around."""
    reach = integer_grid.most_noise("rounded_gaussian", of.stddev) if of.noisy else 0
    each = math.isqrt(of.most_squared_norm) + (reach if noise_of_each else 0)
    once = 0 if noise_of_each else reach
    if most_rows * each + once >= 2**31:
        raise ValueError(
            f"Expected at most {(2**31 - 1 - once) // max(1, each)} units with "
            f"noise='exact' and this noise_multiplier, else sums wrap around, got {most_rows}."
        )


def steps_of_norm(of: Grid, num_params: int) -> float:
    """Steps that are `l2_clip_norm`: the length of the longest row.

    Raises:
      ValueError: rounding alone may make a longer row of so many parameters.
    """
    longest = math.sqrt(of.most_squared_norm) / of.most_parts
    length = integer_grid.length_before(longest, num_params, _LOG_REFUSED)
    if not length >= 1:
        raise ValueError(
            f"Expected fewer than {math.floor(4 * longest**2)} parameters with noise='exact' and "
            "this noise_multiplier, else rounding alone is as long as a row may be, got "
            f"{num_params}."
        )
    return math.sqrt(of.most_squared_norm)


def total(
    of: Grid,
    rows: PyTree,
    factors: jax.Array,
    key: jax.Array,
    places: jax.Array,
    mask: jax.Array,
    *,
    noise_keys: jax.Array | None = None,
) -> PyTree:
    """Int32 tree: the sum of rounded rows of a tree of `[C, ...]`, each times its factor.

    Guarantee: each row that counts adds whole numbers whose squared norm is at most
    `most_squared_norm`, whatever it holds; one whose factor is 0 adds zero. The sum does not depend
    on the order of rows, nor on which of them are added up together. A row that rounding might make
    too long is shortened first, as its own entries demand.

    Args:
      rows: tree of `[C, ...]`. factors: `[C]` >= 0, that clip them to l2_clip_norm.
      key: `[]`, used for nothing else; the same for rows of all calls that make one sum.
      places: int `[C]`, a number for each row, another for each of those in one sum.
      mask: bool `[C]`, True where it counts.
      noise_keys: `[C]`, for noise of each row's own, as `noised` adds it to a sum. None: none.
    """
    sizes = [math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(rows)]
    scale = jnp.float32(steps_of_norm(of, sum(sizes)) / of.l2_clip_norm)
    steps = jnp.where(mask, factors * scale, 0.0)
    found = discrete.grid_sum(key, rows, steps, of.most_squared_norm, places)
    if noise_keys is None or not of.noisy:
        return found
    noise = jax.vmap(lambda key: _noise(of, key, sum(sizes)))(noise_keys)
    noise = jnp.sum(jnp.where(mask[:, None], noise, 0), axis=0, dtype=jnp.int32)
    # In parts: sums that are joined and taken apart again, XLA on a CPU computes one by one.
    leaves, tree = jax.tree.flatten(found)
    ends = list(itertools.accumulate(sizes))
    parts = [noise[end - size : end] for size, end in zip(sizes, ends, strict=True)]
    noisy = [leaf + part.reshape(leaf.shape) for leaf, part in zip(leaves, parts, strict=True)]
    return jax.tree.unflatten(tree, noisy)


def total_of_gradients(
    of: Grid,
    gradients: PerExampleGrads,
    factors: Callable[..., jax.Array],
    key: jax.Array,
    places: jax.Array,
    *per_example: Any,
    parts: jax.Array | None = None,
) -> tuple[PyTree, jax.Array]:
    """As `total`, of rows that nobody holds: (int32 tree, norms float32 `[B]`).

    Guarantee: as there; rows that are parts of one are together no longer than one.

    Args:
      gradients: `[B, D]`. factors: (norms `[B]`, *per_example) -> `[B]` >= 0, that clip them, to
        l2_clip_norm / parts.
      key: `[]`, used for nothing else; the same for rows of all calls that make one sum.
      places: int `[B]`, a number for each row, another for each of those in one sum.
      parts: int32 `[B]` >= 1: so many rows are parts of one. None: each is one.
    """
    scale = steps_of_norm(of, gradients.num_params) / of.l2_clip_norm
    most = of.most_squared_norm if parts is None else _most(of, parts)
    # Two products: clipped before it is brought to the grid.
    steps = lambda norms, *given: factors(norms, *given) * jnp.float32(scale)
    return gradients.grid_sum(key, steps, most, places, *per_example)


def noised(of: Grid, key: jax.Array, sums: PyTree) -> Params:
    """Float32 tree of a sum of rows, an int32 tree: with noise, in the unit of the updates.

    Guarantee: a function of the Gaussian mechanism with noise multiplier
    stddev / (norms_moved sqrt(most_squared_norm)) on the sum in steps, as far as random bits are
    uniform: see `fljax_kernels.discrete.rounded_gaussian_noise`.
    """
    flat, back = ravel_pytree(sums)
    return in_unit(of, back(flat + _noise(of, key, flat.size)) if of.noisy else sums)


def in_unit(of: Grid, sums: PyTree) -> Params:
    """Float32 tree of an int32 tree in steps, in the unit of the updates."""
    size = sum(leaf.size for leaf in jax.tree.leaves(sums))
    unit = jnp.float32(of.l2_clip_norm / steps_of_norm(of, size))
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float32) * unit, sums)


def _noise(of: Grid, key: jax.Array, size: int) -> jax.Array:
    return discrete.rounded_gaussian_noise(key, (size,), of.stddev)


def _most(of: Grid, parts: jax.Array) -> jax.Array:
    """Uint32 `[B]`: the largest squared norm of each row."""
    most = jnp.full(parts.shape, of.most_squared_norm, jnp.uint32)
    # In more parts than that a row has none left, and the square would wrap around.
    shares = jnp.clip(parts, 1, _LONGEST).astype(jnp.uint32)
    return jnp.where(parts <= _LONGEST, most // (shares * shares), 0)
