"""HDF5 as TensorFlow Federated keeps it: written by h5py, read as it was."""

import numpy as np
import pytest

from fljax import data
from fljax.data.sources.tables import Columns
from fljax.simulation.config import DataConfig

h5py = pytest.importorskip("h5py", reason="extra hdf5")


def put(path, clients):
    with h5py.File(path, "w") as file:
        for name, fields in clients.items():
            for field, values in fields.items():
                file[f"examples/{name}/{field}"] = values


def emnist(*values):
    pixels = np.stack([np.full((28, 28), value, np.float32) for value in values])
    return {"pixels": pixels, "label": np.arange(len(values), dtype=np.int32)}


def test_clients_are_subjects_and_the_file_beside_is_held_out(tmp_path):
    put(tmp_path / "x_train.h5", {"f02": emnist(0.25, 0.5), "f01": emnist(1.0)})
    put(tmp_path / "x_test.h5", {"f02": emnist(0.75), "f09": emnist(0.1)})
    found = data.load(f"tff:{tmp_path / 'x_train.h5'}")
    assert found.train["x"].shape == (3, 28, 28, 1) and found.num_classes == 2
    assert found.train["x"][:, 0, 0, 0].tolist() == [1.0, 0.25, 0.5]
    assert found.train["subject"].tolist() == [0, 1, 1]
    assert found.test["subject"].tolist() == [1, 2]  # f02 is who it was


def test_text_becomes_windows_and_the_next_symbol(tmp_path):
    line = "ab" * 100  # 200 characters: a window of 80 starts at 0 and at 80
    put(tmp_path / "s.h5", {"KING": {"snippets": [line.encode()]}, "FOOL": {"snippets": [b"ab"]}})
    found = data.load(f"tff:{tmp_path / 's.h5'}")
    pool = np.concatenate([found.train["x"], found.test["x"]])
    assert pool.shape == (2, 80) and found.num_classes == 80
    a, b = pool[0, :2]
    assert pool.tolist() == [[a, b] * 40] * 2 and found.train["y"].tolist() == [a] * 2


def test_clients_of_such_data_are_the_clients_of_a_run_unless_it_says_otherwise():
    assert DataConfig(dataset="tff:x.h5").client_column == "subject"
    assert DataConfig(dataset="leaf:x").client_column == "subject"
    silos = DataConfig(dataset="tff:x.h5", partition="subject_uniform", num_clients=4)
    assert silos.client_column is None


@pytest.mark.parametrize("what", ["fields", "group", "damaged", "symbol"])
def test_what_does_not_fit_is_named(tmp_path, what):
    path = tmp_path / "bad.h5"
    if what == "fields":
        put(path, {"f01": {"tokens": [b"what"]}})
        words = "Expected client 'f01' of .* to have pixels"
    elif what == "group":
        with h5py.File(path, "w") as file:
            file["other"] = [1]
        words = r"a group 'examples', got \['other'\]"
    elif what == "damaged":
        path.write_bytes(b"nothing")
        words = "a whole HDF5 file"
    else:
        put(path, {"KING": {"snippets": ["\u20ac" * 90]}})
        words = "got '\u20ac' of client 'KING'"
    with pytest.raises(ValueError, match=words):
        data.load(f"tff:{path}")


@pytest.mark.parametrize("how", ["link", "raw bytes", "virtual"])
def test_bytes_of_another_file_are_not_read(tmp_path, how):
    """An HDF5 file may name any file of the machine that reads it."""
    put(tmp_path / "other.h5", {"a": emnist(0.5)})
    path = tmp_path / "data.h5"
    with h5py.File(path, "w") as file:
        file["examples/a/label"] = np.zeros(1, np.int32)
        if how == "link":
            there = h5py.ExternalLink(str(tmp_path / "other.h5"), "examples/a/pixels")
            file["examples/a/pixels"] = there
        elif how == "raw bytes":
            raw = [(str(tmp_path / "other.h5"), 0, 28 * 28 * 4)]
            file.create_dataset("examples/a/pixels", (1, 28, 28), np.float32, external=raw)
        else:
            layout = h5py.VirtualLayout((1, 28, 28), np.float32)
            layout[:] = h5py.VirtualSource(tmp_path / "other.h5", "examples/a/pixels", (1, 28, 28))
            file.create_virtual_dataset("examples/a/pixels", layout)
    with pytest.raises(ValueError, match=r"'a' of .* to hold its arrays in that file"):
        data.load(f"tff:{path}")


def sentences(path, clients):
    """A file like TFF's StackOverflow: titles and scores beside the words of each sentence."""
    with h5py.File(path, "w") as file:
        for name, lines in clients.items():
            group = file.create_group(f"examples/{name}")
            group["tokens"] = np.array(lines, dtype="S")
            group["score"] = np.zeros(len(lines), np.int64)


def test_sentences_of_stackoverflow_become_the_words_of_a_public_list(tmp_path):
    (tmp_path / "words.txt").write_text("the\ncode\n")
    sentences(tmp_path / "posts_train.h5", {"7": ["the code runs", "code"], "3": ["the"]})
    sentences(tmp_path / "posts_test.h5", {"3": ["the the code"]})
    words = Columns(task="tokens", length=2, vocabulary=str(tmp_path / "words.txt"))
    found = data.load(f"tff:{tmp_path}/posts_train.h5", words)
    assert found.task == "tokens" and found.num_classes == 4
    # Clients by name, each sentence's first two words; 2 is any other word and 3 begins one.
    assert found.train["y"].tolist() == [[0, -1], [0, 1], [1, -1]]
    assert found.train["x"].tolist() == [[3, 0], [3, 0], [3, 0]]
    assert found.train["subject"].tolist() == [0, 1, 1]
    assert found.test["y"].tolist() == [[0, 0]] and found.test["subject"].tolist() == [0]
    with pytest.raises(ValueError, match="task='tokens'"):
        data.load(f"tff:{tmp_path}/posts_train.h5")
    sentences(tmp_path / "posts_train.h5", {"7": ["the", " "]})
    with pytest.raises(ValueError, match=r"sentence 1 of client '7' in .*posts_train"):
        data.load(f"tff:{tmp_path}/posts_train.h5", words)
