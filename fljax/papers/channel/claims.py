"""What arXiv:2403.01268 concludes, by section, and how to judge each."""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fljax.papers.channel import errata, items, overhead, sent
from fljax.papers.channel.items import RIGHT, WRONG, number
from fljax.papers.channel.victims import CHANNELS, HIGH, LOW, METHODS, PRIVATE
from fljax.papers.paper import (
    Conclusion,
    Found,
    Verdict,
    above,
    all_above,
    any_above,
    by_accounting,
    chosen_by_others,
    every,
    half_width,
    plain,
    refuted,
)

Judge = Callable[[Mapping[str, Found]], Verdict]
_SHARED = ("white", "personalized")


_Series = Sequence[np.ndarray]  # values `[S]`, one a budget


def rises(values: _Series, *, down: bool = False, among: int = 1) -> bool | None:
    """Whether values rise from the first to the last (or fall), and at no step surely go the other
    way: a step that does decides, whatever the ends say; among: so many series, of which one that
    does not rise decides.
    """
    sign = -1 if down else 1
    steps = [sign * (late - early) for early, late in itertools.pairwise(values)]
    whole = sign * (values[-1] - values[0])
    decide = among * (len(steps) + 1)
    if any(above(one, among=decide) is False for one in (whole, *steps)):
        return False
    return above(whole) or None


def _all_rise(several: Sequence[_Series], *, down: bool = False) -> bool | None:
    return every(rises(values, down=down, among=len(several)) for values in several)


def _along(values: Sequence[np.ndarray], digits: int = 3) -> str:
    ends = values[-1] - values[0]
    means = ", ".join(f"{np.mean(one):.{digits}f}" for one in values)
    return f"{means}; in all {ends.mean():+.{digits}f} +- {half_width(ends):.{digits}f}"


def _by_nats(kinds: Sequence[str], labels: str, what: str, *, down: bool = False) -> Judge:
    """What is of channels alone is judged over `fig12`'s seeds.

    down: an error, which cannot be told to fall where all budgets leave it at most a twentieth
    above that without a defence.
    """

    def judge(found: Mapping[str, Found]) -> Verdict:
        trends, told, room = [], [], True
        for task in items.tasks_in(found["fig12"]):
            undefended = np.mean(items.row(found["fig12"], task, labels, "none")[what])
            for kind in kinds:
                budgets = LOW if kind == "natural" else HIGH
                values = [
                    np.asarray(items.row(found["fig12"], task, labels, kind, b)[what])
                    for b in budgets
                ]
                trends.append(values)
                along = _along(values, 4 if down else 3)
                words = f"{task}, {kind}, {budgets[0]} to {budgets[-1]}: {along}"
                if down and np.mean(values, axis=1).max() < 1.05 * undefended:
                    room = False
                    words += f", without a defence {undefended:.4f}"
                told.append(words)
        holds = _all_rise(trends, down=down)
        return plain(holds if room else every([holds, None]), ". ".join(told))

    return judge


def _by_uses(labels: str, what: str, *, down: bool = False) -> Judge:
    def judge(found: Mapping[str, Found]) -> Verdict:
        trends, told = [], []
        for task in items.tasks_in(found["fig12"]):
            epochs = found["fig12"][f"{task}, {labels}"]["epochs"]
            values = [
                np.asarray(items.row(found["fig12"], task, labels, "natural", 300, "", e)[what])
                for e in epochs
            ]
            trends.append(values)
            last = items.number(values[-1] - values[-2])
            told.append(
                f"{task}, {epochs[0]} to {epochs[-1]} uses: {_along(values)}, the last step {last}"
            )
        return plain(_all_rise(trends, down=down), ". ".join(told))

    return judge


def _overfits(found: Mapping[str, Found]) -> Verdict:
    """Whether the victim of membership is one: AUC of .75 or more."""
    aucs = {
        task: np.asarray(items.row(found["fig12"], task, WRONG, "none")["auc"])
        for task in items.tasks_in(found["fig12"])
    }
    told = [f"{task} {number(auc)}" for task, auc in aucs.items()]
    return plain(all_above(list(aucs.values()), 0.75), "AUC by the loss: " + ", ".join(told))


