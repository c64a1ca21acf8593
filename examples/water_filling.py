"""Noise from the gradients themselves: GSGD-DP with water filling, and what its sum would give away
without noise.

    python examples/water_filling.py

Every client weighs its records by Gaussian numbers, which makes its update random in some
directions, and adds noise in the others. First the attack on a sum without added noise, then
training with it; unit of privacy: one record.
"""

import jax
import jax.numpy as jnp
import numpy as np

from fljax import accounting, data, models
from fljax.accounting.weighted_sums import rounds as weighted_rounds
from fljax.accounting.weighted_sums import span
from fljax.schemes.weighted import gsgd_dp

NUM_PARTIES = 50
RECORDS = 29
NUM_ROUNDS = 100
TARGET_EPSILON = 4.0
DELTA = 1e-4


def attack() -> None:
    """Is a record seen in a sum of Gaussian-weighted gradients? The adversary knows all other
    records.
    """
    rng = np.random.default_rng(0)
    known = rng.normal(size=(19, 40))
    suspect = rng.normal(size=40)
    for name, stddev in (("no noise", 0.0), ("noise", 2.0)):
        outside = []
        for present in (0.0, 1.0):
            weights = 1 / 20 + rng.normal(size=20) / np.sqrt(8 * 20)
            total = (
                weights[:-1] @ known
                + present * weights[-1] * suspect
                + stddev * rng.normal(size=40)
            )
            outside.append(span.distinguish(known, total, threshold=1e-6)[0])
        print(
            f"{name:8s}: the sum lies {outside[0]:.2g} outside the known span without the record, "
            f"{outside[1]:.2g} with"
        )


def main() -> None:
    """Runs the attack, calibrates, trains, and prints what was spent and what was learned."""
    attack()
    digits = data.load("digits")
    table = data.partition.iid(digits.train["y"], NUM_PARTIES, np.random.default_rng(0))
    examples = jax.tree.map(jnp.asarray, digits.train)
    everyone = data.Cohort(examples, jnp.asarray(table), jnp.arange(NUM_PARTIES, dtype=jnp.int32))

    def config(noise_multiplier: float) -> gsgd_dp.Config:
        return gsgd_dp.Config(
            num_parties=NUM_PARTIES,
            records_per_client=RECORDS,
            batch_size=8,
            l2_clip_norm=1.0,
            noise_multiplier=noise_multiplier,
            server_learning_rate=2.0,
        )

    def run_event(noise_multiplier: float) -> accounting.PrivacyEvent:
        return gsgd_dp.event(config(noise_multiplier)).repeat(NUM_ROUNDS)

    noise_multiplier = accounting.calibrate(run_event, epsilon=TARGET_EPSILON, delta=DELTA)
    model = models.create("softmax", example_shape=(8, 8, 1), num_classes=10, key=jax.random.key(0))
    algorithm = gsgd_dp.make(
        config(noise_multiplier), models.softmax_cross_entropy(model.apply), num_units=1438
    )
    state, one_round, key = (
        algorithm.init(model.params),
        jax.jit(algorithm.round),
        jax.random.key(1),
    )
    for _ in range(NUM_ROUNDS):
        state, _ = one_round(state, everyone, key)

    epsilon = accounting.epsilon(run_event(noise_multiplier), delta=DELTA)
    stddev = noise_multiplier * 2 * 1.0 / RECORDS / np.sqrt(NUM_PARTIES)
    setup = weighted_rounds.Setup(
        num_clients=NUM_PARTIES,
        num_records=RECORDS,
        batch_size=8,
        l2_clip_norm=1.0,
        noise_stddev=stddev,
    )
    printed = weighted_rounds.epsilon(
        "gaussian", "water_filling", setup, num_rounds=NUM_ROUNDS, delta=DELTA, formula="paper"
    )
    _, accuracy = models.evaluate(model.apply, state.params, digits.test)
    print(
        f"noise multiplier {noise_multiplier:.3f}, floor {stddev:.4f} per client, {NUM_ROUNDS} "
        "rounds"
    )
    print(
        f"record-level epsilon {epsilon:.3f}, delta {DELTA:.0e} (by the paper's Theorem 4: "
        f"{printed:.3f})"
    )
    print(f"test accuracy {float(accuracy):.3f}")


if __name__ == "__main__":
    main()
