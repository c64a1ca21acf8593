"""Renyi curves of secure sums whose own randomness hides one record: Gaussian-weighted gradients
and water filling.

N clients with D records each send sum_j w_j g_j, |g_j| <= C, through an ideal secure sum. With
Gaussian weights (1/D + xi_j / sqrt(B D)) the sum is Gaussian with a covariance that depends on the
data: one replaced record moves the mean by at most 2 C / D and the covariance by a matrix of
Frobenius norm at most sqrt(2) q C^2, q = 1 / (B D).

`floor` is a lower bound m on the eigenvalues of the covariance of the SUM, in squared gradient
units: N stddev^2 for noise of stddev per client, isotropic or water filling; without added noise
the sum over clients of the least eigenvalue of sum_j g_j g_j^T / D, divided by B. The relation is
REPLACE_ONE for one record; sizes are public, clients honest.

Every function maps parameters `[...]` and orders `[K]` to `[..., K]` nats, NaN or +inf for a number
out of its range. `rounds` composes and converts.

Source: Zhang et al. (2024), "Differentially Private Federated Learning without Noise Addition: When
is it Possible?", arXiv:2405.04551. `joint` is this library's: it mends the proof of Theorem 4 and
is sharper than both theorems.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fljax import _validate
from fljax.accounting import _x64
from fljax.accounting._arrays import jax, jnp

# Of the change of the covariance, relative to q C^2: for rank-one changes, and after a lift, which
# is 1-Lipschitz in the Frobenius norm only.
_ON_HOST = 4096  # numbers that NumPy computes; more repay a compilation
_SAMPLED, _LIFTED = 1.0, float(np.sqrt(2.0))


def _wide(noise: Any, l2_clip_norm: Any, *sizes: Any) -> list[jax.Array]:
    """The parameters with an axis for orders; NaN out of range, since a square would hide a
    sign.
    """
    checked = [_x64.non_negative(noise), _x64.positive(l2_clip_norm), *map(_x64.positive, sizes)]
    return [value[..., None] for value in checked]


@_x64.float64(host=_ON_HOST, static_argnames=("lifted", "instance"))
def joint(
    orders: Any,
    *,
    floor: Any,
    l2_clip_norm: Any,
    num_records: Any,
    batch_size: Any,
    lifted: bool = False,
    instance: bool = False,
) -> jax.Array:
    """Divergence bound that treats the moves of mean and covariance together. The default
    everywhere.

    Args:
      orders: `[K]`, each > 1.
      floor: m, see the module.
      l2_clip_norm, num_records, batch_size: C, D, B. B is any number > 0; as it grows the curve
        becomes that of noise on unsampled gradients.
      lifted: the noise is water filling.
      instance: m is known for one data set only, not for all of them: no guarantee, see `rounds`.

    Returns:
      `[..., K]`; +inf from order 1 + m / (kappa q C^2) on, kappa = 1, or sqrt(2) if `lifted` (one
      less if `instance`).
    """
    m, c, d, b = _wide(floor, l2_clip_norm, num_records, batch_size)
    a = _x64.renyi_orders(orders)
    move = c**2 / (b * d)
    least = m - (a - (0.0 if instance else 1.0)) * (_LIFTED if lifted else _SAMPLED) * move
    safe = jnp.where(least > 0, least, 1.0)
    mean = a * c**2 / (d**2 * safe)
    spread = a / 2 * (move / safe) ** 2
    value = jnp.where(mean >= 2 * spread, 2 * mean, mean + spread + mean**2 / (4 * spread))
    return jnp.where(least > 0, value, jnp.inf)


@_x64.float64(host=_ON_HOST)
def unsampled(orders: Any, *, floor: Any, l2_clip_norm: Any, num_records: Any) -> jax.Array:
    """Exact divergence of isotropic noise on the mean of all records: 2 a C^2 / (D^2 m). Sound as
    printed.
    """
    m, c, d = _wide(floor, l2_clip_norm, num_records)
    return 2 * _x64.renyi_orders(orders) * c**2 / (d**2 * m)


@_x64.float64(host=_ON_HOST)
def clipped_update(orders: Any, *, floor: Any, l2_clip_norm: Any) -> jax.Array:
    """Exact divergence of isotropic noise on a clipped update of a whole client, however computed:
    2 a C^2 / m.

    The one bound here for several local steps (FedAvg), where none of the theorems holds. Unit:
    client.
    """
    m, c = _wide(floor, l2_clip_norm)
    return 2 * _x64.renyi_orders(orders) * c**2 / m


@_x64.float64(host=_ON_HOST)
def theorem_2(
    orders: Any, *, least_eigenvalue: Any, l2_clip_norm: Any, num_records: Any, batch_size: Any
) -> jax.Array:
    """Theorem 2 as printed; the constants are right. Gaussian weights, no added noise.

    Args:
      orders: `[K]`.
      least_eigenvalue: L, sum over clients of the least eigenvalue of sum_j g_j g_j^T / D. In
        Theorem 3 that of the gradients' coordinates in a public subspace, with the factor 1 / D
        that its Assumption 4 omits.
      l2_clip_norm, num_records, batch_size: C, D, B.

    Returns:
      +inf from order D L / C^2 on.
    """
    l, c, d, b = _wide(least_eigenvalue, l2_clip_norm, num_records, batch_size)
    a = _x64.renyi_orders(orders)
    return _ratio(2 * a * b * c**2 / d**2 + a * c**2 / ((a - 1) * d), l - a * c**2 / d)


@_x64.float64(host=_ON_HOST, static_argnames="printed_interval")
def theorem_4(
    orders: Any,
    *,
    floor: Any,
    l2_clip_norm: Any,
    num_records: Any,
    batch_size: Any,
    printed_interval: bool = False,
) -> jax.Array:
    """Theorem 4: water filling. The printed proof is wrong, the value right: `joint` is never above
    it.

    Args:
      orders: `[K]`.
      floor, l2_clip_norm, num_records, batch_size: as in `joint`.
      printed_interval: +inf from m D / (2 C^2) on, as printed, where B is missing; else from m B D
        / (2 C^2).
    """
    m, c, d, b = _wide(floor, l2_clip_norm, num_records, batch_size)
    a = _x64.renyi_orders(orders)
    value = _ratio(
        2 * a * c**2 / d**2 + 2 * a * c**2 / ((a - 1) * b * d), m - 2 * a * c**2 / (b * d)
    )
    return jnp.where(a < m * d / (2 * c**2), value, jnp.inf) if printed_interval else value


@_x64.float64(host=_ON_HOST)
def isotropic_printed(
    orders: Any, *, floor: Any, l2_clip_norm: Any, num_records: Any, batch_size: Any
) -> jax.Array:
    """Table 1 for Gaussian weights and isotropic noise, as printed: sound. +inf from m B D / C^2
    on.

    The table repeats this value for water filling, where it is FALSE: there the divergence may be
    infinite.
    """
    m, c, d, b = _wide(floor, l2_clip_norm, num_records, batch_size)
    a = _x64.renyi_orders(orders)
    return _ratio(2 * a * c**2 / d**2 + a * c**2 / ((a - 1) * b * d), m - a * c**2 / (b * d))


def _ratio(top: jax.Array, bottom: jax.Array) -> jax.Array:
    return jnp.where(bottom > 0, top / jnp.where(bottom > 0, bottom, 1.0), jnp.inf)


@_x64.float64(host=_ON_HOST, static_argnames="lifted")
def gaussian_weights(
    noise_multiplier: Any, sampling_rate: Any, orders: Any, *, lifted: bool = False
) -> jax.Array:
    """Divergence of Gaussian-weighted sums in units of their sensitivity: what a round of GSGD-DP
    costs.

    Args:
      noise_multiplier: `[...]`, root of m over 2 C / D: noise stddev of the sum / how far a record
        moves its mean. >= 0; 0 gives +inf.
      sampling_rate: `[...]`, B / D, > 0; may exceed 1.
      orders: `[K]`, each > 1.
      lifted: the noise is water filling, else isotropic.

    Returns:
      `[..., K]`: `joint`, for isotropic noise the smaller of it and `isotropic_printed`.
    """
    z, rate = jnp.broadcast_arrays(_x64.as64(noise_multiplier), _x64.positive(sampling_rate))
    positive = z > 0
    # D = 1, C = 1/2: the mean moves by 1 and q C^2 = 1 / (4 rate).
    scaled = {
        "floor": jnp.where(positive, z, 1.0) ** 2,
        "l2_clip_norm": jnp.full_like(z, 0.5),
        "num_records": jnp.ones_like(z),
        "batch_size": rate,
    }
    value = joint(orders, **scaled, lifted=lifted)
    if not lifted:
        value = jnp.minimum(value, isotropic_printed(orders, **scaled))
    return jnp.where(positive[..., None], value, jnp.inf)


def largest_order(
    *, floor: float, l2_clip_norm: float, num_records: float, batch_size: float, lifted: bool
) -> float:
    """The order from which on `joint` is infinite; epsilon is never below log(1/delta) / (this -
    1).

    Raises:
      ValueError: an argument out of range.
    """
    _validate.positive(
        floor=floor, l2_clip_norm=l2_clip_norm, num_records=num_records, batch_size=batch_size
    )
    return 1 + floor * batch_size * num_records / (
        (_LIFTED if lifted else _SAMPLED) * l2_clip_norm**2
    )
