"""What `fljax attack --sweep` does once its flags are good: one attack on every scheme, and what
each certifies in the same plot.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from fljax import data, schemes
from fljax.accounting import words
from fljax.attacks import table
from fljax.cli import _attack, _attack_looks, _attack_malicious, _own, _run_files
from fljax.errors import PrivacyPreconditionError
from fljax.simulation.report import attack_figures, run_page

TITLE = "Reconstruction through every scheme"
PICTURE = "sweep.svg"
HEAD = (
    "scheme",
    "budget",
    "noise",
    "diverged",
    "dB",
    "at most",
    "picked",
    "verdict",
    "the bound is",
)


class Line(NamedTuple):
    """One scheme at one budget; infinite: without noise. noise: a multiplier, or of a channel the
    standard deviation in a pixel. measured: PSNR of the mean squared error, in dB. bound: of
    anybody's, certified or not, as `standing` says. The rest is of `_attack.Line`.
    """

    scheme: str
    budget: float
    noise: float
    measured: float
    bound: float
    standing: str
    diverged: int
    mse: float
    psnr: float
    registered_psnr: float
    ssim: float
    cw_ssim: float
    learnt_distance: float | None
    inverted: float
    picked: float
    holds: bool | None


class Found(NamedTuple):
    """lines: of each scheme without noise, then one a budget. picture: SVG. num_casts: the most
    uploads of one batch.
    """

    lines: list[Line]
    picture: str
    num_casts: int
    bound: str = "PSNR of the mean squared error in dB, at most"
    standing: str = "as each row says"


def run(options: Any, own: _own.Own | None, say: Callable[[str], None]) -> Found:
    """Plays the rounds of all schemes, then inverts them together: one program for those with an
    epsilon, one for channels.

    Raises:
      ValueError: a budget cannot be reached.
    """
    # Not the options' own scheme: those with an epsilon have the most uploads of a batch.
    epsilons = [name for name in options.sweep if schemes.get(name).promise != "nats"]
    options = dataclasses.replace(options, scheme=(epsilons or options.sweep)[0])
    here = _attack.world(options, own)
    games = []
    for name in options.sweep:
        channel = schemes.get(name).promise == "nats"
        budgets = options.budgets or _attack.BUDGETS["nats" if channel else "epsilon"]
        each = dataclasses.replace(options, scheme=name, budgets=budgets, sweep=None)
        if channel and options.budgets is None:
            each = dataclasses.replace(each, budgets=_held(each, here.dataset))
        promise = _attack.promised(each, None, here.dataset)
        told, moved = _attack.played(each, here, promise, lambda _: None)
        games.append((each, promise, told, moved, channel))
        say(f"{name}: rounds done")
    root = jax.random.key(options.seed, impl="threefry2x32")
    looks = _attack_looks.beside(here.dataset)
    low, high = _attack_looks.box(here.dataset)
    lines: dict[str, list[Line]] = {}
    for kind in (False, True):
        mine = [game for game in games if game[-1] is kind]
        if not mine:
            continue
        together = [move for *_, moved, _ in mine for move in moved]
        key = jax.random.fold_in(root, len(games) + kind)
        # All of a kind have as many uploads of a batch.
        config = mine[0][2][0][1]
        images = _attack.inverted(mine[0][0], here, config, together, key, channel=kind)
        size = len(here.many["y"])
        for each, promise, told, moved, _ in mine:
            own_images, images = images[: len(told) * size], images[len(told) * size :]
            found, standing = _attack.judged(each, here, promise, told, moved, own_images, looks)
            lines[each.scheme] = [_line(each.scheme, line, standing, high - low) for line in found]
    say("inversions done")
    ordered = [line for name in options.sweep for line in lines[name]]
    number = _attack_malicious.num_casts(options, here.dataset)
    return Found(ordered, _picture(ordered), number)


def _held(options: Any, dataset: data.Dataset) -> tuple[float, ...]:
    """The budgets whose noise float32 holds: of few numbers to a record, fewer nats."""
    found = []
    for budget in options.budgets:
        try:
            _attack.promised(dataclasses.replace(options, budgets=(budget,)), None, dataset)
        except PrivacyPreconditionError:
            continue
        found.append(budget)
    return tuple(found)


def _line(scheme: str, line: _attack.Line, standing: str, data_range: float) -> Line:
    shared = {name: value for name, value in line._asdict().items() if name in Line._fields}
    bound = _attack.decibels(line.least_mse, data_range)
    measured = _attack.decibels(line.mse, data_range)
    return Line(
        **shared | {"scheme": scheme, "bound": bound, "standing": standing}, measured=measured
    )


def _picture(lines: list[Line]) -> str:
    """A panel for each scheme, over its noise."""
    panels = {}
    for name in dict.fromkeys(line.scheme for line in lines):
        plain, *noisy = (line for line in lines if line.scheme == name)
        panels[name] = attack_figures.Panel(
            [line.noise for line in noisy],
            [line.measured for line in noisy],
            [line.bound for line in noisy],
            plain.measured,
            all(line.standing == "certified" for line in noisy),
        )
    return attack_figures.sweep(panels)


def cells(line: Line) -> list[str]:
    """A line as text, in the order of HEAD."""
    plain = math.isinf(line.budget)
    return [
        line.scheme,
        "no noise" if plain else words.at_most(line.budget),
        f"{line.noise:.4g}",
        str(line.diverged),
        f"{line.measured:.1f}",
        "-" if plain else words.at_most(line.bound, digits=3),
        f"{line.picked:.3g}",
        "undefended" if plain else table.VERDICTS[line.holds],
        "-" if plain else line.standing.partition(":")[0],
    ]


def sections(options: Any, found: Found) -> list[str]:
    """Of the report."""
    note = (
        "A panel for each scheme, all on the same axes: the signal-to-noise ratio of the mean "
        f"squared error of {options.targets} images ({options.attack}), the largest that anybody "
        "gets by the bound, and what the attack gets without noise. Noise is a multiplier, "
        "of channels the standard deviation in a pixel."
    )
    numbers = (
        f"Budgets are epsilons at delta {words.at_most(options.delta)} for all rounds of a batch "
        f"({found.num_casts}), or nats a use. The bound is for whoever knows that the image is one "
        f"of {options.targets} equally likely ones of one label, and of channels for one who "
        "knows their covariance; a channel's is certified only where that is declared; "
        "attack.json has the reason."
    )
    threat = (
        f"<p>The attacker sees {_attack.seen(options, found.num_casts)}. "
        f"{_attack.company(options)} In the mean over these images, all of one label, no "
        "attack is above a certified bound, whatever it knows but which one it is.</p>"
    )
    rows = [cells(line) for line in found.lines]
    return [
        run_page.section("Measured and certified, over the noise", found.picture, note),
        run_page.section("Numbers", _run_files.html_table(HEAD, rows), numbers),
        run_page.section("Threat model", threat),
    ]
