"""The joint law of all clients' noise over the complete graph, without its N (N - 1) / 2 pairs.

Independent antisymmetric N(0, s^2) pairs sum to a centred Gaussian with covariance s^2 (N I - 1
1^T). So does s sqrt(N) (z - mean z) for standard normal z `[N]`, since I - 1 1^T / N is a
projection.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fljax_kernels import _threefry as threefry


@functools.partial(jax.jit, static_argnames=("num_clients", "size"))
def draw(keys: jax.Array, stddev: jax.Array, *, num_clients: int, size: int) -> jax.Array:
    """`[num_clients, size]` float32; typed keys `[num_clients]`, stddev `[]`."""
    if 0 in (num_clients, size):
        return jnp.zeros((num_clients, size), jnp.float32)
    scale = stddev * np.float32(np.sqrt(2 * num_clients))
    # A loop, whose result is in memory: else XLA draws everything again for the mean.
    half_variance_normals = lambda key, size: threefry.half_variance_of(threefry.uint32s(key, size))
    rows = lax.map(lambda key: half_variance_normals(key, size) * scale, keys)
    return rows - jnp.mean(rows, axis=0, keepdims=True)
