"""Capacity of a Gaussian channel in nats, and the noise that brings it down to a number of nats.

A record with covariance S, seen through added noise of variance v, gives away at most (1/2) sum
ln(1 + l_i / v) nats about itself, l the eigenvalues of S. Noise is handled by its logarithm: at 300
nats in three directions the variance is e^-200. Functions compute in at least float32 (bfloat16
comes back as float32), are safe under jit and vmap, refuse shapes only, and answer values out of
range by NaN or an infinity, as each one says. A NaN in the input gives NaN.

Source: Tan et al. (2024), "Defending Against Data Reconstruction Attacks in Federated Learning: An
Information Theory Approach", arXiv:2403.01268, Theorem 2 and Eq. 12-19.
"""

from typing import Any

import jax
import jax.numpy as jnp

NEWTON_STEPS = 24


def log_expm1(x: Any) -> jax.Array:
    """ln(e^x - 1) of any shape, x >= 0: no overflow for large x, no cancellation for small; x = 0
    gives -inf.
    """
    x = at_least_float32(x)
    large = x > 1
    # where on the inputs too: the branch that is not taken must have a finite derivative
    above = jnp.where(large, x, jnp.ones_like(x))
    below = jnp.where(large, jnp.ones_like(x), x)
    return jnp.where(large, above + jnp.log1p(-jnp.exp(-above)), jnp.log(jnp.expm1(below)))


def capacity(values: Any, log_noise_var: Any) -> jax.Array:
    """(1/2) sum_i ln(1 + values_i / noise_var_i), nats.

    Args:
      values: `[d]`, eigenvalues of the covariance; those <= 0 add nothing.
      log_noise_var: `[]` or `[d]`, natural logarithm of the noise variance. -inf is no noise: the
        result is +inf if any of these values is positive. +inf gives 0.

    Returns:
      `[]`, nats.

    Raises:
      ValueError: a shape does not fit.
    """
    values = spectrum_of(values)
    log_noise_var = jnp.asarray(log_noise_var, values.dtype)
    if log_noise_var.shape not in ((), values.shape):
        raise ValueError(
            f"Expected log_noise_var of shape [] or {values.shape}, got shape "
            f"{log_noise_var.shape}."
        )
    counts, logs = positive_logs(values)
    noise = jnp.broadcast_to(log_noise_var, values.shape)
    counts = counts | jnp.isnan(noise)
    # a masked value must not form inf - inf; both are constants there
    gap = jnp.where(counts, logs, 0) - jnp.where(counts, noise, 0)
    return jnp.sum(jnp.where(counts, jax.nn.softplus(gap), 0)) / 2


def capacity_dense(cov: Any, noise_cov: Any) -> jax.Array:
    """(1/2) ln det(I + cov noise_cov^-1), nats: a noise of any covariance.

    Args:
      cov: `[d, d]`, symmetric, positive semidefinite; eigenvalues that rounding left below 0 count
        as 0.
      noise_cov: `[d, d]`, symmetric, positive definite; else NaN.

    Returns:
      `[]`, nats.

    Raises:
      ValueError: a shape does not fit.
    """
    cov = square("cov", cov)
    noise_cov = jnp.asarray(noise_cov, cov.dtype)
    if noise_cov.shape != cov.shape:
        raise ValueError(f"Expected noise_cov of shape {cov.shape}, got shape {noise_cov.shape}.")
    # Whitened, not as a difference of two log-determinants: that one cancels when the noise is
    # large.
    root = jnp.linalg.cholesky(noise_cov)
    half = jax.scipy.linalg.solve_triangular(root, cov, lower=True)
    white = jax.scipy.linalg.solve_triangular(root, half.T, lower=True)
    return capacity(jnp.linalg.eigvalsh((white + white.T) / 2), 0.0)


def capacity_gram(gram: Any, noise_var: Any) -> jax.Array:
    """(1/2) ln det(I + gram / noise_var), nats, of N rows known by their Gram matrix `[N, N]`;
    noise_var `[]`, >= 0.
    """
    gram = square("gram", gram)
    return capacity(jnp.linalg.eigvalsh(gram), jnp.log(scalar("noise_var", noise_var, gram.dtype)))


