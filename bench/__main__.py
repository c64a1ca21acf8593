"""`python -m bench`: every question quickly, each in a process of its own; README.md has the full
commands.
"""

import subprocess
import sys

from bench import _harness

QUICK = {
    "kernels.per_example": ["--workloads", "a,b,d", "--rounds", "5", "--budget", "8"],
    "kernels.loop_friendly": ["--quick", "--rounds", "5"],
    "rounds.round": ["--quick"],
    "accountants.renyi": ["--quick"],
    "kernels.pair_noise": ["--quick"],
    "kernels.generators": ["--quick"],
    "rounds.subject_steps": ["--quick"],
    "kernels.water_filling": [],
    "rounds.scale": ["--quick"],
}


def main() -> int:
    """Runs all; returns how many failed."""
    failed = 0
    for name, arguments in QUICK.items():
        print(f"== {name}", flush=True)
        command = [sys.executable, "-m", f"bench.{name}", *arguments]
        failed += subprocess.run(command, cwd=_harness.ROOT, check=False).returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main())
