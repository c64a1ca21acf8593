"""What the code imports is what pyproject.toml declares, for the core and for each extra."""

import ast
import functools
import pathlib
import re
import sys
import tomllib

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
# A package's name at the registry is not always the one that it is imported by.
IMPORTED_AS = {
    "orbax-checkpoint": "orbax",
    "pillow": "PIL",
    "dm-haiku": "haiku",
    "scikit-learn": "sklearn",
    "scikit-image": "skimage",
}
OURS = {"fljax", "fljax_kernels", "tests", "bench", "digits"}  # the last is an example
OPTIONAL = ["sim", "secure", "trackers", "interop", "export", "parquet", "hdf5", "keras"]
OPTIONAL += ["flower", "tokenizers"]
# Rooms that work without an extra, and what else a file of ours may import at its top.
NEED_SIM = {"cli", "simulation"}
TOP_LEVEL = {"fljax/upload/key_agreement.py": "crypto"}


def packages(*extras):
    """Import names that an installation with these extras brings; "" is the core."""
    found = set()
    for extra in extras:
        for line in PROJECT["dependencies"] if extra == "" else EXTRAS[extra]:
            name, within = re.match(r"([\w.-]+)(?:\[([\w,]+)\])?", line).groups()
            if name == "fljax":
                found |= packages(*within.split(","))
            else:
                found.add(IMPORTED_AS.get(name, name.replace("-", "_")))
    return found


def statements(body, late=False):
    """(statement, whether it runs later or never) of a body and all bodies in it."""
    for node in body:
        yield node, late
        of_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        inside = late or of_types or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from statements(getattr(node, part, ()), inside)


@functools.cache
def imports(path):
    """({package imported while the module is}, {package imported by a function, when called, or for
    types alone})
    """
    found = (set(), set())
    for node, late in statements(ast.parse(path.read_text()).body):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module]
        tops = {name.split(".")[0] for name in names} - OURS
        found[late].update(tops - set(sys.stdlib_module_names))
    return found


def files(folder):
    return sorted((ROOT / folder).rglob("*.py"))


def test_what_a_module_imports_is_declared():
    for path in files("fljax"):
        at_once, when_called = imports(path)
        place = path.relative_to(ROOT)
        extras = ["sim"] if place.parts[1] in NEED_SIM else [TOP_LEVEL.get(place.as_posix(), "")]
        assert at_once <= packages("", *extras), path
        # Late imports say which extra to install where it is not there.
        assert when_called <= packages("", *OPTIONAL), path


@pytest.mark.parametrize(
    ("folder", "extras"),
    [
        ("tests", ["", "test"]),
        ("examples", ["", "sim", "flower"]),
        ("bench", ["", "sim", "baselines", "peers"]),
    ],
)
def test_what_the_rest_imports_is_declared(folder, extras):
    # Commands beside the tests say that they need what a release does.
    late = ["release"] if folder == "tests" else []
    for path in files(folder):
        at_once, when_called = imports(path)
        assert at_once <= packages(*extras) | {"jaxlib"}, path  # which jax brings
        assert when_called <= packages(*extras, *late) | {"jaxlib"}, path


def test_all_that_is_declared_is_imported():
    used = set().union(*(part for path in files("fljax") for part in imports(path)))
    assert packages("", *OPTIONAL) <= used


def test_every_dependency_has_a_lowest_version():
    lines = PROJECT["dependencies"] + [line for extra in EXTRAS.values() for line in extra]
    assert all(">=" in line or line.startswith("fljax[") for line in lines)


def test_the_kernels_declare_what_they_import():
    declared = tomllib.loads((ROOT / "kernels" / "pyproject.toml").read_text())["project"][
        "dependencies"
    ]
    used = set().union(*(part for path in files("kernels") for part in imports(path)))
    assert used == {re.match(r"[\w-]+", line).group() for line in declared}
