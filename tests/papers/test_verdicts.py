"""Verdicts that rest on seeds: one that turns without a seed is none, a choice is judged on other
seeds than it was made on, and one answer among many needs more.
"""

import json
import re

import numpy as np
import pytest

from bench.papers import fresh_seeds
from fljax.papers import paper as records
from fljax.papers import reproduce, verdicts
from fljax.papers.bidirectional import items as bidirectional
from fljax.papers.channel import rounds, victims
from fljax.papers.lightdp import items as lightdp
from fljax.papers.subject_dp import training as subject_dp
from fljax.papers.wfna import items as wfna


def judged(differences, by_seed=frozenset({"accuracies"}), name="accuracies"):
    def judge(found):
        return records.plain(records.above(np.array(found["table1"]["all"][name])), "so")

    conclusion = records.Conclusion("section 1", "it is better", ["table1"], judge)
    a_paper = records.Paper("a", "b", (), (conclusion,), by_seed=by_seed)
    return verdicts.judge(a_paper, conclusion, {"table1": {"all": {name: differences}}})


@pytest.mark.parametrize(
    ("differences", "standing"),
    [
        ([0.29, 0.3, 0.3, 0.31, 0.3], "reproduced"),
        ([-0.29, -0.3, -0.3, -0.31, -0.3], "not reproduced"),
        # .26 +- .24: of four seeds without .5, .2 +- .27
        ([0.1, 0.1, 0.2, 0.4, 0.5], "cannot tell"),
        ([0.29, 0.3], "cannot tell"),
        ([0.3], "cannot tell"),
    ],
)
def test_a_verdict_that_turns_without_one_seed_cannot_be_told(differences, standing):
    assert judged(differences).standing == standing


def test_a_verdict_that_turns_says_what_it_would_have_been():
    told = judged([0.1, 0.1, 0.2, 0.4, 0.5])
    assert re.fullmatch(
        r"so; reproduced by all seeds, but not without one \(\d of 5\)", told.because
    )
    # A paper that does not say where its seeds are is judged as a whole.
    assert judged([0.1, 0.1, 0.2, 0.4, 0.5], by_seed=frozenset()).standing == "reproduced"


def test_a_seed_is_left_out_of_lists_and_pieces_alike():
    found = {
        "fig1": {"a": {"accuracies": [[1, 2], [3, 4], [5, 6]], "mean by round": [3, 4]}},
        "fig2": {"b": {"rows": [{"mse": [1, 2, 3], "at": 7}], "epochs": [1, 2]}},
        "fig3": {f"{kind}, seed {n}": {"x": n} for kind in ("c", "d") for n in (100, 101)},
    }
    by_seed = {"accuracies", "rows"}
    assert verdicts.num_seeds(found, by_seed) == 3
    left = verdicts.without(found, by_seed, 1)
    assert left["fig1"]["a"] == {"accuracies": [[1, 2], [5, 6]], "mean by round": [3, 4]}
    assert left["fig2"]["b"] == {"rows": [{"mse": [1, 3], "at": 7}], "epochs": [1, 2]}
    assert list(left["fig3"]) == ["c, seed 100", "d, seed 100"]
    assert found["fig1"]["a"]["accuracies"][1] == [3, 4] and len(found["fig3"]) == 4


def test_a_choice_is_judged_on_other_seeds_than_it_was_made_on():
    # Without the first seed the second series is ahead, without the last the first.
    told = records.chosen_by_others([np.array([9.0, 1, 1]), np.array([0.0, 2, 3])])
    assert told.tolist() == [0, 1, 1]
    # The best of 40 series of pure noise is not above nothing.
    noise = np.random.default_rng(0).normal(size=(2000, 40, 5))
    best = np.array([records.chosen_by_others(list(one)).mean() for one in noise])
    assert abs(best.mean()) < 5 * best.std() / 2000**0.5 < 0.1
    assert np.mean(noise.mean(axis=2).max(axis=1)) > 0.5


