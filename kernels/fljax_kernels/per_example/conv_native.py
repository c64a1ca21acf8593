"""The convolution's term for accelerators, where what it costs is the numbers that it moves.

A row is example i's gradient of the kernel. On a TPU it is had by the convolution's own gradient
for each example, without patches, which repeat the input once for each kernel entry. On a GPU that
is one convolution in as many groups as examples, which cuDNN computes group by group, a kernel
launched for each: 24 ms on an H200 where the products of `ConvProduct` take 0.6 ms (1,024 examples,
32x32, 3x3 from 32 to 32 channels). There rows are products, of blocks of examples whose copies its
cache holds. A squared norm is also a sum over pairs of output positions,

    |row|^2 = sum_{n,m} (sum_d x[n + d] . x[m + d]) (y[n] . y[m]),

d running over the kernel's entries: the inner products of patches are sums along the diagonals of
the inner products of inputs, `[P, P]` for P input positions. Late layers of a network have few
positions and large kernels: there that is the smaller array.
"""

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fljax_kernels import _platforms
from fljax_kernels.per_example import tpu
from fljax_kernels.per_example.batches import make_varying, varying_axes
from fljax_kernels.per_example.conv import ConvProduct, channels_first, channels_last
from fljax_kernels.per_example.reference import column, flat, sum_of_squares, wide
from fljax_kernels.per_example.terms import (
    AGAIN,
    HIGHEST,
    READS,
    einsum,
    gram_squares,
    room_for_rounding,
)

KERNEL = "squared and weighed as a Pallas kernel makes them, twice"
CACHED_ON_GPUS = 2**23  # floats of copies of the input and the cotangent


