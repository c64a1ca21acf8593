"""SecAgg: masks of pairs that cancel, masks of each client's own, and Shamir shares that undo the
masks of who drops out.

Clients i and j agree on a key (X25519, HKDF-SHA256) and add a ChaCha20 stream of it to their words,
one of them with the opposite sign. Each client adds a stream of a seed of its own. It splits that
seed, and its private X25519 key, among the clients that hold its shares. Once it is settled whose
words arrived, holders tell the seeds of those and the keys of the others, never both of one.

Threat model: the server and at most `max_colluders` clients pool all they see; the server may
deviate (send wrong keys, split lists of survivors); client signatures under the roster of Ed25519
keys show it. Channels need no secrecy. The sum is of what clients chose to send: nobody checks that
a client's words are sensible, and parties that deviate may make a round abort. Masked words are not
signed, so they need a channel that nobody changes (TLS). A server that changes them, or keeps
shares from some clients, spoils the sum that it gets, unnoticed, and learns no more.

Security level: 128 bits (X25519, Ed25519, ChaCha20 and ChaCha20-Poly1305 under 256-bit keys,
SHA-256). Shares are information-theoretic, over the field of 2**31 - 1.

Bounds: N clients, C colluders, S dropouts. Shares of T = N - S holders give a secret back. A round
with fewer than N - S clients in any step aborts. Against a server that deviates, 2 T > N + C is
needed, that is C + 2 S < N: else it could ask one half of the honest clients for seeds and the
other for keys.

Source: Bonawitz et al. (2017), "Practical Secure Aggregation for Privacy-Preserving Machine
Learning", figure 4, with commitments to the seeds besides.
"""

import dataclasses
import functools
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from fljax import _validate, errors
from fljax.upload import key_agreement
from fljax.upload.secure_sum import channels, field, protocol, signing, stream

STEPS = ("keys", "shares", "masked", "survivors", "unmask")
_LABEL = b"fljax secagg 1 "
_SECRETS = 32  # elements of 16 bits in a private key and a seed
_HALF = _SECRETS // 2
ServerKind = Literal["active", "semi_honest"]


class Graph(NamedTuple):
    """Who shares masks with whom. neighbours: number -> sorted numbers. threshold: shares that give
    a secret back; its holders are a client's neighbours and itself.
    """

    neighbours: tuple[tuple[int, ...], ...]
    threshold: int

    def holders(self, number: int) -> list[int]:
        """Who holds shares of a client."""
        return sorted((*self.neighbours[number], number))


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class SecAgg:
    """A `protocol.SecureSumProtocol`.

    Raises:
      PrivacyPreconditionError: more colluders and dropouts than the server's kind allows.
      SybilError: two clients have one signing key.
    """

    terms: protocol.Terms
    """What all parties agree on."""
    roster: Mapping[int, bytes]
    """Every client's Ed25519 public key, known to all beforehand."""
    identities: Mapping[int, signing.Identity]
    """Of the clients that this process runs."""
    server_kind: ServerKind = "active"
    """"active": it may deviate. "semi_honest": it keeps to the protocol and only looks on."""
    graph_of: Callable[[bytes], Graph] | None = None
    """Graph of a round from the server's seed of 32 bytes; None: all pairs of clients."""
    entropy: signing.Entropy = os.urandom
    """Where secret bytes come from."""
    steps = STEPS
    upload_step = "masked"

    def __post_init__(self) -> None:
        terms = self.terms
        _validate.one_of(("active", "semi_honest"), server_kind=self.server_kind)
        signing.check_roster(self.roster, terms.num_clients)
        if terms.num_clients < 2:
            raise ValueError(f"Expected num_clients >= 2, got num_clients={terms.num_clients}.")
        if self.server_kind == "active":
            if self.graph_of is not None:
                raise errors.PrivacyPreconditionError(
                    "Expected server_kind='semi_honest' with a graph that the server draws, got "
                    "server_kind='active'."
                )
            if not terms.max_colluders + 2 * terms.max_dropouts < terms.num_clients:
                raise errors.PrivacyPreconditionError(
                    "Expected max_colluders + 2 max_dropouts < num_clients="
                    f"{terms.num_clients} against a server that deviates, got "
                    f"max_colluders={terms.max_colluders} and max_dropouts={terms.max_dropouts}."
                )

    def client(self, number: int, words: np.ndarray, round_index: int) -> "Client":
        """A client of a round, with its vector. Raises ReplayError where it was in the round."""
        return Client(self, number, words, round_index)

    def resumed(self, state: bytes) -> "Client":
        """The client of a round that wrote `Client.state`; its next step goes on from there.

        Raises:
          MalformedMessageError: the bytes were not written by it.
        """
        try:
            return Client._resumed(self, state)
        except (ValueError, KeyError) as reason:
            raise errors.MalformedMessageError(
                f"Expected the state of a client between two steps, got other bytes: {reason}"
            ) from None

    def server(self, round_index: int) -> "Server":
        """The server of a round."""
        return Server(self, round_index)

    def graph(self, seed: bytes) -> Graph:
        """Of a round."""
        if self.graph_of is not None:
            return self.graph_of(seed)
        return _complete(self.terms)

    @functools.cached_property
    def session(self) -> bytes:
        """32 bytes that stand for terms and roster in all that is signed."""
        roster = sorted(self.roster.items())
        return signing.session("secagg", self.terms, self.server_kind, roster)


