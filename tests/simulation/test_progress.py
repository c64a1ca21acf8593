"""What is said while a run goes on: epsilon of its budget, and the time that is left."""

import types

import pytest

from fljax import cli
from fljax.cli import schemes as a_verb
from fljax.simulation.observers import progress

PLAN = types.SimpleNamespace(
    num_rounds=60,
    target_epsilon=4.0,
    delta=1e-5,
    epsilons=(0.0, 1.0),
    event=types.SimpleNamespace(privacy_unit="client"),
    num_units=1000,
)


def test_a_line_has_epsilon_of_its_budget_and_the_time_left(monkeypatch, capsys):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    lines = progress.Lines()
    lines.start(PLAN, 0)
    now[0] = 110.0  # 20 rounds in 10 s: 40 more take 20 s
    lines.round({"round": 20, "epsilon": 1.5, "test_loss": 1.0, "test_accuracy": 0.5})
    now[0] = 410.0  # 20 rounds in 300 s
    lines.round({"round": 40, "epsilon": 2.0, "test_loss": 1.0, "test_accuracy": 0.5})
    now[0] = 411.0
    lines.round({"round": 60, "epsilon": 2.5, "test_loss": 1.0, "test_accuracy": 0.5})
    first, second, last = capsys.readouterr().out.splitlines()[-3:]
    assert "epsilon 1.500 of 4" in first and first.endswith("2.0 rounds/s  20 s left")
    assert second.endswith("  5 min left") and last.endswith("rounds/s")


def test_a_first_round_that_was_compiled_promises_no_time(monkeypatch, capsys):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    lines = progress.Lines()
    lines.start(PLAN, 20)
    for number, seconds in ((21, 30.0), (31, 5.0)):
        now[0] += seconds
        lines.round({"round": number, "epsilon": 1.5, "test_loss": 1.0, "test_accuracy": 0.5})
    first, second = capsys.readouterr().out.splitlines()[-2:]
    assert first.endswith("  30 s with compiling")
    assert second.endswith("  2.0 rounds/s  14 s left")


def test_without_a_budget_none_is_named(capsys):
    lines = progress.Lines()
    lines.start(types.SimpleNamespace(**{**vars(PLAN), "target_epsilon": None}), 0)
    lines.round({"round": 60, "epsilon": 1.5, "test_loss": 1.0})
    assert " of " not in capsys.readouterr().out.splitlines()[-1].replace("rounds/s", "")


@pytest.mark.parametrize("words", ["", "stopped after 3 rounds; to go on: say so"])
def test_ctrl_c_says_how_to_go_on(words, monkeypatch, capsys):
    def interrupted(args):
        raise KeyboardInterrupt(*([words] if words else []))

    monkeypatch.setattr(a_verb, "main", interrupted)
    assert cli.main(["schemes"]) == 130
    wanted = words or "stopped; `fljax schemes` does not go on where it was: start it again"
    assert capsys.readouterr().err == f"fljax: {wanted}\n"
