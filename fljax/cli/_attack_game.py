"""What `fljax attack --attack NAME` does with a game: runs with a unit and without it at several
budgets, a report.
"""

import dataclasses
import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from fljax import accounting, schemes
from fljax.accounting import words
from fljax.attacks import audit, rounds, table, trained
from fljax.cli import _attack_noise, _own, _run_files
from fljax.simulation.report import attack_figures, run_page

TITLE = "Membership of one unit"
HEAD = (
    "epsilon",
    "noise",
    "measured, at least",
    "certified, at most",
    "TPR at 1 % FPR",
    "largest TPR",
    "verdict",
)
_CONFIDENCE, _FPR = 0.999, 0.01


class Line(NamedTuple):
    """One budget; infinite: next to no noise. measured: the epsilon that the attack proves. bound:
    certified. rates: one, of its scores, beside the largest that is certified. holds: as in
    `rounds.Verdict`.
    """

    budget: float
    noise: float
    measured: float
    bound: float
    rates: tuple[trained.Rate, ...]
    largest_tpr: float
    holds: bool | None


class Found(NamedTuple):
    """lines: next to no noise, then one a budget. bound: what it bounds. standing: of that. sees:
    what the attacker sees, in words.
    """

    lines: list[Line]
    bound: str
    standing: str
    sees: str


def run(options: Any, own: _own.Own | None, say: Callable[[str], None]) -> Found:
    """Plays at every budget, each with noise that spends it in all rounds; without budgets with the
    noise of `own`.

    Raises:
      ValueError: a budget cannot be reached, or the attack is not for this scheme.
    """
    with warnings.catch_warnings():
        # A better order would lower the bound that a budget is spent by; it holds as it is.
        warnings.simplefilter("ignore", accounting.OrderWarning)
        return _run(options, own, say)


def _run(options: Any, own: _own.Own | None, say: Callable[[str], None]) -> Found:
    scheme = schemes.get(options.scheme)
    start = rounds.config(options.scheme, noise_multiplier=1.0) if own is None else own.config
    noisy = _attack_noise.noises(
        scheme, start, options.budgets, num_rounds=options.num_rounds, delta=options.delta
    )
    root = jax.random.key(options.seed, impl="threefry2x32")
    proved = rounds.undefended(
        options.scheme,
        start,
        jax.random.fold_in(root, len(noisy)),
        num_trials=options.trials,
        num_rounds=options.num_rounds,
        attack=options.attack,
        delta=options.delta,
        confidence=_CONFIDENCE,
    )
    lines, sees = [], ""
    if proved is not None:
        bare, scores = proved
        rates = (_rate(*scores),)
        lines.append(
            Line(math.inf, rounds.NEXT_TO_NO_NOISE, bare.measured, math.inf, rates, 1.0, None)
        )
    say(f"without noise: {options.trials} runs in each world done")
    for place, (budget, noise, _) in enumerate(noisy):
        config = dataclasses.replace(start, noise_multiplier=noise)
        (game,) = rounds.games(
            options.scheme, config, num_rounds=options.num_rounds, attack=options.attack
        )
        found, scores = rounds.audited(
            game,
            jax.random.fold_in(root, place),
            num_trials=options.trials,
            delta=options.delta,
            confidence=_CONFIDENCE,
        )
        sees = game.sees
        holds = None if found.holds and game.law_alone else found.holds
        largest = 1 - float(rounds.certified_curve(game.event, np.asarray(_FPR)))
        lines.append(
            Line(
                float(budget),
                noise,
                found.measured,
                found.certified,
                (_rate(*scores),),
                largest,
                holds,
            )
        )
        told = f"epsilon {words.at_most(budget)}: {options.trials} runs in each world done"
        if holds is None:
            why = table.cannot_tell(found.ceiling, found.control, bool(found.holds))
            told += f"; cannot tell: {why}"
        say(told)
    return Found(
        lines, f"epsilon at delta {words.at_most(options.delta)}, at most", "certified", sees
    )


def _rate(present: np.ndarray, absent: np.ndarray) -> trained.Rate:
    """Of the runs that chose nothing: weights of a view of several numbers are learnt from the
    others.
    """
    kept = audit.counted(len(present))
    return trained.rate(present[-kept:], absent[-kept:], _FPR)


def cells(line: Line) -> list[str]:
    """A line as text, in the order of HEAD."""
    measured, bound = words.at_least(line.measured, 4), words.at_most(line.bound, 4)
    plain = math.isinf(line.budget)
    (rate,) = line.rates
    return [
        "no noise" if plain else words.at_most(line.budget),
        f"{line.noise:.4g}",
        measured,
        "nothing" if plain else bound,
        f"{rate.tpr:.2g} ({rate.low:.2g} to {rate.high:.2g})",
        "nothing" if plain else words.at_most(line.largest_tpr, 3),
        "undefended" if plain else table.VERDICTS[line.holds],
    ]


def sections(options: Any, found: Found) -> list[str]:
    """Of the report."""
    lines = [line for line in found.lines if math.isfinite(line.budget)]
    picture = attack_figures.success(
        [line.budget for line in lines],
        {options.attack: [line.measured for line in lines]},
        [line.bound for line in lines],
        unit=f"epsilon at delta {words.at_most(options.delta)}",
        quantity="epsilon that the attack proves",
        share=False,
    )
    note = (
        f"{options.trials} runs of {options.num_rounds} rounds in each of two worlds that differ "
        "in one unit. Measured epsilons are lower bounds that are wrong with chance "
        f"{1 - _CONFIDENCE:.2g} each. Cannot tell: no scores of so many runs could have got past "
        "the bound, or the attack did not get past it where the scheme drew half its noise."
    )
    threat = (
        "<p>The attacker chose all data, knows every setting, and misses one bit: whether the "
        f"unit was there. It sees {found.sees}.</p>"
    )
    return [
        run_page.section("Measured against certified", picture, note),
        run_page.section(
            "Numbers", _run_files.html_table(HEAD, [cells(line) for line in found.lines])
        ),
        run_page.section("Threat model", threat),
    ]
