"""Conclusions of arXiv:2206.03617, by section, and how each is judged."""

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from fljax.papers.paper import (
    Conclusion,
    Found,
    Verdict,
    above,
    all_above,
    by_accounting,
    chosen_by_others,
    half_width,
    plain,
    points,
    refuted,
)
from fljax.papers.subject_dp import errata
from fljax.papers.subject_dp.claimed import CLAIMED_EPSILON
from fljax.papers.subject_dp.items import (
    ALPHAS,
    PRINTED,
    SPREADS,
    WAYS,
    curve_name,
    dominant,
    skew_name,
    spread_name,
)
from fljax.papers.subject_dp.training import METHODS, SHAPES


def _above(shape: str, first: str, second: str, *, by: float = 0.0) -> Any:
    """Judges whether `first` is better than `second` by more than `by`, seed by seed: in accuracy;
    on Shakespeare's shape in nats of the loss, since accuracies end at the share of the most
    frequent symbol.
    """
    by_loss = shape == "shakespeare"

    def judge(found: Mapping[str, Found]) -> Verdict:
        holds, told = {}, []
        for method in METHODS:
            own, other = (
                np.asarray(
                    found[f"fig1-{shape}"][curve_name(shape, method, label)][
                        "losses" if by_loss else "accuracies"
                    ]
                )[:, -1]
                for label in (first, second)
            )
            better = other - own if by_loss else own - other
            holds[method] = above(better, by)
            nats = f"{-better.mean():+.2f} +- {half_width(better):.2f} nats of loss"
            told.append(f"{method}: {nats if by_loss else points(better)}")
        return by_accounting(holds, "; ".join(told))

    return judge


def _within_bounds(found: Mapping[str, Found]) -> Verdict:
    rows = found["utility"]["logistic"]["rows"]
    spare = [row["bound"] - np.asarray(row["excess"]) for row in rows]
    nearest = max(rows, key=lambda row: float(np.mean(row["excess"]) / row["bound"]))
    share = np.mean(nearest["excess"]) / nearest["bound"]
    because = f"at most {share:.0%} of the bound: {nearest['method']}, {nearest['steps']} steps"
    return plain(all_above(spare), because)


def _claim(place: int) -> Any:
    """Judges a claim of (4, 1e-5) by what is certified of it."""

    def judge(found: Mapping[str, Found]) -> Verdict:
        one = found["claims"]["claims"]["claims"][place]
        because = f"it spends {one['true, at least']:.2f} to {one['true']:.2f} where 4 is claimed"
        if one["true, at least"] > CLAIMED_EPSILON:
            return Verdict("refuted by proof", f"{one['errata']}: {because}")
        return plain(True if one["true"] <= CLAIMED_EPSILON else None, because)

    return judge


def _threes(found: Mapping[str, Found]) -> Verdict:
    row = found["fig2"]["femnist"]
    share = dict(map(tuple, row["batches"])).get(3, 0) / sum(n for _, n in row["batches"])
    because = f"{share:.0%} of batches have 3, {row['mean']:.2f} in the mean"
    return plain(dominant(row) == 3, because)


def _threes_of_roles(found: Mapping[str, Found]) -> Verdict:
    """The paper does not say how the sizes of its subjects are spread."""
    rows = {spread: found["fig2"][spread_name(spread)] for spread in SPREADS}
    threes = {dominant(row) == 3 for row in rows.values()}
    told = ", ".join(f"{dominant(row)} at {spread:g}" for spread, row in rows.items())
    because = f"most frequent by the spread of the sizes' logarithm, which is not printed: {told}"
    return plain(threes.pop() if len(threes) == 1 else None, because)


def _growth(found: Mapping[str, Found]) -> Verdict:
    at = {alpha: found["fig2"][f"femnist, alpha {alpha:g}"]["mean"] for alpha in ALPHAS}
    because = ", ".join(f"{mean:.1f} at alpha {alpha:g}" for alpha, mean in at.items())
    holds = round(at[2.0]) == 3 and round(at[16.0]) == 6
    return plain(holds, because)


def _falls(label: str, *, first: float, last: float) -> Any:
    """Judges whether a method loses between two skews, seed by seed."""

    def judge(found: Mapping[str, Found]) -> Verdict:
        holds, told = {}, []
        for method in METHODS:
            high, low = (
                np.asarray(found["fig3"][skew_name(method, label, alpha)]["accuracies"])
                for alpha in (first, last)
            )
            holds[method] = above(high - low)
            told.append(f"{method}: {points(high - low)}")
        return by_accounting(holds, f"lost from {first:g} to {last:g}, " + "; ".join(told))

    return judge


