"""Training on noisy records: what a run tells about each of them in nats, and the error that this
leaves an attacker.

    python examples/channel.py

Twenty clients train on Gaussian random fields, whose law is known, so that the bound on
reconstruction is proved. Each adds noise to its records, new noise at each use. Counted jointly,
many uses tell far less than their nats added up: the difference decides whether the bound says
anything. At the end an attacker who saw every noisy copy tries.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax import data, models
from fljax.accounting import information
from fljax.attacks import reconstruction
from fljax.data import channel, partition
from fljax.data.sources import fields
from fljax.schemes import natural_channel

NATS_PER_USE = 20.0
NUM_CLIENTS = 20
NUM_ROUNDS = 12
NUM_TARGETS = 200
LEARNING_RATE = 0.2


def train(config: Any, seen: reconstruction.Seen) -> tuple[float, dict[str, Any], jax.Array]:
    """(accuracy on held-out records, the channel that was solved, the run's key)."""
    dataset, clients = seen
    init_key, run_key = jax.random.split(jax.random.key(0, impl="threefry2x32"))
    shape = dataset.train["x"].shape[1:]
    functional = models.create(
        "mlp", example_shape=shape, num_classes=dataset.num_classes, key=init_key
    )
    inputs = natural_channel.inputs(config, seen)
    loss = models.softmax_cross_entropy(functional.apply)
    algorithm = natural_channel.make(config, loss, num_units=NUM_CLIENTS, **inputs)
    state, cohort = algorithm.init(functional.params), data.cohort(clients, jnp.arange(NUM_CLIENTS))
    step = jax.jit(algorithm.round)
    for _ in range(NUM_ROUNDS):
        state, _ = step(state, cohort, run_key)
    return float(models.evaluate(functional.apply, state.params, dataset.test)[1]), inputs, run_key


def attack(noise: channel.RecordNoise, dataset: data.Dataset, key: jax.Array) -> float:
    """Mean squared error per pixel of the best estimate of records, as client 0 uses them, from all
    their noisy copies.

    No attack on what a client sends does better: it sees less than these copies.
    """
    x = jnp.asarray(dataset.train["x"][:NUM_TARGETS])
    client_key = channel.client_keys(key, jnp.zeros(1, jnp.int32))[0]
    rows = jnp.arange(len(x))
    uses = [
        channel.noisy(noise, x, channel.record_keys(client_key, rows, use))
        for use in range(NUM_ROUNDS)
    ]
    values, basis = fields.spectrum(), fields.basis()
    mean = np.mean(uses, axis=0).reshape(len(x), -1) @ basis.T
    gain = values / (values + np.exp(float(noise.log_noise_var)) / NUM_ROUNDS)
    return float(np.mean((mean * gain - np.asarray(x).reshape(len(x), -1) @ basis.T) ** 2))


def main() -> None:
    """Trains with and without the channel, and prints what each record gave away."""
    dataset = data.load("fields")
    table = partition.iid(dataset.train["y"], NUM_CLIENTS, np.random.default_rng(0))
    seen = reconstruction.Seen(
        dataset, data.ClientData(jax.tree.map(jnp.asarray, dataset.train), jnp.asarray(table))
    )
    config = natural_channel.Config(
        nats=NATS_PER_USE,
        covariance_source="public",
        data_model="gaussian",
        local_learning_rate=LEARNING_RATE,
        server_momentum=0.0,
    )
    plain, _, _ = train(dataclasses.replace(config, nats=math.inf), seen)
    accuracy, inputs, key = train(config, seen)
    print(
        f"accuracy {accuracy:.1%} with noise in the records, {plain:.1%} without; {NUM_ROUNDS} "
        "uses of each record"
    )

    spent = natural_channel.spent(config, seen, inputs, NUM_ROUNDS)
    assert spent is not None  # there is noise
    wide = inputs["channel"].value_range[1] - inputs["channel"].value_range[0]
    for name, nats in (("jointly", spent.nats[0]), ("one by one", spent.linear_nats[0])):
        leakage = information.after_uses(
            inputs["channel"].capacity, NUM_ROUNDS, label_nats=spent.label_nats
        )
        bound = information.distortion_rate(
            dataclasses.replace(leakage, nats=nats), inputs["channel"].values, data_model="gaussian"
        )
        print(
            f"counted {name:10}: {nats:6.1f} nats per record, its label's {spent.label_nats:.2f} "
            "among them; error of "
            f"any reconstruction >= {bound.mse:.2e}, PSNR <= {bound.psnr(wide):.1f} dB"
        )
    print("certified" if spent.mse_certified else f"NOT certified: {spent.mse_reason}")
    best = attack(inputs["channel"].noise, dataset, key)
    print(
        f"the best attack on all {NUM_ROUNDS} noisy copies: error {best:.2e}, "
        f"{10 * np.log10(wide**2 / best):.1f} dB"
    )
    print("Nats are means over records and noise. No epsilon and no delta follow from them.")


if __name__ == "__main__":
    main()
