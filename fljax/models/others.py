"""Models of other packages as `functional` gives those of flax: made, found to take one example or
a batch, and refused where examples would mix.
"""

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen, nnx

from fljax.models import _keras
from fljax.models.functions import Apply, Functional, functional
from fljax.types import Params


def check(name: str, thing: Any) -> Any:
    """The thing, unless it can be no model: it is not called, and has no init and apply."""
    if not callable(thing) and not (hasattr(thing, "init") and hasattr(thing, "apply")):
        raise ValueError(
            f"Expected {name} of fljax.models to be a function, got {type(thing).__name__}."
        )
    return thing


def made(
    maker: Any,
    example_shape: Sequence[int],
    num_classes: int,
    key: jax.Array,
    options: dict[str, Any],
    dtype: Any = jnp.float32,
) -> Functional:
    """The functional view of what `maker` makes.

    Args:
      maker: a function or class of flax nnx, equinox or keras, which is given those of
        `example_shape`, `num_classes`, `rngs` (nnx), `key` and the options that its signature
        names; a linen class or module; a keras model; what `haiku.transform` returns; or anything
        that returns one of these.
      example_shape, num_classes, key: as for `create`.
      options: sizes.
      dtype: of an example.

    Returns:
      `Functional`: a module that takes a batch is given one of one example.

    Raises:
      ValueError: it is none of these, mixes the examples of a batch, or gives no logits
        `[num_classes]`, or `[T, num_classes]` of symbols `[T]`.
    """
    given = {"example_shape": tuple(example_shape), "num_classes": num_classes, **options}
    module = maker
    if isinstance(maker, type) and issubclass(maker, linen.Module):
        named = {name for name in given if name in vars(maker)["__dataclass_fields__"]}
        module = maker(**{name: given[name] for name in named})
    elif not _is_instance(maker):
        with _keras.seeded(key):
            module = _called(maker, {**given, "rngs": nnx.Rngs(key), "key": key})
    if isinstance(module, Functional):
        return module
    one = jax.ShapeDtypeStruct(tuple(example_shape), dtype)
    found: list[str] = []
    with _keras.seeded(key):
        views = _views(module, one, key, found)
    wanted = [(num_classes,)]
    if len(one.shape) == 1 and jnp.issubdtype(dtype, jnp.integer):  # symbols: logits after each
        wanted.append((*one.shape, num_classes))
    for view in views:
        try:
            shape = jax.eval_shape(view.apply, view.params, one)
        except Exception as reason:  # whatever somebody else's module raises
            found.append(_in_a_line(reason))
            continue
        if getattr(shape, "shape", None) in wanted:
            return view
        found.append(f"outputs of {shape}")
    raise ValueError(
        f"Expected a model that gives [{num_classes}] logits of one example {list(example_shape)}, "
        f"or of a batch of them, got {type(module).__name__}: {'; '.join(dict.fromkeys(found))}."
    )


def _in_a_line(reason: Exception) -> str:
    """What somebody else's code raised, without its full stop."""
    said = " ".join(str(reason).split())[:200].rstrip(".")
    return f"{type(reason).__name__}: {said}"


def _called(maker: Callable[..., Any], given: dict[str, Any]) -> Any:
    """`maker` with what its signature names of `given`; else the example's shape and the number of
    classes come first.
    """
    # A class of nnx has a signature of its own that says nothing.
    start: Any = maker.__init__ if isinstance(maker, type) else maker  # type: ignore[misc]
    signature = inspect.signature(start)
    parameters = {name: p for name, p in signature.parameters.items() if name != "self"}
    takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    missing = [name for name in given if name not in parameters and name not in _ALWAYS]
    if missing and not takes_all:
        raise ValueError(f"Expected {maker!r} to take {missing[0]}, it takes {list(parameters)}.")
    if {"example_shape", "num_classes", "key"} & set(parameters):
        return maker(**{name: value for name, value in given.items() if name in parameters})
    needed = [
        p
        for p in parameters.values()
        if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD and p.default is p.empty
    ]
    first = [given["example_shape"], given["num_classes"]] if len(needed) >= 2 else []
    named = {
        name: value
        for name, value in given.items()
        if name in parameters or (takes_all and name not in ("example_shape", "num_classes", "key"))
    }
    # Layers of vectors are made of a number of features: those who count so are given that.
    sizes = [[math.prod(given["example_shape"]), given["num_classes"]]] if first else []
    if len(given["example_shape"]) != 1:
        sizes = []
    refused: list[str] = []
    for positional in (first, *sizes):
        try:
            return maker(*positional, **named)
        except (ImportError, NotImplementedError):
            raise
        except Exception as reason:  # whatever somebody else's module raises
            refused.append(_in_a_line(reason))
    wanted = [name for name, p in parameters.items() if p.default is p.empty]
    raise ValueError(
        f"Expected {maker.__name__} to be made with {', '.join(named) or 'no arguments'}"
        f"{' after example_shape and num_classes' if first else ''}, and its parameters "
        f"{wanted} to have defaults or these names, got {refused[0]}."
    )


_ALWAYS = ("example_shape", "num_classes", "rngs", "key")


def _is_instance(thing: Any) -> bool:
    """Whether it is a model already, and nothing that makes one."""
    if isinstance(thing, linen.Module | nnx.Module):
        return True
    return _is_haiku(thing) or _keras.is_model(thing)


def _is_haiku(thing: Any) -> bool:
    return type(thing).__module__.startswith("haiku") and hasattr(thing, "init")


