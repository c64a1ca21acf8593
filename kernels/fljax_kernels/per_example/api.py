"""per_example_grads: the matrix of per-example gradients, as its products."""

import contextlib
import functools
import numbers
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fljax_kernels import _check, _meshes, _platforms
from fljax_kernels.discrete import sums
from fljax_kernels.loops import convolution
from fljax_kernels.loops.api import LoopFriendly
from fljax_kernels.per_example import one_example, tpu
from fljax_kernels.per_example.batches import (
    Batch,
    batch_size,
    check_mask,
    flatten_params,
    fresh_keys,
    loss_axes,
    make_varying,
    moved_here,
    normal_loss,
    varying_axes,
)
from fljax_kernels.per_example.by_platform import ByPlatform
from fljax_kernels.per_example.reference import MaterializedRows, wide
from fljax_kernels.per_example.streamed import StreamedRows, TapsInChunks
from fljax_kernels.per_example.taps import Plan, Taps, Traced, is_spread, parts_of
from fljax_kernels.per_example.two_pass import TwoPass

METHODS = ("auto", "taps", "two_pass", "vmap", "microbatch")
SMALL = 2**16  # numbers in G, below which holding it costs nothing and compiles faster
HELD_ANYWAY = 0.75  # share of the parameters
CHUNK = 16  # examples of a convolutional network whose arrays a CPU's cache may hold

Coefficients = jax.Array | Any


