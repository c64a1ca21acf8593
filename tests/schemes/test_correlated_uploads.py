"""Noise that is correlated over rounds in uploads: what cancels in a sum, what a server with
colluders sees of all rounds, what the table of adversaries says, what a run keeps.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import accounting
from fljax.accounting import correlated, mechanisms
from fljax.accounting.shared_noise import adversaries
from fljax.accounting.shared_noise import exact as view
from fljax.attacks import rounds as attacks
from fljax.data.cohorts import ClientData, cohort
from fljax.schemes import lightdp
from fljax.schemes.central import round as central
from fljax.upload import pair_noise
from fljax_kernels import correlated as kernel

N, DIM, ROUNDS = 6, 4, 8
CONFIG = lightdp.Config(
    num_parties=N,
    max_colluders=2,
    straggler_law="fixed",
    max_stragglers=0,
    correlation="banded",
    bands=3,
    min_separation=3,
    rounds_per_start=ROUNDS,
    pair_variance_ratio=50.0,
    noise_multiplier=1.0,
    l2_clip_norm=0.5,
    server_learning_rate=1.0,
    server_momentum=0.0,
)
CONFIGS = {
    "banded": CONFIG,
    "wide": dataclasses.replace(CONFIG, bands=5),
    "tree": dataclasses.replace(CONFIG, correlation="tree"),
    "everybody": dataclasses.replace(
        CONFIG,
        correlation="buffered",
        bands=2,
        min_separation=1,
        neighboring_relation="REPLACE_SPECIAL",
    ),
    "sparse": dataclasses.replace(CONFIG, graph="k_regular", degree=3),
}


def noise_of_uploads(config, key, count):
    """Every client's noise in each round, `[count, N]`, as the scheme draws and correlates it."""
    own = lightdp.stddev(config)
    draw = pair_noise.cohort_noise(
        lightdp.edges(config),
        num_clients=N,
        own_stddev=own,
        pair_stddev=own * lightdp.variance_ratio(config) ** 0.5,
    )
    strategy = lightdp.strategy(config)

    def one(state, index):
        noise, state = kernel.correlate(strategy, draw(key, index, jnp.zeros(())), state)
        return state, noise

    return jax.lax.scan(one, kernel.init(strategy, jnp.zeros(N)), jnp.arange(count))[1]


def loss(params, example):
    return jnp.vdot(params["w"], example["x"])


@functools.cache
def program(config):
    made = lightdp.make(config, loss, num_units=N)

    @jax.jit
    def released(x, key):
        here = cohort(ClientData({"x": x}, jnp.arange(N, dtype=jnp.int32)[:, None]), jnp.arange(N))

        def one(state, _):
            after, info = made.round(state, here, key)
            return after, (state.params["w"] - after.params["w"], info.cohort_size)

        return jax.lax.scan(one, made.init({"w": jnp.zeros(DIM)}), None, length=ROUNDS)[1]

    return made, released


def one_client(number):
    return jnp.zeros((N, DIM)).at[number, 0].set(100.0)


def joint_covariance(config, colluders, count):
    """Of all honest uploads of `count` rounds, `[count H, count H]`, less what colluders know: from
    every source of noise, one by one.
    """
    matrix = np.linalg.inv(correlated.encoder(lightdp.strategy(config)))[:count, :count]
    own, ratio = lightdp.stddev(config), lightdp.variance_ratio(config)
    honest = [i for i in range(N) if i not in colluders]
    sources = [np.eye(N)[i] * own for i in honest]
    sources += [
        (np.eye(N)[i] - np.eye(N)[j]) * own * ratio**0.5
        for i, j in lightdp.edges(config)
        if i in honest and j in honest
    ]
    loads = np.kron(matrix, np.stack(sources, axis=1)[honest])
    return honest, loads @ loads.T


