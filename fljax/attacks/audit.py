"""Lower bounds on epsilon from an attack's scores in two worlds: with one privacy unit, and without
it.

Run a mechanism many times in each world, give every run a score (best: the log-likelihood ratio,
`directions`), and `two_worlds` says how much privacy it cannot have. Whatever the mechanism is,
"epsilon at delta" is then wrong with chance at most 1 - confidence if it is below the bound.
"""

from typing import Any, NamedTuple

import numpy as np
from scipy import special

from fljax import _validate
from fljax.accounting import gaussian

_GRID = 100  # thresholds that are tried on the part of the trials that chooses one
_CHOOSING = 0.25


class Audit(NamedTuple):
    """What scores prove, each `[...]`, with the stated confidence.

    epsilon: the mechanism is not (less, delta)-DP. mu: it is not less-than-mu Gaussian DP.
    gdp_epsilon: that mu's epsilon at delta, a bound for mechanisms whose trade-off curve is
    Gaussian, and for those only. tpr, fpr: rates of the test that `epsilon` comes from, as counted.
    trials: that counted, in each world.
    """

    epsilon: np.ndarray
    mu: np.ndarray
    gdp_epsilon: np.ndarray
    tpr: np.ndarray
    fpr: np.ndarray
    trials: int


def clopper_pearson(successes: Any, trials: Any, error: float) -> tuple[np.ndarray, np.ndarray]:
    """(low, high), each missing the true chance with probability at most `error`; exact, not
    asymptotic.

    Args:
      successes, trials: counts `[...]`, 0 <= successes <= trials.
      error: in (0, 1), of each side.

    Source: Clopper, Pearson (1934), The use of confidence or fiducial limits.
    """
    _validate.open_unit(error=error)
    k, n = np.asarray(successes, np.float64), np.asarray(trials, np.float64)
    if not ((k >= 0) & (k <= n)).all():
        raise ValueError(
            f"Expected 0 <= successes <= trials, got successes={successes!r}, trials={trials!r}."
        )
    low = np.where(k > 0, special.betaincinv(np.maximum(k, 1), n - k + 1, error), 0.0)
    high = np.where(k < n, special.betaincinv(k + 1, np.maximum(n - k, 1), 1 - error), 1.0)
    return low, high


