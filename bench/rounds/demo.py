"""What does the README's main job reach, and how long does it take?

    python -m bench.rounds.demo [--seeds 3]

Runs `fljax simulate` with its defaults as a process of its own, once for each seed: wall time from
start to report (compilation included), held-out accuracy with and without privacy, epsilon and
delta from privacy.json.
"""

import argparse
import json
import math
import pathlib
import subprocess
import sys
import tempfile
import time

from bench import _harness, _tables


def one_run(seed: int, *flags: str) -> dict[str, object]:
    """The row of one seed, with further flags of `fljax simulate`."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = pathlib.Path(folder) / "run"
        start = time.perf_counter()
        command = [
            sys.executable,
            "-m",
            "fljax",
            "simulate",
            "--run-dir",
            str(run_dir),
            "--seed",
            str(seed),
            *flags,
        ]
        subprocess.run(command, cwd=_harness.ROOT, check=True, capture_output=True)
        wall = time.perf_counter() - start
        last = json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])
        privacy = json.loads((run_dir / "privacy.json").read_text())
    return {
        "seed": seed,
        "wall_s": round(wall, 1),
        "accuracy": round(last["test_accuracy"], 4),
        "accuracy_non_private": round(last["baseline_test_accuracy"], 4),
        **{
            name: privacy[name]
            for name in ("epsilon", "delta", "privacy_unit", "num_units", "rounds", "accountant")
        },
    }


def table(rows: _tables.Rows) -> str:
    """What the main job reaches, seed by seed."""
    body = [
        [
            str(row["seed"]),
            f"{row['accuracy']:.1%}",
            f"{row['accuracy_non_private']:.1%}",
            f"{row['epsilon']:.3f}",
            f"{math.ceil(row['delta'] * 1e5) / 1e5:.5f}",
            f"{row['wall_s']:.0f} s",
        ]
        for row in rows
    ]
    head = [
        "seed",
        "accuracy, private",
        "accuracy, non-private",
        "epsilon",
        "delta",
        f"wall, {rows[0]['cores']} cores",
    ]
    return _tables.markdown(head, body)


def main() -> int:
    """Runs all seeds, prints the table, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    rows = [one_run(seed) for seed in range(parser.parse_args().seeds)]
    print(_harness.table(rows, list(rows[0])))
    print(
        _harness.write(
            "demo", rows, note="fljax simulate with its defaults, one process for each seed"
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