class NativeConv(ConvProduct):
    """As `ConvProduct`; `form` is "held", "rows" or "gram", whichever moves fewest numbers."""

    @functools.cached_property
    def moved(self) -> dict[str, float]:
        """Numbers that each form moves for one example, beyond what the mean gradient does."""
        x, y = (math.prod(z.shape[1:]) for z in self._plain)
        row = math.prod(self._kernel_shape)
        again = AGAIN * (x + y)  # the sum, by one convolution more
        padded, out = self._positions()
        pairs = padded**2 + (math.prod(self._window) + 2) * out**2
        one = self._params["feature_group_count"] == 1 and self._plain[0].shape[1] == 1
        by_pairs = one and bool(self._window)
        if _platforms.tpu_alone():
            work = out * row * self._plain[0].shape[1]
            work_of_pairs = padded**2 * self.sizes[4] + out**2 * self.sizes[3]
            found = tpu.conv_forms(x, y, work, row, pairs, work_of_pairs, self._exact)
            found["gram"] = found.pop("pairs") if by_pairs else math.inf
            return found
        return {
            "held": READS * row,
            "rows": (READS - 1) * row + again,
            "gram": pairs + again if by_pairs else math.inf,
        }

    @functools.cached_property
    def form(self) -> str:
        """Of least cost."""
        return min(self.moved, key=self.moved.__getitem__)

    @property
    def held(self) -> bool:
        return self.form == "held"

    def round_once(self) -> None:
        """For what reads the input in norm and sum: both see the same numbers."""
        inputs, cotangent = self._plain
        self._plain = lax.optimization_barrier(inputs), cotangent
        self._inputs = channels_first(self._plain[0], self._order[0])

    @functools.cached_property
    def x(self) -> jax.Array:  # type: ignore[override]
        # What is not this term may read it in norm and sum.
        if _platforms.tpu_alone() and self._exact:
            self.round_once()
        return self._patches(self._inputs)

    def _padded(self) -> jax.Array:
        """The input `[B, *spatial, C]` with its padding and holes."""
        x = jnp.moveaxis(self._inputs[:, 0], 1, -1)
        holes = zip(self._params["padding"], self._params["lhs_dilation"], strict=True)
        widths = [(0, 0, 0), *((*both, dilation - 1) for both, dilation in holes), (0, 0, 0)]
        return lax.pad(x, jnp.zeros((), x.dtype), widths)

    def _positions(self) -> tuple[int, int]:
        """Of the padded input and of the output."""
        spatial = jax.eval_shape(self._padded).shape[1:-1]
        return math.prod(spatial), math.prod(self.y.shape[self.y.ndim - len(self._window) :])

    @property
    def _exact(self) -> bool:
        return all(z.dtype == jnp.bfloat16 for z in self._plain)

    def compute_rows(self) -> tuple[jax.Array, jax.Array]:
        """Rows `[B, *kernel]`, in the kernel's own order, and the sums of their squares."""
        if self._beside:
            return self._each(self._side_by_side), self._squares_beside()
        rows, good = self._rows_and_good()
        rows = jnp.where(column(good, rows), rows, jnp.full((), jnp.nan, rows.dtype))
        return rows, sum_of_squares(flat(rows), 1)

    @property
    def _beside(self) -> bool:
        """Whether rows are made, squared and added up where a TPU's convolution leaves them: where
        they are held, of fewer examples and of fewer features than lanes. More of either lie along
        the lanes, and pad nothing.
        """
        if not (_platforms.tpu_alone() and self.held) or self.spread:
            return False
        some = all(z.size for z in self._plain)
        features = self._kernel_shape[self._params["dimension_numbers"].rhs_spec[0]]
        few = max(self.y.shape[0], features) < tpu.LANES
        return few and some and self._params["feature_group_count"] == 1

    @functools.cached_property
    def _rows_of_positions(self) -> jax.Array:
        """The cotangent `[B * O, positions]`. On its way to side by side XLA would go by the last
        axis of positions alone, padded to whole lanes.
        """
        y = channels_last(self._plain[1], self._order[1])
        y = jnp.swapaxes(y.reshape(y.shape[0], -1, y.shape[-1]), 1, 2)
        return lax.optimization_barrier(y.reshape(-1, y.shape[-1]))

    @functools.cached_property
    def _side_by_side(self) -> jax.Array:
        """Rows `[*window, C, B * O]`, of what is finite. An axis for examples, of a few features
        each, would be padded to whole lanes: up to eight times the numbers, written and read.
        """
        params, nd = self._params, len(self._window)
        lhs, res, _ = self._order
        x, size = channels_last(self._plain[0], lhs), self.y.shape[0]
        positions = jax.eval_shape(lambda z: channels_last(z, res), self._plain[1]).shape[1:-1]
        features = self._rows_of_positions.shape[0] // size
        y = self._rows_of_positions.T.reshape(*positions, size * features)
        x = x.reshape(-1, *x.shape[2:])
        dtype = wide(x.dtype, y.dtype)
        x, y = (jnp.where(jnp.isfinite(z), z, jnp.zeros((), z.dtype)) for z in (x, y))
        steps, strides = params["rhs_dilation"], params["window_strides"]
        # As much behind as leaves one place for each of the kernel's entries.
        padding = []
        for axis, (low, _) in enumerate(params["padding"]):
            holes = max(0, (x.shape[1 + axis] - 1) * params["lhs_dilation"][axis] + 1)
            span = (y.shape[1 + axis] - 1) * strides[axis] + 1
            padding.append((low, span + (self._window[axis] - 1) * steps[axis] - holes - low))
        at = range(1, 1 + nd)
        return lax.conv_general_dilated(
            x.astype(dtype),
            y.astype(dtype),
            window_strides=steps,
            padding=padding,
            lhs_dilation=params["lhs_dilation"],
            rhs_dilation=strides,
            dimension_numbers=lax.ConvDimensionNumbers(
                (1 + nd, 0, *at), (1 + nd, 0, *at), (nd, 1 + nd, *range(nd))
            ),
            feature_group_count=size,
            precision=self._precision,
            preferred_element_type=dtype,
        )

    @property
    def _precision(self) -> Any:
        # Held rows are what is added up, however rounded. Where the sum is made anew it must be as
        # exact as the norm.
        return self._params["precision"] if self.held or self._exact else HIGHEST

    @property
    def _places(self) -> tuple[int, ...]:
        """Where the kernel has the axes of its window, its channels and its features."""
        out, inside, *axes = self._params["dimension_numbers"].rhs_spec
        return *axes, inside, out

    def _each(self, made: jax.Array) -> jax.Array:
        """`[B, *kernel]` of rows side by side, NaN where not all that met was finite."""
        rows = jnp.moveaxis(made.reshape(*made.shape[:-1], self.y.shape[0], -1), -2, 0)
        rows = jnp.moveaxis(rows, range(1, rows.ndim), [1 + axis for axis in self._places])
        return jnp.where(column(self._good, rows), rows, jnp.full((), jnp.nan, rows.dtype))

    def _squares_beside(self) -> jax.Array:
        of_features = sum_of_squares(self._side_by_side, *range(self._side_by_side.ndim - 1))
        squares = jnp.sum(of_features.reshape(self.y.shape[0], -1), axis=1)
        return jnp.where(self._good, squares, jnp.full((), jnp.nan, squares.dtype))

    def weighted_sum(self, weights: jax.Array) -> jax.Array:
        if not self._beside:
            return super().weighted_sum(weights)
        made, size = self._side_by_side, self.y.shape[0]
        features = made.shape[-1] // size

        def for_each(z: jax.Array) -> jax.Array:
            return jnp.repeat(z, features).reshape(*[1] * (made.ndim - 1), -1)

        made = jnp.where(for_each(self._good), made, jnp.full((), jnp.nan, made.dtype))
        each = for_each(weights.astype(made.dtype))
        weighted = jnp.where(each != 0, made * each, jnp.zeros((), made.dtype))
        # One row of the identity for each example's feature: adding up by a product, exactly.
        pick = jnp.tile(jnp.eye(features, dtype=made.dtype), (size, 1))
        total = jnp.matmul(weighted, pick, precision=HIGHEST)
        return jnp.moveaxis(total, range(total.ndim), self._places)

    def _squares_as_made(self) -> jax.Array:
        rows, good = self._rows_and_good()
        squares = sum_of_squares(rows, *range(1, rows.ndim))
        of_x, of_y = self.squares or (sum_of_squares(flat(z), 1) for z in self._plain)
        # Each entry of the kernel sees each number of the input once at most.
        room = room_for_rounding(math.prod(self._window) * of_x, of_y)
        return jnp.where(good, squares + room, jnp.full((), jnp.nan, squares.dtype))

    def _rows_and_good(self) -> tuple[jax.Array, jax.Array]:
        """Rows of what is finite, and whether all was, `[B]`."""
        inputs, cotangent = self._plain
        dtype = wide(inputs.dtype, cotangent.dtype)
        axes = varying_axes(inputs, cotangent)
        zero = make_varying(jnp.zeros(self._kernel_shape, dtype), axes)

        precision = self._precision

        def one(x: jax.Array, y: jax.Array) -> jax.Array:
            convolve = functools.partial(self._convolve, x[None], precision=precision)
            return jax.vjp(convolve, zero)[1](y)[0]

        # Example by example is one grouped convolution, which XLA may make of products with zeros
        # in place of other groups: a NaN would go to all examples.
        pair = [z.astype(dtype) for z in (inputs, cotangent)]
        good = self._all_finite(pair)
        clean = [jnp.where(jnp.isfinite(z), z, jnp.zeros((), dtype)) for z in pair]
        rows = _platforms.choose(
            *clean,
            default=self._rows_by_products,
            tpu=jax.vmap(one),
        )
        return rows, good

    @functools.cached_property
    def _good(self) -> jax.Array:
        """`[B]`: whether all that meets is finite."""
        if self._beside and self.squares is not None:
            # Where it is laid out it is read from fewest bytes.
            of_y = sum_of_squares(self._rows_of_positions, 1).reshape(self.y.shape[0], -1)
            return jnp.isfinite(self.squares[0]) & jnp.isfinite(jnp.sum(of_y, axis=1))
        dtype = wide(*(z.dtype for z in self._plain))
        return self._all_finite([z.astype(dtype) for z in self._plain])

    def _all_finite(self, pair: list[jax.Array]) -> jax.Array:
        if self.squares is None:
            return jnp.all(jnp.stack([_finite(z) for z in pair]), axis=0)
        return jnp.isfinite(self.squares[0]) & jnp.isfinite(self.squares[1])

    def _rows_by_products(self, x: jax.Array, y: jax.Array) -> jax.Array:
        size, by_rows = x.shape[0], self._less_by_rows
        precision = self._params["precision"] if self.held else HIGHEST
        order = self._by_rows_order if by_rows else self.row_order

        def rows(pair: Sequence[jax.Array]) -> jax.Array:
            part = self._block(pair[0], pair[1], by_rows)
            out = (0, *part.row_order)
            return einsum(part.x, part.x_labels, part.y, part.y_labels, out, precision)

        blocks = min(size, -(-size * self._copied(by_rows) // CACHED_ON_GPUS))
        # Blocks of examples that lie on several devices would be gathered.
        if blocks <= 1 or self.spread:
            made = rows((x, y))
        else:
            at_once = -(-size // blocks)
            blocks = -(-size // at_once)
            more = blocks * at_once - size
            pairs = [
                jnp.pad(z, [(0, more), *[(0, 0)] * (z.ndim - 1)]).reshape(
                    blocks, at_once, *z.shape[1:]
                )
                for z in (x, y)
            ]
            made = lax.map(rows, pairs)
            made = made.reshape(blocks * at_once, *made.shape[2:])[:size]
        made = made.reshape(size, *(self.sizes[label] for label in order))
        places = [0, *(1 + order.index(label) for label in self.out)]
        return self._moved(jnp.transpose(made, places), 1)

    def _in_out_order(self, z: jax.Array, lead: int) -> jax.Array:
        return z

    def rows(self) -> jax.Array:
        return self._held_rows[0]

    def squared_norms(self) -> jax.Array:
        if self.form == "gram":
            return self._gram_squares()
        if self.form == "rows" and _platforms.tpu_alone():
            return self._squares_as_made()
        return self._squares_beside() if self._beside else self._held_rows[1]

    def _gram_squares(self) -> jax.Array:
        x, y = self._padded(), jnp.moveaxis(self.y[:, 0], 1, -1)
        spatial, out = x.shape[1:-1], y.shape[1:-1]
        flat_positions = (z.reshape(z.shape[0], -1, z.shape[-1]) for z in (x, y))
        of_x, of_y = (
            einsum(z, (0, 1, 3), z, (0, 2, 3), (0, 1, 2), precision=HIGHEST) for z in flat_positions
        )
        of_x = of_x.reshape(-1, *spatial, *spatial)
        steps, strides = self._params["rhs_dilation"], self._params["window_strides"]

        def seen(offset: tuple[int, ...]) -> jax.Array:
            starts = [k * step for k, step in zip(offset, steps, strict=True)]
            spans = [(n - 1) * stride + 1 for n, stride in zip(out, strides, strict=True)]
            ends = [start + span for start, span in zip(starts, spans, strict=True)]
            cut = lax.slice(
                of_x,
                (0, *starts, *starts),
                (of_x.shape[0], *ends, *ends),
                (1, *strides, *strides),
            )
            return cut.reshape(of_y.shape)

        offsets = itertools.product(*(range(size) for size in self._window))
        of_patches = functools.reduce(lax.add, map(seen, offsets))
        return jnp.sum(gram_squares(of_patches, of_y), axis=(1, 2))

    def cost(self) -> tuple[str, float, float]:
        """(form, multiply-adds for the norms, bytes held for rows)."""
        size, row = self._plain[0].shape[0], math.prod(self._kernel_shape)
        padded, out = self._positions()
        channels, features = self.sizes[4], math.prod(self.y.shape[2:]) // max(out, 1)
        moved = ", ".join(f"{name} {size * n / 2**18:.3g}" for name, n in self.moved.items())
        moved = f" (MiB moved: {moved})"
        if _platforms.tpu_alone():
            moved = tpu.said(self.moved, size)
        work: Any = size * out * row
        what = {
            "held": "rows, kept for the sum",
            "rows": "rows, and one more convolution",
            "gram": "inner products of positions, and one more convolution",
            "kernel": KERNEL,
        }[self.form]
        if self.form == "gram":
            work = size * (padded**2 * channels + out**2 * features)
        bytes_held = 4 * size * row if self.form == "held" else 0
        return f"{self.note} {self._kernel_shape}: {what}{moved}", work, bytes_held


def _finite(z: jax.Array) -> jax.Array:
    """`[B]`, by sums over positions, which a bias beside the kernel needs too.

    A sum past float32's range counts as not finite; so does the squared norm of such a row.
    """
    last = z.ndim - 1
    sums = jnp.sum(z, axis=tuple(range(2, last))) if last > 2 else z
    return jnp.all(jnp.isfinite(sums), axis=tuple(range(1, sums.ndim)))
