"""The worst case over sets of colluders, for pair noise on sparse graphs.

Trying all sets is beyond reach for most graphs, and the star of `exact.certificate` forgets that
noise travels further than one neighbour. Here is a bound that expansion of the graph makes tight,
and a search that it prunes.

The bound. Let u > 0 be the least own variance, L the Laplacian of all N clients, M = uI + L, and K
the inverse of M on the vectors whose entries sum to 0. Take a set S of C colluders, n = N - C, and
the Laplacian L_S of the graph that is left, connected or not. On the vector of ones the covariance
uI + L_S is u, which gives client i the share 1 / (n u). Any other x, extended by 0 to S, has

    x' (uI + L_S) x = x' M x - sum_{s in S} sum_j p_sj x_j^2,

p_sj the variance of the pair s, j. With X_S = D^(1/2) K D^(1/2), D = diag(sum_{s in S} p_sj), the
inverse on these x is at most that of M - D, whose diagonal is

    K_ii + (K D K)_ii + (K D^(1/2)) X_S (I - X_S)^(-1) (D^(1/2) K)_ii
      <= K_ii + sum_{s in S} q_is / (1 - sum_{s in S} v_s),

q_is = sum_j K_ij^2 p_sj and v_s the largest eigenvalue of sqrt(p_sj) K_jl sqrt(p_sl) over the
neighbours j, l of s, as long as the v_s add up to less than 1. (The eigenvalues of X_S are those of
sum_s K^(1/2) diag(p_s) K^(1/2), and norms add.) Dropping what is beyond 0 on S, and taking u for
every own variance, can only raise the value. On a graph with k neighbours each, v_s is about 1 /
(k - 1), and the bound about 1 / (n u) + 1 / (p (k - C)): what a client really has left.

The weaker form 1 / (n u) + (1 - 1 / n) / (u + lambda_2 - C p) follows from the same line with
x_j^2 in place of K: a removed client lowers the second eigenvalue by at most its largest pair
variance (Fiedler 1973, of vertex connectivity).

Random graphs. Where colluders are chosen before the graph is drawn, and renaming clients does not
change the law of the graph, the number of colluders among the d neighbours of an honest client is
hypergeometric. If each has at most t_j of them, then D is at most diag(r), r_j the t_j strongest
pairs of j, whatever C is, and the inverse on these x is at most that of M - diag(r), as long as
that is positive definite on vectors whose entries sum to 0.

Source: the proofs are above. Bell et al., "Secure Single-Server Aggregation with (Poly)Logarithmic
Overhead" (2020), count honest neighbours in random graphs alike; Sabater, Bellet, Ramon,
arXiv:2006.07218, bound noise that cancels along them.
"""

import heapq
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from fljax import _validate
from fljax.accounting import events
from fljax.accounting.shared_noise import exact as view
from fljax.accounting.shared_noise import least_noise
from fljax.accounting.shared_noise.graph import PairGraph

_MOST_CLIENTS = 3000  # for matrices `[N, N]`; the star alone serves more
_EIGENVALUE_WORK = 3e9  # sum of degree^3 for which every v_s is computed
_SEARCH_WORK = 5e8  # multiplications that the search may spend
_ENUMERATION_WORK = 2e9  # the same, where all sets have to be tried
_LEAST_TRIES = 256  # sets that this work must pay for, else there is no search
_BY_STAR = "ways to ground through one neighbour each"
_EPS = float(np.finfo(np.float64).eps)


class WorstCase(NamedTuple):
    """What the worst allowed colluders and stragglers leave.

    Attributes:
      mu: `[N]`, at least `exact_mu` of each honest client in every view with at most the assumed
        number of colluders.
      exact: some set of colluders reaches the largest of `mu`, but for rounding.
      reason: how it was found.
    """

    mu: np.ndarray
    exact: bool
    reason: str


