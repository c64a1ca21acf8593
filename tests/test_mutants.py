"""Mutants are small changes that run, of code that computes; those that were tried died."""

import json

from tests import mutants

SOURCE = '''"""One - two."""
import math

LEAST: int = 3


def share(values, total=2):
    """Of 1."""
    if not total > 0:
        raise ValueError(f"Expected total > 0, got {total - 1}.")
    rest = max(total - sum(values), 0.5)
    return -rest / total if values else True
'''


def test_a_mutant_changes_one_expression_and_no_message():
    found = [one for one in mutants.mutants("share.py", SOURCE) if mutants.parses(one, SOURCE)]
    assert {f"{one.old} -> {one.new}" for one in found} == {
        "3 -> 4",
        "not total > 0 -> (not (not total > 0))",
        "not total > 0 -> total > 0",
        "total > 0 -> total >= 0",
        "0 -> 1",
        "max(total - sum(values), 0.5) -> min(total - sum(values), 0.5)",
        "total - sum(values) -> total + sum(values)",
        "sum(values) -> max(values)",
        "0.5 -> 1.0",
        "values -> (not (values))",
        "-rest -> rest",
        "-rest / total -> -rest * total",
        "True -> False",
    }
    assert {one.function for one in found} == {"", "share"}
    for one in found:
        changed = mutants.changed(one, SOURCE.encode()).decode()
        assert changed != SOURCE and "total - 1}" in changed and "Of 1." in changed


def test_the_mutants_of_the_last_run_died_or_change_nothing():
    told = json.loads(mutants.RESULT.read_text())
    survivors = told["survivors"]
    assert told["mutants"] == len(told["killed_by"]) + len(survivors) >= 200
    assert told["killed"] == len(told["killed_by"])
    assert all(told["killed_by"].values()) and all(survivors.values())  # each has a reason
    assert len(survivors) <= 0.1 * told["mutants"]
    for place in mutants.DRAWN:
        assert any(name.startswith(place) for name in told["killed_by"])
