"""Reads images and labels in the IDX format of MNIST from local files, plain or gzipped. Nothing is
downloaded.

An IDX file is two zero bytes, a type byte, the number of axes, the axes' lengths as big-endian
32-bit integers, then the values in row-major order.
"""

import gzip
import math
import pathlib
import struct
import zlib

import numpy as np

from fljax.data.dataset import Dataset

_UNSIGNED_BYTE = 0x08
_STEMS = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
NUM_CLASSES = 10


def read(path: str | pathlib.Path) -> np.ndarray:
    """The array of unsigned bytes that an IDX file holds.

    Raises:
      ValueError: not an IDX file of unsigned bytes, or shorter or longer than its header says;
        names the path.
      OSError: the file cannot be read.
    """
    path = pathlib.Path(path)
    raw = path.read_bytes()
    if raw[:2] == b"\x1f\x8b":
        try:
            raw = gzip.decompress(raw)
        except (EOFError, OSError, zlib.error) as reason:
            raise ValueError(
                f"Expected {path} to be whole, got a broken gzip file: {reason}."
            ) from reason
    if len(raw) < 4 or raw[:2] != b"\0\0":
        raise ValueError(
            f"Expected {path} to be an IDX file, which starts with two zero bytes, got {raw[:4]!r}."
        )
    kind, num_axes = raw[2], raw[3]
    if kind != _UNSIGNED_BYTE or num_axes < 1:
        raise ValueError(
            f"Expected {path} to hold unsigned bytes (type 0x08) on one axis or more, got type "
            f"{kind:#04x}, {num_axes} axes."
        )
    start = 4 + 4 * num_axes
    if len(raw) < start:
        raise ValueError(
            f"Expected {path} to hold {num_axes} axis lengths, got {len(raw)} bytes in all."
        )
    shape = struct.unpack(f">{num_axes}I", raw[4:start])
    if len(raw) - start != math.prod(shape):
        raise ValueError(
            f"Expected {path} to hold {math.prod(shape)} values {list(shape)}, got "
            f"{len(raw) - start}."
        )
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


def load(folder: str | pathlib.Path) -> Dataset:
    """MNIST, or a data set in its form (Fashion-MNIST, KMNIST), from the four files of its
    distribution.

    Args:
      folder: holds `train-images-idx3-ubyte`, `train-labels-idx1-ubyte`, `t10k-images-idx3-ubyte`
        and `t10k-labels-idx1-ubyte`, each perhaps with the ending `.gz`.

    Returns:
      A `Dataset` with x float32 `[n, height, width, 1]` in [0, 1], y int32 `[n]`.

    Raises:
      ValueError: a file is missing, is no IDX file, or images and labels do not belong together;
        names the path.
    """
    folder = pathlib.Path(folder)
    parts = {}
    for part, (image_stem, label_stem) in _STEMS.items():
        images, labels = (read(_found(folder, stem)) for stem in (image_stem, label_stem))
        if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels) or not len(images):
            raise ValueError(
                f"Expected {part} images [n, height, width] and labels [n], n >= 1, in {folder}, "
                f"got {list(images.shape)} and {list(labels.shape)}."
            )
        if labels.max() >= NUM_CLASSES:
            raise ValueError(
                f"Expected {part} labels below {NUM_CLASSES} in {folder}, got {labels.max()}."
            )
        parts[part] = {
            "x": images[..., None].astype(np.float32) / np.float32(255),
            "y": labels.astype(np.int32),
        }
    shapes = [parts[part]["x"].shape[1:] for part in _STEMS]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"Expected train and test images of one size in {folder}, got {shapes[0]} and "
            f"{shapes[1]}."
        )
    return Dataset(parts["train"], parts["test"], NUM_CLASSES, folder.name)


def _found(folder: pathlib.Path, stem: str) -> pathlib.Path:
    for name in (stem, f"{stem}.gz"):
        if (folder / name).is_file():
            return folder / name
    raise ValueError(f"Expected {folder} to hold {stem} or {stem}.gz, got neither.")
