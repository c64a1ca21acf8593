"""What channels leave of accuracy and of reconstructions: the experiments of arXiv:2403.01268 on
data at hand.

    # real digits and Gaussian fields: 5 minutes
    python -m bench.papers.channel_figures
    # the paper's data, if you have its files
    python -m bench.papers.channel_figures --data cifar:FOLDER
    # a figure from the JSON of the first
    python -m bench.papers.channel_figures --plot docs/images/channel.svg

One victim with 1,408 records trains an MLP (64 hidden units) by SGD with batches of 32 for 13
epochs, so that a record is used 13 times, as often as in the paper's 10,000 steps. Budgets keep the
paper's nats per coordinate. All channels, budgets and seeds of a data set are one program. Rows of
the JSON, by `figure`:

- trade_off: one defence at one budget: accuracy, attacks and scores, mean over seeds (Fig. 9-11,
  15, 16, 18-23)
- uses: the natural channel at the largest of its budgets, after fewer epochs (Fig. 12, 13, 24)
- large_batch: one image read from a batch's gradient, error to the batch's mean (Fig. 6)
- eigen_drop: records without one eigen-direction: nats that it had at variance 1, gradient
  inversion (Fig. 8)
- fewer_directions: the k largest directions dropped, and the noise that does the same to nats (Fig.
  7)

`inversion_mse` is model inversion against class means, median over classes; `gradient_*` inverts
the gradient of single records at the initial model; `auc` is membership by the loss. IMP_DRA in
`gdc` is of model inversion. A record's nats add its label's. DP noise is at equal nats by three
readings of Theorem 4: as printed (B / z^2 per step), sound (B / (2 z^2)), and sound per record (1 /
(2 z^2)); steps in which a record takes part are counted as its uses. Bounds on digits are what they
would be for Gaussian records; on fields they are certified.
"""

import argparse
import dataclasses
import functools
import json
import math
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bench import _harness, _tables
from fljax import data, models
from fljax.accounting import information
from fljax.attacks import gradient_inversion, membership, metrics, model_inversion, shadow
from fljax.data import channel
from fljax.data.sources import fields
from fljax_kernels import add_gaussian_noise, per_example_grads

RECORDS, BATCH, EPOCHS, SEEDS, TARGETS = 1_408, 32, 13, 3, 30
RATE, CLIP, PSAC = 0.2, 1.0, 0.1
LOW, HIGH = (50, 100, 200, 300), (500, 800, 1000, 1500)  # the paper's budgets for 3,072 coordinates
EPOCHS_SHOWN = (2, 4, 9, 13)
SEARCH = gradient_inversion.Settings(num_iterations=300)
DP_READINGS = {"printed": BATCH, "sound": BATCH / 2, "per_record": 0.5}  # nats of one step at z = 1


class Task(NamedTuple):
    """One victim and what is public. values, covariance: of a record. gaussian: records have just
    this law.
    """

    name: str
    dataset: data.Dataset
    x: np.ndarray
    y: np.ndarray
    values: np.ndarray
    covariance: np.ndarray
    factor: np.ndarray
    gaussian: bool
    box: tuple[float, float]
    functionals: list[models.Functional]


@functools.cache
def task_of(name: str) -> Task:
    """By the name that `fljax.data.load` knows."""
    dataset = data.load(name)
    x, y, test = dataset.train["x"][:RECORDS], dataset.train["y"][:RECORDS], dataset.test["x"]
    shape = x.shape[1:]
    if name == "fields":
        values, rows = fields.spectrum(), fields.basis()
        covariance, factor = rows.T * values @ rows, (rows.T * np.sqrt(values)).astype(np.float32)
    else:
        public = test[:1000]
        values, covariance, factor = (
            channel.spectrum(public),
            channel.covariance(public),
            channel.data_factor(public),
        )
    functionals = [
        models.create(
            "mlp", example_shape=shape, num_classes=dataset.num_classes, key=jax.random.key(seed)
        )
        for seed in range(SEEDS)
    ]
    box = (float(test.min()), float(test.max()))
    return Task(name, dataset, x, y, values, covariance, factor, name == "fields", box, functionals)


class Setting(NamedTuple):
    """A defence at a budget. solved: None without noise."""

    defence: str
    kappa: float
    solved: information.Channel | None
    noise: channel.RecordNoise


