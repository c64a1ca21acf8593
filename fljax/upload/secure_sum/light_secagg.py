"""LightSecAgg: each client's one mask, coded into shares that add up.

A client masks its words with a random vector modulo the prime 2**31 - 1. It cuts that vector into
U - T pieces, takes T random pieces along, and gives every client the value of the polynomial
through all U of them at a point of its own: a Lagrange-coded share, as short as a piece. Once the
server says whose words arrived, clients add up the shares of those; U such sums give the sum of
the masks. SwiftAgg+ codes masks in the same way and differs in who sends to whom: there clients
pass partial sums on between groups.

Threat model: the server keeps to the protocol and only looks on, with at most C = `max_colluders`
clients. Keys of channels are signed under the roster, so that nobody else reads a share. A wrong
sum of shares is noticed where more than U answer, but not whose it is; where just U answer, the sum
that is released is wrong and nothing says so.

Security level: C shares of a mask are independent of it, whatever the computing power (T = C);
channels have 128 bits (X25519, ChaCha20-Poly1305). The mask is the stream of a 256-bit key.

Bounds: C + S < N. U = N - S answers are needed; with fewer clients in any step the round aborts.
Sums are those of integers within the prime's signed half: `protocol.signed` checks each client's,
so that no sum wraps around.

Source: So et al. (2022), "LightSecAgg: a Lightweight and Versatile Design for Secure Aggregation in
Federated Learning", arXiv:2109.14236; Jahani-Nezhad et al. (2022), "SwiftAgg+", arXiv:2203.13060.
"""

import dataclasses
import functools
import os
from collections.abc import Mapping

import numpy as np

from fljax import errors
from fljax.upload import key_agreement
from fljax.upload.secure_sum import channels, field, protocol, signing, stream

