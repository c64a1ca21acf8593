"""How much of one subject is in a batch: sampling probabilities and the mixtures of Gaussians that
follow.

A subject with m items at a silo enters a batch with J of them, J ~ Binomial(m, q) if items are
Poisson-sampled at rate q. Clipped to norm C and summed, they move the sum by at most C times a
random S(J); the pair of distributions that dominates is
    sum_j P(S = s_j) N(s_j, sigma^2)   against   N(0, sigma^2)       (in units of C),
in both orders: Choquette-Choo, Ganesh, Steinke, Thakurta (arXiv:2310.15526), Corollary 4.7; Ganesh
(arXiv:2401.10294). `fljax.accounting.epsilon` evaluates the records that this module returns.
"""

import math

import numpy as np

from fljax import _validate
from fljax.accounting.events import MixtureOfGaussians

_SMALLEST_WEIGHT = 1e-300


def subject_sampling_prob(num_items: int, item_sampling_prob: float) -> float:
    """Chance that a subject with `num_items` items has at least one in a Poisson-sampled batch: 1 -
    (1 - q)^m.

    Raises:
      ValueError: `num_items` is not an integer >= 1, or `item_sampling_prob` is not in (0, 1].
    """
    _validate.positive_int(num_items=num_items)
    _validate.probability(item_sampling_prob=item_sampling_prob)
    if item_sampling_prob == 1:
        return 1.0
    return -math.expm1(num_items * math.log1p(-item_sampling_prob))


def subject_fixed_size_prob(num_items: int, population: int, batch_size: int) -> float:
    """The same for `batch_size` of `population` items drawn without replacement; sound for zero-out
    neighbours only.

    Raises:
      ValueError: an argument is no integer >= 1, or `num_items` or `batch_size` exceeds
        `population`.
    """
    _validate.positive_int(num_items=num_items, population=population, batch_size=batch_size)
    if max(num_items, batch_size) > population:
        raise ValueError(
            f"Expected num_items and batch_size <= population={population}, "
            f"got num_items={num_items} and batch_size={batch_size}."
        )
    if batch_size + num_items > population:
        return 1.0
    logs = (math.log1p(-batch_size / (population - i)) for i in range(num_items))
    return -math.expm1(math.fsum(logs))


def item_count_pmf(num_items: int, item_sampling_prob: float, cap: int | None = None) -> np.ndarray:
    """P(min(J, cap) = j), j = 0 .. min(num_items, cap), for J ~ Binomial(num_items,
    item_sampling_prob). Float64.

    Raises:
      ValueError: an argument out of range.
    """
    _validate.positive_int(num_items=num_items)
    _validate.probability(item_sampling_prob=item_sampling_prob)
    if cap is not None:
        _validate.positive_int(cap=cap)
    q = item_sampling_prob
    top = num_items if cap is None else min(cap, num_items)
    if q == 1:
        return np.eye(top + 1)[top]
    counts = np.arange(num_items + 1)
    choose = math.lgamma(num_items + 1) - np.array(
        [math.lgamma(j + 1) + math.lgamma(num_items - j + 1) for j in counts]
    )
    pmf = np.exp(choose + counts * math.log(q) + (num_items - counts) * math.log1p(-q))
    return np.append(pmf[:top], math.fsum(pmf[top:]))


def item_sum(
    noise_multiplier: float, num_items: int, item_sampling_prob: float, *, cap: int | None = None
) -> MixtureOfGaussians:
    """One release of the sum of clipped items, seen by a subject: S = min(J, cap).

    Guarantee: subject-level, for Poisson-sampled items, each clipped to norm C, with noise of
    stddev `noise_multiplier * C` on the sum; with a cap, surplus items of a subject must have been
    dropped before the sum.

    Args:
      noise_multiplier: noise stddev / C. >= 0.
      num_items: public bound on the items of one subject. Integer >= 1.
      item_sampling_prob: in (0, 1].
      cap: most items of one subject in one batch, or None.

    Raises:
      ValueError: an argument out of range.
    """
    _validate.non_negative(noise_multiplier=noise_multiplier)
    pmf = item_count_pmf(num_items, item_sampling_prob, cap)
    return _record(noise_multiplier, np.arange(len(pmf), dtype=np.float64), pmf)


def two_point(
    noise_multiplier: float, subject_prob: float, *, sensitivity: float = 1.0
) -> MixtureOfGaussians:
    """One release that a subject moves by `sensitivity` (in units of C) with chance `subject_prob`,
    else not at all.

    Sensitivity 1: sums of per-subject means (HiGradAvg), sampled subjects. 2: a clipped batch
    gradient. Z: a crude bound of the item sum with cap Z.

    Raises:
      ValueError: an argument out of range.
    """
    _validate.non_negative(noise_multiplier=noise_multiplier)
    _validate.probability(subject_prob=subject_prob)
    _validate.positive(sensitivity=sensitivity)
    return _record(
        noise_multiplier, np.array([0.0, sensitivity]), np.array([1.0 - subject_prob, subject_prob])
    )


def _record(
    noise_multiplier: float, sensitivities: np.ndarray, probs: np.ndarray
) -> MixtureOfGaussians:
    probs = probs / math.fsum(probs)
    # A weight that float64 cannot hold joins the next larger sensitivity, which can only raise the
    # loss.
    for j in range(len(probs) - 1):
        if 0 < probs[j] < _SMALLEST_WEIGHT:
            probs[j + 1] += probs[j]
            probs[j] = 0.0
    keep = probs > 0
    return MixtureOfGaussians(
        stddev=float(noise_multiplier),
        sensitivities=tuple(float(s) for s in sensitivities[keep]),
        sampling_probs=tuple(float(p) for p in probs[keep]),
    )
