import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax.errors import SensitivityError
from fljax.local import silo_query, subject, user

# The example of spec oracles 34 to 37: gradients by hand, C = 1.
GRADIENTS = np.array([(3, 4), (0.3, 0.4), (-6, 8), (0, 2), (0.5, 0), (1, -1)], np.float32)
SUBJECTS = np.array([0, 0, 1, 2, 2, 2], np.int32)


def linear_loss(params, example):
    """The gradient of an example is its x."""
    return jnp.vdot(params, example["x"])


ITEMS = {"item_sampling_prob": 1.0, "l2_clip_norm": 1.0, "batch_size": 4}
QUERIES = {
    "item_sum": functools.partial(subject.item_sum, **ITEMS),
    "item_sum_cap": functools.partial(subject.item_sum, items_per_subject=2, **ITEMS),
    "hierarchical_average": functools.partial(subject.hierarchical_average, **ITEMS),
    "average_then_clip": functools.partial(subject.average_then_clip, items_per_subject=4, **ITEMS),
    "sampled_subjects": functools.partial(
        subject.sampled_subjects,
        subject_sampling_prob=1.0,
        items_per_subject=4,
        l2_clip_norm=1.0,
        batch_size=4,
    ),
    "clipped_batch_gradient": functools.partial(user.clipped_batch_gradient, **ITEMS),
}
# How far one subject may move each sum, in units of the clip norm.
MOVES = {
    "item_sum": 6,
    "item_sum_cap": 2,
    "hierarchical_average": 1,
    "average_then_clip": 1,
    "sampled_subjects": 1,
    "clipped_batch_gradient": 2,
}


def answer(name, key, gradients=GRADIENTS, subjects=SUBJECTS, rows=None, **changes):
    """The query's answer on the rows (all, by default), jitted."""
    examples = {"x": jnp.asarray(gradients), "subject": jnp.asarray(subjects)}
    rows = np.arange(len(subjects)) if rows is None else rows
    fun = jitted(name, tuple(sorted(changes.items())))
    # Neighbours are compared under the same randomness, so the key is used again on purpose.
    return fun(
        jnp.zeros(np.shape(gradients)[1]),
        examples,
        jnp.asarray(rows, jnp.int32),
        jax.random.clone(key),
    )


@functools.cache
def jitted(name, changes):
    return jax.jit(QUERIES[name](linear_loss, **dict(changes)))


def clip64(g):
    norm = np.linalg.norm(np.asarray(g, np.float64))
    return np.asarray(g, np.float64) * min(1, 1 / max(norm, 1e-300))


def drop(rows, subjects, who):
    return np.where(np.asarray(subjects)[rows] == who, -1, rows)


def test_item_sum_matches_oracle_34(key):
    np.testing.assert_allclose(
        answer("item_sum", key).grad_sum, [1.507106781, 2.292893219], rtol=1e-6
    )


def test_hierarchical_average_matches_oracle_35(key):
    np.testing.assert_allclose(
        answer("hierarchical_average", key).grad_sum, [0.2523689271, 1.497631073], rtol=1e-6
    )


def test_clipped_batch_gradient_matches_oracle_36(key):
    got = answer("clipped_batch_gradient", key).grad_sum
    np.testing.assert_allclose(got, [-0.08919529755, 0.996014156], rtol=1e-6)


def direction_loss(params, example):
    """The gradient of an example is x / |x|, so there is none at zero."""
    return jnp.vdot(params, example["x"] / jnp.linalg.norm(example["x"]))


@pytest.mark.slow(
    reason="one more query of the same batches", but=["average_then_clip", "item_sum"]
)
@pytest.mark.parametrize("name", QUERIES)
def test_padding_of_batches_reaches_no_loss(name, key):
    """5 rows in batches of 4, beside silos with 0 and 6 rows: what the loss without a division
    gives for x / |x|.
    """
    rows = np.array([0, 1, 2, -1, 4, 5], np.int32)
    examples = {"x": jnp.asarray(GRADIENTS), "subject": jnp.asarray(SUBJECTS)}
    table = jnp.stack([jnp.full(6, -1), jnp.asarray(rows), jnp.arange(6)]).astype(jnp.int32)
    fun = jax.jit(jax.vmap(QUERIES[name](direction_loss), (None, None, 0, None)))
    found = fun(jnp.zeros(2), examples, table, jax.random.clone(key)).grad_sum
    units = GRADIENTS / np.linalg.norm(GRADIENTS, axis=1, keepdims=True)
    for silo, who in ((1, rows), (2, None)):
        expected = answer(name, key, units, rows=who).grad_sum
        assert np.any(expected)
        np.testing.assert_allclose(found[silo], expected, rtol=1e-5, atol=1e-6)
    assert not np.any(found[0])
    if name == "clipped_batch_gradient":
        np.testing.assert_allclose(found[1], units[rows[rows >= 0]].mean(axis=0), rtol=1e-5)


