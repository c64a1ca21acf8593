"""Which strategy leaves least error on running sums, at one sensitivity."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Literal

import numpy as np
from scipy import optimize

from fljax import _validate
from fljax.accounting.correlated import matrices, participation
from fljax_kernels.correlated import Strategy

Error = Literal["max", "mean"]
_NO_END = 2**30  # bands need no end: C of any number of rounds has the same columns
_DIGITS = 9  # of coefficients: beyond them machines may differ, and a run must find its own again


def tree(num_rounds: int) -> Strategy:
    """The binary tree of DP-FTRL.

    Source: Kairouz et al. (2021), arXiv:2103.00039.
    """
    return Strategy("tree", (), num_rounds)


def square_root(num_rounds: int, bands: int | None = None) -> Strategy:
    """C, C^2 = A: of all Toeplitz matrices the least largest error, for one participation.

    With fewer `bands` than rounds the first so many of its coefficients.

    Source: Fichtenberger, Henzinger, Upadhyay (2023), arXiv:2202.11205.
    """
    count = num_rounds if bands is None else bands
    _validate.positive_int(num_rounds=num_rounds, bands=count)
    return Strategy("banded", tuple(_square_root(count).tolist()), num_rounds)


def _square_root(count: int) -> np.ndarray:
    k = np.arange(1, count)
    return np.concatenate([[1.0], np.cumprod(1 - 0.5 / k)])


@functools.lru_cache(maxsize=64)
def banded(num_rounds: int, bands: int, *, error: Error = "mean") -> Strategy:
    """The Toeplitz C of so many bands with the least error, for `bands` rounds or more between
    participations.

    Args:
      num_rounds: rounds that the error is of, >= 1; C begins anew after them.
      bands: >= 1; 1 is independent noise.
      error: squared, of all running sums "max" or "mean".

    Source: arXiv:2306.08153, section 3; Toeplitz: arXiv:2405.15913.
    """
    _check(num_rounds, error, bands=bands)
    bands = min(bands, num_rounds)

    def loss(rest: np.ndarray) -> tuple[float, np.ndarray]:
        coefs = np.concatenate([[1.0], rest])
        inverse = matrices.inverse_series(coefs, num_rounds)
        left, of_inverse = _error(inverse, error)
        squared = float(coefs @ coefs)
        slope = _through_inverse(inverse, of_inverse)[:bands]
        return left * squared, (slope * squared + 2 * left * coefs)[1:]

    return Strategy("banded", _best(loss, _square_root(bands)[1:]), num_rounds)


def endless_bands(num_rounds: int, bands: int) -> tuple[Strategy, float]:
    """C without an end, the best of so many bands for the mean error of `num_rounds` rounds; and
    the norm of its columns: how far one round moves C x, of units that take part in one of any
    `bands` rounds.

    Raises:
      ValueError: a number is out of range.
    """
    _check(num_rounds, "mean", bands=bands)
    found = banded(max(num_rounds, bands), bands)
    column = dataclasses.replace(found, num_rounds=bands)
    moved = participation.sensitivity(column, min_separation=bands)
    return dataclasses.replace(found, num_rounds=_NO_END), moved


@functools.lru_cache(maxsize=64)
def banded_inverse(
    num_rounds: int, bands: int, *, min_separation: int, error: Error = "mean"
) -> Strategy:
    """The Toeplitz C whose inverse has so many bands, with the least error where participations are
    `min_separation` apart.

    Source: arXiv:2505.12128.
    """
    _check(num_rounds, error, bands=bands, min_separation=min_separation)
    bands = min(bands, num_rounds)

    def loss(rest: np.ndarray) -> tuple[float, np.ndarray]:
        coefs = np.concatenate([[1.0], rest])
        inverse = np.concatenate([coefs, np.zeros(num_rounds)])[:num_rounds]
        left, of_coefs = _error(inverse, error)
        column = matrices.inverse_series(coefs, num_rounds)
        squared, of_column = _moved(column, min_separation)
        slope = of_coefs * squared + left * _through_inverse(column, of_column)
        return left * squared, slope[1:bands]

    start = matrices.inverse_series(_square_root(bands), bands)[1:]
    return Strategy("banded_inverse", _best(loss, start), num_rounds)


@functools.lru_cache(maxsize=64)
def buffered(
    num_rounds: int, num_buffers: int, *, min_separation: int | None = None, error: Error = "max"
) -> Strategy:
    """The buffered Toeplitz C with the least error where participations are `min_separation` apart
    (None: there is one).

    Its coefficients are >= 0 and fall, so that its sensitivity is exact.

    Source: arXiv:2404.16706.
    """
    separation = num_rounds if min_separation is None else min_separation
    _check(num_rounds, error, num_buffers=num_buffers, min_separation=separation)
    powers = np.arange(num_rounds - 1)[:, None]

    def decoded(free: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        first, second = np.split(free, 2)
        return 1 / (1 + np.exp(-first)), np.exp(second)

    def loss(free: np.ndarray) -> tuple[float, np.ndarray]:
        decay, scale = decoded(free)
        grown = decay**powers
        column = np.concatenate([[1.0], grown @ scale])
        inverse = matrices.inverse_series(column, num_rounds)
        left, of_inverse = _error(inverse, error)
        squared, of_column = _moved(column, separation)
        slope = (_through_inverse(inverse, of_inverse) * squared + left * of_column)[1:]
        # d decay^i / d free = i decay^i (1 - decay)
        of_decay = (slope @ (powers * grown)) * scale * (1 - decay)
        return left * squared, np.concatenate([of_decay, (slope @ grown) * scale])

    half_lives = np.geomspace(1.0, max(num_rounds, 2), num_buffers)
    decay = np.exp(-1 / (half_lives + 1))
    scale = 0.5 / np.sqrt(half_lives + 1) / num_buffers
    start = np.concatenate([np.log(decay / (1 - decay)), np.log(scale)])
    found = optimize.minimize(
        loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 2000, "ftol": 1e-14}
    ).x
    numbers = np.concatenate(decoded(found))
    return Strategy("buffered", tuple(np.round(numbers, _DIGITS).tolist()), num_rounds)


def _check(num_rounds: int, error: str, **numbers: int) -> None:
    _validate.positive_int(num_rounds=num_rounds, **numbers)
    _validate.one_of(("max", "mean"), error=error)


def _best(
    loss: Callable[[np.ndarray], tuple[float, np.ndarray]], start: np.ndarray
) -> tuple[float, ...]:
    """(1, best numbers), rounded."""
    if not start.size:
        return (1.0,)
    found = optimize.minimize(
        loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 2000, "ftol": 1e-15}
    ).x
    return (1.0, *np.round(found, _DIGITS).tolist())


def _error(inverse: np.ndarray, error: str) -> tuple[float, np.ndarray]:
    """Squared error of running sums of C^-1's first column `[T]`, and its gradient."""
    sums = np.cumsum(inverse)
    weights = np.ones(sums.size)
    if error == "mean":  # sum i is part of the error of all rounds from i on
        weights = np.arange(sums.size, 0, -1) / sums.size
    return float(weights @ sums**2), np.cumsum((2 * weights * sums)[::-1])[::-1]


def _moved(column: np.ndarray, separation: int) -> tuple[float, np.ndarray]:
    """Squared norm of the sum of every `separation`-th column of C, and its gradient."""
    starts = range(0, column.size, separation)
    total = np.zeros(column.size)
    for start in starts:
        total[start:] += column[: column.size - start]
    slope = np.zeros(column.size)
    for start in starts:
        slope[: column.size - start] += 2 * total[start:]
    return float(total @ total), slope


def _through_inverse(inverse: np.ndarray, slope: np.ndarray) -> np.ndarray:
    """Gradient in c `[T]` from that in 1 / c: d (1 / c) = -(1 / c)^2 dc."""
    from scipy import signal  # here: it takes longer to import than what else we take of SciPy

    squared = signal.fftconvolve(inverse, inverse)[: inverse.size]
    return -signal.fftconvolve(slope, squared[::-1])[inverse.size - 1 :]
