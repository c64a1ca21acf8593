"""`fljax account`."""

import dataclasses
import math
import pathlib
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
import tyro
from rich.table import Table

from fljax import _validate, accounting, schemes
from fljax.accounting.accountant import Method
from fljax.accounting.words import at_least, at_most, rounded_up
from fljax.cli import _args, _events, _output, _passes, _sampled_gaussian, _sweep
from fljax.errors import UnsupportedEventError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked(_events.Source):
    """What is asked of the mechanism."""

    delta: float = 1e-5
    """delta at which epsilon is asked for. 0: the largest privacy loss, where there is one."""
    accountant: _sampled_gaussian.Accountant = "auto"
    """Who is asked. auto: whoever certifies the least; all: each in turn; or rdp, pld or gdp."""
    tradeoff: pathlib.Path | None = None
    """Where a picture (.svg) of the trade-off curve goes: error rates that no membership test can
    beat.
    """
    cache_dir: pathlib.Path | None = None
    """Folder for compiled code. None: fljax in the user's cache folder."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(Asked, _passes.Passes):
    """A sampled Gaussian mechanism, and what is asked of it."""

    noise_multiplier: float | None = None
    """Noise standard deviation / clip norm (for REPLACE_ONE: / twice the clip norm). Needed unless
    it is swept."""
    sampling_prob: float = 1.0
    """Chance that one unit joins one step, in (0, 1]."""
    steps: int = 1
    """How many steps are published."""
    neighboring_relation: Literal["ADD_OR_REMOVE_ONE", "REPLACE_ONE", "REPLACE_SPECIAL"] = (
        "ADD_OR_REMOVE_ONE"
    )
    """Which data sets are neighbours."""
    sweep: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """NAME=LOW:HIGH:COUNT or NAME=V1,V2,... with NAME noise, q, steps or delta; may be given
    several times.
    """
    output: pathlib.Path = pathlib.Path("sweep.csv")
    """Where a sweep goes; its picture goes beside it, as .svg."""


_DESCRIPTION = """Epsilon by every accountant that has a bound.

