"""A task on the host, and the fixed rule by which a part of the examples is held
out.
"""

from typing import NamedTuple

import numpy as np

from fljax import _validate

TEST_FRACTION = 0.2
_SPLIT_SEED = (
    20_240_229  # fixed for good: another value would silently change every published number
)


def fixed_rng() -> np.random.Generator:
    """What splits and draws the bundled data, the same on every machine."""
    return np.random.Generator(np.random.PCG64(_SPLIT_SEED))


class Dataset(NamedTuple):
    """Examples to learn from and held-out ones, on the host.

    train, test: `{"x": float32 [n, height, width, channels] in [0, 1], "y": int32 [n]}`; "fields"
      go below 0. What y is, `data.targets` says for each task.
    num_classes: labels are in `[0, num_classes)`, symbols of "tokens" too; 2 where y is bits; 0
      where there are no labels.
    name: what `load` was asked for.
    covariance: `[d, d]`, of an x, where its law is known; else None.
    class_names: `num_classes` words, the label i's at place i, or of "multi_label" a word for each
      column of y; () where labels are only numbers.
    feature_names: the columns of a table that x holds, in its order; () where x has no names.
    task: a name of `data.targets`.
    """

    train: dict[str, np.ndarray]
    test: dict[str, np.ndarray]
    num_classes: int
    name: str
    covariance: np.ndarray | None = None
    class_names: tuple[str, ...] = ()
    feature_names: tuple[str, ...] = ()
    task: str = "classes"


def stratified_split(
    labels: np.ndarray, test_fraction: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Indices `(train, test)`, each sorted: of every class, `round(test_fraction * its examples)`
    are held out.
    """
    _validate.open_unit(test_fraction=test_fraction)
    held_out = []
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        held_out.append(members[: round(test_fraction * members.size)])
    test = np.sort(np.concatenate(held_out))
    return np.setdiff1d(np.arange(labels.size), test), test


def split(x: np.ndarray, y: np.ndarray, num_classes: int, name: str) -> Dataset:
    """The data set of these examples, `TEST_FRACTION` of every class held out by the fixed rule."""
    train, test = stratified_split(y, TEST_FRACTION, fixed_rng())
    return Dataset({"x": x[train], "y": y[train]}, {"x": x[test], "y": y[test]}, num_classes, name)