def _sent_by_nats(what: str, *, down: bool) -> Judge:
    def judge(found: Mapping[str, Found]) -> Verdict:
        trends, told = [], []
        for task, piece in found["fig14"].items():
            for kind in CHANNELS:
                values = list(items.budgets_of(piece, kind, what).values())
                trends.append(values)
                ends = f"{values[0].mean():.3f} at 50, {values[-1].mean():.3f} at 1500"
                told.append(f"{task}, {kind}: {ends}")
        return plain(_all_rise(trends, down=down), "; ".join(told))

    return judge


def _nearest(piece: Any, kind: str) -> dict[int, np.ndarray]:
    """By budget, errors `[S]` of the attack that comes nearest, by the other seeds."""
    looks = [items.budgets_of(piece, kind, attack) for attack in ("mse", "linear")]
    return {b: -chosen_by_others([-of[b] for of in looks]) for b in looks[0]}


def _stronger(kind: str) -> Judge:
    """Against the natural channel, at equal nats, by the attack that comes nearest on each."""

    def judge(found: Mapping[str, Found]) -> Verdict:
        more: list[np.ndarray] = []
        told = []
        for task, piece in found["fig14"].items():
            natural = _nearest(piece, "natural")
            ahead = {b: values - natural[b] for b, values in _nearest(piece, kind).items()}
            more += ahead.values()
            ends = [f"{np.mean(ahead[b]):+.4f} at {b}" for b in (50, 300, 1500)]
            told.append(f"{task}, {kind} less natural: {', '.join(ends)}")
        return plain(all_above(more), "; ".join(told))

    return judge


def _bounded(found: Mapping[str, Found]) -> Verdict:
    """No attack's error lies below Theorem 1, where records have a known entropy. Errors are heavy
    above: where the mean of logarithms, which have less spread, is above the bound's, so is the
    mean. Where it is below, the mean need not be: that is told by the errors themselves.
    """
    beyond, logarithms, nearest = [], [], (np.inf, "")
    for task, piece in found["fig14"].items():
        for row in piece["rows"]:
            if "theorem1" not in row:
                continue
            for attack in ("mse", "linear"):
                errors = np.asarray(row[attack])
                beyond.append(errors - row["theorem1"])
                logarithms.append(np.log(errors / row["theorem1"]))
                ratio = float(errors.mean() / row["theorem1"])
                nearest = min(nearest, (ratio, f"{task}, {row['kind']}, {row['budget']}"))
    if not beyond:
        return Verdict("cannot tell", "the entropy of these records is not known")
    holds = False if all_above(beyond) is False else all_above(logarithms) or None
    return plain(holds, f"the nearest is {nearest[0]:.2f} times the bound: {nearest[1]}")


def _means(series: str, *, down: bool) -> Judge:
    def judge(found: Mapping[str, Found]) -> Verdict:
        trends, told = [], []
        for task, piece in found["fig6"].items():
            values = [np.asarray(piece["rows"][series][str(b)]) for b in sent.BATCHES]
            trends.append(values)
            told.append(f"{task}, {series}: {_along(values)}")
        return plain(_all_rise(trends, down=down), ". ".join(told))

    return judge


def _constant(found: Mapping[str, Found]) -> Verdict:
    """Whether the error rises by more with constant noise than without."""
    gained, told = [], []
    for task, piece in found["fig6"].items():
        first, last = (str(sent.BATCHES[place]) for place in (0, -1))
        gains = {
            series: np.asarray(piece["rows"][series][last]) - piece["rows"][series][first]
            for series in ("no defence", "constant noise")
        }
        more = gains["constant noise"] - gains["no defence"]
        gained.append(more)
        told.append(f"{task}: {number(more)} more")
    return plain(all_above(gained), "; ".join(told))


def _smaller_batches(found: Mapping[str, Found]) -> Verdict:
    """A smaller batch defends a record better, if its upload tells less of it: were gradients
    Gaussian, with the covariance of those of public records.
    """
    trends, told = [], []
    for task, piece in found["fig6"].items():
        values = [np.asarray(piece["rows"]["nats"][str(b)]) for b in sent.BATCHES]
        trends.append(values)
        told.append(f"{task}: {_along(values)}")
    because = "nats of DP about a record, were gradients Gaussian, "
    return plain(_all_rise(trends), because + ". ".join(told))


