"""One convolution as slices, one concatenation and one matrix product.

A convolution sums, over kernel positions q and input features c,

    out[n, p, o] = sum_{q, c} lhs[n, p * stride + q * dilation - padding, c] * rhs[q, c, o].

Its operand is read at |P| x |Q| places, so slicing once per kernel position q (each slice holds all
output positions) or once per output position p (each holds all kernel positions) gives the same
patches. The first form suits a layer: its kernel is small. The second suits the gradient of a
kernel, which XLA writes as a convolution whose "kernel" is the whole image and whose output is as
small as the kernel. The smaller count is taken, one spatial axis after the other, so that a k x k
window needs k + k slices and not k * k.

Patches are memory traffic, |Q| times the operand. Where that is less, the first kernel axis stays
out of them: one product gives z[n, p, (q, o)] for each of its positions q, and the output is the
sum over q of its part of z, shifted by q. With square kernels of k x k, c input and o output
features that moves k c + k o numbers a pixel in place of k k c.

Only slices, pads, concatenations, products and reshapes appear, and their transposes are of the
same kind: reverse mode meets no convolution, and vmapped weights become a batched product instead
of a grouped convolution.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

# Above this many slices the program grows long and the patches large: the convolution stays as it
# is.
MAX_SLICES = 64


def supports(lhs_shape: Sequence[int], rhs_shape: Sequence[int], params: dict[str, Any]) -> bool:
    """Whether `convolution` takes this equation: few enough slices, nothing empty."""
    out = _out_sizes(lhs_shape, rhs_shape, params)
    kernel = [rhs_shape[axis] for axis in params["dimension_numbers"].rhs_spec[2:]]
    return 0 not in (*lhs_shape, *rhs_shape, *out) and min(sum(kernel), sum(out)) <= MAX_SLICES


def convolution(lhs: jax.Array, rhs: jax.Array, params: dict[str, Any]) -> jax.Array:
    """What `conv_general_dilated` with these parameters of its equation gives, up to float
    rounding.

    Args:
      lhs, rhs: operands, in the layout that `params["dimension_numbers"]` says.
      params: of the equation. `supports` must have accepted them.

    Returns:
      The output in its layout, in the dtype of the equation.
    """
    numbers = params["dimension_numbers"]
    groups = max(params["feature_group_count"], params["batch_group_count"])
    batch_groups = params["batch_group_count"] > 1
    out = _out_sizes(lhs.shape, rhs.shape, params)
    kernel = [rhs.shape[axis] for axis in numbers.rhs_spec[2:]]
    rank = len(kernel)
    out_dtype = params["preferred_element_type"] or lhs.dtype

    # Canonical order [group, batch, spatial..., feature] and [group, spatial..., feature, out
    # feature]. XLA folds these transposes into the copies below and into the product.
    batch_axis, feature_axis, *spatial_axes = numbers.lhs_spec
    x = jnp.transpose(lhs, (batch_axis, *spatial_axes, feature_axis))
    few = sum(kernel) <= sum(out)
    shifts = few and rank > 0 and _shifts_outputs(lhs.shape, rhs.shape, params, out, out_dtype)
    # What is padded on the first axis would only give zeros to shift.
    x = _pad(x, params, [(0, 0), *params["padding"][1:]] if shifts else params["padding"])
    num_batch, *spatial, num_features = x.shape
    if batch_groups:
        x = x.reshape(groups, num_batch // groups, *spatial, num_features)
    else:
        x = x.reshape(num_batch, *spatial, groups, num_features // groups)
        x = jnp.moveaxis(x, -2, 0)
    out_axis, in_axis, *kernel_axes = numbers.rhs_spec
    w = jnp.transpose(rhs, (*kernel_axes, in_axis, out_axis))
    w = w.reshape(*w.shape[:-1], groups, w.shape[-1] // groups)
    w = jnp.moveaxis(w, -2, 0)

    strides, dilations = params["window_strides"], params["rhs_dilation"]
    if few and _is_depthwise(x, w):
        y = _depthwise(x, w, out, strides, dilations, out_dtype)
    elif shifts:
        for axis in reversed(range(1, rank)):
            x = _gather_axis(
                x, 2 + axis, kernel[axis], dilations[axis], out[axis], strides[axis], -1
            )
        w = jnp.moveaxis(w, 1, -2).reshape(groups, x.shape[-1], -1)
        y = _product(x, w, ((x.ndim - 1,), (1,)), params, out_dtype)
        y = _sum_of_shifted(y, kernel[0], params["padding"][0][0], dilations[0], out[0])
    elif few:
        for axis in reversed(range(rank)):
            x = _gather_axis(
                x, 2 + axis, kernel[axis], dilations[axis], out[axis], strides[axis], -1
            )
        w = w.reshape(groups, -1, w.shape[-1])
        y = _product(x, w, ((x.ndim - 1,), (1,)), params, out_dtype)
    else:
        for axis in reversed(range(rank)):
            x = _gather_axis(
                x, 2 + axis, out[axis], strides[axis], kernel[axis], dilations[axis], 1
            )
        contract = (tuple(range(2, 3 + rank)), tuple(range(1, 2 + rank)))
        y = _product(x, w, contract, params, out_dtype)
        y = y.reshape(groups, *out, -1, y.shape[-1])
        y = jnp.moveaxis(y, 1 + rank, 1)

    # [group, batch, spatial..., out feature] -> [batch, spatial..., group * out feature]
    y = jnp.moveaxis(y, 0, -2).reshape(*y.shape[1:-1], groups * y.shape[-1])
    order = [0] * (rank + 2)
    out_batch, out_feature, *out_spatial = numbers.out_spec
    order[out_batch], order[out_feature] = 0, rank + 1
    for position, axis in enumerate(out_spatial):
        order[axis] = 1 + position
    return jnp.transpose(y, order)


def _product(
    x: jax.Array, w: jax.Array, contract: Any, params: dict[str, Any], out_dtype: Any
) -> jax.Array:
    """Over the group axis 0 of both as batch; without it where there is one group."""
    left, right = contract
    options = {"precision": params["precision"], "preferred_element_type": out_dtype}
    if x.shape[0] > 1:
        return lax.dot_general(x, w, (contract, ((0,), (0,))), **options)
    if left == (x.ndim - 1,):
        # As matrices: XLA on CPU is slower at a product of more axes, and at its transposes.
        y = lax.dot_general(x.reshape(-1, x.shape[-1]), w[0], (((1,), (0,)), ((), ())), **options)
        return y.reshape(*x.shape[:-1], y.shape[-1])
    squeezed = (tuple(axis - 1 for axis in left), tuple(axis - 1 for axis in right))
    return lax.dot_general(x[0], w[0], (squeezed, ((), ())), **options)[None]


def _gather_axis(
    x: jax.Array, axis: int, positions: int, step: int, size: int, stride: int, onto: int
) -> jax.Array:
    """Replaces `axis` by `size` places `stride` apart, one part a position, concatenated on axis
    `onto`.
    """
    parts = [
        lax.slice_in_dim(x, index * step, index * step + (size - 1) * stride + 1, stride, axis)
        for index in range(positions)
    ]
    return lax.concatenate(parts, onto % x.ndim) if positions > 1 else parts[0]


def _is_depthwise(x: jax.Array, w: jax.Array) -> bool:
    """Groups of one input feature: a product per group would be a matrix of one column."""
    return x.shape[0] > 1 and w.shape[-2] == 1


def _depthwise(
    x: jax.Array,
    w: jax.Array,
    out: list[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    out_dtype: Any,
) -> jax.Array:
    """Sum of shifted operands, each times one weight per group, in at least float32 where the dtype
    is a float.
    """
    x = jnp.moveaxis(x[..., 0], 0, -1)  # [batch, spatial..., group]
    w = jnp.moveaxis(w[..., 0, :], 0, -2)  # [kernel..., group, out]
    kernel = w.shape[:-2]
    half = jnp.issubdtype(out_dtype, jnp.floating) and jnp.finfo(out_dtype).bits < 32
    accumulator = jnp.float32 if half else out_dtype
    total = None
    for index in range(math.prod(kernel)):
        offsets, rest = [], index
        for size in reversed(kernel):
            offsets.append(rest % size)
            rest //= size
        offsets.reverse()
        part = x
        for axis, offset in enumerate(offsets):
            start = offset * dilations[axis]
            limit = start + (out[axis] - 1) * strides[axis] + 1
            part = lax.slice_in_dim(part, start, limit, strides[axis], 1 + axis)
        weight = w[tuple(offsets)].astype(accumulator)
        shape = (*part.shape, weight.shape[-1])
        part = lax.broadcast_in_dim(part.astype(accumulator), shape, tuple(range(part.ndim)))
        term = part * lax.broadcast_in_dim(weight, shape, (part.ndim - 2, part.ndim - 1))
        total = term if total is None else total + term
    assert total is not None  # `supports` refuses empty kernels
    return jnp.moveaxis(total.astype(out_dtype), -2, 0)


def _shifts_outputs(
    lhs_shape: Sequence[int],
    rhs_shape: Sequence[int],
    params: dict[str, Any],
    out: Sequence[int],
    out_dtype: Any,
) -> bool:
    """Whether the first kernel axis is summed over outputs: fewer numbers to move, and hardly more
    to multiply.
    """
    numbers = params["dimension_numbers"]
    first, *others = (rhs_shape[axis] for axis in numbers.rhs_spec[2:])
    features = rhs_shape[numbers.rhs_spec[0]] // max(
        params["feature_group_count"], params["batch_group_count"]
    )
    fan_in = rhs_shape[numbers.rhs_spec[1]]
    patch = math.prod(others) * fan_in
    rows = (lhs_shape[numbers.lhs_spec[2]] - 1) * params["lhs_dilation"][0] + 1
    # In fewer bits the sum would round more often than the product, which sums in float32.
    wide = jnp.issubdtype(out_dtype, jnp.floating) and jnp.finfo(out_dtype).bits >= 32
    return (
        wide
        and fan_in > 1  # else it may be depthwise, which has a form of its own
        and first > 1
        and params["window_strides"][0] == 1
        and patch + first * features <= first * patch
        and 4 * rows <= 5 * out[0]
    )


def _sum_of_shifted(z: jax.Array, positions: int, low: int, dilation: int, size: int) -> jax.Array:
    """[group, batch, rows, ..., positions * features] -> [group, batch, size, ..., features].

    Row p of the result is the sum over positions q of row p + q * dilation - low of the q-th part,
    where it has one.
    """
    rows, width = z.shape[2], z.shape[-1] // positions
    total = jnp.zeros((*z.shape[:2], size, *z.shape[3:-1], width), z.dtype)
    # `split`, whose transpose is a concatenation: that of slices would be a sum of arrays as large
    # as z.
    for index, part in enumerate(lax.split(z, [width] * positions, z.ndim - 1)):
        shift = low - index * dilation
        if -rows < shift < size:
            config = [(0, 0, 0)] * z.ndim
            config[2] = (shift, size - rows - shift, 0)
            total = total + lax.pad(part, jnp.zeros((), z.dtype), config)
    return total


def _pad(x: jax.Array, params: dict[str, Any], padding: Sequence[tuple[int, int]]) -> jax.Array:
    """[batch, spatial..., feature] with `padding` and the holes that the equation asks for."""
    spatial = [
        (low, high, hole - 1)
        for (low, high), hole in zip(padding, params["lhs_dilation"], strict=True)
    ]
    config = [(0, 0, 0), *spatial, (0, 0, 0)]
    if all(entry == (0, 0, 0) for entry in config):
        return x
    return lax.pad(x, jnp.zeros((), x.dtype), config)


def _out_sizes(
    lhs_shape: Sequence[int], rhs_shape: Sequence[int], params: dict[str, Any]
) -> list[int]:
    numbers = params["dimension_numbers"]
    sizes = []
    for index, (low, high) in enumerate(params["padding"]):
        size = lhs_shape[numbers.lhs_spec[2 + index]]
        kernel = rhs_shape[numbers.rhs_spec[2 + index]]
        padded = (max(size - 1, -1) * params["lhs_dilation"][index] + 1 if size else 0) + low + high
        reach = (kernel - 1) * params["rhs_dilation"][index] + 1
        sizes.append(max((padded - reach) // params["window_strides"][index] + 1, 0))
    return sizes
