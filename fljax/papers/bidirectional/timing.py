"""Seconds of a round's parts, as the paper's Tables I and V count them: its scheme, and the sums by
cryptography that it is compared with, which run here.

Everything is measured on this machine, one party after the other, at the network's size. Of a
protocol one client computes, and the server gets its messages in the name of all (`one_client`):
PILE encrypts with a key of a dealer, TP-SMC with one that its clients make together, both under
`Sizes.key_bits`; HybridAlpha on a curve of 256 bits. The gradient alone is counted as encrypted,
though PILE has Psi and Phi to send as well.
"""

import functools
import itertools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax import data, models
from fljax.accounting.shared_noise import printed
from fljax.local import perturbed
from fljax.models import scaling
from fljax.papers import one_client
from fljax.papers.bidirectional import training
from fljax.papers.bidirectional.training import NEIGHBOURS
from fljax.papers.paper import Found, Settings
from fljax.server import costs, perturbation, recovery
from fljax.upload import secure_sum, split_noise
from fljax.upload.secure_sum import protocol

BATCH, BITS = 64, 24
PROTOCOLS = {"PILE": "paillier", "TP-SMC": "joint_paillier", "HybridAlpha": "inner_product"}
OURS = "ours, as printed"


class Sizes(NamedTuple):
    """Of the mlp's hidden layers; of the keys of Paillier's protocols."""

    hidden: tuple[int, ...]
    key_bits: int


def sizes(settings: Settings) -> Sizes:
    """3072 bits are 128 bits of security; 1024, for a demo, are less work and protect nobody."""
    return Sizes((256, 128), 1024) if settings.scale == "demo" else Sizes((512, 512), 3072)


_ENDS = {"CIFAR": (64, 10), "CIFAR100": (128, 100)}  # pixels and classes of the stand-ins


def numbers(settings: Settings, shape: str = "CIFAR") -> int:
    """Parameters of that mlp."""
    pixels, classes = _ENDS[shape]
    widths = (pixels, *sizes(settings).hidden, classes)
    return sum((low + 1) * high for low, high in itertools.pairwise(widths))


def _seconds(fun: Callable[..., Any], *arguments: Any) -> float:
    """The least of 15 runs, or of three where those take long, compiled before."""
    run = jax.jit(fun)
    jax.block_until_ready(run(*arguments))
    found: list[float] = []
    while len(found) < 15 and (len(found) < 3 or sum(found) < 2):
        begin = time.perf_counter()
        jax.block_until_ready(run(*arguments))
        found.append(time.perf_counter() - begin)
    return min(found)


@functools.lru_cache(maxsize=4)
def parts(settings: Settings, clients: int, shape: str = "CIFAR") -> dict[str, Any]:
    """Of FedAvg and of the scheme as printed, with keys of pairs agreed before; seconds by the name
    of `costs.PARTS`.
    """
    digits = data.load("digits") if shape == "CIFAR" else training.pairs_of_digits()
    batch = {name: jnp.asarray(digits.train[name][:BATCH]) for name in ("x", "y")}
    model = models.create(
        "mlp",
        example_shape=digits.train["x"].shape[1:],
        num_classes=digits.num_classes,
        key=jax.random.key(0),
        hidden=sizes(settings).hidden,
    )
    params, loss = model.params, models.squared_error(model.apply)
    plan = scaling.plan(model.apply, params, batch["x"][0])

    def mean(uploads: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf.mean(axis=0), uploads)

    def of_all(upload: Any) -> Any:
        return jax.tree.map(lambda leaf: jnp.stack([leaf] * clients), upload)

    gradient = jax.grad(lambda p: jnp.mean(jax.vmap(loss, (None, 0))(p, batch)))
    plain = {
        "train": _seconds(gradient, params),
        "aggregate": _seconds(mean, of_all(params)),
    }
    client = perturbed.triples(plan)
    secrets = perturbation.draw(plan, jax.random.key(1), additive_norm=0.3)
    sent, transition = jax.jit(perturbation.perturb, static_argnums=0)(plan, params, secrets)

    def perturb(key: jax.Array) -> Any:
        drawn = perturbation.draw(plan, key, additive_norm=0.3)
        return drawn, perturbation.perturb(plan, params, drawn)

    def train(sent: Any, transition: Any) -> Any:
        return client(sent, transition, batch, jnp.ones(BATCH, bool))[0]

    peers = (
        clients - 1
        if clients <= NEIGHBOURS
        else round(printed.expected_degree(clients, NEIGHBOURS))
    )

    def noise(key: jax.Array, upload: list[jax.Array]) -> Any:
        def one(key: jax.Array) -> Any:
            return [
                split_noise.dn(jax.random.fold_in(key, k), leaf.shape, 1.0)
                for k, leaf in enumerate(upload)
            ]

        drawn = jax.vmap(one)(jax.random.split(key, 1 + peers))
        return [leaf + more.sum(axis=0) for leaf, more in zip(upload, drawn, strict=True)]

    triple = jax.jit(train)(sent, transition)
    ours = {
        "perturb": _seconds(perturb, jax.random.key(2)),
        "recover": _seconds(lambda s, m: recovery.recover(plan, s, m), secrets, triple),
        "aggregate": _seconds(mean, of_all(triple)),
        "train": _seconds(train, sent, transition),
        "noise": _seconds(noise, jax.random.key(3), [*triple.body, *triple.head]),
    }
    local = _seconds(
        lambda key, p: jax.tree.map(lambda leaf: leaf + jax.random.normal(key, leaf.shape), p),
        jax.random.key(4),
        params,
    )
    return {"FedAvg": plain, OURS: ours, "local noise": local}


