"""Every name of another package that the code uses is there, and is not about to go.

The names are gathered from the sources: what is imported, and attributes of imported modules. A
release that drops one, or warns of it, fails here with the file that uses it.
"""

import ast
import functools
import importlib
import importlib.util
import pathlib
import sys
import warnings

ROOT = pathlib.Path(__file__).parents[1]
FILES = sorted(p for folder in ("fljax", "kernels") for p in (ROOT / folder).rglob("*.py"))
OURS = {"fljax", "fljax_kernels"}


def attributes(node):
    """(name, ["a", "b"]) of `name.a.b`; None for anything else."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return (node.id, parts[::-1]) if isinstance(node, ast.Name) and parts else None


def names(source):
    """Dotted names of other packages that a file uses."""
    nodes, found, known = list(ast.walk(ast.parse(source))), set(), {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                found.add(alias.name)
                top = alias.name.partition(".")[0]
                known[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                found.add(f"{node.module}.{alias.name}")
                known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    # A name that the file binds otherwise, too, may stand for something else.
    bound = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    bound |= {n.arg for n in nodes if isinstance(n, ast.arg)}
    for node in nodes:
        chain = attributes(node)
        if chain and chain[0] in known and chain[0] not in bound:
            found.add(".".join([known[chain[0]], *chain[1]]))
    skip = OURS | set(sys.stdlib_module_names)
    return {name for name in found if name.partition(".")[0] not in skip}


@functools.cache
def used():
    """Name -> the first file that uses it. On demand: it reads every file."""
    found = {}
    for path in FILES:
        for name in names(path.read_text()):
            found.setdefault(name, path.relative_to(ROOT).as_posix())
    return found


def missing(name):
    """Why a dotted name cannot be reached; None where it can."""
    parts = name.split(".")
    with warnings.catch_warnings(action="ignore"):  # of what it imports itself: nothing of ours
        value = importlib.import_module(parts[0])
    for i, part in enumerate(parts[1:], 2):
        try:
            value = getattr(value, part)
        except AttributeError:
            try:
                value = importlib.import_module(".".join(parts[:i]))
            except ImportError as reason:
                return str(reason)
        except (DeprecationWarning, FutureWarning) as reason:
            return f"will go: {reason}"
    return None


def test_names_are_gathered_from_imports_and_attributes():
    source = "import numpy as np\nfrom jax import lax\nimport math\nx = np.linalg.norm(lax.scan)\n"
    assert names(source) == {
        "numpy",
        "jax.lax",
        "numpy.linalg",
        "numpy.linalg.norm",
        "jax.lax.scan",
    }
    packages = {name.partition(".")[0] for name in used()}
    assert len(used()) > 300 and {"jax", "numpy", "flax", "optax", "scipy"} <= packages


def test_every_name_of_another_package_that_we_use_is_there(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "jax")  # as fljax does before it imports keras
    installed = {}  # what is of an extra may be missing
    gone = {}
    for name, path in sorted(used().items()):
        package = name.partition(".")[0]
        if package not in installed:
            installed[package] = importlib.util.find_spec(package) is not None
        if installed[package] and (why := missing(name)):
            gone[f"{name} in {path}"] = why
    assert gone == {} and sum(installed.values()) >= 5


def test_a_name_that_goes_is_seen():
    assert "nonsense" in missing("jax.nonsense")
    assert "no_such" in missing("numpy.linalg.no_such")
    assert missing("jax.numpy.sum") is None
