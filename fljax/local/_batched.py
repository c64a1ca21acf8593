"""A function of a batch as a function of one row: what is a row, and what one call sees of it."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax import _validate
from fljax_kernels import _meshes

Args = tuple[Any, ...]


def places(name: str, value: Any) -> tuple[int, ...]:
    """Positions of arguments as a tuple; ValueError where one is no position."""
    several = isinstance(value, Sequence) and not isinstance(value, str)
    found = tuple(value) if several else (value,)
    for place in found:
        _validate.non_negative_int(**{name: place})
    return found


def check_options(normalize_by: Any, microbatch_size: Any, spmd_axis_name: Any) -> None:
    """Raises what `clipped_grad` and `clipped_fun` raise for these."""
    _validate.positive(normalize_by=normalize_by)
    if microbatch_size is not None:
        _validate.positive_int(microbatch_size=microbatch_size)
    if spmd_axis_name is not None:
        raise NotImplementedError(
            f"Expected spmd_axis_name=None, got spmd_axis_name={spmd_axis_name!r}."
        )


def check_count(args: Args, needed: tuple[int, ...]) -> None:
    """Raises ValueError where an argument of these positions is missing."""
    if len(args) <= max(needed):
        raise ValueError(f"Expected at least {max(needed) + 1} arguments, got {len(args)}.")


def check_shared(args: Args, known: set[Any], size: int) -> None:
    """Raises ValueError where what all rows get looks as if it had a row for each of them."""
    for place, argument in enumerate(args):
        leaves = [] if place in known else jax.tree.leaves(argument)
        leaves = [x for x in leaves if hasattr(x, "shape")]
        of_rows = [np.ndim(x) > 0 and np.shape(x)[0] == size for x in leaves]
        # Frozen parameters may have such an axis by chance, but hardly all; labels are integers.
        labels = any(
            here and not jnp.issubdtype(x.dtype, jnp.floating)
            for here, x in zip(of_rows, leaves, strict=True)
        )
        if size > 1 and leaves and (all(of_rows) or labels):
            raise ValueError(
                f"Expected every argument with a row for each of the {size} in the batch to be in "
                f"batch_argnums, got argument {place} of shape "
                f"{np.shape(leaves[of_rows.index(True)])}: each row would see it whole, and the "
                f"sensitivity would be false. Add {place} to batch_argnums; close over what is no "
                "data."
            )


def rows(
    args: Args, kwargs: dict[str, Any], batched: tuple[int, ...], prng_argnum: int | None
) -> tuple[dict[str, Any], int]:
    """(what is sliced by rows: a tree of `[B, ...]`; B).

    Raises:
      ValueError: there is no common leading axis.
    """
    batch: dict[str, Any] = {"args": {i: args[i] for i in batched}, "kwargs": kwargs}
    axes = {np.shape(leaf)[0] if np.ndim(leaf) else -1 for leaf in jax.tree.leaves(batch)}
    sizes = sorted(axes)
    if len(sizes) != 1 or sizes[0] < 0:
        raise ValueError(
            f"Expected one leading axis B in all batch arguments, got sizes {sizes} (-1: no axis)."
        )
    if prng_argnum is not None:
        split = lambda key: jax.random.split(key, sizes[0])
        batch["keys"] = jax.tree.map(split, args[prng_argnum])
    return batch, sizes[0]


@contextlib.contextmanager
def of_one_row(keep_batch_dim: bool) -> Iterator[None]:
    """Within it, what a caller's function raises says in which form it got its row."""
    try:
        yield
    except Exception as reason:
        if keep_batch_dim:
            reason.add_note(
                "The function got a batch of one row. One of a row without a batch axis wants "
                "keep_batch_dim=False."
            )
        raise


def arguments(args: Args, row: dict[str, Any], keep_batch_dim: bool, prng_argnum: Any) -> list[Any]:
    """The positional arguments that a call for one row gets: its own, and what all rows share."""
    slots = list(args)
    for i, x in row["args"].items():
        slots[i] = jax.tree.map(lambda leaf: leaf[None], x) if keep_batch_dim else x
    if prng_argnum is not None:
        slots[prng_argnum] = row["keys"]
    return slots


def present(is_padding_example: Any) -> jax.Array | None:
    """True where a row counts, bool `[B]`; None: all do."""
    return None if is_padding_example is None else ~jnp.asarray(is_padding_example, bool)


def drop_unit_axis(x: jax.Array) -> jax.Array:
    """`[B, 1, ...]` as `[B, ...]`: the axis that keep_batch_dim put there, where it came back."""
    return jnp.squeeze(x, axis=1) if x.ndim >= 2 and x.shape[1] == 1 else x


def on_their_mesh(
    summed: Callable[..., tuple[Any, Any]], given: Args, batch: Any, like: Any
) -> tuple[Any, Any]:
    """`summed(*given)`, which is (a sum, a tree of `[B, ...]`), on Explicit axes too.

    There the sum comes out sharded as `like` (None: whole on every device), and the rows as the
    leading axis of `batch`: as `jax.grad` and `jax.vmap` have them.
    """
    at = _meshes.home(*given)
    if at is None:
        return summed(*given)
    total, of_rows = _meshes.compute(at, summed, *given)
    first = _meshes.leading(batch)
    if like is None:
        total = jax.tree.map(lambda x: at.leave(x, (None,) * x.ndim), total)
    else:
        total = jax.tree.map(lambda x, leaf: at.leave(x, _meshes.spec(leaf)), total, like)
    return total, jax.tree.map(lambda x: at.leave(x, (first, *[None] * (x.ndim - 1))), of_rows)
