"""Images by class: what is read is what was drawn, and what cannot be read is named."""

import re

import numpy as np
import pytest
from PIL import Image

from fljax import data


def put(path, pixels, mode="L"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(pixels, np.uint8)).convert(mode).save(path)


@pytest.fixture
def folder(tmp_path):
    """Three cats of value 10 + i and three dogs of 200 + i, 4 x 3 pixels."""
    where = tmp_path / "my pets"
    for base, label in ((10, "cat"), (200, "a dog")):
        for i in range(3):
            put(where / label / f"{i}.png", np.full((4, 3), base + i))
    (where / "cat" / "notes.txt").write_text("no image")
    (where / ".hidden").mkdir()
    return where


def test_images_are_their_bytes_over_255_and_classes_the_names_of_folders(folder):
    found = data.load(f"folder:{folder}")
    assert found.class_names == ("a dog", "cat") and found.num_classes == 2
    x = np.concatenate([found.train["x"], found.test["x"]])
    y = np.concatenate([found.train["y"], found.test["y"]])
    assert x.shape == (6, 4, 3, 1) and x.dtype == np.float32 and len(found.test["y"]) == 2
    values = np.sort(np.round(x[:, 0, 0, 0] * 255).astype(int))
    assert values.tolist() == [10, 11, 12, 200, 201, 202]
    assert ((x[:, 0, 0, 0] > 0.5) == (y == 0)).all()


def test_train_and_test_stay_apart_where_they_have_folders(tmp_path):
    for part, value in (("train", 1), ("test", 9)):
        for label in ("x", "y"):
            put(tmp_path / part / label / "one.png", np.full((2, 2), value), "RGB")
    found = data.load(f"folder:{tmp_path}")
    assert found.train["x"].shape == found.test["x"].shape == (2, 2, 2, 3)
    assert (found.train["x"] == np.float32(1 / 255)).all()
    assert (found.test["x"] == np.float32(9) / np.float32(255)).all()


def test_a_home_folder_is_found(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder.parent))
    assert data.load("folder:~/my pets").num_classes == 2


@pytest.mark.parametrize("what", ["size", "damaged", "empty", "program", "none"])
def test_what_cannot_be_read_is_named(folder, tmp_path, what):
    bad = folder / "cat" / "7.png"
    words = f"Expected {bad} to be"
    if what == "size":
        put(bad, np.zeros((5, 5)))
        words = f"Expected {bad} to be 3 x 4 pixels, as .* is, got 5 x 5"
    elif what == "damaged":
        bad.write_bytes((folder / "cat" / "0.png").read_bytes()[:30])
    elif what == "program":  # PostScript by another name
        bad.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 3 4\n%%EndComments\n")
        words = f"{words} an image, got: cannot identify image file"
    elif what == "empty":
        bad.write_bytes(b"")
    else:
        folder, words = tmp_path / "nothing", "to be a folder, got none there"
    words = words if what == "size" else re.escape(words)
    with pytest.raises(ValueError, match=words):
        data.load(f"folder:{folder}")
