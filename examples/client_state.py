"""A part of the model that stays with each client, beside one that all share.

    python examples/client_state.py

Each user numbers the ten digits in a way of its own: a hidden layer can serve everybody, the last
layer has to be the user's. `dp_fedper` trains it there, keeps it in the run's folder between rounds
and releases the shared layer alone; `dp_scaffold` shares all layers, and has clients keep control
variates, which does not help here. What clients keep changes nothing about the claim.
"""

import pathlib
import tempfile
from collections.abc import Callable

import jax
import numpy as np

import fljax
from fljax import data

NUM_CLIENTS = 60
NUM_ROUNDS = 30
TARGET_EPSILON = 16.0
DELTA = 1 / (2 * NUM_CLIENTS)


def renumbered() -> list[dict[str, np.ndarray]]:
    """The digits of each user, whose labels are turned by a number of the user's own."""
    digits, rng = data.load("digits"), np.random.default_rng(0)
    dealt = np.array_split(rng.permutation(len(digits.train["y"])), NUM_CLIENTS)
    turns = rng.integers(0, 10, NUM_CLIENTS)
    return [
        {"x": digits.train["x"][rows], "y": (digits.train["y"][rows] + turn) % 10}
        for rows, turn in zip(dealt, turns, strict=True)
    ]


def right(
    params: object, apply: Callable[..., jax.Array], examples: dict[str, jax.Array]
) -> jax.Array:
    """Whether each example gets its label, `[M]`."""
    return jax.vmap(apply, (None, 0))(params, examples["x"]).argmax(-1) == examples["y"]


def trained(scheme: str, run_dir: pathlib.Path) -> fljax.simulation.result.Result:
    """A run of the scheme."""
    return fljax.simulate(
        scheme,
        data=renumbered(),
        test_data=data.load("digits").test,
        num_classes=10,
        model="mlp",
        metrics={"right": right},
        run_dir=run_dir,
        num_rounds=NUM_ROUNDS,
        sampling_prob=0.5,
        target_epsilon=TARGET_EPSILON,
        target_delta=DELTA,
        local_batch_size=8,
        num_local_epochs=10,
        baseline=False,
    )


def main() -> None:
    """Trains by both schemes and prints how well clients are served by the models that they use."""
    for scheme in ("dp_fedper", "dp_scaffold"):
        with tempfile.TemporaryDirectory() as folder:
            result = trained(scheme, pathlib.Path(folder) / "run")
            served = np.mean(list(result.client_metrics["right"].values()))
        print(
            f"{scheme}: client-level epsilon {result.epsilon:.3f}, delta {result.delta:.2e}, "
            f"accuracy of clients' models on clients' digits {served:.3f}"
        )


if __name__ == "__main__":
    main()
