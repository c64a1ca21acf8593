"""Tables and figures of "Lightweight Federated Learning with Differential Privacy and Straggler
Resilience": the work behind them, and how they look.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fljax import data
from fljax.accounting.shared_noise import least_noise
from fljax.data.sources import cifar
from fljax.papers.lightdp import convergence, timing, training
from fljax.papers.lightdp.training import METHODS, NUM_CLIENTS, Case
from fljax.papers.paper import (
    Found,
    Item,
    Picture,
    Piece,
    Settings,
    Table,
    figure,
    percent,
)
from fljax.server import stragglers

EPSILONS = (3.0, 6.0, 9.0)
FIGURE_3 = ("local noise", "LightDP-FL", "secure sum")
OVER_LINKS = ("local noise", "LightDP-FL", "HE + DP", "SecAgg + DP", "SwiftAgg+ + DP")
IN_TABLE_1 = (*OVER_LINKS, "Dordis")
# As printed, percent: Table II by colluders (at most 10 stragglers), Table III by stragglers (15
# colluders).
TABLE_2 = {
    3.0: {10: 50.8, 20: 49.6, 30: 47.5, 40: 45.8},
    6.0: {10: 54.5, 20: 52.1, 30: 50.6, 40: 49.7},
    9.0: {10: 61.9, 20: 60.6, 30: 57.9, 40: 55.3},
}
TABLE_3 = {
    3.0: {0: 51.7, 10: 50.2, 20: 48.5, 30: 47.2},
    6.0: {0: 53.2, 10: 51.7, 20: 50.4, 30: 48.8},
    9.0: {0: 55.1, 10: 53.4, 20: 51.9, 30: 50.9},
}


# Figure 2


def _stddevs() -> dict[str, Any]:
    """Own and pair noise against colluders, stragglers and epsilon, by both rules, for one round
    at delta 1e-5 and sensitivity 1.
    """
    axes: dict[str, list[tuple[int, int, float]]] = {
        "colluders": [(c, 10, 3.0) for c in range(0, 49, 3)],
        "stragglers": [(15, s, 3.0) for s in range(0, 34, 3)],
        "epsilon": [(10, 10, e / 2) for e in range(2, 21)],
    }
    found: dict[str, Any] = {}
    for name, settings in axes.items():
        for formula in METHODS:
            rows = []
            for place, (colluders, most, epsilon) in enumerate(settings):
                one = least_noise.pair_calibration(
                    NUM_CLIENTS,
                    colluders,
                    stragglers.uniform(most),
                    epsilon=epsilon,
                    delta=1e-5,
                    formula=formula,  # type: ignore[arg-type]
                )
                along = settings[place][list(axes).index(name)]
                rows.append([along, one.own_variance**0.5, one.pair_variance**0.5])
            found[f"{name}, {formula}"] = rows
    return found


def _show_stddevs(settings: Settings, found: Found) -> list[Table | Picture]:
    drawn = figure(9, 3.2)
    for axes, name in zip(
        drawn.subplots(1, 3), ("colluders", "stragglers", "epsilon"), strict=True
    ):
        for formula, style in zip(METHODS, ("--", "-"), strict=True):
            along, own, pair = np.transpose(found["stddevs"][f"{name}, {formula}"])
            axes.plot(along, own, f"C0{style}", label=f"own, {formula}")
            # Without stragglers the exact rule takes pair noise without bound: cut off there.
            shown = np.where(pair < 3 * own.max(), pair, np.nan)
            axes.plot(along, shown, f"C1{style}", label=f"of a pair, {formula}")
        axes.set(xlabel=name, ylabel="standard deviation")
    axes.legend(fontsize=8)
    note = (
        "One round at delta 1e-5, 50 clients, sensitivity 1. Own noise and that of a pair, by "
        "Proposition 3 and by the exact rule."
    )
    return [Picture("", drawn, note)]


# Figure 3, Tables II and III


def _sizes(settings: Settings) -> dict[str, Any]:
    if settings.scale == "demo":
        return {"rounds": settings.rounds(20), "delta": 1e-3}
    return {"rounds": settings.rounds(150), "delta": 1e-5}


def _dataset(settings: Settings) -> data.Dataset:
    return data.load("digits") if settings.data is None else cifar.load(settings.data)


def _model(settings: Settings) -> str:
    if settings.data is None:
        return "softmax" if settings.scale == "demo" else "cnn"
    return "resnet18"


def _piece(settings: Settings, name: str, method: str, epsilon: float, c: int, s: int) -> Piece:
    def compute() -> dict[str, Any]:
        case = Case(
            name=name,
            method=method,
            epsilon=epsilon,
            colluders=c,
            stragglers=s,
            **_sizes(settings),
        )
        found = training.runs(
            case, seeds=settings.each_seed, model=_model(settings), dataset=_dataset(settings)
        )
        return {
            "accuracies": found.accuracies.tolist(),
            "noise_multiplier": found.noise_multiplier,
            "true_epsilon": found.true_epsilon,
        }

    return Piece(cell_name(name, method, epsilon, c, s), _seconds(settings), compute)


def _seconds(settings: Settings) -> float:
    """Of one training."""
    seconds = 1.4 + 0.45 * settings.seeds
    if settings.scale == "full":
        seconds *= 4000 if settings.data else 40
    return seconds


def cell_name(name: str, method: str, epsilon: float, c: int, s: int) -> str:
    return f"{name}, {method}, epsilon {epsilon:g}, C {c}, S {s}"


def _curves(settings: Settings) -> list[Piece]:
    """Over six times the seeds: gains are judged to some points."""
    settings = dataclasses.replace(settings, seeds=6 * settings.seeds)
    return [
        _piece(settings, name, method, epsilon, 10, 10)
        for method in METHODS
        for epsilon in EPSILONS
        for name in FIGURE_3
    ]


def _show_curves(settings: Settings, found: Found) -> list[Table | Picture]:
    drawn = figure(9, 5)
    body = []
    grid = drawn.subplots(2, 3, sharey=True, sharex=True)
    for method, line in zip(METHODS, grid, strict=True):
        for epsilon, axes in zip(EPSILONS, line, strict=True):
            for name in FIGURE_3:
                row = found[cell_name(name, method, epsilon, 10, 10)]
                runs = np.asarray(row["accuracies"])
                axes.plot(np.arange(1, runs.shape[1] + 1), runs.mean(axis=0), label=name)
                body.append(
                    [
                        method,
                        f"{epsilon:g}",
                        name,
                        percent(runs[:, -1]),
                        f"{row['true_epsilon']:.3g}",
                    ]
                )
            axes.set(title=f"epsilon {epsilon:g}, {method}", xlabel="round", ylabel="accuracy")
    grid[0, 0].legend(fontsize=8)
    head = ("accounting", "epsilon said", "scheme", "last accuracy, 95 %", "epsilon spent")
    note = "50 clients, at most 10 colluders and 10 stragglers; labels spread unevenly."
    return [Picture("", drawn, note), Table("", head, body)]


def _cells(
    table: Mapping[float, Mapping[int, float]], by: str
) -> list[tuple[float, int, int, float]]:
    """(epsilon, C, S, as printed)."""
    return [
        (epsilon, along, 10, value) if by == "C" else (epsilon, 15, along, value)
        for epsilon, row in table.items()
        for along, value in row.items()
    ]


def _table_pieces(table: Any, by: str) -> Any:
    return lambda settings: [
        _piece(settings, "LightDP-FL", method, epsilon, c, s)
        for method in METHODS
        for epsilon, c, s, _ in _cells(table, by)
    ]


def _show_cells(table: Any, by: str) -> Any:
    def show(settings: Settings, found: Found) -> list[Table | Picture]:
        shown: list[Table | Picture] = []
        for method in METHODS:
            body = []
            for epsilon, row in table.items():
                cells = [cell for cell in _cells(table, by) if cell[0] == epsilon]
                runs = [
                    np.asarray(found[cell_name("LightDP-FL", method, e, c, s)]["accuracies"])[:, -1]
                    for e, c, s, _ in cells
                ]
                body.append([f"{epsilon:g}, printed", *(f"{value} %" for value in row.values())])
                body.append([f"{epsilon:g}, ours", *(percent(one) for one in runs)])
            head = ("epsilon", *(f"{by} = {along}" for along in next(iter(table.values()))))
            shown.append(Table(f"{method} accounting", head, body))
        return shown

    return show


# Figure 4 and Table I


def _key_bits(settings: Settings) -> int:
    """3072 bits are 128 bits of security; 1024, for a demo, are less work and protect nobody."""
    return 1024 if settings.scale == "demo" else 3072


@functools.lru_cache(maxsize=16)
def _over_links(settings: Settings, name: str, links_fail: bool) -> dict[str, Any]:
    """Training at the middle epsilon, where links fail or up to so many clients do not respond, and
    what its rounds cost.
    """
    case = Case(
        name=name,
        method="sound",
        epsilon=EPSILONS[1],
        colluders=timing.MOST,
        stragglers=timing.MOST,
        links_fail=links_fail,
        **_sizes(settings),
    )
    found = training.runs(
        case, seeds=settings.each_seed, model=_model(settings), dataset=_dataset(settings)
    )
    return {
        "accuracies": found.accuracies.tolist(),
        "counted": found.counted.tolist(),
        "num_params": found.num_params,
        "costs": timing.measured(name, _key_bits(settings), found.num_params),
        "chances": timing.gets_through(name),
    }


def _ways(names: Sequence[str], *, links_fail: bool) -> Any:
    def pieces(settings: Settings) -> list[Piece]:
        return [
            Piece(
                name,
                _seconds(settings) + 15.0 * (name in timing.PROTOCOLS),
                functools.partial(_over_links, settings, name, links_fail),
            )
            for name in names
        ]

    return pieces


def short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def cost_of(row: Mapping[str, Any], where: str) -> timing.Cost | None:
    """None: not measured."""
    cost = row["costs"][where]
    return None if cost is None else timing.Cost(**cost)


def times_of(row: Mapping[str, Any], base: Mapping[str, Any], where: str) -> float | None:
    """How many times as long a round takes as another way's; None: not measured."""
    own, other = cost_of(row, where), cost_of(base, where)
    return None if own is None or other is None else own.seconds / other.seconds


