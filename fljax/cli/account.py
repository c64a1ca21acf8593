"""`fljax account`."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Literal

from rich.table import Table

from fljax import _validate, accounting
from fljax.accounting.words import rounded_up
from fljax.cli import _args, _sampled_gaussian


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """The mechanism, and what is asked of it."""

    noise_multiplier: float
    """Noise standard deviation / clip norm."""
    sampling_prob: float = 1.0
    """Chance that one unit joins one step, in (0, 1]."""
    steps: int = 1
    """How many steps are published."""
    delta: float = 1e-5
    """delta at which epsilon is asked for."""
    neighboring_relation: Literal["ADD_OR_REMOVE_ONE", "REPLACE_ONE", "REPLACE_SPECIAL"] = "ADD_OR_REMOVE_ONE"
    """Which data sets are neighbours."""
    accountant: _sampled_gaussian.Accountant = "all"
    """Who is asked."""
    cache_dir: pathlib.Path | None = None
    """Folder for compiled code. None: fljax in the user's cache folder."""


def main(args: Sequence[str]) -> int:
    """Prints epsilon by every accountant that has a bound."""
    description = "Epsilon of a (Poisson-sampled) Gaussian mechanism, by every accountant that has a bound for it."
    try:
        options = _args.parse(Options, args, prog="fljax account", description=description)
    except _args.Done:
        return 0
    _validate.open_unit(delta=options.delta)
    rest = options.sampling_prob, options.steps, options.neighboring_relation
    event = _sampled_gaussian.event(options.noise_multiplier, *rest)
    _sampled_gaussian.use_cache(options.cache_dir)
    methods = _sampled_gaussian.methods(options.accountant)
    table = Table("accountant", "epsilon at least", "epsilon at most", "certified", "how")
    for row in accounting.table(event, delta=options.delta, methods=methods):
        if row["certified"] is None:
            table.add_row(str(row["method"]), "", "", "", f"no bound: {row['note']}")
        else:
            bounds = (f"{row['epsilon_lower']:.6g}", rounded_up(float(str(row["epsilon_upper"]))))
            table.add_row(str(row["method"]), *bounds, "yes" if row["certified"] else "no", str(row["note"]))
    _sampled_gaussian.console().print(table)
    print(_sampled_gaussian.assumptions(*rest, options.delta))
    return 0
