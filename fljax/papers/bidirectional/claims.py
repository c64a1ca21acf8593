"""Conclusions of "Efficiently Achieving Secure Model Training and Secure Aggregation to Ensure
Bidirectional Privacy-Preservation in Federated Learning", by section, and how each is judged.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fljax.accounting.shared_noise import printed, theta
from fljax.papers.bidirectional import errata, timing
from fljax.papers.bidirectional.items import (
    CLIENTS,
    EPSILONS,
    last,
    less,
    over_seeds,
    seconds_by_part,
)
from fljax.papers.bidirectional.training import (
    CENTRAL,
    DELTA,
    EPSILON,
    FEDAVG,
    METHODS,
    NAIVE,
    NEIGHBOURS,
    OURS,
    PILE,
    SHARED,
)
from fljax.papers.paper import (
    Conclusion,
    Found,
    Verdict,
    above,
    all_above,
    by_accounting,
    chosen_by_others,
    percent,
    plain,
    points,
    refuted,
)
from fljax_kernels.pairwise import graphs

# Printed times of "almost the same" are 1.5 to 2.1 times FedAvg's.
ALMOST = 2.5


def _ahead(item: str, first: str, second: str, *, by: float = 0.0, epsilons: Any = EPSILONS) -> Any:
    """Judges whether `first` is above `second` by more than that, in the mean over epsilons, for 5
    and for 100 clients.
    """

    def judge(found: Mapping[str, Found]) -> Verdict:
        holds, told = {}, []
        for method in METHODS:
            ahead = [
                np.mean(
                    [
                        less(found[item], first, second, method, epsilon, clients)
                        for epsilon in epsilons
                    ],
                    axis=0,
                )
                for clients in CLIENTS
            ]
            holds[method] = all_above(ahead, by)
            told += [
                f"{method}: {points(one)} at K {clients}"
                for one, clients in zip(ahead, CLIENTS, strict=True)
            ]
        return by_accounting(holds, "; ".join(told))

    return judge


def _rises(found: Mapping[str, Found]) -> Verdict:
    """For all that have noise but the naive one: the smaller budget against the larger, over K."""
    holds, told = {}, []
    for method in METHODS:
        rises = []
        for name in (CENTRAL, SHARED, OURS):
            more = np.mean(
                [
                    last(found["fig3"], name, method, EPSILONS[-1], clients)
                    - last(found["fig3"], name, method, EPSILONS[0], clients)
                    for clients in CLIENTS
                ],
                axis=0,
            )
            rises.append(more)
            told.append(f"{method}, {name}: {points(more)}")
        holds[method] = all_above(rises)
    because = f"from epsilon {EPSILONS[0]:g} to {EPSILONS[-1]:g}, " + "; ".join(told)
    return by_accounting(holds, because)


def _naive(found: Mapping[str, Found]) -> Verdict:
    """Unusable: more than 30 points below FedAvg at every budget. The law of r is not printed."""
    answers, told = [], []
    for name in NAIVE:
        for epsilon in (EPSILONS[0], EPSILONS[-1]):
            lost = less(found["fig3"], FEDAVG, name, "paper", epsilon, NEIGHBOURS)
            answers.append(above(lost, 0.3))
            told.append(f"{name.partition(', ')[2]}: {points(lost)} at {epsilon:g}")
    alike = answers[0] if len(set(answers)) == 1 else None
    because = "below FedAvg by the law of the secret scales, which is not printed; "
    return plain(alike, because + "; ".join(told))


def _lossless(found: Mapping[str, Found]) -> Verdict:
    more = less(found["fig3"], PILE, FEDAVG, "paper", EPSILON, NEIGHBOURS)
    because = f"{points(more)} against FedAvg, recovered from gradient, Psi and Phi"
    return plain(above(more, -0.01), because)


def _times_of(found: Mapping[str, Found], over: tuple[str, ...]) -> dict[int, float]:
    """Those parts of ours, in FedAvg's same parts; by K."""
    times = {}
    for clients in CLIENTS:
        rows = seconds_by_part(found["table5"], clients)
        ours, base = (
            sum(rows[name].get(part, 0.0) for part in over) for name in (timing.OURS, "FedAvg")
        )
        times[clients] = ours / base
    return times


_PARTS = ("perturb", "recover", "aggregate", "train", "noise")


