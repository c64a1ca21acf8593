"""The engine of method "taps": one backward pass with respect to taps, then products from compact
terms.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from fljax_kernels import _barrier, _meshes, _platforms
from fljax_kernels.discrete.sums import Part
from fljax_kernels.loops.api import LoopFriendly, loop_friendly
from fljax_kernels.per_example import jaxprs
from fljax_kernels.per_example.batches import Batch, fresh_keys, make_varying, varying_axes
from fljax_kernels.per_example.plan import EXAMPLE, Info, Planner
from fljax_kernels.per_example.pullback import SharedValues, pull_back
from fljax_kernels.per_example.reference import flat, wide
from fljax_kernels.per_example.tapped import run, zero_taps
from fljax_kernels.per_example.terms import HIGHEST, Product, Rows, inner_products, join


class Traced:
    """The loss of one example, traced once for all platforms that may be lowered for."""

    def __init__(self, loss: LoopFriendly, batch: Batch):
        example = jax.tree.map(lambda x: x[0], fresh_keys(batch.examples))
        # As it was before it was made friendly to loops: that is for CPUs alone.
        self._loss, trace = loss, jax.make_jaxpr(loss.fun, return_shape=True)
        self._closed, (_, aux) = trace(batch.leaves, example)
        self._num_leaves, self._aux_tree = len(batch.leaves), jax.tree.structure(aux)
        self._in_place = is_spread(batch)
        alike = not (jaxprs.holds_choice(self._closed.jaxpr) or loss.changes(self._closed.jaxpr))
        self._of_all = self._planned(self._closed) if alike else None

    def plan(self) -> "Plan":
        """For the platforms of here; the same object for all where the loss is the same for all."""
        if self._of_all is not None:
            return self._of_all
        if "cpu" not in _platforms.candidates():
            return self._planned(self._closed)
        for_cpus = LoopFriendly(core.jaxpr_as_fun(self._closed), self._loss.inside_loop)
        return self._planned(jax.make_jaxpr(for_cpus)(*self._closed.in_avals))

    def _planned(self, closed: Any) -> "Plan":
        flat = jaxprs.flatten(closed.jaxpr, closed.consts)
        return Plan(*flat, self._num_leaves, self._aux_tree, in_place=self._in_place)


class Plan:
    """The traced loss with its sites; depends on shapes only."""

    def __init__(
        self, jaxpr: Any, consts: list[Any], num_leaves: int, aux_tree: Any, *, in_place: bool
    ):
        self.consts, self.num_leaves, self.aux_tree = consts, num_leaves, aux_tree
        arguments = [Info(False, frozenset({k})) for k in range(self.num_leaves)]
        arguments += [EXAMPLE] * (len(jaxpr.invars) - self.num_leaves)
        self.planner = Planner(in_place=in_place)
        self.body = self.planner.body(jaxpr, self.consts, arguments, ())
        self.planner.finish(self.body, [0])

    def evaluate(self, batch: Batch) -> tuple[Any, Any, Any]:
        """(losses and auxiliaries, records, tap cotangents), each with leading axis B."""
        axes = varying_axes(*batch.leaves, *jax.tree.leaves(batch.examples))
        zeros = jax.tree.map(lambda z: make_varying(z, axes), zero_taps(self.planner))

        def one(example: Any) -> Any:
            def tapped(taps: dict[int, Any]) -> Any:
                (value, *aux), records = run(
                    self.body, [*batch.leaves, *jax.tree.leaves(example)], taps
                )
                return value, (aux, records)

            (value, (aux, records)), cotangents = jax.value_and_grad(tapped, has_aux=True)(zeros)
            return (value, aux), records, cotangents

        return loop_friendly(jax.vmap(one, axis_size=batch.size))(batch.examples)

    def terms(self, batch: Batch, records: Any, cotangents: Any) -> list[list[Any]]:
        """What each leaf's per-example gradient is the sum of: one term, or several with a form for
        each pair.
        """
        if _platforms.tpu_alone():  # as they are: so many digits they have
            records = {
                k: (record[0].astype(jnp.bfloat16), record[1])
                if isinstance(record, tuple)
                else record
                for k, record in records.items()
            }
        examples = [None] * (len(self.body.jaxpr.invars) - self.num_leaves)
        shared = SharedValues(self.body, [*batch.leaves, *examples])
        terms = pull_back(self.body, shared, cotangents, records)
        return [settle(join(terms.get(v, []))) for v in self.body.jaxpr.invars[: self.num_leaves]]

    def sketch(self, batch: Batch) -> list[list[tuple[str, float, float]]]:
        """The cost of each term, without computing any."""
        costs: list[Any] = []

        def build(leaves: list[Any], examples: Any) -> None:
            here = batch._replace(leaves=leaves, examples=examples)
            costs.extend(
                [term.cost() for term in mine]
                for mine in self.terms(here, *self.evaluate(here)[1:])
            )

        jax.eval_shape(build, batch.leaves, fresh_keys(batch.examples))
        return costs


def settle(terms: list[Any]) -> list[Any]:
    """Several terms without a form for their cross products become rows."""
    if all(inner_products(a, b) is not None for k, a in enumerate(terms) for b in terms[:k]):
        return terms
    return [
        Rows(
            functools.reduce(jnp.add, [t.rows() for t in terms]),
            "sum of " + ", ".join(t.note for t in terms),
        )
    ]


def is_spread(batch: Batch) -> bool:
    """Whether XLA may cut parameters or examples into parts."""
    return any(map(_meshes.is_spread, [*batch.leaves, *jax.tree.leaves(batch.examples)]))


SMALL = 2**14  # numbers: what it costs nothing to copy


def _is_small(term: Any) -> bool:
    return isinstance(term, Rows) and term.data.size <= SMALL


def parts_of(engine: Any) -> list[Part | None]:
    """The rows of each leaf, for sums of whole numbers; None without a gradient."""
    if isinstance(engine, Taps):
        return engine.parts()
    return [Part(flat(rows).astype(jnp.float32)) for rows in engine.rows()]


def _part(terms: list[Any]) -> Part | None:
    if len(terms) == 1 and type(terms[0]) is Product and terms[0].is_outer:
        x, y = (flat(z).astype(jnp.float32) for z in (terms[0].x, terms[0].y))
        return Part(y, x, terms[0].outer_sum)
    if not terms:
        return None
    rows = functools.reduce(jnp.add, [term.rows() for term in terms])
    return Part(flat(rows).astype(jnp.float32))


class SideBySide:
    """Rows of several leaves, `[B, sum of sizes]`. where: leaf -> (start, stop)."""

    def __init__(self, rows: dict[int, jax.Array]):
        parts = [flat(row) for row in rows.values()]
        dtype = wide(*(part.dtype for part in parts))
        self._rows = jnp.concatenate([part.astype(dtype) for part in parts], axis=1)
        ends = list(itertools.accumulate(part.shape[1] for part in parts))
        self.where = dict(zip(rows, zip([0, *ends[:-1]], ends, strict=True), strict=True))
        self._leaf = np.repeat(np.arange(len(parts)), [part.shape[1] for part in parts])

    def squared_norms(self) -> dict[int, jax.Array]:
        """One matrix product. A row that is not finite in one leaf is not finite in all of
        these.
        """
        member = jnp.asarray(
            self._leaf[:, None] == np.arange(len(self.where))[None], self._rows.dtype
        )
        squares = jnp.matmul(jnp.square(self._rows), member, precision=HIGHEST)
        return {k: squares[:, at] for at, k in enumerate(self.where)}

    def weighted_sums(self, weights: list[jax.Array]) -> dict[int, jax.Array]:
        mine = [weights[k] for k in self.where]
        if all(c is mine[0] for c in mine):
            total = Rows(self._rows).weighted_sum(mine[0])
        else:
            columns = jnp.stack(mine, axis=1)[:, self._leaf].astype(self._rows.dtype)
            weighted = jnp.where(
                columns != 0, columns * self._rows, jnp.zeros((), self._rows.dtype)
            )
            total = jnp.sum(weighted, axis=0)
        return {k: total[start:stop] for k, (start, stop) in self.where.items()}


class Taps:
    """Products of G from the terms of each parameter."""

    def __init__(self, loss: LoopFriendly, batch: Batch, plan: Plan | None = None):
        self._batch = batch
        self.plan = Traced(loss, batch).plan() if plan is None else plan

    def has_pass_of(self, other: Any) -> bool:
        """Whether the engine of another platform computes the same pass."""
        return type(self) is type(other) and self.plan is other.plan

    @functools.cached_property
    def _pass(self) -> tuple[Any, Any, Any]:
        return self.plan.evaluate(self._batch)

    @functools.cached_property
    def _terms(self) -> list[list[Any]]:
        return self.plan.terms(self._batch, *self._pass[1:])

    @functools.cached_property
    def _spread(self) -> bool:
        return is_spread(self._batch)

    @functools.cached_property
    def _small(self) -> SideBySide | None:
        """Biases, scales and the like as one array: models have many, and each operation takes
        compile time. Not where they may be cut into parts, which would be gathered; nor on a TPU,
        where the array is written once for each of them.
        """
        if self._spread or _platforms.tpu_alone():
            return None
        chosen = {
            k: terms[0].data
            for k, terms in enumerate(self._terms)
            if len(terms) == 1 and _is_small(terms[0])
        }
        return SideBySide(chosen) if len(chosen) > 1 else None

    def _per_leaf(
        self, product: Callable[[int, Any], jax.Array], empty: Callable[[jax.Array], Any]
    ) -> list[jax.Array]:
        """The sum of a product over the terms of each leaf that is not among the small ones."""
        out = []
        for k, (leaf, terms) in enumerate(zip(self._batch.leaves, self._terms, strict=True)):
            dtype = wide(leaf.dtype)
            if self._small is not None and k in self._small.where:
                terms = []
            parts = [product(k, term).astype(dtype) for term in terms]
            out.append(functools.reduce(jnp.add, parts) if parts else jnp.zeros(empty(leaf), dtype))
        return out

    def values(self) -> jax.Array:
        return self._pass[0][0]

    def aux(self) -> Any:
        return jax.tree.unflatten(self.plan.aux_tree, self._pass[0][1])

    def rows(self) -> list[jax.Array]:
        out = []
        for leaf, terms in zip(self._batch.leaves, self._terms, strict=True):
            zero = jnp.zeros((self._batch.size, *leaf.shape), leaf.dtype)
            out.append(
                functools.reduce(jnp.add, [t.rows().astype(leaf.dtype) for t in terms])
                if terms
                else zero
            )
        return out

    def parts(self) -> list[Part | None]:
        """As `parts_of`, without the rows that are outer products."""
        return [_part(terms) for terms in self._terms]

    def squared_norms(self) -> list[jax.Array]:
        squares = self._per_leaf(
            lambda _, term: term.squared_norms(), lambda _: (self._batch.size,)
        )
        for k, terms in enumerate(self._terms):
            for at, a in enumerate(terms):
                for b in terms[:at]:
                    cross = inner_products(a, b)
                    assert cross is not None  # settle saw to it
                    squares[k] = squares[k] + 2 * cross
        if self._small is not None:
            for k, square in self._small.squared_norms().items():
                squares[k] = square.astype(squares[k].dtype)
        return [_barrier.onward(z) for z in squares] if self._spread else squares

    def grams(self) -> list[jax.Array]:
        size = self._batch.size
        out = []
        for leaf, terms in zip(self._batch.leaves, self._terms, strict=True):
            if len(terms) == 1:
                out.append(terms[0].gram().astype(wide(leaf.dtype)))
            elif terms:
                out.append(
                    Rows(functools.reduce(jnp.add, [t.rows() for t in terms]))
                    .gram()
                    .astype(wide(leaf.dtype))
                )
            else:
                out.append(jnp.zeros((size, size), wide(leaf.dtype)))
        return out

    def weighted_sums(self, weights: list[jax.Array]) -> list[jax.Array]:
        if self._spread:
            # One for each: what is shared would tell one parameter how another is spread.
            weights = [_barrier.apart(c) for c in weights]
        sums = self._per_leaf(
            lambda k, term: term.weighted_sum(weights[k]).reshape(self._batch.leaves[k].shape),
            lambda leaf: leaf.shape,
        )
        if self._small is not None:
            for k, total in self._small.weighted_sums(weights).items():
                sums[k] = total.reshape(sums[k].shape).astype(sums[k].dtype)
        return [_barrier.onward(z) for z in sums] if self._spread else sums

    def directional(self, vectors: list[jax.Array]) -> list[jax.Array]:
        return [
            functools.reduce(jnp.add, [t.directional(v).astype(wide(leaf.dtype)) for t in terms])
            if terms
            else jnp.zeros((self._batch.size,), wide(leaf.dtype))
            for leaf, terms, v in zip(self._batch.leaves, self._terms, vectors, strict=True)
        ]

    def explain(self) -> str:
        lines = [
            "taps: one backward pass to where parameters meet examples, norms and sums from "
            "records there"
        ]
        for name, leaf, costs in zip(
            self._batch.names, self._batch.leaves, self.plan.sketch(self._batch), strict=True
        ):
            lines.append(
                f"  {name} {leaf.dtype}{list(leaf.shape)}: " + ("" if costs else "no gradient")
            )
            for form, work, held in costs:
                lines.append(
                    f"    {form}; norms {work / 1e6:.3g} M multiply-adds, {held / 2**20:.3g} MiB"
                )
        return "\n".join(lines)
