"""vmap of grad: the rows of G, held. It defines the result of every other method."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fljax_kernels import _platforms
from fljax_kernels.loops.api import loop_friendly
from fljax_kernels.per_example.batches import Batch


def wide(*dtypes: Any) -> Any:
    """The widest, at least float32: bfloat16 squares and sums lose three digits. Strict promotion
    has no such rule.
    """
    return np.result_type(np.float32, *(d for d in dtypes if jnp.dtype(d).itemsize >= 4))


def column(weights: jax.Array, like: jax.Array) -> jax.Array:
    """`[B]` as `[B, 1, ..., 1]`, to stand beside `like`."""
    return weights.reshape(weights.shape + (1,) * (like.ndim - weights.ndim))


def flat(rows: jax.Array) -> jax.Array:
    """`[B, ...]` as `[B, n]`, at least float32; -1 cannot be inferred where B is 0."""
    return rows.reshape(rows.shape[0], math.prod(rows.shape[1:])).astype(wide(rows.dtype))


def keep_rows(rows: jax.Array, kept: jax.Array) -> jax.Array:
    """Rows become 0 where `kept` `[B]` is False. A selection, not a product: NaN * 0 is NaN."""
    # Straight from lax, as all that stands for each parameter: of jax.numpy a function is traced,
    # and lowered, for each shape.
    return lax.select(lax.broadcast_in_dim(kept, rows.shape, (0,)), rows, lax.full_like(rows, 0))


def drop_rows(rows: jax.Array, weights: jax.Array) -> jax.Array:
    """Rows with weight 0 become 0."""
    return keep_rows(rows, weights != 0)


def weigh_rows(rows: jax.Array, weights: jax.Array) -> jax.Array:
    """c_i times row i, and 0 where c_i is 0."""
    c = weights.astype(rows.dtype)
    return keep_rows(lax.mul(lax.broadcast_in_dim(c, rows.shape, (0,)), rows), c != 0)


def sum_of_squares(rows: jax.Array, *axes: int) -> jax.Array:
    """Over the axes, in at least float32."""
    return lax.reduce_sum(lax.square(rows.astype(wide(rows.dtype))), axes)


def _weighted(rows: jax.Array, weights: jax.Array) -> jax.Array:
    if "cpu" not in _platforms.candidates():
        # A matrix product would take a copy of the rows, where a sum reads them once.
        c = column(weights, rows).astype(rows.dtype)
        return jnp.sum(jnp.where(c != 0, c * rows, jnp.zeros((), rows.dtype)), axis=0)
    exact = jax.lax.Precision.HIGHEST
    return jnp.tensordot(
        weights.astype(rows.dtype), drop_rows(rows, weights), axes=1, precision=exact
    )


class MaterializedRows:
    """The engine that holds `[B, ...]` for each leaf. why: for `explain`."""

    def __init__(self, loss: Callable[..., Any], batch: Batch, why: str = "as asked"):
        self._loss, self._batch, self._why = loss, batch, why

    @functools.cached_property
    def _pass(self) -> tuple[Any, list[jax.Array]]:
        batch = self._batch

        def one(example: Any) -> Any:
            return jax.value_and_grad(self._loss, has_aux=True)(batch.leaves, example)

        return loop_friendly(jax.vmap(one, axis_size=batch.size))(batch.examples)

    def has_pass_of(self, other: Any) -> bool:
        """Whether the engine of another platform computes the same pass."""
        return type(self) is type(other)

    def values(self) -> jax.Array:
        return self._pass[0][0]

    def aux(self) -> Any:
        return self._pass[0][1]

    def rows(self) -> list[jax.Array]:
        return self._pass[1]

    def squared_norms(self) -> list[jax.Array]:
        return [jnp.sum(jnp.square(flat(g)), axis=1) for g in self.rows()]

    def grams(self) -> list[jax.Array]:
        return [flat(g) @ flat(g).T for g in self.rows()]

    def weighted_sums(self, weights: list[jax.Array]) -> list[jax.Array]:
        return [
            _weighted(g.astype(wide(g.dtype)), c) for c, g in zip(weights, self.rows(), strict=True)
        ]

    def directional(self, vectors: list[jax.Array]) -> list[jax.Array]:
        return [
            flat(g) @ v.reshape(-1).astype(wide(g.dtype))
            for g, v in zip(self.rows(), vectors, strict=True)
        ]

    def explain(self) -> str:
        bytes_held = sum(
            self._batch.size * leaf.size * leaf.dtype.itemsize for leaf in self._batch.leaves
        )
        return (
            f"vmap ({self._why}): holds the gradient of every parameter for each example, "
            f"{bytes_held / 2**20:.1f} MiB"
        )
