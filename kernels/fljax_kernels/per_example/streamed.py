"""A scan over microbatches: every product with the memory of `microbatch_size` examples.

On a CPU the convolutions of such a scan are patches and matrix products, as XLA is slow at them inside loops.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fljax_kernels.loop_friendly.api import loop_friendly
from fljax_kernels.per_example.batches import Batch, fresh_keys, make_varying, varying_axes
from fljax_kernels.per_example.reference import flat, wide

EngineOf = Callable[[Batch], Any]


def _scan(step: Callable[[Any, Any], Any], init: Any, xs: Any) -> Any:
    return loop_friendly(lambda init, xs: jax.lax.scan(step, init, xs))(init, xs)


class StreamedRows:
    """Runs another engine chunk by chunk. Each product costs one pass; `gram` costs one per pair of chunks."""

    def __init__(self, engine_of: EngineOf, batch: Batch, microbatch_size: int):
        self._engine_of, self._batch = engine_of, batch
        self._chunk = min(microbatch_size, batch.size)
        self._num_chunks = -(-batch.size // self._chunk)

    def _chunked(self, tree: Any) -> Any:
        """`[B, ...]` as `[num_chunks, chunk, ...]`; the last example fills the rest and counts with weight 0."""
        total = self._num_chunks * self._chunk
        pick = None if total == self._batch.size else jnp.minimum(jnp.arange(total), self._batch.size - 1)

        def cut(x: jax.Array) -> jax.Array:
            x = x if pick is None else x[pick]
            return x.reshape(self._num_chunks, self._chunk, *x.shape[1:])

        return jax.tree.map(cut, fresh_keys(tree))

    def _chunk_engine(self, examples: Any) -> Any:
        return self._engine_of(self._batch._replace(examples=examples, size=self._chunk))

    def _map(self, product: Callable[[Any], Any]) -> Any:
        def step(_: None, examples: Any) -> tuple[None, Any]:
            return None, product(self._chunk_engine(examples))

        out = _scan(step, None, self._chunked(self._batch.examples))[1]
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[: self._batch.size], out)

    def values(self) -> jax.Array:
        return self._map(lambda engine: engine.values())

    def aux(self) -> Any:
        return self._map(lambda engine: engine.aux())

    def rows(self) -> list[jax.Array]:
        return self._map(lambda engine: engine.rows())

    def squared_norms(self) -> list[jax.Array]:
        return self._map(lambda engine: engine.squared_norms())

    def directional(self, vectors: list[jax.Array]) -> list[jax.Array]:
        return self._map(lambda engine: engine.directional(vectors))

    def weighted_sums(self, weights: list[jax.Array]) -> list[jax.Array]:
        return self.fused_sums(lambda _, mine: mine, weights)[0]

    def fused_sums(self, weigh: Callable[[list[jax.Array], Any], list[jax.Array]], extra: Any) -> tuple[Any, Any]:
        """sum_i w_i g_i with w = weigh(squared norms, extra), and the squared norms: ONE pass over the data."""
        position = jnp.arange(self._num_chunks * self._chunk).reshape(self._num_chunks, self._chunk)

        def step(sums: list[jax.Array], chunk: Any) -> tuple[list[jax.Array], Any]:
            examples, mine, here = chunk
            engine = self._chunk_engine(examples)
            squares = engine.squared_norms()
            weights = [jnp.where(here, w, jnp.zeros((), w.dtype)) for w in weigh(squares, mine)]
            return [s + t for s, t in zip(sums, engine.weighted_sums(weights), strict=True)], squares

        chunks = (self._chunked(self._batch.examples), self._chunked(extra), position < self._batch.size)
        axes = varying_axes(*jax.tree.leaves(chunks), *self._batch.leaves)
        zeros = [make_varying(jnp.zeros(p.shape, wide(p.dtype)), axes) for p in self._batch.leaves]
        sums, squares = _scan(step, zeros, chunks)
        return sums, [s.reshape(-1)[: self._batch.size] for s in squares]

    def grams(self) -> list[jax.Array]:
        chunks = self._chunked(self._batch.examples)

        def across(_: None, examples: Any) -> tuple[None, list[jax.Array]]:
            mine = self._chunk_engine(examples).rows()

            def along(_: None, others: Any) -> tuple[None, list[jax.Array]]:
                theirs = self._chunk_engine(others).rows()
                return None, [flat(a) @ flat(b).T for a, b in zip(mine, theirs, strict=True)]

            return None, jax.lax.scan(along, None, chunks)[1]

        blocks = _scan(across, None, chunks)[1]
        total, size = self._num_chunks * self._chunk, self._batch.size
        return [b.transpose(0, 2, 1, 3).reshape(total, total)[:size, :size] for b in blocks]

    def explain(self) -> str:
        return f"microbatch: {self._num_chunks} chunks of {self._chunk} examples, one after another"