@pytest.mark.parametrize("name", CONFIGS)
def test_no_client_and_no_colluders_see_more_than_the_event_says(name):
    """Exactly, in float64: sets of colluders, all clients, all rounds of a turn and all signs."""
    config = CONFIGS[name]
    event = lightdp.event(config)
    declared = 1 / mechanisms.effective_noise(event.mechanism)
    move = central.sensitivity(config)
    worst = 0.0
    for colluders in ((0, 1), (2, 5), (4,), ()):
        honest, covariance = joint_covariance(config, colluders, ROUNDS)
        precision = np.linalg.inv(covariance)
        for place, client in enumerate(honest):
            own = np.arange(client % config.min_separation, ROUNDS, config.min_separation)
            at = own * len(honest) + place
            part = precision[np.ix_(at, at)]
            signs = np.stack(np.meshgrid(*[[-1.0, 0.0, 1.0]] * len(own)), -1).reshape(-1, len(own))
            worst = max(worst, move * np.sqrt(np.einsum("si,ij,sj->s", signs, part, signs).max()))
    assert worst <= declared * (1 + 1e-9)
    # Attained; a sparse graph's bound leaves longer ways out, and trees meet no round twice.
    assert worst >= declared * (0.8 if name in ("sparse", "wide", "tree") else 1 - 1e-9)
    # The control: independent rounds would be claimed for less than this one gives away.
    if name == "banded":
        independent = dataclasses.replace(config, bands=1)
        assert worst > 1.1 / mechanisms.effective_noise(lightdp.event(independent).mechanism)


def test_pairs_noise_cancels_in_each_rounds_sum_and_what_is_left_is_correlated(key):
    with jax.debug_key_reuse(False):
        noise = np.asarray(noise_of_uploads(CONFIG, key, ROUNDS), np.float64)
        alone = dataclasses.replace(CONFIG, pair_variance_ratio=0.0)
        own = np.asarray(noise_of_uploads(alone, key, ROUNDS), np.float64)
    own *= lightdp.stddev(CONFIG) / lightdp.stddev(alone)
    assert np.abs(noise).std() > 3 * np.abs(own).std()
    np.testing.assert_allclose(noise.sum(axis=1), own.sum(axis=1), atol=1e-4 * noise.std())


@pytest.mark.slow(reason="draws thousands of runs of one more matrix", ids=["banded"])
@pytest.mark.parametrize("name", ["banded", "everybody"])
def test_c_times_the_uploads_has_independent_rounds_of_the_pairs_covariance(name, key):
    config = CONFIGS[name]
    keys = jax.random.split(key, 4000)
    many = jax.jit(jax.vmap(lambda k: noise_of_uploads(config, k, ROUNDS)))
    drawn = np.asarray(many(keys), np.float64)
    matrix = correlated.encoder(lightdp.strategy(config))
    flat = np.einsum("st,ktn->ksn", matrix, drawn).reshape(len(drawn), -1)
    own = lightdp.stddev(config)
    graph = view.pair_graph(
        lightdp.edges(config),
        num_clients=N,
        own_variance=own**2,
        pair_variance=own**2 * lightdp.variance_ratio(config),
    )
    wanted = np.kron(np.eye(ROUNDS), np.asarray(view.covariance(graph)))
    # A sample covariance of 4000 draws: six standard errors of the largest entry.
    limit = 6 * wanted.max() * np.sqrt(2 / len(drawn))
    np.testing.assert_allclose(flat.T @ flat / len(drawn), wanted, atol=limit)


