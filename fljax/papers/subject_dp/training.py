"""Training in 16 silos at one epsilon of a subject: the paper's methods, by its accounting and by
what holds.

"paper": each method at its own claim, in the rounds that the paper grants it: FedAvg and
LocalItemDP, whose claim is about items, all R of them; LocalGroupDP, HiGradAvg and UserLDP
R / sqrt(16). A method's cap on a subject's items in a silo is the largest number in the data, which
is private (erratum E20), or 1 / q where that is less. "sound": everyone R rounds at the same true
epsilon of a subject in all silos, with a public cap.

Source: Marathe et al. (2022), "Subject Granular Differential Privacy in Federated Learning",
  arXiv:2206.03617, section 5.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from fljax import accounting, data
from fljax.data import dataset as datasets
from fljax.data.sources import leaf, standins
from fljax.papers.paper import Settings
from fljax.papers.subject_dp import compare
from fljax.schemes.silos import local_item_dp

METHODS = ("paper", "sound")
SHAPES = ("femnist", "shakespeare")
OF_THE_PAPER = ("FedAvg", "LocalItemDP", "LocalGroupDP", "HiGradAvg", "UserLDP")
ALL = ("FedAvg", "LocalItemDP", "LocalGroupDP", "item sum, capped", "HiGradAvg", "UserLDP")
_TUNING_SEEDS = (1000, 1001)
# Where the search of a learning rate starts; a clipped batch gradient is divided by nothing, so its
# noise is tens of times larger.
_FIRST_RATES = {"FedAvg": 2.0, "UserLDP": 0.03}

Method = Literal["paper", "sound"]


@functools.lru_cache(maxsize=2)
def dataset(shape: str, scale: str, folder: str | None) -> data.Dataset:
    """LEAF's files in FOLDER/femnist or FOLDER/shakespeare, or a stand-in of that shape."""
    if folder is not None:
        return leaf.load(str(pathlib.Path(folder) / shape), shape)
    rng = datasets.fixed_rng()
    if shape == "femnist":
        if scale == "demo":
            return data.load("writers")
        return standins.writers(rng, num_subjects=3500, mean_items=145.0, side=28)
    if scale == "demo":
        return standins.roles(rng, num_subjects=132, mean_items=40.0, window=8)
    return standins.roles(rng, num_subjects=660, mean_items=4484.0, size_sigma=0.8, window=80)


def sizes(shape: str, settings: Settings) -> tuple[compare.Settings, dict[str, Any]]:
    """What is trained (rounds: R), and the model's options."""
    demo = settings.scale == "demo"
    options: dict[str, Any] = {}
    name = "writers" if shape == "femnist" else "roles"
    if demo:
        model = "softmax"
        if shape == "shakespeare":
            model, options = "lstm", {"cells": (16,), "hidden": (16,)}
        given: dict[str, Any] = {"num_rounds": settings.rounds(32)}
    else:
        model = "leaf_cnn"
        rounds, sampled = 100, 512 / 31719
        if shape == "shakespeare":
            model, options = "lstm", {"cells": (256, 256), "hidden": (256,)}
            rounds, sampled = 200, 100 / 184965
        given = {
            "num_rounds": settings.rounds(rounds),
            "item_sampling_prob": sampled,
            "num_local_steps": 50,
            "target_epsilon": 4.0,
            "target_delta": 1e-5,
            "max_items_per_subject": 9 if shape == "femnist" else 280,
            "items_per_subject": 3,
        }
    found = compare.Settings(dataset=name, model=model, seeds=settings.seeds, alphas=(), **given)
    return found, options


def rounds_of(label: str, method: Method, sizes: compare.Settings) -> int:
    """Rounds that a method is granted: R, or R / sqrt(16)."""
    short = method == "paper" and label not in ("FedAvg", "LocalItemDP")
    return sizes.num_rounds // 4 if short else sizes.num_rounds


