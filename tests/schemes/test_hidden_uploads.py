"""LightDP-FL, local DP and the schemes with an ideal secure sum."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import _keys, accounting, data, schemes
from fljax.accounting import gaussian
from fljax.accounting.shared_noise import adversaries, colluders, least_noise
from fljax.accounting.shared_noise import exact as view
from fljax.schemes import base
from fljax.server import stragglers

SECURE = ("smpc_dp", "he_dp", "secagg_dp", "swiftagg_dp")
ALL = ("lightdp", "local_dp", *SECURE)
NUM, DIM = 6, 4000
SMALL = {
    "num_parties": NUM,
    "max_colluders": 1,
    "straggler_law": "fixed",
    "max_stragglers": 2,
    "l2_clip_norm": 0.5,
    "local_learning_rate": 0.1,
    "num_local_epochs": 1,
}


def linear_loss(params, example):
    return jnp.vdot(params["w"], example["x"])


def config(name, **changes):
    return schemes.get(name).Config(**{**SMALL, "noise_multiplier": 0.0, **changes})


@functools.cache
def clients(dim=DIM):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(12, dim)) * rng.lognormal(0, 2, (12, 1))
    return data.ClientData(
        {"x": jnp.asarray(x, jnp.float32)}, jnp.arange(12, dtype=jnp.int32).reshape(NUM, 2)
    )


@functools.cache
def jitted(name, changes):
    algorithm = schemes.get(name).make(config(name, **dict(changes)), linear_loss, num_units=NUM)
    return algorithm.init, jax.jit(algorithm.round)


def run_round(name, key, client_ids=range(NUM), scale=1.0, **changes):
    """(model after a round from zero, info, state); with `scale` 0 the model is the noise of the
    average alone.
    """
    init, round_fun = jitted(name, tuple(sorted(changes.items())))
    cohort = data.cohort(clients(), jnp.asarray(list(client_ids), jnp.int32))
    cohort = cohort._replace(examples={"x": scale * cohort.examples["x"]})
    state, info = round_fun(init({"w": jnp.zeros(DIM)}), cohort, jax.random.clone(key))
    return np.asarray(state.params["w"], np.float64), info, state


def test_without_noise_the_round_is_the_mean_of_the_responders_clipped_updates(key):
    got, info, state = run_round("lightdp", key, max_stragglers=0)
    x = np.asarray(clients().examples["x"], np.float64).reshape(NUM, 2, DIM).mean(axis=1)
    update = 0.1 * x
    clipped = update * np.minimum(1, 0.5 / np.linalg.norm(update, axis=1, keepdims=True))
    np.testing.assert_allclose(got, -clipped.mean(axis=0), rtol=1e-4, atol=1e-7)
    assert int(info.cohort_size) == NUM and int(state.round) == 1
    np.testing.assert_allclose(info.clipped_fraction, 5 / 6, rtol=1e-6)
    # The absent do not count, wherever they are missing, and order means nothing.
    few, info, _ = run_round("lightdp", key, client_ids=[0, 1, 2, 3, 4, -1], max_stragglers=0)
    assert int(info.cohort_size) == NUM - 1
    np.testing.assert_allclose(few, -clipped[:5].mean(axis=0), rtol=1e-4, atol=1e-7)
    order, _, _ = run_round("lightdp", key, client_ids=[4, -1, 0, 2, 1, 3], max_stragglers=0)
    np.testing.assert_allclose(few, order, rtol=1e-5, atol=1e-7)


@functools.cache
def noisy():
    """Settings with own noise of standard deviation 2: of own variance 1 and pair variance 2 the
    worst client shows so much to whichever one colluder, by trying all of them.
    """
    graph = {"graph": "k_regular", "degree": 3}
    edges = schemes.lightdp.edges(config("lightdp", **graph))
    weighted = view.pair_graph(edges, num_clients=NUM, own_variance=1.0, pair_variance=2.0)
    return graph | {
        "noise_multiplier": 2 / float(np.max(view.worst_mu(weighted, num_colluders=1))),
        "pair_variance_ratio": 2.0,
        "straggler_law": "custom",
        "straggler_probs": (0.0, 0.0, 1.0),
        "late_prob": 0.5,
    }


@pytest.mark.slow(
    reason="repeats compiled rounds thousands of times for the moments of their noise"
)
@pytest.mark.parametrize("absent", [None, 3])
def test_lightdps_average_has_the_noise_of_equation_9(absent, key):
    ids = [-1 if client == absent else client for client in range(NUM)]
    noise, info, state = run_round("lightdp", key, client_ids=ids, scale=0.0, **noisy())
    edges = schemes.lightdp.edges(config("lightdp", **noisy()))
    # own variance 2**2, pair variance twice that; an absent client is one more straggler.
    graph = view.pair_graph(edges, num_clients=NUM, own_variance=4.0, pair_variance=8.0)
    straggle_key = _keys.server_key(key, state.round - 1, _keys.Purpose.STRAGGLE)
    responds = np.array(stragglers.draw(straggle_key, stragglers.fixed(2), NUM).responds)
    assert responds.sum() == NUM - 2
    # The report draws the same again.
    found = schemes.get("lightdp").views(config("lightdp", **noisy()), jax.random.clone(key), 1)
    np.testing.assert_array_equal(found.reached[0] == adversaries.IN_TIME, responds)
    if absent is not None:
        responds[absent] = False
    assert int(info.cohort_size) == responds.sum()
    assert abs(
        np.mean(noise**2) / float(view.average_variance(graph, responds)) - 1
    ) <= 5 * np.sqrt(2 / DIM)


@pytest.mark.slow(
    reason="repeats compiled rounds thousands of times for the moments of their noise"
)
def test_local_dps_average_has_the_noise_of_the_table(key):
    # s_L = 2: s_L^2 / (N - S).
    noise, _, _ = run_round("local_dp", key, scale=0.0, noise_multiplier=2.0)
    assert abs(np.mean(noise**2) / (4 / 4) - 1) <= 5 * np.sqrt(2 / DIM)


@pytest.mark.slow(
    reason="repeats compiled rounds thousands of times for the moments of their noise"
)
def test_a_secure_sum_has_the_noise_of_the_table_and_aborts_when_too_few_can_be_used(key):
    links = {"straggler_law": "bernoulli", "link_failure_prob": 0.5, "noise_multiplier": 2.0}
    found = {}
    for name in ("smpc_dp", "secagg_dp"):
        runs = [run_round(name, jax.random.fold_in(key, t), scale=0.0, **links) for t in range(20)]
        counts = np.asarray([int(info.cohort_size) for _, info, _ in runs])
        assert all(int(state.round) == 1 for _, _, state in runs)
        np.testing.assert_array_equal([np.any(model) for model, _, _ in runs], counts >= NUM - 2)
        assert [bool(info.lost) for _, info, _ in runs] == [count < NUM - 2 for count in counts]
        found[name] = counts.mean() / NUM
        for (noise, _, _), count in zip(runs, counts, strict=True):
            # s_L = 2: s_L^2 / ((N - C - Sbar) (N - S)).
            assert count < NUM - 2 or abs(np.mean(noise**2) / (4 / 3 / count) - 1) <= 5 * np.sqrt(
                2 / DIM
            )
    # A client needs N links in place of one: 1/64 is left of 1/2.
    assert abs(found["smpc_dp"] - 0.5) <= 5 * np.sqrt(0.25 / 120)
    assert found["secagg_dp"] <= 1 / 64 + 5 * np.sqrt(1 / 64 / 120)


@pytest.mark.slow(
    reason="repeats compiled rounds thousands of times for the moments of their noise"
)
def test_replay_of_a_round_confirms_the_sensitivity(key):
    # Of the mean, over N - S = 4 responders: 2 clip norms / 4. The noise repeats and drops out.
    init, round_fun = jitted("lightdp", tuple(sorted(noisy().items())))
    pool, owner = clients(), np.repeat(np.arange(NUM), 2)

    def model(examples):
        cohort = data.Cohort(examples, pool.indices, jnp.arange(NUM, dtype=jnp.int32))
        state, _ = round_fun(init({"w": jnp.zeros(DIM)}), cohort, jax.random.clone(key))
        return np.asarray(state.params["w"], np.float64)

    x, whole = np.asarray(pool.examples["x"]), model(pool.examples)
    others = [np.where((owner == client)[:, None], -1e3 * x, x) for client in range(NUM)]
    moves = [np.linalg.norm(model({"x": jnp.asarray(other)}) - whole) for other in others]
    assert max(moves) <= 2 * 0.5 / 4 * (1 + 1e-4)
    assert max(moves) >= 1.2 * 0.5 / 4  # more than one clip norm: a sensitivity of C would be wrong
    gone = [np.where((owner == client)[:, None], 0.0, x) for client in range(NUM)]
    moves = [
        np.linalg.norm(model({"x": jnp.asarray(other, jnp.float32)}) - whole) for other in gone
    ]
    assert 0.9 * 0.5 / 4 <= max(moves) <= 0.5 / 4 * (1 + 1e-4)


def test_in_a_regular_graph_of_all_pairs_clients_have_all_honest_neighbours():
    whole = schemes.lightdp.Config(
        num_parties=50, max_colluders=10, max_stragglers=10, graph="k_regular", degree=49
    )
    straggling = least_noise.straggler_moments(50, np.full(11, 1 / 11)).straggling
    assert schemes.lightdp.variance_ratio(whole) == least_noise.best_ratio(40, straggling, ways=39)


@pytest.mark.slow(reason="looks through all worst cases")
def test_lightdps_own_noise_is_what_the_exact_view_of_the_worst_case_asks_for():
    lightdp = schemes.lightdp

    def own(config):
        return lightdp.upload_noise(config).own_stddev

    # Specification, oracle O5a: own and pair variance of (3, 1e-5) at N = 50, C = S = 10 and
    # sensitivity 1.
    needed = 1 / float(gaussian.epsilon_to_mu(3.0, 1e-5))
    c = lightdp.Config(
        num_parties=50,
        max_colluders=10,
        max_stragglers=10,
        l2_clip_norm=0.5,
        noise_multiplier=needed,
    )
    assert lightdp.event(c).mechanism == accounting.events.Gaussian(needed)
    np.testing.assert_allclose(lightdp.variance_ratio(c), 0.377860152, rtol=1e-8)
    np.testing.assert_allclose(own(c), 0.406626427, rtol=1e-7)
    # Against a client without data, its update moves half as far, and half of the noise is enough.
    zeroed = dataclasses.replace(c, neighboring_relation="REPLACE_SPECIAL")
    assert own(c) == 2 * own(zeroed) and lightdp.event(zeroed).mechanism.noise_multiplier == needed
    # O4a: the paper's own sigmas.
    printed = dataclasses.replace(
        c, noise_multiplier=1 / 0.535851428, pair_variance_ratio=0.079655555
    )
    np.testing.assert_allclose(own(printed), 0.947735351, rtol=1e-7)
    # A sparse graph: the worst case over colluders, for the worst client.
    sparse = dataclasses.replace(c, graph="k_regular", degree=20)
    ratio, variance = lightdp.variance_ratio(sparse), own(sparse) ** 2
    graph = view.pair_graph(
        lightdp.edges(sparse), num_clients=50, own_variance=variance, pair_variance=ratio * variance
    )
    expected = np.max(colluders.worst_case(graph, num_colluders=10).mu)
    assert expected < 0.87 * np.max(view.certificate(graph, num_colluders=10))
    np.testing.assert_allclose(1 / needed, expected, rtol=1e-9)
    law = np.full(11, 1 / 11)
    own_law = dataclasses.replace(
        sparse, straggler_law="custom", straggler_probs=tuple(law.tolist())
    )
    assert lightdp.variance_ratio(own_law) == ratio
    # Where all may straggle at once: given that somebody responds.
    lost = dataclasses.replace(own_law, straggler_probs=(*(law / 2).tolist(), *[0.0] * 39, 0.5))
    np.testing.assert_allclose(lightdp.variance_ratio(lost), ratio, rtol=1e-12)
    # Least noise in the average where 10 of 20 neighbours and 40 of 50 clients are honest.
    straggling = least_noise.straggler_moments(50, law).straggling * 20 / 49

    def cost(gamma):
        return (1 + straggling * gamma) * (1 / 40 + (1 - 1 / 40) / (1 + 10 * gamma))

    assert cost(ratio) <= min(cost(0.99 * ratio), cost(1.01 * ratio), cost(0.0))
    left = []
    for times in (0.25, 1, 4):
        noise = dataclasses.replace(sparse, pair_variance_ratio=times * ratio)
        left.append((1 + straggling * times * ratio) * own(noise) ** 2)
    assert left[1] < min(left[0], left[2])


def test_a_share_of_colluders_above_the_degree_is_served_at_a_price_in_delta():
    lightdp = schemes.lightdp
    c = lightdp.Config(
        num_parties=200,
        graph="k_regular",
        degree=40,
        max_colluders=0,
        max_stragglers=5,
        noise_multiplier=2.0,
    )
    with pytest.raises(ValueError, match="unless failure_prob > 0"):
        dataclasses.replace(c, max_colluders=40)
    some = dataclasses.replace(c, max_colluders=40, failure_prob=1e-9)
    assert lightdp.event(some).mechanism == accounting.events.Composed(
        (accounting.events.Gaussian(2.0), accounting.events.EpsilonDelta(0.0, 1e-9))
    )
    local = 2.0 * 2 * c.l2_clip_norm  # what own noise alone would have to be
    assert lightdp.stddev(c) < lightdp.stddev(some) < local / 4
    spent = accounting.epsilon(lightdp.event(some).repeat(10), delta=1e-5, method="auto")
    least = float(gaussian.mu_to_epsilon(10**0.5 / 2, 1e-5 - 1e-8))
    assert least * (1 - 1e-6) <= spent <= 1.001 * least


@pytest.mark.slow(reason="compiles the round of one more scheme", but=["local_dp"])
@pytest.mark.parametrize("name", ["local_dp", *SECURE])
def test_baselines_noise_is_its_multiplier_times_twice_the_clip_norm_or_once(name, key):
    for relation, sensitivity in (("REPLACE_ONE", 1.0), ("REPLACE_SPECIAL", 0.5)):
        c = config(name, noise_multiplier=1.5, neighboring_relation=relation)
        event = schemes.get(name).event(c)
        assert (event.mechanism, event.privacy_unit) == (accounting.events.Gaussian(1.5), "client")
        assert event.neighboring_relation == relation
        expected = float(gaussian.mu_to_epsilon(1 / 1.5, 1e-5))
        np.testing.assert_allclose(
            accounting.epsilon(event, delta=1e-5, method="gdp"), expected, rtol=1e-9
        )
        # What is drawn: the mean of 4 responders; a sum of 3 honest ones hides as much.
        still = {"noise_multiplier": 1.5, "neighboring_relation": relation, "max_stragglers": 2}
        noise, info, _ = run_round(name, key, scale=0.0, **still)
        share = 1.0 if name == "local_dp" else 1 / 3
        drawn = share * (1.5 * sensitivity) ** 2 / int(info.cohort_size)
        assert abs(np.mean(noise**2) / drawn - 1) <= 5 * np.sqrt(2 / DIM)


@pytest.mark.parametrize("name", ALL)
def test_what_has_no_guarantee_is_an_error(name):
    with pytest.raises(ValueError, match="noise_multiplier=None"):
        schemes.get(name).event(config(name, noise_multiplier=None))
    with pytest.raises(
        ValueError, match="max_colluders < num_parties=6, else nobody is left to protect"
    ):
        config(name, max_colluders=6)
    with pytest.raises(
        ValueError, match="max_stragglers < num_parties=6, else nobody is left to respond"
    ):
        config(name, max_stragglers=6)
    with pytest.raises(ValueError, match="straggler_law to be one of"):
        config(name, straggler_law="weekends")
    for probs, words in (
        ((0.5, 0.4), "sum 1"),
        ((0.0,) * 7 + (1.0,), "s <= 6"),
        ((0.0,) * 6 + (1.0,), "responds"),
    ):
        with pytest.raises(ValueError, match=words):
            config(name, straggler_law="custom", straggler_probs=probs)
    with pytest.raises(ValueError, match="no straggler_probs under the law fixed"):
        config(name, straggler_probs=(1.0,))
    with pytest.raises(ValueError, match="neighboring_relation to be one of"):
        config(name, neighboring_relation="ADD_OR_REMOVE_ONE")
    with pytest.raises(ValueError, match="late_prob"):
        config(name, late_prob=1.5)
    with pytest.raises(ValueError, match="link_failure_prob < 1"):
        config(name, link_failure_prob=1.0)
    with pytest.raises(ValueError, match="num_parties to be the number of clients, 7"):
        schemes.get(name).make(config(name), linear_loss, num_units=7)
    if name in SECURE:
        with pytest.raises(ValueError, match=r"max_colluders \+ max_stragglers < 6 clients"):
            config(name, max_colluders=4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"graph": "k_regular", "degree": 1}, "degree above max_colluders=1"),
        ({"graph": "k_regular", "degree": 6}, "below num_parties=6"),
        ({"graph": "k_regular", "degree": 3, "num_parties": 7}, "even if that is odd"),
        (
            {"graph": "k_regular", "degree": 4, "draw": "joint_law"},
            "draw='pairs' for the graph k_regular",
        ),
        ({"graph": "star"}, "graph to be one of"),
        ({"pair_variance_ratio": -1.0}, "pair_variance_ratio >= 0"),
    ],
)
def test_bad_graphs_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        config("lightdp", **changes)


def test_costs_tell_the_schemes_apart():
    costs = {name: schemes.get(name).costs(config(name), 1000) for name in ALL}
    assert costs["lightdp"].upload_bytes == costs["local_dp"].upload_bytes == 4000
    assert costs["lightdp"].pair_normals == 5000 and costs["lightdp"].message_rounds == 1
    assert costs["he_dp"].upload_bytes == 256 * 4000
    assert {name for name in ALL if costs[name].peer_links} == {"secagg_dp", "swiftagg_dp"}
    sparse = config("lightdp", graph="k_regular", degree=3)
    assert schemes.get("lightdp").costs(sparse, 1000).pair_normals == 3000


def test_the_non_private_twin_keeps_its_stragglers(key):
    for name in ALL:
        twin = schemes.get(name).non_private(config(name, noise_multiplier=1.0))
        assert (twin.noise_multiplier, twin.l2_clip_norm) == (0.0, base.NEVER_CLIPS)
        assert twin.max_stragglers == 2
    assert config("lightdp").straggler_pmf(4).tolist() == [0, 0, 1]
