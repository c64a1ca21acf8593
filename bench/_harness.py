"""The one way this project measures: compile apart, run interleaved, report ratios, write JSON.

A bench script builds rows and hands them to `write`:

    step = compile_step(private_gradient, params, batch)  # trace, compile seconds, XLA's memory
    check("norm of the clipped sum", actual, expected, rtol=1e-4)      # before any timing
    timings = interleaved({"ours": step.run, "non_private": base.run}, repeats=7)
    rows = [{"case": "mlp", "peer": name, **timing.row()} for name, timing in timings.items()]
    write("per_example", rows, note="what this run is")

Machines are shared and noisy, so all cases of a comparison run in turn, each round in another
order; those of another framework in a process of its own (`Elsewhere`), for its threads would be in
the way. Compare `paired_ratio` and `min_ms`, not medians of different runs. A failed case is a row
with an `error`, never a NaN and never left out.
"""

import datetime
import importlib.metadata
import json
import math
import os
import pathlib
import platform
import random
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy import stats

ROOT = pathlib.Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
MEBI = 2**20
SLOW_S = 2.0
LEAST_ROUNDS = 5


class Step(NamedTuple):
    """A compiled function with its arguments bound.

    run: `() -> output`, not yet blocked on. trace_s, compile_s: seconds. temp_bytes: XLA's scratch
    memory, without arguments and results (-1 where the backend does not say). flops: XLA's own
    count, -1 where it does not say.
    text: the optimised program.
    """

    run: Callable[[], Any]
    trace_s: float
    compile_s: float
    temp_bytes: int
    flops: float
    text: str

    def row(self) -> dict[str, Any]:
        """What goes into the JSON."""
        return {
            "trace_s": round(self.trace_s, 3),
            "compile_s": round(self.compile_s, 3),
            "temp_mib": round(self.temp_bytes / MEBI, 2) if self.temp_bytes >= 0 else None,
            "gflops": round(self.flops / 1e9, 3) if self.flops >= 0 else None,
        }


class Timing(NamedTuple):
    """Milliseconds per call of one case, one number per round: wall clock, and CPU time of the
    whole process.
    """

    milliseconds: tuple[float, ...]
    cpu_milliseconds: tuple[float, ...] = ()

    @property
    def median_ms(self) -> float:
        """Median over the rounds."""
        return statistics.median(self.milliseconds)

    @property
    def min_ms(self) -> float:
        """The least disturbed round."""
        return min(self.milliseconds)

    @property
    def cpu_ms(self) -> float:
        """CPU time of all threads in the least disturbed round: what other processes disturb
        least.
        """
        return min(self.cpu_milliseconds, default=math.nan)

    @property
    def spread(self) -> float:
        """(max - min) / median: above 0.3 the machine was busy, trust `min_ms`."""
        return (max(self.milliseconds) - min(self.milliseconds)) / self.median_ms

    def row(self) -> dict[str, Any]:
        """What goes into the JSON."""
        return {
            "median_ms": round(self.median_ms, 3),
            "min_ms": round(self.min_ms, 3),
            "cpu_ms": round(self.cpu_ms, 3) if self.cpu_milliseconds else None,
            "spread": round(self.spread, 3),
            "rounds": len(self.milliseconds),
        }


def compile_step(fun: Callable[..., Any], *args: Any) -> Step:
    """Traces, lowers and compiles `fun(*args)`; nothing is run. `fun` may already be jitted."""
    jitted = fun if hasattr(fun, "lower") else jax.jit(fun)
    start = time.perf_counter()
    lowered = jitted.lower(*args)
    traced = time.perf_counter()
    compiled = lowered.compile()
    end = time.perf_counter()
    memory = compiled.memory_analysis()
    cost = compiled.cost_analysis()
    cost = cost[0] if isinstance(cost, list) else cost or {}
    return Step(
        run=lambda: compiled(*args),
        trace_s=traced - start,
        compile_s=end - traced,
        temp_bytes=int(memory.temp_size_in_bytes) if memory is not None else -1,
        flops=float(cost.get("flops", -1.0)),
        text=compiled.as_text() or "",
    )


class Elsewhere(NamedTuple):
    """A case that runs in another process, which keeps the time: `calls -> (wall, CPU) seconds a
    call`.
    """

    seconds: Callable[[int], tuple[float, float]]


