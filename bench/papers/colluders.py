"""What pair noise on sparse graphs is charged for the worst colluders, and what is true.

    python -m bench.papers.colluders     # minutes; the table of docs/explain/view.md

One round, own noise of variance 1, sensitivity 1. `star` counts ways to ground through one
neighbour each; `spectral` is the second eigenvalue less the strongest pair for each colluder;
`certified` is what schemes are charged; `reached` is the most that some set of colluders gives: the
worst of all sets where `exact`, else of neighbours of clients with few neighbours.
"""

import math
from typing import Any

import numpy as np

from bench import _harness, _tables
from fljax.accounting.shared_noise import colluders, least_noise
from fljax.accounting.shared_noise import exact as view
from fljax_kernels.pairwise import graphs

# Graph, clients, degree (picked for n-out), colluders, pair variance; None: least noise in the
# average where up to a tenth straggle.
SETTINGS: tuple[tuple[str, int, int, int, float | None], ...] = (
    ("k-regular", 20, 6, 2, None),
    ("k-regular", 40, 8, 2, None),
    ("n-out", 20, 5, 2, 100.0),
    ("n-out", 100, 5, 1, 100.0),
    ("n-out", 100, 5, 2, 100.0),
    ("n-out", 100, 10, 4, 100.0),
    ("n-out", 500, 12, 5, 100.0),
    ("k-regular", 200, 30, 10, None),
    ("k-regular", 1000, 40, 15, None),
)
_CLIENTS_TRIED = 12


def _laplacian(graph: view.PairGraph) -> np.ndarray:
    size = len(graph.own_variance)
    matrix = np.zeros((size, size))
    low, high = np.asarray(graph.edges).T
    matrix[low, high] = matrix[high, low] = -np.asarray(graph.pair_variance)
    np.fill_diagonal(matrix, -matrix.sum(1))
    return matrix


def _reached(laplacian: np.ndarray, most: int, rng: np.random.Generator) -> float:
    """Mu of some client when `most` of its neighbours collude: a lower bound on the worst."""
    size, found = len(laplacian), 0.0
    degrees = (laplacian < 0).sum(1)
    for client in np.argsort(degrees, kind="stable")[:_CLIENTS_TRIED]:
        gone = rng.permutation(np.flatnonzero(laplacian[client] < 0))[:most]
        kept = np.setdiff1d(np.arange(size), gone)
        between = -laplacian[np.ix_(kept, kept)]
        np.fill_diagonal(between, 0.0)
        covariance = np.diag(1 + between.sum(1)) - between
        unit = (kept == client).astype(float)
        found = max(found, math.sqrt(np.linalg.solve(covariance, unit) @ unit))
    return found


def row(kind: str, size: int, degree: int, most: int, pair: float | None) -> dict[str, Any]:
    """One line of the table, with the noise in the average before and after for regular graphs."""
    rng = np.random.default_rng(0)
    make = graphs.k_regular if kind == "k-regular" else graphs.random_out
    edges = make(size, degree, rng)
    found: dict[str, Any] = {"graph": kind, "clients": size, "degree": degree, "colluders": most}
    law = np.full(size // 10 + 1, 1 / (size // 10 + 1))
    moments = least_noise.straggler_moments(size, law)
    straggling = moments.straggling * degree / (size - 1)
    before = float(least_noise.best_ratio(max(degree - most, 1) + 1, straggling))
    after = float(least_noise.best_ratio(size - most, straggling, ways=max(degree - most, 1)))

    def noise(variance: float) -> view.PairGraph:
        return view.pair_graph(edges, num_clients=size, own_variance=1.0, pair_variance=variance)

    graph = noise(pair or after)
    star = float(np.max(view.certificate(graph, num_colluders=most)))
    laplacian = _laplacian(graph)
    gap = max(0.0, np.linalg.eigvalsh(laplacian)[1] - most * (pair or after))
    honest = size - most
    worst = colluders.worst_case(graph, num_colluders=most)
    certified = float(worst.mu.max())
    found |= {
        "pair_variance": pair or after,
        "star": star,
        "spectral": math.sqrt(1 / honest + (1 - 1 / honest) / (1 + gap)),
        "certified": certified,
        "exact": worst.exact,
        "reached": certified if worst.exact else _reached(laplacian, most, rng),
        "variance_before_over_after": (star / certified) ** 2,
    }
    if pair is None:  # noise in the average for the same mu: the old ratio and charge, and the new
        old = float(np.max(view.certificate(noise(before), num_colluders=most)))
        found["average_before"] = moments.inverse * (1 + straggling * before) * old**2
        found["average_after"] = moments.inverse * (1 + straggling * after) * certified**2
    return found


def by_chance() -> dict[str, Any]:
    """A tenth of a large cohort colludes, settled before the graph is drawn."""
    size, degree, most, failure = 1000, 60, 100, 1e-9
    edges = graphs.k_regular(size, degree, np.random.default_rng(0))
    graph = view.pair_graph(edges, num_clients=size, own_variance=1.0, pair_variance=13.0)
    worst = colluders.worst_case(graph, num_colluders=most, failure_prob=failure)
    rng = np.random.default_rng(1)
    laplacian, reached = _laplacian(graph), 0.0
    for _ in range(4):
        kept = np.sort(rng.permutation(size)[most:])
        between = -laplacian[np.ix_(kept, kept)]
        np.fill_diagonal(between, 0.0)
        inverse = np.linalg.inv(np.diag(1 + between.sum(1)) - between)
        reached = max(reached, math.sqrt(np.diagonal(inverse).max()))
    return {
        "graph": "k-regular, drawn after",
        "clients": size,
        "degree": degree,
        "colluders": most,
        "failure_prob": failure,
        "pair_variance": 13.0,
        "star": float(np.max(view.certificate(graph, num_colluders=most))),
        "spectral": None,
        "certified": float(worst.mu.max()),
        "exact": False,
        "reached": reached,
        "variance_before_over_after": 1 / float(worst.mu.max()) ** 2,
    }


def table(rows: _tables.Rows) -> str:
    """What the worst colluders are charged, and what some reach."""
    body = []
    for found in rows:
        spectral = found["spectral"]
        body.append(
            [
                f"{found['graph']} {found['clients']}, {found['degree']}",
                str(found["colluders"]),
                _tables.up(found["star"]),
                "-" if spectral is None else _tables.up(spectral),
                _tables.up(found["certified"]),
                "all sets" if found["exact"] else f"{found['reached']:.4f}",
                f"{found['variance_before_over_after']:.1f}",
            ]
        )
    head = ["graph", "colluders", "star", "spectral", "certified", "reached", "variance saved"]
    return _tables.markdown(head, body)


def main() -> None:
    """Prints the table and writes its rows."""
    rows = [*(row(*setting) for setting in SETTINGS), by_chance()]
    print(table(rows))
    _harness.write("colluders", rows, note="arithmetic, no timing")


if __name__ == "__main__":
    main()
