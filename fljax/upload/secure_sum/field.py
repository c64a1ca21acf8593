"""Arithmetic modulo the prime 2**31 - 1, and Shamir's sharing over it, whole arrays at a time.

Source: Shamir (1979), "How to share a secret"; Yu et al. (2019), arXiv:1806.00939, for Lagrange
coding.
"""

from collections.abc import Sequence

import numpy as np

from fljax import errors

PRIME = 2**31 - 1
_LIMB = 11  # 31 bits times 11 bits, 2048 times: float64 holds every sum
_MOST_TERMS = 2**11


def matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Int64 `[M, D]`, the product of int64 `[M, K]` and `[K, D]` modulo the prime.

    Exact: b is cut into limbs of 11 bits, so that float64 holds each sum.
    """
    if a.shape[1] > _MOST_TERMS:
        half = a.shape[1] // 2
        return (matmul(a[:, :half], b[:half]) + matmul(a[:, half:], b[half:])) % PRIME
    left = a.astype(np.float64)
    total = np.zeros((a.shape[0], b.shape[1]), np.int64)
    for shift in (2 * _LIMB, _LIMB, 0):
        limb = ((b >> shift) & (2**_LIMB - 1)).astype(np.float64)
        part = (left @ limb).astype(np.int64) % PRIME
        total = ((total << _LIMB) + part) % PRIME
    return total


def inverse(a: np.ndarray) -> np.ndarray:
    """1 / a modulo the prime, int64 `[...]`; 0 where a is 0."""
    result, power = np.ones_like(a), a % PRIME
    exponent = PRIME - 2
    while exponent:
        if exponent & 1:
            result = result * power % PRIME
        power = power * power % PRIME
        exponent >>= 1
    return result


def lagrange(at: Sequence[int], points: Sequence[int]) -> np.ndarray:
    """Int64 `[M, K]`: what takes a polynomial's values at K points to those at M others.

    Raises:
      ValueError: two points are the same.
    """
    x, target = np.array(points, np.int64) % PRIME, np.array(at, np.int64) % PRIME
    if len(set(x.tolist())) < len(x):
        raise ValueError(f"Expected points that differ, got {list(points)}.")
    tops, bottoms = np.ones((len(target), len(x)), np.int64), np.ones(len(x), np.int64)
    for k in range(len(x)):
        others = np.arange(len(x)) != k
        tops = np.where(others, tops * ((target - x[k]) % PRIME)[:, None] % PRIME, tops)
        bottoms = np.where(others, bottoms * ((x - x[k]) % PRIME) % PRIME, bottoms)
    return tops * inverse(bottoms) % PRIME


def shares(secret: np.ndarray, random: np.ndarray, holders: Sequence[int]) -> np.ndarray:
    """Int64 `[H, L]`: shares of a secret `[L]`, one for each holder, of which any T give it back
    and T - 1 tell nothing.

    Args:
      secret: int64 `[L]` below the prime. random: int64 `[T - 1, L]`, uniform, used once.
      holders: numbers of H holders, each once, >= 0.
    """
    coefficients = np.concatenate([secret[None], random])
    x = np.array(holders, np.int64) + 1
    powers = np.ones((len(x), len(coefficients)), np.int64)
    for degree in range(1, len(coefficients)):
        powers[:, degree] = powers[:, degree - 1] * x % PRIME
    return matmul(powers, coefficients)


def combine(values: np.ndarray, holders: Sequence[int]) -> np.ndarray:
    """Int64 `[L]`, the secret of shares `[T, L]` of T holders."""
    return matmul(lagrange([0], [holder + 1 for holder in holders]), values)[0]


def of_bytes(data: bytes) -> np.ndarray:
    """Int64 `[len / 2]`: bytes as elements of 16 bits."""
    return np.frombuffer(data, "<u2").astype(np.int64)


def to_bytes(elements: np.ndarray) -> bytes:
    """The bytes of `of_bytes`.

    Raises:
      MalformedShareError: an element has more than 16 bits: a share was no share of that secret.
    """
    if np.any(elements >> 16):
        raise errors.MalformedShareError(
            "Expected shares of one secret, got some that do not fit together."
        )
    return elements.astype("<u2").tobytes()


def packed(elements: np.ndarray) -> bytes:
    """Elements in 4 bytes each."""
    return elements.astype("<u4").tobytes()


def unpacked(data: bytes, count: int) -> np.ndarray:
    """Int64 `[count]`.

    Raises:
      MalformedShareError: another number of elements, or one that is not below the prime.
    """
    if len(data) != 4 * count:
        raise errors.MalformedShareError(
            f"Expected a share of {4 * count} bytes, got one of {len(data)}."
        )
    elements = np.frombuffer(data, "<u4").astype(np.int64)
    if np.any(elements >= PRIME):
        raise errors.MalformedShareError("Expected elements below 2**31 - 1, got larger ones.")
    return elements