@functools.cache
def _complete(terms: protocol.Terms) -> Graph:
    everybody = range(terms.num_clients)
    neighbours = tuple(tuple(j for j in everybody if j != i) for i in everybody)
    return Graph(neighbours, terms.least)


def simulated(
    terms: protocol.Terms,
    *,
    server_kind: ServerKind = "active",
    graph_of: Callable[[bytes], Graph] | None = None,
    entropy: signing.Entropy = os.urandom,
) -> SecAgg:
    """The protocol with all its clients in this process. Raises as `SecAgg`."""
    roster, identities = signing.enrolled(terms.num_clients, entropy)
    return SecAgg(
        terms=terms,
        roster=roster,
        identities=identities,
        server_kind=server_kind,
        graph_of=graph_of,
        entropy=entropy,
    )


class _Keys(NamedTuple):
    """What a client publishes."""

    mask_key: bytes
    channel_key: bytes
    commitment: bytes


def _commitment(number: int, seed: bytes) -> bytes:
    return hashlib.sha256(_LABEL + b"seed" + protocol.number_bytes(number) + seed).digest()


def _self_mask_key(seed: bytes) -> bytes:
    return key_agreement.derive(seed, _LABEL + b"self mask")


def _read_keys(setting: SecAgg, number: int, round_index: int, message: bytes) -> _Keys:
    """What a client published, once its signature is checked."""
    keys = channels.heard(
        _LABEL, setting.session, round_index, number, setting.roster, message, len(_Keys._fields)
    )
    return _Keys(*keys)


def _survivors_message(setting: SecAgg, round_index: int, survivors: bytes) -> bytes:
    at = protocol.number_bytes(round_index)
    return _LABEL + b"survivors" + protocol.pack(setting.session, at, survivors)


