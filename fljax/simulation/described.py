"""What a data set holds, in counts, and the same data in another form."""

import pathlib
from typing import Any, NamedTuple

import numpy as np

from fljax import data
from fljax.data import store, targets
from fljax.simulation import task
from fljax.simulation.config import DataConfig

_MOST_CLASSES = 100


class Loaded(NamedTuple):
    """A data set, and where its clients have names, int32 `[num_clients, N]` of their rows.

    held_out_alone: clients all of whose examples are held out; they are none of a run's.
    """

    dataset: data.Dataset
    table: np.ndarray | None
    held_out_alone: int = 0


def load(
    name: str,
    label: str | None = None,
    client: str | None = None,
    subject: str | None = None,
    **told: Any,
) -> Loaded:
    """A data set by name, checked as a run checks it.

    Args:
      name: as for `--dataset`, in memory.
      label, client, subject: columns, as for a run.
      **told: feature_columns, missing_value, task, sequence_length, vocabulary, as for a run.

    Raises:
      ValueError: no such data, or they break a rule; names the file, the row and the rule.
    """
    if name.startswith(data.builtin.DISK):
        raise ValueError(
            f"Expected data that fit into memory, got {name!r}, which is converted already."
        )
    config = DataConfig(
        dataset=name, label_column=label, client_column=client, subject_column=subject, **told
    )
    dataset, table = task.pool(config)
    kept, held_out = (part.get(client or "", ()) for part in (dataset.train, dataset.test))
    return Loaded(dataset, table, np.setdiff1d(held_out, kept).size)


def _spread(counts: np.ndarray) -> dict[str, Any]:
    """How many there are, and what each of them holds."""
    return {
        "count": int(counts.size),
        "least": int(counts.min()),
        "median": float(np.median(counts)),
        "most": int(counts.max()),
    }


def counts(found: Loaded) -> dict[str, Any]:
    """What the data hold: plain data. Exact, hence not private."""
    dataset, table, _ = found
    train, test = dataset.train, dataset.test
    fields = {
        name: f"{values.dtype} {list(values.shape[1:])} in [{values.min():g}, {values.max():g}]"
        for name, values in train.items()
        if values.dtype.kind in "iufb" and values.size
    }
    held = targets.counts(dataset)
    classes = {name: int(both[0]) for name, both in list(held.items())[:_MOST_CLASSES]} or None
    clients = None if table is None else _spread((table >= 0).sum(axis=1))
    if clients is not None and found.held_out_alone:
        clients["held out alone"] = found.held_out_alone
    subjects = None
    if data.subjects.SUBJECT in train:
        subjects = _spread(np.unique(train[data.subjects.SUBJECT], return_counts=True)[1])
    return {
        "name": dataset.name,
        "training": len(next(iter(train.values()))),
        "held_out": len(next(iter(test.values()))),
        "fields": fields,
        "task": dataset.task,
        "num_classes": dataset.num_classes,
        "classes": classes,
        "clients": clients,
        "subjects": subjects,
    }


def bars(found: Loaded) -> tuple[list[str], np.ndarray, np.ndarray]:
    """(names of classes, training examples of each, held-out ones), as `targets.counts` counts
    them. Raises ValueError without classes.
    """
    held = targets.counts(found.dataset)
    if not held:
        raise ValueError("Expected data with classes to draw, got none.")
    both = np.stack(list(held.values()))
    return list(held), both[:, 0], both[:, 1]


def convert(found: Loaded, path: pathlib.Path) -> str:
    """Writes the data as one .npz, or as a folder of clients on disk.

    Args:
      found: for a folder, of clients that have names.
      path: that is not there yet; a folder unless it ends in .npz.

    Returns:
      What `--dataset` is given to read it.

    Raises:
      ValueError: the path is taken, or clients have no names.
    """
    if path.exists():
        raise ValueError(f"Expected {path} not to be there yet, it is: choose another name.")
    dataset, table, _ = found
    if path.suffix == ".npz":
        names = np.asarray(dataset.class_names)
        arrays = {}
        for ending, part in (("", dataset.train), ("_test", dataset.test)):
            for name, values in part.items():
                named = name == "y" and names.size and dataset.task in ("classes", "binary")
                arrays[f"{name}{ending}"] = names[values] if named else values
        with path.open("xb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        return f"{data.builtin.NPZ}{path}"
    if table is None:
        raise ValueError(
            "Expected client_column to name the clients of a folder, got none: write an .npz."
        )
    kept = [name for name, values in dataset.train.items() if values.dtype.kind in "iufb"]
    clients = ({name: dataset.train[name][rows[rows >= 0]] for name in kept} for rows in table)
    store.write(path / "train", clients)
    store.write(path / "test", [{name: dataset.test[name] for name in kept}])
    return f"{data.builtin.DISK}{path}"
