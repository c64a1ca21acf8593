"""`fljax data`."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import tyro

from fljax.cli import _args, _output, _run_files
from fljax.simulation.record import folder

_DESCRIPTION = """Says what a data set holds, or writes it in another form.

fljax data describe DATA: examples, classes, clients and subjects. These counts are exact: they are
for whoever may see the data. fljax data convert DATA --output FILE.npz: one file of arrays, for
--dataset npz:FILE.npz; --output FOLDER: clients on disk, for --dataset disk:FOLDER.
"""
_DATA = "A name as for --dataset of `fljax simulate`."
_WHAT = "What is done."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Which data, and what is done with them."""

    what: Annotated[Literal["describe", "convert"], tyro.conf.arg(help=_WHAT)]
    data: Annotated[str, tyro.conf.arg(help=_DATA)]
    label_column: str | None = None
    """As for `fljax simulate`."""
    client_column: str | None = None
    """As for `fljax simulate`."""
    subject_column: str | None = None
    """As for `fljax simulate`."""
    feature_columns: str | None = None
    """As for `fljax simulate`."""
    missing_value: float | None = None
    """As for `fljax simulate`."""
    task: str = "classes"
    """As for `fljax simulate`."""
    sequence_length: int = 80
    """As for `fljax simulate`."""
    vocabulary: str | None = None
    """As for `fljax simulate`."""
    plot: pathlib.Path | None = None
    """File for a picture (.svg) of the classes, or of each client's where they have names."""
    output: pathlib.Path | None = None
    """Where converted data go; must not be there yet."""

    def __post_init__(self) -> None:
        if (self.what == "convert") != (self.output is not None):
            raise ValueError(f"Expected --output with convert alone, got output={self.output}.")


def main(args: Sequence[str]) -> int:
    """Describes, or converts."""
    try:
        args = _run_files.named(args, "what", "data")
        options: Any = _args.parse(Options, args, prog="fljax data", description=_DESCRIPTION)
    except _args.Done:
        return 0
    from fljax.simulation import described

    columns = (options.label_column, options.client_column, options.subject_column)
    found = described.load(
        options.data,
        *columns,
        feature_columns=options.feature_columns,
        missing_value=options.missing_value,
        task=options.task,
        sequence_length=options.sequence_length,
        vocabulary=options.vocabulary,
    )
    if options.what == "convert":
        where = described.convert(found, options.output)
        print(f"for --dataset: {where}")
        _output.give({"dataset": where})
        return 0
    held = described.counts(found)
    for name, value in held.items():
        for line in _lines(name.replace("_", " "), value):
            print(line)
    if options.plot is not None:
        from fljax.simulation.report import figures

        folder.write_atomically(options.plot, figures.classes(*described.bars(found)))
        print(f"picture {options.plot}")
    _output.give({**held, **({"picture": options.plot} if options.plot else {})})
    return 0


def _lines(name: str, value: Any) -> list[str]:
    """Plain data as a few lines for a person."""
    if value is None:
        return [f"{name:<10} none"]
    if not isinstance(value, dict):
        return [f"{name:<10} {value}"]
    return [f"{name:<10} {', '.join(f'{key} {part}' for key, part in value.items())}"]
