"""The convolution's term: patches of the input, outer, the cotangent of the output.

A convolution is a matrix product of patches with the kernel, so its per-example gradient is a `Product` whose summed
axis is the output positions. Patches are slices side by side: XLA's own patches primitive is one more convolution.
"""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp

from fljax_kernels.per_example.terms import Product


def _moved(spec: Any, ndim: int) -> tuple[int, ...]:
    """Axes (first, second, spatial...) of a conv_general_dilated operand, behind a batch axis."""
    del ndim
    return tuple(axis + 1 for axis in spec)


def patches(x: jax.Array, kernel: tuple[int, ...], out: tuple[int, ...], params: Any) -> jax.Array:
    """`[B, n, C, *spatial]` -> `[B, n, *out, *kernel, C]`: what each kernel entry sees at each output position."""
    widths = [(0, 0, 0)] * 3
    for low_high, dilation in zip(params["padding"], params["lhs_dilation"], strict=True):
        widths.append((*low_high, dilation - 1))
    x = jax.lax.pad(x, jnp.zeros((), x.dtype), widths)
    x = jnp.moveaxis(x, 2, -1)
    seen = []
    for offset in itertools.product(*map(range, kernel)):
        start = [k * d for k, d in zip(offset, params["rhs_dilation"], strict=True)]
        stop = [s + (o - 1) * w + 1 for s, o, w in zip(start, out, params["window_strides"], strict=True)]
        where = tuple(slice(a, b, w) for a, b, w in zip(start, stop, params["window_strides"], strict=True))
        seen.append(x[(slice(None), slice(None), *where, slice(None))])
    stacked = jnp.stack(seen, axis=-2)
    return stacked.reshape(*stacked.shape[:-2], *kernel, stacked.shape[-1])


class ConvProduct(Product):
    """A `Product` which makes its patches when they are first wanted."""

    def __init__(self, inputs: jax.Array, cotangent: jax.Array, kernel_shape: tuple[int, ...], params: Any, loops: int):
        numbers, groups = params["dimension_numbers"], params["feature_group_count"]
        lhs, rhs, res = numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec
        nd = len(params["window_strides"])
        # Loop axes join the batch axis of the convolution: both are summed.
        lead = 1 + loops
        x = jnp.transpose(inputs, [*range(lead), *(lead + a for a in lhs)])
        y = jnp.transpose(cotangent, [*range(lead), *(lead + a for a in res)])
        x = x.reshape(x.shape[0], -1, *x.shape[lead + 1 :])
        y = y.reshape(y.shape[0], -1, *y.shape[lead + 1 :])
        self._inputs, self._params = x, params
        out = y.shape[3:]
        kernel = tuple(kernel_shape[a] for a in rhs[2:])
        features, channels = kernel_shape[rhs[0]], kernel_shape[rhs[1]]
        self._kernel, self._out, self._groups, self._channels = kernel, out, groups, channels
        # Labels: 1 samples, 2 groups, 3 features of a group, 4 channels of a group, then positions, then kernel axes.
        position, offset = range(5, 5 + nd), range(5 + nd, 5 + 2 * nd)
        y = y.reshape(*y.shape[:2], groups, features // groups, *out)
        x_labels, y_labels = (0, 1, *position, *offset, 2, 4), (0, 1, 2, 3, *position)
        order: list[tuple[int, ...]] = [()] * len(kernel_shape)
        order[rhs[0]] = (3,) if groups == 1 else (2, 3)
        order[rhs[1]] = (4,)
        for axis, label in zip(rhs[2:], offset, strict=True):
            order[axis] = (label,)
        if groups == 1:
            x_labels, y = (0, 1, *position, *offset, 4), y[:, :, 0]
            y_labels = (0, 1, 3, *position)
        labels = tuple(itertools.chain.from_iterable(order))
        super().__init__(None, x_labels, y, y_labels, labels, None if groups == 1 else kernel_shape, note="convolution")

    @functools.cached_property
    def x(self) -> jax.Array:  # type: ignore[override]
        seen = patches(self._inputs, self._kernel, self._out, self._params)
        return seen if self._groups == 1 else seen.reshape(*seen.shape[:-1], self._groups, self._channels)

    def _with(self, **changes: Any) -> Product:
        self._x = self.x
        return super()._with(**changes)
