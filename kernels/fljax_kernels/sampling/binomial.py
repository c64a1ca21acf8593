"""Binomial counts: float64 tables on the host, inversion with 64 random bits on the device."""

import functools

import jax
import jax.numpy as jnp
import numpy as np


@functools.lru_cache(maxsize=64)
def pmf(num: int, prob: float) -> tuple[int, np.ndarray]:
    """(first, p): p[i] = P(Binomial(num, prob) = first + i), float64, over all counts of
    probability above 1e-30 or so.

    Ratios of neighbours, outwards from the mode: no factorials, whose logarithms would cost nine
    digits at num = 1e6.
    """
    if prob in (0.0, 1.0) or num == 0:
        return (num if prob == 1.0 else 0), np.ones(1)
    mode = min(num, int((num + 1) * prob))
    # Within w of the mode: both tails are below exp(-w**2 / (2 (var + w / 3))) (Bernstein) < 1e-34
    # here.
    width = int(13 * np.sqrt(num * prob * (1 - prob))) + 60
    low, high = max(0, mode - width), min(num, mode + width)
    up = np.arange(mode, high, dtype=np.float64)
    down = np.arange(mode, low, -1, dtype=np.float64)
    odds = prob / (1 - prob)
    above = np.cumprod((num - up) / (up + 1) * odds)
    below = np.cumprod(down / (num - down + 1) / odds)
    p = np.concatenate([below[::-1], [1.0], above])
    p /= p.sum()
    p.setflags(write=False)
    return low, p


def thresholds(num: int, prob: float) -> tuple[int, np.ndarray]:
    """(first, t): uint32 `[K, 2]` high and low words of P(count <= first + i) * 2**64, for i <
    K.
    """
    first, p = pmf(num, prob)
    # float64 holds 53 bits of a cumulative sum, and the largest float64 below 2**64 is 2**64 -
    # 2048.
    words = np.minimum(np.cumsum(p)[:-1] * 2.0**64, 2.0**64 - 2048).astype(np.uint64)
    return first, np.stack([words >> np.uint64(32), words & np.uint64(2**32 - 1)], axis=1).astype(
        np.uint32
    )


def invert(bits: jax.Array, below: np.ndarray) -> jax.Array:
    """Number of thresholds at or below the 64-bit number `bits` (uint32 `[2]`, high word first).
    int32.
    """
    high, low = jnp.asarray(below[:, 0]), jnp.asarray(below[:, 1])
    return jnp.sum((high < bits[0]) | ((high == bits[0]) & (low <= bits[1])), dtype=jnp.int32)


def capacity(num: int, prob: float, tail_prob: float) -> int:
    """Smallest c with P(count > c) <= tail_prob."""
    first, p = pmf(num, prob)
    # tail[i] = P(count > first + i): from the small end, so that nothing cancels.
    tail = np.append(np.cumsum(p[::-1])[::-1][1:], 0.0)
    return first + int(np.argmax(tail <= tail_prob))
