"""Is there a setting far from a scheme's defaults that learns more, at the same epsilon?

    python -m bench.rounds.defaults_search [--only SCHEME ...]

`bench.rounds.defaults` changes one number at a time. Here all are drawn at once, TRIES times:
rounds, sampling, local work, clip norm, step sizes, server momentum, items per subject. The three
best by one seed meet the defaults on SEEDS, which chose nothing. Epsilon, delta, data and model
stay, so noise follows. The schemes are those that stay lowest by their defaults.
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
from bench.rounds.defaults import CHOOSES, MOMENTA, Nobody
from fljax.simulation import run
from fljax.simulation.config import Config, from_sections

SCHEMES = ("dp_fedper", "lightdp", "local_dp")
TRIES, FINALS, SEEDS = 36, 3, (1, 2, 3)
# What a number is multiplied by: one of these, or anything between the two ends.
FACTORS = {
    "num_rounds": (0.25, 0.5, 1.0, 2.0, 4.0),
    "sampling_prob": (0.5, 1.0, 2.0),
    "item_sampling_prob": (0.25, 0.5, 1.0, 2.0),
    "num_local_epochs": (0.2, 0.4, 1.0, 2.0),
    "num_local_steps": (0.25, 0.5, 1.0, 2.0, 4.0),
    "local_batch_size": (0.5, 1.0, 4.0),
}
RANGES = {"l2_clip_norm": 5.0, "local_learning_rate": 5.0, "server_learning_rate": 2.0}


def config_of(name: str, seed: int, change: dict[str, Any]) -> Config:
    """The run of a scheme by its name, and this change; its rounds are among the numbers."""
    usual = {"seed": seed, "eval_every": 10**6, "checkpoint_every": 10**6, "baseline": False}
    scheme = {key: value for key, value in change.items() if key != "num_rounds"}
    rounds = {"num_rounds": change["num_rounds"]} if "num_rounds" in change else {}
    return from_sections({"scheme": {"scheme": name, **scheme}, "run": usual | rounds})


def reached(name: str, seed: int, change: dict[str, Any]) -> tuple[float, float]:
    """Held-out accuracy and epsilon at the end; no accuracy where the numbers do not fit."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            config = config_of(name, seed, change)
            last = run.start(config, pathlib.Path(folder) / "run", Nobody()).records[-1]
        except ValueError:
            return 0.0, 0.0
    return float(last["test_accuracy"]), float(last["epsilon"])


def draw(usual: Config, rng: np.random.Generator) -> dict[str, Any]:
    """One setting of everything that the scheme has."""
    numbers = {
        field.name: getattr(usual.scheme_config, field.name)
        for field in dataclasses.fields(usual.scheme_config)
    }
    numbers["num_rounds"] = usual.run.num_rounds
    found: dict[str, Any] = {}
    for name, factors in FACTORS.items():
        value = numbers.get(name)
        if value is not None:
            drawn = value * factors[rng.integers(len(factors))]
            found[name] = max(1, round(drawn)) if isinstance(value, int) else min(1.0, drawn)
    for name, widest in RANGES.items():
        if numbers.get(name) is not None:
            found[name] = float(numbers[name] * widest ** rng.uniform(-1, 1))
    if "server_momentum" in numbers:
        found["server_momentum"] = MOMENTA[rng.integers(len(MOMENTA))]
    if numbers.get("max_items_per_subject") is not None:
        found["max_items_per_subject"] = int(rng.choice((1, 2, 4)))
    if numbers.get("expected_items") is not None:
        share = found["item_sampling_prob"] / numbers["item_sampling_prob"]
        found["expected_items"] = numbers["expected_items"] * share
    return found


def row_of(name: str) -> dict[str, Any]:
    """One scheme: its defaults, and the best setting that was drawn."""
    usual, rng = config_of(name, CHOOSES, {}), np.random.default_rng(0)
    drawn = [draw(usual, rng) for _ in range(TRIES)]
    tried = [reached(name, CHOOSES, change)[0] for change in drawn]
    finals = [drawn[i] for i in np.argsort(tried)[::-1][:FINALS]]

    def mean(change: dict[str, Any]) -> tuple[float, float]:
        return tuple(np.mean([reached(name, seed, change) for seed in SEEDS], axis=0))

    by_default, epsilon = mean({})
    (best, its_epsilon), change = max((mean(change), json.dumps(change)) for change in finals)
    assert its_epsilon <= epsilon * 1.001, (its_epsilon, epsilon)
    return {
        "scheme": name,
        "epsilon": round(epsilon, 3),
        "by default": round(by_default, 4),
        "best drawn": round(best, 4),
        "tries": TRIES,
        "learned nothing": sum(value == 0 for value in tried),
        "setting": json.loads(change),
        "tried": [round(value, 4) for value in tried],
    }


def table(rows: _tables.Rows) -> str:
    """Accuracy by default, and of the best that was drawn, for a page."""
    head = ["scheme", "epsilon", "by default", "best drawn", "of"]
    body = [
        [
            f"`{row['scheme']}`",
            f"{row['epsilon']:g}",
            f"{100 * row['by default']:.1f} %",
            f"{100 * row['best drawn']:.1f} %",
            str(row["tries"]),
        ]
        for row in rows
    ]
    return _tables.markdown(head, body)


def main() -> int:
    """Searches all schemes, prints the table, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[])
    only = parser.parse_args().only
    path = _harness.RESULTS / "defaults_search-cpu.json"
    before = json.loads(path.read_text())["rows"] if only and path.is_file() else []
    rows = {row["scheme"]: row for row in before}
    for name in only or SCHEMES:
        rows[name] = row_of(name)
        print(rows[name], flush=True)
    found = [rows[name] for name in sorted(rows)]
    print(table(found))
    print(_harness.write("defaults_search", found, note="schemes by their defaults, and searched"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
