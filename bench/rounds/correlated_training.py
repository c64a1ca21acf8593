"""Accuracy without sampling at equal epsilon: correlated noise beside independent noise.

    python -m bench.rounds.correlated_training [--seeds 5] [--rounds 48]
    python -m bench.rounds.correlated_training --plot docs/images/correlated.svg  # from the results

400 clients take turns, one round in four each; epsilon is exact (Gaussian), for a client's data or
none in their place. The data are real digits dealt to clients, and the stand-in of FEMNIST, one
writer a client. Rows of a data set and epsilon are paired by seed: partition, noise and batches.
Time and what is kept are of one round of an mlp with 200 hidden units.
"""

import argparse
import dataclasses
import json
import pathlib
import statistics
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench import _harness, _tables
from fljax import accounting, data, models
from fljax.data.subjects import SUBJECT
from fljax.schemes import dp_ftrl

CLIENTS, DELTA = 400, 1e-3
SETTINGS = (("digits", 4.0), ("digits", 2.0), ("writers", 4.0), ("writers", 1.0))
KINDS: dict[str, dict[str, Any]] = {
    "independent": {"correlation": "banded", "bands": 1},
    "tree": {"correlation": "tree"},
    "banded": {"correlation": "banded", "bands": 4},
    "buffered": {"correlation": "buffered", "bands": 3},
}


def configured(kind: str, epsilon: float, rounds: int) -> dp_ftrl.Config:
    """With the noise that spends epsilon in all rounds."""
    plain = dp_ftrl.Config(
        num_parties=CLIENTS,
        min_separation=4,
        rounds_per_start=rounds,
        l2_clip_norm=0.5,
        local_learning_rate=0.5,
        local_batch_size=4,
        num_local_epochs=5,
        server_learning_rate=1.0,
        server_momentum=0.0,
        **KINDS[kind],
    )

    def run(noise_multiplier: float) -> accounting.PrivacyEvent:
        noisy = dataclasses.replace(plain, noise_multiplier=noise_multiplier)
        return dp_ftrl.SCHEME.run_event(noisy, rounds)

    found = accounting.calibrate(run, epsilon=epsilon, delta=DELTA, method="gdp")
    return dataclasses.replace(plain, noise_multiplier=found)


def parts(name: str, seed: int, kind: str = "softmax") -> tuple[Any, Any, Any]:
    """Model, cohort of everybody, held-out examples."""
    found = data.load(name)
    if name == "digits":
        table = data.partition.iid(found.train["y"], CLIENTS, np.random.default_rng(seed))
    else:  # a writer is a client
        subjects = np.asarray(found.train[SUBJECT])
        rows = [np.flatnonzero(subjects == s)[:40] for s in np.unique(subjects)[:CLIENTS]]
        table = np.full((CLIENTS, max(map(len, rows))), -1, np.int32)
        for client, mine in enumerate(rows):
            table[client, : len(mine)] = mine
    examples = jax.tree.map(jnp.asarray, found.train)
    everybody = data.cohort(data.ClientData(examples, jnp.asarray(table)), jnp.arange(CLIENTS))
    model = models.create(
        kind,
        example_shape=found.train["x"].shape[1:],
        num_classes=found.num_classes,
        key=jax.random.key(0),
        **({"hidden": (200,)} if kind == "mlp" else {}),
    )
    return model, everybody, jax.tree.map(jnp.asarray, found.test)


def accuracies(name: str, kind: str, epsilon: float, rounds: int, seeds: int) -> list[float]:
    """Held out, after all rounds, one for each seed."""
    config, found, run = configured(kind, epsilon, rounds), [], None
    for seed in range(seeds):
        model, everybody, test = parts(name, seed)
        loss = models.softmax_cross_entropy(model.apply)
        algorithm = dp_ftrl.make(config, loss, num_units=CLIENTS)
        run = run or jax.jit(algorithm.round)
        state, key = algorithm.init(model.params), jax.random.key(seed)
        for _ in range(rounds):
            state, _ = run(state, everybody, key)
        found.append(float(models.evaluate(model.apply, state.params, test)[1]))
    return found


def timed(rounds: int) -> list[dict[str, Any]]:
    """One round of each kind, run in turn."""
    model, everybody, _ = parts("digits", 0, "mlp")
    loss, cases = models.softmax_cross_entropy(model.apply), {}
    for kind in KINDS:
        algorithm = dp_ftrl.make(configured(kind, 4.0, rounds), loss, num_units=CLIENTS)
        state, key = algorithm.init(model.params), jax.random.key(0)
        step = jax.jit(algorithm.round)
        cases[kind] = lambda step=step, state=state, key=key: step(state, everybody, key)
    times = _harness.interleaved(cases, repeats=9)
    size = sum(leaf.size for leaf in jax.tree.leaves(model.params))
    return [
        {
            "kind": kind,
            "milliseconds": statistics.median(times[kind].milliseconds),
            "ratio": _harness.paired_ratio(times[kind], times["independent"]),
            "parameters": size,
            "kept_mib": dp_ftrl.strategy(configured(kind, 4.0, rounds)).num_buffers
            * size
            * 4
            / 2**20,
        }
        for kind in KINDS
    ]


