"""What a run trains on and with: dataset, clients, model, loss, what is measured.

All of it is a function of the config, the seed, and of what the caller brings in place of names.
"""

import pathlib
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax import data, models
from fljax.data import client_ids, store, targets
from fljax.local import keyed
from fljax.simulation import base_model, evaluation, own, planted, seeds, warm_start
from fljax.simulation import config as config_lib
from fljax.simulation.config import Config, DataConfig
from fljax.types import LossFn, Params

_PARTITION = 1  # names the stream of numpy randomness that deals examples to clients


class Task(NamedTuple):
    """Examples split over clients, and what is trained on them.

    dataset: host arrays; its num_classes is 0 where there are none. client_data: device arrays, or
    clients on disk, whose train arrays are then maps of files. model: initial params and apply.
    round_key: `[]`, for all rounds. measures: what evaluations ask. client_names: ids
    `[num_clients]` where a column of the data names the clients. origin: of the initial
    model, as `warm_start` tells it, or a sentence; None: drawn from the seed. canaries: among
    the clients' examples, where there are any; dataset, client_data and loss then have them, too.
    base: frozen weights beside what is trained; None where all is.
    """

    dataset: data.Dataset
    client_data: data.ClientData | store.Store
    model: models.Functional
    loss: LossFn
    round_key: jax.Array
    measures: evaluation.Measures
    client_names: np.ndarray | None = None
    origin: base_model.Origin | None = None
    canaries: planted.Planted | None = None
    base: Params | None = None

    @property
    def ordinary(self) -> data.ClientData | store.Store:
        """The clients without canaries."""
        return self.client_data if self.canaries is None else self.canaries.ordinary


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
        return data.subjects.power_law(
            ids, config.num_clients, rng, alpha=config.power_law_exponent
        )
    labels, num_clients = _labels(config, train), config.num_clients
    if config.partition == "dirichlet":
        return data.partition.dirichlet(labels, num_clients, rng, alpha=config.dirichlet_alpha)
    if config.partition == "shards":
        return data.partition.shards(
            labels, num_clients, rng, shards_per_client=config.shards_per_client
        )
    if config.partition == "power_law":
        return data.partition.power_law(
            labels, num_clients, rng, exponent=config.power_law_exponent
        )
    return data.partition.iid(labels, num_clients, rng)


def _labels(config: DataConfig, train: dict[str, np.ndarray]) -> np.ndarray:
    """What examples are dealt by; of some ways only their number matters."""
    labels = train.get("y", np.zeros(0))
    if labels.ndim == 1 and labels.dtype.kind in "iu":
        return labels
    if config.partition not in ("iid", "power_law"):
        raise ValueError(
            "Expected integer labels 'y' [n] to deal by, clients=, or partition iid or power_law, "
            f"got partition={config.partition!r}."
        )
    return np.zeros(len(next(iter(train.values()))), np.int32)


class _Split(NamedTuple):
    dataset: data.Dataset
    client_data: data.ClientData | store.Store
    client_names: np.ndarray | None = None


def load(config: DataConfig) -> data.Dataset:
    """The dataset, its columns as the config names them; ValueError as `data.load`."""
    columns = data.tables.Columns(
        config.label_column,
        config.client_column,
        config.subject_column,
        config.task,
        config.sequence_length,
        config.vocabulary,
        config.feature_columns,
        config.missing_value,
    )
    plain = columns == data.tables.NO_COLUMNS
    return data.load(config.dataset) if plain else data.load(config.dataset, columns)


def _check(dataset: data.Dataset) -> None:
    """Raises ValueError for examples that break a rule of data, or of their task."""
    classes = dataset.num_classes if dataset.task == "classes" else None
    for name, examples in (("train", dataset.train), ("test", dataset.test)):
        data.check_examples(examples, num_classes=classes, name=name)
        if dataset.task != "classes":
            targets.check(examples["y"], dataset.task, dataset.num_classes, name)
        if dataset.task == "tokens":
            targets.check_symbols(examples["x"], dataset.num_classes, name)


def pool(config: DataConfig) -> tuple[data.Dataset, np.ndarray | None]:
    """(the data of a config, int32 `[num_clients, N]` of the rows of clients that have names, or
    None), checked. Raises ValueError for data that break a rule.
    """
    dataset = load(config)
    _check(dataset)
    if config.client_column is None:
        return dataset, None
    return dataset, _by_column(dataset, config.client_column)[0]


