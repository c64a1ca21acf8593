"""Names of things that others bring: schemes, data sets, models, mechanisms, attacks, all found
alike.

A name is one of fljax's own, or was registered in this process, or is an entry point of an
installed package (group `fljax.KIND`, as its pyproject.toml names it), or is the dotted path of the
thing itself.
"""

import importlib
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from fljax import _near

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")


class Listed(NamedTuple):
    """A name in a list. origin: where it comes from, in words. thing: None where it cannot be
    loaded; why: then.
    """

    name: str
    origin: str
    thing: Any
    why: str = ""


class Registry(Generic[T]):
    """The things of one kind.

    Args:
      kind: names the entry-point group `fljax.KIND`.
      argument: what one of them is called in errors.
      own: name -> what fljax has itself: the thing, or its dotted path, to be imported when asked
        for.
      check: (name, thing) -> the thing, or ValueError that says what is wrong with it.
      member: what is taken of a module that a path names; "" where a module is the thing.
      also: further forms of a name, for the error about an unknown one.
    """

    def __init__(
        self,
        kind: str,
        argument: str,
        own: Mapping[str, Any],
        check: Callable[[str, Any], T],
        *,
        member: str = "",
        also: tuple[str, ...] = (),
    ) -> None:
        self.group = f"fljax.{kind}"
        self._argument, self._own, self._check = argument, own, check
        self._member, self._also = member, also
        self._registered: dict[str, tuple[T, str]] = {}

    def register(self, name: str, thing: Any, where: str = "") -> None:
        """Remembers `thing` as `name`; once more replaces it, as importing a module anew does.
        where: its module.

        Raises:
          ValueError: no name for a command line and a folder, or one that fljax or another module
            uses; or a bad thing.
        """
        if not (
            isinstance(name, str) and name and name.replace("_", "").replace(".", "").isalnum()
        ):
            raise ValueError(
                f"Expected name to be of letters, digits, '_' and '.', got name={name!r}."
            )
        if name in self._own:
            raise ValueError(f"Expected a name that fljax does not use itself, got name={name!r}.")
        found, origin = self._check(name, thing), f"registered by {where or thing.__module__}"
        if self._registered.get(name, (found, origin))[1] != origin:
            raise ValueError(
                f"Expected a name that no other module uses, got name={name!r}, "
                f"{self._registered[name][1]} already."
            )
        self._registered[name] = found, origin

    def forget(self, name: str) -> None:
        """Undoes `register`, for tests."""
        self._registered.pop(name, None)

    def names(self) -> tuple[str, ...]:
        """Fljax's own names, then those from outside, sorted; nothing is imported."""
        outside = {entry.name for entry in _entries(self.group)} | set(self._registered)
        return (*self._own, *sorted(outside - set(self._own)))

    def find(self, name: str) -> T | None:
        """The thing of that name, imported if need be; None if nobody knows it.

        Raises:
          ValueError: it is named, and cannot be imported or is not what it must be; the message
            says whose it is.
        """
        if name in self._own:
            own = self._own[name]
            return self._check(name, at_path(own, self._member) if isinstance(own, str) else own)
        if name in self._registered:
            return self._registered[name][0]
        entries = _entries(self.group, name)
        if len({entry.value for entry in entries}) > 1:
            packages = ", ".join(_package(entry) for entry in entries)
            raise ValueError(
                f"Expected one package with {self._argument} {name!r}, got several: {packages}."
            )
        if entries:
            try:
                return self._check(name, _loaded(entries[0], self._member))
            except ValueError as reason:
                whose = f"{entries[0].value} of {_package(entries[0])}"
                raise ValueError(f"Expected {self._argument} {whose} to load: {reason}") from reason
        path = name.replace(":", ".")
        found = at_path(path, self._member) if "." in path else None
        return None if found is None else self._check(name, found)

    def get(self, name: str) -> T:
        """As `find`. Raises ValueError for an unknown name, with the most similar one."""
        found = self.find(name)
        if found is None:
            raise self._unknown(self._argument, name)
        return found

    def check_name(self, **given: str) -> None:
        """Raises ValueError, with the argument's name and the most similar name, unless `get` knows
        what is meant.
        """
        for argument, name in given.items():
            if name not in self._own and self.find(name) is None:
                raise self._unknown(argument, name)

    def _unknown(self, argument: str, name: Any) -> ValueError:
        choices = [*self.names(), *self._also]
        hint = _near.did_you_mean(name, choices)
        if not hint and ":" in str(name):
            module, _, member = str(name).partition(":")
            hint = f" No module {module!r} is installed, or lies in the working folder."
            if module.endswith(".py"):
                dotted = module.removesuffix(".py").removeprefix("./").replace("/", ".")
                hint = f" Did you mean '{dotted}:{member}', as Python imports it?"
        return ValueError(
            f"Expected {argument} to be one of {choices}, got {argument}={name!r}.{hint}"
        )

    def origin(self, name: str) -> str:
        """Where a name comes from, in words; "fljax" for one of its own."""
        if name in self._own:
            return "fljax"
        if name in self._registered:
            return self._registered[name][1]
        entries = _entries(self.group, name)
        return f"{entries[0].value} of {_package(entries[0])}" if entries else f"the path {name}"

    def listed(self) -> Iterator[Listed]:
        """All names with where they come from; one that cannot be loaded stops no other."""
        for name in self.names():
            try:
                yield Listed(name, self.origin(name), self.get(name))
            except ValueError as reason:
                if name in self._own:
                    raise
                yield Listed(name, self.origin(name), None, str(reason))


