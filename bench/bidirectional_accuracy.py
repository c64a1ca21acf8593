"""Accuracy at equal true epsilon: the bidirectional scheme's modes beside central, local and naive noise.

    python -m bench.bidirectional_accuracy [--rounds 100] [--seeds 9] [--quick]

Five clients, one gradient of each a round, mlp 64-32-32-10 on digits and mlp 30-16-2 on the real breast-cancer table,
squared loss on one-hot labels. Every row with a guarantee spends its epsilon at delta 1e-5 over
all rounds, for one record against another, by the exact composition of Gaussian views. "oracle_clip" has the noise of
the paper's accounts at that size and no guarantee; "naive" has the noise of "local" on perturbed gradients and none
either. The paper trains ResNets on CIFAR: trends can be compared, numbers cannot.
"""

import argparse
import dataclasses
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench import _harness
from fljax import accounting, data, models, schemes

CLIENTS, DELTA = 5, 1e-5
PLAIN = {"scale_law": "log_uniform", "scale_range": (1.0, 1.0), "pair_variance_ratio": 0.0}
NARROW = {"scale_law": "log_uniform", "scale_range": (0.9, 1.1)}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "none": ("mp_cdp", {}),
    "central": ("mp_cdp", {}),
    "r0_gaussian": ("bidirectional", {"noise": "r0_gaussian"}),
    "r0_gaussian, scales in [0.9, 1.1]": ("bidirectional", {"noise": "r0_gaussian", **NARROW}),
    "upload_gaussian": ("bidirectional", {"noise": "upload_gaussian", "additive_norm": 0.1, **NARROW}),
    "oracle_clip": ("bidirectional", {"noise": "oracle_clip"}),
    "local": ("bidirectional", {"noise": "r0_gaussian", **PLAIN}),
    "naive, equation (13)": ("mp_dp_naive", {}),
    "naive, equation (4)": (
        "mp_dp_naive",
        {"form": "base", "scale_law": "log_uniform", "scale_range": (0.01, 100.0)},
    ),
}
HIDDEN = {"digits": (32, 32), "breast_cancer": (16,)}


def noise(method: str, epsilon: float, rounds: int, batch: int) -> float:
    """The noise multiplier that spends epsilon in all rounds; where nothing is spent, that of its model."""
    if method == "none":
        return 0.0
    twin = {"oracle_clip": "r0_gaussian", "naive, equation (13)": "local", "naive, equation (4)": "local"}
    name, numbers = METHODS[twin.get(method, method)]
    scheme = schemes.get(name)
    config = scheme.Config(num_parties=CLIENTS, local_batch_size=batch, **numbers)

    def run(noise_multiplier: float) -> accounting.PrivacyEvent:
        return scheme.event(dataclasses.replace(config, noise_multiplier=noise_multiplier)).repeat(rounds)

    return float(accounting.calibrate(run, epsilon=epsilon, delta=DELTA, method="gdp"))


def train(dataset: str, batch: int, method: str, epsilon: float, rounds: int, seeds: int) -> dict[str, Any]:
    """Held-out accuracy over seeds of secrets, batches and noise."""
    found, hidden = data.load(dataset), HIDDEN[dataset]
    table = data.partition.iid(found.train["y"], CLIENTS, np.random.default_rng(0))
    clients = data.ClientData(jax.tree.map(jnp.asarray, found.train), jnp.asarray(table))
    shape = found.train["x"].shape[1:]
    model = models.create(
        "mlp", example_shape=shape, num_classes=found.num_classes, key=jax.random.key(0), hidden=hidden
    )
    name, numbers = METHODS[method]
    scheme = schemes.get(name)
    multiplier = noise(method, epsilon, rounds, batch)
    config = scheme.Config(
        num_parties=CLIENTS, local_batch_size=batch, server_learning_rate=0.5, noise_multiplier=multiplier, **numbers
    )
    algorithm = scheme.make(config, models.squared_error(model.apply), num_units=len(found.train["y"]))
    cohort = data.cohort(clients, jnp.arange(CLIENTS))

    @jax.jit
    def run(key: jax.Array) -> Any:
        def step(state, _):
            return (algorithm.round(state, cohort, key)[0], None)

        return jax.lax.scan(step, algorithm.init(model.params), None, length=rounds)[0].params

    accuracies = []
    for seed in range(seeds):
        _, accuracy = models.evaluate(model.apply, run(jax.random.key(seed)), jax.tree.map(jnp.asarray, found.test))
        accuracies.append(float(accuracy))
    spread = statistics.stdev(accuracies) if seeds > 1 else 0.0
    return {"noise_multiplier": multiplier, "accuracy": statistics.mean(accuracies), "stdev": spread}


def main(arguments: list[str] | None = None) -> None:
    """Runs, prints a table, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="digits at one epsilon")
    options = parser.parse_args(arguments)
    # Batches of all of a client's records.
    settings = [("digits", 288, 3.0, options.seeds)]
    few = min(3, options.seeds)
    if not options.quick:
        settings += [("digits", 288, epsilon, few) for epsilon in (0.5, 1.0, 8.0)]
        settings.append(("breast_cancer", 91, 3.0, options.seeds))
    rows = []
    for dataset, batch, epsilon, many in settings:
        for method in METHODS:
            if epsilon != 3.0 and method in ("none", "upload_gaussian"):
                continue
            start = time.perf_counter()
            seeds = min(2, many) if method == "upload_gaussian" else many  # each record's triple is held: slow
            row: dict[str, Any] = {
                "dataset": dataset,
                "batch": batch,
                "method": method,
                "epsilon": epsilon,
                "seeds": seeds,
            }
            row |= train(dataset, batch, method, epsilon, options.rounds, seeds)
            row["guarantee"] = method in ("central", "local") or "_gaussian" in method
            rows.append(row | {"seconds": round(time.perf_counter() - start, 1)})
            print(rows[-1], flush=True)
    print(_harness.table(rows, list(rows[0])))
    note = f"{options.rounds} rounds, {CLIENTS} clients, delta {DELTA}, unit: record, replaced"
    path = _harness.write(
        "bidirectional_accuracy_quick" if options.quick else "bidirectional_accuracy", rows, note=note
    )
    print(f"wrote {path.relative_to(_harness.ROOT)}")


if __name__ == "__main__":
    main()