Case = Callable[[], Any] | Elsewhere


def seconds(run: Case, calls: int) -> tuple[float, float]:
    """Wall and CPU seconds per call.

    An accelerator is given the next call while it computes one, as by a training loop that reads
    nothing back; a CPU is not.
    """
    if isinstance(run, Elsewhere):
        return run.seconds(calls)
    ahead = jax.default_backend() != "cpu"
    start, cpu = time.perf_counter(), time.process_time()
    output = None
    for _ in range(calls):
        before, output = output, run()
        # At most two results are alive.
        jax.block_until_ready(before if ahead else output)
    jax.block_until_ready(output)
    elapsed = time.perf_counter() - start, time.process_time() - cpu
    del before, output
    return elapsed[0] / calls, elapsed[1] / calls


def interleaved(
    cases: Mapping[str, Case],
    *,
    repeats: int = 7,
    least_seconds: float = 0.03,
    budget_s: float = 60.0,
    slow_s: float = SLOW_S,
) -> dict[str, Timing]:
    """Times every case `repeats` times, one after the other in each round, in an order that is
    drawn anew each round.

    Drawn, not rotated: what a case leaves behind in caches and spinning threads is not always paid
    for by the same one.

    Args:
      cases: `() -> output`, or what another process times. Outputs may be JAX arrays (blocked on)
        or anything else.
      repeats: rounds. >= 5, or the median says little.
      least_seconds: a sample repeats its call until it lasts about this long.
      budget_s: no new round starts after this many seconds, but each case gets at least
        `LEAST_ROUNDS`.
      slow_s: a case slower than this takes part in the first `LEAST_ROUNDS` only.

    Returns:
      One `Timing` a case; `paired_ratio` compares two of them round by round.
    """
    if repeats < LEAST_ROUNDS:
        raise ValueError(f"Expected repeats >= {LEAST_ROUNDS}, got repeats={repeats}.")
    names = list(cases)
    calls, estimate = {}, {}
    for name in names:
        first, _ = seconds(cases[name], 1)  # the first call pays for page faults and thread pools
        estimate[name] = first if first > slow_s else seconds(cases[name], 1)[0]
        calls[name] = max(1, min(200, round(least_seconds / max(estimate[name], 1e-6))))
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    start = time.perf_counter()
    for round_index in range(repeats):
        if round_index >= LEAST_ROUNDS and time.perf_counter() - start > budget_s:
            break
        for name in random.Random(round_index).sample(names, len(names)):
            if round_index >= LEAST_ROUNDS and estimate[name] > slow_s:
                continue
            wall, cpu = seconds(cases[name], calls[name])
            samples[name].append((1e3 * wall, 1e3 * cpu))
    return {
        name: Timing(*map(tuple, zip(*values, strict=True))) for name, values in samples.items()
    }


def paired_ratio(numerator: Timing, denominator: Timing) -> float:
    """Median over the rounds of the ratio within one round: a busy minute slows both."""
    pairs = zip(
        numerator.milliseconds, denominator.milliseconds, strict=False
    )  # a slow case has fewer rounds
    return statistics.median(a / b for a, b in pairs)


def half_width(values: Sequence[float]) -> float:
    """Half of the 95 % interval of the mean of what pairs differ by, by Student's t; 0 for one."""
    if len(values) < 2:
        return 0.0
    factor = stats.t.ppf(0.975, len(values) - 1) / math.sqrt(len(values))
    return float(factor * statistics.stdev(values))


def best_rate(
    score: Callable[[float], float],
    first: float,
    neighbours: Callable[[float], tuple[float, float]],
    *,
    most: int = 12,
) -> tuple[float, dict[float, float]]:
    """The rate with the highest score whose two neighbours are worse, walking from `first`; and all
    that were tried.

    Raises:
      ValueError: none is found within `most` tries.
    """
    tried: dict[float, float] = {}
    best = first
    while len(tried) < most:
        low, high = neighbours(best)
        for rate in (low, best, high):
            if rate not in tried:
                tried[rate] = score(rate)
        top = max(tried, key=lambda rate: tried[rate])
        if top == best:
            return best, tried
        best = top
    raise ValueError(f"Expected a best rate between worse ones within {most} tries, got {tried}.")


