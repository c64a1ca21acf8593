"""Has a program become slower to compile or to run since an earlier commit?

    python -m bench.since COMMIT [--programs a,b,b256,c,d,e,f,round] [--processes 5]

Programs are private gradients by `bench.kernels.per_example`, named by the letter of their
workload, and the round of `bench.rounds.round` with 200 clients, each as the bench of its own
commit makes it. The earlier commit is checked out beside this one. Processes of the two take turns,
all on one core. Each builds its program (traces, lowers and compiles it) once for nothing, then
again with empty caches, and runs it for a second. A figure is of CPU time, the least of a process;
`ratio` is the median over pairs of processes of now over then.
"""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax

from bench import _harness, _tables
from bench.kernels import per_example, workloads
from bench.rounds import round as round_bench

ROUND = "round"
CLIENTS = 200
BUILDS, BUILD_S, RUN_S = 4, 8.0, 1.0
UNITS = {"build": "s", "run": "ms"}


def _builder(name: str) -> Callable[[], _harness.Step]:
    """What traces, lowers and compiles a program, its arguments made already."""
    if name == ROUND:
        task = round_bench.make_task(CLIENTS)
        return lambda: round_bench.ours(task, round_bench.NOISE, None)
    workload = workloads.make(name)
    return lambda: _harness.compile_step(
        per_example.gradient("ours_auto", workload.loss), workload.params, workload.batch
    )


def _measure(name: str) -> dict[str, float]:
    """In a process of its own: seconds to build a program, and milliseconds that it runs."""
    build = _builder(name)
    step, builds, start = build(), [], time.perf_counter()
    while not builds or (len(builds) < BUILDS and time.perf_counter() - start < BUILD_S):
        jax.clear_caches()
        before = time.process_time()
        step = build()
        builds.append(time.process_time() - before)
    runs = [_harness.seconds(step.run, 1)[1]]
    start = time.perf_counter()
    while time.perf_counter() - start < RUN_S or len(runs) < _harness.LEAST_ROUNDS:
        runs.append(_harness.seconds(step.run, 1)[1])
    return {"build": min(builds), "run": 1e3 * min(runs)}


def _in(tree: pathlib.Path, name: str) -> dict[str, float]:
    """`_measure` of the program as a tree has it, without a compilation cache."""
    environment = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, (tree, tree / "kernels")))
    # -P: imports come from the tree, not from beside this file.
    command = [sys.executable, "-P", "-W", "ignore", __file__, "--child", name]
    done = subprocess.run(
        command, cwd=tree, env=environment, capture_output=True, text=True, check=True
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


@contextlib.contextmanager
def _checked_out(commit: str) -> Iterator[pathlib.Path]:
    git = ("git", "-C", str(_harness.ROOT), "worktree")
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder) / "then"
        subprocess.run([*git, "add", "--detach", str(tree), commit], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def rows_of(name: str, pairs: list[tuple[dict[str, float], dict[str, float]]]) -> _tables.Rows:
    """One row for each figure of a program, of what pairs of processes measured, then and now."""
    rows = []
    for what, unit in UNITS.items():
        then, now = ([one[what] for one in side] for side in zip(*pairs, strict=True))
        ratios = [after / before for before, after in zip(then, now, strict=True)]
        rows.append(
            {
                "program": name,
                "figure": f"{what}_{unit}",
                "then": round(statistics.median(then), 4),
                "now": round(statistics.median(now), 4),
                "ratio": round(statistics.median(ratios), 3),
                "least": round(min(ratios), 3),
                "most": round(max(ratios), 3),
                "pairs": len(pairs),
            }
        )
    return rows


def main() -> None:
    """Runs both commits, prints a table, writes the JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commit", nargs="?", help="the earlier one, as git names it")
    parser.add_argument("--programs", default=",".join((*workloads.MAKERS, ROUND)))
    parser.add_argument("--processes", type=int, default=5, help="of each commit")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(_measure(options.child)))
        return
    if options.commit is None:
        parser.error("Expected the earlier commit.")
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    asked = ["git", "-C", str(_harness.ROOT), "rev-parse", options.commit]
    commit = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    rows: list[dict[str, Any]] = []
    with _checked_out(commit) as tree:
        for name in options.programs.split(","):
            pairs = [(_in(tree, name), _in(_harness.ROOT, name)) for _ in range(options.processes)]
            rows += rows_of(name, pairs)
            print(_harness.table(rows[-len(UNITS) :], list(rows[-1])), flush=True)
    print(_harness.table(rows, list(rows[0])))
    print(_harness.write("since", rows, note=f"CPU time now over then, at {commit}"))


if __name__ == "__main__":
    main()
