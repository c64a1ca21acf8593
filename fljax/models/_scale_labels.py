"""Which scale every number of a network carries: labels, union-find over them, and structural
operations on labels.

A label is a node number. Node 0 is the scale 1; WILD marks an entry that is known to be 0, which
any scale fits. A *branch* node is the scale of one unit as a layer's product leaves it; every
branch node has a *stream* node, the scale with which the unit travels on after its transition.
Streams that meet in a sum or a pool become one.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

ONE, WILD = 0, -1
Labels = np.ndarray


class Nodes:
    """Nodes and which of them are one.

    allow_plain: whether a stream may be tied to the scale 1, which leaves its layer unperturbed on
      the output side.
    """

    def __init__(self, allow_plain: bool) -> None:
        self.allow_plain = allow_plain
        self.parent = [ONE]
        self.stream_of: dict[int, int] = {}
        self.layer_of: dict[int, int] = {}

    def new_units(self, count: int, layer: int) -> np.ndarray:
        """Branch nodes `[count]` of a new layer."""
        first = len(self.parent)
        for unit in range(first, first + 2 * count):
            self.parent.append(unit)
        for unit in range(first, first + count):
            self.stream_of[unit] = unit + count
            self.layer_of[unit] = layer
        return np.arange(first, first + count)

    def find(self, node: int) -> int:
        while self.parent[node] != node:
            self.parent[node] = self.parent[self.parent[node]]
            node = self.parent[node]
        return node

    def resolve(self, labels: Labels) -> Labels:
        """Representatives of labels; WILD stays."""
        return self._each(labels, self.find)

    def is_branch(self, labels: Labels) -> bool:
        return any(node in self.stream_of for node in self._nodes_of(labels))

    def streams(self, labels: Labels) -> Labels:
        """The same numbers after the transition."""
        return self._each(labels, lambda node: self.stream_of.get(node, node))

    def _nodes_of(self, labels: Labels) -> list[int]:
        """The nodes among labels. Nothing is sorted: labels are as many as weights."""
        seen = np.zeros(len(self.parent) + 1, bool)  # WILD is the last place
        seen[labels] = True
        nodes: list[int] = np.flatnonzero(seen[:-1]).tolist()
        return nodes

    def _each(self, labels: Labels, of: Callable[[int], int]) -> Labels:
        table = np.full(len(self.parent) + 1, WILD, np.int64)
        for node in self._nodes_of(labels):
            table[node] = of(node)
        return table[labels]

    def unite(self, first: Labels, second: Labels, reason: str) -> None:
        """Makes labels equal, entry by entry. Raises ValueError(reason) where that would tie one to
        the scale 1.
        """
        pairs = np.stack([first.ravel(), second.ravel()], 1)
        pairs = np.unique(pairs[(pairs >= 0).all(1) & (pairs[:, 0] != pairs[:, 1])], axis=0)
        for a, b in pairs.tolist():
            low, high = sorted((self.find(a), self.find(b)))
            if low == high:
                continue
            if low == ONE and not self.allow_plain:
                raise ValueError(reason)
            self.parent[high] = low


def merged(first: Labels, second: Labels) -> Labels:
    """Labels of entries that are equal but for WILD ones."""
    return np.where(first == WILD, second, first)


def common(labels: Labels, axes: Sequence[int]) -> tuple[Labels, Labels, Labels]:
    """(one label for each index of the kept axes, and two arrays that must be united to make it the
    only one).
    """
    kept = [axis for axis in range(labels.ndim) if axis not in axes]
    shape = tuple(labels.shape[axis] for axis in kept)
    rows = labels.transpose(*kept, *axes).reshape(int(np.prod(shape)), -1)
    first = rows.max(axis=1, initial=WILD)
    return first.reshape(shape), rows, np.broadcast_to(first[:, None], rows.shape)


def _broadcast_in_dim(params: Any, x: np.ndarray) -> np.ndarray:
    shape = [1] * len(params["shape"])
    for axis, place in enumerate(params["broadcast_dimensions"]):
        shape[place] = x.shape[axis]
    return np.broadcast_to(x.reshape(shape), params["shape"])


def _slice(params: Any, x: np.ndarray) -> np.ndarray:
    strides = params["strides"] or (1,) * x.ndim
    starts, limits = params["start_indices"], params["limit_indices"]
    return x[tuple(slice(a, b, s) for a, b, s in zip(starts, limits, strides, strict=True))]


# Operations that move entries about: (parameters of the equation, array) -> array.
STRUCTURAL: dict[str, Callable[[Any, np.ndarray], np.ndarray]] = {
    "broadcast_in_dim": _broadcast_in_dim,
    "convert_element_type": lambda params, x: x,
    "copy": lambda params, x: x,
    "copy_p": lambda params, x: x,
    "expand_dims": lambda params, x: np.expand_dims(x, params["dimensions"]),
    "reduce_precision": lambda params, x: x,
    "reshape": lambda params, x: x.reshape(params["new_sizes"]),
    "rev": lambda params, x: np.flip(x, params["dimensions"]),
    "slice": _slice,
    "squeeze": lambda params, x: np.squeeze(x, params["dimensions"]),
    "transpose": lambda params, x: x.transpose(params["permutation"]),
}


def padded(config: Any, x: np.ndarray, fill: int) -> np.ndarray:
    """`lax.pad` of labels with non-negative padding."""
    shape = [
        low + n + max(n - 1, 0) * inner + high
        for n, (low, high, inner) in zip(x.shape, config, strict=True)
    ]
    result = np.full(shape, fill, np.int64)
    where = tuple(
        slice(low, low + n + max(n - 1, 0) * inner, inner + 1)
        for n, (low, _, inner) in zip(x.shape, config, strict=True)
    )
    result[where] = x
    return result


def compressed(labels: np.ndarray) -> np.ndarray:
    """int32, with length 1 along each axis on which nothing changes: broadcasts to the original."""
    for axis in range(labels.ndim):
        first = np.take(labels, [0], axis) if labels.shape[axis] else labels
        if labels.shape[axis] > 1 and np.array_equal(np.broadcast_to(first, labels.shape), labels):
            labels = first
    return np.ascontiguousarray(labels, dtype=np.int32)