def settings_of(task: Task) -> list[Setting]:
    """No defence, then three channels at all budgets; noises have one structure, so that they
    stack.
    """
    d = task.values.size
    ones, none = np.ones(d, np.float32), np.zeros_like(task.factor)
    source: Any = "declared" if task.gaussian else "public"
    shape = task.x.shape[1:]
    found = [
        Setting("none", math.inf, None, channel.RecordNoise(jnp.float32(-jnp.inf), ones, none))
    ]
    for kappa in (budget * d / 3072 for budget in (*LOW, *HIGH)):
        known: dict[str, Any] = {"nats": kappa, "covariance_source": source}
        natural = information.natural(task.values, **known)
        white = information.white(task.values, **known)
        mask = channel.eye_mask(shape)
        personal = information.personalized(task.covariance + 1e-4 * np.eye(d), mask, **known)
        for name, solved, weights, factor in (
            ("natural", natural, ones, none),
            ("white", white, ones * np.float32(white.floor), task.factor),
            ("personalized", personal, mask.astype(np.float32), none),
        ):
            noise = channel.RecordNoise(jnp.float32(solved.log_noise_var), weights, factor)
            found.append(Setting(name, kappa, solved, noise))
    return found


def stacked(trees: list[Any]) -> Any:
    """Leading axis over a list of trees."""
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *trees)


def epochs_of(step: Any, params: Any, key: jax.Array) -> Any:
    """Parameters after each epoch, leading axis EPOCHS; `step(params, rows, epoch) -> params`."""

    def epoch(params: Any, index: jax.Array) -> tuple[Any, Any]:
        rows = jax.random.permutation(jax.random.fold_in(key, index), RECORDS).reshape(-1, BATCH)
        after, _ = jax.lax.scan(lambda p, r: (step(p, r, index), None), params, rows)
        return after, after

    return jax.lax.scan(epoch, params, jnp.arange(EPOCHS))[1]


def train_channels(task: Task, settings: list[Setting]) -> Any:
    """Parameters `[settings, seeds, EPOCHS, ...]`."""
    loss = models.softmax_cross_entropy(task.functionals[0].apply)
    x, y = jnp.asarray(task.x), jnp.asarray(task.y)

    def one(noise: channel.RecordNoise, params: Any, key: jax.Array) -> Any:
        client_key = channel.client_keys(key, jnp.zeros(1, jnp.int32))[0]

        def step(params: Any, rows: jax.Array, epoch: jax.Array) -> Any:
            seen = channel.noisy(noise, x[rows], channel.record_keys(client_key, rows, epoch))
            mean = lambda p: jnp.mean(jax.vmap(loss, (None, 0))(p, {"x": seen, "y": y[rows]}))
            return jax.tree.map(lambda p, g: p - RATE * g, params, jax.grad(mean)(params))

        return epochs_of(step, params, key)

    noises = stacked([setting.noise for setting in settings])
    return mapped(one)(noises, *starts(task))


def train_private(task: Task, multipliers: np.ndarray, adaptive: np.ndarray) -> Any:
    """DP-SGD and, where `adaptive`, DP-PSAC: parameters `[settings, seeds, EPOCHS, ...]`."""
    loss = models.softmax_cross_entropy(task.functionals[0].apply)
    x, y = jnp.asarray(task.x), jnp.asarray(task.y)

    def one(setting: tuple[jax.Array, jax.Array], params: Any, key: jax.Array) -> Any:
        multiplier, psac = setting

        def weights(norms: jax.Array) -> jax.Array:
            plain = jnp.minimum(1.0, CLIP / jnp.maximum(norms, 1e-12))
            return jnp.where(psac, CLIP / (norms + PSAC / (norms + PSAC)), plain)

        def step(params: Any, rows: jax.Array, epoch: jax.Array) -> Any:
            total, _ = per_example_grads(loss)(params, {"x": x[rows], "y": y[rows]}).weighted_sum(
                weights
            )
            draw = jax.random.fold_in(jax.random.fold_in(key, epoch + EPOCHS), rows[0])
            noisy = add_gaussian_noise(draw, total, multiplier * CLIP)
            return jax.tree.map(lambda p, g: p - RATE * g / BATCH, params, noisy)

        return epochs_of(step, params, key)

    return mapped(one)(
        (jnp.asarray(multipliers, jnp.float32), jnp.asarray(adaptive)), *starts(task)
    )


def mapped(one: Any) -> Any:
    """Over settings, then seeds."""
    return jax.jit(jax.vmap(jax.vmap(one, (None, 0, 0)), (0, None, None)))


