import numpy as np
import pytest

from fljax.data import arrays, subjects
from fljax.errors import PrivacyPreconditionError

IDS = np.random.default_rng(0).permutation(np.repeat(np.arange(40), np.arange(20, 60)))
SPLITS = {"uniform": {}, "power_law": {"alpha": 4.0}}


def split(name, ids=IDS, num_silos=16, seed=0, **options):
    return getattr(subjects, name)(
        ids, num_silos, np.random.default_rng(seed), **{**SPLITS[name], **options}
    )


def test_every_split_is_tested():
    assert set(SPLITS) == set(subjects.SPLITS)


@pytest.mark.parametrize("name", subjects.SPLITS)
def test_every_item_lies_in_one_silo(name):
    table = split(name)
    assert table.dtype == np.int32
    np.testing.assert_array_equal(np.sort(table[table >= 0]), np.arange(IDS.size))
    sizes = (table >= 0).sum(axis=1)
    assert ((table >= 0) == (np.arange(table.shape[1]) < sizes[:, None])).all()


@pytest.mark.parametrize("name", subjects.SPLITS)
def test_the_same_rng_gives_the_same_silos(name):
    np.testing.assert_array_equal(split(name, seed=3), split(name, seed=3))
    assert not np.array_equal(split(name, seed=3), split(name, seed=4))


def test_counts_agree_with_a_loop():
    table = split("power_law")
    counted = subjects.counts(IDS, table)
    for silo, row in enumerate(table):
        for subject in range(40):
            assert counted[subject, silo] == (IDS[row[row >= 0]] == subject).sum()


def test_uniform_spreads_each_subject_evenly_and_gives_no_silo_the_remainders():
    counted = subjects.counts(IDS, split("uniform"))
    assert (np.ptp(counted, axis=1) <= 1).all()
    # Each silo's remainder is a sum of 40 coins, so its standard deviation is at most sqrt(40) / 2
    # = 3.2.
    assert np.abs(counted.sum(axis=0) - IDS.size / 16).max() <= 5 * 3.2


def test_power_law_probabilities_match_the_closed_form():
    # Spec oracle 12: bins 8, 15 and 16 of 16 at alpha = 16.
    chances = subjects.power_law_probabilities(16, 16.0)
    np.testing.assert_allclose(
        chances[[7, 14, 15]], [1.345722829e-05, 0.2380070434, 0.6439258695], rtol=1e-9
    )
    np.testing.assert_allclose(subjects.power_law_probabilities(16, 1.0), 1 / 16)
    np.testing.assert_allclose(chances.sum(), 1)


@pytest.mark.parametrize("alpha", [1.0, 2.0, 8.0])
def test_power_law_in_the_same_order_fills_silos_by_the_law(alpha):
    ids = np.repeat(np.arange(100), 200)
    counted = subjects.counts(
        ids, split("power_law", ids, num_silos=8, alpha=alpha, same_order=True)
    ).sum(axis=0)
    chances = subjects.power_law_probabilities(8, alpha)
    assert (
        np.abs(counted - ids.size * chances)
        <= 5 * np.sqrt(ids.size * chances * (1 - chances)) + 1e-9
    ).all()


def test_power_law_ranks_the_silos_anew_for_each_subject():
    ids = np.repeat(np.arange(200), 100)
    counted = subjects.counts(ids, split("power_law", ids, alpha=16.0))
    richest = counted.argmax(axis=1)
    # 200 subjects over 16 silos: mean 12.5, standard deviation < 3.5.
    assert np.abs(np.bincount(richest, minlength=16) - 12.5).max() <= 5 * 3.5
    share = counted.max(axis=1).sum() / ids.size
    p = subjects.power_law_probabilities(16, 16.0).max()
    assert abs(share - p) <= 5 * np.sqrt(p * (1 - p) / ids.size) + 1e-3


def test_capping_drops_only_what_is_over_the_cap():
    table = split("power_law", alpha=8.0)
    before = subjects.counts(IDS, table)
    capped, dropped = subjects.cap_items(IDS, table, max_items=5, rng=np.random.default_rng(1))
    np.testing.assert_array_equal(subjects.counts(IDS, capped), np.minimum(before, 5))
    assert dropped == np.maximum(before - 5, 0).sum() > 0
    kept = np.sort(capped[capped >= 0])
    assert np.unique(kept).size == kept.size and np.isin(kept, table).all()
    subjects.check_cap(IDS, capped, max_items=5)


def test_subjects_travel_with_their_examples():
    examples = subjects.with_subjects({"x": np.arange(3.0)}, np.array([5, 0, 5]))
    np.testing.assert_array_equal(subjects.subject_ids(examples), [5, 0, 5])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: subjects.subject_ids({"x": np.zeros(3)}),
            PrivacyPreconditionError,
            r"key 'subject'.*\['x'\]",
        ),
        (lambda: subjects.subject_ids(np.zeros(3)), PrivacyPreconditionError, "subjects unknown"),
        (
            lambda: subjects.subject_ids({"subject": np.zeros(3)}),
            PrivacyPreconditionError,
            "integers.*float64",
        ),
        (
            lambda: subjects.subject_ids({"subject": np.array([0, -1, -1])}),
            PrivacyPreconditionError,
            "-1 in row 1 and 2",
        ),
        (
            lambda: subjects.with_subjects({"x": np.zeros(3)}, np.array([1, 2])),
            ValueError,
            r"3 examples.*\[2\]",
        ),
        (lambda: split("power_law", alpha=-1.0), ValueError, "alpha > 0.*alpha=-1.0"),
        (lambda: split("power_law", alpha=float("nan")), ValueError, "alpha=nan"),
        (
            lambda: split("uniform", num_silos=41),
            ValueError,
            "num_silos <= 40 .*subjects.*num_silos=41",
        ),
        (lambda: split("uniform", num_silos=0), ValueError, "num_silos=0"),
        (lambda: subjects.power_law_probabilities(16, 0.0), ValueError, "alpha=0.0"),
        (
            lambda: subjects.check_cap(
                np.array([0, 1, 1, 1]), np.array([[0, 1], [2, 3]]), max_items=1
            ),
            PrivacyPreconditionError,
            "max_items=1 items in a silo, got 2 of subject 1 in silo 1",
        ),
        (lambda: subjects.check_cap(IDS, split("uniform"), max_items=0), ValueError, "max_items=0"),
        (
            lambda: subjects.cap_items(
                IDS, split("uniform"), max_items=-1, rng=np.random.default_rng(0)
            ),
            ValueError,
            "max_items=-1",
        ),
    ],
    ids=range(13),
)
def test_bad_input_names_argument_value_and_rule(call, error, message):
    with pytest.raises(error, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_held_out_arrays_need_not_say_whose_they_are():
    train = {"x": np.zeros((4, 2), np.float32), "y": np.arange(4) % 2, "subject": np.arange(4)}
    test = {"x": np.zeros((2, 2), np.float32), "y": np.arange(2)}
    dataset, _ = arrays.dataset(train, test, num_classes=2)
    assert set(dataset.test) == {"x", "y"} and set(dataset.train) == {"x", "y", "subject"}
