"""Where XLA's choice of how an array is spread over devices does not pass on.

XLA chooses for arrays on Auto axes, and what a result is spread like reaches back to what it is
made of. Of a private step that are all examples' rows, which are then moved to be spread like
parameters. A barrier makes XLA move the result in their place.
"""

from typing import Any

import jax
from jax.extend.core import Primitive
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy
from jax.interpreters import ad, batching, mlir

_barrier = Primitive("sharding_barrier")
_NEITHER, _FORWARD = 0, 1  # `sdy.propagation_barrier`: which way a choice passes


def onward(x: jax.Array) -> jax.Array:
    """x: how it is spread may decide what is made of it, and not the other way round."""
    return _barrier.bind(x, direction=_FORWARD)


def apart(x: jax.Array) -> jax.Array:
    """x: how it is spread and how what is made of it is spread have nothing to do with each
    other.
    """
    return _barrier.bind(x, direction=_NEITHER)


def _lowered(ctx: Any, x: Any, *, direction: int) -> list[Any]:
    if not jax.config.jax_use_shardy_partitioner:  # type: ignore[attr-defined]
        return [x]
    kind = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), direction)
    return [sdy.propagation_barrier(x, kind)]


def _mapped(args: Any, axes: Any, *, direction: int) -> tuple[Any, Any]:
    return _barrier.bind(*args, direction=direction), *axes


_barrier.def_impl(lambda x, *, direction: x)
_barrier.def_abstract_eval(lambda x, *, direction: x)
mlir.register_lowering(_barrier, _lowered)
batching.primitive_batchers[_barrier] = _mapped
ad.deflinear2(_barrier, lambda cotangent, x, *, direction: [cotangent])
