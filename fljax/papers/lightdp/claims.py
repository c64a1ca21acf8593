"""Conclusions of "Lightweight Federated Learning with Differential Privacy and Straggler
Resilience", by section, and how each is judged.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fljax.papers.lightdp import errata, timing
from fljax.papers.lightdp.items import EPSILONS, cell_name, cost_of, short, times_of
from fljax.papers.lightdp.training import METHODS
from fljax.papers.paper import (
    Conclusion,
    Found,
    Verdict,
    above,
    all_above,
    by_accounting,
    every,
    plain,
    points,
    refuted,
)


def _last(found: Found, name: str, method: str, epsilon: float, c: int, s: int) -> np.ndarray:
    return np.asarray(found[cell_name(name, method, epsilon, c, s)]["accuracies"])[:, -1]


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
        times = times_of(rows["HE + DP"], rows["LightDP-FL"], where)
        if times is None:
            told.append(f"not measured at {where}")
        else:
            told.append(f"{short(times)} times LightDP-FL's at {where}")
            own = cost_of(rows["LightDP-FL"], where)
            assert own is not None
            if own.bytes_up >= largest:  # as many words as the network has numbers
                holds, largest = times >= 10, own.bytes_up
    return plain(holds, ", ".join(told))


def _all_of_it(found: Mapping[str, Found]) -> Verdict:
    """Cheap: at most 2.5 times local noise's round. Accurate: within 5 points of SecAgg."""
    row, base = (found["table1"][name] for name in ("LightDP-FL", "local noise"))
    times = times_of(row, base, "ResNet-18")
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
