"""Imports point along DESIGN's road and never back."""

import ast
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
STATIONS = {"local", "upload", "server", "accounting"}
# What each place of fljax may import from fljax. Files at the top (types, errors, _validate, _tree) count as "base".
ALLOWED = {
    "base": set(),
    "data": {"base"},
    "models": {"base"},
    **{station: {"base", "data", "models"} for station in STATIONS},
    "schemes": {"base", "data", "models"} | STATIONS,
    "attacks": {"base", "data", "models", "schemes"} | STATIONS,
    "simulation": {"base", "data", "models", "schemes"} | STATIONS,
    "papers": {"base", "data", "models", "schemes", "attacks", "simulation"} | STATIONS,
    "cli": {"base", "data", "models", "schemes", "attacks", "simulation", "papers"} | STATIONS,
}
BASE_FILES = {
    "types",
    "errors",
    "_deprecation",
    "_keys",
    "_near",
    "_plugins",
    "_rooms",
    "_sensitivity",
    "_validate",
    "_tree",
}


def imports(path: pathlib.Path):
    """Every dotted name that the file imports, relative imports resolved, lazy ones included."""
    package = path.relative_to(ROOT).with_suffix("").parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*package[: len(package) - node.level], *([base] if base else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def place(parts) -> str:
    """The room of `fljax.<parts>`."""
    if not parts:
        return "base"
    return "base" if parts[0] in BASE_FILES else parts[0]


def files(folder):
    return sorted(p for p in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("path", files("fljax"), ids=lambda p: str(p.relative_to(ROOT)))
def test_fljax_imports_follow_the_road(path):
    parts = path.relative_to(ROOT / "fljax").with_suffix("").parts
    if parts in {("__init__",), ("__main__",)}:
        return  # the front door names the dozen functions of the README
    here = place(parts)
    if here not in ALLOWED:
        here = "cli" if here.startswith("cli") else here
    allowed = ALLOWED[here] | {here}
    for name in imports(path):
        pieces = name.split(".")
        if pieces[0] == "fljax" and len(pieces) > 1 and pieces[1] not in {"__version__"}:
            assert place(pieces[1:]) in allowed, f"{path}: {here} must not import {name}"
        assert pieces[0] not in {"tests", "bench", "examples", "chex", "pytest"}, f"{path} imports {name}"


@pytest.mark.parametrize("path", files("kernels"), ids=lambda p: str(p.relative_to(ROOT)))
def test_kernels_import_only_jax_and_numpy(path):
    for name in imports(path):
        top = name.split(".")[0]
        assert top in {"jax", "numpy", "fljax_kernels", ""} or top in sys.stdlib_module_names, f"{path} imports {name}"
