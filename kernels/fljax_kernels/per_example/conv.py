"""The convolution's term: what the kernel sees of the input, outer, the cotangent of the output.

A convolution is a matrix product of patches with the kernel, so its per-example gradient is a
`Product` whose summed axis is the output positions. Patches are slices side by side (XLA's own
patches primitive is one more convolution), `[kernel entries, positions]` for each example, and on a
CPU they are made for a few examples at a time: they then stay in the cache, where the patches of a
whole batch cost more in page faults than in arithmetic.

Patches repeat the input once per kernel entry. On a CPU, where that is less, the first kernel axis
stays out of them: at stride 1 row r of the input meets kernel entry q at output row r + padding - q
dilation, so with a copy of the cotangent for each q, shifted by it, the same sum runs over the rows
of the input. For k x k windows, c channels and o features that moves k c + k o numbers a position
in place of k k c + o.
"""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax_kernels import _platforms
from fljax_kernels.per_example.batches import make_varying, varying_axes
from fljax_kernels.per_example.reference import drop_rows, weigh_rows, wide
from fljax_kernels.per_example.terms import HIGHEST, Product

# Floats that a block of examples may take on a CPU: of patches, which then stay in the cache, and
# of copies of the input and the cotangent, where smaller blocks do not make a ResNet20's layers
# faster.
CACHED_PATCHES = 2**18
CACHED_COPIES = 2**21


def patches(x: jax.Array, kernel: tuple[int, ...], out: tuple[int, ...], params: Any) -> jax.Array:
    """`[B, n, C, *spatial]` -> `[B, *kernel, C, n, *out]`: what each kernel entry sees at each
    output position.
    """
    widths = [(0, 0, 0)] * 3
    for low_high, dilation in zip(params["padding"], params["lhs_dilation"], strict=True):
        widths.append((*low_high, dilation - 1))
    x = jax.lax.pad(x, jnp.zeros((), x.dtype), widths)
    seen = jnp.moveaxis(x, 2, 1)
    # One axis after the other: slices of slices are fewer, and compile and run faster, than all
    # offsets at once.
    for axis in reversed(range(len(kernel))):
        seen = jnp.stack(
            _seen_along(seen, axis, seen.ndim - len(kernel), kernel, out, params), axis=1
        )
    return seen


def _seen_along(
    x: jax.Array, axis: int, first: int, kernel: tuple[int, ...], out: tuple[int, ...], params: Any
) -> list[jax.Array]:
    """What each kernel entry along one axis sees; the spatial axes of x start at `first`."""
    step, stride = params["rhs_dilation"][axis], params["window_strides"][axis]
    span, at = (out[axis] - 1) * stride + 1, first + axis
    return [
        jax.lax.slice_in_dim(x, k * step, k * step + span, stride, axis=at)
        for k in range(kernel[axis])
    ]


def row_patches(
    x: jax.Array, kernel: tuple[int, ...], out: tuple[int, ...], params: Any
) -> jax.Array:
    """`[B, n, *spatial, C]` -> `[B, n, rows, *out[1:], prod(kernel[1:]) * C]`: patches but for the
    first axis.
    """
    low_high = [(0, 0), *params["padding"][1:]]
    holes = [
        (*both, dilation - 1)
        for both, dilation in zip(low_high, params["lhs_dilation"], strict=True)
    ]
    x = jax.lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), (0, 0, 0), *holes, (0, 0, 0)])
    for axis in reversed(range(1, len(kernel))):
        x = jnp.concatenate(_seen_along(x, axis, 2, kernel, out, params), axis=-1)
    return x


def shifted_rows(y: jax.Array, rows: int, size: int, params: Any) -> jax.Array:
    """`[B, n, *out, O]` -> `[B, n, rows, *out[1:], size * O]`: for each of `size` kernel rows, what
    each row meets.
    """
    parts = []
    for shift in _shifts(size, params).tolist():
        if -rows < shift < y.shape[2]:
            config = [(0, 0, 0)] * y.ndim
            config[2] = (-shift, rows - y.shape[2] + shift, 0)
            parts.append(jax.lax.pad(y, jnp.zeros((), y.dtype), config))
        else:
            parts.append(jnp.zeros((*y.shape[:2], rows, *y.shape[3:]), y.dtype))
    return jnp.concatenate(parts, axis=-1)


def _shifts(size: int, params: Any) -> np.ndarray:
    """How far the output row that each kernel row takes to lies behind the input's."""
    return params["padding"][0][0] - params["rhs_dilation"][0] * np.arange(size)


