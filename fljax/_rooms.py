"""What a package offers as its attributes, each imported on first use.

So `import fljax` is enough to reach every room and module, and costs next to nothing.
"""

import importlib
import pkgutil
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

_LIFT = re.compile(r"^from ([\w.]+) import (\w+) as \2$", re.MULTILINE)


def lifted(package: str) -> dict[str, str]:
    """Name -> module, for the names that the package's stub `__init__.pyi` takes from modules."""
    stub = pkgutil.get_data(package, "__init__.pyi") or b""
    return {name: module for module, name in _LIFT.findall(stub.decode()) if module != package}


def doors(
    package: str, short: Mapping[str, str] | None = None, *, lifted: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """(`__getattr__`, `__dir__`) for a package: its public modules, each imported when asked for.

    `short`: further names, each with the module that it stands for, relative to the package.
    `lifted`: names that modules define, each with its module.
    Type checkers do not run this: a package lists its modules for them under TYPE_CHECKING, or in
    its stub.
    """
    deeper, inside = dict(short or {}), dict(lifted or {})

    def public() -> list[str]:
        path = sys.modules[package].__path__
        found = [module.name for module in pkgutil.iter_modules(path)]
        return [*deeper, *(name for name in found if not name.startswith("_"))]

    def attribute(name: str) -> Any:
        if name in inside:
            return getattr(importlib.import_module(inside[name]), name)
        if name not in public():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return importlib.import_module(f"{package}.{deeper.get(name, name)}")

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *public(), *inside})

    return attribute, names
