"""Per-example gradients in the form they have where they arise: never wider than the data that made
them.

In every `weighted_sum` a row of weight 0 adds exactly 0, also where it is not finite.

A term stands for `[B, *shape]`. `Rows` holds it, `Product` is sum_n x_in (outer) y_in, `Lookup`
adds y_n to row idx_n.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fljax_kernels import _meshes, _platforms, _rounding
from fljax_kernels.per_example import dense_kernel, tpu
from fljax_kernels.per_example.reference import (
    drop_rows,
    flat,
    keep_rows,
    sum_of_squares,
    weigh_rows,
    wide,
)

# A sum of up to 2**32 squares below float32's range, all of which are lost, is less than this.
LOST = 2.0**-94
# Of the magnitudes that steps add up: where they cancelled, squares of 1,024 examples fell short by
# up to 2.2 * 2**-24 of these on an H200, and by 1.04 on a CPU.
ROUNDING = 3 * 2.0**-24
FEW = 2**20  # numbers: what rows may take though records take less
PIECE = 2**17  # floats: what a copy may take that only looks for bad rows
HIGHEST = lax.Precision.HIGHEST
# On accelerators forms are chosen by the numbers that they move. Held rows are written, squared and
# added up; inner products of positions are written and read, two arrays of them. A sum made anew
# reads x and y once more, after both are copied: without the rows of weight 0, and weighted.
READS, PAIRS, AGAIN = 3, 4, 3


Labels = Sequence[int]
Moves = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]


def einsum(
    x: jax.Array,
    x_labels: Labels,
    y: jax.Array,
    y_labels: Labels,
    out: Labels,
    precision: Any = None,
) -> jax.Array:
    """`jnp.einsum` of two operands, in at least float32; what only one of them has is kept."""
    dtype = wide(x.dtype, y.dtype)
    if x.dtype == y.dtype == jnp.bfloat16 and not _platforms.cpu_alone():
        # Products of two of these are float32 as they are: one pass of a matrix unit has them all.
        held, precision = x.dtype, lax.Precision.DEFAULT
    else:
        held = dtype
    batch = [label for label in out if label in x_labels and label in y_labels]
    summed = [label for label in x_labels if label in y_labels and label not in out]
    pair = [(x.astype(held), x_labels), (y.astype(held), y_labels)]
    free = [[label for label in labels if label not in (*batch, *summed)] for _, labels in pair]
    if (*batch, *free[0], *free[1]) != tuple(out):
        pair, free = pair[::-1], free[::-1]
    (a, of_a), (b, of_b) = pair
    axes = [
        ([of_a.index(k) for k in some], [of_b.index(k) for k in some]) for some in (summed, batch)
    ]
    z = lax.dot_general(a, b, (axes[0], axes[1]), precision=precision, preferred_element_type=dtype)
    labels = [*batch, *free[0], *free[1]]
    return jnp.transpose(z, [labels.index(label) for label in out])


@dataclasses.dataclass
class Rows:
    """Held: data `[B, *shape]`. beside: it is a cotangent that the backward pass or a product reads
    too, and no sum of it.
    """

    data: jax.Array
    note: str = "materialised"
    beside: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape[1:]

    def rows(self) -> jax.Array:
        return self.data

    def mapped(self, fun: Callable[[jax.Array], jax.Array]) -> "Rows":
        return Rows(jax.vmap(fun)(self.data), self.note)

    def squared_norms(self) -> jax.Array:
        return squares_of_rows(self.data)

    def gram(self) -> jax.Array:
        return jnp.matmul(flat(self.data), flat(self.data).T, precision=HIGHEST)

    def weighted_sum(self, weights: jax.Array) -> jax.Array:
        if self.beside and self.data.ndim == 2 and dense_kernel.takes(self.data):
            return dense_kernel.weighted_rows(self.data, weights.astype(jnp.float32))
        # The weighted cotangent is what a product beside this bias needs too. A matrix product with
        # ones: XLA's sum over the leading axis of a wide array is many times slower on a CPU.
        data = weigh_rows(self.data.astype(wide(self.data.dtype)), weights)
        # Of parts on several devices it would be of one axis, for which they are gathered.
        if not _platforms.cpu_alone() or _meshes.is_spread(data):
            return jnp.sum(data, axis=0)
        return jnp.tensordot(jnp.ones(data.shape[:1], data.dtype), data, axes=1, precision=HIGHEST)

    def directional(self, vector: jax.Array) -> jax.Array:
        return jnp.matmul(flat(self.data), vector.reshape(-1).astype(wide(self.data.dtype)))

    def cost(self) -> tuple[str, float, float]:
        """(form, multiply-adds for the norms, bytes held for rows)."""
        return self.note, self.data.size, self.data.size * self.data.dtype.itemsize

    def scale(self, factor: jax.Array) -> "Rows":
        return Rows(self.data * factor.astype(self.data.dtype), self.note)


class Product:
    """sum_n x (outer) y, in einsum labels. Label 0 is the batch; a label in x and y but not in
    `out` is summed.

    moves: what the labelled result goes through at the end, (shape, order) pairs: a reshape, then a
    transposition. Norms do not see them, a sum goes through them once.
    squares: `[B]` each, the sums of those of x and of y where they are known.
    """

    def __init__(
        self,
        x: Any,
        x_labels: Any,
        y: jax.Array,
        y_labels: Any,
        out: Any,
        moves: Moves = (),
        note: str = "product",
        squares: tuple[jax.Array, jax.Array] | None = None,
    ):
        self._x, self.y = x, y
        self.x_labels, self.y_labels, self.out = tuple(x_labels), tuple(y_labels), tuple(out)
        self.note, self.squares = note, squares
        self._moves = moves

    @property
    def x(self) -> jax.Array:
        return self._x

    @functools.cached_property
    def sizes(self) -> dict[int, int]:
        return dict(zip(self.x_labels, self.x.shape, strict=True)) | dict(
            zip(self.y_labels, self.y.shape, strict=True)
        )

    @property
    def labelled_shape(self) -> tuple[int, ...]:
        return tuple(self.sizes[label] for label in self.out)

    @property
    def shape(self) -> tuple[int, ...]:
        if not self._moves:
            return self.labelled_shape
        shape, order = self._moves[-1]
        return tuple(shape[axis] for axis in order)

    @functools.cached_property
    def groups(self) -> tuple[list[int], list[int], list[int], list[int]]:
        """Labels (stacked, summed, of x alone, of y alone)."""
        both = [label for label in self.x_labels if label in self.y_labels and label != 0]
        return (
            [label for label in self.out if label in both],
            [label for label in both if label not in self.out],
            [label for label in self.out if label not in self.y_labels],
            [label for label in self.out if label not in self.x_labels],
        )

    @functools.cached_property
    def extents(self) -> tuple[int, int, int, int]:
        """(S, N, p, q): x is [B, S, N, p], y is [B, S, N, q]."""
        s, n, p, q = (math.prod(self.sizes[label] for label in group) for group in self.groups)
        return s, n, p, q

    @property
    def held(self) -> bool:
        """Rows take less than the Gram matrix of the summed axis: few of them up to twice, for they
        save a product. On accelerators: they move fewer numbers.
        """
        s, n, p, q = self.extents
        if self.spread:
            return False
        if _platforms.tpu_alone():
            return n > 1 and self.form == "held"
        if not _platforms.cpu_alone():
            return n > 1 and READS * p * q <= PAIRS * n * n + AGAIN * n * (p + q)
        allowed = 2 if self.y.shape[0] * s * p * q <= FEW else 1
        return n > 1 and p * q <= allowed * n * (p + q)

    @functools.cached_property
    def modelled(self) -> dict[str, float]:
        """Seconds of a TPU for one example's norm and sum, by form, if it sums positions."""
        _, n, p, q = self.extents
        return tpu.forms(n * p, n * q, n * p * q, p * q, n * n, n * n * (p + q), self._exact)

    @property
    def _exact(self) -> bool:
        """Products of what meets are float32 as they are."""
        return self.y.dtype == jnp.bfloat16 and (self._x is None or self._x.dtype == jnp.bfloat16)

    @functools.cached_property
    def form(self) -> str:
        """Of least modelled cost on a TPU."""
        return min(self.modelled, key=self.modelled.__getitem__)

    @property
    def _squared_as_made(self) -> bool:
        return _platforms.tpu_alone() and not self.spread and self.form == "rows"

    @functools.cached_property
    def spread(self) -> bool:
        """Parts of it may lie on several devices. All arrays of a program are of one mesh, and x
        may be patches that nothing else has asked for yet.
        """
        return _meshes.is_spread(self.y)

    @property
    def in_turn(self) -> bool:
        """Norms come from the rows of one layer after the other, and each device adds up squares of
        the parts that it makes: of a Gram matrix all devices would exchange N x N numbers.
        """
        _, n, p, q = self.extents
        return self.spread and n > 1 and p * q <= 2 * n * (p + q)

    @property
    def row_order(self) -> tuple[int, ...]:
        """Labels in the order a matrix product leaves them: held rows keep it, only their sum is
        transposed.
        """
        stacked = self.groups[0]
        free = [
            label
            for label in (*self.x_labels, *self.y_labels)
            if label in self.out and label not in stacked
        ]
        return (*stacked, *free)

    def compute_rows(self) -> tuple[jax.Array, jax.Array]:
        """Rows in `row_order` and the sums of their squares."""
        order = (0, *self.row_order)
        # However rounded: norm and sum are both of these rows.
        rows = einsum(self.x, self.x_labels, self.y, self.y_labels, order)
        return rows, sum_of_squares(flat(rows), 1)

    @functools.cached_property
    def _held_rows(self) -> tuple[jax.Array, jax.Array]:
        return self.compute_rows()

    def _in_out_order(self, z: jax.Array, lead: int) -> jax.Array:
        """Transposes what comes after `lead` axes from `row_order`."""
        z = jnp.transpose(
            z, [*range(lead), *(lead + self.row_order.index(label) for label in self.out)]
        )
        return self._moved(z, lead)

    def _moved(self, z: jax.Array, lead: int) -> jax.Array:
        for shape, order in self._moves:
            z = jnp.transpose(
                z.reshape(*z.shape[:lead], *shape), [*range(lead), *(lead + axis for axis in order)]
            )
        return z

    def _moved_back(self, vector: jax.Array) -> jax.Array:
        for shape, order in reversed(self._moves):
            vector = jnp.transpose(vector.reshape([shape[axis] for axis in order]), _inverse(order))
        return vector.reshape(self.labelled_shape)

    def rows(self) -> jax.Array:
        return self._in_out_order(self._held_rows[0], 1)

    @functools.cached_property
    def canonical(self) -> tuple[jax.Array, jax.Array]:
        """X `[B, S, N, p]` and y `[B, S, N, q]`."""
        stacked, summed, left, right = self.groups
        s, n, p, q = self.extents
        x = _arrange(self.x, self.x_labels, [0, *stacked, *summed, *left]).reshape(-1, s, n, p)
        y = _arrange(self.y, self.y_labels, [0, *stacked, *summed, *right]).reshape(-1, s, n, q)
        return x, y

    def squared_norms(self) -> jax.Array:
        if self.held:
            return self._held_rows[1]
        if self.in_turn:
            return self._squares_in_turn()
        x, y = self.canonical
        if self.extents[:2] == (1, 1) and self.squares is not None:
            return _never_less(*self.squares)
        if self.extents[1] == 1:
            return jnp.sum(_never_less(sum_of_squares(x, 3), sum_of_squares(y, 3)), axis=(1, 2))
        if self._squared_as_made:
            return self._squares_as_made()
        dots = _dots(x, y, x, y)
        return jnp.sum(gram_squares(*dots), axis=(1, 2, 3))

    def _squares_as_made(self) -> jax.Array:
        """Of rows that no memory sees: the product that makes them adds up their squares."""
        x, y = self.canonical
        rows = einsum(x, (0, 1, 2, 3), y, (0, 1, 2, 4), (0, 1, 3, 4), precision=HIGHEST)
        squares = self.squares or (sum_of_squares(x, 1, 2, 3), sum_of_squares(y, 1, 2, 3))
        return sum_of_squares(rows, 1, 2, 3) + room_for_rounding(*squares)

    def _squares_in_turn(self) -> jax.Array:
        x, y = (jnp.moveaxis(z, 1, 0) for z in self.canonical)

        def of_one(layer: tuple[jax.Array, jax.Array]) -> jax.Array:
            x, y = layer
            rows = einsum(x, (0, 1, 2), y, (0, 1, 3), (0, 2, 3), precision=HIGHEST)
            # The sum is made anew, and rounded otherwise: as in `gram_squares`, where steps cancel
            # a norm must not be smaller than that. |x| |y| is not below what positions add up to.
            room = ROUNDING * sum_of_squares(x, 1, 2) * sum_of_squares(y, 1, 2)
            return sum_of_squares(rows, 1, 2) + room

        return jnp.sum(lax.map(of_one, (x, y)), axis=0)

    def gram(self) -> jax.Array:
        s, n = self.extents[:2]
        if self.held or (s > 1 and n > 1):
            return Rows(self._held_rows[0]).gram()
        x, y = self.canonical
        if n == 1:
            x, y = x[:, :, 0].astype(wide(x.dtype)), y[:, :, 0].astype(wide(y.dtype))
            products = [jnp.einsum("isp,jsp->sij", z, z, precision=HIGHEST) for z in (x, y)]
            return jnp.sum(products[0] * products[1], axis=0)

        def row(one: tuple[jax.Array, jax.Array]) -> jax.Array:
            mine = [jnp.broadcast_to(z[None], (x.shape[0], *z.shape)) for z in one]
            dots = _dots(mine[0], mine[1], x, y)
            return jnp.sum(dots[0] * dots[1], axis=(1, 2, 3))

        return lax.map(row, (x, y))

    def weighted_sum(self, weights: jax.Array) -> jax.Array:
        if self.held:
            rows, squares = self._held_rows
            if _platforms.cpu_alone():
                # Care costs two passes over all rows. Under vmap both branches run.
                usual = _meshes.all_have(jnp.isfinite(jnp.sum(squares)))
                total = lax.cond(usual, _sum_rows, _sum_finite_rows, rows, weights)
            else:
                total = jnp.sum(weigh_rows(rows, weights), axis=0)
            return self._in_out_order(total, 0)
        if self._by_kernel:
            x, y = (z[:, 0, 0] for z in self.canonical)
            total = dense_kernel.weighted_sum(x, y, weights.astype(jnp.float32))
            stacked, _, left, right = self.groups  # the order that `canonical` flattens, not rows'
            order = [*stacked, *left, *right]
            total = total.reshape([self.sizes[label] for label in order])
            return self._moved(jnp.transpose(total, [order.index(k) for k in self.out]), 0)
        y = weigh_rows(self.y.astype(wide(self.y.dtype)), weights)

        def part(x: jax.Array) -> jax.Array:
            # HIGHEST: rounded to fewer bits, a clipped row could pass its bound.
            return einsum(
                drop_rows(x, weights), self.x_labels, y, self.y_labels, self.out, precision=HIGHEST
            )

        parts = self._num_parts()
        if parts == 1:
            return self._moved(part(self.x), 0)
        width = self.x.shape[-1] // parts
        cut = functools.partial(lax.dynamic_slice_in_dim, self.x, slice_size=width, axis=-1)
        total = lax.map(lambda k: part(cut(k * width)), jnp.arange(parts))
        return self._moved(total.reshape(self.labelled_shape), 0)

    @property
    def _by_kernel(self) -> bool:
        """On CUDA: a product would read copies, of x without rows of weight 0 and of y weighed."""
        return self.is_outer and dense_kernel.takes(self.x, self.y)

    def _num_parts(self) -> int:
        """Pieces of x, along its own axis, to look through for rows of weight 0: the whole would be
        a copy of x.

        Where x is a layer's input `[B, p]` the pieces give pieces of the sum, and only one piece is
        copied at a time.
        """
        last = self.x_labels[-1]
        if self.extents[:2] != (1, 1) or last != self.out[0] or not _platforms.cpu_alone():
            return 1
        if self.spread:
            return 1
        divisors = (k for k in range(1, self.x.shape[-1] + 1) if self.x.shape[-1] % k == 0)
        return next((k for k in divisors if self.x.size <= k * PIECE), 1)

    @property
    def is_outer(self) -> bool:
        """Whether each row is one outer product, and more numbers than make it."""
        s, n, p, q = self.extents
        return s == n == 1 and p * q > 2 * (p + q)

    def outer_sum(self, x: jax.Array, y: jax.Array) -> jax.Array:
        """Of a product that `is_outer`, with other x `[b, p]` and y `[b, q]`: the sum of rows."""
        x = x.reshape(-1, *self.x.shape[1:])
        y = y.reshape(-1, *self.y.shape[1:])
        total = einsum(x, self.x_labels, y, self.y_labels, self.out, precision=HIGHEST)
        return self._moved(total, 0)

    def directional(self, vector: jax.Array) -> jax.Array:
        half = einsum(self.y, self.y_labels, self._moved_back(vector), self.out, self.x_labels)
        return jnp.sum(flat(self.x) * flat(half), axis=1)

    def cost(self) -> tuple[str, float, float]:
        """(form, multiply-adds for the norms, bytes held for rows)."""
        s, n, p, q = self.extents
        size = self.y.shape[0] * s
        what = f"{self.note} {p} x {q}" + (f", {s} stacked" if s > 1 else "") + f", {n} summed: "
        if self.held:
            said = tpu.said(self.modelled, size) if _platforms.tpu_alone() else ""
            what += "rows, kept for the sum" + said
            return what, size * (n + 1) * p * q, 4 * size * p * q
        if self.in_turn:
            return what + "rows, layer by layer", size * n * p * q, 4 * self.y.shape[0] * p * q
        if n == 1:
            x, y = (jax.ShapeDtypeStruct((size, k), jnp.float32) for k in (p, q))
            made = self._by_kernel and dense_kernel.is_made(x, y)
            by = ", summed by a Pallas kernel without copies" if made else ""
            return what + "|x|^2 |y|^2" + by, size * (p + q), 0
        if self._squared_as_made:
            return what + tpu.SQUARED + tpu.said(self.modelled, size), size * n * p * q, 0
        said = tpu.said(self.modelled, size) if _platforms.tpu_alone() else ""
        return what + "Gram" + said, size * n * n * (p + q), 0

    def scale(self, factor: jax.Array) -> "Product":
        y = self.y.astype(wide(self.y.dtype)) * factor.astype(wide(self.y.dtype))
        exact = self.y.dtype == jnp.bfloat16
        return self._with(y=_rounding.to_bfloat16(y) if exact else y.astype(self.y.dtype))

    def _with(self, **changes: Any) -> "Product":
        fields = dict(
            x=self._x,
            x_labels=self.x_labels,
            y=self.y,
            y_labels=self.y_labels,
            out=self.out,
            moves=self._moves,
            squares=None if "x" in changes or "y" in changes else self.squares,
        )
        return Product(**(fields | changes), note=self.note)

    def reshape(self, shape: tuple[int, ...]) -> "Product":
        moves = self._moves
        if moves and moves[-1][1] == tuple(range(len(moves[-1][1]))):
            moves = moves[:-1]  # of two reshapes the second says all
        same = not moves and shape == self.labelled_shape
        return self._with(moves=() if same else (*moves, (shape, tuple(range(len(shape))))))

    def transpose(self, order: tuple[int, ...]) -> "Product":
        if not self._moves:
            return self._with(out=tuple(self.out[k] for k in order))
        (shape, before) = self._moves[-1]
        return self._with(moves=(*self._moves[:-1], (shape, tuple(before[axis] for axis in order))))

    def cut(self, axis: int, start: int, stop: int) -> Any:
        """Keeps part of one axis; None once reshaped."""
        if self._moves:
            return None
        label = self.out[axis]
        x = (
            lax.slice_in_dim(self.x, start, stop, axis=self.x_labels.index(label))
            if label in self.x_labels
            else self.x
        )
        y = (
            lax.slice_in_dim(self.y, start, stop, axis=self.y_labels.index(label))
            if label in self.y_labels
            else self.y
        )
        return Product(x, self.x_labels, y, self.y_labels, self.out, note=self.note)

    def pad(self, axis: int, before: int, after: int) -> Any:
        """Zeros around one axis; None once reshaped."""
        if self._moves:
            return None
        label = self.out[axis]

        def padded(z: jax.Array, labels: tuple[int, ...]) -> jax.Array:
            widths = [(before, after) if mine == label else (0, 0) for mine in labels]
            return jnp.pad(z, widths)

        if label in self.x_labels:
            x, y = padded(self.x, self.x_labels), self.y
            if label in self.y_labels:
                y = padded(y, self.y_labels)
        else:
            x, y = self.x, padded(self.y, self.y_labels)
        return Product(x, self.x_labels, y, self.y_labels, self.out, note=self.note)

    def signature(self) -> Any:
        """Products with equal signatures can be joined along the summed axis."""
        stacked, _, left, _ = self.groups
        first = next((label for label in self.out if label not in stacked), None)
        kinds = tuple(
            "s" if label in stacked else "l" if (label in left) == (first in left) else "r"
            for label in self.out
        )
        return kinds, self.labelled_shape, self._moves

    def oriented(self) -> tuple[jax.Array, jax.Array]:
        """Canonical (x, y), exchanged if need be so that the first unstacked axis of the result
        belongs to x.
        """
        stacked, _, left, _ = self.groups
        first = next((label for label in self.out if label not in stacked), None)
        x, y = self.canonical
        return (x, y) if first in left or first is None else (y, x)


