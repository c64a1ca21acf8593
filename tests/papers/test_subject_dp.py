"""Trainings of the subject-level paper: which splits, rates and noise they are given, and how the
convex problem ends.
"""

import dataclasses
import json
import math

import numpy as np
import pytest
from scipy import optimize

from fljax import data
from fljax.papers import paper as records
from fljax.papers.subject_dp import compare, convex, training
from fljax.schemes.silos import higradavg

IDS = np.repeat(np.arange(20), 12).astype(np.int32)  # 20 subjects of 12 items
BEST = {"accuracy": 8.0, "loss": 1.0}  # rates


@pytest.fixture
def asked(monkeypatch):
    """(Config, seed, rows, rate) of trainings that end as their rate says, at any seed."""
    found = []

    def trainer(scheme, config, settings, dataset, **options):
        def train(seed, rows, rate=None):
            found.append((config, seed, rows, rate))
            off = {what: abs(math.log2((rate or 1.0) / best)) for what, best in BEST.items()}
            rounds = np.ones(settings.num_rounds)
            return (0.9 - off["accuracy"] / 100) * rounds, (1 + off["loss"] / 100) * rounds

        return train

    train = {"x": np.zeros((len(IDS), 2), np.float32), "y": IDS % 2, "subject": IDS}
    few = data.Dataset(train, train, 2, "few")
    monkeypatch.setattr(compare, "trainer", trainer)
    monkeypatch.setattr(training, "dataset", lambda *_: few)
    monkeypatch.setattr(data, "load", lambda _: few)
    training._tuned.cache_clear()
    yield found
    training._tuned.cache_clear()


def most(rows):
    """Items of one subject in one silo."""
    return max(np.bincount(IDS[silo[silo >= 0]]).max() for silo in rows)


def test_a_rate_is_tuned_on_seeds_and_a_split_that_are_judged_nowhere(asked):
    found = training.curves("femnist", "FedAvg", "sound", records.Settings(seeds=2))
    assert found["learning_rate"] == 8 and list(found["tried"]) == ["1", "2", "4", "8", "16"]
    assert np.shape(found["accuracies"]) == np.shape(found["losses"]) == (2, 32)
    assert np.all(np.equal(found["accuracies"], 0.9)) and found["true_epsilon"] is None
    *tuning, first, second = asked
    assert {seed for _, seed, _, _ in tuning} == {1000, 1001}
    assert [seed for _, seed, _, _ in (first, second)] == [0, 1]
    splits = [rows.tobytes() for _, _, rows, _ in (tuning[0], first, second)]
    assert len(set(splits)) == 3 and {rows.tobytes() for _, _, rows, _ in tuning} == {splits[0]}
    for _, _, rows, _ in asked:  # every item is somewhere, once
        assert np.array_equal(np.sort(rows[rows >= 0]), np.arange(len(IDS)))


def test_symbols_are_tuned_by_their_loss(asked):
    found = training.curves("shakespeare", "FedAvg", "paper", records.Settings(seeds=1), rounds=3)
    assert found["learning_rate"] == BEST["loss"] and np.shape(found["losses"]) == (1, 3)


def test_printed_noise_is_that_of_the_most_items_of_a_skewed_split_and_sound_noise_of_a_cap(
    asked, monkeypatch
):
    config = higradavg.Config(num_parties=16, max_items_per_subject=4)

    def config_of(label, method, sizes, train, *, largest, rounds, counted=None):
        noise = largest if method == "paper" else sizes.max_items_per_subject
        return None, dataclasses.replace(config, noise_multiplier=float(noise)), 5.0

    monkeypatch.setattr(training, "config_of", config_of)
    settings = records.Settings(seeds=1)
    for method in training.METHODS:
        found = training.skewed("HiGradAvg", method, settings, 16.0)
        _, _, rows, rate = asked[-1]
        # The last of 16 silos has an item of the power law with a chance of 1 - (15 / 16)^16.
        assert found["largest"] == most(rows) and (most(rows) > 4) == (method == "paper")
        noise = found["largest"] if method == "paper" else 4
        assert found["noise_multiplier"] == asked[-1][0].noise_multiplier == noise
        assert rate == 8 and found["accuracies"] == [0.9] and found["true_epsilon"] == 5.0
        even = next(rows for _, seed, rows, _ in reversed(asked) if seed == 1000)
        assert most(even) == 1


