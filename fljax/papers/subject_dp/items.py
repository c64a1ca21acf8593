"""Figures of arXiv:2206.03617: the work behind them, and how they look."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fljax import accounting, data
from fljax.accounting import events, mixture
from fljax.papers.paper import (
    Found,
    Item,
    Picture,
    Piece,
    Settings,
    Table,
    figure,
    half_width,
    percent,
)
from fljax.papers.subject_dp import claimed, convex, training
from fljax.papers.subject_dp.claimed import CLAIMED_EPSILON, DELTA, NUM_SILOS
from fljax.papers.subject_dp.training import ALL, METHODS, OF_THE_PAPER, SHAPES, Method

ALPHAS = (1.0, 2.0, 4.0, 8.0, 16.0)
# As printed, "%", points or relative: FedAvg above LocalItemDP, that above LocalGroupDP, and that
# above HiGradAvg.
PRINTED = {
    "femnist": ("FEMNIST (8 %)", "FEMNIST (15 %)", "FEMNIST (7 %)"),
    "shakespeare": ("Shakespeare (22 %)", "Shakespeare (18 %)", "Shakespeare"),
}


@dataclasses.dataclass(frozen=True)
class _Sizes:
    """Subjects, mean items of one, batch, rounds."""

    subjects: int
    items: int
    batch: int
    rounds: int

    @property
    def sampling_prob(self) -> float:
        """Chance of an item to be in a silo's batch."""
        return self.batch * NUM_SILOS / (self.subjects * self.items)


FULL = {
    "femnist": _Sizes(3500, 145, 512, 100),
    "shakespeare": _Sizes(660, 4484, 100, 200),
}
# Standard deviations of the logarithm of a role's number of items: none is printed. LEAF's own
# table (arXiv:1812.01097), 3,743 items of standard deviation 6,212, would be 1.15.
SPREADS = (0.0, 0.8, 1.15)


def _ids(shape: str, spread: float | None = None) -> np.ndarray:
    """The subject of each item: writers alike; roles lognormal, spread by 0.8 or as said."""
    sizes, rng = FULL[shape], np.random.default_rng(3)
    if spread is None:
        spread = 0.0 if shape == "femnist" else 0.8
    log_mean = math.log(sizes.items) - spread**2 / 2
    drawn = rng.lognormal(log_mean, spread, sizes.subjects)
    counts = np.maximum(1, np.round(drawn)).astype(int)
    return np.repeat(np.arange(sizes.subjects, dtype=np.int32), counts)


# Figure 1


def curve_name(shape: str, method: str, label: str) -> str:
    return f"{shape}, {method}, {label}"


def _labels(shape: str, method: str) -> tuple[str, ...]:
    """The capped sum is ours: no method of the paper."""
    return ALL if (shape, method) == ("femnist", "sound") else OF_THE_PAPER


def _twice(settings: Settings) -> Settings:
    """On FEMNIST methods end a few points apart, and trainings are short."""
    return dataclasses.replace(settings, seeds=2 * settings.seeds)


def _curves(shape: str) -> Any:
    def pieces(settings: Settings) -> list[Piece]:
        settings = _twice(settings) if shape == "femnist" else settings
        seconds = {"femnist": 3.5, "shakespeare": 15.0}[shape]
        if settings.scale == "full":
            seconds = 40_000.0

        def piece(method: Method, label: str) -> Piece:
            return Piece(
                curve_name(shape, method, label),
                seconds * (0.7 + 0.1 * settings.seeds),
                lambda: training.curves(shape, label, method, settings),
            )

        methods: tuple[Method, ...] = ("paper", "sound")
        return [piece(method, one) for method in methods for one in _labels(shape, method)]

    return pieces


def _epsilon(row: Mapping[str, Any], label: str) -> str:
    if row["true_epsilon"] is not None:
        return f"{row['true_epsilon']:.3g}"
    return "no guarantee" + {"LocalGroupDP": " (E3)", "HiGradAvg": " (E4)"}.get(label, "")


