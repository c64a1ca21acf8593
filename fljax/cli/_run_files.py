"""A run folder of an attack: config.toml, results as JSON, report.html."""

import dataclasses
import html
import json
import math
import pathlib
from collections.abc import Sequence
from typing import Any

import tomli_w

from fljax.simulation import folder


def open_folder(run_dir: pathlib.Path | None, stem: str, options: Any) -> pathlib.Path:
    """Makes the folder and writes the options as config.toml.

    Raises:
      ValueError: it exists and holds something. DiskFullError: no room.
    """
    path = folder.next_free(pathlib.Path("runs"), stem) if run_dir is None else run_dir
    values = {
        name: "none" if value is None else list(value) if isinstance(value, tuple) else value
        for name, value in dataclasses.asdict(options).items()
        if name != "run_dir"
    }
    folder.begin(path, tomli_w.dumps(values))
    return path


def write_json(path: pathlib.Path, results: Any) -> None:
    """Numbers as JSON; what is not finite becomes a string, which JSON has no numbers for."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(v) for key, v in value.items()}
        if isinstance(value, list | tuple):
            return [plain(v) for v in value]
        return str(value) if isinstance(value, float) and not math.isfinite(value) else value

    folder.write_atomically(path, json.dumps(plain(results), allow_nan=False, indent=1) + "\n")


def html_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of text cells."""
    cells = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<table class="numbers"><tr>{cells}</tr>{body}</table>'
