"""Modules of a package as its attributes, imported on first use: `import fljax` is enough to reach all of them."""

import importlib
import pkgutil
import sys
from collections.abc import Callable
from typing import Any


def doors(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """(`__getattr__`, `__dir__`) for a package: its public modules, none of them imported before it is asked for.

    Type checkers do not run this: a package lists its modules for them under TYPE_CHECKING.
    """

    def public() -> list[str]:
        path = sys.modules[package].__path__
        return [found.name for found in pkgutil.iter_modules(path) if not found.name.startswith("_")]

    def attribute(name: str) -> Any:
        if name not in public():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return importlib.import_module(f"{package}.{name}")

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *public()})

    return attribute, names