class PerExampleGrads:
    """G, `[B, D]`: row i is the gradient of the loss of example i. Never held as such unless you
    materialize it.

    Made by `per_example_grads(loss)(params, batch)`. All products agree with `vmap(grad(loss))` up
    to rounding. Under `jit` only what is asked for is computed. Rows with `batch_mask` False are
    exactly zero, NaN or not, and so is the contribution of a row to `rmatvec` and `weighted_sum`
    where its coefficient is exactly zero. Norms and sums are accumulated, and returned, in at least
    float32. Inside `shard_map` every product is of the local rows: add sums over devices with
    `jax.lax.psum`. On a mesh with Explicit axes, JAX's default, sums are sharded like params, and
    what has a row for each example like the batch, as `jax.grad` and `jax.vmap` have it.
    """

    def __init__(
        self,
        engines: ByPlatform,
        tree: Any,
        leaves: list[jax.Array],
        size: int,
        mask: jax.Array | None,
    ):
        self._engines, self._tree, self._leaves, self._size, self._mask = (
            engines,
            tree,
            leaves,
            size,
            mask,
        )

    @property
    def batch_size(self) -> int:
        """B, padding included."""
        return self._size

    @property
    def num_params(self) -> int:
        """D, numbers in a row."""
        return sum(leaf.size for leaf in self._leaves)

    def values(self) -> jax.Array:
        """Losses `[B]`; 0 where masked."""
        return self._zero_masked(self._engines.values())

    def aux(self) -> Any:
        """The second result of a loss with `has_aux=True`, with a leading axis B; masked examples
        included.
        """
        return self._engines.aux()

    def row_norms(self, *, per_leaf: bool = False) -> Any:
        """||g_i|| `[B]`, or a params-like tree of `[B]`, one norm per parameter array."""
        return self._norms(self._squares, per_leaf)

    def gram(self, *, per_leaf: bool = False) -> Any:
        """G G^T `[B, B]`, or a params-like tree of `[B, B]` which adds up to it."""
        grams = self._engines.take(lambda engine: engine.grams())
        if self._mask is not None:
            keep = self._mask[:, None] & self._mask[None, :]
            grams = [jnp.where(keep, g, jnp.zeros((), g.dtype)) for g in grams]
        return self._unflatten(grams) if per_leaf else _total(grams)

    def rmatvec(self, coefficients: Coefficients) -> Any:
        """sum_i c_i g_i, a params-like tree.

        Args:
          coefficients: `[B]`, or a params-like tree of `[B]` (one set of coefficients for each
            parameter array).
        """
        weights = self._weights(coefficients, self._mask)
        return self._unflatten(self._engines.take(lambda engine: engine.weighted_sums(weights)))

    def weighted_sum(
        self, coefficient_fn: Callable[..., Coefficients], *per_example: Any, per_leaf: bool = False
    ) -> tuple[Any, Any]:
        """(sum_i c_i g_i, norms) with c = coefficient_fn(norms, *per_example): clipping in one pass
        over the data.

        The same as `row_norms` and then `rmatvec`, but with microbatches the gradients are computed
        once.

        Args:
          coefficient_fn: takes norms `[b]` (with per_leaf=True: a params-like tree of `[b]`) and
            the matching slices of `per_example`; returns what `rmatvec` takes. With
            `microbatch_size` it must treat examples one by one: b is the size of a microbatch, not
            B.
          *per_example: pytrees of arrays with leading axis B, say the weight of each example.
        """
        extra = (self._mask, per_example)

        def weigh(squares: list[jax.Array], mine: Any) -> list[jax.Array]:
            mask, arguments = mine
            squares = [_zero(s, mask) for s in squares]
            return self._weights(coefficient_fn(self._norms(squares, per_leaf), *arguments), mask)

        def norms_and_sums(engine: Any) -> Any:
            if hasattr(engine, "fused_sums") and engine.fuses(weigh, extra):
                return engine.fused_sums(weigh, extra)
            squares = engine.squared_norms()
            return engine.weighted_sums(weigh(squares, extra)), squares

        sums, squares = self._engines.take_with_values(norms_and_sums)
        return self._unflatten(sums), self._norms([_zero(s, self._mask) for s in squares], per_leaf)

    def grid_sum(
        self,
        key: jax.Array,
        coefficient_fn: Callable[..., jax.Array],
        most_squared_norms: jax.Array | int,
        places: jax.Array,
        *per_example: Any,
    ) -> tuple[Any, Any]:
        """(sum of whole numbers about c_i g_i, norms) with c = coefficient_fn(norms, *per_example):
        clipping and rounding to a grid, without the rows of matrices that meet an example once.

        There an example's x (outer) y is rounded factor by factor, each on a grid of its own of
        which the product is the grid, up or down at random such that the mean stays. Other rows
        are held. A row that comes out too long is made shorter, by 1/64 first and at last by half;
        if it still is too long, it is 0.

        Guarantee: a row adds whole numbers whose squared norm is at most its number of
        `most_squared_norms`, whatever it holds, which depend on its own gradient, coefficient,
        bound and place and on the key alone. One that is not finite adds 0. No order of addition
        changes the sum, nor do rows that are added up apart from it.

        Args:
          key: `[]` typed, used for nothing else; the same for rows of all calls that make one sum.
          coefficient_fn: as in `weighted_sum`, c >= 0 `[B]` in steps of the grid.
          most_squared_norms: uint32 `[B]`, or a number for all; at most 2**32 - 2.
          places: int `[B]`, a number for each row, another for each of those in one sum.

        Returns:
          int32, a params-like tree; float32 `[B]`.

        Raises:
          ValueError: key is not one typed key, what is `[B]` has another shape or dtype, or a
            number is out of range.
        """
        _check.one_key(key)
        sums.check(most_squared_norms, places, self._size)

        def sums_and_norms(engine: Any) -> Any:
            squares = engine.squared_norms()
            norms = self._norms([_zero(s, self._mask) for s in squares], per_leaf=False)
            c, *others = self._weights(coefficient_fn(norms, *per_example), self._mask)
            if any(other is not c for other in others):
                raise ValueError("Expected one coefficient for each row, got one for each array.")
            parts = {k: part for k, part in enumerate(parts_of(engine)) if part is not None}
            # As long as the bound at most: factors are scaled for the length that a row shall have.
            longest = jnp.sqrt(jnp.asarray(most_squared_norms, c.dtype)) / jnp.maximum(norms, 1e-30)
            c = jnp.where(jnp.isfinite(norms), jnp.minimum(c, longest), 0.0).astype(jnp.float32)
            totals = sums.add_up([*parts.values()], c, most_squared_norms, key, places)
            found = dict(zip(parts, totals, strict=True))
            return [
                found[k].reshape(leaf.shape) if k in found else jnp.zeros(leaf.shape, jnp.int32)
                for k, leaf in enumerate(self._leaves)
            ], norms

        totals, norms = self._engines.take_with_values(sums_and_norms)
        return self._unflatten(totals), norms

    def matvec(self, vector: Any) -> jax.Array:
        """<g_i, v> `[B]` for a params-like tree v."""
        vectors, tree = jax.tree.flatten(vector)
        shapes = [jnp.shape(v) for v in vectors]
        if tree != self._tree or shapes != [leaf.shape for leaf in self._leaves]:
            raise ValueError(
                f"Expected vector with the tree and shapes of params, got {tree} with shapes "
                f"{shapes}."
            )
        arrays = [jnp.asarray(v) for v in vectors]
        return self._zero_masked(
            _total(self._engines.take(lambda engine: engine.directional(arrays)))
        )

    def materialize(self) -> Any:
        """G itself: a params-like tree of `[B, ...]`. B * D numbers."""
        rows = self._engines.take(lambda engine: engine.rows())
        if self._mask is not None:
            rows = [
                jnp.where(
                    self._mask.reshape((-1,) + (1,) * (g.ndim - 1)), g, jnp.zeros((), g.dtype)
                )
                for g in rows
            ]
        return self._unflatten(rows)

    def explain(self, platform: str | None = None) -> str:
        """How G is computed and why, one line per site; bytes and multiply-adds are for the whole
        batch.

        Args:
          platform: "cpu", "cuda" or "tpu": forms are chosen for what is lowered for. None: JAX's
            default backend.
        """
        return self._engines.explain(platform)

    @functools.cached_property
    def _squares(self) -> list[jax.Array]:
        return [
            _zero(s, self._mask) for s in self._engines.take(lambda engine: engine.squared_norms())
        ]

    def _norms(self, squares: list[jax.Array], per_leaf: bool) -> Any:
        # maximum: a Gram form may round a zero norm to a small negative square.
        return self._unflatten([_root(s) for s in squares]) if per_leaf else _root(_total(squares))

    def _weights(self, coefficients: Coefficients, mask: jax.Array | None) -> list[jax.Array]:
        if isinstance(coefficients, jax.Array) or hasattr(coefficients, "__array__"):
            columns = [jnp.asarray(coefficients)] * len(self._leaves)
        else:
            columns, tree = jax.tree.flatten(coefficients)
            if tree != self._tree:
                raise ValueError(
                    "Expected coefficients to be an array or a tree like params, got the tree "
                    f"{tree}."
                )
        for c in columns:
            if jnp.ndim(c) != 1 or not jnp.issubdtype(jnp.result_type(c), jnp.floating):
                raise ValueError(
                    f"Expected coefficients of shape ({self._size},) and floating dtype, "
                    f"got shape {jnp.shape(c)} and dtype {jnp.result_type(c)}."
                )
        if all(c is columns[0] for c in columns):
            return [_zero(jnp.asarray(columns[0]), mask)] * len(columns)
        return [_zero(jnp.asarray(c), mask) for c in columns]

    def _zero_masked(self, rows: jax.Array) -> jax.Array:
        return _zero(rows, self._mask)

    def _unflatten(self, leaves: list[Any]) -> Any:
        return jax.tree.unflatten(self._tree, leaves)


