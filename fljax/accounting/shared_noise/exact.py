"""What an adversary learns from uploads under Gaussian noise shared by pairs of clients: exact
Gaussian-DP.

Client i uploads y_i = w_i + n_i + sum_j s_ij r_ij with own noise n_i ~ N(0, own_variance[i] I), one
noise r_ij = r_ji ~ N(0, pair_variance[ij] I) per edge of a graph, and opposite signs s_ij = -s_ji.
The adversary pools the server and a set of colluding clients, whose pair noises it subtracts. What
is left of the seen honest uploads has covariance C = diag(own) + (Laplacian of the honest graph),
restricted to the seen, and moving client i's upload by at most its sensitivity is exactly mu_i-GDP
with mu_i = sensitivity_i sqrt((C^-1)_ii): (C^-1)_ii is the resistance from i to ground in a network
whose conductances are the variances, where unseen honest clients are soldered to ground.

More seen uploads, more colluders or less noise never lower mu (Rayleigh). So the worst case over
stragglers is "no honest straggler" and over colluders "as many as allowed"; a late upload is a seen
upload.

Source: Hong, Lin, Duan, "Lightweight Federated Learning with Differential Privacy and Straggler
Resilience", Lemma 1; its Lemma 2 and Proposition 1 (`printed`) drop terms and are replaced by the
exact value.
"""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fljax import _validate
from fljax.accounting import _x64
from fljax.accounting.shared_noise import star_mesh
from fljax.accounting.shared_noise.graph import PairGraph, from_matrix, pair_graph
from fljax.errors import NoGuaranteeError
from fljax_kernels.pairwise import graphs

__all__ = [
    "Assessment",
    "PairGraph",
    "assess",
    "average_variance",
    "certificate",
    "complete_mu",
    "covariance",
    "exact_mu",
    "from_matrix",
    "own_upload_mu",
    "pair_graph",
    "sum_mu",
    "worst_mu",
]

_MOST_SETS = 200_000  # colluder sets that `worst_mu` tries
_BATCH = 256


class Assessment(NamedTuple):
    """What one round gave away.

    Attributes:
      mu: `[N]`, exact for the realised view: 0 where the upload never left the client, NaN for
        colluders.
      worst_mu: `[N]`, an upper bound for every view with the assumed number of colluders.
      certified: False if more clients colluded than was assumed: then only `mu` holds.
      reason: why.
    """

    mu: np.ndarray
    worst_mu: np.ndarray
    certified: bool
    reason: str


F = TypeVar("F", bound=Callable[..., Any])


def checks_graph(fun: F) -> F:
    """Makes `fun(graph, ..., seen, colluders)` refuse a graph whose pairs loop, repeat or lead out
    of range, and masks that are none. What is traced cannot be looked at.
    """

    @functools.wraps(fun)
    def wrapped(graph: PairGraph, *args: Any, **kwargs: Any) -> Any:
        size = np.shape(graph.own_variance)[0]
        if not isinstance(graph.edges, jax.core.Tracer):
            graphs.checked_pairs(graph.edges, size)
        for name in {"seen", "colluders"} & kwargs.keys():
            if kwargs[name] is not None and not isinstance(kwargs[name], jax.core.Tracer):
                check_mask(size, **{name: kwargs[name]})
        return fun(graph, *args, **kwargs)

    return wrapped  # type: ignore[return-value]


def check_mask(size: int, **masks: Any) -> None:
    """Raises ValueError unless every value is `[size]` of True and False, or of 1 and 0."""
    for name, mask in masks.items():
        found = np.asarray(mask)
        if found.shape != (size,) or not np.all((found == 0) | (found == 1)):
            raise ValueError(
                f"Expected {name} to be a bool for each of {size} clients, got "
                f"{name}={found.tolist()!r}."
            )


def _who(value: Any, default: bool, size: int) -> jax.Array:
    return jnp.full(size, default) if value is None else jnp.asarray(value, bool)


