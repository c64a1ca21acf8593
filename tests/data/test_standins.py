import numpy as np
import pytest

from fljax import data
from fljax.data import subjects
from fljax.data.sources import standins


@pytest.fixture(scope="module")
def writers():
    return standins.writers(np.random.default_rng(0), num_subjects=60, mean_items=40.0)


@pytest.fixture(scope="module")
def roles():
    return standins.roles(np.random.default_rng(0), num_subjects=12, mean_items=200.0, window=10)


def test_both_carry_subjects_and_pass_the_checks(writers, roles):
    for task in (writers, roles):
        for split in (task.train, task.test):
            data.check_examples(split, num_classes=task.num_classes)
            subjects.subject_ids(split)
        assert set(np.unique(task.train["subject"])) == set(np.unique(task.test["subject"]))


def test_the_same_rng_gives_the_same_data(roles):
    again = standins.roles(np.random.default_rng(0), num_subjects=12, mean_items=200.0, window=10)
    np.testing.assert_array_equal(again.train["x"], roles.train["x"])
    one = standins.writers(np.random.default_rng(5), num_subjects=3, mean_items=5.0)
    two = standins.writers(np.random.default_rng(5), num_subjects=3, mean_items=5.0)
    np.testing.assert_array_equal(one.test["x"], two.test["x"])


def test_writers_sizes_have_the_stated_mean(writers):
    sizes = np.bincount(writers.train["subject"])
    # Lognormal with sigma 0.35 has standard deviation 40 sqrt(exp(0.35^2) - 1) = 14.4.
    assert abs(sizes.mean() - 40) <= 5 * 14.4 / np.sqrt(60)
    assert writers.train["x"].shape[1:] == (8, 8, 1)


def test_writers_without_style_are_the_digits_themselves():
    images = data.load("digits").train["x"][:5, :, :, 0]
    zero = np.zeros(5)
    np.testing.assert_allclose(standins._warp(images, 8, zero, zero, zero + 1), images, atol=1e-6)


def test_a_quarter_turn_is_a_quarter_turn():
    images = data.load("digits").train["x"][:3, :, :, 0]
    zero = np.zeros(3)
    turned = standins._warp(images, 8, zero, zero + np.pi / 2, zero + 1)
    np.testing.assert_allclose(turned, np.rot90(images, axes=(1, 2)), atol=1e-6)


def test_a_writer_is_recognisable(writers):
    # Subjects differ: the between-subject variance of the mean image exceeds what items drawn at
    # random would give.
    x, subject = writers.train["x"].reshape(len(writers.train["x"]), -1), writers.train["subject"]

    def spread(ids):
        return np.var([x[ids == i].mean(axis=0) for i in range(60)], axis=0).mean()

    shuffled = [spread(np.random.default_rng(i).permutation(subject)) for i in range(10)]
    assert spread(subject) > max(shuffled) * 2


def test_writers_larger_side(writers):
    large = standins.writers(np.random.default_rng(0), num_subjects=2, mean_items=4.0, side=28)
    assert large.train["x"].shape[1:] == (28, 28, 1)


def test_role_windows_slide_by_one_and_test_windows_share_no_symbol_with_them(monkeypatch):
    # Text in which each symbol is its own position.
    monkeypatch.setattr(
        standins,
        "_speak",
        lambda rng, n, length: np.tile(np.arange(length, dtype=np.int32), (n, 1)),
    )
    task = standins.roles(np.random.default_rng(0), num_subjects=12, mean_items=50.0, window=10)
    for subject in range(12):
        train, test = (
            {k: v[split["subject"] == subject] for k, v in split.items()}
            for split in (task.train, task.test)
        )
        for split in (train, test):
            np.testing.assert_array_equal(
                split["x"][:, 0] - split["x"][0, 0], np.arange(len(split["y"]))
            )
            np.testing.assert_array_equal(np.diff(split["x"], axis=1), 1)
            np.testing.assert_array_equal(split["y"], split["x"][:, -1] + 1)
        assert train["y"].max() < test["x"].min()


