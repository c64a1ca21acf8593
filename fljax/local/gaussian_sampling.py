"""One gradient step's worth of a client's records, with clipped gradients: all of them, a random
subset of them, or all of them with Gaussian weights. What varies is the randomness that the weights
bring into the sum.

A client has `num_records` places for records, a public number D; a place without a record (-1) has
a zero gradient.

Source: Zhang et al. (2024), "Differentially Private Federated Learning without Noise Addition: When
is it Possible?", arXiv:2405.04551, sections 2 to 5; Gaussian weights: Wu et al. (2020),
arXiv:1906.07405.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import fljax_kernels
from fljax import _validate
from fljax.local import clipping, keyed
from fljax.local.sgd import take_examples
from fljax.types import Batch, LossFn, Params


class WeightedSum(NamedTuple):
    """sum: params-like, at least float32. loss: `[]`, mean over the records. clipped_fraction:
    `[]`. All private.
    """

    sum: Params
    loss: jax.Array
    clipped_fraction: jax.Array


class ClippedGradients:
    """The clipped gradients of one client's records as an implicit matrix: row j is clip factor j
    times gradient j.

    A row is zero where there is no record, or its gradient is not finite. Everything here is
    private.
    """

    def __init__(self, matrix: Any, mask: jax.Array, l2_clip_norm: float):
        self._matrix, self._mask, self._clip = matrix, mask, l2_clip_norm
        self._factors = clipping.flat(matrix.row_norms(), l2_clip_norm)

    def gram(self, *, per_leaf: bool = False) -> Any:
        """Products of the rows with one another, `[D, D]`, or a params-like tree of them, which
        adds up to it.
        """
        here = self._factors != 0
        both = here[:, None] & here[None, :]

        def scaled(gram: jax.Array) -> jax.Array:
            # where, not multiply: a gradient that is not finite has factor 0, and 0 * NaN is NaN.
            return self._factors[:, None] * jnp.where(both, gram, 0) * self._factors[None, :]

        return jax.tree.map(scaled, self._matrix.gram(per_leaf=per_leaf))

    def matvec(self, vector: Params) -> jax.Array:
        """Products of the rows with a params-like tree, `[D]`."""
        return self._factors * jnp.where(self._factors != 0, self._matrix.matvec(vector), 0)

    def weighted_sum(self, weights: Any) -> WeightedSum:
        """sum_j weights[j] * row j; `weights` `[D]`, or a params-like tree of `[D]`, each for one
        parameter array.
        """
        total = self._matrix.rmatvec(jax.tree.map(lambda w: self._factors * w, weights))
        norms = self._matrix.row_norms()
        return WeightedSum(
            total, *_diagnostics(self._matrix.values(), norms, self._mask, self._clip)
        )


def clipped_gradients(
    loss: LossFn, *, l2_clip_norm: float
) -> Callable[[Params, Batch, jax.Array, jax.Array], ClippedGradients]:
    """`fun(params, examples, rows, key) -> ClippedGradients`, `rows` int32 `[D]` of the pool
    `examples`, -1: no record.

    `key` is the client's in this round; a loss that draws has a stream of its own from it.

    Guarantee: every row of the result has norm at most `l2_clip_norm` (up to float32 rounding),
      whatever the record.

    Raises:
      ValueError: `l2_clip_norm` is not > 0 and finite.
    """
    _validate.positive(l2_clip_norm=l2_clip_norm)
    gradients = fljax_kernels.per_example_grads(keyed.of_one(loss))

    def fun(params: Params, examples: Batch, rows: jax.Array, key: jax.Array) -> ClippedGradients:
        batch = keyed.drawing(loss, take_examples(examples, rows), key, 0, jnp.arange(rows.size))
        return ClippedGradients(
            gradients(params, batch, batch_mask=rows >= 0), rows >= 0, l2_clip_norm
        )

    return fun


def clipped_sum(
    loss: LossFn, *, l2_clip_norm: float, batch_size: int
) -> Callable[..., WeightedSum]:
    """`fun(params, examples, rows, weights, key, places=None) -> WeightedSum`: clipped gradients
    times `weights` `[D]`.

    They are those of `rows` `[D]` at `places` of the client's row; None: in their order. `key` as
    in `clipped_gradients`.

    Guarantee: a record with weight w moves the sum by at most |w| * `l2_clip_norm`, by twice that
      if it is replaced.

    Args:
      loss: `loss(params, example) -> []`.
      l2_clip_norm: > 0.
      batch_size: records whose gradients are taken together; only speed and memory depend on it.

    Raises:
      ValueError: an argument is out of range.
    """
    _validate.positive(l2_clip_norm=l2_clip_norm)
    _validate.positive_int(batch_size=batch_size)

    one = keyed.of_one(loss)

    def fun(
        params: Params,
        examples: Batch,
        rows: jax.Array,
        weights: jax.Array,
        key: jax.Array,
        places: jax.Array | None = None,
    ) -> WeightedSum:
        streamed = batch_size if batch_size < rows.shape[0] else None
        at = jnp.arange(rows.size) if places is None else places
        batch = keyed.drawing(loss, take_examples(examples, rows), key, 0, at)
        matrix = fljax_kernels.per_example_grads(one, microbatch_size=streamed)(
            params, batch, batch_mask=rows >= 0
        )
        total, norms = matrix.weighted_sum(
            lambda norms, w: w * clipping.flat(norms, l2_clip_norm), weights
        )
        return WeightedSum(total, *_diagnostics(matrix.values(), norms, rows >= 0, l2_clip_norm))

    return fun


def _diagnostics(
    losses: jax.Array, norms: jax.Array, mask: jax.Array, l2_clip_norm: float
) -> tuple[jax.Array, jax.Array]:
    losses = losses.astype(jnp.float32)
    count = jnp.maximum(1, jnp.sum(mask)).astype(jnp.float32)
    loss = jnp.sum(jnp.where(mask & jnp.isfinite(losses), losses, 0)) / count
    return loss, jnp.sum(~(norms <= l2_clip_norm) & mask).astype(jnp.float32) / count


def gaussian_weights(key: jax.Array, num_records: int, batch_size: float) -> jax.Array:
    """1/D + xi_j / sqrt(B D), xi ~ N(0, I), `[D]`: the weighted sum is N(mean, G^T G / (B D)).

    B = `batch_size` > 0 is only a scale: all records take part, and it need not be an integer.
    """
    _validate.positive_int(num_records=num_records)
    _validate.positive(batch_size=batch_size)
    xi = jax.random.normal(key, (num_records,))
    return 1 / num_records + xi / jnp.sqrt(jnp.float32(batch_size * num_records))


def subset_places(key: jax.Array, num_records: int, batch_size: int) -> jax.Array:
    """`batch_size` of the places 0..D-1, drawn without replacement; empty ones are drawn like
    others.
    """
    _validate.positive_int(batch_size=batch_size)
    if batch_size > num_records:
        raise ValueError(
            f"Expected batch_size <= num_records={num_records}, got batch_size={batch_size}."
        )
    return fljax_kernels.fixed_size_sample(key, num_records, batch_size)
