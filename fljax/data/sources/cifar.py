"""Reads CIFAR-10 in its binary form from local files. Nothing is downloaded.

A file is a row of records of 3,073 bytes: the label, then 32 x 32 red, green and blue values, each
plane row by row.
"""

import pathlib

import numpy as np

from fljax.data.dataset import Dataset

TRAIN = tuple(f"data_batch_{batch}.bin" for batch in range(1, 6))
TEST = ("test_batch.bin",)
NUM_CLASSES = 10
_SIDE, _CHANNELS = 32, 3
_RECORD = 1 + _CHANNELS * _SIDE * _SIDE


def read(path: str | pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 `[n, 32, 32, 3]` and labels uint8 `[n]`, n >= 1, of one file.

    Raises:
      ValueError: not whole records of 3,073 bytes, or a label above 9; names the path.
      OSError: the file cannot be read.
    """
    path = pathlib.Path(path)
    raw = np.frombuffer(path.read_bytes(), np.uint8)
    if not raw.size or raw.size % _RECORD:
        raise ValueError(
            f"Expected {path} to hold records of {_RECORD} bytes, at least one, got {raw.size} "
            "bytes."
        )
    rows = raw.reshape(-1, _RECORD)
    labels = rows[:, 0]
    if labels.max() >= NUM_CLASSES:
        bad = int(np.argmax(labels >= NUM_CLASSES))
        raise ValueError(
            f"Expected {path} to hold CIFAR-10 records, whose first byte is a label below "
            f"{NUM_CLASSES}, got {labels[bad]} in record {bad}."
        )
    return rows[:, 1:].reshape(-1, _CHANNELS, _SIDE, _SIDE).transpose(0, 2, 3, 1), labels


def load(folder: str | pathlib.Path) -> Dataset:
    """CIFAR-10 from the six files of its binary distribution.

    Args:
      folder: holds `data_batch_1.bin` to `data_batch_5.bin` and `test_batch.bin`.

    Returns:
      A `Dataset` with x float32 `[n, 32, 32, 3]` in [0, 1], y int32 `[n]`.

    Raises:
      ValueError: a file is missing or is not of this form; names the path.
    """
    folder = pathlib.Path(folder)
    for name in (*TRAIN, *TEST):
        if not (folder / name).is_file():
            raise ValueError(
                f"Expected {folder} to hold {', '.join((*TRAIN, *TEST))}, got no {name}."
            )
    return Dataset(_part(folder, TRAIN), _part(folder, TEST), NUM_CLASSES, folder.name)


def _part(folder: pathlib.Path, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    images, labels = zip(*(read(folder / name) for name in names), strict=True)
    x = np.concatenate(images).astype(np.float32)
    x /= np.float32(255)
    return {"x": x, "y": np.concatenate(labels).astype(np.int32)}
