"""DP-FedAvg and DP-FedSGD: what a round computes, that it hides one unit, and that its noise is
what its event says.
"""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fljax import schemes
from fljax.accounting import events
from fljax.data.cohorts import ClientData, cohort
from fljax.schemes.central import dp_fedavg, dp_fedsgd
from fljax.server.rounds import Performance

NUM_CLIENTS, DIM = 6, 3
SIZES = (5, 1, 4, 2, 5, 3)
PARAMS = {"w": jnp.array([0.5, -1.0, 2.0])}
FEDAVG = dp_fedavg.Config(
    sampling_prob=0.5,
    l2_clip_norm=0.7,
    noise_multiplier=0.0,
    local_learning_rate=0.1,
    local_batch_size=8,
    num_local_epochs=2,
    server_learning_rate=0.5,
    server_momentum=0.0,
)
FEDSGD_CLIENT = dp_fedsgd.Config(
    privacy_unit="client",
    sampling_prob=0.5,
    l2_clip_norm=0.7,
    noise_multiplier=0.0,
    server_learning_rate=0.5,
    server_momentum=0.0,
)
FEDSGD_EXAMPLE = dataclasses.replace(FEDSGD_CLIENT, privacy_unit="example", sampling_prob=1.0)
ALL = [(dp_fedavg, FEDAVG), (dp_fedsgd, FEDSGD_CLIENT), (dp_fedsgd, FEDSGD_EXAMPLE)]
IDS = ["dp_fedavg", "dp_fedsgd-client", "dp_fedsgd-example"]


def loss(params, example):
    return 0.5 * jnp.square(jnp.dot(params["w"], example["x"]) - example["y"])


@pytest.fixture
def clients():
    rng = np.random.default_rng(7)
    table = np.full((NUM_CLIENTS, max(SIZES)), -1, np.int32)
    table[np.arange(max(SIZES)) < np.array(SIZES)[:, None]] = np.arange(sum(SIZES))
    x = rng.normal(size=(sum(SIZES), DIM)).astype(np.float32)
    y = rng.normal(size=sum(SIZES)).astype(np.float32)
    return ClientData({"x": jnp.asarray(x), "y": jnp.asarray(y)}, jnp.asarray(table))


def gradient(w, x, y):
    return (x @ w - y)[..., None] * x


def clipped(v, bound):
    norm = np.linalg.norm(v)
    return v * min(1.0, bound / norm) if norm > 0 else v


def expected_sum_float64(config, data, ids):
    """The clipped sum by loops over clients or records, in float64, from the algorithms'
    statements.
    """
    w = np.asarray(PARAMS["w"], np.float64)
    total = np.zeros(DIM)
    for client in ids:
        rows = np.asarray(data.indices)[client]
        rows = rows[rows >= 0]
        x, y = (np.asarray(data.examples[name], np.float64)[rows] for name in ("x", "y"))
        if isinstance(config, dp_fedavg.Config):
            local = w.copy()
            for _ in range(config.num_local_epochs):
                local -= config.local_learning_rate * gradient(local, x, y).mean(axis=0)
            total += clipped(w - local, config.l2_clip_norm)
        elif config.privacy_unit == "client":
            total += clipped(gradient(w, x, y).mean(axis=0), config.l2_clip_norm)
        else:
            total += sum(clipped(g, config.l2_clip_norm) for g in gradient(w, x, y))
    return total


@functools.cache  # one compilation a configuration
def compiled(scheme, config, performance=Performance(microbatch_size=2)):  # several a round
    algorithm = scheme.make(config, loss, num_units=10, performance=performance)
    return algorithm, jax.jit(algorithm.round)


def released_sum(scheme, config, data, ids, key, **kwargs):
    """What the server adds to its model in one round, scaled back to the noisy sum of the units'
    contributions.
    """
    algorithm, round_fun = compiled(scheme, config, **kwargs)
    members = cohort(data, jnp.asarray(ids, jnp.int32))
    state, info = round_fun(algorithm.init(PARAMS), members, jax.random.clone(key))
    step = np.asarray(PARAMS["w"], np.float64) - np.asarray(state.params["w"], np.float64)
    return step / config.server_learning_rate * config.sampling_prob * 10, info


