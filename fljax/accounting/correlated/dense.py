"""Bands of which each round has its own: what a Toeplitz matrix leaves at the ends of a run."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import optimize

from fljax import _validate
from fljax.accounting import _x64
from fljax.accounting.correlated import choose
from fljax_kernels.correlated import Strategy

MOST_ROUNDS = 1024  # of whose dense matrix gradients are taken
_DIGITS = 6  # of coefficients: machines differ by 1e-11, and a run must find its own again
_POWERS = (16.0, 128.0, 1024.0)  # of errors in the mean, in place of the largest


@functools.lru_cache(maxsize=16)
def dense_banded(num_rounds: int, bands: int, *, error: choose.Error = "mean") -> Strategy:
    """The C of so many bands with the least error, for `bands` rounds or more between
    participations.

    All its columns are of norm 1, so that a unit moves C x by the root of the number of its rounds.
    Begins from the Toeplitz C, than whose its error is never larger.

    Args:
      num_rounds: rounds that the error is of, in [1, 1024]; C begins anew after them.
      bands: >= 1; 1 is independent noise.
      error: squared, of all running sums "max" or "mean". The C of "max" may differ from machine to
        machine: keep its coefficients.

    Raises:
      ValueError: a number is out of range.

    Source: arXiv:2306.08153, section 3.
    """
    _validate.positive_int(num_rounds=num_rounds, bands=bands)
    _validate.one_of(("max", "mean"), error=error)
    if num_rounds > MOST_ROUNDS:
        raise ValueError(f"Expected num_rounds <= {MOST_ROUNDS}, got num_rounds={num_rounds}.")
    bands = min(bands, num_rounds)
    place = np.subtract.outer(np.arange(num_rounds), np.arange(bands))  # column of an entry
    start = np.where(place >= 0, choose.banded(num_rounds, bands, error=error).coefs, 0.0)
    rows = _normalized(start, place)
    # The largest error is the limit of means of powers, whose gradients do not jump.
    for power in (1.0,) if error == "mean" else _POWERS:
        best = _errors(rows, place)
        found = _least(rows, place, power)
        after = _errors(found, place)
        better = np.mean if error == "mean" else np.max
        if better(after) < better(best):
            rows = found
    rows = _normalized(np.round(rows, _DIGITS), place)  # the same bits wherever digits are the same
    return Strategy("dense_banded", tuple(rows.ravel().tolist()), num_rounds)


def _normalized(rows: np.ndarray, place: np.ndarray) -> np.ndarray:
    """Rows `[T, b]` of C with columns of norm 1."""
    norms = np.sqrt(np.bincount(place[place >= 0], (rows**2)[place >= 0], len(rows)))
    return rows / norms[np.maximum(place, 0)]


def _matrix(rows: Any, place: np.ndarray, module: Any) -> Any:
    """C `[T, T]`, its columns of norm 1; module: np or jnp, of `rows`."""
    count = len(place)
    row = np.broadcast_to(np.arange(count)[:, None], place.shape)
    there = place >= 0
    matrix: Any = module.zeros((count, count))
    if module is np:
        matrix[row[there], place[there]] = rows[there]
    else:
        matrix = matrix.at[row[there], place[there]].set(rows[there])
    return matrix / module.sqrt(module.sum(matrix**2, axis=0))


def _errors(rows: np.ndarray, place: np.ndarray) -> np.ndarray:
    """Squared errors `[T]` of running sums."""
    matrix = _matrix(rows, place, np)
    sums = np.linalg.solve(matrix.T, np.tri(len(matrix)).T)
    return np.asarray(np.sum(sums**2, axis=0))


def _least(rows: np.ndarray, place: np.ndarray, power: float) -> np.ndarray:
    """Rows with the least mean of errors to this power, its root."""
    there = place >= 0

    def loss(numbers: jax.Array) -> jax.Array:
        full = jnp.zeros(place.shape).at[np.nonzero(there)].set(numbers)
        matrix = _matrix(full, place, jnp)
        ones = jnp.asarray(np.tri(len(place)))
        sums = jax.scipy.linalg.solve_triangular(matrix, ones.T, lower=True, trans=1)
        errors = jnp.sum(sums**2, axis=0)
        largest = jax.lax.stop_gradient(jnp.max(errors))
        return largest * jnp.mean((errors / largest) ** power) ** (1 / power)

    with _x64.x64():
        slope = jax.jit(jax.value_and_grad(loss))

        def both(numbers: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = slope(jnp.asarray(numbers, jnp.float64))
            return float(value), np.asarray(gradient, np.float64)

        found = optimize.minimize(
            both,
            rows[there],
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": 500, "ftol": 1e-13, "gtol": 1e-9},
        ).x
    full = np.zeros(place.shape)
    full[there] = found
    # A sign of a whole column changes nothing: numbers on the diagonal are above 0.
    full = full * np.sign(full[np.arange(len(full)), 0])[np.maximum(place, 0)]
    return _normalized(full, place)
