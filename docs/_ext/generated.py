"""Parts of pages that are made of the code: `<!-- made: NAME -->` in a page becomes them.

commands: every verb and flag, from what the command line's parser is given. schemes: every scheme
and its settings. api MODULE: autodoc of what `tests/public_api.txt` lists of a module.
"""

import ast
import contextlib
import dataclasses
import enum
import importlib
import inspect
import io
import re
import textwrap
import types
import typing
from typing import Any

from fljax import cli, schemes
from fljax.cli import _args


class _Asked(Exception):
    """What a verb hands to its parser: class, description, defaults."""


@contextlib.contextmanager
def _caught() -> typing.Iterator[None]:
    """Within it, `_args.parse` raises what it was given."""
    parse = _args.parse

    def catch(cls: type, args: Any, *, prog: str, description: str, default: Any = None) -> Any:
        raise _Asked(cls, description, default)

    _args.parse = catch
    try:
        yield
    finally:
        _args.parse = parse


def sentences(cls: type) -> dict[str, str]:
    """Field -> what is said of it: the string below it, or the help that its type carries."""
    found = {}
    for base in reversed(cls.__mro__):
        with contextlib.suppress(OSError, TypeError):  # made at run time: no source
            if dataclasses.is_dataclass(base):
                (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
                for field, below in zip(tree.body, tree.body[1:], strict=False):
                    told = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
                    if told and isinstance(field, ast.AnnAssign):
                        found[field.target.id] = below.value.value
    for name, hint in typing.get_type_hints(cls, include_extras=True).items():
        for extra in getattr(hint, "__metadata__", ()):
            if getattr(extra, "help", None):
                found[name] = extra.help
    return {name: " ".join(text.split()) for name, text in found.items()}


def _shown(value: Any) -> str:
    """A default as it is typed."""
    if value is dataclasses.MISSING or value == "":
        return ""
    if isinstance(value, enum.Enum):
        value = value.value
    if isinstance(value, tuple):
        return f"`{' '.join(map(str, value))}`" if value else ""
    return f"`{'none' if value is None else value}`"


def _kind(hint: Any) -> str:
    """A type as a reader of a command line calls it."""
    if typing.get_origin(hint) is typing.Annotated:
        return _kind(typing.get_args(hint)[0])
    if typing.get_origin(hint) is typing.Literal:
        return " or ".join(f"`{choice}`" for choice in typing.get_args(hint))
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join(_kind(arm) for arm in typing.get_args(hint) if arm is not type(None))
    if typing.get_origin(hint) in (tuple, list):
        return f"{_kind(typing.get_args(hint)[0])}, several"
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return " or ".join(f"`{member.value}`" for member in hint)
    named = {bool: "switch", int: "integer", float: "number", str: "text"}
    return named.get(hint, "path" if getattr(hint, "__name__", "").endswith("Path") else "text")


def flags(cls: type, default: Any = None) -> list[list[str]]:
    """Rows of a dataclass of options and of those in it: flag, kind, default, meaning."""
    said, hints = sentences(cls), typing.get_type_hints(cls, include_extras=True)
    rows = []
    for field in dataclasses.fields(cls):
        start = field.default
        if start is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
            start = field.default_factory()
        if default is not None:
            start = getattr(default, field.name)
        inner = type(start) if dataclasses.is_dataclass(start) else hints[field.name]
        if dataclasses.is_dataclass(inner):
            rows += flags(inner, start if dataclasses.is_dataclass(start) else None)
            continue
        flag = "--" + field.name.replace("_", "-")
        flag = f"--no-{flag[2:]}" if start is True else flag
        kind = _kind(hints[field.name])
        rows.append([f"`{flag}`", kind, _shown(start), said.get(field.name, "")])
    return rows


def listed(rows: list[list[str]]) -> str:
    """A definition list, which a narrow page can show: flag, kind and default, then the meaning."""
    items = []
    for flag, kind, start, meaning in rows:
        said = f"{kind}, {start} by default" if start else kind
        items.append(f"{flag} ({said})\n: {_paragraphs(meaning) or '..'}")
    return "\n\n".join(items)


def _paragraphs(text: str) -> str:
    return re.sub(r"(?<![`\w-])(--[a-z][\w-]*)", r"`\1`", textwrap.dedent(text).strip())


def commands() -> str:
    """A section for each verb of `fljax`."""
    parts = []
    for verb, summary in cli.COMMANDS.items():
        parts.append(f"## fljax {verb}\n\n{summary[0].upper()}{summary[1:]}.")
        printed = io.StringIO()
        try:
            with _caught(), contextlib.redirect_stdout(printed):
                importlib.import_module(f"fljax.cli.{verb}").main(["--help"])
        except _Asked as asked:
            cls, description, default = asked.args
            parts += [_paragraphs(description), listed(flags(cls, default))]
        else:
            parts.append(f"```text\n{printed.getvalue().rstrip()}\n```")
    return "\n\n".join(parts)


def settings() -> str:
    """A section for each scheme: what it is, and its settings."""
    from fljax.simulation import config

    parts = []
    for name in schemes.NAMES:
        scheme = schemes.get(name)
        start = config.parts({"scheme": {"scheme": name}})["scheme_config"]
        path = f"`fljax.schemes.{name}`"
        parts.append(f"## {name}\n\n{path}: {scheme.summary}. It promises: {scheme.promise}.")
        parts.append(listed(flags(type(start), start)))
    return "\n\n".join(parts)


def _options(module: str, name: str, value: Any) -> list[str]:
    """What autodoc is told of a name: a thing of two modules is indexed in the first."""
    from tests import public_api

    found = [m for m in public_api.MODULES if value is public_api.of_module(m).get(name)]
    options = [] if found[0] == module else [":no-index:"]
    if isinstance(value, type) and not issubclass(value, enum.Enum):
        members = [line.partition("(")[0] for line in public_api.members("", value)[1:]]
        options += [f":members: {', '.join(m[1:] for m in members)}"] if members else []
    elif isinstance(value, type):
        options.append(":members:")
    elif not callable(value):
        options.append(":no-value:")
    return options


def api(module: str) -> str:
    """Autodoc of a module's public names, in reStructuredText."""
    from tests import public_api

    lines = []
    for name, value in public_api.of_module(module).items():
        if isinstance(value, types.ModuleType):
            continue
        kind = "class" if isinstance(value, type) else "function" if callable(value) else "data"
        options = [f"   {option}" for option in _options(module, name, value)]
        takes = public_api.signature(value) if dataclasses.is_dataclass(value) else ""
        lines += [f".. auto{kind}:: {module}.{name}{takes}", *options, ""]
    return "\n".join(["```{eval-rst}", *lines, "```"])


# A line that begins one of the sections that napoleon reads.
_SECTION = re.compile(r"(Args|Returns|Raises|Yields|Attributes|Example|Note):$")


def _escaped(line: str) -> str:
    """Stars, bars and trailing underscores outside backticks are no markup."""
    parts = re.split(r"(`[^`]*`)", line)
    parts[::2] = [re.sub(r"([*|]|_(?!\w))", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)


def _docstring(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Our prose as reStructuredText: of lines that hang below a first one, a list is made."""
    if what == "data":  # a constant has no docstring: this would be its type's
        several = isinstance(thing, tuple | list | set | frozenset | dict)
        names = [getattr(one, "__name__", str(one)) for one in thing] if several else [str(thing)]
        long = any(" " in one for one in names)
        lines[:] = [f"* {_escaped(x)}" for x in names] if long else [f"`{x}`" for x in names]
        return
    cut = next((at for at, line in enumerate(lines) if _SECTION.match(line)), len(lines))
    prose = []
    for paragraph in "\n".join(lines[:cut]).split("\n\n"):
        items: list[str] = []
        for line in paragraph.splitlines():
            if line.startswith(" ") and items:
                items[-1] += " " + line.strip()
            else:
                items.append(_escaped(line))
        listed = len(items) > 1 and all(re.match(r"[\w, `]+: ", item) for item in items)
        prose += [*(f"* {item}" if listed else item for item in items), ""]
    lines[:] = prose + [_escaped(line) for line in lines[cut:]]


MAKERS = {"commands": commands, "schemes": settings, "api": api}


def _read(app: Any, page: str, source: list[str]) -> None:
    def made(found: re.Match[str]) -> str:
        maker, *args = found[1].split()
        return MAKERS[maker](*args)

    source[0] = re.sub(r"<!-- made: ([\w. ]+?) -->", made, source[0])


def setup(app: Any) -> dict[str, bool]:
    """What Sphinx calls."""
    app.connect("source-read", _read)
    app.connect("autodoc-process-docstring", _docstring, priority=100)  # before napoleon
    return {"parallel_read_safe": True, "parallel_write_safe": True}
