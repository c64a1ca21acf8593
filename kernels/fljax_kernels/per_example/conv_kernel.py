"""Squares and sums of a convolution's rows that no memory sees: a Pallas kernel for CUDA, and what
it computes by products.

On a GPU a row of a convolution is a product of patches, and patches repeat the input. A kernel
needs none: a program of it makes a block of one example's row in registers, from inputs and
cotangents where they lie, and adds up its squares. A second kernel makes the same blocks again,
in the same way, weighs each, and adds them up over examples.

Each is one primitive. Its kernel is traced where it is lowered for CUDA, and only there: other
platforms neither import Pallas nor trace it. Where there is none, it takes no arrays as large as
these, or the program is exported, the same sums come by products, as `NativeConv` has them.
"""

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from fljax_kernels.per_example.batches import make_varying, varying_axes
from fljax_kernels.per_example.conv_native import NativeConv
from fljax_kernels.per_example.conv_operands import Window, operands, room
from fljax_kernels.per_example.reference import sum_of_squares
from fljax_kernels.per_example.terms import HIGHEST

MOST = 2**31  # numbers of an array whose places are 32-bit integers
# What Pallas says, from JAX 0.12, where it asks which GPU it is: there is none, here or by name.
NO_GPU = "No supported GPU"
CALL = "__gpu$xla.gpu.triton"  # a kernel's, in what is lowered


def squares(x: jax.Array, y: jax.Array, window: Window, exact: bool) -> jax.Array:
    """Squared norms of rows, float32 `[E]`, with the room for rounding of a sum made anew.

    Args:
      x: `[E, n, H, W, C]`, inputs of E examples. y: `[E, n, *window.out, O]`, cotangents.
      exact: whether products are of float32; else of operands that are rounded to TF32.
    """
    x, y = _alike(x, y)
    return _squares(x, y, window, exact)


def weighted_sum(
    x: jax.Array, y: jax.Array, weights: jax.Array, window: Window, exact: bool
) -> jax.Array:
    """The sum of `weights[e]` times row e, float32 `[*window.kernel, C, O]`; a row of weight 0 adds
    nothing, also where it is not finite.

    Args:
      x, y, exact: as of `squares`. weights: float32 `[E]`.
    """
    x, y, weights = _alike(x, y, weights)
    return _sum(x, y, weights, window, exact).reshape(*window.kernel, x.shape[-1], y.shape[-1])


def _alike(*arrays: jax.Array) -> list[jax.Array]:
    axes = varying_axes(*arrays)
    return [make_varying(z, axes) for z in arrays]


# Derivatives are those of the products; the kernels have none of their own. Values are the same
# with a tangent and without: a norm that has none may clip a sum that has one.
@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3))
def _squares(x: jax.Array, y: jax.Array, window: Window, exact: bool) -> jax.Array:
    found: jax.Array = _squares_p.bind(x, y, window=window, exact=exact)
    return found


@_squares.defjvp
def _squares_jvp(window: Window, exact: bool, primals: Any, tangents: Any) -> Any:
    by_products = lambda x, y: _squares_by_products(x, y, window, True)
    return _squares(*primals, window, exact), jax.jvp(by_products, primals, tangents)[1]


@functools.partial(jax.custom_jvp, nondiff_argnums=(3, 4))
def _sum(x: jax.Array, y: jax.Array, weights: jax.Array, window: Window, exact: bool) -> jax.Array:
    found: jax.Array = _sum_p.bind(x[None], y[None], weights[None], window=window, exact=exact)
    return found[0]


@_sum.defjvp
def _sum_jvp(window: Window, exact: bool, primals: Any, tangents: Any) -> Any:
    def by_products(x: jax.Array, y: jax.Array, weights: jax.Array) -> jax.Array:
        return _sum_by_products(x[None], y[None], weights[None], window, True)[0]

    return _sum(*primals, window, exact), jax.jvp(by_products, primals, tangents)[1]


