"""The pictures of a report, each a string of SVG; the same run gives the same string."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import matplotlib.colors
import numpy as np
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.ticker import AutoLocator, MaxNLocator, PercentFormatter

from fljax.simulation.report import picture

PRIVATE, BASELINE, BUDGET = "#1f5fbf", "#8a8f98", "#c2410c"
_METHODS = ("#8a8f98", "#1f5fbf", "#c2410c", "#7c3aed", "#15803d", "#0e7490")
_DASHES = ("-", "--", "-.", ":", (0, (6, 2, 1, 2, 1, 2)), (0, (1, 1)))  # tell lines without colour
_STYLE = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#c9ced6",
    "axes.grid": True,
    "axes.labelcolor": "#4b5563",
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.family": "sans-serif",
    "font.size": 10,
    "grid.color": "#eceff3",
    "legend.frameon": False,
    "lines.linewidth": 2,
    "svg.fonttype": "none",  # text stays text: it is small, sharp, and can be searched
    "svg.hashsalt": "fljax",
    "xtick.color": "#4b5563",
    "ytick.color": "#4b5563",
}
_LOSSES = {"cross_entropy": "cross-entropy, nats", "squared": "half the squared error"}
Record = dict[str, Any]


def _axes(width: float = 4.2, height: float = 2.7) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure, axes


def _series(
    records: Sequence[Record], name: str, against: str = "round"
) -> tuple[list[float], list[float]]:
    chosen = [r for r in records if name in r]
    return [float(r[against]) for r in chosen], [float(r[name]) for r in chosen]


def _draw(axes: Any, records: Sequence[Record], name: str, **style: Any) -> None:
    """A line over rounds, where there are numbers: the legend must not speak of a model that was
    not trained.
    """
    rounds, values = _series(records, name)
    if rounds:
        axes.plot(rounds, values, **style)


@matplotlib.rc_context(_STYLE)
def accuracy(records: Sequence[Record], name: str = "private") -> str:
    """Held-out accuracy over rounds; `name` is what the run is called."""
    figure, axes = _axes()
    _draw(axes, records, "baseline_test_accuracy", color=BASELINE, label="non-private")
    _draw(axes, records, "test_accuracy", color=PRIVATE, label=name)
    axes.set(xlabel="round", ylabel="held-out accuracy", ylim=(0, 1.02))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.legend(loc="best")
    return picture.with_numbers(figure)


@matplotlib.rc_context(_STYLE)
def metric(records: Sequence[Record], metric: str, name: str = "private") -> str:
    """An own metric on held-out examples over rounds; `name` is what the run is called."""
    figure, axes = _axes()
    _draw(axes, records, f"baseline_test_{metric}", color=BASELINE, label="non-private")
    _draw(axes, records, f"test_{metric}", color=PRIVATE, label=name)
    axes.set(xlabel="round", ylabel=f"held-out {metric.replace('_', ' ')}")
    axes.legend(loc="best")
    return picture.with_numbers(figure)


@matplotlib.rc_context(_STYLE)
def loss(records: Sequence[Record], name: str = "private", kind: str = "cross_entropy") -> str:
    """Held-out loss (lines) and training loss (thin lines) over rounds; `kind` is what the loss is
    called.
    """
    figure, axes = _axes()
    for prefix, color, label in (("baseline_", BASELINE, "non-private"), ("", PRIVATE, name)):
        _draw(axes, records, prefix + "test_loss", color=color, label=f"{label}, held out")
        thin = {"linewidth": 0.8, "alpha": 0.6}
        _draw(axes, records, prefix + "train_loss", color=color, label=f"{label}, training", **thin)
    axes.set(xlabel="round", ylabel=_LOSSES.get(kind, "loss"))
    if kind in _LOSSES:  # others may be below zero
        axes.set_ylim(bottom=0)
    figure.legend(loc="outside lower center", ncols=2)
    return picture.with_numbers(figure)


@matplotlib.rc_context(_STYLE)
def epsilon(records: Sequence[Record], target: float | None) -> str:
    """Epsilon spent over rounds, and the budget."""
    figure, axes = _axes()
    axes.plot(*_series(records, "epsilon"), color=PRIVATE, label="spent")
    if target is not None:
        axes.axhline(
            target, color=BUDGET, linestyle="--", linewidth=1.5, label=f"budget {target:g}"
        )
    axes.set(xlabel="round", ylabel="epsilon")
    axes.set_ylim(bottom=0)
    axes.legend(loc="lower right")
    return picture.with_numbers(figure)


@matplotlib.rc_context(_STYLE)
def utility(records: Sequence[Record]) -> str:
    """Held-out accuracy, or loss where there are no classes, against the epsilon spent to reach
    it.
    """
    figure, axes = _axes()
    classes = "test_accuracy" in records[-1]
    what = "accuracy" if classes else "loss"
    _, reference = _series(records, f"baseline_test_{what}")
    if reference:
        axes.axhline(
            reference[-1],
            color=BASELINE,
            linestyle="--",
            linewidth=1.5,
            label="non-private, at the end",
        )
    axes.plot(
        *_series(records, f"test_{what}", against="epsilon"),
        color=PRIVATE,
        marker=".",
        label="private",
    )
    axes.set(xlabel="epsilon spent", ylabel=f"held-out {what}")
    if classes:
        axes.set_ylim(0, 1.02)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.legend(loc="best")
    return picture.with_numbers(figure)


@matplotlib.rc_context(_STYLE)
def nats(
    rounds: Sequence[int], joint: Sequence[float], added_up: Sequence[float], psnr: Sequence[float]
) -> str:
    """Nats per record over rounds, counted jointly and added up use by use, and the ceiling on a
    reconstruction.
    """
    figure = Figure(figsize=(10.8, 3.0), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(
        rounds, added_up, color=BASELINE, linestyle="--", linewidth=1.5, label="added up use by use"
    )
    left.plot(rounds, joint, color=PRIVATE, label="jointly: what counts")
    left.set(xlabel="round", ylabel="nats per record")
    left.legend(loc="upper left")
    right.plot(rounds, psnr, color=BUDGET)
    right.set(xlabel="round", ylabel="PSNR of any reconstruction <= dB")
    for axes in (left, right):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    left.set_ylim(bottom=0)
    return picture.with_numbers(figure)


@matplotlib.rc_context(_STYLE)
def seen_records(clean: np.ndarray, noisy: np.ndarray) -> str:
    """Images `[n, H, W]` above what training saw of them, both on the clean images' grey scale."""
    figure = Figure(figsize=(10.8, 2.4), layout="constrained")
    axes = figure.subplots(2, len(clean), squeeze=False)
    for row, images, label in ((axes[0], clean, "record"), (axes[1], noisy, "as seen")):
        for place, image in zip(row, images, strict=True):
            place.imshow(
                image, cmap="gray_r", vmin=clean.min(), vmax=clean.max(), interpolation="nearest"
            )
            place.set(xticks=[], yticks=[])
            place.grid(False)
        row[0].set_ylabel(label)
    return picture.svg(figure)