@view.checks_graph
def worst_case(
    graph: PairGraph, *, num_colluders: int, sensitivity: Any = 1.0, failure_prob: float = 0.0
) -> WorstCase:
    """The largest mu over every view with at most `num_colluders` colluders, or little above it.

    The least of `exact.certificate`, of the bound above, and of a search over colluder sets that
    starts where the bound is largest and stops when nothing is left above what was found, or its
    work is spent.

    Guarantee: as `exact.exact_mu`, for each honest client and all such views at once; rounding only
    raises it. With `failure_prob` above 0 it holds but for that chance, for colluders who are
    chosen before the graph is drawn, from a law that renaming clients does not change.

    Args:
      graph: the noise.
      num_colluders: at most so many clients pool what they know with the server.
      sensitivity: `[]` or `[N]`, as in `exact.exact_mu`.
      failure_prob: in [0, 1): the chance, over the graph, that some honest client has more
        colluding neighbours than is counted on. Add it to delta, once per graph.

    Returns:
      mu +inf where a client may be left without noise. O(N^3), and O(E log E) above 3,000 clients.

    Raises:
      ValueError: `num_colluders` is not in [0, N - 1], or a number out of range.
    """
    size = len(np.asarray(graph.own_variance))
    view._colluders_in_range(num_colluders, size)
    view._in_range(graph, sensitivity)
    _validate.below_one(failure_prob=failure_prob)
    move = np.broadcast_to(np.asarray(sensitivity, np.float64), (size,))
    sure = _against_all(graph, num_colluders, move)
    if failure_prob == 0 or num_colluders == 0:
        return sure
    mu = np.minimum(sure.mu, _against_most(graph, num_colluders, move, failure_prob))
    if not mu.max() < sure.mu.max():
        return WorstCase(mu, sure.exact, sure.reason)
    return WorstCase(mu, False, f"colluders spread by chance, but for {failure_prob:.3g}")


def unit_mu(
    edges: np.ndarray | None,
    *,
    num_clients: int,
    variance_ratio: float,
    num_colluders: int,
    failure_prob: float = 0.0,
) -> float:
    """The worst mu of a round, for sensitivity 1 and own noise of stddev 1.

    Args:
      edges: `[E, 2]`, who shares noise with whom. None: all pairs.
      num_clients: N.
      variance_ratio: variance of a pair's noise / of own noise.
      num_colluders, failure_prob: as in `worst_case`.

    Raises:
      ValueError: a number is out of range.
    """
    _validate.positive_int(num_clients=num_clients)
    _validate.non_negative_int(num_colluders=num_colluders)
    _validate.non_negative(variance_ratio=variance_ratio)
    _validate.below_one(failure_prob=failure_prob)
    if edges is None or variance_ratio == 0:
        seen = max(1, num_clients - num_colluders)
        return float(view.complete_mu(1.0, variance_ratio, num_seen=seen))
    graph = view.pair_graph(
        edges, num_clients=num_clients, own_variance=1.0, pair_variance=variance_ratio
    )
    worst = worst_case(graph, num_colluders=num_colluders, failure_prob=failure_prob)
    return float(np.max(worst.mu))


def or_fails(mechanism: events.Mechanism, failure_prob: float) -> events.Mechanism:
    """`mechanism`, but for a chance that it gives everything away: that much of delta.

    A graph that is drawn once fails once. Charged with every round it also covers rounds that place
    their clients anew.
    """
    return events.Composed((mechanism, events.EpsilonDelta(0.0, failure_prob)))


