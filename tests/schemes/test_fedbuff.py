"""Buffered asynchronous rounds: who is in which release on which model, what it sums, and what a
run of releases may claim.
"""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import accounting
from fljax.attacks import rounds as games
from fljax.data.cohorts import ClientData, cohort
from fljax.data.facts import Facts
from fljax.schemes.central import dp_fedbuff
from fljax.server.rounds import Performance
from fljax.simulation import budget
from fljax.simulation.config import Config, PrivacyConfig, RunConfig
from fljax.simulation.devices import mesh

N, DIM, ROUNDS = 12, 3, 20
CONFIG = dp_fedbuff.Config(
    num_parties=N, buffer_size=3, max_staleness=2, min_separation=3, straggler_law="bernoulli",
    link_failure_prob=0.3, l2_clip_norm=0.5, noise_multiplier=0.0, local_learning_rate=0.1,
    local_batch_size=8, num_local_epochs=2,
)  # fmt: skip


def loss(params, example):
    return 0.5 * jnp.square(jnp.dot(params["w"], example["x"]) - example["y"])


def the_clients(scale=1.0):
    rng = np.random.default_rng(3)
    x = scale * rng.normal(size=(2 * N, DIM)).astype(np.float32)
    y = scale * rng.normal(size=2 * N).astype(np.float32)
    rows = np.arange(2 * N, dtype=np.int32).reshape(N, 2)
    return ClientData({"x": jnp.asarray(x), "y": jnp.asarray(y)}, jnp.asarray(rows))


def run(config, key, *, rounds=ROUNDS, data=None, order=None, performance=Performance()):
    """`(states, infos)`, from before the first round on."""
    made = dp_fedbuff.make(config, loss, num_units=N, performance=performance)
    everybody = jnp.arange(N) if order is None else jnp.asarray(order)
    members = cohort(the_clients() if data is None else data, everybody)
    states, infos, step = [made.init({"w": jnp.ones(DIM)})], [], jax.jit(made.round)
    with jax.debug_key_reuse(False):
        for _ in range(rounds):
            state, info = step(states[-1], members, key)
            states.append(state)
            infos.append(info)
    return states, infos


def schedule(states):
    """Of each round, None where it was lost, else `(who was in it, staleness of their models)`."""
    found = []
    for before, after in itertools.pairwise(states):
        old, new = before.clipping, after.clipping
        served = np.flatnonzero(np.asarray(new.ready) != np.asarray(old.ready))
        staleness = int(old.releases) - np.asarray(old.taken)[served]
        found.append((served, staleness) if new.releases > old.releases else None)
    return found


@pytest.fixture(scope="module")
def usual():
    """Rounds that more than one test looks at."""
    return run(CONFIG, jax.random.key(20261121))


@pytest.mark.slow(reason="plays a hundred releases")
def test_releases_are_full_apart_and_of_models_not_too_old(usual, key):
    states, infos = usual
    releases, seen = [], np.zeros(3, int)
    for found, info, before, after in zip(
        schedule(states), infos, states, states[1:], strict=False
    ):
        if found is None:
            assert info.lost and before.params["w"].tobytes() == after.params["w"].tobytes()
            continue
        served, staleness = found
        assert not info.lost and len(served) == CONFIG.buffer_size == info.cohort_size
        assert staleness.min() >= 0 and staleness.max() <= CONFIG.max_staleness
        seen += np.bincount(staleness, minlength=3)
        releases.append(set(served.tolist()))
    assert (seen > 0).all()  # models of all ages were used
    separation = CONFIG.min_separation
    for client in range(N):
        numbers = [at for at, members in enumerate(releases) if client in members]
        assert np.diff(numbers).min(initial=separation) >= separation
        assert len(numbers) <= dp_fedbuff.uses(CONFIG, len(releases))
    # The control: without the separation somebody is in more releases than are claimed with it.
    often = dataclasses.replace(CONFIG, min_separation=1, buffer_size=8)
    free, _ = run(often, key)
    members = np.concatenate([found[0] for found in schedule(free) if found is not None])
    assert np.bincount(members).max() > dp_fedbuff.uses(CONFIG, ROUNDS)


def test_rounds_without_enough_clients_are_lost_and_cost_nothing_but_time(key):
    scarce = dataclasses.replace(CONFIG, link_failure_prob=0.8)
    states, infos = run(scarce, key)
    lost = [bool(info.lost) for info in infos]
    assert 3 < sum(lost) < ROUNDS
    assert (
        int(states[-1].clipping.releases) == ROUNDS - sum(lost) and int(states[-1].round) == ROUNDS
    )


