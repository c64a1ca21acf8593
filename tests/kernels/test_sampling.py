"""On-device samples: their law, their shape, and that overflow shows."""

import itertools
import math
from collections import Counter
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from fljax_kernels.sampling import (
    allocated_sample,
    fixed_size_sample,
    poisson_capacity,
    poisson_sample,
    subset,
)
from fljax_kernels.sampling.cases import CASES

optimized = pytest.mark.optimized(reason="compares bits or rounding errors of compiled programs")

# A z-score of 6 has a two-sided chance of 2e-9; the largest table below holds 1000 of them.
Z = 6.0


def many(fun, key, draws):
    """`fun` for `draws` keys, in one program."""
    return jax.jit(jax.vmap(fun))(jax.random.split(jax.random.clone(key), draws))


def binomial_pmf(n, k, p):
    return float(math.comb(n, k) * Fraction(p) ** k * (1 - Fraction(p)) ** (n - k))


def assert_frequencies(counts, probs, draws):
    """Each count is within Z standard deviations, plus 1, of draws * prob."""
    for count, prob in zip(counts, probs, strict=True):
        assert abs(count - draws * prob) <= Z * math.sqrt(draws * prob * (1 - prob)) + 1, (
            count,
            draws * prob,
        )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_sample_is_distinct_units_first_and_then_minus_one(case, key):
    sample = jax.jit(lambda k: poisson_sample(k, case.num, case.prob, case.capacity))(key)
    assert sample.indices.shape == (case.capacity,) and sample.indices.dtype == jnp.int32
    count, indices = int(sample.count), np.asarray(sample.indices)
    real = indices[: min(count, case.capacity)]
    assert len(set(real.tolist())) == len(real)
    assert ((real >= 0) & (real < case.num)).all()
    assert (indices[len(real) :] == -1).all()
    assert bool(sample.overflow) == (count > case.capacity)
    assert 0 <= count <= case.num
    assert abs(count - case.num * case.prob) <= Z * math.sqrt(
        case.num * case.prob * (1 - case.prob)
    )


@pytest.mark.parametrize("num", [5, 64], ids=["by_sorting", "by_redrawing"])
def test_every_unit_and_every_pair_has_its_poisson_chance(num, key):
    prob, capacity, draws = 0.125, (5 if num == 5 else 8), 20_000
    if num == 64:
        prob = 0.03  # P(more than 8 of 64) = 1e-4: seen below as overflow, not as a missing unit
    sample = many(lambda k: poisson_sample(k, num, prob, capacity), key, draws)
    taken = np.zeros((draws, num + 1), bool)
    np.put_along_axis(taken, np.asarray(sample.indices) % (num + 1), True, axis=1)
    taken = taken[:, :num].astype(np.float64)
    lost = float(np.mean(np.maximum(np.asarray(sample.count) - capacity, 0)))
    assert lost <= 1e-3
    assert_frequencies(taken.sum(axis=0) + lost * draws / num, [prob] * num, draws)
    pairs = (taken.T @ taken)[np.triu_indices(num, 1)]
    slack = 0 if num == 5 else 2 * lost * draws / num
    deviation = np.abs(pairs - draws * prob**2)
    assert deviation.max() <= Z * math.sqrt(draws * prob**2) + 1 + slack


def test_small_samples_have_the_law_of_independent_coins(key):
    # All 16 subsets of 4 units, against p**k (1-p)**(4-k).
    draws, prob = 50_000, 0.3
    sample = many(lambda k: poisson_sample(k, 4, prob, 4), key, draws)
    seen = Counter(
        tuple(sorted(i for i in row if i >= 0)) for row in np.asarray(sample.indices).tolist()
    )
    subsets = [s for k in range(5) for s in itertools.combinations(range(4), k)]
    assert_frequencies(
        [seen[s] for s in subsets],
        [prob ** len(s) * (1 - prob) ** (4 - len(s)) for s in subsets],
        draws,
    )


def test_counts_are_binomial(key):
    num, prob, draws = 200, 0.05, 30_000
    sample = many(lambda k: poisson_sample(k, num, prob, 25), key, draws)
    counts = np.bincount(np.asarray(sample.count), minlength=num + 1)
    assert_frequencies(counts[:40], [binomial_pmf(num, k, prob) for k in range(40)], draws)


def test_overflow_is_reported_with_the_true_count_and_a_random_part(key):
    num, draws = 20, 20_000
    sample = many(lambda k: poisson_sample(k, num, 0.5, 8), key, draws)
    over = np.asarray(sample.overflow)
    exact = sum(binomial_pmf(num, k, 0.5) for k in range(9, num + 1))
    assert_frequencies([over.sum()], [exact], draws)
    counts = np.asarray(sample.count)
    assert counts.max() > 14 and (counts[over] > 8).all()
    # What is kept is no better than chance at knowing which units were lost.
    kept = np.bincount(np.asarray(sample.indices)[over].ravel(), minlength=num)
    assert_frequencies(kept, [8 / num] * num, over.sum())


