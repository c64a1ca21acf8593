"""Discrete Gaussian noise on a Poisson sample: atoms whose losses lie on no lattice.

With f the chances of the noise and d the sensitivity, Q has f(y) at the integer y, P has
(1 - q) f(y) + q f(y - d). The atoms of a cell are merged, as the cells of a density are.
"""

from __future__ import annotations

from fljax.accounting._arrays import add_at, jax, jnp, logsumexp
from fljax.accounting.pld.pair_masses import TINY, UNIT, Cells, steps

ATOMS = 4096


def losses(unsampled: jax.Array, prob: jax.Array) -> jax.Array:
    """log(1 - q + q e^loss) `[...]` of the losses `unsampled`."""
    near = jnp.log1p(prob * jnp.expm1(jnp.minimum(unsampled, 1.0)))
    far = jnp.logaddexp(jnp.log1p(-prob), jnp.log(prob) + unsampled)
    return jnp.where(unsampled < 1.0, near, far)


def logs(
    y: jax.Array, stddev: jax.Array, sensitivity: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Logs of f(y), f(y - d), neither normalised, and the unsampled loss at y `[...]`."""
    loss = sensitivity * (2.0 * y - sensitivity) / (2.0 * stddev**2)
    return -0.5 * (y / stddev) ** 2, -0.5 * ((y - sensitivity) / stddev) ** 2, loss


def cells(
    stddev: jax.Array,
    sensitivity: jax.Array,
    prob: jax.Array,
    sign: jax.Array,
    h: jax.Array,
    first: jax.Array,
    offset: jax.Array,
    n: int,
) -> Cells:
    """Cells of the atoms; stddev <= 50 and 38 stddev + sensitivity <= 2040, so that less than
    1e-300 lies beyond them.
    """
    y = steps(ATOMS) - ATOMS // 2
    alone, there, unsampled = logs(y, stddev, sensitivity)
    total = logsumexp(alone)
    q, u = jnp.exp(alone - total), prob * jnp.exp(there - total)
    loss = sign * losses(unsampled, prob)
    # Half cells: cuts are at (first + j / 2 - 1 / 2) h + offset.
    place = 2.0 * ((loss - offset) / h - first) + 1.0
    index = jnp.clip(jnp.floor(place) + 1.0, 0, 2 * n + 1).astype(jnp.int32)
    empty = jnp.zeros((2 * n + 2,), q.dtype)
    relative = (64 + 4 * jnp.abs(alone)) * UNIT, (64 + 4 * jnp.abs(there)) * UNIT
    heavy = jnp.where(q + u > 1e-300, jnp.abs(loss), 0.0)
    return Cells(
        q=add_at(empty, index, q),
        u=add_at(empty, index, u),
        q_error=add_at(empty, index, q * relative[0]) + TINY,
        u_error=add_at(empty, index, u * relative[1]) + TINY,
        # An atom within rounding of a cut may be counted on its other side.
        slack=32 * UNIT * (jnp.max(heavy) + jnp.abs(offset) + h * (jnp.abs(first) + n)),
        moved=prob,
    )