class Lookup:
    """Adds y `[B, N, *row]` to rows idx `[B, N]` of a table `[V, *row]`."""

    note = "gather"

    def __init__(self, idx: jax.Array, y: jax.Array, size: int):
        self.idx, self.y, self.size = idx, y, size

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.size, *self.y.shape[2:])

    def _flat_y(self) -> jax.Array:
        return self.y.reshape(*self.y.shape[:2], -1).astype(wide(self.y.dtype))

    def rows(self) -> jax.Array:
        zeros = jnp.zeros(self.shape, self.y.dtype)
        return jax.vmap(lambda i, y: zeros.at[i].add(y, mode="drop"))(self.idx, self.y)

    def squared_norms(self) -> jax.Array:
        y = self._flat_y()
        dots = einsum(y, (0, 1, 3), y, (0, 2, 3), (0, 1, 2), precision=HIGHEST)
        same = self.idx[:, :, None] == self.idx[:, None, :]
        # One row of the table is looked up several times, and what comes back may cancel.
        dots = dots + ROUNDING * jnp.abs(dots)
        return jnp.sum(jnp.where(same, dots, jnp.zeros((), dots.dtype)), axis=(1, 2))

    def gram(self) -> jax.Array:
        y = self._flat_y()

        def row(one: tuple[jax.Array, jax.Array]) -> jax.Array:
            dots = jnp.einsum("nd,bmd->bnm", one[1], y, precision=HIGHEST)
            return jnp.sum(
                jnp.where(one[0][None, :, None] == self.idx[:, None, :], dots, 0.0), axis=(1, 2)
            )

        return lax.map(row, (self.idx, y))

    def weighted_sum(self, weights: jax.Array) -> jax.Array:
        y = weigh_rows(self.y.astype(wide(self.y.dtype)), weights)
        return jnp.zeros(self.shape, y.dtype).at[self.idx].add(y, mode="drop")

    def directional(self, vector: jax.Array) -> jax.Array:
        taken = jnp.take(vector, self.idx, axis=0, mode="fill", fill_value=0)
        return jnp.sum(flat(self.y) * flat(taken), axis=1)

    def cost(self) -> tuple[str, float, float]:
        """(form, multiply-adds for the norms, bytes held for rows)."""
        size, n = self.y.shape[:2]
        return (
            f"gather, {n} rows: Gram of equal rows",
            size * n * n * math.prod(self.y.shape[2:]),
            0,
        )

    def scale(self, factor: jax.Array) -> "Lookup":
        return Lookup(self.idx, self.y * factor.astype(self.y.dtype), self.size)