def test_fixed_size_samples_are_uniform_over_ordered_subsets(key):
    draws = 50_000
    orders = list(itertools.permutations(range(5), 3))
    seen = Counter(
        map(tuple, np.asarray(many(lambda k: fixed_size_sample(k, 5, 3), key, draws)).tolist())
    )
    assert_frequencies([seen[o] for o in orders], [1 / 60] * 60, draws)
    # By redrawing: 2 of 16, where one in 16 first draws repeats.
    orders = list(itertools.permutations(range(16), 2))
    seen = Counter(
        map(tuple, np.asarray(many(lambda k: fixed_size_sample(k, 16, 2), key, draws)).tolist())
    )
    assert_frequencies([seen[o] for o in orders], [1 / 240] * 240, draws)


def test_redrawing_is_even_where_32_bits_are_not(key):
    # num = 3 * 2**29: 2**32 is 2 num + 2**30, so bits modulo num hit the lower 2/3 of the units 3
    # times in 8 each.
    num, draws = 3 * 2**29, 4000
    lower = np.asarray(many(lambda k: fixed_size_sample(k, num, 4), key, draws)).ravel() < 2**30
    assert abs(lower.sum() - 4 * draws * 2 / 3) <= Z * math.sqrt(4 * draws * 2 / 9)


def test_entries_that_repeat_are_found_by_pairs_as_by_their_ranks():
    """Of equal ones the first that was kept stays, or else the first; of refused draws none."""
    rng = np.random.default_rng(0)
    values, wanted = rng.integers(-2, 6, (200, 9)), rng.random((200, 9)) < 0.5
    expected = values < 0
    for value, drawn, again in zip(values, wanted, expected, strict=True):
        for at in range(9):
            same = [j for j in range(9) if value[j] == value[at]]
            again[at] |= at != min(same, key=lambda j: (drawn[j], j))
    for found in (subset._by_pairs, subset._by_rank):
        got = jax.vmap(found)(jnp.asarray(values, jnp.int32), jnp.asarray(wanted))
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("num", "size"), [(10, 10), (1, 1), (7, 0), (0, 0), (1000, 125), (2**31 - 1, 3)]
)
def test_fixed_size_samples_are_distinct_at_the_edges(num, size, key):
    chosen = np.asarray(fixed_size_sample(key, num, size))
    assert chosen.shape == (size,) and chosen.dtype == np.int32
    assert len(set(chosen.tolist())) == size and ((chosen >= 0) & (chosen < num)).all()


@optimized
def test_vmap_gives_the_bits_of_a_loop(key):
    keys = jax.random.split(key, 6)
    draw = jax.jit(lambda k: poisson_sample(k, 500, 0.05, 40))
    mapped = jax.jit(jax.vmap(draw))(jax.random.clone(keys))
    for i in range(6):
        alone = draw(jax.random.clone(keys)[i])
        jax.tree.map(lambda m, a, i=i: np.testing.assert_array_equal(m[i], a), mapped, alone)


