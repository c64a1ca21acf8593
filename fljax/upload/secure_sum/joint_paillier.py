"""Threshold Paillier whose key nobody ever held: clients make it together, without a dealer.

Each client draws a part of p and of q. Products of such sums are computed on Shamir shares (Ben-Or,
Goldwasser, Wigderson), so that n = p q is all that is told of a candidate; a joint power of a
public base then says whether n has two primes. For the secret key each client shares its part of
phi(n) and a part of a random factor over the integers, as wide as hides them. What is published
beside n is their product modulo n, which decryption divides by. Sums are then taken as in
`paillier`, with shares of an exponent modulo n**2, whose powers tell the sum alone.

Blinds are those of `paillier`. Primes are not safe here, so that h may generate fewer numbers; how
many nobody knows who does not know the factors. Two assumptions make them hide: h**n looks like any
number modulo n**2 (decisional composite residuosity), and powers of h with exponents of half of n's
bits look like those with exponents of all of them, as for `paillier`, here of a group whose order
may have small factors.

Threat model: as `paillier`, and no dealer. In making the key all clients keep to the protocol, at
most C = `max_colluders` of them pool what they see, and what one sends another nobody else reads or
changes (TLS). Factors of candidates that are thrown away are of no use. With C = 0 every client
learns the whole key and can decrypt alone what it sees, as in `ckks`: take C = 1 against that.

Security level: 128 bits: 3072 bits of modulus, integers are hidden to 2**-128. That n has two
primes is wrong with a chance of 2**-64 at most.

Bounds: products need 2 C + 1 shares, so 2 C + 1 <= N to make the key, and 2 C + S < N for rounds,
in which N - S clients decrypt. Making a key takes some minutes for each three clients, once.

Source: Boneh, Franklin (2001), "Efficient Generation of Shared RSA Keys", sections 3 to 6; Veugen,
Attema, Spini (2019), "An Implementation of the Paillier Crypto System with Threshold Decryption
without a Trusted Dealer". They check p + q - 1 for factors of n in a step of its own; here that
the published product is invertible says so.
"""

import functools
import hashlib
import math
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from fljax import _validate, errors
from fljax.upload.secure_sum import big_numbers, paillier, protocol, signing

MODULUS_BITS = paillier.MODULUS_BITS
_HIDDEN_BITS = 128
_TESTS = 64
_LABEL = b"fljax joint paillier 1 "
_SMALL = 2**14  # candidates with smaller factors are thrown away before any power is taken


