"""`fljax schemes`."""

from collections.abc import Sequence


def main(args: Sequence[str]) -> int:
    """Prints a table of schemes and their settings."""
    if {"-h", "--help"} & set(args):
        print("usage: fljax schemes\n\nLists the schemes that `fljax simulate --scheme NAME` knows, with their flags.")
        return 0
    if args:
        raise ValueError(f"Expected no arguments for `fljax schemes`, got {args[0]!r}.")
    import dataclasses

    from fljax import schemes

    for name in schemes.NAMES:
        module = schemes.get(name)
        print(f"{name}: {module.SUMMARY}")
        for field in dataclasses.fields(module.Config):
            default = "calibrated" if field.name == "noise_multiplier" and field.default is None else field.default
            print(f"  --{field.name.replace('_', '-')} {default}")
    return 0
