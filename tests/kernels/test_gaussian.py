"""Gaussian noise: its law, its dtypes, and on what its bits depend."""

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from fljax_kernels import _threefry
from fljax_kernels.gaussian import add_gaussian_noise, gaussian_noise, reference, unrolled
from fljax_kernels.gaussian.cases import CASES

optimized = pytest.mark.optimized(reason="compares bits or rounding errors of compiled programs")


def normal_cdf(x):
    return 0.5 * (1 + math.erf(x / math.sqrt(2)))


def split(key, num):
    """The same keys at each call: a replay on purpose, which the key-reuse check would refuse."""
    return jax.random.split(jax.random.clone(key), num)


def assert_equal_trees(a, b):
    chex.assert_trees_all_equal(a, b)


@pytest.mark.slow(reason="one more tree", ids=["bfloat16"])
@optimized
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_clients_bits_depend_on_its_own_key_only(case, key):
    like = case.like()
    many = gaussian_noise(split(key, 8)[: case.num_clients], like, 1.7)
    for name, x in like.items():
        assert (many[name].shape, many[name].dtype) == ((case.num_clients, *x.shape), x.dtype)
    jitted = jax.jit(lambda keys: gaussian_noise(keys, like, 1.7))
    assert_equal_trees(many, jitted(split(key, 8)[: case.num_clients]))
    for client in range(min(case.num_clients, 2)):
        alone = jitted(split(key, 8)[client : client + 1])
        assert_equal_trees(
            jax.tree.map(lambda x, c=client: x[c], many), jax.tree.map(lambda x: x[0], alone)
        )


@optimized
def test_vmap_over_rounds_gives_the_bits_of_a_loop(key):
    like = {"w": jnp.zeros((3, 5)), "b": jnp.zeros(4, jnp.bfloat16)}
    fresh = lambda: split(key, (3, 2))
    mapped = jax.vmap(lambda keys: gaussian_noise(keys, like, 0.5))(fresh())
    for i in range(3):
        looped = gaussian_noise(fresh()[i], like, 0.5)
        assert_equal_trees(jax.tree.map(lambda x, i=i: x[i], mapped), looped)


@optimized
def test_keys_sharded_over_devices_give_the_same_bits(key):
    like = jnp.zeros(33)
    mesh = jax.make_mesh((8,), ("clients",), axis_types=(jax.sharding.AxisType.Auto,))
    spread = jax.device_put(split(key, 16), NamedSharding(mesh, PartitionSpec("clients")))
    sharded = jax.jit(lambda keys: gaussian_noise(keys, like, 1.5))(spread)
    assert_equal_trees(sharded, gaussian_noise(split(key, 16), like, 1.5))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_law_is_normal_with_the_stated_stddev(dtype, key):
    # 200,000 draws. Kolmogorov distance: P(sqrt(n) D > 2.5) < 2 exp(-2 * 2.5**2) = 8e-6; a 16-bit
    # dtype rounds to 2**-9 relative, which moves the distribution by at most max |x| phi(x) * 2**-8
    # < 1e-3.
    stddev = 3.0
    draws = (
        np.asarray(gaussian_noise(key[None], jnp.zeros(200_000, dtype), stddev), np.float64).ravel()
        / stddev
    )
    n = len(draws)
    grid = np.linspace(-4, 4, 161) + 0.0123
    empirical = np.searchsorted(np.sort(draws), grid, side="right") / n
    slack = 0 if dtype == "float32" else 1e-3
    assert np.abs(empirical - [normal_cdf(x) for x in grid]).max() <= 2.5 / math.sqrt(n) + slack
    # Five standard errors of the mean and of the mean square.
    assert abs(draws.mean()) <= 5 / math.sqrt(n) + slack
    assert abs(np.mean(draws**2) - 1) <= 5 * math.sqrt(2 / n) + slack