def _from_memory(config: Config, seed: seeds.Seed, brought: own.Own) -> _Split:
    dataset, names = brought.dataset, None
    if dataset is None:
        dataset = load(config.data)
        _check(dataset)
    elif config.data.task != "classes":
        dataset = targets.settled(dataset, config.data.task)
    column = config.data.client_column
    if brought.table is not None:
        table = brought.table
    elif column is not None:
        alone = np.setdiff1d(dataset.test.get(column, ()), dataset.train.get(column, ())).size
        table, names, dataset = _by_column(dataset, column)
        if config.data.num_clients not in (None, names.size):
            others = f" ({alone} more have held-out examples alone)" if alone else ""
            raise ValueError(
                f"Expected num_clients={names.size}, as {column!r} names{others}, got "
                f"{config.data.num_clients}."
            )
    else:
        table = client_table(config.data, dataset.train, seeds.number(seed, "partition"))
    data.check_partition(table, len(next(iter(dataset.train.values()))))
    examples = jax.tree.map(jnp.asarray, dataset.train)
    return _Split(dataset, data.ClientData(examples, jnp.asarray(table)), names)


def _by_column(dataset: data.Dataset, column: str) -> tuple[np.ndarray, np.ndarray, data.Dataset]:
    """(table, names, the data without the column, unless it names subjects, too)."""
    if column not in dataset.train:
        raise ValueError(
            f"Expected client_column to be a field of the data, {sorted(dataset.train)}, got "
            f"client_column={column!r}."
        )
    table, names = client_ids.by_column(dataset.train[column], name=column)
    if column == data.subjects.SUBJECT:
        return table, names, dataset
    train, test = (
        {name: field for name, field in part.items() if name != column}
        for part in (dataset.train, dataset.test)
    )
    return table, names, dataset._replace(train=train, test=test)


def _from_disk(config: DataConfig) -> _Split:
    """Clients in FOLDER/train, the held-out examples in FOLDER/test; classes are all that a label
    of either names.
    """
    if config.client_column is not None:
        raise ValueError(
            "Expected client_column=none for clients on disk, which are apart already, "
            f"got client_column={config.client_column!r}."
        )
    folder = pathlib.Path(config.dataset.removeprefix(data.builtin.DISK))
    clients, held_out = store.open_store(folder / "train"), store.open_store(folder / "test")
    if config.num_clients not in (None, clients.num_clients):
        raise ValueError(
            f"Expected num_clients={clients.num_clients}, as {folder} has, got "
            f"{config.num_clients}."
        )
    for name, found in (("train", clients), ("test", held_out)):
        if not {"x", "y"} <= set(found.fields):
            raise ValueError(
                f"Expected {folder / name} to have the fields x and y, got {sorted(found.fields)}."
            )
    places = max(1, held_out.most_examples)
    examples, indices, _ = store.read(held_out, np.arange(held_out.num_clients), places)
    test = {name: field[indices[indices >= 0]] for name, field in examples.items()}
    data.check_examples(test, name="test")
    for name in ("x", "y"):
        ours, theirs = clients.fields[name], test[name]
        if (ours.shape[1:], ours.dtype) != (theirs.shape[1:], theirs.dtype):
            raise ValueError(
                f"Expected {name} of {folder / 'train'} and {folder / 'test'} to be alike, got "
                f"{ours.dtype}{list(ours.shape[1:])} and {theirs.dtype}{list(theirs.shape[1:])}."
            )
    if config.task != "classes":
        return _Split(_settled_on_disk(clients.fields, test, config), clients)
    # Labels are small: one pass over them, so that none is above what the model has room for.
    num_classes = int(max(test["y"].max(), clients.fields["y"].max(initial=0))) + 1
    for name, examples in (("test", test), ("train", {"y": clients.fields["y"]})):
        data.check_examples(examples, num_classes=num_classes, name=name)
    return _Split(data.Dataset(clients.fields, test, num_classes, config.dataset), clients)


def _settled_on_disk(
    train: Mapping[str, np.ndarray], test: Mapping[str, np.ndarray], config: DataConfig
) -> data.Dataset:
    """What clients on disk hold, which must be the targets of the task already."""
    bits = config.task in ("binary", "multi_label")
    # A symbol may stand at the beginning of a sequence alone, which y does not have.
    fields = ("x", "y") if config.task == "tokens" else ("y",)
    most = int(max(part[name].max(initial=0) for part in (test, train) for name in fields))
    num_classes = 2 if bits else most + 1 if config.task == "tokens" else 0
    for name, part in (("train", train), ("test", test)):
        whose = f"{config.dataset}/{name}"
        targets.check(np.asarray(part["y"]), config.task, num_classes, whose)
        if config.task == "tokens":
            targets.check_symbols(np.asarray(part["x"]), num_classes, whose)
    return data.Dataset(dict(train), dict(test), num_classes, config.dataset, task=config.task)


