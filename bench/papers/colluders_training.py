"""What training reaches by the charge for colluders, at the size of the bidirectional paper.

    python -m bench.papers.colluders_training [--seeds 3]

100 clients who pick 5 peers each, two colluders, real digits, 60 rounds, (3, 1e-5) for a record
against another. All rows make the same claim towards the same colluders; own noise, and the pairs'
with it, is as large as each charge asks for: `star` is the bound that schemes used before
`shared_noise.colluders`, `certified` what they use, `all sets` the worst of all sets of two.
`central` is the noise of a trusted server, which none of them goes below.
"""

import argparse
import dataclasses
import math
import statistics
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench import _harness, _tables
from fljax import accounting, data, models, schemes
from fljax.accounting.shared_noise import colluders
from fljax.accounting.shared_noise import exact as view
from fljax.schemes.disguised import bidirectional

CLIENTS, OUT_DEGREE, COLLUDERS, PAIR_VARIANCE = 100, 5, 2, 100.0
ROUNDS, EPSILON, DELTA = 60, 3.0, 1e-5
BATCH = 14  # all records of a client
SCHEMES = ("star", "certified", "all sets")


def config() -> bidirectional.Config:
    """The scheme, before its noise."""
    return bidirectional.Config(
        num_parties=CLIENTS,
        graph="n_out",
        out_degree=OUT_DEGREE,
        max_colluders=COLLUDERS,
        pair_variance_ratio=PAIR_VARIANCE,
        noise="r0_gaussian",
        scale_law="log_uniform",
        scale_range=(0.9, 1.1),
        local_batch_size=BATCH,
        server_learning_rate=0.5,
    )


def charges() -> dict[str, float]:
    """Mu of a round at own variance 1 and sensitivity 1, by each bound."""
    graph = view.pair_graph(
        bidirectional.edges(config()),
        num_clients=CLIENTS,
        own_variance=1.0,
        pair_variance=PAIR_VARIANCE,
    )
    worst = colluders.worst_case(graph, num_colluders=COLLUDERS)
    return {
        "star": float(np.max(view.certificate(graph, num_colluders=COLLUDERS))),
        "certified": float(worst.mu.max()),
        "all sets": float(np.max(view.worst_mu(graph, num_colluders=COLLUDERS))),
    }


def multiplier(make: Any, before: Any) -> float:
    """The noise multiplier that spends EPSILON in all rounds."""
    return float(
        accounting.calibrate(
            lambda noise: make(dataclasses.replace(before, noise_multiplier=noise)).repeat(ROUNDS),
            epsilon=EPSILON,
            delta=DELTA,
            method="gdp",
        )
    )


def train(name: str, found: Any, seeds: int) -> list[float]:
    """Held-out accuracy of each seed of secrets, batches and noise; the config has its noise."""
    digits = data.load("digits")
    table = data.partition.iid(digits.train["y"], CLIENTS, np.random.default_rng(0))
    clients = data.ClientData(jax.tree.map(jnp.asarray, digits.train), jnp.asarray(table))
    model = models.create(
        "mlp", example_shape=(8, 8, 1), num_classes=10, key=jax.random.key(0), hidden=(32, 32)
    )
    algorithm = schemes.get(name).make(
        found, models.squared_error(model.apply), num_units=len(digits.train["y"])
    )
    cohort = data.cohort(clients, jnp.arange(CLIENTS))

    @jax.jit
    def run(key: jax.Array) -> Any:
        def step(state: Any, _: None) -> tuple[Any, None]:
            return algorithm.round(state, cohort, key)[0], None

        return jax.lax.scan(step, algorithm.init(model.params), None, length=ROUNDS)[0].params

    test = jax.tree.map(jnp.asarray, digits.test)
    return [
        float(models.evaluate(model.apply, run(jax.random.key(seed)), test)[1])
        for seed in range(seeds)
    ]


def rows(seeds: int) -> list[dict[str, Any]]:
    """A row for each charge, and for a trusted server."""
    before, mu = config(), charges()
    noise = multiplier(bidirectional.event, before)
    found = []
    for name in SCHEMES:
        # own_stddev grows with the multiplier and with the certified mu: another charge, another
        # multiplier
        one = dataclasses.replace(before, noise_multiplier=noise * mu[name] / mu["certified"])
        found.append(
            {
                "charge": name,
                "mu": mu[name],
                "own_stddev": bidirectional.own_stddev(one),
                "accuracies": train("bidirectional", one, seeds),
            }
        )
        print(found[-1], flush=True)
    central = schemes.get("mp_cdp")
    one = central.Config(
        num_parties=CLIENTS, local_batch_size=BATCH, server_learning_rate=0.5, noise_multiplier=None
    )
    one = dataclasses.replace(one, noise_multiplier=multiplier(central.event, one))
    found.append(
        {
            "charge": "central",
            "mu": 1 / math.sqrt(CLIENTS),
            "own_stddev": None,
            "accuracies": train("mp_cdp", one, seeds),
        }
    )
    same = {"epsilon": EPSILON, "delta": DELTA, "rounds": ROUNDS, "clients": CLIENTS}
    return [
        row | same | {"accuracy": statistics.mean(row["accuracies"]), "seeds": seeds}
        for row in found
    ]


def table(found: _tables.Rows) -> str:
    """Accuracy by what colluders are charged."""
    body = [
        [
            row["charge"],
            _tables.up(row["mu"]),
            f"{row['accuracy']:.1%}",
            ", ".join(f"{one:.1%}" for one in row["accuracies"]),
        ]
        for row in found
    ]
    return _tables.markdown(["charge", "mu of a round", "accuracy", "seed by seed"], body)


def main() -> None:
    """Prints the table and writes its rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    found = rows(parser.parse_args().seeds)
    print(table(found))
    note = f"{ROUNDS} rounds, ({EPSILON}, {DELTA}) for a record, unit: record, replaced"
    print(_harness.write("colluders_training", found, note=note))


if __name__ == "__main__":
    main()
