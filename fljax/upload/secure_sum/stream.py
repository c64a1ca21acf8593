"""Masks of ChaCha20 streams, added to vectors a block at a time."""

from typing import Any

import numpy as np

_BLOCK = 2**18  # bytes: a block of the stream is added while it is in cache
_ZEROS = bytes(_BLOCK)


def cipher() -> Any:
    """The ciphers of `cryptography`. Raises ImportError that names the extra."""
    try:
        from cryptography.hazmat.primitives import ciphers
    except ImportError:
        raise ImportError(
            "Secure sums need the package cryptography: pip install 'fljax[secure]'."
        ) from None
    return ciphers


def _encryptor(key: bytes) -> Any:
    ciphers = cipher()
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

    return ciphers.Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()


def add(total: np.ndarray, key: bytes, sign: int) -> None:
    """Adds the words of a key's stream to `total`, uint32 `[size]`, in place, modulo 2**32.

    Words modulo 2**bits are theirs with the upper bits left out: reduce after all are added.

    Args:
      key: 32 bytes, used for one stream. sign: 1 or -1.
    """
    encryptor, words = _encryptor(key), _BLOCK // 4
    buffer = bytearray(_BLOCK)
    drawn = np.frombuffer(buffer, "<u4")
    for begin in range(0, total.size, words):
        part = total[begin : begin + words]
        encryptor.update_into(memoryview(_ZEROS)[: 4 * part.size], buffer)
        if sign > 0:
            part += drawn[: part.size]
        else:
            part -= drawn[: part.size]


def words(key: bytes, count: int) -> np.ndarray:
    """Uint32 `[count]`, the first words of a key's stream."""
    total = np.zeros(count, np.uint32)
    add(total, key, 1)
    return total


def field_elements(key: bytes, count: int) -> np.ndarray:
    """Int64 `[count]`, uniform modulo 2**31 - 1: words of 31 bits, those that are the modulus
    left out.
    """
    encryptor = _encryptor(key)
    found = np.zeros(0, np.int64)
    while found.size < count:
        drawn = np.frombuffer(encryptor.update(bytes(4 * (count - found.size))), "<u4")
        drawn = (drawn & np.uint32(2**31 - 1)).astype(np.int64)
        found = np.concatenate([found, drawn[drawn != 2**31 - 1]])
    return found
