"""Markdown tables from committed JSON, as README and docs show them."""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bench import _harness

Rows = Sequence[Mapping[str, Any]]


def rows(name: str) -> Rows:
    """Rows of `results/<name>-cpu.json`, or of `<name>.json` where the name has a platform: each
    with its environment, unless it tells its own date.
    """
    file = name if name.endswith(("-tpu", "-cuda", "-gpu")) else f"{name}-cpu"
    found = json.loads((_harness.RESULTS / f"{file}.json").read_text())
    return [row if "date" in row else found["environment"] | row for row in found["rows"]]


def markdown(head: list[str], body: list[list[str]]) -> str:
    """A table."""
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def mean(rows: Rows, name: str) -> float:
    """Mean of a column."""
    return statistics.mean(row[name] for row in rows)


def up(value: float | None, digits: int = 3) -> str:
    """A least noise or a bound, rounded up: less would not be enough. None: there is none."""
    if value is None:
        return "impossible"
    step = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    return f"{math.ceil(value / step * (1 - 1e-12)) * step:#.{digits}g}"
