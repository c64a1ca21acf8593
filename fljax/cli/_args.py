"""Flags from dataclasses by tyro, with errors of one line."""

import contextlib
import dataclasses
import io
import os
import re
import types
import typing
from collections.abc import Sequence
from typing import Any, TypeVar

import tyro

from fljax import _near
from fljax.cli import _flags

T = TypeVar("T")

# What one command calls so, another calls otherwise; each understands both.
_PAIRS = (
    ("--epsilon", "--target-epsilon"),
    ("--delta", "--target-delta"),
    ("--rounds", "--num-rounds"),
    ("--steps", "--rounds"),
    ("--num-clients", "--num-parties"),
)
_SHORT = (
    ("--label", "--label-column"),
    ("--client", "--client-column"),
    ("--subject", "--subject-column"),
    ("--features", "--feature-columns"),
)
_ALIASES = [*_PAIRS, *((other, one) for one, other in _PAIRS), *_SHORT]

_BORDER = re.compile(r"[╭╮╰╯│─]+|^ *[+|]|[+|] *$")


class Done(Exception):
    """Help was asked for and printed; there is nothing left to do."""


@contextlib.contextmanager
def _columns(width: int) -> Any:
    """A terminal of this width, for whoever asks the environment."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(width)
    try:
        yield
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before


# What a value is called in an error, by how Python refuses to make one.
_KINDS = {
    "invalid literal for int()": "an integer",
    "could not convert string to float": "a number",
}


def flags(cls: type) -> dict[str, Any]:
    """The type behind each flag `--name` of a dataclass and of the dataclasses in it."""
    found: dict[str, Any] = {}
    for name, hint in typing.get_type_hints(cls).items():
        if dataclasses.is_dataclass(hint):
            found |= flags(typing.cast(type, hint))
        else:
            found["--" + name.replace("_", "-")] = hint
    return found


def value(args: Sequence[str], name: str) -> str | None:
    """The value of the last `--name VALUE` or `--name=VALUE`."""
    found = None
    for at, arg in enumerate(args):
        if arg == name and at + 1 < len(args):
            found = args[at + 1]
        elif arg.startswith(f"{name}="):
            found = arg.partition("=")[2]
    return found


def _arms(hint: Any) -> tuple[Any, ...]:
    """The types of a union, or the only one."""
    return (
        typing.get_args(hint)
        if typing.get_origin(hint) in (typing.Union, types.UnionType)
        else (hint,)
    )


def _plain(known: dict[str, Any], args: Sequence[str]) -> list[str]:
    """The arguments as tyro spells them, from those that people write: `--flag False`,
    `--flag=none`, `--tuple ()`.

    Raises:
      ValueError: an unknown flag, with the one that is most like it, or a switch with a value that
        is no bool.
    """
    switches = {flag: (flag, "--no-" + flag[2:]) for flag, hint in known.items() if hint is bool}
    switches |= {off: (off, on) for on, off in list(switches.values())}
    found, rest, flag = [], list(args), ""
    while rest:
        arg = rest.pop(0)
        name, given, value = arg.partition("=") if arg.startswith("--") else ("", "", arg)
        if name:
            flag = name.replace("_", "-")
            alias = next((other for one, other in _ALIASES if one == flag and other in known), "")
            if alias and flag not in known:
                flag = name = alias
                arg = alias if not given else arg
            if flag not in known and flag not in switches:
                names = [*known, *(switches if flag.startswith("--no-") else ())]
                raise ValueError(f"Unrecognized options: {name}.{_near.did_you_mean(flag, names)}")
            if flag in switches:
                if not given and rest and not rest[0].startswith("-"):
                    given, value = "=", rest.pop(0)
                if given and value.lower() not in ("true", "false"):
                    raise ValueError(
                        f"Expected {flag} alone, or with True or False, got {flag}={value!r}."
                    )
                found.append(switches[flag][value.lower() == "false"])
                continue
            if not given:
                found.append(arg)
                continue
        arms = _arms(known.get(flag))
        nothing = ("none", "calibrated") if flag == "--noise-multiplier" else ("none",)
        if type(None) in arms and value.lower() in nothing:
            value = "None"
        if value != "()" or not any(typing.get_origin(arm) is tuple for arm in arms):
            found.append(name + given + value)
        elif given:
            found.append(name)
    return found


def _message(box: str) -> str:
    """The first paragraph in the box that tyro draws around an error, in our wording where it
    refuses a value.
    """
    title, *lines = box.splitlines()
    parts = [[title], []]
    for line in lines:
        if _BORDER.sub("", line).strip(" -"):
            parts[-1].append(_BORDER.sub(" ", line).strip())
        elif parts[
            -1
        ]:  # a rule; under the title there is one only where a terminal has nothing but ASCII
            parts.append([])
    # What a config's own check says starts behind the name of the section that tyro was filling.
    text = re.sub(r"^Error parsing [\w.-]+: (?=Expected )", "", " ".join(parts[1]))
    for refusal, kind in _KINDS.items():
        if found := re.match(rf"Error parsing (--[\w-]+): {re.escape(refusal)}.*: (.*)", text):
            return f"Expected {found[1]} to be {kind}, got {found[2]}."
    if found := re.match(
        r"invalid choice '(.*)' for argument '(--[\w-]+)'. Expected one of \((.*)\)", text
    ):
        choices = [
            "none" if choice == "None" else choice for choice in re.findall(r"'([^']*)'", found[3])
        ]
        hint = _near.did_you_mean(found[1], choices)
        return f"Expected {found[2]} to be one of {choices}, got {found[1]!r}.{hint}"
    return text


def parse(
    cls: type[T], args: Sequence[str], *, prog: str, description: str, default: T | None = None
) -> T:
    """Flags, without prefixes, for the fields of `cls` and of the dataclasses in it.

    Raises:
      ValueError: an unknown flag, a value of the wrong type or out of range; one line that names
        it, and what was meant if that can be guessed.
      Done: help was asked for, and has been printed.
    """
    if {"-h", "--help"} & set(args):
        print(_flags.text(cls, prog=prog, description=description, default=default))
        raise Done
    options: dict[str, Any] = {} if default is None else {"default": default}
    options |= {"prog": prog, "config": (tyro.conf.OmitArgPrefixes,)}
    try:
        args = _plain(flags(cls), args)
    except ValueError as reason:
        raise ValueError(f"{reason} (see {prog} --help)") from None
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors), _columns(2000):
            return tyro.cli(cls, args=args, **options)
    except SystemExit as reason:
        raise ValueError(f"{_message(errors.getvalue())} (see {prog} --help)") from reason
