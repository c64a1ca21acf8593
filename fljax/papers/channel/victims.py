"""Victims that learn their records by heart, behind each defence at each budget: the networks that
arXiv:2403.01268 attacks in its figures 9 to 29.

One victim trains by SGD, once on its records as they are, and once with three labels of ten drawn
at random: a network that fits those tells who its members are, and without that an attack on
membership has nothing to lose. Budgets keep the paper's nats per coordinate. All channels, budgets
and seeds of one data set are one program, all of DP another.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fljax_kernels
from fljax import data, models
from fljax.accounting import information
from fljax.data import channel
from fljax.data.sources import fields
from fljax.papers.paper import Settings

LOW, HIGH = (50, 100, 200, 300), (500, 800, 1000, 1500)  # of 3,072 coordinates, section 6
CHANNELS = ("natural", "white", "personalized")
PRIVATE = ("DP-SGD", "DP-PSAC")
METHODS = ("paper", "sound")
CLIP, PSAC = 1.0, 0.1
WRONG = 0.3
PUBLIC, TESTED = 600, 800


class Size(NamedTuple):
    """Of a victim. epochs: after which it is looked at; as often has each record been used."""

    records: int
    batch: int
    rate: float
    epochs: tuple[int, ...]


def size(settings: Settings) -> Size:
    """Epochs are in the proportion of the paper's 1,666, 3,333, 6,666 and 10,000 steps."""
    records = 128 if settings.scale == "demo" else 256
    first, second, third, last = map(settings.rounds, (13, 27, 53, 80))
    return Size(records, 4, 0.05, (first, second, third, last))


def model_of(settings: Settings, shape: tuple[int, ...]) -> str:
    """LeNet at full size, where images are large enough for it."""
    return "lenet" if settings.scale == "full" and min(shape[:2]) >= 16 else "mlp"


def tasks(settings: Settings) -> tuple[str, ...]:
    """Names of data sets."""
    return ("digits", "fields") if settings.data is None else (f"cifar:{settings.data}",)