@pytest.mark.slow(reason="compiles the rounds of one more matrix", but=["banded"])
@pytest.mark.parametrize("name", ["banded", "tree", "everybody"])
def test_replayed_over_all_rounds_a_client_moves_c_times_them_by_what_the_event_says(name, key):
    config = CONFIGS[name]
    _, released = program(config)
    matrix = correlated.encoder(lightdp.strategy(config))
    with jax.debug_key_reuse(False):
        without, sizes = released(jnp.zeros((N, DIM)), key)
        # What a round releases is the mean of those whose turn it is.
        counts = np.asarray(sizes, np.float64)[:, None]
        moved = [
            matrix @ ((np.asarray(released(one_client(i), key)[0] - without, np.float64)) * counts)
            for i in range(N)
        ]
    np.testing.assert_array_equal(sizes, N // config.min_separation)
    lengths = np.linalg.norm(np.reshape(moved, (N, -1)), axis=1)
    # One of the two neighbours' data are none, as under REPLACE_SPECIAL.
    one = dataclasses.replace(config, neighboring_relation="REPLACE_SPECIAL")
    allowed = 0.5 / mechanisms.effective_noise(lightdp.event(one).mechanism)
    assert lengths.max() <= allowed * (1 + 1e-3)
    assert lengths.max() >= allowed * (0.8 if name == "tree" else 1 - 1e-3)
    # The control: data in a round of another's turn would be seen.
    if config.min_separation > 1:
        twice = dataclasses.replace(one, min_separation=1)
        assert np.linalg.norm(matrix.sum(axis=1)) * 0.5 > allowed
        assert mechanisms.effective_noise(lightdp.event(twice).mechanism) < 0.5 / lengths.max()


@pytest.mark.slow(reason="plays thousands of runs; a replay of the same rounds is not")
def test_the_game_over_many_rounds_is_won_as_often_as_the_event_says_and_half_the_noise_is_seen(
    key,
):
    config = dataclasses.replace(CONFIG, noise_multiplier=2.0)
    declared = 1 / mechanisms.effective_noise(lightdp.event(config).mechanism)
    # Restarts count: two starts are sqrt(2) of one.
    for count, wanted in ((ROUNDS, declared), (2 * ROUNDS, 2**0.5 * declared)):
        game = attacks.uploads(lightdp.SCHEME, config, num_rounds=count)
        present, absent = attacks.play(game, jax.random.fold_in(key, count), 4000)
        apart = abs(np.mean(present) - np.mean(absent)) / np.std(absent)
        # Five standard errors of a standardised difference of two means.
        wide = 5 * np.sqrt(2 / 4000 + wanted**2 / 8000)
        assert abs(apart - wanted) < wide, (count, apart, wanted)
    half = dataclasses.replace(config, noise_multiplier=1.0)
    game = attacks.uploads(lightdp.SCHEME, half, num_rounds=ROUNDS)
    present, absent = attacks.play(game, jax.random.fold_in(key, 99), 4000)
    assert abs(np.mean(present) - np.mean(absent)) / np.std(absent) > declared + wide


def test_the_table_of_adversaries_bounds_what_they_see_of_rounds_in_which_uploads_were_lost(key):
    config = dataclasses.replace(
        CONFIG, straggler_law="uniform", max_stragglers=3, late_prob=0.5, max_colluders=1
    )
    found = lightdp.SCHEME.views(config, key, ROUNDS)
    table = {row.who: row.mu for row in found.adversaries}
    seen = found.reached > adversaries.NEVER
    rounds, clients = np.indices(seen.shape)
    data = seen & (rounds % 3 == clients % 3)
    for colluders, who in (((), "the server alone"), ((4,), "the server and any 1 clients")):
        honest, covariance = joint_covariance(config, colluders, ROUNDS)
        arrived = np.flatnonzero(seen[:, honest].ravel())
        precision = np.linalg.inv(covariance[np.ix_(arrived, arrived)])
        for client in honest:
            at = np.zeros(seen.shape)
            at[:, client] = data[:, client]
            moved = central.sensitivity(config) * at[:, honest].ravel()[arrived]
            truth = np.sqrt(moved @ precision @ moved)
            assert truth <= table[who][client] * (1 + 1e-9)
    promised = 1 / mechanisms.effective_noise(lightdp.event(config).mechanism)
    for row in found.adversaries:
        assert not row.promised or np.all(row.mu <= promised * (1 + 1e-9))
    # Nobody straggles: as many as do not collude hide a client in the averages.
    whole = dataclasses.replace(config, max_stragglers=0, late_prob=0.0, straggler_law="fixed")
    table = {r.who: r.mu for r in lightdp.SCHEME.views(whole, key, ROUNDS).adversaries}
    own = central.sensitivity(whole) / lightdp.stddev(whole) / np.sqrt(N - 1)
    column = np.linalg.norm(lightdp.strategy(whole).coefs)
    np.testing.assert_allclose(
        table["any 1 clients without the server"][0], own * column * np.sqrt(3), rtol=0.1
    )


@pytest.mark.optimized(reason="compares bits", only=True)
def test_a_run_that_goes_on_from_its_state_has_the_same_bits(key):
    made, _ = program(CONFIG)
    data = ClientData({"x": jnp.ones((N, DIM))}, jnp.arange(N, dtype=jnp.int32)[:, None])
    step = jax.jit(made.round)

    def run(state, count):
        for _ in range(count):
            state, _ = step(state, cohort(data, jnp.arange(N)), key)
        return jax.device_get(state)

    with jax.debug_key_reuse(False):
        whole = run(made.init({"w": jnp.zeros(DIM)}), 5)
        again = run(run(made.init({"w": jnp.zeros(DIM)}), 2), 3)
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(one, other)
    assert whole.clipping.buffers["w"].shape == (2, N, DIM) and int(whole.clipping.step) == 5


def test_noise_moves_on_in_rounds_without_data(key):
    """Nobody whose turn it is answers: the model stays, others' noise was seen and goes on."""
    made, _ = program(CONFIG)
    data = ClientData({"x": jnp.ones((N, DIM))}, jnp.arange(N, dtype=jnp.int32)[:, None])
    before = made.init({"w": jnp.zeros(DIM)})
    after, info = jax.jit(made.round)(before, cohort(data, jnp.array([1, 2, 4, 5])), key)
    assert bool(info.lost) and not np.any(after.params["w"])
    assert int(after.clipping.step) == 1 and np.any(after.clipping.buffers["w"])


def test_what_is_claimed_counts_starts_and_equal_epsilons_take_more_noise_a_round():
    scheme = lightdp.SCHEME
    assert [lightdp.uses(CONFIG, n) for n in (0, 1, 8, 9)] == [0, 1, 1, 2]
    plain = dataclasses.replace(CONFIG, correlation="none", min_separation=1)
    assert lightdp.uses(plain, 9) == 9
    column = np.linalg.norm(lightdp.strategy(CONFIG).coefs)
    noise = accounting.calibrate(
        lambda z: scheme.run_event(dataclasses.replace(CONFIG, noise_multiplier=z), ROUNDS),
        epsilon=2.0,
        delta=1e-3,
        method="gdp",
    )
    exact = float(accounting.gaussian.epsilon_to_mu(2.0, 1e-3))
    assert noise <= column * np.sqrt(3) / exact * (1 + 1e-6)
    failing = dataclasses.replace(
        CONFIG, graph="k_regular", degree=3, failure_prob=1e-4, max_colluders=1
    )
    assert isinstance(lightdp.event(failing).mechanism, accounting.events.Composed)


@pytest.mark.parametrize(
    "changes",
    [
        {"correlation": "none"},
        {"correlation": "pink"},
        {"min_separation": 0},
        {"bands": 0},
        {"rounds_per_start": 0},
    ],
)
def test_settings_that_cannot_be_are_refused(changes):
    with pytest.raises(ValueError, match="Expected"):
        dataclasses.replace(CONFIG, **changes)


def test_rounds_of_another_shape_move_nothing_that_can_be_told():
    with pytest.raises(ValueError, match="Expected taken of shape"):
        correlated.moved(correlated.banded(4, 2), np.ones(4, bool))
