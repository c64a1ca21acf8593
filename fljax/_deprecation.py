"""Old names that still work for a while, and say what has taken their place."""

import importlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any


def moved(module: str, names: Mapping[str, str], *, since: str) -> Callable[[str], Any]:
    """A module's `__getattr__` for names that it had until version `since`.

    names: old name -> the dotted name that replaces it. Using the old one gives the same object
    and a DeprecationWarning, which Python shows where the caller is `__main__`, and pytest always.
    docs/reference/stability.md says for how long.
    """

    def attribute(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        where, _, new = names[name].rpartition(".")
        message = f"{module}.{name} is deprecated since fljax {since}: use {names[name]}."
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return getattr(importlib.import_module(where), new)

    return attribute
