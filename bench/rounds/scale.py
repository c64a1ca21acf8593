"""Does a client cost the same in a cohort of 100 and of 100,000, in memory and from disk?

    python -m bench.rounds.scale [--quick] [--large] [--folder FOLDER]

- cohort: a round of `dp_fedavg` with 100 to 100,000 clients of one population: time a client, XLA's
  memory, traces
- disk: `fljax.simulation.run` on 100,000 clients on disk, Poisson cohorts of 1,000: time, bytes,
  the host's share
- sampling: a Poisson cohort of 1,000 among 100,000 to 100 million clients
- index: folders of up to 100 million clients: opening, and reading a cohort

Cohorts: MLP 64-32-10 with 20 examples a client, so small that what a round costs whoever is in it
shows; with --large, and then nothing else, MLP 784-256-128-10 with 60, the model of `bench.peers`
(i), in a file of its own: it takes 20 minutes. Clients share rows where all of them would take more
than 512 MiB.
Three random cohorts of each size take turns. Disk: MLP 64-64-10, the command line's, 20 examples of
  8 x 8. Batch 20.
What the host adds is measured twice: from the clock, as one minus the jitted round alone over the
loop's round, and from the profiler's trace of three rounds, as the share of wall time in which no
XLA program runs. The
folders of `index` are sparse files of zeros: their index is real, their data takes no room on disk.
"""

import argparse
import pathlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fljax_kernels
from bench import _harness, _tables
from fljax import data, models, schemes
from fljax.data import store
from fljax.schemes.central import dp_fedavg
from fljax.simulation import run as simulation_run
from fljax.simulation import task as simulation_task
from fljax.simulation.config import Config, DataConfig, ModelConfig, PrivacyConfig, RunConfig

SHAPE, CLASSES, EXAMPLES, BATCH_SIZE, HIDDEN = (8, 8, 1), 10, 20, 20, (32,)
COHORT = 1000  # clients expected in a round from disk
OVERFLOW_CHANCE = 1e-9
TRACED, MARK = 3, "end of a round"  # rounds in a trace; what marks their ends there
BYTES_A_CLIENT = EXAMPLES * (4 * int(np.prod(SHAPE)) + 4)


class Work(NamedTuple):
    """What a client does: one epoch over its examples with this MLP. turns: samples of each size,
    of seconds.
    """

    model: str
    shape: tuple[int, ...]
    hidden: tuple[int, ...]
    examples: int
    turns: int


LARGE = Work("784-256-128-10", (784,), (256, 128), 60, 5)
SMALL = Work("64-32-10", SHAPE, HIDDEN, EXAMPLES, 15)
MOST_FLOATS = 2**27  # of one population's images


