"""A loss that draws, and an optimizer for clients: dropout and Adam under client-level privacy.

    python examples/dropout_and_adam.py

The third parameter of the loss is named `key`: so each example gets a key of its own at each step,
the same on any machine. `local_optimizer` is any optax transformation. What leaves a client is one
clipped update, whatever it drew and however it stepped: the claim is that of plain SGD.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import fljax
import fljax_kernels
from fljax import accounting, data, models
from fljax.schemes.central import dp_fedavg

NUM_CLIENTS = 400
NUM_ROUNDS = 40
SAMPLING_PROB = 0.25
TARGET_EPSILON = 8.0
DELTA = 1 / (2 * NUM_CLIENTS)
HIDDEN = 48
KEPT = 0.8  # share of the hidden units that dropout keeps


def hidden(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """The hidden layer of ONE image `[8, 8, 1]`, `[HIDDEN]`."""
    return jnp.tanh(x.reshape(-1) @ params["first"] + params["bias"])


def apply(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Logits `[10]` of ONE image; nothing is dropped where a model is used."""
    return hidden(params, x) @ params["last"]


def loss(params: dict[str, jax.Array], example: dict[str, jax.Array], key: jax.Array) -> jax.Array:
    """Cross-entropy with dropout."""
    kept = jax.random.bernoulli(key, KEPT, (HIDDEN,))
    logits = jnp.where(kept, hidden(params, example["x"]) / KEPT, 0.0) @ params["last"]
    return -jax.nn.log_softmax(logits)[example["y"]]


def config(noise_multiplier: float) -> dp_fedavg.Config:
    """The public numbers of the run."""
    return dp_fedavg.Config(
        sampling_prob=SAMPLING_PROB,
        noise_multiplier=noise_multiplier,
        local_batch_size=4,
        num_local_epochs=2,
        server_momentum=0.5,
    )


def main() -> None:
    """Calibrates the noise, trains, and prints what was spent and what was learned."""
    digits = data.load("digits")
    table = data.partition.dirichlet(
        digits.train["y"], NUM_CLIENTS, np.random.default_rng(0), alpha=1.0
    )
    clients = data.ClientData(jax.tree.map(jnp.asarray, digits.train), jnp.asarray(table))

    def run_event(noise_multiplier: float) -> fljax.PrivacyEvent:
        return dp_fedavg.event(config(noise_multiplier)).repeat(NUM_ROUNDS)

    noise_multiplier = accounting.calibrate(run_event, epsilon=TARGET_EPSILON, delta=DELTA)
    algorithm = dp_fedavg.make(
        config(noise_multiplier), loss, num_units=NUM_CLIENTS, local_optimizer=optax.adam(0.01)
    )
    capacity = fljax_kernels.poisson_capacity(NUM_CLIENTS, SAMPLING_PROB, 1e-9)

    @jax.jit
    def one_round(state: Any, sample_key: jax.Array, round_key: jax.Array) -> tuple[Any, jax.Array]:
        sample = fljax_kernels.poisson_sample(sample_key, NUM_CLIENTS, SAMPLING_PROB, capacity)
        return algorithm.round(state, data.cohort(clients, sample.indices), round_key)[
            0
        ], sample.overflow

    draw = np.random.default_rng(1).normal
    params = {
        "first": jnp.asarray(draw(size=(64, HIDDEN)) / 8, jnp.float32),
        "bias": jnp.zeros(HIDDEN),
        "last": jnp.zeros((HIDDEN, 10)),
    }
    state = algorithm.init(params)
    round_key, sampling_key = jax.random.split(jax.random.key(2026))
    for sample_key in jax.random.split(sampling_key, NUM_ROUNDS):
        state, overflow = one_round(state, sample_key, round_key)
        if overflow:
            raise RuntimeError(
                "the sample did not fit: this run is not what the accountant assumed"
            )

    epsilon = accounting.epsilon(run_event(noise_multiplier), delta=DELTA)
    _, accuracy = models.evaluate(apply, state.params, digits.test)
    print(
        f"client-level epsilon {epsilon:.3f}, delta {DELTA:.2e}, test accuracy "
        f"{float(accuracy):.3f}"
    )


if __name__ == "__main__":
    main()
