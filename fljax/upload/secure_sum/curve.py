"""A group where discrete logarithms are hard: the elliptic curve secp256k1, by `coincurve`, which
is libsecp256k1. Its order is prime, so that no element but zero has a small one.

None of it computes in constant time.
"""

import functools
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fljax import errors

ORDER = 2**256 - 0x14551231950B75FC4402DA1732FC9BEBF
WIDTH = 64  # bytes of an element: both coordinates, since finding one of the other takes a root
_HEAD = b"\x04"  # of these, in a point's standard form
_MOST_BITS = 20  # of the number of baby steps


def library() -> Any:
    """The package `coincurve`. Raises ImportError, which names the extra, where it is missing."""
    try:
        import coincurve
    except ImportError:
        raise ImportError(
            "Functional encryption needs the package coincurve: pip install 'fljax[secure]'."
        ) from None
    return coincurve


def scalar(number: int) -> bytes:
    """A whole number, modulo the order, in 32 bytes."""
    return (number % ORDER).to_bytes(32)


def multiple(number: int) -> Any:
    """Of the generator, the number not a multiple of the order."""
    return library().PublicKey.from_valid_secret(scalar(number))


def as_bytes(point: Any) -> bytes:
    """WIDTH bytes of an element."""
    return point.format(compressed=False)[1:]


def point(data: bytes) -> Any:
    """The element of WIDTH bytes. Raises MalformedMessageError where they are none of the curve."""
    try:
        return library().PublicKey(_HEAD + data)
    except ValueError:
        raise errors.MalformedMessageError(
            "Expected points of the curve, got one that is not on it."
        ) from None


def total(points: Sequence[Any]) -> Any:
    """The sum of elements. Raises MalformedMessageError for zero, which no honest sum is."""
    try:
        return library().PublicKey.combine_keys(points)
    except ValueError:
        raise errors.MalformedMessageError(
            "Expected points whose sum is one, got some that cancel out."
        ) from None


def hashed(label: bytes) -> Any:
    """The element that a label stands for, whose logarithm nobody knows: the first of its hashes
    that is the x of a point, with the even y. The label is public, so it may leak by time.
    """
    public_key, count = library().PublicKey, 0
    while True:
        x = hashlib.sha256(label + count.to_bytes(1)).digest()
        try:
            return public_key(b"\x02" + x)
        except ValueError:  # of every second one
            count += 1


class _Table(NamedTuple):
    """Odd multiples of the generator: the k-th is that by 2 k + 1. prefix: uint64 `[K]`, the first
    bytes of x, sorted. order: which one. x: uint8 `[K, 32]`, is_odd: whether y is, both unsorted.
    """

    prefix: np.ndarray
    order: np.ndarray
    x: np.ndarray
    is_odd: np.ndarray


def _coordinates(points: Sequence[Any] | Iterator[Any]) -> tuple[np.ndarray, np.ndarray]:
    """x, uint8 `[K, 32]`; whether y is odd."""
    raw = np.frombuffer(b"".join(map(as_bytes, points)), np.uint8).reshape(-1, WIDTH)
    return raw[:, :32].copy(), raw[:, -1] & 1 == 1  # a view would keep all of raw


@functools.lru_cache(maxsize=1)
def baby_steps(count: int) -> _Table:
    """So many odd multiples. 2**20 take ten seconds, once in a process, and 50 MB."""

    def multiples() -> Iterator[Any]:
        here, step = multiple(1), multiple(2)
        for _ in range(count):
            yield here
            here = total([here, step])

    x, is_odd = _coordinates(multiples())
    prefix = _prefix(x)
    order = np.argsort(prefix)
    return _Table(prefix[order], order, x, is_odd)


def _prefix(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x[:, :8]).view(">u8")[:, 0].astype(np.uint64)


def odd_logarithms(points: Sequence[Any], most: int) -> np.ndarray:
    """Int64 `[K]`: each odd y in [-most, most] of y times the generator, by baby and giant steps.

    Points of small y are found first, and that takes time by y.

    Raises:
      MalformedMessageError: a point has none.
    """
    count = 2 ** min(max(4, (len(points) * most).bit_length() // 2 - 1), _MOST_BITS)
    table = baby_steps(count)
    found = np.zeros(len(points), np.int64)
    left, away = np.arange(len(points)), 0
    while left.size and abs(away) - 2 * count <= most:
        moved = [points[i] for i in left.tolist()]
        if away:
            giant = multiple(away)
            moved = [total([one, giant]) for one in moved]
        x, is_odd = _coordinates(moved)
        prefix = _prefix(x)
        at = np.minimum(np.searchsorted(table.prefix, prefix), count - 1)
        which = table.order[at]
        hit = (table.prefix[at] == prefix) & (table.x[which] == x).all(axis=1)
        value = np.where(is_odd == table.is_odd[which], 2 * which + 1, -2 * which - 1) - away
        hit &= np.abs(value) <= most
        found[left[hit]] = value[hit]
        left = left[~hit]
        away = 4 * count - away if away <= 0 else -away
    if left.size:
        raise errors.MalformedMessageError(
            "Expected a sum within the terms, got a number that is none."
        )
    return found
