"""SGD-DP, GD-DP and GSGD-DP: the law of what one round sends, how far one record moves it, and what
is refused.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import accounting, errors
from fljax.data.cohorts import ClientData, cohort
from fljax.schemes.weighted import gd_dp, gsgd_dp, sgd_dp
from fljax.server.rounds import Performance
from fljax_kernels.spectral import reference

NUM_CLIENTS, RECORDS, DIM = 3, 6, 4
CLIP = 1.0
PARAMS = {"w": jnp.zeros(DIM)}
HALVES = {"a": jnp.zeros(1), "b": jnp.zeros(DIM - 1)}
COMMON = {
    "num_parties": NUM_CLIENTS,
    "records_per_client": RECORDS,
    "l2_clip_norm": CLIP,
    "server_learning_rate": 1.0,
}
SCHEMES = {
    "gd": gd_dp.Config(**COMMON, noise_multiplier=1.0),
    "sgd": sgd_dp.Config(**COMMON, batch_size=2, noise_multiplier=0.3),
    "gsgd": gsgd_dp.Config(**COMMON, batch_size=1.5, noise_multiplier=1.2),
    "gsgd_per_leaf": gsgd_dp.Config(**COMMON, batch_size=1.5, noise_multiplier=1.2, per_leaf=True),
    "gsgd_isotropic": gsgd_dp.Config(
        **COMMON, batch_size=1.5, noise_multiplier=1.2, noise="isotropic"
    ),
}
MODULES = {
    "gd": gd_dp,
    "sgd": sgd_dp,
    "gsgd": gsgd_dp,
    "gsgd_per_leaf": gsgd_dp,
    "gsgd_isotropic": gsgd_dp,
}


def loss(params, example):
    """Its gradient is the example."""
    return jnp.dot(
        params["w"] if "w" in params else jnp.concatenate([params["a"], params["b"]]), example["x"]
    )


def records(seed=0):
    """Rows of length below and above the clip norm; the last client has a record less."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(NUM_CLIENTS * RECORDS, DIM)) * rng.uniform(
        0.2, 1.2, size=(NUM_CLIENTS * RECORDS, 1)
    )
    x[:, 3] *= 0.05  # a direction that sampling noise leaves low
    return x.astype(np.float32)


def clients(x):
    table = np.arange(NUM_CLIENTS * RECORDS, dtype=np.int32).reshape(NUM_CLIENTS, RECORDS)
    table[-1, -1] = -1
    return ClientData({"x": jnp.asarray(x)}, jnp.asarray(table))


def clipped(x):
    """`[N, D, K]` float64, zero rows where there is no record or it is not finite."""
    x = np.asarray(x, np.float64).reshape(NUM_CLIENTS, RECORDS, DIM).copy()
    x[-1, -1] = 0
    x[~np.isfinite(x).all(axis=2)] = 0
    return x * np.minimum(1, CLIP / np.maximum(np.linalg.norm(x, axis=2, keepdims=True), 1e-30))


@functools.cache  # one compilation a configuration
def compiled(name, noiseless):
    config = (
        dataclasses.replace(SCHEMES[name], noise_multiplier=0.0) if noiseless else SCHEMES[name]
    )
    algorithm = MODULES[name].make(config, loss, num_units=NUM_CLIENTS * RECORDS)

    @jax.jit
    def many(x, keys):
        params = HALVES if name == "gsgd_per_leaf" else PARAMS
        state, everyone = algorithm.init(params), cohort(clients(x), jnp.arange(NUM_CLIENTS))
        one = lambda key: jax.tree.leaves(algorithm.round(state, everyone, key)[0].params)
        return -jnp.concatenate(jax.lax.map(one, keys, batch_size=256), axis=1)

    return many


def steps(name, x, keys, noiseless=False):
    """The mean over clients that the server steps along, one row per key."""
    return np.asarray(compiled(name, noiseless)(jnp.asarray(x), keys), np.float64)


def covariance_of_one_client(name, config, rows):
    """Of the update of a client with these clipped rows, as the algorithms state it."""
    size, batch = RECORDS, config.batch_size
    if name == "gd":
        return (config.noise_multiplier * 2 * CLIP / size) ** 2 / NUM_CLIENTS * np.eye(DIM)
    if name == "sgd":
        mean = rows.mean(axis=0)
        scatter = rows.T @ rows - size * np.outer(mean, mean)
        sampling = (size - batch) / (batch * size * (size - 1)) * scatter
        return sampling + (config.noise_multiplier * 2 * CLIP / batch) ** 2 / NUM_CLIENTS * np.eye(
            DIM
        )
    stddev = config.noise_multiplier * 2 * CLIP / size / np.sqrt(NUM_CLIENTS)
    if name == "gsgd_isotropic":
        return reference.covariance(rows, 1 / (batch * size)) + stddev**2 * np.eye(DIM)
    if name == "gsgd_per_leaf":
        covariance = np.zeros((DIM, DIM))
        for block in (slice(0, 1), slice(1, DIM)):
            covariance[block, block] = reference.lifted_covariance(
                rows[:, block], 1 / (batch * size), stddev
            )
        return covariance
    return reference.lifted_covariance(rows, 1 / (batch * size), stddev)


