"""What y is for each type of task: what fits comes back, what does not is named by row and rule."""

import numpy as np
import pytest

from fljax.data import targets
from fljax.data.dataset import Dataset

X = np.zeros((6, 2), np.float32)


def given(y, x=X, num_classes=0):
    part = {"x": x} if y is None else {"x": x, "y": np.asarray(y)}
    return Dataset(part, part, num_classes, "mine")


def test_two_classes_become_bits_and_numbers_become_float32():
    found = targets.settled(given([0, 1, 1, 0, 1, 0], num_classes=2), "binary")
    assert (found.task, found.num_classes) == ("binary", 2)
    assert found.train["y"].tolist() == [0, 1, 1, 0, 1, 0]
    found = targets.settled(given([1, 2, 3, 4, 5, 6]), "regression")
    assert found.train["y"].dtype == np.float32 and found.num_classes == 0
    found = targets.settled(given(np.eye(6, 3, dtype=bool)), "multi_label")
    assert found.train["y"].dtype == np.int32 and found.train["y"].sum() == 3


def test_tokens_are_told_from_the_symbols_before_them():
    whole = np.array([[3, 1, 2, 0], [2, 2, -1, -1]])
    found = targets.settled(given(None, whole), "tokens")
    assert found.num_classes == 4
    assert found.train["x"].tolist() == [[3, 1, 2], [2, 2, 0]]
    assert found.train["y"].tolist() == [[1, 2, 0], [2, -1, -1]]
    window = targets.settled(given([5, 1], whole[:, :2].clip(0), num_classes=7), "tokens")
    assert window.num_classes == 7 and window.train["y"].tolist() == [[1, 5], [2, 1]]


@pytest.mark.parametrize(
    ("y", "task", "words"),
    [
        ([0, 1, 2, 0, 1, 0], "binary", "0 or 1.*got 2 in row 2"),
        (np.array([[0, 1], [1, 3]]), "multi_label", "0 or 1.*got 3 in row 1"),
        ([0, 1, 0, 0, 1, 0], "multi_label", r"0 or 1 \[M, labels\].*shape \[6\]"),
        ([0.0, 1.0, np.nan], "regression", "finite.*got nan in row 2"),
        (["a", "b"], "regression", "finite numbers"),
        (np.array([[1, 2], [-1, -1]]), "tokens", "symbols.*got -1 in row 1"),
        (np.array([[1, 2, 3], [1, 2, 3]]), "tokens", r"a symbol for each of x"),
    ],
)
def test_what_does_not_fit_is_named_by_row_and_rule(y, task, words):
    y = np.asarray(y)
    x = np.ones((len(y), 2), np.int32 if task == "tokens" else np.float32)
    with pytest.raises(ValueError, match=words):
        targets.settled(given(y, x), task)


def test_ten_classes_are_neither_bits_nor_numbers():
    for task, words in (("binary", "2 classes.*got 10"), ("regression", "task='classes'")):
        with pytest.raises(ValueError, match=words):
            targets.settled(given([9, 1, 1, 0, 1, 0], num_classes=10), task)


def test_labels_and_symbols_are_counted_and_padding_is_not():
    many = targets.settled(given(np.array([[1, 1], [1, 0]])), "multi_label")
    assert {n: c.tolist() for n, c in targets.counts(many).items()} == {"0": [2, 2], "1": [1, 1]}
    tokens = targets.settled(given(None, np.array([[0, 3, 3], [3, 1, -1]])), "tokens")
    assert {n: int(c[0]) for n, c in targets.counts(tokens).items()} == {"1": 1, "3": 2}
    assert targets.counts(targets.settled(given([1, 2]), "regression")) == {}


def test_a_symbol_beyond_the_table_is_named_by_row():
    # The first symbol of a sequence is in no y, and an embedding would read another row for it.
    x = np.array([[1, 2, 0], [9, 1, 1]])
    with pytest.raises(ValueError, match=r"x of mine to hold symbols in \[0, 3\).*got 9 in row 1"):
        targets.settled(given(None, x, num_classes=3), "tokens")
