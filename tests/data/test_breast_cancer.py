"""The real breast-cancer table: its shape, its classes, and a fixed split."""

import numpy as np

from fljax import data


def test_the_table_is_whole_and_its_split_keeps_the_classes_shares():
    found = data.load("breast_cancer")
    assert found.num_classes == 2
    train, test = found.train, found.test
    assert train["x"].shape[1:] == (30,) and len(train["y"]) + len(test["y"]) == 569
    everything = np.concatenate([train["x"], test["x"]])
    assert everything.min() == 0 and everything.max() == 1 and everything.dtype == np.float32
    counts = np.bincount(train["y"]) + np.bincount(test["y"])
    np.testing.assert_array_equal(counts, [212, 357])  # malignant, benign: UCI's own count
    np.testing.assert_allclose(np.bincount(test["y"]) / counts, 0.2, atol=0.003)
    np.testing.assert_array_equal(data.load("breast_cancer").test["x"], test["x"])