def _less_is_noise(found: Mapping[str, Found]) -> Verdict:
    """Both leave larger errors: eigenvalues that are 0, and noise of equal nats instead."""
    trends, told = [], []
    for task, piece in found["fig7"].items():
        for way in ("directions set to 0", "noise of equal nats"):
            values = [np.asarray(piece["rows"][f"{way}, {k}"]) for k in sent.DROPPED]
            trends.append(values)
            told.append(f"{task}, {way}: {_along(values, 4)}")
    return plain(_all_rise(trends), ". ".join(told))


def _directions(found: Mapping[str, Found]) -> Verdict:
    more, told = [], []
    for task, piece in found["fig7"].items():
        values = [np.asarray(piece["rows"][f"without direction {at}"]) for at in sent.DIRECTIONS]
        more += [big - small for big, small in itertools.pairwise(values)]
        told.append(f"{task}: {_along(values, 4)}")
    return plain(all_above(more), ". ".join(told))


def _fewer_places(found: Mapping[str, Found]) -> Verdict:
    trends, told = [], []
    for task, piece in found["fig7"].items():
        for how in ("largest", "random"):
            names = ["whole", *(f"{how} {share:g}" for share in sent.SHARES[1:])]
            values = [np.asarray(piece["rows"][name]) for name in names]
            trends.append(values)
            told.append(f"{task}, {how}: {_along(values)}")
    return plain(_all_rise(trends), ". ".join(told))


def _toy(found: Mapping[str, Found]) -> Verdict:
    """By what gradients of drawn records tell, within a twentieth of a nat."""
    rows = found["fig3"]["toy"]["rows"]
    gradient, own = (
        {w: np.asarray(nats) for w, nats in rows[way].items()}
        for way in ("noise on the gradient", "noise in the data")
    )
    moved = any_above([gradient["6"] - gradient["2"] - 0.05])
    same = all_above([0.05 - abs(nats - own["2"]) for nats in own.values()])
    because = (
        f"noise of one nat at W = 2 tells {number(gradient['6'])} at W = 6; in the data "
        f"{number(own['6'])}"
    )
    return plain(every([moved, same]), because)


# Figures 15 and 16

_All = dict[tuple[str, str], dict[int, dict[str, Any]]]  # (defence, method) -> budget -> scores


def _scored(found: Found, task: str, kinds: Sequence[str] = (*CHANNELS, *PRIVATE)) -> _All:
    return {
        (name, method): {b: items.scores(found, task, name, b, method) for b in budgets}
        for name, method, budgets in items.defences()
        if name in kinds
    }


def _best(of: Mapping[int, dict[str, Any]]) -> np.ndarray:
    """Accuracy kept and GDC, `[S]`, at the budget where they are the most by the other seeds."""
    return chosen_by_others([one["both"] for one in of.values()])


def _counted(judge: Callable[[_All, str], tuple[bool | None, str]]) -> Judge:
    """By the accounting of DP's noise, over all data sets. Channels have more seeds too, where
    `fig12` is there: under the "method" "again".
    """

    def whole(found: Mapping[str, Found]) -> Verdict:
        holds: dict[str, bool | None] = {}
        told = []
        for method in METHODS:
            answers = []
            for task in items.tasks_in(found["fig9"]):
                scored = _scored(found["fig9"], task)
                if "fig12" in found:
                    more = _scored(found["fig12"], task, CHANNELS)
                    scored |= {(name, "again"): of for (name, _), of in more.items()}
                answer, words = judge(scored, method)
                answers.append(answer)
                told.append(f"{method}, {task}: {words}")
            holds[method] = every(answers)
        return by_accounting(holds, "; ".join(told))

    return whole


def _natural_best(scored: _All, method: str) -> tuple[bool | None, str]:
    """Each at its best budget, channels over more seeds, of which DP has the first."""
    natural, *shared = (_best(scored[name, "again"]) for name in CHANNELS)
    ahead = {name: natural - values for name, values in zip(CHANNELS[1:], shared, strict=True)}
    for name in PRIVATE:
        values = _best(scored[name, method])
        ahead[name] = natural[: len(values)] - values
    words = ", ".join(f"{number(values, 2)} on {name}" for name, values in ahead.items())
    return all_above(list(ahead.values())), f"natural is ahead by {words}"


def _kinds(scored: _All, what: str, method: str) -> tuple[np.ndarray, np.ndarray]:
    """(channels', DP's) `what`, means over defences and budgets, each `[S]`."""
    groups = [[(name, "") for name in CHANNELS], [(name, method) for name in PRIVATE]]
    means = [
        np.mean([one[what] for key in keys for one in scored[key].values()], axis=0)
        for keys in groups
    ]
    return means[0], means[1]