def starts(task: Task) -> tuple[Any, jax.Array]:
    """First parameters and keys of the seeds."""
    keys = jax.random.split(jax.random.key(77, impl="threefry2x32"), SEEDS)
    return stacked([functional.params for functional in task.functionals]), keys


def judged(task: Task, params: Any) -> dict[str, np.ndarray]:
    """Accuracy, error of model inversion and area of membership of models `[M, ...]`: each
    `[M]`.
    """
    apply = task.functionals[0].apply
    test = {name: jnp.asarray(leaf[:1000]) for name, leaf in task.dataset.test.items()}
    start = jnp.asarray(test["x"].mean(axis=0))
    classes = task.dataset.num_classes

    @jax.jit
    def look(params: Any) -> tuple[jax.Array, jax.Array]:
        def hits(p):
            return jnp.mean(jnp.argmax(jax.vmap(apply, (None, 0))(p, test["x"]), -1) == test["y"])

        invert = lambda p: model_inversion.invert(apply, p, start, classes, box=task.box)
        return jax.vmap(hits)(params), jax.vmap(invert)(params)

    accuracy, inverted = look(params)
    count = min(len(test["y"]), RECORDS)
    scores = [
        membership.loss_threshold(
            shadow.confidences(apply, params, part["x"][:count], part["y"][:count])
        )
        for part in ({"x": jnp.asarray(task.x), "y": jnp.asarray(task.y)}, test)
    ]
    areas = [metrics.auc(inside, outside) for inside, outside in zip(*scores, strict=True)]
    errors = [model_inversion.error(images, task.x, task.y) for images in np.asarray(inverted)]
    return {
        "accuracy": np.asarray(accuracy),
        "inversion_mse": np.asarray(errors),
        "auc": np.asarray(areas),
    }


@functools.cache
def searcher(name: str) -> Any:
    """(observe, search): gradients of batches, and images from gradients; compiled once for each
    shape.
    """
    task = task_of(name)
    functional = task.functionals[0]
    observe = gradient_inversion.gradient(gradient_inversion.soft_cross_entropy(functional.apply))
    settings = dataclasses.replace(SEARCH, box=task.box)

    @jax.jit
    def search(observed: Any, labels: jax.Array) -> jax.Array:
        key, shape = jax.random.key(5, impl="threefry2x32"), (1, *task.x.shape[1:])
        return gradient_inversion.invert(
            observe, functional.params, observed, labels, key, shape=shape, settings=settings
        ).x[:, 0]

    return jax.jit(lambda x, y: jax.vmap(observe, (None, 0, 0))(functional.params, x, y)), search


def invert_gradients(task: Task, seen: Any, truth: Any, y: Any) -> dict[str, np.ndarray]:
    """Inverts gradients of batches `seen` `[T, B, ...]` with labels y `[T, B]` for one image each,
    against `truth`.

    The image's label is the batch's mix of labels. Returns mse, psnr, ssim, each `[T]`.
    """
    observe, search = searcher(task.name)
    labels = jax.nn.one_hot(jnp.asarray(y), task.dataset.num_classes)
    found = search(observe(jnp.asarray(seen), labels), labels.mean(axis=1, keepdims=True))
    wide, truth = task.box[1] - task.box[0], jnp.asarray(truth)
    return {
        "mse": np.asarray(jax.vmap(metrics.mse)(found, truth)),
        "psnr": np.asarray(
            jax.vmap(lambda a, b: metrics.psnr(a, b, data_range=wide))(found, truth)
        ),
        "ssim": np.asarray(
            jax.vmap(lambda a, b: metrics.ssim(a, b, data_range=wide))(found, truth)
        ),
    }


def gradients_through(task: Task, settings: list[Setting]) -> dict[str, np.ndarray]:
    """Gradient inversion of TARGETS single records behind each setting's noise: means
    `[settings]`.
    """
    x, y = task.x[:TARGETS], task.y[:TARGETS]
    client_key = channel.client_keys(
        jax.random.key(6, impl="threefry2x32"), jnp.zeros(1, jnp.int32)
    )[0]
    keys = channel.record_keys(client_key, jnp.arange(TARGETS), 0)
    seen = jax.jit(jax.vmap(channel.noisy, (0, None, None)))(
        stacked([s.noise for s in settings]), jnp.asarray(x), keys
    )
    every = (len(settings), *[1] * x.ndim)
    found = invert_gradients(
        task,
        seen.reshape(-1, 1, *x.shape[1:]),
        np.tile(x, every).reshape(-1, *x.shape[1:]),
        np.tile(y, every[0])[:, None],
    )
    return {
        name: values.reshape(len(settings), TARGETS).mean(axis=1) for name, values in found.items()
    }


