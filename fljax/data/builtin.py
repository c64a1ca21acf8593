"""Data by name: real data that needs no download, stand-ins, and MNIST-like files that the user
has.
"""

import functools
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fljax import _plugins
from fljax.data import targets
from fljax.data.dataset import Dataset as Dataset
from fljax.data.dataset import fixed_rng
from fljax.data.dataset import stratified_split as stratified_split
from fljax.data.sources import (
    bundled,
    cifar,
    fields,
    hdf5,
    idx,
    images,
    leaf,
    parquet,
    standins,
    tables,
    texts,
)

FOLDER = "idx:"  # before the folder of MNIST's four files
CIFAR = "cifar:"  # before the folder of CIFAR-10's six binary files
NPZ, CSV = "npz:", "csv:"  # before a file of arrays, or of a table
IMAGES = "folder:"  # before a folder with a folder of images for each class
HF = "hf:"  # before a folder of `datasets`, or of Parquet files
LEAF, TFF = "leaf:", "tff:"  # before a folder of LEAF's JSON, or an HDF5 file of TFF's
TEXT = "text:"  # before a folder with text for each client
DISK = "disk:"  # before a folder with clients on disk in `train`, and held-out examples in `test`


_ROLES: dict[str, Any] = {"num_subjects": 132, "mean_items": 100.0}


def _fields() -> Dataset:
    return fields.make(fixed_rng())


def _writers() -> Dataset:
    return standins.writers(fixed_rng(), num_subjects=400, mean_items=30.0)


def _roles() -> Dataset:
    return standins.roles(fixed_rng(), **_ROLES)


def _once(make: Callable[[], Dataset]) -> Callable[[], Dataset]:
    """Made data, which take tenths of a second, are made once: each call gets arrays of its own."""
    kept = functools.cache(make)

    def load() -> Dataset:
        found = kept()
        train, test = (
            {name: leaf.copy() for name, leaf in part.items()} for part in (found.train, found.test)
        )
        return found._replace(train=train, test=test)

    return load


_OWN = {
    "breast_cancer": bundled.breast_cancer,
    "digits": bundled.digits,
    "fields": _once(_fields),
    "writers": _once(_writers),
    "roles": _once(_roles),
}
NAMES = tuple(_OWN)
_registry: _plugins.Registry[Callable[[], Dataset]] = _plugins.Registry(
    "datasets",
    "dataset",
    _OWN,
    _plugins.a_function("datasets"),
    also=(
        f"{FOLDER}FOLDER",
        f"{CIFAR}FOLDER",
        f"{NPZ}FILE",
        f"{CSV}FILE",
        f"{IMAGES}FOLDER",
        f"{HF}FOLDER",
        f"{LEAF}FOLDER",
        f"{TFF}FILE",
        f"{TEXT}FOLDER",
        f"{DISK}FOLDER",
    ),
)


_FILES: dict[str, Callable[..., Dataset]] = {
    FOLDER: idx.load,
    CIFAR: cifar.load,
    NPZ: tables.load_npz,
    CSV: tables.load_csv,
    IMAGES: images.load,
    HF: parquet.load,
    LEAF: leaf.load,
    TFF: hdf5.load,
    TEXT: texts.load,
}


def public_text(name: str, num_texts: int, length: int) -> np.ndarray | None:
    """Text of nobody in the data of this name, for a model to read before it meets them: symbols
    int32 `[num_texts, length]`, those of the data; None where there is none.
    """
    if name != "roles":
        return None
    return standins.common_speech(fixed_rng(), num_texts=num_texts, length=length, **_ROLES)


def register(name: str, load: Callable[[], Dataset]) -> None:
    """Lets `load`, and so `fljax simulate --dataset NAME`, find a data set of one's own.

    A package may instead name the function under the entry-point group `fljax.datasets`; a dotted
    path works, too.

    Args:
      name: letters, digits, "_" and "."; none of NAMES.
      load: () -> `Dataset`, the same at each call: a run that is resumed loads again.

    Raises:
      ValueError: a name that is taken or cannot be one.
    """
    _registry.register(name, load)


def names() -> tuple[str, ...]:
    """NAMES, then those that others brought."""
    return _registry.names()


def listed() -> Iterator[_plugins.Listed]:
    """All names with where they come from; one that cannot be loaded stops no other."""
    return _registry.listed()


def check_name(**given: str) -> None:
    """Raises ValueError, with the argument's name, unless `load` knows what is meant."""
    named = {a: name for a, name in given.items() if not name.startswith((*_FILES, DISK))}
    try:
        _registry.check_name(**named)
    except ValueError as reason:
        for name in named.values():
            for prefix in (NPZ, CSV):
                if pathlib.Path(name).expanduser().suffix == f".{prefix[:-1]}":
                    raise ValueError(f"{reason} Did you mean '{prefix}{name}'?") from None
        raise


def has_columns(name: str) -> bool:
    """Whether the name is of a file whose fields `tables.Columns` can name."""
    return name.startswith((NPZ, CSV, HF))


def has_clients(name: str) -> bool:
    """Whether the name is of files that are divided into clients, who are then subjects."""
    return name.startswith((LEAF, TFF, TEXT))


def load(name: str, columns: tables.Columns = tables.NO_COLUMNS) -> Dataset:
    """Loads a dataset with its fixed split into train and test.

    Args:
      name: "digits": 1,797 handwritten digits, 8 x 8 grey values, 10 classes (UCI "Optical
        Recognition of Handwritten Digits", as bundled with scikit-learn). "breast_cancer": 569 rows
        of 30 numbers scaled to [0, 1], 2 classes (UCI "Breast Cancer Wisconsin (Diagnostic)",
        bundled there too). "fields": 5,000 Gaussian random fields, 16 x 16, 4 classes, whose law is
        known; see `fljax.data.fields`. "writers": the same digits restyled as if by 400 subjects,
        about 30 training items each, which carry their subject. "roles": generated text of 132
        subjects, about 100 windows of 20 characters each, 80 classes. See `fljax.data.standins`.
        "idx:FOLDER": MNIST, or data in its form, from files; see `fljax.data.idx.load`.
        "cifar:FOLDER": CIFAR-10 from files; see `fljax.data.cifar.load`. "npz:FILE", "csv:FILE":
        your own arrays or table; see `fljax.data.tables`. "folder:FOLDER": images by class.
        "hf:FOLDER": what `datasets` saved, or Parquet. "leaf:FOLDER": LEAF's JSON. "tff:FILE": HDF5
        of TensorFlow Federated. "text:FOLDER": text for each client. See `fljax.data.sources`.
      columns: which fields of such a file are labels, clients and subjects; and the task, of any
        data.

    Returns:
      A `Dataset`. Of "digits" and "breast_cancer" a fifth of every class is held out by a fixed
      random rule, the same on every machine.

    Raises:
      ValueError: unknown name, or bad files.
      ImportError: scikit-learn is not installed (extra `sim`).
    """
    for prefix, read in _FILES.items():
        if name.startswith(prefix):
            where = name.removeprefix(prefix)
            told = has_columns(name) or prefix in (TFF, TEXT)
            return targets.settled(read(where, columns) if told else read(where), columns.task)
    check_name(name=name)
    found = _registry.get(name)()
    if not isinstance(found, Dataset):
        raise ValueError(
            f"Expected the data set {name!r} to be a fljax.data.Dataset, got "
            f"{type(found).__name__}."
        )
    return targets.settled(found._replace(name=name), columns.task)
