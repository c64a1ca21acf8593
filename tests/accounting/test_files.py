"""Files of the room import along a road without circles."""

import ast
import pathlib

ROOM = pathlib.Path(__file__).parents[2] / "fljax" / "accounting"


def _modules():
    found = {}
    for path in sorted(ROOM.rglob("*.py")):
        parts = path.relative_to(ROOM.parents[1]).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def _imports(path, known):
    """Modules of the room that the file imports when it is imported itself."""
    tree = ast.parse(path.read_text())
    skipped = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            skipped |= {id(inner) for part in node.body for inner in ast.walk(part)}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from {name if name in known else node.module for name in names} & known.keys()


def _circle(graph):
    done, path = set(), []

    def walk(name):
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return None
        path.append(name)
        for following in sorted(graph[name]):
            circle = walk(following)
            if circle:
                return circle
        path.pop()
        done.add(name)
        return None

    return next(filter(None, map(walk, sorted(graph))), None)


def test_no_circle_among_files_of_the_accountants():
    known = _modules()
    # A package's own front door may name its files, which do not name the door.
    graph = {name: set(_imports(path, known)) - {name} for name, path in known.items()}
    assert len(graph) > 50
    assert _circle(graph) is None


def test_a_circle_would_be_found():
    assert _circle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) == ["a", "b", "c", "a"]
