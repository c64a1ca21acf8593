"""Squares and sums of a convolution's rows that no memory sees: a Pallas kernel for CUDA, and what
it computes by products.

On a GPU a row of a convolution is a product of patches, and patches repeat the input. A kernel
needs none: a program of it makes a block of one example's row in registers, from inputs and
cotangents where they lie, and adds up its squares. A second kernel makes the same blocks again,
in the same way, weighs each, and adds them up over examples.

Each is one primitive of `kernel_primitives`. Where there is no kernel the same sums come by
products, as `NativeConv` has them.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fljax_kernels.per_example import kernel_primitives
from fljax_kernels.per_example.conv_native import NativeConv
from fljax_kernels.per_example.conv_operands import Window, operands, room
from fljax_kernels.per_example.reference import sum_of_squares
from fljax_kernels.per_example.terms import HIGHEST


def squares(x: jax.Array, y: jax.Array, window: Window, exact: bool) -> jax.Array:
    """Squared norms of rows, float32 `[E]`, with the room for rounding of a sum made anew.

    Args:
      x: `[E, n, H, W, C]`, inputs of E examples. y: `[E, n, *window.out, O]`, cotangents.
      exact: whether products are of float32; else of operands that are rounded to TF32.
    """
    x, y = kernel_primitives.alike(x, y)
    return _squares(x, y, window, exact)


def weighted_sum(
    x: jax.Array, y: jax.Array, weights: jax.Array, window: Window, exact: bool
) -> jax.Array:
    """The sum of `weights[e]` times row e, float32 `[*window.kernel, C, O]`; a row of weight 0 adds
    nothing, also where it is not finite.

    Args:
      x, y, exact: as of `squares`. weights: float32 `[E]`.
    """
    x, y, weights = kernel_primitives.alike(x, y, weights)
    return _sum(x, y, weights, window, exact).reshape(*window.kernel, x.shape[-1], y.shape[-1])


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
    """Whether programs of this process have both kernels, of arrays with these shapes."""
    weights = jax.ShapeDtypeStruct(x.shape[:1], jnp.float32)
    of_rows = functools.partial(squares, window=window, exact=exact)
    of_sum = functools.partial(weighted_sum, window=window, exact=exact)
    made = kernel_primitives.is_made
    return made(of_rows, x, y) and made(of_sum, x, y, weights)


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


def _kernel_of_squares(*types: Any, window: Window, exact: bool) -> Any:
    from fljax_kernels.per_example import conv_pallas  # which takes its time to import

    return conv_pallas.squares


def _kernel_of_sums(x: Any, y: Any, weights: Any, *, window: Window, exact: bool) -> Any:
    from fljax_kernels.per_example import conv_pallas

    shape = conv_pallas.shape_of_sums(x, y, weights, window)
    return conv_pallas.sums if math.prod(shape) < kernel_primitives.PLACES else None


def _squares_type(x: Any, y: Any, *, window: Window, exact: bool) -> Any:
    return kernel_primitives.typed(x, x.shape[:1])


def _sum_type(x: Any, y: Any, weights: Any, *, window: Window, exact: bool) -> Any:
    return kernel_primitives.typed(
        x, (x.shape[0], math.prod(window.kernel), x.shape[-1], y.shape[-1])
    )


def _mapped_squares(args: Any, axes: Any, *, window: Window, exact: bool) -> Any:
    size, args = kernel_primitives.first(args, axes)
    together = [z.reshape(-1, *z.shape[2:]) for z in args]
    found = _squares_p.bind(*together, window=window, exact=exact)
    return found.reshape(size, -1), 0


def _mapped_sum(args: Any, axes: Any, *, window: Window, exact: bool) -> Any:
    return kernel_primitives.mapped_sum(_sum_p.bind, args, axes, window=window, exact=exact)


_squares_p = kernel_primitives.primitive(
    "squares_of_conv_rows",
    _kernel_of_squares,
    _squares_by_products,
    _squares_type,
    _mapped_squares,
    ("window", "exact"),
)
_sum_p = kernel_primitives.primitive(
    "sum_of_conv_rows",
    _kernel_of_sums,
    _sum_by_products,
    _sum_type,
    _mapped_sum,
    ("window", "exact"),
)
