"""Binary files of CIFAR-10 and CIFAR-100: what is written comes back, and a bad file is named."""

import numpy as np
import pytest

from fljax import data
from fljax.data.sources import cifar


def encode(images, labels):
    """Records from images `[n, 32, 32, 3]`, byte by byte: label, red plane, green plane, blue
    plane.
    """
    return b"".join(
        bytes([label]) + b"".join(image[:, :, channel].tobytes() for channel in range(3))
        for image, label in zip(images, labels, strict=True)
    )


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for place, name in enumerate((*cifar.TRAIN, *cifar.TEST)):
        images = rng.integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)
        (tmp_path / name).write_bytes(encode(images, [place, 9]))
    return tmp_path


def test_a_folder_comes_back_as_a_dataset(folder):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)
    dataset = data.load(f"cifar:{folder}")
    assert dataset.train["x"].shape == (10, 32, 32, 3) and dataset.train["x"].dtype == np.float32
    np.testing.assert_array_equal(dataset.train["x"][:2], images / np.float32(255))
    np.testing.assert_array_equal(dataset.train["y"], [0, 9, 1, 9, 2, 9, 3, 9, 4, 9])
    np.testing.assert_array_equal(dataset.test["y"], [5, 9])
    assert (
        dataset.test["y"].dtype == np.int32
        and dataset.num_classes == 10
        and dataset.name == folder.name
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw[:-1], "records of 3073 bytes, at least one, got 6145 bytes"),
        (lambda raw: b"", "at least one, got 0 bytes"),
        (lambda raw: b"\x89PNG\r\n", "records of 3073 bytes, at least one, got 6 bytes"),
        (lambda raw: raw[:3073] + b"\x0a" + raw[3074:], "a label below 10, got 10 in record 1"),
    ],
    ids=["truncated", "empty", "foreign", "label"],
)
def test_a_bad_file_is_one_line_with_its_place(folder, change, message):
    path = folder / "data_batch_3.bin"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ValueError, match=message) as error:
        cifar.load(folder)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_a_missing_file_is_named(folder):
    (folder / "test_batch.bin").unlink()
    with pytest.raises(ValueError, match=r"got no test_batch\.bin"):
        cifar.load(folder)


def test_of_the_two_labels_of_cifar_100_the_finer_is_taken(tmp_path):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)
    for name, fine in (("train.bin", (99, 7)), ("test.bin", (0, 41))):
        rows = [encode(images[k : k + 1], [fine[k]]) for k in range(2)]
        (tmp_path / name).write_bytes(b"".join(b"\x13" + row for row in rows))
    found = cifar.load_100(tmp_path)
    assert found.num_classes == 100 and found.train["y"].tolist() == [99, 7]
    np.testing.assert_array_equal(found.test["x"], images / np.float32(255))
    (tmp_path / "test.bin").write_bytes(b"\x13" + encode(images[:1], [100]))
    with pytest.raises(ValueError, match="behind a label below 100, got 100 in record 0"):
        cifar.load_100(tmp_path)
    (tmp_path / "test.bin").unlink()
    with pytest.raises(ValueError, match=r"train\.bin, test\.bin, got no test\.bin"):
        cifar.load_100(tmp_path)
