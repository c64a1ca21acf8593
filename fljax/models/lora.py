"""Low-rank adaptation: of a model that is there, small matrices beside its linear layers are
trained, and nothing else.

Of what is frozen no gradient is taken, so that per-example gradients are those of the small
matrices alone: `fljax.models.functional` gives frozen arrays to no optimizer, no clipping and no
noise.

Source: Hu et al. (2021), "LoRA: Low-Rank Adaptation of Large Language Models", arXiv:2106.09685,
Section 4.1.
"""

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from fljax import _validate
from fljax.models.functions import Frozen
from fljax_kernels.per_example.reference import wide

Patterns = str | Sequence[str]
_LINEAR = (nnx.Linear, nnx.LinearGeneral)


class LowRank(nnx.Module):
    """A linear layer and beside it `scale * (x a) b`, with a `[in, rank]` and b `[rank, out]`.

    Of layers that are stacked for a `scan`, `[layers, in, out]`, the matrices are stacked, too.
    """

    def __init__(
        self,
        linear: nnx.Linear | nnx.LinearGeneral,
        rank: int,
        scale: float,
        rngs: nnx.Rngs,
        param_dtype: Any,
    ) -> None:
        self.linear, self.scale = linear, scale
        self.fan_in_axes, fan_out_axes = _sides(linear)
        *lead, fan_in, fan_out = _flat(linear.kernel.shape, self.fan_in_axes, fan_out_axes)
        # With b at 0 the adapted model is the model, and a's first gradient is 0.
        start = jax.random.normal(rngs.params(), (*lead, fan_in, rank), param_dtype)
        self.a = nnx.Param(start * jnp.asarray(fan_in**-0.5, param_dtype))
        self.b = nnx.Param(jnp.zeros((*lead, rank, fan_out), param_dtype))

    def __call__(self, x: jax.Array, *args: Any, **named: Any) -> jax.Array:
        y = self.linear(x, *args, **named)
        flat = x.reshape(*x.shape[: x.ndim - self.fan_in_axes], -1).astype(y.dtype)
        low = jnp.dot(flat, self.a[...].astype(y.dtype)) * jnp.asarray(self.scale, y.dtype)
        return y + jnp.dot(low, self.b[...].astype(y.dtype)).reshape(y.shape)

    def merged(self) -> jax.Array:
        """The kernel that does the same alone, in its dtype; added up in float32 at least."""
        kernel = self.linear.kernel[...]
        dtype = wide(kernel.dtype)
        a, b = (z[...].astype(dtype) for z in (self.a, self.b))
        added = self.scale * jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
        return (kernel.astype(dtype) + added.reshape(kernel.shape)).astype(kernel.dtype)


def add(
    module: nnx.Module,
    rank: int,
    *,
    rngs: nnx.Rngs,
    alpha: float | None = None,
    where: Patterns = "*",
    trained: Patterns = (),
    param_dtype: Any = jnp.float32,
) -> nnx.Module:
    """Puts a `LowRank` around linear layers of an nnx module, freezes the rest, returns the module.

    Args:
      module: is changed. `nnx.Linear` and `nnx.LinearGeneral` over last axes are linear layers,
        also stacked ones.
      rank: of what is added to a layer's kernel. > 0, at most the layer's inputs and its outputs.
      rngs: for the matrices a; b starts at 0, so that the model starts as it was.
      alpha: what is added is multiplied by alpha / rank. > 0. None: rank.
      where: paths of layers, joined by dots, as patterns: `"layers.attention.*"`, `["*.q", "*.v"]`.
        A layer that meets any of them is adapted.
      trained: paths of parameters that are trained as a whole beside, such as `"*norm*"`.
      param_dtype: of the matrices.

    Raises:
      ValueError: no such layer, an argument is out of range, or as `freeze`.
    """
    _validate.positive_int(rank=rank)
    if alpha is not None:
        _validate.positive(alpha=alpha)
    layers = [part for part in _parts(module) if isinstance(part.value, _LINEAR)]
    # A layer may stand in several places, and is one in all of them.
    chosen = {id(part.value): part.value for part in layers if _meets(part.path, where)}
    if not chosen:
        raise ValueError(f"Expected where to name linear layers of the module, got {where!r}.")
    for layer in chosen.values():
        _check_axes(layer)
        *_, fan_in, fan_out = _flat(layer.kernel.shape, *_sides(layer))
        if rank > min(fan_in, fan_out):
            path = next(part.path for part in layers if part.value is layer)
            raise ValueError(
                f"Expected rank <= {min(fan_in, fan_out)} for the layer {path!r} of {fan_in} "
                f"inputs and {fan_out} outputs, got rank={rank}."
            )
    # Of a module that `freeze` has been over nothing is left to freeze.
    if trained or any(isinstance(part.value, nnx.Param) for part in _parts(module)):
        freeze(module, but=trained)
    scale = 1.0 if alpha is None else alpha / rank
    made = {k: LowRank(layer, rank, scale, rngs, param_dtype) for k, layer in chosen.items()}
    _replace(layers, made)
    return module


