"""`fljax report`."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Annotated, Any

import tyro

from fljax.cli import _args, _output, _run_files
from fljax.simulation.record import folder

_DESCRIPTION = """Lists runs, and compares them on one page.

fljax report RUN ...: a table of what each run reached and spent, and their curves in one chart
each, from the files of their folders, whether they have ended or not.
"""
_RUNS = "Folders of runs of `fljax simulate`, before all flags."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Which runs, and where the page goes."""

    runs: Annotated[tuple[pathlib.Path, ...], tyro.conf.arg(help=_RUNS)]
    output: pathlib.Path = pathlib.Path("runs.html")
    """Where the page goes; overwritten."""


def main(args: Sequence[str]) -> int:
    """Prints the table and writes the page."""
    try:
        args = _run_files.named_runs(args)
        options: Any = _args.parse(Options, args, prog="fljax report", description=_DESCRIPTION)
    except _args.Done:
        return 0
    from fljax.simulation.report import several

    runs = [several.read(path.expanduser()) for path in options.runs]
    _run_files.print_table(several.HEAD, [several.cells(run) for run in runs])
    folder.write_atomically(options.output, several.compared(runs, options.output))
    print(f"page {options.output}")
    _output.give({"page": options.output, "runs": [several.row(run) for run in runs]})
    return 0