def join(terms: list[Any]) -> list[Any]:
    """Fewer terms with the same sum: products of one form side by side, lookups side by side, held
    rows added.
    """
    groups: dict[Any, list[Any]] = {}
    for term in _same_left(terms):
        kind = (
            ("product", *term.signature()) if isinstance(term, Product) else (type(term).__name__,)
        )
        groups.setdefault(kind, []).append(term)
    return [_join_one(group) for group in groups.values()]


def _same_left(terms: list[Any]) -> list[Any]:
    """Products that share x, say the three parts of a split projection, are one product with the
    sum of the y.
    """
    found: dict[Any, Any] = {}
    for term in terms:
        key: Any = id(term)
        if type(term) is Product:
            key = (id(term._x), term.x_labels, term.y_labels, term.out, term._moves)
        found[key] = term._with(y=_added(found[key].y, term.y)) if key in found else term
    return list(found.values())


def _added(a: jax.Array, b: jax.Array) -> jax.Array:
    """In their dtype. XLA may keep a sum of bfloat16 in float32 for some of its readers, and norm
    and sum would read other numbers: it is rounded for good.
    """
    if a.dtype == b.dtype == jnp.bfloat16:
        return _rounding.to_bfloat16(a.astype(jnp.float32) + b.astype(jnp.float32))
    return a + b