def _opposite(scored: _All, method: str) -> tuple[bool | None, str]:
    members, private = _kinds(scored, "imp_mia", method)
    rebuilt, private_rebuilt = _kinds(scored, "imp_dra", method)
    apart = [private - members, rebuilt - private_rebuilt]
    words = (
        f"IMP_MIA {private.mean():.2f} of DP, {members.mean():.2f} of channels; "
        f"IMP_DRA {private_rebuilt.mean():.2f}, {rebuilt.mean():.2f}"
    )
    return all_above(apart), words


def _best_of_both(scored: _All, method: str) -> tuple[bool | None, str]:
    """The best channel is chosen over more seeds, of which DP has the first."""
    groups = [[(name, "again") for name in CHANNELS], [(name, method) for name in PRIVATE]]
    channel, private = (
        chosen_by_others([one["gdc"] for key in keys for one in scored[key].values()])
        for keys in groups
    )
    channel = channel[: len(private)]
    words = f"GDC {number(channel, 2)} of the best channel, {number(private, 2)} of the best DP"
    return above(channel - private), words


def _more_accurate(scored: _All, method: str) -> tuple[bool | None, str]:
    """The natural channel against DP-SGD at equal nats of a use."""
    ahead = {
        b: one["accuracy"] - scored["DP-SGD", method][b]["accuracy"]
        for b, one in scored["natural", ""].items()
    }
    words = ", ".join(f"{number(values, 2)} at {b}" for b, values in ahead.items())
    return all_above(list(ahead.values())), words


# Table 2


def _cost(found: Mapping[str, Found], form: str) -> dict[str, np.ndarray]:
    return {name: overhead.over(piece, form) for name, piece in found["table2"].items()}


def _by_times(shares: Mapping[str, np.ndarray], than: str, by: float, *, less: bool) -> Verdict:
    """Whether all of these shares are above `by`, or below."""
    told = ", ".join(f"{name} {overhead.percent(values)}" for name, values in shares.items())
    sign = -1 if less else 1
    signed = [sign * values for values in shares.values()]
    holds = all_above(signed, sign * by, above=overhead.above)
    return plain(holds, f"more than {than}: {told}")


def _cheap(found: Mapping[str, Found]) -> Verdict:
    return _by_times(_cost(found, "natural"), "SGD", 0.11, less=True)


def _dear(found: Mapping[str, Found]) -> Verdict:
    return _by_times(_cost(found, "DP-SGD"), "SGD", 0.57, less=False)


def _white_dearer(found: Mapping[str, Found]) -> Verdict:
    shares = {
        name: overhead.over(piece, "white", "natural") for name, piece in found["table2"].items()
    }
    return _by_times(shares, "natural", 0.0, less=False)


_proof = functools.partial(refuted, errata.ERRATA)

