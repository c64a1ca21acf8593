"""`import fljax` is enough: every room and every public module is an attribute, and a type checker sees it."""

import ast
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
ROOMS = sorted(path.parent.name for path in (ROOT / "fljax").glob("*/__init__.py"))


def public(folder):
    """Modules of a package that a user may name."""
    found = [p.stem for p in folder.glob("*.py")] + [p.parent.name for p in folder.glob("*/__init__.py")]
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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_room_and_its_modules_are_attributes_after_one_import():
    # The command line's modules need packages of an extra, and are no functions to call.
    reach = [f"fljax.{name}" for name in public(ROOT / "fljax")]
    reach += [f"fljax.{room}.{name}" for room in ROOMS if room != "cli" for name in public(ROOT / "fljax" / room)]
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
    assert own <= listed(package / "__init__.py"), "list it under TYPE_CHECKING"


@pytest.mark.parametrize("room", ["", *ROOMS])
def test_what_is_not_there_is_an_attribute_error(room):
    import fljax

    module = getattr(fljax, room) if room else fljax
    with pytest.raises(AttributeError, match="nonsense"):
        module.nonsense  # noqa: B018
    assert not hasattr(module, "_nonsense")
