"""A task that no name stands for: own arrays, own nnx module, own loss; run as a program, it
trains.

python tests/simulation/_own_task.py SCHEME RUN_DIR
"""

import hashlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import fljax

NUM_USERS, NUM_FEATURES, NUM_TRAIN, NUM_TEST = 12, 5, 300, 100
SETTINGS = {
    "dp_fedavg": {"sampling_prob": 0.5, "num_rounds": 40, "local_learning_rate": 0.05},
    "higradavg": {"num_rounds": 24, "num_local_steps": 1, "expected_subjects": 4.0},
    "lightdp": {"num_rounds": 40, "max_colluders": 2, "max_stragglers": 2},
}


class Net(nnx.Module):
    """One hidden layer for a regression."""

    def __init__(self, rngs):
        self.hidden = nnx.Linear(NUM_FEATURES, 6, rngs=rngs)
        self.out = nnx.Linear(6, 1, rngs=rngs)

    def __call__(self, x):
        return self.out(jnp.tanh(self.hidden(x)))[..., 0]


def net():
    """The module, the same in every process."""
    return Net(nnx.Rngs(7))


def loss(params, example):
    """Squared error of one example."""
    return (fljax.models.functional(net()).apply(params, example["x"]) - example["y"]) ** 2


def mae(params, apply, examples):
    """Absolute error of each example."""
    return jnp.abs(jax.vmap(apply, (None, 0))(params, examples["x"]) - examples["y"])


def arrays(subjects=False):
    """(training examples with the users' ids, held-out examples)."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(NUM_TRAIN + NUM_TEST, NUM_FEATURES)).astype(np.float32)
    y = np.sin(x @ rng.normal(size=NUM_FEATURES)).astype(np.float32)
    every = {"x": x, "y": y}
    if subjects:
        every["subject"] = rng.integers(0, 60, len(x)).astype(np.int32)
    train = {name: field[:NUM_TRAIN] for name, field in every.items()}
    train["user"] = np.array([f"user-{number}" for number in np.arange(NUM_TRAIN) % NUM_USERS])
    return train, {name: field[NUM_TRAIN:] for name, field in every.items()}


def call(scheme, run_dir, **changes):
    """One call of `fljax.simulate`, some of its arguments changed."""
    train, test = arrays(subjects=scheme == "higradavg")
    given = {
        "data": train,
        "clients": "user",
        "test_data": test,
        "model": net(),
        "loss": loss,
        "metrics": {"mae": mae},
        "run_dir": run_dir,
        "seed": 5,
        "eval_every": 10,
        "checkpoint_every": 1,
        "baseline": False,
        "accountant": "rdp",
        "target_epsilon": 8.0,
        "target_delta": 0.01,
        **SETTINGS.get(scheme, {}),
        **changes,
    }
    return fljax.simulate(scheme, **given)


def bits(result):
    """What must not differ: the model, and what was written."""
    sha = hashlib.sha256()
    for leaf in jax.tree.leaves(result.params):
        sha.update(np.asarray(leaf).tobytes())
    for name in ("config.toml", "metrics.jsonl", "privacy.json"):
        sha.update((result.run_dir / name).read_bytes())
    return sha.hexdigest()


if __name__ == "__main__":
    print(bits(call(sys.argv[1], sys.argv[2])))
