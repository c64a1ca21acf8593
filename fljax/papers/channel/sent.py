"""Records read from what a victim sends: figures 5 to 8, 14 and 30 to 33 of arXiv:2403.01268.

What is sent is the gradient of one record, or of a batch, at an initial model. Two attackers read
it: a search for the record whose gradient has that direction, labels known; and the best linear
estimate by the records' covariance, which needs no search. It takes a noisy record as read off the
first dense layer, and learns from public records what a noisy gradient says of its record.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax.accounting import information
from fljax.attacks import gradient_inversion
from fljax.data import channel
from fljax.papers.channel import attacks, victims
from fljax.papers.channel.victims import CHANNELS, CLIP, HIGH, LOW, Case, Task
from fljax.upload import controlled_channel

BUDGETS = (*LOW, *HIGH)
TARGETS = 8
BATCHES = (1, 4, 16, 64)
DP_MULTIPLIER = 1.3  # appendix D
CONSTANT = 0.3  # norm of the constant noise on an upload, in norms of a record's gradient
DIRECTIONS = (0, 1, 10)
DROPPED = (0, 1, 2, 4, 8, 16)
SHARES = (1.0, 0.1, 0.01)
KINDS = (*CHANNELS, "embedding", "parameters", "parameters, clipped")


def _key(*numbers: int) -> jax.Array:
    return functools.reduce(jax.random.fold_in, numbers, jax.random.key(6, impl="threefry2x32"))


@functools.lru_cache(maxsize=4)
def _tools(task_key: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    """(gradients, search, masked search) of a task, compiled once for each shape.

    gradients: of batches `[T, B, ...]` with labels as probabilities. search: for one image each,
    `[U, T, ...]`, from what was sent and labels `[U, T, 1, classes]`, each of U uploads from the
    same starts. masked: `[T, ...]` from the places of what was sent where `mask` is 1.
    """
    name, settings = task_key
    task = victims.task_of(name, settings, wrong=False)
    observe = gradient_inversion.gradient(gradient_inversion.soft_cross_entropy(task.apply))
    search = dataclasses.replace(attacks.SEARCH, box=task.box)

    def invert(look: Any, params: Any, sent: Any, labels: Any) -> jax.Array:
        return gradient_inversion.invert(
            look, params, sent, labels, _key(1), shape=(1, *task.shape), settings=search
        ).x[:, 0]

    def masked(params: Any, sent: Any, labels: Any, mask: Any) -> jax.Array:
        def one(sent: Any, labels: Any, mask: Any) -> jax.Array:
            look = lambda *given: jax.tree.map(jnp.multiply, observe(*given), mask)
            alone = jax.tree.map(lambda leaf: leaf[None], (sent, labels))
            return invert(look, params, *alone)[0]

        return jax.vmap(one)(sent, labels, mask)

    gradients = jax.jit(lambda params, x, y: jax.vmap(observe, (None, 0, 0))(params, x, y))
    each = jax.vmap(functools.partial(invert, observe), in_axes=(None, 0, 0))
    return gradients, jax.jit(each), jax.jit(masked)


class _Seed:
    """One seed's model, targets and what the attacker makes of an upload."""

    def __init__(self, name: str, settings: Any, seed: int) -> None:
        self.task = victims.task_of(name, settings, wrong=False)
        self.seed = seed
        place = seed - settings.first_seed
        self.params = self.task.functionals[place].params
        self.gradients, self.search, self.masked = _tools((name, settings))
        own = jax.tree.map(lambda leaf: leaf[place], self.task.members)
        self.x, self.y = own["x"], own["y"]

    def labels(self, y: Any) -> jax.Array:
        """As probabilities."""
        return jax.nn.one_hot(jnp.asarray(y), self.task.num_classes)

    def sent(self, x: Any, y: Any) -> Any:
        """Gradients of batches `[T, B, ...]`."""
        return self.gradients(self.params, jnp.asarray(x), self.labels(y))

    def found(self, sent: Any, y: Any, truth: Any) -> dict[str, float]:
        """Means over targets of `LOOKS` of a search; y `[T, B]`, of which their mix is known."""
        return self.each_found([(sent, y, truth)])[0]

    def each_found(self, uploads: Sequence[tuple[Any, Any, Any]]) -> list[dict[str, float]]:
        """The same of several uploads, each with its y and truth, searched for side by side, from
        the same starts.
        """
        mixed = [
            (sent, self.labels(y).mean(axis=1, keepdims=True), jnp.asarray(truth))
            for sent, y, truth in uploads
        ]
        sent, mixes, truth = victims.stacked(mixed)
        images = self.search(self.params, sent, mixes)
        flat = lambda leaf: leaf.reshape(-1, *leaf.shape[2:])
        return self.each_seen(flat(images), flat(truth), len(uploads))

    def seen(self, images: jax.Array, truth: Any) -> dict[str, float]:
        """Means over targets of `LOOKS`."""
        return self.each_seen(images, truth, 1)[0]

    def each_seen(self, images: jax.Array, truth: Any, count: int) -> list[dict[str, float]]:
        """The same of each of `count` uploads, their targets one after the other's."""
        values = attacks.looks(self.task, images, jnp.asarray(truth))
        means = {name: np.asarray(all_).reshape(count, -1).mean(1) for name, all_ in values.items()}
        return [{name: float(all_[at]) for name, all_ in means.items()} for at in range(count)]

    def noise(self, like: Any, stddev: Any, *place: int) -> Any:
        """`like` with independent normals added; stddev: a number, or `[T]`."""
        leaves, structure = jax.tree.flatten(like)
        keys = jax.random.split(_key(self.seed, *place), len(leaves))

        def one(leaf: jax.Array, key: jax.Array) -> jax.Array:
            scale = jnp.reshape(jnp.asarray(stddev, jnp.float32), (-1,) + (1,) * (leaf.ndim - 1))
            return leaf + scale * jax.random.normal(key, leaf.shape)

        return jax.tree.unflatten(
            structure, [one(leaf, key) for leaf, key in zip(leaves, keys, strict=True)]
        )


