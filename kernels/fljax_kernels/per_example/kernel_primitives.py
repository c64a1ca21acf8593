"""Primitives that are a Pallas kernel where they are lowered for CUDA, and products elsewhere.

A kernel is traced where it is lowered, and only there: other platforms neither import Pallas nor
trace it. Where there is none, it takes no arrays as large as these, or the program is exported or
dealt out over devices by XLA, the same sums come by products.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import backend
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from fljax_kernels.per_example.batches import make_varying, varying_axes

PLACES = 2**31  # that 32-bit integers tell apart: an array of a kernel has fewer numbers
# What Pallas says, from JAX 0.12, where it asks which GPU it is: there is none, here or by name.
NO_GPU = "No supported GPU"
CALL = "__gpu$xla.gpu.triton"  # a kernel's, in what is lowered


def primitive(
    name: str,
    kernel: Callable[..., Any],
    products: Callable[..., Any],
    of_type: Callable[..., Any],
    mapped: Callable[..., Any],
    static: tuple[str, ...] = (),
) -> Primitive:
    """One with a result.

    Args:
      kernel: from the types of its arguments, and its parameters, what is lowered for CUDA; None
        where these are too large for it. It raises ImportError in a JAX without Triton.
      products: what is lowered elsewhere. of_type: of the result. mapped: the batching rule.
      static: names of parameters.
    """
    made = Primitive(name)
    program = jax.jit(made.bind, static_argnames=static)

    def at_once(*args: Any, **params: Any) -> Any:
        """Outside a program, it is one of its own, lowered for where its operands lie."""
        with jax.disable_jit(False):
            return program(*args, **params)

    made.def_impl(at_once)
    made.def_abstract_eval(of_type)
    mlir.register_lowering(made, mlir.lower_fun(products, multiple_results=False))
    mlir.register_lowering(made, _by_kernel(kernel, products), platform="cuda")
    batching.primitive_batchers[made] = mapped
    return made


def _by_kernel(kernel: Callable[..., Any], otherwise: Callable[..., Any]) -> Callable[..., Any]:
    products = mlir.lower_fun(otherwise, multiple_results=False)

    def lower(ctx: Any, *values: Any, **params: Any) -> Any:
        # What is exported may be called by a later JAX, which has promised nothing of Triton.
        exported = ctx.module_context.lowering_parameters.for_export
        out = exported or _is_cut(ctx) or not fits(*ctx.avals_in, *ctx.avals_out)
        if out or without_triton():
            return products(ctx, *values, **params)
        try:
            found = kernel(*ctx.avals_in, **params)
        except ImportError:  # a JAX without Triton
            found = None
        if found is None:
            return products(ctx, *values, **params)
        try:
            with warnings.catch_warnings():  # of JAX 0.11: Pallas is to lose Triton
                warnings.filterwarnings("ignore", "The Pallas Triton backend is deprecated")
                return mlir.lower_fun(found, multiple_results=False)(ctx, *values, **params)
        except RuntimeError as error:
            if NO_GPU not in str(error):
                raise
            return products(ctx, *values, **params)

    return lower


def _is_cut(ctx: Any) -> bool:
    """Whether XLA deals the program out over devices, as `in_shardings` of `jit` ask it to. It cuts
    no kernel: each device would gather the whole batch. Within a `shard_map` nothing is cut.
    """
    return getattr(ctx.module_context.axis_context, "num_devices", 1) != 1


def fits(*arrays: Any) -> bool:
    """Whether 32-bit integers count the numbers of each, and there are some."""
    return all(0 < math.prod(z.shape) < PLACES for z in arrays)


def without_triton() -> bool:
    """Whether a GPU is here that XLA compiles no Triton for."""
    if "cuda" not in backend.backends():  # none is here: it is compiled for one elsewhere
        return False
    return any(float(gpu.compute_capability) < 8 for gpu in jax.local_devices(backend="cuda"))


def is_made(program: Callable[..., Any], *arrays: Any) -> bool:
    """Whether this process has a kernel for each primitive of a program, one or none, of arrays
    with these shapes: it asks the lowering for CUDA. What is exported has none.
    """
    given = [jax.ShapeDtypeStruct(z.shape, z.dtype) for z in arrays]
    return CALL in jax.jit(program).trace(*given).lower(lowering_platforms=("cuda",)).as_text()


def alike(*arrays: jax.Array) -> list[jax.Array]:
    """All as varying over a mesh as the one that varies most."""
    axes = varying_axes(*arrays)
    return [make_varying(z, axes) for z in arrays]


def typed(like: Any, shape: Sequence[int]) -> Any:
    """A float32 array that varies as `like` does, cut along no axis."""
    spec = jax.sharding.PartitionSpec(*[None] * len(shape))
    sharding = like.sharding.update(spec=spec)
    return like.update(shape=tuple(shape), dtype=jnp.dtype(jnp.float32), sharding=sharding)


def first(args: Any, axes: Any) -> tuple[int, list[jax.Array]]:
    """(size, arguments): with the mapped axis in front of each."""
    size = next(z.shape[axis] for z, axis in zip(args, axes, strict=True) if axis is not None)
    return size, [
        jnp.broadcast_to(z, (size, *z.shape)) if axis is None else jnp.moveaxis(z, axis, 0)
        for z, axis in zip(args, axes, strict=True)
    ]


def mapped_sum(bind: Callable[..., Any], args: Any, axes: Any, **params: Any) -> Any:
    """The batching rule of sums of groups, of x, y and weights with the groups in front."""
    if axes[:2] == (None, None):  # several sums of the same rows, such as for several bounds
        x, y, weights = args
        one = lambda weights: bind(x, y, weights, **params)
        return jax.lax.map(one, jnp.moveaxis(weights, axes[2], 0)), 0
    size, args = first(args, axes)
    groups = args[0].shape[1]
    together = [z.reshape(size * groups, *z.shape[2:]) for z in args]
    found = bind(*together, **params)
    return found.reshape(size, groups, *found.shape[1:]), 0