def _show_against_time(settings: Settings, found: Found) -> list[Table | Picture]:
    drawn = figure(6, 3.6)
    axes = drawn.subplots()
    body = []
    for name, row in found.items():
        runs, own = np.asarray(row["accuracies"]), cost_of(row, "this network")
        cells = ["not measured", *[""] * 4]
        if own is not None:
            times = own.seconds * np.arange(1, runs.shape[1] + 1)
            axes.plot(times, runs.mean(axis=0), marker=".", label=name)
            cells = [
                f"{1e3 * own.client_seconds:.3g}",
                f"{1e3 * own.server_seconds:.3g}",
                f"{own.bytes_up / 1e3:.3g}",
                f"{own.bytes_down / 1e3:.3g}",
                f"{1e3 * own.seconds:.3g}",
            ]
        large = cost_of(row, "ResNet-18")
        body.append(
            [
                name,
                f"{np.mean(row['counted']):.1f} of {runs.shape[1]}",
                percent(runs[:, -1]),
                *cells,
                "not measured" if large is None else short(large.seconds),
            ]
        )
    axes.set(xscale="log", xlabel="seconds of hiding uploads, all rounds", ylabel="accuracy")
    axes.legend(fontsize=8)
    head = ("way", "rounds that counted", "last accuracy, 95 %", "client, ms", "server, ms")
    note = (
        f"50 clients, each link fails with chance {training.LINK_FAILURE:g} in a round, epsilon "
        f"{EPSILONS[1]:g} for all rounds by the sound accounting. Each way is measured on this "
        "machine at both sizes, the cheaper of two rounds, clients side by side; at ResNet-18's "
        "one client and the server do all their work, and the server gets its messages for "
        "the others': of what it passes on between those nothing is counted. HE would take hours "
        "there. Seconds are a processor's, of all threads. All answer; bytes at "
        f"{8 * timing.BANDWIDTH / 1e6:.0f} Mbit/s; training, latency and the model's way down, "
        "the same for all, are left out. HE: Paillier's threshold encryption under "
        f"{_key_bits(settings)} bits."
    )
    more = ("up, KB", "down, KB", "a round, ms", "a round at ResNet-18's size, s")
    return [Picture("", drawn), Table("", (*head, *more), body, note)]