class Task(NamedTuple):
    """Records of all seeds, leading axis S, and what is public, the same for all.

    members, others: `{"x", "y"}` `[S, n, ...]`, some labels wrong if so asked. test: `[S, t, ...]`,
    with true labels. public: `[600, ...]`. values, covariance: of a record. factor: of the
    covariance. gaussian: records have just this law. box: range of the values.
    """

    name: str
    num_classes: int
    members: Any
    others: Any
    test: Any
    public: Any
    values: np.ndarray
    covariance: np.ndarray
    factor: np.ndarray
    gaussian: bool
    box: tuple[float, float]
    functionals: list[models.Functional]
    first_seed: int

    @property
    def apply(self) -> Any:
        """Of the model."""
        return self.functionals[0].apply

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a record."""
        return tuple(self.public["x"].shape[1:])


@functools.lru_cache(maxsize=4)
def task_of(name: str, settings: Settings, *, wrong: bool) -> Task:
    """Each seed has its own records and model, and its own wrong labels where there are some."""
    dataset, wanted = data.load(name), size(settings)
    pool = {
        key: np.concatenate([dataset.train[key], dataset.test[key]])[
            np.random.default_rng(0).permutation(len(dataset.train["y"]) + len(dataset.test["y"]))
        ]
        for key in ("x", "y")
    }
    public = {key: leaf[:PUBLIC] for key, leaf in pool.items()}
    parts: dict[str, list[Any]] = {"members": [], "others": [], "test": []}
    for seed in settings.each_seed:
        rng = np.random.default_rng(seed + 1)
        rows = PUBLIC + rng.permutation(len(pool["y"]) - PUBLIC)
        cuts = np.cumsum([wanted.records, wanted.records, TESTED])
        for part, places in zip(parts, np.split(rows, cuts), strict=False):
            y = pool["y"][places]
            if wrong and part != "test":
                drawn = rng.integers(0, dataset.num_classes, y.shape).astype(y.dtype)
                y = np.where(rng.random(y.shape) < WRONG, drawn, y)
            parts[part].append({"x": pool["x"][places], "y": y})
    if name == "fields":
        values, basis = fields.spectrum(), fields.basis()
        covariance = (basis.T * values) @ basis
        factor = (basis.T * np.sqrt(values)).astype(np.float32)
    else:
        values = channel.spectrum(public["x"])
        covariance, factor = channel.covariance(public["x"]), channel.data_factor(public["x"])
    functionals = [
        models.create(
            model_of(settings, public["x"].shape[1:]),
            example_shape=public["x"].shape[1:],
            num_classes=dataset.num_classes,
            key=jax.random.key(seed, impl="threefry2x32"),
        )
        for seed in settings.each_seed
    ]
    box = (float(public["x"].min()), float(public["x"].max()))
    members, others, test = (stacked(batches) for batches in parts.values())
    return Task(
        name.split(":")[0],
        dataset.num_classes,
        members,
        others,
        test,
        {key: jnp.asarray(leaf) for key, leaf in public.items()},
        values,
        covariance,
        factor,
        name == "fields",
        box,
        functionals,
        settings.first_seed,
    )


def stacked(trees: Sequence[Any]) -> Any:
    """Leading axis over a list of trees."""
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *trees)


class Case(NamedTuple):
    """A defence at a budget: the paper's nats for 3,072 coordinates, and those of this data set.

    solved: of a channel. multiplier: of DP's noise. method: by which its nats are counted.
    """

    defence: str
    budget: int = 0
    kappa: float = math.inf
    solved: information.Channel | None = None
    noise: channel.RecordNoise | None = None
    method: Literal["", "paper", "sound"] = ""
    multiplier: float = 0.0

    @property
    def name(self) -> str:
        """Of its row."""
        counted = f", {self.method}" if self.method else ""
        return f"{self.defence}{counted}, {self.budget}" if self.budget else self.defence


def channels(task: Task) -> list[Case]:
    """No defence, then three channels at all budgets; noises have one structure, so that they
    stack.
    """
    d = task.values.size
    ones, none = jnp.ones(d), jnp.zeros(task.factor.shape)
    mask = channel.eye_mask(task.shape)
    found = [Case("none", noise=channel.RecordNoise(jnp.float32(-jnp.inf), ones, none))]
    for defence in CHANNELS:
        for budget in (*LOW, *HIGH):
            kappa = budget * d / 3072
            known: dict[str, Any] = {"nats": kappa}
            known["covariance_source"] = "declared" if task.gaussian else "public"
            if defence == "natural":
                solved, shape = information.natural(task.values, **known), (ones, none)
            elif defence == "white":
                solved = information.white(task.values, **known)
                shape = ones * np.float32(solved.floor), jnp.asarray(task.factor)
            else:
                lifted = task.covariance + 1e-4 * np.eye(d)
                solved = information.personalized(lifted, mask, **known)
                shape = jnp.asarray(mask, jnp.float32), none
            noise = channel.RecordNoise(jnp.float32(solved.log_noise_var), *shape)
            found.append(Case(defence, budget, kappa, solved, noise))
    return found


def private(task: Task, batch: int) -> list[Case]:
    """DP-SGD and DP-PSAC, whose steps tell the low budgets: by Theorem 4 as printed, B / z^2 nats,
    about a batch; or by what holds about a record, as a channel's budget does, 1 / (2 z^2).
    """
    ways: dict[Literal["paper", "sound"], float] = {"paper": batch, "sound": 0.5}
    return [
        Case(name, budget, kappa, method=method, multiplier=math.sqrt(at_one / kappa))
        for name in PRIVATE
        for method, at_one in ways.items()
        for budget, kappa in ((budget, budget * task.values.size / 3072) for budget in LOW)
    ]


def _advanced(task: Task, wanted: Size, step: Any, given: Any) -> list[Any]:
    """Parameters `[cases, S, ...]` after each of `wanted.epochs`; `step(setting, params, batch,
    rows, epoch, key) -> params`.
    """

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(0, 0, None, None, None, None))
    @functools.partial(jax.vmap, in_axes=(None, 0, 0, 0, None, None))
    def run(given: Any, params: Any, members: Any, key: jax.Array, first: Any, last: Any) -> Any:
        def epoch(index: jax.Array, params: Any) -> Any:
            order = jax.random.permutation(jax.random.fold_in(key, index), wanted.records)

            def one(params: Any, rows: jax.Array) -> tuple[Any, None]:
                batch = jax.tree.map(lambda leaf: leaf[rows], members)
                return step(given, params, batch, rows, index, key), None

            return jax.lax.scan(one, params, order.reshape(-1, wanted.batch))[0]

        return jax.lax.fori_loop(first, last, epoch, params)

    count, seeds = len(jax.tree.leaves(given)[0]), len(task.functionals)
    keys = jax.random.split(jax.random.key(77 + task.first_seed, impl="threefry2x32"), seeds)
    params = jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf, (count, *leaf.shape)),
        stacked([functional.params for functional in task.functionals]),
    )
    found = []
    for first, last in zip((0, *wanted.epochs), wanted.epochs, strict=False):
        params = run(given, params, task.members, keys, first, last)
        found.append(params)
    return found


def _loss(task: Task) -> Any:
    # Steps are a loop, where XLA's convolutions are slow on a CPU.
    loss = models.softmax_cross_entropy(task.apply)
    return fljax_kernels.loop_friendly(loss, inside_loop=True)


def train_channels(task: Task, cases: Sequence[Case], wanted: Size) -> list[Any]:
    """Parameters `[cases, S, ...]` after each of `wanted.epochs`, of noisy records alone.

    White channels alone have noise with a factor, whose products would be most of the others' work.
    """
    loss = _loss(task)

    def step(noise: Any, params: Any, batch: Any, rows: Any, epoch: Any, key: Any) -> Any:
        client_key = channel.client_keys(key, jnp.zeros(1, jnp.int32))[0]
        seen = channel.noisy(noise, batch["x"], channel.record_keys(client_key, rows, epoch))
        mean = lambda p: jnp.mean(jax.vmap(loss, (None, 0))(p, batch | {"x": seen}))
        return jax.tree.map(lambda p, g: p - wanted.rate * g, params, jax.grad(mean)(params))

    white = [at for at, case in enumerate(cases) if case.defence == "white"]
    others = [at for at in range(len(cases)) if at not in white]
    noises: list[Any] = [case.noise for case in cases]
    parts = [[noises[at] for at in white], [noises[at]._replace(factor=None) for at in others]]
    found = [_advanced(task, wanted, step, stacked(part)) for part in parts if part]
    order = np.argsort([*white, *others])
    joined = lambda *leaves: jnp.concatenate(leaves)[order]
    return [jax.tree.map(joined, *several) for several in zip(*found, strict=True)]


def train_private(task: Task, cases: Sequence[Case], wanted: Size) -> list[Any]:
    """The same for DP-SGD and DP-PSAC."""
    loss = _loss(task)

    def step(given: Any, params: Any, batch: Any, rows: Any, epoch: Any, key: Any) -> Any:
        multiplier, adaptive = given

        def weights(norms: jax.Array) -> jax.Array:
            plain = jnp.minimum(1.0, CLIP / jnp.maximum(norms, 1e-12))
            return jnp.where(adaptive, CLIP / (norms + PSAC / (norms + PSAC)), plain)

        total, _ = fljax_kernels.per_example_grads(loss)(params, batch).weighted_sum(weights)
        draw = jax.random.fold_in(jax.random.fold_in(key, epoch + wanted.epochs[-1]), rows[0])
        noisy = fljax_kernels.add_gaussian_noise(draw, total, multiplier * CLIP)
        return jax.tree.map(lambda p, g: p - wanted.rate * g / wanted.batch, params, noisy)

    multipliers = jnp.asarray([case.multiplier for case in cases], jnp.float32)
    adaptive = jnp.asarray([case.defence == "DP-PSAC" for case in cases])
    return _advanced(task, wanted, step, (multipliers, adaptive))


def nats_after(task: Task, case: Case, uses: int) -> float | None:
    """Of a record with its label, after so many uses; None without a defence.

    DP's add up: each of the steps that it took part in.
    """
    if case.solved is not None:
        labels = information.label_entropy(task.num_classes)
        return float(information.after_uses(case.solved, uses, label_nats=labels).nats)
    return uses / (2 * case.multiplier**2) if case.multiplier else None


def taken(params: Any, places: Sequence[int]) -> Any:
    """Parameters of the cases at `places`."""
    return jax.tree.map(lambda leaf: leaf[jnp.asarray(places)], params)
