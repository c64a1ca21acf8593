"""What each side of the bidirectional scheme learns of the other, mode by mode, over seeds.

    python -m bench.bidirectional_attacks [--quick]

`python -m fljax.attacks.perturbation_leak`, for several seeds of secrets, noise and members.
"""

import argparse
import time
from typing import Any

from bench import _harness
from fljax.papers.bidirectional import perturbation_leak

SEEDS = 3


def main(arguments: list[str] | None = None) -> None:
    """Runs, prints the tables, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed, few victims")
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    for seed in range(1 if options.quick else SEEDS):
        start = time.perf_counter()
        found = perturbation_leak.run(seed=seed, victims=3 if options.quick else 10)
        seconds = round(time.perf_counter() - start, 1)
        print(f"seed {seed}, {seconds} s\n{perturbation_leak.text(found)}", flush=True)
        # NaN, where a mode has nothing to read, is no JSON.
        rows += [{"seed": seed, **{k: v if v == v else None for k, v in row.items()}} for row in found]
        rows[-1]["seconds"] = seconds
    note = "mlp 64-32-32-10 on digits, 5 clients, noise in units of that for epsilon 3; members of an mlp 64-64-64-10"
    path = _harness.write("bidirectional_attacks_quick" if options.quick else "bidirectional_attacks", rows, note=note)
    print(f"wrote {path.relative_to(_harness.ROOT)}")


if __name__ == "__main__":
    main()
