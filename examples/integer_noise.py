"""Noise in whole numbers beside noise in float32, at the same epsilon: of clients, of a server.

python examples/integer_noise.py
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax import accounting, data, models, schemes
from fljax.upload import integer_grid

NUM_CLIENTS = 50
NUM_ROUNDS = 20
TARGET_EPSILON = 8.0
DELTA = 1e-3
SCHEMES = ("smpc_dp", "distributed_dgauss", "skellam")
NOISES = ("float32", "exact")


def train(name: str, clients: data.ClientData, digits: data.Dataset, **fields: Any) -> None:
    """Calibrates, trains and prints one line."""
    scheme = schemes.get(name)
    model = models.create("softmax", example_shape=(8, 8, 1), num_classes=10, key=jax.random.key(0))
    config = scheme.Config(**fields)

    def run(noise_multiplier: float) -> accounting.PrivacyEvent:
        noisy = dataclasses.replace(config, noise_multiplier=noise_multiplier)
        event: accounting.PrivacyEvent = scheme.event(noisy)
        return event.repeat(NUM_ROUNDS)

    noise_multiplier = accounting.calibrate(run, epsilon=TARGET_EPSILON, delta=DELTA)
    config = dataclasses.replace(config, noise_multiplier=noise_multiplier)
    algorithm = scheme.make(
        config, models.softmax_cross_entropy(model.apply), num_units=NUM_CLIENTS
    )
    state, key = algorithm.init(model.params), jax.random.key(1)
    cohort = data.cohort(clients, jnp.arange(NUM_CLIENTS))
    one_round = jax.jit(algorithm.round)
    for _ in range(NUM_ROUNDS):
        state, _ = one_round(state, cohort, key)
    _, accuracy = models.evaluate(model.apply, state.params, jax.tree.map(jnp.asarray, digits.test))
    spent = accounting.epsilon(run(noise_multiplier), delta=DELTA)
    label = fields.get("noise", name)
    print(f"  {label:18} epsilon {spent:.3f} at delta {DELTA:g}   accuracy {float(accuracy):.1%}")


def bits() -> None:
    """What finer grids cost: bits of a number, and steps that rounding adds to a client's norm."""
    for grid_norm in (128, 1024, 8192):
        stddev = 2 * grid_norm / np.sqrt(NUM_CLIENTS - 5)
        grid = integer_grid.plan(
            650,
            l2_clip_norm=0.5,
            most_norm=grid_norm,
            num_clients=NUM_CLIENTS,
            most_noise=integer_grid.most_noise("discrete_gaussian", stddev),
        )
        lost = 1 - grid.scale * 0.5 / grid_norm
        print(
            f"  grid_norm {grid_norm:5}: {grid.bits} bits a number, {lost:.2%} of the norm unused"
        )


def main() -> None:
    """Trains with each scheme, then compares grids."""
    digits = data.load("digits")
    table = data.partition.iid(digits.train["y"], NUM_CLIENTS, np.random.default_rng(0))
    clients = data.ClientData(jax.tree.map(jnp.asarray, digits.train), jnp.asarray(table))
    print("Clients that noise their own updates:")
    for name in SCHEMES:
        train(name, clients, digits, num_parties=NUM_CLIENTS, max_colluders=5)
    print("A trusted server, dp_fedavg with all clients in each round:")
    for noise in NOISES:
        train("dp_fedavg", clients, digits, noise=noise, sampling_prob=1.0)
    print("At noise multiplier 1, with which no sum wraps around:")
    bits()


if __name__ == "__main__":
    main()
