"""The demo of a paper's reproduction, as one JSON of all that its pieces found.

    python -m bench.papers.reproduced wfna     # ten minutes
    python -m bench.papers.reproduced channel --scale full --item table2    # VGG16, too

`tests/papers/test_reproduce.py` pins its verdicts. What is of full size has a JSON of its own.
"""

import argparse
import math
import pathlib
import tempfile
import textwrap
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from bench import _harness, _tables
from fljax.papers import reproduce, verdicts
from fljax.papers.paper import Scale, Settings, Table, percent
from fljax.papers.subject_dp import training


def _found(rows: _tables.Rows) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        found.setdefault(row["item"], {})[row["piece"]] = row["found"]
    return found


def table(rows: _tables.Rows) -> str:
    """The verdicts on what was found then, judged anew."""
    found, body = _found(rows), []
    paper = reproduce.get(str(rows[0]["paper"]))
    for one in paper.conclusions:
        verdict = verdicts.judge(paper, one, found)
        body.append([one.where, one.statement, verdict.standing, verdict.because])
    return _tables.markdown(["where", "conclusion", "verdict", "because"], body)


def shown(item: str, scale: Scale = "demo") -> Callable[[_tables.Rows], str]:
    """What makes the table of an item, as the page of its paper shows it."""

    def make(rows: _tables.Rows) -> str:
        items = {one.name: one for one in reproduce.get(str(rows[0]["paper"])).items}
        parts = items[item].show(Settings(scale=scale), _found(rows)[item])
        found = []
        for part in parts:
            if isinstance(part, Table):
                found.append(_tables.markdown(list(part.head), part.rows))
                found += [textwrap.fill(part.note, 100)] if part.note else []
        return "\n\n".join(found)

    return make


def times_table(rows: _tables.Rows) -> str:
    """Wall seconds of each demo as a whole, where it was made at one go."""
    body = []
    for name in dict.fromkeys(str(row["paper"]) for row in rows):
        own = next(row for row in rows if row["paper"] == name)
        if "seconds" in own:
            load = own["load_average"][2]
            minutes = own["seconds"] / 60
            body.append([name, f"{minutes:.1f}", str(own["cores"]), str(load), own["commit"][:7]])
    head = ["paper", "minutes", "cores", "load over the last quarter of an hour", "commit"]
    return _tables.markdown(head, body)


def subject_claims_table(rows: _tables.Rows) -> str:
    """What claims of epsilon 4 for a subject are worth."""
    body = [
        [
            row["case"],
            f"{math.floor(row['true, at least'] * 1e3) / 1e3:.3f} to "
            f"{math.ceil(row['true'] * 1e3) / 1e3:.3f}",
            row["errata"],
        ]
        for row in _found(rows)["claims"]["claims"]["claims"]
    ]
    return _tables.markdown(["claim", "true epsilon, certified", "errata"], body)


def subject_levels_table(rows: _tables.Rows) -> str:
    """Accuracy of the subject-level methods, each at its own claim and all at one true epsilon."""
    found, body = _found(rows)["fig1-femnist"], []
    for label in training.ALL:
        claimed, sound = (found.get(f"femnist, {one}, {label}") for one in training.METHODS)
        assert sound is not None
        true = sound["true_epsilon"]
        last = [
            "" if one is None else percent(np.asarray(one["accuracies"])[:, -1])
            for one in (claimed, sound)
        ]
        noise, rate = f"{sound['noise_multiplier']:.2f}", f"{sound['learning_rate']:g}"
        spent = "no guarantee" if true is None else _tables.up(true, 4)
        body.append([label, last[0], spent, noise, rate, last[1]])
    head = ["method", "at the paper's claim", "true epsilon", "noise multiplier", "learning rate"]
    return _tables.markdown([*head, "at the true epsilon"], body)


def main() -> None:
    """Runs the demo in an empty folder and writes results/reproduce_PAPER-<platform>.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paper", choices=reproduce.NAMES)
    parser.add_argument("--scale", choices=("demo", "full"), default="demo")
    parser.add_argument("--seeds", type=int, default=Settings().seeds)
    parser.add_argument("--folder", type=pathlib.Path, help="kept; goes on where it stopped")
    parser.add_argument("--item", nargs="*", default=[], help="these alone; other rows stay")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as emptied:
        settings = Settings(scale=options.scale, seeds=options.seeds)
        folder = options.folder or pathlib.Path(emptied)
        begun, start = any(folder.rglob("*.json")), time.monotonic()
        outcome = reproduce.run(
            options.paper,
            settings,
            folder,
            items=options.item,
            say=lambda text: print(text, flush=True),
        )
        took = time.monotonic() - start
    for one, verdict in outcome.verdicts:
        print(f"{one.where}: {one.statement}: {verdict.standing}. {verdict.because}")
    rows = [
        {"paper": options.paper, "item": item, "piece": piece, "found": found}
        for item, pieces in outcome.found.items()
        for piece, found in pieces.items()
    ]
    name = f"reproduce_{options.paper}" + "_full" * (options.scale == "full")
    if options.item and (_harness.RESULTS / f"{name}-cpu.json").is_file():
        print(_harness.amend(name, rows, keys=("item", "piece")))
        return
    items = "".join(f" --item {item}" for item in options.item)
    note = f"fljax reproduce {options.paper} --scale {options.scale} --seeds {options.seeds}{items}"
    if begun:
        note += ", which went on from pieces made before: the environment is that of the end"
    whole = None if begun else took
    print(_harness.write(name, rows, note=note, seconds=whole))


if __name__ == "__main__":
    main()
