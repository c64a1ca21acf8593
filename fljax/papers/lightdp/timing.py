"""What a round costs of each way to hide an upload: measured seconds of its protocol, bytes, and
whether it gets through links that fail.

Parties run one after the other in one process, and are taken to work side by side: a round takes
one client's share of every step and the server's. A protocol is run on few numbers, at two sizes,
and the line through them read at a network's size. Paillier stands for the paper's homomorphic
encryption, whose numbers are one a ciphertext; here many share one.
"""

import functools
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax.papers.lightdp.training import LINK_FAILURE, NUM_CLIENTS
from fljax.server import stragglers
from fljax.upload import key_agreement, pair_noise, secure_sum
from fljax.upload.secure_sum import protocol

RESNET_18 = 11_173_962
BANDWIDTH = 12.5e6  # bytes a second of each client
BITS, MOST = 24, 10
PROTOCOLS = {
    "HE + DP": "paillier",
    "SecAgg + DP": "secagg",
    "SwiftAgg+ + DP": "light_secagg",
    "Dordis": "secagg",  # and a message more, which is not counted
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


def _protocol(name: str, size: int, options: dict[str, Any]) -> Cost:
    """One round of a protocol in which all answer. Raises AssertionError for another sum than the
    plain one.
    """
    terms = protocol.Terms(
        num_clients=NUM_CLIENTS, size=size, bits=BITS, max_dropouts=MOST, max_colluders=MOST
    )
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


def _at(name: str, size: int, key_bits: int) -> Cost:
    if name == "LightDP-FL":
        _, noise, total = shared_noise(NUM_CLIENTS, size)
        return Cost(noise, total, 4 * size, 0)
    if name == "local noise":
        return Cost(_own_noise(size), _summed(NUM_CLIENTS, size), 4 * size, 0)
    options = {"key_bits": key_bits} if PROTOCOLS[name] == "paillier" else {}
    return _protocol(PROTOCOLS[name], size, options)


@functools.lru_cache(maxsize=8)
def measured(name: str, key_bits: int, num_params: int) -> dict[str, Any]:
    """`Cost` of a way to hide uploads at a network's size and at ResNet-18's, by the line through
    two sizes.
    """
    few = key_bits // 32
    sizes = (few, 3 * few) if name == "HE + DP" else (20_000, 60_000)
    low, high = (np.asarray(_at(name, size, key_bits)) for size in sizes)
    found: dict[str, Any] = {"measured at": list(sizes)}
    for where, number in (("this network", num_params), ("ResNet-18", RESNET_18)):
        line = low + (number - sizes[0]) / (sizes[1] - sizes[0]) * (high - low)
        # Below its smaller size a protocol costs what the line says, and never less than nothing.
        found[where] = Cost(*np.maximum(line, 0).tolist())._asdict()
    return found


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