def claims(task: Task, setting: Setting, uses: int) -> dict[str, Any]:
    """Nats and the error that they leave, label included."""
    if setting.solved is None:
        return {"nats": None}
    model: Any = "gaussian" if task.gaussian else "unknown"
    labels = information.label_entropy(task.dataset.num_classes)
    leakage = information.after_uses(setting.solved, uses, label_nats=labels)
    bound = information.distortion_rate(leakage, task.values, data_model=model)
    return {
        "nats": round(leakage.nats, 3),
        "bound_mse": bound.mse,
        "bound_certified": bound.certified,
    }


def scored(rows: list[dict[str, Any]], of: dict[str, Any]) -> None:
    """Adds the scores of a defence against the row `of` without one."""
    for row in rows:
        row["imp_mia"] = round(metrics.imp_mia(of["auc"], row["auc"]), 4)
        row["imp_dra"] = round(metrics.imp_dra(of["inversion_mse"], row["inversion_mse"]), 4)
        row["gdc"] = round(metrics.gdc(row["imp_mia"], row["imp_dra"]), 4)


def trade_offs(task: Task) -> list[dict[str, Any]]:
    """Rows trade_off and uses."""
    settings = settings_of(task)
    params = train_channels(task, settings)
    picked = jnp.asarray(EPOCHS_SHOWN) - 1
    shown = jax.tree.map(lambda leaf: leaf[:, :, picked].reshape(-1, *leaf.shape[3:]), params)
    outcome = {
        name: values.reshape(len(settings), SEEDS, len(EPOCHS_SHOWN))
        for name, values in judged(task, shown).items()
    }
    through = gradients_through(task, settings)
    rows = []
    for s, setting in enumerate(settings):
        for e, epochs in enumerate(EPOCHS_SHOWN):
            last = epochs == EPOCHS
            if not last and not (
                setting.defence == "none" or (setting.defence, s) == ("natural", 3 * len(LOW) - 2)
            ):
                continue
            row: dict[str, Any] = {
                "figure": "trade_off" if last else "uses",
                "dataset": task.dataset.name,
            }
            row |= {
                "defence": setting.defence,
                "kappa": None if setting.solved is None else round(setting.kappa, 3),
            }
            row |= {"epochs": epochs, **claims(task, setting, epochs)}
            row |= summary({name: values[s, :, e] for name, values in outcome.items()})
            if last:
                row |= {
                    f"gradient_{name}": round(float(values[s]), 5)
                    for name, values in through.items()
                }
                row["one_use"] = claims(task, setting, 1)
            rows.append(row)
    for epochs in EPOCHS_SHOWN:
        own = [row for row in rows if row["epochs"] == epochs]
        scored(own, next(row for row in own if row["defence"] == "none"))
    return rows


def summary(values: dict[str, np.ndarray]) -> dict[str, Any]:
    """Means over seeds; the standard deviation of accuracy beside."""
    found = {name: round(float(np.mean(seeds)), 5) for name, seeds in values.items()}
    return found | {"accuracy_sd": round(float(np.std(values["accuracy"], ddof=1)), 5)}


def private_rows(task: Task, plain: dict[str, Any]) -> list[dict[str, Any]]:
    """DP-SGD and DP-PSAC at the natural channel's budgets, by each reading of Theorem 4."""
    cases = [
        (name, reading, kappa, math.sqrt(nats / kappa))
        for name in ("dp_sgd", "dp_psac")
        for reading, nats in DP_READINGS.items()
        for kappa in (budget * task.values.size / 3072 for budget in LOW)
    ]
    params = train_private(
        task, np.array([c[3] for c in cases]), np.array([c[0] == "dp_psac" for c in cases])
    )
    last = jax.tree.map(lambda leaf: leaf[:, :, -1].reshape(-1, *leaf.shape[3:]), params)
    outcome = {
        name: values.reshape(len(cases), SEEDS) for name, values in judged(task, last).items()
    }
    rows = [
        {
            "figure": "trade_off",
            "dataset": task.dataset.name,
            "defence": name,
            "reading": reading,
            "kappa": round(kappa, 3),
            "noise_multiplier": round(multiplier, 4),
            "epochs": EPOCHS,
            "nats": round(EPOCHS / (2 * multiplier**2), 3),
            **summary({key: values[at] for key, values in outcome.items()}),
        }
        for at, (name, reading, kappa, multiplier) in enumerate(cases)
    ]
    scored(rows, plain)
    return rows