def _is_equinox(thing: Any) -> bool:
    return any(kind.__module__.startswith("equinox") for kind in type(thing).__mro__)


def _views(
    module: Any, one: jax.ShapeDtypeStruct, key: jax.Array, refused: list[str]
) -> list[Functional]:
    """The views that a module may have: of one example, and of a batch of one. `refused` gets what
    those raise that cannot be.
    """
    if isinstance(module, nnx.Module):
        return [functional(module, batched=False), functional(module)]
    if isinstance(module, linen.Module):
        found = []
        for batched in (False, True):
            x = jnp.zeros((1, *one.shape) if batched else one.shape, one.dtype)
            try:
                variables = module.init(key, x)
            except Exception as reason:  # it wants the other form
                refused.append(_in_a_line(reason))
                continue
            found.append(functional(module, variables=variables, batched=batched))
        return found
    if _is_haiku(module):
        return [_of_haiku(module, one, key)]
    if _keras.is_model(module):
        return [_keras.functional(module, one)]
    if _is_equinox(module):
        params, apply = _of_equinox(module)
        return [Functional(params, apply), Functional(params, _batched(apply))]
    raise ValueError(
        "Expected a module of flax nnx, linen, equinox or keras, what haiku.transform returns, or "
        f"a Functional, got {type(module).__name__}."
    )


def _batched(apply: Apply) -> Apply:
    return lambda params, x: apply(params, x[None])[0]


def _of_haiku(model: Any, one: jax.ShapeDtypeStruct, key: jax.Array) -> Functional:
    """Haiku's models take a batch. One with state is refused: it mixes examples, or keeps them."""
    if type(model).__name__ == "TransformedWithState":
        raise ValueError(
            "Expected a haiku model without state, got one of transform_with_state: batch "
            "statistics mix the examples of a batch. Use hk.GroupNorm or hk.LayerNorm."
        )
    params = model.init(key, jnp.zeros((1, *one.shape), one.dtype))
    draws = "rng" in inspect.signature(model.apply).parameters

    def apply(params: Params, x: Any) -> jax.Array:
        output = model.apply(params, None, x[None]) if draws else model.apply(params, x[None])
        return output[0]  # type: ignore[no-any-return]

    return Functional({name: dict(leaves) for name, leaves in params.items()}, apply)


def _of_equinox(module: Any) -> tuple[Params, Apply]:
    """Floating arrays are trained; anything else stays as it is."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(module)
    kinds = _kinds(module)
    for kind in ("BatchNorm", "StateIndex"):
        if kind in kinds:
            raise ValueError(
                f"Expected an equinox module without state, got a {kind}: batch statistics mix the "
                "examples of a batch. Use equinox.nn.GroupNorm or LayerNorm."
            )
    trained = [
        isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jnp.inexact)
        for _, leaf in leaves
    ]
    names = [jax.tree_util.keystr(path).lstrip(".") for path, _ in leaves]
    params = {name: leaf for name, (_, leaf), on in zip(names, leaves, trained, strict=True) if on}

    def apply(params: Params, x: Any) -> jax.Array:
        whole = [
            params[name] if on else leaf
            for name, (_, leaf), on in zip(names, leaves, trained, strict=True)
        ]
        return jax.tree.unflatten(structure, whole)(x)  # type: ignore[no-any-return]

    return params, apply


def _kinds(module: Any) -> set[str]:
    """Names of the types of all modules in an equinox module."""
    found = {type(module).__name__}
    for value in vars(module).values():
        for part in jax.tree.leaves(value, is_leaf=_is_equinox):
            if _is_equinox(part):
                found |= _kinds(part)
    return found


def replace_batch_norm(module: nnx.Module, *, num_groups: int = 32) -> nnx.Module:
    """Puts GroupNorm in the place of every BatchNorm of an nnx module, and returns the module.

    Batch statistics mix the examples of a batch, so that none has a gradient of its own; those of
    groups of channels are of one example. Scale and bias are kept; running means are dropped, so
    train anew or fine-tune.

    Args:
      module: is changed. Of linen modules, whose layers are made as they are called, the code has
        to be changed instead: linen.GroupNorm for linen.BatchNorm.
      num_groups: at most; of channels that it does not divide, their greatest common divisor.

    Raises:
      ValueError: no nnx module, or one that is itself a BatchNorm.
    """
    if not isinstance(module, nnx.Module) or isinstance(module, nnx.BatchNorm):
        raise ValueError(
            "Expected a flax nnx module that holds others, got "
            f"{type(module).__name__}. In linen, write GroupNorm for BatchNorm."
        )
    for _, part in list(nnx.iter_graph(module)):
        if isinstance(part, nnx.Module):
            for name, value in list(vars(part).items()):
                if isinstance(value, nnx.BatchNorm):
                    setattr(part, name, _group_norm(value, num_groups))
    return module


def _group_norm(norm: nnx.BatchNorm, num_groups: int) -> nnx.GroupNorm:
    groups = math.gcd(norm.num_features, num_groups)
    new = nnx.GroupNorm(
        norm.num_features,
        num_groups=groups,
        epsilon=norm.epsilon,
        use_bias=norm.use_bias,
        use_scale=norm.use_scale,
        rngs=nnx.Rngs(0),
    )
    for name in ("scale", "bias"):
        if getattr(norm, name, None) is not None:
            setattr(new, name, getattr(norm, name))
    return new