def solve_log_noise_var(values: Any, nats: Any) -> jax.Array:
    """The logarithm of the noise variance at which `capacity(values, .)` is `nats`.

    Newton's method from the left in a bracket of closed forms; the capacity is convex and
    decreasing in the logarithm, so it never leaves on the right, and `NEWTON_STEPS` steps reach
    rounding for 1e-9 to 1e4 nats and spectra over 20 decades. The derivative is the implicit
    function's, so nothing of the iteration is differentiated. In float32 the capacity at the result
    is within 1e-6 of `nats`, relative, while the result is below 16; above, the spacing of float32
    numbers rules.

    Args:
      values: `[d]`, eigenvalues; those <= 0 count as 0. Many clients: `jax.vmap`.
      nats: `[]`, > 0.

    Returns:
      `[]`. nats = 0 gives +inf, infinite nats give -inf. Negative nats, and a spectrum without a
      positive value (its capacity is 0 whatever the noise), give NaN.

    Raises:
      ValueError: a shape does not fit.
    """
    values = spectrum_of(values)
    return _solve(values, scalar("nats", nats, values.dtype))


@jax.custom_jvp
def _solve(values: jax.Array, nats: jax.Array) -> jax.Array:
    pos, logs = positive_logs(values)
    rank = jnp.sum(pos, dtype=values.dtype)
    top = jnp.max(logs)
    logs = jnp.where(pos, logs - top, 0)  # of values relative to the largest one: rounds least
    proper = (nats > 0) & (nats < jnp.inf) & (rank > 0)
    goal, count = jnp.where(proper, nats, 1), jnp.where(proper, rank, 1)
    share = log_expm1(2 * goal / count)
    low = jnp.maximum(jnp.sum(logs) / count - share, -log_expm1(2 * goal))
    high = jnp.log(jnp.sum(jnp.where(pos, jnp.exp(logs), 0)) / count) - share
    # Each end is the root itself for some spectra: leave room for their rounding.
    room = 4 * jnp.finfo(values.dtype).eps
    low, high = low - room * (1 + jnp.abs(low)), high + room * (1 + jnp.abs(high))

    def step(_: Any, s: jax.Array) -> jax.Array:
        gap = logs - s
        small = jnp.exp(-jnp.abs(gap))
        nats_here = jnp.sum(jnp.where(pos, jnp.maximum(gap, 0) + jnp.log1p(small), 0)) / 2
        slope = jnp.sum(jnp.where(pos, jnp.where(gap > 0, 1, small) / (1 + small), 0)) / 2
        return jnp.clip(s + (nats_here - goal) / slope, low, high)

    root = jax.lax.fori_loop(0, NEWTON_STEPS, step, low) + top
    edge = jnp.where(nats == 0, jnp.inf, jnp.where(nats == jnp.inf, -jnp.inf, jnp.nan))
    return jnp.where(proper, root, jnp.where(rank > 0, edge, jnp.nan)).astype(values.dtype)


@_solve.defjvp
def _solve_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    values, nats = primals
    root = _solve(values, nats)
    pos, logs = positive_logs(values)
    share = jnp.where(pos, jax.nn.sigmoid(logs - root), 0)  # lam / (lam + sigma)
    # 1 / (lam + sigma), which is 1 / sigma at lam = 0, kept finite
    largest = jnp.log(jnp.finfo(values.dtype).max) - 1
    inverse = jnp.where(
        pos, share / jnp.where(pos, values, 1), jnp.exp(jnp.minimum(-root, largest))
    )
    slope = jnp.sum(share)
    return root, (jnp.sum(inverse * tangents[0]) - 2 * tangents[1]) / slope


def white_log_snr(nats: Any, d: int) -> jax.Array:
    """Logarithm of the signal-to-noise ratio that gives `nats` `[]` when all of d directions share
    it (Eq. 19).

    The noise has covariance S / exp(result); directions without variance count among the d and get
    no noise.
    """
    return log_expm1(2 * at_least_float32(nats) / d)


def compose_capacity(precision_sum: Any, values: Any) -> jax.Array:
    """Nats per record after independent draws of one noise shape: they tell as much as their
    weighted mean.

    Args:
      precision_sum: `[N]`, sum over a record's draws of 1 / noise_var; 0 where there was none.
      values: `[d]`, as in `capacity`; for a noise of variances sigma * weights,
        `personalized_values`.

    Returns:
      `[N]`, 0 where the sum is 0, +inf where it is.

    Raises:
      ValueError: a shape does not fit.
    """
    values = spectrum_of(values)
    precision_sum = jnp.asarray(precision_sum, values.dtype)
    if precision_sum.ndim != 1:
        raise ValueError(f"Expected precision_sum of shape [N], got shape {precision_sum.shape}.")
    return jax.vmap(capacity, in_axes=(None, 0))(values, -jnp.log(precision_sum))


