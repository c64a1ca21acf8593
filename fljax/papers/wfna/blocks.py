"""Water filling by k equal blocks of coordinates, section 5.3 of arXiv:2405.04551.

Each block's covariance is decomposed and lifted to the floor by itself. As printed, one draw of the
weights makes all blocks, which are then correlated: directions across blocks fall below the floor
that epsilon rests on. Weights of its own for each block keep it.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Lifted(NamedTuple):
    """printed, own: the least variance of any direction, in floors: with weights that all blocks
    share, and with own ones. added: trace of the noise that is added, of that of isotropic noise.
    seconds: to decompose the covariances of all blocks. gram_seconds: the same by products of
    records, which have the same eigenvalues but for zeros.
    """

    printed: float
    own: float
    added: float
    seconds: float
    gram_seconds: float


def lifted(rows: np.ndarray, num_blocks: int, *, scale: float, floor: float) -> Lifted:
    """What becomes of weighted sums of clipped gradients.

    Args:
      rows: gradients `[D, K]`.
      num_blocks: k, which divides K.
      scale: of their products, 1 / (B D): rows.T @ rows * scale is the covariance of a sum.
      floor: variance that every direction must have.

    Raises:
      ValueError: num_blocks does not divide K.
    """
    size = rows.shape[1]
    if size % num_blocks:
        raise ValueError(
            f"Expected num_blocks to divide {size} coordinates, got num_blocks={num_blocks}."
        )
    whole, alone, added = rows.T @ rows * scale, [], 0.0
    seconds = gram_seconds = 0.0
    for part in np.split(np.arange(size), num_blocks):
        block = whole[np.ix_(part, part)]
        took, (values, vectors) = _timed(lambda block=block: np.linalg.eigh(block))  # type: ignore[misc]
        products = rows[:, part] @ rows[:, part].T * scale
        gram_took, _ = _timed(lambda products=products: np.linalg.eigh(products))  # type: ignore[misc]
        seconds, gram_seconds = seconds + took, gram_seconds + gram_took
        lacking = np.maximum(floor - values, 0)
        added += lacking.sum() / (size * floor)
        whole[np.ix_(part, part)] += (vectors * lacking) @ vectors.T
        alone.append(np.linalg.eigvalsh(whole[np.ix_(part, part)])[0])
    least = np.linalg.eigvalsh(whole)[0]
    return Lifted(
        float(least / floor), float(min(alone) / floor), float(added), seconds, gram_seconds
    )


def _timed(run: Callable[[], Any]) -> tuple[float, Any]:
    """The least of three processor times, and what was found."""
    took, found = [], None
    for _ in range(3):
        begin = time.process_time()
        found = run()
        took.append(time.process_time() - begin)
    return min(took), found
