"""What `fljax audit --floating-point` does: attacks on float32 noise, and on rounds with it, which
must succeed, and the same on whole numbers, which must not.
"""

from typing import Any

import jax

from fljax import schemes
from fljax.attacks import floating_point, released_bits, table
from fljax.cli import _run_files
from fljax.simulation.report import run_page

HEAD = ("attack", "on", "float32: sums given away", "whole numbers", "verdict")
_NONE = "does not apply"


def run(options: Any) -> list[dict[str, Any]]:
    """A row an attack."""
    key = jax.random.key(options.seed, impl="threefry2x32")
    noise = options.noise_multiplier or 1.0
    of_law = floating_point.play(key, stddev=noise, trials=options.trials)
    of_rounds = released_bits.play(
        schemes.get(options.scheme), jax.random.fold_in(key, 1), trials=options.trials
    )
    rows: list[dict[str, Any]] = []
    for control, told in zip(
        [*of_law[::2], *of_rounds[::2]], [*of_law[1::2], *of_rounds[1::2]], strict=True
    ):
        played = len(rows) >= len(of_law) // 2
        holds = told.told == 0 if told.told is not None and control.told else None
        rows.append(
            {
                "attack": told.attack,
                "scheme": options.scheme if played else None,
                "noise_multiplier": 1.0 if played else noise,
                "trials": told.trials,
                "float32": control.told,
                "whole_numbers": told.told,
                "holds": holds,
                "verdict": _NONE if told.told is None else table.VERDICTS[holds],
            }
        )
    return rows


def cells(row: dict[str, Any]) -> list[str]:
    """A row as text, in the order of HEAD."""
    return [
        row["attack"],
        "noise" if row["scheme"] is None else f"rounds of {row['scheme']}",
        _NONE if row["float32"] is None else f"{row['float32']:.1%}",
        _NONE if row["whole_numbers"] is None else f"{row['whole_numbers']:.1%}",
        row["verdict"],
    ]


def sections(rows: list[dict[str, Any]]) -> list[str]:
    """Of the report."""
    note = (
        "An output is given away where the other of two sums, one apart, could not have made it: "
        "the attacker is never wrong. Schemes whose noise is float32 normals are open to all "
        "three, whatever their epsilon, which is of real-valued noise. Holds: whole numbers, "
        "with discrete Gaussian noise, as distributed_dgauss has them, or as rounds of the scheme "
        "have them with noise='exact', gave nothing away where float32 did. Whole numbers have no "
        "precision to look at, and noise of a client's own leaves no sum to look at."
    )
    shown = _run_files.html_table(HEAD, [cells(row) for row in rows])
    return [run_page.section("Floating point", shown, note)]
