"""Uploads with own noise and noise shared by pairs: one upload is hidden, the sum of all is nearly
clean.
"""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

import fljax_kernels
from fljax import _keys, _validate
from fljax.types import Params
from fljax_kernels.pairwise import graphs

Draw = Literal["pairs", "joint_law"]
NoiseFun = Callable[[jax.Array, jax.Array | int, Params], Params]


def cohort_noise(
    edges: Any,
    *,
    num_clients: int,
    own_stddev: Any,
    pair_stddev: Any,
    draw: Draw = "pairs",
) -> NoiseFun:
    """The noise that all clients of a simulated round add to their uploads.

    Guarantee: towards a server that holds any of the uploads and pools any clients, each round is
    what `fljax.accounting.shared_noise.exact.exact_mu` says for these variances, own_stddev**2 and
    pair_stddev**2. It rests on every client's upload being clipped BEFORE the noise, on rounds
    never repeating a number with other data, and on nobody revealing a pair's key, not even for a
    client that dropped out: a late upload would stand there with its own noise alone. Do not weight
    uploads afterwards: pair noise cancels in plain sums only. Divide by the number of responders.

    Args:
      edges: `[E, 2]` pairs of clients, a connected graph, each pair once.
      num_clients: N; clients are numbered 0..N-1.
      own_stddev: scalar or `[N]`. pair_stddev: scalar or `[E]`, in the order of `edges`. >= 0, in
        the unit of uploads.
      draw: "pairs" is what clients can compute for themselves; "joint_law" draws from the joint law
        of all clients' noise, O(N D) instead of O(E D): for utility only, and for the complete
        graph with common variances only.

    Returns:
      `(key, round_index, like) -> noise`: `key` the run's key, `like` a params-like tree of arrays;
      noise `[N, ...]` float32.

    Raises:
      ValueError: an argument is out of range, or the graph is not connected, or "joint_law" is
        asked of another graph.

    Source: Hong, Lin, Duan, "Lightweight Federated Learning with Differential Privacy and Straggler
      Resilience", equation (7).
    """
    _validate.one_of(("pairs", "joint_law"), draw=draw)
    own = _stddevs("own_stddev", own_stddev, num_clients)
    given = np.asarray(edges).reshape(-1, 2)
    ordered = graphs.from_pairs(edges, num_clients)
    pair = _stddevs("pair_stddev", pair_stddev, len(ordered))
    # from_pairs sorts: so must the variances.
    low, high = np.sort(given, axis=1).T
    pair = pair[np.lexsort((high, low))]
    if draw == "joint_law" and (
        len(ordered) != num_clients * (num_clients - 1) // 2 or np.ptp(pair if len(pair) else 0)
    ):
        raise ValueError(
            "Expected draw='pairs' for a graph that is not complete with one pair_stddev, got "
            "draw='joint_law'."
        )
    # An edge without noise costs a draw and adds nothing.
    ordered, pair = ordered[pair > 0], pair[pair > 0]

    @jax.jit
    def noise(key: jax.Array, round_index: jax.Array | int, like: Params) -> Params:
        round_key = jax.random.fold_in(key, round_index)
        wide = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.float32), like)
        if draw == "joint_law":
            shared = fljax_kernels.joint_pair_noise(
                round_key, num_clients, wide, float(pair[0]) if len(pair) else 0.0
            )
        else:
            shared = fljax_kernels.pair_noise(
                round_key, ordered, num_clients, wide, jnp.asarray(pair)
            )
        keys = _keys.client_keys(
            key, round_index, jnp.arange(num_clients, dtype=jnp.int32), _keys.Purpose.NOISE
        )
        # One client at a time: side by side, a CPU would hold several arrays of the size of all
        # uploads.
        return jax.lax.map(
            lambda client: fljax_kernels.add_gaussian_noise(client[0], client[1], client[2]),
            (keys, shared, jnp.asarray(own)),
        )

    return noise


def client_noise(
    pair_keys: jax.Array,
    own_key: jax.Array,
    client: int,
    peers: Any,
    like: Params,
    *,
    own_stddev: float,
    pair_stddev: Any,
) -> Params:
    """What one real client adds to its upload, from keys agreed with its peers (`key_agreement`)
    and one of its own.

    Guarantee: as `cohort_noise`, where pair keys are known to their two ends only and `own_key` to
    nobody else. In simulation, with that function's keys, it is that function's row for this client
    up to one rounding of the sum.

    Args:
      pair_keys: `[K]` typed keys of this round. own_key: `[]`, private, of this round.
      client: this client's number. peers: `[K]` numbers, ascending.
      like: params-like.
      own_stddev: >= 0. pair_stddev: scalar or `[K]`; both ends of a pair must use the same.
    """
    wide = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.float32), like)
    shared = fljax_kernels.client_pair_noise(pair_keys, client, peers, wide, pair_stddev)
    return fljax_kernels.add_gaussian_noise(own_key, shared, own_stddev)


def _stddevs(name: str, value: Any, count: int) -> np.ndarray:
    """float32 `[count]`."""
    known = np.asarray(value, np.float64)
    if known.shape not in {(), (count,)}:
        raise ValueError(f"Expected {name} of shape [] or [{count}], got shape {known.shape}.")
    bad = known[~(np.isfinite(known) & (known >= 0))]
    if bad.size:
        raise ValueError(f"Expected {name} >= 0 and finite, got {name}={bad.flat[0]!r}.")
    return np.broadcast_to(known, (count,)).astype(np.float32)
