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
    if value is None:
        return f"  {flag} {'calibrated' if name == 'noise_multiplier' else 'none'}"
    return " ".join([f"  {flag}", *(str(part) for part in (value if isinstance(value, tuple) else (value,)))])


def main(args: Sequence[str]) -> int:
    """Prints a table of schemes and their settings."""
    if {"-h", "--help"} & set(args):
        print(_HELP)
        return 0
    if args:
        raise ValueError(f"Expected no arguments for `fljax schemes`, got {args[0]!r}.")
    import dataclasses

    from fljax import schemes
    from fljax.simulation import config as config_lib

    for name in schemes.names():
        try:
            module = schemes.get(name)
        except ValueError as reason:
            if name in schemes.NAMES:
                raise
            print(f"{name}: cannot be loaded. {reason}")
            continue
        brought = "" if name in schemes.NAMES else f" ({schemes.origin(name)})"
        print(f"{name}: {module.SUMMARY}{brought}")
        start = config_lib.from_sections({"scheme": {"scheme": name}})
        for section in ("data", "model", "privacy", "run"):
            for key in getattr(module, "SIMULATION", {}).get(section, {}):
                print(_flag(key, getattr(getattr(start, section), key)))
        for field in dataclasses.fields(module.Config):
            print(_flag(field.name, getattr(start.scheme_config, field.name)))
    return 0