class _PlacedGrads(PerExampleGrads):
    """G of arrays spread over Explicit axes. Products come out as `jax.grad` gives them: what is
    like params is sharded like params, and what has a row for each example like the batch.
    """

    def __init__(
        self,
        at: _meshes.Home,
        make: Callable[..., PerExampleGrads],
        params: Any,
        batch: Any,
        mask: Any,
    ):
        self._at, self._params, self._first = at, params, _meshes.leading((batch, mask))
        given = (params, batch, mask)
        try:
            with at.inside():
                entered = at.enter(given)
                # A loss may close over an array of the mesh, which cannot be moved inside.
                jax.eval_shape(lambda: make(*fresh_keys(entered)).values())
                self._inner, self._where = make(*entered), at.inside
        except (
            TypeError,
            ValueError,
        ):  # or it is an error of the caller's own, which is raised again
            self._inner, self._where = make(*at.whole(given)), contextlib.nullcontext

    @property
    def batch_size(self) -> int:
        return self._inner.batch_size

    @property
    def num_params(self) -> int:
        return self._inner.num_params

    def values(self) -> jax.Array:
        return self._by_row(self._take(lambda: self._inner.values()))

    def aux(self) -> Any:
        return self._by_row(self._take(lambda: self._inner.aux()))

    def row_norms(self, *, per_leaf: bool = False) -> Any:
        return self._by_row(self._take(lambda: self._inner.row_norms(per_leaf=per_leaf)))

    def gram(self, *, per_leaf: bool = False) -> Any:
        return self._by_row(self._take(lambda: self._inner.gram(per_leaf=per_leaf)))

    def rmatvec(self, coefficients: Coefficients) -> Any:
        return self._like_params(self._take(self._inner.rmatvec, coefficients))

    def weighted_sum(
        self, coefficient_fn: Callable[..., Coefficients], *per_example: Any, per_leaf: bool = False
    ) -> tuple[Any, Any]:
        def take(*per_example: Any) -> tuple[Any, Any]:
            fun = self._callable_inside(coefficient_fn, per_leaf, per_example)
            return self._inner.weighted_sum(fun, *per_example, per_leaf=per_leaf)

        sums, norms = self._take(take, *per_example)
        return self._like_params(sums), self._by_row(norms)

    def grid_sum(
        self,
        key: jax.Array,
        coefficient_fn: Callable[..., jax.Array],
        most_squared_norms: jax.Array | int,
        places: jax.Array,
        *per_example: Any,
    ) -> tuple[Any, Any]:
        def take(key: Any, most: Any, places: Any, *per_example: Any) -> tuple[Any, Any]:
            fun = self._callable_inside(coefficient_fn, False, per_example)
            return self._inner.grid_sum(key, fun, most, places, *per_example)

        totals, norms = self._take(take, key, most_squared_norms, places, *per_example)
        return self._like_params(totals), self._by_row(norms)

    def matvec(self, vector: Any) -> jax.Array:
        return self._by_row(self._take(self._inner.matvec, vector))

    def materialize(self) -> Any:
        def placed(x: jax.Array, leaf: Any) -> jax.Array:
            return self._at.leave(x, _meshes.beside(self._first, _meshes.spec(leaf)))

        return jax.tree.map(placed, self._take(lambda: self._inner.materialize()), self._params)

    def explain(self, platform: str | None = None) -> str:
        with self._where():
            return self._inner.explain(platform)

    def _take(self, product: Callable[..., Any], *arguments: Any) -> Any:
        inside = self._where == self._at.inside
        arguments = self._at.enter(arguments) if inside else self._at.whole(arguments)
        with self._where():
            return product(*arguments)

    def _callable_inside(
        self, fun: Callable[..., Any], per_leaf: bool, per_example: Any
    ) -> Callable[..., Any]:
        """`fun`, or where it closes over an array of the mesh, `fun` called outside with norms that
        are whole.
        """
        norms = jax.ShapeDtypeStruct((self.batch_size,), jnp.float32)
        try:
            jax.eval_shape(
                fun,
                jax.tree.map(lambda _: norms, self._params) if per_leaf else norms,
                *per_example,
            )
            return fun
        except (TypeError, ValueError):

            def outside(*arguments: Any) -> Any:
                with self._at.outside():
                    coefficients = fun(*self._at.whole(arguments))
                return self._at.enter(coefficients)

            return outside

    def _by_row(self, tree: Any) -> Any:
        return jax.tree.map(
            lambda x: self._at.leave(x, (self._first, *[None] * (x.ndim - 1))), tree
        )

    def _like_params(self, tree: Any) -> Any:
        return jax.tree.map(
            lambda x, leaf: self._at.leave(x, _meshes.spec(leaf)), tree, self._params
        )