@pytest.mark.slow(reason="compiles rounds of one more scheme or shape", ids=["dp_fedavg"])
@pytest.mark.parametrize(("scheme", "config"), ALL, ids=IDS)
def test_a_round_is_the_clipped_sum_over_a_public_constant(scheme, config, clients, key):
    ids = [4, 0, 2, -1, 3]
    actual, info = released_sum(scheme, config, clients, ids, key)
    # A step of order 0.1 read back from float32 parameters of order 2, times 10 / 0.5: 2e-7 * 20.
    np.testing.assert_allclose(
        actual, expected_sum_float64(config, clients, [4, 0, 2, 3]), rtol=1e-5, atol=2e-5
    )
    assert int(info.cohort_size) == 4
    assert 0 < float(info.clipped_fraction) <= 1


@pytest.mark.slow(reason="compiles rounds of one more shape")
@pytest.mark.parametrize("chunk_size", [1, 4, 50])
def test_the_chunk_size_changes_only_float_order(chunk_size, clients, key):
    config = dataclasses.replace(FEDAVG, local_batch_size=2)
    ids = [4, 0, -1, 2, 3, 1]
    one = released_sum(dp_fedavg, config, clients, ids, key, performance=Performance(chunk_size=6))[
        0
    ]
    other = released_sum(
        dp_fedavg, config, clients, ids, key, performance=Performance(chunk_size=chunk_size)
    )[0]
    np.testing.assert_allclose(one, other, atol=2e-5)


@pytest.mark.slow(
    reason="compiles rounds of one more scheme or shape", ids=["dp_fedavg", "dp_fedsgd-client"]
)
@pytest.mark.parametrize(("scheme", "config"), ALL, ids=IDS)
def test_removing_one_unit_moves_the_released_sum_by_at_most_the_clip_norm(
    scheme, config, clients, key
):
    # Values 100 times larger: without the clip the sum would move far more.
    data = clients._replace(examples=jax.tree.map(lambda leaf: 100.0 * leaf, clients.examples))
    everyone = list(range(NUM_CLIENTS))
    with_all = released_sum(scheme, config, data, everyone, key)[0]
    free = released_sum(scheme, scheme.non_private(config), data, everyone, key)[0]
    measured, control = [], []
    for client in everyone:
        if getattr(config, "privacy_unit", "client") == "client":
            neighbour, ids = data, [i if i != client else -1 for i in everyone]
        else:
            neighbour, ids = data._replace(indices=data.indices.at[client, 0].set(-1)), everyone
        without = released_sum(scheme, config, neighbour, ids, key)[0]
        measured.append(np.linalg.norm(with_all - without))
        control.append(
            np.linalg.norm(
                free - released_sum(scheme, scheme.non_private(config), neighbour, ids, key)[0]
            )
        )
    assert (
        max(measured) <= config.l2_clip_norm + 5e-5
    )  # reading the sum back costs the rounding of the parameters
    assert max(measured) >= 0.99 * config.l2_clip_norm  # the bound is attained: the check can fail
    assert max(control) > 10 * config.l2_clip_norm


def distinguishing_mu(config, clients, true_multiplier):
    """How far apart, in standard deviations, 4,000 runs of each world lie for one who knows all
    clients but one.
    """
    algorithm = dp_fedavg.make(
        dataclasses.replace(config, noise_multiplier=true_multiplier), loss, num_units=10
    )
    state = algorithm.init(PARAMS)
    worlds = [jnp.array([0, 1, 2], jnp.int32), jnp.array([-1, 1, 2], jnp.int32)]
    scores = []
    clean = dp_fedavg.make(dataclasses.replace(config, noise_multiplier=0.0), loss, num_units=10)
    ends = [
        clean.round(state, cohort(clients, ids), jax.random.key(0))[0].params["w"] for ids in worlds
    ]
    direction = (ends[0] - ends[1]) / jnp.linalg.norm(ends[0] - ends[1])
    many_rounds = jax.jit(
        jax.vmap(lambda k, members: algorithm.round(state, members, k)[0].params["w"], (0, None))
    )
    for world, ids in enumerate(worlds):
        keys = jax.vmap(jax.random.key)(jnp.arange(4000) + 10_000 * world)
        ends = many_rounds(keys, cohort(clients, ids))
        scores.append(np.asarray(ends, np.float64) @ np.asarray(direction, np.float64))
    pooled = np.sqrt((scores[0].var(ddof=1) + scores[1].var(ddof=1)) / 2)
    return (scores[0].mean() - scores[1].mean()) / pooled