@functools.lru_cache(maxsize=16)
def encrypted(
    settings: Settings, method: str, clients: int, shape: str = "CIFAR"
) -> dict[str, Any]:
    """Seconds of keys, encryption, the server's sum and decryption, of a sum of `numbers`.

    TP-SMC's key is made by five clients at most; with more, it is one as long that nobody made so,
    and is not timed.
    """
    name, bits = PROTOCOLS[method], sizes(settings).key_bits
    agreed = protocol.Terms(
        num_clients=clients,
        size=numbers(settings, shape),
        bits=BITS,
        max_dropouts=0,
        max_colluders=max(1, clients // 10),
    )
    keys = {}
    if name != "joint_paillier" or clients <= NEIGHBOURS:
        begin = time.process_time()
        secure_sum.simulated(
            name, agreed, **({} if name == "inner_product" else {"key_bits": bits})
        )
        keys["keys"] = time.process_time() - begin
    rng = np.random.default_rng(0)
    integers = rng.integers(-agreed.most, agreed.most + 1, agreed.size)
    made = one_client.alike(name, agreed, key_bits=bits)
    sent = one_client.sent(made, protocol.as_words(agreed, integers))
    steps, total = one_client.served(made, sent, range(clients))
    if not np.array_equal(total, protocol.as_words(agreed, clients * integers)):
        raise AssertionError(f"{method}: another sum than the plain one")
    first, *rest = steps
    row = {"encrypt": first.client_seconds / clients, "aggregate": first.server_seconds}
    if not rest:  # the server finds each sum itself, from its exponent
        return row | {"aggregate": 0.0, "decrypt": first.server_seconds} | keys
    (last,) = rest
    return row | {"decrypt": last.client_seconds / clients + last.server_seconds} | keys


def table(found: Found) -> dict[str, dict[str, float]]:
    """Seconds by part of every method, from `parts` and `encrypted` of one number of clients."""
    base = found["parts"]
    rows = {"FedAvg": base["FedAvg"]}
    for method in PROTOCOLS:
        sums = {part: found[method][part] for part in costs.PARTS if part in found[method]}
        rows[method] = {"train": base["FedAvg"]["train"], "noise": base["local noise"]} | sums
        if method == "PILE":  # disguised models, no noise
            rows[method] |= {part: base[OURS][part] for part in ("perturb", "recover", "train")}
            del rows[method]["noise"]
    return rows | {OURS: base[OURS]}


def sides(row: dict[str, float]) -> tuple[float, float]:
    """(server's, one client's) seconds of a round; keys are made once, and are in neither."""

    def total(*parts: str) -> float:
        return sum(row.get(part, 0.0) for part in parts)

    return total("perturb", "recover", "aggregate", "decrypt"), total("train", "encrypt", "noise")
