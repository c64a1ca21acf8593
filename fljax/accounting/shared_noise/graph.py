"""The graph along which clients share noise, checked on the host."""

from typing import Any, NamedTuple

import numpy as np

from fljax_kernels.pairwise import graphs


class PairGraph(NamedTuple):
    """Own noise of every client and pair noise along the edges of a graph; variances per
    coordinate.

    `own_variance`: `[N]`; `edges`: `[E, 2]` integer client numbers; `pair_variance`: `[E]`.
    """

    own_variance: Any
    edges: Any
    pair_variance: Any


def pair_graph(edges: Any, *, num_clients: int, own_variance: Any, pair_variance: Any) -> PairGraph:
    """A checked `PairGraph`, edges sorted with the smaller client first, edges of variance 0 left
    out.

    Args:
      edges: `[E, 2]` client numbers, each pair once, in either order.
      num_clients: N >= 1.
      own_variance: `[]` or `[N]`, >= 0.
      pair_variance: `[]` or `[E]`, >= 0.

    Raises:
      ValueError: a shape or number out of range, a loop, a pair given twice, or a graph that is not
        connected.
    """
    ends = graphs.checked_pairs(edges, num_clients)
    own = _variances("own_variance", own_variance, num_clients)
    pair = _variances("pair_variance", pair_variance, len(ends))
    order = np.lexsort((ends[:, 1], ends[:, 0]))
    ends, pair = ends[order], pair[order]
    ends, pair = ends[pair > 0], pair[pair > 0]
    alone = graphs.unreached(ends, num_clients)
    if alone.size:
        raise ValueError(
            "Expected a connected graph of pairs with pair_variance > 0, "
            f"got no path from client 0 to client {alone[0]}."
        )
    return PairGraph(own, ends, pair)


def from_matrix(own_variance: Any, pair_variance: Any) -> PairGraph:
    """A checked `PairGraph` from `pair_variance` `[N, N]`: both ends of an edge must state the same
    variance.

    Raises:
      ValueError: not symmetric, a diagonal that is not zero, or as `pair_graph`.
    """
    matrix = np.asarray(pair_variance, np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"Expected pair_variance of shape [N, N], got shape {matrix.shape}.")
    uneven = np.argwhere(~(matrix == matrix.T))
    if uneven.size:
        i, j = uneven[0]
        raise ValueError(
            f"Expected equal variances at both ends of an edge, got pair_variance[{i}, "
            f"{j}]={matrix[i, j]} and pair_variance[{j}, {i}]={matrix[j, i]}."
        )
    if np.any(np.diagonal(matrix) != 0):
        raise ValueError(
            f"Expected a zero diagonal of pair_variance, got {np.diagonal(matrix).tolist()}."
        )
    ends = np.argwhere(np.triu(matrix != 0))
    return pair_graph(
        ends,
        num_clients=len(matrix),
        own_variance=own_variance,
        pair_variance=matrix[ends[:, 0], ends[:, 1]],
    )


def _variances(name: str, values: Any, size: int) -> np.ndarray:
    values = np.asarray(values, np.float64)
    if values.shape not in {(), (size,)}:
        raise ValueError(f"Expected {name} of shape [] or [{size}], got shape {values.shape}.")
    bad = values[~(np.isfinite(values) & (values >= 0))]
    if bad.size:
        raise ValueError(f"Expected {name} >= 0 and finite, got {name}={bad.flat[0]!r}.")
    return np.array(np.broadcast_to(values, (size,)))
