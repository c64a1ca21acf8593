"""Committed measurements are of clean commits."""

import json

from bench import _harness


def environments(found):
    """Of the rows that tell their own; and the file's, which is of all others."""
    own = [row for row in found["rows"] if "commit" in row]
    return own if len(own) == len(found["rows"]) > 0 else [found["environment"], *own]


def test_measurements_are_made_from_clean_commits():
    changed = set()
    for path in _harness.RESULTS.glob("*.json"):
        for made in environments(json.loads(path.read_text())):
            assert len(made["commit"]) == 40, path.stem
            if made.get("dirty", False):  # some rows tell their commit alone
                changed.add(path.stem)
    assert not changed


def test_rows_that_are_taken_anew_tell_their_own_commit(tmp_path, monkeypatch):
    monkeypatch.setattr(_harness, "RESULTS", tmp_path)
    here = {"commit": "a" * 40, "dirty": False, "platform": "cpu", "date": "then"}
    monkeypatch.setattr(_harness, "environment", lambda: dict(here))
    _harness.write("x", [{"name": "b", "value": 1}, {"name": "c", "value": 2}], note="n")
    here |= {"commit": "b" * 40, "date": "now"}
    _harness.amend("x", [{"name": "c", "value": 3}, {"name": "a", "value": 4}], keys=("name",))
    found = json.loads((tmp_path / "x-cpu.json").read_text())
    assert found["environment"]["commit"] == "a" * 40 and found["note"] == "n"
    told = [(row["name"], row["value"], row.get("commit", "")[:1]) for row in found["rows"]]
    assert told == [("b", 1, ""), ("c", 3, "b"), ("a", 4, "b")]
