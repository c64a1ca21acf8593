"""Modules of a package as its attributes, imported on first use: `import fljax` is enough to reach all of them."""

import importlib
import pkgutil
import sys
from collections.abc import Callable, Mapping
from typing import Any


def doors(package: str, short: Mapping[str, str] | None = None) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """(`__getattr__`, `__dir__`) for a package: its public modules, each imported when asked for.

    `short`: further names, each with the module that it stands for, relative to the package.
    Type checkers do not run this: a package lists its modules for them under TYPE_CHECKING.
    """
    deeper = dict(short or {})

    def public() -> list[str]:
        path = sys.modules[package].__path__
        found = [module.name for module in pkgutil.iter_modules(path)]
        return [*deeper, *(name for name in found if not name.startswith("_"))]

    def attribute(name: str) -> Any:
        if name not in public():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return importlib.import_module(f"{package}.{deeper.get(name, name)}")

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *public()})

    return attribute, names
