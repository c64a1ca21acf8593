"""Clients that bring their examples to the devices that compute them: a round sends one sum.

A CPU becomes several devices here. On TPUs or GPUs the same program deals clients over those.
"""

import jax
import jax.numpy as jnp
import numpy as np

import fljax_kernels
from fljax import accounting, data, models
from fljax.schemes import dp_fedavg
from fljax.simulation.devices import mesh

NUM_CLIENTS = 400
NUM_ROUNDS = 30
NUM_DEVICES = 4
DELTA = 1e-3


def main() -> None:
    mesh.as_devices(NUM_DEVICES)
    devices = mesh.client_mesh(NUM_DEVICES)
    digits = data.load("digits")
    table = data.partition.iid(digits.train["y"], NUM_CLIENTS, np.random.default_rng(0))
    clients = data.ClientData(digits.train, jnp.asarray(table))
    model = models.create("softmax", example_shape=(8, 8, 1), num_classes=10, key=jax.random.key(0))
    config = dp_fedavg.Config(
        sampling_prob=0.5,
        l2_clip_norm=0.5,
        noise_multiplier=2.0,
        local_learning_rate=0.5,
        local_batch_size=4,
        num_local_epochs=5,
        server_learning_rate=1.0,
        server_momentum=0.0,
    )
    loss = models.softmax_cross_entropy(model.apply)
    algorithm = dp_fedavg.make(config, loss, num_units=NUM_CLIENTS)
    run, state = jax.jit(algorithm.round), algorithm.init(model.params)
    key, sample_key = jax.random.split(jax.random.key(1))
    for step in range(NUM_ROUNDS):
        # Who is in a round is known to everybody; the examples go to one device each.
        draw_key = jax.random.fold_in(sample_key, step)
        who = fljax_kernels.poisson_sample(draw_key, NUM_CLIENTS, 0.5, NUM_CLIENTS).indices
        cohort = data.dealt(data.cohort(clients, who), NUM_DEVICES)
        with mesh.over(devices):
            state, _ = run(state, mesh.dealt(devices, cohort), key)
    params = mesh.here(devices, state.params)
    _, accuracy = models.evaluate(model.apply, params, jax.device_put(digits.test))
    event = dp_fedavg.event(config).repeat(NUM_ROUNDS)
    epsilon = accounting.epsilon(event, delta=DELTA)
    print(f"{NUM_DEVICES} devices: accuracy {accuracy:.1%} at epsilon {epsilon:.2f}, delta {DELTA}")


if __name__ == "__main__":
    main()