# As printed: DP; resilient to links to the server that fail; and to links between clients.
TABLE_1 = {
    "local noise": ("yes", "yes", "yes", "low", "low"),
    "HE + DP": ("yes", "yes", "yes", "high", "high"),
    "SwiftAgg+ + DP": ("no", "yes", "no", "medium", "high"),
    "Dordis": ("yes", "yes", "no", "high", "high"),
    "SecAgg + DP": ("no", "yes", "no", "high", "high"),
    "LightDP-FL": ("yes", "yes", "yes", "low", "high"),
}


def _show_properties(settings: Settings, found: Found) -> list[Table | Picture]:
    body = []
    for name, printed in TABLE_1.items():
        body.append(["printed", name, *printed])
        row = found[name]
        base = found["local noise"]
        own, here = (times_of(row, base, where) for where in ("ResNet-18", "this network"))
        chances = [f"{row['chances'][where]:.3g}" for where in ("server", "peers")]
        accuracy = percent(np.asarray(row["accuracies"])[:, -1])
        overhead = "not measured"
        if own is not None:
            overhead = f"{short(own)} times local noise"
        elif here is not None:
            overhead += f"; {short(here)} times local noise at this network's"
        body.append(["here", name, "yes", *chances, overhead, accuracy])
    head = (
        "where",
        "way",
        "DP",
        "a round counts where links to the server fail",
        "and those between clients too",
        "overhead at ResNet-18's size",
        "accuracy where up to 10 do not respond",
    )
    note = (
        "Here secure sums have noise in all rows. Dordis takes noise back where fewer drop out "
        "than may; it is trained as an ideal sum with what is left. Its time is SecAgg's and that "
        "of noise in parts, of which the server draws most again: measured for one client, times "
        f"{timing.NUM_CLIENTS}."
    )
    return [Table("", head, body, note)]


