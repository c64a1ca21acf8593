"""What do the records of a run cost that `fljax verify` checks?

    python -m bench.rounds.record [--repeats 7]

- link: one round's link of the hash chain, written and flushed
- begin, close: once a process and once a run: digests of fljax's code, of a run's files
- data: once each time that a run begins or goes on: digests of each client's examples
- round: a round of the demo's size (300 clients, softmax and MLP), as a run takes it, without
  evaluation or checkpoint

Times are CPU time. Wanted: a link under 1 % of a round. `results/` has what it is.
"""

import argparse
import json
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

from bench import _harness, _tables
from fljax import schemes
from fljax.simulation import budget, fingerprint, job, run
from fljax.simulation.config import Config, DataConfig, ModelConfig, RunConfig
from fljax.simulation.record import chain, folder

_LINKS = 1000


class _Clock:
    """CPU milliseconds between the ends of rounds."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def start(self, plan: budget.Plan, rounds_done: int) -> None:
        """Nothing."""

    def round(self, record: dict[str, Any]) -> None:
        """Notes the time."""
        self.at.append(time.process_time())

    def stop(self) -> None:
        """Nothing."""

    def rounds(self) -> list[float]:
        """All but the first, which compiles, and the last, which evaluates."""
        pairs = zip(self.at[1:-2], self.at[2:-1], strict=True)
        return [1e3 * (after - before) for before, after in pairs]


def one_run(model: str, rounds: int, run_dir: pathlib.Path) -> list[float]:
    """Milliseconds of each round of a run."""
    clock = _Clock()
    run.start(configured(model, rounds), run_dir, clock, devices=1)
    return clock.rounds()


def of_data(repeats: int, round_ms: float) -> dict[str, Any]:
    """What the digests of the demo's data cost beside its rounds, of so many milliseconds each."""
    prepared = job.prepare(configured("softmax", None))
    seed, rounds = bytes(32), prepared.plan.num_rounds
    times = [
        timed(lambda: fingerprint.of(prepared.task, prepared.config, seed)) for _ in range(repeats)
    ]
    ms = statistics.median(times)
    arrays = [*prepared.task.dataset.train.values(), *prepared.task.dataset.test.values()]
    return {
        "part": "data",
        "ms": round(ms, 3),
        "clients": prepared.facts.num_clients,
        "mebibytes": round(sum(array.nbytes for array in arrays) / 2**20, 2),
        "rounds": rounds,
        "percent_of_run": round(100 * ms / (rounds * round_ms), 4),
    }


def configured(model: str, rounds: int | None) -> Config:
    """A run of the demo's clients. None: of as many rounds as usual."""
    rounds = RunConfig().num_rounds if rounds is None else rounds
    return Config(
        scheme_config=schemes.get("dp_fedavg").Config(sampling_prob=0.1),
        data=DataConfig(num_clients=300),
        model=ModelConfig(model=model),
        run=RunConfig(
            num_rounds=rounds,
            eval_every=rounds,
            checkpoint_every=rounds,
            baseline=False,
            generator="threefry",  # the faster one, of which a link is a larger share
        ),
    )


def timed(fun: Callable[[], Any]) -> float:
    """CPU milliseconds of one call."""
    began = time.process_time()
    fun()
    return 1e3 * (time.process_time() - began)


def table(rows: _tables.Rows) -> str:
    """What a link costs beside a round, in Markdown."""
    by_part = {row["part"]: row for row in rows if row["part"] != "round"}
    cells = [
        ["a link of the hash chain", f"{1e3 * by_part['link']['ms']:.0f} us", ""],
        ["digests of fljax's code, once a process", f"{by_part['begin']['ms']:.0f} ms", ""],
        ["digests of a run's files, once", f"{by_part['close']['ms']:.1f} ms", ""],
        [
            f"digests of {by_part['data']['mebibytes']:.1f} MiB of {by_part['data']['clients']} "
            "clients, as a run begins",
            f"{by_part['data']['ms']:.1f} ms",
            f"{by_part['data']['percent_of_run']:.2g} % of its {by_part['data']['rounds']} rounds",
        ],
    ]
    cells += [
        [
            f"a round of 30 clients, {row['model']}",
            f"{row['ms']:.1f} ms",
            f"{row['link_percent']:.2g} %",
        ]
        for row in rows
        if row["part"] == "round"
    ]
    return _tables.markdown(["records of a run", "CPU time", "a link's share"], cells)


def main() -> None:
    """Times links, and rounds, and writes the JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        runs = {
            model: one_run(model, 10 * repeats, pathlib.Path(scratch, model))
            for model in ("softmax", "mlp")
        }
        where = pathlib.Path(scratch, "softmax")
        line = (where / folder.METRICS).read_text().splitlines()[0]
        told = json.loads(line)
        body = chain.read(where)[0].body
        alone = pathlib.Path(scratch, "links")
        alone.mkdir()
        links = []
        for _ in range(repeats):
            one = chain.Chain(alone, body)

            def write(one: chain.Chain = one) -> None:
                for number in range(_LINKS):
                    one.round(number + 1, number + 1, told["epsilon"], line)

            links.append(timed(write) / _LINKS)
            one.close()
        link = statistics.median(links)
        rows.append({"part": "link", "ms": round(link, 5), "max_ms": round(max(links), 5)})
        begin = [timed(chain.code.__wrapped__) for _ in range(repeats)]
        close = [timed(lambda: chain.files(where)) for _ in range(repeats)]
        rows.append({"part": "begin", "ms": round(statistics.median(begin), 3)})
        rows.append({"part": "close", "ms": round(statistics.median(close), 3)})
        rows.append(of_data(repeats, statistics.median(runs["softmax"])))
        for model, found in runs.items():
            usual = statistics.median(found)
            row = {"part": "round", "model": model, "ms": round(usual, 3)}
            rows.append(row | {"link_percent": round(100 * link / usual, 4)})
    for row in rows:
        print(row)
    _harness.write("record", rows, note=(__doc__ or "").splitlines()[0])


if __name__ == "__main__":
    main()
