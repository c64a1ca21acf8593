"""Rows client by client, for accelerators: an entry is the sum of its neighbours' noise, made in
registers and written once.

Each edge is drawn at both ends, where a stream over edges would read and write two rows for each:
the cipher is cheaper there than memory. The sum goes in the order of neighbours' numbers, and noise
is rounded before it is added, as in the stream.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fljax_kernels import _platforms
from fljax_kernels import _threefry as threefry
from fljax_kernels.pairwise import streamed

# Neighbours written out in one pass on a TPU, whose compiler takes half a minute for a hundred.
_AT_ONCE = 32
_MOST_DRAWS = 4  # times the ends of edges: clients have as many draws as the one with most
_SIGN = np.uint32(1 << 31)


def neighbours(edges: np.ndarray, num_clients: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Of each client its edges, int32 `[N, K]`, in the order of neighbours' numbers, and their
    signs, int32 `[N, K]`: 1 at the lower end, -1 at the higher, 0 for no edge.

    None for graphs without an edge, and where few clients have most of the neighbours.

    Args:
      edges: `[E, 2]`, sorted.
    """
    degree = np.bincount(edges.ravel(), minlength=num_clients)
    most = int(degree.max())
    if not 0 < num_clients * most <= _MOST_DRAWS * edges.size:
        return None
    ends, others = np.concatenate([edges, edges[:, ::-1]]).T
    order = np.lexsort((others, ends))
    place = np.arange(edges.size) - np.repeat(np.cumsum(degree) - degree, degree)
    mine, sign = np.zeros((2, num_clients, most), np.int32)
    at = ends[order], place
    mine[at] = order % len(edges)
    sign[at] = np.where(others > ends, 1, -1)[order]
    return mine, sign


@functools.partial(jax.jit, static_argnames=("size", "ring"))
def rows(
    keys: jax.Array,
    stddev: jax.Array,
    ends: tuple[jax.Array, jax.Array],
    mine: jax.Array,
    sign: jax.Array,
    *,
    size: int,
    ring: bool,
) -> jax.Array:
    """As `streamed.stream`, which is what CPUs do; others take each client's edges.

    Args:
      keys: typed threefry `[E]`. stddev: float32 `[E]`. ends: int32 `[E]`, `[E]`, as for a stream.
      mine, sign: int32 `[N, K]`, of `neighbours`.

    Returns:
      `[N, size]`, float32 or uint32.
    """

    def by_edge() -> jax.Array:
        given = {"num_rows": len(mine), "size": size, "ring": ring}
        return streamed.stream(keys, stddev, *ends, **given)

    def by_client(form: Any) -> jax.Array:
        words = jnp.moveaxis(jax.random.key_data(keys)[mine], -1, 0)
        scale = jnp.where(sign == 0, 0, stddev[mine] * np.float32(np.sqrt(2)))
        return form((words, scale, sign), size=size, ring=ring)

    return _platforms.choose(
        cpu=by_edge,
        default=lambda: by_client(_windowed),
        tpu=lambda: by_client(_written_out),
    )


Edges = tuple[jax.Array, ...]  # keys' words `[2, N, K]`, scales `[N, K]`, signs `[N, K]`


def _windowed(edges: Edges, *, size: int, ring: bool) -> jax.Array:
    """A window for each entry, over its neighbours, which a GPU adds one after the other. A TPU
    would hold the noise of all pairs of few clients, and add it in another order.
    """
    of_edges = tuple(x[..., None] for x in edges)
    noise = _noise(of_edges, lax.broadcasted_iota(jnp.uint32, (1, 1, size), 2), ring=ring)
    window = (1, noise.shape[1], 1)
    zero = np.zeros((), noise.dtype)
    return lax.reduce_window(noise, zero, lax.add, window, window, "VALID")[:, 0]


def _written_out(edges: Edges, *, size: int, ring: bool) -> jax.Array:
    """Pass for pass over the rows, with so many neighbours in each."""
    count, most = edges[1].shape
    passes = -(-most // _AT_ONCE)
    each = -(-most // passes)
    behind = passes * each - most
    padded = [
        jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, behind)]).reshape(*x.shape[:-1], passes, each)
        for x in edges
    ]
    position = lax.broadcasted_iota(jnp.uint32, (1, size), 1)

    def add(step: Any, rows: jax.Array) -> jax.Array:
        here = [x[..., step, :] for x in padded]
        for k in range(each):
            of_edge = tuple(x[..., k, None] for x in here)
            rows = rows + _noise(of_edge, position, ring=ring)
        return rows

    start = jnp.zeros((count, size), jnp.uint32 if ring else jnp.float32)
    return add(0, start) if passes == 1 else lax.fori_loop(0, passes, add, start)


@functools.partial(jax.jit, static_argnames="ring")  # traced once for all neighbours
def _noise(edges: Edges, position: jax.Array, *, ring: bool) -> jax.Array:
    words, scale, sign = edges
    noise = threefry.half_variance_normals(words, position) * scale
    if ring:
        whole = jnp.round(noise).astype(jnp.int32)
        return (whole * sign).astype(jnp.uint32)
    return _signed(noise, sign)


@jax.custom_jvp
def _signed(noise: jax.Array, sign: jax.Array) -> jax.Array:
    """By its bit of the sign: a product would be rounded with the sum that it is added to, where a
    compiler makes one instruction of both, and the ends of an edge would not cancel.
    """
    flip = jnp.where(sign < 0, _SIGN, np.uint32(0))
    return lax.bitcast_convert_type(lax.bitcast_convert_type(noise, jnp.uint32) ^ flip, jnp.float32)


_signed.defjvps(lambda tangent, _, noise, sign: jnp.where(sign < 0, -tangent, tangent), None)
