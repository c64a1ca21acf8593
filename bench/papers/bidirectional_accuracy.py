"""Accuracy at equal true epsilon: the bidirectional scheme's modes beside central, local and naive
noise.

    python -m bench.papers.bidirectional_accuracy [--rounds 100] [--seeds 9] [--quick | --resnet]

Five clients, one gradient of each a round, mlp 64-32-32-10 on digits and mlp 30-16-2 on the real
breast-cancer table, squared loss on one-hot labels. `--resnet` trains a group-normalised ResNet20
on digits, in fewer rounds, and keeps the other rows of the JSON: the noise in the gradient of its
272,186 parameters is 9 times that in the mlp's 3,466, so that its epsilons are those at which
central noise lets it learn. Every row with a guarantee spends its epsilon at delta 1e-5 over all
rounds, for one record against another, by the exact composition of Gaussian views. "oracle_clip"
has the noise of the paper's accounts at that size and no guarantee; "naive" has the noise of
"local" on perturbed gradients and none either. The paper trains ResNets on CIFAR: trends can be
compared, numbers cannot.
"""

import argparse
import dataclasses
import json
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench import _harness, _tables
from fljax import accounting, data, models, schemes
from fljax.schemes.disguised import bidirectional
from fljax.schemes.disguised import round as disguised

CLIENTS, DELTA = 5, 1e-5
PLAIN = {"scale_law": "log_uniform", "scale_range": (1.0, 1.0), "pair_variance_ratio": 0.0}
NARROW = {"scale_law": "log_uniform", "scale_range": (0.9, 1.1)}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "none": ("mp_cdp", {}),
    "central": ("mp_cdp", {}),
    "r0_gaussian": ("bidirectional", {"noise": "r0_gaussian"}),
    "r0_gaussian, scales in [0.9, 1.1]": ("bidirectional", {"noise": "r0_gaussian", **NARROW}),
    "upload_gaussian": (
        "bidirectional",
        {"noise": "upload_gaussian", "additive_norm": 0.1, **NARROW},
    ),
    "oracle_clip": ("bidirectional", {"noise": "oracle_clip"}),
    "local": ("bidirectional", {"noise": "r0_gaussian", **PLAIN}),
    "naive, equation (13)": ("mp_dp_naive", {}),
    "naive, equation (4)": (
        "mp_dp_naive",
        {"form": "base", "scale_law": "log_uniform", "scale_range": (0.01, 100.0)},
    ),
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "digits": ("mlp", {"hidden": (32, 32)}),
    "breast_cancer": ("mlp", {"hidden": (16,)}),
    "digits, resnet20": ("resnet20", {}),
}
# Scales of a normalised network sit in its affine pairs alone.
NEEDS: dict[str, dict[str, Any]] = {
    "digits, resnet20": {
        "form": "base",
        "allow_plain": True,
        "server_learning_rate": 0.05,
        "server_momentum": 0.9,
    }
}
RESNET_METHODS = (
    "none",
    "central",
    "r0_gaussian, scales in [0.9, 1.1]",
    "local",
    "naive, equation (4)",
)


def noise(method: str, epsilon: float, rounds: int, batch: int) -> float:
    """The noise multiplier that spends epsilon in all rounds; where nothing is spent, that of its
    model.
    """
    if method == "none":
        return 0.0
    twin = {
        "oracle_clip": "r0_gaussian",
        "naive, equation (13)": "local",
        "naive, equation (4)": "local",
    }
    name, numbers = METHODS[twin.get(method, method)]
    scheme = schemes.get(name)
    config = scheme.Config(num_parties=CLIENTS, local_batch_size=batch, **numbers)

    def run(noise_multiplier: float) -> accounting.PrivacyEvent:
        return scheme.event(dataclasses.replace(config, noise_multiplier=noise_multiplier)).repeat(
            rounds
        )

    found = float(accounting.calibrate(run, epsilon=epsilon, delta=DELTA, method="gdp"))
    if method != "oracle_clip":
        return found
    # Without a guarantee noise is measured in clip norms: as much of it as its twin has.
    own = bidirectional.own_stddev(dataclasses.replace(config, noise_multiplier=found))
    return own / disguised.bound(config)


