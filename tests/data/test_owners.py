"""No user owns more of what is chosen than the bound says, and little is left out for it."""

import itertools

import numpy as np
import pytest

from fljax import data


def tables(count):
    rng = np.random.default_rng(0)
    for _ in range(count):
        table = rng.integers(-1, 6, (rng.integers(0, 10), 3))
        yield table, int(rng.integers(1, 4))


def most_owned(table, rows):
    users = [user for row in rows for user in set(table[row].tolist()) - {-1}]
    return max(np.unique(users, return_counts=True)[1], default=0)


def best(table, most):
    """The size of the largest choice, by trying all."""
    for size in range(len(table), -1, -1):
        for rows in itertools.combinations(range(len(table)), size):
            if most_owned(table, rows) <= most:
                return size


@pytest.mark.parametrize("choice", ["greedy", "maximum"])
def test_no_user_owns_more_than_the_bound_and_few_rows_are_left_out(choice):
    for table, most in tables(40):
        rows = data.bound_owned(table, most=most, rng=np.random.default_rng(1), choice=choice)
        assert np.array_equal(rows, np.unique(rows))
        assert most_owned(table, rows) <= most
        largest = best(table, most)
        if choice == "maximum":
            assert len(rows) == largest
        assert 3 * len(rows) >= largest
        for row in set(range(len(table))) - set(rows.tolist()):
            assert most_owned(table, [*rows, row]) > most


def test_rows_with_few_owners_come_first_and_those_with_none_always():
    table = np.array([[0, 1, 2], [0, -1, 0], [1, -1, -1], [2, -1, -1], [-1, -1, -1]])
    rows = data.bound_owned(table, most=1, rng=np.random.default_rng(0))
    np.testing.assert_array_equal(rows, [1, 2, 3, 4])


def test_equal_rows_are_taken_in_an_order_that_the_generator_draws():
    table = np.zeros((50, 1), int)
    seen = {
        tuple(data.bound_owned(table, most=2, rng=np.random.default_rng(seed)))
        for seed in range(20)
    }
    assert len(seen) > 10 and all(len(rows) == 2 for rows in seen)


@pytest.mark.parametrize(
    "changes",
    [{"most": 0}, {"owners": np.zeros(3, int)}, {"owners": np.zeros((3, 1))}, {"choice": "random"}],
)
def test_what_is_out_of_range_is_refused(changes):
    given = {"owners": np.zeros((3, 1), int), "most": 1, "rng": np.random.default_rng(0)}
    with pytest.raises(ValueError, match="Expected"):
        data.bound_owned(**given | changes)
