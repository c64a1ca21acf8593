"""Your own data, model and loss in the whole host loop: budget, checkpoints, resume, report.

    python examples/own_data_and_model.py

Readings of wearables by users who go by strings; a module and a loss that no name stands for; a
metric of your own. The same call with the same RUN_DIR goes on with a run that was interrupted.
"""

import pathlib
import tempfile
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import fljax

NUM_USERS = 200
NUM_READINGS = 6000
NUM_ROUNDS = 30
NUM_FEATURES = 12
NUM_ACTIVITIES = 4
TARGET_EPSILON = 6.0
TARGET_DELTA = 1e-3
LABEL_SMOOTHING = 0.05
RUN_DIR: str | None = None  # None: a folder that is gone afterwards


class Activity(nnx.Module):
    """One hidden layer, written for a batch of readings `[B, NUM_FEATURES]`."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(NUM_FEATURES, 24, rngs=rngs)
        self.out = nnx.Linear(24, NUM_ACTIVITIES, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits `[B, NUM_ACTIVITIES]`."""
        return self.out(nnx.tanh(self.hidden(x)))


def readings(count: int, seed: int) -> dict[str, np.ndarray]:
    """Each user has a way of its own to move; all of them share what tells activities apart."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(1).normal(size=(NUM_ACTIVITIES, NUM_FEATURES))
    users, labels = rng.integers(0, NUM_USERS, count), rng.integers(0, NUM_ACTIVITIES, count)
    habits = 0.3 * np.random.default_rng(2).normal(size=(NUM_USERS, NUM_FEATURES))
    x = centres[labels] + habits[users] + rng.normal(size=(count, NUM_FEATURES))
    return {"x": x, "y": labels, "user": np.array([f"user-{user:03d}" for user in users])}


def recall_at_2(
    params: object, apply: Callable[..., jax.Array], examples: dict[str, jax.Array]
) -> jax.Array:
    """Whether each label is among the two activities that the model finds likeliest, `[M]`."""
    best = jax.lax.top_k(jax.vmap(apply, (None, 0))(params, examples["x"]), 2)[1]
    return jnp.any(best == examples["y"][:, None], axis=1)


def main() -> None:
    """Trains, and prints what was spent and what was learned."""
    params, apply = fljax.models.functional(Activity(nnx.Rngs(0)))

    def loss(params: object, example: dict[str, jax.Array]) -> jax.Array:
        log_probs = jax.nn.log_softmax(apply(params, example["x"]))
        target = jax.nn.one_hot(example["y"], NUM_ACTIVITIES)
        smooth = target * (1 - LABEL_SMOOTHING) + LABEL_SMOOTHING / NUM_ACTIVITIES
        return -jnp.vdot(smooth, log_probs)

    with tempfile.TemporaryDirectory() as temporary:
        result = fljax.simulate(
            "dp_fedavg",
            data=readings(NUM_READINGS, seed=3),
            clients="user",
            test_data=readings(1000, seed=4),
            num_classes=NUM_ACTIVITIES,
            model=(params, apply),
            loss=loss,
            metrics={"recall_at_2": recall_at_2},
            run_dir=RUN_DIR or pathlib.Path(temporary) / "run",
            num_rounds=NUM_ROUNDS,
            sampling_prob=0.5,
            target_epsilon=TARGET_EPSILON,
            target_delta=TARGET_DELTA,
        )
    assert result.accuracy is not None  # there are classes
    print(f"{result.rounds} rounds, {result.num_units} {result.privacy_unit}s")
    print(f"epsilon {result.epsilon:.3f}, delta {result.delta:g}")
    print(f"accuracy {result.accuracy:.3f}, recall at 2 {result.metrics['recall_at_2']:.3f}")
    worst = sorted(result.client_metrics["recall_at_2"].items(), key=lambda entry: entry[1])[:3]
    print(
        "users whom the model serves worst:",
        ", ".join(f"{user} {value:.2f}" for user, value in worst),
    )


if __name__ == "__main__":
    main()
