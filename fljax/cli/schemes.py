"""`fljax schemes`."""

from collections.abc import Sequence
from typing import Any

_HELP = """usage: fljax schemes

Lists the schemes that `fljax simulate --scheme NAME` knows, with their flags: each as `simulate` reads it, at the value
that it has where it is not given."""


def _flag(name: str, value: Any) -> str:
    """The setting as it is written on the command line of `fljax simulate`."""
    flag = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        return f"  {flag}" if value else f"  --no-{flag[2:]}"
    if value == "none" and name == "noise_multiplier":
        return f"  {flag} calibrated"
    return " ".join([f"  {flag}", *(str(part) for part in (value if isinstance(value, tuple) else (value,)))])


def main(args: Sequence[str]) -> int:
    """Prints a table of schemes and their settings."""
    if {"-h", "--help"} & set(args):
        print(_HELP)
        return 0
    if args:
        raise ValueError(f"Expected no arguments for `fljax schemes`, got {args[0]!r}.")
    from fljax import schemes
    from fljax.simulation import config as config_lib

    for listed in schemes.listed():
        if listed.thing is None:
            print(f"{listed.name}: cannot be loaded. {listed.why}")
            continue
        brought = "" if listed.origin == "fljax" else f" ({listed.origin})"
        print(f"{listed.name}: {listed.thing.summary}{brought}")
        start = config_lib.to_sections(config_lib.from_sections({"scheme": {"scheme": listed.name}}))
        for section in ("data", "model", "privacy", "run"):
            for key in listed.thing.start.get(section, {}):
                print(_flag(key, start[section][key]))
        for key, value in start["scheme"].items():
            if key != "scheme":
                print(_flag(key, value))
    return 0
