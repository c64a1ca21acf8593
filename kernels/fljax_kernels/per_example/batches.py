"""What an engine is given: parameter leaves, examples, batch size; and the checks that the input is
usable.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Batch(NamedTuple):
    """leaves: parameter arrays; examples: pytree with leading axis `size`; names: of the leaves."""

    leaves: list[jax.Array]
    examples: Any
    size: int
    names: tuple[str, ...]


def flatten_params(params: Any) -> tuple[list[jax.Array], Any, tuple[str, ...]]:
    """Leaves as arrays, the tree, and names. Raises ValueError on a leaf that has no gradient."""
    paths_and_leaves, tree = jax.tree_util.tree_flatten_with_path(params)
    if not paths_and_leaves:
        raise ValueError("Expected params with at least one array, got an empty tree.")
    leaves = []
    for path, leaf in paths_and_leaves:
        array = jnp.asarray(leaf)
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise ValueError(
                f"Expected params of real floating point, got params{jax.tree_util.keystr(path)} "
                f"of dtype {array.dtype}: close over what is not trained, or pass it in the batch."
            )
        leaves.append(array)
    return leaves, tree, tuple(jax.tree_util.keystr(path) for path, _ in paths_and_leaves)


def batch_size(examples: Any) -> int:
    """The common leading axis. Raises ValueError where there is none."""
    sizes = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(examples)[0]:
        if jnp.ndim(leaf) == 0:
            raise ValueError(
                "Expected a leading batch axis on every leaf, got the scalar "
                f"batch{jax.tree_util.keystr(path)}."
            )
        sizes[jax.tree_util.keystr(path)] = jnp.shape(leaf)[0]
    if not sizes:
        raise ValueError("Expected a batch with at least one array, got an empty tree.")
    if len(set(sizes.values())) > 1:
        shown = ", ".join(f"batch{path}: {size}" for path, size in sizes.items())
        raise ValueError(f"Expected equal leading axes in batch, got {shown}.")
    return next(iter(sizes.values()))


def normal_loss(loss: Callable[..., Any], tree: Any, has_aux: bool) -> Callable[..., Any]:
    """loss(leaves, example) -> (scalar, aux), checked while it is traced."""

    def checked(leaves: list[jax.Array], example: Any) -> tuple[jax.Array, Any]:
        result = loss(jax.tree_util.tree_unflatten(tree, leaves), example)
        if has_aux:
            if not (isinstance(result, tuple) and len(result) == 2):
                raise ValueError(
                    "Expected loss to return (scalar, aux) with has_aux=True, got "
                    f"{type(result).__name__}."
                )
            value, aux = result
        else:
            value, aux = result, None
        if not isinstance(value, jax.Array | float | int) and not hasattr(value, "dtype"):
            raise ValueError(
                f"Expected loss(params, example) to be a scalar, got "
                f"{type(value).__name__}; has_aux=True allows a pair."
            )
        value = jnp.asarray(value)
        if value.shape != ():
            raise ValueError(
                "Expected loss(params, example) to be a scalar for ONE example, got shape "
                f"{value.shape}: the batch axis is added by per_example_grads."
            )
        if not jnp.issubdtype(value.dtype, jnp.floating):
            raise ValueError(
                f"Expected loss(params, example) of real floating point, got dtype {value.dtype}."
            )
        return value, aux

    return checked


def varying_axes(*arrays: Any) -> frozenset[str]:
    """Mesh axes of an enclosing shard_map along which some array differs."""
    return frozenset().union(*(_varying(jax.typeof(x)) for x in arrays))


def _varying(aval: Any) -> frozenset[str]:
    kind = getattr(aval, "manual_axis_type", None)
    return frozenset() if kind is None else frozenset(kind.varying)


def loss_axes(one: Callable[..., Any], leaves: list[jax.Array], examples: Any) -> frozenset[str]:
    """Along which the loss differs, be it for a value that it closes over. A trace, but inside
    shard_map only.
    """
    if not jax.sharding.get_abstract_mesh().manual_axes:
        return frozenset()
    example = jax.tree.map(lambda x: x[0], fresh_keys(examples))
    return _varying(jax.make_jaxpr(one)(leaves, example).out_avals[0])


def moved_here(x: jax.Array) -> jax.Array:
    """The same on the mesh of here: inside a `shard_map` that closes over x, JAX would move it at
    each use, between the parameter and the rules.
    """
    here, there = jax.sharding.get_abstract_mesh(), jax.typeof(x).sharding.mesh
    if not here.manual_axes or there.empty or there == here:
        return x
    return jax.sharding.reshard(x, jax.sharding.NamedSharding(here, jax.sharding.PartitionSpec()))


def fresh_keys(tree: Any) -> Any:
    """The same values, whose PRNG keys may be used once more: another pass draws the same numbers
    on purpose.
    """

    def fresh(x: Any) -> Any:
        return jax.random.clone(x) if jnp.issubdtype(jnp.result_type(x), jax.dtypes.prng_key) else x

    return jax.tree.map(fresh, tree)


def make_varying(x: jax.Array, axes: frozenset[str]) -> jax.Array:
    """Marks x as different on each device: the gradient of a shared x would be summed over
    devices.
    """
    missing = tuple(sorted(axes - varying_axes(x)))
    return jax.lax.pcast(x, missing, to="varying") if missing else x


def check_mask(batch_mask: Any, size: int) -> jax.Array | None:
    """`[B]` bool or None."""
    if batch_mask is None:
        return None
    mask = jnp.asarray(batch_mask)
    if mask.shape != (size,) or mask.dtype != jnp.bool_:
        raise ValueError(
            f"Expected batch_mask of shape ({size},) and dtype bool, got shape {mask.shape} and "
            f"dtype {mask.dtype}."
        )
    return mask