def _show_curves(shape: str) -> Any:
    def show(settings: Settings, found: Found) -> list[Table | Picture]:
        drawn = figure(9, 6)
        grid = drawn.subplots(2, 2, sharex=True)
        body = []
        for column, method in enumerate(METHODS):
            for label in _labels(shape, method):
                row = found[curve_name(shape, method, label)]
                for axes, kind in zip(grid[:, column], ("accuracies", "losses"), strict=True):
                    runs = np.asarray(row[kind])
                    axes.plot(np.arange(1, runs.shape[1] + 1), runs.mean(axis=0), label=label)
                noise = row["group_noise"] or [row["noise_multiplier"]]
                last = np.asarray(row["accuracies"])[:, -1]
                body.append(
                    [
                        method,
                        label,
                        ", ".join(f"{value:.2f}" for value in noise),
                        f"{row['learning_rate']:g}",
                        percent(last),
                        f"{np.mean(row['losses'], axis=0)[-1]:.3f}",
                        _epsilon(row, label),
                    ]
                )
            grid[0, column].set(title=f"{method} accounting", ylabel="test accuracy")
            grid[1, column].set(xlabel="round", ylabel="test loss, nats")
        grid[0, 1].legend(fontsize=8)
        head = ("accounting", "method", "noise multiplier", "learning rate", "last accuracy, 95 %")
        note = (
            "Paper: each method at its own claim, subject-level ones in a quarter of the rounds; "
            "LocalGroupDP's noise by the largest group of a batch. Sound: all at one epsilon for "
            "a subject in all 16 silos. The last column is what a subject truly spends."
        )
        return [
            Picture("", drawn),
            Table("", (*head, "last loss", "true epsilon of a subject"), body, note),
        ]

    return show


# Figure 2


def spread_name(spread: float) -> str:
    return f"shakespeare, sizes spread by {spread:g}"


def _groups(
    shape: str, first_seed: int, *, alpha: float | None = None, spread: float | None = None
) -> dict[str, Any]:
    """Largest group of 20 batches of each silo, at the paper's size: how many batches had which."""
    sizes, rng = FULL[shape], np.random.default_rng(4 + first_seed)
    ids = _ids(shape, spread)
    if alpha is None:
        rows = data.subjects.uniform(ids, NUM_SILOS, rng)
    else:
        rows = data.subjects.power_law(ids, NUM_SILOS, rng, alpha=alpha)
    counts = data.subjects.counts(ids, rows)
    drawn = [rng.binomial(counts, sizes.sampling_prob).max(axis=0) for _ in range(20)]
    largest = np.concatenate(drawn)
    value, number = np.unique(largest, return_counts=True)
    return {
        "batches": [[int(v), int(n)] for v, n in zip(value, number, strict=True)],
        "mean": float(largest.mean()),
        "largest in a silo": int(counts.max()),
    }


def _group_pieces(settings: Settings) -> list[Piece]:
    first = settings.first_seed

    def skewed(alpha: float) -> Piece:
        name = f"femnist, alpha {alpha:g}"
        return Piece(name, 1.0, lambda: _groups("femnist", first, alpha=alpha))

    def roles(spread: float) -> Piece:
        name = spread_name(spread)
        return Piece(name, 2.0, lambda: _groups("shakespeare", first, spread=spread))

    even = Piece("femnist", 1.0, lambda: _groups("femnist", first))
    return [even, *map(roles, SPREADS), *map(skewed, ALPHAS)]


def dominant(row: Mapping[str, Any]) -> int:
    return int(max(row["batches"], key=lambda pair: pair[1])[0])


def _show_groups(settings: Settings, found: Found) -> list[Table | Picture]:
    names = ("femnist", *map(spread_name, SPREADS))
    drawn = figure(11, 3)
    for axes, name in zip(drawn.subplots(1, len(names), sharey=True), names, strict=True):
        size, number = np.transpose(found[name]["batches"])
        axes.bar(size, number)
        axes.set_title(name, fontsize=8)
        axes.set(xlabel="largest group of a batch", ylabel="batches of 320")
        axes.set_xticks(size)
    body = [
        [name, f"{row['mean']:.2f}", str(dominant(row)), str(row["largest in a silo"])]
        for name, row in found.items()
    ]
    head = ("spread", "mean largest group", "most frequent", "most items of a subject in a silo")
    note = (
        "3,500 subjects of 145 items in batches of 512; 660 of 4,484 in mean in batches of 100, "
        "their sizes lognormal: how they are spread is not printed. 16 silos, 20 batches of each. "
        "alpha: the power law, each subject ranking the silos."
    )
    return [Picture("", drawn), Table("", head, body, note)]


# Figure 3


def skew_name(method: str, label: str, alpha: float) -> str:
    return f"{method}, {label}, alpha {alpha:g}"


