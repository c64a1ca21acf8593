"""What `attack` and `audit` share: a run folder with config.toml, results as JSON, report.html, and
a table.
"""

import contextlib
import dataclasses
import getpass
import html
import json
import os
import pathlib
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import tomli_w
import tyro
from rich.table import Column, Table

from fljax.cli import _output
from fljax.simulation import secret_file
from fljax.simulation.record import folder


@contextlib.contextmanager
def opened(run_dir: pathlib.Path | None, stem: str, options: Any) -> Iterator[pathlib.Path]:
    """A folder with the options as config.toml, gone again where the work inside refuses them.

    Raises:
      ValueError: it exists and holds something. DiskFullError: no room.
    """
    path = folder.next_free(pathlib.Path("runs"), stem) if run_dir is None else run_dir
    values = {
        name: _written(value)
        for name, value in dataclasses.asdict(options).items()
        if name != "run_dir"
    }
    folder.begin(path, tomli_w.dumps(values))
    _output.aside(f"run folder {path}")
    try:
        yield path
    except (
        ValueError
    ):  # a setting that the scheme has no use for, say: nothing in the folder is worth keeping
        folder.discard(path)
        raise


def kept(secret: pathlib.Path | None, passphrase: bool) -> secret_file.Kept:
    """Where a run's secret is, with the passphrase from FLJAX_PASSPHRASE, or one that is typed.

    Raises:
      ValueError: there is none.
    """
    if not passphrase:
        return secret_file.Kept(secret)
    found = os.environ.get("FLJAX_PASSPHRASE")
    if found is None and sys.stdin is not None and sys.stdin.isatty():
        found = getpass.getpass("passphrase of the run's secret: ")
    if not found:
        raise ValueError(
            "Expected a passphrase in the variable FLJAX_PASSPHRASE, or a terminal to ask for it "
            "at, got none."
        )
    return secret_file.Kept(secret, found)


def _written(value: Any) -> Any:
    """An option as TOML has it."""
    if value is None:
        return "none"
    if isinstance(value, pathlib.Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def verdict(broken: Sequence[str]) -> int:
    """The exit code: 1, with a line that says so, where an attack got past a bound: those in
    `broken`.
    """
    if not broken:
        return 0
    print(f"An attack got past what is certified: {', '.join(broken)}. Exit code 1.")
    return 1


def write_json(path: pathlib.Path, results: Any) -> None:
    """Numbers as JSON; what is not finite becomes a string, which JSON has no numbers for."""
    text = json.dumps(_output.plain(results), allow_nan=False, indent=1)
    folder.write_atomically(path, text + "\n")


def html_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of text cells."""
    cells = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f'<table class="numbers"><tr>{cells}</tr>{body}</table>'


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """The same on the terminal, where a narrow one cuts any word but a verdict."""
    words = [word for row in rows for word in row[-1].split()] if head[-1] == "verdict" else []
    table = Table(*head[:-1], Column(head[-1], min_width=max(map(len, words), default=None)))
    for row in rows:
        table.add_row(*row)
    _output.console().print(table)


def write_report(run_dir: pathlib.Path, title: str, sections: Sequence[str]) -> pathlib.Path:
    """report.html from its sections, and where it is. Raises DiskFullError if there is no room."""
    from fljax.simulation.report import run_page  # late: `--help` needs no plots

    path = run_dir / "report.html"
    folder.write_atomically(path, run_page.page(title, "Written by fljax.", "".join(sections)))
    print(f"report {path}")
    return path


Run = Annotated[pathlib.Path, tyro.conf.arg(help="Folder of a run of `fljax simulate`.")]


def named_runs(args: Sequence[str]) -> list[str]:
    """The arguments with `--runs` before those that come before the first flag.

    Raises:
      ValueError: there is none.
    """
    given = list(args)
    if {"-h", "--help", "--runs"} & set(given):
        return given
    if not given or given[0].startswith("-"):
        raise ValueError("Expected RUN ... before all flags, got none.")
    return ["--runs", *given]


def named(args: Sequence[str], *names: str) -> list[str]:
    """The arguments with `--NAME` before each of the first ones, which are no flags.

    Raises:
      ValueError: too few or too many of them.
    """
    given = list(args)
    if {"-h", "--help"} & set(given):
        return given
    found = []
    for name in names:
        if any(arg == f"--{name}" or arg.startswith(f"--{name}=") for arg in given):
            continue
        if not given or given[0].startswith("-"):
            words = " ".join(name.upper() for name in names)
            raise ValueError(f"Expected {words} before all flags, got no {name.upper()}.")
        found += [f"--{name}", given.pop(0)]
    if given and not given[0].startswith("-"):
        raise ValueError(f"Expected flags after {' '.join(found[1::2])}, got {given[0]!r}.")
    return [*found, *given]
