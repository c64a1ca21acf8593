"""Which noise is correlated with which: a lower-triangular matrix C over rounds, in few numbers."""

import dataclasses
import functools
import math

import numpy as np

MOST_GROWN = 2.0**10  # float32 has 24 bits: of noise so large, z and what it hides keep 14
_ROUNDS = 4096  # one by one; more by powers of a matrix, up to so many buffers
_MOST_BUFFERS = 512
KINDS = ("banded", "banded_inverse", "buffered", "dense_banded", "tree")


@dataclasses.dataclass(frozen=True)
class Strategy:
    """A matrix C `[T, T]` with numbers above 0 on its diagonal (ones but for "dense_banded"), which
    begins anew after T = `num_rounds`.

    kind: which numbers `coefs` holds.
      "banded": C is Toeplitz, `coefs` = (1, c_1, ..) its first column, zero behind them.
      "banded_inverse": C^-1 is that.
      "buffered": C is Toeplitz, its first column 1 and then sum_j scale_j decay_j^(i - 1) in row i
        >= 1; `coefs` = (decay_1, .., scale_1, ..), decays in [0, 1).
      "dense_banded": C has bands, each row its own: `coefs` are its rows one after the other, each
        from the diagonal to the left, zero where there is no column.
      "tree": round t releases the node of the binary tree that ends there; `coefs` = ().
    num_rounds: T >= 1.

    Raises:
      ValueError: another kind, or numbers that are none of its.

    Sources: "tree": arXiv:2103.00039; "banded", "dense_banded": arXiv:2306.08153; "buffered":
    arXiv:2404.16706; "banded_inverse": arXiv:2505.12128.
    """

    kind: str
    coefs: tuple[float, ...]
    num_rounds: int

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"Expected kind to be one of {KINDS}, got kind={self.kind!r}.")
        rounds = self.num_rounds
        if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1:
            raise ValueError(f"Expected num_rounds to be an integer >= 1, got {rounds!r}.")
        if not isinstance(self.coefs, tuple):
            raise ValueError(f"Expected coefs to be a tuple of numbers, got {self.coefs!r}.")
        numbers = all(
            isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            for value in self.coefs
        )
        half = len(self.coefs) // 2
        fits = {
            "banded": bool(self.coefs) and numbers and self.coefs[0] == 1,
            "banded_inverse": bool(self.coefs) and numbers and self.coefs[0] == 1,
            "buffered": numbers
            and len(self.coefs) == 2 * half > 0
            and all(0 <= decay < 1 for decay in self.coefs[:half]),
            "dense_banded": numbers and self._has_rows(),
            "tree": not self.coefs,
        }
        if not fits[self.kind]:
            raise ValueError(
                "Expected coefs of finite numbers, the first 1 (banded), decays in [0, 1) and as "
                "many scales (buffered), rows of one length with a number above 0 first "
                f"(dense_banded) or none (tree), got coefs={self.coefs!r} of kind {self.kind!r}."
            )

    def _has_rows(self) -> bool:
        bands, rest = divmod(len(self.coefs), self.num_rounds)
        if rest or not 1 <= bands <= self.num_rounds:
            return False
        rows = [self.coefs[t * bands : (t + 1) * bands] for t in range(self.num_rounds)]
        return all(row[0] > 0 and not any(row[t + 1 :]) for t, row in enumerate(rows))

    @property
    def num_buffers(self) -> int:
        """Arrays of the size of the noise that are kept between rounds."""
        if self.kind == "tree":
            return self.num_rounds.bit_length() - 1
        if self.kind == "buffered":
            return len(self.coefs) // 2
        if self.kind == "dense_banded":
            return len(self.coefs) // self.num_rounds - 1
        return min(len(self.coefs), self.num_rounds) - 1


@functools.lru_cache(maxsize=64)
def grown(strategy: Strategy) -> float:
    """How many times larger than what is drawn in its round the noise of a round gets: the largest
    norm of a row of C^-1, over its entry on the diagonal.

    Of "dense_banded", and of Toeplitz ones with more than 512 buffers: in the first 4096 rounds.
    """
    count, kind = min(strategy.num_rounds, _ROUNDS), strategy.kind
    numbers = np.asarray(strategy.coefs, np.float64)
    if kind == "tree":  # a node less the nodes that end in it, of which no two are the same
        return math.sqrt(strategy.num_rounds.bit_length())
    if kind == "banded_inverse":
        return float(np.linalg.norm(numbers[: strategy.num_rounds]))
    with np.errstate(over="ignore", invalid="ignore"):
        if kind == "dense_banded":
            return _of_rows(numbers.reshape(strategy.num_rounds, -1)[:count])
        if count < strategy.num_rounds and 0 < strategy.num_buffers <= _MOST_BUFFERS:
            return _of_long(strategy, numbers)
        column, kept = [1.0], np.zeros(strategy.num_buffers)
        for _ in range(count - 1):  # where one z goes, which is the first
            if kind == "banded":
                kept = np.concatenate([column[-1:], kept[:-1]])[: kept.size]
                column.append(-float(numbers[1 : kept.size + 1] @ kept))
            else:
                decay, scale = np.split(numbers, 2)
                kept = decay * kept + column[-1]
                column.append(-float(scale @ kept))
        found = float(np.linalg.norm(column))
    return found if math.isfinite(found) else math.inf


def _of_long(strategy: Strategy, numbers: np.ndarray) -> float:
    """`grown` of a Toeplitz C, whose C^-1 has the column 1, then row @ step**t @ start."""
    size = strategy.num_buffers
    if strategy.kind == "banded":
        row, start, step = -numbers[1 : size + 1], np.eye(size)[0], np.eye(size, k=-1)
        step[0] = row
    else:
        decay, scale = np.split(numbers, 2)
        row, start = -scale, np.ones(size)
        step = np.diag(decay) + row
    once = np.outer(row, row)
    squares, power = np.zeros((size, size)), np.eye(size)  # of t below `done`, and step**done
    for bit in f"{strategy.num_rounds - 1:b}":
        squares, power = squares + power.T @ squares @ power, power @ power
        if bit == "1":
            squares, power = once + step.T @ squares @ step, power @ step
    found = 1.0 + float(start @ squares @ start)
    return math.sqrt(found) if math.isfinite(found) else math.inf


def _of_rows(rows: np.ndarray) -> float:
    """`grown` of bands `[T, K + 1]` of each round's own, from the diagonal to the left."""
    count, bands = rows.shape
    inverse, found = np.zeros((count, count)), 0.0
    for t, row in enumerate(rows):
        behind = min(bands - 1, t)
        inverse[t] = -row[1 : behind + 1] @ inverse[t - behind : t][::-1]
        inverse[t, t] += 1.0
        inverse[t] /= row[0]
        length = float(np.linalg.norm(inverse[t])) * float(row[0])
        found = max(found, length if math.isfinite(length) else math.inf)
    return found