def test_a_role_speaks_its_own_way(roles):
    # The next symbol after a pair is better predicted from the role's own training text than from
    # another role's.
    train, test = roles.train, roles.test

    def hits(teacher, pupil):
        own = train["subject"] == teacher
        table = {}
        for x, y in zip(train["x"][own], train["y"][own], strict=True):
            table.setdefault((x[-2], x[-1]), []).append(y)
        mine = test["subject"] == pupil
        guesses = [
            max(g, key=g.count) if (g := table.get((x[-2], x[-1]))) else -1 for x in test["x"][mine]
        ]
        return np.mean(np.array(guesses) == test["y"][mine])

    own = np.mean([hits(i, i) for i in range(12)])
    other = np.mean([hits((i + 1) % 12, i) for i in range(12)])
    assert own > other + 0.05


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda rng: standins.writers(rng, num_subjects=0), "num_subjects=0"),
        (lambda rng: standins.writers(rng, side=7), "side >= 8, got side=7"),
        (lambda rng: standins.writers(rng, mean_items=0.5), "mean_items >= 1, got mean_items=0.5"),
        (lambda rng: standins.writers(rng, mean_items=float("nan")), "mean_items=nan"),
        (lambda rng: standins.roles(rng, window=1), "window >= 2, got window=1"),
        (lambda rng: standins.roles(rng, size_sigma=-1.0), "size_sigma=-1.0"),
    ],
    ids=range(6),
)
def test_bad_input_names_argument_value_and_rule(call, message):
    with pytest.raises(ValueError, match=message):
        call(np.random.default_rng(0))


def successors(text):
    """Counts of what follows each pair of symbols."""
    counts = np.zeros((80, 80, 80), np.int32)
    np.add.at(counts, (text[:, :-2].ravel(), text[:, 1:-1].ravel(), text[:, 2:].ravel()), 1)
    return counts


def test_common_speech_is_of_the_source_that_roles_of_the_same_generator_share(roles):
    of_roles = successors(roles.train["x"])

    def nats(seed):
        """Of a symbol of the roles, by what was heard after the same two."""
        rng = np.random.default_rng(seed)
        options = {"num_texts": 400, "length": 50, "num_subjects": 12, "mean_items": 200.0}
        heard = successors(standins.common_speech(rng, **options)) + 5 * frequencies
        chances = heard / heard.sum(axis=-1, keepdims=True)
        return -np.sum(of_roles * np.log(chances)) / of_roles.sum()

    frequencies = (of_roles.sum(axis=(0, 1)) + 1) / (of_roles.sum() + 80)
    alone = -np.sum(of_roles * np.log(frequencies)) / of_roles.sum()
    # The same source tells more than frequencies do, another one less: it is wrong at each pair.
    assert nats(0) < alone - 0.3 < alone + 0.3 < nats(1)


def test_common_speech_is_not_drawn_by_the_numbers_that_roles_speak_by():
    one, other = np.random.default_rng(0), np.random.default_rng(0)
    standins.common_speech(one, num_texts=3, length=4, num_subjects=2)
    standins._sizes(other, 2, 300.0, sigma=1.0)
    standins._source(other)
    np.testing.assert_array_equal(one.random(5), other.random(5))


def test_common_speech_of_no_length_is_refused():
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="length >= 2"):
        standins.common_speech(rng, num_texts=1, length=1)
    with pytest.raises(ValueError, match="num_texts"):
        standins.common_speech(rng, num_texts=0, length=5)


def test_writers_are_the_same_however_many_are_styled_together(monkeypatch):
    def made():
        return standins.writers(np.random.default_rng(5), num_subjects=6, mean_items=20.0)

    whole = made()
    monkeypatch.setattr(standins, "_BLOCK", 17)
    for one, other in ((whole.train, made().train), (whole.test, made().test)):
        for name, values in one.items():
            np.testing.assert_array_equal(values, other[name])