@optimized
def test_low_precision_noise_is_drawn_in_float32(key):
    # bfloat16's own normals stop at 2.9 and take 128 values.
    draws = np.asarray(gaussian_noise(key[None], jnp.zeros(200_000, jnp.bfloat16), 1.0), np.float32)
    assert np.abs(draws).max() > 4 and len(np.unique(draws)) > 1000


def test_clients_and_leaves_are_uncorrelated(key):
    noise = gaussian_noise(split(key, 2), {"a": jnp.zeros(20_000), "b": jnp.zeros(20_000)}, 1.0)
    rows = np.concatenate([np.asarray(noise["a"]), np.asarray(noise["b"])])
    # Correlations of independent rows have standard error 1/sqrt(20,000).
    assert np.abs(np.corrcoef(rows) - np.eye(4)).max() <= 5 / math.sqrt(20_000)


def test_stddev_may_differ_per_client(key):
    like = jnp.zeros(7)
    base = gaussian_noise(split(key, 3), like, 1.0)
    scaled = gaussian_noise(split(key, 3), like, jnp.array([0.0, 1.0, 2.0]))
    np.testing.assert_allclose(scaled, base * np.array([[0.0], [1.0], [2.0]]), rtol=1e-6)


def test_noise_is_differentiable_in_its_stddev(key):
    slope = jax.jacfwd(lambda s: gaussian_noise(key[None], jnp.zeros(5), s))(2.0)
    np.testing.assert_allclose(slope, gaussian_noise(key[None], jnp.zeros(5), 1.0))


def test_the_sum_over_clients_has_the_law_of_one_draw(key):
    # stddevs 3 and 4 sum to 5: the documented shortcut. Five standard errors of a mean square.
    n = 100_000
    noise = gaussian_noise(split(key, 2), jnp.zeros(n), jnp.array([3.0, 4.0]))
    assert abs(np.mean(np.asarray(noise, np.float64).sum(axis=0) ** 2) / 25 - 1) <= 5 * math.sqrt(
        2 / n
    )


@optimized
@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
def test_fused_add_is_the_tree_plus_the_same_noise_in_float32(jit, key):
    tree = {
        "w": jnp.linspace(-3, 3, 50).reshape(5, 10),
        "b": jnp.linspace(0, 300, 20).astype(jnp.bfloat16),
    }
    fresh = lambda: split(key, 1)
    wide = jax.tree.map(lambda x: jnp.zeros(x.shape), tree)
    noise = gaussian_noise(fresh(), wide, 0.25)
    add = lambda k, t: add_gaussian_noise(k, t, 0.25)
    noisy = (jax.jit(add) if jit else add)(fresh()[0], tree)
    for name, x in tree.items():
        assert noisy[name].dtype == x.dtype
        expected = np.asarray(x, np.float32) + np.asarray(noise[name][0])
        # One float32 rounding apart (a fused multiply-add skips it), which may flip one rounding of
        # the cast.
        last = 2**-7 if x.dtype == jnp.bfloat16 else 2**-22
        np.testing.assert_allclose(
            np.asarray(noisy[name], np.float32), expected, rtol=last, atol=1e-7
        )