@pytest.mark.release(reason="one more algorithm", but=["gd", "gsgd_per_leaf"])
@pytest.mark.slow(
    reason="repeats compiled rounds thousands of times for the moments of their noise"
)
@pytest.mark.parametrize("name", SCHEMES)
def test_a_round_has_the_mean_and_the_covariance_that_the_algorithm_states(name, key):
    x, config, n = records(), SCHEMES[name], 40_000
    drawn = steps(name, x, jax.random.split(key, n))
    rows = clipped(x)
    expected_mean = rows.mean(axis=1).mean(axis=0)
    expected = sum(covariance_of_one_client(name, config, r) for r in rows) / NUM_CLIENTS**2
    error = np.sqrt(np.diag(expected) / n)
    assert np.all(np.abs(drawn.mean(axis=0) - expected_mean) <= 5 * error)
    # An entry of a sample covariance of Gaussians has variance (S_ii S_jj + S_ij^2) / n at most
    # (less for subsets, whose tails are lighter).
    spread = np.sqrt((np.outer(np.diag(expected), np.diag(expected)) + expected**2) / n)
    assert np.all(np.abs(np.cov(drawn.T) - expected) <= 5 * spread)


def test_water_filling_adds_less_than_isotropic_noise_but_reaches_the_floor_everywhere():
    x = records()
    floor = (SCHEMES["gsgd"].noise_multiplier * 2 * CLIP / RECORDS) ** 2 / NUM_CLIENTS
    for rows in clipped(x):
        lifted = covariance_of_one_client("gsgd", SCHEMES["gsgd"], rows)
        assert np.linalg.eigvalsh(lifted)[0] >= floor * (1 - 1e-9)
        assert np.trace(lifted) < np.trace(
            covariance_of_one_client("gsgd_isotropic", SCHEMES["gsgd"], rows)
        )


@pytest.mark.slow(
    reason="repeats compiled rounds thousands of times for the moments of their noise"
)
@pytest.mark.parametrize("name", ["gd", "sgd"])
@pytest.mark.parametrize("size", [0.1, 1.0, 1e6])
def test_a_replaced_record_moves_the_sum_by_no_more_than_the_noise_is_scaled_to(name, size, key):
    divisor = RECORDS if name == "gd" else SCHEMES[name].batch_size
    x = records()
    other = x.copy()
    x[1] = [size, 0, 0, 0]
    other[1] = [-size, 0, 0, 0]
    keys = jax.random.split(key, 256)
    moved = NUM_CLIENTS * (
        steps(name, x, jax.random.clone(keys), True) - steps(name, other, keys, True)
    )
    furthest = np.linalg.norm(moved, axis=1).max()
    bound = 2 * CLIP / divisor
    assert furthest <= bound * (1 + 1e-5)
    assert furthest >= bound * min(1, size) * (1 - 1e-5)  # tight, once the record is drawn


@pytest.mark.slow(
    reason="repeats compiled rounds thousands of times for the moments of their noise"
)
@pytest.mark.parametrize("name", ["gd", "gsgd"])
def test_a_record_without_a_finite_gradient_counts_as_zero(name, key):
    x = records()
    x[2] = np.nan
    keys = jax.random.split(key, 256)
    got = steps(name, x, jax.random.clone(keys))
    x[2] = 0
    np.testing.assert_allclose(got, steps(name, x, keys), rtol=1e-5, atol=1e-6)


@pytest.mark.slow(
    reason="repeats compiled rounds thousands of times for the moments of their noise"
)
def test_without_records_there_is_only_noise(key):
    config = SCHEMES["gsgd"]
    data = ClientData({"x": jnp.ones((1, DIM))}, jnp.full((NUM_CLIENTS, RECORDS), -1, jnp.int32))
    algorithm = gsgd_dp.make(config, loss, num_units=1)
    state, info = jax.jit(algorithm.round)(
        algorithm.init(PARAMS), cohort(data, jnp.arange(NUM_CLIENTS)), key
    )
    assert np.isfinite(state.params["w"]).all() and np.abs(state.params["w"]).min() > 0
    assert float(info.loss) == 0 and float(info.clipped_fraction) == 0


@pytest.mark.slow(reason="compiles the noise of many records")
def test_many_records_get_the_same_noise_alone_and_side_by_side(key):
    # From 128 records on, each client looks for the few eigenvalues above its floor: one client has
    # some, one none.
    many = 130
    x = np.random.default_rng(0).normal(size=(2 * many, DIM)).astype(np.float32)
    x[many:] *= 1e-3
    table = jnp.arange(2 * many, dtype=jnp.int32).reshape(2, many)
    config = gsgd_dp.Config(
        num_parties=2, records_per_client=many, batch_size=8, l2_clip_norm=CLIP, noise_multiplier=5
    )
    sent = []
    for chunk_size in (1, 2):
        algorithm = gsgd_dp.make(
            config, loss, num_units=2 * many, performance=Performance(chunk_size=chunk_size)
        )
        everyone = cohort(ClientData({"x": jnp.asarray(x)}, table), jnp.arange(2))
        state, _ = jax.jit(algorithm.round)(algorithm.init(PARAMS), everyone, jax.random.clone(key))
        sent.append(np.asarray(state.params["w"]))
    np.testing.assert_allclose(*sent, rtol=1e-4, atol=1e-6)
    clipped_rows = x[:many] / np.maximum(1, np.linalg.norm(x[:many], axis=1, keepdims=True))
    values = np.linalg.eigvalsh(reference.covariance(clipped_rows, 1 / (8 * many)))
    floor = (5 * 2 * CLIP / many) ** 2 / 2
    assert values[0] > floor  # so the noise of the first client is lifted in all four directions


