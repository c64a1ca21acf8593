"""What `fljax attack --attack properties` does once its flags are good: updates of clients whose
data share a property or do not, what tells them apart, a report.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax import data, models
from fljax.accounting import words
from fljax.attacks import metrics, properties, trained
from fljax.cli import _attack, _own, _run_files
from fljax.simulation.report import attack_figures, run_page

TITLE = "Properties of a client's data"
HEAD = (
    "budget",
    "noise",
    "AUC of the property",
    *(f"TPR at {100 * fpr:g} % FPR" for fpr in trained.FPRS),
    "label mix told",
)
_KNOWN = 0.75  # share of updates that are the attacker's own


class Line(NamedTuple):
    """One budget; infinite: without noise. auc, rates: of the property. label_mix: the share of the
    variance of mixes of labels that is told. No bound is taken: `bound` is 1, holds None.
    """

    budget: float
    noise: float
    auc: float
    rates: tuple[trained.Rate, ...]
    label_mix: float
    bound: float = 1.0
    holds: bool | None = None


class Found(NamedTuple):
    """lines: without noise, then one a budget. unit: of budgets."""

    lines: list[Line]
    unit: str
    bound: str = "area at most"
    standing: str = "no bound is taken"


class Clients(NamedTuple):
    """x `[T, B, ...]`, y `[T, B]`; has: bool `[T]`, whose images are turned; mixes `[T, classes]`,
    shares of labels; known: how many come first, of images of their own.
    """

    x: np.ndarray
    y: np.ndarray
    has: np.ndarray
    mixes: np.ndarray
    known: int


def clients(images: data.Dataset, num: int, batch_size: int, seed: int) -> Clients:
    """Clients of drawn mixes of labels, half of whom have their images turned by 90 degrees.

    Raises:
      ValueError: images that are not square, or a class without an image in half of the training
        split.
    """
    x, y = images.train["x"], images.train["y"]
    if x.shape[1] != x.shape[2]:
        raise ValueError(
            f"Expected square images, which can be turned, got some of shape {list(x.shape[1:])}."
        )
    rng = np.random.default_rng([seed, 5])
    known, half = round(_KNOWN * num), np.arange(len(y)) < len(y) // 2
    drawn = rng.dirichlet(np.ones(images.num_classes), num)
    has = np.arange(num) % 2 == 0  # some of either kind on both sides
    picks = []
    for client, mix in enumerate(drawn):
        mine = np.flatnonzero(half == (client < known))
        counts = np.bincount(y[mine], minlength=images.num_classes)
        if not counts.all():
            raise ValueError("Expected each class in both halves of the training split.")
        chances = (mix / counts)[y[mine]]
        picks.append(rng.choice(mine, batch_size, p=chances / chances.sum()))
    rows = np.asarray(picks)
    turned = np.where(has[:, None, None, None, None], np.rot90(x[rows], axes=(2, 3)), x[rows])
    mixes = np.stack([np.bincount(y[own], minlength=images.num_classes) for own in rows])
    return Clients(turned, y[rows], has, mixes / batch_size, known)


def run(options: Any, own: _own.Own | None, say: Callable[[str], None]) -> Found:
    """Rounds of one client each at every budget, or with the noise of `own`, and without noise;
    three quarters of them are the attacker's, who knows the answers.

    Raises:
      ValueError: a budget cannot be reached, or the data do not fit.
    """
    images = _attack.images(options, own)
    there = clients(images, options.pool, options.batch_size, options.seed)
    model = models.create(
        options.model or "mlp",
        example_shape=there.x.shape[2:],
        num_classes=images.num_classes,
        key=jax.random.key(0),
    )
    every = {"x": jnp.asarray(there.x), "y": jnp.asarray(there.y)}
    here = _attack.World(
        images,
        there.x[:, 0],
        there.y[:, 0],
        there.y[:, 0],
        {name: leaf[:, 0] for name, leaf in every.items()},
        {name: leaf[:, 1:] for name, leaf in every.items()} if options.batch_size > 1 else None,
        model,
        model,
        model.apply,
    )
    promise = _attack.promised(options, own, images)
    told, moved = _attack.played(options, here, promise, say)
    lines = []
    for (budget, _, noise), updates in zip(told, moved, strict=True):
        sides = [
            jax.tree.map(lambda leaf, part=part: np.asarray(leaf)[part], updates)
            for part in (slice(there.known), slice(there.known, None))
        ]
        if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(sides)):
            raise ValueError(f"Expected updates of finite numbers at budget {budget:g}.")
        found = properties.scores(sides[0], there.has[: there.known], sides[1])
        has, mixes = there.has[there.known :], there.mixes[there.known :]
        yes, no = found[has], found[~has]
        guessed = properties.label_shares(sides[0], there.mixes[: there.known], sides[1])
        spread = np.square(mixes - there.mixes[: there.known].mean(0)).sum()
        lines.append(
            Line(
                budget=float(budget),
                noise=noise,
                auc=metrics.auc(yes, no),
                rates=tuple(trained.rate(yes, no, fpr) for fpr in trained.FPRS),
                label_mix=float(1 - np.square(guessed - mixes).sum() / spread),
            )
        )
    return Found(lines, promise.unit)


def cells(line: Line) -> list[str]:
    """A line as text, in the order of HEAD."""
    return [
        "no noise" if math.isinf(line.budget) else words.at_most(line.budget),
        *(f"{value:.3g}" for value in (line.noise, line.auc)),
        *(f"{r.tpr:.2g} ({r.low:.2g} to {r.high:.2g})" for r in line.rates),
        f"{line.label_mix:.0%}",
    ]


def sections(options: Any, found: Found) -> list[str]:
    """Of the report."""
    lines = [line for line in found.lines if math.isfinite(line.budget)]
    picture = attack_figures.success(
        [line.budget for line in lines],
        {"images are turned": [line.auc for line in lines]},
        [1.0] * len(lines),
        unit=found.unit,
        quantity="area under the curve of rates",
        share=True,
    )
    note = (
        f"{options.pool} clients of {options.batch_size} images of {options.dataset}, half of them "
        "turned by 90 degrees; three quarters are the attacker's own. At 50 % it guesses. Without "
        f"noise the area is {found.lines[0].auc:.3g}."
    )
    numbers = (
        "Label mix told: the share of the variance of clients' shares of labels that the update "
        "tells; below 0 % it misleads. No bound is taken: a promise to examples bounds no property "
        "that many of them share."
    )
    threat = (
        "<p>The attacker sees the model before and after a round in which one client alone had "
        "data, and makes updates of its own from public images, of which it knows the answers: a "
        "ridge regression reads them.</p>"
    )
    rows = [cells(line) for line in found.lines]
    return [
        run_page.section("Property against budget", picture, note),
        run_page.section("Numbers", _run_files.html_table(HEAD, rows), numbers),
        run_page.section("Threat model", threat),
    ]
