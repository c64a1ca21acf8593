"""Least pairwise noise for clients that differ: own sensitivities, own chances to straggle, any
graph.

The noise in the average is linear in the variances and every resistance (C^-1)_ii is convex in
them, so the best variances solve a convex problem. With equal clients the common variances of
`least_noise` are already optimal.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fljax import _validate
from fljax.accounting.shared_noise import exact as view
from fljax.accounting.shared_noise.exact import PairGraph
from fljax_kernels.pairwise import graphs

_MOST_CONSTRAINTS = 20_000


class Design(NamedTuple):
    """Variances and what they cost.

    Attributes:
      graph: the noise; `view.exact_mu` of every honest client is at most the target for all allowed
        colluders.
      expected_variance: of the noise in the average, per coordinate.
      lower_bound: no choice of variances on these edges meets the target with less (interior-point
        duality gap).
    """

    graph: PairGraph
    expected_variance: float
    lower_bound: float


def average_costs(edges: Any, stragglers: Any, probabilities: Any) -> tuple[np.ndarray, np.ndarray]:
    """(own `[N]`, pair `[E]`): expected variance in the average per unit of each variance.

    Args:
      edges: `[E, 2]` pairs of clients, each once, in either order.
      stragglers: `[M, N]` bool, the sets of stragglers that may occur; somebody responds in each.
      probabilities: `[M]`, sum 1.

    Raises:
      ValueError: probabilities are no law, nobody responds in some set, or edges with a loop, a
        double or a client out of range.
    """
    silent, weight = np.asarray(stragglers, bool), np.asarray(probabilities, np.float64)
    if silent.ndim != 2 or weight.shape != silent.shape[:1]:
        raise ValueError(
            f"Expected stragglers [M, N] and probabilities [M], got shapes {silent.shape} and "
            f"{weight.shape}."
        )
    if not (np.all(weight >= 0) and abs(weight.sum() - 1) <= 1e-9):
        raise ValueError(
            f"Expected probabilities >= 0 with sum 1, got probabilities={weight.tolist()}."
        )
    responders = (~silent).sum(1)
    if np.any(responders == 0):
        raise ValueError(
            "Expected a responder in every set of stragglers, got a set with all clients."
        )
    weight = weight / responders**2
    low, high = graphs.checked_pairs(edges, silent.shape[1]).T
    return weight @ ~silent, weight @ (silent[:, low] != silent[:, high])


def heterogeneous(
    edges: Any,
    stragglers: Any,
    probabilities: Any,
    *,
    mu: float,
    sensitivity: Any,
    num_colluders: int = 0,
    tolerance: float = 1e-6,
) -> Design:
    """Variances with the least expected noise in the average such that no honest client exceeds
    `mu` in a round.

    Guarantee: `view.exact_mu` <= `mu` for every client outside every set of `num_colluders`
      colluders.

    Noise that never stays in the average costs nothing: shared by two who always straggle together
    (all of it, where nobody straggles), or a client's own who always does. No variance is best
    then; the design takes a large one.

    Args:
      edges: `[E, 2]`, a connected graph.
      stragglers, probabilities: as in `average_costs`.
      mu: target per round, > 0.
      sensitivity: `[]` or `[N]`, > 0.
      num_colluders: all sets of this size are constraints, so keep N choose C small.
      tolerance: relative gap between cost and lower bound at which to stop.

    Raises:
      ValueError: an argument out of range, or more than 20,000 (client, colluder set) constraints.
    """
    _validate.positive(mu=mu, tolerance=tolerance)
    size = average_costs(edges, stragglers, probabilities)[0].size
    view._colluders_in_range(num_colluders, size)
    delta = np.broadcast_to(np.asarray(sensitivity, np.float64), (size,))
    for value in delta:
        _validate.positive(sensitivity=float(value))
    count = math.comb(size, num_colluders) * (size - num_colluders)
    if count > _MOST_CONSTRAINTS:
        raise ValueError(
            f"Expected at most {_MOST_CONSTRAINTS} constraints, got {count} with "
            f"num_colluders={num_colluders}."
        )
    graph = view.pair_graph(edges, num_clients=size, own_variance=1.0, pair_variance=1.0)
    ends = np.asarray(graph.edges)
    cost = np.concatenate(average_costs(ends, stragglers, probabilities))
    # Work in units of the local-noise variance, so that all variables are around 1.
    unit = float((delta.max() / mu) ** 2)
    budget = (delta.max() / delta) ** 2
    incidence = np.zeros((size, size + len(ends)))
    incidence[np.arange(size), np.arange(size)] = 1.0
    incidence[ends[:, 0], size + np.arange(len(ends))] = 1.0
    incidence[ends[:, 1], size + np.arange(len(ends))] = -1.0
    costly = cost > 0
    sets = [
        network
        for members in itertools.combinations(range(size), num_colluders)
        if (network := _network(incidence, members, ~costly, budget)).budget.size
    ]
    start = np.concatenate([np.full(size, 2.0), np.full(len(ends), 1.0 / size)])
    found, gap = _interior_point(start[costly], cost[costly], sets, tolerance)
    lower = max(float(cost[costly] @ found) - gap, 0.0) * unit
    # Noise that costs nothing has no best variance. A current crosses at most `size` of these on
    # its way to ground: so much leaves resistances within a `tolerance` of what infinitely much
    # would.
    x = np.full(cost.size, size / tolerance)
    x[costly] = found
    # Exactly feasible: resistances scale as 1 / x.
    noise = PairGraph(x[:size], ends, x[size:])
    worst = view.worst_mu(noise, num_colluders=num_colluders, sensitivity=delta)
    x = x * float((worst.max() / mu) ** 2)
    return Design(PairGraph(x[:size], ends, x[size:]), float(cost @ x), lower)


class _Network(NamedTuple):
    """What honest clients' noise is to one set of colluders: resistances of its nodes have to stay
    within `budget`.

    Variances without a cost count as infinite. So clients whose pair noise is free are one node,
    and one whose own noise is free is ground: its upload is hidden whatever the rest. incidence:
    `[nodes, V]` of the variances that cost something, known ones and those within a node 0.
    """

    incidence: np.ndarray
    budget: np.ndarray


def _network(
    incidence: np.ndarray, members: Sequence[int], free: np.ndarray, budget: np.ndarray
) -> _Network:
    size = len(incidence)
    known = np.any(incidence[list(members)] != 0, 0)  # the colluders' own noise and pairs
    ends = [np.flatnonzero(incidence[:, v]) for v in range(size, incidence.shape[1])]
    tied = np.asarray(
        [e for v, e in enumerate(ends, size) if free[v] and not known[v]], np.int64
    ).reshape(-1, 2)
    node = np.arange(size)
    for a, b in tied:
        node[node == node[a]] = node[b]
    honest = np.setdiff1d(np.arange(size), members)
    hidden = {node[client] for client in honest if free[client]}
    nodes = [n for n in np.unique(node[honest]) if n not in hidden]
    merged = (
        np.stack([incidence[node == n].sum(0) for n in nodes])
        if nodes
        else np.zeros((0, incidence.shape[1]))
    )
    least = np.asarray([budget[node == n].min() for n in nodes])
    return _Network(np.where(known, 0.0, merged)[:, ~free], least)


def _inverse(x: np.ndarray, incidence: np.ndarray) -> np.ndarray:
    return np.asarray(np.linalg.inv((incidence * x) @ incidence.T))


def _interior_point(
    x: np.ndarray, cost: np.ndarray, sets: Sequence[_Network], tolerance: float
) -> tuple[np.ndarray, float]:
    """Newton's method on t cost.x - sum log(1 - R_k(x) / budget_k) - sum log x with rising t; (x,
    bound on the gap).
    """
    constraints = x.size + sum(budget.size for _, budget in sets)

    def value(x: np.ndarray, t: float) -> float:
        if np.any(x <= 0):
            return math.inf
        total = t * float(cost @ x) - float(np.log(x).sum())
        for b, budget in sets:
            room = 1 - np.diagonal(_inverse(x, b)) / budget
            if np.any(room <= 0):
                return math.inf
            total -= float(np.log(room).sum())
        return total

    t = constraints / float(cost @ x)
    while True:
        for _ in range(60):
            gradient, hessian = t * cost - 1 / x, np.diag(1 / x**2)
            for b, budget in sets:
                inverse = _inverse(x, b)
                h = b.T @ inverse  # [V, nodes]: b_v^T C^-1 e_i
                room = 1 - np.diagonal(inverse) / budget
                slope = -(h**2) / (budget * room)
                gradient += slope.sum(1)
                bend = 2 * ((h / (budget * room)) @ h.T) * (b.T @ inverse @ b)
                hessian += bend + slope @ slope.T
            # In units of x: own and pair variances may differ by decades.
            move = -x * np.linalg.solve(hessian * x * x[:, None], gradient * x)
            decrement = -float(gradient @ move)
            here, step = value(x, t), 1.0
            if decrement < max(1e-9, 2**-52 * abs(here)):  # a difference that rounding hides
                break
            while step > 1e-12 and not value(x + step * move, t) <= here - 0.1 * step * decrement:
                step /= 2
            if step <= 1e-12:
                break
            x = x + step * move
        gap = constraints / t
        if gap <= tolerance * float(cost @ x):
            # Newton has stopped near, not at, the centre: twice the gap of the centre covers
            # decrements below 1.
            return x, 2 * gap
        t *= 8