CONCLUSIONS = (
    Conclusion("equation (20)", "a quotient of log-determinants is the capacity", (), _proof("E1")),
    Conclusion(
        "Theorem 4, section 6.3",
        "noise multipliers .8 to .2066 on batches of 64 are capacities of 100 to 1500 nats",
        (),
        _proof("E3"),
    ),
    Conclusion("appendix E", "a mask costs the capacity of what is kept", (), _proof("E4")),
    Conclusion("equation (9)", "nats of rounds add up to the total", (), _proof("E5")),
    Conclusion("section 4", "n uses of kappa nats tell n kappa", (), _proof("E6")),
    Conclusion(
        "Theorem 1", "a Gaussian's entropy is the worst case of its bound", (), _proof("E7")
    ),
    Conclusion("Theorem 1", "no attack errs by less than its bound", ("fig14",), _bounded),
    Conclusion(
        "Figure 4",
        "noise on parameters must be solved anew as they move, noise in the data not",
        ("fig3",),
        _toy,
    ),
    Conclusion(
        "Figure 6",
        "under DP the error of inversion falls with the batch",
        ("fig6",),
        _means("DP", down=True),
    ),
    Conclusion(
        "Figure 6",
        "without a defence it rises with the batch",
        ("fig6",),
        _means("no defence", down=False),
    ),
    Conclusion("Figure 6", "and by more with constant noise", ("fig6",), _constant),
    Conclusion(
        "section 5",
        "so smaller batches under DP defend a record better",
        ("fig6",),
        _smaller_batches,
    ),
    Conclusion("Figure 7", "setting eigenvalues to 0 is adding noise", ("fig7",), _less_is_noise),
    Conclusion(
        "Figure 8",
        "dropping a direction of a larger eigenvalue defends more",
        ("fig7",),
        _directions,
    ),
    Conclusion(
        "section 5",
        "a gradient of fewer coordinates is harder to invert",
        ("fig7",),
        _fewer_places,
    ),
    Conclusion(
        "Figures 9, 11",
        "accuracy rises with nats",
        ("fig12",),
        _by_nats(["natural"], RIGHT, "accuracy"),
    ),
    Conclusion(
        "Figures 10, 11",
        "the error of model inversion falls with nats",
        ("fig12",),
        _by_nats(["natural"], RIGHT, "mse", down=True),
    ),
    Conclusion(
        "Figures 12, 24",
        "accuracy rises with uses",
        ("fig12",),
        _by_uses(RIGHT, "accuracy"),
    ),
    Conclusion(
        "Figures 13, 24",
        "the error of model inversion falls with uses",
        ("fig12",),
        _by_uses(RIGHT, "mse", down=True),
    ),
    Conclusion(
        "Figures 14, 30",
        "the error of gradient inversion falls with nats",
        ("fig14",),
        _sent_by_nats("mse", down=True),
    ),
    *(
        Conclusion(
            "Figures 14, 30",
            f"at equal nats {kind} channels leave a larger error than natural ones",
            ("fig14",),
            _stronger(kind),
        )
        for kind in _SHARED
    ),
    Conclusion(
        "Figure 15",
        "the natural channel has the best trade-off of accuracy and GDC",
        ("fig9", "fig12"),
        _counted(_natural_best),
    ),
    Conclusion(
        "Figure 16",
        "DP is strong against membership and weak against reconstruction, channels the opposite",
        ("fig9",),
        _counted(_opposite),
    ),
    Conclusion(
        "Figure 16", "channels are best over both", ("fig9", "fig12"), _counted(_best_of_both)
    ),
    Conclusion(
        "abstract",
        "at equal nats noise in the data leaves more accuracy than noise on parameters",
        ("fig9",),
        _counted(_more_accurate),
    ),
    Conclusion(
        "Figures 18, 21",
        "accuracy of white and personalized channels rises with nats",
        ("fig12",),
        _by_nats(_SHARED, RIGHT, "accuracy"),
    ),
    Conclusion(
        "Figures 20, 23",
        "and the error of model inversion falls",
        ("fig12",),
        _by_nats(_SHARED, RIGHT, "mse", down=True),
    ),
    Conclusion(
        "section 6.1",
        "without a defence membership is told",
        ("fig12",),
        _overfits,
    ),
    Conclusion(
        "Figures 19, 22, 25",
        "the AUC of membership rises with nats",
        ("fig12",),
        _by_nats(CHANNELS, WRONG, "auc"),
    ),
    Conclusion("Figure 26", "and with uses", ("fig12",), _by_uses(WRONG, "auc")),
    Conclusion(
        "Figure 27",
        "PSNR of model inversion rises with nats",
        ("fig12",),
        _by_nats(["natural"], RIGHT, "psnr"),
    ),
    Conclusion("Figure 28", "and SSIM", ("fig12",), _by_nats(["natural"], RIGHT, "ssim")),
    Conclusion("Figure 29", "and cosine", ("fig12",), _by_nats(["natural"], RIGHT, "cosine")),
    Conclusion(
        "Figure 31",
        "PSNR of gradient inversion rises with nats",
        ("fig14",),
        _sent_by_nats("psnr", down=False),
    ),
    Conclusion("Figure 32", "and its SSIM", ("fig14",), _sent_by_nats("ssim", down=False)),
    Conclusion("Figure 33", "and its cosine", ("fig14",), _sent_by_nats("cosine", down=False)),
    Conclusion("Table 2", "noise in the data costs up to 11 % of SGD's time", ("table2",), _cheap),
    Conclusion("Table 2", "DP-SGD costs 57 % and more", ("table2",), _dear),
    Conclusion(
        "appendix G",
        "a white channel costs more time than a natural one",
        ("table2",),
        _white_dearer,
    ),
)
