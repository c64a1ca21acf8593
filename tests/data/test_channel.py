"""Noise in the data: its law for every shape, on what its bits depend, and the spectra it is solved
from.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.data import channel

SHAPE, D = (4, 3, 2), 24


def factor(columns=10, seed=0):
    return np.random.default_rng(seed).normal(size=(D, columns)).astype(np.float32) / 3


def shape_of(kind):
    """The noise, and its covariance `[D, D]` written apart."""
    weights = np.linspace(0.2, 3, D).astype(np.float32)
    f = factor()
    log_var = np.float32(np.log(0.7))
    return {
        "natural": (channel.RecordNoise(jnp.array(log_var), jnp.float32(1)), 0.7 * np.eye(D)),
        "personalized": (
            channel.RecordNoise(jnp.array(log_var), jnp.array(weights)),
            0.7 * np.diag(weights),
        ),
        "factor": (
            channel.RecordNoise(jnp.array(log_var), jnp.float32(0.05), jnp.array(f)),
            0.7 * (f @ f.T + 0.05 * np.eye(D)),
        ),
    }[kind]


def keys(key, count, use=0):
    client = channel.client_keys(jax.random.clone(key), jnp.array([3]))[0]
    return channel.record_keys(client, jnp.arange(count), use)


@pytest.mark.slow(reason="draws one more kind", but=["natural"])
@pytest.mark.parametrize("kind", ["natural", "personalized", "factor"])
def test_the_noise_has_the_stated_covariance(kind, key):
    noise, expected = shape_of(kind)
    count = 100_000
    draws = np.asarray(channel.draw(noise, keys(key, count), SHAPE), np.float64).reshape(count, D)
    # Var of an entry of the empirical covariance: (S_ii S_jj + S_ij^2) / n; five standard errors
    # over 300 entries.
    spread = np.sqrt((np.outer(np.diag(expected), np.diag(expected)) + expected**2) / count)
    assert np.all(np.abs(draws.T @ draws / count - expected) <= 5 * spread)
    assert np.all(np.abs(draws.mean(0)) <= 5 * np.sqrt(np.diag(expected) / count))
    # The check can fail: 5 % more noise is seen.
    assert not np.all(np.abs(1.05 * draws.T @ draws / count - expected) <= 5 * spread)


@pytest.mark.slow(reason="compiles one more law of noise", but=["factor"])
@pytest.mark.parametrize("kind", ["natural", "personalized", "factor"])
def test_a_records_noise_depends_on_client_record_and_use_alone(kind, key):
    noise, _ = shape_of(kind)
    x = jnp.zeros((6, *SHAPE))
    alone = jax.jit(lambda keys: channel.noisy(noise, x[:2], keys))(keys(key, 6)[2:4])
    whole = channel.noisy(noise, x, keys(key, 6))
    np.testing.assert_allclose(alone, whole[2:4], rtol=0, atol=1e-6)
    mapped = jax.vmap(lambda k: channel.noisy(noise, x[:1], k[None])[0])(keys(key, 6))
    np.testing.assert_allclose(mapped, whole, rtol=0, atol=1e-6)
    assert np.abs(channel.noisy(noise, x, keys(key, 6, use=1)) - whole).min() > 0
    other = channel.client_keys(jax.random.clone(key), jnp.array([4]))[0]
    assert (
        np.abs(channel.noisy(noise, x, channel.record_keys(other, jnp.arange(6), 0)) - whole).min()
        > 0
    )


def test_a_client_gets_its_own_strength_and_factor():
    factors = jnp.stack([jnp.array(factor(seed=s)) for s in (1, 2)])
    both = channel.RecordNoise(jnp.log(jnp.array([0.5, 2.0])), jnp.float32(0.1), factors)
    second = jax.jit(lambda c: channel.of_client(both, c))(1)
    assert float(second.log_noise_var) == pytest.approx(np.log(2.0))
    np.testing.assert_array_equal(second.factor, factors[1])
    shared = channel.RecordNoise(jnp.float32(0.0), jnp.float32(1.0), factors[0])
    np.testing.assert_array_equal(channel.of_client(shared, 7).factor, factors[0])


def test_records_are_clipped_before_noise_where_a_range_is_claimed(key):
    silent = channel.RecordNoise(jnp.float32(-80.0), jnp.float32(1.0), value_range=(0.0, 1.0))
    x = jnp.array([[-3.0, 0.25, 7.0]])
    np.testing.assert_allclose(
        channel.noisy(silent, x, keys(key, 1)), [[0.0, 0.25, 1.0]], atol=1e-6
    )


def test_records_keep_their_dtype_and_noise_is_drawn_in_float32(key):
    noise = channel.RecordNoise(jnp.float32(0.0), jnp.float32(1.0))
    out = channel.noisy(noise, jnp.zeros((4000, 8), jnp.bfloat16), keys(key, 4000))
    assert out.dtype == jnp.bfloat16
    drawn = channel.draw(noise, keys(key, 4000), (8,))
    assert drawn.dtype == jnp.float32 and np.unique(np.asarray(drawn)).size > 30_000


@pytest.mark.parametrize(
    "count", [10, 24, 60], ids=["fewer records than numbers", "as many", "more"]
)
def test_spectrum_factor_and_covariance_agree_with_numpy(count):
    x = np.random.default_rng(1).normal(size=(count, *SHAPE))
    expected = np.cov(x.reshape(count, D).T, bias=True)
    np.testing.assert_allclose(channel.covariance(x), expected, rtol=0, atol=1e-12)
    values = np.sort(np.linalg.eigvalsh(expected))[::-1]
    np.testing.assert_allclose(channel.spectrum(x), np.maximum(values, 0), rtol=0, atol=1e-12)
    f = channel.data_factor(x)
    assert f.shape == (D, min(count, D)) and f.dtype == np.float32
    np.testing.assert_allclose(f @ f.T, expected, rtol=0, atol=1e-5)


def test_least_power_noise_has_its_nats_along_the_records_own_directions():
    """(1/2) ln det(I + S N^-1) from the two dense matrices is the budget, and natural noise needs
    more power for it.
    """
    from fljax.accounting import information

    x = np.random.default_rng(1).normal(size=(60, *SHAPE)) * np.linspace(0.3, 2, 2)
    values = channel.spectrum(x)
    solved = information.min_power(values, nats=5.0, covariance_source="public")
    f = channel.shaped_factor(x, solved.noise_values).astype(np.float64)
    nats = 0.5 * np.linalg.slogdet(np.eye(D) + channel.covariance(x) @ np.linalg.inv(f @ f.T))[1]
    assert nats == pytest.approx(5.0, rel=1e-4)
    assert (
        np.trace(f @ f.T)
        < 0.99 * D * information.natural(values, nats=5.0, covariance_source="public").noise_var
    )
    with pytest.raises(ValueError, match="beyond the 5 records"):
        channel.shaped_factor(x[:5], np.ones(D))


def test_the_mask_is_the_papers_and_scales():
    mask = channel.eye_mask((32, 32, 3)).reshape(32, 32, 3)
    inside = np.zeros((32, 32, 3), bool)
    inside[12:20, 8:24] = True
    np.testing.assert_array_equal(mask, np.where(inside, 50.0, 1.0))
    small = channel.eye_mask((8, 8, 1), 7.0).reshape(8, 8)
    assert (small[3:5, 2:6] == 7).all() and (small == 7).sum() == 8


def test_embeddings_replace_records_in_batches():
    x = np.arange(20.0, dtype=np.float32).reshape(5, 4)
    found = channel.embed({"x": x, "y": np.arange(5)}, lambda row: row[:2] * 2, batch_size=2)
    np.testing.assert_array_equal(found["x"], 2 * x[:, :2])
    np.testing.assert_array_equal(found["y"], np.arange(5))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: channel.covariance(np.zeros((1, 3))), r"shape \(1, 3\)"),
        (lambda: channel.spectrum(np.array([[0.0, np.nan], [1.0, 2.0]])), "finite"),
        (lambda: channel.data_factor(np.zeros((0, 3))), r"shape \(0, 3\)"),
        (lambda: channel.eye_mask((8, 8)), r"shape=\(8, 8\)"),
        (lambda: channel.eye_mask((8, 8, 1), 0.0), "weight=0"),
        (lambda: channel.embed({"x": np.zeros((2, 2))}, lambda x: x, batch_size=0), "batch_size=0"),
    ],
)
def test_bad_input_is_refused_with_its_value(call, message):
    with pytest.raises(ValueError, match=message):
        call()
