"""Additive sharing among several servers, of which one is honest.

A client splits its words into shares that add up to them modulo 2**bits: one is words, the others
are ChaCha20 streams of which a server gets only the 32 bytes of the key. Each server adds up what
it holds; the sums of all servers add up to the sum.

Threat model: servers keep to the protocol, and all but one of them may pool what they see with any
clients. Between a client and each server there is a channel that nobody else reads or changes (TLS
with a certificate): it is no part of this module. Which clients are summed the servers agree on:
those of whom each has a share.

Security level: 128 bits (ChaCha20 under keys of 256 bits). Bounds: num_servers - 1 colluding
servers, num_clients - 2 colluding clients for what is left of a sum to be one; any dropouts up to
max_dropouts, else the round aborts. A server that is lost aborts it, too.

Source: folklore; the streams as in Boneh et al. (2019), "Lightweight Techniques for Private Heavy
Hitters", section on share compression, and Corrigan-Gibbs, Boneh (2017), "Prio", appendix I.
"""

import dataclasses
import os
from collections.abc import Mapping

import numpy as np

from fljax import _validate, errors
from fljax.upload.secure_sum import protocol, signing, stream

STEPS = ("shared",)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Shared:
    """A `protocol.SecureSumProtocol`.

    Raises:
      ValueError: fewer than two servers.
    """

    terms: protocol.Terms
    """What all parties agree on."""
    num_servers: int = 2
    """Of which one is honest."""
    entropy: signing.Entropy = os.urandom
    """Where secret bytes come from."""
    steps = STEPS
    upload_step = "shared"

    def __post_init__(self) -> None:
        _validate.positive_int(num_servers=self.num_servers)
        if self.num_servers < 2:
            raise ValueError(f"Expected num_servers >= 2, got num_servers={self.num_servers}.")
        stream.cipher()  # an ImportError before the first round

    def client(self, number: int, words: np.ndarray, round_index: int) -> "Client":
        """A client, with its vector; its keys are drawn anew, so rounds need no number."""
        del number, round_index
        return Client(self, words)

    def server(self, round_index: int) -> "Servers":
        """All servers of a round."""
        del round_index
        return Servers(self)


class Client:
    """One client in one round."""

    def __init__(self, setting: Shared, words: np.ndarray):
        self._words = protocol.check_words(setting.terms, words).copy()
        self._setting, self._next = setting, 0

    def send(self, step: str, received: bytes) -> bytes:
        """A share for each server: keys of streams, and words last."""
        del received
        protocol.in_order(step, STEPS, self._next)
        self._next += 1
        keys = [self._setting.entropy(32) for _ in range(self._setting.num_servers - 1)]
        for key in keys:
            stream.add(self._words, key, -1)
        terms = self._setting.terms
        reduced = self._words & np.uint32(2**terms.bits - 1)
        return protocol.pack(*keys, protocol.packed_words(terms, reduced))


class Server:
    """One of the servers: it holds a share of each client, and tells their sum alone."""

    def __init__(self, terms: protocol.Terms, *, of_words: bool):
        self._terms, self._of_words, self._held = terms, of_words, dict[int, bytes]()

    def take(self, number: int, share: bytes) -> None:
        """A client's share."""
        if not self._of_words and len(share) != 32:
            raise errors.MalformedShareError(
                f"Expected a share of 32 bytes of client {number}, got one of {len(share)}."
            )
        self._held[number] = share

    @property
    def clients(self) -> set[int]:
        """Of whom there is a share."""
        return set(self._held)

    def total(self, clients: set[int]) -> np.ndarray:
        """Uint32 `[size]`, modulo 2**32."""
        total = np.zeros(self._terms.size, np.uint32)
        for number in sorted(clients):
            if self._of_words:
                total += protocol.unpacked_words(self._terms, self._held[number])
            else:
                stream.add(total, self._held[number], 1)
        self._held = {}  # never another sum of the same shares
        return total


class Servers:
    """All servers of a round, in one process."""

    def __init__(self, setting: Shared):
        last = setting.num_servers - 1
        self._terms, self._roll = setting.terms, protocol.Roll(setting.terms, STEPS)
        self._servers = [
            Server(setting.terms, of_words=k == last) for k in range(setting.num_servers)
        ]
        self._total: np.ndarray | None = None

    def collect(self, step: str, messages: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """Adds up shares of the clients that reached all servers."""
        self._roll.call(step, messages)
        for number, message in messages.items():
            shares = protocol.unpack(message, len(self._servers))
            for server, share in zip(self._servers, shares, strict=True):
                server.take(number, share)
        agreed = set.intersection(*(server.clients for server in self._servers))
        protocol.enough(self._terms, step, agreed)
        sums = [server.total(agreed) for server in self._servers]
        self._total = sum(sums[1:], sums[0]) & np.uint32(2**self._terms.bits - 1)
        return {}

    def total(self) -> np.ndarray:
        """Uint32 `[size]`. Raises SecureSumError before the step is done."""
        return protocol.done(self._total)


def simulated(
    terms: protocol.Terms, *, num_servers: int = 2, entropy: signing.Entropy = os.urandom
) -> Shared:
    """The protocol with all its parties in this process. Raises as `Shared`."""
    return Shared(terms=terms, num_servers=num_servers, entropy=entropy)