def freeze(
    module: nnx.Module, where: Patterns = "*", *, but: Patterns = (), dtype: Any = None
) -> nnx.Module:
    """Makes parameters of an nnx module constants, and returns the module, which is changed.

    Args:
      module: any.
      where: paths of parameters, joined by dots, as patterns; `but`: of those that stay trained.
      dtype: in which frozen floats are held from now on, such as bfloat16. None: as they are.

    Raises:
      ValueError: `where` or `but` meets no parameter, or parameters are held in other containers
        than modules, `nnx.List` and `nnx.Dict`.
    """
    variables = [part for part in _parts(module) if isinstance(part.value, nnx.Param)]
    met = {}
    for name, patterns in (("where", where), ("but", but)):
        met[name] = {id(part.value) for part in variables if _meets(part.path, patterns)}
        if patterns and not met[name]:
            raise ValueError(f"Expected {name} to name parameters, got {patterns!r}.")
    chosen = {id(part.value): part.value for part in variables}

    def held(value: jax.Array) -> jax.Array:
        return value if dtype is None else value.astype(dtype)

    made = {k: Frozen(held(chosen[k][...])) for k in met["where"] - met["but"]}
    _replace(variables, made)
    return module


def merge(module: nnx.Module) -> nnx.Module:
    """Undoes `add`, but for what was learned, which goes into the kernels; all parameters are
    trained again. Returns the module, which is changed.
    """
    # Of layers that were adapted twice the inner matrices go first.
    while adapted := [
        part
        for part in _parts(module)
        if isinstance(part.value, LowRank) and not isinstance(part.value.linear, LowRank)
    ]:
        layers = {id(part.value): part.value for part in adapted}
        for low in layers.values():
            low.linear.kernel = Frozen(low.merged())
        _replace(adapted, {k: low.linear for k, low in layers.items()})
    frozen = [part for part in _parts(module) if isinstance(part.value, Frozen)]
    _replace(frozen, {id(part.value): nnx.Param(part.value[...]) for part in frozen})
    return module


class _Part(NamedTuple):
    """What stands at one place: `value` is the attribute `name` of `parent`."""

    parent: nnx.Module
    name: str
    path: str
    value: Any


def _parts(module: nnx.Module) -> list[_Part]:
    """Modules and variables at every place of a module; one that is in several places, several
    times.
    """
    found: list[_Part] = []

    def walk(part: nnx.Module, path: str, above: tuple[int, ...]) -> None:
        for name, value in vars(part).items():
            if isinstance(value, nnx.Module | nnx.Variable) and id(value) not in above:
                found.append(_Part(part, name, f"{path}{name}", value))
                if isinstance(value, nnx.Module):
                    walk(value, f"{path}{name}.", (*above, id(value)))

    walk(module, "", (id(module),))
    walked = {id(part.value) for part in found}
    for where, value in nnx.iter_graph(module):
        if isinstance(value, nnx.Param | Frozen) and id(value) not in walked:
            raise ValueError(
                "Expected parameters in modules, nnx.List and nnx.Dict, got one at "
                f"{'.'.join(map(str, where))} in another container."
            )
    return found


def _replace(parts: Sequence[_Part], made: Mapping[int, Any]) -> None:
    """Puts `made`, by the identity of what was there, in every place of `parts`."""
    for part in parts:
        if id(part.value) in made:
            setattr(part.parent, part.name, made[id(part.value)])


def _meets(path: str, patterns: Patterns) -> bool:
    listed = [patterns] if isinstance(patterns, str) else patterns
    return any(fnmatch.fnmatchcase(path, pattern) for pattern in listed)


def _sides(layer: nnx.Linear | nnx.LinearGeneral) -> tuple[int, int]:
    """How many axes of a kernel are inputs, and how many outputs."""
    if isinstance(layer, nnx.LinearGeneral):
        return len(layer.in_features), len(layer.out_features)
    return 1, 1


def _flat(shape: Sequence[int], fan_in_axes: int, fan_out_axes: int) -> list[int]:
    """`[*stacked, in, out]` of a kernel's shape."""
    lead = len(shape) - fan_in_axes - fan_out_axes
    fan_in, fan_out = 1, 1
    for axis, size in enumerate(shape[lead:]):
        fan_in, fan_out = (
            (fan_in * size, fan_out) if axis < fan_in_axes else (fan_in, fan_out * size)
        )
    return [*shape[:lead], fan_in, fan_out]


def _check_axes(layer: nnx.Linear | nnx.LinearGeneral) -> None:
    if isinstance(layer, nnx.Linear):
        return
    if layer.batch_axis or tuple(layer.axis) != tuple(range(-len(layer.axis), 0)):
        raise ValueError(
            "Expected a LinearGeneral over its input's last axes, got "
            f"axis={tuple(layer.axis)} and batch_axis={dict(layer.batch_axis)}."
        )
