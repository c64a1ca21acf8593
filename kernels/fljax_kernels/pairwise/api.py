"""Noise shared by pairs of clients: what the functions promise, and their checks."""

import itertools
import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from fljax_kernels import _threefry
from fljax_kernels.chacha20 import api as chacha20
from fljax_kernels.pairwise import by_client, graphs, joint, streamed

Form = Literal["float", "ring"]
# Domains of fold_in, apart from each other and from small counters that callers fold.
_TAG_PAIR, _TAG_JOINT = 0x50414952, 0x4A4F494E
# Normals stay within 5.42 standard deviations, so that a rounded one fits an int32.
_RING_LIMIT = 2.0**28


def pair_keys(key: jax.Array, edges: Any) -> jax.Array:
    """One key per edge for a simulated cohort: what two clients would agree on, as a function of
    one key.

    Args:
      key: `[]` typed key of one round. Noise of a pair is a function of this key and the pair: a
        round that repeats its key with other data gives those data away.
      edges: `[E, 2]` integers, each pair once, smaller client first (`fold_in` does not commute).
        Unchecked if traced.

    Returns:
      `[E]` typed keys; edge (low, high) gets the same one in every graph.

    Raises:
      ValueError: `key` is no such key; edges loop, repeat, or have the larger client first.
    """
    _check_key("key", key, 0)
    if not isinstance(edges, jax.core.Tracer):
        pairs = graphs.checked_pairs(edges, 2**31)
        if np.any(pairs != np.asarray(edges).reshape(-1, 2)):
            raise ValueError(
                "Expected edges with the smaller client first, got another order: "
                "graphs.from_pairs sorts."
            )
    return _pair_keys(key, edges)


def _pair_keys(key: jax.Array, edges: Any) -> jax.Array:
    edges = jnp.asarray(edges, jnp.uint32).reshape(-1, 2)
    domain = jax.random.fold_in(key, _TAG_PAIR)
    return jax.vmap(lambda edge: jax.random.fold_in(jax.random.fold_in(domain, edge[0]), edge[1]))(
        edges
    )


def pair_noise(
    key: jax.Array,
    edges: Any,
    num_clients: int,
    like: Any,
    stddev: float | jax.Array,
    *,
    form: Form = "float",
) -> Any:
    """Antisymmetric Gaussian noise over a graph: each edge's noise is added at one end and
    subtracted at the other.

    Client i gets sum_{j > i} r_ij - sum_{j < i} r_ji over its neighbours j, r_e ~ N(0, stddev_e**2)
    independent.

    Guarantee: covariance of the rows, per entry, is the graph's Laplacian with weights stddev_e**2;
    entries are independent. The whole cohort's sum is zero: exactly modulo 2**32 in the ring form,
    to rounding in the float form (each end adds the same float). The sum over some clients is the
    noise on the edges that leave them. What client i gets is what `client_pair_noise` computes
    alone: bit for bit on a CPU and in the ring form, up to rounding in floats on accelerators.
    Idealisation: as `gaussian_noise` (float32 normals within 5.42 standard deviations; threefry
    with 64-bit keys is no cryptographic generator, ChaCha20 is one); where an edge is drawn at both
    ends, equal numbers have equal bits there. It adds no individual noise: without that the exact
    sum of all uploads is in plain sight.

    Memory: the result and 128 KiB; each edge's noise is drawn once, and added at both ends.
      Accelerators draw it at both ends instead, and write each row once, unless `edges` are traced,
      keys are of ChaCha20, or some client has more than four times as many neighbours as the mean:
      the same noise up to rounding. Bits do not depend on blocking, jit or vmap.

    Args:
      key: `[]` typed threefry or ChaCha20 key of the round, for `pair_keys(key, edges)`; or `[E]`
        keys, one an edge.
      edges: `[E, 2]` integers, smaller client first, sorted: see `graphs`. May be traced: then it
        is not checked.
      num_clients: N.
      like: pytree of floating arrays (or `jax.ShapeDtypeStruct`), without a client axis: gives
        shapes.
      stddev: per edge, scalar or `[E]`. >= 0. In the ring form in grid units, at most 2**28: noise
        is rounded to whole numbers, so that a grid of stddev / 2**16 costs a relative 2**-34 of
        variance.
      form: "float", or "ring": uint32, to be added to integer updates modulo 2**32.

    Returns:
      Pytree of `[N, ...]` arrays: float32 whatever the dtypes of `like` (rounded to 16 bits, the
      rows would no longer cancel; add in float32, cast the sum), or uint32.

    Raises:
      ValueError: an argument is out of range or not of the stated kind; edges loop, repeat or are
        not sorted.

    Source: Hong, Lin, Duan, "Lightweight Federated Learning with Differential Privacy and Straggler
      Resilience", equation (7).
    """
    size = _checked_size(like, form)
    graphs._at_least("num_clients", num_clients, 1)
    low, high = _checked_edges(edges, num_clients)
    if np.ndim(key) == 0:
        _check_key("key", key, 0)
        key = _pair_keys(key, jnp.stack([low, high], 1))
    _check_key("key", key, 1)
    if np.shape(key) != low.shape:
        raise ValueError(
            f"Expected one key, or one for each of {low.size} edges, got keys of shape "
            f"{np.shape(key)}."
        )
    scale = _checked_stddev(stddev, low.size, form)
    table = None
    if _threefry.is_kind(key) and not isinstance(edges, jax.core.Tracer):
        table = by_client.neighbours(np.asarray(edges), num_clients)
    ring = form == "ring"
    if table is None:
        rows = streamed.stream(key, scale, low, high, num_rows=num_clients, size=size, ring=ring)
    else:
        rows = by_client.rows(key, scale, (low, high), *table, size=size, ring=ring)
    return _split(rows, like)