def test_a_release_is_the_mean_of_clipped_updates_of_old_models(usual):
    """Against float64, with the schedule that was drawn."""
    states, _ = usual
    data, models, w = the_clients(), [], np.ones(DIM)
    x, y = (np.asarray(data.examples[name], np.float64).reshape(N, 2, -1) for name in ("x", "y"))
    models.append(w)
    clipped = 0
    for found, after in zip(schedule(states), states[1:], strict=False):
        if found is not None:
            total = np.zeros(DIM)
            for client, staleness in zip(*found, strict=True):
                begun = models[len(models) - 1 - staleness]
                local = begun.copy()
                for _ in range(CONFIG.num_local_epochs):
                    residual = x[client] @ local - y[client][:, 0]
                    local -= 0.1 * (residual[:, None] * x[client]).mean(axis=0)
                norm = np.linalg.norm(begun - local)
                clipped += norm > CONFIG.l2_clip_norm
                total += (begun - local) * min(1.0, CONFIG.l2_clip_norm / norm)
            models.append(models[-1] - total / CONFIG.buffer_size)
        np.testing.assert_allclose(after.params["w"], models[-1], rtol=1e-4, atol=1e-5)
    assert clipped > 3


@pytest.mark.slow(reason="replays rounds for one more relation", but=["REPLACE_SPECIAL"])
@pytest.mark.parametrize("relation", ["REPLACE_SPECIAL", "REPLACE_ONE"])
def test_replayed_one_clients_data_move_a_release_by_the_clip_norm_and_no_other_at_all(
    relation, key
):
    config = dataclasses.replace(CONFIG, neighboring_relation=relation)
    data, seen = the_clients(scale=100.0), []
    states, _ = run(config, key, rounds=8, data=data)
    step = jax.jit(dp_fedbuff.make(config, loss, num_units=N).round)
    for client in range(N):
        rows = np.asarray(data.indices)
        if relation == "REPLACE_SPECIAL":
            other = data._replace(
                indices=jnp.asarray(np.where(np.arange(N)[:, None] == client, -1, rows))
            )
        else:
            y = np.asarray(data.examples["y"]).copy()
            y[rows[client]] *= -1
            w = np.asarray(data.examples["x"]).copy()
            w[rows[client]] *= 3
            other = data._replace(examples={"x": jnp.asarray(w), "y": jnp.asarray(y)})
        for before, after, found in zip(states, states[1:], schedule(states), strict=False):
            # The same releases before, as an adversary has seen them.
            with jax.debug_key_reuse(False):
                there, _ = step(before, cohort(other, jnp.arange(N)), key)
            for a, b in zip(there.clipping[1:], after.clipping[1:], strict=True):
                np.testing.assert_array_equal(a, b)  # who and when says nothing about data
            gap = np.linalg.norm(np.asarray(there.params["w"] - after.params["w"], np.float64))
            gap *= config.buffer_size
            if found is None or client not in found[0]:
                assert gap == 0
            else:
                seen.append(gap)
    sensitivity = config.l2_clip_norm * (2 if relation == "REPLACE_ONE" else 1)
    assert max(seen) <= sensitivity + 1e-4  # of float32 models of order 1
    assert max(seen) > 0.9 * config.l2_clip_norm


