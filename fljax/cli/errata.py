"""`fljax errata`."""

import dataclasses
import math
import textwrap
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import tyro

from fljax.cli import _args, _output

_DESCRIPTION = """What five papers print that does not hold, and what holds instead.

fljax errata: all. fljax errata E4: those of that name, in each paper that has one. --run computes
counter-examples: each figure as printed, and as it is. Where there is none, a slip of the pen or a
gap in a proof needs none.
"""
_NAME = "Names such as E4; all where none is given."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Which, and whether to compute."""

    names: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(help=_NAME)] = ()
    paper: Literal["subject-dp", "lightdp", "wfna", "channel", "bidirectional"] | None = None
    """Of this paper only."""
    run: bool = False
    """Compute the counter-examples."""


def main(args: Sequence[str]) -> int:
    """Prints errata, and their counter-examples."""
    try:
        options: Any = _args.parse(Options, args, prog="fljax errata", description=_DESCRIPTION)
    except _args.Done:
        return 0
    from fljax.papers import errata

    rows: list[dict[str, Any]] = []
    for name in options.names or (None,):
        for paper, found in errata.find(name, paper=options.paper).items():
            for erratum in found:
                row = {"paper": paper, "name": erratum.name, "where": erratum.where}
                row |= {"printed": erratum.printed, "holds": erratum.holds}
                _say(f"{paper} {erratum.name}: {erratum.where}", row)
                shown = erratum.shows() if options.run and erratum.shows else []
                for figure in shown:
                    print(f"  {figure.what}")
                    print(f"    as printed {_number(figure.printed)}, is {_number(figure.holds)}")
                rows.append({**row, "shown": [figure._asdict() for figure in shown]})
    _output.give({"rows": rows})
    return 0


def _say(head: str, row: dict[str, Any]) -> None:
    print(head)
    for field in ("printed", "holds"):
        text = f"{field + ':':<8} {row[field]}"
        print(textwrap.fill(text, 98, initial_indent="  ", subsequent_indent=" " * 11))


def _number(value: float) -> str:
    return "without end" if math.isinf(value) else f"{value:.4g}"
