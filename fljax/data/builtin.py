"""Data by name: real data that needs no download, stand-ins, and MNIST-like files that the user has."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fljax import _plugins, _validate

NAMES = ("breast_cancer", "digits", "fields", "writers", "roles")
FOLDER = "idx:"  # before the folder of MNIST's four files
CIFAR = "cifar:"  # before the folder of CIFAR-10's six binary files
DISK = "disk:"  # before a folder with clients on disk in `train`, and held-out examples in `test`
TEST_FRACTION = 0.2
_SPLIT_SEED = 20_240_229  # fixed for good: another value would silently change every published number


class Dataset(NamedTuple):
    """A classification task, on the host.

    train, test: `{"x": float32 [n, height, width, channels] in [0, 1], "y": int32 [n]}`; "fields" go below 0.
    num_classes: labels are in `[0, num_classes)`.
    name: what `load` was asked for.
    covariance: `[d, d]`, of an x, where its law is known; else None.
    """

    train: dict[str, np.ndarray]
    test: dict[str, np.ndarray]
    num_classes: int
    name: str
    covariance: np.ndarray | None = None


def stratified_split(
    labels: np.ndarray, test_fraction: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Indices `(train, test)`, each sorted: of every class, `round(test_fraction * its examples)` are held out."""
    _validate.open_unit(test_fraction=test_fraction)
    held_out = []
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        held_out.append(members[: round(test_fraction * members.size)])
    test = np.sort(np.concatenate(held_out))
    return np.setdiff1d(np.arange(labels.size), test), test


def _digits() -> tuple[np.ndarray, np.ndarray, int]:
    try:
        from sklearn.datasets import load_digits
    except ImportError as reason:
        raise ImportError(
            "The digits come with scikit-learn, which is not installed: pip install 'fljax[sim]'."
        ) from reason
    raw: Any = load_digits()
    # Pixels are counts 0..16 of set points in 4 x 4 blocks of the scanned bitmap.
    return (raw.images / 16.0)[..., None].astype(np.float32), raw.target.astype(np.int32), 10


def _breast_cancer() -> tuple[np.ndarray, np.ndarray, int]:
    try:
        from sklearn.datasets import load_breast_cancer
    except ImportError as reason:
        raise ImportError(
            "The breast-cancer table comes with scikit-learn, which is not installed: pip install 'fljax[sim]'."
        ) from reason
    raw: Any = load_breast_cancer()
    low, high = raw.data.min(axis=0), raw.data.max(axis=0)
    return ((raw.data - low) / (high - low)).astype(np.float32), raw.target.astype(np.int32), 2


def register(name: str, load: Callable[[], Dataset]) -> None:
    """Lets `load`, and so `fljax simulate --dataset NAME`, find a data set of one's own.

    A package may instead name the function under the entry-point group `fljax.datasets`; a dotted path works, too.

    Args:
      name: letters, digits, "_" and "."; none of NAMES.
      load: () -> `Dataset`, the same at each call: a run that is resumed loads again.

    Raises:
      ValueError: a name that is taken or cannot be one.
    """
    _plugins.register("datasets", name, load, NAMES)


def names() -> tuple[str, ...]:
    """NAMES, then those that others brought."""
    return (*NAMES, *_plugins.names("datasets"))


def _loader(name: str) -> Callable[[], Dataset] | None:
    return _plugins.function("datasets", name)


def check_name(**given: str) -> None:
    """Raises ValueError, with the argument's name, unless `load` knows what is meant."""
    for argument, name in given.items():
        if name in NAMES or name.startswith((FOLDER, CIFAR, DISK)) or _loader(name) is not None:
            continue
        folders = (f"{kind}FOLDER" for kind in (FOLDER, CIFAR, DISK))
        _validate.one_of((*names(), *folders), **{argument: name})


def load(name: str) -> Dataset:
    """Loads a dataset with its fixed split into train and test.

    Args:
      name: "digits": 1,797 handwritten digits, 8 x 8 grey values, 10 classes (UCI "Optical Recognition of
        Handwritten Digits", as bundled with scikit-learn). "breast_cancer": 569 rows of 30 numbers scaled to [0, 1], 2
        classes (UCI "Breast Cancer Wisconsin (Diagnostic)", bundled there too). "fields": 5,000 Gaussian random fields,
        16 x 16, 4 classes, whose law is known; see `fljax.data.fields`. "writers": the same digits restyled as if by
        400 subjects, about 30 training items each, which carry their subject. "roles": generated text of 132 subjects,
        about 100 windows of 20 characters each, 80 classes. See `fljax.data.standins`. "idx:FOLDER": MNIST, or data in
        its form, from files; see `fljax.data.idx.load`. "cifar:FOLDER": CIFAR-10 from files; see
        `fljax.data.cifar.load`.

    Returns:
      A `Dataset`. Of "digits" and "breast_cancer" a fifth of every class is held out by a fixed random rule, the same
      on every machine.

    Raises:
      ValueError: unknown name, or bad files.
      ImportError: scikit-learn is not installed (extra `sim`).
    """
    check_name(name=name)
    if name.startswith(FOLDER):
        from fljax.data.sources import idx  # which builds on this module

        return idx.load(name.removeprefix(FOLDER))
    if name.startswith(CIFAR):
        from fljax.data.sources import cifar

        return cifar.load(name.removeprefix(CIFAR))
    if name not in NAMES:
        loader = _loader(name)
        assert loader is not None  # as checked above
        found = loader()
        if not isinstance(found, Dataset):
            raise ValueError(f"Expected the data set {name!r} to be a fljax.data.Dataset, got {type(found).__name__}.")
        return found._replace(name=name)
    if name == "fields":
        from fljax.data.sources import fields

        return fields.make(np.random.Generator(np.random.PCG64(_SPLIT_SEED)))
    if name in ("writers", "roles"):
        from fljax.data.sources import standins  # which builds on this module

        rng = np.random.Generator(np.random.PCG64(_SPLIT_SEED))
        if name == "roles":
            return standins.roles(rng, num_subjects=132, mean_items=100.0)
        return standins.writers(rng, num_subjects=400, mean_items=30.0)
    x, y, num_classes = _breast_cancer() if name == "breast_cancer" else _digits()
    train, test = stratified_split(y, TEST_FRACTION, np.random.Generator(np.random.PCG64(_SPLIT_SEED)))
    return Dataset({"x": x[train], "y": y[train]}, {"x": x[test], "y": y[test]}, num_classes, name)