# Proposition 2


def _quadratic(first_seed: int) -> dict[str, Any]:
    """The gap of |w|^2 / 10 in 100 dimensions under noise of variance 1e-4, each client solving
    with a unit proximal weight; 2,000 runs, beside the bounds.
    """
    rng, dimension, variance, rounds = np.random.default_rng(2 + first_seed), 100, 1e-4, 60
    w = np.zeros((2000, dimension))
    problem = convergence.Problem(smoothness=0.2, polyak_lojasiewicz=0.2, dissimilarity=1.0)
    sizes: Any = {"lipschitz": 0.1, "dimension": dimension, "variance": variance}
    rows = []
    for number in range(1, rounds + 1):
        w = w / 1.2 + np.sqrt(variance) * rng.normal(size=w.shape)
        rows.append(
            [
                number,
                float(0.1 * (w**2).sum(axis=1).mean()),
                convergence.printed(0.0, number, problem, **sizes),
                convergence.corrected(0.0, number, problem, **sizes),
                convergence.sharpened(0.0, number, problem, dimension=dimension, variance=variance),
            ]
        )
    return {"rows": rows}


def _show_quadratic(settings: Settings, found: Found) -> list[Table | Picture]:
    number, *values = np.transpose(found["quadratic"]["rows"])
    drawn = figure(6, 3.5)
    axes = drawn.subplots()
    names = ("measured gap", "equation (15) as printed", "without its power", "sharpened")
    for name, value, style in zip(names, values, ("-", "--", "-.", ":"), strict=True):
        axes.semilogy(number, value, style, label=name)
    axes.set(xlabel="round", ylabel="F(w) - min F", ylim=(1e-8, 1))
    axes.legend()
    note = (
        "A quadratic with one minimiser for all clients, on which Proposition 2's conditions hold."
    )
    return [Picture("", drawn, note)]


# Of the protocols that are timed.
_SECURE = dict.fromkeys(("cryptography", "gmpy2"), "fljax[secure]")

ITEMS = (
    Item("fig1", "Figure 1: a drawing of who sees what", why="it shows no result"),
    Item(
        "fig2",
        "Figure 2: noise against colluders, stragglers and epsilon",
        lambda settings: [Piece("stddevs", 5.0, _stddevs)],
        _show_stddevs,
    ),
    Item("fig3", "Figure 3: accuracy over rounds", _curves, _show_curves),
    Item(
        "fig4",
        "Figure 4: accuracy against time",
        _ways(OVER_LINKS, links_fail=True),
        _show_against_time,
        packages=_SECURE,
    ),
    Item(
        "table1",
        "Table I: properties of protocols",
        _ways(IN_TABLE_1, links_fail=False),
        _show_properties,
        packages=_SECURE,
    ),
    Item(
        "table2",
        "Table II: accuracy by epsilon and colluders",
        _table_pieces(TABLE_2, "C"),
        _show_cells(TABLE_2, "C"),
    ),
    Item(
        "table3",
        "Table III: accuracy by epsilon and stragglers",
        _table_pieces(TABLE_3, "S"),
        _show_cells(TABLE_3, "S"),
    ),
    Item(
        "prop2",
        "Proposition 2: the bound beside measured training",
        lambda settings: [Piece("quadratic", 3.0, lambda: _quadratic(settings.first_seed))],
        _show_quadratic,
    ),
)
