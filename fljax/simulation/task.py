"""What a run trains on and with: dataset, clients, model, loss; all of it a function of the config and the seed."""

import pathlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax import data, models
from fljax.data import store
from fljax.simulation import seeds
from fljax.simulation.config import Config, DataConfig
from fljax.types import LossFn

_PARTITION = 1  # names the stream of numpy randomness that deals examples to clients


class Task(NamedTuple):
    """A classification task split over clients.

    dataset: host arrays. client_data: device arrays, or clients on disk, whose train arrays are then maps of files.
    model: initial params and apply. round_key: `[]`, for all rounds.
    """

    dataset: data.Dataset
    client_data: data.ClientData | store.Store
    model: models.Functional
    loss: LossFn
    round_key: jax.Array


def client_table(config: DataConfig, train: dict[str, np.ndarray], seed: int) -> np.ndarray:
    """Rows of examples for each client: int32 `[num_clients, N]`, -1 is padding.

    Raises:
      ValueError: more clients than examples (or subjects).
      PrivacyPreconditionError: a partition of subjects was asked for, and the examples carry none.
    """
    assert config.num_clients is not None  # a `Config` has the number
    rng = np.random.default_rng([seed, _PARTITION])
    if config.partition == "subject_uniform":
        return data.subjects.uniform(data.subjects.subject_ids(train), config.num_clients, rng)
    if config.partition == "subject_power_law":
        ids = data.subjects.subject_ids(train)
        return data.subjects.power_law(ids, config.num_clients, rng, alpha=config.power_law_exponent)
    labels, num_clients = train["y"], config.num_clients
    if config.partition == "dirichlet":
        return data.partition.dirichlet(labels, num_clients, rng, alpha=config.dirichlet_alpha)
    if config.partition == "shards":
        return data.partition.shards(labels, num_clients, rng, shards_per_client=config.shards_per_client)
    if config.partition == "power_law":
        return data.partition.power_law(labels, num_clients, rng, exponent=config.power_law_exponent)
    return data.partition.iid(labels, num_clients, rng)


def _from_memory(config: Config, seed: seeds.Seed) -> tuple[data.Dataset, data.ClientData]:
    dataset = data.load(config.data.dataset)
    for name, examples in (("train", dataset.train), ("test", dataset.test)):
        data.check_examples(examples, num_classes=dataset.num_classes, name=name)
    table = client_table(config.data, dataset.train, seeds.number(seed, "partition"))
    data.check_partition(table, dataset.train["y"].shape[0])
    return dataset, data.ClientData(jax.tree.map(jnp.asarray, dataset.train), jnp.asarray(table))


def _from_disk(config: DataConfig) -> tuple[data.Dataset, store.Store]:
    """Clients in FOLDER/train, the held-out examples in FOLDER/test; classes are all that a label of either names."""
    folder = pathlib.Path(config.dataset.removeprefix(data.builtin.DISK))
    clients, held_out = store.open_store(folder / "train"), store.open_store(folder / "test")
    if config.num_clients not in (None, clients.num_clients):
        raise ValueError(f"Expected num_clients={clients.num_clients}, as {folder} has, got {config.num_clients}.")
    for name, found in (("train", clients), ("test", held_out)):
        if not {"x", "y"} <= set(found.fields):
            raise ValueError(f"Expected {folder / name} to have the fields x and y, got {sorted(found.fields)}.")
    places = max(1, held_out.most_examples)
    examples, indices, _ = store.read(held_out, np.arange(held_out.num_clients), places)
    test = {name: field[indices[indices >= 0]] for name, field in examples.items()}
    data.check_examples(test, name="test")
    for name in ("x", "y"):
        ours, theirs = clients.fields[name], test[name]
        if (ours.shape[1:], ours.dtype) != (theirs.shape[1:], theirs.dtype):
            raise ValueError(
                f"Expected {name} of {folder / 'train'} and {folder / 'test'} to be alike, "
                f"got {ours.dtype}{list(ours.shape[1:])} and {theirs.dtype}{list(theirs.shape[1:])}."
            )
    # Labels are small: one pass over them, so that none is above what the model has room for.
    num_classes = int(max(test["y"].max(), clients.fields["y"].max(initial=0))) + 1
    for name, examples in (("test", test), ("train", {"y": clients.fields["y"]})):
        data.check_examples(examples, num_classes=num_classes, name=name)
    return data.Dataset(clients.fields, test, num_classes, config.dataset), clients


def build(config: Config, seed: seeds.Seed | None = None) -> Task:
    """Loads, checks and splits the data, and draws the initial model.

    Args:
      seed: of the run. None: the config's; where that is random, bits that are drawn here and kept nowhere.

    Raises:
      ValueError: data that is not finite, labels out of range, or more clients, or more in a batch, than examples.
    """
    if seed is None:
        seed = config.run.seed if isinstance(config.run.seed, int) else seeds.drawn()
    on_disk = config.data.dataset.startswith(data.builtin.DISK)
    split: tuple[data.Dataset, data.ClientData | store.Store]
    split = _from_disk(config.data) if on_disk else _from_memory(config, seed)
    dataset, client_data = split
    init_key, round_key = seeds.keys(seed)
    model = models.create(
        config.model.model,
        example_shape=dataset.train["x"].shape[1:],
        num_classes=dataset.num_classes,
        key=init_key,
    )
    return Task(dataset, client_data, model, models.LOSSES[config.model.loss](model.apply), round_key)