def _against_all(graph: PairGraph, num_colluders: int, move: np.ndarray) -> WorstCase:
    size = len(move)
    star = np.asarray(view.certificate(graph, num_colluders=num_colluders, sensitivity=move))
    star = star * (1 + 4 * (size + 4) * _EPS)
    if size > _MOST_CLIENTS:
        return WorstCase(star, False, _BY_STAR)
    own, pairs = np.asarray(graph.own_variance, np.float64), _matrix(graph)
    if _complete(own, pairs):
        return WorstCase(star, True, "closed form of the complete graph")
    spread = _spread(own.min(), pairs, num_colluders) if own.min() > 0 else None
    if spread is None or not np.all(spread.left > 0):
        return _all_sets(graph, num_colluders, move, star)
    bound = np.minimum(star, move * np.sqrt(spread.largest()))
    found, reached = _search(own, pairs, num_colluders, move, bound, spread)
    reason = "a search over sets of colluders" if reached else "expansion of the graph"
    return WorstCase(np.minimum(bound, found), reached, reason)


def _against_most(
    graph: PairGraph, num_colluders: int, move: np.ndarray, failure_prob: float
) -> np.ndarray:
    """Bounds on mu `[N]` where no honest client has more colluding neighbours than chance gives."""
    size = len(move)
    low, high = np.asarray(graph.edges, np.int64).reshape(-1, 2).T
    degrees = np.bincount(low, minlength=size) + np.bincount(high, minlength=size)
    honest = {
        degree: least_noise.honest_neighbors(size, degree, num_colluders, failure_prob)
        for degree in np.unique(degrees[degrees > 0]).tolist()
    }
    counts = np.asarray([degree - honest.get(degree, 0) for degree in degrees.tolist()])
    mu = np.full(size, np.inf)
    for count in np.unique(counts):
        star = np.asarray(view.certificate(graph, num_colluders=int(count), sensitivity=move))
        mu = np.where(counts == count, star * (1 + 4 * (size + 4) * _EPS), mu)
    own = float(np.min(np.asarray(graph.own_variance, np.float64)))
    if size > _MOST_CLIENTS or not own > 0:
        return mu
    pairs = _matrix(graph)
    strongest = np.cumsum(-np.sort(-pairs, axis=1), axis=1)
    taken = np.where(counts > 0, strongest[np.arange(size), np.maximum(counts - 1, 0)], 0.0)
    taken = taken * (1 + size * _EPS)
    degree = pairs.sum(1)
    lift = max(float(degree.mean()), own) / size
    matrix = np.diag(own + degree - taken) - pairs + lift
    least = np.linalg.eigvalsh(matrix)[0]
    if not least > 32 * size * _EPS * np.linalg.norm(matrix, np.inf):
        return mu
    inverse, error = _inverse(matrix)
    # On vectors whose entries sum to 0: the ones are projected out.
    rows, total = inverse.sum(1), inverse.sum()
    along = np.maximum(np.abs(rows) - 2 * error, 0.0) ** 2 / (total + 2 * size * error)
    left = 1 / ((size - num_colluders) * own) + np.diagonal(inverse) + 2 * error - along
    return np.minimum(mu, move * np.sqrt(left * (1 + 16 * _EPS)))


def _matrix(graph: PairGraph) -> np.ndarray:
    size = len(np.asarray(graph.own_variance))
    pairs = np.zeros((size, size))
    low, high = np.asarray(graph.edges, np.int64).reshape(-1, 2).T
    pairs[low, high] = pairs[high, low] = np.asarray(graph.pair_variance, np.float64)
    return pairs


def _complete(own: np.ndarray, pairs: np.ndarray) -> bool:
    between = pairs[~np.eye(len(pairs), dtype=bool)]
    return bool(np.all(own == own[0]) and np.all(between == between[:1]))


def _all_sets(
    graph: PairGraph, num_colluders: int, move: np.ndarray, star: np.ndarray
) -> WorstCase:
    """Where expansion shows nothing: every set, if there are few enough."""
    size = len(star)
    sets = math.comb(size, num_colluders)
    if sets > view._MOST_SETS or sets * size**3 > _ENUMERATION_WORK:
        return WorstCase(star, False, _BY_STAR)
    chosen = view._colluder_sets(size, range(num_colluders, num_colluders + 1))
    mu = np.asarray(view._largest(graph, chosen, move)) * (1 + size * (size + 4) * _EPS)
    return WorstCase(np.minimum(mu, star), True, f"all {sets} sets of colluders")


