"""Figure 3 and Tables II, III of the LightDP-FL paper on stand-in data: what is learned at equal
exact privacy.

    python -m bench.papers.pairwise_training [--rounds 20] [--seeds 3] [--quick]

50 clients, real digits dealt at random, softmax model, updates clipped, stragglers uniform on 0..S.
Every row spends exactly its epsilon at delta 1e-3 in all rounds together, for a client under
replace-one, towards the server and C clients. "lightdp, paper's ratio" takes own and pair noise in
the proportion of the paper's Proposition 3, at the same true epsilon. The paper trains ResNet-18 on
CIFAR-10 with an unstated sensitivity and delta: trends can be compared, numbers cannot.
"""

import argparse
import dataclasses
import statistics
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench import _harness, _tables
from fljax import accounting, data, models, schemes
from fljax.accounting.shared_noise import least_noise, printed
from fljax.server import stragglers

NUM_CLIENTS, DELTA = 50, 1e-3
PAPER = "lightdp, paper's ratio"


def settings(quick: bool) -> Iterator[tuple[str, str, float, int, int]]:
    """(experiment, scheme, epsilon, colluders, stragglers)."""
    epsilons = (6.0,) if quick else (3.0, 6.0, 9.0)
    for epsilon in epsilons:
        for name in ("local_dp", PAPER, "lightdp", "smpc_dp"):
            yield "figure 3", name, epsilon, 10, 10
    for epsilon in epsilons[1:2] or epsilons:
        for colluders in (20, 40) if quick else (20, 30, 40):
            yield "table II", "lightdp", epsilon, colluders, 10
        for straggling in (0, 30) if quick else (0, 10, 20, 30):
            yield "table III", "lightdp", epsilon, 15, straggling
    for name in ("local_dp", "lightdp", "smpc_dp"):
        yield "none, our example", name, 8.0, 5, 5


def config_for(name: str, colluders: int, straggling: int) -> tuple[Any, Any]:
    """(scheme, its config before calibration)."""
    scheme = schemes.get(name.split(",")[0])
    numbers: dict[str, Any] = {
        "num_parties": NUM_CLIENTS,
        "max_colluders": colluders,
        "max_stragglers": straggling,
    }
    if scheme.Config is schemes.get("lightdp").Config:
        numbers["draw"] = "joint_law"  # the same law of the average
    if name == PAPER:
        moments = least_noise.straggler_moments(NUM_CLIENTS, stragglers.uniform(straggling))
        ratio = printed.best_ratio(NUM_CLIENTS - colluders, moments.straggling)
        numbers["pair_variance_ratio"] = float(ratio)
    return scheme, scheme.Config(**numbers)


def train(
    name: str, epsilon: float, colluders: int, straggling: int, rounds: int, seeds: int
) -> dict[str, Any]:
    """Accuracy over seeds, and the noise behind it."""
    digits = data.load("digits")
    table = data.partition.iid(digits.train["y"], NUM_CLIENTS, np.random.default_rng(0))
    clients = data.ClientData(jax.tree.map(jnp.asarray, digits.train), jnp.asarray(table))
    model = models.create("softmax", example_shape=(8, 8, 1), num_classes=10, key=jax.random.key(0))
    scheme, config = config_for(name, colluders, straggling)

    def run(noise_multiplier: float) -> accounting.PrivacyEvent:
        return scheme.event(dataclasses.replace(config, noise_multiplier=noise_multiplier)).repeat(
            rounds
        )

    noise_multiplier = accounting.calibrate(run, epsilon=epsilon, delta=DELTA, method="gdp")
    config = dataclasses.replace(config, noise_multiplier=noise_multiplier)
    algorithm = scheme.make(
        config, models.softmax_cross_entropy(model.apply), num_units=NUM_CLIENTS
    )
    cohort = data.cohort(clients, jnp.arange(NUM_CLIENTS))
    one_round = jax.jit(algorithm.round)
    found = []
    for seed in range(seeds):
        state = algorithm.init(model.params)
        for _ in range(rounds):
            state, _ = one_round(state, cohort, jax.random.key(seed))
        _, accuracy = models.evaluate(
            model.apply, state.params, jax.tree.map(jnp.asarray, digits.test)
        )
        found.append(float(accuracy))
    spread = statistics.stdev(found) if seeds > 1 else 0.0
    return {
        "noise_multiplier": noise_multiplier,
        "accuracy": statistics.mean(found),
        "stdev": spread,
    }


def table(rows: _tables.Rows) -> str:
    """Figure 3 and Tables II and III of the paper, on stand-in data."""
    body = [
        [
            row["experiment"],
            row["scheme"],
            f"{row['epsilon']:g}",
            str(row["C"]),
            str(row["S"]),
            f"{row['accuracy']:.0%}",
            f"{row['stdev']:.0%}",
        ]
        for row in rows
    ]
    head = ["the paper's", "scheme", "epsilon", "colluders C", "stragglers at most S", "accuracy"]
    return _tables.markdown([*head, "standard deviation over seeds"], body)


def main(arguments: list[str] | None = None) -> None:
    """Runs, prints a table, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one epsilon, fewer settings")
    options = parser.parse_args(arguments)
    rows = []
    for experiment, name, epsilon, colluders, straggling in settings(options.quick):
        row = {
            "experiment": experiment,
            "scheme": name,
            "epsilon": epsilon,
            "C": colluders,
            "S": straggling,
        }
        rows.append(
            row | train(name, epsilon, colluders, straggling, options.rounds, options.seeds)
        )
        print(rows[-1], flush=True)
    print(_harness.table(rows, list(rows[0])))
    note = f"{options.rounds} rounds, {options.seeds} seeds, delta {DELTA}"
    path = _harness.write(
        "pairwise_training_quick" if options.quick else "pairwise_training", rows, note=note
    )
    print(f"wrote {path.relative_to(_harness.ROOT)}")


if __name__ == "__main__":
    main()