@pytest.mark.slow(reason="plays thousands of rounds")
def test_an_audit_finds_the_certified_separation_and_no_more(clients):
    # Full participation: one round is exactly mu-GDP with mu = 1 / noise_multiplier.
    config = dataclasses.replace(
        FEDAVG, sampling_prob=1.0, l2_clip_norm=0.05, noise_multiplier=2.0, num_local_epochs=1
    )
    mu = 1 / config.noise_multiplier
    # Standard error of a difference of two means of 4,000, in pooled deviations: sqrt(2 / 4000) =
    # 0.0224.
    assert abs(distinguishing_mu(config, clients, 2.0) - mu) <= 5 * 0.0224
    # Positive control: half the noise that is claimed is found out.
    assert distinguishing_mu(config, clients, 1.0) > mu + 5 * 0.0224


@pytest.mark.slow(
    reason="compiles rounds of one more scheme or shape", ids=["dp_fedavg", "dp_fedsgd-client"]
)
@pytest.mark.parametrize(("scheme", "config"), ALL, ids=IDS)
def test_the_noise_has_the_stddev_of_the_event(scheme, config, clients, key):
    noisy = dataclasses.replace(config, noise_multiplier=3.0)
    params = {"w": jnp.zeros((40, 50))}

    def flat_loss(p, example):
        return jnp.sum(p["w"]) * example["y"]

    ends = []
    for c in (noisy, config):
        algorithm = scheme.make(c, flat_loss, num_units=10)
        state, _ = jax.jit(algorithm.round)(
            algorithm.init(params), cohort(clients, jnp.arange(3)), jax.random.clone(key)
        )
        ends.append(np.asarray(state.params["w"], np.float64))
    noise = (ends[1] - ends[0]) / config.server_learning_rate * config.sampling_prob * 10
    declared = scheme.event(noisy).mechanism.event.noise_multiplier * config.l2_clip_norm
    # 2,000 draws: the sample deviation has relative standard error 1 / sqrt(4000) = 0.0158.
    assert abs(noise.std() / declared - 1) <= 5 * 0.0158
    assert abs(noise.mean()) <= 5 * declared / np.sqrt(2000)


@pytest.mark.slow(reason="compiles rounds of one more scheme or shape", ids=["3"])
@pytest.mark.parametrize("chunk_size", [1, 3])
def test_a_client_that_overflows_moves_the_sum_by_no_more_than_the_clip_norm(
    chunk_size, clients, key
):
    # Finite data, but the second step of such a client overflows, while others are still training.
    data = clients._replace(
        examples={**clients.examples, "x": clients.examples["x"].at[5].set(1e18)}
    )
    config = dataclasses.replace(FEDAVG, local_batch_size=1)
    everyone = list(range(NUM_CLIENTS))
    with_all = released_sum(
        dp_fedavg, config, data, everyone, key, performance=Performance(chunk_size=chunk_size)
    )[0]
    for client in everyone:
        rest = [i if i != client else -1 for i in everyone]
        without = released_sum(
            dp_fedavg, config, data, rest, key, performance=Performance(chunk_size=chunk_size)
        )[0]
        assert np.linalg.norm(with_all - without) <= config.l2_clip_norm + 5e-5


@pytest.mark.slow(reason="compiles rounds of one more scheme or shape")
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_parameters_of_16_bits_take_a_step_of_the_float32_mean(dtype, clients, key):
    params = jax.tree.map(lambda leaf: leaf.astype(dtype), PARAMS)

    def half_loss(p, example):
        return loss(jax.tree.map(lambda leaf: leaf.astype(jnp.float32), p), example)

    # A sum near 1e6 is beyond float16's range, its mean is not.
    config = dataclasses.replace(FEDAVG, l2_clip_norm=1e6, noise_multiplier=1.0, sampling_prob=1.0)
    algorithm = dp_fedavg.make(config, half_loss, num_units=10**6)
    state, _ = jax.jit(algorithm.round)(algorithm.init(params), cohort(clients, jnp.arange(6)), key)
    assert state.params["w"].dtype == dtype
    assert np.isfinite(np.asarray(state.params["w"], np.float32)).all()


