"""The engine of method "taps": one backward pass with respect to taps, then products from compact terms."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fljax_kernels.per_example import jaxprs
from fljax_kernels.per_example.batches import Batch, fresh_keys, make_varying, varying_axes
from fljax_kernels.per_example.plan import EXAMPLE, Info, Planner
from fljax_kernels.per_example.pullback import SharedValues, leaf_terms, pull_back
from fljax_kernels.per_example.reference import wide
from fljax_kernels.per_example.tapped import run, zero_taps
from fljax_kernels.per_example.terms import Rows, inner_products


class Taps:
    """Products of G from the terms of each parameter."""

    def __init__(self, loss: Callable[..., Any], batch: Batch):
        self._batch = batch
        example = jax.tree.map(lambda x: x[0], fresh_keys(batch.examples))
        jaxpr, consts, (_, aux) = jaxprs.trace(loss, batch.leaves, example)
        self._aux_tree = jax.tree.structure(aux)
        arguments = [Info(False, frozenset({k})) for k in range(len(batch.leaves))]
        arguments += [EXAMPLE] * (len(jaxpr.invars) - len(batch.leaves))
        self._planner = Planner()
        self._body = self._planner.body(jaxpr, consts, arguments, ())
        self._planner.finish(self._body, [0])

    @functools.cached_property
    def _pass(self) -> tuple[Any, Any, Any]:
        """(losses and auxiliaries, records, tap cotangents), each with leading axis B."""
        batch = self._batch
        axes = varying_axes(*batch.leaves, *jax.tree.leaves(batch.examples))
        zeros = {k: make_varying(z, axes) for k, z in zero_taps(self._planner).items()}

        def one(example: Any) -> Any:
            def tapped(taps: dict[int, Any]) -> Any:
                (value, *aux), records = run(self._body, [*batch.leaves, *jax.tree.leaves(example)], taps)
                return value, (aux, records)

            (value, (aux, records)), cotangents = jax.value_and_grad(tapped, has_aux=True)(zeros)
            return (value, aux), records, cotangents

        return jax.vmap(one, axis_size=batch.size)(batch.examples)

    @functools.cached_property
    def _terms(self) -> list[list[Any]]:
        _, records, cotangents = self._pass
        examples = [None] * (len(self._body.jaxpr.invars) - len(self._batch.leaves))
        shared = SharedValues(self._body, [*self._batch.leaves, *examples])
        terms = pull_back(self._body, self._planner, shared, cotangents, records)
        joined = leaf_terms(terms, self._body.jaxpr.invars[: len(self._batch.leaves)])
        return [self._settled(mine) for mine in joined]

    def _settled(self, terms: list[Any]) -> list[Any]:
        """One term, or several with a cross term for each pair; otherwise rows."""
        if len(terms) < 2 or all(inner_products(a, b) is not None for k, a in enumerate(terms) for b in terms[:k]):
            return terms
        return [
            Rows(functools.reduce(jnp.add, [t.rows() for t in terms]), "sum of " + ", ".join(t.note for t in terms))
        ]

    def _per_leaf(self, product: Callable[[Any], jax.Array], empty: tuple[int, ...]) -> list[jax.Array]:
        """The sum of a product over the terms of each leaf."""
        out = []
        for leaf, terms in zip(self._batch.leaves, self._terms, strict=True):
            zero = jnp.zeros(empty, wide(leaf.dtype))
            out.append(functools.reduce(jnp.add, [product(t).astype(zero.dtype) for t in terms]) if terms else zero)
        return out

    def values(self) -> jax.Array:
        return self._pass[0][0]

    def aux(self) -> Any:
        return jax.tree.unflatten(self._aux_tree, self._pass[0][1])

    def rows(self) -> list[jax.Array]:
        out = []
        for leaf, terms in zip(self._batch.leaves, self._terms, strict=True):
            zero = jnp.zeros((self._batch.size, *leaf.shape), leaf.dtype)
            out.append(functools.reduce(jnp.add, [t.rows().astype(leaf.dtype) for t in terms]) if terms else zero)
        return out

    def squared_norms(self) -> list[jax.Array]:
        squares = self._per_leaf(lambda term: term.squared_norms(), (self._batch.size,))
        for k, terms in enumerate(self._terms):
            for at, a in enumerate(terms):
                for b in terms[:at]:
                    cross = inner_products(a, b)
                    assert cross is not None  # _settled saw to it
                    squares[k] = squares[k] + 2 * cross
        return squares

    def grams(self) -> list[jax.Array]:
        size = self._batch.size
        out = []
        for leaf, terms in zip(self._batch.leaves, self._terms, strict=True):
            if len(terms) == 1:
                out.append(terms[0].gram().astype(wide(leaf.dtype)))
            elif terms:
                out.append(Rows(functools.reduce(jnp.add, [t.rows() for t in terms])).gram().astype(wide(leaf.dtype)))
            else:
                out.append(jnp.zeros((size, size), wide(leaf.dtype)))
        return out

    def weighted_sums(self, weights: list[jax.Array]) -> list[jax.Array]:
        out = []
        for leaf, terms, c in zip(self._batch.leaves, self._terms, weights, strict=True):
            zero = jnp.zeros(leaf.shape, wide(leaf.dtype))
            sums = [term.weighted_sum(c).reshape(leaf.shape).astype(zero.dtype) for term in terms]
            out.append(functools.reduce(jnp.add, sums) if sums else zero)
        return out

    def directional(self, vectors: list[jax.Array]) -> list[jax.Array]:
        out = []
        for leaf, terms, vector in zip(self._batch.leaves, self._terms, vectors, strict=True):
            zero = jnp.zeros((self._batch.size,), wide(leaf.dtype))
            along = [term.directional(vector).astype(zero.dtype) for term in terms]
            out.append(functools.reduce(jnp.add, along) if along else zero)
        return out

    def explain(self) -> str:
        return "taps"
