"""DP-FedAvg with your own flax module and your own loss: client-level privacy on real handwritten
digits.

    python examples/fedavg_custom_model.py

The module is an ordinary flax nnx module written for a batch; the loss is any function of params
and ONE example.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import fljax
import fljax_kernels
from fljax import accounting, data, models
from fljax.schemes.central import dp_fedavg
from fljax.types import Params

NUM_CLIENTS = 400
NUM_ROUNDS = 60
SAMPLING_PROB = 0.25
TARGET_EPSILON = 8.0
DELTA = 1 / (2 * NUM_CLIENTS)
L2_CLIP_NORM = 0.5
LABEL_SMOOTHING = 0.05
HIDDEN = 48


class Digits(nnx.Module):
    """Flatten, normalise, one hidden layer. LayerNorm and not BatchNorm: no example may depend on
    another.
    """

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(64, HIDDEN, rngs=rngs)
        self.norm = nnx.LayerNorm(HIDDEN, rngs=rngs)
        self.out = nnx.Linear(HIDDEN, 10, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits `[B, 10]` of images `[B, 8, 8, 1]`."""
        return self.out(nnx.tanh(self.norm(self.hidden(x.reshape(x.shape[0], -1)))))


def main() -> None:
    """Calibrates the noise, trains, and prints what was spent and what was learned."""
    params, apply = models.functional(Digits(nnx.Rngs(0)))

    def loss(params: Params, example: dict[str, jax.Array]) -> jax.Array:
        log_probs = jax.nn.log_softmax(apply(params, example["x"]))
        target = jax.nn.one_hot(example["y"], 10) * (1 - LABEL_SMOOTHING) + LABEL_SMOOTHING / 10
        return -jnp.vdot(target, log_probs)

    digits = data.load("digits")
    data.check_examples(digits.train, num_classes=digits.num_classes, name="train")
    table = data.partition.dirichlet(
        digits.train["y"], NUM_CLIENTS, np.random.default_rng(0), alpha=1.0
    )
    clients = data.ClientData(jax.tree.map(jnp.asarray, digits.train), jnp.asarray(table))

    def config(noise_multiplier: float) -> dp_fedavg.Config:
        return dp_fedavg.Config(
            sampling_prob=SAMPLING_PROB,
            l2_clip_norm=L2_CLIP_NORM,
            noise_multiplier=noise_multiplier,
            local_learning_rate=0.2,
            local_batch_size=4,
            num_local_epochs=2,
            server_momentum=0.5,
        )

    def run_event(noise_multiplier: float) -> fljax.PrivacyEvent:
        return dp_fedavg.event(config(noise_multiplier)).repeat(NUM_ROUNDS)

    noise_multiplier = accounting.calibrate(run_event, epsilon=TARGET_EPSILON, delta=DELTA)
    algorithm = dp_fedavg.make(config(noise_multiplier), loss, num_units=NUM_CLIENTS)
    # A cohort has a fixed capacity, so that nothing recompiles; a larger sample than this comes
    # once in 1e9 rounds.
    capacity = fljax_kernels.poisson_capacity(NUM_CLIENTS, SAMPLING_PROB, 1e-9)

    @jax.jit
    def one_round(
        state: Any, sample_key: jax.Array, round_key: jax.Array
    ) -> tuple[Any, fljax.RoundInfo, jax.Array]:
        sample = fljax_kernels.poisson_sample(sample_key, NUM_CLIENTS, SAMPLING_PROB, capacity)
        state, info = algorithm.round(state, data.cohort(clients, sample.indices), round_key)
        return state, info, sample.overflow

    state = algorithm.init(params)
    round_key, sampling_key = jax.random.split(jax.random.key(2026))
    for sample_key in jax.random.split(sampling_key, NUM_ROUNDS):
        state, _, overflow = one_round(state, sample_key, round_key)
        if overflow:
            raise RuntimeError(
                "the sample did not fit: this run is not what the accountant assumed"
            )

    epsilon = accounting.epsilon(run_event(noise_multiplier), delta=DELTA)
    _, accuracy = models.evaluate(apply, state.params, digits.test)
    print(f"noise multiplier {noise_multiplier:.3f}, {NUM_ROUNDS} rounds, {NUM_CLIENTS} clients")
    print(
        f"client-level epsilon {epsilon:.3f}, delta {DELTA:.2e}, test accuracy "
        f"{float(accuracy):.3f}"
    )


if __name__ == "__main__":
    main()
