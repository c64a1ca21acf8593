"""What `fljax audit --replay SCHEME` does: a round again with one unit changed, and a control that
must fail.
"""

import dataclasses
from typing import Any

import jax

from fljax import schemes
from fljax.accounting.words import at_least, at_most
from fljax.attacks import replay, table
from fljax.cli import _run_files
from fljax.simulation.report import run_page

HEAD = ("scheme", "unit", "moves what is seen by", "allowed", "half the noise", "verdict")


def run(options: Any) -> dict[str, Any]:
    """The row of one scheme.

    Raises:
      ValueError: its event is no Gaussian mechanism.
    """
    scheme = schemes.get(options.replay)
    noise = options.noise_multiplier or 1.0
    correlation = options.correlation
    config = replay.least_config(scheme, noise_multiplier=noise, correlation=correlation)
    if options.noise != "float32":
        config = dataclasses.replace(config, noise=options.noise)
    key = jax.random.key(options.seed, impl="threefry2x32")
    found = replay.replay(scheme, config, key)
    event = scheme.event(config)
    return {
        "scheme": options.replay,
        "unit": event.privacy_unit,
        "relation": str(event.neighboring_relation),
        "sees": found.sees,
        "noise": options.noise,
        "correlation": options.correlation,
        "noise_multiplier": noise,
        "declared": found.declared,
        "allowed": found.report.declared,
        "measured": found.report.measured,
        "control": found.control.measured,
        "holds": found.holds,
        "verdict": table.VERDICTS[found.holds],
    }


def cells(row: dict[str, Any]) -> list[str]:
    """A row as text, in the order of HEAD."""
    return [
        row["scheme"],
        row["unit"],
        f"{row['measured']:.4g}",
        at_most(row["allowed"], 4),
        at_least(row["control"], 4),
        row["verdict"],
    ]


def sections(row: dict[str, Any]) -> list[str]:
    """Of the report."""
    note = (
        "Lengths are in standard deviations of the noise in what the adversary sees, which is "
        f"measured: the event declares {row['declared']:.4g}, and five standard errors are allowed "
        "beyond it. With half the noise the same unit moves it twice as far, which must be caught. "
        "A replay says nothing of the shape of the noise, nor of sampling."
    )
    threat = f"<p>What moves is {row['sees']}, in a world of as few clients as there may be.</p>"
    return [
        run_page.section("Replay", _run_files.html_table(HEAD, [cells(row)]), note),
        run_page.section("Threat model", threat),
    ]
