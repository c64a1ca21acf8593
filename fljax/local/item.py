"""Item-level clipping: the sum of clipped gradients, as a transformation of a loss."""

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

import fljax_kernels
from fljax import _deprecation
from fljax.local import _batched, bounded, clipping, transformed
from fljax_kernels.per_example import one_example

if not TYPE_CHECKING:
    __getattr__ = _deprecation.moved(
        __name__,
        {"BoundedSensitivityCallable": "fljax.local.bounded.BoundedSensitivityCallable"},
        since="0.1",
    )


class AuxiliaryOutput(NamedTuple):
    """What comes per unit, `[B, ...]`, beside the sum; None where it was not asked for. None of it
    is private.
    """

    values: Any = None
    grad_norms: Any = None
    aux: Any = None


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
) -> bounded.BoundedSensitivityCallable:
    """The function that adds up clipped gradients of `fun`, one per row of the batch: a SUM, not a
    mean.

    Takes the arguments of `fun` and, as a keyword, `is_padding_example`: bool `[B]`, True where a
    row is padding and adds nothing whatever it holds. Further keyword arguments are per example: a
    leading axis B, sliced as it is.

    Names and meaning are those of `jax_privacy.clipped_grad`; the differences: no `[B, D]`
    gradients need be held; a gradient with NaN or infinity adds zero as a whole, not entry by
    entry; the sum stays in float32 where parameters have 16 bits, unless `dtype` says otherwise;
    values and norms are 0 for padding.

    Guarantee: adding, removing or making padding of one row moves the sum by at most
    `.l2_norm_bound * (1 + 1e-5)` in L2 norm; replacing one, by twice that. The privacy unit is a
    row (with `keep_batch_dim=False`, a row may be a whole group or user); with `subject_ids`, all
    rows of one subject. The margin is float32 rounding; it grows to that of `dtype` if that has
    fewer bits. Norms taken from Gram matrices are rounded up by the size that rounding has where
    steps cancel; that is its typical size, not its worst case. Per-row outputs are not private.
    With `nan_safe=False` there is no guarantee where a gradient is not finite.

    Args:
      fun: (params, batch, ...) -> scalar, or (scalar, aux) with `has_aux`.
      argnums: which arguments to differentiate; floating, without a batch axis.
      has_aux: whether `fun` returns (scalar, aux).
      l2_clip_norm: bound C on the gradient of one row, in its unit. >= 0; infinity does not clip;
        may be traced. Or a tree of bounds, a prefix of the parameters' tree: each subtree is
        clipped to its own C_l, and the bound of all is sqrt(sum C_l**2). Tracing it lets the bound
        adapt: see `fljax.local.quantile`.
      clipping_style: how a row comes to lie within its bound. "flat" scales longer rows down to it;
        "auto_s" and "psac" bring every row to nearly that length (`fljax.local.clipping`), so that
        the bound needs no tuning.
      rescale_to_unit_norm: divide each clipped part by its C: the bound becomes 1 (sqrt of the
        number of bounds).
      normalize_by: divide the sum by this. > 0. A public constant, such as the expected batch size.
      batch_argnums: which arguments have a leading axis B.
      keep_batch_dim: give `fun` batches of size 1; False: without the axis.
      return_values: also return the values of `fun`, `[B]`.
      return_grad_norms: also return the norms before `pre_clipping_transform` and clipping, `[B]`.
      pre_clipping_transform: gradient of one row -> pytree, applied before clipping. Holds
        gradients of a microbatch.
      microbatch_size: rows at a time. > 0. Changes memory and speed only.
      nan_safe: a row whose gradient is not finite adds zero. False: so does one of infinite norm;
        NaN reaches the sum.
      dtype: of the sum. None: that of the gradients, float32 at least.
      prng_argnum: an argument that holds a typed key, or a tree of keys: each row gets its own, by
        `jax.random.split`.
      spmd_axis_name: must be None: sharding of the batch passes through without it, on Auto and on
        Explicit axes.
      subject_ids: function of the batch arguments -> int `[B]`, the subject of each row. Each
        subject's clipped gradients are averaged, and the averages added up: a row counts 1 / (rows
        of its subject, padding left out).

    Returns:
      A callable with `.sensitivity(neighboring_relation)`, `.l2_norm_bound` and `.has_aux`. It
      returns the sum, or with any of has_aux, return_values, return_grad_norms: (sum,
      AuxiliaryOutput(values, grad_norms, aux)).

    Raises:
      ValueError: an argument is out of range, argnums and batch_argnums overlap, `fun` normalises
        over its batch, or an argument outside batch_argnums has a row for each of the batch.
      NotImplementedError: spmd_axis_name is given.

    Source: Abadi et al. (2016), arXiv:1607.00133, Algorithm 1; rescaling: De et al. (2022),
    arXiv:2204.13650; averages per subject: Marathe et al. (2022), arXiv:2206.03617; "auto_s": Bu et
    al. (2022), arXiv:2206.07136; "psac": Xia et al. (2022), arXiv:2212.00328.
    """
    wrt = _batched.places("argnums", argnums)
    batched = _batched.places("batch_argnums", batch_argnums)
    if not wrt or not batched:
        raise ValueError(f"Expected argnums and batch_argnums not empty, got {wrt} and {batched}.")
    if set(wrt) & set(batched):
        raise ValueError(
            f"Expected argnums without a batch axis, got argnums={wrt} and batch_argnums={batched}."
        )
    clipping.check_bounds(clipping_style, l2_clip_norm=l2_clip_norm)
    _batched.check_options(normalize_by, microbatch_size, spmd_axis_name)
    several = isinstance(argnums, Sequence)
    wants_aux = has_aux or return_values or return_grad_norms
    per_leaf = not jax.tree_util.all_leaves([l2_clip_norm])

    def params_in(args: tuple[Any, ...]) -> Any:
        return tuple(args[i] for i in wrt) if several else args[wrt[0]]

    def clipped(*args: Any, is_padding_example: Any = None, **kwargs: Any) -> Any:
        _batched.check_count(args, batched + wrt)
        total, of_rows = _batched.on_their_mesh(
            summed,
            (l2_clip_norm, args, is_padding_example, kwargs),
            batch=([args[i] for i in batched], is_padding_example, kwargs),
            like=params_in(args) if pre_clipping_transform is None else None,
        )
        return (total, of_rows) if wants_aux else total

    def summed(
        bounds: Any, args: tuple[Any, ...], is_padding_example: Any, kwargs: dict[str, Any]
    ) -> tuple[Any, AuxiliaryOutput]:
        batch, size = _batched.rows(args, kwargs, batched, prng_argnum)
        _batched.check_shared(args, {*batched, *wrt, prng_argnum}, size)
        mask = _batched.present(is_padding_example)
        weights = jnp.full(size, 1 / normalize_by, jnp.float32)
        if subject_ids is not None:
            ids = subject_ids(*(args[i] for i in batched))
            weights = weights / _rows_of_same_subject(ids, size, mask)

        def loss(params: Any, example: Any) -> Any:
            slots = _batched.arguments(args, example, keep_batch_dim, prng_argnum)
            for i, p in zip(wrt, params if several else (params,), strict=True):
                slots[i] = p
            with _batched.of_one_row(keep_batch_dim):
                result = fun(*slots, **example["kwargs"])
            value = result[0] if has_aux and isinstance(result, tuple) else result
            if jnp.shape(value) != ():
                what = "a batch of one row" if keep_batch_dim else "one row"
                raise ValueError(
                    f"Expected fun to return a scalar for {what}, got shape {jnp.shape(value)}: "
                    "sum it, or take its mean."
                )
            return result

        params = params_in(args)
        weigh = functools.partial(
            clipping.weigh,
            bounds,
            style=clipping_style,
            rescale_to_unit_norm=rescale_to_unit_norm,
            nan_safe=nan_safe,
        )
        if pre_clipping_transform is None and size > 0:
            grads = fljax_kernels.per_example_grads(
                loss, microbatch_size=microbatch_size, has_aux=has_aux
            )
            G = grads(params, batch, batch_mask=mask)
            total, norms = G.weighted_sum(weigh, weights, per_leaf=per_leaf)
            norms = clipping.joint_norm(norms) if per_leaf else norms
            values, aux = (G.values() if return_values else None), (G.aux() if has_aux else None)
        else:
            if size > 0:
                one_example.check(loss, params, batch, has_aux)

            def row(example: Any) -> tuple[Any, Any]:
                result, grad = jax.value_and_grad(loss, has_aux=has_aux)(params, example)
                of_one = clipping.leaf_norms(jax.tree.map(lambda g: g[None], grad))
                told = result if has_aux else (result, None)
                transform = pre_clipping_transform or (lambda grad: grad)
                return transform(grad), (clipping.joint_norm(of_one)[0], *told)

            total, _, (norms, values, aux) = transformed.sum_rows(
                row, batch, mask, weigh, weights, microbatch_size, per_leaf
            )
            if mask is not None:
                norms, values = (transformed.zero_absent(mask, x) for x in (norms, values))
        if dtype is not None:
            total = jax.tree.map(lambda x: x.astype(dtype), total)
        return total, AuxiliaryOutput(
            values=values if return_values else None,
            grad_norms=norms if return_grad_norms else None,
            aux=jax.tree.map(_batched.drop_unit_axis, aux) if has_aux and keep_batch_dim else aux,
        )

    bound = clipping.bound_of_all(l2_clip_norm, rescale_to_unit_norm) / normalize_by
    return bounded.BoundedSensitivityCallable(clipped, bound, wants_aux)


def _rows_of_same_subject(ids: jax.Array, size: int, mask: jax.Array | None) -> jax.Array:
    """float32 `[B]`, at least 1: rows that share the subject of each row, padding left out."""
    if jnp.shape(ids) != (size,) or not jnp.issubdtype(jnp.result_type(ids), jnp.integer):
        raise ValueError(
            f"Expected subject_ids to give int [{size}], got "
            f"{jnp.result_type(ids)}{jnp.shape(ids)}."
        )
    same = ids[:, None] == ids[None, :]
    if mask is not None:
        same &= mask[None, :]
    return jnp.maximum(jnp.sum(same, axis=1, dtype=jnp.int32), 1).astype(jnp.float32)
