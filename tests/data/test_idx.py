"""IDX files: what is written comes back, and a bad file is named."""

import gzip
import struct

import numpy as np
import pytest

from fljax import data
from fljax.data.sources import idx


def encode(values):
    values = np.asarray(values, np.uint8)
    return (
        b"\0\0\x08"
        + bytes([values.ndim])
        + struct.pack(f">{values.ndim}I", *values.shape)
        + values.tobytes()
    )


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for stem, values in {
        "train-images-idx3-ubyte": rng.integers(0, 256, (7, 4, 5)),
        "train-labels-idx1-ubyte": np.arange(7),
        "t10k-images-idx3-ubyte": rng.integers(0, 256, (3, 4, 5)),
        "t10k-labels-idx1-ubyte": np.arange(3),
    }.items():
        (tmp_path / stem).write_bytes(encode(values))
    return tmp_path


@pytest.mark.parametrize("zipped", [False, True])
def test_a_folder_comes_back_as_a_dataset(folder, zipped):
    pixels = idx.read(folder / "train-images-idx3-ubyte")
    if zipped:
        for path in list(folder.iterdir()):
            (folder / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
    dataset = data.load(f"idx:{folder}")
    assert dataset.train["x"].shape == (7, 4, 5, 1) and dataset.train["x"].dtype == np.float32
    np.testing.assert_array_equal(dataset.train["x"][..., 0], pixels / np.float32(255))
    np.testing.assert_array_equal(dataset.test["y"], [0, 1, 2])
    assert dataset.test["y"].dtype == np.int32 and dataset.num_classes == 10


def broken(change):
    def make(path):
        path.write_bytes(change(path.read_bytes()))

    return make


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (broken(lambda raw: raw[:-1]), r"hold 140 values \[7, 4, 5\], got 139"),
        (broken(lambda raw: raw + b"x"), "hold 140 values .* got 141"),
        (broken(lambda raw: raw[:9]), "3 axis lengths, got 9 bytes"),
        (broken(lambda raw: b""), "starts with two zero bytes, got b''"),
        (broken(lambda raw: b"\x89PNG" + raw), "IDX file, which starts with two zero bytes"),
        (broken(lambda raw: raw[:2] + b"\x0d" + raw[3:]), "unsigned bytes .* got type 0x0d"),
        (broken(lambda raw: gzip.compress(raw)[:-20]), "broken gzip file"),
        (broken(lambda raw: encode(np.zeros((6, 4, 5)))), r"got \[6, 4, 5\] and \[7\]"),
        (broken(lambda raw: encode(np.zeros((7, 4, 6)))), "images of one size"),
        (lambda path: path.unlink(), "train-images-idx3-ubyte.gz, got neither"),
    ],
)
def test_a_bad_file_is_one_line_with_its_place(folder, make, message):
    make(folder / "train-images-idx3-ubyte")
    with pytest.raises(ValueError, match=message) as error:
        idx.load(folder)
    assert str(folder) in str(error.value) and "\n" not in str(error.value)


def test_a_label_out_of_range_is_refused(folder):
    (folder / "t10k-labels-idx1-ubyte").write_bytes(encode([0, 1, 10]))
    with pytest.raises(ValueError, match=r"test labels below 10 .* got 10"):
        idx.load(folder)
