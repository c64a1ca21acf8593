"""Water filling on eigenvalues: what is lifted, the factors of the two draws, and how much noise it
saves.

For reports and tests in float64; `fljax_kernels.spectral` draws the noise. Every number here
depends on private
gradients: never release one from a real run.

Source: Zhang et al. (2024), arXiv:2405.04551, section 5 and Figure 4, in forms that divide by no
  small eigenvalue.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fljax.accounting import _x64


class Lift(NamedTuple):
    """Water filling of eigenvalues l of the sampling covariance to the floor s^2.

    Attributes:
      lifted: `[..., K]`, max(l, s^2).
      fill: `[..., K]`, factor of the draw of added noise alone: s z - sum fill_k u_k u_k^T S z.
      draw: `[..., K]`, factor of the one draw of sampling and added noise: s z + sum draw_k u_k
        u_k^T S z.
    """

    lifted: jax.Array
    fill: jax.Array
    draw: jax.Array


class Savings(NamedTuple):
    """Traces against isotropic noise of the same floor.

    Attributes:
      added: `[...]`, of the noise that water filling adds.
      total: `[...]`, of sampling and added noise together, never below `dimension` s^2.
      saved: `[...]`, `dimension` s^2 - added.
      fraction: `[...]`, saved / (`dimension` s^2).
    """

    added: jax.Array
    total: jax.Array
    saved: jax.Array
    fraction: jax.Array


@_x64.float64
@jax.jit
def lift(values: Any, floor: Any) -> Lift:
    """The lift of eigenvalues `[..., K]`, >= 0, to `floor` = s^2 `[...]`, > 0; NaN for a number out
    of its range.
    """
    l, square = jnp.broadcast_arrays(_x64.non_negative(values), _x64.positive(floor)[..., None])
    # NaN on both sides, whichever branch is taken below.
    l, square = l + 0 * square, square + 0 * l
    s = jnp.sqrt(square)
    below = l < square
    gap = jnp.where(below, square - l, 0.0)
    above = jnp.where(below, square, l)
    return Lift(
        jnp.maximum(l, square),
        jnp.where(below, 1 / (s + jnp.sqrt(gap)), s / above),
        jnp.where(below, 0.0, (jnp.sqrt(above) - s) / above),
    )


@_x64.float64
@jax.jit
def savings(values: Any, floor: Any, dimension: Any) -> Savings:
    """What water filling saves.

    Args:
      values: `[..., r]`, the eigenvalues that may differ from zero; those of the Gram matrix / (B
        D) do.
      floor: `[...]`, s^2.
      dimension: K, of the model; the other K - r eigenvalues are zero.

    Returns:
      NaN for a number out of its range.
    """
    l, square, size = _x64.non_negative(values), _x64.positive(floor), _x64.positive(dimension)
    everywhere = size * square
    square = square + 0 * size  # NaN where the dimension is
    saved = jnp.minimum(l, square[..., None]).sum(-1)
    return Savings(everywhere - saved, everywhere - saved + l.sum(-1), saved, saved / everywhere)