def large_batches(task: Task) -> list[dict[str, Any]]:
    """Fig. 6: the mean of a batch from its gradient, without noise and with a constant one on the
    mean's records.
    """
    rows, rng = [], np.random.default_rng(9)
    for size in (1, 4, 16, 64):
        picks = rng.integers(0, RECORDS, (TARGETS, size))
        clean = task.x[picks]
        for noise in (0.0, 0.1):
            # Noise of this variance on the mean of the batch, whatever its size.
            seen = clean + rng.normal(size=clean.shape).astype(np.float32) * np.float32(
                math.sqrt(noise * size)
            )
            found = invert_gradients(task, seen, clean.mean(axis=1), task.y[picks])
            nats = 0.5 * float(np.log1p(task.values / (size * noise)).sum()) if noise else None
            row = {
                "figure": "large_batch",
                "dataset": task.dataset.name,
                "batch": size,
                "noise_var": noise,
                "nats": nats,
            }
            rows.append(
                row | {name: round(float(values.mean()), 5) for name, values in found.items()}
            )
    return rows


def eigen_drops(task: Task) -> list[dict[str, Any]]:
    """Fig. 8 by attack, Fig. 7 in closed form."""
    order = np.argsort(-task.values, kind="stable")
    vectors = np.linalg.eigh(task.covariance)[1][:, ::-1]
    x, rows = task.x[:TARGETS].reshape(TARGETS, -1), []
    centred = x - task.dataset.test["x"].reshape(-1, x.shape[1]).mean(axis=0)
    for at in (None, 0, 1, 10):
        part = x if at is None else x - np.outer(centred @ vectors[:, at], vectors[:, at])
        seen = part.reshape(TARGETS, 1, *task.x.shape[1:]).astype(np.float32)
        found = invert_gradients(task, seen, task.x[:TARGETS], task.y[:TARGETS, None])
        value = None if at is None else float(task.values[order[at]])
        row = {
            "figure": "eigen_drop",
            "dataset": task.dataset.name,
            "direction": at,
            "eigenvalue": value,
        }
        row["nats_dropped_at_variance_1"] = None if value is None else 0.5 * math.log1p(value)
        rows.append(row | {name: round(float(values.mean()), 5) for name, values in found.items()})
    whole = task.values[order]
    for dropped in (1, 2, 4, 8, 16):
        nats = 0.5 * float(np.log1p(whole[dropped:] / 0.1).sum())
        same = information.natural(whole, nats=nats, covariance_source="public").noise_var
        row = {
            "figure": "fewer_directions",
            "dataset": task.dataset.name,
            "dropped": dropped,
            "noise_var": 0.1,
        }
        rows.append(
            row | {"nats": round(nats, 4), "noise_var_of_equal_nats": round(float(same), 5)}
        )
    return rows


def plot(path: str) -> None:
    """Accuracy and gradient inversion against budget, and the plane of accuracy and defence, from
    the results.
    """
    import matplotlib
    from matplotlib.figure import Figure

    rows = json.loads((_harness.RESULTS / "channel_figures-cpu.json").read_text())["rows"]
    rows = [row for row in rows if row["figure"] == "trade_off"]
    names = sorted({row["dataset"] for row in rows})
    figure = Figure(figsize=(11, 3.4 * len(names)), layout="constrained")
    panels = figure.subplots(len(names), 3, squeeze=False)
    for (left, middle, right), dataset in zip(panels, names, strict=True):
        own = [row for row in rows if row["dataset"] == dataset]
        plain = next(row for row in own if row["defence"] == "none")
        left.axhline(plain["accuracy"], color="0.6", linestyle=":", label="no defence")
        middle.axhline(plain["gradient_mse"], color="0.6", linestyle=":", label="no defence")
        for defence, marker in zip(("natural", "white", "personalized"), "osv", strict=True):
            found = [row for row in own if row["defence"] == defence]
            kappa = [row["kappa"] for row in found]
            bars = [row["accuracy_sd"] for row in found]
            left.errorbar(
                kappa,
                [row["accuracy"] for row in found],
                bars,
                marker=marker,
                capsize=3,
                label=defence,
            )
            middle.plot(kappa, [row["gradient_mse"] for row in found], marker=marker, label=defence)
            right.plot(
                [r["gdc"] for r in found],
                [r["accuracy"] for r in found],
                marker=marker,
                label=defence,
            )
        bound = [row for row in own if row["defence"] == "natural"]
        standing = (
            "bound, certified" if bound[0]["one_use"]["bound_certified"] else "bound for Gaussians"
        )
        limits = [row["one_use"]["bound_mse"] for row in bound]
        middle.plot([row["kappa"] for row in bound], limits, "k--", label=standing)
        for defence, marker in (("dp_sgd", "x"), ("dp_psac", "+")):
            for reading, colour in (("sound", "tab:red"), ("per_record", "tab:purple")):
                found = [
                    row
                    for row in own
                    if row["defence"] == defence and row.get("reading") == reading
                ]
                words = f"{defence}, {reading.replace('_', ' ')}"
                points = [row["gdc"] for row in found], [row["accuracy"] for row in found]
                right.plot(*points, marker=marker, color=colour, linewidth=0.7, label=words)
        left.set(xscale="log", xlabel="nats per use", ylabel="test accuracy", title=dataset)
        middle.set(
            xscale="log",
            yscale="log",
            xlabel="nats per use",
            ylabel="squared error of gradient inversion",
        )
        right.set(xlabel="defence capability (GDC)", ylabel="test accuracy")
        left.legend(fontsize=8)
        middle.legend(fontsize=8)
        right.legend(fontsize=7)
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "fljax"}):
        figure.savefig(path, format="svg", metadata={"Date": None})


