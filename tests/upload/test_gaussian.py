"""gaussian_privatizer as a gradient transformation."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fljax_kernels
from fljax import gaussian_privatizer
from fljax.upload.gaussian import NoiseState


def test_updates_get_noise_of_the_stated_stddev_and_keep_their_dtypes(key):
    updates = {"w": jnp.full((300, 300), 7.0), "b": jnp.zeros(50, jnp.bfloat16)}
    privatizer = gaussian_privatizer(stddev=3.0, prng_key=key)
    noisy, _ = jax.jit(privatizer.update)(updates, privatizer.init(updates))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), noisy) == jax.tree.map(
        lambda x: (x.shape, x.dtype), updates
    )
    noise = np.asarray(noisy["w"], np.float64) - 7
    # Five standard errors of a mean square over 90,000 entries.
    assert abs(np.mean(noise**2) / 9 - 1) <= 5 * math.sqrt(2 / 90_000)
    assert abs(noise.mean()) <= 5 * 3 / 300


def test_each_update_draws_fresh_noise_and_a_replay_draws_the_same(key):
    zeros = jnp.zeros(2000)
    privatizer = gaussian_privatizer(stddev=1.0, prng_key=key)

    def three(state):
        noises = []
        for _ in range(3):
            noise, state = privatizer.update(zeros, state)
            noises.append(noise)
        return np.stack(noises)

    first, again = three(privatizer.init(zeros)), three(privatizer.init(zeros))
    np.testing.assert_array_equal(first, again)
    # Independent rows: correlations have standard error 1/sqrt(2000).
    assert np.abs(np.corrcoef(first) - np.eye(3)).max() <= 5 / math.sqrt(2000)


def test_composes_with_optax_and_runs_in_scan(key):
    optimizer = optax.chain(gaussian_privatizer(stddev=0.0, prng_key=key), optax.sgd(0.1))
    params = {"w": jnp.ones(3)}

    def step(carry, _):
        params, state = carry
        updates, state = optimizer.update({"w": 2 * params["w"]}, state, params)
        return (optax.apply_updates(params, updates), state), None

    (params, state), _ = jax.jit(lambda c: jax.lax.scan(step, c, length=10))(
        (params, optimizer.init(params))
    )
    np.testing.assert_allclose(params["w"], np.full(3, 0.8**10), rtol=1e-6)
    assert isinstance(state[0], NoiseState)


def test_donating_the_state_leaves_the_callers_key(key):
    privatizer = gaussian_privatizer(stddev=1.0, prng_key=key)
    step = jax.jit(privatizer.update, donate_argnums=1)
    step(jnp.zeros(3), privatizer.init(None))
    assert jax.random.key_data(key).shape == (2,)
    step(jnp.zeros(3), privatizer.init(None))


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_bad_stddev_is_named(bad, key):
    with pytest.raises(ValueError, match="Expected stddev >= 0 and finite, got stddev="):
        gaussian_privatizer(stddev=bad, prng_key=key)


def test_without_a_key_each_privatizer_draws_its_own_from_the_operating_system(monkeypatch):
    zeros = jnp.zeros(2000)
    np.random.seed(0)  # noqa: NPY002  what a drawn key must not follow
    privatizers = [gaussian_privatizer(stddev=1.0), gaussian_privatizer(stddev=1.0, prng_key=None)]
    np.random.seed(0)  # noqa: NPY002
    privatizers.append(gaussian_privatizer(stddev=1.0))
    noises = []
    for privatizer in privatizers:
        state = privatizer.init(zeros)
        for _ in range(2):
            noise, state = jax.jit(privatizer.update)(zeros, state)
            noises.append(noise)
    # Independent rows, of fresh keys: correlations beyond seven standard errors come once in 1e11
    # tests.
    assert np.abs(np.corrcoef(np.stack(noises)) - np.eye(6)).max() <= 7 / math.sqrt(2000)
    monkeypatch.setattr("secrets.token_bytes", lambda size: bytes(range(size)))
    drawn = gaussian_privatizer(stddev=1.0).init(None).key
    wanted = fljax_kernels.chacha20.key(bytes(range(32)))
    np.testing.assert_array_equal(
        jax.random.key_data(drawn), jax.random.key_data(jax.random.fold_in(wanted, 0))
    )


def test_a_key_is_not_drawn_where_the_program_would_keep_it(monkeypatch):
    def step(grads):
        privatizer = gaussian_privatizer(stddev=1.0)
        return privatizer.update(grads, privatizer.init(grads))[0]

    for inside in (jax.jit(step), lambda grads: jax.lax.map(step, grads[None])):
        with pytest.raises(ValueError, match=r"inside jax\.jit, got prng_key=None"):
            inside(jnp.zeros(3))
    assert step(jnp.zeros(3)).shape == (3,)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match="all 2 processes, got prng_key=None"):
        step(jnp.zeros(3))


@pytest.mark.parametrize("bad", [0, np.zeros(2, np.uint32)])
def test_a_key_that_is_not_typed_is_named(bad):
    with pytest.raises(ValueError, match="Expected prng_key to be a typed PRNG key"):
        gaussian_privatizer(stddev=1.0, prng_key=bad)
