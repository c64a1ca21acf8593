"""What `--help` prints: flags, kinds, defaults and sentences, read off dataclasses of options.

The pages of commands and schemes in the docs are made of the same rows.
"""

import ast
import contextlib
import dataclasses
import enum
import inspect
import pathlib
import re
import shutil
import textwrap
import types
import typing
from typing import Annotated, Any, NamedTuple

import tyro

_MOST_COLUMNS, _LEAST_COLUMNS = 100, 40
_INDENT = 6
KINDS = ("INTEGER", "NUMBER", "TEXT", "PATH")


class Flag(NamedTuple):
    """name: with its dashes, as one writes it to change what holds. kind: what its value is; "" of
    a switch. default: as it is typed; "" where there is none, and of a switch. meaning: sentences.
    """

    name: str
    kind: str
    default: str
    meaning: str


def sentences(cls: type) -> dict[str, str]:
    """Field -> what is said of it: the string below it, or the help that its type carries."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        with contextlib.suppress(OSError, TypeError):  # made at run time: no source
            if dataclasses.is_dataclass(base):
                (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
                assert isinstance(tree, ast.ClassDef)
                for field, below in zip(tree.body, tree.body[1:], strict=False):
                    match field, below:
                        case ast.AnnAssign(ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                            found[name] = text
    for name, hint in typing.get_type_hints(cls, include_extras=True).items():
        for extra in typing.get_args(hint)[1:] if typing.get_origin(hint) is Annotated else ():
            if isinstance(extra, type(tyro.conf.arg())) and extra.help:
                found[name] = str(extra.help)
    return {name: " ".join(text.split()) for name, text in found.items()}


def _typed(value: Any) -> str:
    """A default as it is typed."""
    if value is dataclasses.MISSING or value == "":
        return ""
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return "none" if value is None else str(value)


def _kind(hint: Any) -> str:
    """A type as a reader of a command line calls it."""
    if typing.get_origin(hint) is Annotated:
        return _kind(typing.get_args(hint)[0])
    if typing.get_origin(hint) is typing.Literal:
        return "|".join(map(str, typing.get_args(hint)))
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        arms = [_kind(arm) for arm in typing.get_args(hint) if arm is not type(None)]
        return "|".join(dict.fromkeys(arms))
    if typing.get_origin(hint) in (tuple, list):
        return f"{_kind(typing.get_args(hint)[0])} ..."
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return "|".join(str(member.value) for member in hint)
    if isinstance(hint, type) and issubclass(hint, pathlib.PurePath):
        return "PATH"
    return {bool: "", int: "INTEGER", float: "NUMBER"}.get(hint, "TEXT")


def _usage(cls: type, prog: str) -> str:
    """The first line: what must be given stands before the flags."""
    given, hints = [], typing.get_type_hints(cls, include_extras=True)
    for field in dataclasses.fields(cls):
        factory = field.default_factory
        if field.default is dataclasses.MISSING and factory is dataclasses.MISSING:
            kind = _kind(hints[field.name])
            several = " ..." if kind.endswith("...") else ""
            named = field.name.upper().removesuffix("S" if several else "")
            given.append((named if kind.partition(" ")[0] in KINDS else kind) + several)
    return " ".join(["usage:", prog, *given, "[FLAGS]"])


def sections(cls: type, default: Any = None, title: str = "") -> dict[str, list[Flag]]:
    """Title -> flags of a dataclass of options, under "", and of the dataclasses in it."""
    said, hints = sentences(cls), typing.get_type_hints(cls, include_extras=True)
    found: dict[str, list[Flag]] = {title: []}
    for field in dataclasses.fields(cls):
        start: Any = field.default
        factory: Any = field.default_factory
        if start is dataclasses.MISSING and factory is not dataclasses.MISSING:
            start = factory()
        if default is not None:
            start = getattr(default, field.name)
        inner = type(start) if dataclasses.is_dataclass(start) else hints[field.name]
        if dataclasses.is_dataclass(inner):
            held = start if dataclasses.is_dataclass(start) else None
            found |= sections(typing.cast(type, inner), held, field.name)
            continue
        kind = _kind(hints[field.name])
        flag = "--" + field.name.replace("_", "-")
        if not kind and start is True:
            flag = f"--no-{flag[2:]}"
        shown, meaning = _typed(start) if kind else "", said.get(field.name, "")
        if shown == "none":  # what happens then is what happens when nothing is said
            meaning = re.sub(r"(^|\. )[Nn]one: ", r"\1Left out: ", meaning)
        found[title].append(Flag(flag, kind, shown, meaning))
    return found


def flags(cls: type, default: Any = None) -> list[Flag]:
    """All flags of a dataclass of options, those of the dataclasses in it included."""
    return [flag for rows in sections(cls, default).values() for flag in rows]


def text(cls: type, *, prog: str, description: str, default: Any = None) -> str:
    """The page of a command, as wide as the terminal or `COLUMNS`, and no wider than is read
    well.
    """
    width = max(_LEAST_COLUMNS, min(shutil.get_terminal_size().columns, _MOST_COLUMNS))

    def fill(text: str, indent: int) -> str:
        margin = " " * indent
        return textwrap.fill(
            " ".join(text.split()),
            width,
            initial_indent=margin,
            subsequent_indent=margin,
            break_on_hyphens=False,
        )

    parts = [fill(_usage(cls, prog), 0)]
    parts += [fill(paragraph, 0) for paragraph in description.split("\n\n")]
    for title, rows in sections(cls, default).items():
        lines = [f"{title.replace('_', ' ') or 'flags'}:"]
        if not title:
            rows = [Flag("-h, --help", "", "", "Show this text."), *rows]
        for flag in rows:
            ends = f" (default: {flag.default})" if flag.default not in ("", "none") else ""
            lines.append(fill(f"{flag.name} {flag.kind}", 2))
            lines.append(fill(flag.meaning + ends, _INDENT))
        if len(lines) > 1:
            parts.append("\n".join(lines))
    return "\n\n".join(parts)
