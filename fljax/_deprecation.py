"""Old names that still work for a while, and say what has taken their place."""

import importlib
import operator
import warnings
from collections.abc import Callable, Collection, Mapping
from typing import Any

# Fields of configs that have another name since version 0.1: old name -> new one.
FIELDS = {"num_silos": "num_parties"}


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


def renamed(
    fields: Mapping[str, Any], known: Collection[str], *, stacklevel: int = 3
) -> dict[str, Any]:
    """`fields` under the names that they have now, with a DeprecationWarning for each old one.

    known: the names that a config has; an old name among them is no old name there. Where both are
    given the old one counts: whoever gives it has the new one from a copied config.
    """
    found = dict(fields)
    for old, new in FIELDS.items():
        if old in found and old not in known and new in known:
            message = f"{old} is deprecated since fljax 0.1: use {new}."
            warnings.warn(message, DeprecationWarning, stacklevel=stacklevel)
            found[new] = found.pop(old)
    return found


def alias(old: str, new: str) -> property:
    """An attribute under its old name."""

    def read(itself: Any) -> Any:
        message = f"{old} is deprecated since fljax 0.1: use {new}."
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return operator.attrgetter(new)(itself)

    return property(read, doc=f"Old name of `{new}`.")


class OldFields(type):
    """Metaclass of configs that take fields under their old names, too."""

    def __call__(cls, *values: Any, **fields: Any) -> Any:
        """An object of the class."""
        known = cls.__dataclass_fields__  # type: ignore[attr-defined]
        return super().__call__(*values, **renamed(fields, known))
