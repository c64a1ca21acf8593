"""GSGD-DP attacked: one round many times on two neighbouring data sets, told apart by the
likelihood ratio.

The attacker knows all but one record, and the law of the sum in both worlds, by the K x K
definition in float64. A secure sum shows the sum alone; the server's step along it, with rate 1, is
what the attacker sees here.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats

from fljax import accounting
from fljax.accounting import gaussian
from fljax.data.cohorts import ClientData, cohort
from fljax.schemes.weighted import gsgd_dp
from fljax_kernels.spectral import reference

NUM_CLIENTS, RECORDS, DIM = 3, 6, 4
CONFIG = gsgd_dp.Config(
    num_parties=NUM_CLIENTS,
    records_per_client=RECORDS,
    batch_size=100.0,
    l2_clip_norm=1.0,
    noise_multiplier=0.9,
)
TRIALS, CONFIDENCE, DELTA = 80_000, 0.999, 0.02


def loss(params, example):
    """Its gradient is the example."""
    return jnp.dot(params["w"], example["x"])


def world(first, rest):
    """`[N, D, K]`, rows of length <= 1: client 0 has `first` and else `rest`, the others nothing
    along e1 and e2.
    """
    x = np.zeros((NUM_CLIENTS, RECORDS, DIM))
    x[:, :, 3] = 0.7
    x[0] = rest
    x[0, 0] = first
    return x


def sums(config, x, key):
    """The mean over clients, TRIALS times: `[TRIALS, K]`."""
    algorithm = gsgd_dp.make(config, loss, num_units=NUM_CLIENTS * RECORDS)
    table = np.arange(NUM_CLIENTS * RECORDS, dtype=np.int32).reshape(NUM_CLIENTS, RECORDS)
    data = ClientData({"x": jnp.asarray(x.reshape(-1, DIM), jnp.float32)}, jnp.asarray(table))
    everyone, state = cohort(data, jnp.arange(NUM_CLIENTS)), algorithm.init({"w": jnp.zeros(DIM)})

    @jax.jit
    def many(everyone, keys):
        one = lambda key: -algorithm.round(state, everyone, key)[0].params["w"]
        return jax.lax.map(one, keys, batch_size=1024)

    return np.asarray(many(everyone, jax.random.split(key, TRIALS)), np.float64)


def law(config, x):
    """Mean and covariance of the mean over clients, as the algorithm states them."""
    stddev, q = (
        config.noise_multiplier * 2 / RECORDS / np.sqrt(NUM_CLIENTS),
        1 / (config.batch_size * RECORDS),
    )
    lifted = [
        reference.lifted_covariance(g, q, stddev) if stddev else reference.covariance(g, q)
        for g in x
    ]
    covariance = sum(lifted) / NUM_CLIENTS**2
    return x.mean(axis=1).mean(axis=0), covariance


def statistic(drawn, first, second):
    """Log of the density under `first` over that under `second`; in directions where both are
    constant, nothing.
    """
    logs = [
        stats.multivariate_normal(*pair, allow_singular=True).logpdf(drawn)
        for pair in (first, second)
    ]
    return logs[0] - logs[1]


def rates(here, there):
    """(true, false) positive rates of the best threshold, bounded from below and above: half the
    trials choose.
    """
    half = TRIALS // 2

    def bounds(t, here, there):
        hits, alarms = (here > t).sum(), (there > t).sum()
        error = (1 - CONFIDENCE) / 2
        low = stats.beta.ppf(error, hits, half - hits + 1) if hits else 0.0
        return low, stats.beta.ppf(1 - error, alarms + 1, half - alarms) if alarms < half else 1.0

    def epsilon(pair):
        return np.log(max(pair[0] - DELTA, 1e-300) / pair[1])

    grid = np.quantile(there[:half], np.linspace(0.05, 0.999, 100))
    best = max(grid, key=lambda t: epsilon(bounds(t, here[:half], there[:half])))
    middle = np.median(np.concatenate([here[:half], there[:half]]))
    found = bounds(middle, here[half:], there[half:])
    return epsilon(bounds(best, here[half:], there[half:])), float(
        stats.norm.ppf(found[0]) - stats.norm.ppf(found[1])
    )


def audit(config, worlds, key):
    """Lower bounds with confidence on epsilon at DELTA, and on mu, should the two worlds be
    Gaussian DP.
    """
    laws = [law(config, x) for x in worlds]
    here, there = (
        statistic(sums(config, x, k), *laws)
        for x, k in zip(worlds, jax.random.split(key), strict=True)
    )
    return rates(here, there)


E1, E2 = np.eye(DIM)[:2]
ALONE = world(E1, 0.0), world(-E1, 0.0)  # nothing but the floor hides the record
CROWD = (
    world(E1, 0.95 * E1),
    world(E2, 0.95 * E1),
)  # variance along e1 above the floor, and it moves


@pytest.mark.release(reason="a quarter of a minute")
@pytest.mark.slow(reason="attacks thousands of rounds")
def test_what_the_attack_learns_of_a_lone_record_is_all_that_the_noise_allows(key):
    found, mu = audit(CONFIG, ALONE, key)
    # Opposite records bring the same covariance, so the two worlds are Gaussian DP with the mu of
    # isotropic noise.
    assert 0.92 / CONFIG.noise_multiplier <= mu <= 1 / CONFIG.noise_multiplier
    exact = float(gaussian.mu_to_epsilon(1 / CONFIG.noise_multiplier, DELTA))
    certified = accounting.epsilon(gsgd_dp.event(CONFIG), delta=DELTA)
    assert 0.6 * certified <= found <= exact <= certified <= 1.3 * exact


@pytest.mark.release(reason="the other order")
@pytest.mark.slow(reason="attacks thousands of rounds")
@pytest.mark.parametrize("order", [1, -1])
def test_a_record_that_changes_the_covariance_stays_within_the_bound(order, key):
    config, worlds = dataclasses.replace(CONFIG, batch_size=6.0), CROWD[::order]
    first, second = (law(config, x) for x in worlds)
    assert np.linalg.norm(first[1] - second[1]) > 0.05 * np.linalg.norm(first[1])
    # Epsilon of the pair, by integration over a million draws of its law in float64.
    drawn = np.random.default_rng(0).multivariate_normal(*first, size=1_000_000)
    ratio = statistic(drawn, first, second)
    exact = optimize.brentq(lambda e: np.mean(np.maximum(0, -np.expm1(e - ratio))) - DELTA, 0, 20)
    found, _ = audit(config, worlds, key)
    assert (
        0.7 * exact
        <= found
        <= 1.02 * exact
        <= accounting.epsilon(gsgd_dp.event(config), delta=DELTA)
    )


@pytest.mark.release(reason="one more fault", ids=["no lift"])
@pytest.mark.slow(reason="attacks thousands of rounds")
@pytest.mark.parametrize("broken", [0.45, 0.0], ids=["half the noise", "no lift"])
def test_the_attack_catches_a_scheme_that_adds_too_little(broken, key):
    found, mu = audit(dataclasses.replace(CONFIG, noise_multiplier=broken), ALONE, key)
    assert (
        found > accounting.epsilon(gsgd_dp.event(CONFIG), delta=DELTA)
        and mu > 1.5 / CONFIG.noise_multiplier
    )
