"""Functional encryption of sums: whoever has the key of a round's sum decrypts it and nothing else.

A key authority gives each client a secret. Client j of round t encrypts coordinate i as
H(t, i)**s_jt * g**x in a group where discrete logarithms are hard, s_jt drawn from its secret by
the round. For a set of clients the authority tells the sum of their s_jt, with which the server
finds g to the power of the sum, and then, sums being small, the sum.

Threat model: the authority is trusted: it colludes with nobody, and tells one key a round, for at
least N - S clients. The server keeps to the protocol, and any clients may pool what they know with
it: secrets of different clients have nothing in common. Clients and authority speak before the
first round, over a channel that nobody else reads, and clients' ciphertexts reach the server
authenticated (TLS): neither is a part of this module. Which rounds were is known to the process
alone. Started again with the same secrets, clients encrypt a second vector for a round that was,
whose ciphertexts tell its difference from the first, and the authority tells that round's key
again. So a restart takes new secrets, or goes on above every round that was.

Security level: 128 bits: decisional Diffie-Hellman among the squares modulo the safe prime of 3072
bits of RFC 3526 (group 15), H a random oracle (SHAKE-256), secrets of 256 bits (HKDF-SHA256,
ChaCha20).

Bounds: max_dropouts, else the round aborts; a process refuses a second key of a round. Sums are
those of integers within 2**bits: `protocol.signed` checks each client's, so that no sum wraps
around.

Numbers of 3072 bits are one power each, in C (`gmpy2`); no vector arithmetic helps there. It costs
milliseconds and 384 bytes a coordinate, as in the papers that use it.

Source: Chotard et al. (2018), "Decentralized Multi-Client Functional Encryption for Inner Product",
section 3, with secrets of one round each. The setting is that of Xu et al. (2019), "HybridAlpha".
"""

import dataclasses
import functools
import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fljax import errors
from fljax.upload import key_agreement
from fljax.upload.secure_sum import protocol, signing, stream

STEPS = ("encrypted",)
MODULUS_BITS = 3072
_LABEL = b"fljax inner product encryption 1 "
_GENERATOR = 4  # a square, so of the prime order (p - 1) / 2
_MOST_BABY_STEPS = 2**14


def library() -> Any:
    try:
        import gmpy2
    except ImportError:
        raise ImportError(
            "Functional encryption needs the package gmpy2: pip install 'fljax[secure]'."
        ) from None
    return gmpy2


@functools.cache
def group_15() -> int:
    """The prime of RFC 3526, section 4, by its formula."""
    gmpy2 = library()
    with gmpy2.context(precision=MODULUS_BITS):
        digits = int(gmpy2.floor(gmpy2.const_pi() * gmpy2.mpfr(2) ** 2942))
    return 2**3072 - 2**3008 - 1 + 2**64 * (digits + 1690314)


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


@functools.cache
def _small_group(bits: int) -> int:
    return safe_prime(bits, os.urandom)