def test_one_answer_among_many_needs_more():
    below = np.array([-0.2, -0.3, -0.4])  # -.3 +- .25, and by Bonferroni among ten +- .82
    assert records.above(below) is False and records.above(below, among=10) is None
    sure = np.array([0.29, 0.3, 0.31])
    assert records.all_above([sure] * 10) is True
    assert records.all_above([below]) is False
    assert records.all_above([*[sure] * 9, below]) is None
    assert records.all_above([*[sure] * 9, -sure]) is False
    assert records.any_above([sure, below]) is True
    assert records.any_above([sure, -sure]) is False
    assert records.any_above([np.array([0.1, 0.3, 0.5])]) is None


def test_seeds_start_where_they_are_told_and_leave_those_of_tuning():
    assert list(records.Settings(seeds=2).each_seed) == [0, 1]
    assert list(records.Settings(seeds=2, first_seed=50).each_seed) == [50, 51]
    for first in (-1, 996):
        told = rf"Expected first_seed >= 0 and first_seed .* got first_seed={first}, seeds=5"
        with pytest.raises(ValueError, match=told):
            records.Settings(first_seed=first)
    with pytest.raises(ValueError, match=r"a multiple .* got first_seed=921, seeds=80"):
        reproduce.seconds(reproduce.get("channel"), records.Settings(first_seed=921))


@pytest.mark.parametrize("length", [0.2, 4.1, float("nan")])
def test_a_length_that_leaves_nothing_of_a_training_is_refused(length):
    with pytest.raises(ValueError, match=rf"Expected length in \[0.25, 4\], got length={length}"):
        records.Settings(length=length)


def test_trainings_of_every_paper_are_as_long_as_asked_for():
    half = records.Settings(length=0.5)
    assert subject_dp.sizes("femnist", half)[0].num_rounds == 16
    assert lightdp._sizes(half)["rounds"] == 10
    assert wfna._sizes(half)["epochs"] == 50
    assert victims.size(half).epochs == (6, 14, 26, 40)
    assert rounds.num_rounds(half) == 10


def test_so_are_those_of_bidirectional(monkeypatch):
    monkeypatch.setattr(bidirectional.training, "accuracies", lambda case, *_: {"r": case.rounds})
    (item,) = (item for item in bidirectional.ITEMS if item.name == "fig3")
    asked = [piece.compute()["r"] for piece in item.pieces(records.Settings(length=0.5))]
    assert set(asked) == {30}


def test_how_often_records_are_used_is_no_matter_of_length_where_it_is_asked_about():
    lengths = {
        item.name: {
            piece.compute.args[2].length for piece in item.pieces(records.Settings(length=0.5))
        }
        for item in reproduce.get("channel").items
        if item.name in ("fig9", "fig12")
    }
    assert lengths == {"fig9": {0.5}, "fig12": {1.0}}


@pytest.mark.parametrize("length", [1.0, 0.75])
def test_no_verdict_is_contradicted_by_other_seeds_and_lengths(length):
    """In the committed records, that of the demo judged anew: one that is not the same is "cannot
    tell" on one side.
    """
    rows = json.loads(fresh_seeds.PATH.read_text())["rows"]
    rows = [row for row in rows if row["length"] == length]
    assert {row["paper"] for row in rows} == set(reproduce.NAMES)
    for row in rows:
        known = fresh_seeds.committed(row["paper"])[row["conclusion"]]
        told = {known, row["fresh"]} - {"cannot tell"}
        assert len(told) <= 1, row


# What each paper prints: its figures and tables, by their numbers.
PRINTED = {
    "subject-dp": (range(1, 4), ()),
    "lightdp": (range(1, 5), ("I", "II", "III")),
    "wfna": (range(1, 6), ("1",)),
    "channel": (range(1, 34), ("1", "2")),
    "bidirectional": (range(1, 4), ("I", "II", "III", "IV", "V", "VI")),
}


@pytest.mark.parametrize("name", reproduce.NAMES)
def test_each_printed_figure_and_table_has_its_row(name):
    figures, tables, settings = set(), set(), records.Settings()
    for item in reproduce.get(name).items:
        assert bool(item.pieces(settings)) != bool(item.why)
        for run in re.findall(r"Figures? ((?:\d+|, | and | to )+)", item.title):
            for first, last in re.findall(r"(\d+)(?: to (\d+))?", run):
                figures |= set(range(int(first), int(last or first) + 1))
        tables |= set(re.findall(r"Table ([IV\d]+)", item.title))
    assert figures == set(PRINTED[name][0]) and tables == set(PRINTED[name][1])