def build(
    config: Config,
    seed: seeds.Seed | None = None,
    brought: own.Own = own.NOTHING,
    attempt: int | None = None,
) -> Task:
    """Loads, checks and splits the data, and draws the initial model.

    Args:
      config: of the run.
      seed: of the run. None: the config's; where that is random, bits that are drawn here and kept
        nowhere.
      brought: what the caller has of their own.
      attempt: of a search, as for `seeds.keys`; data and initial model are those of all tries.

    Raises:
      ValueError: data that is not finite, labels out of range, or more clients, or more in a batch,
        than examples; or the caller's parts do not fit each other.
    """
    if seed is None:
        seed = config.run.seed if isinstance(config.run.seed, int) else seeds.drawn()
    _check_brought(config, brought)
    on_disk = config.data.dataset.startswith(data.builtin.DISK)
    split = _from_disk(config.data) if on_disk else _from_memory(config, seed, brought)
    dataset = split.dataset
    if brought.dataset is not None and dataset.task == "classes":
        num_classes = own.classes(dataset, None if brought.loss is not None else config.model.loss)
        dataset = dataset._replace(num_classes=num_classes)
    init_key, round_key = seeds.keys(seed, seeds.generator(config), attempt)
    num_outputs = outputs_of(dataset)
    base: Params | None = None
    origin: base_model.Origin | None = warm_start.CALLER if brought.given_params else None
    if brought.model is not None:
        model = brought.model(init_key, dataset.train, num_outputs)
    elif not num_outputs or "x" not in dataset.train:
        raise ValueError(
            "Expected num_classes, or a model of your own, for data without classes, got "
            f"model={config.model.model!r}."
        )
    else:
        create = partial(
            models.create,
            config.model.model,
            example_shape=dataset.train["x"].shape[1:],
            num_classes=num_outputs,
            dtype=dataset.train["x"].dtype,
            **config.model.options,
        )
        lora = config.model.lora
        if lora is not None:
            base, origin = base_model.of(config, dataset, create, brought.base)
        model = create(key=init_key, lora=lora, base=base)
        if lora is None and base_model.is_published(config.model):
            origin = base_model.published(config.model.model)
    if not models.classifiers.is_own(config.model.model) and brought.loss is None:
        _check_logits(config.model.loss, model, dataset.train)
    if config.model.init is not None and base is None:
        params, origin = warm_start.model(config.model.init, model.params)
        model = model._replace(params=params)
    loss = brought.loss or models.LOSSES[config.model.loss](model.apply)
    measures = evaluation.Measures(
        model.apply,
        keyed.settled(loss),
        dataset.task if num_outputs else None,
        brought.metrics,
    )
    if brought.any() or dataset.task != "classes":
        measures = own.check_fits(measures, model.params, dataset)
    names = split.client_names
    return Task(
        dataset, split.client_data, model, loss, round_key, measures, names, origin, base=base
    )


def _check_logits(loss: str, model: models.Functional, examples: dict[str, np.ndarray]) -> None:
    """Refuses a model that ends in a softmax under a loss that begins with one: it would learn next
    to nothing.
    """
    if loss != "cross_entropy" or "x" not in examples:
        return
    outputs = np.stack([model.apply(model.params, jnp.asarray(x)) for x in examples["x"][:2]])
    if outputs.shape[-1] > 1 and np.all(outputs >= 0) and np.allclose(outputs.sum(-1), 1, 1e-3):
        raise ValueError(
            "Expected logits, got outputs that are probabilities: leave the softmax at the end of "
            f"the model out, since loss={loss!r} applies it."
        )


def outputs_of(dataset: data.Dataset) -> int:
    """How many outputs a model of the data has; 0 where nobody has said what is learned."""
    if dataset.task == "classes":
        return dataset.num_classes
    return models.tasks.TASKS[dataset.task].num_outputs(dataset.train["y"], dataset.num_classes)


def _check_brought(config: Config, brought: own.Own) -> None:
    """Refuses a config whose own parts are not there: it is of a run that Python began."""
    for what, name, part in (
        ("data", config.data.dataset, brought.dataset),
        ("model", config.model.model, brought.model),
        ("loss", config.model.loss, brought.loss),
    ):
        if name.startswith(config_lib.OWN) and part is None:
            raise ValueError(
                f"Expected {what} by a name that can be looked up, got {name!r} of a run that "
                "began with fljax.simulate: call that again, with the same arguments and run_dir."
            )


def with_canaries(built: Task, config: Config, seed: seeds.Seed, unit: str) -> Task:
    """The task with the canaries of `config` among its training data, as units of this kind."""
    planted.check(config)
    assert isinstance(built.client_data, data.ClientData)  # `check` refuses clients on disk
    found, clients, train, loss = planted.plant(
        built.client_data,
        built.dataset.train,
        built.loss,
        built.model.params,
        planted.coins(seed, config.run.canaries),
        unit,
    )
    dataset = built.dataset._replace(train=train)
    return built._replace(dataset=dataset, client_data=clients, loss=loss, canaries=found)