class _Spread(NamedTuple):
    """The bound of the module, by client and colluder: resistance <= base + sum reach / left."""

    base: np.ndarray  # [N]
    reach: np.ndarray  # [N, N], client by colluder; -1 on the diagonal
    left: np.ndarray  # [N], 1 less the largest v_s of others
    most: int

    def largest(self) -> np.ndarray:
        """The bound `[N]` for the worst set of each client."""
        reach = -np.sort(-self.reach, axis=1)[:, : self.most]
        return np.asarray(self.base + reach.sum(1) / self.left) * (1 + 4 * len(self.base) * _EPS)


def _spread(own: float, pairs: np.ndarray, num_colluders: int) -> _Spread:
    size = len(pairs)
    degree = pairs.sum(1)
    # A multiple of the ones moves no vector that sums to 0, and makes M well conditioned.
    lift = max(float(degree.mean()), own) / size
    matrix = np.diag(own + degree) - pairs + lift
    inverse, error = _inverse(matrix)
    spread = inverse - 1 / (size * (own + lift * size))
    if not np.isfinite(error):
        return _Spread(np.zeros(size), pairs, np.full(size, -np.inf), num_colluders)
    weight = _weights(spread, error, pairs)
    reach = (np.abs(spread) + error) ** 2 @ pairs * (1 + 4 * (size + 4) * _EPS)
    np.fill_diagonal(reach, -1.0)
    order = np.argsort(-weight)
    top = weight[order[:num_colluders]].sum()
    others = np.full(size, top)
    following = weight[order[num_colluders]] if num_colluders < size else 0.0
    others[order[:num_colluders]] += following - weight[order[:num_colluders]]
    honest = size - num_colluders
    base = 1 / (honest * own) + np.diagonal(spread) + error
    return _Spread(base, reach, 1 - others - size * _EPS, num_colluders)


def _inverse(matrix: np.ndarray) -> tuple[np.ndarray, float]:
    """(inverse, a proved bound on its error in the norms 1, 2 and infinity): by its residual.

    Rounding of the residual, of the sums on the diagonal of `matrix` and of what is subtracted from
    the inverse afterwards is included.
    """
    size = len(matrix)
    inverse = np.linalg.inv(matrix)
    inverse = (inverse + inverse.T) / 2
    norm = float(np.linalg.norm(inverse, np.inf))
    residual = float(np.linalg.norm(np.eye(size) - matrix @ inverse, np.inf))
    residual += 4 * (size + 4) * _EPS * float(np.linalg.norm(matrix, np.inf)) * norm
    error = norm * residual / (1 - residual) if residual < 1 else np.inf
    return inverse, error + 4 * size * _EPS * norm


def _weights(spread: np.ndarray, error: float, pairs: np.ndarray) -> np.ndarray:
    """v_s `[N]`, or a little more."""
    size = len(pairs)
    neighbors = [np.flatnonzero(row) for row in pairs]
    strongest = pairs.max(1)
    work = sum(float(len(near)) ** 3 for near in neighbors)
    top = np.linalg.eigvalsh(spread)[-1] if work > _EIGENVALUE_WORK else np.inf
    weight = np.zeros(size)
    for s, near in enumerate(neighbors):
        if not near.size:
            continue
        root = np.sqrt(pairs[s, near])
        block = root[:, None] * spread[np.ix_(near, near)] * root
        rows = np.abs(block).sum(1).max()
        largest = min(rows, strongest[s] * top)
        if work <= _EIGENVALUE_WORK:
            largest = min(largest, float(np.linalg.eigvalsh(block)[-1]))
        # Backward errors of eigenvalues are a few units of the norm; rows bound the norm.
        weight[s] = largest + strongest[s] * error * near.size + 16 * size * _EPS * rows
    return weight


