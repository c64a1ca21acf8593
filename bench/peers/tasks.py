"""The three rounds of `bench.peers`: model, clients and batch size; who takes part is
`bench.peers.__main__`'s.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bench.kernels import workloads
from bench.rounds import round as one_round


class Spec(NamedTuple):
    """letter: the model in `bench.kernels._torch_models`. A client has `least` to `most` examples;
    one epoch.
    """

    title: str
    letter: str
    clients: int
    least: int
    most: int
    batch_size: int
    shape: tuple[int, ...]
    num_classes: int


SPECS = {
    "i": Spec("MLP 784-256-128-10, 1,000 clients x 20-100", "a", 1000, 20, 100, 20, (784,), 10),
    "ii": Spec("FEMNIST CNN, 100 clients x 20-100", "b", 100, 20, 100, 20, (28, 28, 1), 62),
    "iii": Spec(
        "pfl's CIFAR-10 CNN, 50 clients x 50", "pfl_cifar", 50, 50, 50, 10, (32, 32, 3), 10
    ),
}
MODELS = {"a": workloads.mlp, "b": workloads.femnist, "pfl_cifar": workloads.pfl_cifar}


def make(name: str, num_clients: int) -> one_round.Task:
    """The first `num_clients` clients of a round."""
    spec = SPECS[name]
    model = MODELS[spec.letter](jax.random.key(20261121), 1)
    clients = one_round.random_clients(
        num_clients, spec.shape, spec.num_classes, spec.least, spec.most
    )
    ids = jnp.arange(num_clients, dtype=jnp.int32)
    return one_round.Task(
        model.params, model.loss, clients, ids, jax.random.key(2), spec.batch_size
    )


def in_order(task: one_round.Task) -> list[tuple[np.ndarray, np.ndarray]]:
    """Each client's images (channels first, contiguous) and labels, in the order in which our round
    visits them.
    """
    x, y = (np.asarray(task.clients.examples[name]) for name in "xy")
    rows = [row[row >= 0] for row in one_round.shuffled_tables(task)]
    if x.ndim == 4:
        # A copy made by NumPy: torch's own `contiguous` keeps the strides of a permuted image of
        # one channel.
        x = x.transpose(0, 3, 1, 2).copy()
    return [(x[row], y[row]) for row in rows]


def num_steps(task: one_round.Task) -> int:
    """SGD steps of the whole cohort, without padding."""
    sizes = np.asarray(task.clients.indices >= 0).sum(axis=1)
    return int((-(-sizes // task.batch_size)).sum())