@matplotlib.rc_context(_STYLE)
def labels(table: np.ndarray, y: np.ndarray, num_classes: int, shown: int = 60) -> str:
    """Examples of each label at the first `shown` clients; `table` is `[num_clients, N]` of rows,
    -1 padding.
    """
    counts = np.stack(
        [np.bincount(y[row[row >= 0]], minlength=num_classes) for row in table[:shown]]
    )
    figure, axes = _axes(11.2, 3.0)
    # From dark to light, so that neighbours differ for who tells no red from green.
    shades = matplotlib.colormaps["viridis"](np.linspace(0.2, 0.95, min(num_classes, 20)))
    colors = matplotlib.colors.ListedColormap(shades)
    left, right = np.arange(len(counts)) - 0.425, np.arange(len(counts)) + 0.425
    tops = counts.cumsum(axis=1)
    for label in range(num_classes):
        top, bottom = tops[:, label], tops[:, label] - counts[:, label]
        corners = [(left, bottom), (left, top), (right, top), (right, bottom)]
        bars = PolyCollection(  # a patch for each bar would take a third of a report's time
            list(np.stack([np.stack(corner, -1) for corner in corners], 1)),
            facecolors=[colors(label % colors.N)],
            label=str(label),
        )
        axes.add_collection(bars, autolim=False)
    axes.set(xlabel="client", ylabel="examples", xlim=(-0.6, len(counts) - 0.4))
    axes.set_ylim(0, 1.05 * max(1, tops[:, -1].max()))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="x", visible=False)
    if num_classes <= 20:
        axes.legend(
            title="label",
            ncols=1 if num_classes <= 10 else 2,
            loc="center left",
            bbox_to_anchor=(1, 0.5),
        )
    return picture.svg(figure)