def _join_one(group: list[Any]) -> Any:
    head = group[0]
    if len(group) == 1:
        return head
    if isinstance(head, Rows):
        return Rows(functools.reduce(jnp.add, [term.data for term in group]), head.note)
    if isinstance(head, Lookup):
        return Lookup(
            jnp.concatenate([term.idx for term in group], axis=1),
            jnp.concatenate([term.y for term in group], axis=1),
            head.size,
        )
    kinds, labelled, moves = head.signature()
    pairs = [term.oriented() for term in group]
    dtypes = [{pair[k].dtype for pair in pairs} for k in (0, 1)]
    of = [found.pop() if len(found) == 1 else wide(*found) for found in dtypes]
    x, y = (jnp.concatenate([pair[k].astype(of[k]) for pair in pairs], axis=2) for k in (0, 1))
    labels = range(2, 2 + len(kinds))
    stacked = [label for label, kind in zip(labels, kinds, strict=True) if kind == "s"]
    left = [label for label, kind in zip(labels, kinds, strict=True) if kind == "l"]
    right = [label for label, kind in zip(labels, kinds, strict=True) if kind == "r"]
    size = dict(zip(labels, labelled, strict=True))

    def spread(z: jax.Array, own: list[int]) -> jax.Array:
        return z.reshape(
            z.shape[0], *[size[s] for s in stacked], z.shape[2], *[size[s] for s in own]
        )

    return Product(
        spread(x, left),
        (0, *stacked, 1, *left),
        spread(y, right),
        (0, *stacked, 1, *right),
        tuple(labels),
        moves,
        note=f"{len(group)} products",
    )