class ConvProduct(Product):
    """A `Product` which makes its patches when they are wanted, and uses the convolution itself
    where it can.
    """

    def __init__(
        self,
        inputs: jax.Array,
        cotangent: jax.Array,
        kernel_shape: tuple[int, ...],
        params: Any,
        loops: int,
    ):
        numbers, groups = params["dimension_numbers"], params["feature_group_count"]
        lhs, rhs, res = numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec
        self._params, self._kernel_shape = params, kernel_shape
        # Loop axes join the batch axis of the convolution: both are summed.
        self._plain = _batch_first(inputs, lhs, loops), _batch_first(cotangent, res, loops)
        x, y = (channels_first(z, spec) for z, spec in zip(self._plain, (lhs, res), strict=True))
        nd, out = len(params["window_strides"]), y.shape[3:]
        kernel = self._window = tuple(kernel_shape[a] for a in rhs[2:])
        self._channels = kernel_shape[rhs[1]]
        # Labels: 1 samples, 2 groups, 3 features of a group, 4 channels of a group, then positions,
        #   then kernel axes.
        position, offset = range(5, 5 + nd), range(5 + nd, 5 + 2 * nd)
        group = () if groups == 1 else (2,)
        order: list[tuple[int, ...]] = [()] * len(kernel_shape)
        order[rhs[0]], order[rhs[1]] = (*group, 3), (4,)
        for axis, label in zip(rhs[2:], offset, strict=True):
            order[axis] = (label,)
        split = (groups,) if group else ()
        super().__init__(
            None,
            (0, *offset, *group, 4, 1, *position),
            y.reshape(*y.shape[:2], *split, -1, *out),
            (0, 1, *group, 3, *position),
            tuple(itertools.chain.from_iterable(order)),
            ((kernel_shape, tuple(range(len(kernel_shape)))),) if group else (),
            note="convolution",
        )
        self._inputs = x
        self._order = lhs, res, split
        self._by_rows_order = (*offset[1:], 4, *offset[:1], 3)
        self._patches = functools.partial(
            _patches, kernel=kernel, out=out, params=params, split=split
        )

    @functools.cached_property
    def x(self) -> jax.Array:  # type: ignore[override]
        return self._patches(self._inputs)

    @functools.cached_property
    def sizes(self) -> dict[int, int]:
        shape = jax.eval_shape(self._patches, self._inputs).shape
        return dict(zip(self.x_labels, shape, strict=True)) | dict(
            zip(self.y_labels, self.y.shape, strict=True)
        )

    @functools.cached_property
    def _by_rows(self) -> bool:
        """Whether blocks are made by rows of the input, on a CPU."""
        return (
            _platforms.cpu_alone()
            and self._less_by_rows
            and self._meets_all_rows(self._num_rows, self.y.shape[-len(self._window)])
        )

    @functools.cached_property
    def _less_by_rows(self) -> bool:
        """Whether the first kernel axis goes to the cotangent: fewer numbers to move, hardly more
        to multiply.
        """
        if not self._window:
            return False
        size, features, channels = self._window[0], self.sizes[3], self.sizes[4]
        patch = math.prod(self._window[1:]) * channels
        rows, out = self._num_rows, self.y.shape[-len(self._window)]
        return (
            self._params["feature_group_count"] == 1
            and self._params["window_strides"][0] == 1
            and (4 * rows <= 5 * out if self.held else rows <= out)
            and patch + size * features < size * patch + features
        )

    def _meets_all_rows(self, rows: int, out: int) -> bool:
        """Each row of the input meets one of the output, and conversely: one that is not finite
        leaves its mark.
        """
        shifts = _shifts(self._window[0], self._params)[:, None]
        to, back = np.arange(rows) + shifts, np.arange(out) - shifts
        return all(
            ((z >= 0) & (z < limit)).any(axis=0).all() for z, limit in ((to, out), (back, rows))
        )

    @property
    def _num_rows(self) -> int:
        """Of the input, with the holes that its dilation makes, without padding."""
        return max(0, (self._inputs.shape[3] - 1) * self._params["lhs_dilation"][0] + 1)

    @property
    def row_order(self) -> tuple[int, ...]:
        return self._by_rows_order if self._by_rows else super().row_order

    def _block(self, inputs: jax.Array, cotangent: jax.Array, by_rows: bool) -> Product:
        """The term of some examples. Transposed here, in the cache: transposing all first costs two
        more passes.
        """
        lhs, res, split = self._order
        if by_rows:
            out = self.y.shape[-len(self._window) :]
            x = row_patches(channels_last(inputs, lhs), self._window, out, self._params)
            y = shifted_rows(
                channels_last(cotangent, res), self._num_rows, self._window[0], self._params
            )
            # As matrices: XLA on CPU is slower at a product of more axes.
            x, y = (z.reshape(z.shape[0], math.prod(z.shape[1:-1]), z.shape[-1]) for z in (x, y))
            return Product(x, (0, 1, 2), y, (0, 1, 3), (2, 3))
        x, y = channels_first(inputs, lhs), channels_first(cotangent, res)
        y = y.reshape(*y.shape[:2], *split, -1, *y.shape[3:])
        return Product(self._patches(x), self.x_labels, y, self.y_labels, self.out)

    def _copied(self, by_rows: bool) -> int:
        """Floats of one example's copies."""
        each = math.prod(self.sizes[label] for label in self.x_labels[1:])
        if by_rows:
            each = each // self._window[0] + math.prod(self.y.shape[1:]) * self._window[0]
        return each

    def _in_blocks(self, fun: Callable[[Product], Any]) -> Any:
        """Fun of this term, on a CPU for a few examples at a time."""
        size, by_rows = self.y.shape[0], self._by_rows
        cached = CACHED_COPIES if by_rows else CACHED_PATCHES
        at_once = max(1, min(size, cached // self._copied(by_rows)))
        while size % at_once:
            at_once -= 1
        if not _platforms.cpu_alone() or at_once == size:
            return fun(self._block(*self._plain, by_rows))
        pairs = [z.reshape(size // at_once, at_once, *z.shape[1:]) for z in self._plain]
        out = jax.lax.map(lambda pair: fun(self._block(pair[0], pair[1], by_rows)), pairs)
        return jax.tree.map(lambda z: z.reshape(size, *z.shape[2:]), out)

    def compute_rows(self) -> tuple[jax.Array, jax.Array]:
        rows, squares = self._in_blocks(lambda part: part.compute_rows())
        return rows.reshape(-1, *(self.sizes[label] for label in self.row_order)), squares

    def squared_norms(self) -> jax.Array:
        return (
            super().squared_norms()
            if self.held
            else self._in_blocks(lambda part: part.squared_norms())
        )

    def _convolve(self, inputs: jax.Array, kernel: jax.Array, precision: Any = None) -> jax.Array:
        """With the program's own precision, or another."""
        params, dims = dict(self._params), self._params["dimension_numbers"]
        specs = [_moved(dims.lhs_spec), dims.rhs_spec, _moved(dims.out_spec)]
        options = (
            "window_strides",
            "padding",
            "lhs_dilation",
            "rhs_dilation",
            "feature_group_count",
        )
        return jax.lax.conv_general_dilated(
            inputs.reshape(-1, *inputs.shape[2:]),
            kernel,
            dimension_numbers=jax.lax.ConvDimensionNumbers(*specs),
            preferred_element_type=params["preferred_element_type"],
            precision=params["precision"] if precision is None else precision,
            **{name: params[name] for name in options},
        )

    def weighted_sum(self, weights: jax.Array) -> jax.Array:
        return super().weighted_sum(weights) if self.held else self._weighed_convolution(weights)

    def _weighed_convolution(self, weights: jax.Array) -> jax.Array:
        """The convolution's own gradient."""
        cotangent, inputs = self._plain[1], drop_rows(self._plain[0], weights)
        dtype = wide(inputs.dtype, cotangent.dtype)
        weighted = weigh_rows(cotangent.astype(dtype), weights)
        # Inside shard_map the gradient with respect to what is the same on all devices would be a
        # sum over them.
        zero = make_varying(jnp.zeros(self._kernel_shape, dtype), varying_axes(inputs, weighted))
        # HIGHEST: rounded to fewer bits, a clipped row could pass its bound.
        convolve = functools.partial(self._convolve, inputs.astype(dtype), precision=HIGHEST)
        return jax.vjp(convolve, zero)[1](weighted.reshape(-1, *weighted.shape[2:]))[0]

    def directional(self, vector: jax.Array) -> jax.Array:
        inputs, cotangent = self._plain
        dtype = wide(inputs.dtype, cotangent.dtype, vector.dtype)
        along = self._convolve(inputs.astype(dtype), vector.astype(dtype)).reshape(cotangent.shape)
        return jnp.sum(along * cotangent.astype(dtype), axis=tuple(range(1, along.ndim)))

    def _with(self, **changes: Any) -> Product:
        self._x = self.x
        # Squares would be those of the input.
        return super()._with(**{"squares": None, **changes})


def _patches(x: jax.Array, kernel: Any, out: Any, params: Any, split: tuple[int, ...]) -> jax.Array:
    seen = patches(x, kernel, out, params)
    at = 1 + len(kernel)
    return seen.reshape(*seen.shape[:at], *split, -1, *seen.shape[at + 1 :])


def channels_first(z: jax.Array, spec: tuple[int, ...]) -> jax.Array:
    """`[B, n, *the rest in its order]` -> `[B, n, C, *spatial]`."""
    return jnp.transpose(z, [0, 1, *(2 + (a - (a > spec[0])) for a in spec[1:])])


def channels_last(z: jax.Array, spec: tuple[int, ...]) -> jax.Array:
    """`[B, n, *the rest in its order]` -> `[B, n, *spatial, C]`."""
    return jnp.moveaxis(channels_first(z, spec), 2, -1)


def _moved(spec: tuple[int, ...]) -> tuple[int, ...]:
    """The dimension specification once the batch axis has been moved to the front."""
    return (0, *(a + (a < spec[0]) for a in spec[1:]))


def _batch_first(z: jax.Array, spec: tuple[int, ...], loops: int) -> jax.Array:
    """`[B, *loops, *as in the program]` -> `[B, loops * n, *the rest in its order]`."""
    z = jnp.moveaxis(z, 1 + loops + spec[0], 1 + loops)
    return z.reshape(z.shape[0], -1, *z.shape[2 + loops :])