def _rows(tree: Any) -> np.ndarray:
    """Uploads as a matrix float64 `[T, K]`."""
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(tree)]
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)


def _clipped(tree: Any) -> Any:
    norms = jnp.asarray(np.linalg.norm(_rows(tree), axis=1), jnp.float32)
    factor = jnp.minimum(1.0, CLIP / jnp.maximum(norms, 1e-12))
    return jax.tree.map(lambda leaf: leaf * factor.reshape(-1, *(1,) * (leaf.ndim - 1)), tree)


class _Reader:
    """The best linear estimate of records from views with noise, learnt from public views `known`
    `[N, K]` of records `truth` `[N, d]`.
    """

    def __init__(self, known: np.ndarray, truth: np.ndarray) -> None:
        self.known, self.records = known, truth - truth.mean(axis=0)
        self.mean = truth.mean(axis=0)
        self.gram = known @ known.T  # not centred

    def __call__(self, seen: np.ndarray, noise_var: float) -> np.ndarray:
        """Records `[T, d]` from views `[T, K]`."""
        count = len(self.gram)
        centred = np.eye(count) - 1 / count
        kernel = centred @ self.gram @ centred + count * noise_var * np.eye(count)
        cross = centred @ (self.known @ seen.T - self.gram.mean(axis=1)[:, None])
        return np.asarray(self.mean + np.linalg.solve(kernel, cross).T @ self.records)


def _posterior(task: Task, case: Case, seen: np.ndarray) -> Any:
    """The best linear estimate `[T, d]` from noisy records."""
    assert case.noise is not None
    weights = np.broadcast_to(np.asarray(case.noise.weights, np.float64), task.values.shape)
    factor = np.asarray(case.noise.factor, np.float64)
    added = math.exp(float(case.noise.log_noise_var)) * (np.diag(weights) + factor @ factor.T)
    public = np.asarray(task.public["x"], np.float64).reshape(len(task.public["x"]), -1)
    mean = np.zeros(task.values.size) if task.gaussian else public.mean(axis=0)
    gain = np.linalg.solve(task.covariance + added, task.covariance).T
    return mean + (seen - mean) @ gain.T


