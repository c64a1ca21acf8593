"""Clients that a column of the data names."""

import numpy as np
import pytest

from fljax.data import client_ids


@pytest.mark.parametrize(
    "ids",
    [
        ["b", "a", "b", "c", "a", "b"],
        [7, -1, 7, 10**12, -1, 7],
        np.array(["b", "a", "b", "c", "a", "b"], object),
    ],
)
def test_each_id_is_a_client_and_holds_its_rows_in_their_order(ids):
    table, names = client_ids.by_column(np.asarray(ids))
    assert table.dtype == np.int32 and table.tolist() == [[1, 4, -1], [0, 2, 5], [3, -1, -1]]
    assert names.tolist() == sorted(set(np.asarray(ids).tolist()))


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (np.array([1.0, 2.0]), "user to be integers or strings, got dtype float64"),
        (np.array(["a", 2], object), "user to be all strings or all integers, got 2 in row 1"),
        (np.array([1, None], object), "got None in row 1"),
        (np.array([True, False], object), "got True in row 0"),
        (np.array([[1, 2]]), r"user to be ids \[n\], one an example, got shape \[1, 2\]"),
    ],
)
def test_what_is_no_id_is_refused_with_its_row(ids, words):
    with pytest.raises(ValueError, match=words):
        client_ids.by_column(ids, name="user")
