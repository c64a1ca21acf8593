"""What `fljax attack --attack lira` (or rmia, ...) does once its flags are good: models through a
scheme, an attack on who was trained on, bounds, a report.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax import attacks, models, schemes
from fljax.accounting import words
from fljax.attacks import rounds, shadow, table, trained
from fljax.cli import _attack_noise, _own, _run_files
from fljax.models import tasks
from fljax.simulation.report import attack_figures, run_page

TITLE = "Membership"
HEAD = (
    "epsilon",
    "noise",
    "AUC",
    "largest AUC",
    *(f"TPR at {100 * fpr:g} % FPR" for fpr in trained.FPRS),
    "accuracy on members",
    "on others",
    "verdict",
)
_WRONG_LABELS, _HIDDEN = 0.2, (32,)
_TRYING = 2**31 - 1  # of the key: behind all budgets
_OF_A_PERSON = 4  # examples, which are dealt to clients in turn
# Of training, from the largest: whether models memorise by a rate depends on the scheme's steps.
RATES = {"classes": (2.0, 0.6, 0.2), "tokens": (0.4,)}


class Line(NamedTuple):
    """One budget; infinite: without noise. auc, rates: of the attack on the target. bound: the
    largest area that is certified. accuracies: of the target, on its members and on the rest of the
    pool. holds: the area is within the bound, beyond chance; None where no area could have been
    past it.
    """

    budget: float
    noise: float
    auc: float
    bound: float
    rates: tuple[trained.Rate, ...]
    member_accuracy: float
    other_accuracy: float
    holds: bool | None


class Found(NamedTuple):
    """lines: without noise, then one a budget. bound: what it bounds. standing: of that."""

    lines: list[Line]
    bound: str = "area at most"
    standing: str = "certified"


def run(options: Any, own: _own.Own | None, say: Callable[[str], None]) -> Found:
    """The attack without noise and at every budget, or with the noise of `own`; target and shadow
    models of a budget are one program.

    Raises:
      ValueError: a budget cannot be reached, or the data have no classes or too few examples.
    """
    scheme = schemes.get(options.scheme)
    pool, population, rest, task, num_classes = _pool(options, own)
    size = len(pool["y"]) + len(rest["y"])
    root = jax.random.key(options.seed, impl="threefry2x32")
    texts = task == "tokens"
    if texts and options.attack in trained.OF_CLASSES:
        raise ValueError(
            f"Expected a dataset of classes for {options.attack}, got dataset={options.dataset!r} "
            "of text."
        )
    if options.attack == "lira_of_views" and pool["x"].ndim != 4:
        raise ValueError(
            f"Expected a dataset of images for lira_of_views, got dataset={options.dataset!r}."
        )
    given = {"hidden": _HIDDEN} if options.model == "mlp" else {}
    sizes, base = _own.model(options.model, options.lora, own, **given)
    model = models.create(
        options.model,
        example_shape=pool["x"].shape[1:],
        num_classes=num_classes,
        key=jax.random.fold_in(root, 0),
        lora=options.lora,
        base=base,
        **sizes,
    )
    loss = (models.next_token if texts else models.softmax_cross_entropy)(model.apply)
    subjects = None
    if options.attack in attacks.OF_SUBJECTS:
        subjects = np.arange(options.pool) // _OF_A_PERSON
    units = options.pool if subjects is None else int(subjects[-1]) + 1
    # One pair more, less one: the target is nobody's complement.
    included = shadow.halves(jax.random.fold_in(root, 1), options.shadows + 2, units)[1:]
    if options.attack in trained.ALONE:
        included = included[:1]
    if subjects is not None:
        included = included[:, subjects]
    passing = options.attack in trained.EVERY_ROUND
    everybody = {name: jnp.concatenate([pool[name], rest[name]]) for name in pool}
    always = jnp.ones((len(included), len(rest["y"])), bool)

    def train(config: Any, models: slice, key: jax.Array) -> Any:
        return trained.models(
            options.scheme,
            config,
            loss,
            model.params,
            everybody,
            jnp.concatenate([included, always], axis=1)[models],
            jax.random.split(key, len(included))[models],
            num_rounds=options.num_rounds,
            subjects=subjects,
            every_round=passing,
        )

    def last(params: Any) -> Any:
        """After the last round."""
        return jax.tree.map(lambda leaf: leaf[:, -1], params) if passing else params

    def told_right(params: Any) -> np.ndarray:
        """Which examples of the pool model 0 tells."""
        target = jax.tree.map(lambda leaf: leaf[0], params)
        outputs = jax.vmap(model.apply, (None, 0))(target, pool["x"])
        return np.asarray(jax.vmap(tasks.TASKS[task].of_one)(outputs, pool["y"]))

    def memorised(rate: float) -> float:
        """Without noise, of the target's members."""
        bare = training(options, scheme, own, size, rate)
        key = jax.random.fold_in(root, _TRYING)
        params = train(dataclasses.replace(bare, noise_multiplier=0.0), slice(1), key)
        return float(told_right(last(params))[np.asarray(included[0])].mean())

    rates = RATES[task] if options.learning_rate is None else (options.learning_rate,)
    rate = max(rates, key=memorised) if own is None and len(rates) > 1 else rates[0]
    start = training(options, scheme, own, size, rate)

    def line(place: int, budget: float, noise: float, event: Any) -> Line:
        key = jax.random.fold_in(root, 2 + place)
        config = dataclasses.replace(start, noise_multiplier=noise)
        passed = train(config, slice(None), key)
        params, inside = last(passed), np.asarray(included)
        given = trained.Trained(
            model.apply,
            params,
            pool,
            inside,
            population,
            passed=passed if passing else None,
            loss=loss,
            subjects=subjects,
        )
        found = trained.attacked(options.attack, given, jax.random.fold_in(key, 1), event)
        right = told_right(params)
        groups = int(min(found.members.sum(), (~found.members).sum()))
        return Line(
            budget=float(budget),
            noise=noise,
            auc=found.auc,
            bound=found.largest_auc,
            rates=found.rates,
            member_accuracy=float(right[inside[0]].mean()),
            other_accuracy=float(right[~inside[0]].mean()),
            holds=within(found.auc, found.largest_auc, groups),
        )

    noisy = _attack_noise.noises(
        scheme, start, options.budgets, num_rounds=options.num_rounds, delta=options.delta
    )
    lines = [line(len(noisy), math.inf, 0.0, None)]
    say(f"without noise: {len(included)} models trained and attacked")
    for place, (budget, noise, event) in enumerate(noisy):
        lines.append(line(place, budget, noise, event))
        told = f"epsilon {words.at_most(budget)}: {len(included)} models trained and attacked"
        if lines[-1].holds is None:
            cannot = f"{options.pool} examples prove no area above {lines[-1].bound:.3g}"
            told += f"; cannot tell: {cannot}"
        say(told)
    return Found(lines)


