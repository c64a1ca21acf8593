"""How well an attack did: distances of reconstructions, rates of membership tests, scores of a
defence.

Distances take arrays and work under `jit` and `vmap`: they give NaN or infinity and raise for
shapes alone. Rates and scores are of the host, in float64, and raise.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import optimize, special, stats

from fljax import _validate
from fljax.attacks import audit

_WINDOW, _STDDEV = 11, 1.5


def mse(found: Any, truth: Any) -> jax.Array:
    """Mean squared difference per coordinate, `[]`, of two arrays of one shape.

    Raises:
      ValueError: their shapes differ.
    """
    _same_shape(found, truth)
    return jnp.mean(jnp.square(_float(found) - _float(truth)))


def psnr(found: Any, truth: Any, *, data_range: float = 1.0) -> jax.Array:
    """Peak signal-to-noise ratio in dB, `[]`; infinite where the two are equal. Average this over
    images, not the MSE.

    Args:
      found, truth: one image each, of one shape.
      data_range: largest possible value minus the smallest.

    Raises:
      ValueError: their shapes differ.
    """
    return 20 * math.log10(data_range) - 10 * jnp.log10(mse(found, truth))


def ssim(found: Any, truth: Any, *, data_range: float = 1.0) -> jax.Array:
    """Structural similarity of two images `[H, W, channels]`, `[]`, at most 1.

    Gaussian window of 11 x 11 pixels with standard deviation 1.5 which lies inside the image, mean
    over its places and over channels, population moments. Images with a side under 11 pixels: one
    window over all of it, with equal weights.

    Args:
      data_range: largest possible value minus the smallest.

    Raises:
      ValueError: their shapes differ.

    Source: Wang et al. (2004), Image quality assessment: from error visibility to structural
    similarity, equation 13, with its constants 0.01 and 0.03.
    """
    _same_shape(found, truth)
    x, y = _float(found), _float(truth)
    height, width, _ = x.shape
    if min(height, width) < _WINDOW:
        smooth = lambda image: jnp.mean(image, (0, 1))
    else:
        at = np.arange(_WINDOW) - _WINDOW // 2
        window = np.exp(-(at**2) / (2 * _STDDEV**2))
        window /= window.sum()

        def smooth(image: jax.Array) -> jax.Array:
            # Slices, not a convolution, which XLA's CPU backend is slow at inside loops.
            rows = jnp.stack(
                [w * image[i : height - _WINDOW + 1 + i] for i, w in enumerate(window.tolist())]
            ).sum(0)
            return jnp.stack(
                [w * rows[:, i : width - _WINDOW + 1 + i] for i, w in enumerate(window.tolist())]
            ).sum(0)

    c1, c2 = (0.01 * data_range) ** 2, (0.03 * data_range) ** 2
    mean_x, mean_y = smooth(x), smooth(y)
    var_x, var_y = smooth(x * x) - mean_x**2, smooth(y * y) - mean_y**2
    covariance = smooth(x * y) - mean_x * mean_y
    light = (2 * mean_x * mean_y + c1) / (mean_x**2 + mean_y**2 + c1)
    return jnp.mean(light * (2 * covariance + c2) / (var_x + var_y + c2))


def cosine(found: Any, truth: Any) -> jax.Array:
    """Cosine of the angle between two pytrees of arrays, `[]`; 0 where one of them is zero."""
    pairs = list(zip(jax.tree.leaves(found), jax.tree.leaves(truth), strict=True))
    inner = sum(jnp.vdot(_float(a), _float(b)) for a, b in pairs)
    squares = [
        sum(jnp.vdot(_float(side), _float(side)) for side in sides)
        for sides in zip(*pairs, strict=True)
    ]
    proper = (squares[0] > 0) & (squares[1] > 0)
    # Roots one by one: the product of two squares may underflow.
    norms = jnp.sqrt(jnp.where(proper, squares[0], 1.0)) * jnp.sqrt(
        jnp.where(proper, squares[1], 1.0)
    )
    return jnp.where(proper, inner / norms, 0.0)


def feature_mse(features: Any, found: Any, truth: Any) -> jax.Array:
    """`mse` of what `features`, a function of one image, makes of each: what looks alike to a
    model.
    """
    return mse(features(found), features(truth))


def assignment(found: Any, truth: Any) -> np.ndarray:
    """Which true example each reconstructed one is: int `[B]`, a permutation with the least sum of
    squared distances.

    A gradient of a batch does not know the order of its examples: compare `found[b]` with
    `truth[assignment[b]]`.

    Args:
      found, truth: `[B, ...]`. Reconstructions that are not finite are matched last.
    """
    a, b = (np.asarray(v, np.float64).reshape(len(v), -1) for v in (found, truth))
    squares = np.square(a[:, None] - b[None]).sum(-1)
    worst = np.nanmax(np.where(np.isfinite(squares), squares, np.nan), initial=0.0)
    rows, columns = optimize.linear_sum_assignment(
        np.where(np.isfinite(squares), squares, 2 * worst + 1)
    )
    return columns[np.argsort(rows)]


def auc(members: Any, others: Any) -> float:
    """Chance that a member's score is above another's, ties half: the area under the curve of
    rates.

    Args:
      members, others: scores `[n]`, `[m]`, not NaN.
    """
    yes, no = _scores(members=members, others=others)
    ranks = stats.rankdata(np.concatenate([no, yes]))[no.size :]
    return float((ranks.sum() - yes.size * (yes.size + 1) / 2) / (yes.size * no.size))


def tpr_at_fpr(members: Any, others: Any, fpr: float) -> float:
    """Share of members above the lowest threshold which at most a share `fpr` of the others is
    above.
    """
    yes, no = _scores(members=members, others=others)
    if not 0 <= fpr <= 1:
        raise ValueError(f"Expected fpr in [0, 1], got fpr={fpr!r}.")
    allowed = math.floor(fpr * no.size * (1 + 1e-12))
    if allowed >= no.size:
        return 1.0
    return float(np.mean(yes > np.sort(no)[::-1][allowed]))


def tpr_interval(
    members: Any, others: Any, fpr: float, *, confidence: float = 0.95
) -> tuple[float, float]:
    """(low, high) of the best rate of true positives that thresholds have at a true rate of false
    positives of `fpr`, by counting.

    Guarantee: for independent scores each end is wrong with chance at most (1 - confidence) / 2.
    Of n others, the rate above the k-th largest is a Beta(k, n + 1 - k) variable, or less where
    scores tie; given that threshold, members above it are binomial. Few others leave a low end of
    0: at 0.1 %, fewer than 4,380 do at a confidence of 95 %.

    Args:
      members, others: scores `[n]`, `[m]`, not NaN.
      fpr, confidence: in (0, 1).

    Raises:
      ValueError: a number is out of range, or scores are missing or NaN.
    """
    yes, no = _scores(members=members, others=others)
    _validate.open_unit(fpr=fpr, confidence=confidence)
    error = (1 - confidence) / 4
    ranks = np.arange(1, no.size + 1)
    # Chance that the rate above the k-th largest is at most fpr.
    within = special.betainc(ranks, no.size + 1 - ranks, fpr)
    falling = np.sort(no)[::-1]
    found = [0.0, 1.0]
    for side, fits in enumerate((within >= 1 - error, within <= error)):
        if fits.any():
            place = np.flatnonzero(fits)[-1 if side == 0 else 0]
            above = np.sum(yes > falling[place]) if side == 0 else np.sum(yes >= falling[place])
            found[side] = float(audit.clopper_pearson(above, yes.size, error)[side])
    return found[0], found[1]


def asr(members: Any, others: Any, threshold: float = 0.0) -> float:
    """Attack success rate: the mean of both groups' shares that "score above threshold" tells
    right; 1/2 is a guess.
    """
    yes, no = _scores(members=members, others=others)
    return float(np.mean(yes > threshold) + np.mean(no <= threshold)) / 2


def imp_mia(auc_without: float, auc_with: float) -> float:
    """Share of a membership attack's area that a defence takes away.

    Args:
      auc_without, auc_with: the attack's `auc` without the defence, > 0, and with it.

    Source: arXiv:2403.01268, section 6.1.
    """
    if not auc_without > 0:
        raise ValueError(f"Expected auc_without > 0, got auc_without={auc_without!r}.")
    return (auc_without - auc_with) / auc_without


def imp_dra(mse_without: float, mse_with: float) -> float:
    """Share of a reconstruction's precision (1 / MSE) that a defence takes away: 1 - mse_without /
    mse_with.

    Args:
      mse_without, mse_with: the attack's error without the defence, >= 0, and with it, > 0.

    Source: arXiv:2403.01268, section 6.1.
    """
    _validate.non_negative(mse_without=mse_without)
    if not mse_with > 0:
        raise ValueError(f"Expected mse_with > 0, got mse_with={mse_with!r}.")
    return 1 - mse_without / mse_with


def gdc(mia_score: float, dra_score: float) -> float:
    """General defence capability: the mean of `imp_mia` and `imp_dra`. Source: arXiv:2403.01268,
    section 6.1.
    """
    return (mia_score + dra_score) / 2


def _same_shape(found: Any, truth: Any) -> None:
    if jnp.shape(found) != jnp.shape(truth):
        raise ValueError(
            f"Expected found and truth of one shape, got shapes {jnp.shape(found)} and "
            f"{jnp.shape(truth)}."
        )


def _float(value: Any) -> jax.Array:
    value = jnp.asarray(value)
    return (
        value
        if value.dtype.itemsize >= 4 and jnp.issubdtype(value.dtype, jnp.inexact)
        else value.astype("float32")
    )


def _scores(**named: Any) -> list[np.ndarray]:
    found = []
    for name, value in named.items():
        scores = np.asarray(value, np.float64).ravel()
        if scores.size == 0 or np.isnan(scores).any():
            raise ValueError(
                f"Expected {name} to hold scores, at least one and none NaN, got {name}={value!r}."
            )
        found.append(scores)
    return found
