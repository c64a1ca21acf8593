"""Clipping styles: coefficients of rows, from their norms."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax_kernels
from fljax.errors import PrivacyPreconditionError
from fljax.local import clipping, quantile

NORMS = jnp.array([0.0, 1e-25, 1e-13, 1e-6, 0.3, 1.0, 7.0, 1e20])
STYLES = [clipping.flat, clipping.auto_s, clipping.psac]


@pytest.mark.parametrize("style", STYLES, ids=lambda s: s.__name__)
@pytest.mark.parametrize("clip", [0.0, 1e-30, 1e-14, 1e-3, 1.0, 50.0])
def test_no_row_gets_longer_than_the_bound(style, clip):
    lengths = np.asarray(NORMS, np.float64) * np.asarray(style(NORMS, clip), np.float64)
    assert lengths.max() <= clip * (1 + 1e-6)


@pytest.mark.parametrize("style", STYLES, ids=lambda s: s.__name__)
@pytest.mark.parametrize("clip", [0.0, 1e-30, 1e-14, 1e-12])
def test_a_row_whose_squares_underflow_stays_within_a_tiny_bound(style, clip):
    # 10,000 entries of 1e-24: each square is below float32's range, so the norm 1e-22 is seen as 0.
    row = jnp.full(10_000, 1e-24)
    seen = jnp.sqrt(jnp.sum(jnp.square(row)))
    assert float(seen) == 0.0
    assert 1e-22 * float(style(seen[None], clip)[0]) <= clip * (1 + 1e-6)


@pytest.mark.parametrize("style", clipping.UNIT_STYLES)
@pytest.mark.parametrize("clip", [1e-30, 0.5])
def test_no_update_moves_the_sum_by_more_than_the_bound_in_any_style(style, clip, key):
    rows = {"a": 3 * jax.random.normal(key, (7, 4)), "b": jnp.ones((7, 2, 2)), "c": jnp.arange(7.0)}
    rows["a"] = rows["a"].at[2].set(1e-24).at[3].set(jnp.nan).at[4, 0].set(jnp.inf).at[5].set(1e25)
    rows["b"] = rows["b"].at[2].set(0)
    rows["c"] = rows["c"].at[2].set(1e-25)
    moved = jax.jit(jax.vmap(lambda mask: clipping.sum_updates(rows, clip, style, mask)[0]))(
        jnp.eye(7, dtype=bool)
    )
    square = sum(
        np.square(np.asarray(leaf, np.float64)).reshape(7, -1).sum(1)
        for leaf in jax.tree.leaves(moved)
    )
    lengths = np.sqrt(square)
    assert np.isfinite(lengths).all() and lengths.max() <= clip * (1 + 1e-5)
    assert lengths[[3, 4]].max() == 0
    if clip == 0.5:  # XLA may flush the products of a tiny bound to zero
        assert lengths[[0, 1, 6]].min() >= 0.5 * clip


@pytest.mark.parametrize("clip", [0.5, 1e30])
@pytest.mark.parametrize("style", clipping.UNIT_STYLES)
def test_a_finite_update_is_clipped_however_long(style, clip):
    """Squares overflow float32 beyond 1.8e19, the norm itself beyond 3.4e38."""
    rows = {
        "a": np.array([[3, 4], [3e19, 4e19], [3e25, -4e25], [3e38, 3e38]]),
        "b": np.array([0, 12e19, 0, -2e38]),
    }
    updates = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), rows)
    # Rows are an argument: of constants XLA moves the scaling out of the squares.
    one = jax.jit(lambda updates, mask: clipping.sum_updates(updates, clip, style, mask))
    found = jax.tree.map(
        lambda *sums: jnp.stack(sums), *(one(updates, mask)[0] for mask in jnp.eye(4, dtype=bool))
    )
    norms = np.max([one(updates, mask)[1] for mask in jnp.eye(4, dtype=bool)], axis=0)
    a, b = rows["a"], rows["b"][:, None]
    exact = np.sqrt(np.sum(a**2, axis=1) + np.sum(b**2, axis=1))
    np.testing.assert_allclose(norms, [5, 13e19, 5e25, np.inf], rtol=1e-6)
    if style == "per_layer":
        share = clip / np.sqrt(2)
        factors = [
            np.minimum(1, share / np.maximum(np.linalg.norm(x, axis=1), 1e-30)) for x in (a, b)
        ]
    else:
        added = {"flat": 0, "auto_s": 0.01, "psac": 0.1 / (exact + 0.1)}[style]
        factors = (
            [clip / (exact + added)] * 2 if style != "flat" else [np.minimum(1, clip / exact)] * 2
        )
    np.testing.assert_allclose(found["a"], a * factors[0][:, None], rtol=1e-5)
    np.testing.assert_allclose(found["b"], b[:, 0] * factors[1], rtol=1e-5)


def test_per_layer_clips_each_array_of_a_gradient_to_its_share():
    def loss(params, example):  # its gradient is the example
        return jnp.vdot(params["a"], example["a"]) + jnp.vdot(params["b"], example["b"])

    rows = {"a": jnp.array([[3.0, 4.0], [0.1, 0.2]]), "b": jnp.array([[0.5], [-8.0]])}
    params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:]), rows)
    matrix = fljax_kernels.per_example_grads(loss)(params, rows)
    total, norms = clipping.sum_gradients(matrix, math.sqrt(2), "per_layer")
    np.testing.assert_allclose(total["a"], [0.6 + 0.1, 0.8 + 0.2], rtol=1e-5)  # a bound of 1 each
    np.testing.assert_allclose(total["b"], [0.5 - 1.0], rtol=1e-5)
    np.testing.assert_allclose(norms, np.sqrt([25.25, 64.05]), rtol=1e-5)


def test_the_joint_norm_of_parts_is_finite_where_it_is_in_range():
    parts = {
        "a": jnp.array([3e25, 3e38, 3.0, 0.0, jnp.inf, jnp.nan]),
        "b": jnp.array([4e25, 3e38, 4.0, 0.0, 1.0, 1.0]),
    }
    np.testing.assert_allclose(
        clipping.joint_norm(parts), [5e25, np.inf, 5, 0, np.inf, np.nan], rtol=1e-6
    )


@pytest.mark.parametrize("style", STYLES, ids=lambda s: s.__name__)
def test_a_norm_that_is_not_finite_gets_zero(style):
    np.testing.assert_array_equal(style(jnp.array([jnp.nan, jnp.inf]), 1.0), 0)


def test_coefficients_are_those_of_the_papers():
    n = np.asarray(NORMS, np.float64)
    np.testing.assert_allclose(
        clipping.flat(NORMS, 2.0), np.minimum(1, 2 / np.maximum(n, 1e-30)), rtol=1e-6
    )
    np.testing.assert_allclose(clipping.auto_s(NORMS, 2.0), 2 / (n + 0.01), rtol=1e-6)
    np.testing.assert_allclose(clipping.psac(NORMS, 2.0), 2 / (n + 0.1 / (n + 0.1)), rtol=1e-6)


@pytest.mark.parametrize("style", [clipping.auto_s, clipping.psac], ids=lambda s: s.__name__)
def test_a_stability_of_zero_is_refused(style):
    with pytest.raises(ValueError, match="Expected stability > 0"):
        style(NORMS, 1.0, stability=0.0)


def test_the_bound_converges_to_the_quantile_of_the_norms(key):
    # Norms 1..100: the 0.8 quantile is 80.
    norms = jnp.arange(1.0, 101.0)

    def step(state, k):
        state = quantile.update(
            k,
            state,
            quantile.centred_count(state, norms, jnp.ones(100, bool)),
            expected_count=100.0,
            count_stddev=2.0,
            target_quantile=0.8,
        )
        return state, state.l2_clip_norm

    _, bounds = jax.jit(lambda s, keys: jax.lax.scan(step, s, keys))(
        quantile.init(0.1), jax.random.split(key, 300)
    )
    # Near 80 the fraction moves by 0.01 per unit of the bound: a pull of 0.2 * 0.8 = 0.16 per round
    # against steps of 80 * 0.2 * 0.02 = 0.32 gives a stationary deviation of 0.32 / sqrt(2 * 0.16)
    # = 0.57; six of them.
    assert np.abs(np.asarray(bounds)[150:] - 80).max() <= 6 * 0.57


def test_one_update_is_the_formula_without_noise(key):
    state = quantile.init(2.0)
    norms = jnp.array([1.0, 2.0, 3.0, jnp.nan, 0.5])
    mask = jnp.array([True, True, True, True, False])
    count = quantile.centred_count(state, norms, mask)
    new = quantile.update(
        key, state, count, expected_count=8.0, count_stddev=0.0, learning_rate=0.4
    )
    # 2 within, 2 not, of 8 expected: 1/2 + (2 * 0.5 - 2 * 0.5) / 8.
    np.testing.assert_allclose(new.l2_clip_norm, 2.0 * math.exp(-0.4 * (0.5 - 0.5)), rtol=1e-6)
    count = quantile.centred_count(state, norms, mask & (norms < 3))
    new = quantile.update(jax.random.clone(key), state, count, expected_count=8.0, count_stddev=0.0)
    np.testing.assert_allclose(
        new.l2_clip_norm, 2.0 * math.exp(-0.2 * (0.5 + 2 * 0.5 / 8 - 0.5)), rtol=1e-6
    )


def test_the_count_takes_its_share_of_the_noise():
    # Two Gaussian mechanisms compose as mu**2 = mu_1**2 + mu_2**2 with mu = 1 / noise multiplier.
    left = quantile.sum_noise_multiplier(1.1, 5.0)
    assert left > 1.1
    assert math.hypot(1 / left, 1 / (2 * 5.0)) == pytest.approx(1 / 1.1, rel=1e-12)
    with pytest.raises(PrivacyPreconditionError, match="count_stddev > noise_multiplier / 2"):
        quantile.sum_noise_multiplier(1.0, 0.5)
