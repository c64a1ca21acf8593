"""`fljax calibrate`."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Literal

from rich.table import Table

from fljax import _validate, accounting
from fljax.accounting import words
from fljax.accounting.words import rounded_up
from fljax.cli import _args, _sampled_gaussian
from fljax.errors import UnsupportedEventError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """The mechanism, and what it may spend."""

    epsilon: float
    """What all steps together may spend."""
    delta: float = 1e-5
    """delta that goes with it."""
    sampling_prob: float = 1.0
    """Chance that one unit joins one step, in (0, 1]."""
    steps: int = 1
    """How many steps are published."""
    neighboring_relation: Literal["ADD_OR_REMOVE_ONE", "REPLACE_ONE", "REPLACE_SPECIAL"] = "ADD_OR_REMOVE_ONE"
    """Which data sets are neighbours."""
    accountant: _sampled_gaussian.Accountant = "auto"
    """Who is asked. auto: whoever certifies the least; all: each in turn; or rdp, pld or gdp."""
    cache_dir: pathlib.Path | None = None
    """Folder for compiled code. None: fljax in the user's cache folder."""


def main(args: Sequence[str]) -> int:
    """Prints the smallest noise multiplier by every accountant that has a bound; it is an error if none has."""
    description = "The smallest noise multiplier with which a (Poisson-sampled) Gaussian mechanism meets an epsilon."
    try:
        options = _args.parse(Options, args, prog="fljax calibrate", description=description)
    except _args.Done:
        return 0
    _validate.positive(epsilon=options.epsilon)
    _validate.open_unit(delta=options.delta)
    rest = options.sampling_prob, options.steps, options.neighboring_relation
    _sampled_gaussian.event(1.0, *rest)  # for its checks
    _sampled_gaussian.use_cache(options.cache_dir)
    table = Table("accountant", "noise multiplier", "epsilon with it")
    methods, without = _sampled_gaussian.methods(options.accountant), []
    for method in methods:
        try:
            noise_multiplier = accounting.calibrate(
                lambda value: _sampled_gaussian.event(value, *rest),
                epsilon=options.epsilon,
                delta=options.delta,
                method=method,
            )
            reached = accounting.spent(
                _sampled_gaussian.event(noise_multiplier, *rest), delta=options.delta, method=method
            )
        except UnsupportedEventError as reason:
            without.append(str(reason))
            table.add_row(method, "", f"no bound: {reason}")
            continue
        name = words.answered_by(method, reached)
        table.add_row(name, rounded_up(noise_multiplier), rounded_up(reached.epsilon_upper))
    _sampled_gaussian.console().print(table)
    _sampled_gaussian.some_bound(options.accountant, methods, without)
    print(_sampled_gaussian.assumptions(*rest, options.delta))
    return 0
