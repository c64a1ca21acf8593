"""`fljax calibrate`."""

import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, Literal

from rich.table import Table

from fljax import _validate, accounting
from fljax.accounting import words
from fljax.accounting.accountant import Spent
from fljax.accounting.events import PrivacyEvent
from fljax.accounting.words import at_least, rounded_up
from fljax.cli import _args, _events, _output, _sampled_gaussian
from fljax.errors import UnsupportedEventError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked(_events.Source):
    """What all rounds, or steps, together may spend."""

    epsilon: float
    """What may be spent."""
    delta: float = 1e-5
    """delta that goes with it."""
    parameter: str = "noise_multiplier"
    """The number that is looked for, of the scheme's flags or of the event: epsilon falls or rises
    with it.
    """
    bracket: tuple[float, float] | None = None
    """Least and greatest value of that number to look between. None: from 1 on, by doubling or
    halving.
    """
    accountant: _sampled_gaussian.Accountant = "auto"
    """Who is asked. auto: whoever certifies the least; all: each in turn; or rdp, pld or gdp."""
    cache_dir: pathlib.Path | None = None
    """Folder for compiled code. None: fljax in the user's cache folder."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(Asked):
    """A sampled Gaussian mechanism, and what it may spend."""

    sampling_prob: float = 1.0
    """Chance that one unit joins one step, in (0, 1]."""
    steps: int = 1
    """How many steps are published."""
    dataset_size: int | None = None
    """Units in all. With batch_size and epochs it says sampling_prob and steps."""
    batch_size: int | None = None
    """Units expected in a step, by Poisson sampling."""
    epochs: float | None = None
    """Passes over the data: so many times dataset_size / batch_size steps, rounded up."""
    neighboring_relation: Literal["ADD_OR_REMOVE_ONE", "REPLACE_ONE", "REPLACE_SPECIAL"] = (
        "ADD_OR_REMOVE_ONE"
    )
    """Which data sets are neighbours."""


_DESCRIPTION = """The number with which an epsilon is met, by every accountant that has a bound.

Of a (Poisson-sampled) Gaussian mechanism its smallest noise multiplier; with --scheme that of a
scheme's rounds, whose flags are then those of `fljax simulate`; with --event --parameter NAME that
number of a record in a JSON file.
"""


def main(args: Sequence[str]) -> int:
    """Prints the parameter by every accountant that has a bound; it is an error if none has."""
    other = _events.named(args)
    flags = _events.flags(args, Asked) if other else Options
    try:
        options: Any = _args.parse(flags, args, prog="fljax calibrate", description=_DESCRIPTION)
    except _args.Done:
        return 0
    _validate.positive(epsilon=options.epsilon)
    _validate.open_unit(delta=options.delta)
    if other:
        event = _events.of_options(options, options.parameter)
        return _print(
            options, event, lambda value: _events.assumptions(event(value), options.delta)
        )
    options = _sampled_gaussian.with_epochs(options)
    if options.rounds != 1 or options.parameter != "noise_multiplier":
        raise ValueError(
            "Expected --rounds and --parameter with --scheme or --event alone, "
            f"got rounds={options.rounds}, parameter={options.parameter!r}."
        )
    rest = options.sampling_prob, options.steps, options.neighboring_relation
    _sampled_gaussian.event(1.0, *rest)  # for its checks
    assumed = _sampled_gaussian.assumptions(*rest, options.delta)
    return _print(options, lambda value: _sampled_gaussian.event(value, *rest), lambda _: assumed)


def _print(
    options: Asked, event: Callable[[float], PrivacyEvent], assumed: Callable[[float], str]
) -> int:
    _sampled_gaussian.use_cache(options.cache_dir)
    table = Table("accountant", options.parameter.replace("_", " "), "epsilon with it")

    def spent(method: Any, value: float) -> Spent:
        return accounting.spent(event(value), delta=options.delta, method=method)

    rows: list[dict[str, Any]] = []
    methods, without, last = _sampled_gaussian.methods(options.accountant), [], 1.0
    for method in methods:
        try:
            found = accounting.calibrate(
                event,
                epsilon=options.epsilon,
                delta=options.delta,
                method=method,
                bracket=options.bracket,
            )
            shown, reached = _shown(found, functools.partial(spent, method))
            last = float(shown)
        except UnsupportedEventError as reason:
            without.append(str(reason))
            nothing = {"value": None, "epsilon": None}
            rows.append({"accountant": method, **nothing, "note": f"no bound: {reason}"})
            table.add_row(method, "", f"no bound: {reason}")
            continue
        name = words.answered_by(method, reached)
        table.add_row(name, shown, rounded_up(reached.epsilon_upper))
        rows.append(
            {
                "accountant": reached.method,
                "value": float(shown),
                "epsilon": reached.epsilon_upper,
                "note": reached.reason,
            }
        )
    _output.console().print(table)
    _sampled_gaussian.some_bound(options.accountant, methods, without)
    print(assumed(last))
    _output.give(
        {
            "parameter": options.parameter,
            "target_epsilon": options.epsilon,
            "delta": options.delta,
            "rows": rows,
            "assumed": assumed(last),
        }
    )
    return 0


def _shown(value: float, spent: Callable[[float], Spent]) -> tuple[str, Spent]:
    """The number as it is printed, and what it costs: rounded up, or down where epsilon rises with
    it.
    """
    up, down = rounded_up(value), at_least(value)
    with contextlib.suppress(ValueError):  # past the end of its range
        if not (reached := spent(float(up))).epsilon_upper > spent(float(down)).epsilon_upper:
            return up, reached
    return down, spent(float(down))