def _flat(labels: tuple[str, ...], within: float) -> Any:
    """Judges whether the mean accuracy of methods varies over alpha by less than that."""

    def judge(found: Mapping[str, Found]) -> Verdict:
        holds, told = {}, []
        for method in METHODS:
            ranges, pairs = {}, []
            for label in labels:
                runs = [
                    np.asarray(found["fig3"][skew_name(method, label, alpha)]["accuracies"])
                    for alpha in ALPHAS
                ]
                ranges[label] = chosen_by_others(runs) + chosen_by_others([-run for run in runs])
                pairs += [two - one for one, two in itertools.permutations(runs, 2)]
            # A range whose ends other seeds chose is too small on average: a wide one is wide, but
            # that nothing varies is for all pairs to say.
            wide = all_above([-run for run in ranges.values()], -within) is False
            holds[method] = False if wide else all_above(pairs, -within)
            told.append(
                f"{method}: " + ", ".join(f"{name} {points(run)}" for name, run in ranges.items())
            )
        return by_accounting(holds, "range over alpha, " + "; ".join(told))

    return judge


def _order_of_magnitude(shape: str, least: float) -> Any:
    def judge(found: Mapping[str, Found]) -> Verdict:
        row = found["noise"][shape]
        ratio = row["HiGradAvg, printed"] / row["LocalItemDP"]
        because = f"{ratio:.1f} times the noise of LocalItemDP, as printed"
        return plain(ratio >= least, because)

    return judge


def _few_rounds(found: Mapping[str, Found]) -> Verdict:
    holds, told = {}, []
    for method in METHODS:
        few, many = (
            np.asarray(found["rounds"][f"{method}, {way}"]["accuracies"])[:, -1] for way in WAYS
        )
        holds[method] = above(few - many)
        told.append(f"{method}: {points(few - many)}")
    return by_accounting(holds, "; ".join(told))


CONCLUSIONS = (
    Conclusion(
        "Theorem 3.4", "LocalGroupDP gives its epsilon to a subject", ("claims",), _claim(1)
    ),
    Conclusion(
        "Theorem 3.7",
        "HiGradAvg gives its epsilon to a subject of one silo, its divisor being public",
        ("claims",),
        _claim(3),
    ),
    Conclusion(
        "Algorithm 2",
        "dividing by the subjects of the batch costs nothing",
        (),
        refuted(errata.ERRATA, "E4"),
    ),
    Conclusion("Lemma 3.9", "UserLDP gives its epsilon", ("claims",), _claim(6)),
    Conclusion("Theorem 3.13", "s silos may run R / sqrt(s) rounds", ("claims",), _claim(4)),
    Conclusion(
        "Theorems 4.8, 4.9, 4.11",
        "noisy steps lose no more than the bounds, with the noise that a step has",
        ("utility",),
        _within_bounds,
    ),
    Conclusion(
        "section 5",
        "R / sqrt(s) rounds are better than noise for s times the steps",
        ("rounds",),
        _few_rounds,
    ),
    *(
        Conclusion("Figure 1", statement, (f"fig1-{shape}",), judge)
        for shape in SHAPES
        for statement, judge in (
            (
                f"FedAvg is better than LocalItemDP on {PRINTED[shape][0]}",
                _above(shape, "FedAvg", "LocalItemDP"),
            ),
            (
                f"LocalItemDP is better than LocalGroupDP on {PRINTED[shape][1]}",
                _above(shape, "LocalItemDP", "LocalGroupDP"),
            ),
            (
                f"LocalGroupDP is better than HiGradAvg on {PRINTED[shape][2]}",
                _above(shape, "LocalGroupDP", "HiGradAvg"),
            ),
            (
                f"LocalGroupDP is far better than UserLDP on {PRINTED[shape][2].split()[0]}",
                _above(shape, "LocalGroupDP", "UserLDP", by=0.1),
            ),
        )
    ),
    Conclusion(
        "Figure 1",
        "HiGradAvg is the worst on Shakespeare, below UserLDP",
        ("fig1-shakespeare",),
        _above("shakespeare", "UserLDP", "HiGradAvg"),
    ),
    Conclusion("Figure 2", "groups of 3 dominate on FEMNIST", ("fig2",), _threes),
    Conclusion("Figure 2", "groups of 3 dominate on Shakespeare", ("fig2",), _threes_of_roles),
    Conclusion(
        "section 5.1",
        "HiGradAvg has about ten times the noise on FEMNIST",
        ("noise",),
        _order_of_magnitude("femnist", 5.0),
    ),
    Conclusion(
        "section 5.1",
        "and over ten times that on Shakespeare",
        ("noise",),
        _order_of_magnitude("shakespeare", 90.0),
    ),
    Conclusion("section 5.2", "groups grow from 3 at alpha 2 to 6 at alpha 16", ("fig2",), _growth),
    Conclusion(
        "Figure 3",
        "FedAvg, LocalItemDP and UserLDP do not depend on alpha",
        ("fig3",),
        _flat(("FedAvg", "LocalItemDP", "UserLDP"), 0.03),
    ),
    Conclusion(
        "Figure 3",
        "LocalGroupDP falls with alpha",
        ("fig3",),
        _falls("LocalGroupDP", first=1.0, last=16.0),
    ),
    Conclusion(
        "Figure 3",
        "HiGradAvg drops beyond alpha 8",
        ("fig3",),
        _falls("HiGradAvg", first=8.0, last=16.0),
    ),
)
