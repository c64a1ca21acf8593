"""What a number of nats leaves of a record: lower bounds on the mean squared error of any
reconstruction.

All results are per coordinate, in the unit of the data squared, and all hold in expectation over
records and noise, not for one record. For a Gaussian record, at equal nats, mse_entropy_bound <=
mse_projected <= mse_distortion_rate <= mse_linear, the last being what the best estimator gets.

Source: Tan et al. (2024), arXiv:2403.01268, Theorem 1; Cover and Thomas, "Elements of Information
Theory", 10.3.3 (distortion rate of a Gaussian vector).
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

from fljax_kernels.spectral.channel import at_least_float32, positive_logs, scalar, spectrum_of


def mse_entropy_bound(entropy: Any, nats: Any, d: int) -> jax.Array:
    """Theorem 1: exp(2 (entropy - nats) / d) / (2 pi e), for any distribution with this
    differential entropy.

    Args:
      entropy: `[]`, differential entropy of the object that is reconstructed, nats; -inf gives 0. A
        Gaussian of equal covariance has *more*: to put its entropy in claims too much.
      nats: `[]`, >= 0; +inf gives 0. d: number of its coordinates.
    """
    entropy = at_least_float32(entropy)
    nats = jnp.asarray(nats, entropy.dtype)
    return jnp.exp((2 * entropy - 2 * nats) / d - math.log(2 * math.pi * math.e))


def mse_projected(values: Any, nats: Any) -> jax.Array:
    """Theorem 1 for the projection of a Gaussian on its k greatest eigenvalues, at the best k.

    Args:
      values: `[d]`, eigenvalues of the covariance, in any order. nats: `[]`, >= 0.

    Raises:
      ValueError: a shape does not fit.
    """
    values = spectrum_of(values)
    level = _levels(values, scalar("nats", nats, values.dtype))
    kept = jnp.arange(1, values.shape[0] + 1, dtype=values.dtype)
    return jnp.max(jnp.exp(level) * kept / values.shape[0])


def mse_distortion_rate(values: Any, nats: Any) -> jax.Array:
    """The least error that any description of a Gaussian in `nats` nats allows: mean of min(theta,
    values).

    Args:
      values: `[d]`, eigenvalues of the covariance, in any order. nats: `[]`, >= 0.

    Raises:
      ValueError: a shape does not fit.
    """
    values = spectrum_of(values)
    theta = jnp.exp(jnp.max(_levels(values, scalar("nats", nats, values.dtype))))
    return jnp.mean(jnp.minimum(theta, jnp.where(values <= 0, 0, values)))


def mse_linear(values: Any, noise_var: Any) -> jax.Array:
    """Error of the best linear estimator from value + noise, which for a Gaussian is the best of
    all.

    Args:
      values: `[d]`, eigenvalues of the covariance. noise_var: `[]` or `[d]`, along the same
        directions, >= 0.

    Raises:
      ValueError: a shape does not fit.
    """
    values = spectrum_of(values)
    noise_var = jnp.asarray(noise_var, values.dtype)
    if noise_var.shape not in ((), values.shape):
        raise ValueError(
            f"Expected noise_var of shape [] or {values.shape}, got shape {noise_var.shape}."
        )
    counts = ~(values <= 0)
    safe = jnp.where(counts, values, 1)
    return jnp.mean(jnp.where(counts, safe / (1 + safe / noise_var), 0))


def _levels(values: jax.Array, nats: jax.Array) -> jax.Array:
    """`[d]`: (sum of the k greatest logarithms - 2 nats) / k for k = 1..d, -inf where an eigenvalue
    <= 0 is among them.

    The water level of reverse water filling is the greatest of them: no search.
    """
    _, logs = positive_logs(values)
    order = jnp.sort(logs, descending=True)
    inside = ~(order == -jnp.inf)
    summed = jnp.cumsum(jnp.where(inside, order, 0))
    kept = jnp.arange(1, values.shape[0] + 1, dtype=values.dtype)
    level = jnp.where(inside, (summed - 2 * nats) / kept, -jnp.inf)
    return jnp.where(jnp.any(jnp.isnan(values)), jnp.nan, level)