def train(
    dataset: str, batch: int, method: str, epsilon: float, rounds: int, seeds: int
) -> dict[str, Any]:
    """Held-out accuracy over seeds of secrets, batches and noise."""
    found = data.load(dataset.split(",")[0])
    kind, options = MODELS[dataset]
    table = data.partition.iid(found.train["y"], CLIENTS, np.random.default_rng(0))
    clients = data.ClientData(jax.tree.map(jnp.asarray, found.train), jnp.asarray(table))
    shape = found.train["x"].shape[1:]
    model = models.create(
        kind, example_shape=shape, num_classes=found.num_classes, key=jax.random.key(0), **options
    )
    start = model.params
    if (
        kind == "resnet20"
    ):  # outputs of the size of the targets: its fresh head's are ten times as large
        head = jax.tree.map(lambda leaf: 0.1 * leaf, start["logits"])
        start = {**start, "logits": head}
    name, numbers = METHODS[method]
    scheme = schemes.get(name)
    multiplier = noise(method, epsilon, rounds, batch)
    settings = {"server_learning_rate": 0.5, **numbers, **NEEDS.get(dataset, {})}
    config = scheme.Config(
        num_parties=CLIENTS, local_batch_size=batch, noise_multiplier=multiplier, **settings
    )
    algorithm = scheme.make(
        config, models.squared_error(model.apply), num_units=len(found.train["y"])
    )
    cohort = data.cohort(clients, jnp.arange(CLIENTS))

    @jax.jit
    def run(key: jax.Array) -> Any:
        def step(state, _):
            return (algorithm.round(state, cohort, key)[0], None)

        return jax.lax.scan(step, algorithm.init(start), None, length=rounds)[0].params

    accuracies = []
    for seed in range(seeds):
        _, accuracy = models.evaluate(
            model.apply, run(jax.random.key(seed)), jax.tree.map(jnp.asarray, found.test)
        )
        accuracies.append(float(accuracy))
    spread = statistics.stdev(accuracies) if seeds > 1 else None
    return {
        "noise_multiplier": multiplier,
        "accuracy": statistics.mean(accuracies),
        "stdev": spread,
    }


def table(rows: _tables.Rows) -> str:
    """Held-out accuracy of each method at one true epsilon."""
    body = [
        [
            row["dataset"].replace("_", " "),
            f"{row['epsilon']:g}",
            row["method"],
            f"{row['accuracy']:.1%}",
            f"{row['stdev']:.1%}" if row["seeds"] > 1 else "",
            str(row["seeds"]),
            str(row["rounds"]),
            "yes" if row["guarantee"] else "no",
        ]
        for row in rows
        if row["method"] != "none"
    ]
    head = [
        "data",
        "epsilon",
        "method",
        "accuracy",
        "standard deviation of a run",
        "runs",
        "rounds",
        "guarantee",
    ]
    plain = [
        f"{row['accuracy']:.1%} ({row['dataset'].replace('_', ' ')})"
        for row in rows
        if row["method"] == "none"
    ]
    return _tables.markdown(head, body) + f"\n\nWithout noise: {', '.join(plain)}."


def main(arguments: list[str] | None = None) -> None:
    """Runs, prints a table, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, help="100; of the ResNet20 40")
    parser.add_argument("--seeds", type=int, default=9)
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--quick", action="store_true", help="digits at one epsilon")
    part.add_argument(
        "--resnet", action="store_true", help="the ResNet20 alone; other rows of the JSON stay"
    )
    options = parser.parse_args(arguments)
    rounds = options.rounds or (40 if options.resnet else 100)
    # Batches of all of a client's records.
    settings = [("digits", 288, 3.0, options.seeds)]
    few = min(3, options.seeds)
    if options.resnet:
        settings = [("digits, resnet20", 288, epsilon, options.seeds) for epsilon in (50.0, 8.0)]
    elif not options.quick:
        settings += [("digits", 288, epsilon, few) for epsilon in (0.5, 1.0, 8.0)]
        settings.append(("breast_cancer", 91, 3.0, options.seeds))
    rows = []
    for dataset, batch, epsilon, many in settings:
        for method in METHODS:
            if options.resnet and method not in RESNET_METHODS:
                continue
            if epsilon not in (3.0, 50.0) and method in ("none", "upload_gaussian"):
                continue
            start = time.perf_counter()
            seeds = (
                min(2, many) if method == "upload_gaussian" else many
            )  # each record's triple is held: slow
            row: dict[str, Any] = {
                "dataset": dataset,
                "batch": batch,
                "method": method,
                "epsilon": epsilon,
                "seeds": seeds,
                "rounds": rounds,
            }
            row |= train(dataset, batch, method, epsilon, rounds, seeds)
            row["guarantee"] = method in ("central", "local") or "_gaussian" in method
            rows.append(row | {"seconds": round(time.perf_counter() - start, 1)})
            print(rows[-1], flush=True)
    print(_harness.table(rows, list(rows[0])))
    file = "bidirectional_accuracy_quick" if options.quick else "bidirectional_accuracy"
    old = _harness.RESULTS / f"{file}-cpu.json"
    if old.exists():
        earlier = json.loads(old.read_text())
        since = {name: earlier["environment"][name] for name in ("commit", "date")}
        measured = {row["dataset"] for row in rows}
        rows = [since | row for row in earlier["rows"] if row["dataset"] not in measured] + rows
    path = _harness.write(
        file, rows, note=f"{CLIENTS} clients, delta {DELTA}, unit: record, replaced"
    )
    print(f"wrote {path.relative_to(_harness.ROOT)}")


if __name__ == "__main__":
    main()
