"""What every secure sum by a protocol has in common: its terms, its parties, its messages, and a
loop that runs them all in one process.

A protocol is a sequence of named steps. In each step every client that is still there gets what
the server sent it and answers; the server collects the answers and makes the next messages. All
messages are bytes, so that parties may as well sit in different places. A client that drops out
sends nothing from some step on.
"""

import dataclasses
import struct
import time
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from fljax import _validate, errors


@dataclasses.dataclass(frozen=True, kw_only=True)
class Terms:
    """Public numbers that all parties agree on.

    Raises:
      ValueError: a number is out of its range, or nobody honest may be left: max_colluders +
        max_dropouts >= num_clients.
    """

    num_clients: int
    """Clients are numbered from 0 on."""
    size: int
    """Words of a client's vector."""
    bits: int
    """Words are integers modulo 2**bits, in [1, 32]."""
    max_dropouts: int = 0
    """Clients that may be missing; with more the sum is aborted."""
    max_colluders: int = 0
    """Clients that may pool what they know, with the server too where the protocol says so."""

    def __post_init__(self) -> None:
        _validate.positive_int(num_clients=self.num_clients, size=self.size, bits=self.bits)
        _validate.one_of(range(1, 33), bits=self.bits)
        _validate.non_negative_int(max_dropouts=self.max_dropouts, max_colluders=self.max_colluders)
        if self.max_colluders + self.max_dropouts >= self.num_clients:
            raise errors.PrivacyPreconditionError(
                f"Expected max_colluders + max_dropouts < num_clients={self.num_clients}, got "
                f"max_colluders={self.max_colluders} and max_dropouts={self.max_dropouts}: nobody "
                "honest may be left."
            )

    @property
    def least(self) -> int:
        """Fewest clients whose sum is released."""
        return self.num_clients - self.max_dropouts

    @property
    def most(self) -> int:
        """Largest integer of a client with which no sum of all of them leaves the ring's signed
        half. Protocols that do not compute modulo 2**bits need it of every client.
        """
        return (2 ** (self.bits - 1) - 1) // self.num_clients


class Client(Protocol):
    """One client in one round: `send(step, received) -> message`."""

    def send(self, step: str, received: bytes) -> bytes:
        """The message of a step, from what the server sent after the step before."""


