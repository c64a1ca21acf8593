"""Was this example trained on? Scores from a model's confidences; higher means rather yes.

Threat: the attacker can query the target with examples and their labels, has a pool of like data,
and can train models of its own on it (`shadow`). All functions take numpy or JAX arrays and work in
float64 on the host.
"""

from typing import Any

import numpy as np
from scipy import special, stats

from fljax import _validate

_LEAST_STDDEV = 1e-3


def loss_threshold(confidences: Any) -> np.ndarray:
    """The attack without shadow models: minus the loss, `[N]`, from confidences log(p / (1 - p))
    `[N]`.

    Source: Yeom et al. (2018), Privacy risk in machine learning, arXiv:1709.01604, Adversary 1.
    """
    return -np.logaddexp(0.0, -np.asarray(confidences, np.float64))


def lira(
    target: Any, shadows: Any, included: Any, *, online: bool = True, pooled: bool | None = None
) -> np.ndarray:
    """Likelihood-ratio attack: scores `[N]`.

    Args:
      target: confidences `[N]` of the attacked model.
      shadows: confidences `[S, N]` of models of the attacker.
      included: bool `[S, N]`, which examples each of these was trained on.
      online: compare the law of models that have the example with that of models that have not.
        False: only models that have it not count, as if the attacker had to train before it saw the
        example.
      pooled: one variance for all examples, better for few models. None: for fewer than 32.

    Raises:
      ValueError: shapes differ, or an example is in (or out) of fewer than two shadow models where
        that side counts.

    Source: Carlini et al. (2022), arXiv:2112.03570, Algorithm 1 and section IV-A (offline).
    """
    values, own, inside = _shadows(target, shadows, included)
    pooled = len(own) < 32 if pooled is None else pooled
    sides = [_normal(own, ~inside, "out of", pooled)]
    if not online:
        return stats.norm.logcdf(values, *sides[0])
    sides.append(_normal(own, inside, "in", pooled))
    return stats.norm.logpdf(values, *sides[1]) - stats.norm.logpdf(values, *sides[0])


def rmia(
    target: Any,
    shadows: Any,
    included: Any,
    population: Any,
    population_shadows: Any,
    *,
    gamma: float = 1.0,
    online: bool = True,
    offline_slope: float = 0.3,
) -> np.ndarray:
    """Robust membership attack: the share `[N]` of population examples that the target prefers this
    one to.

    Each side is how much likelier the target makes an example than reference models do on average.

    Args:
      target, shadows, included: as for `lira`.
      population: confidences `[Z]` of the target on examples that neither it nor the reference
        models saw in training.
      population_shadows: `[S, Z]`, of the reference models.
      gamma: how many times as large the ratio has to be. > 0.
      online: reference models with and without the example are weighed equally. False: only those
        without it count, and p is corrected to (1 + offline_slope) / 2 p + (1 - offline_slope) / 2.

    Raises:
      ValueError: shapes differ, gamma is not > 0, or an example is in no (or out of no) reference
        model that counts.

    Source: Zarifzadeh, Liu, Shokri (2024), Low-cost high-power membership inference attacks,
      arXiv:2312.03262, equations 2 to 4.
    """
    _validate.positive(gamma=gamma)
    values, own, inside = _shadows(target, shadows, included)
    others, references = (
        np.asarray(population, np.float64),
        np.asarray(population_shadows, np.float64),
    )
    if others.ndim != 1 or references.shape != (len(own), others.size):
        raise ValueError(
            f"Expected population [Z] and population_shadows [S, Z], got shapes {others.shape}, "
            f"{references.shape}."
        )
    probs = special.expit(own)

    def mean(where: np.ndarray, side: str) -> np.ndarray:
        if not where.any(0).all():
            raise ValueError(
                f"Expected each example to be {side} a reference model at least, got one that is "
                "not."
            )
        return np.where(where, probs, 0).sum(0) / where.sum(0)

    outside = mean(~inside, "out of")
    if online:
        average = (outside + mean(inside, "in")) / 2
    else:
        average = (1 + offline_slope) / 2 * outside + (1 - offline_slope) / 2
    ratio = special.expit(values) / np.maximum(average, 1e-300)
    population_ratio = np.sort(
        special.expit(others) / np.maximum(special.expit(references).mean(0), 1e-300)
    )
    # How often ratio / population_ratio >= gamma.
    return np.searchsorted(population_ratio, ratio / gamma, "right") / others.size


def _shadows(target: Any, shadows: Any, included: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    values, own, inside = (
        np.asarray(target, np.float64),
        np.asarray(shadows, np.float64),
        np.asarray(included, bool),
    )
    if (
        values.ndim != 1
        or own.ndim != 2
        or own.shape[1:] != values.shape
        or inside.shape != own.shape
    ):
        raise ValueError(
            "Expected target [N], shadows [S, N] and included [S, N], "
            f"got shapes {values.shape}, {own.shape}, {inside.shape}."
        )
    return values, own, inside


def _normal(
    own: np.ndarray, where: np.ndarray, side: str, pooled: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation `[N]` over the models where `where`."""
    count = where.sum(0)
    if not (count >= 2).all():
        raise ValueError(
            f"Expected each example to be {side} at least 2 shadow models, got one with "
            f"{count.min()}."
        )
    mean = np.where(where, own, 0).sum(0) / count
    squares = np.where(where, (own - mean) ** 2, 0)
    variance = squares.sum() / (count - 1).sum() if pooled else squares.sum(0) / (count - 1)
    return mean, np.broadcast_to(np.maximum(np.sqrt(variance), _LEAST_STDDEV), mean.shape)
