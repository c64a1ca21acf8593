"""Shamir sharing among several servers: some may pool what they see, and others may be lost.

A client's integers are the value at 0 of a random polynomial modulo the prime 2**31 - 1, of degree
T for T servers that may collude; each server gets its value at a point of its own. Servers add up
what they hold, and the sums of any T + 1 of them give the sum.

Threat model: servers keep to the protocol, and T = `max_colluding_servers` of them may pool what
they see with any clients. Between a client and each server there is a channel that nobody else
reads or changes (TLS with a certificate): it is no part of this module. Which clients are summed
the servers agree on: those of whom each has a share. A wrong sum of a server is noticed where more
than T + 1 answer, but not whose it is; where just T + 1 answer, the sum that is released is wrong
and nothing says so.

Security level: T shares are independent of what is shared, whatever the computing power; the
polynomial's other coefficients are ChaCha20 streams under keys of 256 bits, so 128 bits of
security.

Bounds: T colluding servers; num_servers - T - 1 servers may be lost, and num_clients - 2 clients
collude for what is left of a sum to be one; any dropouts up to max_dropouts, else the round aborts.
Sums are those of integers within the prime's signed half: `protocol.signed` checks each client's,
so that no sum wraps around.

Source: Shamir (1979), "How to share a secret"; Ben-Or, Goldwasser, Wigderson (1988),
"Completeness Theorems for Non-Cryptographic Fault-Tolerant Distributed Computation", addition.
"""

import dataclasses
import os
from collections.abc import Mapping

import numpy as np

from fljax import _validate, errors
from fljax.upload.secure_sum import field, protocol, signing, stream

STEPS = ("shared",)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ShamirShared:
    """A `protocol.SecureSumProtocol`.

    Raises:
      ValueError: words of 32 bits, whose sums the prime does not hold; or a lost server that there
        is not.
      PrivacyPreconditionError: all servers may collude, or none, so that one has the words.
    """

    terms: protocol.Terms
    """What all parties agree on."""
    num_servers: int = 3
    """Numbered from 0 on."""
    max_colluding_servers: int = 1
    """T, who together learn nothing but the sum."""
    lost_servers: frozenset[int] = frozenset()
    """Of whom no sum arrives."""
    entropy: signing.Entropy = os.urandom
    """Where secret bytes come from."""
    steps = STEPS
    upload_step = "shared"

    def __post_init__(self) -> None:
        _validate.positive_int(num_servers=self.num_servers)
        _validate.non_negative_int(max_colluding_servers=self.max_colluding_servers)
        if not 1 <= self.max_colluding_servers < self.num_servers:
            raise errors.PrivacyPreconditionError(
                f"Expected 1 <= max_colluding_servers < num_servers={self.num_servers}, got "
                f"max_colluding_servers={self.max_colluding_servers}."
            )
        if not self.lost_servers <= set(range(self.num_servers)):
            raise ValueError(
                f"Expected lost_servers below num_servers={self.num_servers}, got "
                f"lost_servers={sorted(self.lost_servers)}."
            )
        if self.terms.bits > 31:
            raise ValueError(
                f"Expected bits <= 31, sums being modulo 2**31 - 1, got bits={self.terms.bits}."
            )
        stream.cipher()  # an ImportError before the first round

    def client(self, number: int, words: np.ndarray, round_index: int) -> "Client":
        """A client, with its vector; its shares are drawn anew, so rounds need no number."""
        del number, round_index
        return Client(self, words)

    def server(self, round_index: int) -> "Servers":
        """All servers of a round."""
        del round_index
        return Servers(self)


class Client:
    """One client in one round."""

    def __init__(self, setting: ShamirShared, words: np.ndarray):
        self._integers = protocol.signed(setting.terms, words)
        self._setting, self._next = setting, 0

    def send(self, step: str, received: bytes) -> bytes:
        """A share for each server."""
        del received
        protocol.in_order(step, STEPS, self._next)
        self._next += 1
        setting, degree = self._setting, self._setting.max_colluding_servers
        drawn = stream.field_elements(setting.entropy(32), degree * setting.terms.size)
        random = drawn.reshape(degree, setting.terms.size)
        holders = range(setting.num_servers)
        shares = field.shares(self._integers % field.PRIME, random, holders)
        return protocol.pack(*map(field.packed, shares))


class Server:
    """One of the servers: it holds a share of each client, and tells their sum alone."""

    def __init__(self, terms: protocol.Terms):
        self._terms, self._held = terms, dict[int, np.ndarray]()

    def take(self, number: int, share: bytes) -> None:
        """A client's share. Raises MalformedShareError where it is none."""
        self._held[number] = field.unpacked(share, self._terms.size)

    @property
    def clients(self) -> set[int]:
        """Of whom there is a share."""
        return set(self._held)

    def total(self, clients: set[int]) -> np.ndarray:
        """Int64 `[size]`, modulo the prime."""
        total = np.zeros(self._terms.size, np.int64)
        for number in sorted(clients):
            total += self._held[number]
        self._held = {}  # never another sum of the same shares
        return total % field.PRIME


class Servers:
    """All servers of a round, in one process."""

    def __init__(self, setting: ShamirShared):
        self._setting, self._roll = setting, protocol.Roll(setting.terms, STEPS)
        self._servers = [Server(setting.terms) for _ in range(setting.num_servers)]
        self._total: np.ndarray | None = None

    def collect(self, step: str, messages: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """Adds up shares of the clients that reached all servers; sums of T + 1 of these give the
        sum.
        """
        setting, terms = self._setting, self._setting.terms
        self._roll.call(step, messages)
        for number, message in messages.items():
            shares = protocol.unpack(message, setting.num_servers)
            for server, share in zip(self._servers, shares, strict=True):
                server.take(number, share)
        agreed = set.intersection(*(server.clients for server in self._servers))
        protocol.enough(terms, step, agreed)
        there = [k for k in range(setting.num_servers) if k not in setting.lost_servers]
        needed = setting.max_colluding_servers + 1
        if len(there) < needed:
            raise errors.DropoutError(
                f"Expected sums of at least {needed} of {setting.num_servers} servers, got "
                f"{len(there)}: the sum is aborted and nothing is released."
            )
        sums = np.stack([self._servers[k].total(agreed) for k in there])
        used = [k + 1 for k in there[:needed]]
        if there[needed:]:
            rest = field.lagrange([k + 1 for k in there[needed:]], used)
            if not np.array_equal(field.matmul(rest, sums[:needed]), sums[needed:]):
                raise errors.MalformedShareError(
                    "Expected sums of shares of one polynomial, got some that do not fit."
                )
        total = field.combine(sums[:needed], there[:needed])
        total -= np.where(total > field.PRIME // 2, field.PRIME, 0)
        self._total = protocol.as_words(terms, total)
        return {}

    def total(self) -> np.ndarray:
        """Uint32 `[size]`. Raises SecureSumError before the step is done."""
        return protocol.done(self._total)


def simulated(
    terms: protocol.Terms,
    *,
    num_servers: int = 3,
    max_colluding_servers: int = 1,
    lost_servers: frozenset[int] = frozenset(),
    entropy: signing.Entropy = os.urandom,
) -> ShamirShared:
    """The protocol with all its parties in this process. Raises as `ShamirShared`."""
    return ShamirShared(
        terms=terms,
        num_servers=num_servers,
        max_colluding_servers=max_colluding_servers,
        lost_servers=lost_servers,
        entropy=entropy,
    )
