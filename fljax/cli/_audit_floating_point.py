"""What `fljax audit --floating-point` does: attacks on float32 noise, which must succeed, and the
same on whole numbers, which must not.
"""

from typing import Any

import jax

from fljax.attacks import floating_point, table
from fljax.cli import _run_files
from fljax.simulation.report import run_page

HEAD = ("attack", "float32: sums given away", "whole numbers", "verdict")
_NONE = "does not apply"


def run(options: Any) -> list[dict[str, Any]]:
    """A row an attack."""
    key = jax.random.key(options.seed, impl="threefry2x32")
    noise = options.noise_multiplier or 1.0
    found = floating_point.play(key, stddev=noise, trials=options.trials)
    rows = []
    for control, told in zip(found[::2], found[1::2], strict=True):
        holds = None if told.told is None or control.told == 0 else told.told == 0
        rows.append(
            {
                "attack": told.attack,
                "noise_multiplier": noise,
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
        f"{row['float32']:.1%}",
        _NONE if row["whole_numbers"] is None else f"{row['whole_numbers']:.1%}",
        row["verdict"],
    ]


def sections(rows: list[dict[str, Any]]) -> list[str]:
    """Of the report."""
    note = (
        "An output is given away where the other of two sums, one apart, could not have made it: "
        "the attacker is never wrong. Schemes whose noise is float32 normals are open to all "
        "three, whatever their epsilon, which is of real-valued noise. Holds: whole numbers and "
        "discrete Gaussian noise, as distributed_dgauss has them, gave nothing away where float32 "
        "did. Whole numbers have no precision to look at."
    )
    shown = _run_files.html_table(HEAD, [cells(row) for row in rows])
    return [run_page.section("Floating point", shown, note)]
