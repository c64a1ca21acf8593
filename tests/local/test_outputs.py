"""clip_pytree and clipped_fun against closed forms in float64; sensitivity by replay."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax import check_sensitivity, clip_pytree, clipped_fun, clipped_grad, errors

B = 7


def length(tree):
    """L2 norm of all leaves, in float64."""
    return math.sqrt(sum(np.square(np.asarray(x, np.float64)).sum() for x in jax.tree.leaves(tree)))


@pytest.fixture
def tree(key):
    k = jax.random.split(key)
    return {
        "w": 3 * jax.random.normal(k[0], (5, 2)),
        "b": (jax.random.normal(k[1], (4,)), jnp.float32(-2)),
    }


@pytest.mark.parametrize("rescale", [False, True])
@pytest.mark.parametrize("bound", [0.0, 0.5, 7.0, 1e3, math.inf])
def test_a_tree_is_scaled_down_to_the_bound_and_not_up(bound, rescale, tree):
    clipped, norm = jax.jit(functools.partial(clip_pytree, rescale_to_unit_norm=rescale))(
        tree, bound
    )
    exact = length(tree)
    # With the bound 0, the direction is what small bounds come to; an infinite bound divides all
    # away.
    factor = 1 / max(exact, bound) if rescale else min(1, bound / exact)
    for found, leaf in zip(jax.tree.leaves(clipped), jax.tree.leaves(tree), strict=True):
        assert found.dtype == leaf.dtype
        np.testing.assert_allclose(found, factor * np.asarray(leaf, np.float64), rtol=1e-6)
    assert float(norm) == pytest.approx(exact, rel=1e-6)


def test_each_subtree_has_its_own_bound(tree):
    clipped, norms = jax.jit(lambda tree: clip_pytree(tree, {"w": 0.5, "b": (10.0, 1.5)}))(tree)
    exact = length(tree["w"])
    np.testing.assert_allclose(
        clipped["w"], np.asarray(tree["w"], np.float64) * 0.5 / exact, rtol=1e-6
    )
    np.testing.assert_allclose(clipped["b"][0], tree["b"][0])
    np.testing.assert_allclose(clipped["b"][1], -1.5)
    np.testing.assert_allclose(norms["w"], exact, rtol=1e-6)
    np.testing.assert_allclose(norms["b"][1], 2.0)
    # One bound for two leaves is the bound of both together.
    pair, norms = jax.jit(lambda tree: clip_pytree(tree, {"w": 0.5, "b": 1.5}))(tree)
    assert length(pair["b"]) == pytest.approx(1.5, rel=1e-6)
    assert float(norms["b"]) == pytest.approx(length(tree["b"]), rel=1e-6)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_leaves_of_16_bits_stay_within_the_bound(dtype, key):
    rows = jax.random.normal(key, (200, 6), dtype)
    clipped, _ = jax.jit(jax.vmap(lambda row: clip_pytree(row, 0.7)))(rows)
    assert clipped.dtype == dtype
    longest = lambda x: max(length(row) for row in np.asarray(x))
    assert longest(clipped) <= 0.7 * (1 + 1e-5)
    # Rounding to nearest would leave it.
    exact = np.asarray(rows, np.float32)
    exact *= np.minimum(1, 0.7 / np.linalg.norm(exact, axis=1))[:, None]
    assert longest(exact.astype(dtype)) > 0.7 * (1 + 1e-4)


@pytest.mark.parametrize("size", [1e-30, 1e-12, 1e25, 1e37])
def test_a_norm_is_known_where_its_square_is_not(size):
    tree = {"a": size * jnp.array([3.0, 0.0]), "b": size * jnp.array([[4.0]])}
    clipped, norm = jax.jit(clip_pytree)(tree, 0.5)
    assert float(norm) == pytest.approx(5 * size, rel=1e-6)
    assert length(clipped) == pytest.approx(min(0.5, 5 * size), rel=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_an_entry_that_is_not_finite_counts_as_zero_and_shows_in_the_norm(bad):
    tree = {"a": np.float32([3, bad]), "b": np.float32([4])}
    clipped, norm = jax.jit(clip_pytree)(tree, 1.0)
    np.testing.assert_allclose(clipped["a"], [0.6, 0], rtol=1e-6)
    np.testing.assert_allclose(clipped["b"], [0.8], rtol=1e-6)
    assert not np.isfinite(norm)
    kept, norm = jax.jit(functools.partial(clip_pytree, nan_safe=False))(tree, 1.0)
    assert np.isnan(kept["a"][1]) and not np.isfinite(norm)


def test_a_traced_bound_that_is_none_gives_zero(tree):
    clip = jax.jit(lambda bound: clip_pytree(tree, bound)[0])
    assert length(clip(2.0)) == pytest.approx(2.0, rel=1e-6)
    for bound in (-1.0, math.nan):
        assert length(clip(bound)) == 0.0


def test_zero_can_be_asked_for_while_tracing(tree):
    bad = tree | {"w": tree["w"].at[0].set(math.nan)}
    clip = jax.jit(functools.partial(clip_pytree, nan_safe=False))
    assert length(clip(bad, 1.0, return_zero=True)[0]) == 0.0
    assert np.isnan(length(clip(bad, 1.0, return_zero=False)[0]))


@pytest.mark.parametrize(
    ("tree", "bound", "message"),
    [
        (jnp.ones(2), -1.0, "Expected clip_norm >= 0, got clip_norm=-1.0"),
        (jnp.ones(2), math.nan, "Expected clip_norm >= 0, got clip_norm=nan"),
        (jnp.ones(2), "1", "Expected clip_norm >= 0, got clip_norm='1'"),
        (jnp.ones(2), True, "Expected clip_norm >= 0, got clip_norm=True"),
        (jnp.ones(2), {}, "a bound or a tree of bounds"),
        (jnp.arange(2), 1.0, "Expected pytree arrays of a floating dtype, got int32"),
    ],
)
def test_what_cannot_be_clipped_is_refused(tree, bound, message):
    with pytest.raises(ValueError, match=message):
        clip_pytree(tree, bound)


def direction(w, x):
    """Written for a batch; a pair of outputs of different length for each row."""
    return {"a": jnp.sum(x, axis=0) * w, "b": jnp.sum(jnp.square(x))}


def rows64(w, x):
    """`[B, 4]` in float64: what `direction` gives for each row."""
    x = np.asarray(x, np.float64)
    return np.concatenate(
        [x * np.asarray(w, np.float64), np.square(x).sum(axis=1, keepdims=True)], axis=1
    )


def flat(total):
    return np.concatenate(
        [np.asarray(total["a"], np.float64), np.asarray(total["b"], np.float64)[None]]
    )


@pytest.fixture
def problem(key):
    x = np.array(jax.random.normal(key, (B, 3)))
    x[1] *= 30
    x[2] = 1e-3
    return jnp.array([1.0, -2.0, 0.5]), jnp.asarray(x)


@pytest.mark.slow(
    reason="compiles one more setting",
    but=["0.0-None-False", "1.5-None-True", "1.5-3-False", "inf-3-True"],
)
@pytest.mark.parametrize("keep_batch_dim", [True, False])
@pytest.mark.parametrize("microbatch_size", [None, 3])
@pytest.mark.parametrize("bound", [0.0, 1.5, math.inf])
def test_the_sum_of_clipped_outputs(bound, microbatch_size, keep_batch_dim, problem):
    fun = direction if keep_batch_dim else lambda w, x: direction(w, x[None])
    clipped = clipped_fun(
        fun,
        batch_argnums=1,
        l2_clip_norm=bound,
        keep_batch_dim=keep_batch_dim,
        microbatch_size=microbatch_size,
        normalize_by=4.0,
        return_norms=True,
    )
    absent = np.arange(B) >= 5
    total, norms = jax.jit(clipped)(*problem, is_padding_example=absent)
    rows = rows64(*problem)
    lengths = np.linalg.norm(rows, axis=1)
    expected = (rows * np.minimum(1, bound / lengths)[:, None])[~absent].sum(axis=0) / 4
    np.testing.assert_allclose(flat(total), expected, atol=1e-6 * np.abs(rows).sum() + 1e-12)
    np.testing.assert_allclose(norms, np.where(absent, 0, lengths), rtol=1e-5)
    assert clipped.l2_norm_bound == clipped.sensitivity() == bound / 4
    assert clipped.sensitivity("REPLACE_ONE") == bound / 2


def test_aux_and_norms_come_as_the_signature_says(problem):
    def fun(w, x):
        return x[0] * w, {"row": x, "length": jnp.sum(x)}

    w, x = problem
    options = {"batch_argnums": 1, "has_aux": True}
    total, aux = jax.jit(clipped_fun(fun, **options))(w, x)
    assert total.shape == (3,)
    np.testing.assert_array_equal(aux["row"], x)
    np.testing.assert_allclose(aux["length"], np.asarray(x).sum(axis=1), rtol=1e-5, atol=1e-6)
    _, (aux, norms) = jax.jit(clipped_fun(fun, return_norms=True, **options))(w, x)
    assert set(aux) == {"row", "length"} and norms.shape == (B,)


def test_every_part_has_its_own_bound_and_the_bound_of_all_is_their_norm(problem):
    clipped = clipped_fun(direction, batch_argnums=1, l2_clip_norm={"a": 3.0, "b": 0.4})
    rows = rows64(*problem)
    total = jax.jit(clipped)(*problem)
    a = rows[:, :3] * np.minimum(1, 3 / np.linalg.norm(rows[:, :3], axis=1))[:, None]
    np.testing.assert_allclose(total["a"], a.sum(axis=0), rtol=1e-5)
    np.testing.assert_allclose(total["b"], np.minimum(rows[:, 3], 0.4).sum(), rtol=1e-5)
    assert clipped.l2_norm_bound == math.hypot(3.0, 0.4)
    rescaled = clipped_fun(
        direction, batch_argnums=1, l2_clip_norm={"a": 3.0, "b": 0.4}, rescale_to_unit_norm=True
    )
    np.testing.assert_allclose(jax.jit(rescaled)(*problem)["a"], a.sum(axis=0) / 3, rtol=1e-5)
    assert rescaled.l2_norm_bound == math.sqrt(2)


@pytest.mark.slow(reason="compiles one more form", ids=["2-0.7", "None-bound1"])
@pytest.mark.parametrize("bound", [0.7, {"a": 3.0, "b": 0.4}])
@pytest.mark.parametrize("microbatch_size", [None, 2])
def test_one_row_moves_the_sum_by_the_declared_sensitivity_at_most(bound, microbatch_size, problem):
    w, x = problem
    clipped = clipped_fun(
        direction, batch_argnums=1, l2_clip_norm=bound, microbatch_size=microbatch_size
    )
    replay = functools.partial(
        check_sensitivity, lambda x, mask: clipped(w, x, is_padding_example=~mask)
    )
    for relation, other in [("ADD_OR_REMOVE_ONE", None), ("REPLACE_ONE", -10 * x)]:
        options = {"neighboring_relation": relation, "replacements": other}
        report = replay(x, sensitivity=clipped.sensitivity(relation), rtol=1e-5, **options)
        with pytest.raises(errors.SensitivityError):
            replay(x, sensitivity=0.9 * report.measured, rtol=1e-5, **options)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_that_is_not_finite_adds_zero_as_a_whole(bad, problem):
    w, x = problem
    clipped = clipped_fun(lambda w, x: x[0] * w, batch_argnums=1)
    broken, broken_by_nan = np.array(x), np.array(x)
    broken[3, 0], broken_by_nan[3, 0] = bad, math.nan
    without = jax.jit(clipped)(w, x, is_padding_example=np.arange(B) == 3)
    np.testing.assert_allclose(jax.jit(clipped)(w, broken), without, rtol=1e-6)
    told = clipped_fun(lambda w, x: x[0] * w, batch_argnums=1, nan_safe=False)
    assert np.isnan(jax.jit(told)(w, broken_by_nan)).any()


def test_sums_of_16_bits_are_rounded_once():
    """A thousand rows of 1/4: added up in bfloat16 they would stop growing at 128 quarters."""
    x = np.full((1000, 1), 0.25, jnp.bfloat16)
    total = jax.jit(clipped_fun(lambda x: x[0]))(x)
    assert total.dtype == jnp.bfloat16 and float(total[0]) == 250.0
    wide = jax.eval_shape(clipped_fun(lambda x: x[0], dtype=jnp.float32), x)
    assert wide.dtype == jnp.float32


def test_each_row_gets_its_own_key(key):
    clipped = clipped_fun(
        lambda x, key: x[0] + jax.random.normal(key, (2,)), l2_clip_norm=math.inf, prng_argnum=1
    )
    split = jax.random.split(jax.random.clone(key), B)
    drawn = np.asarray(jax.vmap(lambda key: jax.random.normal(key, (2,)))(split))
    total = jax.jit(clipped)(np.zeros((B, 2), np.float32), key)
    np.testing.assert_allclose(total, drawn.sum(axis=0), rtol=1e-5)


def test_clipping_gradients_one_by_one_is_clipped_grad(problem):
    w, x = problem
    loss = lambda w, x: jnp.sum(jnp.tanh(x @ w))
    total = clipped_fun(jax.grad(loss), batch_argnums=1, l2_clip_norm=0.4)(w, x)
    np.testing.assert_allclose(total, clipped_grad(loss, l2_clip_norm=0.4)(w, x), atol=1e-6)


def test_an_empty_batch_sums_to_zero():
    total, norms = clipped_fun(lambda x: x[0], return_norms=True)(jnp.zeros((0, 3)))
    np.testing.assert_array_equal(total, np.zeros(3))
    assert norms.shape == (0,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_argnums": ()}, "batch_argnums not empty"),
        ({"batch_argnums": -1}, "batch_argnums"),
        ({"l2_clip_norm": math.nan}, "l2_clip_norm >= 0"),
        ({"normalize_by": 0.0}, "normalize_by > 0"),
        ({"microbatch_size": 0}, "microbatch_size"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        clipped_fun(lambda x: x, **options)


def test_what_would_break_the_bound_is_refused():
    x = jnp.ones((4, 3))
    with pytest.raises(NotImplementedError, match="spmd_axis_name=None"):
        clipped_fun(lambda x: x, spmd_axis_name="data")
    with pytest.raises(ValueError, match="at least 2 arguments"):
        clipped_fun(lambda x, y: x, batch_argnums=1)(x)
    with pytest.raises(ValueError, match=r"sizes \[3, 4\]"):
        clipped_fun(lambda x, y: x, batch_argnums=(0, 1))(x, jnp.ones(3))
    with pytest.raises(ValueError, match="Add 1 to batch_argnums"):
        clipped_fun(lambda x, y: jnp.sum(x) * y)(x, jnp.arange(4.0))
    with pytest.raises(
        ValueError, match="Expected fun to return arrays of a floating dtype, got int32"
    ):
        clipped_fun(lambda x: x)(jnp.ones((4, 3), jnp.int32))


def test_the_front_door_has_both():
    assert fljax.clip_pytree is clip_pytree and {"clip_pytree", "clipped_fun"} <= set(fljax.__all__)