def _noise(graph: PairGraph) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Own and pair variances, and the ends of the edges; all variances NaN if a number is out of
    its range.
    """
    own, pair = _x64.as64(graph.own_variance), _x64.as64(graph.pair_variance)
    low, high = jnp.asarray(graph.edges, jnp.int32).reshape(-1, 2).T
    # An index beyond the end would be dropped or wrapped around, and a loop hides nothing.
    good = (low >= 0) & (high >= 0) & (low < own.size) & (high < own.size) & (low != high)
    good = (
        jnp.all(good)
        & jnp.all((own >= 0) & jnp.isfinite(own))
        & jnp.all((pair >= 0) & jnp.isfinite(pair))
    )
    return jnp.where(good, own, jnp.nan), jnp.where(good, pair, jnp.nan), low, high


def _network(graph: PairGraph, seen: Any, colluders: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(ground, conductance, active): unit ground and no edges for clients that are not (seen and
    honest).
    """
    own, pair, low, high = _noise(graph)
    size = own.shape[0]
    seen, colludes = _who(seen, True, size), _who(colluders, False, size)
    matrix = jnp.zeros((size, size)).at[low, high].add(pair).at[high, low].add(pair)
    matrix = jnp.where(colludes | colludes[:, None], 0.0, matrix)
    active = seen & ~colludes
    ground = own + jnp.where(seen, 0.0, matrix).sum(1)
    conductance = jnp.where(active & active[:, None], matrix, 0.0)
    return jnp.where(active, ground, 1.0), conductance, active


@checks_graph
@_x64.float64
@jax.jit
def covariance(graph: PairGraph, *, seen: Any = None, colluders: Any = None) -> jax.Array:
    """Covariance `[N, N]`, per coordinate, of the noise the adversary cannot subtract from the seen
    honest uploads.

    Args:
      graph: the noise.
      seen: `[N]` bool, whose upload the adversary holds, late or not. None: everyone's.
      colluders: `[N]` bool. None: nobody.

    Returns:
      Rows and columns of the others are zero.
    """
    ground, conductance, active = _network(graph, seen, colluders)
    return jnp.diag(jnp.where(active, ground, 0.0) + conductance.sum(1)) - conductance


@checks_graph
@_x64.float64
def exact_mu(
    graph: PairGraph, *, seen: Any = None, colluders: Any = None, sensitivity: Any = 1.0
) -> jax.Array:
    """Exact Gaussian-DP parameter of every client towards a server that holds `seen` uploads and
    pools `colluders`.

    Guarantee: one round of uploads is mu_i-GDP for client i, and no less; real-valued noise, drawn
    afresh each round; the pair noises come from a pseudo-random generator, so the guarantee is
    computational. The dimension is irrelevant.

    Args:
      graph: the noise, connected or not; where it is traced its pairs are not checked for being
        given twice.
      seen, colluders: as in `covariance`.
      sensitivity: `[]` or `[N]`, largest L2 move of one client's upload between neighbours, before
        noise.

    Returns:
      `[N]`: 0 where the upload is not seen, NaN for colluders, +inf where nothing hides the upload
      (a component of honest, seen clients without own noise). NaN or +inf for everybody seen if a
      traced variance or client number is out of range. O(N^3); all digits hold for any ratio of
      variances.

    Raises:
      ValueError: a pair is out of range, a loop or given twice, or a mask is not `[N]`; so do the
        functions below.
    """
    size = np.shape(graph.own_variance)[0]
    # Arrays in place of defaults: one program for all calls of a size.
    everyone = _who(seen, True, size), _who(colluders, False, size)
    return _exact_mu(graph, *everyone, jnp.broadcast_to(_x64.non_negative(sensitivity), (size,)))


@jax.jit
def _exact_mu(
    graph: PairGraph, seen: jax.Array, colluders: jax.Array, sensitivity: jax.Array
) -> jax.Array:
    ground, conductance, active = _network(graph, seen, colluders)
    resistance = star_mesh.inverse_diagonal(ground, conductance)
    return jnp.where(colluders, jnp.nan, jnp.where(active, sensitivity * jnp.sqrt(resistance), 0.0))