def config_of(
    label: str,
    method: Method,
    sizes: compare.Settings,
    train: dict[str, np.ndarray],
    *,
    largest: int,
    rounds: int,
    counted: int | None = None,
) -> tuple[Any, Any, float | None]:
    """(Scheme, config with its noise, true epsilon of a subject; None where there is none).

    Args:
      largest: number of items of one subject in one silo, in the data.
      rounds: that are run.
      counted: rounds whose cost the paper's formulas are asked for; None: `rounds`.
    """
    if method == "paper":
        most = max(1, min(largest, int(1 / sizes.item_sampling_prob + 1e-9)))
        sizes = dataclasses.replace(sizes, max_items_per_subject=most)
    sizes = dataclasses.replace(sizes, num_rounds=rounds)
    contestant = {one.label: one for one in compare.contestants(sizes, train)}[label]
    goal: dict[str, Any] = {"epsilon": sizes.target_epsilon, "delta": sizes.target_delta}
    if method == "sound" or label == "FedAvg":
        config, epsilon = compare.calibrated(contestant, sizes)
        return contestant.scheme, config, epsilon if np.isfinite(epsilon) else None
    if label == "LocalItemDP":
        noise = accounting.calibrate(
            lambda z: local_item_dp.event(
                dataclasses.replace(contestant.config, noise_multiplier=z)
            ).repeat(rounds),
            **goal,
            tolerance=1e-3,
        )
        config = dataclasses.replace(contestant.config, noise_multiplier=noise)
    else:
        printed = contestant.scheme.as_printed
        assert printed is not None
        config = printed.with_noise(contestant.config, num_rounds=counted or rounds, **goal)
    event = contestant.event(config).repeat(rounds)
    true = accounting.epsilon(event, delta=sizes.target_delta)
    return contestant.scheme, config, true if np.isfinite(true) else None


def largest(ids: np.ndarray, rows: np.ndarray) -> int:
    """Most items of one subject in one silo."""
    return int(data.subjects.counts(ids, rows).max())


