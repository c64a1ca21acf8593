"""Water-filling noise for a matrix G `[B, K]` that is known by its products only; nothing of size K
x K or B x K.

S = scale * G^T G has the eigenvalues of H = scale * G G^T, and zeros. With H = V diag(l) V^T, floor
s^2 and z ~ N(0, I_K), every draw below is `t z + G^T w` with a number t and weights w `[B]`, so
that the caller pays for one `matvec` (G z), one `rmatvec` (G^T w) and an eigensystem of size B, and
may add other weights (a mean, a sampling noise) to w. `lifted_weights` needs only what of that
system is above the floor.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax_kernels import _meshes
from fljax_kernels.spectral import dominant, eigh

# Rounding may leave a lifted eigenvalue short of the floor: by a share of the floor, and by one of
# the largest value.
FLOOR_MARGIN = 1e-5
SPECTRUM_MARGIN = 8.0
# Below this many rows the whole eigensystem costs no more than looking for a part of it.
LEAST_ROWS = 128


class Spectrum(NamedTuple):
    """values `[B]`: eigenvalues of scale * G G^T, ascending, >= 0. vectors `[B, B]`: columns. scale
    `[]`.
    """

    values: jax.Array
    vectors: jax.Array
    scale: jax.Array


class Draw(NamedTuple):
    """The draw `stddev * z + G^T weights`. stddev `[]`, at or above the one asked for; weights
    `[B]`.
    """

    stddev: jax.Array
    weights: jax.Array


def spectrum(gram: jax.Array, scale: float | jax.Array) -> Spectrum:
    """The eigensystem of `scale * gram`.

    Args:
      gram: `[B, B]`, G G^T; float32 or float64. B >= 1. Symmetric up to rounding.
      scale: > 0.

    Returns:
      A Spectrum. A gram that holds a NaN or an infinity gives NaN throughout: refuse such rows
      before.

    Raises:
      ValueError: an argument is not of the stated kind.
    """
    _check_gram(gram, scale)
    scale = jnp.asarray(scale, gram.dtype)
    values, vectors = eigh.eigh(scale * gram)
    # LAPACK may pass a NaN by, or find finite vectors beside one.
    lost = jnp.where(jnp.all(jnp.isfinite(gram)), jnp.zeros((), gram.dtype), jnp.nan)
    return Spectrum(jnp.maximum(values, jnp.zeros((), values.dtype)) + lost, vectors + lost, scale)


def filling_draw(spectrum: Spectrum, projections: jax.Array, stddev: float | jax.Array) -> Draw:
    """The noise that fills a Gaussian of covariance S up to the floor stddev^2.

    Guarantee: that noise is N(0, U max(stddev^2 - L, 0) U^T) with S = U L U^T, and independent of
      whatever else is
    drawn: with noise of covariance S beside it, every direction has variance stddev^2 at least. In
    float32 the floor is aimed at a little high (`FLOOR_MARGIN`, and `SPECTRUM_MARGIN` units of
    rounding of the largest eigenvalue), so that it holds in spite of rounding. What is added
    depends on G: release neither it, nor its size, nor the spectrum.

    Args:
      spectrum: of G.
      projections: `[B]`, G z for z ~ N(0, I_K), drawn for this call alone.
      stddev: root of the floor. > 0.

    Returns:
      A Draw: add `draw.stddev * z + G^T draw.weights`.

    Source: Zhang et al. (2024), "Differentially Private Federated Learning without Noise Addition:
    When is it Possible?", arXiv:2405.04551, section 5, in a form that divides by no small
    eigenvalue.
    """
    _check_draw(spectrum.values.shape, projections, stddev)
    s = _floor_stddev(spectrum, stddev)
    values = spectrum.values
    below = values < s * s
    gap = jnp.where(below, s * s - values, jnp.zeros((), values.dtype))
    shrink = jnp.where(below, 1 / (s + jnp.sqrt(gap)), s / jnp.where(below, s * s, values))
    return Draw(s, -_filtered(spectrum, shrink, projections))


def lifted_draw(spectrum: Spectrum, projections: jax.Array, stddev: float | jax.Array) -> Draw:
    """One draw in place of a Gaussian of covariance S and the noise that fills it.

    Guarantee: that draw is N(0, U max(L, stddev^2) U^T), the law of the sum of an N(0, S) and the
    noise of `filling_draw`, from the K numbers of z alone. Margins, arguments and source are those
    of `filling_draw`.
    """
    _check_draw(spectrum.values.shape, projections, stddev)
    return _lifted(spectrum, projections, stddev)


def lifted_weights(
    gram: jax.Array, projections: jax.Array, stddev: float | jax.Array, scale: float | jax.Array
) -> Draw:
    """`lifted_draw(spectrum(gram, scale), projections, stddev)`, for less where few eigenvalues are
    above the floor.

    Guarantee: that of `lifted_draw`. The draw is (s I + G^T W G) z with W positive semidefinite, so
    no direction is below the floor, whatever W is. The law above the floor needs the eigenpairs
    there and no others. On a CPU, from LEAST_ROWS rows on, `dominant.above` looks for those; if it
    cannot show that it has them all, with residuals of 16 units of rounding of the largest
    (`eigh`'s own reach 4), the whole system is taken. The floor that is aimed at is the same: its
    margin takes the largest eigenvalue from the pairs, which hold it, or from a lower bound where
    nothing is above the floor, and there s z alone needs no margin. On other backends it is always
    the whole system.

    Time depends on the data, by several times: on whether more than about a dozen eigenvalues are
    above the floor. Keep it as private as the spectrum, or take `spectrum` and `lifted_draw`. Under
    `vmap` on a CPU one gram is treated after the other, so that each takes its own way.

    Args:
      gram: `[B, B]`, G G^T; float32 or float64. B >= 1. Symmetric up to rounding.
      projections: `[B]`, G z for z ~ N(0, I_K), drawn for this call alone.
      stddev: root of the floor. > 0.
      scale: > 0.

    Returns:
      A Draw: add `draw.stddev * z + G^T draw.weights`. A gram that holds a NaN or an infinity gives
      NaN throughout.

    Raises:
      ValueError: an argument is not of the stated kind.
    """
    _check_gram(gram, scale)
    _check_draw(gram.shape[:1], projections, stddev)
    arguments = gram, jnp.asarray(stddev, gram.dtype), jnp.asarray(scale, gram.dtype)
    if gram.shape[0] < LEAST_ROWS:
        known = _all_pairs(*arguments)
    else:
        known = jax.lax.platform_dependent(*arguments, cpu=_pairs_above, default=_all_pairs)
    return _lifted(known, projections, stddev)


def _all_pairs(gram: jax.Array, _: jax.Array, scale: jax.Array) -> Spectrum:
    return spectrum(gram, scale)


@jax.custom_batching.sequential_vmap  # side by side, all would take both ways
def _pairs_above(gram: jax.Array, stddev: jax.Array, scale: jax.Array) -> Spectrum:
    """The spectrum, with zeros in place of pairs below the floor where those above it are few."""
    size, trace = gram.shape[0], jnp.trace(gram)
    unit = jnp.where(trace > 0, trace, jnp.ones((), gram.dtype))
    floor, rounding = _floor(gram.dtype, stddev)
    # No eigenvalue exceeds the trace, so a floor above that is as good as one of twice that.
    few = dominant.above(gram / unit, jnp.minimum(floor / (scale * unit), 2), rounding)

    def padded() -> Spectrum:
        values = scale * unit * jnp.maximum(few.values, jnp.zeros((), gram.dtype))
        place = size - dominant.BLOCK
        return Spectrum(
            jnp.pad(values, (place, 0)), jnp.pad(few.vectors, ((0, 0), (place, 0))), scale
        )

    # Finite numbers over an infinite trace would be zeros.
    sure = few.complete & jnp.isfinite(unit) & jnp.all(jnp.isfinite(gram))
    return jax.lax.cond(_meshes.all_have(sure), padded, lambda: spectrum(gram, scale))


def _lifted(spectrum: Spectrum, projections: jax.Array, stddev: float | jax.Array) -> Draw:
    """`lifted_draw`, of a spectrum that may lack pairs below the floor."""
    s = _floor_stddev(spectrum, stddev)
    above = spectrum.values > s * s
    grow = (jnp.sqrt(spectrum.values) - s) / jnp.where(above, spectrum.values, s * s)
    return Draw(
        s, _filtered(spectrum, jnp.where(above, grow, jnp.zeros((), grow.dtype)), projections)
    )


def _floor_stddev(spectrum: Spectrum, stddev: float | jax.Array) -> jax.Array:
    """`[]`: the root of the floor that is aimed at, above `stddev` by what rounding may take."""
    floor, rounding = _floor(spectrum.values.dtype, stddev)
    return jnp.sqrt(floor + jnp.asarray(rounding, floor.dtype) * spectrum.values[-1])


def _floor(dtype: Any, stddev: float | jax.Array) -> tuple[jax.Array, float]:
    """The floor that is aimed at, `[]`, without its share of the largest eigenvalue, and that
    share.
    """
    margin = jnp.asarray(FLOOR_MARGIN if dtype == jnp.float32 else 0.0, dtype)
    return jnp.square(jnp.asarray(stddev, dtype)) * (1 + margin), float(
        SPECTRUM_MARGIN * np.finfo(dtype).eps
    )


def _filtered(spectrum: Spectrum, factors: jax.Array, projections: jax.Array) -> jax.Array:
    """Scale * V diag(factors) V^T projections."""
    inner = jnp.matmul(spectrum.vectors.T, projections.astype(factors.dtype), precision="highest")
    return spectrum.scale * jnp.matmul(spectrum.vectors, factors * inner, precision="highest")


def _check_gram(gram: jax.Array, scale: Any) -> None:
    if jnp.ndim(gram) != 2 or gram.shape[0] != gram.shape[1] or gram.shape[0] < 1:
        raise ValueError(f"Expected gram of shape [B, B], B >= 1, got shape {jnp.shape(gram)}.")
    if jnp.result_type(gram) not in (jnp.float32, jnp.float64):
        raise ValueError(f"Expected gram in float32 or float64, got {jnp.result_type(gram)}.")
    _check_positive("scale", scale)


def _check_draw(shape: tuple[int, ...], projections: jax.Array, stddev: Any) -> None:
    if jnp.shape(projections) != shape:
        raise ValueError(
            f"Expected projections of shape {shape}, got shape {jnp.shape(projections)}."
        )
    _check_positive("stddev", stddev)


def _check_positive(name: str, value: Any) -> None:
    if jnp.ndim(value) != 0:
        raise ValueError(f"Expected {name} to be a scalar, got shape {jnp.shape(value)}.")
    if not isinstance(value, jax.core.Tracer) and not (np.isfinite(value) and value > 0):
        raise ValueError(f"Expected {name} > 0 and finite, got {name}={value!r}.")