def l2(tree: Any) -> float:
    """L2 norm over all leaves, summed in float64 on the host."""
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(tree)]
    return float(np.sqrt(sum(np.sum(leaf**2) for leaf in leaves)))


def distance(actual: Any, expected: Any) -> float:
    """Relative L2 distance of two trees of arrays, in float64."""
    difference = jax.tree.map(
        lambda a, b: np.asarray(a, np.float64) - np.asarray(b, np.float64), actual, expected
    )
    return l2(difference) / max(l2(expected), 1e-30)


def check(what: str, actual: Any, expected: Any, *, rtol: float) -> float:
    """Relative L2 distance of two trees; raises AssertionError above `rtol`, so that no wrong
    number is timed.
    """
    error = distance(actual, expected)
    if not error <= rtol:
        raise AssertionError(f"{what}: relative L2 distance {error:.3g} > {rtol:g}")
    return error


def largest_array(program: str) -> int:
    """Elements of the largest array that an XLA program (`Step.text`) names anywhere, fused or
    not.
    """
    shapes = set(re.findall(r"[a-z][a-z0-9]*\[([0-9,]+)\]", program))
    return max((math.prod(map(int, shape.split(","))) for shape in shapes), default=0)


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def environment() -> dict[str, Any]:
    """Device, versions, commit and date of this run."""
    versions: dict[str, str | None] = {}
    packages = (
        "jax",
        "jaxlib",
        "numpy",
        "flax",
        "optax",
        "jax-privacy",
        "dp-accounting",
        "fedjax",
        "torch",
        "opacus",
    )
    packages += ("pfl", "flwr", "ray")
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None

    def git(*arguments: str) -> str:
        out = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        )
        return out.stdout.strip()

    device = jax.devices()[0]
    return {
        "device": device.device_kind if device.platform != "cpu" else _cpu_name(),
        "platform": device.platform,
        "num_devices": jax.device_count(),
        "cores": cores(),
        "load_average": [round(x, 2) for x in os.getloadavg()],
        "python": platform.python_version(),
        "versions": versions,
        "commit": git("rev-parse", "HEAD"),
        "dirty": bool(
            # What benches wrote before, this one among them, is no code.
            git(
                *("status", "--porcelain", "--untracked-files=no", "--"),
                *("fljax", "kernels", "bench", ":!bench/results"),
            )
        ),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _cpu_name() -> str:
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "cpu"
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "cpu"
    )


def write(
    name: str,
    rows: Sequence[Mapping[str, Any]],
    *,
    note: str = "",
    seconds: float | None = None,
) -> pathlib.Path:
    """Writes `results/<name>-<platform>.json`: the environment, with the wall seconds that all of
    it took where they are told, and the rows. Overwrites: git keeps the history.
    """
    RESULTS.mkdir(parents=True, exist_ok=True)
    where = environment()
    if seconds is not None:
        where["seconds"] = round(seconds)
    path = RESULTS / f"{name}-{where['platform']}.json"
    path.write_text(
        json.dumps({"note": note, "environment": where, "rows": list(rows)}, indent=1) + "\n"
    )
    return path


def amend(name: str, rows: Sequence[Mapping[str, Any]], *, keys: Sequence[str]) -> pathlib.Path:
    """Puts these rows into `results/<name>-<platform>.json` for those of the same `keys`, or behind
    them; each tells an environment of its own. What else is in the file stays, its environment
    too: that of the rows which tell none.
    """
    where = environment()
    path = RESULTS / f"{name}-{where['platform']}.json"
    kept = json.loads(path.read_text())
    of = lambda row: tuple(row[key] for key in keys)
    kept["rows"] = list(
        (
            {of(row): row for row in kept["rows"]} | {of(row): {**where, **row} for row in rows}
        ).values()
    )
    path.write_text(json.dumps(kept, indent=1) + "\n")
    return path


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """The rows as a Markdown table; a row's `error` takes the place of its numbers."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for row in rows:
        cells = [_cell(row.get(column)) for column in columns]
        if row.get("error"):
            cells = [cell or "" for cell in cells]
            cells[-1] = str(row["error"])
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
