"""`import fljax` is enough: every room and every public module is an attribute, and a type checker
sees it.
"""

import ast
import importlib
import pathlib
import pkgutil
import re
import subprocess
import sys

import pytest

from tests import _pages

ROOT = pathlib.Path(__file__).parents[1]
ROOMS = sorted(path.parent.name for path in (ROOT / "fljax").glob("*/__init__.py"))


def public(folder):
    """Modules of a package that a user may name."""
    found = [p.stem for p in folder.glob("*.py")] + [
        p.parent.name for p in folder.glob("*/__init__.py")
    ]
    return sorted(name for name in found if not name.startswith("_"))


def listed(init):
    """Names that a type checker finds in a package: whatever is assigned, defined or imported."""
    names = set()
    for node in ast.walk(ast.parse(init.read_text())):
        if isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def fresh(code):
    """What a new interpreter prints, with nothing of fljax imported yet."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow(reason="imports every module in a process of its own")
def test_every_room_and_its_modules_are_attributes_after_one_import():
    # The command line's modules need packages of an extra, and are no functions to call.
    reach = [f"fljax.{name}" for name in public(ROOT / "fljax")]
    reach += [
        f"fljax.{room}.{name}"
        for room in ROOMS
        if room != "cli"
        for name in public(ROOT / "fljax" / room)
    ]
    assert len(ROOMS) >= 10 and len(reach) > 100
    fresh(
        "import sys; sys.path[:0] = ['.', 'kernels']; import fljax\n"
        "assert 'jax' not in sys.modules and 'numpy' not in sys.modules\n"
        + "\n".join(reach)
        + f"\nassert set({ROOMS}) <= set(dir(fljax)) and 'aggregate' in dir(fljax.server)"
    )


def test_every_kernel_module_is_an_attribute_after_one_import():
    reach = [f"fljax_kernels.{name}" for name in public(ROOT / "kernels" / "fljax_kernels")]
    assert "fljax_kernels.spectral" in reach
    fresh("import sys; sys.path[:0] = ['kernels']; import fljax_kernels\n" + "\n".join(reach))


@pytest.mark.parametrize("folder", ["", *ROOMS])
def test_a_type_checker_finds_every_public_module(folder):
    package = ROOT / "fljax" / folder
    if folder == "cli":
        return
    own = set(public(package)) - {"__main__"}
    stub = package / "__init__.pyi"
    assert own <= listed(stub if stub.exists() else package / "__init__.py"), (
        "list it under TYPE_CHECKING"
    )


def test_python_finds_what_the_stub_of_the_front_door_names():
    import fljax

    names = listed(ROOT / "fljax" / "__init__.pyi")
    assert names <= set(dir(fljax))
    for name in names:
        assert getattr(fljax, name) is not None
    lifted = names - set(ROOMS) - {"__version__", "errors", "types"}
    assert (
        lifted == set(fljax.__all__)
        and {"Scheme", "FederatedAlgorithm", "RoundInfo", "PrivacyEvent"} <= lifted
    )


@pytest.mark.parametrize("page", [_pages.name(path) for path in _pages.PAGES])
def test_every_dotted_name_of_a_page_is_an_attribute_after_one_import(page):
    import fljax
    import fljax_kernels

    text = (ROOT / page).read_text()
    # Not part of a longer word, a file's name or an entry-point group that nothing here fills.
    found = set(re.findall(r"(?<![\w/.-])(fljax(?:_kernels)?(?:\.[a-z]\w*)+)(?![\w/-]|\.\w)", text))
    groups = {
        "fljax.datasets",
        "fljax.mechanisms",
        "fljax.schemes",
        "fljax.models",
        "fljax.attacks",
    }
    for name in found - groups:
        value = {"fljax": fljax, "fljax_kernels": fljax_kernels}[name.split(".")[0]]
        for part in name.split(".")[1:]:
            assert hasattr(value, part), f"{page} names {name}"
            value = getattr(value, part)
    assert page != "docs/guarantees.md" or len(found) > 10


@pytest.mark.parametrize("room", ["", *ROOMS])
def test_what_is_not_there_is_an_attribute_error(room):
    import fljax

    module = getattr(fljax, room) if room else fljax
    with pytest.raises(AttributeError, match="nonsense"):
        module.nonsense  # noqa: B018
    assert not hasattr(module, "_nonsense")


@pytest.mark.parametrize("package", ["fljax", "fljax_kernels"])
def test_a_module_is_what_its_dotted_name_gives(package):
    """No function has the name of a module or folder beside it, which it would hide."""
    paths = importlib.import_module(package).__path__
    names = [found.name for found in pkgutil.walk_packages(paths, f"{package}.")]
    names = [name for name in names if not name.endswith("__main__")]
    modules = {name: importlib.import_module(name) for name in names}
    assert len(modules) > 30
    for name, module in modules.items():
        parent, _, last = name.rpartition(".")
        assert getattr(importlib.import_module(parent), last) is module, name
