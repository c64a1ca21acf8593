"""A homomorphic sum that only enough clients together can decrypt: threshold Paillier.

A dealer makes the key and gives each client a share of it. Clients encrypt, the server multiplies
ciphertexts, which adds up what is in them, and any N - S clients decrypt the product together, each
by one power that tells nothing of its share.

A ciphertext is (1 + n)**m r**n modulo n**2. Shares are of the n-th root modulo n, so that clients
take powers modulo n, an eighth of the work of powers modulo n**2 (which a key without a dealer
needs: `joint_paillier`). Together they tell the product of all blinds r, beside the sum. It tells
nothing more: blinds of honest clients are uniform, so whoever knows the sum can draw their product
first, and compute from it the last honest client's ciphertext.

Blinds are r = h**a, h = -x**2, where x comes from a hash of n, and a has half of n's bits. Such
powers look like those of exponents of any length if numbers like n are hard to factor (Goldreich,
Rosen), which the residuosity below implies; h generates all numbers of Jacobi symbol 1, since p and
q are safe primes. Powers of h**n are products from a table.

Threat model: the dealer is trusted and forgets (`new_key` is the dealer). The server keeps to the
protocol and only looks on, with at most C = `max_colluders` clients; what clients send and get is
authenticated outside (TLS). A partial decryption that is none is found out, by whom is not.

Security level: 128 bits, a modulus of 3072 bits (decisional composite residuosity; x of a random
oracle, SHAKE-256). Powers leak time: `gmpy2` computes in no constant time, and reads of the table
follow the exponent.

Bounds: C + S < N, so that C colluders are fewer than the N - S who can decrypt; with fewer clients
in either step the round aborts. Sums are those of integers within 2**bits: `protocol.signed` checks
each client's, and words in one plaintext do not run over into the next.

Source: Damgard, Jurik, Nielsen (2010), "A Generalization of Paillier's Public-Key System with
Applications to Electronic Voting", with s = 1: the blinds; threshold powers modulo n**2 as in
Damgard, Jurik (2001), section 4.1. The root: Paillier (1999), section 5; shares of it: Shoup
(2000), "Practical Threshold Signatures", with n as the exponent. Goldreich, Rosen (2003), "On the
Security of Modular Exponentiation with Application to the Construction of Pseudorandom Generators".
"""

import dataclasses
import fractions
import functools
import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fljax import _validate, errors
from fljax.upload.secure_sum import big_numbers, protocol, signing

STEPS = ("encrypted", "decrypt")
MODULUS_BITS = 3072
_LABEL = b"fljax paillier 1 "


class Key(NamedTuple):
    """modulus: n, public. shares: client -> its share, known to it alone. threshold: shares that
    decrypt together. colluders: whose shares tell nothing. scale: None where shares are of the n-th
    root modulo n; where they are of an exponent modulo n**2, as `joint_paillier` has it, by how
    much too large a decryption comes out, public, modulo n.
    """

    modulus: int
    shares: Mapping[int, int]
    threshold: int
    colluders: int
    scale: int | None = None