class Making(NamedTuple):
    """Public numbers that clients agree on. num_clients: who make the key. max_colluders: of whom
    this many may pool what they see. bits: of the modulus.
    """

    num_clients: int
    max_colluders: int
    bits: int

    @property
    def factorial(self) -> int:
        """N!, with which interpolation stays in whole numbers."""
        return math.factorial(self.num_clients)

    @property
    def span(self) -> int:
        """Above every part of p or q but the first client's fixed one; a multiple of 4."""
        return 2 ** (self.bits // 2 - 3) // self.num_clients // 4 * 4

    @property
    def field(self) -> Any:
        """A prime above every modulus."""
        return _field(self.bits)


@functools.cache
def _field(bits: int) -> Any:
    return big_numbers.library().next_prime(2 ** (bits + 1))


@functools.cache
def _primorial() -> Any:
    gmpy2 = big_numbers.library()
    return gmpy2.primorial(_SMALL) // 2


class Party:
    """One client in making a key. It keeps its parts of p and q; its `share` is its part of the
    secret key, once `settle` has been called.
    """

    def __init__(self, making: Making, number: int, entropy: signing.Entropy):
        self._making, self._number, self._entropy = making, number, entropy
        self._p = self._q = 0
        self.share = 0

    def candidate(self) -> list[tuple[Any, Any, Any]]:
        """New parts of p and q. Shares for each client: of both, and of a zero."""
        making, field = self._making, self._making.field
        fixed = 3 * 2 ** (making.bits // 2 - 2) + 3 if self._number == 0 else 0
        below = lambda bound: big_numbers.below(bound, self._entropy)
        self._p, self._q = (fixed + 4 * below(making.span // 4) for _ in range(2))
        few, many = making.max_colluders, 2 * making.max_colluders
        polynomials = [
            [self._p, *(below(field) for _ in range(few))],
            [self._q, *(below(field) for _ in range(few))],
            [0, *(below(field) for _ in range(many))],
        ]
        return _shared(polynomials, making.num_clients, field)

    def multiply(self, received: Sequence[tuple[Any, Any, Any]]) -> Any:
        """A share of p q for everybody, from what all clients sent this one."""
        p, q, zero = (sum(column) for column in zip(*received, strict=True))
        return (p * q + zero) % self._making.field

    def witness(self, modulus: Any, base: Any) -> Any:
        """A power of the base, for everybody: their product tells whether n has two primes."""
        parts = self._p + self._q
        exponent = (modulus + 1 - parts) // 4 if self._number == 0 else parts // 4
        return big_numbers.library().powmod(base, exponent, modulus)

    def key_shares(self, modulus: int) -> list[tuple[Any, Any, Any, Any]]:
        """Shares for each client, over the integers: of this one's part of p + q, of its part of
        the random factor, and of a zero; and of a zero modulo n.
        """
        making = self._making
        few, many = making.max_colluders, 2 * making.max_colluders
        wide = making.factorial**2 << _HIDDEN_BITS
        below = lambda bound: big_numbers.below(bound, self._entropy)
        of_primes, of_factor = 2 ** (making.bits // 2), modulus << _HIDDEN_BITS
        factor = below(of_factor)
        # No coefficient of the product of the two sums of polynomials is larger.
        of_phi = making.factorial * (modulus + 1) + making.num_clients * wide * of_primes
        product = (few + 1) * of_phi * making.num_clients * wide * of_factor
        integers = [
            [
                making.factorial * (self._p + self._q),
                *(below(wide * of_primes) for _ in range(few)),
            ],
            [making.factorial * factor, *(below(wide * of_factor) for _ in range(few))],
            [0, *(below(product << _HIDDEN_BITS) for _ in range(many))],
        ]
        modular = [[0, *(below(modulus) for _ in range(many))]]
        return [
            (*of_integers, *of_modular)
            for of_integers, of_modular in zip(
                _shared(integers, making.num_clients, None),
                _shared(modular, making.num_clients, modulus),
                strict=True,
            )
        ]

    def settle(self, modulus: int, received: Sequence[tuple[Any, Any, Any, Any]]) -> Any:
        """Keeps this client's share of the secret key; a share of its product modulo n, for
        everybody.
        """
        primes, factor, zero, modular = (sum(column) for column in zip(*received, strict=True))
        self.share = int((self._making.factorial * (modulus + 1) - primes) * factor + zero)
        return (self.share + modular) % modulus


def _shared(polynomials: Sequence[Sequence[Any]], count: int, modulus: Any) -> list[Any]:
    """Values of each polynomial at 1 to `count`: one tuple for each point."""
    found = []
    for x in range(1, count + 1):
        values = []
        for coefficients in polynomials:
            value = 0
            for coefficient in reversed(coefficients):
                value = value * x + coefficient
            values.append(value if modulus is None else value % modulus)
        found.append(tuple(values))
    return found


def _opened(making: Making, shares: Sequence[Any], modulus: Any) -> Any:
    """The value at 0 of the polynomial through all clients' shares."""
    used = range(2 * making.max_colluders + 1)
    back = big_numbers.library().invert(making.factorial, modulus)
    weights = (paillier.weight(making.factorial, i, list(used)) for i in used)
    total = sum(weight * shares[i] for i, weight in zip(used, weights, strict=True))
    return total * back % modulus


def _bases(modulus: Any) -> Iterator[Any]:
    """Numbers with the Jacobi symbol 1, that nobody chose."""
    gmpy2 = big_numbers.library()
    width = modulus.bit_length() // 8 + 17
    count = 0
    while True:
        label = _LABEL + int(modulus).to_bytes(width, "big") + protocol.number_bytes(count)
        base = int.from_bytes(hashlib.shake_256(label).digest(width)) % int(modulus)
        count += 1
        if gmpy2.jacobi(base, modulus) == 1:
            yield gmpy2.mpz(base)


def _has_two_primes(parties: Sequence[Party], modulus: Any) -> bool:
    """Boneh and Franklin's test, which stops at the first base that refutes it."""
    bases = _bases(modulus)
    for _ in range(_TESTS):
        base = next(bases)
        first, *rest = (party.witness(modulus, base) for party in parties)
        product = 1
        for power in rest:
            product = product * power % modulus
        if (first - product) % modulus and (first + product) % modulus:
            return False
    return True


def new_key(
    num_clients: int,
    max_colluders: int,
    *,
    bits: int = MODULUS_BITS,
    entropy: signing.Entropy = os.urandom,
) -> paillier.Key:
    """What clients do once, all of them in this process; takes minutes for 3072 bits.

    Returns:
      The key, with every client's share; 2 max_colluders + 1 clients decrypt together.

    Raises:
      PrivacyPreconditionError: as many clients as half may collude.
      ValueError: an argument is out of range.
      ImportError: the package `gmpy2` is missing (extra `secure`).
    """
    _validate.positive_int(num_clients=num_clients, bits=bits)
    _validate.non_negative_int(max_colluders=max_colluders)
    if 2 * max_colluders + 1 > num_clients or num_clients < 2:
        raise errors.PrivacyPreconditionError(
            f"Expected 2 max_colluders < num_clients={num_clients} and two clients at least, to "
            f"multiply what they share, got max_colluders={max_colluders}."
        )
    making = Making(num_clients, max_colluders, bits)
    if bits % 2 or making.span < 2**16:
        raise ValueError(
            f"Expected an even number of bits, large enough for {num_clients} clients' parts, got "
            f"bits={bits}."
        )
    gmpy2 = big_numbers.library()
    parties = [Party(making, i, entropy) for i in range(num_clients)]
    while True:
        sent = [party.candidate() for party in parties]
        products = [party.multiply([s[i] for s in sent]) for i, party in enumerate(parties)]
        modulus = _opened(making, products, making.field)
        if gmpy2.gcd(modulus, _primorial()) > 1 or gmpy2.is_square(modulus):
            continue
        if not _has_two_primes(parties, modulus):
            continue
        n = int(modulus)
        given = [party.key_shares(n) for party in parties]
        told = [party.settle(n, [g[i] for g in given]) for i, party in enumerate(parties)]
        scale = int(_opened(making, told, modulus))
        if gmpy2.gcd(scale, modulus) == 1:
            shares = {i: party.share for i, party in enumerate(parties)}
            return paillier.Key(n, shares, 2 * max_colluders + 1, max_colluders, scale)


@functools.lru_cache(maxsize=4)
def _kept_key(num_clients: int, max_colluders: int, bits: int) -> paillier.Key:
    return new_key(num_clients, max_colluders, bits=bits)


def simulated(
    terms: protocol.Terms,
    *,
    key: paillier.Key | None = None,
    key_bits: int = MODULUS_BITS,
    entropy: signing.Entropy = os.urandom,
) -> paillier.Paillier:
    """The protocol with all its parties in this process.

    Args:
      key: from `new_key`; None: one that this process makes, which takes minutes, and keeps.
      key_bits: of that key; fewer than 3072 protect nobody.

    Raises:
      PrivacyPreconditionError: 2 max_colluders + max_dropouts >= num_clients, or as
        `paillier.Paillier`.
    """
    if not 2 * terms.max_colluders + terms.max_dropouts < terms.num_clients:
        raise errors.PrivacyPreconditionError(
            "Expected 2 max_colluders + max_dropouts < num_clients="
            f"{terms.num_clients} without a dealer, got max_colluders={terms.max_colluders} and "
            f"max_dropouts={terms.max_dropouts}."
        )
    made = _kept_key(terms.num_clients, terms.max_colluders, key_bits) if key is None else key
    for_tests = made.modulus.bit_length() < MODULUS_BITS and key is None
    return paillier.Paillier(terms=terms, key=made, for_tests=for_tests, entropy=entropy)