def _skewed(settings: Settings) -> list[Piece]:
    settings = _twice(settings)
    seconds = 4.0 if settings.scale == "demo" else 40_000.0

    def piece(method: Method, label: str, alpha: float) -> Piece:
        return Piece(
            skew_name(method, label, alpha),
            seconds,
            lambda: training.skewed(label, method, settings, alpha),
        )

    methods: tuple[Method, ...] = ("paper", "sound")
    return [
        piece(method, label, alpha)
        for method in methods
        for label in OF_THE_PAPER
        for alpha in ALPHAS
    ]


def _show_skewed(settings: Settings, found: Found) -> list[Table | Picture]:
    drawn = figure(9, 3.5)
    body = []
    for axes, method in zip(drawn.subplots(1, 2, sharey=True), METHODS, strict=True):
        for label in OF_THE_PAPER:
            runs = [found[skew_name(method, label, alpha)]["accuracies"] for alpha in ALPHAS]
            axes.plot(ALPHAS, np.mean(runs, axis=1), marker="o", label=label)
            body.append([method, label, *(percent(np.asarray(run)) for run in runs)])
        axes.set(xscale="log", xlabel="alpha", ylabel="test accuracy", title=f"{method} accounting")
        axes.set_xticks(ALPHAS, [f"{alpha:g}" for alpha in ALPHAS])
        axes.minorticks_off()
    axes.legend(fontsize=8)
    note = (
        "Learning rates are those of even splits. Paper: the cap on a subject's items in a silo is "
        "the largest number there (at most 1 / q, where the printed chance reaches 1). Sound: a "
        "public cap for all alpha; what a skew piles up beyond it is left out."
    )
    head = ("accounting", "method", *(f"alpha {alpha:g}" for alpha in ALPHAS))
    return [Picture("", drawn), Table("", head, body, note)]


# Noise, claims, horizontal composition


def _noise(shape: str) -> dict[str, Any]:
    """Noise multipliers of one claim at the paper's sizes, a round being one pass over a silo."""
    sizes = FULL[shape]
    ids, q = _ids(shape), sizes.sampling_prob
    rows = data.subjects.uniform(ids, NUM_SILOS, np.random.default_rng(4))
    most = training.largest(ids, rows)
    steps = sizes.rounds * round(1 / q)

    def noise(chance: float, steps: int) -> float:
        return accounting.calibrate(
            lambda z: events.PrivacyEvent(
                mechanism=events.SelfComposed(
                    events.PoissonSampled(chance, events.Gaussian(z)), steps
                ),
                privacy_unit="subject",
                neighboring_relation=events.NeighboringRelation.ADD_OR_REMOVE_ONE,
            ),
            epsilon=CLAIMED_EPSILON,
            delta=DELTA,
            tolerance=1e-3,
        )

    present = float(mixture.subject_sampling_prob(most, q))
    return {
        "most": most,
        "steps": steps,
        "LocalItemDP": noise(q, steps),
        "HiGradAvg, printed": noise(min(1.0, most * q), steps),
        "HiGradAvg, sound": noise(present, NUM_SILOS * steps),
    }


def _show_noise(settings: Settings, found: Found) -> list[Table | Picture]:
    names = ("LocalItemDP", "HiGradAvg, printed", "HiGradAvg, sound")
    body = [
        [shape, str(row["most"]), f"{row['steps']:,}", *(f"{row[name]:.2f}" for name in names)]
        for shape, row in found.items()
    ]
    note = (
        "At (4, 1e-5), all rounds of the paper, each one pass over a silo's data (the paper does "
        "not say). Printed: the chance k q, k the most items of a subject in a silo, one silo. "
        "Sound: 1 - (1 - q)^k, 16 silos."
    )
    return [Table("", ("shape", "k", "steps", *names), body, note)]


def _claims() -> dict[str, Any]:
    return {
        "claims": [
            {
                "case": one.case,
                "errata": one.errata,
                "noise multiplier": one.noise_multiplier,
                "true, at least": one.lower,
                "true": one.upper,
            }
            for one in claimed.claims()
        ]
    }


def _show_claims(settings: Settings, found: Found) -> list[Table | Picture]:
    body = [
        [
            one["case"],
            f"{one['noise multiplier']:.4g}",
            f"{one['true, at least']:.3f} to {one['true']:.3f}",
            one["errata"],
        ]
        for one in found["claims"]["claims"]
    ]
    note = (
        "Claims of (4, 1e-5) for a subject: q = .02, 8 items of a subject in a silo, 5,000 steps."
    )
    head = ("claim", "noise multiplier", "true epsilon, certified", "errata")
    return [Table("", head, body, note)]


WAYS = ("R / sqrt(s) rounds", "steps times s")


