"""`fljax compare`."""

import dataclasses
import json
import pathlib
from collections.abc import Sequence

from fljax.cli import _args, _output
from fljax.papers.subject_dp.compare import Settings
from fljax.simulation.record import folder

_DESCRIPTION = """Trains FedAvg and five subject-level methods at the same true epsilon, and
compares them.

Writes compare.html and compare.json into one folder.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Where to write, and what to leave out."""

    settings: Settings = dataclasses.field(default_factory=Settings)
    run_dir: pathlib.Path | None = None
    """Folder for what is found, empty or not there yet. None: the next free
    runs/DATASET-compare-NNN.
    """
    claims: bool = True
    """Recompute the table of the paper's claims: half a minute."""


def main(args: Sequence[str]) -> int:
    """Runs the comparison and prints its table."""
    try:
        options = _args.parse(Options, args, prog="fljax compare", description=_DESCRIPTION)
    except _args.Done:
        return 0
    settings = options.settings
    run_dir = options.run_dir or folder.next_free(
        pathlib.Path("runs"), f"{settings.dataset}-compare"
    )
    run_dir.mkdir(parents=True, exist_ok=True)
    if any(run_dir.iterdir()):
        raise ValueError(
            f"Expected run folder {run_dir} to be empty or not there yet, got files in it."
        )
    from fljax import data
    from fljax.papers.subject_dp import claimed, compare, compare_report

    results = compare.run(settings, _output.steps(compare.NUM_METHODS))
    ids = data.load(settings.dataset).train[data.subjects.SUBJECT]
    splits: dict[str, float | None] = {"even": None} | {
        f"alpha {alpha:g}": alpha for alpha in settings.alphas
    }
    groups = {name: compare.group_sizes(settings, ids, alpha) for name, alpha in splits.items()}
    claims = claimed.claims() if options.claims else []
    folder.write_atomically(
        run_dir / "compare.html", compare_report.render(settings, results, groups, claims)
    )
    found = {
        "settings": dataclasses.asdict(settings),
        "results": [compare.row(result) for result in results],
        "claims": [claim._asdict() for claim in claims],
    }
    folder.write_atomically(
        run_dir / "compare.json", json.dumps(found, allow_nan=False, indent=1) + "\n"
    )
    print(f"report {run_dir / 'compare.html'}")
    _output.give({"run_dir": run_dir, "report": run_dir / "compare.html", **found})
    return 0
