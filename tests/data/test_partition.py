import inspect

import numpy as np
import pytest

from fljax.data import partition

LABELS = np.repeat(np.arange(10), 30)
OPTIONS = {
    "iid": {},
    "dirichlet": {"alpha": 0.1},
    "shards": {"shards_per_client": 2},
    "power_law": {"exponent": 1.0},
}


def split(name, labels=LABELS, num_clients=20, seed=0, **options):
    return getattr(partition, name)(
        labels, num_clients, np.random.default_rng(seed), **{**OPTIONS[name], **options}
    )


def sizes(table):
    return (table >= 0).sum(axis=1)


def test_every_partition_is_tested():
    assert set(OPTIONS) == set(partition.NAMES)
    public = {
        name
        for name, _ in inspect.getmembers(partition, inspect.isfunction)
        if not name.startswith("_")
    }
    assert public == set(partition.NAMES)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("num_clients", [1, 7, 150])
@pytest.mark.parametrize("name", partition.NAMES)
def test_every_example_has_one_client_and_every_client_an_example(name, num_clients, seed):
    table = split(name, num_clients=num_clients, seed=seed)
    assert table.dtype == np.int32
    assert table.shape == (num_clients, sizes(table).max())
    np.testing.assert_array_equal(np.sort(table[table >= 0]), np.arange(LABELS.size))
    assert sizes(table).min() >= 1
    # -1 stands at the end of a row only.
    assert ((table >= 0) == (np.arange(table.shape[1]) < sizes(table)[:, None])).all()


@pytest.mark.parametrize("name", ["iid", "dirichlet", "power_law"])
@pytest.mark.parametrize("options", [{}, {"alpha": 1e-5}, {"exponent": 50.0}], ids=str)
def test_as_many_clients_as_examples_get_one_each(name, options):
    known = {key: value for key, value in options.items() if key in OPTIONS[name]}
    assert (sizes(split(name, num_clients=LABELS.size, **known)) == 1).all()


@pytest.mark.parametrize("name", partition.NAMES)
def test_the_same_rng_gives_the_same_clients(name):
    np.testing.assert_array_equal(split(name, seed=3), split(name, seed=3))
    assert not np.array_equal(split(name, seed=3), split(name, seed=4))


def test_iid_sizes_differ_by_at_most_one():
    assert np.ptp(sizes(split("iid", num_clients=7))) <= 1


def test_shards_of_one_class_give_each_client_as_many_classes_as_shards():
    # 10 classes of 30 in 20 shards of 15: no shard crosses a class.
    table = split("shards", num_clients=10, shards_per_client=2)
    assert all(len(np.unique(LABELS[row[row >= 0]])) <= 2 for row in table)
    assert (sizes(table) == 30).all()


def test_dirichlet_with_a_large_alpha_divides_each_class_evenly():
    # Proportions have standard deviation < sqrt(p / alpha) = 5e-5 at p = 1/10, alpha = 4e7:
    # rounding decides.
    table = split("dirichlet", num_clients=10, alpha=4e7)
    counts = np.stack([np.bincount(LABELS[row[row >= 0]], minlength=10) for row in table])
    assert np.abs(counts - 3).max() <= 1


def test_dirichlet_with_a_tiny_alpha_gives_each_class_to_one_client():
    table = split("dirichlet", num_clients=3, alpha=1e-6)
    owners = [sum(label in LABELS[row[row >= 0]] for row in table) for label in range(10)]
    # A client left empty takes one example of somebody else, so up to two classes may have a second
    # owner.
    assert sum(owners) <= 10 + 2


def test_power_law_sizes_follow_the_law():
    n, num_clients = 10_000, 8
    table = partition.power_law(
        np.zeros(n, int), num_clients, np.random.default_rng(0), exponent=1.5
    )
    law = np.arange(1, num_clients + 1) ** -1.5
    expected = 1 + (n - num_clients) * law / law.sum()
    assert np.abs(np.sort(sizes(table))[::-1] - expected).max() <= 1


def test_power_law_at_exponent_zero_gives_equal_sizes():
    assert (sizes(split("power_law", num_clients=20, exponent=0)) == 15).all()


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("iid", {"num_clients": 0}, "num_clients=0"),
        ("iid", {"num_clients": 301}, r"num_clients <= 300 .*num_clients=301"),
        ("shards", {"num_clients": 151}, r"num_clients <= 150 .*at least 2.*num_clients=151"),
        ("shards", {"shards_per_client": 0}, "shards_per_client=0"),
        ("dirichlet", {"alpha": 0.0}, r"alpha > 0.*alpha=0.0"),
        ("dirichlet", {"alpha": float("nan")}, "alpha=nan"),
        ("power_law", {"exponent": -1.0}, r"exponent >= 0.*exponent=-1.0"),
        ("iid", {"labels": np.zeros((3, 2))}, r"labels of shape \[n\].*\[3, 2\]"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_input_names_argument_value_and_rule(name, arguments, message):
    with pytest.raises(ValueError, match=message) as error:
        split(name, **arguments)
    assert "\n" not in str(error.value)
