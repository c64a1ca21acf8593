"""Markdown tables from committed JSON, as README and docs show them."""

import json
import math
from typing import Any

from bench import _harness


def rows(name: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows and environment of `results/<name>-cpu.json`."""
    found = json.loads((_harness.RESULTS / f"{name}-cpu.json").read_text())
    return found["rows"], found["environment"]


def markdown(head: list[str], body: list[list[str]]) -> str:
    """A table."""
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def up(value: float | None, digits: int = 3) -> str:
    """A least noise or a bound, rounded up: less would not be enough. None: there is none."""
    if value is None:
        return "impossible"
    step = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    return f"{math.ceil(value / step * (1 - 1e-12)) * step:#.{digits}g}"
