"""The block function in Python's integers, as RFC 8439 writes it. It defines the result."""

import struct
from collections.abc import Sequence

CONSTANTS = struct.unpack("<4I", b"expand 32-byte k")
COLUMNS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
DIAGONALS = ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))
_BELOW = 2**32 - 1


def _rotated(word: int, by: int) -> int:
    return (word << by | word >> (32 - by)) & _BELOW


def block(key: Sequence[int], counter: int, nonce: Sequence[int]) -> list[int]:
    """16 words of 32 bits.

    Args:
      key: 8 words. counter: one. nonce: 3 words; all little-endian.

    Source: RFC 8439, section 2.3.
    """
    first = [*CONSTANTS, *key, counter, *nonce]
    state = list(first)
    for _ in range(10):
        for a, b, c, d in COLUMNS + DIAGONALS:
            for one, two, three, by in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                state[one] = (state[one] + state[two]) & _BELOW
                state[three] = _rotated(state[three] ^ state[one], by)
    return [(now + was) & _BELOW for now, was in zip(state, first, strict=True)]
