"""What `fljax simulate --canaries N` makes of a run's canaries: an audit of that one run."""

from typing import Any, NamedTuple

import numpy as np

from fljax.accounting import words
from fljax.attacks import one_run, rounds, table
from fljax.cli import _run_files
from fljax.simulation.outcome import Outcome
from fljax.simulation.report import run_page

_CONFIDENCE = 0.95
_FPR = np.concatenate([[0.0], np.geomspace(1e-7, 0.05, 400), np.linspace(0.05, 1, 401)[1:]])


class Judged(NamedTuple):
    """One run's audit at the run's own delta. found: of `one_run.audit`. certified: epsilon. holds:
    False where it is refuted; None: cannot tell, as no control was played.
    """

    found: one_run.OneRun
    certified: float
    delta: float
    holds: bool | None


def judged(outcome: Outcome) -> Judged:
    """The audit of a run with canaries, by what its event certifies."""
    assert outcome.canaries is not None
    plan = outcome.plan
    event = outcome.config.implementation.run_event(plan.scheme_config, outcome.rounds)
    certified, delta = float(plan.epsilons[outcome.rounds]), float(plan.delta)
    curve = (_FPR, rounds.certified_curve(event, _FPR)) if np.isfinite(certified) else None
    found = one_run.audit(
        outcome.canaries.scores,
        outcome.canaries.included,
        delta=delta,
        confidence=_CONFIDENCE,
        curve=curve,
    )
    broken = bool(found.refuted) or found.epsilon > certified
    return Judged(found, certified, delta, False if broken else None)


def plain(told: Judged) -> dict[str, Any]:
    """For programs."""
    return {
        "canaries": told.found.canaries,
        "guesses": told.found.guesses,
        "correct": told.found.correct,
        "epsilon_lower": told.found.epsilon,
        "gdp_epsilon_lower": told.found.gdp_epsilon,
        "curve_refuted": told.found.refuted,
        "confidence": _CONFIDENCE,
        "verdict": table.VERDICTS[told.holds],
    }


def summary(told: Judged) -> str:
    """One line of the terminal."""
    found = told.found
    verdict = "more than is certified" if told.holds is False else "nothing beyond the claim"
    return (
        f"canaries           {found.correct} of {found.guesses} guesses about {found.canaries} "
        f"right: epsilon at least {words.at_least(found.epsilon, 3)}, "
        f"{words.at_least(found.gdp_epsilon, 3)} if its curve is Gaussian; {verdict}"
    )


def section(told: Judged) -> str:
    """Of the report."""
    found = told.found
    certified = words.at_most(told.certified, 4) if np.isfinite(told.certified) else "nothing"
    head = ("guesses", "right", "epsilon, at least", "if the curve is Gaussian", "certified")
    cells = [
        str(found.guesses),
        str(found.correct),
        words.at_least(found.epsilon, 4),
        words.at_least(found.gdp_epsilon, 4),
        certified,
    ]
    verdict = {
        True: "No mechanism with the certified trade-off curve is guessed right so often.",
        False: "The certified trade-off curve allows for as many right guesses.",
        None: "There is no certified trade-off curve to compare with.",
    }[found.refuted]
    note = (
        f"{found.canaries} units whose gradients move one parameter each, there or not by a coin; "
        "the attacker sees the first and the last model, and guesses about those of highest and "
        f"lowest score. Bounds at delta {words.at_most(told.delta)}, wrong with chance "
        f"{1 - _CONFIDENCE:.2g}. {verdict} One run proves less than its mechanism gives away, and "
        "no control was played: fljax audit does both."
    )
    return run_page.section("Canaries", _run_files.html_table(head, [cells]), note)