def inner_products(a: Any, b: Any) -> jax.Array | None:
    """<a_i, b_i> `[B]` without more rows, for a lookup on a table `[V, d]` and a product, or rows
    that lie in parts; otherwise None. It is a part of a squared norm, and may cancel the others, so
    it has room for the rounding of its sum.
    """
    if isinstance(a, Lookup):
        a, b = b, a
    if isinstance(a, Rows) and isinstance(b, Lookup) and _meshes.is_spread(a.data):
        picked = jax.vmap(lambda row, i: jnp.take(row, i, axis=0, mode="fill", fill_value=0))(
            a.data, b.idx
        ).astype(wide(a.data.dtype))
        return _rounded_up(picked * b.y.astype(picked.dtype))
    if not (isinstance(a, Product) and isinstance(b, Lookup)):
        return None
    if len(a.out) != 2 or a.groups[0] or a._moves or len(b.shape) != 2:
        return None
    table, row = a.oriented() if a.groups[2] and a.groups[3] else (None, None)
    if table is None or row is None:
        return None

    # The column of the product's table factor at each looked-up row: [B, M, N].
    table, row = table[:, 0].astype(wide(table.dtype)), row[:, 0].astype(wide(row.dtype))
    picked = jax.vmap(lambda t, i: jnp.take(t, i, axis=1, mode="fill", fill_value=0))(table, b.idx)
    dots = jnp.einsum("bmd,bnd->bmn", row, b.y.astype(wide(b.y.dtype)), precision=HIGHEST)
    return _rounded_up(picked * dots)