def _almost(parts: tuple[str, ...]) -> Any:
    def judge(found: Mapping[str, Found]) -> Verdict:
        times = _times_of(found, parts)
        told = ", ".join(f"{value:.1f} times at K {clients}" for clients, value in times.items())
        because = f"{told}, where at most {ALMOST:g} counts as almost"
        return plain(all(value <= ALMOST for value in times.values()), because)

    return judge


def _negligible(found: Mapping[str, Found]) -> Verdict:
    """Perturbing the model, and a client's noise, against FedAvg's one gradient."""
    shares, told = [], []
    for clients in CLIENTS:
        rows = seconds_by_part(found["table5"], clients)
        ours, train = rows[timing.OURS], rows["FedAvg"]["train"]
        for part in ("perturb", "noise"):
            shares.append(ours[part] / train)
            told.append(f"{part} {shares[-1]:.1f} of FedAvg's training at K {clients}")
    return plain(all(share <= 0.5 for share in shares), ", ".join(told))


def _faster(found: Mapping[str, Found]) -> Verdict:
    told, ratios = [], []
    for clients in CLIENTS:
        rows = seconds_by_part(found["table5"], clients)
        ours = sum(timing.sides(rows[timing.OURS]))
        for method in timing.PROTOCOLS:
            ratios.append(sum(timing.sides(rows[method])) / ours)
            told.append(f"{method} {ratios[-1]:,.0f} times ours at K {clients}")
    return plain(min(ratios) > 2, ", ".join(told))


def _search(first: str, second: str, *, by: float = 0.0) -> Any:
    """Judges whether a search comes nearer in the first by more than so many dB, seed by seed."""

    def judge(found: Mapping[str, Found]) -> Verdict:
        one, two = (
            over_seeds(found["table2"], "reconstruction", label, "search psnr")
            for label in (first, second)
        )
        because = f"PSNR {one.mean():.1f} against {two.mean():.1f} dB, by the gradient alone"
        return plain(above(one - two, by), because)

    return judge


def _unrecognisable(found: Mapping[str, Found]) -> Verdict:
    label = "ours, as printed"
    read = over_seeds(found["table2"], "reconstruction", label, "read psnr")
    search = over_seeds(found["table2"], "reconstruction", label, "search psnr")
    because = (
        f"PSNR {search.mean():.1f} dB for a search on the gradient, {read.mean():.0f} dB read off "
        "Phi, which is sent without noise (E8)"
    )
    return plain(above(30 - read), because)


def _asr(found: Found, label: str, which: str) -> np.ndarray:
    """Of the attack that is better over the other seeds."""
    return chosen_by_others(
        [over_seeds(found, "membership", label, which, place) for place in (0, 1)]
    )


def _guess(found: Mapping[str, Found]) -> Verdict:
    """A guess, within 5 points."""
    told, answers = [], []
    for label in ("PILE", "ours, as printed"):
        asr = _asr(found["table4"], label, "as sent")
        answers.append(0.55 - asr)
        told.append(f"{label}: {percent(asr)}")
    return plain(all_above(answers), ", ".join(told) + ", by the better of two attacks")


def _nothing(found: Mapping[str, Found]) -> Verdict:
    """That a client learns nothing: its best attack within 5 points of a guess."""
    asr = _asr(found["table4"], "ours, as printed", "corrected")
    because = f"{percent(asr)} once r is estimated from members that the attacker knows"
    return plain(above(0.55 - asr), because)


def _exposed(found: Mapping[str, Found]) -> Verdict:
    asr = _asr(found["table4"], "as it is", "as sent")
    return plain(above(asr, 0.6), f"{percent(asr)} on a network that knows its members by heart")


def _hidden(found: Mapping[str, Found]) -> Verdict:
    """That a client cannot find the model: agreement on held-out examples within half."""
    sent, corrected = (
        over_seeds(found["table4"], "membership", "ours, as printed", "agrees", k) for k in (0, 1)
    )
    because = (
        f"it agrees on {percent(sent)} as sent, on {percent(corrected)} with ten labelled examples"
    )
    return plain(above(0.5 - corrected), because)


def _five_neighbours(_: Mapping[str, Found]) -> Verdict:
    """Of Theorem 11's conditions, and by the exact composition over one such graph."""
    clients = CLIENTS[-1]
    least = math.ceil(max(printed.theorem_11_conditions(clients, DELTA)))
    edges = graphs.random_out(clients, NEIGHBOURS, np.random.default_rng(0))
    ratio = theta.theta(edges, clients, 1.0, 10.0) * clients
    because = (
        f"the theorem asks for {least}; by the exact view of one such graph 5 do: {ratio:.2f} "
        "times the theta of noise shared by all, pair noise being 10 times own"
    )
    return Verdict("refuted by proof", because)


