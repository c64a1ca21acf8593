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


class Frozen(nnx.Variable):
    """What an nnx module holds and nothing trains: see `fljax.models.lora.freeze`."""


class Parted(NamedTuple):
    """params: trained; frozen: constants of training, both nested dicts of arrays. apply(params,
    frozen, x) -> output for ONE example x, no batch axis.
    """

    params: Params
    frozen: Params
    apply: Callable[[Params, Params, Any], jax.Array]


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
        params, frozen, whole = _from_nnx(module)
        call: Apply = lambda params, x: whole(params, frozen, x)
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


def parted(module: nnx.Module, *, batched: bool = True) -> Parted:
    """As `functional`, with the frozen arrays as an argument: for a program that takes them as
    inputs, spread over devices, in place of constants.

        model = parted(lora.add(decoder, 8, rngs=rngs), batched=False)

        def loss(params, example):  # inside the program that `frozen` is an argument of
            return next_token(lambda params, x: model.apply(params, frozen, x))(params, example)

    Raises:
      ValueError: as `functional`, or it is no nnx module.
    """
    if not isinstance(module, nnx.Module):
        raise ValueError(f"Expected module to be a flax nnx module, got {type(module)}.")
    params, frozen, call = _from_nnx(module)

    def apply(params: Params, frozen: Params, x: Any) -> jax.Array:
        if not batched:
            return call(params, frozen, x)
        return call(params, frozen, jax.tree.map(lambda leaf: leaf[None], x))[0]

    return Parted(params, frozen, apply)


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


def _nested(names: list[tuple[str, ...]], leaves: list[Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for (*parents, last), leaf in zip(names, leaves, strict=True):
        node = nested
        for name in parents:
            node = node.setdefault(name, {})
        node[last] = leaf
    return nested


def _lookup(nested: Params, path: tuple[str, ...]) -> jax.Array:
    for name in path:
        nested = nested[name]
    return nested


def _from_nnx(module: nnx.Module) -> tuple[Params, Params, Callable[..., jax.Array]]:
    """(trained, frozen, the module as a function of both and of its input)."""
    graph, *states = nnx.split(module, nnx.Param, Frozen, ...)
    for path, variable in nnx.to_flat_state(states[2]):
        if isinstance(variable, nnx.BatchStat):
            found = ".".join(map(str, path))
            raise ValueError(_BATCH_STATISTICS.format(found=found, kind=type(module).__name__))
    flat = [jax.tree_util.tree_flatten_with_path(state) for state in states]
    structures = [structure for _, structure in flat]
    names = [[_names(path) for path, _ in leaves] for leaves, _ in flat]
    arrays = [[leaf for _, leaf in leaves] for leaves, _ in flat]
    rest_names = [".".join(path) for path in names[2]]

    def call(params: Params, frozen: Params, x: Any) -> jax.Array:
        # The variables are built anew in each call, so that the module's own never meet a tracer.
        given = [
            [_lookup(params, path) for path in names[0]],
            [_lookup(frozen, path) for path in names[1]],
            arrays[2],
        ]
        copy = nnx.merge(graph, *map(jax.tree.unflatten, structures, given))
        output = copy(x)
        after = jax.tree.leaves(nnx.split(copy, nnx.Param, Frozen, ...)[3])
        changed = [
            name
            for name, old, new in zip(rest_names, arrays[2], after, strict=False)
            if old is not new
        ]
        if changed or len(after) != len(arrays[2]):
            raise ValueError(
                f"Expected module to be a pure function, got {type(module).__name__} which changes "
                f"{', '.join(changed) or 'its state'}; for dropout call module.eval() first."
            )
        return output

    return _nested(names[0], arrays[0]), _nested(names[1], arrays[1]), call
