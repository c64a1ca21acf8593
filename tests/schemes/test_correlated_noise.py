"""Noise that is correlated over rounds, in schemes: who is in which round, what one client moves of
all rounds together, and what whoever sees all models can tell.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import accounting
from fljax.accounting import correlated, events, mechanisms
from fljax.data.cohorts import ClientData, cohort
from fljax.schemes import dp_fedavg, dp_fedper, dp_fedsgd, dp_ftrl

N, DIM, ROUNDS = 6, 4, 8
STEP = {"server_learning_rate": 1.0, "server_momentum": 0.0, "l2_clip_norm": 0.5}
FTRL = dp_ftrl.Config(
    num_parties=N, min_separation=3, bands=3, rounds_per_start=ROUNDS, noise_multiplier=1.0, **STEP
)
BANDED = dp_fedavg.Config(
    correlation="banded",
    bands=2,
    banded_for=ROUNDS,
    sampling_prob=0.5,
    noise_multiplier=1.0,
    **STEP,
)
CONFIGS = {
    "ftrl_banded": (dp_ftrl, FTRL),
    "ftrl_wide": (dp_ftrl, dataclasses.replace(FTRL, bands=6)),
    "ftrl_tree": (dp_ftrl, dataclasses.replace(FTRL, correlation="tree")),
    "ftrl_buffered": (dp_ftrl, dataclasses.replace(FTRL, correlation="buffered", bands=2)),
    "fedavg": (dp_fedavg, BANDED),
    "fedsgd": (
        dp_fedsgd,
        dp_fedsgd.Config(
            privacy_unit="client",
            correlation="banded",
            bands=2,
            banded_for=ROUNDS,
            sampling_prob=0.5,
            noise_multiplier=1.0,
            **STEP,
        ),
    ),
}


def loss(params, example):
    """Its gradient is the example: a client with a long one sends the bound along it."""
    return jnp.vdot(params["w"], example["x"])


def strategy_of(scheme, config):
    if scheme is dp_ftrl:
        return dp_ftrl.strategy(config)
    return correlated.banded(ROUNDS, config.bands)


def program(scheme, config):
    """`(x [N, DIM], key) -> what rounds released, [ROUNDS, DIM]`, everybody there."""
    made = scheme.make(config, loss, num_units=N)

    @jax.jit
    def released(x, key):
        here = cohort(ClientData({"x": x}, jnp.arange(N, dtype=jnp.int32)[:, None]), jnp.arange(N))

        def one(state, _):
            after, info = made.round(state, here, key)
            return after, (state.params["w"] - after.params["w"], info.cohort_size)

        _, found = jax.lax.scan(one, made.init({"w": jnp.zeros(DIM)}), None, length=ROUNDS)
        return found

    return made, released


def divisor(config):
    if isinstance(config, dp_ftrl.Config):
        return N / config.min_separation
    return N * config.sampling_prob


def one_client(number):
    return jnp.zeros((N, DIM)).at[number, 0].set(100.0)


@pytest.mark.slow(reason="compiles the rounds of one more matrix", but=["fedavg"])
@pytest.mark.parametrize("name", CONFIGS)
def test_replayed_over_all_rounds_one_client_moves_c_times_them_by_what_the_event_says(name, key):
    """With equal keys noise is equal: what is left is the client's own, in all of its rounds."""
    scheme, config = CONFIGS[name]
    _, released = program(scheme, config)
    matrix = correlated.encoder(strategy_of(scheme, config))
    with jax.debug_key_reuse(False):
        without = np.asarray(released(jnp.zeros((N, DIM)), key)[0], np.float64)
        moved = [
            matrix @ (np.asarray(released(one_client(i), key)[0], np.float64) - without)
            for i in range(N)
        ]
    lengths = np.linalg.norm(np.reshape(moved, (N, -1)), axis=1) * divisor(config)
    moves = lengths.max() / config.l2_clip_norm
    count = scheme.SCHEME.uses(config, ROUNDS)
    if scheme is dp_ftrl:
        allowed = config.noise_multiplier / mechanisms.effective_noise(
            scheme.event(config).mechanism
        )
        assert count == 1
    else:
        column = correlated.encoder(strategy_of(scheme, config))[:, 0]
        allowed = math.sqrt(count) * np.linalg.norm(column)
    assert moves <= allowed * (1 + 1e-4)
    # It is attained: clients of the first turn are in all rounds that are counted. The last rounds'
    # columns of bands are cut.
    assert moves >= allowed * (0.9 if scheme is not dp_ftrl else 1 - 1e-4)
    # The control: a claim of one round less would be refuted.
    if count > 1:
        assert moves > math.sqrt(count - 1) * np.linalg.norm(column)


