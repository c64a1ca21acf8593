"""Functional encryption of sums: whoever has the key of a round's sum decrypts it and nothing else.

A key authority gives each client a secret. Client j of round t encrypts coordinate i as
s_jt H(t, i) + 2 x G in a group where discrete logarithms are hard, s_jt drawn from its secret by
the round. For a set of clients the authority tells the sum of their s_jt, with which the server
finds the sum's double times G, and then, sums being small, the sum. Doubles, and one G more at the
end, keep zero apart, which has no bytes.

Threat model: the authority is trusted: it colludes with nobody, and tells one key a round, for at
least N - S clients. The server keeps to the protocol, and any clients may pool what they know with
it: secrets of different clients have nothing in common. Clients and authority speak before the
first round, over a channel that nobody else reads, and clients' ciphertexts reach the server
authenticated (TLS): neither is a part of this module. Which rounds were is known to the process
alone. Started again with the same secrets, clients encrypt a second vector for a round that was,
whose ciphertexts tell its difference from the first, and the authority tells that round's key
again. So a restart takes new secrets, or goes on above every round that was.

Security level: 128 bits: decisional Diffie-Hellman on the curve secp256k1, whose order is a prime
of 256 bits, H a random oracle (SHA-256), secrets of 256 bits (HKDF-SHA256, ChaCha20). Time tells:
`coincurve` takes multiples of H, and the short one of G that is the private word itself, by
algorithms in no constant time. Encrypt where nobody measures how long it takes.

Bounds: max_dropouts, else the round aborts; a process refuses a second key of a round. Sums are
those of integers within 2**bits: `protocol.signed` checks each client's, so that no sum wraps
around.

It costs some 40 microseconds and 64 bytes a coordinate (docs/explain/secure_sums.md). Modulo a
prime of 3072 bits, as in the papers that use it, it took over a hundred times as long, and 384
bytes.

Source: Chotard et al. (2018), "Decentralized Multi-Client Functional Encryption for Inner Product",
section 3, with secrets of one round each. The setting is that of Xu et al. (2019), "HybridAlpha".
"""

import dataclasses
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fljax import errors
from fljax.upload import key_agreement
from fljax.upload.secure_sum import curve, protocol, signing, stream

STEPS = ("encrypted",)
_LABEL = b"fljax inner product encryption 2 "


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
        return sum(_factor(self._secrets[i], round_index) for i in set(clients)) % curve.ORDER


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class InnerProduct:
    """A `protocol.SecureSumProtocol`.

    Raises:
      ImportError: the package `coincurve` is missing (extra `secure`).
    """

    terms: protocol.Terms
    """What all parties agree on."""
    secrets: Mapping[int, bytes]
    """Of the clients that this process runs, 32 bytes each, from the authority; after a restart new
    ones, or with rounds above every one that was.
    """
    steps = STEPS
    upload_step = "encrypted"

    def __post_init__(self) -> None:
        curve.library()  # an ImportError before the first round

    @functools.cached_property
    def authority(self) -> Authority:
        """In this process, which then has all clients' secrets."""
        return Authority(self, self.secrets)

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
        protocol.number_bytes(round_index)  # a ValueError before the client is in it
        self._entered[number] = round_index + 1
        return Client(self, number, words, round_index)

    def server(self, round_index: int) -> "Server":
        """The server of a round."""
        return Server(self, round_index)

    def bases(self, round_index: int) -> Iterator[Any]:
        """H(t, i) of all coordinates, whose logarithms nobody knows."""
        label = _LABEL + protocol.number_bytes(round_index)
        return (curve.hashed(label + protocol.number_bytes(i)) for i in range(self.terms.size))


def simulated(terms: protocol.Terms, *, entropy: signing.Entropy = os.urandom) -> InnerProduct:
    """The protocol with all its parties in this process. Raises as `InnerProduct`."""
    return InnerProduct(terms=terms, secrets={i: entropy(32) for i in range(terms.num_clients)})


def _factor(secret: bytes, round_index: int) -> int:
    """s_jt, uniform below the order but for 2**-128."""
    key = key_agreement.derive(secret, _LABEL + protocol.number_bytes(round_index))
    return int.from_bytes(stream.words(key, 12).tobytes()) % curve.ORDER


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
        factor = curve.scalar(_factor(self._secret, self._round))
        shifted = (2 * (self._integers + self._setting.terms.most)).tolist()  # short multiples
        pairs = zip(self._setting.bases(self._round), shifted, strict=True)
        return b"".join(
            curve.as_bytes(base.multiply(factor).add(curve.scalar(plain))) for base, plain in pairs
        )


class Server:
    """The server of one round."""

    def __init__(self, setting: InnerProduct, round_index: int):
        self._setting, self._round = setting, round_index
        self._roll = protocol.Roll(setting.terms, STEPS)
        self._total: np.ndarray | None = None

    def collect(self, step: str, messages: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """Adds up ciphertexts, asks for the key of their sum, and finds the sum."""
        terms, width = self._setting.terms, curve.WIDTH
        self._roll.call(step, messages)
        for number, message in messages.items():
            if len(message) != width * terms.size:
                raise errors.MalformedMessageError(
                    f"Expected {terms.size} elements of client {number}, got {len(message)} bytes."
                )
        sums = []
        for i in range(terms.size):
            part = slice(width * i, width * (i + 1))
            sums.append(curve.total([curve.point(message[part]) for message in messages.values()]))
        # Of a round there is one key: it is asked for once all that was sent is known to be points.
        back = curve.scalar(-self._setting.authority.key(self._round, list(messages)))
        most = 2 * terms.most * len(messages)
        shift, points = curve.multiple(1 - most), []
        for found, base in zip(sums, self._setting.bases(self._round), strict=True):
            points.append(curve.total([found, base.multiply(back), shift]))
        doubles = curve.odd_logarithms(points, most + 1) - 1
        if np.abs(doubles).max() > most:
            raise errors.MalformedMessageError("Expected a sum within the terms, got another.")
        self._total = protocol.as_words(terms, doubles // 2)
        return {}

    def total(self) -> np.ndarray:
        """Uint32 `[size]`. Raises SecureSumError before the step is done."""
        return protocol.done(self._total)
