"""Renyi divergence of the best of a random number of runs, as in a search for hyper-parameters.

Source: Papernot, Steinke (2022), "Hyperparameter Tuning with Renyi Differential Privacy",
arXiv:2110.03620; theorem numbers are those of its second version.
"""

import math

import numpy as np

from fljax.accounting import search
from fljax.accounting.renyi import conversion

# Of laws that are drawn from: the chance of the fewest runs is then a number, 1e-250 or more.
MOST_POISSON_RUNS, LARGEST_SHAPE = 500, 100


def log_mean(log_stop: np.ndarray, shape: float) -> np.ndarray:
    """Log of the mean number of runs `[...]` of the truncated negative binomial law.

    Args:
      log_stop: `[...]`, log(1 / gamma) > 0 of Definition 1: larger is more runs.
      shape: eta >= 0; 0 is the logarithmic law, 1 the geometric one.
    """
    u = np.asarray(log_stop, np.float64)
    # (1 / gamma - 1) eta / (1 - gamma^eta), whose limit at eta 0 is (1 / gamma - 1) / log(1 /
    # gamma).
    log_growth = np.where(u < 30, np.log(np.expm1(np.minimum(u, 30.0))), u)
    return log_growth - np.log(u if shape == 0 else -np.expm1(-shape * u) / shape)


def log_stop_of(mean: float, shape: float) -> float:
    """The inverse of `log_mean` at log `mean` >= 0, from above: a law of no fewer runs."""
    goal = math.log(mean)
    if goal == 0:
        return 0.0
    low, high = np.array([1e-300]), np.array([2 * goal + 10.0])
    found = search.bisect(lambda u: log_mean(u, shape) < goal, low, high, 2000)[1]
    return float(found[0]) * (1 + 1e-12)


def num_runs(mean: float, shape: float | str, uniform: float) -> int:
    """The number of runs that a number drawn from [0, 1) stands for: the law's quantile.

    Args:
      mean: >= 1, at most MOST_POISSON_RUNS of a Poisson law. shape: "poisson", or eta in
        [0, LARGEST_SHAPE]. uniform: in [0, 1).

    Raises:
      ValueError: mean or shape is so large that chances below the range of floats add up.

    Source: Definition 1.
    """
    if shape == "poisson" and not mean <= MOST_POISSON_RUNS:
        raise ValueError(
            f"Expected mean <= {MOST_POISSON_RUNS} with shape='poisson', got mean={mean!r}."
        )
    if shape != "poisson" and not float(shape) <= LARGEST_SHAPE:
        raise ValueError(f"Expected shape <= {LARGEST_SHAPE}, got shape={shape!r}.")
    if shape == "poisson":
        count, chance = 0, math.exp(-mean)
    elif mean == 1:
        return 1
    else:
        eta = float(shape)
        # Fewer runs than are paid for, by 4e-12 of log(1 / gamma).
        u = log_stop_of(mean, eta) * (1 - 4e-12)
        goes_on = -math.expm1(-u)  # 1 - gamma
        count, chance = 1, goes_on * (eta / math.expm1(eta * u) if eta > 0 else 1 / u)
    below = chance
    while below <= uniform and chance > 0:
        count += 1
        if shape == "poisson":
            chance *= mean / count
        else:
            chance *= goes_on * (count - 1 + eta) / count
        below += chance
    return count


def truncated_negative_binomial(
    rdp: np.ndarray, orders: np.ndarray, mean: float, shape: float
) -> np.ndarray:
    """Divergences `[K]` of the best run from those of one run; see `events.RepeatAndSelect`.

    Args:
      rdp: `[K]`, of one run.
      orders: `[K]`, ascending, >= 1, infinity included if that is known.
      mean, shape: of the number of runs.

    Source: Theorem 2; the divergence grows with its order.
    """
    log_stop = log_stop_of(mean, shape)
    inverse = 1 / orders
    with np.errstate(invalid="ignore"):
        paid = np.where(orders == 1, log_stop, (1 - inverse) * rdp + log_stop * inverse)
    return _growing(rdp + _per_order(mean, orders) + (1 + shape) * paid.min(), orders)


def poisson(rdp: np.ndarray, orders: np.ndarray, mean: float) -> np.ndarray:
    """As `truncated_negative_binomial`, for a Poisson number of runs.

    Source: Theorem 6, at the largest epsilon that it allows.
    """
    usual = (orders > 1) & np.isfinite(orders)
    with np.errstate(divide="ignore"):
        epsilons = np.log1p(1 / (orders - 1))
    pure = rdp[-1] if np.isinf(orders[-1]) else math.inf
    found = []
    for epsilon in epsilons:
        if not math.isfinite(epsilon):  # order 1
            found.append(0.0)
            continue
        log_delta = conversion.rdp_to_log_deltas(rdp[usual], orders[usual], epsilon).min()
        # of a pure mechanism that of randomised response
        of_pure = (
            -math.expm1(min(epsilon - pure, 0.0)) / (1 + math.exp(-pure))
            if pure < math.inf
            else 1.0
        )
        found.append(min(math.exp(log_delta), of_pure))
    return _growing(rdp + mean * np.array(found) + _per_order(mean, orders), orders)


def _per_order(mean: float, orders: np.ndarray) -> np.ndarray:
    """log(mean) / (order - 1): nothing of one run, no bound at order 1 of more."""
    if mean == 1:
        return np.zeros(orders.shape)
    with np.errstate(divide="ignore"):
        return math.log(mean) / (orders - 1)


def _growing(curve: np.ndarray, orders: np.ndarray) -> np.ndarray:
    """The least of the bounds at no smaller order, which all hold."""
    return np.minimum.accumulate(curve[::-1])[::-1]
