"""Integer noise has the laws of whole numbers, rounding keeps norms in whole numbers."""

import fractions
import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from fljax_kernels import discrete
from fljax_kernels.discrete import alias, laws, reference, rounding
from fljax_kernels.discrete.cases import CASES

LAWS = [("discrete_gaussian", p) for p in (0.4, 2.5, 40.0)]
LAWS += [("rounded_gaussian", p) for p in (1.0, 2.5, 40.0)]
LAWS += [("skellam", p) for p in (0.3, 6.0, 9000.0)]
_MOST = np.full(2, 9, np.uint32)


def true_mass(law, parameter, x):
    """To 90 digits, by sums and Bessel functions of mpmath."""
    with mpmath.workdps(90):
        p = mpmath.mpf(parameter)
        if law == "skellam":
            return mpmath.exp(-p) * mpmath.besseli(x, p)
        if law == "rounded_gaussian":
            tail = lambda x: mpmath.erfc((x - mpmath.mpf(1) / 2) / (p * mpmath.sqrt(2))) / 2
            return tail(mpmath.mpf(x)) - tail(mpmath.mpf(x + 1))
        reach = math.ceil(25 * parameter)
        weight = lambda x: mpmath.exp(-(mpmath.mpf(x) ** 2) / (2 * p * p))
        return weight(x) / mpmath.fsum(map(weight, range(-reach, reach + 1)))