def splits(
    sizes: compare.Settings,
    ids: np.ndarray,
    alpha: float | None,
    seeds: Sequence[int],
    *,
    capped: bool,
) -> np.ndarray:
    """Rows of each silo, a split for each seed, `[seeds, silos, N]`.

    capped: without the items beyond the public cap, on which a claim about subjects rests; most
      schemes leave them out by themselves, LocalItemDP does not.
    """
    found = []
    for seed in seeds:
        rows = compare.table(sizes, ids, seed, alpha)
        if capped:
            rng = np.random.default_rng([seed, 1])
            rows, _ = data.subjects.cap_items(
                ids, rows, max_items=sizes.max_items_per_subject, rng=rng
            )
        found.append(rows)
    # Of a few widths alone, so that one compiled program serves several splits.
    width = -(-max(rows.shape[1] for rows in found) // 256) * 256
    pad = [((0, 0), (0, width - rows.shape[1])) for rows in found]
    return np.stack([np.pad(r, p, constant_values=-1) for r, p in zip(found, pad, strict=True)])


def _capped(label: str, method: Method) -> bool:
    return method == "sound" and label != "FedAvg"


def best_rate(score: Callable[[float], float], first: float) -> tuple[float, dict[str, float]]:
    """The rate with the highest score between two worse ones, by factors of two; and all tried."""
    tried: dict[float, float] = {}
    best = first
    for _ in range(6):
        tried |= {r: score(r) for r in (best / 2, best, 2 * best) if r not in tried}
        top = max(tried, key=lambda rate: tried[rate])
        if top == best:
            break
        best = top
    return best, {f"{rate:g}": round(tried[rate], 4) for rate in sorted(tried)}


@functools.lru_cache(maxsize=32)
def _tuned(
    shape: str,
    label: str,
    method: Method,
    settings: Settings,
    rounds: int,
    counted: int | None,
) -> tuple[Any, Any, Any, float | None, float, dict[str, float]]:
    """(Training function, scheme, config, true epsilon, rate, rates tried) on even splits."""
    size, options = sizes(shape, settings)
    here = dataset(shape, settings.scale, settings.data)
    ids = data.subjects.subject_ids(here.train)
    rows = splits(size, ids, None, settings.each_seed, capped=_capped(label, method))
    scheme, config, true = config_of(
        label,
        method,
        size,
        here.train,
        largest=max(largest(ids, one) for one in rows),
        rounds=rounds,
        counted=counted,
    )
    train = compare.trainer(
        scheme, config, dataclasses.replace(size, num_rounds=rounds), here, **options
    )
    # Rates are tuned on a split that no seed is judged on.
    (apart,) = splits(size, ids, None, _TUNING_SEEDS[:1], capped=_capped(label, method))

    def score(rate: float) -> float:
        runs = [train(seed, apart, rate) for seed in _TUNING_SEEDS]
        if shape == "shakespeare":  # many rates end at the share of the most frequent symbol
            return -float(np.mean([loss[-1] for _, loss in runs]))
        return float(np.mean([accuracy[-1] for accuracy, _ in runs]))

    rate, tried = best_rate(score, _FIRST_RATES.get(label, 4.0))
    return train, scheme, config, true, rate, tried


def curves(
    shape: str,
    label: str,
    method: Method,
    settings: Settings,
    *,
    rounds: int | None = None,
    counted: int | None = None,
) -> dict[str, Any]:
    """Held-out accuracy and loss `[seeds, rounds]` on even splits, with noise and epsilon."""
    size, _ = sizes(shape, settings)
    ran = rounds_of(label, method, size) if rounds is None else rounds
    train, _, config, true, rate, tried = _tuned(shape, label, method, settings, ran, counted)
    here = dataset(shape, settings.scale, settings.data)
    ids = data.subjects.subject_ids(here.train)
    rows = splits(size, ids, None, settings.each_seed, capped=_capped(label, method))
    runs = [train(seed, own, rate) for seed, own in zip(settings.each_seed, rows, strict=True)]
    group_noise = dataclasses.asdict(config).get("group_noise", ())
    return {
        "accuracies": [[round(float(v), 5) for v in accuracy] for accuracy, _ in runs],
        "losses": [[round(float(v), 5) for v in loss] for _, loss in runs],
        "noise_multiplier": config.noise_multiplier,
        "group_noise": list(group_noise),
        "true_epsilon": true,
        "learning_rate": rate,
        "tried": tried,
    }


def skewed(label: str, method: Method, settings: Settings, alpha: float) -> dict[str, Any]:
    """Last accuracies where each subject is spread by the power law, at the rate of even splits."""
    size, options = sizes("femnist", settings)
    rounds = rounds_of(label, method, size)
    train, scheme, config, true, rate, _ = _tuned("femnist", label, method, settings, rounds, None)
    here = dataset("femnist", settings.scale, settings.data)
    ids = data.subjects.subject_ids(here.train)
    rows = splits(size, ids, alpha, settings.each_seed, capped=_capped(label, method))
    most = max(largest(ids, one) for one in rows)
    if method == "paper" and label in ("LocalGroupDP", "HiGradAvg"):
        scheme, config, true = config_of(
            label, method, size, here.train, largest=most, rounds=rounds
        )
        shorter = dataclasses.replace(size, num_rounds=rounds)
        train = compare.trainer(scheme, config, shorter, here, **options)
    last = [
        float(train(seed, own, rate)[0][-1])
        for seed, own in zip(settings.each_seed, rows, strict=True)
    ]
    return {
        "accuracies": [round(value, 5) for value in last],
        "largest": most,
        "noise_multiplier": config.noise_multiplier,
        "group_noise": list(dataclasses.asdict(config).get("group_noise", ())),
        "true_epsilon": true,
    }
