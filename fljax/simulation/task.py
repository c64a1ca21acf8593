"""What a run trains on and with: dataset, clients, model, loss; all of it a function of the config alone."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax import data, models
from fljax.simulation.config import Config, DataConfig
from fljax.types import LossFn

_PARTITION = 1  # names the stream of numpy randomness that deals examples to clients


class Task(NamedTuple):
    """A classification task split over clients.

    dataset: host arrays. client_data: device arrays. model: initial params and apply. round_key: `[]`, for all rounds.
    """

    dataset: data.Dataset
    client_data: data.ClientData
    model: models.Functional
    loss: LossFn
    round_key: jax.Array


def client_table(config: DataConfig, train: dict[str, np.ndarray], seed: int) -> np.ndarray:
    """Rows of examples for each client: int32 `[num_clients, N]`, -1 is padding.

    Raises:
      ValueError: more clients than examples (or subjects).
      PrivacyPreconditionError: a partition of subjects was asked for, and the examples carry none.
    """
    rng = np.random.default_rng([seed, _PARTITION])
    if config.partition == "subject_uniform":
        return data.subjects.uniform(data.subjects.subject_ids(train), config.num_clients, rng)
    if config.partition == "subject_power_law":
        ids = data.subjects.subject_ids(train)
        return data.subjects.power_law(ids, config.num_clients, rng, alpha=config.power_law_exponent)
    options: dict[str, dict[str, Any]] = {
        "iid": {},
        "dirichlet": {"alpha": config.dirichlet_alpha},
        "shards": {"shards_per_client": config.shards_per_client},
        "power_law": {"exponent": config.power_law_exponent},
    }
    deal = getattr(data.partition, config.partition)
    return deal(train["y"], config.num_clients, rng, **options[config.partition])


def build(config: Config) -> Task:
    """Loads, checks and splits the data, and draws the initial model.

    Raises:
      ValueError: data that is not finite, labels out of range, or more clients than examples.
    """
    dataset = data.load(config.data.dataset)
    for name, examples in (("train", dataset.train), ("test", dataset.test)):
        data.check_examples(examples, num_classes=dataset.num_classes, name=name)
    table = client_table(config.data, dataset.train, config.run.seed)
    data.check_partition(table, dataset.train["y"].shape[0])
    client_data = data.ClientData(jax.tree.map(jnp.asarray, dataset.train), jnp.asarray(table))
    init_key, round_key = jax.random.split(jax.random.key(config.run.seed, impl="threefry2x32"))
    model = models.create(
        config.model.model,
        example_shape=dataset.train["x"].shape[1:],
        num_classes=dataset.num_classes,
        key=init_key,
    )
    return Task(dataset, client_data, model, models.softmax_cross_entropy(model.apply), round_key)