def per_example_grads(
    loss: Callable[..., Any],
    *,
    method: str = "auto",
    microbatch_size: int | None = None,
    has_aux: bool = False,
) -> Callable[..., PerExampleGrads]:
    """The per-example gradients of any JAX loss, as an implicit matrix.

        G = per_example_grads(loss)(params, batch)
        clipped_sum, norms = G.weighted_sum(lambda norms: jnp.minimum(1.0, l2_clip_norm / norms))

    Args:
      loss: (params, example) -> scalar, for ONE example. Written for one example it cannot mix
        examples: batch statistics of a batch normalisation do not exist here, and with them no
        per-example gradient would. What must be random per example (dropout keys) is part of the
        example.
      method: "taps" records what meets each parameter and takes one backward pass to there: no `[B,
        D]`, private gradients at about the price of the mean gradient. "two_pass" takes norms that
        way and sums from a second gradient, of the weighted loss: less memory where remat saves
        much. "vmap" holds the rows. "microbatch" scans over `microbatch_size` examples at a time.
        "auto" takes "vmap" where G has at most 2^16 numbers or where taps would hold three quarters
        of it anyway (many tokens, narrow layers; not on a TPU), else "taps", whose `weighted_sum`
        takes a convolutional network about 16 examples at a time on a CPU, if B >= 24, and on a TPU
        parts of a batch that its fast memory does not hold, if coefficients are elementwise in the
        norms; `explain()` says which. Where a mesh's Auto axes may cut arrays it
        is "taps", which alone gathers no row.
      microbatch_size: examples at a time. > 0. Needed for "microbatch"; with other methods it
        streams them.
      has_aux: the loss returns (scalar, aux).

    Returns:
      (params, batch, *, batch_mask=None) -> PerExampleGrads. params: pytree of floating point
      arrays. batch: pytree with leading axis B on every leaf. batch_mask: `[B]` bool, False for
      padding.

    Raises:
      ValueError: the loss is not a scalar of one example, or normalises over a batch axis; a
        parameter has no gradient, leading axes differ, an option is unknown.
    """
    if not isinstance(method, str) or method not in METHODS:
        raise ValueError(f"Expected method to be one of {METHODS}, got method={method!r}.")
    if method == "microbatch" and microbatch_size is None:
        raise ValueError(
            'Expected microbatch_size > 0 with method="microbatch", got microbatch_size=None.'
        )
    if microbatch_size is not None and not (
        isinstance(microbatch_size, numbers.Integral)
        and not isinstance(microbatch_size, bool)
        and microbatch_size > 0
    ):
        raise ValueError(
            f"Expected microbatch_size > 0, an integer, got microbatch_size={microbatch_size!r}."
        )

    one_example.check_signature(loss)

    def grads(params: Any, batch: Any, *more: Any, batch_mask: Any = None) -> PerExampleGrads:
        if more:
            raise TypeError(
                f"Expected (params, batch), got {2 + len(more)} arguments: put inputs and labels "
                "into one batch, a tuple or a dict, as the loss takes them in one example."
            )
        at = _meshes.home(params, batch, batch_mask)
        return (
            here(params, batch, batch_mask)
            if at is None
            else _PlacedGrads(at, here, params, batch, batch_mask)
        )

    def here(params: Any, batch: Any, batch_mask: Any) -> PerExampleGrads:
        leaves, tree, names = flatten_params(params)
        size = batch_size(batch)
        mask = check_mask(batch_mask, size)
        normal = normal_loss(loss, tree, has_aux)
        if method == "two_pass":
            normal = _exact_products(normal)
        one = LoopFriendly(normal, inside_loop=microbatch_size is not None)
        leaves = [moved_here(leaf) for leaf in leaves]
        axes = varying_axes(*leaves, *jax.tree.leaves(batch)) | loss_axes(one, leaves, batch)
        leaves = [make_varying(leaf, axes) for leaf in leaves]
        if size:
            one_example.check(loss, jax.tree.unflatten(tree, leaves), batch, has_aux)

        def engine_of(batch: Batch, plan: Plan | None = None) -> Any:
            if not size:  # the other engines trace an example of the batch
                return MaterializedRows(one, batch, "of no example")
            return _ENGINES[method](one, batch, plan)

        whole = Batch(leaves, batch, size, names)
        at_once = whole if microbatch_size is None else whole._replace(size=microbatch_size)
        as_rows = method == "vmap" or (method in ("auto", "microbatch") and _is_small(at_once))
        alike = not size or as_rows
        if microbatch_size is None or not size:
            make = functools.partial(engine_of, whole)
            engines = ByPlatform(make, alike, functools.partial(Traced, one, whole))
        else:
            engines = ByPlatform(
                lambda _: StreamedRows(engine_of, whole, microbatch_size), alike, lambda: None
            )
        return PerExampleGrads(engines, tree, leaves, size, mask)

    return grads