class Server(Protocol):
    """The server, or the servers, in one round."""

    def collect(self, step: str, messages: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """What each client that goes on gets, from the messages of a step."""

    def total(self) -> np.ndarray:
        """Uint32 `[size]`, the sum modulo 2**bits. Raises SecureSumError before the last step."""


class SecureSumProtocol(Protocol):
    """A secure sum: its steps in order, and its parties.

    client: (number, words uint32 `[size]`, round_index) -> Client. Raises ReplayError where the
      client has been in this round before.
    """

    @property
    def terms(self) -> Terms:
        """What all parties agree on."""

    @property
    def steps(self) -> tuple[str, ...]:
        """In order."""

    @property
    def upload_step(self) -> str:
        """The step that sends the words: who is gone by then is not in the sum."""

    def client(self, number: int, words: np.ndarray, round_index: int) -> Client:
        """A client of a round, with its vector."""

    def server(self, round_index: int) -> Server:
        """The server of a round."""


class StepCost(NamedTuple):
    """Of one step, all clients together. Seconds of this process; bytes that clients send (up) and
    get (down).
    """

    step: str
    clients: int
    client_seconds: float
    server_seconds: float
    bytes_up: int
    bytes_down: int


class Outcome(NamedTuple):
    """total: uint32 `[size]`. costs: one for each step."""

    total: np.ndarray
    costs: tuple[StepCost, ...]


def run(
    protocol: SecureSumProtocol,
    words: Mapping[int, np.ndarray] | Sequence[np.ndarray] | np.ndarray,
    *,
    round_index: int = 0,
    dropouts: Mapping[int, str] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Outcome:
    """One round of a protocol, all parties in this process.

    Args:
      words: uint32 `[size]` of each client by number; one that is missing never starts.
      round_index: of the run; no client takes part in one twice.
      dropouts: client -> the first step in which it sends nothing.
      clock: seconds for the costs; `time.process_time` counts what is computed, whoever else
        computes on the machine.

    Raises:
      ValueError: words of a client that there is not.
      SecureSumError: the sum was aborted; the kind of error says why. Nothing is released.
    """
    given = dict(words) if isinstance(words, Mapping) else dict(enumerate(words))
    if strangers := sorted(set(given) - set(range(protocol.terms.num_clients))):
        raise ValueError(
            f"Expected words of clients 0 to {protocol.terms.num_clients - 1}, got those of "
            f"{strangers}."
        )
    gone = dict(dropouts or {})
    for step in gone.values():
        _validate.one_of(protocol.steps, step=step)
    clients: dict[int, Client] = {}
    inbox: Mapping[int, bytes] = dict.fromkeys(given, b"")
    server = protocol.server(round_index)
    costs = []
    for step in protocol.steps:
        start = clock()
        outbox = {}
        for number, received in inbox.items():
            if gone.get(number) == step:
                continue
            if number not in clients:
                clients[number] = protocol.client(number, given[number], round_index)
            outbox[number] = clients[number].send(step, received)
        between = clock()
        down = sum(map(len, inbox.values()))
        inbox = server.collect(step, outbox)
        end = clock()
        up = sum(map(len, outbox.values()))
        costs.append(StepCost(step, len(outbox), between - start, end - between, up, down))
    return Outcome(server.total(), tuple(costs))


def check_words(terms: Terms, words: np.ndarray) -> np.ndarray:
    """A client's words as uint32 `[size]`.

    Raises:
      ValueError: they are of another shape or kind, or not below 2**bits.
    """
    words = np.asarray(words)
    if words.dtype != np.uint32 or words.shape != (terms.size,):
        raise ValueError(
            f"Expected words to be uint32 of shape ({terms.size},), got {words.dtype} of shape "
            f"{words.shape}."
        )
    if terms.bits < 32 and words.size and int(words.max()) >> terms.bits:
        raise ValueError(f"Expected words below 2**{terms.bits}, got {int(words.max())}.")
    return words


def signed(terms: Terms, words: np.ndarray) -> np.ndarray:
    """The int64 integers that a client's words stand for, for sums that are not modulo 2**bits.

    Guarantee: the sum of all clients' stays within the signed half of the ring, so that it tells no
    more than the words' sum modulo 2**bits does.

    Raises:
      ValueError: one is larger than `terms.most`: the sum might wrap around.
    """
    unused = np.uint32(32 - terms.bits)
    found = (check_words(terms, words) << unused).view(np.int32).astype(np.int64) >> int(unused)
    if found.size and int(np.abs(found).max()) > terms.most:
        raise ValueError(
            f"Expected integers of at most {terms.most}, so that no sum of {terms.num_clients} "
            f"clients wraps around in {terms.bits} bits, got {int(np.abs(found).max())}: this "
            "protocol does not sum modulo 2**bits."
        )
    return found


def as_words(terms: Terms, integers: np.ndarray) -> np.ndarray:
    """Uint32 words modulo 2**bits of int64 integers."""
    return (integers & (2**terms.bits - 1)).astype(np.uint32)


def packed_words(terms: Terms, words: np.ndarray) -> bytes:
    """Words in as many whole bytes each as their bits need."""
    width = -(-terms.bits // 8)
    return words.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :width].tobytes()


def unpacked_words(terms: Terms, data: bytes) -> np.ndarray:
    """Uint32 `[size]`. Raises MalformedMessageError where the message has another length, or words
    have too many bits.
    """
    width = -(-terms.bits // 8)
    if len(data) != width * terms.size:
        raise errors.MalformedMessageError(
            f"Expected a vector of {width * terms.size} bytes, got {len(data)}."
        )
    wide = np.zeros((terms.size, 4), np.uint8)
    wide[:, :width] = np.frombuffer(data, np.uint8).reshape(-1, width)
    words = wide.view("<u4")[:, 0]
    if terms.bits < 32 and words.size and int(words.max()) >> terms.bits:
        raise errors.MalformedMessageError(f"Expected words below 2**{terms.bits}, got larger.")
    return words


def pack(*parts: bytes) -> bytes:
    """Parts one after the other, each behind its length."""
    return b"".join(struct.pack(">I", len(part)) + part for part in parts)


def unpack(data: bytes, count: int | None = None) -> list[bytes]:
    """The parts that `pack` joined.

    Raises:
      MalformedMessageError: the message is cut short, or has not `count` parts.
    """
    parts, at = [], 0
    while at < len(data):
        head = data[at : at + 4]
        length = int.from_bytes(head, "big")
        part = data[at + 4 : at + 4 + length]
        if len(head) < 4 or len(part) < length:
            raise errors.MalformedMessageError("Expected a whole message, got one cut short.")
        parts.append(part)
        at += 4 + length
    if count is not None and len(parts) != count:
        raise errors.MalformedMessageError(
            f"Expected a message of {count} parts, got one of {len(parts)}."
        )
    return parts


def number_bytes(number: int) -> bytes:
    """A client's number, or that of a round, in 8 bytes. Raises ValueError where it needs more."""
    if not 0 <= number < 2**64:
        raise ValueError(f"Expected a number of a client or round below 2**64, got {number}.")
    return int(number).to_bytes(8, "big")


def in_order(step: str, steps: Sequence[str], next_step: int) -> None:
    """Raises ReplayError unless `step` is the next one."""
    if next_step >= len(steps) or step != steps[next_step]:
        expected = steps[next_step] if next_step < len(steps) else "none"
        raise errors.ReplayError(
            f"Expected step {expected!r} next, got {step!r}: no step is taken twice."
        )


class Roll:
    """A server's place in a round: which step is next, and who may send in it.

    Args:
      terms: of the sum. steps: of the protocol, in order.
    """

    def __init__(self, terms: Terms, steps: Sequence[str]):
        self._terms, self._steps, self._next = terms, steps, 0
        self._there: Container[int] = range(terms.num_clients)

    def call(self, step: str, messages: Mapping[int, bytes], *, fewest: int | None = None) -> None:
        """Begins a step with the messages that arrived in it.

        Args:
          fewest: messages with which the round goes on; None: as many as the terms ask for.

        Raises:
          ReplayError: another step is next.
          MalformedMessageError: a message is of nobody in the roster, of a client that was gone in
            the step before, or no bytes.
          DropoutError: too few are there.
        """
        in_order(step, self._steps, self._next)
        self._next += 1
        for number, message in messages.items():
            if number not in self._there or not isinstance(message, bytes):
                raise errors.MalformedMessageError(
                    f"Expected bytes of clients that are there in step {step!r}, got "
                    f"{type(message).__name__} of client {number!r}."
                )
        if fewest is None:
            enough(self._terms, step, messages)
        elif len(messages) < fewest:
            raise errors.DropoutError(
                f"Expected at least {fewest} clients after step {step!r}, got {len(messages)}: the "
                "sum is aborted and nothing is released."
            )
        self._there = set(messages)


def done(total: np.ndarray | None) -> np.ndarray:
    """The total of a round that is done. Raises SecureSumError for None."""
    if total is None:
        raise errors.SecureSumError("Expected a round that is done, got one that is not.")
    return total


def enough(terms: Terms, step: str, have: Any) -> None:
    """Raises DropoutError where fewer clients than the terms ask for are there after a step."""
    if len(have) < terms.least:
        raise errors.DropoutError(
            f"Expected at least {terms.least} of {terms.num_clients} clients after step {step!r}, "
            f"got {len(have)}: the sum is aborted and nothing is released."
        )
