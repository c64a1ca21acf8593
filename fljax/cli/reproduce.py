"""`fljax reproduce`."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Annotated, Any

import tyro

from fljax.cli import _args, _output, _run_files
from fljax.papers.paper import Settings

_DESCRIPTION = """Remakes a paper's tables and figures, and says how each of its conclusions stands.

fljax reproduce wfna: writes one page with pictures and results.json into a folder. Stopped and
called again with the same folder it goes on where it was.
"""
_PAPER = "A paper's name, or the dotted path of a `fljax.papers.paper.Paper`."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Which paper, and what of it."""

    paper: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(help=_PAPER)] = None
    settings: Settings = dataclasses.field(default_factory=Settings)
    item: tuple[str, ...] = ()
    """Items such as fig5; none: all."""
    output: pathlib.Path | None = None
    """Folder for what is found. None: runs/reproduce-PAPER-SCALE."""


def main(args: Sequence[str]) -> int:
    """Does what is not done yet, prints the verdicts and where the page is."""
    try:
        options: Any = _args.parse(Options, args, prog="fljax reproduce", description=_DESCRIPTION)
    except _args.Done:
        return 0
    from fljax.papers import reproduce

    if options.paper is None:
        raise ValueError(f"Expected a paper, one of {', '.join(reproduce.names())}, got none.")
    paper, settings = reproduce.get(options.paper), options.settings
    name = options.paper.replace(":", ".")
    folder = options.output or pathlib.Path("runs") / f"reproduce-{name}-{settings.scale}"
    minutes = reproduce.seconds(paper, settings, options.item) / 60
    gigabytes = paper.memory_gb[settings.scale]
    guessed = ", both guessed: no whole run was timed" if settings.scale == "full" else ""
    _output.aside(f"about {minutes:.0f} min on two cores, {gigabytes:g} GB of memory{guessed}")
    try:
        outcome = reproduce.run(
            options.paper, settings, folder, items=options.item, say=_output.aside
        )
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped; the same command goes on in {folder}") from None
    rows = [
        [one.where, one.statement, verdict.standing, verdict.because]
        for one, verdict in outcome.verdicts
    ]
    _run_files.print_table(["where", "conclusion", "verdict", "because"], rows)
    print(f"page {outcome.page}")
    _output.give(
        {
            "page": outcome.page,
            "verdicts": [
                {"where": where, "conclusion": what, "standing": standing, "because": because}
                for where, what, standing, because in rows
            ],
        }
    )
    return 0