def test_examples_are_sampled_by_their_own_coins(key):
    # One-hot records, linear loss: the gradient of a record is its own unit vector, so the sum
    # shows who was drawn.
    num = 400
    data = ClientData({"x": jnp.eye(num)}, jnp.arange(num, dtype=jnp.int32).reshape(40, 10))
    config = dataclasses.replace(FEDSGD_EXAMPLE, sampling_prob=0.3, l2_clip_norm=2.0)
    algorithm = dp_fedsgd.make(config, lambda p, e: jnp.dot(p["w"], e["x"]), num_units=num)
    state = algorithm.init({"w": jnp.zeros(num)})
    everyone = cohort(data, jnp.arange(40))
    round_fun = jax.jit(algorithm.round)
    draws = []
    for _ in range(25):
        before = state.params["w"]
        state, info = round_fun(state, everyone, jax.random.clone(key))
        drawn = (
            np.asarray(before - state.params["w"])
            / config.server_learning_rate
            * config.sampling_prob
            * num
        )
        np.testing.assert_allclose(drawn, np.round(drawn), atol=1e-3)
        draws.append(np.round(drawn))
    assert algorithm.client_sampling_prob == 1.0
    assert int(info.cohort_size) == 40
    draws = np.stack(draws)
    assert set(np.unique(draws)) <= {0.0, 1.0}
    # 10,000 coins: five standard errors of the mean are 5 * sqrt(0.21 / 10000) = 0.023; neighbours
    # are uncorrelated.
    assert abs(draws.mean() - 0.3) <= 0.023
    pairs = (draws[:, :-1] - 0.3) * (draws[:, 1:] - 0.3)
    assert abs(pairs.mean()) <= 5 * 0.21 / np.sqrt(pairs.size)


def test_a_client_that_is_not_finite_adds_zero(clients, key):
    broken = clients._replace(
        examples={**clients.examples, "y": clients.examples["y"].at[0].set(jnp.inf)}
    )
    config = FEDAVG
    actual, info = released_sum(dp_fedavg, config, broken, [0, 1, 2], key)
    np.testing.assert_allclose(
        actual, expected_sum_float64(config, clients, [1, 2]), rtol=1e-5, atol=2e-5
    )
    assert np.isfinite(float(info.loss))


@pytest.mark.slow(reason="compiles rounds of one more scheme or shape", ids=["dp_fedavg"])
@pytest.mark.parametrize(("scheme", "config"), ALL, ids=IDS)
def test_one_compilation_serves_cohorts_of_every_size(scheme, config, clients, key):
    algorithm = scheme.make(dataclasses.replace(config, noise_multiplier=1.0), loss, num_units=10)
    chex.clear_trace_counter()  # it goes by the name of a function
    round_fun = jax.jit(chex.assert_max_traces(algorithm.round, n=1))
    state = algorithm.init(PARAMS)
    for ids in ([0, 1, 2, 3], [5, -1, -1, -1], [-1, 4, -1, 2], [-1, -1, -1, -1]):
        state, info = round_fun(
            state, cohort(clients, jnp.array(ids, jnp.int32)), jax.random.clone(key)
        )
    assert round_fun._cache_size() == 1
    assert (
        int(info.cohort_size) == 0
    )  # nobody came: the round still releases noise, and nothing divides by zero
    assert np.isfinite(np.asarray(state.params["w"])).all()


@pytest.mark.slow(reason="compiles rounds of one more scheme or shape")
def test_any_optax_optimizer_serves_as_the_servers(clients, key):
    algorithm = dp_fedavg.make(FEDAVG, loss, num_units=10, server_optimizer=optax.adam(0.1))
    with jax.numpy_dtype_promotion("standard"):  # optax's Adam mixes float32 and int32
        state, _ = jax.jit(algorithm.round)(
            algorithm.init(PARAMS), cohort(clients, jnp.arange(3)), key
        )
    # Adam's first step is the learning rate in every coordinate that has a gradient.
    np.testing.assert_allclose(np.abs(state.params["w"] - PARAMS["w"]), 0.1, rtol=1e-3)


@pytest.mark.parametrize("name", ["dp_fedavg", "dp_fedsgd"])
def test_an_event_names_unit_relation_sampling_and_noise(name):
    scheme = schemes.get(name)
    event = scheme.event(scheme.Config(sampling_prob=0.25, noise_multiplier=1.5))
    assert event.mechanism == events.PoissonSampled(0.25, events.Gaussian(1.5))
    assert event.neighboring_relation == "ADD_OR_REMOVE_ONE"
    assert event.privacy_unit in {"client", "example"}


