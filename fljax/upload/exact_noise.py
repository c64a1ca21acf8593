"""A Gaussian mechanism without floating point: rows and their sum in whole numbers, and noise that
is a rounded Gaussian.

Rounding x + N(0, s**2), where x is whole, adds a rounded Gaussian to x. So a sum of whole numbers
with such noise is a function of what a Gaussian mechanism releases whose noise has s steps, and
costs what that costs, by any accountant. Whole numbers add up to the same bits in any order.
"""

import math
from fractions import Fraction
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from fljax import _validate
from fljax.types import Params, PyTree
from fljax.upload import integer_grid
from fljax_kernels import discrete

STDDEV = 2048.0  # of noise, in steps, whatever its unit: one table serves all
_LONGEST = 65535  # a row in steps, such that its squared norm is a uint32


class Grid(NamedTuple):
    """most_squared_norm: of a row in steps. noisy: whether noise is added. l2_clip_norm: of a row
    in the unit of the updates; a step follows from these and the number of parameters.
    """

    most_squared_norm: int
    noisy: bool
    l2_clip_norm: float


def grid(
    noise_multiplier: float, *, l2_clip_norm: float, most_rows: int, norms_moved: float = 1.0
) -> Grid:
    """The grid on which noise of `STDDEV` steps is `noise_multiplier` times the sensitivity.

    Guarantee: neighbouring data that move a sum of rows by at most `norms_moved` times the longest
    row move it by at most STDDEV / noise_multiplier steps, in whole numbers. Sums of `most_rows`
    rows do not wrap around, and if they did, a sum modulo 2**32 would tell no more.

    Args:
      noise_multiplier: >= 0; 0: no noise, on the finest grid.
      l2_clip_norm: > 0. most_rows: that a sum may have. norms_moved: > 0.

    Raises:
      ValueError: an argument is out of range, noise is too little for any row of whole numbers, or
        sums may wrap around.
    """
    _validate.non_negative(noise_multiplier=noise_multiplier)
    _validate.positive(l2_clip_norm=l2_clip_norm, norms_moved=norms_moved)
    _validate.positive_int(most_rows=most_rows)
    if not 1e-30 <= l2_clip_norm <= 1e30:
        raise ValueError(
            f"Expected l2_clip_norm in [1e-30, 1e30], got l2_clip_norm={l2_clip_norm!r}."
        )
    most, reach = _LONGEST**2, 0
    if noise_multiplier:
        longest = Fraction(STDDEV) / (Fraction(noise_multiplier) * Fraction(norms_moved))
        most, reach = math.floor(longest**2), integer_grid.most_noise("rounded_gaussian", STDDEV)
        least = STDDEV / (_LONGEST * norms_moved)
        if most > _LONGEST**2:
            raise ValueError(
                f"Expected noise_multiplier to be 0 or >= {least:.4g} with noise='exact', got "
                f"noise_multiplier={noise_multiplier!r}."
            )
    if most_rows * math.isqrt(most) + reach >= 2**31:
        raise ValueError(
            f"Expected at most {(2**31 - 1 - reach) // max(1, math.isqrt(most))} units with "
            f"noise='exact' and this noise_multiplier, else sums wrap around, got {most_rows}."
        )
    return Grid(most, noise_multiplier > 0, float(l2_clip_norm))


def steps_of_norm(of: Grid, num_params: int) -> float:
    """Steps that are `l2_clip_norm`: what rounding leaves of the longest row.

    Raises:
      ValueError: rounding alone makes a longer row of so many parameters.
    """
    length = integer_grid.length_before(math.sqrt(of.most_squared_norm), num_params)
    if not length >= 1:
        raise ValueError(
            f"Expected fewer than {4 * of.most_squared_norm} parameters with noise='exact' and "
            "this noise_multiplier, else rounding alone is as long as a row may be, got "
            f"{num_params}."
        )
    return length


def total(of: Grid, rows: PyTree, factors: jax.Array, keys: jax.Array, mask: jax.Array) -> PyTree:
    """Int32 tree: the sum of rounded rows of a tree of `[C, ...]`, each times its factor.

    Guarantee: each row that counts adds whole numbers whose squared norm is at most
    `most_squared_norm`, whatever it holds; one that is not finite, or whose factor is 0, adds zero.
    The sum does not depend on the order of rows, nor on which of them are added up together.

    Args:
      rows: tree of `[C, ...]`. factors: `[C]` >= 0, that clip them.
      keys: `[C]`, one for each row, used for nothing else. mask: bool `[C]`, True where it counts.
    """
    rows = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), rows)
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], jnp.int32), rows)
    size = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(like))
    scale = jnp.float32(steps_of_norm(of, size) / of.l2_clip_norm)

    def whole(row: Params, factor: jax.Array, key: jax.Array) -> jax.Array:
        flat = ravel_pytree(row)[0]
        # where: NaN * 0 is NaN. Two products: clipped before it is brought to the grid.
        steps = jnp.where(factor > 0, flat * factor, 0.0) * scale
        return discrete.grid_round(key, steps, of.most_squared_norm)

    found = jax.vmap(whole)(rows, factors, keys)
    return _like(jnp.sum(jnp.where(mask[:, None], found, 0), axis=0, dtype=jnp.int32), like)


def noised(of: Grid, key: jax.Array, sums: PyTree) -> Params:
    """Float32 tree of a sum of rows, an int32 tree: with noise, in the unit of the updates.

    Guarantee: a function of the Gaussian mechanism with noise multiplier
    STDDEV / (norms_moved sqrt(most_squared_norm)) on the sum in steps, as far as random bits are
    uniform: see `fljax_kernels.discrete.rounded_gaussian_noise`.
    """
    flat, back = ravel_pytree(sums)
    if of.noisy:
        flat += discrete.rounded_gaussian_noise(key, flat.shape, STDDEV)
    unit = of.l2_clip_norm / steps_of_norm(of, flat.size)
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float32) * jnp.float32(unit), back(flat))


def _like(flat: jax.Array, like: PyTree) -> PyTree:
    leaves, form = jax.tree.flatten(like)
    ends = [0]
    for leaf in leaves:
        ends.append(ends[-1] + math.prod(leaf.shape))
    parts = [
        flat[begin:end].reshape(leaf.shape)
        for begin, end, leaf in zip(ends, ends[1:], leaves, strict=False)
    ]
    return jax.tree.unflatten(form, parts)