@checks_graph
@_x64.float64
@jax.jit
def certificate(graph: PairGraph, *, num_colluders: Any, sensitivity: Any = 1.0) -> jax.Array:
    """Upper bound `[N]` on `exact_mu` of each honest client, over every view with at most
    `num_colluders` colluders.

    Ground reached directly or through one neighbour each, less the `num_colluders` strongest of
    these ways. Exact for the complete graph with common variances. O((N + E) log(N + E)).

    Args:
      graph: the noise.
      num_colluders: integer >= 0.
      sensitivity: as in `exact_mu`.

    Returns:
      +inf where a client has no own noise and too few neighbours, and for numbers out of range, or
      NaN.
    """
    own, pair, low, high = _noise(graph)
    num_colluders = _x64.non_negative(num_colluders)
    client = jnp.concatenate([low, high])
    pair = jnp.concatenate([pair, pair])
    far = own[jnp.concatenate([high, low])]
    both = pair + far
    way = jnp.where(both > 0, pair * (far / jnp.where(both > 0, both, 1.0)), 0.0)
    order = jnp.lexsort((-way, client))
    client, way = client[order], way[order]
    rank = jnp.arange(client.size, dtype=jnp.int32) - jnp.searchsorted(client, client)
    kept = jnp.where(rank.astype(way.dtype) >= num_colluders, way, 0.0)
    total = own.at[client].add(kept)
    mu = _x64.non_negative(sensitivity) / jnp.sqrt(jnp.where(total > 0, total, 1.0))
    return jnp.where(jnp.isfinite(num_colluders), jnp.where(total > 0, mu, jnp.inf), jnp.nan)


@_x64.float64
@jax.jit
def complete_mu(
    own_variance: Any,
    pair_variance: Any,
    *,
    num_seen: Any,
    num_unseen: Any = 0,
    sensitivity: Any = 1.0,
) -> jax.Array:
    """`exact_mu` of the complete graph with common variances, in closed form; arrays broadcast.

    Args:
      own_variance, pair_variance: `[...]`, >= 0.
      num_seen: honest clients whose upload is seen, >= 1. The worst case is N minus the number of
        colluders.
      num_unseen: honest clients whose upload never leaves them.
      sensitivity: as in `exact_mu`.

    Returns:
      `[...]`, +inf without noise; NaN or +inf for a number out of its range.
    """
    u, p = _x64.non_negative(own_variance), _x64.non_negative(pair_variance)
    seen, unseen = _x64.as64(num_seen), _x64.as64(num_unseen)
    counted = (seen >= 1) & jnp.isfinite(seen) & (unseen >= 0) & jnp.isfinite(unseen)
    p = jnp.where(counted, p, jnp.nan)
    top, bottom = u + (unseen + 1) * p, (u + unseen * p) * (u + (seen + unseen) * p)
    safe = jnp.where(bottom > 0, bottom, 1.0)
    return _x64.non_negative(sensitivity) * jnp.where(bottom > 0, jnp.sqrt(top / safe), jnp.inf)


@checks_graph
@_x64.float64
@jax.jit
def sum_mu(
    graph: PairGraph, *, seen: Any = None, colluders: Any = None, sensitivity: Any = 1.0
) -> jax.Array:
    """Exact mu `[N]` towards colluding clients without the server, who see the sum of the `seen`
    uploads only.
    """
    ground, _, active = _network(graph, seen, colluders)
    total = jnp.where(active, ground, 0.0).sum()
    mu = jnp.where(active, _x64.non_negative(sensitivity) / jnp.sqrt(total), 0.0)
    return jnp.where(_who(colluders, False, active.size), jnp.nan, mu)


@checks_graph
@_x64.float64
@jax.jit
def own_upload_mu(graph: PairGraph, *, colluders: Any = None, sensitivity: Any = 1.0) -> jax.Array:
    """Exact mu `[N]` towards an adversary who sees, of each client, that client's upload and no
    other.
    """
    variance = jnp.diagonal(covariance(graph, colluders=colluders))
    mu = jnp.where(variance > 0, _x64.non_negative(sensitivity) / jnp.sqrt(variance), jnp.inf)
    return jnp.where(_who(colluders, False, variance.size), jnp.nan, mu)


@checks_graph
@_x64.float64
@jax.jit
def average_variance(graph: PairGraph, responders: Any) -> jax.Array:
    """Variance `[]`, per coordinate, of the noise in the mean of the responders' uploads; +inf
    without responders.

    Colluders' noise counts: they follow the protocol. Source: equation (9).
    """
    ground, _, active = _network(graph, responders, None)
    count = active.sum()
    total = jnp.where(active, ground, 0.0).sum()
    return jnp.where(count > 0, total / jnp.maximum(count, 1).astype(jnp.float64) ** 2, jnp.inf)