COLUMNS = (
    "defence",
    "reading",
    "kappa",
    "nats",
    "accuracy",
    "accuracy_sd",
    "inversion_mse",
    "gradient_mse",
    "gradient_psnr",
    "gradient_ssim",
    "auc",
    "gdc",
)


def table(rows: _tables.Rows) -> str:
    """Accuracy and attacks, defence by defence: each at the least and the greatest budget that the
    paper gives it.
    """
    body = []
    for row in rows:
        if (
            row["figure"] != "trade_off"
            or row["defence"] == "dp_psac"
            or row.get("reading") == "printed"
        ):
            continue
        per_pixel = (row["kappa"] or 0) / {"digits": 64, "fields": 256}.get(row["dataset"], 3072)
        budgets = (500, 1500) if row["defence"] in ("white", "personalized") else (0, 50, 300)
        if not any(
            abs(per_pixel * 3072 / budget - 1) < 1e-2 if budget else not per_pixel
            for budget in budgets
        ):
            continue
        name = row["defence"] + (
            f", {row['reading'].replace('_', ' ')}" if row.get("reading") else ""
        )
        gradient = row.get("gradient_mse")
        body.append(
            [
                f"{row['dataset']}: {name}",
                "" if row["kappa"] is None else f"{row['kappa']:.2f}",
                "" if row["nats"] is None else f"{row['nats']:.1f}",
                f"{row['accuracy']:.1%}",
                "" if gradient is None else f"{gradient:.4f}",
                f"{row['one_use']['bound_mse']:.4f}" if row.get("one_use", {}).get("nats") else "",
                f"{row['inversion_mse']:.3f}",
                f"{row['auc']:.3f}",
                f"{row['gdc']:.2f}",
            ]
        )
    head = [
        "defence",
        "nats a use",
        "after 13",
        "accuracy",
        "gradient inversion",
        "bound",
        "model inversion",
        "AUC",
        "GDC",
    ]
    return _tables.markdown(head, body)


def main(arguments: list[str] | None = None) -> None:
    """Runs, prints tables, writes the JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", nargs="+", default=["digits", "fields"], help="digits, fields, cifar:FOLDER"
    )
    parser.add_argument("--name", default="channel_figures", help="of the JSON file")
    parser.add_argument("--plot", metavar="FILE.svg", help="draw from the results and stop")
    options = parser.parse_args(arguments)
    if options.plot:
        plot(options.plot)
        return
    start, rows = time.perf_counter(), []
    for name in options.data:
        task = task_of(name)
        new = trade_offs(task)
        print(f"{name}: channels after {time.perf_counter() - start:.0f} s", flush=True)
        plain = next(row for row in new if row["defence"] == "none" and row["epochs"] == EPOCHS)
        new += private_rows(task, plain)
        print(_harness.table([row for row in new if row["figure"] == "trade_off"], COLUMNS))
        others = large_batches(task) + eigen_drops(task)
        print(*others, f"{time.perf_counter() - start:.0f} s so far", sep="\n", flush=True)
        rows += new + others
        jax.clear_caches()
    path = _harness.write(options.name, rows, note=__doc__.splitlines()[0])
    print(f"wrote {path.relative_to(_harness.ROOT)}")


if __name__ == "__main__":
    main()
