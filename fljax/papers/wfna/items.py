"""Tables and figures of arXiv:2405.04551: the work behind them, and how they look."""

import dataclasses
import functools
import math
import time
from typing import Any

import jax
import numpy as np

from fljax import data
from fljax.accounting.weighted_sums import rounds as weighted_rounds
from fljax.accounting.weighted_sums import setups, span
from fljax.accounting.weighted_sums.setups import Noise, Sampling, Setup
from fljax.data.sources import idx
from fljax.papers.paper import (
    Found,
    Item,
    Picture,
    Piece,
    Settings,
    Table,
    figure,
    half_width,
)
from fljax.papers.wfna import blocks, training
from fljax.papers.wfna.training import DELTA, EPSILONS, NUM_CLIENTS, SCHEMES
from fljax.schemes.weighted import round as weighted

SETUP = Setup(
    num_clients=NUM_CLIENTS,
    num_records=1200,
    batch_size=32,
    l2_clip_norm=10.0,
    noise_stddev=math.sqrt(1e-3),
)
# Rows of Table 1: sampling, noise, and the curve whose value the row prints.
CELLS: dict[str, tuple[Sampling, Noise, Noise]] = {
    "subset, isotropic": ("subset", "isotropic", "isotropic"),
    "all records, isotropic": ("none", "isotropic", "isotropic"),
    "Gaussian weights, isotropic": ("gaussian", "isotropic", "isotropic"),
    "Gaussian weights, water filling": ("gaussian", "water_filling", "isotropic"),
}
BATCHES = (300, 600, 900, 1188)  # of 1,200
METHODS = ("paper", "sound")


def _dataset(settings: Settings) -> data.Dataset:
    return data.load("digits") if settings.data is None else idx.load(settings.data)


def _sizes(settings: Settings) -> dict[str, Any]:
    """Batch and clip norm: the paper's for its images, smaller for 8 x 8; passes over the data."""
    small = settings.data is None
    return {
        "batch_size": 8 if small else 32,
        "l2_clip_norm": 1.0 if small else 10.0,
        "epochs": settings.rounds(training.EPOCHS),
    }


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"


# Table 1


def _one_round(sampling: Sampling, printed: Noise, noise: Noise) -> dict[str, float | None]:
    """Epsilon of one round: as the row prints it, and the best that is proved."""
    curve = setups.curve(sampling, printed, SETUP, formula="paper")
    one, _ = weighted_rounds.best_epsilon(curve, delta=DELTA, conversion_formula="paper")
    if sampling == "subset":
        one, _ = weighted_rounds.amplify(one, DELTA, SETUP.batch_size / SETUP.num_records)
    composition: Any = "rdp" if sampling == "gaussian" else "pld"
    sound = weighted_rounds.epsilon(
        sampling, noise, SETUP, num_rounds=1, delta=DELTA, composition=composition
    )
    return {"printed": one, "sound": sound}


def _table_1() -> dict[str, Any]:
    rows = {
        name: _one_round(sampling, printed, noise)
        for name, (sampling, noise, printed) in CELLS.items()
    }
    theorem_4 = setups.curve("gaussian", "water_filling", SETUP, formula="paper")
    value, _ = weighted_rounds.best_epsilon(theorem_4, delta=DELTA, conversion_formula="paper")
    subsets = [
        weighted_rounds.epsilon(
            "subset",
            "isotropic",
            dataclasses.replace(SETUP, batch_size=batch),
            num_rounds=1,
            delta=DELTA,
            composition="pld",
        )
        for batch in BATCHES
    ]
    return {"rows": rows, "theorem 4": value, "subsets": subsets}


def _show_table_1(settings: Settings, found: Found) -> list[Table | Picture]:
    rows = found["rows"]["rows"]
    body = [[name, _number(row["printed"]), _number(row["sound"])] for name, row in rows.items()]
    body.append(["the last by Theorem 4", _number(found["rows"]["theorem 4"]), ""])
    body += [[f"{name}, water filling", "none", "none"] for name in ("subset", "all records")]
    note = (
        "Epsilon of one round at delta 1e-4: 50 users, D = 1,200, B = 32, C = 10, noise variance "
        "1e-3 a user. The row of subsets spends B / D of its delta. The paper's last row is false "
        "(E14); what is proved for it is Theorem 4, or less."
    )
    return [Table("", ("sampling, noise", "as printed", "proved"), body, note)]


