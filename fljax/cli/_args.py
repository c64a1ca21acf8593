"""Flags from dataclasses by tyro, with errors of one line."""

import contextlib
import io
import os
import re
from collections.abc import Sequence
from typing import Any, TypeVar

import tyro

T = TypeVar("T")

_BORDER = re.compile(r"[╭╮╰╯│─]+")


class Done(Exception):
    """Help was asked for and printed; there is nothing left to do."""


@contextlib.contextmanager
def _columns(width: int) -> Any:
    """A terminal of this width, for whoever asks the environment."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(width)
    try:
        yield
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before


def _message(box: str) -> str:
    """The first paragraph in the box that tyro draws around an error."""
    lines = []
    for line in box.splitlines()[1:]:
        if "───" in line:
            break
        lines.append(_BORDER.sub(" ", line).strip())
    # What a config's own check says starts behind the name of the section that tyro was filling.
    return re.sub(r"^Error parsing [\w.-]+: (?=Expected )", "", " ".join(lines))


def parse(cls: type[T], args: Sequence[str], *, prog: str, description: str, default: T | None = None) -> T:
    """Flags, without prefixes, for the fields of `cls` and of the dataclasses in it.

    Raises:
      ValueError: an unknown flag, a value of the wrong type or out of range; one line that names it.
      Done: help was asked for, and has been printed.
    """
    args = ["None" if arg.lower() == "none" else arg for arg in args]
    options: dict[str, Any] = {} if default is None else {"default": default}
    options |= {"prog": prog, "description": description, "config": (tyro.conf.OmitArgPrefixes,)}
    if {"-h", "--help"} & set(args):
        try:
            tyro.cli(cls, args=["--help"], **options)
        except SystemExit as reason:
            raise Done from reason
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors), _columns(2000):
            return tyro.cli(cls, args=args, **options)
    except SystemExit as reason:
        raise ValueError(f"{_message(errors.getvalue())} (see {prog} --help)") from reason
