"""Water-filling noise for a matrix G `[B, K]` that is known by its products only; nothing of size K x K or B x K.

S = scale * G^T G has the eigenvalues of H = scale * G G^T, and zeros. With H = V diag(l) V^T, floor s^2 and
z ~ N(0, I_K), every draw below is `t z + G^T w` with a number t and weights w `[B]`, so that the caller pays for one
`matvec` (G z), one `rmatvec` (G^T w) and an eigensystem of size B, and may add other weights (a mean, a sampling noise)
to w.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# Rounding may leave a lifted eigenvalue short of the floor: by a share of the floor, and by one of the largest value.
FLOOR_MARGIN = 1e-5
SPECTRUM_MARGIN = 8.0


class Spectrum(NamedTuple):
    """values `[B]`: eigenvalues of scale * G G^T, ascending, >= 0. vectors `[B, B]`: columns. scale `[]`."""

    values: jax.Array
    vectors: jax.Array
    scale: jax.Array


class Draw(NamedTuple):
    """The draw `stddev * z + G^T weights`. stddev `[]`, at or above the one asked for; weights `[B]`."""

    stddev: jax.Array
    weights: jax.Array


def spectrum(gram: jax.Array, scale: float | jax.Array) -> Spectrum:
    """The eigensystem of `scale * gram`.

    Args:
      gram: `[B, B]`, G G^T; float32 or float64. B >= 1. Symmetric up to rounding.
      scale: > 0.

    Returns:
      A Spectrum. A gram that holds a NaN or an infinity gives NaN throughout: refuse such rows before.

    Raises:
      ValueError: an argument is not of the stated kind.
    """
    if jnp.ndim(gram) != 2 or gram.shape[0] != gram.shape[1] or gram.shape[0] < 1:
        raise ValueError(f"Expected gram of shape [B, B], B >= 1, got shape {jnp.shape(gram)}.")
    if jnp.result_type(gram) not in (jnp.float32, jnp.float64):
        raise ValueError(f"Expected gram in float32 or float64, got {jnp.result_type(gram)}.")
    _check_positive("scale", scale)
    scale = jnp.asarray(scale, gram.dtype)
    values, vectors = jnp.linalg.eigh(scale * gram)
    return Spectrum(jnp.maximum(values, jnp.zeros((), values.dtype)), vectors, scale)


def filling_draw(spectrum: Spectrum, projections: jax.Array, stddev: float | jax.Array) -> Draw:
    """The noise that fills a Gaussian of covariance S up to the floor stddev^2.

    Guarantee: that noise is N(0, U max(stddev^2 - L, 0) U^T) with S = U L U^T, and independent of whatever else is
    drawn: with noise of covariance S beside it, every direction has variance stddev^2 at least. In float32 the floor
    is aimed at a little high (`FLOOR_MARGIN`, and `SPECTRUM_MARGIN` units of rounding of the largest eigenvalue), so
    that it holds in spite of rounding. What is added depends on G: release neither it, nor its size, nor the spectrum.

    Args:
      spectrum: of G.
      projections: `[B]`, G z for z ~ N(0, I_K), drawn for this call alone.
      stddev: root of the floor. > 0.

    Returns:
      A Draw: add `draw.stddev * z + G^T draw.weights`.

    Source: Zhang et al. (2024), "Differentially Private Federated Learning without Noise Addition: When is it
    Possible?", arXiv:2405.04551, section 5, in a form that divides by no small eigenvalue.
    """
    _check_draw(spectrum, projections, stddev)
    s = _floor_stddev(spectrum, stddev)
    values = spectrum.values
    below = values < s * s
    gap = jnp.where(below, s * s - values, jnp.zeros((), values.dtype))
    shrink = jnp.where(below, 1 / (s + jnp.sqrt(gap)), s / jnp.where(below, s * s, values))
    return Draw(s, -_filtered(spectrum, shrink, projections))


def lifted_draw(spectrum: Spectrum, projections: jax.Array, stddev: float | jax.Array) -> Draw:
    """One draw in place of a Gaussian of covariance S and the noise that fills it.

    Guarantee: that draw is N(0, U max(L, stddev^2) U^T), the law of the sum of an N(0, S) and the noise of
    `filling_draw`, from the K numbers of z alone. Margins, arguments and source are those of `filling_draw`.
    """
    _check_draw(spectrum, projections, stddev)
    s = _floor_stddev(spectrum, stddev)
    above = spectrum.values > s * s
    grow = (jnp.sqrt(spectrum.values) - s) / jnp.where(above, spectrum.values, s * s)
    return Draw(s, _filtered(spectrum, jnp.where(above, grow, jnp.zeros((), grow.dtype)), projections))


def _floor_stddev(spectrum: Spectrum, stddev: float | jax.Array) -> jax.Array:
    """`[]`: the root of the floor that is aimed at, above `stddev` by what rounding may take."""
    values = spectrum.values
    floor = jnp.square(jnp.asarray(stddev, values.dtype))
    unit = jnp.asarray(SPECTRUM_MARGIN * np.finfo(values.dtype).eps, values.dtype)
    margin = jnp.asarray(FLOOR_MARGIN if values.dtype == jnp.float32 else 0.0, values.dtype)
    return jnp.sqrt(floor * (1 + margin) + unit * values[-1])


def _filtered(spectrum: Spectrum, factors: jax.Array, projections: jax.Array) -> jax.Array:
    """Scale * V diag(factors) V^T projections."""
    inner = jnp.matmul(spectrum.vectors.T, projections.astype(factors.dtype), precision="highest")
    return spectrum.scale * jnp.matmul(spectrum.vectors, factors * inner, precision="highest")


def _check_draw(spectrum: Spectrum, projections: jax.Array, stddev: Any) -> None:
    if jnp.shape(projections) != spectrum.values.shape:
        raise ValueError(f"Expected projections of shape {spectrum.values.shape}, got shape {jnp.shape(projections)}.")
    _check_positive("stddev", stddev)


def _check_positive(name: str, value: Any) -> None:
    if jnp.ndim(value) != 0:
        raise ValueError(f"Expected {name} to be a scalar, got shape {jnp.shape(value)}.")
    if not isinstance(value, jax.core.Tracer) and not (np.isfinite(value) and value > 0):
        raise ValueError(f"Expected {name} > 0 and finite, got {name}={value!r}.")
