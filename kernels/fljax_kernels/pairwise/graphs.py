"""Who shares noise with whom: edge lists `[E, 2]` int32, smaller client first, sorted. Host
functions on NumPy.
"""

from typing import Any

import numpy as np

_TRIES = 100


def complete(num_clients: int) -> np.ndarray:
    """Every pair once: E = N (N - 1) / 2."""
    _at_least("num_clients", num_clients, 1)
    return np.stack(np.triu_indices(num_clients, 1), axis=1).astype(np.int32)


def circulant(num_clients: int, degree: int) -> np.ndarray:
    """Clients on a ring, each tied to its `degree` nearest; an odd degree adds the opposite client.

    Raises:
      ValueError: `degree` is not in [1, N - 1], or no such graph exists (N and degree both odd).
    """
    _check_degree(num_clients, degree)
    steps = [*range(1, degree // 2 + 1), *([num_clients // 2] if degree % 2 else [])]
    start = np.arange(num_clients)
    pairs = np.concatenate(
        [np.stack([start, (start + step) % num_clients], axis=1) for step in steps]
    )
    return _sorted(np.unique(np.sort(pairs, axis=1), axis=0))


def k_regular(num_clients: int, degree: int, rng: np.random.Generator) -> np.ndarray:
    """A random connected graph in which every client has `degree` neighbours.

    The neighbours of each client are a uniform subset of the others. Made from a ring by random
    exchanges of ends, which keep degrees, then a random renaming of clients.

    Raises:
      ValueError: `degree` is not in [1, N - 1], or no such connected graph exists (N and degree
        both odd; degree 1 with more than two clients).
    """
    _check_degree(num_clients, degree)
    if degree == 1 and num_clients > 2:
        raise ValueError(
            f"Expected degree >= 2 for a connected graph of {num_clients} clients, got degree=1."
        )
    for _ in range(_TRIES):
        edges = _exchanged(circulant(num_clients, degree), rng)
        if not unreached(edges, num_clients).size:
            return _sorted(np.sort(rng.permutation(num_clients)[edges], axis=1))
    raise ValueError(
        f"Expected degree to give a connected graph of {num_clients} clients, got degree={degree}."
    )


def random_out(num_clients: int, out_degree: int, rng: np.random.Generator) -> np.ndarray:
    """Each client picks `out_degree` others at random; a pair that picked each other is one edge.

    Raises:
      ValueError: `out_degree` is not in [1, N - 1], or 100 graphs in a row were not connected.
    """
    _at_least("num_clients", num_clients, 2)
    _in_range("out_degree", out_degree, num_clients)
    for _ in range(_TRIES):
        order = rng.random((num_clients, num_clients - 1)).argsort(axis=1)[:, :out_degree]
        own = np.arange(num_clients)[:, None]
        picked = order + (order >= own)
        pairs = np.stack([np.broadcast_to(own, picked.shape).ravel(), picked.ravel()], axis=1)
        edges = _sorted(np.unique(np.sort(pairs, axis=1), axis=0))
        if not unreached(edges, num_clients).size:
            return edges
    raise ValueError(
        f"Expected out_degree to connect {num_clients} clients, got out_degree={out_degree}."
    )


def from_pairs(pairs: Any, num_clients: int) -> np.ndarray:
    """A user's own graph, checked and sorted: pairs `[E, 2]` in any order, each once.

    Raises:
      ValueError: as `checked_pairs`, or a graph that is not connected: noise of a part cancels in
        that part, which is then a smaller graph of its own.
    """
    edges = _sorted(checked_pairs(pairs, num_clients))
    alone = unreached(edges, num_clients)
    if alone.size:
        raise ValueError(
            f"Expected edges of a connected graph, got no path from client 0 to client {alone[0]}."
        )
    return edges


def checked_pairs(pairs: Any, num_clients: int) -> np.ndarray:
    """Pairs `[E, 2]` of clients, connected or not, in the caller's order with the smaller client
    first.

    The one check of who shares noise with whom: a pair that counts twice would claim noise that
    nobody adds.

    Raises:
      ValueError: a wrong shape or client number, a client paired with itself, or a pair given
        twice, in either order.
    """
    _at_least("num_clients", num_clients, 1)
    found = np.asarray(pairs)
    found = np.zeros((0, 2), np.int64) if found.size == 0 else found
    if found.ndim != 2 or found.shape[1] != 2 or not np.issubdtype(found.dtype, np.integer):
        raise ValueError(
            f"Expected edges to be integers [E, 2], got {found.dtype} of shape {found.shape}."
        )
    if found.size and not (found.min() >= 0 and found.max() < num_clients):
        raise ValueError(
            f"Expected edges between clients 0..{num_clients - 1}, got "
            f"{found.min()}..{found.max()}."
        )
    loops = np.flatnonzero(found[:, 0] == found[:, 1])
    if loops.size:
        raise ValueError(
            f"Expected edges between two clients, got edges[{loops[0]}]={found[loops[0]].tolist()}."
        )
    edges = np.sort(found.astype(np.int64), axis=1)
    rank = np.sort(edges[:, 0] * num_clients + edges[:, 1])
    twice = np.flatnonzero(rank[1:] == rank[:-1])
    if twice.size:
        pair = [int(end) for end in divmod(rank[twice[0]], num_clients)]
        raise ValueError(f"Expected every pair once in edges, got {pair} twice.")
    return edges


def check_sorted(edges: Any, num_clients: int) -> None:
    """Raises ValueError unless edges are what the functions above return, connected or not."""
    pairs = checked_pairs(edges, num_clients)
    rank = pairs[:, 0] * num_clients + pairs[:, 1]
    if np.any(pairs != np.asarray(edges).reshape(-1, 2)) or np.any(rank[1:] < rank[:-1]):
        raise ValueError(
            "Expected edges sorted, smaller client first (graphs.from_pairs sorts), got another "
            "order."
        )


def unreached(edges: np.ndarray, num_clients: int) -> np.ndarray:
    """Clients without a path from client 0."""
    label = np.arange(num_clients)
    while True:
        before = label.copy()
        for a, b in ((0, 1), (1, 0)):
            np.minimum.at(label, edges[:, a], label[edges[:, b]])
        label = label[label]
        if np.array_equal(before, label):
            return np.flatnonzero(label)


def _exchanged(edges: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Edges (a, b), (c, d) become (a, d), (c, b), ten times per edge, where that makes neither loop
    nor double.
    """
    ends = [tuple(map(int, edge)) for edge in edges]
    present = set(ends)
    for first, second, flip in rng.integers(
        0, [[len(ends), len(ends), 2]], (10 * len(ends), 3)
    ).tolist():
        (a, b), (c, d) = ends[first], ends[second]
        if flip:
            c, d = d, c
        new = (min(a, d), max(a, d)), (min(c, b), max(c, b))
        if a == d or c == b or new[0] == new[1] or new[0] in present or new[1] in present:
            continue
        present -= {ends[first], ends[second]}
        present |= set(new)
        ends[first], ends[second] = new
    return np.asarray(ends, np.int32).reshape(-1, 2)


def _sorted(edges: np.ndarray) -> np.ndarray:
    return edges[np.lexsort((edges[:, 1], edges[:, 0]))].astype(np.int32)


def _check_degree(num_clients: int, degree: int) -> None:
    _at_least("num_clients", num_clients, 2)
    _in_range("degree", degree, num_clients)
    if num_clients % 2 and degree % 2:
        raise ValueError(f"Expected an even degree for {num_clients} clients, got degree={degree}.")


def _in_range(name: str, value: int, num_clients: int) -> None:
    _at_least(name, value, 1)
    if not value < num_clients:
        raise ValueError(f"Expected {name} < num_clients={num_clients}, got {name}={value!r}.")


def _at_least(name: str, value: Any, least: int) -> None:
    integer = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not (integer and value >= least):
        raise ValueError(f"Expected {name} to be an integer >= {least}, got {name}={value!r}.")
