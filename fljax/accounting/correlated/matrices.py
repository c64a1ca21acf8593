"""The matrix of a strategy, and the error that its noise leaves on running sums; NumPy, float64."""

import functools

import numpy as np
from scipy import linalg

from fljax_kernels.correlated import Strategy

MOST_ROUNDS = 8192  # of a dense matrix: half a GiB


def inverse_series(coefs: np.ndarray, count: int) -> np.ndarray:
    """First `count` coefficients of 1 / (c_0 + c_1 x + ..): C^-1 of a Toeplitz C."""
    from scipy import signal  # here: it takes longer to import than what else we take of SciPy

    impulse = np.zeros(count)
    impulse[0] = 1.0
    return np.asarray(signal.lfilter([1.0], np.asarray(coefs, np.float64)[:count], impulse))


def toeplitz(strategy: Strategy) -> np.ndarray | None:
    """The first column `[T]` of C; None for a C that is no Toeplitz matrix."""
    count, numbers = strategy.num_rounds, np.asarray(strategy.coefs, np.float64)
    if strategy.kind in ("dense_banded", "tree"):
        return None
    if strategy.kind == "banded_inverse":
        return inverse_series(numbers, count)
    if strategy.kind == "banded":
        return np.concatenate([numbers, np.zeros(count)])[:count]
    decay, scale = np.split(numbers, 2)
    powers = decay ** np.arange(count - 1)[:, None]
    return np.concatenate([[1.0], powers @ scale])


@functools.lru_cache(maxsize=16)
def encoder(strategy: Strategy) -> np.ndarray:
    """C `[T, T]`, read-only.

    Raises:
      ValueError: more than 8192 rounds.
    """
    count = strategy.num_rounds
    if count > MOST_ROUNDS:
        raise ValueError(f"Expected num_rounds <= {MOST_ROUNDS}, got num_rounds={count}.")
    column = toeplitz(strategy)
    if column is not None:
        matrix = np.tril(linalg.toeplitz(column))
    elif strategy.kind == "dense_banded":
        rows = np.asarray(strategy.coefs, np.float64).reshape(count, -1)
        matrix = np.zeros((count, count))
        for i in range(rows.shape[1]):
            matrix += np.diag(rows[i:, i], -i)
    else:
        rounds = np.arange(count)
        sizes = (rounds + 1) & -(rounds + 1)  # of the node that ends in a round
        behind = rounds[:, None] - rounds
        matrix = ((behind >= 0) & (behind < sizes[:, None])).astype(np.float64)
    matrix.setflags(write=False)
    return matrix


def squared_errors(strategy: Strategy) -> np.ndarray:
    """Variance `[T]` of the noise on the sum of the first t + 1 rounds, where z has variance 1.

    Times the squared sensitivity it is the error at noise multiplier 1. Its largest and its mean
    are what strategies are chosen by.
    """
    column = toeplitz(strategy)
    if column is not None:
        return np.cumsum(np.cumsum(inverse_series(column, strategy.num_rounds)) ** 2)
    sums = linalg.solve_triangular(encoder(strategy).T, np.tri(strategy.num_rounds).T, lower=False)
    return np.sum(sums**2, axis=0)
