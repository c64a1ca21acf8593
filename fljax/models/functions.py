"""A flax module as what the rest of fljax wants: a params pytree and a pure function of one
example.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
from flax import linen, nnx

from fljax.types import Params

Apply = Callable[[Params, Any], jax.Array]

_BATCH_STATISTICS = (
    "Expected module without batch statistics, got {found} in {kind}: they mix the examples of a "
    "batch, so clipping "
    "one example or client no longer bounds its influence. Use GroupNorm or LayerNorm: "
    "fljax.models.replace_batch_norm puts it into an nnx module."
)


class Functional(NamedTuple):
    """params: nested dicts of arrays, keys are strings. apply(params, x) -> output for ONE example
    x, no batch axis.
    """

    params: Params
    apply: Apply


def functional(
    module: nnx.Module | linen.Module,
    *,
    variables: Mapping[str, Any] | None = None,
    batched: bool = True,
) -> Functional:
    """The functional view of a flax module: pure, and safe under jit, vmap and grad.

    Args:
      module: an initialised nnx module (its `nnx.Param` variables become `params`) or a linen
        module. It is not changed, now or later. A module with dropout must be in evaluation mode:
        `apply` has no key.
      variables: for a linen module what its `init` returned; only the collection "params" is
        trained, others stay constant. None for an nnx module, which carries its own.
      batched: whether the module wants a leading batch axis, as most do. `apply` then adds one of
        length 1 and takes it away; False hands one example over as it is.

    Returns:
      `Functional(params, apply)`.

    Raises:
      ValueError: the module has batch statistics, `variables` does not fit the module, or (while
        `apply` is traced or run) the module changes its own state.
    """
    if isinstance(module, nnx.Module):
        if variables is not None:
            raise ValueError(
                "Expected variables=None for an nnx module, which carries its own, got variables."
            )
        params, call = _from_nnx(module)
    elif isinstance(module, linen.Module):
        params, call = _from_linen(module, variables)
    else:
        raise ValueError(
            f"Expected module to be a flax nnx or linen module, got module of type {type(module)}."
        )

    def apply(params: Params, x: Any) -> jax.Array:
        if not batched:
            return call(params, x)
        return call(params, jax.tree.map(lambda leaf: leaf[None], x))[0]

    return Functional(params, apply)


def _from_linen(module: linen.Module, variables: Mapping[str, Any] | None) -> tuple[Params, Apply]:
    if variables is None or "params" not in variables:
        raise ValueError(
            "Expected variables to be what module.init returned, with a collection 'params', "
            f"got variables={variables if variables is None else sorted(variables)}."
        )
    if "batch_stats" in variables:
        raise ValueError(
            _BATCH_STATISTICS.format(found="a collection 'batch_stats'", kind=type(module).__name__)
        )
    # Not the caller's dictionaries: changing those later must change nothing here.
    constants = {
        name: jax.tree.map(lambda leaf: leaf, tree)
        for name, tree in variables.items()
        if name != "params"
    }

    def call(params: Params, x: Any) -> jax.Array:
        return module.apply({"params": params, **constants}, x)

    return jax.tree.map(lambda leaf: leaf, dict(variables["params"])), call


def _names(path: tuple[Any, ...]) -> tuple[str, ...]:
    """A path of `jax.tree_util` as strings; the step from an nnx variable into its value is left
    out.
    """
    steps = [
        getattr(step, "key", getattr(step, "idx", getattr(step, "name", step))) for step in path
    ]
    is_value = [
        isinstance(step, jax.tree_util.GetAttrKey) and step.name == "value" for step in path
    ]
    return tuple(str(step) for step, drop in zip(steps, is_value, strict=True) if not drop)


def _from_nnx(module: nnx.Module) -> tuple[Params, Apply]:
    graph, trained, rest = nnx.split(module, nnx.Param, ...)
    for path, variable in nnx.to_flat_state(rest):
        if isinstance(variable, nnx.BatchStat):
            found = ".".join(map(str, path))
            raise ValueError(_BATCH_STATISTICS.format(found=found, kind=type(module).__name__))
    leaves, structure = jax.tree_util.tree_flatten_with_path(trained)
    names = [_names(path) for path, _ in leaves]
    constants, rest_structure = jax.tree.flatten(rest)
    rest_names = [".".join(_names(path)) for path, _ in jax.tree_util.tree_leaves_with_path(rest)]

    params: dict[str, Any] = {}
    for (*parents, last), (_, leaf) in zip(names, leaves, strict=True):
        node = params
        for name in parents:
            node = node.setdefault(name, {})
        node[last] = leaf

    def lookup(params: Params, path: tuple[str, ...]) -> jax.Array:
        for name in path:
            params = params[name]
        return params

    def call(params: Params, x: Any) -> jax.Array:
        # The variables are built anew in each call, so that the module's own never meet a tracer.
        copy = nnx.merge(
            graph,
            jax.tree.unflatten(structure, [lookup(params, path) for path in names]),
            jax.tree.unflatten(rest_structure, constants),
        )
        output = copy(x)
        after = jax.tree.leaves(nnx.split(copy, nnx.Param, ...)[2])
        changed = [
            name
            for name, old, new in zip(rest_names, constants, after, strict=False)
            if old is not new
        ]
        if changed or len(after) != len(constants):
            raise ValueError(
                f"Expected module to be a pure function, got {type(module).__name__} which changes "
                f"{', '.join(changed) or 'its state'}; for dropout call module.eval() first."
            )
        return output

    return params, call