def _embedded(task: Task, x: np.ndarray) -> np.ndarray:
    """Records `[N, d]` in the first quarter of the principal directions of public ones."""
    directions = np.linalg.eigh(task.covariance)[1][:, ::-1][:, : task.values.size // 4]
    return x @ directions


def one_record(name: str, settings: Any) -> dict[str, Any]:
    """Figures 14 and 30 to 33: by kind of channel and budget, lists over seeds of `LOOKS` of the
    search and of "linear", the error of the best linear estimate; the bounds; nats of one use.
    """
    task = victims.task_of(name, settings, wrong=False)
    cases = victims.channels(task)
    size = task.values.size
    rows: dict[str, dict[str, Any]] = {}

    def put(kind: str, budget: int, looks: Mapping[str, float]) -> None:
        row = rows.setdefault(f"{kind}, {budget}", {"kind": kind, "budget": budget})
        for what, value in looks.items():
            row.setdefault(what, []).append(value)

    noises = victims.stacked([case.noise for case in cases])
    for seed in settings.each_seed:
        one = _Seed(name, settings, seed)
        x, y = one.x[:TARGETS], one.y[:TARGETS, None]
        flat = np.asarray(x, np.float64).reshape(TARGETS, -1)
        public = np.asarray(task.public["x"], np.float64).reshape(len(task.public["x"]), -1)
        client_key = channel.client_keys(_key(seed), jnp.zeros(1, jnp.int32))[0]
        keys = channel.record_keys(client_key, jnp.arange(TARGETS), 0)
        seen = jax.jit(jax.vmap(channel.noisy, (0, None, None)))(noises, x, keys)
        uploads: dict[tuple[str, int], Any] = {}
        for case, noisy in zip(cases, seen, strict=True):
            uploads[case.defence, case.budget] = one.sent(noisy[:, None], y)
            if case.solved is not None:
                best = _posterior(task, case, np.asarray(noisy, np.float64).reshape(TARGETS, -1))
                put(case.defence, case.budget, {"linear": float(np.mean((best - flat) ** 2))})
        embedded = _embedded(task, public)
        read = _Reader(embedded, public)
        values = channel.spectrum(embedded)
        plain = one.sent(x[:, None], y)
        given = one.sent(task.public["x"][:, None], task.public["y"][:, None])
        ways = {"parameters": (plain, given)}
        ways["parameters, clipped"] = (_clipped(plain), _clipped(given))
        readers = {kind: _Reader(_rows(known), public) for kind, (_, known) in ways.items()}
        spread = controlled_channel.gradient_values(
            jnp.asarray(readers["parameters"].gram, jnp.float32)
        )
        for place, budget in enumerate(BUDGETS):
            kappa = budget * size / 3072
            solve = functools.partial(information.natural, nats=kappa, covariance_source="public")
            var = float(solve(values).noise_var)
            drawn = np.random.default_rng([seed, place]).normal(size=(TARGETS, values.size))
            sent_on = _embedded(task, flat) + math.sqrt(var) * drawn
            best = read(sent_on, var)
            put("embedding", budget, {"linear": float(np.mean((best - flat) ** 2))})
            for kind, (clean, _) in ways.items():
                if kind == "parameters":
                    var = float(solve(spread).noise_var)
                else:
                    var = float(
                        information.clipped_upload(
                            l2_clip_norm=CLIP,
                            num_params=readers[kind].known.shape[1],
                            record_dimension=size,
                            nats=kappa,
                            space="gradient",
                        ).noise_var
                    )
                noisy_sent = uploads[kind, budget] = one.noise(clean, math.sqrt(var), place)
                best = readers[kind](_rows(noisy_sent), var)
                put(kind, budget, {"linear": float(np.mean((best - flat) ** 2))})
        all_found = one.each_found([(upload, y, x) for upload in uploads.values()])
        for upload, looks in zip(uploads, all_found, strict=True):
            put(*upload, looks)
    for case in cases:
        if case.solved is None:
            continue
        labels = information.label_entropy(task.num_classes)
        leakage = information.after_uses(case.solved, 1, label_nats=labels)
        model: Any = "gaussian" if task.gaussian else "unknown"
        bound = information.distortion_rate(leakage, task.values, data_model=model)
        told = {"nats": float(leakage.nats), "bound": float(bound.mse)}
        if task.gaussian:
            told["theorem1"] = float(information.theorem1(leakage, entropy=_entropy(task)).mse)
        rows[f"{case.defence}, {case.budget}"] |= told | {"certified": bool(bound.certified)}
    return {"rows": list(rows.values())}


def _entropy(task: Task) -> float:
    """Of a Gaussian record, in nats."""
    return float(0.5 * np.log(2 * math.pi * math.e * task.values).sum())


def means_of_batches(name: str, settings: Any) -> dict[str, Any]:
    """Figure 6: error of one image, read from a batch's gradient, to the batch's mean; by series
    and batch size, lists over seeds. And "nats" that DP's upload tells of a record.
    """
    rows: dict[str, dict[str, list[float]]] = {}

    def put(series: str, batch: int, value: float) -> None:
        rows.setdefault(series, {}).setdefault(str(batch), []).append(value)

    for seed in settings.each_seed:
        one = _Seed(name, settings, seed)
        rng = np.random.default_rng(seed)
        single = _rows(one.sent(one.x[:64, None], one.y[:64, None]))
        stddev = CONSTANT * np.linalg.norm(single, axis=1).mean() / math.sqrt(single.shape[1])
        uploads: dict[tuple[str, int], Any] = {}
        for batch in BATCHES:
            picks = np.stack([rng.choice(len(one.y), batch, replace=False) for _ in range(TARGETS)])
            x, y = one.x[picks], one.y[picks]
            plain = one.sent(x, y)
            flat = one.sent(x.reshape(-1, 1, *x.shape[2:]), y.reshape(-1, 1))
            total = jax.tree.map(
                lambda leaf, batch=batch: leaf.reshape(TARGETS, batch, *leaf.shape[1:]).mean(1),
                _clipped(flat),
            )
            for series, sent in (
                ("no defence", plain),
                ("constant noise", one.noise(plain, stddev, batch)),
                ("DP", one.noise(total, DP_MULTIPLIER * CLIP / batch, batch)),
            ):
                uploads[series, batch] = sent, y, x.mean(axis=1)
        all_found = one.each_found([*uploads.values()])
        for upload, looks in zip(uploads, all_found, strict=True):
            put(*upload, looks["mse"])
        public = one.task.public
        spread = _spread(_rows(_clipped(one.sent(public["x"][:, None], public["y"][:, None]))))
        for batch in BATCHES:
            put("nats", batch, _of_one(spread, batch, (DP_MULTIPLIER * CLIP) ** 2))
    told = {}
    for target in ("batch_mean", "record"):
        told[target] = [
            float(
                information.private_sgd_nats(
                    noise_multiplier=DP_MULTIPLIER,
                    batch_size=batch,
                    target=target,  # type: ignore[arg-type]
                    record_dimension=one.task.values.size,
                    assume_iid=True,
                ).nats
            )
            for batch in BATCHES
        ]
    return {"rows": rows, "nats": told}


def _spread(views: np.ndarray) -> np.ndarray:
    """Eigenvalues that are not 0 of the covariance of views `[N, K]`."""
    centred = views - views.mean(axis=0)
    return np.maximum(np.linalg.eigvalsh(centred @ centred.T / len(views)), 0)


def _of_one(spread: np.ndarray, batch: int, noise_var: float) -> float:
    """Nats that a noisy sum tells of one of its terms, all with these eigenvalues, were they
    Gaussian: the others are noise to it.
    """
    others = (batch - 1) * spread + noise_var
    return float(0.5 * np.log1p(spread / others).sum())


def compressed(name: str, settings: Any) -> dict[str, Any]:
    """Figures 7 and 8, and compression of the gradient: errors of a search, lists over seeds, by
    the direction that records were sent without, and by the share of coordinates that were sent;
    eigenvalues; and the noise that tells as little as directions that are set to 0, with the error
    of the best linear estimate behind either.
    """
    rows: dict[str, list[float]] = {}
    task = victims.task_of(name, settings, wrong=False)
    values, vectors = np.linalg.eigh(task.covariance)
    values, vectors = np.maximum(values[::-1], 0), vectors[:, ::-1]
    public = np.asarray(task.public["x"], np.float64).reshape(len(task.public["x"]), -1)
    variance, same = float(values.mean()), []
    for dropped in DROPPED:
        nats = 0.5 * float(np.log1p(values[dropped:] / variance).sum())
        known: Any = {"nats": nats, "covariance_source": "public"}
        noise = float(information.natural(values, **known).noise_var)
        same.append([dropped, nats, noise / variance])
    for seed in settings.each_seed:
        one = _Seed(name, settings, seed)
        x, y = one.x[:TARGETS], one.y[:TARGETS, None]
        centred = np.asarray(one.x, np.float64).reshape(len(one.x), -1) - public.mean(axis=0)
        clean = centred @ vectors
        normals = np.random.default_rng([seed, 7]).normal(size=clean.shape)
        for number, _, ratio in same:
            kept = np.where(np.arange(values.size) < number, 0, values)
            for way, left, power in (
                ("directions set to 0", kept, variance),
                ("noise of equal nats", values, ratio * variance),
            ):
                seen = np.where(left > 0, clean, 0) + np.sqrt(power) * normals
                best = seen * left / (left + power)
                error = float(((best - clean) ** 2).mean())
                rows.setdefault(f"{way}, {number}", []).append(error)
        flat = centred[:TARGETS]
        for at in (None, *DIRECTIONS):
            gone = 0 if at is None else np.outer(flat @ vectors[:, at], vectors[:, at])
            part = jnp.asarray(flat - gone + public.mean(axis=0), jnp.float32)
            looks = one.found(one.sent(part.reshape(TARGETS, 1, *task.shape), y), y, x)
            what = "whole" if at is None else f"without direction {at}"
            rows.setdefault(what, []).append(looks["mse"])
        sent = one.sent(x[:, None], y)
        for how in ("largest", "random"):
            for share in SHARES[1:]:
                mask = _mask(sent, share, None if how == "random" else _rows(sent), seed)
                kept = jax.tree.map(jnp.multiply, sent, mask)
                images = one.masked(one.params, kept, one.labels(y), mask)
                looks = one.seen(images, x)
                rows.setdefault(f"{how} {share:g}", []).append(looks["mse"])
    return {
        "rows": rows,
        "eigenvalues": [float(values[at]) for at in DIRECTIONS],
        "equal nats": same,
    }


def _mask(sent: Any, share: float, sizes: np.ndarray | None, seed: int) -> Any:
    """1 at the places of `sent` that go out: `share` of each upload's, the largest of `sizes` in
    absolute value, or at random.
    """
    leaves, structure = jax.tree.flatten(sent)
    widths = [math.prod(leaf.shape[1:]) for leaf in leaves]
    count, total = len(leaves[0]), sum(widths)
    rank = np.random.default_rng(seed).random((count, total)) if sizes is None else abs(sizes)
    kept = max(1, round(share * total))
    mask = np.zeros((count, total), np.float32)
    np.put_along_axis(mask, np.argpartition(-rank, kept - 1, axis=1)[:, :kept], 1, axis=1)
    parts = np.split(mask, np.cumsum(widths)[:-1], axis=1)
    return jax.tree.unflatten(
        structure,
        [jnp.asarray(part.reshape(leaf.shape)) for part, leaf in zip(parts, leaves, strict=True)],
    )


def pictures(name: str, settings: Any, *, budgets: Sequence[int] = (50, 300, 1500)) -> Any:
    """Figure 5: one noisy record of the first seed for each channel and budget."""
    task = victims.task_of(name, settings, wrong=False)
    x = task.members["x"][0, :1]
    found = {"record": np.asarray(x[0, ..., 0]).tolist()}
    key = channel.client_keys(_key(2), jnp.zeros(1, jnp.int32))[0]
    for case in victims.channels(task):
        if case.budget in budgets and case.noise is not None:
            seen = channel.noisy(case.noise, x, channel.record_keys(key, jnp.zeros(1, int), 0))
            found[case.name] = np.asarray(seen[0, ..., 0]).tolist()
    return found