def within(auc: float, bound: float, num: int) -> bool | None:
    """Whether an area is at most `bound`, up to three standard errors; None where not even an area
    of 1 would be above.

    If the true area is `bound`, the variance of one that is counted on groups of `num` examples and
    more is at most bound (1 - bound) / num, for examples that are independent. Those of one target
    model are not quite.
    """
    slack = 3 * math.sqrt(bound * (1 - bound) / num)
    return None if 1 - slack <= bound else auc - slack <= bound


def training(options: Any, scheme: Any, own: _own.Own | None, size: int, rate: float) -> Any:
    """One local step at this rate, no momentum, no cohorts, or all as `own` has it; and clients
    that have room for so many examples.
    """
    names = {field.name for field in dataclasses.fields(scheme.Config)}
    where = "local_learning_rate" if "local_learning_rate" in names else "server_learning_rate"
    changes: dict[str, Any] = {where: rate} if own is None else {}
    if "sampling_prob" in names and own is None:
        changes["sampling_prob"] = 1.0
    if "records_per_client" in names:
        found = rounds.config(options.scheme, noise_multiplier=1.0) if own is None else own.config
        num_clients = scheme.population(found).num_clients or 2
        changes["records_per_client"] = -(-size // num_clients)
    if own is not None:
        return dataclasses.replace(own.config, **changes)
    return rounds.config(options.scheme, noise_multiplier=1.0, **changes)


def _pool(
    options: Any, own: _own.Own | None
) -> tuple[dict[str, jax.Array], dict[str, jax.Array], dict[str, jax.Array], str, int]:
    """(the pool, examples that nobody is trained on, those that everybody is trained on, the task,
    classes or symbols). Of the digits a fifth have labels of chance, so that models have to
    memorise; canaries are texts of symbols that are drawn alike, among texts of the data; else data
    are as they are.
    """
    text = models.classifiers.tells_tokens(options.model)
    found = _own.dataset(options.dataset, own, text=text)
    rng = np.random.default_rng([options.seed, 2])
    canaries = options.attack == "exposure"
    x, y = found.train["x"], found.train["y"]
    if found.task not in ("classes", "tokens") or not found.num_classes:
        raise ValueError(
            f"Expected a dataset of classes or text for {options.attack}, got "
            f"dataset={options.dataset!r}."
        )
    if canaries and found.task != "tokens":
        raise ValueError(
            "Expected a dataset and a model of text for canaries, such as roles and token_lstm, "
            f"got dataset={options.dataset!r} and model={options.model!r}."
        )
    if len(y) < options.pool + 2:
        raise ValueError(
            f"Expected more training examples than pool={options.pool}, got {len(y)} of dataset="
            f"{options.dataset!r}."
        )
    # Texts that stand beside each other may be windows of one.
    rows = np.arange(len(y)) if found.task == "classes" else rng.permutation(len(y))
    rows = rows[: 2 * options.pool]
    x, y = x[rows], y[rows]
    ordinary = {"x": x[:0], "y": y[:0]}
    if canaries:
        ordinary = {"x": x[: options.pool], "y": y[: options.pool]}
        whole = rng.integers(0, found.num_classes, (2 * options.pool, x.shape[1] + 1), np.int32)
        x, y = whole[:, :-1], whole[:, 1:]
    if options.dataset == "digits":
        wrong = rng.random(len(y)) < _WRONG_LABELS
        y[wrong] = rng.integers(0, found.num_classes, wrong.sum())
    sides = [
        {"x": jnp.asarray(x[part]), "y": jnp.asarray(y[part])}
        for part in (slice(options.pool), slice(options.pool, None))
    ]
    rest = jax.tree.map(jnp.asarray, ordinary)
    return sides[0], sides[1], rest, found.task, found.num_classes


def cells(line: Line) -> list[str]:
    """A line as text, in the order of HEAD."""
    start = (line.noise, line.auc, line.bound)
    return [
        "no noise" if math.isinf(line.budget) else f"{line.budget:.3g}",
        *(f"{value:.3g}" for value in start),
        *(f"{r.tpr:.2g} ({r.low:.2g} to {r.high:.2g})" for r in line.rates),
        f"{line.member_accuracy:.3g}",
        f"{line.other_accuracy:.3g}",
        "undefended" if math.isinf(line.budget) else table.VERDICTS[line.holds],
    ]


def sections(options: Any, found: Found) -> list[str]:
    """Of the report."""
    lines = [line for line in found.lines if math.isfinite(line.budget)]
    plain = found.lines[0]
    picture = attack_figures.success(
        [line.budget for line in lines],
        {options.attack: [line.auc for line in lines]},
        [line.bound for line in lines],
        unit=f"epsilon at delta {words.at_most(options.delta)}",
        quantity="area under the curve of rates",
        share=True,
    )
    digits = ", a fifth with labels of chance, so that models have to memorise"
    what = f"{options.pool} examples of {options.dataset}{digits * (options.dataset == 'digits')}"
    if options.attack == "exposure":
        what = (
            f"{options.pool} canaries, texts of drawn symbols, each of a subject of its own, half "
            f"of them among as many texts of {options.dataset}; {options.pool} more rank them"
        )
    if options.attack in attacks.OF_SUBJECTS:
        what += f", {_OF_A_PERSON} of each person, dealt to clients in turn"
    own_models = 0 if options.attack in trained.ALONE else options.shadows
    note = (
        f"{what}; {own_models} shadow models trained as the target is, {options.num_rounds} "
        f"rounds. At 50 % the attacker guesses. Without noise the area is {plain.auc:.3g}."
    )
    numbers = (
        "Rates of true positives with what they are between at 95 %, by counting. Held: the area "
        "is at most the largest certified one, up to three standard errors. Cannot tell: no area "
        "would have been above it by so much. All examples share one target model, so that the "
        "standard error is a guide."
    )
    between = options.attack in trained.EVERY_ROUND
    threat = (
        f"<p>The attacker has {'all models between rounds' if between else 'the last model'}, the "
        "pool with its labels, and trains models of its own in the same way. "
        f"{'' if between else 'The certificate also covers attackers who see every round.'}</p>"
    )
    return [
        run_page.section("Membership against budget", picture, note),
        run_page.section(
            "Numbers",
            _run_files.html_table(HEAD, [cells(line) for line in found.lines]),
            numbers,
        ),
        run_page.section("Threat model", threat),
    ]
