"""Sixteen silos that share their subjects train one model; what is protected is a subject, in all
silos at once.

Each silo averages the clipped gradients of a subject before it adds its own noise, so that neither
the server nor another silo is trusted. The epsilon holds for the worst subject that the public caps
allow; what each real subject lost is printed too, and is private.
"""

import jax
import jax.numpy as jnp
import numpy as np

from fljax import accounting, data, models
from fljax.schemes.silos import higradavg, higradavg_sum, subject_ledger

NUM_ROUNDS = 30
EPSILON, DELTA = 8.0, 1e-3
# Every number here is public. No subject may count with more than 4 items in a silo.
NUM_SILOS, MAX_ITEMS = 16, 4
SKEW = 2.0  # exponent of the power law by which each subject's items fall into the silos; 1 is even


def main() -> None:
    """Trains, and prints what was learned and what it cost."""
    dataset = data.load("writers")
    ids = data.subjects.subject_ids(dataset.train)
    rng = np.random.default_rng(0)
    table = data.subjects.power_law(ids, NUM_SILOS, rng, alpha=SKEW)
    table, dropped = data.subjects.cap_items(ids, table, max_items=MAX_ITEMS, rng=rng)
    num_subjects = np.unique(ids).size
    print(
        f"{num_subjects} subjects, {ids.size} items in {NUM_SILOS} silos, {dropped} left out by "
        "the cap"
    )

    def configured(noise_multiplier: float) -> higradavg.Config:
        return higradavg.Config(
            num_parties=NUM_SILOS,
            num_local_steps=2,
            item_sampling_prob=0.1,
            max_items_per_subject=MAX_ITEMS,
            l2_clip_norm=0.5,
            local_learning_rate=4.0,
            expected_subjects=70.0,
            noise_multiplier=noise_multiplier,
        )

    def event(noise_multiplier: float) -> accounting.PrivacyEvent:
        return higradavg.event(configured(noise_multiplier)).repeat(NUM_ROUNDS)

    noise_multiplier = accounting.calibrate(event, epsilon=EPSILON, delta=DELTA)
    config = configured(noise_multiplier)

    init_key, key = jax.random.split(jax.random.key(0))
    model = models.create("softmax", example_shape=(8, 8, 1), num_classes=10, key=init_key)
    algorithm = higradavg.make(
        config, models.softmax_cross_entropy(model.apply), num_units=num_subjects
    )
    examples = jax.tree.map(jnp.asarray, dataset.train)
    cohort = data.Cohort(examples, jnp.asarray(table), jnp.arange(NUM_SILOS, dtype=jnp.int32))
    one_round, state = jax.jit(algorithm.round), algorithm.init(model.params)
    for done in range(1, NUM_ROUNDS + 1):
        state, info = one_round(state, cohort, key)
        if done % 10 == 0:
            _, accuracy = models.evaluate(model.apply, state.params, dataset.test)
            print(
                f"round {done:3d}  training loss {float(info.loss):.3f}  held-out accuracy "
                f"{float(accuracy):.1%}"
            )

    spent = accounting.epsilon(event(noise_multiplier), delta=DELTA)
    print(
        f"epsilon {spent:.3f} at delta {DELTA:g} for any one subject in all silos, noise "
        f"{noise_multiplier:.2f}"
    )

    # Where a secure sum shows the server the mean of all silos alone, all their noise hides a
    # subject; each silo then takes one step a round.
    def summed(noise_multiplier: float) -> accounting.PrivacyEvent:
        config = higradavg_sum.Config(
            num_parties=NUM_SILOS,
            item_sampling_prob=0.1,
            max_items_per_subject=MAX_ITEMS,
            noise_multiplier=noise_multiplier,
            silos_per_subject=2,
        )
        return higradavg_sum.event(config).repeat(2 * NUM_ROUNDS)

    behind = accounting.calibrate(summed, epsilon=EPSILON, delta=DELTA)
    print(
        f"as many steps behind a secure sum, subjects in at most two silos: noise {behind:.2f} each"
    )
    counts = data.subjects.counts(ids, table)
    own = subject_ledger.epsilons(higradavg, config, counts, num_rounds=NUM_ROUNDS, delta=DELTA)
    print(
        f"private: the subjects of this run lost {own.min():.2f} to {own.max():.2f}, median "
        f"{np.median(own):.2f}"
    )


if __name__ == "__main__":
    main()