def clipped_capacity(
    batch_size: Any,
    l2_clip_norm: Any,
    noise_var: Any,
    num_params: Any = None,
    iid: bool = True,
    paper: bool = False,
) -> jax.Array:
    """Nats that a noisy sum of clipped gradients gives away about its batch as a whole.

    (K/2) ln(1 + B S^2 / (K v)), at most B S^2 / (2 v), which is its limit for K = None.

    Args:
      batch_size: `[]`, B. l2_clip_norm: `[]`, S. num_params: `[]`, K, or None for the limit.
      noise_var: `[]`, v, variance of the noise on the *sum*.
      iid: False takes B^2 for B: records that may depend on one another.
      paper: True gives the printed B S^2 / v, which lost a factor 1/2.

    Source: Theorem 4 of the paper, with its proof's missing factor.
    """
    noise_var = at_least_float32(noise_var)
    batch_size = jnp.asarray(batch_size, noise_var.dtype)
    trace = (
        (batch_size if iid else batch_size**2)
        * jnp.asarray(l2_clip_norm, noise_var.dtype) ** 2
        / noise_var
    )
    if paper:
        return trace
    if num_params is None:
        return trace / 2
    num_params = jnp.asarray(num_params, noise_var.dtype)
    return num_params / 2 * jnp.log1p(trace / num_params)


def compression_drop(cov: Any, noise_var: Any, keep_mask: Any) -> jax.Array:
    """Nats by which the capacity falls when only the coordinates of a mask are sent.

    Args:
      cov: `[d, d]`. noise_var: `[]`, > 0; at 0 what is left is infinite still, and the fall inf or
        NaN.
      keep_mask: `[d]`, bool, chosen without looking at the data: a choice by the data tells
        something itself, and changes the law of what is kept, so that this capacity is not the one
        of what is sent.

    Returns:
      `[]`, >= 0 up to rounding.

    Raises:
      ValueError: a shape does not fit.
    """
    cov = square("cov", cov)
    keep = jnp.asarray(keep_mask, bool)
    if keep.shape != cov.shape[:1]:
        raise ValueError(f"Expected keep_mask of shape {cov.shape[:1]}, got shape {keep.shape}.")
    kept = jnp.where(keep[:, None] & keep[None, :], cov, jnp.zeros((), cov.dtype))
    return capacity_gram(cov, noise_var) - capacity_gram(kept, noise_var)


def at_least_float32(x: Any) -> jax.Array:
    """`x` as an array in float32 or float64; an integer takes JAX's default."""
    x = jnp.asarray(x)
    if x.dtype in (jnp.float32, jnp.float64):
        return x
    return x.astype(jnp.float32 if jnp.issubdtype(x.dtype, jnp.floating) else float)


def spectrum_of(values: Any) -> jax.Array:
    """`values` as `[d]`, d >= 1, in at least float32."""
    values = at_least_float32(values)
    if values.ndim != 1 or values.shape[0] < 1:
        raise ValueError(f"Expected values of shape [d], d >= 1, got shape {values.shape}.")
    return values


def square(name: str, matrix: Any) -> jax.Array:
    """`matrix` as `[d, d]`, d >= 1, in at least float32."""
    matrix = at_least_float32(matrix)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.shape[0] < 1:
        raise ValueError(f"Expected {name} of shape [d, d], d >= 1, got shape {matrix.shape}.")
    return matrix


def scalar(name: str, value: Any, dtype: Any) -> jax.Array:
    """`value` as `[]`."""
    value = jnp.asarray(value, dtype)
    if value.ndim != 0:
        raise ValueError(f"Expected {name} to be a scalar, got shape {value.shape}.")
    return value


def positive_logs(values: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Which of `values` count (a NaN does, so that it shows), and their logarithms, -inf
    elsewhere.
    """
    counts = ~(values <= 0)
    return counts, jnp.where(counts, jnp.log(jnp.where(counts, values, 1)), -jnp.inf)