def test_removing_a_subject_moves_the_sums_as_in_oracle_37(key):
    rows = np.arange(6)
    for name, moved in (("item_sum", 1.242132529), ("hierarchical_average", 0.4140441762)):
        change = (
            answer(name, key).grad_sum - answer(name, key, rows=drop(rows, SUBJECTS, 2)).grad_sum
        )
        np.testing.assert_allclose(np.linalg.norm(change), moved, rtol=1e-6)
    assert int(answer("item_sum", key).largest_group) == 3


def test_a_batch_gradient_moves_by_twice_the_clip_norm_in_oracle_38(key):
    gradients, subjects = np.array([(5, 0), (5, 0), (-100, 0)], np.float32), [0, 0, 1]
    whole = answer("clipped_batch_gradient", key, gradients, subjects).grad_sum
    without = answer("clipped_batch_gradient", key, gradients, subjects, rows=[0, 1, -1]).grad_sum
    np.testing.assert_allclose(np.linalg.norm(whole - without), 2.0, rtol=1e-6)


@pytest.mark.parametrize("name", ["average_then_clip", "sampled_subjects"])
def test_averaging_before_clipping_matches_float64(name, key):
    expected = sum(clip64(GRADIENTS[s == SUBJECTS].mean(axis=0)) for s in range(3))
    # The margin for cancellation shortens a clipped average by at most 1e-5 / 2 where its items
    # agree.
    np.testing.assert_allclose(answer(name, key).grad_sum, expected, rtol=2e-5)


def test_cancelling_gradients_do_not_escape_the_clip(key):
    # Items of norm 1e4 that nearly cancel: the float32 Gram matrix cannot see an average of norm 3,
    # the clip must.
    rng = np.random.default_rng(0)
    for _ in range(20):
        big = rng.normal(size=50)
        big *= 1e4 / np.linalg.norm(big)
        rest = rng.normal(size=50)
        gradients = np.array([big, -big + 6 * rest / np.linalg.norm(rest)], np.float32)
        got = answer("average_then_clip", key, gradients, [0, 0]).grad_sum
        assert np.linalg.norm(got) <= 1 + 1e-6


@pytest.mark.slow(
    reason="the same program on other data",
    but=[
        "item_sum-0",
        "item_sum_cap-0",
        "hierarchical_average-0",
        "average_then_clip-0",
        "sampled_subjects-0",
        "clipped_batch_gradient-0",
    ],
)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", QUERIES)
def test_no_subject_moves_a_sum_by_more_than_stated(name, seed, key):
    rng = np.random.default_rng(seed)
    gradients = (rng.normal(size=(24, 5)) * rng.lognormal(0, 3, (24, 1))).astype(np.float32)
    gradients[rng.integers(24, size=2)] = 0
    subjects = rng.integers(5, size=24).astype(np.int32)
    changes = (
        {"item_sampling_prob": 0.6}
        if name != "sampled_subjects"
        else {"subject_sampling_prob": 0.7}
    )
    whole = answer(name, key, gradients, subjects, **changes).grad_sum
    for who in range(5):
        without = answer(
            name, key, gradients, subjects, rows=drop(np.arange(24), subjects, who), **changes
        ).grad_sum
        allowed = MOVES[name] if name != "item_sum" else (subjects == who).sum()
        assert np.linalg.norm(whole - without) <= allowed * (1 + 1e-5)


