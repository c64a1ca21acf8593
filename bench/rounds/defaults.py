"""Does every scheme learn by its defaults what it learns when tuned, at the same epsilon?

    python -m bench.rounds.defaults [--only SCHEME ...]

Each scheme is run with no flag but its name, and then with one number changed at a time: step sizes
doubled and halved, clip norm doubled and halved, server momentum moved. What no change touches:
epsilon, delta, sampling, rounds, data. The best change, by the first seed, is tuned; tuned and
default are compared on the other SEEDS, which chose nothing. The non-private model is FedAvg at the
settings of `bench.rounds.baseline`. Channels count nats and no epsilon: the same holds of these.
"""

import argparse
import dataclasses
import json
import pathlib
import sys
import tempfile
from typing import Any

import numpy as np

from bench import _harness, _tables
from fljax import schemes
from fljax.simulation import run
from fljax.simulation.config import Config, from_sections

CHOOSES, SEEDS = 0, (1, 2)
WORTH = 0.005  # a change that gains less by the first seed is not tried on the others
MOMENTA = (0.0, 0.5, 0.9)
# These send the same sums: the same round, up to a secure sum that is ideal.
WHOLE_NUMBERS = dict.fromkeys(("hybrid_alpha", "pile", "tp_smc"), "distributed_dgauss")
ONE_ROUND = {"secagg_dp": "he_dp", "smpc_dp": "he_dp", "swiftagg_dp": "he_dp", **WHOLE_NUMBERS}


class Nobody:
    """Who watches and says nothing."""

    def start(self, plan: Any, rounds_done: int) -> None:
        """Nothing."""

    def round(self, record: dict[str, Any]) -> None:
        """Nothing."""

    def stop(self) -> None:
        """Nothing."""


def config_of(name: str, seed: int, change: dict[str, float], *, baseline: bool) -> Config:
    """The run of a scheme by its name, and this change."""
    usual: dict[str, Any] = {"seed": seed, "eval_every": 10**6, "checkpoint_every": 10**6}
    if not baseline:
        usual["baseline"] = False
    return from_sections({"scheme": {"scheme": name, **change}, "run": usual})


def reached(
    name: str, seed: int, change: dict[str, float], *, baseline: bool = False
) -> dict[str, Any]:
    """The last line of metrics.jsonl."""
    with tempfile.TemporaryDirectory() as folder:
        config = config_of(name, seed, change, baseline=baseline)
        return run.start(config, pathlib.Path(folder) / "run", Nobody()).records[-1]


def changes(config: Any) -> list[dict[str, float]]:
    """One number changed at a time, of those that a scheme has and that cost no privacy."""
    fields = {field.name for field in dataclasses.fields(config)}
    rate = "local_learning_rate" if "local_learning_rate" in fields else "server_learning_rate"
    found: list[dict[str, float]] = []
    for name in (rate, "l2_clip_norm"):
        if name in fields:
            usual = float(getattr(config, name))
            found += [{name: usual * factor} for factor in (0.5, 2.0)]
    if "server_momentum" in fields:
        found += [{"server_momentum": m} for m in MOMENTA if m != config.server_momentum]
    return found


def row_of(name: str) -> dict[str, Any]:
    """One scheme's row."""
    config = config_of(name, CHOOSES, {}, baseline=False)
    tried = {"": reached(name, CHOOSES, {})["test_accuracy"]}
    for change in changes(config.scheme_config):
        tried[json.dumps(change)] = reached(name, CHOOSES, change)["test_accuracy"]
    best = max(tried, key=lambda said: tried[said])
    if tried[best] < tried[""] + WORTH:
        best = ""
    usual = [reached(name, seed, {}, baseline=seed == SEEDS[0]) for seed in SEEDS]
    mean = float(np.mean([last["test_accuracy"] for last in usual]))
    tuned = mean
    if best:
        change = json.loads(best)
        tuned = float(np.mean([reached(name, s, change)["test_accuracy"] for s in SEEDS]))
    plain = usual[0].get("baseline_test_accuracy")
    epsilon = usual[0]["epsilon"]
    return {
        "scheme": name,
        "epsilon": None if isinstance(epsilon, str) else round(float(epsilon), 3),
        "by default": round(mean, 4),
        "tuned": round(max(tuned, mean), 4),
        "changed": "" if tuned <= mean else best.strip("{}").replace('"', ""),
        "non-private": None if plain is None else round(float(plain), 4),
        "tried": {said or "default": round(float(value), 4) for said, value in tried.items()},
    }


def table(rows: _tables.Rows) -> str:
    """Accuracy by default and tuned, for a page."""

    def share(value: Any) -> str:
        return "" if value is None else f"{100 * value:.1f} %"

    head = ["scheme", "epsilon", "by default", "tuned", "what tuning changed", "non-private"]
    body = [
        [
            f"`{row['scheme']}`",
            "none" if row["epsilon"] is None else f"{row['epsilon']:g}",
            share(row["by default"]),
            share(row["tuned"]),
            row["changed"].replace("_", " ") or "nothing",
            share(row["non-private"]),
        ]
        for row in sorted(rows, key=lambda row: str(row["scheme"]))
    ]
    return _tables.markdown(head, body)


def main() -> int:
    """Runs all schemes, prints the table, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[])
    only = parser.parse_args().only
    own = [name for name in schemes.NAMES if name not in ONE_ROUND]
    new = {}
    for name in own:
        if only and name not in only:
            continue
        new[name] = row_of(name)
        print(new[name], flush=True)
    for name, other in ONE_ROUND.items():
        if other in new:
            new[name] = {**new[other], "scheme": name}
    found = [new[name] for name in sorted(new)]
    print(table(found))
    if only:
        print(_harness.amend("defaults", found, keys=("scheme",)))
    else:
        print(_harness.write("defaults", found, note="schemes by their defaults, and tuned"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
