"""For `account` and `calibrate`: events of a scheme's rounds, and records in a JSON file."""

import dataclasses
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import tyro

from fljax import _near, _validate, schemes
from fljax.accounting import events, words
from fljax.accounting.ledger import Ledger
from fljax.cli import _args, _passes
from fljax.errors import UnsupportedEventError

_SCHEME = (
    f"Rounds of this scheme, with its own flags: one of {', '.join(schemes.names())}, or "
    "PACKAGE.SCHEME."
)
_EVENT = (
    "The event in this JSON file, as fljax.accounting.events.to_json writes it; its mechanism may "
    "be of an installed package. Or a run's folder, or its privacy.json: all that its rounds did, "
    "at the run's delta unless another is named."
)
_ROUNDS = "How often the scheme's round, or the event, happens."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """What happens, where it is no sampled Gaussian."""

    scheme: Annotated[str | None, tyro.conf.arg(help=_SCHEME)] = None
    event: Annotated[pathlib.Path | None, tyro.conf.arg(help=_EVENT)] = None
    rounds: Annotated[int, tyro.conf.arg(help=_ROUNDS)] = 1


def named(args: Sequence[str]) -> bool:
    """Whether the arguments name a scheme or an event."""
    return any(_args.value(args, flag) is not None for flag in ("--scheme", "--event"))


def flags(args: Sequence[str], cls: type) -> type:
    """`cls`, a `Source`, with the flags of the scheme's Config, as `scheme_config`, where the
    arguments name one.

    A number that `fljax simulate` starts from is the default here, too.

    Raises:
      ValueError: nobody knows the scheme.
    """
    name = _args.value(args, "--scheme")
    if name is None:
        return cls
    from fljax.simulation import config as config_lib  # slow to import

    start = config_lib.parts({"scheme": {"scheme": name}})["scheme_config"]
    field = ("scheme_config", type(start), dataclasses.field(default=start))
    bases = (cls, _passes.flags(type(start)))
    return dataclasses.make_dataclass("Options", [field], bases=bases, frozen=True, kw_only=True)


def of_options(options: Any, changed: str = "") -> Callable[[float], events.PrivacyEvent]:
    """Number -> the event of all rounds, in which that number stands for `changed`; "" for nothing.

    Raises:
      ValueError: both a scheme and an event are named, or the file holds no event, or `changed`
        names nothing in it.
    """
    _validate.positive_int(rounds=options.rounds)
    if options.event is None:
        return _of_scheme(options, changed)
    if options.scheme is not None:
        raise ValueError("Expected --scheme or --event, got both.")
    tree = _read(options.event)
    names = sorted(set(_numbers(tree.get("mechanism"))))
    if changed and changed not in names:
        hint = _near.did_you_mean(changed, names)
        raise ValueError(
            f"Expected parameter to be one of {names}, got parameter={changed!r}.{hint}"
        )
    events.from_json(tree)  # for its checks

    def of_file(value: float) -> events.PrivacyEvent:
        there = {**tree, "mechanism": _with(tree["mechanism"], changed, value)} if changed else tree
        return events.from_json(there).repeat(options.rounds)

    return of_file


def _of_scheme(options: Any, changed: str) -> Callable[[float], events.PrivacyEvent]:
    name, scheme = options.scheme, schemes.get(options.scheme)
    fields = [field.name for field in dataclasses.fields(options.scheme_config)]
    if changed and changed not in fields:
        hint = _near.did_you_mean(changed, fields)
        raise ValueError(
            f"Expected parameter to be one of {fields}, got parameter={changed!r}.{hint}"
        )
    if scheme.promise != "epsilon":
        counts = "counts nats" if scheme.promise == "nats" else "guarantees nothing"
        raise UnsupportedEventError(
            f"Expected a scheme with an epsilon, got scheme={name!r}, which {counts}."
        )
    config, rounds = _passes.filled_in(name, scheme, options)
    if changed != "noise_multiplier" and config.noise_multiplier is None:
        raise ValueError(
            f"Expected --noise-multiplier with --scheme {name} (fljax calibrate --scheme {name} "
            "--epsilon EPSILON finds one), got none."
        )

    def of_scheme(value: float) -> events.PrivacyEvent:
        changes = {changed: value} if changed else {}
        return scheme.run_event(dataclasses.replace(config, **changes), rounds)

    return of_scheme


def with_delta(options: Any, args: Sequence[str]) -> Any:
    """The options, with the delta of the run that they name where the arguments name none."""
    told = any(_args.value(args, flag) is not None for flag in ("--delta", "--target-delta"))
    if told or options.event is None or options.scheme is not None:
        return options
    found = _json(options.event)
    delta = found.get("delta")
    if "ledger" not in found or delta is None:
        return options
    if isinstance(delta, bool) or not isinstance(delta, int | float):
        raise ValueError(f"Expected {options.event} to hold delta as a number, got {delta!r}.")
    return dataclasses.replace(options, delta=float(delta))


def _json(path: pathlib.Path) -> Mapping[str, Any]:
    """What a file, or the privacy.json of a folder, holds."""
    path = path.expanduser()
    path = path / "privacy.json" if path.is_dir() else path
    if not path.is_file():
        raise ValueError(f"Expected event to be a file, got {str(path)!r}.")
    try:
        tree = json.loads(path.read_text())
    except ValueError as reason:
        raise ValueError(f"Expected {path} to be JSON: {reason}.") from reason
    if not isinstance(tree, dict):
        raise ValueError(f"Expected {path} to hold an event, got {type(tree).__name__}.")
    return tree


def _read(path: pathlib.Path) -> Mapping[str, Any]:
    tree = _json(path)
    if "ledger" in tree:  # of a run, which says what all its rounds have done
        return events.to_json(Ledger.from_json(tree["ledger"]).event)
    return tree


def _numbers(tree: Any) -> list[str]:
    """Names of all numbers in a mechanism's JSON."""
    if isinstance(tree, list):
        return [name for part in tree for name in _numbers(part)]
    if not isinstance(tree, dict):
        return []
    here = [name for name, value in tree.items() if isinstance(value, int | float)]
    return [*here, *(name for value in tree.values() for name in _numbers(value))]


def _with(tree: Any, name: str, value: float) -> Any:
    """A mechanism's JSON with `value` for every number of that name."""
    if isinstance(tree, list):
        return [_with(part, name, value) for part in tree]
    if not isinstance(tree, dict):
        return tree
    return {
        key: value if key == name and isinstance(old, int | float) else _with(old, name, value)
        for key, old in tree.items()
    }


def assumptions(event: events.PrivacyEvent, delta: float) -> str:
    """The conditions under which the numbers hold, in words."""
    unit = event.privacy_unit
    return (
        f"Assumed: {words.describe(event.mechanism)}; the unit is one {unit}; neighbours differ by "
        f"{words.neighbors(event.neighboring_relation, unit)} ({event.neighboring_relation}); "
        f"delta = {words.at_most(delta)}."
    )