@pytest.mark.slow(reason="compiles rounds of one more scheme or shape", ids=["dp_fedavg"])
@pytest.mark.parametrize(("scheme", "config"), ALL, ids=IDS)
def test_bad_input_is_named(scheme, config, clients, key):
    for name, value in [
        ("l2_clip_norm", -1.0),
        ("l2_clip_norm", float("nan")),
        ("sampling_prob", 0.0),
        ("noise_multiplier", -0.1),
    ]:
        with pytest.raises(ValueError, match=f"{name}={value}"):
            dataclasses.replace(config, **{name: value})
    uncalibrated = dataclasses.replace(config, noise_multiplier=None)
    with pytest.raises(ValueError, match="noise_multiplier=None"):
        scheme.make(uncalibrated, loss, num_units=10)
    with pytest.raises(ValueError, match="noise_multiplier=None"):
        scheme.event(uncalibrated)
    with pytest.raises(ValueError, match="num_units=0"):
        scheme.make(config, loss, num_units=0)
    algorithm = scheme.make(config, loss, num_units=10)
    state = algorithm.init(PARAMS)
    for chunk_size in (0, -1):
        with pytest.raises(ValueError, match=f"chunk_size={chunk_size}"):
            scheme.make(config, loss, num_units=10, performance=Performance(chunk_size=chunk_size))
    with pytest.raises(ValueError, match="threefry"):
        algorithm.round(state, cohort(clients, jnp.arange(2)), jax.random.key(0, impl="rbg"))
    with pytest.raises(ValueError, match="typed PRNG key"):
        algorithm.round(state, cohort(clients, jnp.arange(2)), jnp.zeros(2, jnp.uint32))
    with pytest.raises(ValueError, match="C >= 1"):
        algorithm.round(state, cohort(clients, jnp.zeros(0, jnp.int32)), key)
    with pytest.raises(ValueError, match="indices of shape"):
        algorithm.round(
            state,
            cohort(clients, jnp.arange(2))._replace(indices=jnp.zeros((3, 2), jnp.int32)),
            key,
        )


def test_an_unknown_scheme_is_named():
    with pytest.raises(ValueError, match="scheme='dp_magic'"):
        schemes.get("dp_magic")


@pytest.mark.slow(reason="compiles rounds of one more optimizer", ids=["yogi"])
@pytest.mark.parametrize("kind", ["adam", "yogi"])
def test_adaptive_servers_follow_their_formulas(kind, clients, key):
    """Two rounds without noise by Reddi et al.'s recursions in float64, with optax's corrections of
    the start.
    """
    config = dataclasses.replace(
        FEDAVG, sampling_prob=1.0, server_optimizer=kind, server_momentum=0.8
    )
    algorithm = dp_fedavg.make(config, loss, num_units=NUM_CLIENTS)
    plain = dp_fedavg.make(
        dataclasses.replace(FEDAVG, sampling_prob=1.0, server_learning_rate=1.0),
        loss,
        num_units=NUM_CLIENTS,
    )
    everyone = cohort(clients, jnp.arange(NUM_CLIENTS))
    state = algorithm.init(PARAMS)
    step, average = jax.jit(algorithm.round), jax.jit(plain.round)
    m, v = (
        np.full(DIM, 1e-6 if kind == "yogi" else 0.0) for _ in range(2)
    )  # where optax starts both moments
    for t in (1, 2):
        before = np.asarray(state.params["w"], np.float64)
        # One round of plain averaging from the same parameters and round number moves by the mean
        # update.
        at = plain.init(state.params)._replace(round=state.round)
        mean = before - np.asarray(average(at, everyone, key)[0].params["w"], np.float64)
        m = 0.8 * m + 0.2 * mean
        v = (
            0.99 * v + 0.01 * mean**2
            if kind == "adam"
            else v - 0.01 * np.sign(v - mean**2) * mean**2
        )
        with jax.numpy_dtype_promotion("standard"):  # optax counts its steps in integers
            state, _ = step(state, everyone, key)
        expected = before - 0.5 * (m / (1 - 0.8**t)) / (np.sqrt(v / (1 - 0.99**t)) + 1e-3)
        np.testing.assert_allclose(state.params["w"], expected, rtol=1e-3, atol=1e-5)


def test_a_server_optimizer_changes_nothing_about_privacy():
    events_of = {
        dp_fedavg.event(
            dataclasses.replace(FEDAVG, noise_multiplier=1.0, server_optimizer=kind, proximal=0.1)
        )
        for kind in ("sgd", "adam", "yogi")
    }
    assert len(events_of) == 1
    for bad in ({"server_optimizer": "lamb"}, {"proximal": -0.1}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            dataclasses.replace(FEDAVG, **bad)
