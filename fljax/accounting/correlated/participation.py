"""How far one unit moves C x, over all rounds that it takes part in."""

import functools

import numpy as np

from fljax import _validate
from fljax.accounting.correlated import matrices
from fljax_kernels.correlated import Strategy


def most_participations(
    num_rounds: int, min_separation: int, participations: int | None = None
) -> int:
    """Rounds that one unit takes part in at most, any two of them `min_separation` apart."""
    _validate.positive_int(num_rounds=num_rounds, min_separation=min_separation)
    fit = -(-num_rounds // min_separation)
    if participations is None:
        return fit
    _validate.positive_int(participations=participations)
    return min(fit, participations)


@functools.lru_cache(maxsize=256)
def sensitivity(
    strategy: Strategy,
    *,
    min_separation: int,
    participations: int | None = None,
    cyclic: bool = False,
) -> float:
    """Upper bound on the L2 norm by which one unit of norm 1 a round moves C x.

    Guarantee: never below the truth, whatever vectors of norm <= 1 the unit adds in its rounds;
    rounded up. It is attained where the columns of C that a unit meets are orthogonal (as many
    bands as `min_separation` or fewer), or C is Toeplitz with entries that are >= 0 and never rise,
    or the unit's rounds are `cyclic`, without `participations`, and columns have no negative
    products.

    Args:
      strategy: C.
      min_separation: rounds from one participation to the next at least, >= 1.
      participations: most of them. None: as many as fit.
      cyclic: participations are multiples of `min_separation` apart, as where clients take turns,
        of which they may skip some.

    Raises:
      ValueError: a number is out of range.

    Sources: arXiv:2306.08153, Theorem 2 and Algorithm 3; of Toeplitz matrices: arXiv:2404.16706,
    Theorem 2.
    """
    count = strategy.num_rounds
    most = most_participations(count, min_separation, participations)
    column = matrices.toeplitz(strategy)
    if column is not None and np.all(column >= 0) and np.all(np.diff(column) <= 0):
        # The earliest rounds, as near as allowed, move the most.
        total = np.zeros(count)
        for i in range(most):
            start = i * min_separation
            total[start:] += column[: count - start]
        squared = float(np.sum(total**2))
    else:
        matrix = matrices.encoder(strategy)
        gram = np.abs(matrix.T @ matrix)
        apart = np.abs(np.subtract.outer(np.arange(count), np.arange(count)))
        if not gram[apart >= min_separation].any():
            squared = float(_most(np.diag(gram), min_separation, most))
        else:
            squared = (_turns if cyclic else _any)(gram, min_separation, most)
    # Sums of non-negative float64 numbers, each of relative error below the number of terms.
    return float(np.sqrt(squared) * (1 + 2.0**-50 * count))


def moved(strategy: Strategy, taken: np.ndarray) -> np.ndarray:
    """Upper bounds `[N]` on the L2 norm by which units of norm 1 in these rounds move C x, where C
    begins anew after its rounds.

    Args:
      strategy: C.
      taken: bool `[T, N]`, whether unit n takes part in round t.

    Raises:
      ValueError: `taken` has not this shape, or C more rounds than a dense matrix may have.
    """
    taken = np.asarray(taken)
    if taken.ndim != 2:
        raise ValueError(f"Expected taken of shape [T, N], got shape {taken.shape}.")
    length = min(strategy.num_rounds, max(len(taken), 1))
    # The first columns and rows alone: what a run does not reach moves nothing that is seen.
    matrix = matrices.encoder(strategy)[:length, :length]
    squared = np.zeros(taken.shape[1])
    for start in range(0, len(taken), strategy.num_rounds):
        there = taken[start : start + length].astype(np.float64)
        used = matrix[: len(there), : len(there)]
        squared += np.sum(there * (np.abs(used.T @ used) @ there), axis=0)
    return np.asarray(np.sqrt(squared) * (1 + 2.0**-50 * length))


def _turns(gram: np.ndarray, separation: int, most: int) -> float:
    """Largest sum over the pairs of `most` of the rounds s, s + b, s + 2 b, .., or above it where
    turns may be skipped.
    """
    turns = [np.arange(start, len(gram), separation) for start in range(separation)]
    return max(_any(gram[np.ix_(turn, turn)], 1, most) for turn in turns if len(turn))


def _any(gram: np.ndarray, separation: int, most: int) -> float:
    """Rows and columns may each choose their rounds: at least the largest sum over one choice."""
    return float(_most(_most(gram, separation, most), separation, most))


def _most(values: np.ndarray, separation: int, most: int) -> np.ndarray:
    """Largest sums of `most` of the last axis' numbers >= 0, any two `separation` apart."""
    count = values.shape[-1]
    best = np.zeros((*values.shape[:-1], count + separation))
    for _ in range(most):
        best[..., :count] = values + best[..., separation:]
        best = np.maximum.accumulate(best[..., ::-1], axis=-1)[..., ::-1].copy()
    return best[..., 0]
