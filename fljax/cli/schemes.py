"""`fljax schemes`."""

import typing
from collections.abc import Sequence
from typing import Any, Literal

from fljax.cli import _output

_HELP = """usage: fljax schemes

Lists the schemes that `fljax simulate --scheme NAME` knows, with their flags: each as `simulate`
reads it, at the value that it has where it is not given; below them, what a flag that takes a word
may be. Then data sets, models, mechanisms and
attacks by name. Behind each that is not
fljax's own: where it comes from."""


def _flag(name: str, value: Any) -> str:
    """The setting as it is written on the command line of `fljax simulate`."""
    flag = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        return f"  {flag}" if value else f"  --no-{flag[2:]}"
    if value == "none" and name == "noise_multiplier":
        return f"  {flag} calibrated"
    return " ".join(
        [f"  {flag}", *(str(part) for part in (value if isinstance(value, tuple) else (value,)))]
    )


def _choices(config: type[Any]) -> dict[str, list[str]]:
    """Of each field that takes a word: the words."""
    hints = typing.get_type_hints(config)
    words = {
        name: typing.get_args(h) for name, h in hints.items() if typing.get_origin(h) is Literal
    }
    return {name: list(map(str, found)) for name, found in words.items()}


def _brought(origin: str) -> str:
    return f" ({origin})" if origin not in ("", "fljax") else ""


def main(args: Sequence[str]) -> int:
    """Prints a table of schemes and their settings."""
    if {"-h", "--help"} & set(args):
        print(_HELP)
        return 0
    if args:
        raise ValueError(f"Expected no arguments for `fljax schemes`, got {args[0]!r}.")
    from fljax import attacks, models, schemes
    from fljax.accounting import mechanisms
    from fljax.data import builtin
    from fljax.simulation import config as config_lib

    told: list[dict[str, Any]] = []
    for found in schemes.listed():
        if found.thing is None:
            print(f"{found.name}: cannot be loaded. {found.why}")
            told.append(_named(found))
            continue
        print(f"{found.name}: {found.thing.summary}{_brought(found.origin)}")
        start = config_lib.to_sections(config_lib.from_sections({"scheme": {"scheme": found.name}}))
        settings = {
            key: start[section][key]
            for section in ("data", "model", "privacy", "run")
            for key in found.thing.start.get(section, {})
        }
        settings |= {key: value for key, value in start["scheme"].items() if key != "scheme"}
        for key, value in settings.items():
            print(_flag(key, value))
        choices = _choices(found.thing.Config)
        for key, words in choices.items():
            print(f"    {key}: {' or '.join(words)}")
        told.append(
            {
                **_named(found),
                "summary": found.thing.summary,
                "settings": settings,
                "choices": choices,
            }
        )
    others = {
        "datasets": ("data sets (--dataset)", builtin.listed()),
        "models": ("models (--model)", models.listed()),
        "mechanisms": ("mechanisms (of events in JSON)", mechanisms.listed()),
        "attacks": ("attacks (--attack of audit and attack)", attacks.listed()),
    }
    result: dict[str, Any] = {"schemes": told}
    for name, (kind, rows) in others.items():
        print(f"\n{kind}")
        result[name] = []
        for found in rows:
            why = f": cannot be loaded. {found.why}" if found.thing is None else ""
            print(f"  {found.name}{_brought(found.origin)}{why}")
            result[name].append(_named(found))
    _output.give(result)
    return 0


def _named(found: Any) -> dict[str, Any]:
    why = {} if found.thing is not None else {"why": found.why}
    return {"name": found.name, "origin": found.origin or "fljax", **why}
