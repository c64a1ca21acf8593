"""`fljax calibrate`."""

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from rich.table import Table

from fljax import _validate, accounting
from fljax.accounting import risk, words
from fljax.accounting.accountant import Method
from fljax.accounting.events import PrivacyEvent
from fljax.accounting.words import at_least, rounded_up
from fljax.cli import _args, _events, _output, _passes, _sampled_gaussian
from fljax.errors import UnsupportedEventError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked(_events.Source):
    """What all rounds, or steps, together may spend."""

    epsilon: float | None = None
    """What may be spent. None: a risk is bounded instead: one of the three that follow."""
    advantage: float | None = None
    """Most that true-positive and false-positive rate of any membership test may differ, in (0, 1).
    """
    tpr: float | None = None
    """Most that a membership test may find at false-positive rate --fpr."""
    fpr: float | None = None
    """That false-positive rate, below --tpr."""
    reconstruction: float | None = None
    """Greatest chance with which an attack may reconstruct a unit that is guessed with chance
    --prior.
    """
    prior: float | None = None
    """Chance of the best guess without the release, below --reconstruction."""
    delta: float = 1e-5
    """delta that goes with epsilon. 0: of mechanisms whose privacy loss is bounded."""
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
class Options(Asked, _passes.Passes):
    """A sampled Gaussian mechanism, and what it may spend."""

    sampling_prob: float = 1.0
    """Chance that one unit joins one step, in (0, 1]."""
    steps: int = 1
    """How many steps are published."""
    neighboring_relation: Literal["ADD_OR_REMOVE_ONE", "REPLACE_ONE", "REPLACE_SPECIAL"] = (
        "ADD_OR_REMOVE_ONE"
    )
    """Which data sets are neighbours."""


_DESCRIPTION = """The number with which an epsilon is met, or a risk, by every accountant that has a
bound.

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
    options = _events.with_delta(options, args) if other else options
    if options.epsilon is None:
        if all(value is None for value in _targets(options).values()):
            raise ValueError(
                "Expected --epsilon, or a risk: --advantage, --tpr with --fpr, or --reconstruction "
                "with --prior; got none of them."
            )
        _risk(options)  # for its checks
    else:
        if any(value is not None for value in _targets(options).values()):
            raise ValueError(
                f"Expected --epsilon or a risk, got epsilon={options.epsilon!r} beside "
                f"{_targets(options)}."
            )
        _validate.positive(epsilon=options.epsilon)
    # Nothing but an event can be pure: a Gaussian's privacy loss has no bound.
    (_validate.below_one if other else _validate.open_unit)(delta=options.delta)
    if other:
        event = _events.of_options(options, options.parameter)
        return _print(
            options, event, lambda value: _events.assumptions(event(value), options.delta)
        )
    options = _passes.of_gaussian(options)
    if options.parameter != "noise_multiplier":
        raise ValueError(
            "Expected --parameter with --scheme or --event alone, got "
            f"parameter={options.parameter!r}."
        )
    rest = options.sampling_prob, options.steps, options.neighboring_relation
    _sampled_gaussian.event(1.0, *rest)  # for its checks
    assumed = _sampled_gaussian.assumptions(*rest, options.delta)
    return _print(options, lambda value: _sampled_gaussian.event(value, *rest), lambda _: assumed)


class _Reached(NamedTuple):
    """What the number costs: epsilon or the risk, who answered, and how it is known."""

    cost: float
    name: str
    method: str
    reason: str


def _targets(options: Asked) -> dict[str, float | None]:
    names = ("advantage", "tpr", "fpr", "reconstruction", "prior")
    return {name: getattr(options, name) for name in names}


def _risk(options: Asked) -> tuple[Callable[[PrivacyEvent, Method], float], float, str]:
    return risk.of_target(**_targets(options))


def _search(
    options: Asked, event: Callable[[float], PrivacyEvent], method: Method
) -> tuple[float, Callable[[float], _Reached]]:
    """The number, and what any such number costs."""
    bracket = options.bracket
    if options.epsilon is None:
        bound, _, name = _risk(options)
        found = risk.calibrate(
            event,
            advantage=options.advantage,
            tpr=options.tpr,
            fpr=options.fpr,
            reconstruction=options.reconstruction,
            prior=options.prior,
            method=method,
            bracket=bracket,
        )
        why = f"{name}, by the best of all bounds on delta"
        return found, lambda value: _Reached(bound(event(value), method), method, method, why)
    delta = options.delta
    found = accounting.calibrate(
        event, epsilon=options.epsilon, delta=delta, method=method, bracket=bracket
    )

    def cost(value: float) -> _Reached:
        spent = accounting.spent(event(value), delta=delta, method=method)
        name = words.answered_by(method, spent)
        return _Reached(spent.epsilon_upper, name, spent.method, spent.reason)

    return found, cost


def _print(
    options: Asked, event: Callable[[float], PrivacyEvent], assumed: Callable[[float], str]
) -> int:
    _sampled_gaussian.use_cache(options.cache_dir)
    of = "epsilon" if options.epsilon is not None else _risk(options)[2]
    table = Table("accountant", options.parameter.replace("_", " "), f"{of} with it")
    rows: list[dict[str, Any]] = []
    methods, without, last = _sampled_gaussian.methods(options.accountant), [], 1.0
    for method in methods:
        try:
            shown, reached = _shown(*_search(options, event, method))
            last = float(shown)
        except UnsupportedEventError as reason:
            without.append(str(reason))
            nothing = {"value": None, "epsilon": None}
            rows.append({"accountant": method, **nothing, "note": f"no bound: {reason}"})
            table.add_row(method, "", f"no bound: {reason}")
            continue
        table.add_row(reached.name, shown, rounded_up(reached.cost))
        rows.append(
            {
                "accountant": reached.method,
                "value": float(shown),
                "epsilon": reached.cost if options.epsilon is not None else None,
                "note": reached.reason,
            }
            | ({} if options.epsilon is not None else {"risk": reached.cost})
        )
    _output.console().print(table)
    _sampled_gaussian.some_bound(options.accountant, methods, without)
    print(assumed(last))
    _output.give(
        {
            "parameter": options.parameter,
            **_asked(options),
            "rows": rows,
            "assumed": assumed(last),
        }
    )
    return 0


def _asked(options: Asked) -> dict[str, Any]:
    if options.epsilon is not None:
        return {"target_epsilon": options.epsilon, "delta": options.delta}
    _, target, name = _risk(options)
    return {"risk": name, "target_risk": target}


def _shown(value: float, cost: Callable[[float], _Reached]) -> tuple[str, _Reached]:
    """The number as it is printed, and what it costs: rounded up, or down where the cost rises with
    it.
    """
    up, down = rounded_up(value), at_least(value)
    with contextlib.suppress(ValueError):  # past the end of its range
        if not (reached := cost(float(up))).cost > cost(float(down)).cost:
            return up, reached
    return down, cost(float(down))
