"""The eigenpairs above a threshold, where they are few: found by block iteration, and only kept if
that is checked.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax_kernels import _meshes

# Columns that are iterated: so many less one pairs can be found. Products with the matrix in a
# round, and rounds.
BLOCK, DEGREE, ROUNDS = 16, 4, 5
# Residual of a pair, in units of rounding of the largest value, up to which it is kept: `eigh`'s
# own reach 4 of them.
RESIDUAL_MARGIN = 16.0


class Pairs(NamedTuple):
    """values `[BLOCK]`, ascending; vectors `[B, BLOCK]`, orthonormal columns. complete: `[]` bool.

    If complete, the pairs above the threshold are all there are, with residuals of at most
    RESIDUAL_MARGIN units of rounding of the largest value; the others mean nothing. If not, none
    does.
    """

    values: jax.Array
    vectors: jax.Array
    complete: jax.Array


class _Round(NamedTuple):
    values: jax.Array  # [BLOCK], Ritz values, ascending
    vectors: jax.Array  # [B, BLOCK]
    products: jax.Array  # [B, BLOCK], matrix @ vectors
    settled: jax.Array  # [] bool
    rounds: jax.Array  # [] int32


def above(matrix: jax.Array, floor: jax.Array, unit: float) -> Pairs:
    """Eigenpairs of a positive semidefinite matrix `[B, B]`, B >= BLOCK, above `floor + unit * its
    largest value`.

    Chebyshev-filtered subspace iteration from a fixed block: each round damps the values in [0,
    floor], and Ritz values end it. They never exceed the eigenvalues, so if all of them are above
    the threshold there are too many pairs. Complete means that both of two checks passed, neither
    of which trusts the iteration: the residual of every pair above the threshold is within
    RESIDUAL_MARGIN units of rounding, and threshold * I - matrix without those pairs has a Cholesky
    factor, so nothing else is above by more than rounding (a few units of the largest value, and a
    share of B units of the threshold at the very most). A start that misses an eigenvector, a gap
    too small or a NaN fails.

    Args:
      matrix: float32 or float64, of trace 1 at most: the filter takes powers of it.
      floor: `[]`, > 0.
      unit: what of the largest value the threshold is higher than the floor.
    """
    small = jnp.asarray(RESIDUAL_MARGIN * np.finfo(matrix.dtype).eps, matrix.dtype)
    edge = floor + jnp.asarray(unit, matrix.dtype)

    def threshold(values: jax.Array) -> jax.Array:
        return floor + jnp.asarray(unit, matrix.dtype) * values[-1]

    def once(last: _Round) -> _Round:
        # Damped is [0, 2 half]: what is below the threshold, less if the block has room.
        half = jnp.clip(last.values[0], edge / 64, edge) / 2
        basis = jnp.linalg.qr(_filtered(matrix, last.vectors, last.products, half))[0]
        products = _matmul(matrix, basis)
        inner = _matmul(basis.T, products)
        values, turn = jnp.linalg.eigh(inner)
        vectors, products = _matmul(basis, turn), _matmul(products, turn)
        residuals = jnp.sqrt(jnp.sum(jnp.square(products - vectors * values[None, :]), axis=0))
        # An eigenvalue lies within the residual of each Ritz value: either it is found, or it is
        # below the threshold.
        settled = jnp.all(
            (residuals <= small * values[-1]) | (values + residuals <= threshold(values))
        )
        return _Round(values, vectors, products, settled, last.rounds + 1)

    def goes_on(last: _Round) -> jax.Array:
        too_many = (last.rounds > 0) & (last.values[0] > threshold(last.values))
        return ~last.settled & ~too_many & (last.rounds < ROUNDS)

    # Until there are Ritz values: a few large ones leave the others about the mean, which is at
    # most 1 / B.
    low = jnp.minimum(edge, jnp.asarray(2 / matrix.shape[0], matrix.dtype))
    # `0 * edge` and `edge < 0`: a loop's start must vary over devices, within `shard_map`, if its
    # body does.
    first = start(matrix.shape[0], matrix.dtype) + 0 * edge
    begin = _Round(
        jnp.full(BLOCK, low), first, _matmul(matrix, first), edge < 0, jnp.zeros((), jnp.int32)
    )
    found = _meshes.while_loop(goes_on, once, begin)
    least = threshold(found.values)
    kept = found.values > least

    def nothing_else() -> jax.Array:
        known = found.vectors * jnp.where(kept, found.values, jnp.zeros((), matrix.dtype))[None, :]
        rest = _matmul(known, found.vectors.T) - matrix
        diagonal = jnp.arange(matrix.shape[0])
        factor = jax.lax.linalg.cholesky(
            rest.at[diagonal, diagonal].add(least), symmetrize_input=False
        )
        return jnp.all(jnp.isfinite(jnp.diagonal(factor)))

    few = found.settled & ~kept[0]
    complete = jax.lax.cond(_meshes.any_has(few), lambda: few & nothing_else(), lambda: few)
    return Pairs(found.values, found.vectors, complete)


def start(size: int, dtype: jnp.dtype) -> jax.Array:
    """The block `[size, BLOCK]` that every iteration starts from: a constant, for draws that
    repeat.
    """
    return jnp.asarray(np.random.default_rng(0).standard_normal((size, BLOCK)), dtype)


def _filtered(
    matrix: jax.Array, vectors: jax.Array, products: jax.Array, half: jax.Array
) -> jax.Array:
    """The Chebyshev polynomial of order DEGREE in (matrix - half) / half, times the vectors."""
    before, here = vectors, products / half - vectors
    for _ in range(DEGREE - 1):
        before, here = here, 2 * (_matmul(matrix, here) / half - here) - before
    return here


def _matmul(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.matmul(a, b, precision="highest")