_ERRATA = errata.ERRATA

CONCLUSIONS = (
    Conclusion("Theorems 1, 4, 13", "perturbation loses no accuracy", ("fig3",), _lossless),
    Conclusion("Theorems 2, 7, 8, 9", "a client cannot find the model", ("table4",), _hidden),
    Conclusion(
        "abstract, section 5.2", "a client has local privacy", (), refuted(_ERRATA, "E7", place=0)
    ),
    Conclusion("section 5.2", "the noise is Gaussian to the server", (), refuted(_ERRATA, "E5")),
    Conclusion("Theorem 10", "theta of a complete graph", (), refuted(_ERRATA, "E6", place=0)),
    Conclusion("Theorem 11, section 6.1", "5 neighbours of 100 suffice", (), _five_neighbours),
    Conclusion("Algorithms 2 and 4", "Psi and Phi need no noise", (), refuted(_ERRATA, "E8")),
    Conclusion("sections 5.2, 6", "one epsilon for all rounds", (), refuted(_ERRATA, "E9")),
    Conclusion(
        "abstract",
        "TP-SMC takes about 200 times as long to the target accuracy",
        (),
        refuted(_ERRATA, "E19", place=0),
    ),
    Conclusion("Tables I and V", "totals are those of their parts", (), refuted(_ERRATA, "E18")),
    Conclusion("Table I", "a round takes almost FedAvg's time", ("table5",), _almost(_PARTS)),
    Conclusion("Table I", "it is faster than PILE, TP-SMC and HybridAlpha", ("table5",), _faster),
    Conclusion(
        "appendix B.1",
        "training and aggregating take FedAvg's time",
        ("table5",),
        _almost(("train", "aggregate")),
    ),
    Conclusion("appendix B.1", "perturbing and noise are negligible", ("table5",), _negligible),
    Conclusion("Figure 3", "accuracy rises with epsilon but for MP-DP-Naive", ("fig3",), _rises),
    Conclusion("Figure 3", "MP-DP-Naive is unusable", ("fig3",), _naive),
    Conclusion(
        "Figure 3",
        "ours is more accurate than TP-SMC and HybridAlpha",
        ("fig3",),
        _ahead("fig3", OURS, SHARED),
    ),
    Conclusion(
        "Figure 3",
        "at a large budget ours is within 2 points of MP-CDP",
        ("fig3",),
        _ahead("fig3", OURS, CENTRAL, by=-0.02, epsilons=EPSILONS[-1:]),
    ),
    Conclusion(
        "abstract",
        "at epsilon 1 ours loses less than 6 points to FedAvg",
        ("fig3",),
        _ahead("fig3", OURS, FEDAVG, by=-0.06, epsilons=EPSILONS[:1]),
    ),
    Conclusion(
        "Table II",
        "by the gradient, ours is reconstructed worse than FedAvg",
        ("table2",),
        _search("FedAvg", "ours, as printed"),
    ),
    Conclusion(
        "Table II",
        "and worse than TP-SMC and HybridAlpha, by more than 1 dB",
        ("table2",),
        _search("TP-SMC, HybridAlpha", "ours, as printed", by=1.0),
    ),
    Conclusion("Table VI", "reconstructions from ours mean nothing", ("table2",), _unrecognisable),
    Conclusion(
        "Table III",
        "ours is within 2 points of FedAvg's accuracy",
        ("table3",),
        _ahead("table3", OURS, FEDAVG, by=-0.02, epsilons=(EPSILON,)),
    ),
    Conclusion(
        "Table III",
        "ours is more accurate than TP-SMC and HybridAlpha on breast cancer",
        ("table3",),
        _ahead("table3", OURS, SHARED, epsilons=(EPSILON,)),
    ),
    Conclusion("Table IV", "FedAvg's model gives members away", ("table4",), _exposed),
    Conclusion(
        "Table IV", "on a model as PILE and ours send it, ASR is a guess", ("table4",), _guess
    ),
    Conclusion(
        "section 6.4.1", "a client can infer nothing from it but by a guess", ("table4",), _nothing
    ),
)