@matplotlib.rc_context(_STYLE)
def uploads(
    reached: np.ndarray, meaning: Sequence[str], epsilons: np.ndarray, limit: float, shown: int = 60
) -> str:
    """What became of the first `shown` clients' uploads, round by round, above the epsilon of each
    client.

    reached: `[T, N]` of 0..2. meaning: of these three; an empty one does not occur. epsilons:
      `[N]`. limit: the claim.
    """
    reached, epsilons = reached[:, :shown], epsilons[:shown]
    figure = Figure(figsize=(11.2, 2.4 + min(3.0, 0.09 * len(reached) + 0.6)), layout="constrained")
    top, bottom = figure.subplots(
        2, 1, sharex=True, height_ratios=(min(3.0, 0.09 * len(reached) + 0.6), 1.8)
    )
    colors = ("#e3e6eb", BUDGET, PRIVATE)
    top.pcolormesh(
        np.arange(reached.shape[1] + 1) - 0.5,
        np.arange(len(reached) + 1) + 0.5,
        reached,
        cmap=matplotlib.colors.ListedColormap(colors),
        vmin=-0.5,
        vmax=2.5,
        edgecolors="white",
        linewidth=0.5,
        rasterized=reached.size > 3000,  # a path for each cell would be megabytes
    )
    top.set(ylabel="round")
    top.yaxis.set_major_locator(MaxNLocator(integer=True))
    top.grid(visible=False)
    for color, label in zip(colors, meaning, strict=True):
        if label:
            top.bar([0], [0], color=color, label=label)
    top.set_ylim(
        len(reached) + 0.5, 0.5
    )  # the bars of the legend stand at round 0, which there is not
    top.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    bottom.bar(np.arange(len(epsilons)), epsilons, width=0.85, color=PRIVATE, label="of this run")
    bottom.axhline(limit, color=BUDGET, linestyle="--", linewidth=1.5, label="claimed")
    bottom.set(xlabel="client", ylabel="epsilon", xlim=(-0.6, reached.shape[1] - 0.4))
    bottom.xaxis.set_major_locator(MaxNLocator(integer=True))
    bottom.grid(axis="x", visible=False)
    bottom.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return picture.svg(figure)


