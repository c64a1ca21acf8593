import importlib.util
import pathlib

import numpy as np
import pytest

from fljax.data import builtin


@pytest.fixture(scope="module")
def digits():
    return builtin.load("digits")


def test_digits_have_the_promised_shapes_and_ranges(digits):
    assert digits.num_classes == 10 and digits.name == "digits"
    for part in (digits.train, digits.test):
        assert part["x"].dtype == np.float32 and part["y"].dtype == np.int32
        assert part["x"].shape == (part["y"].size, 8, 8, 1)
        assert part["x"].min() == 0.0 and part["x"].max() == 1.0
        assert set(part["y"]) == set(range(10))


def test_train_and_test_are_all_1797_digits_and_share_none(digits):
    from sklearn.datasets import load_digits

    raw = load_digits()
    rows = np.concatenate([digits.train["x"], digits.test["x"]]).reshape(-1, 64)
    both = np.concatenate(
        [rows * 16, np.concatenate([digits.train["y"], digits.test["y"]])[:, None]], axis=1
    )
    whole = np.concatenate([raw.data, raw.target[:, None]], axis=1)
    assert both.shape == (1797, 65)
    np.testing.assert_array_equal(both[np.lexsort(both.T)], whole[np.lexsort(whole.T)])


def test_a_fifth_of_every_class_is_held_out(digits):
    train, test = (np.bincount(part["y"]) for part in (digits.train, digits.test))
    assert np.abs(test - 0.2 * (train + test)).max() <= 0.5


def test_the_split_is_the_same_each_time(digits):
    again = builtin.load("digits")
    np.testing.assert_array_equal(again.train["x"], digits.train["x"])
    np.testing.assert_array_equal(again.test["y"], digits.test["y"])


def test_data_that_are_made_once_are_of_each_callers_own():
    first = builtin.load("roles")
    before = first.train["x"].copy()
    first.train["x"][:] = 0
    np.testing.assert_array_equal(builtin.load("roles").train["x"], before)


def test_split_indices_partition_the_rows():
    labels = np.repeat([3, 5], [10, 4])
    train, test = builtin.stratified_split(labels, 0.5, np.random.default_rng(0))
    np.testing.assert_array_equal(np.sort(np.concatenate([train, test])), np.arange(14))
    np.testing.assert_array_equal(np.bincount(labels[test])[[3, 5]], [5, 2])


def test_an_unknown_name_is_refused():
    names = (
        "'breast_cancer', 'digits', 'fields', 'writers', 'roles', 'idx:FOLDER', "
        "'cifar:FOLDER', 'npz:FILE', 'csv:FILE', 'folder:FOLDER', 'hf:FOLDER', 'leaf:FOLDER', "
        "'tff:FILE', 'text:FOLDER', 'disk:FOLDER'"
    )
    with pytest.raises(
        ValueError, match=rf"Expected name to be one of \[{names}\], got name='mnist'"
    ):
        builtin.load("mnist")


def test_without_scikit_learn_the_error_names_the_extra(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"fljax\[sim\]"):
        builtin.load("digits")


@pytest.mark.parametrize("name", ["digits", "breast_cancer"])
def test_tables_are_those_of_scikit_learn_wherever_it_keeps_them(name, monkeypatch):
    read = builtin.load(name)
    monkeypatch.setattr(pathlib.Path, "is_file", lambda path: False)
    asked = builtin.load(name)
    for part in ("train", "test"):
        for field, array in getattr(read, part).items():
            np.testing.assert_array_equal(array, getattr(asked, part)[field])
