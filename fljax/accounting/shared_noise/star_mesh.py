"""Inverses of grounded Laplacians to full relative precision, by the star-mesh rule of resistor
networks.

C = diag(ground) + Laplacian(conductance). Removing a node joins its neighbours by new conductances,
and every operation is a sum, product or quotient of numbers >= 0: no digits cancel, whatever the
ratio of the variances (plain Cholesky loses as many as log10 of that ratio), and a part of the
network without a path to ground has a pivot of exactly 0.
"""

import jax
import jax.numpy as jnp


def factor(ground: jax.Array, conductance: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(X, pivots) with C^-1 = X^T diag(1 / pivots) X; X `[N, N]` is lower triangular and >= 0.

    Args:
      ground: `[N]`, >= 0.
      conductance: `[N, N]`, symmetric, >= 0; its diagonal is ignored.
    """
    size = ground.shape[0]
    index = jnp.arange(size)

    def remove(
        k: jax.Array, state: tuple[jax.Array, jax.Array, jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        ground, conductance, ratios, pivots = state
        row = jnp.where(index > k, conductance[k], 0.0)
        pivot = ground[k] + row.sum()
        ratio = jnp.where(pivot > 0, row / jnp.where(pivot > 0, pivot, 1.0), 0.0)
        return (
            ground + ratio * ground[k],
            conductance + row[:, None] * ratio,
            ratios.at[:, k].set(ratio),
            pivots.at[k].set(pivot),
        )

    zero = jnp.zeros((size, size))
    _, _, ratios, pivots = jax.lax.fori_loop(
        0, size, remove, (ground, conductance, zero, jnp.zeros(size))
    )
    eye = jnp.eye(size)
    return jax.scipy.linalg.solve_triangular(
        eye - ratios, eye, lower=True, unit_diagonal=True
    ), pivots


def inverse_diagonal(ground: jax.Array, conductance: jax.Array) -> jax.Array:
    """Diagonal `[N]` of C^-1, the resistances to ground; +inf without a path to it."""
    lower, pivots = factor(ground, conductance)
    grounded = pivots[:, None] > 0
    terms = jnp.where(grounded, lower**2 / jnp.where(grounded, pivots[:, None], 1.0), 0.0)
    lost = jnp.any((lower > 0) & ~grounded, 0)
    return jnp.where(lost, jnp.inf, terms.sum(0))


def inverse(ground: jax.Array, conductance: jax.Array) -> jax.Array:
    """C^-1 `[N, N]`; +inf between nodes of a part without a path to ground."""
    lower, pivots = factor(ground, conductance)
    safe = jnp.where(pivots > 0, pivots, 1.0)
    good = lower.T @ jnp.where(pivots[:, None] > 0, lower / safe[:, None], 0.0)
    lost = jnp.where(pivots[:, None] > 0, 0.0, lower).T @ lower
    return jnp.where(lost > 0, jnp.inf, good)
