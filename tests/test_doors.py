"""No public definition stands about unused: a room uses it, an example or bench does, or a document
shows it.
"""

import ast
import pathlib
import re

import pytest

from tests import _pages, test_layering

ROOT = pathlib.Path(__file__).parents[1]
# Dotted name -> why it stays although nothing shows it.
ALLOWED: dict[str, str] = {}
PAGES = [ROOT / "CONTRIBUTING.md", *_pages.PAGES]


def definitions(tree):
    """Name -> node, for what a module defines at its top."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name, node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                yield from ((n.id, node) for n in ast.walk(target) if isinstance(n, ast.Name))


def imported(tree):
    """Name in a module -> (module, name in it), or (module, None). `tree`: or all of its nodes."""
    found = {}
    for node in tree if isinstance(tree, list) else ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            found |= {a.asname or a.name: (node.module, a.name) for a in node.names}
        elif isinstance(node, ast.Import):
            for alias in node.names:
                whole = alias.name if alias.asname else alias.name.split(".")[0]
                found[alias.asname or whole] = (whole, None)
    return found


class Code:
    """All modules of both packages, and what a dotted name in one of them means."""

    def __init__(self, trees, front):
        self.trees = trees
        self.defined = {name: dict(definitions(tree)) for name, tree in trees.items()}
        self.nodes = {name: list(ast.walk(tree)) for name, tree in trees.items()}
        self.names = {name: imported(nodes) for name, nodes in self.nodes.items()}
        self.names["fljax"] = front

    def member(self, module, name, seen=()):
        """(module, definition) or (module, None) that `module.name` is; None: nothing of ours."""
        if name in self.defined.get(module, {}):
            return module, name
        found = self.names.get(module, {}).get(name)
        if found is not None and (module, name) not in seen:
            where, what = found
            if what is None:
                return where, None
            if f"{where}.{what}" in self.trees:
                return f"{where}.{what}", None
            return self.member(where, what, (*seen, (module, name)))
        return (f"{module}.{name}", None) if f"{module}.{name}" in self.trees else None

    def of_chain(self, chain, names, here):
        """What `a.b.c` means in a module with these imports."""
        if chain[0] in self.defined.get(here, {}):
            return here, chain[0]
        if chain[0] not in names:
            return None
        where, what = names[chain[0]]
        found = (where, None) if what is None else self.member(where, what)
        for part in chain[1:]:
            if found is None or found[1] is not None:
                break
            found = self.member(found[0], part)
        return found

    def references(self, node, names, here=None):
        """(module, definition) that a node refers to: an attribute, a name, or a dotted path."""
        if isinstance(node, ast.Attribute | ast.Name):
            chain = []
            while isinstance(node, ast.Attribute):
                chain.insert(0, node.attr)
                node = node.value
            if isinstance(node, ast.Name):
                yield self.of_chain([node.id, *chain], names, here)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if re.fullmatch(r"fljax[\w.:]*", node.value):
                module, _, name = node.value.replace(":", ".").rpartition(".")
                yield self.member(module, name)
            elif len(node.value) < 200 and re.fullmatch(r'[\w.\[\]| ,"]+', node.value):
                try:
                    inner = ast.parse(node.value.strip(), mode="eval")
                except SyntaxError:
                    return
                if not isinstance(inner.body, ast.Constant):  # an annotation
                    for part in ast.walk(inner):
                        yield from self.references(part, names, here)


def code():
    trees = {name: ast.parse(path.read_text()) for name, path in test_layering.modules().items()}
    return Code(trees, imported(ast.parse((ROOT / "fljax/__init__.pyi").read_text())))


def used(code, folders=("examples", "bench")):
    """Everything that another definition refers to, or an example or a bench."""
    found = set()
    for module, nodes in code.nodes.items():
        owner = {id(n): name for name, d in code.defined[module].items() for n in ast.walk(d)}
        for node in nodes:
            for target in code.references(node, code.names[module], module):
                if target is not None and target != (module, owner.get(id(node))):
                    found.add(target)
    for path in [p for folder in folders for p in (ROOT / folder).rglob("*.py")]:
        nodes = list(ast.walk(ast.parse(path.read_text())))
        names = imported(nodes)
        found |= {t for node in nodes for t in code.references(node, names)}
        found |= {code.member(*target) for target in names.values() if target[1] is not None}
    return found


def shown(pages=PAGES):
    """Words of code in the documents."""
    text = "\n".join(page.read_text() for page in pages)
    marked = " ".join(re.findall(r"```.*?```|`[^`\n]+`", text, flags=re.DOTALL))
    return set(re.findall(r"[A-Za-z_]\w*", marked))


def without_a_door(code, found, words):
    """Public definitions that are neither in `found` nor among `words`."""
    lifted = {
        code.member(room, name) for room in test_layering.PACKAGES for name in code.names[room]
    }
    for module, names in code.defined.items():
        private = any(part.startswith("_") for part in module.split("."))
        if private or module.endswith((".cases", ".reference")):  # of tests and benches
            continue
        for name in names:
            hidden = name.startswith("_") or name in ("SCHEME", "main")
            if not hidden and name not in words and not {(module, name)} & (found | lifted):
                yield f"{module}.{name}"


@pytest.mark.slow(reason="reads all of the code and the docs")
def test_every_public_definition_is_used_or_shown():
    everything = code()
    assert sum(map(len, everything.defined.values())) > 2000
    found = list(without_a_door(everything, used(everything), shown()))
    assert sorted(found) == sorted(ALLOWED)


def test_a_definition_that_nothing_refers_to_is_found():
    text = {
        "fljax.a": "def used(): pass\ndef alone(): return alone()\ndef shown(): pass\nCONSTANT = 1",
        "fljax.b": "from fljax import a\ndef caller(): return a.used()\nprint(caller())",
        "fljax": "",
    }
    small = Code({name: ast.parse(source) for name, source in text.items()}, {})
    small.names["fljax_kernels"] = {}
    left = list(without_a_door(small, used(small, ()), {"shown"}))
    assert left == ["fljax.a.alone", "fljax.a.CONSTANT"]
