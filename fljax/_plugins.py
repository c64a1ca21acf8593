"""Names of things that others bring: registered in this process, or named by an installed package's entry points."""

import importlib
import importlib.metadata
from typing import Any

# Kind of thing -> name -> (the thing, where it came from).
_REGISTERED: dict[str, dict[str, tuple[Any, str]]] = {}


def group(kind: str) -> str:
    """The entry-point group of a kind, as a package's pyproject.toml names it: `fljax.schemes`."""
    return f"fljax.{kind}"


def register(kind: str, name: str, thing: Any, builtin: tuple[str, ...]) -> None:
    """Remembers `thing` as `name`; once more under the same name replaces it, as importing a module anew does.

    Raises:
      ValueError: no name for a command line and a folder, or one that fljax uses itself.
    """
    if not (isinstance(name, str) and name and name.replace("_", "").replace(".", "").isalnum()):
        raise ValueError(f"Expected name to be of letters, digits, '_' and '.', got name={name!r}.")
    if name in builtin:
        raise ValueError(f"Expected a name that fljax does not use itself, got name={name!r}.")
    where = getattr(thing, "__module__", None) or getattr(thing, "__name__", type(thing).__name__)
    _REGISTERED.setdefault(kind, {})[name] = thing, f"registered by {where}"


def names(kind: str) -> tuple[str, ...]:
    """All names from outside, sorted; nothing is imported."""
    entries = {entry.name for entry in importlib.metadata.entry_points(group=group(kind))}
    return tuple(sorted(entries | set(_REGISTERED.get(kind, {}))))


def find(kind: str, name: str) -> Any | None:
    """The thing of that name from outside, imported if need be; None if there is none.

    Raises:
      ValueError: an installed package names it, and importing it fails; the message says which package and why.
    """
    if name in _REGISTERED.get(kind, {}):
        return _REGISTERED[kind][name][0]
    for entry in importlib.metadata.entry_points(group=group(kind), name=name):
        try:
            return entry.load()
        except Exception as reason:  # whatever somebody else's module raises
            raise ValueError(f"Expected {entry.value} of {_package(entry)} to be importable: {reason}.") from reason
    return None


def at_path(path: str) -> Any | None:
    """What a dotted path names: a module, or an attribute of one; None where there is no such module.

    Raises:
      ValueError: the module is there and cannot be imported, or has no such attribute.
    """
    if not all(part.isidentifier() for part in path.split(".")):
        return None
    first, _, last = path.rpartition(".")
    for module, attribute in ((path, None), (first, last)):
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError as reason:
            # Its own name, or that of a parent: there is no such module. Any other: it wants something that is missing.
            if reason.name is None or not (module == reason.name or module.startswith(f"{reason.name}.")):
                raise ValueError(f"Expected {module} to be importable: {reason}.") from reason
            continue
        except Exception as reason:  # whatever somebody else's module raises
            raise ValueError(f"Expected {module} to be importable: {type(reason).__name__}: {reason}.") from reason
        if attribute is None:
            return found
        if not hasattr(found, attribute):
            raise ValueError(f"Expected {module} to have {attribute!r}, got {path!r}.")
        return getattr(found, attribute)
    return None


def function(kind: str, name: str) -> Any | None:
    """What `find` or `at_path` gives for a name, where that must be called; None if there is nothing.

    Raises:
      ValueError: as they do, or what is there cannot be called.
    """
    found = find(kind, name)
    if found is None and "." in name:
        found = at_path(name)
    if found is not None and not callable(found):
        raise ValueError(f"Expected {name} of {group(kind)} to be a function, got {type(found).__name__}.")
    return found


def origin(kind: str, name: str) -> str:
    """Where a name comes from, in words; "fljax" for one of its own."""
    if name in _REGISTERED.get(kind, {}):
        return _REGISTERED[kind][name][1]
    for entry in importlib.metadata.entry_points(group=group(kind), name=name):
        return f"{entry.value} of {_package(entry)}"
    return "fljax"


def _package(entry: importlib.metadata.EntryPoint) -> str:
    return "an unnamed package" if entry.dist is None else entry.dist.name