def a_function(kind: str) -> Callable[[str, Any], Callable[..., Any]]:
    """A registry's check for things that are called."""

    def check(name: str, thing: Any) -> Callable[..., Any]:
        if not callable(thing):
            raise ValueError(
                f"Expected {name} of fljax.{kind} to be a function, got {type(thing).__name__}."
            )
        return thing  # type: ignore[no-any-return]

    return check


def load_all(kind: str) -> list[str]:
    """Imports what installed packages name under `fljax.KIND`; a sentence for each that fails."""
    failed = []
    for entry in _entries(f"fljax.{kind}"):
        try:
            _loaded(entry)
        except ValueError as reason:
            failed.append(f"{entry.name} of {_package(entry)} cannot be loaded: {reason}")
    return failed


def at_path(path: str, member: str = "") -> Any | None:
    """What a dotted path names: `member` of a module, the module itself, or an attribute of one;
    None: no such module.

    Raises:
      ValueError: the module is there and cannot be imported, or has no such attribute.
    """
    if not all(part.isidentifier() for part in path.split(".")):
        return None
    first, _, last = path.rpartition(".")
    for module, attribute in ((path, member), (first, last)):
        if not module:
            continue
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError as reason:
            # Its own name, or a parent's: there is no such module. Any other: it wants something
            # that is missing.
            if reason.name is None or not (
                module == reason.name or module.startswith(f"{reason.name}.")
            ):
                raise ValueError(f"Expected {module} to be importable: {reason}.") from reason
            continue
        except Exception as reason:  # whatever somebody else's module raises
            raise ValueError(
                f"Expected {module} to be importable: {type(reason).__name__}: {reason}."
            ) from reason
        if not attribute:
            return found
        try:
            return operator.attrgetter(attribute)(found)
        except AttributeError as reason:
            hint = _near.did_you_mean(attribute, dir(found))
            raise ValueError(
                f"Expected {module} to have {attribute!r}, got {path!r}.{hint}"
            ) from reason
    return None


def _loaded(entry: "EntryPoint", member: str = "") -> Any:
    found = at_path(entry.value.replace(":", "."), member)
    if found is None:
        raise ValueError(
            f"Expected a module or a name in one, got {entry.value!r}, and there is none."
        )
    return found


def _entries(group: str, name: str | None = None) -> "list[EntryPoint]":
    import importlib.metadata  # slow to import

    found = importlib.metadata.entry_points(group=group)
    return sorted(
        {entry for entry in found if name in (None, entry.name)}, key=lambda entry: entry.value
    )


def _package(entry: "EntryPoint") -> str:
    return "an unnamed package" if entry.dist is None else entry.dist.name
