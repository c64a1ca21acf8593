"""Item-level clipping: the sum of clipped gradients, as a transformation of a loss."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fljax_kernels
from fljax import _validate
from fljax.local import clipping, transformed
from fljax_kernels import _meshes
from fljax_kernels.per_example import one_example


class AuxiliaryOutput(NamedTuple):
    """What comes per unit, `[B, ...]`, beside the sum; None where it was not asked for. None of it is private."""

    values: Any = None
    grad_norms: Any = None
    aux: Any = None


@dataclasses.dataclass(frozen=True)
class BoundedSensitivityCallable:
    """A function whose output one privacy unit moves by a known L2 distance at most.

    If `has_aux`, the function returns a pair and the bound is that of its first part.
    """

    fun: Callable[..., Any]
    l2_norm_bound: Any
    has_aux: bool

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fun(*args, **kwargs)

    def sensitivity(self, neighboring_relation: Any = "REPLACE_SPECIAL") -> Any:
        """The L2 distance between outputs on neighbouring batches, at most.

        Args:
          neighboring_relation: an `accounting.events.NeighboringRelation`, dp_accounting's, or its name.

        Raises:
          ValueError: the relation is not one of ADD_OR_REMOVE_ONE, REPLACE_ONE, REPLACE_SPECIAL.
        """
        # By name: the enumerations of other libraries are welcome.
        name = getattr(neighboring_relation, "name", neighboring_relation)
        factors = {"ADD_OR_REMOVE_ONE": 1, "REPLACE_SPECIAL": 1, "REPLACE_ONE": 2}
        if name not in factors:
            raise ValueError(f"Expected neighboring_relation to be one of {list(factors)}, got {name!r}.")
        return factors[name] * self.l2_norm_bound


def clipped_grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    *,
    l2_clip_norm: Any,
    clipping_style: clipping.Style = "flat",
    rescale_to_unit_norm: bool = False,
    normalize_by: float = 1.0,
    batch_argnums: int | Sequence[int] = 1,
    keep_batch_dim: bool = True,
    return_values: bool = False,
    return_grad_norms: bool = False,
    pre_clipping_transform: Callable[[Any], Any] | None = None,
    microbatch_size: int | None = None,
    nan_safe: bool = True,
    dtype: Any = None,
    prng_argnum: int | None = None,
    spmd_axis_name: Any = None,
    subject_ids: Callable[..., jax.Array] | None = None,
) -> BoundedSensitivityCallable:
    """The function that adds up clipped gradients of `fun`, one per row of the batch: a SUM, not a mean.

    Takes the arguments of `fun` and, as a keyword, `is_padding_example`: bool `[B]`, True where a row is padding and
    adds nothing whatever it holds. Further keyword arguments are per example: a leading axis B, sliced as it is.

    Names and meaning are those of `jax_privacy.clipped_grad`; the differences: no `[B, D]` gradients need be held;
    a gradient with NaN or infinity adds zero as a whole, not entry by entry; the sum stays in float32 where parameters
    have 16 bits, unless `dtype` says otherwise; values and norms are 0 for padding.

    Guarantee: adding, removing or making padding of one row moves the sum by at most `.l2_norm_bound * (1 + 1e-5)` in
    L2 norm; replacing one, by twice that. The privacy unit is a row (with `keep_batch_dim=False`, a row may be a whole
    group or user); with `subject_ids`, all rows of one subject. The margin is float32 rounding; it grows to that
    of `dtype` if that has fewer bits. Norms taken from Gram matrices are rounded up by the size that rounding has
    where steps cancel; that is its typical size, not its worst case. Per-row outputs are not private. With
    `nan_safe=False` there is no guarantee where a gradient is not finite.

    Args:
      fun: (params, batch, ...) -> scalar, or (scalar, aux) with `has_aux`.
      argnums: which arguments to differentiate; floating, without a batch axis.
      has_aux: whether `fun` returns (scalar, aux).
      l2_clip_norm: bound C on the gradient of one row, in its unit. >= 0; infinity does not clip; may be traced.
        Or a tree of bounds, a prefix of the parameters' tree: each subtree is clipped to its own C_l, and
        the bound of all is sqrt(sum C_l**2). Tracing it lets the bound adapt: see `fljax.local.quantile`.
      clipping_style: how a row comes to lie within its bound. "flat" scales longer rows down to it; "auto_s" and "psac"
        bring every row to nearly that length (`fljax.local.clipping`), so that the bound needs no tuning.
      rescale_to_unit_norm: divide each clipped part by its C: the bound becomes 1 (sqrt of the number of bounds).
      normalize_by: divide the sum by this. > 0. A public constant, such as the expected batch size.
      batch_argnums: which arguments have a leading axis B.
      keep_batch_dim: give `fun` batches of size 1; False: without the axis.
      return_values: also return the values of `fun`, `[B]`.
      return_grad_norms: also return the norms before `pre_clipping_transform` and clipping, `[B]`.
      pre_clipping_transform: gradient of one row -> pytree, applied before clipping. Holds gradients of a microbatch.
      microbatch_size: rows at a time. > 0. Changes memory and speed only.
      nan_safe: a row whose gradient is not finite adds zero. False: so does one of infinite norm; NaN reaches the sum.
      dtype: of the sum. None: that of the gradients, float32 at least.
      prng_argnum: an argument that holds a typed key, or a tree of keys: each row gets its own, by `jax.random.split`.
      spmd_axis_name: must be None: sharding of the batch passes through without it, on Auto and on Explicit axes.
      subject_ids: function of the batch arguments -> int `[B]`, the subject of each row. Each subject's clipped
        gradients are averaged, and the averages added up: a row counts 1 / (rows of its subject, padding left out).

    Returns:
      A callable with `.sensitivity(neighboring_relation)`, `.l2_norm_bound` and `.has_aux`. It returns the sum, or with
      any of has_aux, return_values, return_grad_norms: (sum, AuxiliaryOutput(values, grad_norms, aux)).

    Raises:
      ValueError: an argument is out of range, argnums and batch_argnums overlap, `fun` normalises over its batch, or an
        argument outside batch_argnums has a row for each of the batch.
      NotImplementedError: spmd_axis_name is given.

    Source: Abadi et al. (2016), arXiv:1607.00133, Algorithm 1; rescaling: De et al. (2022), arXiv:2204.13650; averages
    per subject: Marathe et al. (2022), arXiv:2206.03617; "auto_s": Bu et al. (2022), arXiv:2206.07136; "psac": Xia et
    al. (2022), arXiv:2212.00328.
    """
    wrt, batched = _places("argnums", argnums), _places("batch_argnums", batch_argnums)
    _check(wrt, batched, l2_clip_norm, clipping_style, normalize_by, microbatch_size)
    if spmd_axis_name is not None:
        raise NotImplementedError(f"Expected spmd_axis_name=None, got spmd_axis_name={spmd_axis_name!r}.")
    wants_aux = has_aux or return_values or return_grad_norms
    single = jax.tree_util.all_leaves([l2_clip_norm])

    def weigh(bounds: Any, norms: Any, weights: jax.Array) -> Any:
        coefficients = (clipping.to_bound if single else clipping.to_bounds)(
            norms, bounds, style=clipping_style, rescale_to_unit_norm=rescale_to_unit_norm, nan_safe=nan_safe
        )
        return jax.tree.map(lambda c: c * weights.astype(c.dtype), coefficients)

    def clipped(*args: Any, is_padding_example: Any = None, **kwargs: Any) -> Any:
        if len(args) <= max(batched + wrt):
            raise ValueError(f"Expected at least {max(batched + wrt) + 1} arguments, got {len(args)}.")
        given = (l2_clip_norm, args, is_padding_example, kwargs)
        at = _meshes.home(*given)
        if at is None:
            return summed(*given)
        # On Explicit axes: a sum like the parameters, and rows like the batch, as `jax.grad` and `jax.vmap` have them.
        found = _meshes.compute(at, summed, *given)
        first = _meshes.leading(([args[i] for i in batched], is_padding_example, kwargs))
        total, rows = found if wants_aux else (found, None)
        like = tuple(args[i] for i in wrt) if isinstance(argnums, Sequence) else args[argnums]
        if pre_clipping_transform is None:
            total = jax.tree.map(lambda x, leaf: at.leave(x, _meshes.spec(leaf)), total, like)
        else:
            total = jax.tree.map(lambda x: at.leave(x, (None,) * x.ndim), total)
        rows = jax.tree.map(lambda x: at.leave(x, (first, *[None] * (x.ndim - 1))), rows)
        return (total, rows) if wants_aux else total

    def summed(bounds: Any, args: tuple[Any, ...], is_padding_example: Any, kwargs: dict[str, Any]) -> Any:
        batch = {"args": {i: args[i] for i in batched}, "kwargs": kwargs}
        size = _batch_size(batch)
        _check_shared(args, {*batched, *wrt, prng_argnum}, size)
        if prng_argnum is not None:
            batch["keys"] = jax.tree.map(lambda key: jax.random.split(key, size), args[prng_argnum])
        mask = None if is_padding_example is None else ~jnp.asarray(is_padding_example, bool)
        weights = jnp.full(size, 1 / normalize_by, jnp.float32)
        if subject_ids is not None:
            weights = weights / _rows_of_same_subject(subject_ids(*(args[i] for i in batched)), size, mask)

        def loss(params: Any, example: Any) -> Any:
            slots = list(args)
            for i, x in example["args"].items():
                slots[i] = jax.tree.map(lambda leaf: leaf[None], x) if keep_batch_dim else x
            if prng_argnum is not None:
                slots[prng_argnum] = example["keys"]
            for i, p in zip(wrt, params if isinstance(argnums, Sequence) else (params,), strict=True):
                slots[i] = p
            result = fun(*slots, **example["kwargs"])
            value = result[0] if has_aux and isinstance(result, tuple) else result
            if jnp.shape(value) != ():
                raise ValueError(
                    f"Expected fun to return a scalar for {'a batch of one row' if keep_batch_dim else 'one row'}, "
                    f"got shape {jnp.shape(value)}: sum it, or take its mean."
                )
            return result

        params = tuple(args[i] for i in wrt) if isinstance(argnums, Sequence) else args[argnums]
        if pre_clipping_transform is None and size > 0:
            grads = fljax_kernels.per_example_grads(loss, microbatch_size=microbatch_size, has_aux=has_aux)
            G = grads(params, batch, batch_mask=mask)
            total, norms = _sum_rows(G, functools.partial(weigh, bounds), weights, per_leaf=not single)
            values, aux = (G.values() if return_values else None), (G.aux() if has_aux else None)
        else:
            if size > 0:
                one_example.check(loss, params, batch, has_aux)
            transform = pre_clipping_transform or (lambda grad: grad)
            total, norms, values, aux = transformed.sum_rows(
                loss,
                params,
                batch,
                mask,
                transform,
                functools.partial(weigh, bounds),
                weights,
                microbatch_size,
                has_aux,
                not single,
            )
        if dtype is not None:
            total = jax.tree.map(lambda x: x.astype(dtype), total)
        if not wants_aux:
            return total
        return total, AuxiliaryOutput(
            values=values if return_values else None,
            grad_norms=norms if return_grad_norms else None,
            aux=jax.tree.map(lambda x: _drop_unit_axis(x) if keep_batch_dim else x, aux) if has_aux else None,
        )

    return BoundedSensitivityCallable(clipped, _bound(l2_clip_norm, rescale_to_unit_norm) / normalize_by, wants_aux)


def _sum_rows(G: Any, weigh: Callable[..., Any], weights: jax.Array, *, per_leaf: bool) -> tuple[Any, jax.Array]:
    """(sum of the weighed rows, their norms)."""
    total, norms = G.weighted_sum(weigh, weights, per_leaf=per_leaf)
    return total, clipping.joint_norm(norms) if per_leaf else norms


def _places(name: str, value: Any) -> tuple[int, ...]:
    places = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
    for place in places:
        _validate.non_negative_int(**{name: place})
    return places


def _check_shared(args: Sequence[Any], known: set[Any], size: int) -> None:
    """Raises ValueError where an argument that all rows get looks like one with a row for each of them."""
    for place, argument in enumerate(args):
        leaves = [] if place in known else [x for x in jax.tree.leaves(argument) if hasattr(x, "shape")]
        of_rows = [np.ndim(x) > 0 and np.shape(x)[0] == size for x in leaves]
        # Frozen parameters may have an axis of that length by chance, but hardly all of them; labels are integers.
        labels = any(
            here and not jnp.issubdtype(x.dtype, jnp.floating) for here, x in zip(of_rows, leaves, strict=True)
        )
        if size > 1 and leaves and (all(of_rows) or labels):
            raise ValueError(
                f"Expected every argument with a row for each of the {size} in the batch to be in batch_argnums, got "
                f"argument {place} of shape {np.shape(leaves[of_rows.index(True)])}: each row's gradient would see it "
                f"whole, and the sensitivity would be false. Add {place} to batch_argnums; close over what is no data."
            )


def _bound(l2_clip_norm: Any, rescale: bool) -> Any:
    bounds = jax.tree.leaves(l2_clip_norm)
    if rescale:
        return math.sqrt(len(bounds))
    if len(bounds) == 1:
        return bounds[0]
    if any(isinstance(c, jax.Array) for c in bounds):
        return jnp.sqrt(sum(jnp.square(jnp.asarray(c, jnp.float32)) for c in bounds))
    return math.hypot(*bounds)


def _check(wrt: tuple, batched: tuple, l2_clip_norm: Any, style: str, normalize_by: Any, microbatch_size: Any) -> None:
    if not wrt or not batched:
        raise ValueError(f"Expected argnums and batch_argnums not empty, got {wrt} and {batched}.")
    if set(wrt) & set(batched):
        raise ValueError(f"Expected argnums without a batch axis, got argnums={wrt} and batch_argnums={batched}.")
    _validate.one_of(clipping.STYLES, clipping_style=style)
    _validate.positive(normalize_by=normalize_by)
    if microbatch_size is not None:
        _validate.positive_int(microbatch_size=microbatch_size)
    bounds = jax.tree.leaves(l2_clip_norm)
    if not bounds:
        raise ValueError("Expected l2_clip_norm to be a bound or a tree of bounds, got an empty tree.")
    for bound in bounds:
        if isinstance(bound, jax.core.Tracer):
            continue  # it cannot be looked at
        # `not >=` so that NaN fails; np, as in a traced function the comparison of a known array is traced too.
        if not (_validate.is_number(bound) and np.asarray(bound) >= 0):
            raise ValueError(f"Expected l2_clip_norm >= 0, got l2_clip_norm={bound!r}.")
        if style != "flat" and not np.isfinite(bound):
            raise ValueError(f"Expected l2_clip_norm to be finite with {style!r}, got l2_clip_norm={bound!r}.")


def _batch_size(batch: Any) -> int:
    sizes = sorted({np.shape(leaf)[0] if np.ndim(leaf) else -1 for leaf in jax.tree.leaves(batch)})
    if len(sizes) != 1 or sizes[0] < 0:
        raise ValueError(f"Expected one leading axis B in all batch arguments, got sizes {sizes} (-1: no axis).")
    return sizes[0]


def _rows_of_same_subject(ids: jax.Array, size: int, mask: jax.Array | None) -> jax.Array:
    """float32 `[B]`, at least 1: rows that share the subject of each row, padding left out."""
    if jnp.shape(ids) != (size,) or not jnp.issubdtype(jnp.result_type(ids), jnp.integer):
        raise ValueError(f"Expected subject_ids to give int [{size}], got {jnp.result_type(ids)}{jnp.shape(ids)}.")
    same = ids[:, None] == ids[None, :]
    if mask is not None:
        same &= mask[None, :]
    return jnp.maximum(jnp.sum(same, axis=1, dtype=jnp.int32), 1).astype(jnp.float32)


def _drop_unit_axis(x: jax.Array) -> jax.Array:
    """`[B, 1, ...]` as `[B, ...]`: the axis that keep_batch_dim put there, where `fun` handed it on."""
    return jnp.squeeze(x, axis=1) if x.ndim >= 2 and x.shape[1] == 1 else x