class Client:
    """One client in one round."""

    def __init__(self, setting: SecAgg, number: int, words: np.ndarray, round_index: int):
        words = protocol.check_words(setting.terms, words)
        setting.identities[number].begin(round_index)
        secrets = [setting.entropy(32) for _ in range(3)]
        self._begin(setting, number, words, round_index, *secrets)

    def _begin(
        self,
        setting: SecAgg,
        number: int,
        words: np.ndarray,
        round_index: int,
        mask_key: bytes,
        channel_key: bytes,
        seed: bytes,
    ) -> None:
        self._setting, self._number, self._round = setting, number, round_index
        self._words, self._identity = words, setting.identities[number]
        of_key = key_agreement.KeyAgreement.from_private_key
        self._masks, self._channel = of_key(number, mask_key), of_key(number, channel_key)
        self._seed, self._next = seed, 0
        self._peers: dict[int, _Keys] = {}
        self._channels: dict[int, bytes] = {}
        self._held: dict[int, np.ndarray] = {}
        self._told = self._keys_sent = self._graph_seed = b""

    def state(self) -> bytes:
        """All that the client knows between two steps, for a process that ends and another that
        goes on by `SecAgg.resumed`. Secret: nobody but the client may have it, and it must be used
        once.
        """
        masked = self._next > STEPS.index("masked")  # the words are sent, and not needed again
        shares = {i: field.packed(share) for i, share in self._held.items()}
        return protocol.pack(
            *map(protocol.number_bytes, (self._number, self._round, self._next)),
            self._masks.private_key,
            self._channel.private_key,
            self._seed,
            b"" if masked else self._words.astype("<u4").tobytes(),
            self._told,
            self._keys_sent,
            self._graph_seed,
            channels.addressed({i: protocol.pack(*keys) for i, keys in self._peers.items()}),
            channels.addressed(self._channels),
            channels.addressed(shares),
        )

    @classmethod
    def _resumed(cls, setting: SecAgg, state: bytes) -> "Client":
        *numbers, mask_key, channel_key, seed, words, told, sent, graph, peers, keys, shares = (
            protocol.unpack(state, 13)
        )
        number, round_index, step = (int.from_bytes(part) for part in numbers)
        client = cls.__new__(cls)
        known = np.frombuffer(words, "<u4").astype(np.uint32)
        client._begin(setting, number, known, round_index, mask_key, channel_key, seed)
        client._next, client._told, client._keys_sent = step, told, sent
        client._graph_seed, client._channels = graph, channels.parts(keys)
        for peer, part in channels.parts(peers).items():
            client._peers[peer] = _Keys(*protocol.unpack(part, len(_Keys._fields)))
            client._masks.agree(peer, client._peers[peer].mask_key)
        for holder, part in channels.parts(shares).items():
            client._held[holder] = field.unpacked(part, _SECRETS)
        return client

    @functools.cached_property
    def _graph(self) -> Graph:
        """Of the seed that the server told, in the second step."""
        return self._setting.graph(self._graph_seed)

    def send(self, step: str, received: bytes) -> bytes:
        """The message of a step."""
        protocol.in_order(step, STEPS, self._next)
        self._next += 1
        answer = {
            "keys": self._keys,
            "shares": self._shares,
            "masked": self._masked,
            "survivors": self._survivors,
            "unmask": self._unmask,
        }[step]
        return answer(received)

    def _keys(self, received: bytes) -> bytes:
        del received
        setting = self._setting
        keys = [
            self._masks.public_key,
            self._channel.public_key,
            _commitment(self._number, self._seed),
        ]
        self._keys_sent = channels.announced(
            _LABEL, setting.session, self._round, self._identity, keys
        )
        return self._keys_sent

    def _holders(self) -> list[int]:
        """Clients that hold shares of this one, itself included, as far as they are there."""
        return sorted((*self._peers, self._number))

    def _shares(self, received: bytes) -> bytes:
        parts = protocol.unpack(received)
        if len(parts) < 2 or len(parts[0]) != 32:
            raise errors.MalformedMessageError(
                "Expected the seed of a graph, a list of clients and their keys, got another."
            )
        self._graph_seed, everybody, *entries = parts
        there = set(channels.numbers(everybody, self._setting.terms))
        mine = [i for i in self._graph.holders(self._number) if i in there]
        if self._number not in mine or len(entries) != len(mine):
            raise errors.MalformedMessageError(
                f"Expected the keys of the {len(mine)} holders of client {self._number}'s shares, "
                f"got {len(entries)}."
            )
        for number, entry in zip(mine, entries, strict=True):
            if number == self._number:
                if entry != self._keys_sent:
                    raise errors.SwappedKeyError(
                        f"Expected client {number}'s own keys back, got others."
                    )
                continue
            keys = _read_keys(self._setting, number, self._round, entry)
            try:
                self._masks.agree(number, keys.mask_key)
                self._channel.agree(number, keys.channel_key)
            except ValueError as reason:
                raise errors.SybilError(str(reason)) from None
            self._peers[number] = keys
        self._enough(self._holders(), "keys")
        return self._shared_out()

    def _shared_out(self) -> bytes:
        """Encrypted shares of this client's seed and key, one for each peer."""
        secret = np.concatenate(
            [field.of_bytes(self._masks.private_key), field.of_bytes(self._seed)]
        )
        random = stream.field_elements(
            self._setting.entropy(32), (self._graph.threshold - 1) * _SECRETS
        ).reshape(-1, _SECRETS)
        holders = self._holders()
        for number, share in zip(holders, field.shares(secret, random, holders), strict=True):
            self._held[number] = share  # of this client's secret, until it is sent
        peers = list(self._peers)
        secrets = self._channel.round_secrets(self._round, peers)
        self._channels = dict(zip(peers, secrets, strict=True))
        return channels.addressed(
            {
                i: channels.sealed(key, self._number, i, field.packed(self._held.pop(i)))
                for i, key in self._channels.items()
            }
        )

    def _masked(self, received: bytes) -> bytes:
        for sender, part in channels.parts(received).items():
            if sender not in self._channels:
                raise errors.MalformedMessageError(
                    f"Expected shares of peers of client {self._number}, got one of {sender}."
                )
            share = channels.opened(self._channels[sender], sender, self._number, part)
            self._held[sender] = field.unpacked(share, _SECRETS)
        self._enough(self._held, "shares")
        peers = sorted(set(self._held) - {self._number})
        total = self._words.copy()
        stream.add(total, _self_mask_key(self._seed), 1)
        for peer, key in zip(peers, self._masks.round_secrets(self._round, peers), strict=True):
            stream.add(total, key, 1 if self._number < peer else -1)
        return protocol.packed_words(self._setting.terms, _reduced(self._setting.terms, total))

    def _enough(self, have: Mapping[int, object] | Sequence[int], step: str) -> None:
        """Raises DropoutError where too few holders are there to give the secrets back."""
        if len(have) < self._graph.threshold:
            raise errors.DropoutError(
                f"Expected at least {self._graph.threshold} holders of client {self._number}'s "
                f"shares after step {step!r}, got {len(have)}: the sum is aborted."
            )

    def _survivors(self, received: bytes) -> bytes:
        survivors = channels.numbers(received, self._setting.terms)
        protocol.enough(self._setting.terms, "masked", survivors)
        if self._number not in survivors:
            raise errors.InconsistentSurvivorsError(
                f"Expected client {self._number}, which sent its words, among the survivors."
            )
        self._told = received
        return self._identity.sign(_survivors_message(self._setting, self._round, received))

    def _unmask(self, received: bytes) -> bytes:
        message = _survivors_message(self._setting, self._round, self._told)
        signers = {self._number}
        for signer, signature in channels.parts(received).items():
            if signer not in self._held:
                continue
            try:
                signing.check(self._setting.roster, signer, message, signature)
            except errors.SignatureError as reason:
                raise errors.InconsistentSurvivorsError(
                    f"Expected client {signer} to sign the survivors that client {self._number} "
                    f"was told of: {reason}"
                ) from None
            signers.add(signer)
        self._enough(sorted(signers), "survivors")
        survivors = set(channels.numbers(self._told, self._setting.terms))
        told = {
            i: field.packed(share[_HALF:] if i in survivors else share[:_HALF])
            for i, share in self._held.items()
        }
        self._held = {}  # never a second answer
        return channels.addressed(told)