def test_in_a_comparison_all_with_a_guarantee_see_what_the_cap_leaves(asked, monkeypatch):
    def calibrated(contestant, settings):
        if contestant.label == "FedAvg":
            return contestant.config, math.inf
        return dataclasses.replace(contestant.config, noise_multiplier=2.0), 7.5

    monkeypatch.setattr(compare, "calibrated", calibrated)
    settings = compare.Settings(
        num_silos=3, seeds=2, num_rounds=4, alphas=(16.0,), max_items_per_subject=2
    )
    said = []
    found = compare.run(settings, said.append)
    assert len(found) == len(said) == compare.NUM_METHODS and len(asked) == 3 * len(found)
    for place, (_, seed, rows, _) in enumerate(asked):
        assert seed == (0, 1, 0)[place % 3]
        kept = (rows >= 0).sum()
        if found[place // 3].label == "FedAvg":
            assert kept == len(IDS) and most(rows) == (4 if place % 3 < 2 else 12)
        else:
            assert most(rows) == 2
            assert place % 3 == 2 or kept == 20 * 3 * 2
    rows = json.loads(json.dumps([compare.row(one) for one in found], allow_nan=False))
    assert [row["true epsilon"] for row in rows] == [None] + [7.5] * 6
    told = [row["accuracies"] + row["accuracy at alphas"] for row in rows]
    assert told == [[0.87] * 3] * len(rows)  # three factors of two off
    assert "accuracy 87.0 %" in said[0]


def test_where_every_item_is_drawn_a_group_is_all_items_of_a_subject_in_a_silo():
    settings = compare.Settings(num_silos=3, item_sampling_prob=1.0)
    assert compare.group_sizes(settings, IDS, None, draws=2).tolist() == [4] * 6
    # All items of some subject lie in the last silo: its chance is 1 - (2 / 3)^16 an item.
    assert compare.group_sizes(settings, IDS, 16.0, draws=1).tolist()[-1] == 12


def test_two_steps_without_noise_end_where_the_gradients_say(monkeypatch):
    """Where all items are drawn each method's direction is the mean gradient, by float64."""
    subjects, items, size, steps = 6, 2, 3, 2
    monkeypatch.setattr(convex, "SUBJECTS", subjects)
    monkeypatch.setattr(convex, "ITEMS", items)
    monkeypatch.setattr(convex, "SIZE", size)
    monkeypatch.setattr(convex, "SAMPLED", 1 - 1e-12)
    monkeypatch.setattr(convex, "ITEMS_DRAWN", float(subjects * items))
    monkeypatch.setattr(convex, "STEPS", (steps,))
    monkeypatch.setattr(convex, "stddev", lambda *_: 0.0)
    rows = {row["method"]: row for row in convex.measured(records.Settings(seeds=1))["rows"]}
    x, y = (part.astype(np.float64) for part in convex._problem(0))
    assert np.linalg.norm(x, axis=1).max() < 1 + 1e-6 and set(y) == {-1, 1}
    loss = lambda w: np.logaddexp(0, -y * (x @ w)).mean()
    ball = {"type": "ineq", "fun": lambda w: convex.DIAMETER**2 / 4 - w @ w}
    least = optimize.minimize(loss, np.zeros(size), constraints=[ball], tol=1e-12).fun
    down = (y[:, None] * x).mean(axis=0) / 2  # minus the gradient at 0
    for name, longest in (
        ("LocalItemDP", math.sqrt(1 + 1 / (subjects * items))),
        ("HiGradAvg", math.sqrt(1 + 1 / subjects)),
        ("UserLDP", 1.0),
    ):
        row = rows[name]
        rate = convex.DIAMETER / longest / math.sqrt(steps)
        assert row["rate"] == pytest.approx(rate)
        # The least of M^2 / (2 rate T) + rate L^2 / 2.
        assert row["bound"] == pytest.approx(convex.DIAMETER * longest / math.sqrt(steps))
        there = rate * down
        there *= min(1, convex.DIAMETER / 2 / np.linalg.norm(there))
        assert row["excess"] == [pytest.approx(loss(there / 2) - least, abs=2e-6)]
        assert 0 < row["excess"][0] < row["bound"]
