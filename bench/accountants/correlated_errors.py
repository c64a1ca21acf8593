"""Error that correlated noise leaves on running sums, beside what jax_privacy's choices leave.

    python -m bench.accountants.correlated_errors

Squared errors, in the mean over rounds and at most, times the squared sensitivity: of noise
multiplier 1, for one participation. Theirs is what commit 8967688 gives for the same request, run
apart; of what it has no such choice for there is no number.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

from bench import _harness, _tables
from fljax.accounting import correlated
from fljax_kernels.correlated import Strategy

# (rounds, noise): the mean or the largest of theirs, as the choice is for.
THEIRS: dict[tuple[int, str], float] = {
    (256, "banded 16, mean"): 13.23194332709246,
    (256, "banded 16, max"): 22.512554800455664,
    (128, "banded 8, max"): 20.62705459618581,
    (64, "buffered 2, max"): 2.401557023928433 * 2.381162989168197,
    (32, "dense banded 4, mean"): 5.924133335575917,
    (32, "dense banded 4, max"): 10.514163317842435,
    (64, "dense banded 8, mean"): 6.867297979601989,
    (64, "dense banded 8, max"): 16.07826781852935,
    (64, "square root, max"): 2.388848108295434 * 2.388848108295435,
}


def choices(rounds: int) -> dict[str, Callable[[], Strategy]]:
    """By what is kept and what is least."""
    return {
        "independent, max": lambda: correlated.banded(rounds, 1),
        "tree, max": lambda: correlated.tree(rounds),
        "square root, max": lambda: correlated.square_root(rounds),
        "buffered 2, max": lambda: correlated.buffered(rounds, 2),
        "banded 8, mean": lambda: correlated.banded(rounds, 8),
        "banded 8, max": lambda: correlated.banded(rounds, 8, error="max"),
        "banded 16, mean": lambda: correlated.banded(rounds, 16),
        "banded 16, max": lambda: correlated.banded(rounds, 16, error="max"),
        "dense banded 4, mean": lambda: correlated.dense_banded(rounds, 4),
        "dense banded 4, max": lambda: correlated.dense_banded(rounds, 4, error="max"),
        "dense banded 8, mean": lambda: correlated.dense_banded(rounds, 8),
        "dense banded 8, max": lambda: correlated.dense_banded(rounds, 8, error="max"),
    }


def rows_of(rounds: int, dense: bool) -> list[dict[str, Any]]:
    """One row a choice."""
    found = []
    for name, choose in choices(rounds).items():
        if name.startswith("dense") and not dense:
            continue
        begun = time.perf_counter()
        strategy = choose()
        seconds = time.perf_counter() - begun
        errors = correlated.squared_errors(strategy)
        moved = correlated.sensitivity(strategy, min_separation=rounds) ** 2
        row = {"rounds": rounds, "noise": name, "seconds": round(seconds, 3)}
        row |= {"mean": float(errors.mean() * moved), "max": float(errors.max() * moved)}
        theirs = THEIRS.get((rounds, name))
        ours = row["mean" if name.endswith("mean") else "max"]
        found.append(row | {"jax_privacy": theirs, "ratio": theirs and ours / theirs})
        print(found[-1], flush=True)
    return found


def table(rows: _tables.Rows) -> str:
    """Errors, and ours over theirs."""
    head = ["rounds", "noise, least", "mean", "max", "over jax_privacy's"]
    body = [
        [
            str(row["rounds"]),
            row["noise"],
            f"{row['mean']:.3f}",
            f"{row['max']:.3f}",
            "" if row["ratio"] is None else f"{row['ratio']:.6f}",
        ]
        for row in rows
        if row["rounds"] == 64 or row["ratio"] is not None
    ]
    return _tables.markdown(head, body)


def main(arguments: list[str] | None = None) -> None:
    """Runs, prints a table, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.parse_args(arguments)
    rows = [row for rounds in (32, 64, 128, 256) for row in rows_of(rounds, rounds <= 64)]
    print(table(rows))
    note = "squared error of running sums times squared sensitivity, one participation"
    path = _harness.write("correlated_errors", rows, note=note)
    print(f"wrote {path.relative_to(_harness.ROOT)}")


if __name__ == "__main__":
    main()