def is_made(x: Any, y: Any, window: Window, exact: bool) -> bool:
    """Whether programs of this process have both kernels, of arrays with these shapes: it asks the
    lowering for CUDA. What is exported has none.
    """
    x, y = (jax.ShapeDtypeStruct(z.shape, z.dtype) for z in (x, y))
    weights = jax.ShapeDtypeStruct(x.shape[:1], jnp.float32)
    of_rows = functools.partial(squares, window=window, exact=exact)
    of_sum = functools.partial(weighted_sum, window=window, exact=exact)
    for program, given in ((of_rows, (x, y)), (of_sum, (x, y, weights))):
        lowered = jax.jit(program).trace(*given).lower(lowering_platforms=("cuda",))
        if CALL not in lowered.as_text():
            return False
    return True


class _Anew(NativeConv):
    """Norms in any form, and a sum that knows nothing of their rows."""

    def weighted_sum(self, weights: jax.Array) -> jax.Array:
        return self._weighed_convolution(weights)


def _term(x: jax.Array, y: jax.Array, window: Window) -> Any:
    """What there is without the kernel."""
    padding = []
    for axis in range(2):
        span = (window.out[axis] - 1) * window.strides[axis] + 1
        reach = (window.kernel[axis] - 1) * window.dilation[axis] + span
        before = window.before[axis]
        padding.append((before, reach - before - x.shape[2 + axis]))
    params = {
        "dimension_numbers": lax.ConvDimensionNumbers((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2)),
        "window_strides": window.strides,
        "padding": tuple(padding),
        "lhs_dilation": (1, 1),
        "rhs_dilation": window.dilation,
        "feature_group_count": 1,
        "batch_group_count": 1,
        "precision": (HIGHEST, HIGHEST),
        "preferred_element_type": None,
    }
    return _Anew(x, y, (*window.kernel, x.shape[-1], y.shape[-1]), params, 0)


def _squares_by_products(x: jax.Array, y: jax.Array, window: Window, exact: bool) -> jax.Array:
    x, y = operands(x, y, exact)
    of_x, of_y = (sum_of_squares(z, 1, 2, 3, 4) for z in (x, y))
    more = room(math.prod(window.kernel) * of_x, of_y)
    found: jax.Array = _term(x, y, window).squared_norms() + more
    return found


def _sum_by_products(
    x: jax.Array, y: jax.Array, weights: jax.Array, window: Window, exact: bool
) -> jax.Array:
    """`[G, entries, C, O]` of x `[G, E, n, H, W, C]`."""

    def one(x: jax.Array, y: jax.Array, weights: jax.Array) -> jax.Array:
        total: jax.Array = _term(*operands(x, y, exact), window).weighted_sum(weights)
        return total.reshape(-1, *total.shape[2:])

    return one(x[0], y[0], weights[0])[None] if len(x) == 1 else jax.vmap(one)(x, y, weights)


def _fits(*arrays: Any) -> bool:
    return all(0 < math.prod(z.shape) < MOST for z in arrays)


def _without_triton() -> bool:
    """Whether a GPU is here that XLA compiles no Triton for."""
    try:
        return any(float(gpu.compute_capability) < 8 for gpu in jax.local_devices(backend="cuda"))
    except RuntimeError:  # none is here: it is compiled for one elsewhere
        return False