@checks_graph
def worst_mu(graph: PairGraph, *, num_colluders: int, sensitivity: Any = 1.0) -> np.ndarray:
    """Largest `exact_mu` `[N]` of each client over all colluder sets it is not in, by trying them
    all.

    Stragglers need no search: nobody straggling is the worst. For sets beyond reach use
    `certificate`.

    Raises:
      ValueError: `num_colluders` is not in [0, N - 1], or there are more than 200,000 sets.
      NoGuaranteeError: some set leaves a client without any noise that the adversary does not know.
    """
    size = len(np.asarray(graph.own_variance))
    _colluders_in_range(num_colluders, size)
    sets = _colluder_sets(size, range(num_colluders, num_colluders + 1))
    mu = _largest(graph, sets, np.asarray(sensitivity, np.float64))
    if not np.all(np.isfinite(mu)):
        client = int(np.flatnonzero(~np.isfinite(mu))[0])
        raise NoGuaranteeError(_singular(client, f"for some {num_colluders} colluders"))
    return mu


def _colluder_sets(size: int, members: range) -> np.ndarray:
    """Bool `[M, N]`: all sets with so many members."""
    count = sum(math.comb(size, number) for number in members)
    if count > _MOST_SETS:
        raise ValueError(
            f"Expected at most {_MOST_SETS} colluder sets, got num_colluders={members[-1]}: "
            f"{count}."
        )
    chosen = [who for number in members for who in itertools.combinations(range(size), number)]
    sets = np.zeros((count, size), bool)
    sets[
        np.repeat(np.arange(count), [len(who) for who in chosen]),
        [one for who in chosen for one in who],
    ] = True
    return sets


@_x64.float64
@jax.jit
def _largest(graph: PairGraph, sets: Any, sensitivity: Any) -> jax.Array:
    def one(colluders: jax.Array) -> jax.Array:
        mu = exact_mu(graph, colluders=colluders, sensitivity=sensitivity)
        return jnp.where(colluders, 0.0, mu)

    return jax.lax.map(one, jnp.asarray(sets), batch_size=min(_BATCH, len(sets))).max(0)


def assess(
    graph: PairGraph,
    *,
    num_colluders: int,
    seen: Any = None,
    colluders: Any = None,
    sensitivity: Any = 1.0,
) -> Assessment:
    """The realised view of one round beside the bound that was promised for it.

    Rounds compose by `gaussian.compose` over their `mu` or `worst_mu`.

    Args:
      graph: the noise.
      num_colluders: the promised bound on colluders.
      seen, colluders: `[N]` bool, what really happened; a late upload is seen.
      sensitivity: as in `exact_mu`.

    Raises:
      ValueError: `num_colluders` is not in [0, N - 1].
      NoGuaranteeError: an honest client's upload stands in the view without noise that the
        adversary does not know.
    """
    size = len(np.asarray(graph.own_variance))
    _colluders_in_range(num_colluders, size)
    _in_range(graph, sensitivity)
    mu = np.asarray(exact_mu(graph, seen=seen, colluders=colluders, sensitivity=sensitivity))
    if np.any(np.isinf(mu)):
        raise NoGuaranteeError(_singular(int(np.flatnonzero(np.isinf(mu))[0]), "in this view"))
    worst = np.asarray(certificate(graph, num_colluders=num_colluders, sensitivity=sensitivity))
    found = 0 if colluders is None else int(np.sum(np.asarray(colluders, bool)))
    if found > num_colluders:
        return Assessment(
            mu,
            worst,
            False,
            f"{found} clients colluded, {num_colluders} were assumed: worst_mu is void",
        )
    return Assessment(
        mu, worst, True, f"{found} clients colluded, at most {num_colluders} were assumed"
    )


def _colluders_in_range(num_colluders: int, size: int) -> None:
    _validate.non_negative_int(num_colluders=num_colluders)
    if not num_colluders < size:
        raise ValueError(
            f"Expected num_colluders < {size} clients, else nobody is left to protect, "
            f"got num_colluders={num_colluders}."
        )


def _in_range(graph: PairGraph, sensitivity: Any) -> None:
    """Raises ValueError for a variance or sensitivity out of range: what was built by hand was
    never checked.
    """
    arrays = {
        "own_variance": graph.own_variance,
        "pair_variance": graph.pair_variance,
        "sensitivity": sensitivity,
    }
    for name, values in arrays.items():
        for value in np.unique(np.asarray(values, np.float64)):
            _validate.non_negative(**{name: float(value)})


def _singular(client: int, when: str) -> str:
    return (
        f"Expected a covariance that is not singular, got own_variance 0 for client {client} and "
        "everyone honest it "
        f"shares noise with {when}: the sum of their uploads is exposed, mu is infinite."
    )