def client_pair_noise(
    keys: jax.Array,
    client: int | jax.Array,
    peers: Any,
    like: Any,
    stddev: float | jax.Array,
    *,
    form: Form = "float",
) -> Any:
    """What one client adds, from the keys it shares with its neighbours: its row of `pair_noise`;
    bit for bit on a CPU and in the ring form, up to rounding in floats on accelerators.

    Args:
      keys: `[K]` typed threefry or ChaCha20 keys, one per neighbour, the same at both ends; each
        used once.
      client: this client's number; may be traced.
      peers: `[K]` neighbours' numbers, ascending, without this client's: the order of the float
        sum. Unchecked if traced.
      like, form: as in `pair_noise`.
      stddev: scalar or `[K]`; both ends of an edge must use the same.

    Returns:
      Pytree like `like`, float32 or uint32.

    Raises:
      ValueError: an argument is out of range or not of the stated kind.
    """
    size = _checked_size(like, form)
    _check_key("keys", keys, 1)
    if np.shape(peers) != np.shape(keys):
        raise ValueError(
            f"Expected peers of shape {np.shape(keys)}, one a key, got shape {np.shape(peers)}."
        )
    if not isinstance(peers, jax.core.Tracer):
        known = np.asarray(peers, np.int64)
        if np.any(known[1:] <= known[:-1]) or np.any(known < 0):
            raise ValueError(
                f"Expected peers >= 0, ascending, each once, got peers={known.tolist()}."
            )
        if not isinstance(client, jax.core.Tracer) and np.any(known == client):
            raise ValueError(
                f"Expected peers other than client={client}, got peers={known.tolist()}."
            )
    scale = _checked_stddev(stddev, np.shape(keys)[0], form)
    above = jnp.asarray(peers, jnp.int32) > jnp.asarray(client, jnp.int32)
    plus, minus = jnp.where(above, 0, -1), jnp.where(above, -1, 0)
    ring, count = form == "ring", np.shape(keys)[0]
    if _threefry.is_kind(keys) and count:
        mine, sign = jnp.arange(count)[None], jnp.where(above, 1, -1)[None]
        rows = by_client.rows(keys, scale, (plus, minus), mine, sign, size=size, ring=ring)
    else:
        rows = streamed.stream(keys, scale, plus, minus, num_rows=1, size=size, ring=ring)
    return jax.tree.map(lambda leaf: leaf[0], _split(rows, like))


