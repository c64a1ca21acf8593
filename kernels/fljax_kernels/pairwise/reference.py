"""The definition in float64: all edges' normals at once, times the incidence matrix. E * D memory:
for tests.
"""

import jax
import numpy as np


def pair_noise(
    keys: jax.Array, edges: np.ndarray, num_clients: int, size: int, stddev: np.ndarray
) -> np.ndarray:
    """Row sums `[num_clients, size]`: + noise of edge (low, high) at low, - at high."""
    normals = np.asarray(jax.vmap(lambda k: jax.random.normal(k, (size,)))(keys), np.float64)
    scaled = normals * np.broadcast_to(np.asarray(stddev, np.float64), (len(edges),))[:, None]
    incidence = np.zeros((num_clients, len(edges)))
    incidence[edges[:, 0], np.arange(len(edges))] = 1
    incidence[edges[:, 1], np.arange(len(edges))] = -1
    return incidence @ scaled