@pytest.mark.slow(reason="plays thousands of rounds")
@pytest.mark.parametrize("num_rounds", [2, 4])
def test_no_attack_beats_the_releases_that_a_client_can_be_in_and_one_on_less_noise_does(
    num_rounds, key
):
    apart = {"min_separation": 2, "buffer_size": 2}
    small = games.config("dp_fedbuff", noise_multiplier=1.0, **apart)
    game = games.one_unit(dp_fedbuff.SCHEME, small, num_rounds=num_rounds)
    assert game.event == dp_fedbuff.event(small).repeat(num_rounds // 2)
    found = games.judge(game.event, games.play(game, key, 10_000), delta=0.05, confidence=1 - 1e-4)
    assert found.holds and found.measured > 0.2 * found.certified
    # All of T releases, as without a separation: the claim would be too small.
    free = dataclasses.replace(small, min_separation=1, buffer_size=4)
    scores = games.play(
        games.one_unit(dp_fedbuff.SCHEME, free, num_rounds=4), jax.random.clone(key), 10_000
    )
    one = dp_fedbuff.event(small)
    assert games.judge(one, scores, delta=0.05, confidence=1 - 1e-4).holds is False


@pytest.mark.slow(reason="compiles two more rounds")
def test_the_noise_of_a_release_has_the_stddev_of_its_event(key):
    noisy = dataclasses.replace(
        CONFIG,
        noise_multiplier=4.0,
        neighboring_relation="REPLACE_ONE",
        straggler_law="fixed",
        max_stragglers=1,
    )
    flat = lambda params, example: jnp.sum(params["w"]) * example["y"]
    ends = []
    for config in (noisy, dataclasses.replace(noisy, noise_multiplier=0.0)):
        made = dp_fedbuff.make(config, flat, num_units=N)
        state, _ = jax.jit(made.round)(
            made.init({"w": jnp.zeros((40, 50))}),
            cohort(the_clients(), jnp.arange(N)),
            jax.random.clone(key),
        )
        ends.append(np.asarray(state.params["w"], np.float64))
    noise = (ends[0] - ends[1]) * CONFIG.buffer_size
    declared = dp_fedbuff.event(noisy).mechanism.noise_multiplier * CONFIG.l2_clip_norm * 2
    # 2,000 draws: the sample deviation has relative standard error 1 / sqrt(4000) = 0.0158.
    assert abs(noise.std() / declared - 1) <= 5 * 0.0158


@pytest.mark.slow(reason="compiles rounds for 8 devices")
def test_the_order_of_a_cohort_and_eight_devices_change_no_bit(key):
    noisy, found = dataclasses.replace(CONFIG, noise_multiplier=1.0), []
    for devices in (1, 8):
        with mesh.over(mesh.client_mesh(devices, groups=8)):
            states, _ = run(noisy, key, rounds=6, performance=Performance(groups=8, chunk_size=1))
            found.append([np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(states[-1])])
    assert found[0] == found[1]
    order = np.random.default_rng(0).permutation(N)
    ends = [run(noisy, key, rounds=6, order=each)[0][-1] for each in (None, order)]
    np.testing.assert_allclose(ends[0].params["w"], ends[1].params["w"], rtol=0, atol=1e-5)
    np.testing.assert_array_equal(ends[0].clipping.taken, ends[1].clipping.taken)


def test_a_run_is_charged_for_the_releases_that_a_client_can_be_in():
    config = Config(
        scheme="dp_fedbuff",
        scheme_config=dataclasses.replace(CONFIG, noise_multiplier=2.0),
        privacy=PrivacyConfig(target_epsilon=None, target_delta=1e-3),
        run=RunConfig(num_rounds=8),
    )
    plan = budget.plan(config, config.implementation, Facts(N, 2 * N, 2))
    assert plan.uses == (0, 1, 1, 1, 2, 2, 2, 3, 3)
    # mu-GDP of k Gaussian mechanisms: sqrt(k) / noise_multiplier.
    exact = [accounting.gaussian.mu_to_epsilon(np.sqrt(k) / 2.0, 1e-3) for k in (1, 2, 3)]
    np.testing.assert_allclose(
        plan.epsilons[1:], np.asarray(exact)[[0, 0, 0, 1, 1, 1, 2, 2]], rtol=1e-9
    )
    claim = budget.certified_claim(plan, 7)
    assert claim["ledger"]["entries"][0]["count"] == 3
    calibrated = dataclasses.replace(
        config,
        scheme_config=dataclasses.replace(CONFIG, noise_multiplier=None),
        privacy=PrivacyConfig(target_epsilon=float(exact[2]), target_delta=1e-3),
    )
    found = budget.plan(calibrated, config.implementation, Facts(N, 2 * N, 2))
    assert found.scheme_config.noise_multiplier == pytest.approx(2.0, rel=1e-3)
    assert found.num_rounds == 8


@pytest.mark.parametrize(
    "changes",
    [
        {"buffer_size": 5},
        {"straggler_law": "fixed", "max_stragglers": 4},
        {"straggler_law": "custom", "straggler_probs": (0.0,) * 4 + (1.0,)},
    ],
)
def test_a_buffer_that_never_fills_is_refused(changes):
    with pytest.raises(ValueError, match="Expected a buffer that fills"):
        dataclasses.replace(CONFIG, **changes)
    dataclasses.replace(CONFIG, **changes, min_separation=2)
    with pytest.raises(ValueError, match="Expected num_parties to be the number of clients, 13"):
        dp_fedbuff.make(CONFIG, loss, num_units=13)
