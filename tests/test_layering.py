"""Imports point along DESIGN's road and never back."""

import ast
import functools
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
STATIONS = {"local", "upload", "server", "accounting"}
# What each place of fljax may import from fljax. Files at the top (types, errors, _validate, _tree)
# count as "base".
ALLOWED = {
    "base": set(),
    "data": {"base"},
    "models": {"base"},
    **{station: {"base", "data", "models"} for station in STATIONS},
    "schemes": {"base", "data", "models"} | STATIONS,
    "attacks": {"base", "data", "models", "schemes"} | STATIONS,
    "simulation": {"base", "data", "models", "schemes"} | STATIONS,
    "testing": {"base", "data", "models", "schemes", "attacks", "simulation"} | STATIONS,
    "papers": {"base", "data", "models", "schemes", "attacks", "simulation"} | STATIONS,
    "interop": {"base", "data", "models", "schemes", "simulation"} | STATIONS,
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


def test_fljax_imports_follow_the_road():
    wrong = []
    for path in files("fljax"):
        parts = path.relative_to(ROOT / "fljax").with_suffix("").parts
        if parts in {("__init__",), ("__main__",)}:
            continue  # the front door names the dozen functions of the README
        here = place(parts)
        if here not in ALLOWED:
            here = "cli" if here.startswith("cli") else here
        allowed = ALLOWED[here] | {here}
        for name in imports(path):
            top, *rest = name.split(".")
            if top == "fljax" and rest and rest[0] not in {"__version__"}:
                if place(rest) not in allowed:
                    wrong.append(f"{path}: {here} must not import {name}")
            elif top in {"tests", "bench", "examples", "chex", "pytest"}:
                wrong.append(f"{path} imports {name}")
    assert wrong == []


def test_kernels_import_only_jax_and_numpy():
    allowed = {"jax", "numpy", "fljax_kernels", "", *sys.stdlib_module_names}
    found = {path: set(imports(path)) for path in files("kernels")}
    foreign = {
        path: names - {n for n in names if n.split(".")[0] in allowed}
        for path, names in found.items()
    }
    assert found and not any(foreign.values()), foreign


# Families inside a room, and which other families of the room each may use besides the room's own
# files.
FAMILIES = {
    "data": {"sources": set()},
    "papers": {
        name: set() for name in ("bidirectional", "channel", "lightdp", "subject_dp", "wfna")
    },
    "schemes": {
        "central": set(),
        "channels": {"central"},
        "disguised": set(),
        "silos": set(),
        "uploads": {"central"},
        "weighted": set(),
    },
    "simulation": {
        "devices": set(),
        "observers": set(),
        "record": {"devices"},
        "report": {"record"},
    },
}
PACKAGES = {"fljax": ROOT / "fljax", "fljax_kernels": ROOT / "kernels" / "fljax_kernels"}


def modules():
    """Dotted name -> file, of both packages; a package goes by its `__init__.py`."""
    found = {}
    for name, folder in PACKAGES.items():
        for path in folder.rglob("*.py"):
            parts = (name, *path.relative_to(folder).with_suffix("").parts)
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def executed(tree):
    """Nodes of code that may run: all but what stands under `if TYPE_CHECKING`."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        named = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        waiting += node.orelse if named else ast.iter_child_nodes(node)


def used(path, known):
    """The modules among `known` that a file imports, at once or in a function."""
    for node in executed(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} imports by dots"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield from (
                    [full] if full in known else [node.module] if node.module in known else []
                )


@functools.cache
def graph():
    """Module -> the modules that it imports, of both packages. Read once: whoever changes it takes
    a copy.
    """
    known = modules()
    return {name: set(used(path, known)) - {name} for name, path in known.items()}


def circle(graph):
    """Modules that import each other in a ring, in order; empty where there are none."""
    state, road = {}, []

    def visit(name):
        state[name] = "open"
        road.append(name)
        for other in sorted(graph[name]):
            if state.get(other) == "open":
                return road[road.index(other) :]
            found = visit(other) if other not in state else []
            if found:
                return found
        state[name] = "done"
        road.pop()
        return []

    for name in sorted(graph):
        found = visit(name) if name not in state else []
        if found:
            return found
    return []


def test_no_files_import_each_other_in_a_circle():
    found = graph()
    assert len(found) > 250 and sum(map(len, found.values())) > 1000
    assert circle(found) == []


def test_a_circle_is_found():
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["b", "c"]
    found = {name: set(others) for name, others in graph().items()}
    # Sources that asked for the data set by its name were a circle with the list of names.
    found["fljax.data.sources.standins"].add("fljax.data.builtin")
    assert circle(found) == ["fljax.data.builtin", "fljax.data.sources.standins"]


@pytest.mark.parametrize(
    ("room", "family"), [(r, f) for r, families in FAMILIES.items() for f in families]
)
def test_families_of_a_room_use_each_other_in_one_direction(room, family):
    for name, others in graph().items():
        if name.split(".")[:3] != ["fljax", room, family]:
            continue
        for other in others:
            pieces = other.split(".")
            if pieces[:2] == ["fljax", room] and len(pieces) > 2 and pieces[2] in FAMILIES[room]:
                assert pieces[2] in FAMILIES[room][family] | {family}, (
                    f"{name} must not import {other}"
                )


def test_every_family_of_a_room_has_its_floor():
    for room, families in FAMILIES.items():
        assert set(families) == {
            path.parent.name for path in (ROOT / "fljax" / room).glob("*/__init__.py")
        }
