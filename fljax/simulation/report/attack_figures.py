"""The pictures of an attack's report, each a string of SVG."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import AutoLocator, PercentFormatter

from fljax.simulation.report import picture
from fljax.simulation.report.figures import _METHODS, _STYLE, BASELINE, BUDGET, PRIVATE, _axes


@matplotlib.rc_context(_STYLE)
def rates(
    fpr: np.ndarray,
    fnr: np.ndarray,
    bound_fpr: np.ndarray,
    bound_fnr: np.ndarray,
    slack: tuple[float, float] = (0.0, 0.0),
) -> str:
    """Error rates that an attack reached, and those below which the certificate allows none.

    slack: by how much each of the two counted rates may be off, at all thresholds together; a band
      of that width is drawn about the curve.
    """
    figure, axes = _axes(4.2, 3.6)
    axes.plot([0, 1], [1, 0], color=BASELINE, linestyle="--", linewidth=1.5, label="guessing")
    axes.fill_between(bound_fpr, 0, bound_fnr, color=BUDGET, alpha=0.12, linewidth=0)
    axes.plot(bound_fpr, bound_fnr, color=BUDGET, label="certified: no attack is below")
    if any(slack):
        # The true rates lie in a box about each point; the band is what these boxes cover.
        corners = [
            np.clip([fpr + sign * slack[0], fnr + sign * slack[1]], 0, 1) for sign in (-1, 1)
        ]
        across = np.concatenate([corners[0], corners[1][:, ::-1]], axis=1)
        axes.fill(*across, color=PRIVATE, alpha=0.18, linewidth=0, label="where its truth lies")
    axes.plot(fpr, fnr, color=PRIVATE, label="this attack")
    axes.set(xlabel="false-positive rate", ylabel="false-negative rate", xlim=(0, 1), ylim=(0, 1))
    axes.xaxis.set_major_locator(AutoLocator())
    axes.legend()
    return picture.with_numbers(figure)


@matplotlib.rc_context(_STYLE)
def success(
    budgets: Sequence[float],
    measured: Mapping[str, Sequence[float]],
    bound: Sequence[float],
    *,
    unit: str,
    quantity: str,
    share: bool,
) -> str:
    """What attacks reach at each budget, and the certified bound in the same plot.

    Args:
      budgets: ascending; infinity stands at the right end.
      measured: label -> value at each budget. bound: the same.
      unit, quantity: of the two axes. share: values are shares of one.
    """
    figure, axes = _axes(4.2, 3.0)
    at = np.arange(len(budgets))
    axes.plot(at, bound, color=BUDGET, linestyle="--", marker="_", label="certified bound")
    for (label, values), color in zip(measured.items(), (PRIVATE, *_METHODS[3:]), strict=False):
        axes.plot(at, values, color=color, marker="o", label=label)
    axes.set_xticks(at, [f"{b:g}" if np.isfinite(b) else "no noise" for b in budgets])
    axes.set(xlabel=unit, ylabel=quantity)
    axes.set_ylim(bottom=0, top=1.05 if share else None)
    if share:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.legend()
    return picture.with_numbers(figure)


class Panel(NamedTuple):
    """Of one scheme: noise `[n]`, what an attack gets with it and what anybody gets at most, in dB,
    what the attack gets without noise, and whether the bound is certified.
    """

    noise: Sequence[float]
    measured: Sequence[float]
    bound: Sequence[float]
    undefended: float
    certified: bool


@matplotlib.rc_context(_STYLE | {"font.size": 8, "lines.linewidth": 1.5})
def sweep(panels: Mapping[str, Panel]) -> str:
    """A panel for each scheme, by its name, on axes that all share: dB over the noise."""
    columns = min(5, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(0.8 + 2.1 * columns, 0.9 + 1.5 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for axes, (name, panel) in zip(grid, panels.items(), strict=False):
        axes.axhline(panel.undefended, color=BASELINE, linestyle=":", label="without noise")
        style, label = ("--", "certified bound") if panel.certified else ("-.", "uncertified bound")
        axes.plot(panel.noise, panel.bound, color=BUDGET, linestyle=style, label=label)
        axes.plot(
            panel.noise,
            panel.measured,
            color=PRIVATE,
            marker="o",
            markersize=3,
            label="this attack",
        )
        axes.set_title(name, fontsize=8)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    grid[0].set_xscale("log")
    # Where little noise certifies next to nothing the bound leaves the picture.
    most = max((p.undefended for p in panels.values() if math.isfinite(p.undefended)), default=50)
    grid[0].set_ylim(0, 1.2 * max(most, 10))
    figure.supxlabel("noise", fontsize=9)
    figure.supylabel("PSNR of the mean error, dB", fontsize=9)
    drawn = [zip(*axes.get_legend_handles_labels(), strict=True) for axes in grid]
    handles = {label: handle for panel in drawn for handle, label in panel}
    figure.legend(list(handles.values()), list(handles), loc="outside upper center", ncols=4)
    return picture.svg(figure)


@matplotlib.rc_context(_STYLE)
def images(rows: Mapping[str, np.ndarray], notes: Mapping[str, Sequence[str]]) -> str:
    """Rows of images `[n, height, width, channels]` under each other, each with its label and a
    note below each image.

    Values outside [0, 1] are clipped for the picture only.
    """
    columns = max(len(pictures) for pictures in rows.values())
    figure = Figure(figsize=(11.2, 1.3 * len(rows)), layout="constrained")
    grid = figure.subplots(len(rows), columns, squeeze=False)
    for line, (label, pictures) in zip(grid, rows.items(), strict=True):
        for axes in line:
            axes.set_xticks([])
            axes.set_yticks([])
            axes.spines[:].set_visible(False)
        for place, (axes, one) in enumerate(zip(line, pictures, strict=False)):
            one = np.clip(one, 0, 1)
            if one.shape[-1] == 1:
                axes.imshow(1 - one[..., 0], cmap="gray", vmin=0, vmax=1)
            else:
                axes.imshow(one)
            axes.set_xlabel(notes.get(label, [""] * columns)[place], fontsize=10)
        line[0].set_ylabel(label, fontsize=10)
    return picture.svg(figure)
