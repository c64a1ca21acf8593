"""What a round costs of each way to hide an upload: measured seconds of its protocol, bytes, and
whether it gets through links that fail.

Parties run one after the other in one process, and are taken to work side by side: a round takes
one client's share of every step and the server's. Of a large network one client alone does all of
its work, and the server gets its messages for those of all others; what is as long as the network
is never made for anybody else. Paillier stands for the paper's homomorphic encryption, whose
numbers are one a ciphertext; here many share one, and a large network still takes hours.
"""

import dataclasses
import functools
import os
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax.papers.lightdp import dordis
from fljax.papers.lightdp.training import LINK_FAILURE, NUM_CLIENTS
from fljax.server import stragglers
from fljax.upload import key_agreement, pair_noise, secure_sum
from fljax.upload.secure_sum import channels, field, light_secagg, protocol, stream

RESNET_18, MIDDLE = 11_173_962, 5_000
SIZES = ("this network", f"{MIDDLE:,} numbers", "ResNet-18")
BANDWIDTH = 12.5e6  # bytes a second of each client
BITS, MOST = 24, 10
SPREAD = 1000.0  # of Dordis' noise, in units of a word
LARGE = 100_000  # numbers from which on one client stands for all
PROTOCOLS = {
    "HE + DP": "paillier",
    "SecAgg + DP": "secagg",
    "SwiftAgg+ + DP": "light_secagg",
    "Dordis": "secagg",  # and noise in parts
}
# The links that a client needs for its upload to count, where a round needs a threshold of them.
LINKS = {
    "HE + DP": "server",
    "SecAgg + DP": "peers",
    "SwiftAgg+ + DP": "peers",
    "Dordis": "peers",
}


class Cost(NamedTuple):
    """Of a round: seconds of one client and of the server, bytes of one client."""

    client_seconds: float
    server_seconds: float
    bytes_up: float
    bytes_down: float

    @property
    def seconds(self) -> float:
        """Until the round is done; the model's way down is not counted, the same for all."""
        moved = (self.bytes_up + self.bytes_down) / BANDWIDTH
        return self.client_seconds + self.server_seconds + moved


def shared_noise(num_clients: int, size: int) -> tuple[float, float, float]:
    """(Seconds of one client's keys with all others, once; of its noise; of the server's sum) of
    LightDP-FL.
    """
    others = [key_agreement.KeyAgreement(i) for i in range(1, num_clients)]
    peers = list(range(1, num_clients))
    start = time.process_time()
    mine = key_agreement.KeyAgreement(0)
    for other in others:
        mine.agree(other.client, other.public_key)
    agreed = time.process_time() - start
    zeros = jnp.zeros(size, jnp.float32)

    def noise(round_index: int) -> float:
        start = time.process_time()
        keys = mine.round_keys(round_index, peers)
        drawn = pair_noise.client_noise(
            keys, mine.own_key(round_index), 0, peers, zeros, own_stddev=0.5, pair_stddev=1.0
        )
        jax.block_until_ready(drawn)
        return time.process_time() - start

    noise(0)  # compiles
    return agreed, noise(1), _summed(num_clients, size)


def _summed(num_clients: int, size: int) -> float:
    """Seconds of the server's sum of plain uploads."""
    upload, total = np.ones(size, np.float32), np.zeros(size, np.float32)
    start = time.process_time()
    for _ in range(num_clients):
        total += upload
    return time.process_time() - start


def _own_noise(size: int) -> float:
    draw = jax.jit(lambda key: jax.random.normal(key, (size,)))
    draw(jax.random.key(0)).block_until_ready()
    start = time.process_time()
    draw(jax.random.key(1)).block_until_ready()
    return time.process_time() - start


def _terms(size: int) -> protocol.Terms:
    return protocol.Terms(
        num_clients=NUM_CLIENTS, size=size, bits=BITS, max_dropouts=MOST, max_colluders=MOST
    )


def _protocol(name: str, size: int, options: dict[str, Any]) -> Cost:
    """One round of a protocol in which all answer. Raises AssertionError for another sum than the
    plain one.
    """
    terms = _terms(size)
    rng = np.random.default_rng(0)
    integers = rng.integers(-terms.most, terms.most + 1, (NUM_CLIENTS, size), np.int32)
    words = protocol.as_words(terms, integers)
    made = secure_sum.simulated(name, terms, **options)
    outcome = protocol.run(made, words, clock=time.process_time)
    plain = protocol.as_words(terms, integers.sum(axis=0, dtype=np.int64))
    if not np.array_equal(outcome.total, plain):
        raise AssertionError(f"{name}: another sum than the plain one")
    steps = outcome.costs
    return Cost(
        sum(step.client_seconds / max(1, step.clients) for step in steps),
        sum(step.server_seconds for step in steps),
        sum(step.bytes_up / max(1, step.clients) for step in steps),
        sum(step.bytes_down for step in steps) / NUM_CLIENTS,
    )


class _Short(light_secagg.Client):
    """A client of one word, whose share for client 0 is as long as those of longer words."""

    def __init__(self, setting: light_secagg.LightSecAgg, number: int, length: int) -> None:
        self._length = length
        super().__init__(setting, number, np.zeros(1, np.uint32), 0)

    def _coded(self) -> np.ndarray:
        shares = np.empty(self._setting.terms.num_clients, object)
        for number, share in enumerate(super()._coded()):
            shares[number] = share if number else np.zeros(self._length, np.int64)
        return shares


