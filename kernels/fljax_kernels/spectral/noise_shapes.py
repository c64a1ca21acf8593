"""Noise that is not the same in every direction: weighted by coordinate, and of least power.

Conventions, source and behaviour out of range are those of `channel`.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

from fljax_kernels.spectral.channel import (
    capacity,
    log_expm1,
    positive_logs,
    scalar,
    solve_log_noise_var,
    spectrum_of,
    square,
)

BISECTIONS = 60


def personalized_values(cov: Any, weights: Any) -> jax.Array:
    """Eigenvalues of diag(weights)^-1/2 cov diag(weights)^-1/2, ascending, >= 0.

    With them, `capacity` and `solve_log_noise_var` speak of a noise of covariance noise_var *
    diag(weights): exactly, at the price of one eigenvalue problem.

    Args:
      cov: `[d, d]`. weights: `[d]`, > 0; others give NaN or an infinity.

    Raises:
      ValueError: a shape does not fit.
    """
    cov, weights = _weighted(cov, weights)
    root = jnp.sqrt(weights)
    values = jnp.linalg.eigvalsh(cov / (root[:, None] * root[None, :]))
    return jnp.maximum(values, jnp.zeros((), values.dtype))


def hadamard_terms(cov: Any, weights: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The terms c, u, k of Theorem 3: ln det(cov + diag(weights)) <= min(sum ln(c + weights), sum
    ln(u + k)).

    With cov = L diag(u) L^T, L of unit diagonal, k = (L^-1 squared by entry) weights: Hadamard's
    inequality after a change of coordinates of determinant 1, so one Cholesky factor and one
    triangular inverse. The second bound depends on the order of the coordinates.

    Args:
      cov: `[d, d]`, positive definite; else u and k are NaN. weights: `[d]`, > 0.

    Returns:
      c, u, k, each `[d]`.

    Raises:
      ValueError: a shape does not fit.
    """
    cov, weights = _weighted(cov, weights)
    factor = jnp.linalg.cholesky(cov)
    diagonal = jnp.diagonal(factor)
    unit = factor / diagonal[None, :]
    inverse = jax.scipy.linalg.solve_triangular(
        unit, jnp.eye(cov.shape[0], dtype=cov.dtype), lower=True, unit_diagonal=True
    )
    k = jnp.matmul(inverse * inverse, weights, precision="highest")
    return jnp.diagonal(cov), diagonal**2, k


def capacity_hadamard(c: Any, u: Any, k: Any, weights: Any, log_noise_var: Any) -> jax.Array:
    """Upper bound on the capacity at noise covariance noise_var * diag(weights), from
    `hadamard_terms`.

    (1/2) (min(sum ln(c + v w), sum ln(u + v k)) - sum ln(v w)), a difference; the paper prints a
    quotient, which is no bound. Each sum is taken term by term against ln(v w), so that nothing
    cancels.
    """
    c = spectrum_of(c)
    u, k, weights = (jnp.asarray(x, c.dtype) for x in (u, k, weights))
    log_noise_var = scalar("log_noise_var", log_noise_var, c.dtype)
    coordinates = capacity(c / weights, log_noise_var)
    return jnp.minimum(
        coordinates, jnp.sum(jnp.log(k / weights)) / 2 + capacity(u / k, log_noise_var)
    )


def solve_log_noise_var_hadamard(cov: Any, weights: Any, nats: Any) -> jax.Array:
    """The log noise variance at which the bound `capacity_hadamard` is `nats`: never less than the
    exact solution.

    Args:
      cov: `[d, d]`, positive definite, else NaN. weights: `[d]`, > 0. nats: `[]`, > 0.

    Raises:
      ValueError: a shape does not fit.
    """
    cov, weights = _weighted(cov, weights)
    nats = scalar("nats", nats, cov.dtype)
    c, u, k = hadamard_terms(cov, weights)
    low = solve_log_noise_var(personalized_values(cov, weights), nats)
    high = solve_log_noise_var(c / weights, nats)

    def halve(_: Any, bracket: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bracket
        middle = low + (high - low) / 2
        over = capacity_hadamard(c, u, k, weights, middle) > nats
        return jnp.where(over, middle, low), jnp.where(over, high, middle)

    _, found = jax.lax.fori_loop(0, BISECTIONS, halve, (low, jnp.maximum(low, high)))
    # comparisons with NaN are False, and would walk to the lower end
    return jnp.where(jnp.isnan(jnp.sum(k)), jnp.nan, found)


def min_power_noise_var(values: Any, nats: Any) -> jax.Array:
    """Noise variances of least sum among those with (1/2) sum ln(1 + values_i / result_i) = nats.

    Args:
      values: `[d]`, eigenvalues. A value <= 0 gets *no* noise: lift the spectrum first if records
        may vary there.
      nats: `[]`, > 0.

    Returns:
      `[d]`. nats = 0 gives +inf where the value is positive; negative nats, or no positive value,
      give NaN.

    Raises:
      ValueError: a shape does not fit.
    """
    values = spectrum_of(values)
    nats = scalar("nats", nats, values.dtype)
    pos, logs = positive_logs(values)
    rank = jnp.sum(pos, dtype=values.dtype)
    proper = (nats > 0) & (nats < jnp.inf) & (rank > 0)
    goal, share = (
        jnp.where(proper, nats, 1),
        jnp.where(proper, nats, 1) / jnp.where(proper, rank, 1),
    )
    logs = jnp.where(pos, logs, 0)
    largest = jnp.max(jnp.where(pos, logs, -jnp.inf))
    least = jnp.min(jnp.where(pos, logs, jnp.inf))

    def log_noise(log_mu: jax.Array) -> jax.Array:
        """Of mu / (1 + sqrt(1 + 2 mu / value))."""
        return log_mu - jax.nn.softplus(jax.nn.softplus(math.log(2) + log_mu - logs) / 2)

    def halve(_: Any, bracket: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bracket
        middle = low + (high - low) / 2
        nats_here = jnp.sum(jnp.where(pos, jax.nn.softplus(logs - log_noise(middle)), 0)) / 2
        over = nats_here > goal
        return jnp.where(over, middle, low), jnp.where(over, high, middle)

    # mu at which a single eigenvalue, repeated, gives just `nats`
    level = math.log(2) + 2 * share - 2 * log_expm1(2 * share)
    room = 4 * jnp.finfo(values.dtype).eps * (1 + jnp.abs(level))
    _, log_mu = jax.lax.fori_loop(
        0, BISECTIONS, halve, (least + level - room, largest + level + room)
    )
    found = jnp.where(pos, jnp.exp(log_noise(log_mu)), 0)
    edge = jnp.where(nats == 0, jnp.where(pos, jnp.inf, 0), jnp.where(nats == jnp.inf, 0, jnp.nan))
    return jnp.where(proper, found, jnp.where(rank > 0, edge, jnp.nan))


def _weighted(cov: Any, weights: Any) -> tuple[jax.Array, jax.Array]:
    cov = square("cov", cov)
    weights = jnp.asarray(weights, cov.dtype)
    if weights.shape != cov.shape[:1]:
        raise ValueError(f"Expected weights of shape {cov.shape[:1]}, got shape {weights.shape}.")
    return cov, weights
