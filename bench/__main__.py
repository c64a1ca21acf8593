"""`python -m bench`: every question quickly, each in a process of its own; README.md has the full commands."""

import subprocess
import sys

from bench import _harness

QUICK = {
    "per_example": ["--workloads", "a,b,d", "--rounds", "5", "--budget", "8"],
    "loop_friendly": ["--quick", "--rounds", "5"],
    "round": ["--quick"],
    "accounting": ["--quick"],
    "pair_noise": ["--quick"],
    "subject_steps": ["--quick"],
    "wfna": [],
    "scale": ["--quick"],
}


def main() -> int:
    """Runs what is there; returns how many failed."""
    failed = 0
    for name, arguments in QUICK.items():
        if not (_harness.ROOT / "bench" / f"{name}.py").exists():
            continue
        print(f"== {name}", flush=True)
        done = subprocess.run([sys.executable, "-m", f"bench.{name}", *arguments], cwd=_harness.ROOT, check=False)
        failed += done.returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main())
