"""The demo of a paper's reproduction, as one JSON of all that its pieces found.

    python -m bench.papers.reproduced wfna     # ten minutes

`tests/papers/test_reproduce.py` pins its verdicts.
"""

import argparse
import pathlib
import tempfile
from typing import Any

from bench import _harness, _tables
from fljax.papers import reproduce
from fljax.papers.paper import Settings


def table(rows: _tables.Rows) -> str:
    """The verdicts on what was found then, judged anew."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        found.setdefault(row["item"], {})[row["piece"]] = row["found"]
    body = []
    for one in reproduce.get(str(rows[0]["paper"])).conclusions:
        verdict = one.judge({item: found[item] for item in one.items})
        body.append([one.where, one.statement, verdict.standing, verdict.because])
    return _tables.markdown(["where", "conclusion", "verdict", "because"], body)


def main() -> None:
    """Runs the demo in an empty folder and writes results/reproduce_PAPER-<platform>.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paper", choices=reproduce.NAMES)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(seeds=options.seeds)
        outcome = reproduce.run(
            options.paper, settings, pathlib.Path(folder), say=lambda text: print(text, flush=True)
        )
    for one, verdict in outcome.verdicts:
        print(f"{one.where}: {one.statement}: {verdict.standing}. {verdict.because}")
    rows = [
        {"paper": options.paper, "item": item, "piece": piece, "found": found}
        for item, pieces in outcome.found.items()
        for piece, found in pieces.items()
    ]
    note = f"fljax reproduce {options.paper} --seeds {options.seeds}"
    print(_harness.write(f"reproduce_{options.paper}", rows, note=note))


if __name__ == "__main__":
    main()