def _search(
    own: np.ndarray,
    pairs: np.ndarray,
    num_colluders: int,
    move: np.ndarray,
    bound: np.ndarray,
    spread: _Spread,
) -> tuple[float, bool]:
    """(mu, reached): no client exceeds mu under any set; reached where some set meets it.

    Pairs of a client and a set, the largest bound first, are computed exactly until no bound is
    above what was found. No set without neighbours of neighbours comes first, so few are.
    """
    size, honest = len(own), len(own) - num_colluders
    rest = int(_SEARCH_WORK / (honest**3 / 3))
    if rest < _LEAST_TRIES:
        return float(bound.max()), False
    rounding = 1 + honest * (size + 4) * _EPS
    batch = max(1, min(64, int(4e6 / size**2)))
    best, beyond = 0.0, 0.0  # the largest value found; the largest bound not looked behind
    pending: list[tuple[int, tuple[int, ...]]] = []
    for mu, client, chosen in _largest_first(move, bound, spread):
        if mu <= best or rest <= 0:
            beyond = mu
            break
        pending.append((client, chosen))
        if len(pending) == batch:
            best = max(best, _exact(own, pairs, move, pending) * rounding)
            rest, pending = rest - batch, []
    if pending:
        best = max(best, _exact(own, pairs, move, pending) * rounding)
    return max(best, beyond), bool(best >= beyond)


def _largest_first(
    move: np.ndarray, bound: np.ndarray, spread: _Spread
) -> Iterator[tuple[float, int, tuple[int, ...]]]:
    """(bound on mu, client, colluders) of all sets of all clients, falling."""
    size, most = len(move), spread.most
    order = np.argsort(-spread.reach, axis=1)[:, : size - 1]
    rounding = 1 + 4 * size * _EPS

    def entry(client: int, places: tuple[int, ...]) -> tuple[float, int, tuple[int, ...]]:
        total = spread.reach[client, order[client, list(places)]].sum() if places else 0.0
        resistance = (spread.base[client] + total / spread.left[client]) * rounding
        return -min(bound[client], move[client] * math.sqrt(resistance)), client, places

    heap = [entry(client, tuple(range(most))) for client in range(size)]
    heapq.heapify(heap)
    met = {(client, places) for _, client, places in heap}
    while heap:
        negative, client, places = heapq.heappop(heap)
        yield -negative, client, tuple(int(order[client, place]) for place in places)
        for at, place in enumerate(places):
            end = places[at + 1] if at + 1 < most else size - 1
            if place + 1 < end:
                after = (*places[:at], place + 1, *places[at + 1 :])
                if (client, after) not in met:
                    met.add((client, after))
                    heapq.heappush(heap, entry(client, after))


def _exact(
    own: np.ndarray,
    pairs: np.ndarray,
    move: np.ndarray,
    cases: list[tuple[int, tuple[int, ...]]],
) -> float:
    """The largest mu of these clients under these sets, by the star-mesh rule: nothing cancels."""
    size = len(own)
    kept = np.stack(
        [
            np.append(np.setdiff1d(np.arange(size), (client, *chosen)), client)
            for client, chosen in cases
        ]
    )
    ground = own[kept]
    between = pairs[kept[:, :, None], kept[:, None, :]]
    for _ in range(kept.shape[1] - 1):
        row = between[:, 0, 1:]
        ratio = row / (ground[:, :1] + row.sum(1, keepdims=True))
        ground = ground[:, 1:] + ratio * ground[:, :1]
        between = between[:, 1:, 1:] + row[:, :, None] * ratio[:, None, :]
    # What the rule leaves on the diagonal is a loop and never read: `row` starts beyond it.
    clients = [client for client, _ in cases]
    return float(np.max(move[clients] / np.sqrt(ground[:, 0])))