def new_key(
    num_clients: int,
    threshold: int,
    *,
    bits: int = MODULUS_BITS,
    entropy: signing.Entropy = os.urandom,
) -> Key:
    """What the dealer does; takes some ten seconds for 3072 bits, as safe primes are rare.

    Raises:
      ValueError: an argument is out of range.
      ImportError: the package `gmpy2` is missing (extra `secure`).
    """
    _validate.positive_int(num_clients=num_clients, threshold=threshold, bits=bits)
    if threshold > num_clients or bits < 64:
        raise ValueError(
            f"Expected threshold <= num_clients={num_clients} and bits >= 64, got "
            f"threshold={threshold} and bits={bits}."
        )
    gmpy2 = big_numbers.library()
    p = big_numbers.safe_prime(bits // 2, entropy)
    q = p
    while q == p:
        q = big_numbers.safe_prime(bits // 2, entropy)
    n, order = p * q, (p - 1) // 2 * ((q - 1) // 2)  # of the squares modulo n
    secret = int(gmpy2.invert(n, order))
    random = [big_numbers.below(order, entropy) for _ in range(threshold - 1)]

    def share(x: int) -> int:
        value = 0
        for coefficient in reversed([secret, *random]):
            value = (value * x + coefficient) % order
        return value

    return Key(n, {i: share(i + 1) for i in range(num_clients)}, threshold, threshold - 1)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Paillier:
    """A `protocol.SecureSumProtocol`.

    Raises:
      PrivacyPreconditionError: a modulus of fewer than 3072 bits that is not for tests, a key for
        which N - S clients are too few, or one that max_colluders can decrypt with.
    """

    terms: protocol.Terms
    """What all parties agree on."""
    key: Key
    """With the shares of the clients that this process runs."""
    for_tests: bool = False
    """Takes a small modulus, which protects nobody."""
    entropy: signing.Entropy = os.urandom
    """Where secret bytes come from."""
    steps = STEPS
    upload_step = "encrypted"

    def __post_init__(self) -> None:
        big_numbers.library()  # an ImportError before the first round
        length = self.key.modulus.bit_length()
        if length < MODULUS_BITS and not self.for_tests:
            raise errors.PrivacyPreconditionError(
                f"Expected modulus of {MODULUS_BITS} bits for 128 bits of security, got one of "
                f"{length}."
            )
        terms, key = self.terms, self.key
        if not (key.threshold <= terms.least and terms.max_colluders <= key.colluders):
            raise errors.PrivacyPreconditionError(
                f"Expected a key that {terms.least} clients decrypt with and "
                f"{terms.max_colluders} do not, got threshold={key.threshold}, "
                f"colluders={key.colluders}."
            )

    @functools.cached_property
    def square(self) -> Any:
        """n**2, the modulus of ciphertexts."""
        return big_numbers.library().mpz(self.key.modulus) ** 2

    @property
    def partial(self) -> Any:
        """The modulus of partial decryptions."""
        return self.square if self.key.scale is not None else self.key.modulus

    @functools.cached_property
    def blinds(self) -> list[list[Any]]:
        """A table of powers of h**n modulo n**2."""
        n = self.key.modulus
        length = n.bit_length() // 8 + 17
        drawn = hashlib.shake_256(_LABEL + n.to_bytes(length)).digest(length)
        base = -pow(int.from_bytes(drawn), 2, n) % n
        power = big_numbers.library().powmod(base, n, self.square)
        return big_numbers.powers_of(power, -(-n.bit_length() // 2), self.square)

    @property
    def word(self) -> int:
        """Bytes of a word in a plaintext, in which sums of all clients fit."""
        return -(-self.terms.bits // 8)

    @property
    def words(self) -> int:
        """In a plaintext."""
        return (self.key.modulus.bit_length() - 1) // 8 // self.word

    @property
    def num_ciphertexts(self) -> int:
        """Of a vector."""
        return -(-self.terms.size // self.words)

    @functools.cached_property
    def factorial(self) -> int:
        """N!, with which the interpolation stays in whole numbers."""
        return math.factorial(self.terms.num_clients)

    def client(self, number: int, words: np.ndarray, round_index: int) -> "Client":
        """A client, with its vector; encryption is randomised, so rounds need no number."""
        del round_index
        return Client(self, number, words)

    def server(self, round_index: int) -> "Server":
        """The server of a round."""
        del round_index
        return Server(self)

    def elements(self, message: bytes, modulus: Any) -> list[Any]:
        """Those of a message, one for each plaintext. Raises MalformedMessageError where it holds
        none, or others.
        """
        gmpy2, width = big_numbers.library(), _width(modulus)
        if len(message) != width * self.num_ciphertexts:
            raise errors.MalformedMessageError(
                f"Expected {self.num_ciphertexts} ciphertexts, got {len(message)} bytes."
            )
        ends = range(0, len(message), width)
        found = [gmpy2.mpz(int.from_bytes(message[at : at + width])) for at in ends]
        if not all(0 < element < modulus for element in found):
            raise errors.MalformedMessageError("Expected ciphertexts below the modulus.")
        return found

    def check_invertible(self, elements: Sequence[Any]) -> None:
        """Raises MalformedMessageError where one is not, as the product of others is not."""
        product = 1
        for element in elements:
            product = product * element % self.key.modulus
        if big_numbers.library().gcd(product, self.key.modulus) > 1:
            raise errors.MalformedMessageError("Expected ciphertexts that can be inverted.")


def _width(modulus: Any) -> int:
    """Bytes of a number below it."""
    return -(-modulus.bit_length() // 8)


def as_bytes(elements: Sequence[Any], modulus: Any) -> bytes:
    """A message of numbers below the modulus."""
    return b"".join(int(element).to_bytes(_width(modulus)) for element in elements)


@functools.lru_cache(maxsize=4)
def _kept_key(num_clients: int, threshold: int, bits: int) -> Key:
    return new_key(num_clients, threshold, bits=bits)


def simulated(
    terms: protocol.Terms,
    *,
    key: Key | None = None,
    key_bits: int = MODULUS_BITS,
    entropy: signing.Entropy = os.urandom,
) -> Paillier:
    """The protocol with all its parties in this process. Raises as `Paillier`.

    Args:
      key: from the dealer; None: one that this process makes, in some ten seconds, and keeps.
      key_bits: of that key; fewer than 3072 protect nobody.
    """
    made = _kept_key(terms.num_clients, terms.least, key_bits) if key is None else key
    for_tests = made.modulus.bit_length() < MODULUS_BITS and key is None
    return Paillier(terms=terms, key=made, for_tests=for_tests, entropy=entropy)


class Client:
    """One client in one round."""

    def __init__(self, setting: Paillier, number: int, words: np.ndarray):
        self._integers = protocol.signed(setting.terms, words)
        self._setting, self._number, self._next = setting, number, 0

    def send(self, step: str, received: bytes) -> bytes:
        """Ciphertexts, then a partial decryption of the product."""
        protocol.in_order(step, STEPS, self._next)
        self._next += 1
        return self._encrypted() if step == "encrypted" else self._decrypted(received)

    def _encrypted(self) -> bytes:
        setting, n = self._setting, self._setting.key.modulus
        shifted = (self._integers + setting.terms.most).astype("<u8").view(np.uint8)
        data = shifted.reshape(-1, 8)[:, : setting.word].tobytes()
        length = setting.words * setting.word
        plain = (
            int.from_bytes(data[at : at + length], "little") for at in range(0, len(data), length)
        )
        blind = lambda: big_numbers.random_power(setting.blinds, setting.square, setting.entropy)
        found = [(1 + m * n) * blind() % setting.square for m in plain]
        return as_bytes(found, setting.square)

    def _decrypted(self, received: bytes) -> bytes:
        setting, modulus = self._setting, self._setting.partial
        exponent = 2 * setting.factorial * setting.key.shares[self._number]
        products = setting.elements(received, setting.square)
        setting.check_invertible(products)
        return as_bytes(
            big_numbers.library().powmod_base_list(products, exponent, modulus), modulus
        )


class Server:
    """The server of one round."""

    def __init__(self, setting: Paillier):
        self._setting, self._roll = setting, protocol.Roll(setting.terms, STEPS)
        self._summed = 0
        self._products: list[Any] = []
        self._total: np.ndarray | None = None

    def collect(self, step: str, messages: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """The product of ciphertexts, for all whose are in it; then the sum."""
        setting = self._setting
        self._roll.call(step, messages)
        if step == "encrypted":
            self._summed, square = len(messages), setting.square
            self._products = [1] * setting.num_ciphertexts
            for _, message in sorted(messages.items()):
                more = setting.elements(message, square)
                pairs = zip(self._products, more, strict=True)
                self._products = [a * b % square for a, b in pairs]
            setting.check_invertible(self._products)
            return dict.fromkeys(messages, as_bytes(self._products, square))
        found = {n: setting.elements(m, setting.partial) for n, m in sorted(messages.items())}
        used = dict(list(found.items())[: setting.key.threshold])
        for parts in used.values():
            setting.check_invertible(parts)
        self._total = self._sums(used)
        return {}

    def _sums(self, parts: Mapping[int, Sequence[Any]]) -> np.ndarray:
        """Words of M, the packed sums, from partial decryptions, which together are ciphertexts, or
        their roots, to the power of 4 N! times the least common denominator.
        """
        setting, n = self._setting, self._setting.key.modulus
        gmpy2, square = big_numbers.library(), setting.square
        denominator, weights = at_zero(list(parts))
        factor, exponents = 4 * setting.factorial * denominator, [2 * weight for weight in weights]
        powers = big_numbers.products_of_powers(list(parts.values()), exponents, setting.partial)
        if setting.key.scale is None:
            whole = gmpy2.powmod_base_list(self._products, factor, square)
            blinds = gmpy2.powmod_base_list(powers, n, square)
            pairs = zip(whole, blinds, strict=True)
            powers = [a * gmpy2.invert(b, square) % square for a, b in pairs]
            back = gmpy2.invert(factor, n)
        else:
            back = gmpy2.invert(factor * setting.key.scale, n)
        length = setting.words * setting.word
        data = b""
        for element in powers:  # (1 + n)**(factor scale M)
            plain = (int(element) - 1) // n * int(back) % n
            if (int(element) - 1) % n or plain.bit_length() > 8 * length:
                raise errors.MalformedShareError(
                    "Expected partial decryptions of the sum, got some that do not fit together."
                )
            data += plain.to_bytes(length, "little")
        wide = np.zeros((setting.terms.size, 8), np.uint8)
        packed = np.frombuffer(data, np.uint8).reshape(-1, setting.word)
        wide[:, : setting.word] = packed[: setting.terms.size]
        sums = wide.view("<u8")[:, 0].astype(np.int64) - self._summed * setting.terms.most
        if np.abs(sums).max() > self._summed * setting.terms.most:
            raise errors.MalformedMessageError("Expected a sum within the terms, got another.")
        return protocol.as_words(setting.terms, sums)

    def total(self) -> np.ndarray:
        """Uint32 `[size]`. Raises SecureSumError before the last step is done."""
        return protocol.done(self._total)


def weight(factorial: int, number: int, used: Sequence[int]) -> int:
    """N! times the Lagrange coefficient at 0 of a client's share, a whole number."""
    top, bottom = factorial, 1
    for other in used:
        if other != number:
            top *= other + 1
            bottom *= other - number
    return top // bottom


def at_zero(used: Sequence[int]) -> tuple[int, list[int]]:
    """The least common denominator of Lagrange coefficients at 0 of these clients' shares, and that
    times each: fewer bits than with N! where most of them are next to each other.
    """
    exact = []
    for number in used:
        others = [other for other in used if other != number]
        top = math.prod(other + 1 for other in others)
        exact.append(fractions.Fraction(top, math.prod(other - number for other in others)))
    least = math.lcm(*(one.denominator for one in exact))
    return least, [int(least * one) for one in exact]