def joint_pair_noise(key: jax.Array, num_clients: int, like: Any, stddev: float | jax.Array) -> Any:
    """A draw from the joint law of `pair_noise` over the complete graph with one stddev, in O(N D)
    instead of O(N^2 D).

    Guarantee: rows have covariance stddev**2 (N I - 1 1^T) per entry and sum to zero up to float32
    rounding, exactly as `pair_noise(key, graphs.complete(N), ...)`, jointly for all clients; hence
    any set of stragglers is right too. For
    simulation: no pair's own noise exists, so a colluder has nothing to subtract, and no two
      clients can compute it.

    Args:
      key: `[]` typed threefry or ChaCha20 key of the round.
      num_clients: N >= 1.
      like: as in `pair_noise`.
      stddev: of one pair's noise, scalar. >= 0.

    Returns:
      Pytree of `[N, ...]` float32 arrays.

    Raises:
      ValueError: an argument is out of range or not of the stated kind.
    """
    size = _checked_size(like, "float")
    graphs._at_least("num_clients", num_clients, 1)
    _check_key("key", key, 0)
    scale = _checked_stddev(stddev, 1, "float")[0]
    domain = jax.random.fold_in(key, _TAG_JOINT)
    keys = jax.vmap(lambda i: jax.random.fold_in(domain, i))(
        jnp.arange(num_clients, dtype=jnp.uint32)
    )
    return _split(joint.draw(keys, scale, num_clients=num_clients, size=size), like)


def _split(rows: jax.Array, like: Any) -> Any:
    """`[N, D]` as a tree of `[N, ...]`."""
    leaves, treedef = jax.tree.flatten(like)
    shapes = [np.shape(leaf) for leaf in leaves]
    starts = np.concatenate([[0], np.cumsum([math.prod(shape) for shape in shapes])]).astype(int)
    parts = [rows[:, a:b] if len(shapes) > 1 else rows for a, b in itertools.pairwise(starts)]
    rows_of = [p.reshape(rows.shape[0], *shape) for p, shape in zip(parts, shapes, strict=True)]
    return jax.tree.unflatten(treedef, rows_of)


def _checked_size(like: Any, form: str) -> int:
    """Numbers in `like`."""
    if form not in ("float", "ring"):
        raise ValueError(f"Expected form to be 'float' or 'ring', got form={form!r}.")
    for leaf in jax.tree.leaves(like):
        dtype = leaf.dtype if hasattr(leaf, "dtype") else jnp.result_type(leaf)
        if not jnp.issubdtype(dtype, jnp.floating):
            raise ValueError(f"Expected like with floating leaves, got {dtype}.")
    size = sum(math.prod(np.shape(leaf)) for leaf in jax.tree.leaves(like))
    if not size < 2**31:
        raise ValueError(f"Expected like with fewer than 2**31 numbers, got {size}.")
    return size


def _checked_edges(edges: Any, num_clients: int) -> tuple[jax.Array, jax.Array]:
    """int32 `[E]`, `[E]`: the smaller and the larger client of each edge."""
    if (
        np.ndim(edges) != 2
        or np.shape(edges)[1] != 2
        or not jnp.issubdtype(jnp.result_type(edges), jnp.integer)
    ):
        shown = f"{jnp.result_type(edges)} of shape {np.shape(edges)}"
        raise ValueError(f"Expected edges to be integers [E, 2], got {shown}.")
    if not isinstance(edges, jax.core.Tracer):
        graphs.check_sorted(np.asarray(edges), num_clients)
    edges = jnp.asarray(edges).astype(jnp.int32)
    return edges[:, 0], edges[:, 1]


def _checked_stddev(stddev: Any, count: int, form: str) -> jax.Array:
    """float32 `[count]`."""
    if np.ndim(stddev) > 1 or (np.ndim(stddev) == 1 and np.shape(stddev) != (count,)):
        raise ValueError(
            f"Expected stddev to be a scalar or of shape ({count},), got shape {np.shape(stddev)}."
        )
    if not isinstance(stddev, jax.core.Tracer):
        known = np.asarray(stddev)
        if not bool(np.all((known >= 0) & np.isfinite(known))):
            raise ValueError(f"Expected stddev >= 0 and finite, got stddev={stddev!r}.")
        if form == "ring" and not bool(np.all(known <= _RING_LIMIT)):
            raise ValueError(
                f"Expected stddev <= 2**28 grid units in the ring form, got stddev={stddev!r}."
            )
    return jnp.broadcast_to(jnp.asarray(stddev).astype(jnp.float32), (count,))


def _check_key(name: str, key: Any, ndim: int) -> None:
    """With generators of the platform a draw could depend on what is drawn beside it."""
    taken = hasattr(key, "dtype") and (_threefry.is_kind(key) or chacha20.is_kind(key))
    if not taken or np.ndim(key) != ndim:
        kind = "one typed threefry key" if ndim == 0 else "[K] typed threefry keys"
        shown = f"{getattr(key, 'dtype', type(key).__name__)} of shape {np.shape(key)}"
        raise ValueError(f"Expected {name} to be {kind}, got {shown}; ChaCha20's do, too.")