def _noise_needed(epsilon: float) -> dict[str, Any]:
    ways: dict[str, tuple[Sampling, Noise, dict[str, Any]]] = {
        "all records, exact": ("none", "isotropic", {"composition": "pld"}),
        "water filling, joint": ("gaussian", "water_filling", {}),
        "subset, PLD": ("subset", "isotropic", {"composition": "pld"}),
        "all records, KOV": ("none", "isotropic", {"composition": "kov"}),
        "water filling, Theorem 4, KOV": (
            "gaussian",
            "water_filling",
            {"composition": "kov", "formula": "paper"},
        ),
        "subset, KOV": ("subset", "isotropic", {"composition": "kov"}),
    }
    return {
        name: weighted_rounds.least_noise_stddev(
            sampling,
            noise,
            SETUP,
            target_epsilon=epsilon,
            num_rounds=100,
            delta=DELTA,
            tolerance=1e-4,
            **options,
        )
        for name, (sampling, noise, options) in ways.items()
    }


def _show_noise(settings: Settings, found: Found) -> list[Table | Picture]:
    names = list(found["1"])
    body = [[name, *(_number(row[name]) for row in found.values())] for name in names]
    head = ("sampling, bound and composition", *(f"epsilon {epsilon}" for epsilon in found))
    note = "Least noise standard deviation of a user, 100 rounds, sizes of Table 1."
    return [Table("", head, body, note)]


# Figure 3


def _distinguisher(first_seed: int) -> dict[str, Any]:
    """Four users of eight gradients in 64 dimensions; only the last one's reach the last 16."""
    rng = np.random.default_rng(3 + first_seed)
    gradients = rng.normal(size=(4, 8, 64))
    gradients[:3, :, 48:] = 0
    gradients[3, 1:, 48:] = 0  # one record alone reaches them: the one in question
    gradients /= np.linalg.norm(gradients, axis=-1, keepdims=True)
    known = np.concatenate([gradients[:3].reshape(-1, 64), gradients[3, 1:]])
    inside = rng.normal(size=len(known)) @ known  # what it is replaced by lies in their span
    worlds = {"with": gradients[3, 0], "without": inside / np.linalg.norm(inside)}
    told: dict[str, list[float]] = {}
    for name, record in worlds.items():
        for noise in (0.0, 0.05):
            outside = []
            for _ in range(60):
                weights = 1 / 8 + rng.normal(size=len(known) + 1) / 8
                total = weights[:-1] @ known + weights[-1] * record
                seen = total + noise * rng.normal(size=64)
                outside.append(span.distinguish(known, seen, threshold=1e-6)[0])
            told[f"{name}, noise {noise:g}"] = outside
    shares = {}
    for level in ("0", "0.05"):
        cut = max(1e-9, float(np.quantile(told[f"without, noise {level}"], 0.95)))
        shares[level] = float(np.mean(np.array(told[f"with, noise {level}"]) > cut))
    return {"updates": abs(gradients.mean(axis=1)).tolist(), "told": shares}


def _show_distinguisher(settings: Settings, found: Found) -> list[Table | Picture]:
    drawn = figure(6, 2.2)
    axes = drawn.subplots()
    axes.imshow(found["game"]["updates"], aspect="auto", cmap="Blues")
    axes.set(xlabel="coordinate", ylabel="user", yticks=range(4), yticklabels=range(1, 5))
    told = found["game"]["told"]
    rows = [[f"noise {noise}", f"{share:.1%}"] for noise, share in told.items()]
    note = "Share of 60 sums that give the record away, 5 % of the others mistaken for them."
    return [
        Picture("Size of the users' updates: the last 16 coordinates are one record's", drawn),
        Table("", ("noise standard deviation", "told apart"), rows, note),
    ]


# Figure 4


def _spectrum(settings: Settings) -> dict[str, Any]:
    dataset = _dataset(settings)
    config = training.config_of("GSGD-DP", dataset, epsilon=10.0, **_sizes(settings))
    functional = training.Trainer("GSGD-DP", config, "softmax", dataset, training.EPOCHS).initial(0)
    num_params = sum(leaf.size for leaf in jax.tree.leaves(functional.params))
    values = training.spectra(functional, dataset, config)[0][::-1]
    floor = weighted.client_stddev(config, config.records_per_client) ** 2
    return {"values": values.tolist(), "floor": floor, "num_params": num_params}


