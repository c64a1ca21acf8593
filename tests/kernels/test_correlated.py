"""Noise that is correlated over rounds: its law, its bits, what it keeps."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.signal
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from fljax_kernels import add_gaussian_noise, correlated
from fljax_kernels.correlated import Strategy
from fljax_kernels.correlated.cases import CASES
from fljax_kernels.correlated.strategies import grown

LIKE = {"a": jnp.zeros((3, 16)), "b": jnp.zeros(5)}


def matrix(strategy, count):
    """C of `count` rounds as the papers write it, entry by entry."""
    c = np.zeros((count, count))
    for t in range(count):
        for i in range(t + 1):
            if strategy.kind == "buffered":
                decay, scale = np.split(np.array(strategy.coefs), 2)
                c[t, i] = 1.0 if t == i else np.sum(scale * decay ** (t - i - 1))
            elif strategy.kind == "tree":
                node = 1
                while (t + 1) % (2 * node) == 0:
                    node *= 2
                c[t, i] = t - i < node
            elif strategy.kind == "dense_banded":
                bands = len(strategy.coefs) // strategy.num_rounds
                c[t, i] = strategy.coefs[t * bands + t - i] if t - i < bands else 0.0
            elif t - i < len(strategy.coefs):
                c[t, i] = strategy.coefs[t - i]
    return np.linalg.inv(c) if strategy.kind == "banded_inverse" else c


def run(strategy, key, count, like=LIKE, *, stddev=1.5, state=None, begin=0):
    state = correlated.init(strategy, like) if state is None else state

    def one(state, index):
        zero = jax.tree.map(jnp.zeros_like, like)
        round_key = jax.random.fold_in(key, index)
        noise, state = correlated.add_noise(strategy, round_key, zero, stddev, state)
        return state, noise

    state, noise = jax.lax.scan(one, state, begin + jnp.arange(count))
    return noise, state


@functools.partial(jax.jit, static_argnums=1)
def independent(key, count):
    """Of each round, what it draws without a matrix."""
    one = lambda t: add_gaussian_noise(jax.random.fold_in(key, t), LIKE, 1.5)
    return jax.lax.map(one, jnp.arange(count))


@pytest.mark.slow(
    reason="draws under one more matrix of a kind",
    ids=["dense_one_band", "banded_inverse", "banded_short", "tree_full"],
)
@pytest.mark.parametrize("name", CASES)
def test_c_times_the_noise_is_independent_noise_also_after_it_begins_anew(name, key):
    strategy = CASES[name]
    rounds = strategy.num_rounds
    noise, state = run(strategy, key, 2 * rounds)
    assert int(state.step) == 0
    c = matrix(strategy, rounds)
    fresh = independent(jax.random.clone(key), 2 * rounds)
    for half in range(2):
        these = slice(half * rounds, (half + 1) * rounds)
        for leaf in LIKE:
            mixed = np.einsum("ti,i...->t...", c, np.asarray(noise[leaf], np.float64)[these])
            np.testing.assert_allclose(mixed, fresh[leaf][these], atol=2e-5)


@pytest.mark.parametrize("name", ["banded", "buffered", "tree", "banded_inverse", "dense_banded"])
@pytest.mark.optimized(reason="compares bits", only=True)
def test_a_run_that_goes_on_from_its_state_has_the_same_bits(name, key):
    with jax.debug_key_reuse(False):
        whole, _ = run(CASES[name], key, 12)
        first, state = run(CASES[name], key, 5)
        rest, _ = run(CASES[name], key, 7, state=jax.device_get(state), begin=5)
    for leaf in whole:
        np.testing.assert_array_equal(whole[leaf], np.concatenate([first[leaf], rest[leaf]]))


@pytest.mark.slow(reason="compiles one more matrix for eight devices", but=["banded"])
@pytest.mark.parametrize("name", ["dense_banded", "buffered"])
def test_what_somebody_else_drew_is_correlated_alike(name, key):
    """Linear, entry by entry: what cancels in a sum of draws cancels in a sum of noise."""
    strategy = CASES[name]
    wanted, _ = run(strategy, key, 7)
    both = jax.tree.map(lambda leaf: jnp.zeros((2, *leaf.shape)), LIKE)

    def one(state, index):
        drawn = add_gaussian_noise(jax.random.fold_in(key, index), LIKE, 1.5)
        shared = jax.tree.map(lambda leaf: jnp.stack([leaf, -leaf]), drawn)
        noise, state = correlated.correlate(strategy, shared, state)
        return state, noise

    with jax.debug_key_reuse(False):
        _, found = jax.lax.scan(one, correlated.init(strategy, both), jnp.arange(7))
    for leaf in LIKE:
        np.testing.assert_allclose(found[leaf][:, 0], wanted[leaf], atol=1e-6)
        np.testing.assert_array_equal(found[leaf][:, 0], -found[leaf][:, 1])


@pytest.mark.optimized(reason="reads the memory of a compiled program", only=True)
def test_what_parties_keep_is_written_in_place(key):
    """Their sum reads the noise again, for which XLA would take two copies of all buffers."""
    strategy, fresh = CASES["banded"], jnp.ones((16, 4096))

    def total(state, fresh, mask):
        drawn = jax.lax.map(lambda row: 2 * row, fresh)
        noise, state = correlated.correlate(strategy, drawn, state)
        return state, jnp.sum(jnp.where(mask[:, None], noise, 0), axis=0)

    state = correlated.init(strategy, fresh)
    lowered = jax.jit(total, donate_argnums=0).lower(state, fresh, jnp.ones(16, bool))
    memory = lowered.compile().memory_analysis()
    assert memory.alias_size_in_bytes >= state.buffers.nbytes
    # What was drawn, and the noise; the copies would be another 2 num_buffers of these.
    most = 2.5 if jax.default_backend() == "cpu" else 3.5  # a GPU's sum has one of its own
    assert memory.temp_size_in_bytes < most * fresh.nbytes


def test_draws_of_integers_are_not_correlated(key):
    strategy = CASES["banded"]
    fresh = {"a": jnp.zeros(3, jnp.int32)}
    with pytest.raises(ValueError, match="Expected fresh with floating leaves"):
        correlated.correlate(strategy, fresh, correlated.init(strategy, fresh))


@pytest.mark.slow(reason="compiles one more matrix for eight devices")
@pytest.mark.parametrize("name", ["banded", "buffered", "tree"])
def test_eight_devices_give_the_same_bits(name, key):
    strategy = CASES[name]
    tree = {"a": jnp.ones((3, 16)), "b": jnp.ones(8)}
    for kind in (AxisType.Auto, AxisType.Explicit):
        mesh = jax.make_mesh((8,), ("model",), axis_types=(kind,))
        spread = {"a": PartitionSpec(None, "model"), "b": PartitionSpec("model")}
        sharded = {k: jax.device_put(v, NamedSharding(mesh, spread[k])) for k, v in tree.items()}

        @jax.jit
        def two(tree, key, state):
            for i in range(2):
                tree, state = correlated.add_noise(
                    strategy, jax.random.fold_in(key, i), tree, 2.0, state
                )
            return tree, state

        with jax.debug_key_reuse(False):
            plain, kept = two(tree, key, correlated.init(strategy, tree))
            with jax.set_mesh(mesh):
                found, keeps = two(sharded, key, correlated.init(strategy, sharded))
        for one, other in zip(
            jax.tree.leaves((plain, kept)), jax.tree.leaves((found, keeps)), strict=True
        ):
            np.testing.assert_array_equal(one, other)
        if kind is AxisType.Explicit:
            assert found["a"].sharding.spec == spread["a"]


def test_it_is_drawn_and_kept_in_float32_and_vmapped_alike(key):
    strategy = CASES["banded"]
    tree = {"a": jnp.ones(7, jnp.bfloat16), "b": jnp.ones((), jnp.float32)}
    state = correlated.init(strategy, tree)
    assert jax.tree.map(lambda leaf: leaf.dtype, state.buffers) == {"a": "float32", "b": "float32"}
    keys = jax.random.split(key, 3)
    add = lambda k: correlated.add_noise(strategy, k, tree, 1.0, state)
    with jax.debug_key_reuse(False):
        many, kept = jax.vmap(add)(keys)
        assert many["a"].dtype == jnp.bfloat16 and many["b"].dtype == jnp.float32
        for i in range(3):
            one, keeps = add(keys[i])
            np.testing.assert_array_equal(many["a"][i], one["a"])
            np.testing.assert_array_equal(kept.buffers["a"][i], keeps.buffers["a"])


def test_what_is_kept_is_as_many_trees_as_the_strategy_says():
    kept = {"banded": 3, "buffered": 2, "tree": 3, "tree_full": 3, "dense_banded": 2}
    for name, wanted in kept.items():
        state = correlated.init(CASES[name], LIKE)
        assert state.buffers["a"].shape == (wanted, 3, 16)


@pytest.mark.parametrize(
    ("kind", "coefs", "num_rounds"),
    [
        ("bands", (1.0,), 3),
        ("banded", (), 3),
        ("banded", (0.5,), 3),
        ("banded", (1.0, float("nan")), 3),
        ("banded", [1.0], 3),
        ("banded_inverse", (1.0, float("inf")), 3),
        ("banded", (1.0,), 0),
        ("banded", (1.0,), True),
        ("banded", (1.0,), 2.0),
        ("buffered", (0.5,), 3),
        ("buffered", (1.0, 0.5), 3),
        ("tree", (1.0,), 3),
        ("dense_banded", (), 3),
        ("dense_banded", (1.0, 1.0), 3),
        ("dense_banded", (1.0, 0.0, 1.0), 3),
        ("dense_banded", (1.0, 0.5, 1.0, 0.5), 2),
        ("dense_banded", (1.0,) * 6, 2),
    ],
)
def test_numbers_that_are_no_strategy_are_refused(kind, coefs, num_rounds):
    with pytest.raises(ValueError, match="Expected"):
        Strategy(kind, coefs, num_rounds)


def test_the_state_of_another_strategy_or_tree_is_refused(key):
    tree = {"a": jnp.zeros(3)}
    strategy = Strategy("tree", (), 16)
    for state in (
        correlated.init(Strategy("tree", (), 4), tree),
        correlated.init(strategy, {"b": jnp.zeros(3)}),
        correlated.init(strategy, {"a": jnp.zeros(2)}),
    ):
        with pytest.raises(ValueError, match="Expected state to be of this strategy and tree"):
            correlated.add_noise(strategy, key, tree, 1.0, state)


def test_noise_is_not_rounded_into_integers(key):
    strategy, tree = Strategy("tree", (), 4), {"a": jnp.zeros(3, jnp.int32)}
    with pytest.raises(ValueError, match="Expected tree with floating leaves, got int32"):
        correlated.add_noise(strategy, key, tree, 1.0, correlated.init(strategy, tree))


@pytest.mark.parametrize("name", CASES)
def test_noise_grows_as_the_rows_of_c_inverse_do(name):
    strategy = CASES[name]
    inverse = np.linalg.inv(matrix(strategy, strategy.num_rounds))
    rows = np.linalg.norm(inverse, axis=1) / np.diag(inverse)
    assert grown(strategy) == pytest.approx(rows.max(), rel=1e-9)


@pytest.mark.parametrize(
    ("kind", "coefs"),
    [
        ("banded", (1.0, -0.9999)),
        ("banded", (1.0, -1.9, 0.902)),
        ("buffered", (0.9, 0.999, 0.2, -0.0012)),
    ],
)
def test_noise_of_many_rounds_grows_as_that_of_each_does(kind, coefs):
    strategy = Strategy(kind, coefs, 6001)
    numerator, denominator = [1.0], list(coefs)
    if kind == "buffered":  # C is 1 + z s_1 / (1 - d_1 z) + z s_2 / (1 - d_2 z)
        (a, b, s, t), numerator = coefs, [1.0, -coefs[0] - coefs[1], coefs[0] * coefs[1]]
        denominator = [1.0, s + t - a - b, a * b - s * b - t * a]
    column = scipy.signal.lfilter(numerator, denominator, np.eye(1, 6001)[0])
    assert np.abs(column[4096:]).max() > 0
    assert grown(strategy) == pytest.approx(np.linalg.norm(column), rel=1e-9)


@pytest.mark.parametrize(
    "strategy",
    [
        Strategy("banded", (1.0, 1.5), 100),
        Strategy("banded", (1.0, -3.0, 0.5), 1000),
        Strategy("banded", (1.0, 50.0), 2**30),
        Strategy("banded", (1.0, -1.0005), 20_000),  # 243 times in the first 4096 rounds
        Strategy("banded_inverse", (1.0, 1e6), 3),
        Strategy("buffered", (0.9, -1.5), 200),
        Strategy("dense_banded", (1.0, 0.0, *(1.0, 2.0) * 49), 50),
    ],
)
def test_noise_in_which_float32_would_lose_this_rounds_draw_is_refused(strategy, key):
    """C x + z is as private as its event says, but z is rounded away: then x is seen, rounded."""
    tree = {"a": jnp.zeros(3)}
    state = correlated.init(strategy, tree)
    for call in (
        lambda: correlated.add_noise(strategy, key, tree, 1.0, state),
        lambda: correlated.correlate(strategy, tree, state),
    ):
        with pytest.raises(ValueError, match="which sums of float32 lose beyond that"):
            call()