@pytest.mark.parametrize(("law", "parameter"), LAWS)
def test_numerators_sum_to_one_and_are_the_laws_to_fifty_digits(law, parameter):
    reach, numerators = laws.LAWS[law](parameter)
    assert laws.reach(law, parameter) == reach
    assert len(numerators) == 2 * reach + 1 and sum(numerators) == 2**192
    assert numerators == numerators[::-1] and min(numerators) >= 0
    for x in {0, 1, reach // 8, reach // 2, reach}:
        with mpmath.workdps(90):
            error = abs(mpmath.mpf(numerators[reach + x]) / 2**192 - true_mass(law, parameter, x))
            # 2 * reach + 1 masses with such an error are 2**-160 together
            assert error <= mpmath.mpf(2) ** -178


@pytest.mark.parametrize(("law", "parameter"), LAWS)
def test_what_lies_beyond_the_reach_is_less_than_was_promised(law, parameter):
    reach = laws.LAWS[law](parameter).reach
    with mpmath.workdps(90):
        # Ratios of neighbouring masses fall outwards: the tail is below a geometric series.
        first, second = (true_mass(law, parameter, reach + i) for i in (1, 2))
        assert 2 * first / (1 - second / first) < mpmath.mpf(2) ** -185
    assert reach < 18 * (parameter**0.5 if law == "skellam" else parameter) + 100


@pytest.mark.parametrize(("law", "parameter"), LAWS)
def test_the_alias_table_gives_every_integer_exactly_its_numerator(law, parameter):
    reach, numerators = laws.LAWS[law](parameter)
    columns = alias.table(law, parameter)
    capacity = 2 ** (192 - columns.column_bits)
    found = dict.fromkeys(range(-reach, reach + 1), 0)
    for column in range(2**columns.column_bits):
        threshold, other = divmod(int(columns.entries[column]), 2**columns.column_bits)
        for word in columns.rest[:, column].tolist():
            threshold = (threshold << 32) | word
        below, above = columns.least + column, columns.least + other
        if threshold:
            found[below] += threshold
        found[above] += capacity - threshold
    assert [found[x] for x in range(-reach, reach + 1)] == numerators


@pytest.mark.slow(reason="compiles one more table", ids=["gaussian", "narrow_gaussian", "skellam"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_draw_is_the_whole_number_that_its_bits_say(case, key):
    columns = alias.table(case.law, case.parameter)
    drawn = jax.jit(lambda key: alias.draw(key, case.shape, columns))(key)
    assert drawn.shape == case.shape and drawn.dtype == jnp.int32
    expected = reference.draw(jax.random.clone(key), case.shape, case.law, case.parameter)
    np.testing.assert_array_equal(drawn, expected)


@pytest.mark.slow(reason="compiles one more table's loop")
def test_ties_of_the_first_bits_are_decided_by_those_beyond(key, monkeypatch):
    # A law whose thresholds differ from zero beyond their first words alone: all is decided late.
    # Column 0 gives 10 or 11, column 2 gives 12 or 13, of which the others are not drawn.
    entries = np.array([1, 1, 3, 3], np.uint32)
    rest = np.zeros((5, 4), np.uint32)
    rest[1] = [2**31, 0, 2**30, 0]
    columns = alias.Table(2, 10, entries, rest)
    once, beyond, draws = alias.once, alias.beyond, 5_000

    def column_alone(fun, key, word, *given):
        return once(lambda drawn, *rest: fun(drawn & np.uint32(2**31), *rest), key, word, *given)

    # Of the first word only the column, no bit of the second, and then as always.
    monkeypatch.setattr(alias, "once", column_alone)
    monkeypatch.setattr(alias, "beyond", lambda key, place: beyond(key, place).at[0].set(0))
    drawn = np.asarray(alias.draw(key, (draws,), columns))
    for value, chance in ((10, 1 / 4), (11, 1 / 4), (12, 1 / 8), (13, 3 / 8)):
        seen = np.mean(drawn == value)
        assert abs(seen - chance) <= 6 * math.sqrt(chance * (1 - chance) / draws)
    # Keys of a vmap share one loop, in blocks that other keys' draws fill too.
    draw = jax.jit(lambda key: alias.draw(key, (1100,), columns))
    keys = lambda: jax.random.split(jax.random.key(1), 3)
    looped = np.stack([draw(each) for each in keys()])
    assert len(np.unique(looped)) == 4
    np.testing.assert_array_equal(jax.vmap(draw)(keys()), looped)


@pytest.mark.slow(
    reason="draws from a wider law",
    ids=["discrete_gaussian-40.0", "rounded_gaussian-40.0", "skellam-6.0"],
)
@pytest.mark.parametrize(("law", "parameter"), LAWS)
def test_draws_have_the_frequencies_of_the_law(law, parameter, key):
    draws = 100_000
    columns = alias.table(law, parameter)
    drawn = np.asarray(jax.jit(lambda key: alias.draw(key, (draws,), columns))(key))
    reach, numerators = laws.LAWS[law](parameter)
    for x in range(-min(reach, 9), min(reach, 9) + 1):
        mass = float(fractions.Fraction(numerators[reach + x], 2**192))
        # 6 standard errors, of 2e-9 each way, and one draw
        slack = 6 * math.sqrt(mass * (1 - mass) / draws) + 1 / draws
        assert abs(np.mean(drawn == x) - mass) <= slack
    variance = sum(x * x * n for x, n in zip(range(-reach, reach + 1), numerators, strict=True))
    variance = float(fractions.Fraction(variance, 2**192))
    if law == "skellam":
        assert math.isclose(variance, parameter, rel_tol=1e-12)
    if law == "rounded_gaussian":
        assert math.isclose(variance, parameter**2 + 1 / 12, rel_tol=0, abs_tol=1e-6)
    # The fourth moment is at most 3 variance**2 + variance
    error = 6 * math.sqrt((2 * variance**2 + variance) / draws)
    assert abs(np.mean(drawn.astype(float) ** 2) - variance) <= error


def test_the_same_bits_under_jit_vmap_and_on_eight_devices(key):
    keys = jax.random.split(key, 8)
    draw = lambda key: discrete.discrete_gaussian_noise(key, (64,), 3.7)
    alone = jax.jit(draw)
    looped = np.stack([alone(each) for each in jax.random.split(jax.random.clone(key), 8)])
    np.testing.assert_array_equal(jax.jit(jax.vmap(draw))(keys), looped)
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    dealt = jax.device_put(
        jax.random.split(jax.random.clone(key), 8), NamedSharding(mesh, PartitionSpec("x"))
    )
    np.testing.assert_array_equal(jax.jit(jax.vmap(draw))(dealt), looped)
    entries = NamedSharding(mesh, PartitionSpec("x"))
    one = jax.jit(draw, out_shardings=entries)(jax.random.split(jax.random.clone(key), 8)[3])
    assert len(one.sharding.device_set) == 8
    np.testing.assert_array_equal(one, looped[3])


@pytest.mark.parametrize("size", [2**12 - 1, 2**12, 2**12 + 1])
def test_long_draws_have_the_bits_that_short_ones_have(size, key):
    half = np.float32(0.5)
    add = lambda drawn, x: (drawn >> 31).astype(x.dtype) + x
    up = jax.jit(lambda key, x: alias.once(add, key, 3, x))(key, np.full(size, half))
    expected = jax.random.bits(jax.random.fold_in(jax.random.clone(key), 3), (size,), np.uint32)
    np.testing.assert_array_equal(up, (expected >> 31).astype(np.float32) + half)


def test_another_generator_draws_the_law_too():
    with jax.debug_key_reuse(False):
        draw = jax.jit(lambda key: discrete.skellam_noise(key, (20_000,), 4.0))
        drawn = np.asarray(draw(jax.random.key(0, impl="rbg")))
    # 6 standard errors of a variance: sqrt((2 * 16 + 4) / 20000)
    assert abs(np.var(drawn.astype(float)) - 4) <= 6 * math.sqrt(36 / 20_000)


@pytest.mark.slow(reason="compiles one more length", but=["2", "64"])
@pytest.mark.parametrize("size", [1, 2, 64, 1024])
def test_a_rotation_is_orthogonal_spreads_what_is_in_one_place_and_comes_back(size, key):
    x = jnp.stack([jnp.zeros(size).at[size // 2].set(3.0), jnp.arange(float(size))])
    keys = lambda: jax.random.split(jax.random.clone(key), 2)[0]
    y = jax.jit(discrete.rotate)(keys(), x)
    # The entry of one place is spread evenly: 3 / sqrt(size) everywhere.
    np.testing.assert_allclose(np.abs(y[0]), 3 / math.sqrt(size), rtol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(y, axis=1), np.linalg.norm(x, axis=1), rtol=1e-6)
    back = jax.jit(discrete.rotate_back)(keys(), y)
    np.testing.assert_allclose(back, x, atol=1e-3, rtol=1e-5)


def test_the_transform_is_scipys_hadamard_matrix(key):
    from scipy.linalg import hadamard

    from fljax_kernels.discrete import rotation

    x = jax.random.normal(key, (3, 32))
    np.testing.assert_allclose(
        rotation.transform(x), np.asarray(x) @ hadamard(32).T / math.sqrt(32), atol=1e-5
    )


def test_squared_norms_are_whole_and_stay_at_the_largest():
    rng = np.random.default_rng(0)
    z = rng.integers(-65535, 65536, (50, 7)).astype(np.int32)
    z[::2] //= 40
    exact = [min(sum(v * v for v in row), 2**32 - 1) for row in z.tolist()]
    assert 2**32 - 1 in exact and min(exact) < 2**31
    np.testing.assert_array_equal(rounding.squared_norms(jnp.asarray(z)), np.uint32(exact))


@pytest.mark.parametrize("scale", [0.0, 0.5, 10.0, 1e6, 1e30, math.inf, math.nan])
def test_rounding_never_passes_its_bound_whatever_comes(scale, key):
    most = 400
    x = jax.random.normal(key, (32, 16)) * jnp.float32(scale)
    keys = jax.random.split(jax.random.fold_in(key, 1), 32)
    z = jax.vmap(lambda key, x: discrete.grid_round(key, x, most))(keys, x)
    assert int(np.max(np.sum(np.square(np.asarray(z, np.int64)), axis=1))) <= most


def test_rounding_keeps_the_mean_where_the_bound_is_wide(key):
    x = jnp.array([0.25, -0.75, 3.0, -2.5], jnp.float32)
    keys = jax.random.split(key, 20_000)
    z = np.asarray(jax.vmap(lambda key: discrete.grid_round(key, x, 1000))(keys), float)
    assert set(np.unique(z[:, 1])) == {-1.0, 0.0} and set(z[:, 2]) == {3.0}
    # 6 standard errors of a coin
    assert np.abs(z.mean(axis=0) - x).max() <= 6 * 0.5 / math.sqrt(20_000)


def test_rounding_draws_again_until_the_norm_is_small_enough(key):
    # Of four halves all must be rounded to 0 but two: else the squared norm is above 2.
    x = jnp.full(4, 0.5, jnp.float32)
    keys = jax.random.split(key, 2000)
    z = np.asarray(jax.vmap(lambda key: discrete.grid_round(key, x, 2))(keys))
    counts = np.bincount(z.sum(axis=1), minlength=5)
    assert counts[3:].sum() == 0
    # 1, 4 and 6 of 11 equally likely outcomes
    for count, share in zip(counts, (1 / 11, 4 / 11, 6 / 11), strict=False):
        assert abs(count / 2000 - share) <= 6 * math.sqrt(share * (1 - share) / 2000)


def test_rows_of_a_sum_keep_their_bounds_and_means_and_depend_on_no_other(key):
    x = jnp.array([[0.25, -0.75, 3.0], [4.5, 0.0, 0.0], [math.nan, 0.5, 1.0], [9, 9, 9.0]])
    most, places = jnp.array([100, 20, 4, 100], jnp.uint32), jnp.arange(4)
    keys = jax.random.split(key, 20_000)

    def alone(key):
        one = lambda keep: discrete.grid_sum(key, x, keep, most, places)
        return jax.vmap(one)(jnp.eye(4)), one(jnp.ones(4)), one(jnp.array([1.0, 0, math.nan, -1]))

    with jax.debug_key_reuse(False):
        z, total, first = (np.asarray(found, int) for found in jax.jit(jax.vmap(alone))(keys))
    assert (np.sum(np.square(z), axis=2) <= np.asarray(most)).all()
    # 6 standard errors of a coin
    assert np.abs(z[:, 0].mean(axis=0) - x[0]).max() <= 6 * 0.5 / math.sqrt(20_000)
    # One that is too long on average is made shorter: 4.5 to less than 4, at random.
    assert set(z[:, 1, 0]) == {3, 4} and not z[:, 1, 1:].any()
    assert (np.sum(np.square(z[:, 3]), axis=1) >= 60).all()
    assert set(z[:, 2, 1]) == {0, 1} and not z[:, 2, 0].any()
    assert np.array_equal(total, z.sum(axis=1)) and np.array_equal(first, z[:, 0])


def test_no_rows_add_up_to_zero(key):
    none, rows = jnp.zeros(0), {"w": jnp.zeros((0, 2, 3)), "b": jnp.zeros((0, 3))}
    total = jax.jit(lambda key: discrete.grid_sum(key, rows, none, 9, jnp.arange(0)))(key)
    assert total["w"].dtype == jnp.int32
    assert np.array_equal(total["w"], np.zeros((2, 3))) and np.array_equal(total["b"], np.zeros(3))


@pytest.mark.parametrize("bits", [1, 8, 31, 32])
def test_a_ring_sums_modulo_its_size_and_comes_back(bits):
    rng = np.random.default_rng(bits)
    values = rng.integers(-(2**31), 2**31, (6, 40)).astype(np.int32)
    words = discrete.to_ring(jnp.asarray(values), bits)
    assert words.dtype == jnp.uint32 and int(words.max()) < 2**bits
    total = np.asarray(words, np.uint64).sum(axis=0).astype(np.uint32)
    back = np.asarray(discrete.from_ring(jnp.asarray(total), bits), np.int64)
    half = 2 ** (bits - 1)
    expected = (values.astype(np.int64).sum(axis=0) + half) % (2 * half) - half
    np.testing.assert_array_equal(back, expected)


@pytest.mark.parametrize(
    "call",
    [
        lambda key: discrete.discrete_gaussian_noise(key, (3,), 0.0),
        lambda key: discrete.discrete_gaussian_noise(key, (3,), math.nan),
        lambda key: discrete.discrete_gaussian_noise(key, (3,), 1e6),
        lambda key: discrete.discrete_gaussian_noise(key, (3,), True),
        lambda key: discrete.discrete_gaussian_noise(7, (3,), 1.0),
        lambda key: discrete.rounded_gaussian_noise(key, (3,), 0.99),
        lambda key: jax.jit(discrete.skellam_noise, static_argnums=1)(key, (3,), 1.0),
        lambda key: discrete.skellam_noise(key, (3,), -1.0),
        lambda key: discrete.rotate(key, jnp.zeros(3)),
        lambda key: discrete.rotate_back(key, jnp.zeros(4, jnp.int32)),
        lambda key: discrete.grid_round(key, jnp.zeros((2, 2)), 4),
        lambda key: discrete.grid_round(key, jnp.zeros(2), 2**32 - 1),
        lambda key: discrete.grid_round(key, jnp.zeros(2), 2.5),
        lambda key: discrete.grid_sum(key, jnp.zeros((2, 2)), jnp.ones(2), _MOST, jnp.arange(3)),
        lambda key: discrete.grid_sum(key, jnp.zeros((3, 2)), jnp.ones(2), _MOST, jnp.arange(2)),
        lambda key: discrete.grid_sum(key, jnp.zeros((2, 2)), jnp.ones(2), jnp.ones(2), _MOST),
        lambda key: discrete.grid_sum(key, jnp.zeros((2, 2)), jnp.ones(2), _MOST, jnp.ones(2)),
        lambda key: discrete.grid_sum(key, jnp.zeros((2, 2)), jnp.ones(2), -1, jnp.arange(2)),
        lambda key: discrete.to_ring(jnp.zeros(2, jnp.int32), 33),
        lambda key: discrete.to_ring(jnp.zeros(2), 8),
        lambda key: discrete.from_ring(jnp.zeros(2, jnp.int32), 8),
    ],
)
def test_what_is_out_of_range_is_refused(call, key):
    with pytest.raises(ValueError, match="Expected"):
        call(key)