@pytest.mark.slow(
    reason="the same program with one more wild number",
    but=[
        "item_sum-nan",
        "item_sum_cap-inf",
        "hierarchical_average-1e+30",
        "average_then_clip-nan",
        "sampled_subjects-inf",
        "clipped_batch_gradient-1e+30",
    ],
)
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
@pytest.mark.parametrize("name", QUERIES)
def test_a_wild_gradient_harms_nobody_else(name, value, key):
    gradients = GRADIENTS.copy()
    gradients[2] = value
    got = answer(name, key, gradients).grad_sum
    assert np.isfinite(got).all()
    if name != "clipped_batch_gradient":
        # A norm above float32's range counts as not finite: subject 1 adds zero.
        np.testing.assert_allclose(
            got, answer(name, key, rows=drop(np.arange(6), SUBJECTS, 1)).grad_sum, rtol=1e-6
        )
    else:
        assert np.linalg.norm(got) <= 1 + 1e-6


@pytest.mark.parametrize("name", QUERIES)
def test_an_empty_sample_gives_zero_and_statistics_that_are_numbers(name, key):
    got = answer(name, key, rows=[-1] * 6)
    assert all(np.all(np.asarray(leaf) == 0) for leaf in jax.tree.leaves(got))


@pytest.mark.parametrize(
    "name", ["hierarchical_average", "average_then_clip", "clipped_batch_gradient"]
)
def test_batches_and_padding_and_order_change_nothing(name, key):
    base = answer(name, key)
    got = answer(name, key, batch_size=1, rows=[-1, 5, 2, -1, 4, 0, 1, 3, -1])
    np.testing.assert_allclose(got.grad_sum, base.grad_sum, rtol=1e-5, atol=1e-6)
    assert (got.num_items, got.num_subjects, got.largest_group) == (6, 3, 3)


def test_one_item_per_subject_makes_the_average_an_item_sum(key):
    np.testing.assert_array_equal(
        answer("hierarchical_average", key, subjects=np.arange(6)).grad_sum,
        answer("item_sum", key, subjects=np.arange(6)).grad_sum,
    )


def test_repeating_all_items_of_a_subject_leaves_the_average(key):
    twice = [0, 1, 2, 3, 4, 5, 3, 4, 5]
    np.testing.assert_allclose(
        answer("hierarchical_average", key, rows=twice).grad_sum,
        answer("hierarchical_average", key).grad_sum,
        rtol=1e-6,
    )


def test_the_cap_keeps_random_items(key):
    # Subject 0 has items 1, 2, 4 and cap 2: the sum is 3, 5 or 6, each with chance 1/3.
    gradients, subjects = np.array([[1], [2], [4]], np.float32), [0, 0, 0]
    fun = QUERIES["item_sum_cap"](linear_loss, l2_clip_norm=10.0)
    examples = {"x": jnp.asarray(gradients), "subject": jnp.asarray(subjects)}
    draw = jax.jit(
        jax.vmap(lambda k: fun(jnp.zeros(1), examples, jnp.arange(3, dtype=jnp.int32), k).grad_sum)
    )
    sums = np.asarray(draw(jax.random.split(key, 3000)))[:, 0]
    for value in (3, 5, 6):
        assert abs((sums == value).mean() - 1 / 3) <= 5 * np.sqrt(2 / 9 / 3000)
    assert np.isin(sums, [3, 5, 6]).all()


def test_the_number_of_a_subjects_sampled_items_is_binomial(key):
    from scipy import stats

    subjects, prob, draws = [0] * 8 + [1], 0.3, 2000
    gradients = np.array([[0.01]] * 8 + [[0.0]], np.float32)
    fun = subject.item_sum(
        linear_loss, item_sampling_prob=prob, l2_clip_norm=1.0, batch_size=9, method="vmap"
    )
    examples = {"x": jnp.asarray(gradients), "subject": jnp.asarray(subjects)}
    draw = jax.jit(
        jax.vmap(lambda k: fun(jnp.zeros(1), examples, jnp.arange(9, dtype=jnp.int32), k).grad_sum)
    )
    counts = np.round(np.asarray(draw(jax.random.split(key, draws)))[:, 0] * 100).astype(int)
    expected = stats.binom.pmf(np.arange(9), 8, prob) * draws
    observed = np.bincount(counts, minlength=9)
    merged = [
        *zip(observed[:6], expected[:6], strict=True),
        (observed[6:].sum(), expected[6:].sum()),
    ]
    chi_square = sum((o - e) ** 2 / e for o, e in merged)
    assert chi_square < stats.chi2.ppf(1 - 1e-6, len(merged) - 1)


