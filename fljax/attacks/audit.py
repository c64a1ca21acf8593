"""Lower bounds on epsilon from an attack's scores in two worlds: with one privacy unit, and without
it.

Run a mechanism many times in each world, give every run a score (best: the log-likelihood ratio,
`directions`), and `two_worlds` says how much privacy it cannot have. Whatever the mechanism is,
"epsilon at delta" is then wrong with chance at most 1 - confidence if it is below the bound.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from fljax import _validate
from fljax.accounting import gaussian

_GRID = 200  # thresholds that are tried on the part of the trials that chooses one
_CHOOSING = 0.1
_NARROW = 0.9  # of what a side promises: the other one is taken unless its runs are far fewer
_LEAST = 2  # runs of a world that choose
_KOLMOGOROV = (
    1.36  # of an empirical law, times the root of its size: passed by chance in 5 % of all
)


class Audit(NamedTuple):
    """What scores prove, each `[...]`, with the stated confidence.

    epsilon: the mechanism is not (less, delta)-DP. mu: it is not less-than-mu Gaussian DP.
    gdp_epsilon: that mu's epsilon at delta, a bound for mechanisms whose trade-off curve is
    Gaussian, and for those only. tpr, fpr: rates of the test that `epsilon` comes from, as counted.
    trials: that counted, with the unit and without it.
    """

    epsilon: np.ndarray
    mu: np.ndarray
    gdp_epsilon: np.ndarray
    tpr: np.ndarray
    fpr: np.ndarray
    trials: tuple[int, int]


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


def two_worlds(
    present: Any,
    absent: Any,
    *,
    delta: float,
    confidence: float = 0.95,
    threshold: float | None = None,
) -> Audit:
    """Lower bounds on privacy parameters from scores of independent runs with the unit and without
    it.

    The first tenth of each world's trials chooses a threshold and a side, the rest is counted:
    scores that chose a threshold must not count for it, or the bound is wrong more often than it
    says.

    Guarantee: for scores that are independent between runs, each of `epsilon` and `mu` exceeds the
    truth with chance at most 1 - confidence; the two together twice that. Runs of one `jit` with
    keys split from one are independent as far as threefry is a random function.

    Args:
      present, absent: scores `[..., n]` and `[..., m]`; high ones should mean that the unit was
        there. Leading axes are audits of their own.
      delta: in [0, 1).
      confidence: in (0, 1).
      threshold: named before the scores were seen: all trials count, and who scores above it is
        taken to have been there. None: chosen as said.

    Raises:
      ValueError: leading axes differ, fewer than 8 runs of a world, NaN among the scores, or a
        number out of range.

    Source: Jagielski et al. (2020), arXiv:2006.07709; Nasr et al. (2023), arXiv:2302.07956
      (Gaussian curves).
    """
    _validate.open_unit(confidence=confidence)
    if not 0 <= delta < 1:
        raise ValueError(f"Expected delta in [0, 1), got delta={delta!r}.")
    if threshold is not None and not math.isfinite(threshold):
        raise ValueError(f"Expected threshold to be finite, got threshold={threshold!r}.")
    scores = [np.asarray(v, np.float64) for v in (present, absent)]
    shapes = [v.shape for v in scores]
    if not all(shapes) or shapes[0][:-1] != shapes[1][:-1] or min(s[-1] for s in shapes) < 8:
        raise ValueError(
            "Expected present [..., n] and absent [..., m] with n, m >= 8 and the same leading "
            f"axes, got shapes {shapes[0]} and {shapes[1]}."
        )
    if any(np.isnan(v).any() for v in scores):
        raise ValueError(
            "Expected scores without NaN, got some: give runs that fail a score of their own."
        )
    error = (1 - confidence) / 2
    if threshold is None:
        splits = [size[-1] - counted(size[-1]) for size in shapes]
    else:
        splits = [0, 0]
    first = [v[..., :split] for v, split in zip(scores, splits, strict=True)]
    rest = [v[..., split:] for v, split in zip(scores, splits, strict=True)]
    num = (rest[0].shape[-1], rest[1].shape[-1])

    def sides(hits: np.ndarray, alarms: np.ndarray) -> tuple[np.ndarray, ...]:
        """Bounds (low TPR, high FPR) and rates (TPR, FPR), of the test and of the opposite one,
        from counts `[..., thresholds]`: `[..., thresholds, 2]` each.
        """
        hit = clopper_pearson(hits, num[0], error)
        alarm = clopper_pearson(alarms, num[1], error)
        tpr, fpr = hits / num[0], alarms / num[1]
        return (
            np.stack([hit[0], 1 - alarm[1]], -1),
            np.stack([alarm[1], 1 - hit[0]], -1),
            np.stack([tpr, 1 - fpr], -1),
            np.stack([fpr, 1 - tpr], -1),
        )

    if threshold is None:
        grid, expected, trust = _expected(*first)
        guess = sides(*(rate * n for rate, n in zip(expected, num, strict=True)))[:2]

    def at_best(value: Callable[..., np.ndarray]) -> tuple[np.ndarray, ...]:
        """Bounds and counted rates at the threshold and side where `value` is expected to be
        largest.
        """
        if threshold is not None:
            at = np.full((*shapes[0][:-1], 1), threshold)
            return tuple(part[..., 0, 0] for part in sides(*_above(rest, at)))
        values = value(*guess) * trust[..., None, :]
        best = values.reshape(*values.shape[:-2], -1).argmax(-1)
        at = np.take_along_axis(grid, best[..., None] // 2, -1)
        side = best[..., None, None] % 2
        found = sides(*_above(rest, at))
        return tuple(np.take_along_axis(part, side, -1)[..., 0, 0] for part in found)

    low, high, tpr, fpr = at_best(lambda low, high: epsilon_of_rates(low, high, delta))
    mu = mu_of_rates(*at_best(mu_of_rates)[:2])
    gdp = np.asarray(gaussian.mu_to_epsilon(mu, max(delta, 1e-300)))
    return Audit(epsilon_of_rates(low, high, delta), mu, gdp, tpr, fpr, num)


def _above(worlds: list[np.ndarray], thresholds: np.ndarray) -> list[np.ndarray]:
    """How many scores of each world `[..., n]` are above each threshold: `[..., thresholds]`."""
    found = []
    for world in worlds:
        ordered = np.sort(world, -1).reshape(-1, world.shape[-1])
        pairs = zip(ordered, thresholds.reshape(len(ordered), -1), strict=True)
        below = np.stack([np.searchsorted(row, at, "right") for row, at in pairs])
        found.append((world.shape[-1] - below).reshape(thresholds.shape))
    return found


def _expected(
    present: np.ndarray, absent: np.ndarray
) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray], np.ndarray]:
    """Thresholds to choose among `[..., t]`, the share of either world that is to be expected above
    each, and how far to trust what that says of either side `[..., 2]`, from the scores `[..., n]`,
    `[..., m]` that choose.

    Where both look like normals of one variance, their rates are those of such normals: few scores
    say nothing of tails by counting. Else they are counted. Of such normals both sides of the test
    prove the same by as many runs; but a unit that only some runs sample makes a mixture that looks
    normal, and whose world is the wider one: its tail proves more than that of the other world.
    """
    worlds = [present, absent]
    together = np.sort(np.concatenate(worlds, -1), -1)
    places = np.linspace(0, together.shape[-1] - 1, _GRID + 2).astype(int)[1:-1]
    counted_at = together[..., places]
    rates = [
        (above + 0.5) / (world.shape[-1] + 1)
        for above, world in zip(_above(worlds, counted_at), worlds, strict=True)
    ]
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        means = [world.mean(-1, keepdims=True) for world in worlds]
        squares = [np.square(w - m).sum(-1) for w, m in zip(worlds, means, strict=True)]
        spread = np.sqrt((squares[0] + squares[1]) / (together.shape[-1] - 2))[..., None]
        alike = np.isfinite(spread[..., 0]) & (spread[..., 0] > 0)
        for world, mean in zip(worlds, means, strict=True):
            fitted = special.ndtr((np.sort(world, -1) - mean) / spread)
            steps = np.arange(1, world.shape[-1] + 1) / world.shape[-1]
            gap = np.maximum(np.abs(fitted - steps), np.abs(fitted - steps + steps[0])).max(-1)
            alike &= gap <= _KOLMOGOROV / world.shape[-1] ** 0.5
        reach = np.linspace(-4, 4, _GRID // 2)
        smooth_at = np.sort(np.concatenate([mean + spread * reach for mean in means], -1), -1)
        smooth = [special.ndtr((mean - smooth_at) / spread) for mean in means]

    def pick(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.where(alike[..., None], a, b)

    wider = squares[0] / present.shape[-1] >= squares[1] / absent.shape[-1]
    narrow = alike[..., None] & np.stack([~wider, wider], -1)
    return (
        pick(smooth_at, counted_at),
        (pick(smooth[0], rates[0]), pick(smooth[1], rates[1])),
        np.where(narrow, _NARROW, 1.0),
    )


def bootstrap(
    statistic: Callable[[np.ndarray, np.ndarray], float],
    present: Any,
    absent: Any,
    rng: np.random.Generator,
    *,
    confidence: float = 0.95,
    num_resamples: int = 1000,
) -> tuple[float, float]:
    """How far a number that an attack reports scatters: (low, high), from scores that are drawn
    again with replacement, each world by itself, with the correction of its bias.

    Not private, and no bound on epsilon: of an interval that holds by counting take `two_worlds`,
    or `metrics.tpr_interval`. Such an interval is as wrong as the statistic is on few scores.

    Args:
      statistic: `(present [n], absent [m]) -> number`, such as `metrics.auc`.
      present, absent: scores `[n]`, `[m]`.
      rng: draws.
      confidence: in (0, 1), of both sides together, as far as the normal approximation goes.
      num_resamples: >= 100, and as many that one is expected beyond either end: at least
        2 / (1 - confidence).

    Raises:
      ValueError: a number is out of range, or no scores of a world.

    Source: Efron (1987), Better bootstrap confidence intervals, section 2 (bias correction).
    """
    _validate.open_unit(confidence=confidence)
    _validate.positive_int(num_resamples=num_resamples)
    if num_resamples < 100:
        raise ValueError(f"Expected num_resamples >= 100, got num_resamples={num_resamples}.")
    if (1 - confidence) / 2 * num_resamples < 1 - 1e-9:  # rounding of 1 - confidence
        raise ValueError(
            "Expected (1 - confidence) / 2 * num_resamples >= 1, a resample beyond either end, got "
            f"confidence={confidence} and num_resamples={num_resamples}."
        )
    worlds = [np.asarray(v, np.float64) for v in (present, absent)]
    if any(world.ndim != 1 or not world.size for world in worlds):
        raise ValueError(
            "Expected present [n] and absent [m], one score at least of each, got shapes "
            f"{worlds[0].shape} and {worlds[1].shape}."
        )
    found = np.sort(
        [
            statistic(*(world[rng.integers(0, world.size, world.size)] for world in worlds))
            for _ in range(num_resamples)
        ]
    )
    here = statistic(*worlds)
    # Resamples below what was found, ties half; never none or all.
    below = float((found < here).sum() + (found == here).sum() / 2)
    shift = special.ndtri(np.clip(below, 0.5, num_resamples - 0.5) / num_resamples)
    ends = special.ndtri(np.asarray([(1 - confidence) / 2, (1 + confidence) / 2]))
    low, high = np.quantile(found, special.ndtr(2 * shift + ends))
    return float(low), float(high)


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
    return num_runs - max(_LEAST, int(_CHOOSING * num_runs))


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