def _horizontal(settings: Settings) -> list[Piece]:
    """HiGradAvg in few rounds, or in all of them with the noise of s times the steps; three times
    the seeds, for the two end a few points apart.
    """
    settings = dataclasses.replace(settings, seeds=3 * settings.seeds)
    size, _ = training.sizes("femnist", settings)
    all_rounds, few = size.num_rounds, size.num_rounds // 4
    # The paper counts sqrt(16) = 4 times the rounds; asked for four times as many, it counts 16.
    ways: list[tuple[Method, str, int, int | None]] = [
        ("paper", WAYS[0], few, None),
        ("paper", WAYS[1], all_rounds, 4 * all_rounds),
        ("sound", WAYS[0], few, None),
        ("sound", WAYS[1], all_rounds, None),
    ]
    seconds = 8.0 if settings.scale == "demo" else 120_000.0

    def piece(method: Method, way: str, rounds: int, counted: int | None) -> Piece:
        return Piece(
            f"{method}, {way}",
            seconds,
            lambda: training.curves(
                "femnist", "HiGradAvg", method, settings, rounds=rounds, counted=counted
            ),
        )

    return [piece(*way) for way in ways]


def _show_horizontal(settings: Settings, found: Found) -> list[Table | Picture]:
    body = [
        [
            name,
            str(len(row["accuracies"][0])),
            f"{row['noise_multiplier']:.2f}",
            percent(np.asarray(row["accuracies"])[:, -1]),
        ]
        for name, row in found.items()
    ]
    note = (
        "HiGradAvg. Paper: at one claim, though the first truly spends more. Sound: both spend the "
        "same."
    )
    return [Table("", ("accounting, way", "rounds", "noise multiplier", "accuracy"), body, note)]


def _show_utility(settings: Settings, found: Found) -> list[Table | Picture]:
    rows = found["logistic"]["rows"]
    drawn = figure(6, 4)
    axes = drawn.subplots()
    for place, (name, of) in enumerate(itertools.groupby(rows, lambda row: row["method"])):
        steps, bounds, excess = zip(
            *((row["steps"], row["bound"], np.mean(row["excess"])) for row in of), strict=True
        )
        axes.plot(steps, bounds, f"C{place}--", label=f"{name}, bound")
        axes.plot(steps, excess, f"C{place}o-", label=f"{name}, measured")
    axes.set(xscale="log", yscale="log", xlabel="steps", ylabel="excess training loss")
    axes.legend(fontsize=7)
    body = [
        [
            row["method"],
            str(row["steps"]),
            f"{row['stddev']:.3g}",
            f"{row['bound']:.3g}",
            f"{np.mean(row['excess']):.3g} +- {half_width(row['excess']):.1g}",
        ]
        for row in rows
    ]
    note = (
        f"Logistic regression of {convex.SIZE} numbers in one silo of {convex.SUBJECTS} subjects "
        f"with {convex.ITEMS} items each, diameter {convex.DIAMETER:g}, ({convex.EPSILON:g}, "
        f"{convex.DELTA:g}) of a subject in all steps. The noise is what a step has (E12); the "
        "printed bounds have a constant that is not printed."
    )
    head = ("method", "steps", "noise of a step", "bound", "excess loss")
    return [Picture("", drawn, note), Table("", head, body)]


ITEMS = (
    Item(
        "claims",
        "Section 3: what is claimed",
        lambda _: [Piece("claims", 20.0, _claims)],
        _show_claims,
    ),
    Item(
        "fig1-femnist",
        "Figure 1 (a), (b): FEMNIST's shape over rounds",
        _curves("femnist"),
        _show_curves("femnist"),
    ),
    Item(
        "fig1-shakespeare",
        "Figure 1 (c), (d): Shakespeare's shape over rounds",
        _curves("shakespeare"),
        _show_curves("shakespeare"),
    ),
    Item("fig2", "Figure 2: the largest group of a batch", _group_pieces, _show_groups),
    Item("fig3", "Figure 3: accuracy against skew", _skewed, _show_skewed),
    Item(
        "noise",
        "Section 5.1: how much more noise HiGradAvg has",
        lambda _: [Piece(shape, 10.0, functools.partial(_noise, shape)) for shape in SHAPES],
        _show_noise,
    ),
    Item(
        "rounds",
        "Section 5: fewer rounds, or noise for more steps",
        _horizontal,
        _show_horizontal,
    ),
    Item(
        "utility",
        "Section 4: bounds on what noise costs, beside measured training",
        lambda settings: [Piece("logistic", 3.0, lambda: convex.measured(settings))],
        _show_utility,
    ),
)