def _choose(loss: LoopFriendly, batch: Batch, plan: Plan | None) -> Any:
    """From static shapes alone, so that a compiled program does not depend on how busy a machine
    was.
    """
    num_params = sum(leaf.size for leaf in batch.leaves)
    if is_spread(batch):  # taps alone leave each example's parts where they are
        return Taps(loss, batch, plan)
    if _is_small(batch):
        return MaterializedRows(loss, batch, f"at most {SMALL} numbers")
    taps = Taps(loss, batch, plan)
    share = taps.plan.body.held_anyway() / num_params
    if share >= HELD_ANYWAY and not _platforms.tpu_alone():
        return MaterializedRows(
            loss, batch, f"{share:.0%} of each row would be held anyway, as small as its records"
        )
    num_chunks = round(batch.size / CHUNK)
    convolutions = taps.plan.body.convolutions()
    as_patches = convolutions and all(
        convolution.supports(eqn.invars[0].aval.shape, eqn.invars[1].aval.shape, eqn.params)
        for eqn in convolutions
    )
    if num_chunks > 1 and as_patches and _platforms.cpu_alone():
        return TapsInChunks(loss, batch, taps.plan, -(-batch.size // num_chunks))
    if _platforms.tpu_alone():
        live = taps.plan.body.live(taps.plan.planner.taps)
        at_once = tpu.examples_at_once(batch.size, live, num_params, bool(convolutions))
        if at_once < batch.size:
            return TapsInChunks(loss, batch, taps.plan, at_once)
    return taps


def _exact_products(loss: Callable[..., Any]) -> Callable[..., Any]:
    """The loss whose products, and those of its gradient, ask for the highest precision.

    For two passes: a sum that is a gradient of its own, with operands rounded to fewer bits, would
    be another gradient than the one whose norm was taken. Products that name a precision keep it,
    and so do those in rules of a `jax.custom_vjp`, which are traced later.
    """

    def exact(leaves: list[jax.Array], example: Any) -> Any:
        with jax.default_matmul_precision("highest"):
            return loss(leaves, example)

    return exact


def _is_small(batch: Batch) -> bool:
    numbers = batch.size * sum(leaf.size for leaf in batch.leaves)
    return numbers <= SMALL and not is_spread(batch)


_ENGINES: dict[str, Callable[[LoopFriendly, Batch, Plan | None], Any]] = {
    "auto": _choose,
    "microbatch": _choose,
    "taps": Taps,
    "two_pass": TwoPass,
    "vmap": lambda loss, batch, _: MaterializedRows(loss, batch),
}


def _zero(rows: jax.Array, mask: jax.Array | None) -> jax.Array:
    return rows if mask is None else jnp.where(mask, rows, jnp.zeros((), rows.dtype))


def _total(parts: list[jax.Array]) -> jax.Array:
    dtype = wide(*(p.dtype for p in parts))
    return functools.reduce(jnp.add, [p.astype(dtype) for p in parts])


def _root(square: jax.Array) -> jax.Array:
    return jnp.sqrt(jnp.maximum(square, jnp.zeros((), square.dtype)))
