"""Images whose law is known: Gaussian random fields, for which bounds on reconstruction are proved
and not a guide.

A field is a sum of cosines over the image with independent normal weights of mean 0. The i-th
cosine, by growing frequency, has variance proportional to 1 / i^2: power that falls as it does in
natural images. Nothing is clipped, so that the law is exactly Gaussian, and its covariance and
entropy are given in closed form.
"""

import functools
import math

import numpy as np

from fljax import _validate
from fljax.data.dataset import Dataset

SIDE = 16
NUM_CLASSES = 4
_PIXEL_VARIANCE = 0.04  # mean over pixels: nearly all values lie in [-1, 1]
_LABELLED = 8  # cosines that labels depend on


def spectrum(side: int = SIDE) -> np.ndarray:
    """Eigenvalues float64 `[side * side]` of a field's covariance, descending: 1 / i^2, with mean
    0.04.

    Raises:
      ValueError: side < 4.
    """
    _check(side)
    powers = np.arange(1.0, side * side + 1) ** -2
    return powers * (_PIXEL_VARIANCE / powers.mean())


def entropy(side: int = SIDE) -> float:
    """Differential entropy of a field in nats: (1/2) sum ln(2 pi e lam_i).

    Raises:
      ValueError: side < 4.
    """
    return float(0.5 * np.log(2 * math.pi * math.e * spectrum(side)).sum())


@functools.cache
def basis(side: int = SIDE) -> np.ndarray:
    """Orthonormal cosines float64 `[side * side, side * side]`: row i is the direction of
    `spectrum(side)[i]`.

    Raises:
      ValueError: side < 4.
    """
    _check(side)
    at = np.arange(side)
    waves = np.sqrt(2 / side) * np.cos(math.pi * np.outer(at, at + 0.5) / side)
    waves[0] /= math.sqrt(2)
    down, across = (grid.reshape(-1) for grid in np.meshgrid(at, at, indexing="ij"))
    order = np.lexsort((down, down**2 + across**2))
    rows = np.einsum("iy,ix->iyx", waves[down[order]], waves[across[order]]).reshape(
        side * side, side * side
    )
    rows.flags.writeable = False
    return rows


def make(
    rng: np.random.Generator, *, num_train: int = 4000, num_test: int = 1000, side: int = SIDE
) -> Dataset:
    """Independent fields, and labels that depend on them.

    A label is made of two signs, of the sum and of the alternating sum of a record's first 8
    weights, each divided by its standard deviation: four equally likely classes, which noise blurs
    from the high frequencies on. It tells ln 4 nats about its record.

    Args:
      rng: consumed.
      num_train, num_test: records, >= 2.
      side: height and width in pixels, >= 4.

    Returns:
      `Dataset` with x float32 `[n, side, side, 1]` of mean 0, positive and negative, and y int32
      `[n]`.

    Raises:
      ValueError: an argument is out of range.
    """
    _validate.positive_int(num_train=num_train, num_test=num_test)
    scale, directions = np.sqrt(spectrum(side)), basis(side)
    signs = (-1.0) ** np.arange(_LABELLED)

    def draw(count: int) -> dict[str, np.ndarray]:
        weights = rng.standard_normal((count, side * side))
        first = weights[:, :_LABELLED]
        labels = 2 * (first.sum(axis=1) > 0) + (first @ signs > 0)
        x = (weights * scale) @ directions
        return {
            "x": x.reshape(count, side, side, 1).astype(np.float32),
            "y": labels.astype(np.int32),
        }

    covariance = (directions.T * scale**2) @ directions
    return Dataset(draw(num_train), draw(num_test), NUM_CLASSES, "fields", covariance)


def _check(side: int) -> None:
    _validate.positive_int(side=side)
    if side < 4:
        raise ValueError(f"Expected side >= 4, got side={side}.")
