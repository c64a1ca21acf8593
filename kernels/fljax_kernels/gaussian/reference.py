"""Plain jax.random. It defines the result, bits included."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Normals = Callable[[jax.Array, Any], Any]


def half_variance_normals(key: jax.Array, tree: Any) -> Any:
    """N(0, 1/2) for a tree, in at least float32; leaf i draws from fold_in(key, i)."""
    leaves, treedef = jax.tree.flatten(tree)
    draws = [
        draw(jax.random.fold_in(key, i), jnp.shape(leaf), drawn_in(leaf))
        for i, leaf in enumerate(leaves)
    ]
    return jax.tree.unflatten(treedef, draws)


def drawn_in(leaf: Any) -> np.dtype:
    return np.dtype(np.float64 if jnp.result_type(leaf) == np.float64 else np.float32)


def draw(key: jax.Array, shape: tuple[int, ...], dtype: np.dtype) -> jax.Array:
    """N(0, 1/2) of one leaf.

    As `jax.random.normal`, short of its last factor sqrt(2): XLA would merge that with a constant
    stddev under `jit` but not outside, and the last bit of the noise would depend on it.
    """
    above_minus_one = np.nextafter(dtype.type(-1), dtype.type(0))
    return jax.lax.erf_inv(jax.random.uniform(key, shape, dtype, above_minus_one, dtype.type(1)))


def _scale(stddev: Any, dtype: Any) -> jax.Array:
    return jnp.asarray(stddev).astype(dtype) * jnp.asarray(np.sqrt(2), dtype)


def gaussian_noise(
    keys: jax.Array, like: Any, stddev: float | jax.Array, normals: Normals = half_variance_normals
) -> Any:
    def one(key: jax.Array, stddev: jax.Array) -> Any:
        draws = normals(key, like)
        return jax.tree.map(
            lambda z, x: (z * _scale(stddev, z.dtype)).astype(jnp.result_type(x)), draws, like
        )

    return jax.vmap(one)(keys, jnp.broadcast_to(jnp.asarray(stddev), keys.shape))


def add_gaussian_noise(
    key: jax.Array, tree: Any, stddev: float | jax.Array, normals: Normals = half_variance_normals
) -> Any:
    def add(z: jax.Array, x: Any) -> jax.Array:
        return (jnp.asarray(x).astype(z.dtype) + z * _scale(stddev, z.dtype)).astype(
            jnp.result_type(x)
        )

    return jax.tree.map(add, normals(key, tree), tree)