STEPS = ("keys", "shares", "masked", "unmask")
_LABEL = b"fljax light secagg 1 "


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class LightSecAgg:
    """A `protocol.SecureSumProtocol`.

    Raises:
      ValueError: words of 32 bits, whose sums the prime does not hold.
      SybilError: two clients have one signing key.
    """

    terms: protocol.Terms
    """What all parties agree on."""
    roster: Mapping[int, bytes]
    """Every client's Ed25519 public key, known to all beforehand."""
    identities: Mapping[int, signing.Identity]
    """Of the clients that this process runs."""
    entropy: signing.Entropy = os.urandom
    """Where secret bytes come from."""
    steps = STEPS
    upload_step = "masked"

    def __post_init__(self) -> None:
        if self.terms.bits > 31:
            raise ValueError(
                f"Expected bits <= 31, sums being modulo 2**31 - 1, got bits={self.terms.bits}."
            )
        signing.check_roster(self.roster, self.terms.num_clients)

    @property
    def num_pieces(self) -> int:
        """U - T, of a mask."""
        return self.terms.least - self.terms.max_colluders

    @property
    def piece(self) -> int:
        """Elements of a piece, and of a share."""
        return -(-self.terms.size // self.num_pieces)

    @functools.cached_property
    def session(self) -> bytes:
        """32 bytes that stand for terms and roster in all that is signed."""
        return signing.session("light_secagg", self.terms, sorted(self.roster.items()))

    @functools.cached_property
    def points(self) -> list[int]:
        """Of the U pieces; client i's is i + 1."""
        first = self.terms.num_clients + 1
        return list(range(first, first + self.terms.least))

    @functools.cached_property
    def code(self) -> np.ndarray:
        """Int64 `[N, U]`: shares from pieces."""
        return field.lagrange(range(1, self.terms.num_clients + 1), self.points)

    def client(self, number: int, words: np.ndarray, round_index: int) -> "Client":
        """A client of a round, with its vector. Raises ReplayError where it was in the round."""
        return Client(self, number, words, round_index)

    def server(self, round_index: int) -> "Server":
        """The server of a round."""
        return Server(self, round_index)

    def keys(self, number: int, round_index: int, message: bytes) -> bytes:
        """A client's key, once its signature is checked."""
        return channels.heard(_LABEL, self.session, round_index, number, self.roster, message, 1)[0]


def simulated(terms: protocol.Terms, *, entropy: signing.Entropy = os.urandom) -> LightSecAgg:
    """The protocol with all its clients in this process. Raises as `LightSecAgg`."""
    roster, identities = signing.enrolled(terms.num_clients, entropy)
    return LightSecAgg(terms=terms, roster=roster, identities=identities, entropy=entropy)


class Client:
    """One client in one round."""

    def __init__(self, setting: LightSecAgg, number: int, words: np.ndarray, round_index: int):
        self._integers = protocol.signed(setting.terms, words)
        self._identity = setting.identities[number]
        self._identity.begin(round_index)
        self._setting, self._number, self._round, self._next = setting, number, round_index, 0
        self._channel = key_agreement.KeyAgreement.from_private_key(number, setting.entropy(32))
        self._mask = stream.field_elements(setting.entropy(32), setting.terms.size)
        self._keys_sent = b""
        self._channels: dict[int, bytes] = {}
        self._held: dict[int, np.ndarray] = {}

    def send(self, step: str, received: bytes) -> bytes:
        """The message of a step."""
        protocol.in_order(step, STEPS, self._next)
        self._next += 1
        answer = {
            "keys": self._keys,
            "shares": self._shares,
            "masked": self._masked,
            "unmask": self._unmask,
        }[step]
        return answer(received)

    def _keys(self, received: bytes) -> bytes:
        del received
        setting, keys = self._setting, [self._channel.public_key]
        self._keys_sent = channels.announced(
            _LABEL, setting.session, self._round, self._identity, keys
        )
        return self._keys_sent

    def _shares(self, received: bytes) -> bytes:
        setting, peers = self._setting, []
        entries = channels.parts(received)
        protocol.enough(setting.terms, "keys", entries)
        if entries.pop(self._number, b"") != self._keys_sent:
            raise errors.SwappedKeyError(f"Expected client {self._number}'s own keys back.")
        for number, entry in entries.items():
            self._agree(number, setting.keys(number, self._round, entry))
            peers.append(number)
        secrets = self._channel.round_secrets(self._round, peers)
        self._channels = dict(zip(peers, secrets, strict=True))
        shares = self._coded()
        self._held[self._number] = shares[self._number]
        return channels.addressed(
            {
                i: channels.sealed(key, self._number, i, field.packed(shares[i]))
                for i, key in self._channels.items()
            }
        )

    def _agree(self, number: int, key: bytes) -> None:
        try:
            self._channel.agree(number, key)
        except ValueError as reason:
            raise errors.SybilError(str(reason)) from None

    def _coded(self) -> np.ndarray:
        """Int64 `[N, piece]`: a share of the mask for each client."""
        setting = self._setting
        pieces = np.zeros((setting.terms.least, setting.piece), np.int64)
        whole = pieces[: setting.num_pieces].reshape(-1)
        whole[: setting.terms.size] = self._mask
        blind = stream.field_elements(
            setting.entropy(32), setting.terms.max_colluders * setting.piece
        )
        pieces[setting.num_pieces :] = blind.reshape(-1, setting.piece)
        return field.matmul(setting.code, pieces)

    def _masked(self, received: bytes) -> bytes:
        for sender, part in channels.parts(received).items():
            if sender not in self._channels:
                raise errors.MalformedMessageError(
                    f"Expected shares of peers of client {self._number}, got one of {sender}."
                )
            share = channels.opened(self._channels[sender], sender, self._number, part)
            self._held[sender] = field.unpacked(share, self._setting.piece)
        protocol.enough(self._setting.terms, "shares", self._held)
        return field.packed((self._integers + self._mask) % field.PRIME)

    def _unmask(self, received: bytes) -> bytes:
        survivors = channels.numbers(received, self._setting.terms)
        protocol.enough(self._setting.terms, "masked", survivors)
        if self._number not in survivors or not set(survivors) <= set(self._held):
            raise errors.InconsistentSurvivorsError(
                f"Expected survivors of whom client {self._number} has shares, itself among them."
            )
        total = sum((self._held[i] for i in survivors), np.zeros(self._setting.piece, np.int64))
        self._held = {}  # never a second answer
        return field.packed(total % field.PRIME)


class Server:
    """The server of one round."""

    def __init__(self, setting: LightSecAgg, round_index: int):
        self._setting, self._round = setting, round_index
        self._roll = protocol.Roll(setting.terms, STEPS)
        self._sum = np.zeros(setting.terms.size, np.int64)
        self._total: np.ndarray | None = None

    def collect(self, step: str, messages: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """What each client that goes on gets."""
        self._roll.call(step, messages)
        answers = {
            "keys": self._keys,
            "shares": self._shares,
            "masked": self._masked,
            "unmask": self._unmask,
        }[step]
        return answers(messages)

    def total(self) -> np.ndarray:
        """Uint32 `[size]`. Raises SecureSumError before the last step is done."""
        return protocol.done(self._total)

    def _keys(self, messages: Mapping[int, bytes]) -> Mapping[int, bytes]:
        for number, message in messages.items():
            self._setting.keys(number, self._round, message)
        return dict.fromkeys(messages, channels.addressed(messages))

    def _shares(self, messages: Mapping[int, bytes]) -> Mapping[int, bytes]:
        return channels.passed_on(messages)

    def _masked(self, messages: Mapping[int, bytes]) -> Mapping[int, bytes]:
        for message in messages.values():
            self._sum += field.unpacked(message, self._setting.terms.size)
        return dict.fromkeys(messages, channels.listed(list(messages)))

    def _unmask(self, messages: Mapping[int, bytes]) -> Mapping[int, bytes]:
        setting, needed = self._setting, self._setting.terms.least
        holders = sorted(messages)
        sums = np.stack([field.unpacked(messages[i], setting.piece) for i in holders])
        used = [i + 1 for i in holders[:needed]]
        if holders[needed:]:
            rest = field.lagrange([i + 1 for i in holders[needed:]], used)
            if not np.array_equal(field.matmul(rest, sums[:needed]), sums[needed:]):
                raise errors.MalformedShareError(
                    "Expected sums of shares of one polynomial, got some that do not fit."
                )
        back = field.lagrange(setting.points[: setting.num_pieces], used)
        mask = field.matmul(back, sums[:needed]).reshape(-1)[: setting.terms.size]
        total = (self._sum - mask) % field.PRIME
        total -= np.where(total > field.PRIME // 2, field.PRIME, 0)
        self._total = protocol.as_words(setting.terms, total)
        return {}