class Authority:
    """Who gives out keys: one secret to each client, and the key of one sum a round."""

    def __init__(self, setting: "InnerProduct", secrets: Mapping[int, bytes]):
        self._setting, self._secrets, self._next = setting, dict(secrets), 0

    def key(self, round_index: int, clients: Sequence[int]) -> int:
        """The key of the sum of these clients' vectors in a round.

        Raises:
          DropoutError: they are fewer than the terms ask for.
          MalformedMessageError: one has no secret.
          ReplayError: a key of this round, or of a later one, was told before.
        """
        protocol.enough(self._setting.terms, "encrypted", set(clients))
        if not set(clients) <= set(self._secrets):
            raise errors.MalformedMessageError("Expected clients that have a secret, got others.")
        if round_index < self._next:
            raise errors.ReplayError(
                f"Expected a round from {self._next} on, got round_index={round_index}: two keys "
                "of a round would tell the difference of two sums."
            )
        self._next = round_index + 1
        exponents = (
            _exponent(self._setting, self._secrets[i], round_index) for i in sorted(set(clients))
        )
        return sum(exponents) % self._setting.order


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class InnerProduct:
    """A `protocol.SecureSumProtocol`.

    Raises:
      PrivacyPreconditionError: a modulus of fewer than 3072 bits that is not for tests.
      ImportError: the package `gmpy2` is missing (extra `secure`).
    """

    terms: protocol.Terms
    """What all parties agree on."""
    secrets: Mapping[int, bytes]
    """Of the clients that this process runs, 32 bytes each, from the authority; after a restart new
    ones, or with rounds above every one that was.
    """
    modulus: int
    """A safe prime."""
    for_tests: bool = False
    """Takes a small modulus, which protects nobody."""
    steps = STEPS
    upload_step = "encrypted"

    def __post_init__(self) -> None:
        library()  # an ImportError before the first round
        if self.modulus.bit_length() < MODULUS_BITS and not self.for_tests:
            raise errors.PrivacyPreconditionError(
                f"Expected modulus of {MODULUS_BITS} bits for 128 bits of security, got one of "
                f"{self.modulus.bit_length()}."
            )

    @functools.cached_property
    def authority(self) -> Authority:
        """In this process, which then has all clients' secrets."""
        return Authority(self, self.secrets)

    @property
    def order(self) -> int:
        """Of the group of squares."""
        return (self.modulus - 1) // 2

    @property
    def width(self) -> int:
        """Bytes of an element."""
        return -(-self.modulus.bit_length() // 8)

    @functools.cached_property
    def _entered(self) -> dict[int, int]:
        """Next round of each client in this process."""
        return dict.fromkeys(self.secrets, 0)

    def client(self, number: int, words: np.ndarray, round_index: int) -> "Client":
        """A client of a round, with its vector. Raises ReplayError where it was in the round."""
        if round_index < self._entered[number]:
            raise errors.ReplayError(
                f"Expected round_index >= {self._entered[number]} of client {number}, got "
                f"round_index={round_index}: a client takes part in a round once."
            )
        self._entered[number] = round_index + 1
        return Client(self, number, words, round_index)

    def server(self, round_index: int) -> "Server":
        """The server of a round."""
        return Server(self, round_index)

    def bases(self, round_index: int) -> list[int]:
        """H(t, i) of all coordinates: squares that nobody knows the logarithm of."""
        gmpy2, found = library(), []
        for i in range(self.terms.size):
            label = _LABEL + protocol.number_bytes(round_index) + protocol.number_bytes(i)
            drawn = int.from_bytes(hashlib.shake_256(label).digest(self.width + 16))
            found.append(gmpy2.mpz(drawn) ** 2 % self.modulus)
        return found


def simulated(
    terms: protocol.Terms,
    *,
    modulus: int | None = None,
    key_bits: int = MODULUS_BITS,
    for_tests: bool = False,
    entropy: signing.Entropy = os.urandom,
) -> InnerProduct:
    """The protocol with all its parties in this process. Raises as `InnerProduct`.

    Args:
      modulus: a safe prime; None: one of `key_bits`.
      key_bits: 3072, for the group of RFC 3526; fewer protect nobody.
    """
    if modulus is None and key_bits < MODULUS_BITS:
        modulus, for_tests = _small_group(key_bits), True
    return InnerProduct(
        terms=terms,
        secrets={i: entropy(32) for i in range(terms.num_clients)},
        modulus=group_15() if modulus is None else modulus,
        for_tests=for_tests,
    )


def _exponent(setting: InnerProduct, secret: bytes, round_index: int) -> int:
    """s_jt, uniform below the order but for 2**-128."""
    key = key_agreement.derive(secret, _LABEL + protocol.number_bytes(round_index))
    drawn = stream.words(key, -(-(setting.width + 16) // 4))
    return int.from_bytes(drawn.tobytes()) % setting.order


class Client:
    """One client in one round."""

    def __init__(self, setting: InnerProduct, number: int, words: np.ndarray, round_index: int):
        self._integers = protocol.signed(setting.terms, words)
        self._secret = setting.secrets[number]
        self._setting, self._round, self._next = setting, round_index, 0

    def send(self, step: str, received: bytes) -> bytes:
        """An element of the group for each coordinate."""
        del received
        protocol.in_order(step, STEPS, self._next)
        self._next += 1
        gmpy2, setting = library(), self._setting
        exponent = _exponent(setting, self._secret, self._round)
        blinds = gmpy2.powmod_base_list(setting.bases(self._round), exponent, setting.modulus)
        shifted = (self._integers + setting.terms.most).tolist()  # no negative powers
        plain = gmpy2.powmod_exp_list(_GENERATOR, shifted, setting.modulus)
        elements = (a * b % setting.modulus for a, b in zip(blinds, plain, strict=True))
        return b"".join(int(element).to_bytes(setting.width) for element in elements)


class Server:
    """The server of one round."""

    def __init__(self, setting: InnerProduct, round_index: int):
        self._setting, self._round = setting, round_index
        self._roll = protocol.Roll(setting.terms, STEPS)
        self._total: np.ndarray | None = None

    def collect(self, step: str, messages: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """Multiplies ciphertexts, asks for the key of their sum, and finds the sum."""
        gmpy2, setting = library(), self._setting
        self._roll.call(step, messages)
        products = [gmpy2.mpz(1)] * setting.terms.size
        for number, message in sorted(messages.items()):
            elements = _elements(setting, number, message)
            products = [a * b % setting.modulus for a, b in zip(products, elements, strict=True)]
        key = setting.authority.key(self._round, list(messages))
        blinds = gmpy2.powmod_base_list(
            setting.bases(self._round), setting.order - key, setting.modulus
        )
        powers = [a * b % setting.modulus for a, b in zip(products, blinds, strict=True)]
        most = 2 * setting.terms.most * len(messages)
        sums = np.array(_logarithms(powers, most, setting.modulus), np.int64)
        self._total = protocol.as_words(setting.terms, sums - setting.terms.most * len(messages))
        return {}

    def total(self) -> np.ndarray:
        """Uint32 `[size]`. Raises SecureSumError before the step is done."""
        return protocol.done(self._total)


def _elements(setting: InnerProduct, number: int, message: bytes) -> list[Any]:
    """A client's ciphertexts. Raises MalformedMessageError where these are no elements."""
    gmpy2, width = library(), setting.width
    if len(message) != width * setting.terms.size:
        raise errors.MalformedMessageError(
            f"Expected {setting.terms.size} elements of client {number}, got {len(message)} bytes."
        )
    found = [
        gmpy2.mpz(int.from_bytes(message[at : at + width])) for at in range(0, len(message), width)
    ]
    if not all(0 < element < setting.modulus for element in found):
        raise errors.MalformedMessageError(f"Expected elements of the group of client {number}.")
    return found


def _logarithms(powers: Sequence[Any], most: int, modulus: int) -> list[int]:
    """Each x in [0, most], of g**x, by baby steps and giant steps.

    Raises:
      MalformedMessageError: one has none, so that some client's ciphertext was no number of its.
    """
    gmpy2 = library()
    width = min(_MOST_BABY_STEPS, math.isqrt(most) + 1)
    baby, power = {}, gmpy2.mpz(1)
    for x in range(width):
        baby[power] = x
        power = power * _GENERATOR % modulus
    giant, found = gmpy2.invert(power, modulus), []
    for sought in powers:
        for step in range(most // width + 1):
            rest = baby.get(sought)
            if rest is not None and step * width + rest <= most:
                found.append(step * width + rest)
                break
            sought = sought * giant % modulus
        else:
            raise errors.MalformedMessageError(
                "Expected a sum within the terms, got a number that is none."
            )
    return found