def epsilon_of_rates(tpr: Any, fpr: Any, delta: float) -> np.ndarray:
    """The epsilon `[...]` >= 0 that a test with these rates refutes: TPR <= e^epsilon FPR +
    delta.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        value = np.log(np.maximum(np.asarray(tpr, np.float64) - delta, 0)) - np.log(
            np.asarray(fpr, np.float64)
        )
    return np.maximum(np.nan_to_num(value, nan=0.0, neginf=0.0), 0.0)


def mu_of_rates(tpr: Any, fpr: Any) -> np.ndarray:
    """The mu `[...]` >= 0 of the Gaussian trade-off curve through these rates; 0 where they say
    nothing.
    """
    value = special.ndtri(np.asarray(tpr, np.float64)) - special.ndtri(np.asarray(fpr, np.float64))
    return np.maximum(np.nan_to_num(value, nan=0.0, neginf=0.0), 0.0)


def two_worlds(present: Any, absent: Any, *, delta: float, confidence: float = 0.95) -> Audit:
    """Lower bounds on privacy parameters from scores of independent runs with the unit and without
    it.

    The first quarter of the trials chooses a threshold and a side, the rest is counted: scores that
    chose a threshold must not count for it, or the bound is wrong more often than it says.

    Guarantee: for scores that are independent between runs, each of `epsilon` and `mu` exceeds the
    truth with chance at most 1 - confidence; the two together twice that. Runs of one `jit` with
    keys split from one are independent as far as threefry is a random function.

    Args:
      present, absent: scores `[..., n]`, the same n; high ones should mean that the unit was there.
        Leading axes are audits of their own.
      delta: in [0, 1).
      confidence: in (0, 1).

    Raises:
      ValueError: shapes differ, fewer than 8 runs, NaN among the scores, or a number out of range.

    Source: Jagielski et al. (2020), arXiv:2006.07709; Nasr et al. (2023), arXiv:2302.07956
      (Gaussian curves).
    """
    _validate.open_unit(confidence=confidence)
    if not 0 <= delta < 1:
        raise ValueError(f"Expected delta in [0, 1), got delta={delta!r}.")
    scores = [np.asarray(v, np.float64) for v in (present, absent)]
    if scores[0].shape != scores[1].shape or scores[0].ndim == 0 or scores[0].shape[-1] < 8:
        raise ValueError(
            "Expected present and absent of one shape [..., n] with n >= 8, "
            f"got shapes {scores[0].shape} and {scores[1].shape}."
        )
    if any(np.isnan(v).any() for v in scores):
        raise ValueError(
            "Expected scores without NaN, got some: give runs that fail a score of their own."
        )
    trials, error = counted(scores[0].shape[-1]), (1 - confidence) / 2
    split = scores[0].shape[-1] - trials
    first = np.sort(np.concatenate([v[..., :split] for v in scores], -1), -1)
    places = np.unique(np.linspace(0, first.shape[-1] - 1, _GRID + 2).astype(int)[1:-1])
    grid = first[..., places]

    def counts(part: slice, thresholds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Runs above each threshold, in both worlds: `[..., thresholds]`."""
        found = []
        for world in scores:
            ordered = np.sort(world[..., part], -1).reshape(-1, world[..., part].shape[-1])
            pairs = zip(ordered, thresholds.reshape(len(ordered), -1), strict=True)
            below = np.stack([np.searchsorted(row, at, "right") for row, at in pairs])
            found.append((ordered.shape[-1] - below).reshape(thresholds.shape))
        return found[0], found[1]

    def sides(hits: np.ndarray, alarms: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Bounds of the rates of the test itself and of the opposite test: `[..., thresholds, 2]`
        each.
        """
        hit, alarm = clopper_pearson(hits, n, error), clopper_pearson(alarms, n, error)
        return np.stack([hit[0], 1 - alarm[1]], -1), np.stack([alarm[1], 1 - hit[0]], -1)

    # What the first part alone would prove: its caution keeps away from thresholds that few runs
    # are above.
    guess = sides(*counts(slice(split), grid), split)

    def at_best(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Bounds and counted rates at the threshold and side where `values` `[..., thresholds, 2]`
        are largest.
        """
        best = values.reshape(*values.shape[:-2], -1).argmax(-1)
        threshold = np.take_along_axis(grid, best[..., None] // 2, -1)
        hits, alarms = counts(slice(split, None), threshold)
        high, side = sides(hits, alarms, trials), best[..., None, None] % 2
        low, up = (np.take_along_axis(v, side, -1)[..., 0, 0] for v in high)
        rates = np.concatenate([hits, alarms], -1) / trials
        flipped = best % 2 == 1
        tpr = np.where(flipped, 1 - rates[..., 1], rates[..., 0])
        return low, up, tpr, np.where(flipped, 1 - rates[..., 0], rates[..., 1])

    low, high, tpr, fpr = at_best(epsilon_of_rates(*guess, delta))
    mu = mu_of_rates(*at_best(mu_of_rates(*guess))[:2])
    gdp = np.asarray(gaussian.mu_to_epsilon(mu, max(delta, 1e-300)))
    return Audit(epsilon_of_rates(low, high, delta), mu, gdp, tpr, fpr, trials)


def combined(present: Any, absent: Any) -> tuple[np.ndarray, np.ndarray]:
    """One score `[n]` of each run from F numbers `[n, F]`: Fisher's linear discriminant, of the
    runs that `two_worlds` does not count.

    For numbers that are jointly Gaussian, with one covariance in both worlds, no score is better.
    """
    worlds = [np.asarray(world, np.float64) for world in (present, absent)]
    if worlds[0].shape[1] == 1:
        return worlds[0][:, 0], worlds[1][:, 0]
    choosing = len(worlds[0]) - counted(len(worlds[0]))
    first = [world[:choosing] for world in worlds]
    # In units of their own spread: numbers of very different size would drown each other.
    scale = np.concatenate(first).std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    covariance = sum(np.cov(world / scale, rowvar=False) for world in first)
    moved = (first[0].mean(axis=0) - first[1].mean(axis=0)) / scale
    direction = np.linalg.lstsq(covariance, moved, rcond=1e-9)[0] / scale
    return worlds[0] @ direction, worlds[1] @ direction


def counted(num_runs: int) -> int:
    """Of so many runs in a world, those that `two_worlds` counts; the others choose."""
    return num_runs - int(_CHOOSING * num_runs)


def ceiling(num_runs: int, *, delta: float, confidence: float = 0.95) -> float:
    """What `two_worlds` proves of perfectly separated scores: no data of so many runs in each world
    prove more.

    Args:
      num_runs: in each world, >= 8. delta, confidence: as there.

    Raises:
      ValueError: a number is out of range.
    """
    found = two_worlds(np.ones(num_runs), np.zeros(num_runs), delta=delta, confidence=confidence)
    return float(found.epsilon)


def directions(covariance: Any, shift: Any) -> tuple[np.ndarray, float]:
    """The likelihood-ratio test of a Gaussian (joint) view: `(direction [d], mu)`, the score being
    view @ direction.

    No test tells N(m, covariance) from N(m + shift, covariance) better, and it is as good as mu-GDP
    allows.

    Args:
      covariance: `[d, d]`, positive definite; of everything that the attacker sees at once.
      shift: `[d]`, what the unit adds to its mean.

    Raises:
      ValueError: shapes do not fit, or covariance is not positive definite.
    """
    matrix, moved = np.asarray(covariance, np.float64), np.asarray(shift, np.float64)
    if moved.ndim != 1 or matrix.shape != (moved.size, moved.size):
        raise ValueError(
            f"Expected covariance [d, d] and shift [d], got shapes {matrix.shape} and "
            f"{moved.shape}."
        )
    try:
        root = np.linalg.cholesky((matrix + matrix.T) / 2)
    except np.linalg.LinAlgError as reason:
        raise ValueError(
            "Expected covariance to be positive definite, got one that is not."
        ) from reason
    whitened = np.linalg.solve(root, moved)
    return np.linalg.solve(root.T, whitened), float(np.linalg.norm(whitened))