def _show_spectrum(settings: Settings, found: Found) -> list[Table | Picture]:
    one = found["spectrum"]
    values = np.zeros(one["num_params"])
    values[: len(one["values"])] = one["values"]
    drawn = figure(6, 4)
    axes = drawn.subplots()
    place = np.arange(1, len(values) + 1)
    axes.loglog(place, np.maximum(values, 1e-12), label="sampling noise alone")
    axes.loglog(place, np.maximum(values, one["floor"]), label="lifted by water filling")
    axes.loglog(place, values + one["floor"], ":", label="with isotropic noise")
    axes.set(xlabel="direction", ylabel="variance", ylim=(one["floor"] / 100, None))
    axes.legend()
    share = np.minimum(values, one["floor"]).sum() / (len(values) * one["floor"])
    note = f"One user at the initial model, epsilon 10. Water filling adds {share:.1%} less noise."
    return [Picture("", drawn, note)]


# Section 5.3

BLOCKS = (1, 2, 5, 10)  # the paper prints no k


def _by_blocks(settings: Settings) -> dict[str, Any]:
    dataset = _dataset(settings)
    config = training.config_of("GSGD-DP", dataset, epsilon=10.0, **_sizes(settings))
    functional = training.Trainer("GSGD-DP", config, "softmax", dataset, training.EPOCHS).initial(0)
    rows = training.gradients(functional, dataset, config)
    scale = 1 / (config.batch_size * config.records_per_client)
    floor = weighted.client_stddev(config, config.records_per_client) ** 2
    found = [blocks.lifted(rows, k, scale=scale, floor=floor)._asdict() for k in BLOCKS]
    return {"records": len(rows), "parameters": rows.shape[1], "rows": found}


def _show_blocks(settings: Settings, found: Found) -> list[Table | Picture]:
    one = found["blocks"]
    body = [
        [
            str(k),
            f"{row['printed']:.3g}",
            f"{row['own']:.3g}",
            f"{row['added']:.1%}",
            f"{1000 * row['seconds']:.3g}",
            f"{1000 * row['gram_seconds']:.3g}",
        ]
        for k, row in zip(BLOCKS, one["rows"], strict=True)
    ]
    head = (
        "blocks",
        "least variance, as printed, in floors",
        "with weights of its own for each block",
        "noise added, of isotropic noise",
        "ms, K x K",
        "ms, D x D",
    )
    note = (
        f"One user's {one['records']} clipped gradients of {one['parameters']} numbers at the "
        "initial model, epsilon 10, as in Figure 4. The floor is what epsilon rests on: a "
        "direction below it is less hidden than that says (E15). ms: to decompose the blocks' "
        "covariances, or the products of records, which have the same eigenvalues but for zeros; "
        "processor time. `per_leaf` of `gsgd_dp` trains with a block for each parameter array, and "
        "weights of its own."
    )
    return [Table("", head, body, note)]


# Figure 5


def _models(settings: Settings) -> tuple[str, ...]:
    return ("softmax",) if settings.scale == "demo" else ("softmax", "cnn")


def _trained(
    settings: Settings, model: str, method: Any, epsilon: float, name: str
) -> dict[str, Any]:
    dataset = _dataset(settings)
    sizes = _sizes(settings)
    config = training.config_of(name, dataset, epsilon=epsilon, method=method, **sizes)
    trainer = training.Trainer(name, config, model, dataset, sizes["epochs"])
    rate, tried = trainer.best_rate(1.0 if model == "softmax" else 0.3)
    began = time.perf_counter()
    scores = [trainer.accuracy(rate, seed) for seed in settings.each_seed]
    return {
        "model": model,
        "method": method,
        "epsilon": epsilon,
        "scheme": name,
        "noise_multiplier": config.noise_multiplier,
        "learning_rate": rate,
        "tried": tried,
        "accuracies": scores,
        "seconds_an_epoch": (time.perf_counter() - began) / settings.seeds / sizes["epochs"],
    }


