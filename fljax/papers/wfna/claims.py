"""Conclusions of arXiv:2405.04551, by section, and how each is judged."""

import itertools
from collections.abc import Mapping

import numpy as np

from fljax.papers.paper import (
    Conclusion,
    Found,
    Verdict,
    any_above,
    by_accounting,
    plain,
    points,
    refuted,
)
from fljax.papers.wfna import errata
from fljax.papers.wfna.items import BATCHES, METHODS, SETUP
from fljax.papers.wfna.training import EPSILONS, SCHEMES


def _differences(found: Found, first: str, second: str) -> dict[str, dict[float, np.ndarray]]:
    """By accounting and epsilon, first less second of the softmax, one a seed."""
    told: dict[str, dict[float, np.ndarray]] = {}
    for method in METHODS:
        for epsilon in EPSILONS:
            one, two = (
                np.asarray(found[f"softmax, {method}, epsilon {epsilon:g}, {name}"]["accuracies"])
                for name in (first, second)
            )
            told.setdefault(method, {})[epsilon] = one - two
    return told


def _ahead(found: Mapping[str, Found], first: str, second: str) -> Verdict:
    """Whether `first` is surely above `second` at one epsilon at least, and below it at none. Where
    neither is so at any, it cannot be told.
    """
    told = _differences(found["fig5"], first, second)
    because = "; ".join(
        f"{method}: " + ", ".join(f"{points(less)} at {e:g}" for e, less in rows.items())
        for method, rows in told.items()
    )
    return by_accounting({m: any_above(list(rows.values())) for m, rows in told.items()}, because)


def _fastest(found: Mapping[str, Found]) -> Verdict:
    times = {
        name: float(
            np.median(
                [row["seconds_an_epoch"] for row in found["fig5"].values() if row["scheme"] == name]
            )
        )
        for name in SCHEMES
    }
    because = ", ".join(f"{name} {1000 * value:.1f} ms an epoch" for name, value in times.items())
    order = sorted(times, key=lambda name: times[name])
    holds = order[0] == "SGD-DP" and order[-1] == "GSGD-DP"
    return Verdict("reproduced" if holds else "not reproduced", because)


def _whole_batches(found: Mapping[str, Found]) -> Verdict:
    """Epsilon comes nearer with each larger share, and within a hundredth at 99 %."""
    one = found["table1"]["rows"]
    whole = one["rows"]["all records, isotropic"]["sound"]
    away = [abs(epsilon - whole) for epsilon in one["subsets"]]
    nearer = all(late < early for early, late in itertools.pairwise(away))
    told = ", ".join(f"{e:.4g} with B = {b}" for b, e in zip(BATCHES, one["subsets"], strict=True))
    because = f"epsilon {told} of {SETUP.num_records:,}, {whole:.4g} without sampling"
    return plain(nearer and away[-1] <= 0.01 * whole, because)


def _span(found: Mapping[str, Found]) -> Verdict:
    told = found["fig3"]["game"]["told"]
    because = f"{told['0']:.0%} of sums give the record away, {told['0.05']:.0%} with noise .05"
    return Verdict("reproduced" if told["0"] > 0.99 else "not reproduced", because)


def _theorem_4(found: Mapping[str, Found]) -> Verdict:
    value = found["table1"]["rows"]["theorem 4"]
    sound = found["table1"]["rows"]["rows"]["Gaussian weights, water filling"]["sound"]
    because = f"it gives {value:.4g} where {sound:.4g} is proved; its proof fails (E11)"
    return Verdict("reproduced" if sound <= value else "refuted by proof", because)


CONCLUSIONS = (
    Conclusion(
        "Theorem 1, Figure 3",
        "without noise, a record outside the span of the others is given away",
        ("fig3",),
        _span,
    ),
    Conclusion("Theorem 4", "water filling is private by its bound", ("table1",), _theorem_4),
    Conclusion(
        "Table 1, last row",
        "water filling costs what isotropic noise costs",
        (),
        refuted(errata.ERRATA, "E14", place=0),
    ),
    Conclusion(
        "section 5.3",
        "decomposing block by block does not affect epsilon",
        (),
        refuted(
            errata.ERRATA,
            "E15",
            place=0,
            but="; with weights of its own for each block it does not",
        ),
    ),
    Conclusion(
        "section 6, Figure 5",
        "GD-DP is more accurate than GSGD-DP",
        ("fig5",),
        lambda found: _ahead(found, "GD-DP", "GSGD-DP"),
    ),
    Conclusion(
        "section 6, Figure 5",
        "GSGD-DP is more accurate than SGD-DP",
        ("fig5",),
        lambda found: _ahead(found, "GSGD-DP", "SGD-DP"),
    ),
    Conclusion("section 6", "SGD-DP is the fastest, GSGD-DP the slowest", ("fig5",), _fastest),
    Conclusion(
        "section 6", "SGD-DP tends to GD-DP as B / D tends to 1", ("table1",), _whole_batches
    ),
)