def test_sampled_subjects_come_all_or_none(key):
    # Three items of each of 200 subjects, all gradients equal to 1: each subject adds 1 or nothing.
    examples = {"x": jnp.ones((600, 1)), "subject": jnp.repeat(jnp.arange(200), 3)}
    fun = subject.sampled_subjects(
        linear_loss,
        subject_sampling_prob=0.25,
        items_per_subject=2,
        l2_clip_norm=5.0,
        batch_size=64,
    )
    got = jax.jit(fun)(jnp.zeros(1), examples, jnp.arange(600, dtype=jnp.int32), key)
    assert int(got.num_items) == 2 * int(got.num_subjects) and int(got.largest_group) == 2
    np.testing.assert_allclose(got.grad_sum[0], int(got.num_subjects), rtol=1e-6)
    assert abs(int(got.num_subjects) - 50) <= 5 * np.sqrt(200 * 0.25 * 0.75)


def test_within_cap_keeps_the_first_items_of_each_subject():
    rows = jnp.array([3, 0, 5, -1, 4, 1], jnp.int32)
    ids = jnp.asarray(SUBJECTS)[jnp.maximum(rows, 0)]
    np.testing.assert_array_equal(silo_query.within_cap(rows, ids, 1), [3, 0, -1, -1, -1, -1])
    np.testing.assert_array_equal(silo_query.within_cap(rows, ids, 2), [3, 0, 5, -1, -1, 1])


def test_group_sizes_and_ranks_agree_with_a_loop():
    rng = np.random.default_rng(0)
    ids, mask, order = (
        rng.integers(7, size=40),
        rng.random(40) < 0.7,
        rng.random(40).astype(np.float32),
    )
    plain = silo_query.group(jnp.asarray(ids, jnp.int32), jnp.asarray(mask))
    ranked = silo_query.group(jnp.asarray(ids, jnp.int32), jnp.asarray(mask), jnp.asarray(order))
    for i in range(40):
        same = mask & (ids == ids[i]) & mask[i]
        assert plain.size[i] == ranked.size[i] == same.sum()
        assert plain.rank[i] == same[:i].sum()
        assert ranked.rank[i] == (order[same] < order[i]).sum()


@pytest.mark.slow(reason="compiles the training of all silos in one program and one by one")
@pytest.mark.parametrize("name", ["average_then_clip"])
def test_all_silos_in_one_vmap_agree_with_one_at_a_time(name, key):
    examples = {"x": jnp.asarray(GRADIENTS), "subject": jnp.asarray(SUBJECTS)}
    rows = jnp.array([[0, 1, 2, 3], [4, 5, -1, -1], [-1, -1, -1, -1]], jnp.int32)
    keys = jax.random.split(key, 3)
    fun = jitted(name, ())
    together = jax.jit(jax.vmap(fun, in_axes=(None, None, 0, 0)))(
        jnp.zeros(2), examples, rows, jax.random.clone(keys)
    )
    for silo in range(3):
        alone = fun(jnp.zeros(2), examples, rows[silo], keys[silo])
        np.testing.assert_allclose(together.grad_sum[silo], alone.grad_sum, rtol=1e-6, atol=1e-7)


def replayed(name, key, release, gradients, subjects, **changes):
    """A function for `check_sensitivity`: what `release` makes of the query's answer, under fixed
    keys.
    """
    query = QUERIES[name](linear_loss, **changes)
    bits = jax.random.key_data(
        jax.random.clone(key)
    )  # a replay uses its keys many times, which the key checker forbids

    def fun(data, mask):
        rows = jnp.where(mask, jnp.arange(mask.size, dtype=jnp.int32), -1)
        return release(
            query(jnp.zeros(data["x"].shape[1]), data, rows, jax.random.wrap_key_data(bits))
        )

    return fun, {"x": np.asarray(gradients, np.float32), "subject": np.asarray(subjects, np.int32)}


@pytest.mark.parametrize("name", ["hierarchical_average", "average_then_clip"])
def test_replay_confirms_the_stated_sensitivity(name, key):
    fun, data = replayed(name, key, lambda a: a.grad_sum, GRADIENTS, SUBJECTS)
    fljax.check_sensitivity(fun, data, unit_ids=SUBJECTS, sensitivity=MOVES[name])


