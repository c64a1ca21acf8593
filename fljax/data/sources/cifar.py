"""Reads CIFAR-10 and CIFAR-100 in their binary form from local files. Nothing is downloaded.

A file is a row of records: the label (of CIFAR-100 two, of which the second is one of 100), then
32 x 32 red, green and blue values, each plane row by row.
"""

import pathlib

import numpy as np

from fljax import _validate
from fljax.data.dataset import Dataset

TRAIN = tuple(f"data_batch_{batch}.bin" for batch in range(1, 6))
TEST = ("test_batch.bin",)
NUM_CLASSES = 10
OF_100 = (("train.bin",), ("test.bin",))
_SIDE, _CHANNELS = 32, 3
_PIXELS = _CHANNELS * _SIDE * _SIDE


def read(path: str | pathlib.Path, *, num_classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 `[n, 32, 32, 3]` and labels uint8 `[n]`, n >= 1, of one file.

    Args:
      num_classes: 10 or 100: whose records they are.

    Raises:
      ValueError: not whole records of 3,073 bytes (3,074), or a label of num_classes or more; names
        the path.
      OSError: the file cannot be read.
    """
    _validate.one_of((10, 100), num_classes=num_classes)
    path, record = pathlib.Path(path), _PIXELS + (2 if num_classes == 100 else 1)
    raw = np.frombuffer(path.read_bytes(), np.uint8)
    if not raw.size or raw.size % record:
        raise ValueError(
            f"Expected {path} to hold records of {record} bytes, at least one, got {raw.size} "
            "bytes."
        )
    rows = raw.reshape(-1, record)
    labels = rows[:, -_PIXELS - 1]
    if labels.max() >= num_classes:
        bad = int(np.argmax(labels >= num_classes))
        raise ValueError(
            f"Expected {path} to hold CIFAR-{num_classes} records, whose pixels come behind a "
            f"label below {num_classes}, got {labels[bad]} in record {bad}."
        )
    return rows[:, -_PIXELS:].reshape(-1, _CHANNELS, _SIDE, _SIDE).transpose(0, 2, 3, 1), labels


def load(folder: str | pathlib.Path) -> Dataset:
    """CIFAR-10 from the six files of its binary distribution.

    Args:
      folder: holds `data_batch_1.bin` to `data_batch_5.bin` and `test_batch.bin`.

    Returns:
      A `Dataset` with x float32 `[n, 32, 32, 3]` in [0, 1], y int32 `[n]`.

    Raises:
      ValueError: a file is missing or is not of this form; names the path.
    """
    return _load(pathlib.Path(folder), TRAIN, TEST, NUM_CLASSES)


def load_100(folder: str | pathlib.Path) -> Dataset:
    """CIFAR-100 by its 100 fine labels, of `train.bin` and `test.bin` in `folder`, as `load`."""
    return _load(pathlib.Path(folder), *OF_100, 100)


def _load(
    folder: pathlib.Path, train: tuple[str, ...], test: tuple[str, ...], num_classes: int
) -> Dataset:
    for name in (*train, *test):
        if not (folder / name).is_file():
            raise ValueError(
                f"Expected {folder} to hold {', '.join((*train, *test))}, got no {name}."
            )
    parts = (_part(folder, train, num_classes), _part(folder, test, num_classes))
    return Dataset(*parts, num_classes, folder.name)


def _part(folder: pathlib.Path, names: tuple[str, ...], num_classes: int) -> dict[str, np.ndarray]:
    found = (read(folder / name, num_classes=num_classes) for name in names)
    images, labels = zip(*found, strict=True)
    x = np.concatenate(images).astype(np.float32)
    x /= np.float32(255)
    return {"x": x, "y": np.concatenate(labels).astype(np.int32)}
