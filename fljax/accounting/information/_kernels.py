"""The kernels of `fljax_kernels.spectral` in float64; leading axes are clients."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax.accounting import _x64
from fljax_kernels import spectral

_PIECE = 64


def over_clients(
    fun: Callable[[Any, Any], Any], values: np.ndarray, numbers: np.ndarray
) -> np.ndarray:
    """`fun(values, numbers)` of one number for each client, `[...]`, where one spectrum `[d]` may
    serve them all.

    Then only distinct numbers are computed, in pieces of one length: one program, and memory for
    `_PIECE` clients.
    """
    if values.ndim > 1 or numbers.ndim == 0:
        return np.asarray(fun(values, numbers))
    distinct, place = np.unique(numbers, return_inverse=True)
    if not distinct.size:
        return np.zeros(numbers.shape)
    padded = np.concatenate([distinct, np.full(-distinct.size % _PIECE, distinct[-1])])
    found = np.concatenate([np.asarray(fun(values, part)) for part in padded.reshape(-1, _PIECE)])
    return found[place].reshape(numbers.shape)


@_x64.float64
@jax.jit
def solve(values: Any, nats: Any) -> jax.Array:
    """`[..., d]`, `[...]` -> `[...]`, the logarithm of the noise variance."""
    return jnp.vectorize(spectral.solve_log_noise_var, signature="(d),()->()")(
        _x64.as64(values), _x64.as64(nats)
    )


@_x64.float64
@jax.jit
def capacity(values: Any, log_noise_var: Any) -> jax.Array:
    """`[..., d]`, `[...]` -> `[...]` nats."""
    fun = jnp.vectorize(spectral.capacity, signature="(d),()->()")
    return fun(_x64.as64(values), _x64.as64(log_noise_var))


@_x64.float64
@jax.jit
def composed(values: Any, precision_sum: Any) -> jax.Array:
    """`[d]`, `[n]` -> `[n]` nats."""
    return spectral.compose_capacity(_x64.as64(precision_sum), _x64.as64(values))


@_x64.float64
def clipped_capacity(
    batch_size: int, noise_var: float, num_params: int | None, *, iid: bool, paper: bool
) -> jax.Array:
    """`[]`, at a clip norm of 1."""
    return spectral.clipped_capacity(
        batch_size, 1.0, _x64.as64(noise_var), num_params, iid=iid, paper=paper
    )


@_x64.float64
def mse_entropy_bound(entropy: Any, nats: Any, d: int) -> jax.Array:
    """`[...]`, `[...]` -> `[...]`."""
    return spectral.mse_entropy_bound(_x64.as64(entropy), _x64.as64(nats), d)


@_x64.float64
@jax.jit
def log_expm1(x: Any) -> jax.Array:
    """`[...]` -> `[...]`."""
    return spectral.log_expm1(_x64.as64(x))


@_x64.float64
@jax.jit
def min_power(values: Any, nats: Any) -> jax.Array:
    """`[..., d]`, `[...]` -> `[..., d]` noise variances."""
    return jnp.vectorize(spectral.min_power_noise_var, signature="(d),()->(d)")(
        _x64.as64(values), _x64.as64(nats)
    )


@_x64.float64
@jax.jit
def personalized(cov: Any, weights: Any) -> jax.Array:
    """`[d, d]`, `[d]` -> `[d]`."""
    return spectral.personalized_values(_x64.as64(cov), _x64.as64(weights))


@_x64.float64
@jax.jit
def solve_hadamard(cov: Any, weights: Any, nats: Any) -> jax.Array:
    """`[d, d]`, `[d]`, `[]` -> `[]`."""
    return spectral.solve_log_noise_var_hadamard(
        _x64.as64(cov), _x64.as64(weights), _x64.as64(nats)
    )


@_x64.float64
@jax.jit
def precision_values(cov: Any, precision: Any) -> jax.Array:
    """Eigenvalues `[d]` of cov * precision, both `[d, d]`; NaN unless precision is positive
    definite.
    """
    root = jnp.linalg.cholesky(_x64.as64(precision))
    inner = root.T @ _x64.as64(cov) @ root
    return jnp.linalg.eigvalsh((inner + inner.T) / 2)


@_x64.float64
@jax.jit
def mse_projected(values: Any, nats: Any) -> jax.Array:
    """`[..., d]`, `[...]` -> `[...]`."""
    return jnp.vectorize(spectral.mse_projected, signature="(d),()->()")(
        _x64.as64(values), _x64.as64(nats)
    )


@_x64.float64
@jax.jit
def mse_distortion_rate(values: Any, nats: Any) -> jax.Array:
    """`[..., d]`, `[...]` -> `[...]`."""
    return jnp.vectorize(spectral.mse_distortion_rate, signature="(d),()->()")(
        _x64.as64(values), _x64.as64(nats)
    )


@_x64.float64
@jax.jit
def mse_linear(values: Any, noise_var: Any) -> jax.Array:
    """`[..., d]`, `[..., d]` -> `[...]`."""
    return jnp.vectorize(spectral.mse_linear, signature="(d),(d)->()")(
        _x64.as64(values), _x64.as64(noise_var)
    )


@_x64.float64
@jax.jit
def drop(cov: Any, noise_var: Any, keep: Any) -> jax.Array:
    """`[d, d]`, `[]`, `[d]` -> `[]` nats."""
    return spectral.compression_drop(_x64.as64(cov), _x64.as64(noise_var), keep)
