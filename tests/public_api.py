"""The public API as text: one line for each name that docs/reference/stability.md calls stable.

`python -m tests.public_api` writes it to tests/public_api.txt, with which a test compares it.
Types are left out, since Python's releases print them differently: a type checker sees those.
"""

import dataclasses
import enum
import importlib
import inspect
import pathlib
import types

PATH = pathlib.Path(__file__).with_suffix(".txt")
MODULES = (
    "fljax",
    "fljax_kernels",
    "fljax_kernels.chacha20",
    "fljax_kernels.correlated",
    "fljax_kernels.discrete",
    "fljax_kernels.spectral",
    "fljax.accounting",
    "fljax.accounting.correlated",
    "fljax.accounting.events",
    "fljax.accounting.monte_carlo",
    "fljax.data",
    "fljax.errors",
    "fljax.models",
    "fljax.schemes",
    "fljax.testing",
)


def of_module(name):
    """Public name -> value: `__all__` where there is one, else what is defined or lifted there."""
    module = importlib.import_module(name)
    names = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (ours(value) or (name.isupper() and name != "TYPE_CHECKING"))
    ]
    return {name: getattr(module, name) for name in names}


def ours(value):
    return str(getattr(value, "__module__", "")).startswith("fljax")


def default(value):
    if isinstance(value, enum.Enum):
        return str(value)
    return value.__qualname__ if isinstance(value, types.FunctionType) else repr(value)


def signature(value):
    """`(a, *, b=1)`, with the types left out."""
    bare = inspect.Parameter.empty
    try:
        # A dataclass with a __new__ of its own shows only that.
        found = inspect.signature(value.__init__ if dataclasses.is_dataclass(value) else value)
    except (TypeError, ValueError):
        return ""
    parts, star = [], False
    # Keywords have no order: sorting moves them behind the rest, which comes first anyway.
    for p in sorted(
        found.parameters.values(), key=lambda p: (p.kind, p.name * (p.kind is p.KEYWORD_ONLY))
    ):
        if p.name == "self":
            continue
        if p.kind is p.KEYWORD_ONLY and not star:
            parts, star = [*parts, "*"], True
        star |= p.kind is p.VAR_POSITIONAL
        name = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "") + p.name
        parts.append(name if p.default is bare else f"{name}={default(p.default)}")
    return f"({', '.join(parts)})"


def members(name, value):
    """Lines for one name: a class has a line for each public member too."""
    if isinstance(value, type) and issubclass(value, enum.Enum):
        return [f"{name}.{member.name}" for member in value]
    if not isinstance(value, type):
        return [name + (signature(value) if callable(value) else "")]
    lines = [name + signature(value)]
    fields = (
        {field.name for field in dataclasses.fields(value)}
        if dataclasses.is_dataclass(value)
        else set()
    )
    inherited = {
        k: v for base in reversed(value.__mro__) if ours(base) for k, v in vars(base).items()
    }
    for attribute, member in sorted(inherited.items()):
        member = getattr(member, "__func__", member)
        if not attribute.startswith("_") and attribute not in fields | set(
            getattr(value, "_fields", ())
        ):
            lines.append(
                f"{name}.{attribute}" + (signature(member) if inspect.isfunction(member) else "")
            )
    return lines


def schemes():
    """What a user of each scheme types: `fljax.schemes.NAME.Config` and `.make`."""
    found = importlib.import_module("fljax.schemes")
    pairs = [(name, part) for name in found.NAMES for part in ("Config", "make")]
    return {f"fljax.schemes.{name}.{part}": getattr(found.get(name), part) for name, part in pairs}


def public():
    """Dotted name -> value."""
    found = {
        f"{module}.{name}": value for module in MODULES for name, value in of_module(module).items()
    }
    return dict(sorted((found | schemes()).items()))


def lines():
    """The snapshot."""
    return [line for name, value in public().items() for line in members(name, value)]


if __name__ == "__main__":
    PATH.write_text("\n".join(lines()) + "\n")