def _rounded_up(terms: jax.Array) -> jax.Array:
    """`[B]`: their sum for each example, with the room that `gram_squares` gives."""
    return jnp.sum(terms + ROUNDING * jnp.abs(terms), axis=tuple(range(1, terms.ndim)))


def _finite(rows: jax.Array) -> jax.Array:
    """`[B]`. A mean cannot overflow; XLA on a CPU is slower at `all` of predicates."""
    return jnp.isfinite(jnp.sum(flat(rows) * (0.5 / max(1, flat(rows).shape[1])), axis=1))


def _sum_rows(rows: jax.Array, weights: jax.Array) -> jax.Array:
    return jnp.tensordot(weights.astype(rows.dtype), rows, axes=1, precision=HIGHEST)


def _sum_finite_rows(rows: jax.Array, weights: jax.Array) -> jax.Array:
    """NaN where a row that counts is not finite."""
    finite = _finite(rows)
    damage = jnp.where(~finite & (weights != 0), jnp.nan, 0.0).sum().astype(rows.dtype)
    return _sum_rows(keep_rows(rows, finite), weights) + damage


def squares_of_rows(rows: jax.Array) -> jax.Array:
    """`[B]` of `[B, ...]`, in at least float32."""
    if _meshes.is_spread(rows):  # as one axis, those that are cut would be gathered
        return sum_of_squares(rows, *range(1, rows.ndim))
    return sum_of_squares(flat(rows), 1)