@optimized
def test_zero_stddev_adds_nothing(key):
    tree = {"w": jnp.arange(4.0), "b": jnp.ones((), jnp.bfloat16)}
    assert_equal_trees(add_gaussian_noise(key, tree, 0.0), tree)


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf"), np.array([1.0, -1.0])])
def test_bad_stddev_is_named(bad, key):
    with pytest.raises(ValueError, match=r"Expected stddev >= 0 and finite, got stddev="):
        gaussian_noise(split(key, 2), jnp.zeros(3), bad)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda key: gaussian_noise(key, jnp.zeros(3), 1.0), r"keys to be \[C\] typed PRNG keys"),
        (
            lambda key: gaussian_noise(jnp.zeros((2, 2), jnp.uint32), jnp.zeros(3), 1.0),
            r"keys to be \[C\] typed",
        ),
        (
            lambda key: gaussian_noise(key[None], jnp.zeros(3, jnp.int32), 1.0),
            "like with floating leaves, got int32",
        ),
        (
            lambda key: gaussian_noise(key[None], jnp.zeros(3), jnp.ones(2)),
            "stddev to be a scalar or of shape",
        ),
        (
            lambda key: add_gaussian_noise(key[None], jnp.zeros(3), 1.0),
            "key to be one typed PRNG key",
        ),
        (lambda key: add_gaussian_noise(0, jnp.zeros(3), 1.0), "key to be one typed PRNG key"),
        (
            lambda key: add_gaussian_noise(key, {"a": jnp.zeros(3, bool)}, 1.0),
            "tree with floating leaves, got bool",
        ),
        (lambda key: add_gaussian_noise(key, {"a": 3}, 1.0), "floating leaves, got int32"),
        (lambda key: add_gaussian_noise(key, jnp.zeros(3), jnp.ones(3)), "stddev to be a scalar"),
    ],
)
def test_bad_arguments_are_named(call, message, key):
    with pytest.raises(ValueError, match=message):
        call(key)


@optimized
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_leaves_of_any_length_have_the_bits_of_jax_random(dtype, key):
    like = {
        "w": jnp.zeros((37, 90), dtype),
        "short": jnp.zeros(7, dtype),
        "one": jnp.zeros((), dtype),
    }
    assert _threefry.covers(key) and like["w"].size >= unrolled.LEAST
    fast = jax.jit(lambda keys: gaussian_noise(keys, like, 0.3))(split(key, 3))
    assert_equal_trees(fast, reference.gaussian_noise(split(key, 3), like, 0.3))
    assert_equal_trees(
        add_gaussian_noise(jax.random.clone(key), like, 0.3),
        reference.add_gaussian_noise(key, like, 0.3),
    )


def test_leaves_beyond_32_bits_are_drawn_by_jax_random(key):
    def traced(form, size):
        like = {"w": jax.ShapeDtypeStruct((size,), jnp.float32)}
        return str(jax.make_jaxpr(lambda key: form.half_variance_normals(key, like))(key))

    for size, same in ((2**32 - 1, False), (2**32, True)):  # positions of the former have 32 bits
        assert (traced(unrolled, size) == traced(reference, size)) == same


@optimized
@pytest.mark.parametrize("kind", ["threefry2x32", "rbg"])
def test_keys_and_uniforms_have_the_bits_of_jax_random(kind):
    keys = jax.random.split(jax.random.key(5, impl=kind), 3)
    data = jnp.array([0, 7, 2**32 - 1], jnp.uint32)

    def both(fold_in, uniform):
        def one(key, data):
            return jax.random.key_data(fold_in(key, data)), uniform(fold_in(key, 2))

        return jax.jit(jax.vmap(one))(keys, data)

    ours = both(_threefry.fold_in, lambda key: _threefry.uniform(key, 33))
    assert_equal_trees(ours, both(jax.random.fold_in, lambda key: jax.random.uniform(key, (33,))))


def test_more_than_one_key_is_refused_as_jax_random_refuses_it(key):
    for fold_in in (_threefry.fold_in, jax.random.fold_in):
        with pytest.raises((TypeError, ValueError)):
            fold_in(split(key, 2), 1)
        with pytest.raises((TypeError, ValueError)):
            fold_in(jax.random.clone(key), jnp.arange(2))


def test_outside_jit_a_program_serves_all_trees_of_its_shapes(key):
    if jax.default_backend() != "cpu":
        pytest.skip("the program that is written out is a CPU's")
    counts = []
    for i, tree in enumerate(({"a": 1.0, "b": np.zeros((2, 19))}, [np.ones(()), np.ones((2, 19))])):
        tree = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), tree)
        add_gaussian_noise(jax.random.fold_in(jax.random.clone(key), i), tree, 1.0)
        counts.append(unrolled._written_out._cache_size())
    assert counts[0] == counts[1] > 0