def population(num_clients: int, work: Work) -> data.ClientData:
    """Random images and labels on the device, clients being rows in order, from the first again
    after the last.
    """
    rng = np.random.default_rng(20261122)
    wanted = num_clients * work.examples
    rows = min(wanted, MOST_FLOATS // int(np.prod(work.shape)))
    x = rng.random((rows, *work.shape), np.float32)
    y = rng.integers(0, CLASSES, rows, np.int32)
    table = (np.arange(wanted, dtype=np.int32) % rows).reshape(num_clients, work.examples)
    return data.ClientData({"x": jnp.asarray(x), "y": jnp.asarray(y)}, jnp.asarray(table))


class Cohorts:
    """Rounds with cohorts of one size, drawn anew each time; `traces` counts how often Python has
    run the round.
    """

    def __init__(self, clients: data.ClientData, size: int, work: Work) -> None:
        everybody = clients.indices.shape[0]
        model = models.create(
            "mlp",
            example_shape=work.shape,
            num_classes=CLASSES,
            key=jax.random.key(1),
            hidden=work.hidden,
        )
        config = dp_fedavg.Config(
            sampling_prob=size / everybody,
            noise_multiplier=1.0,
            local_batch_size=BATCH_SIZE,
            num_local_epochs=1,
        )
        loss = models.softmax_cross_entropy(model.apply)
        algorithm = dp_fedavg.make(config, loss, num_units=everybody)
        self.traces, self._clients, self._key = 0, clients, jax.random.key(2)

        def one_round(state: Any, clients: data.ClientData, ids: jax.Array, key: jax.Array) -> Any:
            self.traces += 1
            return algorithm.round(state, data.cohort(clients, ids), key)[0]

        rng = np.random.default_rng(size)
        drawn = [rng.choice(everybody, size, replace=False).astype(np.int32) for _ in range(3)]
        # Cohorts of one capacity differ in who is there and in how many.
        drawn[1][-size // 50 :] = -1
        self._cohorts = [jnp.asarray(ids) for ids in drawn]
        self._jitted = jax.jit(one_round)
        self._state = algorithm.init(model.params)
        self.size, self._calls = size, 0
        self.temp_bytes = _harness.compile_step(
            self._jitted, self._state, clients, self._cohorts[0], self._key
        ).temp_bytes

    def run(self) -> Any:
        """One round on the next cohort."""
        ids = self._cohorts[self._calls % len(self._cohorts)]
        self._calls += 1
        self._state = self._jitted(self._state, self._clients, ids, self._key)
        return self._state.params


def by_cohort(sizes: list[int], work: Work, turns: int) -> list[dict[str, Any]]:
    """One row a size; all sizes in turn."""
    clients = population(max(sizes), work)
    cases = {str(size): Cohorts(clients, size, work) for size in sizes}
    timings = in_turn(cases, turns)
    rows = []
    for name, case in cases.items():
        timing = timings[name]
        rows.append(
            {
                "part": "cohort",
                "model": work.model,
                "clients": case.size,
                "us_per_client": round(1e3 * timing.median_ms / case.size, 2),
                "us_per_client_min": round(1e3 * timing.min_ms / case.size, 2),
                "cpu_us_per_client": round(1e3 * timing.cpu_ms / case.size, 2),
                "to_largest": round(
                    _harness.paired_ratio(timing, timings[str(max(sizes))])
                    * max(sizes)
                    / case.size,
                    3,
                ),
                "temp_kib": round(case.temp_bytes / 1024, 1),
                "traces": case.traces,
                **timing.row(),
            }
        )
    return [*rows, law(rows, work.model)]


def in_turn(cases: dict[str, Cohorts], repeats: int) -> dict[str, _harness.Timing]:
    """As `_harness.interleaved`, but each sample lasts seconds, whatever the size, and none is left
    out as slow.
    """
    calls = {}
    for name, case in cases.items():
        _once(case.run)
        calls[name] = max(1, round(1.0 / _once(case.run)))
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    for turn in range(repeats):
        for name in [*cases][turn % len(cases) :] + [*cases][: turn % len(cases)]:
            start, cpu = time.perf_counter(), time.process_time()
            for _ in range(calls[name]):
                jax.block_until_ready(cases[name].run())
            wall = (time.perf_counter() - start) / calls[name]
            samples[name].append((1e3 * wall, 1e3 * (time.process_time() - cpu) / calls[name]))
    return {
        name: _harness.Timing(*map(tuple, zip(*values, strict=True)))
        for name, values in samples.items()
    }


def law(rows: list[dict[str, Any]], model: str) -> dict[str, Any]:
    """Milliseconds of a round = fixed + clients * each: least squares of the relative error."""
    size, took = (np.array([row[name] for row in rows], float) for name in ("clients", "min_ms"))
    (fixed, each), *_ = np.linalg.lstsq(
        np.stack([1 / took, size / took], axis=1), np.ones(len(rows))
    )
    worst = float(np.abs((fixed + size * each) / took - 1).max())
    return {
        "part": "law",
        "model": model,
        "fixed_ms": round(float(fixed), 3),
        "us_per_client": round(1e3 * float(each), 2),
        "worst_error": round(worst, 3),
    }


def on_disk(folder: pathlib.Path, num_clients: int) -> dict[str, Any]:
    """Writes clients and held-out examples where `disk:FOLDER` looks for them."""
    rng = np.random.default_rng(7)

    def clients(count: int) -> Iterator[dict[str, np.ndarray]]:
        for _ in range(count):
            x = rng.random((EXAMPLES, *SHAPE), np.float32)
            yield {"x": x, "y": rng.integers(0, CLASSES, EXAMPLES, np.int32)}

    start = time.perf_counter()
    opened = store.write(folder / "train", clients(num_clients))
    written = time.perf_counter() - start
    store.write(folder / "test", clients(50))
    return {
        "write_s": round(written, 2),
        "store_mib": round(sum(f.stat().st_size for f in opened.path.iterdir()) / _harness.MEBI, 1),
        "index_bytes": index_bytes(opened.path),
        "open_ms": round(1e3 * seconds(lambda: store.open_store(opened.path)), 3),
        # What starting a run adds: it checks every label once.
        "labels_ms": round(
            1e3 * seconds(lambda: data.check_examples({"y": opened.fields["y"]}, num_classes=10)), 3
        ),
    }


def index_bytes(path: pathlib.Path) -> int:
    """Everything in a store that is no field."""
    return sum(file.stat().st_size for file in path.iterdir() if file.suffix != ".bin")


def seconds(fun: Callable[[], Any], repeats: int = 5) -> float:
    """Median, after one call that does not count."""
    fun()
    return statistics.median(_once(fun) for _ in range(repeats))


def _once(fun: Callable[[], Any]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(fun())
    return time.perf_counter() - start


class Clock:
    """Notes when each round of a run ends, and takes a trace of `TRACED` rounds, if it has a
    folder, from the third.
    """

    def __init__(self, trace: pathlib.Path | None = None) -> None:
        self.ends: list[float] = []
        self._trace = trace

    def start(self, plan: Any, rounds_done: int) -> None:
        """Nothing."""

    def round(self, record: dict[str, Any]) -> None:
        """The time."""
        if self._trace is not None and len(self.ends) == 1:
            options = jax.profiler.ProfileOptions()
            options.python_tracer_level = 0  # it would slow down what is to be measured
            jax.profiler.start_trace(str(self._trace), profiler_options=options)
        self.ends.append(time.perf_counter())
        with jax.profiler.TraceAnnotation(MARK):
            pass
        if self._trace is not None and len(self.ends) == 2 + TRACED:
            jax.profiler.stop_trace()

    def stop(self) -> None:
        """Nothing."""


def disk_config(folder: pathlib.Path, num_clients: int, epochs: int, num_rounds: int) -> Config:
    """The command line's defaults but for data, cohort, epochs and the non-private model beside."""
    return Config(
        scheme="dp_fedavg",
        scheme_config=dp_fedavg.Config(
            sampling_prob=COHORT / num_clients, noise_multiplier=1.0, num_local_epochs=epochs
        ),
        data=DataConfig(dataset=f"disk:{folder}", num_clients=num_clients),
        model=ModelConfig(model="mlp"),
        privacy=PrivacyConfig(target_epsilon=None),
        run=RunConfig(num_rounds=num_rounds, seed=0, baseline=False),
    )


def from_disk(
    folder: pathlib.Path, num_clients: int, epochs: int, num_rounds: int
) -> dict[str, Any]:
    """A run, its round without the loop, and its reading alone."""
    config = disk_config(folder, num_clients, epochs, num_rounds)
    built = simulation_task.build(config)
    opened = built.client_data
    assert isinstance(opened, store.Store)
    algorithm = schemes.get(config.scheme).make(
        config.scheme_config, built.loss, num_units=num_clients
    )
    capacity = fljax_kernels.poisson_capacity(num_clients, COHORT / num_clients, OVERFLOW_CHANCE)
    sample = fljax_kernels.poisson_sample(
        jax.random.key(3), num_clients, COHORT / num_clients, capacity
    )
    ids = np.asarray(sample.indices)

    def read() -> data.Cohort:
        examples, indices, _ = store.read(opened, ids, EXAMPLES)
        return data.Cohort(
            jax.tree.map(jnp.asarray, examples), jnp.asarray(indices), jnp.asarray(ids)
        )

    cohort, jitted = read(), jax.jit(algorithm.round)
    state = algorithm.init(built.model.params)
    before = [_once(lambda: jitted(state, cohort, built.round_key)) for _ in range(8)][1:]
    clock = Clock()
    with tempfile.TemporaryDirectory() as runs:
        simulation_run.start(config, pathlib.Path(runs) / "run", clock)
        after = [_once(lambda: jitted(state, cohort, built.round_key)) for _ in range(7)]
        traced = disk_config(folder, num_clients, epochs, 4 + TRACED)
        simulation_run.start(
            traced, pathlib.Path(runs) / "traced", Clock(pathlib.Path(runs) / "trace")
        )
        idle = idle_share(pathlib.Path(runs) / "trace")
    walls = np.diff(clock.ends)
    alone, wall = statistics.median(before + after), float(np.median(walls))
    return {
        "part": "disk",
        "clients": num_clients,
        "epochs": epochs,
        "cohort": COHORT,
        "rounds": num_rounds,
        "round_ms": round(1e3 * wall, 2),
        "round_mean_ms": round(1e3 * float(walls.mean()), 2),
        "round_min_ms": round(1e3 * float(walls.min()), 2),
        "round_max_ms": round(1e3 * float(walls.max()), 2),
        "alone_ms": round(1e3 * alone, 2),
        "alone_min_ms": round(1e3 * min(before + after), 2),
        "alone_max_ms": round(1e3 * max(before + after), 2),
        "read_ms": round(1e3 * seconds(read), 2),
        "host_share": round(1 - alone / wall, 4),
        "host_share_trace": idle,
        "clients_per_s": round(COHORT / wall, 1),
        "bytes_read": COHORT * BYTES_A_CLIENT,
    }


def idle_share(trace: pathlib.Path) -> float | None:
    """Of the wall time from the first mark to the last, what no XLA program filled; None where
    there are no marks.
    """
    (path,) = trace.rglob("*.xplane.pb")
    planes = jax.profiler.ProfileData.from_file(str(path)).planes
    found = [
        (event.name, event.start_ns, event.start_ns + event.duration_ns)
        for plane in planes
        for line in plane.lines
        for event in line.events
        if event.name == MARK or event.name.startswith("ThunkExecutor::Execute")
    ]
    marks = sorted(start for name, start, _ in found if name == MARK)
    spans = sorted((start, end) for name, start, end in found if name != MARK)
    if len(marks) != TRACED + 1 or not spans:
        return None
    busy, until = 0.0, marks[0]
    for start, end in spans:
        start, end = max(start, until), min(end, marks[-1])
        if end > start:
            busy, until = busy + end - start, end
    return round(1 - busy / (marks[-1] - marks[0]), 4)


def sampling(nums: list[int], repeats: int) -> list[dict[str, Any]]:
    """A cohort of 1,000 of each population."""
    steps = {}
    for num in nums:
        prob = COHORT / num
        capacity = fljax_kernels.poisson_capacity(num, prob, OVERFLOW_CHANCE)

        def draw(key, num=num, prob=prob, capacity=capacity):
            return fljax_kernels.poisson_sample(key, num, prob, capacity)

        steps[num] = _harness.compile_step(draw, jax.random.key(num))
    timings = _harness.interleaved(
        {str(num): step.run for num, step in steps.items()}, repeats=repeats
    )
    return [
        {
            "part": "sampling",
            "clients": num,
            "cohort": COHORT,
            "temp_kib": round(step.temp_bytes / 1024, 1),
            **timings[str(num)].row(),
            "compile_s": round(step.trace_s + step.compile_s, 3),
        }
        for num, step in steps.items()
    ]


def index(folder: pathlib.Path, like: pathlib.Path, num_clients: int) -> dict[str, Any]:
    """A store of zeros with a real index, opened and read."""
    path = folder / f"zeros-{num_clients}"
    path.mkdir()
    np.save(
        path / "offsets.npy", np.arange(0, (num_clients + 1) * EXAMPLES, EXAMPLES, dtype=np.int64)
    )
    digest = np.frombuffer(store.digest([np.zeros(BYTES_A_CLIENT, np.uint8)]), np.uint8)
    np.save(path / "digests.npy", np.tile(digest, (num_clients, 1)))
    shutil.copy(like / "index.json", path)
    for name, width in (("x", 4 * int(np.prod(SHAPE))), ("y", 4)):
        with (path / f"{name}.bin").open("wb") as file:
            file.truncate(num_clients * EXAMPLES * width)
    opening = seconds(lambda: store.open_store(path), 3)
    opened = store.open_store(path)
    ids = np.random.default_rng(1).integers(0, num_clients, COHORT)
    row = {
        "part": "index",
        "clients": num_clients,
        "cohort": COHORT,
        "index_bytes": index_bytes(path),
        "data_gib": round(num_clients * BYTES_A_CLIENT / 2**30, 2),
        "open_ms": round(1e3 * opening, 2),
        "most_examples_ms": round(1e3 * seconds(lambda: opened.most_examples, 3), 2),
        "read_ms": round(1e3 * seconds(lambda: store.read(opened, ids, EXAMPLES)), 2),
    }
    shutil.rmtree(path)
    return row


def table(rows: _tables.Rows) -> str:
    """What a client costs in cohorts of any size."""
    body = [
        [
            row["model"],
            f"{row['clients']:,}",
            f"{row['us_per_client']:.1f} us",
            f"{row['us_per_client_min']:.1f} us",
            f"{row['to_largest']:.2f}x",
            f"{row['temp_kib']:,.0f} KiB",
            str(row["traces"]),
        ]
        for row in rows
        if row["part"] == "cohort"
    ]
    head = [
        "MLP",
        "clients in a round",
        "a client, median",
        "least",
        "to the largest, paired",
        "XLA temporary memory",
        "traces",
    ]
    return _tables.markdown(head, body)


def disk_table(rows: _tables.Rows) -> str:
    """Rounds on clients on disk, and what grows with the population."""
    body = []
    for row in [row for row in rows if row["part"] == "disk"]:
        trace = "" if row["host_share_trace"] is None else f"{row['host_share_trace']:.1%}"
        body.append(
            [
                f"{row['epochs']}",
                f"{row['round_ms']:.0f} ms ({row['round_min_ms']:.0f} to "
                f"{row['round_max_ms']:.0f})",
                f"{row['clients_per_s']:,.0f}",
                f"{row['host_share']:.1%}",
                trace,
                f"{row['read_ms']:.0f} ms",
                f"{row['bytes_read'] / 1e6:.1f} MB",
            ]
        )
    head = [
        "local epochs",
        "a round, median and range",
        "clients/s",
        "host, by the clock",
        "by the trace",
        "reading alone",
        "bytes",
    ]
    return _tables.markdown(head, body)


def index_table(rows: _tables.Rows) -> str:
    """What a larger population costs before and in a round."""
    samples = {row["clients"]: row for row in rows if row["part"] == "sampling"}
    body = [
        [
            f"{row['clients']:,}",
            f"{1e3 * samples[row['clients']]['median_ms']:.0f} us",
            f"{row['read_ms']:.1f} ms",
            f"{row['index_bytes'] / 1e6:,.1f} MB",
            f"{row['open_ms']:,.1f} ms",
        ]
        for row in rows
        if row["part"] == "index"
    ]
    return _tables.markdown(
        ["clients", "drawing a cohort of 1,000", "reading it", "index", "opening"], body
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="up to 10,000 clients; nothing is written"
    )
    parser.add_argument(
        "--large", action="store_true", help="cohorts of a larger model, nothing else; 20 minutes"
    )
    parser.add_argument("--folder", type=pathlib.Path, help="where clients go meanwhile; 2 GiB")
    arguments = parser.parse_args()
    quick = arguments.quick
    sizes = [100, 1000, 10_000] if quick else [100, 1000, 10_000, 100_000]
    everybody = 10_000 if quick else 100_000
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = pathlib.Path(name)
        work = LARGE if arguments.large else SMALL
        rows = by_cohort(sizes, work, 3 if quick else work.turns)
        print(
            _harness.table(
                rows,
                [
                    "clients",
                    "us_per_client",
                    "us_per_client_min",
                    "to_largest",
                    "temp_kib",
                    "traces",
                ],
            )
        )
        if arguments.large:
            if not quick:
                print(
                    _harness.write(
                        "scale_large", rows, note="cohorts of the model of bench.peers (i)"
                    )
                )
            return
        written = on_disk(folder, everybody)
        disk = [
            from_disk(folder, everybody, epochs, 6 if quick else 21) | written for epochs in (1, 3)
        ]
        print(
            _harness.table(
                disk,
                ["epochs", "round_ms", "alone_ms", "read_ms", "host_share", "host_share_trace"],
            )
        )
        samples = sampling([10**5, 10**6, 10**7, 10**8], 7)
        print(_harness.table(samples, ["clients", "median_ms", "min_ms", "compile_s", "temp_kib"]))
        nums = [10**5, 10**6] if quick else [10**5, 10**6, 10**7, 10**8]
        opened = [index(folder, folder / "train", num) for num in nums]
        print(
            _harness.table(
                opened, ["clients", "index_bytes", "open_ms", "most_examples_ms", "read_ms"]
            )
        )
    if not quick:
        rows += [*disk, *samples, *opened]
        print(
            _harness.write(
                "scale", rows, note="cohorts of up to 100,000; 100,000 on disk; 100 million indexed"
            )
        )


if __name__ == "__main__":
    main()
