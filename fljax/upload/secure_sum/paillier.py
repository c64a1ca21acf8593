"""A homomorphic sum that only enough clients together can decrypt: threshold Paillier.

A dealer makes the key and gives each client a share of it. Clients encrypt, the server multiplies
ciphertexts, which adds up what is in them, and any N - S clients decrypt the product together, each
by one power that tells nothing of its share.

Threat model: the dealer is trusted and forgets (`new_key` is the dealer). The server keeps to the
protocol and only looks on, with at most C = `max_colluders` clients; what clients send and get is
authenticated outside (TLS). A partial decryption that is none is found out, by whom is not.

Security level: 128 bits, a modulus of 3072 bits (decisional composite residuosity). Powers leak
time: `gmpy2` computes in no constant time.

Bounds: C + S < N, so that C colluders are fewer than the N - S who can decrypt; with fewer clients
in either step the round aborts. Sums are those of integers within 2**bits: `protocol.signed` checks
each client's, and words in one plaintext do not run over into the next.

Source: Damgard, Jurik (2001), "A Generalisation, a Simplification and Some Applications of
Paillier's Probabilistic Public-Key System", section 4.1, with s = 1.
"""

import dataclasses
import functools
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fljax import _validate, errors
from fljax.upload.secure_sum import inner_product, protocol, signing

STEPS = ("encrypted", "decrypt")
MODULUS_BITS = 3072


class Key(NamedTuple):
    """modulus: n, public. shares: client -> its share, known to it alone. threshold: shares that
    decrypt together. colluders: whose shares tell nothing. scale: public, modulo n: by how much too
    large a decryption comes out.
    """

    modulus: int
    shares: Mapping[int, int]
    threshold: int
    colluders: int
    scale: int = 1


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
    gmpy2 = inner_product.library()
    p = inner_product.safe_prime(bits // 2, entropy)
    q = p
    while q == p:
        q = inner_product.safe_prime(bits // 2, entropy)
    n, m = p * q, (p - 1) // 2 * ((q - 1) // 2)
    secret = m * int(gmpy2.invert(m, n))  # 0 modulo m, 1 modulo n
    order = n * m
    random = [inner_product.below(order, entropy) for _ in range(threshold - 1)]

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
        inner_product.library()  # an ImportError before the first round
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
        return inner_product.library().mpz(self.key.modulus) ** 2

    @property
    def width(self) -> int:
        """Bytes of a ciphertext."""
        return -(-2 * self.key.modulus.bit_length() // 8)

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

    def ciphertexts(self, message: bytes) -> list[Any]:
        """Those of a message. Raises MalformedMessageError where it holds none, or others."""
        gmpy2 = inner_product.library()
        if len(message) != self.width * self.num_ciphertexts:
            raise errors.MalformedMessageError(
                f"Expected {self.num_ciphertexts} ciphertexts, got {len(message)} bytes."
            )
        ends = range(0, len(message), self.width)
        found = [gmpy2.mpz(int.from_bytes(message[at : at + self.width])) for at in ends]
        if not all(0 < element < self.square for element in found):
            raise errors.MalformedMessageError("Expected ciphertexts below the modulus.")
        if any(gmpy2.gcd(element, self.key.modulus) > 1 for element in found):
            raise errors.MalformedMessageError("Expected ciphertexts that can be inverted.")
        return found

    def as_bytes(self, elements: Sequence[Any]) -> bytes:
        """A message of ciphertexts."""
        return b"".join(int(element).to_bytes(self.width) for element in elements)


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
        drawn = [inner_product.below(n, setting.entropy) for _ in range(setting.num_ciphertexts)]
        blinds = inner_product.library().powmod_base_list(drawn, n, setting.square)
        return setting.as_bytes(
            [(1 + m * n) * blind % setting.square for m, blind in zip(plain, blinds, strict=True)]
        )

    def _decrypted(self, received: bytes) -> bytes:
        setting = self._setting
        exponent = 2 * setting.factorial * setting.key.shares[self._number]
        products = setting.ciphertexts(received)
        return setting.as_bytes(
            inner_product.library().powmod_base_list(products, exponent, setting.square)
        )


class Server:
    """The server of one round."""

    def __init__(self, setting: Paillier):
        self._setting, self._roll = setting, protocol.Roll(setting.terms, STEPS)
        self._summed = 0
        self._total: np.ndarray | None = None

    def collect(self, step: str, messages: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """The product of ciphertexts, for all whose are in it; then the sum."""
        setting = self._setting
        self._roll.call(step, messages)
        found = {number: setting.ciphertexts(m) for number, m in sorted(messages.items())}
        if step == "encrypted":
            self._summed = len(found)
            product = setting.as_bytes(_product(list(found.values()), setting.square))
            return dict.fromkeys(messages, product)
        used = dict(list(found.items())[: setting.key.threshold])
        powers = []
        for number, parts in used.items():
            exponent = 2 * weight(setting.factorial, number, list(used))
            powers.append(inner_product.library().powmod_base_list(parts, exponent, setting.square))
        self._total = self._sums(_product(powers, setting.square))
        return {}

    def _sums(self, products: Sequence[Any]) -> np.ndarray:
        """Words of (1 + n)**(4 N!**2 scale M), M the packed sums."""
        setting, n = self._setting, self._setting.key.modulus
        back = inner_product.library().invert(4 * setting.factorial**2 * setting.key.scale, n)
        length = setting.words * setting.word
        data = b""
        for element in products:
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


def _product(rows: Sequence[Sequence[Any]], square: Any) -> list[Any]:
    """Of each column."""
    total = list(rows[0])
    for row in rows[1:]:
        total = [a * b % square for a, b in zip(total, row, strict=True)]
    return total


def weight(factorial: int, number: int, used: Sequence[int]) -> int:
    """N! times the Lagrange coefficient at 0 of a client's share, a whole number."""
    top, bottom = factorial, 1
    for other in used:
        if other != number:
            top *= other + 1
            bottom *= other - number
    return top // bottom