def _by_kernel(name: str, otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """The lowering for CUDA: the kernel of this name in `conv_pallas`, or what there is without."""
    products = mlir.lower_fun(otherwise, multiple_results=False)

    def lower(ctx: Any, *values: Any, window: Window, exact: bool) -> Any:
        # What is exported may be called by a later JAX, which has promised nothing of Triton.
        exported = ctx.module_context.lowering_parameters.for_export
        if exported or not _fits(*ctx.avals_in, *ctx.avals_out) or _without_triton():
            return products(ctx, *values, window=window, exact=exact)
        try:
            from fljax_kernels.per_example import conv_pallas  # which takes its time to import
        except ImportError:  # a JAX without Triton
            return products(ctx, *values, window=window, exact=exact)
        if name == "sums":
            x, y, weights = ctx.avals_in
            if math.prod(conv_pallas.shape_of_sums(x, y, weights, window)) >= MOST:
                return products(ctx, *values, window=window, exact=exact)
        kernel: Any = {"squares": conv_pallas.squares, "sums": conv_pallas.sums}[name]
        try:
            with warnings.catch_warnings():  # of JAX 0.11: Pallas is to lose Triton
                warnings.filterwarnings("ignore", "The Pallas Triton backend is deprecated")
                return mlir.lower_fun(kernel, multiple_results=False)(
                    ctx, *values, window=window, exact=exact
                )
        except RuntimeError as error:
            if NO_GPU not in str(error):
                raise
            return products(ctx, *values, window=window, exact=exact)

    return lower


def _typed(like: Any, shape: Sequence[int]) -> Any:
    """A float32 array that varies as `like` does, cut along no axis."""
    spec = jax.sharding.PartitionSpec(*[None] * len(shape))
    sharding = like.sharding.update(spec=spec)
    return like.update(shape=tuple(shape), dtype=jnp.dtype(jnp.float32), sharding=sharding)


def _squares_type(x: Any, y: Any, *, window: Window, exact: bool) -> Any:
    return _typed(x, x.shape[:1])


def _sum_type(x: Any, y: Any, weights: Any, *, window: Window, exact: bool) -> Any:
    return _typed(x, (x.shape[0], math.prod(window.kernel), x.shape[-1], y.shape[-1]))


def _first(args: Any, axes: Any) -> tuple[int, list[jax.Array]]:
    """(size, arguments): with the mapped axis in front of each."""
    size = next(z.shape[axis] for z, axis in zip(args, axes, strict=True) if axis is not None)
    return size, [
        jnp.broadcast_to(z, (size, *z.shape)) if axis is None else jnp.moveaxis(z, axis, 0)
        for z, axis in zip(args, axes, strict=True)
    ]


def _mapped_squares(args: Any, axes: Any, *, window: Window, exact: bool) -> Any:
    size, args = _first(args, axes)
    together = [z.reshape(-1, *z.shape[2:]) for z in args]
    found = _squares_p.bind(*together, window=window, exact=exact)
    return found.reshape(size, -1), 0


def _mapped_sum(args: Any, axes: Any, *, window: Window, exact: bool) -> Any:
    if axes[:2] == (None, None):  # several sums of the same rows, such as for several bounds
        x, y, weights = args
        one = functools.partial(_sum_p.bind, x, y, window=window, exact=exact)
        return lax.map(one, jnp.moveaxis(weights, axes[2], 0)), 0
    size, args = _first(args, axes)
    together = [z.reshape(-1, *z.shape[2:]) for z in args]
    found = _sum_p.bind(*together, window=window, exact=exact)
    return found.reshape(size, -1, *found.shape[1:]), 0


def _primitive(
    name: str, kernel: str, products: Callable[..., Any], of_type: Any, mapped: Any
) -> Primitive:
    primitive = Primitive(name)
    program = jax.jit(primitive.bind, static_argnames=("window", "exact"))

    def at_once(*args: Any, **params: Any) -> Any:
        """Outside a program, it is one of its own, lowered for where its operands lie."""
        with jax.disable_jit(False):
            return program(*args, **params)

    primitive.def_impl(at_once)
    primitive.def_abstract_eval(of_type)
    mlir.register_lowering(primitive, mlir.lower_fun(products, multiple_results=False))
    mlir.register_lowering(primitive, _by_kernel(kernel, products), platform="cuda")
    batching.primitive_batchers[primitive] = mapped
    return primitive


_squares_p = _primitive(
    "squares_of_conv_rows", "squares", _squares_by_products, _squares_type, _mapped_squares
)
_sum_p = _primitive("sum_of_conv_rows", "sums", _sum_by_products, _sum_type, _mapped_sum)