def _inverse(order: tuple[int, ...]) -> list[int]:
    return [order.index(axis) for axis in range(len(order))]


def _arrange(z: jax.Array, labels: tuple[int, ...], order: list[int]) -> jax.Array:
    return jnp.transpose(z, [labels.index(label) for label in order])


def gram_squares(of_x: jax.Array, of_y: jax.Array) -> jax.Array:
    """What adds up to a squared norm, from inner products of positions.

    Where steps cancel, rounding must not make a norm smaller than that of the sum which is clipped
    by it.
    """
    return lax.add(_never_less(of_x, of_y), ROUNDING * lax.abs(lax.mul(of_x, of_y)))


def room_for_rounding(of_x: jax.Array, of_y: jax.Array) -> jax.Array:
    """What a squared norm may lose, of the sums of squares of all that meets: norm and sum are
    added up in different orders, and positions may cancel.
    """
    return ROUNDING * of_x * of_y + LOST * (of_x + of_y)


def _never_less(a: jax.Array, b: jax.Array) -> jax.Array:
    """The product of two sums of products, not below the true one where squares of one are below
    float32's range.

    An example may be tiny where its cotangent is huge; a norm of 0 would let its gradient pass any
    bound.
    """
    return lax.mul(a, b) + LOST * lax.add(lax.abs(a), lax.abs(b))


def _dots(
    x: jax.Array, y: jax.Array, other_x: jax.Array, other_y: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Inner products of all pairs of summed positions, `[B, S, N, N]`: of the x, of the y."""
    pairs = ((x, other_x), (y, other_y))
    of_x, of_y = (
        einsum(a, (0, 1, 2, 4), b, (0, 1, 3, 4), (0, 1, 2, 3), precision=HIGHEST) for a, b in pairs
    )
    return of_x, of_y