def table(rows: _tables.Rows) -> str:
    """Accuracy and gain at equal epsilon."""
    head = ["data", "epsilon", "noise", "accuracy", "gain on independent noise (95 %)", "runs"]
    body = [
        [
            row["dataset"],
            f"{row['epsilon']:g}",
            row["kind"],
            f"{row['accuracy']:.1%}",
            ""
            if row["kind"] == "independent"
            else f"{100 * row['gain']:+.1f} ({100 * row['low']:+.1f} to {100 * row['high']:+.1f})",
            str(row["seeds"]),
        ]
        for row in rows
        if "dataset" in row
    ]
    costs = [
        [row["kind"], f"{row['ratio']:.2f}", f"{row['kept_mib']:.2f}"]
        for row in rows
        if "ratio" in row
    ]
    cost = _tables.markdown(["noise", "a round's time", "MiB kept"], costs)
    return _tables.markdown(head, body) + "\n\n" + cost


def svg(rows: _tables.Rows) -> str:
    """A dot for each mean, a line for its interval of the gain, by setting."""
    rows = [row for row in rows if "dataset" in row and row["kind"] != "independent"]
    low = min(0.0, *(100 * row["low"] for row in rows))
    high = max(1.0, *(100 * row["high"] for row in rows))
    at = lambda gain: 270 + 290 * (100 * gain - low) / (high - low)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 600 {40 + 22 * len(rows)}" '
        'role="img" font-family="sans-serif" font-size="12" fill="#555">',
        "<title>Gain in accuracy over independent noise, in points, at equal epsilon</title>",
        '<text x="8" y="16">data, scheme, epsilon, noise: points of accuracy gained over '
        "independent noise, 95 %</text>",
        f'<line x1="{at(0):.1f}" x2="{at(0):.1f}" y1="24" y2="{30 + 22 * len(rows)}" '
        'stroke="#999" stroke-dasharray="3 3"/>',
    ]
    for i, row in enumerate(rows):
        y = 42 + 22 * i
        lines += [
            f'<text x="8" y="{y}">{row["dataset"]}, {row.get("scheme", "dp_ftrl")}, '
            f"{row['epsilon']:g}, {row['kind']}</text>",
            f'<line x1="{at(row["low"]):.1f}" x2="{at(row["high"]):.1f}" y1="{y - 4}" '
            f'y2="{y - 4}" stroke="#4269d0" stroke-width="2"/>',
            f'<circle cx="{at(row["gain"]):.1f}" cy="{y - 4}" r="4" fill="#4269d0"/>',
            f'<text x="566" y="{y}">{100 * row["gain"]:+.1f}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])


def main(arguments: list[str] | None = None) -> None:
    """Runs, prints a table, writes the JSON; or draws the plot."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=48)
    parser.add_argument("--plot", metavar="FILE.svg", help="draw from the results and stop")
    options = parser.parse_args(arguments)
    if options.plot:
        names = ("correlated_training", "correlated_elsewhere")
        files = [_harness.RESULTS / f"{name}-cpu.json" for name in names]
        rows = [row for file in files for row in json.loads(file.read_text())["rows"]]
        pathlib.Path(options.plot).write_text(svg(rows))
        return
    rows = []
    for name, epsilon in SETTINGS:
        plain: list[float] = []
        for kind in KINDS:
            found = accuracies(name, kind, epsilon, options.rounds, options.seeds)
            plain = plain or found
            gains = [ours - theirs for ours, theirs in zip(found, plain, strict=True)]
            gain, half = statistics.mean(gains), _harness.half_width(gains)
            row = {"dataset": name, "epsilon": epsilon, "kind": kind, "seeds": options.seeds}
            row |= {"rounds": options.rounds, "accuracy": statistics.mean(found), "gain": gain}
            rows.append(row | {"low": gain - half, "high": gain + half})
            print(rows[-1], flush=True)
    rows += timed(options.rounds)
    print(table(rows))
    note = f"{CLIENTS} clients in turns of 4, delta {DELTA}, unit: client, replaced by none"
    path = _harness.write("correlated_training", rows, note=note)
    print(f"wrote {path.relative_to(_harness.ROOT)}")


if __name__ == "__main__":
    main()
