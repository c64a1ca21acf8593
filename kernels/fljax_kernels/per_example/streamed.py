"""A scan over microbatches: every product with the memory of `microbatch_size` examples.

XLA on a CPU is slow at convolutions inside loops: the loss should come with patches and matrix
products in their place, as `loop_friendly(loss, inside_loop=True)` gives it, so that gradients of
kernels read the patches of the forward pass.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fljax_kernels import _platforms
from fljax_kernels.loops.api import LoopFriendly, loop_friendly
from fljax_kernels.per_example import jaxprs
from fljax_kernels.per_example.batches import Batch, fresh_keys, make_varying, varying_axes
from fljax_kernels.per_example.reference import flat, wide
from fljax_kernels.per_example.separable import one_by_one
from fljax_kernels.per_example.taps import Plan, Taps

EngineOf = Callable[[Batch], Any]
Weigh = Callable[[list[jax.Array], Any], list[jax.Array]]


def _scan(step: Callable[[Any, Any], Any], init: Any, xs: Any) -> Any:
    return loop_friendly(lambda init, xs: jax.lax.scan(step, init, xs))(init, xs)


class StreamedRows:
    """Runs another engine chunk by chunk. Each product costs one pass; `gram` costs one per pair of
    chunks.
    """

    def __init__(self, engine_of: EngineOf, batch: Batch, microbatch_size: int):
        self._engine_of, self._batch = engine_of, batch
        self._chunk = min(microbatch_size, batch.size)
        self._num_chunks = -(-batch.size // self._chunk)
        self._seen: tuple[Any, jax.Array, Any] | None = (
            None  # by whom; values and auxiliaries that a pass has met
        )

    def _chunked(self, tree: Any) -> Any:
        """`[B, ...]` as `[num_chunks, chunk, ...]`; the last example fills the rest and counts with
        weight 0.
        """
        total = self._num_chunks * self._chunk
        pick = (
            None
            if total == self._batch.size
            else jnp.minimum(jnp.arange(total), self._batch.size - 1)
        )

        def cut(x: jax.Array) -> jax.Array:
            if jnp.shape(x)[:1] != (self._batch.size,):
                size, shape = self._batch.size, jnp.shape(x)
                raise ValueError(
                    f"Expected coefficients or per_example with leading axis {size}, got shape "
                    f"{shape}."
                )
            x = x if pick is None else x[pick]
            return x.reshape(self._num_chunks, self._chunk, *x.shape[1:])

        return jax.tree.map(cut, fresh_keys(tree))

    def _chunk_engine(self, examples: Any) -> Any:
        return self._engine_of(self._batch._replace(examples=examples, size=self._chunk))

    def _map(self, product: Callable[[Any], Any]) -> Any:
        def step(_: None, examples: Any) -> tuple[None, Any]:
            return None, product(self._chunk_engine(examples))

        return self._joined(_scan(step, None, self._chunked(self._batch.examples))[1])

    def _joined(self, tree: Any) -> Any:
        total = self._num_chunks * self._chunk
        return jax.tree.map(lambda x: x.reshape(total, *x.shape[2:])[: self._batch.size], tree)

    def has_pass_of(self, other: Any) -> bool:
        """Never: it has one for each chunk."""
        return False

    def values(self) -> jax.Array:
        seen = self.seen()
        return self._map(lambda engine: engine.values()) if seen is None else seen[0]

    def aux(self) -> Any:
        seen = self.seen()
        return self._map(lambda engine: engine.aux()) if seen is None else seen[1]

    def seen(self) -> tuple[jax.Array, Any] | None:
        """Values and auxiliaries, if a sum made in this very trace has met them."""
        if self._seen is None or self._seen[0] != jaxprs.trace_state():
            return None
        return self._seen[1:]

    def rows(self) -> list[jax.Array]:
        return self._map(lambda engine: engine.rows())

    def squared_norms(self) -> list[jax.Array]:
        return self._map(lambda engine: engine.squared_norms())

    def directional(self, vectors: list[jax.Array]) -> list[jax.Array]:
        return self._map(lambda engine: engine.directional(vectors))

    def weighted_sums(self, weights: list[jax.Array]) -> list[jax.Array]:
        return self.fused_sums(lambda _, mine: mine, weights)[0]

    def fuses(self, weigh: Weigh, extra: Any) -> bool:
        """Whatever is weighed, chunk by chunk is what was asked for."""
        return True

    def fused_sums(self, weigh: Weigh, extra: Any) -> tuple[Any, Any]:
        """sum_i w_i g_i with w = weigh(squared norms, extra), and the squared norms: ONE pass over
        the data.
        """
        position = jnp.arange(self._num_chunks * self._chunk).reshape(self._num_chunks, self._chunk)

        def step(sums: list[jax.Array], chunk: Any) -> tuple[list[jax.Array], Any]:
            examples, mine, here = chunk
            engine = self._chunk_engine(examples)
            squares = engine.squared_norms()
            weights = weigh(squares, mine)
            # One array for leaves of one weight: engines know such leaves by it.
            kept = {id(w): jnp.where(here, w, jnp.zeros((), w.dtype)) for w in weights}
            weights = [kept[id(w)] for w in weights]
            total = [s + t for s, t in zip(sums, engine.weighted_sums(weights), strict=True)]
            return total, (squares, (engine.values(), engine.aux()))

        chunks = (
            self._chunked(self._batch.examples),
            self._chunked(extra),
            position < self._batch.size,
        )
        axes = varying_axes(*jax.tree.leaves(chunks), *self._batch.leaves)
        zeros = [make_varying(jnp.zeros(p.shape, wide(p.dtype)), axes) for p in self._batch.leaves]
        sums, seen = _scan(step, zeros, chunks)
        squares, (values, aux) = self._joined(seen)
        self._seen = jaxprs.trace_state(), values, aux
        return sums, squares

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


class TapsInChunks(Taps):
    """`Taps`, but what takes a norm and a sum, `fused_sums`, goes chunk by chunk: its arrays stay
    in a CPU's cache, or a TPU's fast memory.
    """

    def __init__(self, loss: LoopFriendly, batch: Batch, plan: Plan, microbatch_size: int):
        super().__init__(loss, batch, plan)
        self._size = microbatch_size
        engine = functools.partial(Taps, loss, plan=plan)
        if _platforms.cpu_alone():
            engine = functools.partial(Taps, LoopFriendly(loss.fun, inside_loop=True))
        self._chunks = StreamedRows(engine, batch, self._size)

    def has_pass_of(self, other: Any) -> bool:
        """Never: a pass of the whole batch is what it avoids."""
        return False

    def fuses(self, weigh: Weigh, extra: Any) -> bool:
        """Nobody asked for chunks: what weighs a batch as a whole, by the rank of a norm say, shall
        see it whole.
        """
        size = self._batch.size
        if "_pass" in self.__dict__ or any(
            jnp.shape(x)[:1] != (size,) for x in jax.tree.leaves(extra)
        ):
            return False

        def arguments(length: int) -> tuple[Any, Any]:
            squares = [
                jax.ShapeDtypeStruct((length,), wide(leaf.dtype)) for leaf in self._batch.leaves
            ]
            return squares, jax.tree.map(
                lambda x: jax.ShapeDtypeStruct((length, *x.shape[1:]), x.dtype), extra
            )

        return one_by_one(weigh, arguments, self._size, size)

    def fused_sums(self, weigh: Weigh, extra: Any) -> tuple[Any, Any]:
        """As `StreamedRows`."""
        return self._chunks.fused_sums(weigh, extra)

    def values(self) -> jax.Array:
        seen = self._chunks.seen()
        return super().values() if seen is None else seen[0]

    def aux(self) -> Any:
        seen = self._chunks.seen()
        return super().aux() if seen is None else seen[1]

    def explain(self) -> str:
        """As for taps."""
        return (
            f"{super().explain()}\n`weighted_sum`, where its coefficients are elementwise in the "
            "norms: "
            f"{self._chunks.explain()}"
            + (", with patches for convolutions" if _platforms.cpu_alone() else "")
        )
