"""Defences of records by schemes that a run trains with: noise in records, in an embedding of them,
on gradients, and compression.

    python examples/defences.py

Each trains the same clients, digits, at NATS of one use of a record or of one upload. Then an
attacker who has public digits, and saw how uploads of a client with one record look, makes a linear
estimate of such a record from its first upload. Compression promises nothing: what it leaves
out is all that it hides.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax import data, models, schemes
from fljax.attacks import reconstruction
from fljax.data import partition

NATS = 8.0
NUM_CLIENTS = 60
NUM_ROUNDS = 15
NUM_RECORDS = 200
DEFENCES: dict[str, tuple[str, dict[str, Any]]] = {
    "none": ("natural_channel", {"nats": math.inf}),
    "noise in records": ("natural_channel", {"nats": NATS, "covariance_source": "public"}),
    "noise in an embedding": ("embedding_channel", {"nats": NATS, "kept": 0.25}),
    "noise on gradients": ("parameter_channel", {"nats": NATS}),
    "the largest numbers": ("compressed_updates", {"kept": 0.1}),
}


def train(name: str, changes: dict[str, Any], seen: reconstruction.Seen) -> tuple[float, str]:
    """(Accuracy on held-out digits, what all rounds told of a record, in words)."""
    scheme, clients = schemes.get(name), seen.client_data
    config = scheme.fitted(scheme.Config(server_momentum=0.5, **changes), data.facts.of(clients))
    inputs = {} if scheme.inputs is None else scheme.inputs(config, seen)
    functional = models.create(
        "softmax", example_shape=(8, 8, 1), num_classes=10, key=jax.random.key(0)
    )
    loss = models.softmax_cross_entropy(functional.apply)
    algorithm = scheme.make(config, loss, num_units=NUM_CLIENTS, **inputs)
    state, cohort = algorithm.init(functional.params), data.cohort(clients, jnp.arange(NUM_CLIENTS))
    step = jax.jit(algorithm.round)
    for _ in range(NUM_ROUNDS):
        state, _ = step(state, cohort, jax.random.key(1, impl="threefry2x32"))
    spent = None if scheme.spent is None else scheme.spent(config, seen, inputs, NUM_ROUNDS)
    accuracy = float(models.evaluate(functional.apply, state.params, seen.dataset.test)[1])
    if spent is None:
        return accuracy, "all"
    return accuracy, f"{'at most' if spent.certified else 'unproved:'} {spent.nats[0]:.0f} nats"


def error(name: str, changes: dict[str, Any], dataset: data.Dataset) -> float:
    """Squared error per pixel of a linear estimate from first uploads, at the best of three
    penalties, as a share of what the mean image errs by.
    """
    config = reconstruction.config(name, **changes)
    params = {"kernel": jnp.zeros((64, 10)), "bias": jnp.zeros(10)}
    loss = models.softmax_cross_entropy(
        lambda params, x: x.reshape(-1) @ params["kernel"] + params["bias"]
    )
    count = 2 * NUM_RECORDS
    examples = {key: jnp.asarray(leaf[:count]) for key, leaf in dataset.train.items()}
    keys = jax.random.split(jax.random.key(2, impl="threefry2x32"), count)
    moved = reconstruction.updates(name, config, loss, params, examples, keys, dataset)
    away = 0.1 - np.eye(10)[np.asarray(examples["y"])]  # the label is known
    views = np.einsum("tdk,tk->td", np.asarray(moved["kernel"], np.float64), away)
    truth = np.asarray(examples["x"], np.float64).reshape(count, -1)
    known, own = slice(None, NUM_RECORDS), slice(NUM_RECORDS, None)
    centre, mean = views[known].mean(axis=0), truth[known].mean(axis=0)
    seen = views[known] - centre
    gram, errors = seen.T @ seen, []
    for ridge in (0.01, 1.0, 100.0):
        penalty = ridge * np.trace(gram) / 64 * np.eye(64)
        gain = np.linalg.solve(gram + penalty, seen.T @ (truth[known] - mean))
        found = mean + (views[own] - centre) @ gain
        errors.append(np.square(found - truth[own]).mean())
    return float(min(errors) / np.square(mean - truth[own]).mean())


def main() -> None:
    """Trains and attacks behind each defence, and prints a line for each."""
    dataset = data.load("digits")
    table = partition.iid(dataset.train["y"], NUM_CLIENTS, np.random.default_rng(0))
    clients = data.ClientData(jax.tree.map(jnp.asarray, dataset.train), jnp.asarray(table))
    seen = reconstruction.Seen(dataset, clients)
    for defence, (name, changes) in DEFENCES.items():
        accuracy, told = train(name, changes, seen)
        print(
            f"{defence:22} accuracy {accuracy:.1%}; {told} told of a record in {NUM_ROUNDS} "
            f"rounds; an attacker errs by {error(name, changes, dataset):.0%} of the variance"
        )
    print("Nats are means over records and noise. No epsilon and no delta follow from them.")


if __name__ == "__main__":
    main()
