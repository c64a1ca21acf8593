"""Parts of pages that are made of the code: `<!-- made: NAME -->` in a page becomes them.

commands: every verb and flag, from what the command line's parser is given. schemes: every scheme
and its settings. errata: what papers print and what holds, with counter-examples. api MODULE:
autodoc of what `tests/public_api.txt` lists of a module.
"""

import contextlib
import dataclasses
import enum
import importlib
import io
import re
import textwrap
import types
import typing
from typing import Any

from fljax import cli, schemes
from fljax.cli import _args, _flags
from fljax.cli.errata import _number


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


def _kind(flag: _flags.Flag) -> str:
    """What a flag takes, in words."""
    kind, several, _ = flag.kind.partition(" ...")
    parts = [part.lower() if part in _flags.KINDS else f"`{part}`" for part in kind.split("|")]
    return (" or ".join(parts) if kind else "switch") + (", several" if several else "")


def listed(rows: list[_flags.Flag]) -> str:
    """A definition list, which a narrow page can show: flag, kind and default, then the meaning."""
    items = []
    for flag in rows:
        said = f", `{flag.default}` by default" if flag.default else ""
        items.append(f"`{flag.name}` ({_kind(flag)}{said})\n: {_paragraphs(flag.meaning) or '..'}")
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
            parts += [_paragraphs(description), listed(_flags.flags(cls, default))]
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
        parts.append(listed(_flags.flags(type(start), start)))
    return "\n\n".join(parts)


def errata() -> str:
    """A section for each paper, with the figures that its counter-examples give."""
    from fljax.papers import errata as papers

    parts = []
    for paper, found in papers.find().items():
        lines = [f"## {paper}", "", "| | where | printed | what holds |", "|---|---|---|---|"]
        for one in found:
            figures = [_figure(shown) for shown in (one.shows() if one.shows else [])]
            holds = ". ".join([one.holds, *figures])
            lines.append(f"| {one.name} | {one.where} | {_cell(one.printed)} | {_cell(holds)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _figure(shown: Any) -> str:
    numbers = [_number(value) for value in (shown.printed, shown.holds)]
    return f"{shown.what[0].upper()}{shown.what[1:]}: {numbers[0]}, is {numbers[1]}"


def _cell(text: str) -> str:
    return re.sub(r"([*|])", r"\\\1", text)


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


MAKERS = {"commands": commands, "schemes": settings, "errata": errata, "api": api}


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
