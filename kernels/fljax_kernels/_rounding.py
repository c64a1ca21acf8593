"""What a TPU's matrix unit makes of a product's operands, made once, for all that reads it.

By default the unit takes float32 operands as bfloat16. XLA rounds them in each product that reads
them, and keeps them in float32: twice the bytes, read by each. Here they are rounded where they
are made, and kept so. Other platforms keep them as they are.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from fljax_kernels import _platforms

_rounded = Primitive("rounded_on_tpus")
_rounded.multiple_results = True


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def rounded(x: jax.Array, once: bool = True) -> tuple[jax.Array, jax.Array]:
    """(x, the sum of its squares). On a TPU x has as many digits as bfloat16 has; elsewhere it
    is x itself, and the sum is infinite: whoever took it for one would clip to nothing. Its
    derivative is that of x. Not `once`: each reader rounds x anew, and no second array is kept.
    """
    bind = _on_tpus if _platforms.tpu_alone() else _rounded.bind
    value, squares = bind(x, kept=(), once=once)
    return value, squares


@rounded.defjvp
def _jvp(once: bool, primals: Any, tangents: Any) -> Any:
    value, squares = rounded(*primals, once)
    return (value, squares), (tangents[0], jnp.zeros_like(squares))


def to_bfloat16(x: jax.Array) -> jax.Array:
    """In bfloat16, and not what it was before where XLA finds it cast back."""
    return lax.reduce_precision(x, 8, 7).astype(jnp.bfloat16)


def _on_tpus(x: jax.Array, *, kept: tuple[int, ...], once: bool) -> list[jax.Array]:
    """kept: the axes, in order, along which squares are not added."""
    value = lax.reduce_precision(x, 8, 7)
    squares = jnp.sum(jnp.square(value), axis=tuple(a for a in range(x.ndim) if a not in kept))
    if once:
        # Behind the barrier it is read as it is here, and not made again from x by each reader.
        value = lax.optimization_barrier(value.astype(jnp.bfloat16)).astype(x.dtype)
    return [value, squares]


def _elsewhere(x: jax.Array, *, kept: tuple[int, ...], once: bool) -> list[jax.Array]:
    del once
    return [x, jnp.full([x.shape[a] for a in kept], jnp.inf, x.dtype)]


def _mapped(args: Any, axes: Any, *, kept: tuple[int, ...], once: bool) -> tuple[Any, Any]:
    (x,), (axis,) = args, axes
    kept = tuple(sorted([axis, *(a + (a >= axis) for a in kept)]))
    return _rounded.bind(x, kept=kept, once=once), (axis, kept.index(axis))


def _abstract(x: Any, *, kept: tuple[int, ...], once: bool) -> Any:
    del once
    spec = jax.sharding.PartitionSpec(*(x.sharding.spec[a] for a in kept))
    shape = tuple(x.shape[a] for a in kept)
    return [x, x.update(shape=shape, sharding=x.sharding.update(spec=spec))]


def _at_once(x: jax.Array, *, kept: tuple[int, ...], once: bool) -> list[jax.Array]:
    """Outside a program, it is one of its own, lowered for where x lies."""
    with jax.disable_jit(False):
        found: list[jax.Array] = _program(x, kept=kept, once=once)
        return found


_program = jax.jit(_rounded.bind, static_argnames=("kept", "once"))
_rounded.def_impl(_at_once)
_rounded.def_abstract_eval(_abstract)
mlir.register_lowering(_rounded, mlir.lower_fun(_elsewhere, multiple_results=True))
mlir.register_lowering(_rounded, mlir.lower_fun(_on_tpus, multiple_results=True), platform="tpu")
batching.primitive_batchers[_rounded] = _mapped
