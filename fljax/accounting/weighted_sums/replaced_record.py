"""Exact Renyi divergence of two Gaussian-weighted sums that differ in one record, from three inner
products.

Both worlds share noise of covariance m I; one has the record a, the other b, each adding q a a^T to
the covariance and a / D to the mean. More noise common to both can only lower the divergence, so m
may be any lower bound.

Source: this library; checks bounds on the mechanisms of arXiv:2405.04551.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax.accounting import _x64

_ROUNDS = 30


def _log1p_rest(x: jax.Array) -> jax.Array:
    """log(1 + x) - x without cancellation."""
    small = jnp.abs(x) < 0.03
    near, far = jnp.where(small, x, 0.0), jnp.where(small, 0.0, x)
    return jnp.where(
        small, sum((-1) ** (k + 1) / k * near**k for k in range(2, 13)), jnp.log1p(far) - far
    )


@_x64.float64
@jax.jit
def divergence(
    first_square: Any,
    second_square: Any,
    product: Any,
    orders: Any,
    *,
    floor: Any,
    weight: Any,
    num_records: Any,
) -> jax.Array:
    """Renyi divergence `[..., K]` of the world with record a from that with record b.

    Args:
      first_square, second_square, product: |a|^2, |b|^2 and a.b, `[...]`.
      orders: `[K]`, each > 1.
      floor: m > 0. weight: q = 1 / (B D). num_records: D.

    Returns:
      Nats, +inf where the mixed covariance is not positive definite, NaN for numbers that no
      records have.
    """
    a2, b2, ab, m, q, d = (
        _x64.as64(v)[..., None]
        for v in (first_square, second_square, product, floor, weight, num_records)
    )
    order = _x64.renyi_orders(orders)
    possible = (a2 >= 0) & (b2 >= 0) & (ab**2 <= a2 * b2 * (1 + 1e-9)) & (m > 0) & (q >= 0)
    possible &= (d > 0) & jnp.isfinite(d)
    r = q / m
    cross = r**2 * (1 - order) * order * (a2 * b2 - ab**2)
    linear = r * ((1 - order) * a2 + order * b2)
    defined = (linear + cross > -1) & (linear > -2)
    rest = jnp.where(defined, linear + cross, 0.0)
    # The terms of first order in r cancel; what is left of each logarithm does not contain them.
    logs = (
        (1 - order) * _log1p_rest(r * a2) + order * _log1p_rest(r * b2) - _log1p_rest(rest) - cross
    )
    first, second = (1 - order) * r, order * r
    left, right = a2 - ab, ab - b2
    form = (
        (1 + b2 * second) * left
        - ab * second * right
        + ab * first * left
        - (1 + a2 * first) * right
    )
    value = logs / (2 * (order - 1)) + order / 2 * form / ((1 + rest) * m * d**2)
    return jnp.where(possible, jnp.where(defined, jnp.maximum(value, 0.0), jnp.inf), jnp.nan)


@_x64.float64
@jax.jit
def worst(
    orders: Any, *, floor: Any, l2_clip_norm: Any, batch_size: Any, num_records: Any
) -> jax.Array:
    """Largest divergence `[K]` over pairs of records within the clip norm, by search: a value
    reached, not a bound.

    Args:
      orders: `[K]`.
      floor, l2_clip_norm, batch_size, num_records: scalars, as in `curves.joint`, for isotropic or
        no added noise.
    """
    c, b, d = (_x64.positive(v) for v in (l2_clip_norm, batch_size, num_records))
    # Square root of the lengths, so that the grid is dense near C; a point is (|a| / C, |b| / C,
    # cosine).
    axes = jnp.meshgrid(*(np.linspace(0, 1, 25),) * 2, np.linspace(-1, 1, 41), indexing="ij")
    points = jnp.stack([axis.ravel() for axis in axes], -1)
    near = np.stack(np.meshgrid(*(np.linspace(-1, 1, 7),) * 3, indexing="ij"), -1).reshape(-1, 3)

    def one(order: jax.Array) -> jax.Array:
        def values(p: jax.Array) -> jax.Array:
            a2, b2 = (c * p[:, 0]) ** 2, (c * p[:, 1]) ** 2
            ab = c**2 * p[:, 0] * p[:, 1] * p[:, 2]
            return divergence(
                a2, b2, ab, order[None], floor=floor, weight=1 / (b * d), num_records=d
            )[:, 0]

        def refine(
            state: tuple[jax.Array, jax.Array], _: Any
        ) -> tuple[tuple[jax.Array, jax.Array], None]:
            centre, size = state
            around = centre + size * near * np.asarray([1.0, 1.0, 2.0])
            around = jnp.clip(around, np.asarray([0.0, 0.0, -1.0]), 1.0)
            return (around[jnp.argmax(values(around))], size * 0.6), None

        start = points[jnp.argmax(values(points))]
        (best, _), _ = jax.lax.scan(refine, (start, jnp.asarray(0.05)), None, length=_ROUNDS)
        return values(best[None])[0]

    return jax.lax.map(one, _x64.as64(orders))
