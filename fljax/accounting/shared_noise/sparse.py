"""`view.exact_mu` for graphs too large for a dense solve: conjugate gradients with an error bound
that is proved.

The resistance of client i is q = e_i^T C^-1 e_i. For any x with residual r = e_i - C x it is x_i +
x.r + r^T C^-1 r: the first two terms are a lower bound and |r|^2 |C^-1| an upper bound on the rest.
As C^-1 >= 0 entrywise, any v > 0 with C v >= c > 0 proves |C^-1| <= max(v) / c.
"""

from typing import Any

import numpy as np
from scipy import sparse

from fljax import _validate
from fljax.accounting.shared_noise import exact as view
from fljax.accounting.shared_noise.exact import PairGraph

_COLUMNS = 64  # clients solved for at once: bounds memory, keeps the work in cache
_ITERATIONS = 5000
_ROUNDING = 1e-12  # relative; 64-bit sums over one row and one vector


@view.checks_graph
def mu_interval(
    graph: PairGraph,
    clients: Any = None,
    *,
    seen: Any = None,
    colluders: Any = None,
    sensitivity: Any = 1.0,
    tolerance: float = 1e-9,
) -> tuple[np.ndarray, np.ndarray]:
    """Proved lower and upper bounds on `view.exact_mu` of some clients of a sparse graph.

    Args:
      graph: the noise, from `view.pair_graph`.
      clients: `[M]` client numbers. None: all.
      seen, colluders: `[N]` bool, as in `view.covariance`.
      sensitivity: `[]` or `[N]`.
      tolerance: relative width in mu at which a client is done.

    Returns:
      (lower `[M]`, upper `[M]`); both 0 for clients not seen, NaN for colluders, +inf where nothing
      hides the upload. Memory O(E + 64 N); each client costs a few dozen sparse products on
      expanders, up to N on a ring. Where 5000 products are not enough the interval is wider than
      asked, and still true.

    Raises:
      ValueError: clients or pairs out of range, a loop, a pair given twice, or `tolerance` <= 0.
    """
    _validate.positive(tolerance=tolerance)
    view._in_range(graph, sensitivity)
    own, pair = (
        np.asarray(graph.own_variance, np.float64),
        np.asarray(graph.pair_variance, np.float64),
    )
    size = own.size
    clients = np.arange(size) if clients is None else np.asarray(clients)
    if clients.size and not (clients.min() >= 0 and clients.max() < size):
        raise ValueError(
            f"Expected clients in 0..{size - 1}, got {clients.min()}..{clients.max()}."
        )
    seen = np.ones(size, bool) if seen is None else np.asarray(seen, bool)
    colludes = np.zeros(size, bool) if colluders is None else np.asarray(colluders, bool)
    active = seen & ~colludes
    low, high = np.asarray(graph.edges, np.int64).reshape(-1, 2).T
    weights = np.where(colludes[low] | colludes[high], 0.0, pair)
    ground = own.copy()
    for a, b in ((low, high), (high, low)):
        np.add.at(ground, a, np.where(seen[b], 0.0, weights))
    both = (weights > 0) & active[low] & active[high]
    edges = sparse.coo_array((weights[both], (low[both], high[both])), shape=(size, size)).tocsr()
    edges = edges + edges.T
    # Components without a way to ground have no inverse: they are left out of the system, with mu
    # infinite.
    _, component = sparse.csgraph.connected_components(edges, directed=False)
    reach = np.bincount(component, weights=np.where(active, ground, 0.0), minlength=size)
    solvable = active & (reach[component] > 0)
    where = np.flatnonzero(solvable)
    place = np.full(size, -1)
    place[where] = np.arange(where.size)
    lower = np.where(active[clients], np.inf, 0.0)
    upper = lower.copy()
    if where.size:
        laplacian = sparse.csgraph.laplacian(edges[where][:, where])
        matrix = (laplacian + sparse.diags_array(ground[where])).tocsr()
        norm = _inverse_norm(matrix, ground[where])
        found = np.flatnonzero(solvable[clients])
        for start in range(0, found.size, _COLUMNS):
            batch = found[start : start + _COLUMNS]
            bounds = _resistances(matrix, place[clients[batch]], norm, tolerance)
            lower[batch], upper[batch] = np.sqrt(bounds)
    scale = np.broadcast_to(np.asarray(sensitivity, np.float64), (size,))[clients]
    with np.errstate(invalid="ignore"):
        unseen = colludes[clients]
        return np.where(unseen, np.nan, scale * lower), np.where(unseen, np.nan, scale * upper)


def _inverse_norm(matrix: Any, ground: np.ndarray) -> float:
    """A proved bound on the spectral norm of the inverse."""
    if ground.min() > 0:
        return 1 / float(ground.min())
    v = np.maximum(
        _solve(matrix, np.ones((ground.size, 1)), lambda x, r: np.abs(r).max() < 0.1), 0.0
    )
    least = float((matrix @ v).min())
    return float(v.max()) / least if least > 0 else np.inf


def _resistances(
    matrix: Any, rows: np.ndarray, norm: float, tolerance: float
) -> tuple[np.ndarray, np.ndarray]:
    target = np.zeros((matrix.shape[0], rows.size))
    column = np.arange(rows.size)
    target[rows, column] = 1.0

    def close(x: np.ndarray, r: np.ndarray) -> bool:
        return bool(np.all((r**2).sum(0) * norm <= tolerance * x[rows, column]))

    x = _solve(matrix, target, close)
    r = target - matrix @ x
    lower = x[rows, column] + (x * r).sum(0)
    upper = lower + (r**2).sum(0) * norm
    return np.maximum(lower, 0.0) * (1 - _ROUNDING), upper * (1 + _ROUNDING)


def _solve(matrix: Any, target: np.ndarray, close: Any) -> np.ndarray:
    """Conjugate gradients, column by column at once, scaled by the diagonal."""
    scale = 1 / matrix.diagonal()[:, None]
    x, r = np.zeros_like(target), target.copy()
    z = scale * r
    p, power = z, (r * z).sum(0)
    for _ in range(_ITERATIONS):
        product = matrix @ p
        bend = (p * product).sum(0)
        step = np.where(bend > 0, power / np.where(bend > 0, bend, 1.0), 0.0)
        x = x + step * p
        r = r - step * product
        if close(x, r):
            break
        z = scale * r
        before, power = power, (r * z).sum(0)
        p = z + np.where(before > 0, power / np.where(before > 0, before, 1.0), 0.0) * p
    return x
