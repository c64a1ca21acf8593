"""Audits from one run of a mechanism: many canaries, each in or out by a coin, and guesses about
some of them.

Canaries share one run, so that their fates may be correlated by the mechanism; the bounds allow
for the worst of it, and are therefore below the truth. No audit of one run is sharp: from 10,000
canaries of a Gaussian mechanism of mu 0.5, 1 or 2 none that is right 95 times of 100 reports, in
half its runs, over 79 % of the epsilon at delta 1e-5 (how this is
shown: docs/explain/attacks.md).
`audit.two_worlds` is sharp, and needs a run for each score.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import special, stats

from fljax import _validate
from fljax.accounting import gaussian

_STEPS = 4


class OneRun(NamedTuple):
    """What one run proves, with the stated confidence.

    epsilon: the mechanism is not (less, delta)-DP. mu: it is not less-than-mu Gaussian DP.
    gdp_epsilon: that mu's epsilon at delta, a bound for mechanisms whose trade-off curve is
    Gaussian, and for those only. canaries, guesses, correct: counts that `mu` comes from. refuted:
    no mechanism with the trade-off curve that was given is guessed right so often; None: none was.
    """

    epsilon: float
    mu: float
    gdp_epsilon: float
    canaries: int
    guesses: int
    correct: int
    refuted: bool | None = None


def audit(
    scores: Any,
    included: Any,
    *,
    delta: float,
    confidence: float = 0.95,
    shares: Sequence[float] = (0.5, 0.2, 0.05),
    curve: tuple[Any, Any] | None = None,
) -> OneRun:
    """Lower bounds from the scores of the canaries of one run.

    The attacker guesses "in" for the highest scores and "out" for the lowest, equally many, and
    keeps silent about the rest; among equal scores its guesses are the wrong ones first. How many
    to guess is chosen among `shares` by the bound itself, and paid for by the union bound.

    Args:
      scores: `[m]`; high ones should mean that the canary was in. Not NaN.
      included: bool `[m]`: independent fair coins, which the mechanism saw through the canaries
        only.
      delta: in [0, 1). confidence: in (0, 1).
      shares: parts of the canaries to guess about, each in (0, 1], named before the scores are
        seen. One share costs the least confidence: 0.05 to 0.2 suit mu up to 2, larger ones large
        mu.
      curve: (false-positive rates `[n]`, rising from 0 to 1; least false-negative rates `[n]` of
        any test there), as certified: of `fljax.attacks.rounds.certified_curve`, say.

    Raises:
      ValueError: shapes differ, NaN among the scores, no share, or a number out of range.
    """
    _validate.open_unit(confidence=confidence)
    if not len(shares) or not all(0 < share <= 1 for share in shares):
        raise ValueError(f"Expected shares in (0, 1], at least one, got shares={shares!r}.")
    values, coins = np.asarray(scores, np.float64), np.asarray(included, bool)
    if values.ndim != 1 or coins.shape != values.shape or values.size < 2 or np.isnan(values).any():
        raise ValueError(
            f"Expected scores [m] without NaN and included [m], m >= 2, got shapes {values.shape} "
            f"and {coins.shape}."
        )
    # Equal scores: those that are in stand below those that are out. An order of the caller's could
    # tell the coins.
    order = np.lexsort((~coins, values))
    most = values.size // 2
    halves = sorted(
        {min(max(1, round(share * values.size / 2)), most) for share in shares}, reverse=True
    )
    error, found = (1 - confidence) / len(halves), []
    least_fpr = None if curve is None else _inverse(*curve)
    refutes = []
    for half in halves:
        correct = int(coins[order[-half:]].sum() + (~coins[order[:half]]).sum())
        counts: dict[str, Any] = {"canaries": values.size, "guesses": 2 * half, "correct": correct}
        epsilon = epsilon_lower(**counts, delta=delta, confidence=1 - error)
        mu = mu_lower(**counts, confidence=1 - error)
        if least_fpr is not None:
            refutes.append(bool(_impossible(least_fpr, **counts, error=error)))
        found.append((epsilon, mu, 2 * half, correct))
    best = max(found, key=lambda row: row[1])
    gdp = float(gaussian.mu_to_epsilon(best[1], max(delta, 1e-300)))
    most_epsilon, refuted = max(row[0] for row in found), any(refutes) if refutes else None
    return OneRun(most_epsilon, best[1], gdp, values.size, best[2], best[3], refuted)


def p_value(*, canaries: int, guesses: int, correct: int, epsilon: Any, delta: float) -> np.ndarray:
    """Chance `[...]`, at most, of so many correct guesses against an (epsilon, delta)-DP mechanism.

    Source: Steinke, Nasr, Jagielski (2023), Privacy auditing with one (1) training run,
      arXiv:2305.08846, Theorem 5.2.
    """
    _check_counts(canaries, guesses, correct)
    prob = special.expit(np.asarray(epsilon, np.float64))[..., None]
    # tails[i]: chance that a binomial is at least correct - i.
    steps = np.arange(canaries + 1) if delta > 0 else np.zeros(1, int)
    tails = stats.binom.sf(correct - 1 - steps, guesses, prob)
    if delta == 0:
        return np.minimum(tails[..., 0], 1.0)
    worst = ((tails[..., 1:] - tails[..., :1]) / steps[1:]).max(-1)
    return np.minimum(tails[..., 0] + 2 * canaries * delta * worst, 1.0)


def epsilon_lower(
    *, canaries: int, guesses: int, correct: int, delta: float, confidence: float
) -> float:
    """Largest epsilon that `p_value` refutes at this confidence; 0 if none.

    Raises:
      ValueError: a number is out of range.
    """
    _validate.open_unit(confidence=confidence)
    if not 0 <= delta < 1:
        raise ValueError(f"Expected delta in [0, 1), got delta={delta!r}.")
    counts = {"canaries": canaries, "guesses": guesses, "correct": correct}

    def refuted(epsilon: np.ndarray) -> np.ndarray:
        return p_value(**counts, epsilon=epsilon, delta=delta) < 1 - confidence

    return _largest(refuted, high=math.log(guesses) + 8)


def mu_lower(*, canaries: int, guesses: int, correct: int, confidence: float) -> float:
    """Largest mu such that no mu-GDP mechanism lets anybody be right so often with chance 1 -
    confidence; 0 if none.

    Guarantee: by `_impossible`, of a Gaussian curve.

    Raises:
      ValueError: a number is out of range.

    Source: Mahloujifar, Melis, Chaudhuri (2024), Auditing f-differential privacy in one run,
      arXiv:2410.22235.
    """
    _validate.open_unit(confidence=confidence)
    _check_counts(canaries, guesses, correct)
    counts: dict[str, Any] = {"canaries": canaries, "guesses": guesses, "correct": correct}

    def refuted(mu: np.ndarray) -> np.ndarray:
        least_fpr = lambda tpr: special.ndtr(special.ndtri(tpr) - mu)
        return _impossible(least_fpr, **counts, error=1 - confidence, shape=mu.shape)

    return _largest(refuted, high=2 * float(special.ndtri(1 - 1e-9)))


def _impossible(
    least_fpr: Callable[[np.ndarray], np.ndarray],
    *,
    canaries: int,
    guesses: int,
    correct: int,
    error: float,
    shape: tuple[int, ...] = (),
) -> np.ndarray:
    """Whether no mechanism lets anybody be right so often with chance `error`, bool `shape`, if any
    test of one unit that finds it with chance t cries wolf with chance least_fpr(t) at least.

    Let p_j be the chance of exactly j right guesses. Flipping one random canary's coin turns a
    right guess about it into a wrong one and j into j - 1, so that f-DP bounds sum_{j >= i} j p_j
    by sum_{j >= i - 1} (g - j) p_j through its curve. Starting from P(at least `correct`) = 1 -
    confidence, the least chances below it are found one by one; where they add up to more than 1,
    the mechanism is refuted.
    """
    right = np.full(shape, error * correct / canaries)
    wrong = np.full(shape, error * (guesses - correct) / canaries)
    for i in range(correct - 1, -1, -1):
        least = np.maximum(wrong, least_fpr(np.minimum(right, 1.0)))
        right, wrong = right + i / (guesses - i) * (least - wrong), least
    return right + wrong > guesses / canaries


def _inverse(fpr: Any, fnr: Any) -> Callable[[np.ndarray], np.ndarray]:
    """true-positive rate -> a false-positive rate that no test with it is below, from points of a
    curve.

    Raises:
      ValueError: no such points.
    """
    rates, best = np.asarray(fpr, np.float64), 1 - np.asarray(fnr, np.float64)
    fits = rates.ndim == 1 and rates.shape == best.shape and rates.size > 1
    if not (fits and rates[0] == 0 and (np.diff(rates) > 0).all() and rates[-1] <= 1):
        raise ValueError(
            "Expected curve to be (fpr [n], rising from 0 to 1 at most; fnr [n]), got fpr="
            f"{np.asarray(fpr)!r} and fnr of shape {best.shape}."
        )
    wild = ~((best >= 0) & (best <= 1))
    if wild.any():
        raise ValueError(f"Expected rates fnr of curve in [0, 1], got {1 - best[wild]!r}.")
    best = np.maximum.accumulate(best)
    # One point less: the curve is convex, and between points it is below any chord.
    return lambda tpr: rates[np.maximum(np.searchsorted(best, tpr, "left") - 1, 0)]


def _largest(refuted: Any, *, high: float) -> float:
    """Largest number in [0, high) that is refuted, from below, to a part in 10^6; a grid at a
    time.
    """
    low = 0.0
    for _ in range(_STEPS):
        grid = np.linspace(low, high, 34)[1:-1]
        wrong = refuted(grid)
        first = int(np.argmin(wrong)) if not wrong.all() else len(grid)
        low, high = (
            (grid[first - 1] if first else low),
            (grid[first] if first < len(grid) else high),
        )
    return float(low)


def _check_counts(canaries: int, guesses: int, correct: int) -> None:
    _validate.positive_int(canaries=canaries, guesses=guesses)
    _validate.non_negative_int(correct=correct)
    if not correct <= guesses <= canaries:
        raise ValueError(
            f"Expected correct <= guesses <= canaries, got correct={correct}, guesses={guesses}, "
            f"canaries={canaries}."
        )
