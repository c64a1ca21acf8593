"""Which subject-level method learns most at the same TRUE privacy: all seven, on the same splits,
seeds and budget.

Everyone who gives a guarantee is granted the same epsilon for one subject's items in all silos,
add-or-remove-one, towards a server that sees every silo's update. FedAvg runs beside them without
any.
"""

import copy
import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax import _validate, accounting, data, models
from fljax.accounting.accountant import Method
from fljax.accounting.events import PrivacyEvent
from fljax.data import builtin
from fljax.papers import paper
from fljax.schemes.base import Scheme
from fljax.schemes.silos import (
    fedavg,
    higradavg,
    item_sum_cap,
    local_group_dp,
    local_item_dp,
    subject_sampled,
    user_ldp,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """One comparison; all but the seeds are public numbers."""

    dataset: str = "writers"
    """Builtin dataset with subjects: writers or roles."""
    model: str = "softmax"
    """softmax, mlp, cnn, leaf_cnn or lstm."""
    seeds: int = 3
    """How many runs of each method: split, model, samples and noise are drawn anew."""
    num_rounds: int = 30
    """Server rounds."""
    target_epsilon: float = 8.0
    """What everyone may spend on one subject, in all silos and rounds."""
    target_delta: float = 1e-3
    """delta that goes with it."""
    accountant: Method = "auto"
    """Who counts; pld allows a little less noise and takes minutes."""
    num_silos: int = 16
    """Silos, all in every round; each subject may lie in all of them."""
    num_local_steps: int = 2
    """Steps of a silo in one round."""
    item_sampling_prob: float = 0.1
    """Chance of each item to be in a step's batch."""
    max_items_per_subject: int = 4
    """Public cap on a subject's items in one silo; more are dropped at random."""
    items_per_subject: int = 2
    """Z: most items of a subject in one batch, for the two methods that cap batches."""
    l2_clip_norm: float = 0.5
    """Clipping norm of everyone."""
    learning_rate: float = 8.0
    """Local step size of the methods that divide a sum of clipped gradients."""
    fedavg_learning_rate: float = 2.0
    """Local step size of FedAvg."""
    user_ldp_learning_rate: float = 0.015
    """Local step size of UserLDP, whose noise is divided by nothing."""
    alphas: tuple[float, ...] = (4.0, 16.0)
    """Exponents of the power law by which subjects are spread, beside the even spread; one seed
    each.
    """

    def __post_init__(self) -> None:
        _validate.one_of([name for name in builtin.NAMES if name != "digits"], dataset=self.dataset)
        _validate.one_of(models.NAMES, model=self.model)
        _validate.positive_int(seeds=self.seeds, num_rounds=self.num_rounds)
        _validate.positive(target_epsilon=self.target_epsilon)
        _validate.open_unit(target_delta=self.target_delta)
        _validate.one_of(accounting.ACCOUNTANTS, accountant=self.accountant)
        object.__setattr__(self, "alphas", tuple(self.alphas))
        for alpha in self.alphas:
            _validate.positive(alphas=alpha)


class Contestant(NamedTuple):
    """label: in tables. scheme: its contract. config: its noise may be open. event: of one round,
    for a subject.
    """

    label: str
    scheme: Scheme
    config: Any
    event: Callable[[Any], PrivacyEvent]


class Result(NamedTuple):
    """One method. epsilon: true, for a subject; infinite for FedAvg. accuracy, loss: held out,
    `[seeds, num_rounds]`.

    skewed: final accuracy at each of `Settings.alphas`.
    """

    label: str
    config: Any
    epsilon: float
    accuracy: np.ndarray
    loss: np.ndarray
    skewed: tuple[float, ...]


NUM_METHODS = 7  # of `contestants`
_EVALUATED_AT_ONCE = 4096


def contestants(settings: Settings, train: dict[str, np.ndarray]) -> list[Contestant]:
    """The seven methods, in the paper's order, with those that it lacks where they belong; divisors
    are public guesses, rounded to two digits.
    """
    ids = train[data.subjects.SUBJECT]
    items = min(ids.size / settings.num_silos, np.unique(ids).size * settings.max_items_per_subject)
    held = items / np.unique(ids).size  # items of a subject in a silo, about
    present = -np.expm1(held * np.log1p(-min(settings.item_sampling_prob, 1 - 1e-9)))
    divisor: dict[str, Any] = {"expected_subjects": _two_digits(np.unique(ids).size * present)}
    silos: dict[str, Any] = {
        "num_parties": settings.num_silos,
        "num_local_steps": settings.num_local_steps,
        "item_sampling_prob": settings.item_sampling_prob,
    }
    private = silos | {
        "l2_clip_norm": settings.l2_clip_norm,
        "local_learning_rate": settings.learning_rate,
    }
    caps = private | {"max_items_per_subject": settings.max_items_per_subject}
    sums: dict[str, Any] = {"expected_items": _two_digits(items * settings.item_sampling_prob)}
    batches = caps | sums | {"items_per_subject": settings.items_per_subject}
    whole = caps | {
        "local_learning_rate": settings.user_ldp_learning_rate,
        "privacy_unit": "subject",
    }

    def items_of_a_subject(config: Any) -> PrivacyEvent:
        # LocalItemDP's own event speaks of items; at its true cost for a subject all are equal
        # before the budget.
        return local_item_dp.subject_event(
            config,
            max_items_per_subject=settings.max_items_per_subject,
            silos_per_subject=settings.num_silos,
        )

    plain = fedavg.Config(**silos, local_learning_rate=settings.fedavg_learning_rate)
    return [
        Contestant("FedAvg", fedavg.SCHEME, plain, fedavg.event),
        Contestant(
            "LocalItemDP",
            local_item_dp.SCHEME,
            local_item_dp.Config(**private, **sums),
            items_of_a_subject,
        ),
        Contestant(
            "LocalGroupDP",
            local_group_dp.SCHEME,
            local_group_dp.Config(**batches),
            local_group_dp.event,
        ),
        Contestant(
            "item sum, capped",
            item_sum_cap.SCHEME,
            item_sum_cap.Config(**batches),
            item_sum_cap.event,
        ),
        Contestant(
            "HiGradAvg",
            higradavg.SCHEME,
            higradavg.Config(**caps, **divisor),
            higradavg.event,
        ),
        # As many subjects in a batch as HiGradAvg has in the mean.
        Contestant(
            "sampled subjects",
            subject_sampled.SCHEME,
            subject_sampled.Config(**caps | divisor | {"item_sampling_prob": float(present)}),
            subject_sampled.event,
        ),
        Contestant("UserLDP", user_ldp.SCHEME, user_ldp.Config(**whole), user_ldp.event),
    ]


def _two_digits(value: float) -> float:
    return float(f"{max(1.0, value):.2g}")


def calibrated(contestant: Contestant, settings: Settings) -> tuple[Any, float]:
    """The contestant's config with the noise that spends the budget on a subject, and what it
    spends.
    """
    if contestant.config.noise_multiplier is not None:
        return contestant.config, float("inf")

    def run(noise: float) -> PrivacyEvent:
        config = dataclasses.replace(contestant.config, noise_multiplier=noise)
        return contestant.event(config).repeat(settings.num_rounds)

    goal: dict[str, Any] = {"epsilon": settings.target_epsilon, "delta": settings.target_delta}
    noise = accounting.calibrate(run, **goal, method=settings.accountant, tolerance=1e-3)
    spent = accounting.epsilon(run(noise), delta=settings.target_delta, method=settings.accountant)
    return dataclasses.replace(contestant.config, noise_multiplier=noise), spent


def table(settings: Settings, ids: np.ndarray, seed: int, alpha: float | None) -> np.ndarray:
    """Rows of each silo, int32 `[num_silos, N]`, -1 padding: spread evenly, or by the power law."""
    rng = np.random.default_rng(seed)
    if alpha is None:
        return data.subjects.uniform(ids, settings.num_silos, rng)
    return data.subjects.power_law(ids, settings.num_silos, rng, alpha=alpha)


def tables(settings: Settings, ids: np.ndarray, *, capped: bool) -> np.ndarray:
    """The splits of all runs, int32 `[seeds + alphas, num_silos, N]`: even ones by seed, then seed
    0 by the power law.

    capped: drop items above the cap at random beforehand, so that no method sees data that another
      must leave out.
    """
    found = []
    splits: list[tuple[int, float | None]] = [(seed, None) for seed in range(settings.seeds)]
    for seed, alpha in splits + [(0, alpha) for alpha in settings.alphas]:
        rows = table(settings, ids, seed, alpha)
        if capped:
            rng = np.random.default_rng([seed, 1])
            rows, _ = data.subjects.cap_items(
                ids, rows, max_items=settings.max_items_per_subject, rng=rng
            )
        found.append(rows)
    width = max(rows.shape[1] for rows in found)
    return np.stack(
        [np.pad(r, ((0, 0), (0, width - r.shape[1])), constant_values=-1) for r in found]
    )


def trainer(
    scheme: Scheme, config: Any, settings: Settings, dataset: data.Dataset, **options: Any
) -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    """`(seed, rows, rate=None) -> (accuracy, loss)`, each `[num_rounds]`; rate: local step size,
    else the config's; options: of the model.

    A whole run is one compiled program, which serves all seeds, splits and rates.
    """
    ids = dataset.train[data.subjects.SUBJECT]
    examples = jax.tree.map(jnp.asarray, dataset.train)
    test = jax.tree.map(jnp.asarray, {name: dataset.test[name] for name in ("x", "y")})
    shape = dataset.train["x"].shape[1:]

    def model(key: jax.Array) -> models.Functional:
        return models.create(
            settings.model,
            example_shape=shape,
            num_classes=dataset.num_classes,
            key=key,
            **options,
        )

    apply = model(jax.random.key(0)).apply
    silos = jnp.arange(settings.num_silos, dtype=jnp.int32)

    # Examples are arguments: as constants of the program, large data would be in memory many times.
    @jax.jit
    def run(
        params: Any, examples: Any, test: Any, rows: jax.Array, key: jax.Array, rate: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        rated = copy.copy(config)
        object.__setattr__(
            rated, "local_learning_rate", rate
        )  # a tracer, at which the config's checks cannot look
        algorithm = scheme.make(
            rated, models.softmax_cross_entropy(apply), num_units=int(ids.max()) + 1
        )

        def one_round(state: Any, _: None) -> tuple[Any, tuple[jax.Array, jax.Array]]:
            state = algorithm.round(state, data.Cohort(examples, rows, silos), key)[0]
            logits = jax.lax.map(
                lambda x: apply(state.params, x), test["x"], batch_size=_EVALUATED_AT_ONCE
            )
            picked = jnp.arange(dataset.num_classes)[None] == test["y"].astype(jnp.int32)[:, None]
            losses = -jnp.where(picked, jax.nn.log_softmax(logits), 0).sum(axis=1)
            return state, ((logits.argmax(-1) == test["y"]).mean(), losses.mean())

        return jax.lax.scan(one_round, algorithm.init(params), None, length=settings.num_rounds)[1]

    def train(
        seed: int, rows: np.ndarray, rate: float | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        init_key, key = jax.random.split(jax.random.key(seed, impl="threefry2x32"))
        rate = config.local_learning_rate if rate is None else rate
        params, given = model(init_key).params, jnp.asarray(rows)
        accuracy, loss = run(params, examples, test, given, key, jnp.float32(rate))
        return np.asarray(accuracy), np.asarray(loss)

    return train


def group_sizes(
    settings: Settings, ids: np.ndarray, alpha: float | None, *, draws: int = 20
) -> np.ndarray:
    """Largest number of items of one subject in a batch, int `[num_silos * draws]`: simulated on
    the data, no cap.
    """
    rows = table(settings, ids, 0, alpha)
    rng = np.random.default_rng(1)
    found = []
    for _ in range(draws):
        drawn = np.where(rng.random(rows.shape) < settings.item_sampling_prob, rows, -1)
        found.append(data.subjects.counts(ids, drawn).max(axis=0))
    return np.concatenate(found)


def run(settings: Settings, say: Callable[[str], None] = print) -> list[Result]:
    """Trains all seven, and tells `say` a line about each.

    Raises:
      ValueError: more silos than subjects, or a budget that no noise meets.
    """
    dataset = data.load(settings.dataset)
    ids = data.subjects.subject_ids(dataset.train)
    splits = {capped: tables(settings, ids, capped=capped) for capped in (False, True)}
    results = []
    for contestant in contestants(settings, dataset.train):
        config, epsilon = calibrated(contestant, settings)
        train = trainer(contestant.scheme, config, settings, dataset)
        own = splits[bool(np.isfinite(epsilon))]
        accuracy, loss = zip(
            *(train(seed, own[seed]) for seed in range(settings.seeds)), strict=True
        )
        skewed = tuple(float(train(0, rows)[0][-1]) for rows in own[settings.seeds :])
        results.append(
            Result(contestant.label, config, epsilon, np.stack(accuracy), np.stack(loss), skewed)
        )
        reached = paper.percent(results[-1].accuracy[:, -1])
        say(f"{contestant.label:<17} noise {config.noise_multiplier:6.3f}  accuracy {reached}")
    return results


def row(result: Result) -> dict[str, Any]:
    """The result as plain data for JSON; no guarantee is null."""
    finals = [round(float(value), 5) for value in result.accuracy[:, -1]]
    return {
        "method": result.label,
        "true epsilon": result.epsilon if np.isfinite(result.epsilon) else None,
        "noise multiplier": result.config.noise_multiplier,
        "learning rate": result.config.local_learning_rate,
        "accuracy": paper.percent(result.accuracy[:, -1]),
        "accuracies": finals,
        "accuracy at alphas": [round(value, 5) for value in result.skewed],
    }