def _reduced(terms: protocol.Terms, words: np.ndarray) -> np.ndarray:
    return words & np.uint32(2**terms.bits - 1)


class Server:
    """The server of one round: it passes messages on, adds words up, and undoes the masks."""

    def __init__(self, setting: SecAgg, round_index: int):
        self._setting, self._round = setting, round_index
        self._terms = setting.terms
        self._graph_seed = setting.entropy(32)
        self._graph = setting.graph(self._graph_seed)
        self._roll = protocol.Roll(setting.terms, STEPS)
        self._keys_of: dict[int, _Keys] = {}
        self._sharing: set[int] = set()
        self._summed: list[int] = []
        self._sum = np.zeros(self._terms.size, np.uint32)
        self._total: np.ndarray | None = None

    def collect(self, step: str, messages: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """What each client that goes on gets."""
        self._roll.call(step, messages)
        answers = {
            "keys": self._keys,
            "shares": self._shares,
            "masked": self._masked,
            "survivors": self._survivors,
            "unmask": self._unmask,
        }[step]
        return answers(messages)

    def total(self) -> np.ndarray:
        """Uint32 `[size]`. Raises SecureSumError before the last step is done."""
        return protocol.done(self._total)

    @property
    def summed(self) -> tuple[int, ...]:
        """Whose words are in the sum."""
        return tuple(self._summed)

    def _holders(self, number: int, among: Mapping[int, object] | set[int]) -> list[int]:
        return [i for i in self._graph.holders(number) if i in among]

    def _keys(self, messages: Mapping[int, bytes]) -> Mapping[int, bytes]:
        for number, message in messages.items():
            self._keys_of[number] = _read_keys(self._setting, number, self._round, message)
        everybody = channels.listed(list(messages))
        return {
            number: protocol.pack(
                self._graph_seed,
                everybody,
                *(messages[i] for i in self._holders(number, messages)),
            )
            for number in messages
        }

    def _shares(self, messages: Mapping[int, bytes]) -> Mapping[int, bytes]:
        for number, message in messages.items():
            # A peer without a share would leave out a mask that this client adds.
            peers = set(self._holders(number, self._keys_of)) - {number}
            if set(channels.parts(message)) != peers:
                raise errors.MalformedShareError(
                    f"Expected a share of client {number} for each of its {len(peers)} peers, got "
                    "others."
                )
        self._sharing = set(messages)
        return channels.passed_on(messages)

    def _masked(self, messages: Mapping[int, bytes]) -> Mapping[int, bytes]:
        for message in messages.values():
            self._sum += protocol.unpacked_words(self._terms, message)
        self._summed = sorted(messages)
        return dict.fromkeys(messages, channels.listed(self._summed))

    def _survivors(self, messages: Mapping[int, bytes]) -> Mapping[int, bytes]:
        return {
            number: channels.addressed({i: messages[i] for i in self._holders(number, messages)})
            for number in messages
        }

    def _unmask(self, messages: Mapping[int, bytes]) -> Mapping[int, bytes]:
        shares: dict[int, dict[int, np.ndarray]] = {number: {} for number in self._sharing}
        for holder, message in messages.items():
            for number, part in channels.parts(message).items():
                if number not in shares or holder not in self._graph.holders(number):
                    raise errors.MalformedShareError(
                        f"Expected shares that client {holder} holds, got one of {number}."
                    )
                shares[number][holder] = field.unpacked(part, _HALF)
        total = self._sum
        for number, given in sorted(shares.items()):
            secret = self._combined(number, given)
            if number in self._summed:
                if _commitment(number, secret) != self._keys_of[number].commitment:
                    raise errors.MalformedShareError(
                        f"Expected shares of client {number}'s seed, got some of another."
                    )
                stream.add(total, _self_mask_key(secret), -1)
            else:
                self._unpair(total, number, secret)
        self._total = _reduced(self._terms, total)
        return {}

    def _combined(self, number: int, given: Mapping[int, np.ndarray]) -> bytes:
        holders = sorted(given)[: self._graph.threshold]
        if len(holders) < self._graph.threshold:
            raise errors.DropoutError(
                f"Expected {self._graph.threshold} shares of client {number}'s secret, got "
                f"{len(holders)}: the sum is aborted and nothing is released."
            )
        weights = _weights(tuple(holders))
        elements = field.matmul(weights, np.stack([given[holder] for holder in holders]))[0]
        return field.to_bytes(elements)

    def _unpair(self, total: np.ndarray, number: int, private_key: bytes) -> None:
        """Takes out of the sum what survivors added for a client that is gone."""
        masks = key_agreement.KeyAgreement.from_private_key(number, private_key)
        if masks.public_key != self._keys_of[number].mask_key:
            raise errors.MalformedShareError(
                f"Expected shares of client {number}'s key, got some of another."
            )
        survivors = set(self._summed)
        peers = [i for i in self._graph.neighbours[number] if i in survivors]
        try:
            for peer in peers:
                masks.agree(peer, self._keys_of[peer].mask_key)
        except ValueError as reason:
            raise errors.SybilError(str(reason)) from None
        for peer, key in zip(peers, masks.round_secrets(self._round, peers), strict=True):
            stream.add(total, key, -1 if peer < number else 1)


@functools.lru_cache(maxsize=512)
def _weights(holders: tuple[int, ...]) -> np.ndarray:
    return field.lagrange([0], [holder + 1 for holder in holders])
