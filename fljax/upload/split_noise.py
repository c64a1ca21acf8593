"""Noise that only becomes normal once the server multiplies it by secret scales, and clients' pair
noise of that law.

DN(stddev, n), n of them, times m of the server's DN*(m), is N(0, stddev^2) in law. n = 1 is the
uniform law on +- sqrt(2) stddev, which is all that a server that knows its own scales needs to look
through: a bounded law hides no shift for certain, whatever epsilon. For the published scheme only;
`pair_noise` is what protects.

Source: Yang et al., "Efficiently Achieving Secure Model Training and Secure Aggregation to Ensure
Bidirectional Privacy-Preservation in Federated Learning", Theorems 3, 5, 6 and Algorithm 2; that n
= 1 is uniform is ours.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fljax_kernels
from fljax import _keys, _validate
from fljax.types import Params
from fljax.upload.pair_noise import NoiseFun
from fljax_kernels import _threefry  # the bits of jax.random, three times as fast on a CPU
from fljax_kernels.pairwise import graphs


def dn(
    key: jax.Array, shape: Sequence[int], stddev: Any, n: int = 1, dtype: Any = jnp.float32
) -> jax.Array:
    """DN(stddev, n), with its sign; variance (2 stddev^2)^(1/n) 3^(-1/n).

    Args:
      key: `[]`. shape: of the result. stddev: of the product, >= 0. n: 1 or more. dtype: floating.
    """
    _validate.positive_int(n=n)
    bound = jnp.asarray(stddev, dtype) * math.sqrt(2)
    if n == 1:
        return jax.random.uniform(key, shape, dtype, -1.0, 1.0) * bound
    sign_key, size_key = jax.random.split(key)
    sign = jax.random.rademacher(sign_key, shape, dtype)
    exponent = (
        jnp.square(jax.random.normal(size_key, shape, dtype)) / 2
        if n == 2
        else jax.random.gamma(size_key, 1 / n, shape, dtype)
    )
    return sign * bound ** (1 / n) * jnp.exp(-exponent)


def sum_of_uniform(key: jax.Array, like: Params, stddev: float, count: int) -> Params:
    """The sum of `count` clients' DN(stddev, 1), float32, shaped like `like`; client by client, in
    one pass each.

    Args:
      key: `[]` typed threefry or ChaCha20 key of the round. like: tree of arrays. stddev: >= 0.
      count: K >= 1.
    """
    _validate.stream_key(key=key)
    _validate.positive_int(count=count)
    leaves, structure = jax.tree.flatten(like)
    sizes = [int(np.prod(leaf.shape)) for leaf in leaves]

    def add(client: jax.Array, total: jax.Array) -> jax.Array:
        bits = _threefry.uint32s(jax.random.fold_in(key, client), sum(sizes))
        # 24 bits, at the middles of their cells: no sign is favoured.
        return total + ((bits >> np.uint32(8)).astype(jnp.float32) - np.float32(2**23 - 0.5))

    total = jax.lax.fori_loop(0, count, add, jnp.zeros(sum(sizes), jnp.float32)) * np.float32(
        stddev * math.sqrt(2) / 2**23
    )
    parts = jnp.split(total, np.cumsum(sizes)[:-1])
    return jax.tree.unflatten(
        structure, [p.reshape(leaf.shape) for p, leaf in zip(parts, leaves, strict=True)]
    )


def cohort_noise(
    edges: Any, *, num_clients: int, own_stddev: float, pair_stddev: float
) -> NoiseFun:
    """As `pair_noise.cohort_noise`, of uniform law: own noise DN(own_stddev, 1), pairs'
    DN(pair_stddev, 1).

    Guarantee: none towards a server that knows its scales; the pairs' noise cancels in the sum of
      all clients.

    Args:
      edges: `[E, 2]` pairs of clients, a connected graph, each pair once.
      num_clients: K. own_stddev, pair_stddev: of the products with the server's scales, >= 0.

    Raises:
      ValueError: an argument is out of range, or the graph is not connected.
    """
    _validate.non_negative(own_stddev=own_stddev, pair_stddev=pair_stddev)
    ordered = graphs.from_pairs(edges, num_clients)
    low, high = (np.ascontiguousarray(ends) for ends in ordered.T)

    @jax.jit
    def noise(key: jax.Array, round_index: jax.Array | int, like: Params) -> Params:
        keys = _keys.client_keys(
            key, round_index, jnp.arange(num_clients, dtype=jnp.int32), _keys.Purpose.NOISE
        )
        pair_keys = fljax_kernels.pair_keys(
            jax.random.fold_in(key, round_index), jnp.asarray(ordered)
        )
        leaves, structure = jax.tree.flatten(like)

        def leaf_noise(index: int, leaf: Any) -> jax.Array:
            def own(key: jax.Array) -> jax.Array:
                return dn(jax.random.fold_in(key, index), leaf.shape, own_stddev)

            def edge(e: jax.Array, rows: jax.Array) -> jax.Array:
                shared = dn(jax.random.fold_in(pair_keys[e], index), leaf.shape, pair_stddev)
                return (
                    rows.at[jnp.asarray(low)[e]].add(shared).at[jnp.asarray(high)[e]].add(-shared)
                )

            return jax.lax.fori_loop(
                0, len(ordered) if pair_stddev else 0, edge, jax.lax.map(own, keys)
            )

        return jax.tree.unflatten(structure, [leaf_noise(i, leaf) for i, leaf in enumerate(leaves)])

    return noise