Of a (Poisson-sampled) Gaussian mechanism; with --scheme of rounds of a scheme, whose flags are then
those of `fljax simulate`; with --event of a record in a JSON file.
"""


def main(args: Sequence[str]) -> int:
    """Prints epsilon by every accountant that has a bound; it is an error if none has."""
    other = _events.named(args)
    flags = _events.flags(args, Asked) if other else Options
    try:
        options: Any = _args.parse(flags, args, prog="fljax account", description=_DESCRIPTION)
    except _args.Done:
        return 0
    options = _events.with_delta(options, args) if other else options
    # Nothing but an event can be pure: a Gaussian's privacy loss has no bound.
    (_validate.below_one if other else _validate.open_unit)(delta=options.delta)
    methods = _sampled_gaussian.methods(options.accountant)
    if other and options.scheme is not None and schemes.get(options.scheme).promise == "nats":
        return _print_nats(options)
    if other:
        event = _events.of_options(options)(0.0)
        return _print(options, methods, event, _events.assumptions(event, options.delta))
    options = _passes.of_gaussian(options)
    if options.sweep:
        _sampled_gaussian.use_cache(options.cache_dir)
        return _write_sweep(options, methods)
    if options.noise_multiplier is None:
        raise ValueError("Expected --noise-multiplier, or a sweep of noise, got neither.")
    rest = options.sampling_prob, options.steps, options.neighboring_relation
    event = _sampled_gaussian.event(options.noise_multiplier, *rest)
    _validate.positive(
        noise_multiplier=options.noise_multiplier
    )  # without noise epsilon is infinite
    return _print(options, methods, event, _sampled_gaussian.assumptions(*rest, options.delta))


def _print(
    options: Asked, methods: Sequence[Method], event: accounting.PrivacyEvent, assumed: str
) -> int:
    _sampled_gaussian.use_cache(options.cache_dir)
    rows: list[dict[str, Any]] = []
    table = Table("accountant", "epsilon at least", "epsilon at most", "certified", "how")
    without = []
    for row in accounting.table(event, delta=options.delta, methods=methods):
        certified = bool(row["certified"])
        rows.append(
            {
                "accountant": row["method"],
                "epsilon_lower": row["epsilon_lower"] if certified else None,
                "epsilon_upper": row["epsilon_upper"] if certified else None,
                "certified": certified,
                "note": row["note"],
            }
        )
        if not certified:
            without.append(str(row["note"]).removeprefix("no bound: "))
            table.add_row(str(row["method"]), "", "", "", f"no bound: {without[-1]}")
        else:
            bounds = (
                at_least(float(str(row["epsilon_lower"]))),
                rounded_up(float(str(row["epsilon_upper"]))),
            )
            table.add_row(str(row["method"]), *bounds, "yes", str(row["note"]))
    _output.console().print(table)
    _sampled_gaussian.some_bound(options.accountant, methods, without)
    found = {"delta": options.delta, "rows": rows, "assumed": assumed}
    _output.give(found)
    print(assumed)
    if options.tradeoff is not None:
        from fljax.simulation.report import figures

        picture = figures.trade_off(*_sweep.trade_off(event))
        options.tradeoff.parent.mkdir(parents=True, exist_ok=True)
        options.tradeoff.write_text(picture)
        _output.give({**found, "tradeoff": options.tradeoff})
        print(f"Trade-off curve by certified upper bounds on delta: {options.tradeoff}")
    return 0


def _print_nats(options: Any) -> int:
    """What rounds tell of a record at most, added up; the joint bound depends on the data."""
    from fljax.schemes.channels import round as channels

    _validate.positive_int(rounds=options.rounds)
    config, rounds = options.scheme_config, options.rounds
    scheme = schemes.get(options.scheme)
    if scheme.uploads_seen:
        nats = rounds * config.nats
        if not math.isfinite(nats):
            raise UnsupportedEventError(
                f"Expected nats to be finite, got nats={config.nats!r}: no noise, and no bound."
            )
        assumed = (
            f"No epsilon. {rounds} upload{'s'[: rounds > 1]} of a client are noised to tell at "
            f"most {at_most(nats)} nats of its records together, labels among them; the unit is "
            "one example. Whether that is proved depends on what the noise is made for: a run's "
            "privacy.json says."
        )
        print(assumed)
        _output.give({"nats": nats, "rows": [], "assumed": assumed})
        return 0
    if not isinstance(config, channels.ChannelConfig):
        raise UnsupportedEventError(
            f"Expected a scheme with an epsilon, or a channel, got scheme={options.scheme!r}."
        )
    draws = channels.draws(config, rounds)
    nats = draws * config.nats
    label = "" if config.labels_public else ", and ln(classes) nats more of its label"
    assumed = (
        f"No epsilon. If records vary no more than the noise is made for, {rounds} "
        f"round{'s'[: rounds > 1]} with {draws} draw{'s'[: draws > 1]} of noise for a record tell "
        f"at most {at_most(nats)} nats of it{label}; the unit is one example. A run's privacy.json "
        "holds the smaller joint bound of its data, and says whether it is certified."
    )
    print(assumed)
    _output.give({"nats": nats, "rows": [], "assumed": assumed})
    return 0


def _write_sweep(options: Options, methods: Sequence[str]) -> int:
    from fljax.simulation.report import figures

    relation = options.neighboring_relation
    if relation == "REPLACE_ONE":
        raise ValueError(
            f"Expected neighboring_relation to add or remove a unit in a sweep, got {relation}."
        )
    methods = ["rdp", "pld"] if methods == ("auto",) else [m for m in methods if m != "gdp"]
    if not methods:
        raise ValueError(
            "Expected accountant 'auto', 'pld', 'rdp' or 'all' for a sweep, got "
            f"accountant={options.accountant!r}."
        )
    fixed = {name: getattr(options, name) for name in _sweep.COLUMNS}
    if options.noise_multiplier is None:
        fixed["noise_multiplier"] = 0.0  # refused below unless it is swept
    chosen = _sweep.grid(options.sweep, fixed)
    for ends in (chosen.points.min(0), chosen.points.max(0)):
        _sampled_gaussian.event(
            float(ends[0]), float(ends[1]), int(ends[2]), relation
        )  # for its checks
        _validate.positive(noise_multiplier=float(ends[0]))
        _validate.open_unit(delta=float(ends[3]))
    found = _sweep.epsilons(chosen.points, methods)
    _sweep.write(options.output, chosen.points, found)
    picture = options.output.with_suffix(".svg")
    best = np.minimum.reduce([found[f"epsilon_upper_{method}"] for method in methods])
    picture.write_text(figures.sweep(*_sweep.lines(chosen, best)))
    print(f"{len(chosen.points)} configurations: {options.output}, {picture}")
    swept = ", ".join(
        f"{name} {values.min():g} to {values.max():g}" for name, values in chosen.axes.items()
    )
    print(f"Swept: {swept}. The rest:")
    assumed = _sampled_gaussian.assumptions(
        options.sampling_prob, options.steps, relation, options.delta
    )
    print(assumed)
    _output.give(
        {
            "configurations": len(chosen.points),
            "table": options.output,
            "picture": picture,
            "assumed": f"Swept: {swept}. The rest: {assumed}",
        }
    )
    return 0
