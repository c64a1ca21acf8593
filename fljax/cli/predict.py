"""`fljax predict`."""

import csv
import dataclasses
import io
import pathlib
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import tyro

from fljax.cli import _args, _output, _run_files
from fljax.simulation.record import folder

_DESCRIPTION = """What the private model of a run says of examples.

fljax predict RUN DATA: a line for each example, its row, what the model says, and how sure it is.
DATA is csv:FILE with the columns that the model was trained on, npz:FILE with an array x, or
another name as for --dataset, of which the held-out examples are taken. Labels are not needed;
where there are some, the share that is met is printed as well.
"""
_DATA = "csv:FILE, npz:FILE, or another name as for --dataset."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Whose model, and of what."""

    run: _run_files.Run
    data: Annotated[str, tyro.conf.arg(help=_DATA)]
    model: str | None = None
    """PACKAGE.MODULE:NAME of the run's model, where it went by such a path: that is code, which is
    not run because a folder says so.
    """
    output: pathlib.Path | None = None
    """File for the table, as CSV. None: it is printed."""


def main(args: Sequence[str]) -> int:
    """Prints or writes one line an example."""
    try:
        args = _run_files.named(args, "run", "data")
        options: Any = _args.parse(Options, args, prog="fljax predict", description=_DESCRIPTION)
    except _args.Done:
        return 0
    from fljax.simulation import predictions, trained

    found = trained.load(options.run)
    x, labels = predictions.examples(options.data, found.about)
    said = predictions.of(found, x, options.model, labels)
    score = predictions.met(said, labels, found.about)
    rows = [{"row": row, **line} for row, line in enumerate(said.lines())]
    _output.give({"rounds": found.rounds, "examples": len(x), **score, "predictions": rows})
    text = io.StringIO()
    table = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    if options.output is None:
        print(text.getvalue(), end="")
    else:
        folder.write_atomically(options.output, text.getvalue())
        print(f"{len(rows)} predictions {options.output}")
    for name, value in score.items():
        _output.show(f"{name} {value:.4g} on these {len(np.asarray(labels))} examples")
    return 0
