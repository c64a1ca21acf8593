"""Tables, figures and conclusions of "Lightweight Federated Learning with Differential Privacy and
Straggler Resilience".

The paper trains ResNet-18 on CIFAR-10 for 150 rounds with an unstated sensitivity, split and delta:
orders are compared, not numbers. By default a softmax model on the bundled digits stands in, for 20
rounds, delta 1e-3; updates are clipped, which the paper lacks.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fljax import data
from fljax.accounting.shared_noise import least_noise
from fljax.data.sources import cifar
from fljax.papers.lightdp import convergence, errata, timing, training
from fljax.papers.lightdp.training import METHODS, NUM_CLIENTS, Case
from fljax.papers.paper import (
    Conclusion,
    Found,
    Item,
    Paper,
    Picture,
    Piece,
    Settings,
    Table,
    Verdict,
    above,
    all_above,
    by_accounting,
    every,
    figure,
    percent,
    plain,
    points,
    refuted,
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

    return Piece(_name(name, method, epsilon, c, s), _seconds(settings), compute)


def _seconds(settings: Settings) -> float:
    """Of one training."""
    seconds = 2.0 + 0.6 * settings.seeds
    if settings.scale == "full":
        seconds *= 4000 if settings.data else 40
    return seconds


def _name(name: str, method: str, epsilon: float, c: int, s: int) -> str:
    return f"{name}, {method}, epsilon {epsilon:g}, C {c}, S {s}"


def _curves(settings: Settings) -> list[Piece]:
    """Over three times the seeds: gains are judged to some points."""
    settings = dataclasses.replace(settings, seeds=3 * settings.seeds)
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
                row = found[_name(name, method, epsilon, 10, 10)]
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
                    np.asarray(found[_name("LightDP-FL", method, e, c, s)]["accuracies"])[:, -1]
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
                lambda name=name: _over_links(settings, name, links_fail),  # type: ignore[misc]
            )
            for name in names
        ]

    return pieces


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _cost(row: Mapping[str, Any], where: str) -> timing.Cost | None:
    """None: not measured."""
    cost = row["costs"][where]
    return None if cost is None else timing.Cost(**cost)


def _times(row: Mapping[str, Any], base: Mapping[str, Any], where: str) -> float | None:
    """How many times as long a round takes as another way's; None: not measured."""
    own, other = _cost(row, where), _cost(base, where)
    return None if own is None or other is None else own.seconds / other.seconds


