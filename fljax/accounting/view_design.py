"""Least pairwise noise for clients that differ: own sensitivities, own chances to straggle, any graph.

The noise in the average is linear in the variances and every resistance (C^-1)_ii is convex in them, so the best
variances solve a convex problem. With equal clients the common variances of `view_calibration` are already optimal.
"""

import itertools
import math
from typing import Any, NamedTuple

import numpy as np

from fljax import _validate
from fljax.accounting import view
from fljax.accounting.view import PairGraph
from fljax_kernels.pair_noise import graphs

_MOST_CONSTRAINTS = 20_000


class Design(NamedTuple):
    """Variances and what they cost.

    Attributes:
      graph: the noise; `view.exact_mu` of every honest client is at most the target for all allowed colluders.
      expected_variance: of the noise in the average, per coordinate.
      lower_bound: no choice of variances on these edges meets the target with less (interior-point duality gap).
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
      ValueError: probabilities are no law, nobody responds in some set, or edges with a loop, a double or a client out
        of range.
    """
    silent, weight = np.asarray(stragglers, bool), np.asarray(probabilities, np.float64)
    if silent.ndim != 2 or weight.shape != silent.shape[:1]:
        raise ValueError(
            f"Expected stragglers [M, N] and probabilities [M], got shapes {silent.shape} and {weight.shape}."
        )
    if not (np.all(weight >= 0) and abs(weight.sum() - 1) <= 1e-9):
        raise ValueError(f"Expected probabilities >= 0 with sum 1, got probabilities={weight.tolist()}.")
    responders = (~silent).sum(1)
    if np.any(responders == 0):
        raise ValueError("Expected a responder in every set of stragglers, got a set with all clients.")
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
    """Variances with the least expected noise in the average such that no honest client exceeds `mu` in a round.

    Guarantee: `view.exact_mu` <= `mu` for every client outside every set of `num_colluders` colluders.

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
    own_cost, pair_cost = average_costs(edges, stragglers, probabilities)
    size = own_cost.size
    view._colluders_in_range(num_colluders, size)
    delta = np.broadcast_to(np.asarray(sensitivity, np.float64), (size,))
    for value in delta:
        _validate.positive(sensitivity=float(value))
    count = math.comb(size, num_colluders) * (size - num_colluders)
    if count > _MOST_CONSTRAINTS:
        raise ValueError(
            f"Expected at most {_MOST_CONSTRAINTS} constraints, got {count} with num_colluders={num_colluders}."
        )
    graph = view.pair_graph(edges, num_clients=size, own_variance=1.0, pair_variance=1.0)
    ends = np.asarray(graph.edges)
    own_cost, pair_cost = average_costs(ends, stragglers, probabilities)
    # Work in units of the local-noise variance, so that all variables are around 1.
    unit = float((delta.max() / mu) ** 2)
    budget = (delta.max() / delta) ** 2
    cost = np.concatenate([own_cost, pair_cost])
    incidence = np.zeros((size, size + len(ends)))
    incidence[np.arange(size), np.arange(size)] = 1.0
    incidence[ends[:, 0], size + np.arange(len(ends))] = 1.0
    incidence[ends[:, 1], size + np.arange(len(ends))] = -1.0
    sets = []
    for members in itertools.combinations(range(size), num_colluders):
        honest = np.setdiff1d(np.arange(size), members)
        known = np.any(incidence[list(members)] != 0, 0)  # the colluders' own noise and pairs
        sets.append((honest, np.flatnonzero(~known)))
    start = np.concatenate([np.full(size, 2.0), np.full(len(ends), 1.0 / size)])
    x, gap = _interior_point(start, cost, incidence, sets, budget, tolerance)
    # Exactly feasible: resistances scale as 1 / x.
    x = x * max(_excess(x, incidence, sets, budget)) * unit
    lower = float(cost @ x) - gap * unit
    noise = PairGraph(x[:size], ends, x[size:])
    return Design(noise, float(cost @ x), lower)


def _inverse(x: np.ndarray, incidence: np.ndarray, honest: np.ndarray, free: np.ndarray) -> tuple[Any, Any]:
    b = incidence[np.ix_(honest, free)]
    return np.linalg.inv((b * x[free]) @ b.T), b


def _excess(x: np.ndarray, incidence: np.ndarray, sets: Any, budget: np.ndarray) -> list[float]:
    """Largest resistance over budget of each colluder set."""
    return [float((np.diagonal(_inverse(x, incidence, h, f)[0]) / budget[h]).max()) for h, f in sets]


def _interior_point(
    x: np.ndarray, cost: np.ndarray, incidence: np.ndarray, sets: Any, budget: np.ndarray, tolerance: float
) -> tuple[np.ndarray, float]:
    """Newton's method on t cost.x - sum log(1 - R_k(x) / budget_k) - sum log x with rising t; (x, bound on the gap)."""
    constraints = x.size + sum(len(h) for h, _ in sets)

    def value(x: np.ndarray, t: float) -> float:
        if np.any(x <= 0):
            return math.inf
        total = t * float(cost @ x) - float(np.log(x).sum())
        for honest, free in sets:
            room = 1 - np.diagonal(_inverse(x, incidence, honest, free)[0]) / budget[honest]
            if np.any(room <= 0):
                return math.inf
            total -= float(np.log(room).sum())
        return total

    t = constraints / float(cost @ x)
    while True:
        for _ in range(60):
            gradient, hessian = t * cost - 1 / x, np.diag(1 / x**2)
            for honest, free in sets:
                inverse, b = _inverse(x, incidence, honest, free)
                h = b.T @ inverse  # [free, honest]: b_v^T C^-1 e_i
                room = 1 - np.diagonal(inverse) / budget[honest]
                slope = -(h**2) / (budget[honest] * room)
                gradient[free] += slope.sum(1)
                bend = 2 * ((h / (budget[honest] * room)) @ h.T) * (b.T @ inverse @ b)
                hessian[np.ix_(free, free)] += bend + slope @ slope.T
            # In units of x: own and pair variances may differ by decades.
            move = -x * np.linalg.solve(hessian * x * x[:, None], gradient * x)
            decrement = -float(gradient @ move)
            if decrement < 1e-9:
                break
            here, step = value(x, t), 1.0
            while step > 1e-12 and not value(x + step * move, t) <= here - 0.1 * step * decrement:
                step /= 2
            if step <= 1e-12:
                break
            x = x + step * move
        gap = constraints / t
        if gap <= tolerance * float(cost @ x):
            # Newton has stopped near, not at, the centre: twice the gap of the centre covers decrements below 1.
            return x, 2 * gap
        t *= 8
