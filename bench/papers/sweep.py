"""What the sharpest inversion gets through every scheme, over the noise, beside what anybody gets.

    python -m bench.papers.sweep

All is one call of `fljax attack --sweep`: digits of one label, each alone in a round, by
Gauss-Newton steps with a prior; without noise, as the control that has to succeed, and with the
noise of four budgets, from well hidden to in plain sight.
"""

import argparse
import contextlib
import io
import json
import math
import pathlib
import tempfile
import time
from typing import Any

from bench import _harness, _tables
from bench.papers import scheme_attacks
from bench.rounds import defaults
from fljax import schemes
from fljax.cli import attack as command
from fljax.simulation.report import attack_figures

ATTACK, TARGETS, ITERATIONS = "inversion_gauss_newton", 10, 400
BUDGETS = 4  # the command's own
KEPT = ("scheme", "budget", "noise", "measured", "bound", "standing", "picked", "holds")


def fitting() -> list[str]:
    """The schemes that a sweep is on, but for copies: protocols whose rounds are another one's."""
    names = [name for name in schemes.NAMES if ATTACK in scheme_attacks.fitting(name)]
    return [name for name in names if name not in defaults.WHOLE_NUMBERS]


def swept(names: list[str]) -> list[dict[str, Any]]:
    """The command's rows: of each scheme without noise, then one a budget."""
    sizes = ["--targets", str(TARGETS), "--repeats", "1", "--iterations", str(ITERATIONS)]
    with tempfile.TemporaryDirectory() as folder:
        where = pathlib.Path(folder) / "attack"
        flags = ["--attack", ATTACK, *sizes, "--run-dir", str(where), "--sweep", *names]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            code = command.main(flags)
        if code:
            raise RuntimeError(f"fljax attack {' '.join(flags)} ended with {code}.")
        rows = json.loads((where / "attack.json").read_text())["rows"]
    return [{key: row[key] for key in KEPT} for row in rows]


def _of(rows: _tables.Rows) -> dict[str, list[Any]]:
    """Rows by scheme, epsilons before nats."""
    names = sorted({row["scheme"] for row in rows}, key=lambda n: (schemes.get(n).promise, n))
    return {name: [row for row in rows if row["scheme"] == name] for name in names}


def table(rows: _tables.Rows) -> str:
    """A line for each scheme: what the attack gets, and at most anybody; the noise."""
    body = []
    for name, (plain, *noisy) in _of(rows).items():
        cells = [f"`{name}`", f"{plain['measured']:.1f}"]
        if plain["picked"] < 1:
            cells[1] += f", {100 * plain['picked']:.0f} % told"
        for row in noisy:
            cells.append(f"{row['measured']:.1f} / {_most(row)} ({row['noise']:.3g})")
        cells += ["-"] * (2 + BUDGETS - len(cells))  # noise that float32 does not hold
        body.append([*cells, noisy[0]["standing"].partition(":")[0]])
    head = [
        "scheme",
        "without noise",
        "epsilon 1, or 1 nat: dB / most (noise)",
        "10, or 10 nats",
        "1,000, or 100 nats",
        "100,000, or 1,000 nats",
        "the most is",
    ]
    return _tables.markdown(head, body)


def _most(row: Any) -> str:
    bound = float(row["bound"])  # "inf" in JSON
    return "any" if math.isinf(bound) else f"{bound:.1f}"


def plot(rows: _tables.Rows, path: str) -> None:
    """The command's own picture, of the rows."""
    panels = {
        name: attack_figures.Panel(
            [row["noise"] for row in noisy],
            [row["measured"] for row in noisy],
            [float(row["bound"]) for row in noisy],
            plain["measured"],
            all(row["standing"] == "certified" for row in noisy),
        )
        for name, (plain, *noisy) in _of(rows).items()
    }
    pathlib.Path(path).write_text(attack_figures.sweep(panels) + "\n")


def main() -> None:
    """Prints the table and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two schemes, no JSON: does it run?")
    parser.add_argument("--only", nargs="*", default=[], help="schemes; other rows stay")
    parser.add_argument("--plot", metavar="FILE.svg", help="draw from the results and stop")
    options = parser.parse_args()
    if options.plot:
        plot(_tables.rows("sweep"), options.plot)
        return
    began = time.perf_counter()
    asked = ["dp_sgd", "white_channel"] if options.quick else fitting()
    rows = swept([name for name in asked if not options.only or name in options.only])
    print(f"{time.perf_counter() - began:.0f} s", flush=True)
    for name, other in defaults.WHOLE_NUMBERS.items():
        rows += [row | {"scheme": name} for row in rows if row["scheme"] == other]
    print(table(rows))
    if options.only:
        print(_harness.amend("sweep", rows, keys=("scheme", "budget")))
    elif not options.quick:
        note = f"{TARGETS} digits of one label, {ITERATIONS} products, delta 1e-5"
        print(_harness.write("sweep", rows, note=note))


if __name__ == "__main__":
    main()