@matplotlib.rc_context(_STYLE)
def predictions(images: np.ndarray, y: np.ndarray, predicted: np.ndarray, columns: int = 12) -> str:
    """A grid of images `[n, height, width, channels]` with what the model says; red where it is
    wrong.
    """
    rows = -(-len(images) // columns)
    height, width = images.shape[1:3]
    figure = Figure(figsize=(11.2, 1.15 * rows), layout="constrained")
    axes = figure.subplots()  # one for all: axes for each image would take a third of a report
    axes.axis("off")
    # An image fills 0.7 of its cell's height and stands at its foot, its words above.
    wide = min(0.9, 0.7 * 1.15 * width / height * columns / 11.2)
    for place, (image, truth, said) in enumerate(zip(images, y, predicted, strict=True)):
        row, column = divmod(place, columns)
        axes.imshow(
            image if image.shape[-1] == 3 else image[..., 0],
            cmap="gray_r",
            interpolation="nearest",
            extent=(column - wide / 2, column + wide / 2, -row, 0.7 - row),
            aspect="auto",
        )
        right = truth == said
        axes.text(
            column,
            0.74 - row,
            f"{said}" if right else f"{said}, is {truth}",
            color="#15803d" if right else "#b91c1c",
            fontsize=10,
            ha="center",
        )
    axes.set(xlim=(-0.5, columns - 0.5), ylim=(1 - rows, 1))
    return picture.svg(figure)


@matplotlib.rc_context(_STYLE)
def curves(series: dict[str, np.ndarray], ylabel: str, *, percent: bool = False) -> str:
    """Each method's mean over its runs `[runs, rounds]`, in a band from its least to its greatest
    run.
    """
    figure, axes = _axes()
    for (label, runs), color, dash in zip(series.items(), _METHODS, _DASHES, strict=False):
        rounds = np.arange(1, runs.shape[1] + 1)
        axes.fill_between(
            rounds, runs.min(axis=0), runs.max(axis=0), color=color, alpha=0.15, linewidth=0
        )
        means = runs.mean(axis=0)
        axes.plot(rounds, means, color=color, linestyle=dash, label=label, linewidth=1.5)
    axes.set(xlabel="round", ylabel=ylabel)
    axes.set_ylim(bottom=0)
    if percent:
        axes.set_ylim(0, 1.02)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    figure.legend(loc="outside lower center", ncols=2)
    return picture.with_numbers(figure)


@matplotlib.rc_context(_STYLE)
def lines(
    series: Mapping[str, Sequence[tuple[float, float]]],
    xlabel: str,
    ylabel: str,
    percent: bool = False,
) -> str:
    """Points of each label, joined; percent: values are shares of one."""
    figure, axes = _axes()
    for place, (label, points) in enumerate(series.items()):
        # The first is of the run's own colour, as elsewhere; what comes round differs by its dash.
        color = _METHODS[(place + 1) % len(_METHODS)]
        dash = _DASHES[place % len(_DASHES)]
        mark = {"marker": "."} if len(points) < 30 else {}
        axes.plot(*zip(*points, strict=True), color=color, linestyle=dash, label=label, **mark)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.set_ylim(bottom=0)
    if xlabel != "round":
        axes.xaxis.set_major_locator(AutoLocator())
    if percent:
        axes.set_ylim(0, 1.02)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    if len(series) > 1:
        figure.legend(loc="outside lower center", ncols=2)
    return picture.with_numbers(figure)


@matplotlib.rc_context(_STYLE)
def classes(names: Sequence[str], train: np.ndarray, test: np.ndarray) -> str:
    """Examples of each class, trained on and held out."""
    figure, axes = _axes(max(4.2, min(11.2, 0.4 * len(names))), 3.0)
    at = np.arange(len(names))
    axes.bar(at - 0.2, train, width=0.4, color=PRIVATE, label="training")
    axes.bar(at + 0.2, test, width=0.4, color=BASELINE, label="held out")
    shown = at if len(names) <= 40 else at[:: -(-len(names) // 40)]
    axes.set_xticks(shown, [names[place][:20] for place in shown], rotation=90)
    axes.set(ylabel="examples")
    axes.grid(axis="x", visible=False)
    axes.legend()
    return picture.svg(figure)


@matplotlib.rc_context(_STYLE)
def group_sizes(samples: dict[str, np.ndarray]) -> str:
    """Share of batches whose largest group has each size, side by side for several splits."""
    figure, axes = _axes()
    most = max(int(values.max()) for values in samples.values())
    width = 0.8 / len(samples)
    for place, ((label, values), color) in enumerate(zip(samples.items(), _METHODS, strict=False)):
        share = np.bincount(values, minlength=most + 1)[: most + 1] / values.size
        at = np.arange(most + 1) + (place - (len(samples) - 1) / 2) * width
        axes.bar(at, share, width=width, color=color, label=label)
    axes.set(xlabel="items of one subject in a batch, largest", ylabel="batches")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.grid(axis="x", visible=False)
    axes.legend()
    return picture.svg(figure)


@matplotlib.rc_context(_STYLE)
def skew(alphas: Sequence[float], series: Mapping[str, Sequence[float]]) -> str:
    """Held-out accuracy of each method against the exponent of the power law that spreads subjects
    over silos.
    """
    figure, axes = _axes()
    for (label, values), color, dash in zip(series.items(), _METHODS, _DASHES, strict=False):
        axes.plot(alphas, values, color=color, linestyle=dash, marker="o", label=label)
    axes.set(xlabel="alpha (1: even)", ylabel="held-out accuracy", ylim=(0, 1.02))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    figure.legend(loc="outside lower center", ncols=2)
    return picture.with_numbers(figure)


@matplotlib.rc_context(_STYLE)
def sweep(name: str, lines: Sequence[tuple[str, np.ndarray, np.ndarray]]) -> str:
    """Epsilon (logarithmic) against the swept parameter `name`; lines: label, x, epsilon."""
    figure, axes = _axes(6.4, 4.0)
    colors: Any = matplotlib.colormaps["viridis"]
    for i, (label, x, epsilon) in enumerate(lines):
        color = PRIVATE if len(lines) == 1 else colors(0.9 * i / (len(lines) - 1))
        axes.plot(x, np.where(epsilon > 0, epsilon, np.nan), color=color, label=label or None)
    axes.set(xlabel=name, ylabel="epsilon, upper bound", yscale="log")
    axes.xaxis.set_major_locator(AutoLocator())
    if name in ("sampling_prob", "delta"):
        axes.set_xscale("log")
    if any(label for label, _, _ in lines):
        axes.legend()
    return picture.svg(figure)


@matplotlib.rc_context(_STYLE)
def trade_off(fpr: np.ndarray, fnr: np.ndarray) -> str:
    """The least false-negative rate of any membership test against its false-positive rate."""
    figure, axes = _axes(4.2, 3.8)
    axes.plot([0, 1], [1, 0], color=BASELINE, linestyle="--", linewidth=1.5, label="guessing")
    axes.fill_between(fpr, 0, fnr, color=PRIVATE, alpha=0.12, linewidth=0)
    axes.plot(fpr, fnr, color=PRIVATE, label="no test is below")
    axes.set(xlabel="false-positive rate", ylabel="false-negative rate", xlim=(0, 1), ylim=(0, 1))
    axes.xaxis.set_major_locator(AutoLocator())
    axes.legend()
    return picture.svg(figure)
