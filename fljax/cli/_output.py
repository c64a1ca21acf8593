"""What a command says: text for people, or with `--json` one document for programs.

Commands print as they like. With `--json` that text is dropped, and the document holds what they
`give`. With `--quiet` only what was asked for is left: no progress, no notes.
"""

import contextlib
import dataclasses
import io
import json
import math
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console

FORMAT = 1
_MOST_COLUMNS = 200


@dataclasses.dataclass
class _Said:
    """One command's."""

    quiet: bool = False
    result: dict[str, Any] | None = None


_said = _Said()


def give(result: Mapping[str, Any]) -> None:
    """What `--json` prints of this command, in the form that `_schemas` states."""
    _said.result = dict(result)


def aside(text: str) -> None:
    """Prints a line that nobody asked for: where files go, how far things are."""
    if not _said.quiet:
        print(text, flush=True)


def steps(count: int) -> Callable[[str], None]:
    """`aside`, for what has `count` steps that take about as long: each line but the last ends in
    the time that is left. The first of them is often the longest, since it compiles.
    """
    from fljax.simulation.observers import progress  # rich's bars

    began, done = time.monotonic(), 0

    def say(text: str) -> None:
        nonlocal done
        done += 1
        togo = (count - done) * (time.monotonic() - began) / done
        aside(f"{text}  {progress.time_left(togo)}" if done < count else text)

    return say


def quiet() -> bool:
    """Whether only what was asked for is to be printed."""
    return _said.quiet


def console() -> Console:
    """The terminal at its width; elsewhere plain text, as wide as COLUMNS says or as a table needs,
    so that it keeps one line a row.
    """
    terminal = Console()
    if terminal.is_terminal:
        return terminal
    columns = os.environ.get("COLUMNS", "")
    return Console(width=int(columns) if columns.isdecimal() and int(columns) else _MOST_COLUMNS)


def plain(value: Any) -> Any:
    """Plain data for JSON, which has no infinity and no NaN: those become words."""
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [plain(part) for part in value]
    if isinstance(value, pathlib.PurePath):
        return str(value)
    if hasattr(value, "tolist"):  # of NumPy and JAX
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


@contextlib.contextmanager
def spoken(*, as_json: bool, quiet: bool) -> Iterator[_Said]:
    """For one command: its text is dropped where a document is asked for."""
    global _said
    before, _said = _said, _Said(quiet or as_json)
    try:
        with contextlib.redirect_stdout(io.StringIO()) if as_json else contextlib.nullcontext():
            yield _said
    finally:
        _said = before


def document(command: str, code: int, result: Mapping[str, Any] | None, error: str | None) -> str:
    """The document of a command that has ended, in one line."""
    found = {
        "format": FORMAT,
        "command": command,
        "exit_code": code,
        "result": plain(result),
        "error": error,
    }
    return json.dumps(found, allow_nan=False)


def show(text: str) -> None:
    """A line on standard error."""
    print(text, file=sys.stderr)
