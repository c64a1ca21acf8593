"""Figure 4 of the LightDP-FL paper on stand-in data: accuracy against training time where links
fail.

    python -m bench.papers.pairwise_time [--rounds 20] [--seeds 3]     # about a minute

50 clients, at most 10 colluders, every directed link fails with chance 0.05 in a round; noise of a
secure sum is sized for 10 stragglers, and its round is lost if more clients cannot be used. Real
digits dealt at random, softmax model; every row is granted exactly (6, 1e-3) for all rounds
together. Accuracy is measured; time is the model of `bench.papers.overhead` (ResNet-18's bytes, 60
s of training a round), not a measurement. Lost rounds take their time, teach nothing, and are paid
for in privacy like the others.
"""

import argparse
import dataclasses
import statistics
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench import _harness, _tables
from bench.papers import overhead
from fljax import accounting, data, models, schemes
from fljax.server import costs

EPSILON, DELTA = 6.0, 1e-3


def train(name: str, rounds: int, seeds: int) -> dict[str, Any]:
    """Mean accuracy after each round, rounds that counted, and the seconds of the model."""
    scheme = schemes.get(name)
    numbers: dict[str, Any] = (
        {"draw": "joint_law"} if name == "lightdp" else {}
    )  # the same law of the average
    config = scheme.Config(
        num_parties=overhead.NUM_CLIENTS,
        max_colluders=overhead.MOST,
        max_stragglers=overhead.MOST,
        straggler_law="bernoulli",
        link_failure_prob=overhead.FAILURE,
        **numbers,
    )

    def run(noise_multiplier: float) -> accounting.PrivacyEvent:
        return scheme.event(dataclasses.replace(config, noise_multiplier=noise_multiplier)).repeat(
            rounds
        )

    config = dataclasses.replace(
        config,
        noise_multiplier=accounting.calibrate(run, epsilon=EPSILON, delta=DELTA, method="gdp"),
    )
    digits = data.load("digits")
    table = data.partition.iid(digits.train["y"], overhead.NUM_CLIENTS, np.random.default_rng(0))
    clients = data.ClientData(jax.tree.map(jnp.asarray, digits.train), jnp.asarray(table))
    test = jax.tree.map(jnp.asarray, digits.test)
    model = models.create("softmax", example_shape=(8, 8, 1), num_classes=10, key=jax.random.key(0))
    algorithm = scheme.make(
        config, models.softmax_cross_entropy(model.apply), num_units=overhead.NUM_CLIENTS
    )
    cohort = data.cohort(clients, jnp.arange(overhead.NUM_CLIENTS))
    one_round = jax.jit(algorithm.round)
    curves, counted = [], 0
    for seed in range(seeds):
        state = algorithm.init(model.params)
        curve = []
        for _ in range(rounds):
            new, _ = one_round(state, cohort, jax.random.key(seed))
            same = jax.tree.map(jnp.array_equal, new.params, state.params)
            counted += not all(map(bool, jax.tree.leaves(same)))
            state = new
            curve.append(float(models.evaluate(model.apply, state.params, test)[1]))
        curves.append(curve)
    seconds = costs.round_seconds(scheme.costs(config, overhead.NUM_PARAMS), **overhead.SECONDS)
    return {
        "scheme": name,
        "accuracy": statistics.mean(curve[-1] for curve in curves),
        "stdev": statistics.stdev(curve[-1] for curve in curves) if seeds > 1 else 0.0,
        "rounds_that_counted": counted / seeds,
        "minutes": rounds * seconds / 60,
        "minutes_a_round": seconds / 60,
        "accuracy_by_round": np.mean(curves, axis=0).round(4).tolist(),
    }


def table(rows: _tables.Rows) -> str:
    """Accuracy and minutes of each way to hide an upload over links that fail."""
    body = [
        [
            f"`{row['scheme']}`",
            f"{row['rounds_that_counted']:.0f}",
            f"{row['minutes']:.0f}",
            f"{row['accuracy']:.0%}",
            f"{row['stdev']:.0%}",
        ]
        for row in rows
    ]
    head = [
        "scheme",
        "rounds of 20 that counted",
        "minutes",
        "accuracy",
        "standard deviation over seeds",
    ]
    return _tables.markdown(head, body)


def main() -> None:
    """Runs, prints a table, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    rows = []
    for name in overhead.NAMES:
        rows.append(train(name, options.rounds, options.seeds))
        print(
            {key: value for key, value in rows[-1].items() if key != "accuracy_by_round"},
            flush=True,
        )
    print(_harness.table(rows, [column for column in rows[0] if column != "accuracy_by_round"]))
    note = f"{options.rounds} rounds, {options.seeds} seeds, (6, 1e-3); time is a model"
    path = _harness.write("pairwise_time", rows, note=note)
    print(f"wrote {path.relative_to(_harness.ROOT)}")


if __name__ == "__main__":
    main()
