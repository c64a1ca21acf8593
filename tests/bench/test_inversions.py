"""The committed inversions: how sharp they are."""

import numpy as np
import pytest

from bench import _tables

ROWS = _tables.rows("inversions")


def best(case):
    found = [np.median(row["psnr_db"]) for row in ROWS if row["case"] == case]
    return max(found)


@pytest.mark.parametrize(
    ("case", "least"),
    [
        ("smooth LeNet, one image", 30),
        ("ReLU CNN, one image", 20),
        ("smooth LeNet, a batch of 8", 18),
    ],
)
def test_undefended_images_are_told_as_sharply_as_they_should_be(case, least):
    assert best(case) >= least