def _show_against_time(settings: Settings, found: Found) -> list[Table | Picture]:
    drawn = figure(6, 3.6)
    axes = drawn.subplots()
    body = []
    for name, row in found.items():
        runs, own = np.asarray(row["accuracies"]), _cost(row, "this network")
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
        large = _cost(row, "ResNet-18")
        body.append(
            [
                name,
                f"{np.mean(row['counted']):.1f} of {runs.shape[1]}",
                percent(runs[:, -1]),
                *cells,
                "not measured" if large is None else _short(large.seconds),
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
        own, here = (_times(row, base, where) for where in ("ResNet-18", "this network"))
        chances = [f"{row['chances'][where]:.3g}" for where in ("server", "peers")]
        accuracy = percent(np.asarray(row["accuracies"])[:, -1])
        overhead = "not measured"
        if own is not None:
            overhead = f"{_short(own)} times local noise"
        elif here is not None:
            overhead += f"; {_short(here)} times local noise at this network's"
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
    ),
    Item(
        "table1",
        "Table I: properties of protocols",
        _ways(IN_TABLE_1, links_fail=False),
        _show_properties,
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


# Conclusions


def _last(found: Found, name: str, method: str, epsilon: float, c: int, s: int) -> np.ndarray:
    return np.asarray(found[_name(name, method, epsilon, c, s)]["accuracies"])[:, -1]


def _over(found: Found, other: str, by: float) -> tuple[dict[str, bool | None], str]:
    """Whether LightDP-FL is ahead of another by that much, by accounting; and the numbers."""
    holds, told = {}, []
    for method in METHODS:
        more = {
            epsilon: _last(found, "LightDP-FL", method, epsilon, 10, 10)
            - _last(found, other, method, epsilon, 10, 10)
            for epsilon in EPSILONS
        }
        holds[method] = all_above(list(more.values()), by)
        numbers = ", ".join(f"{points(runs)} at {epsilon:g}" for epsilon, runs in more.items())
        told.append(f"{method}: {numbers}")
    return holds, "; ".join(told)


def _ahead(other: str, by: float) -> Any:
    def judge(found: Mapping[str, Found]) -> Verdict:
        holds, because = _over(found["fig3"], other, by)
        return by_accounting(holds, because)

    return judge


Cell = tuple[float, int, int]  # epsilon, C, S


def _trend(item: str, pairs: Sequence[tuple[Cell, Cell]]) -> Any:
    """Judges whether accuracy falls from the first to the second cell of the pairs, in the mean."""

    def judge(found: Mapping[str, Found]) -> Verdict:
        holds, told = {}, []
        for method in METHODS:
            fall = np.mean(
                [
                    _last(found[item], "LightDP-FL", method, *high)
                    - _last(found[item], "LightDP-FL", method, *low)
                    for high, low in pairs
                ],
                axis=0,
            )
            holds[method] = above(fall)
            told.append(f"{method}: {points(fall)} in the mean of {len(pairs)} pairs")
        return by_accounting(holds, "; ".join(told))

    return judge


def _own_rises(found: Mapping[str, Found]) -> Verdict:
    rows = found["fig2"]["stddevs"]
    rises = [
        np.all(np.diff(np.transpose(rows[f"{name}, {formula}"])[1]) > -1e-9)
        for name in ("colluders", "stragglers")
        for formula in METHODS
    ]
    first, last = rows["colluders, paper"][0][1], rows["colluders, paper"][-1][1]
    because = f"by the paper's rule from {first:.3g} without colluders to {last:.3g} with 48"
    return Verdict("reproduced" if all(rises) else "not reproduced", because)


def _bound(found: Mapping[str, Found]) -> Verdict:
    number, gap, printed, _, sharpened = found["prop2"]["quadratic"]["rows"][-1]
    because = f"after {number} rounds it says {printed:.2g} where {gap:.3g} is measured"
    refuted = printed < 0.9 * gap
    good = sharpened >= 0.98 * gap
    because += f"; without its power, sharpened, {sharpened:.3g}" if good else ""
    return Verdict("refuted by proof" if refuted else "reproduced", because)


def _lost(found: Mapping[str, Found]) -> Verdict:
    """No seed had a round that counted; and the others' did."""
    counted = {name: np.asarray(row["counted"]) for name, row in found["fig4"].items()}
    because = ", ".join(f"{name} {values.mean():.1f}" for name, values in counted.items())
    masked = {"SecAgg + DP", "SwiftAgg+ + DP"}
    lost = not any(counted[name].any() for name in masked)
    others = all(values.all() for name, values in counted.items() if name not in masked)
    return plain(lost and others, f"rounds that counted: {because}")


def _ten_times(found: Mapping[str, Found]) -> Verdict:
    """Beside LightDP-FL, at the largest size that both are measured at: at a small one what does
    not grow with the network is much of the time. The first verdict was by Figure 4's own network.
    """
    rows, told, holds, largest = found["fig4"], [], None, 0.0
    for where in timing.SIZES:
        times = _times(rows["HE + DP"], rows["LightDP-FL"], where)
        if times is None:
            told.append(f"not measured at {where}")
        else:
            told.append(f"{_short(times)} times LightDP-FL's at {where}")
            own = _cost(rows["LightDP-FL"], where)
            assert own is not None
            if own.bytes_up >= largest:  # as many words as the network has numbers
                holds, largest = times >= 10, own.bytes_up
    return plain(holds, ", ".join(told))


def _all_of_it(found: Mapping[str, Found]) -> Verdict:
    """Cheap: at most 2.5 times local noise's round. Accurate: within 5 points of SecAgg."""
    row, base = (found["table1"][name] for name in ("LightDP-FL", "local noise"))
    times = _times(row, base, "ResNet-18")
    assert times is not None  # no protocol, but noise alone
    resilient = min(row["chances"].values()) > 0.99
    own, masked = (
        np.asarray(found["table1"][name]["accuracies"])[:, -1]
        for name in ("LightDP-FL", "SecAgg + DP")
    )
    because = (
        f"a round counts with chance {min(row['chances'].values()):.3g} and takes {times:.2g} "
        f"times local noise's; accuracy less SecAgg's {points(own - masked)}"
    )
    return plain(every([resilient, times <= 2.5, above(own - masked, -0.05)]), because)


CONCLUSIONS = (
    Conclusion(
        "Figure 2", "own noise rises with colluders and with stragglers", ("fig2",), _own_rises
    ),
    Conclusion("Example 1", "pair noise rises with colluders", (), refuted(errata.ERRATA, "E12")),
    Conclusion(
        "Proposition 1", "condition (14) gives (epsilon, delta)", (), refuted(errata.ERRATA, "E2")
    ),
    Conclusion(
        "footnote",
        "T rounds multiply variances by sqrt(T)",
        (),
        refuted(errata.ERRATA, "E4", place=1),
    ),
    Conclusion("Proposition 2", "the gap is below equation (15)", ("prop2",), _bound),
    Conclusion(
        "Figure 3",
        "LightDP-FL gains more than 15 points on local noise",
        ("fig3",),
        _ahead("local noise", 0.15),
    ),
    Conclusion(
        "Figure 3", "LightDP-FL is above a secure sum", ("fig3",), _ahead("secure sum", 0.0)
    ),
    Conclusion(
        "Table II",
        "accuracy falls with the number of colluders",
        ("table2",),
        _trend("table2", [((e, 10, 10), (e, 40, 10)) for e in EPSILONS]),
    ),
    Conclusion(
        "Table III",
        "accuracy falls with the number of stragglers",
        ("table3",),
        _trend("table3", [((e, 15, 0), (e, 15, 30)) for e in EPSILONS]),
    ),
    Conclusion(
        "Tables II and III",
        "accuracy rises with epsilon",
        ("table2",),
        _trend("table2", [((9.0, c, 10), (3.0, c, 10)) for c in (10, 20, 30, 40)]),
    ),
    Conclusion(
        "Figure 4",
        "SecAgg and SwiftAgg+ cannot train where one link in twenty fails",
        ("fig4",),
        _lost,
    ),
    Conclusion("Figure 4", "HE takes ten times as long or more", ("fig4",), _ten_times),
    Conclusion(
        "Table I",
        "LightDP-FL alone is private, resilient, cheap and accurate",
        ("table1",),
        _all_of_it,
    ),
)

PAPER = Paper(
    title="Noise that clients share in pairs",
    source=(
        'Hong, Lin, Duan, "Lightweight Federated Learning with Differential Privacy and Straggler '
        'Resilience"'
    ),
    items=ITEMS,
    conclusions=CONCLUSIONS,
    by_seed=frozenset({"accuracies", "counted"}),
    memory_gb={"demo": 2.0, "full": 12.0},
    stand_ins={
        "demo": ("A softmax model on the bundled 8 x 8 digits in place of ResNet-18 on CIFAR-10."),
        "full": ("A small CNN on the bundled 8 x 8 digits in place of ResNet-18 on CIFAR-10."),
    },
)
