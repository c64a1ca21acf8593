"""Do verdicts on papers stay where all seeds are others, or trainings shorter or longer?

    python -m bench.papers.fresh_seeds wfna [--first-seed 100] [--item fig5] [--folder FOLDER]
    python -m bench.papers.fresh_seeds wfna --first-seed 0 --length 0.75

Makes a paper's demo so, as long as that takes, and writes its verdicts beside those of the
committed demo: a row for each conclusion that rests on something that was made. Rows of other
papers, lengths and first seeds, and with --item of other conclusions, stay; each names its commit.
"""

import argparse
import functools
import json
import pathlib
import tempfile
from collections.abc import Mapping
from typing import Any

from bench import _harness, _tables
from fljax.papers import reproduce, verdicts
from fljax.papers.paper import Settings

PATH = _harness.RESULTS / "fresh_seeds-cpu.json"


@functools.cache
def committed(name: str) -> dict[str, str]:
    """How the conclusions of the committed demo stand, judged anew."""
    rows = json.loads((_harness.RESULTS / f"reproduce_{name}-cpu.json").read_text())["rows"]
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        found.setdefault(row["item"], {})[row["piece"]] = row["found"]
    paper = reproduce.get(name)
    return {one.statement: verdicts.judge(paper, one, found).standing for one in paper.conclusions}


def table(rows: _tables.Rows) -> str:
    """Of each paper, length and first seed, how many verdicts stay, and which do not."""
    body = []
    for name, length, first in dict.fromkeys(map(_which, rows)):
        own = [row for row in rows if _which(row) == (name, length, first)]
        known = committed(name)
        other = [row for row in own if known[row["conclusion"]] != row["fresh"]]
        last = first + own[0]["seeds"] - 1
        told = "; ".join(
            f"{row['conclusion']}: {known[row['conclusion']]}, {row['fresh']}" for row in other
        )
        seeds = f"{first} to {last}"
        same = str(len(own) - len(other))
        body.append([name, seeds, f"{length:g}", str(len(own)), same, told or "none"])
    head = ["paper", "seeds", "length", "verdicts", "the same", "others: as above, and here"]
    return _tables.markdown(head, body)


def _which(row: Mapping[str, Any]) -> tuple[str, float, int]:
    return row["paper"], row["length"], row["first_seed"]


def main() -> None:
    """Runs, prints what differs, and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paper", choices=reproduce.NAMES)
    parser.add_argument("--first-seed", type=int, default=100)
    parser.add_argument("--length", type=float, default=1.0)
    parser.add_argument("--item", nargs="*", default=[])
    parser.add_argument("--folder", type=pathlib.Path, help="kept; goes on where it stopped")
    options = parser.parse_args()
    settings = Settings(first_seed=options.first_seed, length=options.length)
    with tempfile.TemporaryDirectory() as emptied:
        outcome = reproduce.run(
            options.paper,
            settings,
            options.folder or pathlib.Path(emptied),
            items=options.item,
            say=lambda text: print(text, flush=True),
        )
    known, commit = committed(options.paper), _harness.environment()["commit"]
    rows = [
        {
            "paper": options.paper,
            "first_seed": settings.first_seed,
            "seeds": settings.seeds,
            "length": settings.length,
            "commit": commit,
            "conclusion": one.statement,
            "committed": known[one.statement],
            "fresh": verdict.standing,
            "because": verdict.because,
        }
        for one, verdict in outcome.verdicts
        if one.items and verdict.standing != "open"
    ]
    before = json.loads(PATH.read_text())["rows"] if PATH.is_file() else []
    made = {row["conclusion"] for row in rows}
    kept = [
        row
        for row in before
        if _which(row) != (options.paper, options.length, options.first_seed)
        or (options.item and row["conclusion"] not in made)
    ]
    print(table(rows))
    note = "demos from other seeds, or of other lengths"
    print(_harness.write("fresh_seeds", [*kept, *rows], note=note))


if __name__ == "__main__":
    main()