def _trainings(settings: Settings) -> list[Piece]:
    """Over three times the seeds: schemes end a point apart."""
    settings = dataclasses.replace(settings, seeds=3 * settings.seeds)

    def piece(model: str, method: str, epsilon: float, name: str) -> Piece:
        seconds = {"softmax": 8.0, "cnn": 150.0}[model] * (5 + settings.seeds) / 8
        if settings.data is not None:
            seconds *= 40
        return Piece(
            f"{model}, {method}, epsilon {epsilon:g}, {name}",
            seconds,
            lambda: _trained(settings, model, method, epsilon, name),
        )

    return [
        piece(model, method, epsilon, name)
        for model in _models(settings)
        for method in METHODS
        for epsilon in EPSILONS
        for name in SCHEMES
    ]


def paired(found: Found, model: str, method: str, epsilon: float, name: str) -> tuple[float, float]:
    """Mean of a scheme's accuracy less GD-DP's, seed by seed, and half its 95 % interval."""
    own, plain = (
        np.asarray(found[f"{model}, {method}, epsilon {epsilon:g}, {one}"]["accuracies"])
        for one in (name, "GD-DP")
    )
    return float((own - plain).mean()), half_width(own - plain)


def _show_trainings(settings: Settings, found: Found) -> list[Table | Picture]:
    shown: list[Table | Picture] = []
    for model in _models(settings):
        drawn = figure(8, 3.5)
        body = []
        for axes, method in zip(drawn.subplots(1, 2, sharey=True), METHODS, strict=True):
            for name, marker in zip(SCHEMES, "osv", strict=True):
                rows = [found[f"{model}, {method}, epsilon {e:g}, {name}"] for e in EPSILONS]
                means = [float(np.mean(row["accuracies"])) for row in rows]
                axes.plot(EPSILONS, means, marker=marker, label=name)
                for epsilon, mean, row in zip(EPSILONS, means, rows, strict=True):
                    less, reach = paired(found, model, method, epsilon, name)
                    body.append(
                        [
                            method,
                            f"{epsilon:g}",
                            name,
                            f"{row['noise_multiplier']:.3f}",
                            f"{row['learning_rate']:g}",
                            f"{mean:.1%}",
                            "" if name == "GD-DP" else f"{less:+.1%} +- {reach:.1%}",
                            f"{1000 * row['seconds_an_epoch']:.1f}",
                        ]
                    )
            axes.set(xscale="log", xlabel="epsilon", ylabel="test accuracy", title=method)
            axes.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
            axes.minorticks_off()
            axes.legend()
        head = ("accounting", "epsilon", "scheme", "noise multiplier", "learning rate", "accuracy")
        shown += [
            Picture(f"{model}: accuracy by the paper's accounting, and by ours", drawn),
            Table(model, (*head, "less GD-DP's, paired", "ms an epoch"), body),
        ]
    return shown


ITEMS = (
    Item(
        "table1",
        "Table 1: epsilon of one round",
        lambda settings: [Piece("rows", 20.0, _table_1)],
        _show_table_1,
    ),
    Item(
        "noise",
        "Noise for an epsilon, at the sizes of Figure 5",
        lambda settings: [
            Piece(f"{epsilon:g}", 20.0, functools.partial(_noise_needed, epsilon))
            for epsilon in EPSILONS
        ],
        _show_noise,
    ),
    Item(
        "fig3",
        "Figure 3: a record outside the span of the others",
        lambda settings: [Piece("game", 1.0, lambda: _distinguisher(settings.first_seed))],
        _show_distinguisher,
    ),
    Item(
        "fig4",
        "Figure 4: what water filling adds",
        lambda settings: [Piece("spectrum", 5.0, lambda: _spectrum(settings))],
        _show_spectrum,
    ),
    Item(
        "blocks",
        "Section 5.3: water filling by k equal blocks",
        lambda settings: [
            Piece(
                "blocks",
                5.0 if settings.data is None else 3000.0,
                lambda: _by_blocks(settings),
            )
        ],
        _show_blocks,
    ),
    Item("fig5", "Figure 5: accuracy at equal epsilon", _trainings, _show_trainings),
    Item(
        "fig1-2",
        "Figures 1 and 2: drawings of the system",
        why="they show no result",
    ),
)