def _alone(name: str, size: int) -> Cost:
    """One round of "secagg" or "light_secagg" in which client 0 and the server do what they do in
    a round of all. The others have one word each, and the server gets client 0's messages in place
    of theirs where those are as long as the network. What it passes on between others is left out.
    """
    made = secure_sum.simulated(name, _terms(size))
    small = dataclasses.replace(made, terms=_terms(1))
    vars(small)["session"] = made.session  # all sign for the same round
    coded = isinstance(made, light_secagg.LightSecAgg)
    peers: dict[int, Any] = {
        i: _Short(small, i, made.piece) if coded else small.client(i, np.zeros(1, np.uint32), 0)
        for i in range(1, NUM_CLIENTS)
    }
    clock = time.process_time
    start = clock()
    own, server = made.client(0, np.zeros(size, np.uint32), 0), made.server(0)
    clients, servers, up, down = clock() - start, 0.0, 0, 0
    inbox = dict.fromkeys(range(NUM_CLIENTS), b"")
    replaced = False
    for step in made.steps:
        start = clock()
        message = own.send(step, inbox[0])
        clients += clock() - start
        replaced |= step == made.upload_step
        outbox = dict.fromkeys(range(NUM_CLIENTS), message)
        if not (coded and replaced):
            answers = {i: peer.send(step, inbox[i]) for i, peer in peers.items()}
            outbox |= {} if step == made.upload_step else answers
        up, down = up + len(message), down + len(inbox[0])
        start = clock()
        inbox = dict(server.collect(step, outbox))
        servers += clock() - start
    start = clock()
    server.total()
    return Cost(clients, servers + clock() - start, up, down)


def _noise_in_parts(size: int) -> Cost:
    """What Dordis' round has beyond SecAgg's where all answer: a client draws its parts, shares
    their seeds and tells them once all is summed; the server draws all but the first parts again
    and takes them back: of one client here, and as often as there are clients.

    Raises:
      AssertionError: not just the first part is left.
    """
    stddevs = SPREAD * dordis.part_stddevs(NUM_CLIENTS, MOST, MOST)
    dordis.part(bytes(32), size, 1.0)  # compiles
    clock = time.process_time
    start = clock()
    seeds = [os.urandom(32) for _ in stddevs]
    total = np.zeros(size, np.int32)
    for seed, stddev in zip(seeds, stddevs, strict=True):
        total += dordis.part(seed, size, stddev)
    secret = field.of_bytes(b"".join(seeds[1:]))
    threshold = NUM_CLIENTS - MOST
    random = stream.field_elements(os.urandom(32), (threshold - 1) * secret.size)
    given = field.shares(
        secret, random.reshape(-1, secret.size), holders=list(range(1, NUM_CLIENTS))
    )
    key = os.urandom(32)
    sent = [channels.sealed(key, 0, i, field.packed(one)) for i, one in enumerate(given, 1)]
    for i, box in enumerate(sent, 1):  # as many come from the others
        field.unpacked(channels.opened(key, 0, i, box), secret.size)
    client = clock() - start
    start = clock()
    for seed, stddev in zip(seeds[1:], stddevs[1:], strict=True):
        total -= dordis.part(seed, size, stddev)
    server = NUM_CLIENTS * (clock() - start)
    if not np.array_equal(total, dordis.part(seeds[0], size, stddevs[0])):
        raise AssertionError("Dordis: more than the first part is left")
    moved = sum(map(len, sent))
    return Cost(client, server, moved + 32 * MOST, moved)


def _at(name: str, size: int, key_bits: int) -> Cost | None:
    """None: it would take hours."""
    if name == "LightDP-FL":
        _, noise, total = shared_noise(NUM_CLIENTS, size)
        return Cost(noise, total, 4 * size, 0)
    if name == "local noise":
        return Cost(_own_noise(size), _summed(NUM_CLIENTS, size), 4 * size, 0)
    if name == "Dordis":
        masks, parts = _at("SecAgg + DP", size, key_bits), _noise_in_parts(size)
        assert masks is not None
        return Cost(*(a + b for a, b in zip(masks, parts, strict=True)))
    protocol_name = PROTOCOLS[name]
    if protocol_name == "paillier":
        return _protocol(protocol_name, size, {"key_bits": key_bits}) if size < LARGE else None
    return _alone(protocol_name, size) if size >= LARGE else _protocol(protocol_name, size, {})


@functools.lru_cache(maxsize=8)
def measured(name: str, key_bits: int, num_params: int) -> dict[str, Any]:
    """`Cost` of a way to hide uploads at a network's size, at `MIDDLE` and at ResNet-18's, each the
    cheaper of two rounds; None where it was not measured.
    """
    found: dict[str, Any] = {}
    for where, size in zip(SIZES, (num_params, MIDDLE, RESNET_18), strict=True):
        rounds = [_at(name, size, key_bits) for _ in range(2)]
        least = min((one for one in rounds if one is not None), key=_seconds, default=None)
        found[where] = None if least is None else least._asdict()
    return found


def _seconds(cost: Cost) -> float:
    return cost.seconds


def gets_through(name: str) -> dict[str, float]:
    """Chance of a round to count, where links to the server fail, and where all links do; a round
    of those that do not need a threshold counts whoever answers.
    """
    told = {}
    needs = LINKS.get(name)
    for where in ("server", "peers"):
        fails = LINK_FAILURE
        if where == needs == "peers":
            fails = stragglers.peers_and_server(NUM_CLIENTS, LINK_FAILURE)
        law = stragglers.bernoulli(NUM_CLIENTS, fails)
        told[where] = 1.0 if needs is None else stragglers.at_most(law, MOST)
    return told