@pytest.mark.slow(
    reason="repeats compiled rounds thousands of times for the moments of their noise"
)
def test_an_event_costs_what_was_computed_apart():
    # 50 clients of 1,200 records, B = 32, C = 10, variance 0.001 per client, 100 rounds, delta
    # 1e-4; the orders that give these values are continuous, ours a grid.
    noise = math.sqrt(50 * 0.001) * 1200 / (2 * 10)
    numbers = {
        "num_parties": 50,
        "records_per_client": 1200,
        "batch_size": 32,
        "l2_clip_norm": 10.0,
    }
    lifted = gsgd_dp.event(gsgd_dp.Config(**numbers, noise_multiplier=noise)).repeat(100)
    assert 4.04387752123 <= accounting.epsilon(lifted, delta=1e-4) <= 4.04387752123 * 1.003
    exact = gd_dp.event(gd_dp.Config(**numbers, noise_multiplier=noise)).repeat(100)
    assert accounting.epsilon(exact, delta=1e-4, method="gdp") == pytest.approx(
        2.69270731752, rel=1e-9
    )
    isotropic = gsgd_dp.event(
        gsgd_dp.Config(**numbers, noise_multiplier=noise, noise="isotropic")
    ).repeat(100)
    assert accounting.epsilon(exact, delta=1e-4) <= accounting.epsilon(isotropic, delta=1e-4)
    assert accounting.epsilon(isotropic, delta=1e-4) <= accounting.epsilon(lifted, delta=1e-4)
    # A subset of everybody is everybody; a real subset costs less than its noise alone.
    whole = sgd_dp.Config(**{**numbers, "batch_size": 1200}, noise_multiplier=noise)
    assert sgd_dp.event(whole).repeat(100).mechanism != exact.mechanism
    assert accounting.epsilon(sgd_dp.event(whole).repeat(100), delta=1e-4) == pytest.approx(
        accounting.epsilon(exact, delta=1e-4), rel=1e-12
    )
    part = sgd_dp.event(sgd_dp.Config(**numbers, noise_multiplier=2.0))
    assert accounting.epsilon(part, delta=1e-4) < accounting.epsilon(
        gd_dp.event(gd_dp.Config(**numbers, noise_multiplier=2.0)), delta=1e-4
    )


@pytest.mark.parametrize("module", [gd_dp, sgd_dp])
def test_water_filling_without_gaussian_weights_is_refused(module):
    with pytest.raises(
        errors.NoGuaranteeError, match=r'noise="isotropic" with .* got noise="water_filling"'
    ):
        module.Config(noise="water_filling")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"batch_size": 2.5},
            r"batch_size to be a whole number up to records_per_client=6, got batch_size=2.5",
        ),
        ({"batch_size": 7}, "got batch_size=7"),
        ({"records_per_client": 0}, "records_per_client"),
        ({"noise": "loud"}, "noise"),
        ({"l2_clip_norm": float("nan")}, "l2_clip_norm"),
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"server_momentum": 1.0}, "server_momentum < 1"),
    ],
)
def test_bad_numbers_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        sgd_dp.Config(**{**COMMON, "batch_size": 2, **change})


def test_parameters_of_16_bits_get_no_water_filling(key):
    algorithm = gsgd_dp.make(SCHEMES["gsgd"], loss, num_units=18)
    state = algorithm.init({"w": jnp.zeros(DIM, jnp.bfloat16)})
    data = ClientData({"x": jnp.asarray(records(), jnp.bfloat16)}, clients(records()).indices)
    with pytest.raises(
        ValueError, match="Expected params in float32 or float64 for water filling, got bfloat16"
    ):
        algorithm.round(state, cohort(data, jnp.arange(NUM_CLIENTS)), key)


def test_a_round_of_other_clients_than_the_noise_is_sized_for_is_refused(key):
    algorithm = gd_dp.make(SCHEMES["gd"], loss, num_units=18)
    state = algorithm.init(PARAMS)
    data = clients(records())
    with pytest.raises(ValueError, match="num_parties=3 clients in the round, got 2"):
        algorithm.round(state, cohort(data, jnp.arange(2)), key)
    wide = data._replace(indices=jnp.zeros((NUM_CLIENTS, RECORDS + 1), jnp.int32))
    with pytest.raises(
        ValueError, match="at most records_per_client=6 records of a client, got room for 7"
    ):
        algorithm.round(state, cohort(wide, jnp.arange(NUM_CLIENTS)), key)
