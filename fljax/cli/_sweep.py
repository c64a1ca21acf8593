"""Epsilon over a grid of sampled Gaussians: `--sweep` of `fljax account`, as a CSV file and a
picture beside it.
"""

import csv
import itertools
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fljax import accounting
from fljax.accounting import pld
from fljax.accounting.renyi import conversion, rdp
from fljax.accounting.words import at_least, at_most, rounded_up

# What a user may call an axis, and what the columns are called.
AXES = {
    "noise": "noise_multiplier",
    "noise_multiplier": "noise_multiplier",
    "q": "sampling_prob",
    "sampling_prob": "sampling_prob",
    "steps": "steps",
    "delta": "delta",
}
COLUMNS = ("noise_multiplier", "sampling_prob", "steps", "delta")
MOST_POINTS = 100_000
CHUNK = 1024  # configurations per call: bounds memory
MOST_LINES = 8


class Grid(NamedTuple):
    """axes: swept columns in the order given, with their values. points: `[N, 4]`, columns as in
    COLUMNS.
    """

    axes: dict[str, np.ndarray]
    points: np.ndarray


def _axis(text: str) -> tuple[str, np.ndarray]:
    name, _, values = text.partition("=")
    form = "NAME=LOW:HIGH:COUNT or NAME=V1,V2,..."
    if name not in AXES or not values:
        raise ValueError(
            f"Expected sweep to be {form} with NAME among {sorted(AXES)}, got sweep={text!r}."
        )
    try:
        if ":" not in values:
            numbers = np.array([float(v) for v in values.split(",")])
        else:
            low, high, count = values.split(":")
            # Rates and deltas are compared by their ratios.
            spread = np.geomspace if AXES[name] in ("sampling_prob", "delta") else np.linspace
            numbers = np.atleast_1d(spread(float(low), float(high), int(count)))
    except ValueError:
        raise ValueError(f"Expected sweep to be {form}, got sweep={text!r}.") from None
    if not numbers.size or not np.all(np.isfinite(numbers)):
        raise ValueError(f"Expected sweep to hold finite numbers, got sweep={text!r}.")
    return AXES[name], np.unique(np.round(numbers)) if AXES[name] == "steps" else numbers


def grid(sweeps: Sequence[str], fixed: dict[str, float]) -> Grid:
    """The product of all `NAME=LOW:HIGH:COUNT` (or `NAME=V1,V2,...`), the other columns from
    `fixed`.

    Raises:
      ValueError: a sweep that is malformed, given twice, or too large.
    """
    axes: dict[str, np.ndarray] = {}
    for text in sweeps:
        name, values = _axis(text)
        if name in axes:
            raise ValueError(f"Expected each sweep once, got two of {name}: sweep={text!r}.")
        axes[name] = values
    columns = [axes.get(name, np.array([fixed[name]])) for name in COLUMNS]
    if np.prod([len(c) for c in columns]) > MOST_POINTS:
        raise ValueError(
            f"Expected sweep to have at most {MOST_POINTS} points, got {[len(c) for c in columns]}."
        )
    return Grid(axes, np.array(list(itertools.product(*columns)), np.float64))


def epsilons(points: np.ndarray, methods: Sequence[str]) -> dict[str, np.ndarray]:
    """Columns of bounds on epsilon at `points` `[N, 4]`, under adding or removing one unit."""
    found: dict[str, list[np.ndarray]] = {}

    def add(name: str, values: np.ndarray) -> None:
        found.setdefault(name, []).append(np.asarray(values))

    for start in range(0, len(points), CHUNK):
        noise, prob, steps, delta = points[start : start + CHUNK].T
        if "pld" in methods:
            lower, upper = pld.poisson_gaussian_interval(noise, prob, steps, delta=delta)
            add("epsilon_lower_pld", lower)
            add("epsilon_upper_pld", upper)
        if "rdp" in methods:
            orders = rdp.DEFAULT_ORDERS
            curves = rdp.poisson_gaussian(noise, prob, orders)
            add(
                "epsilon_upper_rdp",
                conversion.rdp_to_epsilon(steps[:, None] * curves, orders, delta),
            )
    return {name: np.concatenate(parts) for name, parts in found.items()}


def write(path: pathlib.Path, points: np.ndarray, found: dict[str, np.ndarray]) -> None:
    """One line for each point; upper bounds are rounded up."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow([*COLUMNS, *found])
        for i, point in enumerate(points):
            bounds = [
                rounded_up(float(values[i]), 9)
                if "upper" in name
                else at_least(float(values[i]), 9)
                for name, values in found.items()
            ]
            noise, prob, steps, delta = point
            out.writerow(
                [f"{noise:.9g}", f"{prob:.9g}", f"{steps:.0f}", at_most(float(delta), 9), *bounds]
            )


def lines(
    chosen: Grid, epsilon: np.ndarray
) -> tuple[str, list[tuple[str, np.ndarray, np.ndarray]]]:
    """(name of the first axis, its lines): label, x, epsilon for each value of the other axes, at
    most MOST_LINES.
    """
    first, *others = chosen.axes
    place = {name: i for i, name in enumerate(COLUMNS)}
    rest = list(itertools.product(*(chosen.axes[name] for name in others)))
    shown = [
        rest[i]
        for i in np.unique(np.linspace(0, len(rest) - 1, min(MOST_LINES, len(rest))).astype(int))
    ]
    out = []
    for values in shown:
        here = np.all(
            [chosen.points[:, place[n]] == v for n, v in zip(others, values, strict=True)], axis=0
        )
        here = np.broadcast_to(here, len(epsilon))
        label = ", ".join(f"{n} = {v:.4g}" for n, v in zip(others, values, strict=True))
        out.append((label, chosen.points[here, place[first]], epsilon[here]))
    return first, out


def trade_off(event: accounting.PrivacyEvent) -> tuple[np.ndarray, np.ndarray]:
    """(false-positive rate, least false-negative rate of any test), from certified upper bounds on
    delta(epsilon).
    """
    fpr = np.concatenate([[0.0], np.geomspace(1e-6, 1.0, 241)])
    middle = accounting.epsilon(event, delta=0.1, method="pld")
    far = accounting.epsilon(event, delta=1e-7, method="pld")
    best = np.zeros(fpr.shape)
    for epsilon in sorted({0.0, *np.linspace(0.0, middle, 5), *np.linspace(middle, far, 8)}):
        delta = accounting.delta(event, epsilon=float(epsilon), method="pld")
        best = np.maximum(
            best, conversion.epsilon_delta_trade_off(float(epsilon), min(delta, 1.0), fpr)
        )
    return fpr, best
