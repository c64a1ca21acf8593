"""Numbers of thousands of bits, in C by `gmpy2`: primes, powers of one base, products of powers.

None of it computes in constant time.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fljax.upload.secure_sum import signing

_WINDOW = 6  # bits of an exponent that one product takes


def library() -> Any:
    """The package `gmpy2`. Raises ImportError, which names the extra, where it is missing."""
    try:
        import gmpy2
    except ImportError:
        raise ImportError(
            "Numbers of thousands of bits need the package gmpy2: pip install 'fljax[secure]'."
        ) from None
    return gmpy2


def below(bound: int, entropy: signing.Entropy) -> int:
    """Uniform below the bound but for 2**-128."""
    return int.from_bytes(entropy(bound.bit_length() // 8 + 17)) % bound


def safe_prime(bits: int, entropy: signing.Entropy) -> int:
    """A prime p of so many bits, its two highest set, such that p and (p - 1) / 2 are primes."""
    gmpy2 = library()
    small = np.array([x for x in range(3, 2**14, 2) if gmpy2.is_prime(x)], np.int64)
    while True:
        start = int.from_bytes(entropy(-(-bits // 8))) % 2 ** (bits - 3)
        start = (start | 3 * 2 ** (bits - 3)) | 1  # (p - 1) / 2, odd
        # Of the next odd numbers those with no small factor, nor one of 2 q + 1.
        at = 2 * np.arange(2**13, dtype=np.int64)
        good = np.ones(at.size, bool)
        for prime in small[small < start]:
            rest = (int(start % int(prime)) + at) % prime
            good &= (rest != 0) & ((2 * rest + 1) % prime != 0)
        for step in at[good].tolist():
            q = start + step
            if gmpy2.powmod(2, q - 1, q) == 1 and gmpy2.powmod(4, q, 2 * q + 1) == 1:
                found = 2 * q + 1
                fits = found.bit_length() == bits
                if fits and gmpy2.is_prime(q, 40) and gmpy2.is_prime(found, 40):
                    return int(found)


def powers_of(base: Any, bits: int, modulus: Any) -> list[list[Any]]:
    """A table for `random_power`, with exponents of at least so many bits."""
    table = []
    for _ in range(-(-bits // (4 * _WINDOW)) * 4):
        row = [library().mpz(1)]
        for _ in range(2**_WINDOW):
            row.append(row[-1] * base % modulus)
        base = row.pop()
        table.append(row)
    return table


def random_power(table: Sequence[Sequence[Any]], modulus: Any, entropy: signing.Entropy) -> Any:
    """A power of the table's base, whose exponent is as long as the table is made for, uniform, and
    told to nobody.
    """
    drawn = np.frombuffer(entropy(len(table) * _WINDOW // 8), np.uint8)
    digits = np.unpackbits(drawn).reshape(-1, _WINDOW) @ (1 << np.arange(_WINDOW))
    found = 1
    for row, digit in zip(table, digits.tolist(), strict=True):
        found = found * row[digit] % modulus
    return found


def products_of_powers(
    rows: Sequence[Sequence[Any]], exponents: Sequence[int], modulus: Any
) -> list[Any]:
    """The product of each column, row i to the power `exponents[i]`, which may be negative.

    All rows' squares are taken at once (Straus), so that each costs its products alone.

    Raises:
      ZeroDivisionError: an element to a negative power has no inverse.
    """
    found = []
    for sign in (1, -1):
        mine = [(row, sign * e) for row, e in zip(rows, exponents, strict=True) if sign * e > 0]
        found.append(_straus([row for row, _ in mine], [e for _, e in mine], modulus))
    above, under = found
    if not under:
        return above
    back = [library().invert(element, modulus) for element in under]
    return [a * b % modulus for a, b in zip(above, back, strict=True)] if above else back


def _straus(rows: Sequence[Sequence[Any]], exponents: Sequence[int], modulus: Any) -> list[Any]:
    if not rows:
        return []
    bits = max(e.bit_length() for e in exponents)
    width = min(range(1, 9), key=lambda w: 2**w + bits / w)
    places = range(width * ((bits - 1) // width), -1, -width)
    digits = [[e >> place & (2**width - 1) for e in exponents] for place in places]
    found = []
    for column in zip(*rows, strict=True):
        powers = []
        for element in column:
            mine = [1, element]
            for _ in range(2**width - 2):
                mine.append(mine[-1] * element % modulus)
            powers.append(mine)
        total = library().mpz(1)
        for here in digits:
            for _ in range(width):
                total = total * total % modulus
            for mine, digit in zip(powers, here, strict=True):
                if digit:
                    total = total * mine[digit] % modulus
        found.append(total)
    return found
