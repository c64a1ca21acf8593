"""Defences as schemes: records read from uploads of federated rounds as training goes on, and, in
colour, from the first upload of the network that arXiv:2403.01268 attacks.

Here noise comes from the schemes that `fljax simulate` trains with, not from a victim of its own.
Colour is 32 x 32 pixels of the two photographs that come with scikit-learn: public patches from
their left parts, clients' from their right ones.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax import data, models, schemes
from fljax.attacks import gradient_inversion
from fljax.attacks.reconstruction import Seen
from fljax.data import channel
from fljax.papers.channel import attacks, sent, victims
from fljax.papers.paper import Settings

KINDS = ("none", "natural", "white", "personalized", "embedding", "parameters", "compression")
IN_COLOUR = ("none", "natural", "white")
NATS, SHAPE = 300, (32, 32, 3)  # of 3,072 coordinates
COLOUR_NATS = (50, 300, 1500)
CLIENTS, RECORDS, TARGETS = 32, 4, 8
RATE, KEPT = 0.5, 0.1  # of a client's one step; share of an update that is sent
_STEP, _CUT = 16, 384  # pixels between patches; where the left part ends
_PUBLIC, _COLOUR_TARGETS = 600, 4


def num_rounds(settings: Settings) -> int:
    """Of federated training."""
    return settings.rounds(20 if settings.scale == "demo" else 150)


_SCHEMES = {"compression": "compressed_updates", "parameters": "parameter_channel"}


def _solved(
    kind: str, dataset: data.Dataset, nats: float, *, records: int = 1
) -> tuple[Any, Any, Any]:
    """(Scheme, config, inputs) for a data set whose held-out records are public. Clients have so
    many records, and take one step with them in a round.
    """
    usual = "natural_channel" if kind == "none" else f"{kind}_channel"
    scheme = schemes.get(_SCHEMES.get(kind, usual))
    config = scheme.Config(**_own(kind, nats, records), server_momentum=0.0)
    if scheme.inputs is None:
        return scheme, config, {}
    table = jnp.arange(len(dataset.train["y"])).reshape(-1, records)
    clients = data.ClientData(jax.tree.map(jnp.asarray, dataset.train), table)
    return scheme, config, scheme.inputs(config, Seen(dataset, clients))


def _own(kind: str, nats: float, records: int) -> dict[str, Any]:
    if kind == "parameters":
        step = {"server_learning_rate": RATE, "l2_clip_norm": victims.CLIP}
        return step | {"nats": nats, "records_per_client": records}
    step = {"local_learning_rate": RATE, "local_batch_size": records}
    if kind == "compression":
        return step | {"kept": KEPT}
    nats = math.inf if kind == "none" else nats
    return step | {"nats": nats, "covariance_source": "public", "labels_public": True}


def in_rounds(name: str, settings: Any) -> dict[str, Any]:
    """By defence: accuracy after all rounds, lists over seeds; `LOOKS` of a search on the uploads
    of `TARGETS` records in the first round and in the last; nats of a record then, at most.
    """
    task = victims.task_of(name, settings, wrong=False)
    last, rows = num_rounds(settings) - 1, []
    nats = NATS * task.values.size / math.prod(SHAPE)
    for kind in KINDS:
        row: dict[str, Any] = {"kind": kind, "accuracy": [], "first": {}, "last": {}}
        step = upload = None
        for place, seed in enumerate(settings.each_seed):
            one = sent._Seed(name, settings, seed)
            own = jax.tree.map(lambda leaf, at=place: leaf[at, : CLIENTS * RECORDS], task.members)
            dataset = data.Dataset(
                jax.tree.map(np.asarray, own),
                jax.tree.map(np.asarray, task.public),
                task.num_classes,
                name,
                covariance=task.covariance if task.gaussian else None,
            )
            if step is None:  # public records, and what is solved from them, are those of all seeds
                scheme, config, inputs = _solved(kind, dataset, nats, records=RECORDS)
                loss = models.softmax_cross_entropy(task.apply)
                algorithm = scheme.make(config, loss, num_units=CLIENTS, **inputs)
                step, upload = jax.jit(algorithm.round), _uploads(algorithm)
            assert upload is not None
            table = jnp.arange(CLIENTS * RECORDS).reshape(CLIENTS, RECORDS)
            clients = data.ClientData(own, table)
            cohort = data.cohort(clients, jnp.arange(CLIENTS))
            state = algorithm.init(one.params)
            targets = jax.tree.map(lambda leaf: leaf[:TARGETS], own)
            for number in range(last + 1):
                if number in (0, last):
                    moved = upload(state, targets, sent._key(seed, number))
                    labels = one.labels(targets["y"][:, None])
                    images = _searched(kind, one, state.params, moved, labels)
                    seen = one.seen(images, targets["x"])
                    for what, value in seen.items():
                        row["last" if number else "first"].setdefault(what, []).append(value)
                state, _ = step(state, cohort, jax.random.key(seed, impl="threefry2x32"))
            test = jax.tree.map(lambda leaf, at=place: leaf[at], task.test)
            row["accuracy"].append(float(models.evaluate(task.apply, state.params, test)[1]))
        seen_in = Seen(dataset, clients)
        spent = None if scheme.spent is None else scheme.spent(config, seen_in, inputs, last + 1)
        row["nats"] = None if spent is None else float(spent.nats[0])
        rows.append(row)
    return {"rows": rows, "nats": nats, "rounds": last + 1}


def _searched(kind: str, one: Any, params: Any, moved: Any, labels: Any) -> jax.Array:
    """Images of a search; of a compressed upload it knows which numbers were sent."""
    if kind != "compression":
        alone = jax.tree.map(lambda leaf: leaf[None], (moved, labels))
        return jnp.asarray(one.search(params, *alone)[0])
    mask = jax.tree.map(lambda leaf: (leaf != 0).astype(jnp.float32), moved)
    return jnp.asarray(one.masked(params, moved, labels, mask))


def _uploads(algorithm: Any) -> Any:
    """`(state, examples, key) -> moved`: of each of T records, what a client that holds it alone
    sends in the round of `state`, as a direction.
    """

    @jax.jit
    def run(state: Any, examples: Any, key: jax.Array) -> Any:
        def one(example: Any, key: jax.Array) -> Any:
            alone = jax.tree.map(lambda leaf: leaf[None], example)
            clients = data.ClientData(alone, jnp.zeros((1, 1), jnp.int32))
            after, _ = algorithm.round(state, data.cohort(clients, jnp.arange(1)), key)
            return jax.tree.map(jnp.subtract, state.params, after.params)

        keys = jax.random.split(key, len(examples["y"]))
        return jax.lax.map(lambda pair: one(*pair), (examples, keys))

    return run


@functools.lru_cache(maxsize=1)
def photographs(side: int = 32) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """(Public patches, others), float32 `[N, side, side, 3]` in [0, 1] with the photograph they are
    of; none of one shares a pixel with the other. Raises ImportError without scikit-learn.
    """
    from sklearn.datasets import load_sample_images

    parts: list[dict[str, list[Any]]] = [{"x": [], "y": []}, {"x": [], "y": []}]
    for label, image in enumerate(load_sample_images().images):
        for top in range(0, image.shape[0] - side + 1, _STEP):
            for left in range(0, image.shape[1] - side + 1, _STEP):
                if left < _CUT < left + side:
                    continue
                part = parts[left >= _CUT]
                part["x"].append(image[top : top + side, left : left + side] / np.float32(255))
                part["y"].append(label)
    public, others = (
        {"x": np.stack(part["x"]).astype(np.float32), "y": np.asarray(part["y"], np.int32)}
        for part in parts
    )
    order = np.random.default_rng(0).permutation(len(public["y"]))[:_PUBLIC]
    return {key: leaf[order] for key, leaf in public.items()}, others


def in_colour(settings: Any) -> dict[str, Any]:
    """By defence and budget, lists over seeds of `LOOKS` of a search on LeNet's first gradient, and
    of the error of the best linear estimate.
    """
    public, others = photographs()
    dataset = data.Dataset(others, public, 2, "photographs")
    flat = public["x"].reshape(len(public["x"]), -1).astype(np.float64)
    directions, roots, _ = np.linalg.svd(channel.data_factor(public["x"]), full_matrices=False)
    values, mean = np.square(roots.astype(np.float64)), flat.mean(axis=0)
    search = dataclasses.replace(attacks.SEARCH, box=(0.0, 1.0))
    noises: dict[tuple[str, int], Any] = {("none", 0): None}
    for kind in IN_COLOUR[1:]:
        for budget in COLOUR_NATS:
            noises[kind, budget] = _solved(kind, dataset, float(budget))[2]["channel"].noise
    rows: dict[tuple[str, int], dict[str, Any]] = {
        case: {"kind": case[0], "budget": case[1]} for case in noises
    }
    all_models = [
        models.create("lenet", example_shape=SHAPE, num_classes=2, key=jax.random.key(seed))
        for seed in settings.each_seed
    ]
    loss = gradient_inversion.soft_cross_entropy(all_models[0].apply)
    observe = gradient_inversion.gradient(loss)
    gradients = jax.jit(lambda params, x, y: jax.vmap(observe, (None, 0, 0))(params, x, y))
    invert = jax.jit(
        functools.partial(gradient_inversion.invert, observe),
        static_argnames=("shape", "settings"),
    )
    start = jnp.asarray(public["x"].mean(axis=0))[None]
    for seed, model in zip(settings.each_seed, all_models, strict=True):
        picks = np.random.default_rng(seed).choice(len(others["y"]), _COLOUR_TARGETS, False)
        x, y = jnp.asarray(others["x"][picks]), jnp.asarray(others["y"][picks])
        labels = jax.nn.one_hot(y, 2)[:, None]
        client_key = channel.client_keys(sent._key(seed), jnp.zeros(1, jnp.int32))[0]
        keys = channel.record_keys(client_key, jnp.arange(len(picks)), 0)
        for case, noise in noises.items():
            noisy = x if noise is None else channel.noisy(noise, x, keys)
            found = invert(
                model.params,
                gradients(model.params, noisy[:, None], labels),
                labels,
                sent._key(1),
                shape=(1, *SHAPE),
                settings=search,
                start=start,
            ).x[:, 0]
            looks = {
                "mse": jnp.square(found - x).mean(),
                "ssim": attacks.ssim(found, x, 1.0).mean(),
            }
            if noise is not None:
                var = math.exp(float(noise.log_noise_var))
                weight = float(np.mean(np.asarray(noise.weights, np.float64)))
                added = var * (weight + (values if case[0] == "white" else 0))
                away = np.asarray(noisy, np.float64).reshape(len(picks), -1) - mean
                gained = (away @ directions) * (values / (values + added)) @ directions.T
                error = mean + gained - np.asarray(x, np.float64).reshape(len(picks), -1)
                looks["linear"] = np.square(error).mean()
            for what, value in looks.items():
                rows[case].setdefault(what, []).append(float(value))
    return {"rows": list(rows.values()), "variance": float(values.sum() / flat.shape[1])}
