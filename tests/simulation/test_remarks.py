"""What a reader must not miss is said: as it happens, at the end, and in the report."""

import dataclasses

import jax
import numpy as np
import pytest

from fljax.cli import simulate
from fljax.simulation import remarks, run
from fljax.simulation.config import from_sections
from fljax.simulation.observers import progress
from fljax.simulation.report import run_page

pytestmark = pytest.mark.usefixtures("compiled_once")


def config(scheme, **settings):
    found = from_sections(
        {
            "scheme": {"scheme": scheme, "num_parties": 20, "noise_multiplier": 1.0} | settings,
            "data": {"num_clients": 20, "partition": "iid"},
            "model": {"model": "softmax"},
            "privacy": {"target_epsilon": "none"},
        }
    )
    return dataclasses.replace(
        found,
        run=dataclasses.replace(found.run, num_rounds=4, seed=0, eval_every=2, baseline=False),
    )


def all_said(outcome):
    return simulate._summary(outcome, "there"), run_page._remarks(outcome)


@pytest.mark.slow(reason="a whole run with secure sums")
def test_lost_rounds_are_told_as_they_happen_and_at_the_end(tmp_path, capsys):
    failing = {
        "straggler_law": "custom",
        "max_stragglers": 2,
        "straggler_probs": [0.0] * 10 + [1.0],
    }
    outcome = run.start(config("secagg_dp", **failing), tmp_path / "run", progress.Lines())
    lines = capsys.readouterr().out.splitlines()
    assert any("round 1/4" in line and "LOST" in line for line in lines)
    assert any("round 4/4" in line and "4 rounds lost" in line for line in lines)
    assert [record["lost"] for record in outcome.records] == [True] * 4
    for said in all_said(outcome):
        assert "4 of 4 rounds were lost" in said
    before, after = jax.tree.leaves(outcome.task.model.params), jax.tree.leaves(outcome.params)
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


def test_the_bar_counts_lost_rounds():
    from rich.console import Console

    bar = progress.Terminal(Console(quiet=True))
    bar._task = bar._progress.add_task("", total=3, numbers="")
    for done in (1, 2, 3):
        bar.round({"round": done, "epsilon": 1.0} | ({"lost": True} if done > 1 else {}))
    assert "lost 2" in bar._progress.tasks[0].fields["numbers"]


@pytest.mark.slow(reason="a whole run")
def test_accuracy_near_chance_is_told_with_its_chance(tmp_path, capsys):
    outcome = run.start(
        config("local_dp", noise_multiplier=50.0), tmp_path / "run", progress.Lines()
    )
    assert "lost" not in capsys.readouterr().out.lower() and not any(
        "lost" in r for r in outcome.records
    )
    labels = outcome.task.dataset.test["y"]
    most = max(np.count_nonzero(labels == label) for label in set(labels.tolist())) / len(labels)
    for said in all_said(outcome):
        assert "near chance" in said and f"{most:.1%}" in said
    last = outcome.records[-1] | {"test_accuracy": 0.9}
    assert not remarks.remarks(outcome._replace(records=[*outcome.records[:-1], last]))
    for plain, words in (
        (0.8, "non-private model reaches 80.0%"),
        (0.11, "Nor has the non-private model"),
    ):
        last = outcome.records[-1] | {"baseline_test_accuracy": plain}
        assert words in remarks.remarks(outcome._replace(records=[*outcome.records[:-1], last]))[0]


def test_near_chance_is_a_fifth_of_the_way_to_perfect():
    assert remarks.chance(np.array([3, 3, 3, 1])) == 0.75
    assert remarks.near_chance(0.279, 0.1) and not remarks.near_chance(0.281, 0.1)
    assert remarks.near_chance(float("nan"), 0.1) and remarks.near_chance(0.59, 0.5)