@pytest.mark.parametrize("name", ["ftrl_banded", "fedavg", "fedsgd"])
def test_clients_are_in_rounds_of_their_turn_alone(name, key):
    scheme, config = CONFIGS[name]
    made, released = program(scheme, config)
    length = 3 if scheme is dp_ftrl else 2
    with jax.debug_key_reuse(False):
        without = released(jnp.zeros((N, DIM)), key)[0]
        for client in range(N):
            change, sizes = released(one_client(client), key)
            joined = np.flatnonzero(np.abs(np.asarray(change - without))[:, 0] > 0.01)
            np.testing.assert_array_equal(joined % length, client % length)
            assert len(joined) == len(range(client % length, ROUNDS, length))
            np.testing.assert_array_equal(sizes, N // length)
    assert made.client_sampling_prob == 1.0


@pytest.mark.slow(reason="compiles rounds of more starts")
@pytest.mark.parametrize("correlation", ["banded", "tree"])
def test_clients_that_miss_turns_and_starts_that_cut_a_cycle_are_within_the_event(correlation, key):
    """Starts of eight rounds, turns of three, and who is away from a round comes no sooner."""
    config = dataclasses.replace(FTRL, correlation=correlation)
    made, rounds = dp_ftrl.make(config, loss, num_units=N), 20
    away = np.random.default_rng(0).random((rounds, N)) < 0.3
    ids = jnp.asarray(np.where(away, -1, np.arange(N)))
    table = jnp.arange(N, dtype=jnp.int32)[:, None]

    @jax.jit
    def released(x):
        def one(state, ids):
            after, _ = made.round(state, cohort(ClientData({"x": x}, table), ids), key)
            return after, state.params["w"] - after.params["w"]

        return jax.lax.scan(one, made.init({"w": jnp.zeros(DIM)}), ids)[1]

    matrix = correlated.encoder(dp_ftrl.strategy(config))
    allowed = 1 / mechanisms.effective_noise(dp_ftrl.event(config).mechanism)
    with jax.debug_key_reuse(False):
        without, lengths = np.asarray(released(jnp.zeros((N, DIM))), np.float64), []
        for client in range(N):
            moved = np.asarray(released(one_client(client)), np.float64) - without
            for start in range(0, rounds, ROUNDS):
                some = moved[start : start + ROUNDS] * divisor(config) / config.l2_clip_norm
                lengths.append(np.linalg.norm(matrix[: len(some), : len(some)] @ some))
    assert 0.8 * allowed <= max(lengths) <= allowed * (1 + 1e-4)


def test_examples_are_in_rounds_of_their_turn_alone(key):
    config = dataclasses.replace(CONFIGS["fedsgd"][1], privacy_unit="example", bands=2)
    made = dp_fedsgd.make(config, loss, num_units=N)
    rows = jnp.arange(N, dtype=jnp.int32).reshape(2, 3)
    step = jax.jit(made.round)

    def run(x, key):
        state, seen = made.init({"w": jnp.zeros(DIM)}), []
        for _ in range(4):
            state, _ = step(state, cohort(ClientData({"x": x}, rows), jnp.arange(2)), key)
            seen.append(state.params["w"])
        return np.diff(np.stack([np.zeros(DIM), *seen]), axis=0)

    with jax.debug_key_reuse(False):
        without = run(jnp.zeros((N, DIM)), key)
        for example in range(N):
            moved = np.abs(run(one_client(example), key) - without)[:, 0] > 0.01
            np.testing.assert_array_equal(np.flatnonzero(moved) % 2, example % 3 % 2)
            assert moved.sum() == 2


ATTACKS = 2000


def best_attack(scheme, config, key):
    """How many standard deviations apart the best score of all models is with and without client
    0. Where the noise of rounds is C^-1 z, C times what was seen is z and the client's own.
    """
    _, released = program(scheme, config)
    matrix = correlated.encoder(strategy_of(scheme, config))
    keys = jax.random.split(key, 2 * ATTACKS)
    many = jax.jit(jax.vmap(lambda x, k: released(x, k)[0], in_axes=(None, 0)))
    absent = np.asarray(many(jnp.zeros((N, DIM)), keys[:ATTACKS]), np.float64)[..., 0]
    present = np.asarray(many(one_client(0), keys[ATTACKS:]), np.float64)[..., 0]
    length = 3 if scheme is dp_ftrl else 2
    own = matrix @ (np.arange(ROUNDS) % length == 0)
    scores = [world @ matrix.T @ own for world in (absent, present)]
    noise = np.concatenate([scores[0], scores[1] - scores[1].mean()])
    return abs(scores[1].mean() - scores[0].mean()) / noise.std()


@pytest.mark.release(reason="one more noise", ids=["ftrl_tree", "fedavg"])
@pytest.mark.slow(reason="plays thousands of runs; replays of the same rounds are not")
@pytest.mark.parametrize("name", ["ftrl_banded", "ftrl_tree", "fedavg"])
def test_the_best_attack_on_all_models_is_as_good_as_the_event_says_and_no_better(name, key):
    scheme, config = CONFIGS[name]
    event = scheme.SCHEME.run_event(config, ROUNDS)
    declared = 1 / mechanisms.effective_noise(event.mechanism)
    # A standardised difference of two means of 2000 runs: five standard errors.
    wide = 5 * math.sqrt(2 / ATTACKS + declared**2 / (4 * ATTACKS)) + (
        0.0 if scheme is dp_ftrl else 0.1 * declared
    )
    assert abs(best_attack(scheme, config, key) - declared) < wide
    # The control: a scheme with half the noise that it claims is caught.
    half = dataclasses.replace(config, noise_multiplier=config.noise_multiplier / 2)
    assert best_attack(scheme, half, jax.random.fold_in(key, 1)) > declared + wide


def test_what_is_claimed_counts_starts_of_the_correlation_and_rounds_of_a_turn():
    assert [dp_ftrl.uses(FTRL, n) for n in (0, 1, 8, 9, 17)] == [0, 1, 1, 2, 3]
    assert [dp_fedavg.uses(BANDED, n) for n in (0, 1, 2, 3, 8)] == [0, 1, 1, 2, 4]
    plain = dataclasses.replace(BANDED, correlation="none")
    assert dp_fedavg.uses(plain, 7) == 7
    half = dataclasses.replace(BANDED, sampling_prob=0.25)
    assert dp_fedavg.event(half).mechanism == events.PoissonSampled(0.5, events.Gaussian(1.0))


def test_noise_for_a_run_counts_its_starts():
    noise = accounting.calibrate(
        lambda z: dp_ftrl.SCHEME.run_event(
            dataclasses.replace(FTRL, noise_multiplier=z), 2 * ROUNDS
        ),
        epsilon=2.0,
        delta=1e-3,
        method="gdp",
    )
    # By hand: two starts, each of three participations of columns whose norms are c's.
    column = np.array(dp_ftrl.strategy(FTRL).coefs)
    first = 3 * (column @ column) - column[2:] @ column[2:]
    exact = accounting.gaussian.epsilon_to_mu(2.0, 1e-3)
    assert noise == pytest.approx(math.sqrt(2 * first) / float(exact), rel=1e-5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: dataclasses.replace(BANDED, bands=3),
        lambda: dataclasses.replace(BANDED, bands=0),
        lambda: dataclasses.replace(BANDED, correlation="pink"),
        lambda: dataclasses.replace(BANDED, target_quantile=0.5),
        lambda: dp_fedper.Config(correlation="banded", sampling_prob=0.1),
        lambda: dataclasses.replace(FTRL, min_separation=0),
        lambda: dataclasses.replace(FTRL, correlation="pink"),
        lambda: dataclasses.replace(FTRL, rounds_per_start=0),
    ],
)
def test_settings_that_cannot_be_are_refused(make):
    with pytest.raises(ValueError, match="Expected"):
        make()