def test_replay_refutes_the_papers_sensitivity_of_a_batch_gradient(key):
    # Erratum E7, oracle 38: 2 where the paper says 1.
    fun, data = replayed(
        "clipped_batch_gradient", key, lambda a: a.grad_sum, [(5, 0), (5, 0), (-100, 0)], [0, 0, 1]
    )
    with pytest.raises(SensitivityError) as error:
        fljax.check_sensitivity(fun, data, unit_ids=data["subject"], sensitivity=1.0)
    np.testing.assert_allclose(error.value.report.measured, 2.0, rtol=1e-6)


def test_replay_refutes_division_by_the_realised_number_of_subjects(key):
    # Erratum E4, oracle 39: the mean over subjects moves by 2/3 where a public divisor of 3 allows
    # 1/3.
    gradients, subjects = [(1, 0), (1, 0), (-1, 0)], [0, 1, 2]
    fun, data = replayed(
        "hierarchical_average",
        key,
        lambda a: a.grad_sum / a.num_subjects.astype(jnp.float32),
        gradients,
        subjects,
    )
    with pytest.raises(SensitivityError) as error:
        fljax.check_sensitivity(fun, data, unit_ids=subjects, sensitivity=1 / 3)
    np.testing.assert_allclose(error.value.report.measured * 3, 2.0, rtol=1e-6)
    fun, data = replayed("hierarchical_average", key, lambda a: a.grad_sum / 3, gradients, subjects)
    np.testing.assert_allclose(
        fljax.check_sensitivity(fun, data, unit_ids=subjects, sensitivity=1 / 3).measured * 3,
        1.0,
        rtol=1e-6,
    )


def test_replay_refutes_noise_scaled_by_the_group_size_of_the_batch(key):
    # Erratum E3: removing the largest subject changes the noise itself; at 1000 coordinates it
    # moves far.
    gradients, noise = (
        np.zeros((6, 1000), np.float32),
        jax.random.normal(jax.random.fold_in(key, 1), (1000,)),
    )

    def noised(scale_of):
        def release(a):
            return a.grad_sum + scale_of(a) * noise

        return replayed("item_sum_cap", key, release, gradients, SUBJECTS, items_per_subject=3)

    fun, data = noised(lambda a: 4.0 * a.largest_group.astype(jnp.float32))
    with pytest.raises(SensitivityError) as error:
        fljax.check_sensitivity(fun, data, unit_ids=SUBJECTS, sensitivity=3.0)
    assert error.value.report.worst_unit == 2
    # Group size 3 instead of 2: noise moves by 4 * ||z||, ||z|| = sqrt(1000) up to 5 standard
    # deviations of 0.71.
    np.testing.assert_allclose(error.value.report.measured, 4 * np.sqrt(1000), atol=4 * 5 * 0.71)
    fun, data = noised(lambda a: 12.0)
    fljax.check_sensitivity(fun, data, unit_ids=SUBJECTS, sensitivity=3.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: QUERIES["item_sum"](linear_loss, item_sampling_prob=0.0),
            "item_sampling_prob=0.0",
        ),
        (lambda: QUERIES["item_sum"](linear_loss, l2_clip_norm=float("nan")), "l2_clip_norm=nan"),
        (lambda: QUERIES["item_sum_cap"](linear_loss, items_per_subject=0), "items_per_subject=0"),
        (lambda: QUERIES["hierarchical_average"](linear_loss, batch_size=0), "batch_size=0"),
        (
            lambda: QUERIES["sampled_subjects"](linear_loss, subject_sampling_prob=1.5),
            "subject_sampling_prob=1.5",
        ),
        (
            lambda: QUERIES["average_then_clip"](linear_loss, items_per_subject=-1),
            "items_per_subject=-1",
        ),
        (
            lambda: QUERIES["hierarchical_average"](linear_loss)(
                jnp.zeros(2), {"x": GRADIENTS}, jnp.arange(6), jax.random.key(0)
            ),
            "'subject'",
        ),
    ],
    ids=range(7),
)
def test_bad_input_names_argument_value_and_rule(call, message):
    with pytest.raises(ValueError, match=message):
        call()
