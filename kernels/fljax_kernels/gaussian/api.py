"""gaussian_noise and add_gaussian_noise: what they promise, and their checks."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax_kernels import _meshes
from fljax_kernels.gaussian import reference, unrolled


def gaussian_noise(keys: jax.Array, like: Any, stddev: float | jax.Array) -> Any:
    """Draws one Gaussian tree per client.

    Guarantee: entries are independent N(0, stddev**2), over entries, leaves and clients whose keys
    differ. Client c's noise depends on `keys[c]` only: with threefry keys (JAX's default) it has
    the same bits whatever C is, in a loop, under `vmap` and under `jit`. Idealisation:
    `jax.random.normal` draws float32 from 2**23 values in [-5.42, 5.22] standard deviations; it is
    neither exactly Gaussian nor safe against attacks on floating-point bits (Mironov 2012;
    arXiv:2207.13793). It is never drawn in less than float32: 16-bit normals take 128 or 1024
    values.

    The sum over clients has the law of one draw with stddev sqrt(sum_c stddev_c**2): where no
    client's own noise is looked at, `add_gaussian_noise` on the sum does the same C times cheaper.

    Args:
      keys: `[C]` typed PRNG keys, each used once. C may be 0.
      like: pytree of floating arrays (or `jax.ShapeDtypeStruct`), without a client axis: gives
        shapes and dtypes.
      stddev: absolute, in the unit of what the noise is added to; a scalar or `[C]`. >= 0.

    Returns:
      Pytree of `[C, ...]` arrays with the dtypes of `like`; cast last.

    Raises:
      ValueError: an argument is out of range or not of the stated kind.
    """
    check_floating("like", like)
    _check_stddev(stddev)
    if not _is_key(keys) or np.ndim(keys) != 1:
        raise ValueError(f"Expected keys to be [C] typed PRNG keys, got {_describe(keys)}.")
    if np.ndim(stddev) > 1 or (np.ndim(stddev) == 1 and np.shape(stddev) != np.shape(keys)):
        raise ValueError(
            f"Expected stddev to be a scalar or of shape {np.shape(keys)}, got shape "
            f"{np.shape(stddev)}."
        )

    def draw(keys: jax.Array, like: Any, stddev: Any) -> Any:
        return reference.gaussian_noise(keys, like, stddev, unrolled.half_variance_normals)

    at = _meshes.home(keys, like, stddev)
    if at is None:
        return draw(keys, like, stddev)
    first = _meshes.leading(keys)
    noise = _meshes.compute(at, draw, keys, like, stddev)
    return jax.tree.map(
        lambda x, leaf: at.leave(x, _meshes.beside(first, _meshes.spec(leaf))), noise, like
    )


def add_gaussian_noise(key: jax.Array, tree: Any, stddev: float | jax.Array) -> Any:
    """Adds independent N(0, stddev**2) to every entry of a tree.

    Guarantee: on a sum which one privacy unit moves by at most s in L2 norm, this is the Gaussian
    mechanism with noise multiplier stddev / s, under the idealisation of `gaussian_noise`. Drawn
    and added in float32 at least, cast to the leaf's dtype last, which is post-processing. A NaN in
    `tree` stays one: clip first.

    Args:
      key: typed PRNG key, used once. The noise is that of `gaussian_noise` for this key.
      tree: pytree of floating arrays.
      stddev: scalar, absolute, in the unit of `tree`. >= 0.

    Returns:
      `tree` with noise; shapes and dtypes stay.

    Raises:
      ValueError: an argument is out of range or not of the stated kind.
    """
    check_floating("tree", tree)
    _check_stddev(stddev)
    if not _is_key(key) or np.ndim(key) != 0:
        raise ValueError(f"Expected key to be one typed PRNG key, got {_describe(key)}.")
    if np.ndim(stddev) != 0:
        raise ValueError(f"Expected stddev to be a scalar, got shape {np.shape(stddev)}.")

    def add(key: jax.Array, tree: Any, stddev: Any) -> Any:
        return reference.add_gaussian_noise(key, tree, stddev, unrolled.half_variance_normals)

    at = _meshes.home(tree)
    if at is None:
        return add(key, tree, stddev)
    noisy = _meshes.compute(at, add, key, tree, stddev)
    return jax.tree.map(lambda x, leaf: at.leave(x, _meshes.spec(leaf)), noisy, tree)


def _is_key(key: Any) -> bool:
    return hasattr(key, "dtype") and jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key)


def _describe(key: Any) -> str:
    return f"{getattr(key, 'dtype', type(key).__name__)} of shape {np.shape(key)}"


def check_floating(name: str, tree: Any) -> None:
    """Raises ValueError for a leaf that is not floating, into which noise would be rounded."""
    for leaf in jax.tree.leaves(tree):
        dtype = leaf.dtype if hasattr(leaf, "dtype") else jnp.result_type(leaf)
        if not jnp.issubdtype(dtype, jnp.floating):
            raise ValueError(f"Expected {name} with floating leaves, got {dtype}.")


def _check_stddev(stddev: Any) -> None:
    if isinstance(stddev, jax.core.Tracer):
        return
    if not bool(np.all((np.asarray(stddev) >= 0) & np.isfinite(stddev))):
        raise ValueError(f"Expected stddev >= 0 and finite, got stddev={stddev!r}.")