@optimized
@pytest.mark.slow(reason="compiles a sample for 8 devices")
def test_a_sample_per_device_under_shard_map_gives_the_same_bits(key):
    mesh = jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    keys = jax.random.split(key, 8)
    draw = lambda k: fixed_size_sample(k[0], 400, 20)[None]
    spec = PartitionSpec("d")
    mapped = jax.jit(
        jax.shard_map(draw, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    )(jax.random.clone(keys))
    alone = jax.jit(lambda k: fixed_size_sample(k, 400, 20))
    looped = [alone(jax.random.clone(keys)[i]) for i in range(8)]
    np.testing.assert_array_equal(mapped, np.stack(looped))


def test_sampling_runs_inside_scan_without_retracing(key):
    def step(carry, k):
        sample = poisson_sample(k, 300, 0.05, 40)
        return carry + sample.count, sample.overflow

    total, overflow = jax.jit(lambda keys: jax.lax.scan(step, jnp.int32(0), keys))(
        jax.random.split(key, 50)
    )
    assert abs(int(total) - 50 * 15) <= Z * math.sqrt(50 * 300 * 0.05 * 0.95)
    assert not overflow.any()


@pytest.mark.parametrize(("num", "prob"), [(60, 0.1), (300, 0.02), (40, 0.9), (100, 0.5)])
@pytest.mark.parametrize("tail_prob", [1e-3, 1e-12])
def test_capacity_is_the_smallest_with_that_tail(num, prob, tail_prob):
    # Exact rational arithmetic.
    p = Fraction(prob)
    tail, capacity = Fraction(0), num  # tail = P(count > capacity)
    while capacity > 0:
        longer = tail + math.comb(num, capacity) * p**capacity * (1 - p) ** (num - capacity)
        if longer > tail_prob:
            break
        tail, capacity = longer, capacity - 1
    assert poisson_capacity(num, prob, tail_prob) == capacity


def test_capacity_of_a_million_lies_between_chernoff_and_a_normal_guess():
    capacity = poisson_capacity(1_000_000, 1e-3)
    # Chernoff: P(count >= a) <= exp(-num KL(a/num, prob)); below 7 sigma the tail of so skewed a
    #   count exceeds 1e-12.
    a, q = (capacity + 1 + 6) / 1e6, 1e-3
    kl = a * math.log(a / q) + (1 - a) * math.log((1 - a) / (1 - q))
    assert 1000 + 7 * math.sqrt(999) <= capacity <= 1000 + 8 * math.sqrt(999)
    assert math.exp(-1e6 * kl) <= 1e-11


def test_capacity_at_the_edges():
    assert poisson_capacity(50, 1.0) == 50
    assert poisson_capacity(50, 0.0) == 0
    assert poisson_capacity(0, 0.5) == 0
    assert poisson_capacity(10, 0.5) == 10  # 2**-10 > 1e-12: everyone may come


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda key: poisson_sample(key, 10, 1.5, 5), r"prob in \[0, 1\], got prob=1.5"),
        (lambda key: poisson_sample(key, 10, float("nan"), 5), r"prob in \[0, 1\]"),
        (
            lambda key: poisson_sample(key, 10, 0.5, 11),
            r"capacity to be an integer in \[0, 10\], got capacity=11",
        ),
        (lambda key: poisson_sample(key, -1, 0.5, 0), r"num to be an integer in"),
        (lambda key: poisson_sample(key, 2**31, 0.5, 0), r"num to be an integer in"),
        (lambda key: poisson_sample(0, 10, 0.5, 5), r"key to be one typed PRNG key"),
        (
            lambda key: jax.jit(lambda p: poisson_sample(key, 10, p, 5))(0.5),
            r"known before tracing",
        ),
        (
            lambda key: fixed_size_sample(key, 10, 11),
            r"size to be an integer in \[0, 10\], got size=11",
        ),
        (lambda key: fixed_size_sample(key, 2**31, 1), r"num to be an integer in"),
        (lambda key: fixed_size_sample(key[None], 10, 1), r"key to be one typed PRNG key"),
        (lambda key: poisson_capacity(10, 0.5, 0.0), r"tail_prob in \(0, 1\), got tail_prob=0.0"),
        (lambda key: poisson_capacity(10.5, 0.5), r"num to be an integer"),
    ],
)
def test_bad_arguments_are_named(call, message, key):
    with pytest.raises(ValueError, match=message):
        call(key)


@pytest.mark.parametrize(("num_rounds", "times"), [(5, 2), (24, 3), (4, 0), (3, 3)])
def test_every_unit_is_in_exactly_its_number_of_rounds_and_nobody_knows_which(
    num_rounds, times, key
):
    num = 600

    def one(index):
        return allocated_sample(key, index, num, num_rounds, times, num)

    with jax.debug_key_reuse(False):
        sample = jax.jit(jax.vmap(one))(jnp.arange(num_rounds))
    joined = np.zeros((num_rounds, num), int)
    for index, row in enumerate(np.asarray(sample.indices)):
        real = row[row >= 0]
        assert (np.diff(real) > 0).all() and len(real) == int(sample.count[index])
        joined[index, real] = 1
    assert (joined.sum(axis=0) == times).all()
    assert_frequencies(joined.sum(axis=1), [times / num_rounds] * num_rounds, num)
    if (num_rounds, times) == (5, 2):  # all ten choices, each as likely
        seen = Counter(tuple(np.flatnonzero(column)) for column in joined.T)
        choices = list(itertools.combinations(range(5), 2))
        assert_frequencies([seen[c] for c in choices], [0.1] * 10, num)


def test_an_allocated_round_that_is_too_large_says_so(key):
    sample = allocated_sample(key, 0, 50, 2, 2, 10)
    assert bool(sample.overflow) and int(sample.count) == 50
    assert np.asarray(sample.indices).tolist() == list(range(10))
    full = allocated_sample(jax.random.clone(key), 0, 50, 2, 2, 50)
    assert not bool(full.overflow) and np.asarray(full.indices).tolist() == list(range(50))


@pytest.mark.parametrize(
    "wrong",
    [
        {"times": 6},
        {"num": -1},
        {"num": 2**31},
        {"capacity": 9},
        {"num_rounds": -1},
        {"num_rounds": 2**31},
    ],
)
def test_an_allocation_out_of_range_is_refused(wrong, key):
    given = {"num": 8, "num_rounds": 5, "times": 2, "capacity": 8} | wrong
    with pytest.raises(ValueError, match="Expected"):  # traced: 2**31 units would fill the memory
        jax.eval_shape(lambda key: allocated_sample(key, 0, **given), key)
