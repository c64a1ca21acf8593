"""Clipping of any pytree, and of what any function returns for each row of a batch."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fljax.local import _batched, clipping, transformed
from fljax.local.bounded import BoundedSensitivityCallable
from fljax_kernels import _meshes
from fljax_kernels.clipped_sum import reference


def clip_pytree(
    pytree: Any,
    clip_norm: Any,
    rescale_to_unit_norm: bool = False,
    nan_safe: bool = True,
    return_zero: bool | jax.Array = False,
) -> tuple[Any, jax.Array]:
    """Scales a tree of arrays down to L2 norm `clip_norm` at most, all leaves together.

    Names, order and meaning are those of `jax_privacy.clip_pytree`. The differences: a norm whose
    square overflows or underflows float32 is still known; leaves of 16 bits are rounded towards
    zero, so that they do not leave the bound; `clip_norm` may be a tree; the norm that is returned
    is not finite where the tree is not.

    Guarantee: the result has norm at most `clip_norm * (1 + 1e-5)`, with `rescale_to_unit_norm` at
    most 1 + 1e-5, whatever the tree holds: an entry that is NaN or infinite counts as zero. The
    margin is float32 rounding. With `nan_safe=False` this holds for finite trees only. The norm is
    that of the data: it is not private.

    Args:
      pytree: arrays of floating dtypes.
      clip_norm: bound C, in the unit of the tree. >= 0; infinity does not clip; at 0 the result is
        zero. May be traced: one that is then negative or NaN counts as 0. Or a tree of bounds, a
        prefix of `pytree`: each subtree is clipped to its own, and the bound of all is
        sqrt(sum C_l**2).
      rescale_to_unit_norm: divide the clipped tree by C. With C = 0 it is divided by its norm.
      nan_safe: entries that are not finite count as zero; False: NaN stays NaN.
      return_zero: give zero whatever the tree holds. May be traced, bool `[]`.

    Returns:
      (clipped, norm): a tree like `pytree`, shapes and dtypes included; and the L2 norm before
      clipping, `[]` in float32 (float64 where a leaf is), one for each bound in `clip_norm`.

    Raises:
      ValueError: a bound is negative, NaN or no number, or a leaf is not of a floating dtype.

    Source: Abadi et al. (2016), "Deep Learning with Differential Privacy", arXiv:1607.00133,
    Algorithm 1, "Clip gradient".
    """
    clipping.check_bounds(clip_norm=clip_norm)
    tree = _floating("pytree", pytree)
    clip = functools.partial(_clip, rescale_to_unit_norm=rescale_to_unit_norm, nan_safe=nan_safe)
    at = _meshes.home(tree)
    if at is None:
        return clip(tree, clip_norm, return_zero)
    clipped, norm = _meshes.compute(at, clip, tree, clip_norm, return_zero)
    clipped = jax.tree.map(lambda x, leaf: at.leave(x, _meshes.spec(leaf)), clipped, tree)
    return clipped, jax.tree.map(lambda x: at.leave(x, ()), norm)


def clipped_fun(
    fun: Callable[..., Any],
    has_aux: bool = False,
    *,
    batch_argnums: int | Sequence[int] = 0,
    keep_batch_dim: bool = True,
    l2_clip_norm: Any = 1.0,
    rescale_to_unit_norm: bool = False,
    normalize_by: float = 1.0,
    return_norms: bool = False,
    microbatch_size: int | None = None,
    nan_safe: bool = True,
    dtype: Any = None,
    prng_argnum: int | None = None,
    spmd_axis_name: Any = None,
) -> BoundedSensitivityCallable:
    """The function that clips what `fun` returns for each row of a batch, and adds it up: a SUM.

    Takes the arguments of `fun` and, as a keyword, `is_padding_example`: bool `[B]`, True where a
    row is padding and adds nothing whatever it holds. Further keyword arguments are per example: a
    leading axis B, sliced as it is. For gradients use `clipped_grad`, which need not hold them.

    Names and meaning are those of `jax_privacy.clipped_fun`; the differences: a row that is not
    finite adds zero as a whole, not entry by entry; sums are taken in float32 at least, and only
    the result is rounded to `dtype`; `l2_clip_norm` may be a tree; norms are 0 for padding.

    Guarantee: adding, removing or making padding of one row moves the sum by at most
    `.l2_norm_bound * (1 + 1e-5)` in L2 norm; replacing one, by twice that. The privacy unit is a
    row (with `keep_batch_dim=False`, a row may be a whole group or user). The margin is float32
    rounding. It does not cover what rounding the sum to fewer bits does: where `fun` returns 16
    bits, pass `dtype=jnp.float32`. Norms and aux are of single rows: they are not private. With
    `nan_safe=False` there is no guarantee where an output is not finite.

    Args:
      fun: returns a pytree of floating arrays, or (pytree, aux) with `has_aux`.
      has_aux: whether `fun` returns a pair.
      batch_argnums: which arguments have a leading axis B.
      keep_batch_dim: give `fun` batches of size 1; False: without the axis.
      l2_clip_norm: bound C on the output for one row, in its unit. >= 0; infinity does not clip;
        may be traced. Or a tree of bounds, a prefix of the output's tree: each subtree is clipped
        to its own C_l, and the bound of all is sqrt(sum C_l**2).
      rescale_to_unit_norm: divide each clipped part by its C: the bound becomes 1 (sqrt of the
        number of bounds).
      normalize_by: divide the sum by this. > 0. A public constant, such as the expected batch size.
      return_norms: also return the norms before clipping, `[B]`.
      microbatch_size: rows at a time. > 0. Changes memory and speed only.
      nan_safe: a row whose output is not finite adds zero. False: NaN reaches the sum.
      dtype: of the sum. None: that of what `fun` returns.
      prng_argnum: an argument that holds a typed key, or a tree of keys: each row gets its own, by
        `jax.random.split`.
      spmd_axis_name: must be None: sharding of the batch passes through without it, on Auto and on
        Explicit axes, where the sum is whole on every device.

    Returns:
      A callable with `.sensitivity(neighboring_relation)`, `.l2_norm_bound` and `.has_aux`. It
      returns the sum; (sum, aux) with has_aux; (sum, norms) with return_norms; (sum, (aux, norms))
      with both.

    Raises:
      ValueError: an argument is out of range, `fun` returns what is not floating, or an argument
        outside batch_argnums has a row for each of the batch.
      NotImplementedError: spmd_axis_name is given.

    Source: Abadi et al. (2016), "Deep Learning with Differential Privacy", arXiv:1607.00133,
    Algorithm 1.
    """
    batched = _batched.places("batch_argnums", batch_argnums)
    if not batched:
        raise ValueError("Expected batch_argnums not empty, got ().")
    clipping.check_bounds(l2_clip_norm=l2_clip_norm)
    _batched.check_options(normalize_by, microbatch_size, spmd_axis_name)
    per_leaf = not jax.tree_util.all_leaves([l2_clip_norm])

    def clipped(*args: Any, is_padding_example: Any = None, **kwargs: Any) -> Any:
        _batched.check_count(args, batched)
        total, (aux, norms) = _batched.on_their_mesh(
            summed,
            (l2_clip_norm, args, is_padding_example, kwargs),
            batch=([args[i] for i in batched], is_padding_example, kwargs),
            like=None,
        )
        if has_aux:
            return total, ((aux, norms) if return_norms else aux)
        return (total, norms) if return_norms else total

    def summed(
        bounds: Any, args: tuple[Any, ...], is_padding_example: Any, kwargs: dict[str, Any]
    ) -> tuple[Any, Any]:
        batch, size = _batched.rows(args, kwargs, batched, prng_argnum)
        _batched.check_shared(args, {*batched, prng_argnum}, size)

        def row(example: Any) -> tuple[Any, Any]:
            slots = _batched.arguments(args, example, keep_batch_dim, prng_argnum)
            with _batched.of_one_row(keep_batch_dim):
                result = fun(*slots, **example["kwargs"])
            value, aux = result if has_aux else (result, None)
            return _floating("fun to return", value), aux

        weigh = functools.partial(
            clipping.weigh, bounds, rescale_to_unit_norm=rescale_to_unit_norm, nan_safe=nan_safe
        )
        total, norms, aux = transformed.sum_rows(
            row,
            batch,
            _batched.present(is_padding_example),
            weigh,
            jnp.full(size, 1 / normalize_by, jnp.float32),
            microbatch_size,
            per_leaf,
        )
        one = jax.eval_shape(
            row, jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), batch)
        )[0]
        total = jax.tree.map(
            lambda x, leaf: x.astype(leaf.dtype if dtype is None else dtype), total, one
        )
        return total, (jax.tree.map(_batched.drop_unit_axis, aux) if keep_batch_dim else aux, norms)

    bound = clipping.bound_of_all(l2_clip_norm, rescale_to_unit_norm) / normalize_by
    return BoundedSensitivityCallable(clipped, bound, has_aux or return_norms)


def _clip(
    tree: Any, clip_norm: Any, return_zero: Any, *, rescale_to_unit_norm: bool, nan_safe: bool
) -> tuple[Any, Any]:
    finite = (
        jax.tree.map(lambda x: jnp.where(jnp.isfinite(x), x, jnp.zeros_like(x)), tree)
        if nan_safe
        else tree
    )

    def clip(bound: Any, part: Any) -> Any:
        root, exponent = _root(part)
        up, down = (jnp.ldexp(jnp.ones_like(root), e) for e in (exponent, -exponent))
        bound = jnp.asarray(bound, root.dtype)
        # where, not maximum: NaN is no bound, and a tree would stay as it is.
        bound = jnp.where(bound > 0, bound, jnp.zeros_like(bound))
        root = jnp.where(root > 0, root, jnp.ones_like(root))
        # Of the tree * 2**-exponent: its square is in range, and so is what it is multiplied by.
        factor = (
            1 / jnp.maximum(root, bound * down)
            if rescale_to_unit_norm
            else jnp.minimum(up, bound / root)
        )
        return jax.tree.map(functools.partial(_scale, down, factor, return_zero), part)

    def norm(_: Any, part: Any) -> jax.Array:
        return jnp.ldexp(*_root(part))

    return jax.tree.map(clip, clip_norm, finite), jax.tree.map(norm, clip_norm, tree)


def _root(tree: Any) -> tuple[jax.Array, jax.Array]:
    """(r, e) with the norm r * 2**e; r is about 1, or 0, or not finite where the tree is not."""
    squares, exponent = reference.scaled_squares(jax.tree.map(lambda x: x[None], tree))
    return jnp.sqrt(squares[0]), exponent[0]


def _scale(down: jax.Array, factor: jax.Array, return_zero: Any, x: jax.Array) -> jax.Array:
    """(x * down) * factor in x's dtype, nowhere larger than it is; or zero."""
    wide = reference.wide(x)
    scaled = (wide * down.astype(wide.dtype)) * factor.astype(wide.dtype)
    near = scaled.astype(x.dtype)
    zero = jnp.zeros_like(near)
    if x.dtype.itemsize < 4:
        near = jnp.where(
            jnp.abs(reference.wide(near)) > jnp.abs(scaled), jnp.nextafter(near, zero), near
        )
    return jnp.where(return_zero, zero, near)


def _floating(name: str, tree: Any) -> Any:
    """The tree as arrays; ValueError where one is not floating."""
    tree = jax.tree.map(jnp.asarray, tree)
    for leaf in jax.tree.leaves(tree):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise ValueError(f"Expected {name} arrays of a floating dtype, got {leaf.dtype}.")
    return tree
