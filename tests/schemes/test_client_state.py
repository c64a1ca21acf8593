"""What clients keep between rounds: the algorithms' numbers, the guarantee over two rounds, the
same bits on any devices, and that nobody who is not in a round loses or shows anything.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fljax.attacks import rounds as games
from fljax.data.cohorts import ClientData, cohort
from fljax.schemes.central import dp_fedper, dp_scaffold
from fljax.server.rounds import Performance
from fljax.simulation.devices import mesh

N, DIM = 6, 3
SIZES = (5, 1, 4, 2, 5, 3)
START = {"shared": np.array([0.5, -1.0, 2.0]), "head": np.array([0.3, 0.1, -0.2])}
SCAFFOLD = dp_scaffold.Config(
    sampling_prob=0.5, l2_clip_norm=0.6, control_scale=0.2, noise_multiplier=0.0,
    local_learning_rate=0.1, local_batch_size=8, num_local_epochs=2,
    server_learning_rate=0.5, server_momentum=0.0,
)  # fmt: skip
FEDPER = dp_fedper.Config(
    sampling_prob=0.5, l2_clip_norm=0.4, noise_multiplier=0.0, personal_layers="head",
    local_learning_rate=0.1, local_batch_size=8, num_local_epochs=2,
    server_learning_rate=0.5, server_momentum=0.0,
)  # fmt: skip
BOTH = pytest.mark.parametrize(
    ("scheme", "config"), [(dp_scaffold, SCAFFOLD), (dp_fedper, FEDPER)], ids=["scaffold", "fedper"]
)


def loss(params, example):
    weights = params["shared"] + params["head"]
    return 0.5 * jnp.square(jnp.dot(weights, example["x"]) - example["y"])


def the_clients(scale=1.0):
    rng = np.random.default_rng(7)
    table = np.full((N, max(SIZES)), -1, np.int32)
    table[np.arange(max(SIZES)) < np.array(SIZES)[:, None]] = np.arange(sum(SIZES))
    x = scale * rng.normal(size=(sum(SIZES), DIM)).astype(np.float32)
    y = scale * rng.normal(size=sum(SIZES)).astype(np.float32)
    return ClientData({"x": jnp.asarray(x), "y": jnp.asarray(y)}, jnp.asarray(table))


def start():
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), START)


@functools.cache
def compiled(scheme, config, performance=Performance()):
    made = scheme.make(config, loss, num_units=10, performance=performance)
    return made, jax.jit(made.round)


def a_round(scheme, config, data, ids, kept, key, state=None, **options):
    """`(state, what the cohort keeps)`; kept: of all clients."""
    made, run = compiled(scheme, config, **options)
    ids = np.asarray(ids)
    state = made.init(start()) if state is None else state
    members = cohort(data, jnp.asarray(ids, jnp.int32))
    taken = jax.tree.map(lambda leaf: leaf[np.maximum(ids, 0)], kept)
    with jax.debug_key_reuse(False):  # the run's key is the same in every round
        state, info = run(state, members._replace(kept=taken), key)
    return state, info.kept


def nothing_kept(scheme, config):
    first = compiled(scheme, config)[0].client_state.init(start())
    return jax.tree.map(lambda leaf: jnp.tile(leaf, (N, *[1] * leaf.ndim)), first)


def put(kept, ids, new):
    """All clients' trees, with those of the cohort in their places."""
    mine = [(place, i) for place, i in enumerate(ids) if i >= 0]
    places, rows = np.array(mine).T
    return jax.tree.map(lambda all_, some: all_.at[rows].set(some[places]), kept, new)


def clip(vector, bound):
    norm = np.linalg.norm(vector)
    return vector * min(1.0, bound / norm) if norm > 0 else vector


def gradient(config_data, client, weights):
    rows = np.asarray(config_data.indices)[client]
    rows = rows[rows >= 0]
    x, y = (np.asarray(config_data.examples[name], np.float64)[rows] for name in ("x", "y"))
    return ((x @ weights - y)[:, None] * x).mean(axis=0)


def scaffold_float64(config, data, cohorts):
    """Algorithm 1, option II, with the clip; all parameters as one vector [2 DIM]."""
    x = np.concatenate([START["shared"], START["head"]])
    server, own = np.zeros(2 * DIM), np.zeros((N, 2 * DIM))
    for ids in cohorts:
        total, changes = np.zeros(2 * DIM), np.zeros(2 * DIM)
        for client in ids:
            y = x.copy()
            steps = config.num_local_epochs  # a batch takes all examples
            for _ in range(steps):
                g = np.tile(gradient(data, client, y[:DIM] + y[DIM:]), 2)
                y -= config.local_learning_rate * (g - own[client] + server)
            new = own[client] - server + (x - y) / (steps * config.local_learning_rate)
            joint = np.concatenate([x - y, config.control_scale * (new - own[client])])
            joint = clip(joint, config.l2_clip_norm)
            total += joint[: 2 * DIM]
            own[client] += joint[2 * DIM :] / config.control_scale
            changes += joint[2 * DIM :] / config.control_scale
        x = x - config.server_learning_rate * total / (config.sampling_prob * 10)
        server = server + changes / 10
    return x, server, own


def fedper_float64(config, data, cohorts):
    x, own = START["shared"].copy(), np.tile(START["head"], (N, 1))
    for ids in cohorts:
        total = np.zeros(DIM)
        for client in ids:
            y, head = x.copy(), own[client].copy()
            for _ in range(config.num_local_epochs):
                g = gradient(data, client, y + head)
                y, head = y - config.local_learning_rate * g, head - config.local_learning_rate * g
            total += clip(x - y, config.l2_clip_norm)
            own[client] = head
        x = x - config.server_learning_rate * total / (config.sampling_prob * 10)
    return x, own


COHORTS = ([4, 0, 2, -1, 3], [0, 1, 4, 3, -1], [2, 0, -1, 5, 1])


def several_rounds(scheme, config, data, cohorts, key, **options):
    state, kept = None, nothing_kept(scheme, config)
    for ids in cohorts:
        state, new = a_round(scheme, config, data, ids, kept, key, state, **options)
        kept = put(kept, ids, new)
    return state, kept


def test_scaffold_is_algorithm_1_with_its_clip(key):
    data = the_clients()
    state, kept = several_rounds(dp_scaffold, SCAFFOLD, data, COHORTS, key)
    x, server, own = scaffold_float64(SCAFFOLD, data, [[i for i in c if i >= 0] for c in COHORTS])
    for name, part in (("shared", slice(DIM)), ("head", slice(DIM, None))):
        np.testing.assert_allclose(state.params[name], x[part], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(state.clipping[name], server[part], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(kept[name], own[:, part], rtol=1e-5, atol=1e-6)
    assert np.abs(own).max() > 0.1  # else nothing would be tested


def test_the_servers_control_variate_is_the_mean_of_the_clients(key):
    state, kept = several_rounds(dp_scaffold, SCAFFOLD, the_clients(), COHORTS, key)
    mean = np.asarray(kept["shared"]).sum(axis=0) / 10  # four clients have not been in any round
    np.testing.assert_allclose(state.clipping["shared"], mean, rtol=1e-5, atol=1e-6)


def test_personal_layers_follow_their_clients_and_are_not_released(key):
    data = the_clients()
    state, kept = several_rounds(dp_fedper, FEDPER, data, COHORTS, key)
    x, own = fedper_float64(FEDPER, data, [[i for i in c if i >= 0] for c in COHORTS])
    np.testing.assert_allclose(state.params["shared"], x, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(kept["head"], own, rtol=1e-5, atol=1e-6)
    assert state.params["head"].tobytes() == start()["head"].tobytes()
    assert list(kept) == ["head"] and np.abs(own - START["head"]).max() > 0.1


def test_no_noise_falls_on_layers_that_are_not_released(key):
    noisy = dataclasses.replace(FEDPER, noise_multiplier=50.0)
    state, _ = several_rounds(dp_fedper, noisy, the_clients(), COHORTS, key)
    assert state.params["head"].tobytes() == start()["head"].tobytes()
    assert np.abs(np.asarray(state.params["shared"]) - START["shared"]).max() > 0.5


def sent(scheme, config, before, after):
    """All that a round released, scaled back to the sum of the clients' clipped vectors."""

    def difference(a, b):
        leaves = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
        return np.concatenate([np.ravel(np.asarray(x, np.float64) - y) for x, y in leaves])

    moved = difference(before.params, after.params) / config.server_learning_rate
    parts = [moved * config.sampling_prob * 10]
    if scheme is dp_scaffold:
        change = difference(after.clipping, before.clipping)
        parts.append(change * config.control_scale * 10)
    return np.concatenate(parts)


@pytest.mark.slow(reason="compiles the rounds of one more scheme")
@BOTH
def test_replayed_over_two_rounds_one_client_moves_each_release_by_the_clip_norm(
    scheme, config, key
):
    """Both worlds see the same releases, as in the proof: what a client keeps then moves nothing
    but its own vector, and what others keep is the same bits.
    """
    data = the_clients(scale=30.0)
    free = scheme.non_private(config)
    first, second = [4, 0, 2, 1, 3, 5], [3, 0, 5, 2, 4, 1]
    measured, control = [], []
    for used, distances in ((config, measured), (free, control)):
        kept = nothing_kept(scheme, used)
        state, new = a_round(scheme, used, data, first, kept, key)
        with_all = put(kept, first, new)
        after, _ = a_round(scheme, used, data, second, with_all, key, state)
        for client in range(N):
            rest = [i if i != client else -1 for i in first]
            missing, new = a_round(scheme, used, data, rest, kept, key)
            without = put(kept, rest, new)
            others = np.arange(N) != client
            for a, b in zip(jax.tree.leaves(with_all), jax.tree.leaves(without), strict=True):
                assert np.asarray(a)[others].tobytes() == np.asarray(b)[others].tobytes()
            zero = compiled(scheme, used)[0].init(start())
            distances.append(
                np.linalg.norm(sent(scheme, used, zero, state) - sent(scheme, used, zero, missing))
            )
            rest = [i if i != client else -1 for i in second]
            missing, _ = a_round(scheme, used, data, rest, without, key, state)
            distances.append(
                np.linalg.norm(
                    sent(scheme, used, state, after) - sent(scheme, used, state, missing)
                )
            )
    # Reading sums back from float32 parameters of order 1 costs 1e-7 * 10 * 5.
    assert max(measured) <= config.l2_clip_norm + 5e-5
    assert max(measured) >= 0.99 * config.l2_clip_norm  # the bound is attained
    assert max(control) > 10 * config.l2_clip_norm


def test_two_clips_of_one_norm_each_would_break_the_joint_bound(key):
    """The positive control of the joint clip: SCAFFOLD's two parts clipped apart move by more."""
    data = the_clients(scale=30.0)
    kept, everybody = nothing_kept(dp_scaffold, SCAFFOLD), list(range(N))
    free = dp_scaffold.non_private(SCAFFOLD)
    zero = compiled(dp_scaffold, free)[0].init(start())
    alone = []
    for client in everybody:
        only = [client if i == client else -1 for i in everybody]
        state, _ = a_round(dp_scaffold, free, data, only, kept, key)
        vector = sent(dp_scaffold, free, zero, state)
        parts = np.split(vector, 2)
        alone.append(np.hypot(*[np.linalg.norm(clip(p, SCAFFOLD.l2_clip_norm)) for p in parts]))
    assert max(alone) > 1.4 * SCAFFOLD.l2_clip_norm


def test_update_and_control_are_noised_by_the_multiplier_times_the_clip(key):
    size, config = 4000, dataclasses.replace(SCAFFOLD, noise_multiplier=1.5)
    made = dp_scaffold.make(config, lambda p, e: jnp.vdot(p["w"], e["x"]), num_units=6)
    data = ClientData({"x": jnp.zeros((1, size))}, jnp.zeros((2, 1), jnp.int32))
    begin = made.init({"w": jnp.zeros(size)})
    nobody = cohort(data, jnp.full(2, -1))._replace(kept={"w": jnp.zeros((2, size))})
    end, _ = made.round(begin, nobody, key)
    # The update is divided by the 3 clients expected, the control variate by all 6.
    update = (begin.params["w"] - end.params["w"]) / config.server_learning_rate * 3
    control = (end.clipping["w"] - begin.clipping["w"]) * config.control_scale * 6
    for sent in (update, control):
        assert float(sent.std()) == pytest.approx(1.5 * 0.6, rel=5 / np.sqrt(2 * size))


def separation(multiplier):
    """How far apart 4,000 two-round runs of each world lie, in standard deviations, for one who
    sees both releases and knows all but client 0, whose examples are far out.
    """
    config = dataclasses.replace(
        SCAFFOLD, sampling_prob=1.0, noise_multiplier=multiplier, server_learning_rate=1e-3
    )
    made = dp_scaffold.make(config, lambda p, e: jnp.vdot(p["w"], e["x"]), num_units=2)
    pool = {"x": jnp.asarray([[1e3, 0.0, 0.0], [0.0, 0.0, 0.0]])}
    data = ClientData(pool, jnp.asarray([[0], [1]]))
    begin = made.init({"w": jnp.zeros(3)})

    def run(key, ids):
        state, kept, total = begin, jax.tree.map(lambda leaf: jnp.zeros((2, 3)), {"w": 0.0}), 0.0
        for _ in range(2):
            after, info = made.round(state, cohort(data, ids)._replace(kept=kept), key)
            update = (state.params["w"] - after.params["w"])[0] / config.server_learning_rate * 2
            control = (after.clipping["w"] - state.clipping["w"])[0] * config.control_scale * 2
            # Of a gradient of 1e3 update and scaled change are as learning rate * steps : scale.
            parts = jnp.asarray([0.1 * 2, config.control_scale])
            weights = parts / jnp.linalg.norm(parts)
            total += weights[0] * update + weights[1] * control
            state, kept = after, info.kept
        return total

    many = jax.jit(jax.vmap(run, (0, None)))
    scores = []
    for world, ids in enumerate(([0, 1], [-1, 1])):
        keys = jax.vmap(jax.random.key)(jnp.arange(4000) + 10_000 * world)
        scores.append(np.asarray(many(keys, jnp.asarray(ids)), np.float64))
    pooled = np.sqrt((scores[0].var(ddof=1) + scores[1].var(ddof=1)) / 2)
    return (scores[0].mean() - scores[1].mean()) / pooled


@pytest.mark.slow(reason="plays thousands of runs")
def test_an_audit_of_two_rounds_finds_what_is_certified_and_no_more():
    with jax.debug_key_reuse(False):
        # Everybody in both rounds: two Gaussian mechanisms, mu = sqrt(2) / noise_multiplier.
        # Standard error of a difference of means of 4,000: sqrt(2 / 4000) = 0.0224.
        assert abs(separation(2.0) - np.sqrt(2) / 2) <= 5 * 0.0224
        assert separation(1.0) > np.sqrt(2) / 2 + 5 * 0.0224  # half of the noise is found out


@pytest.mark.slow(reason="plays thousands of rounds")
@BOTH
def test_no_attack_on_two_rounds_beats_the_claim_and_one_on_less_noise_does(scheme, config, key):
    small = games.config(scheme.__name__.rpartition(".")[2], noise_multiplier=1.0)
    game = games.one_unit(scheme.SCHEME, small, num_rounds=2)
    scores = games.play(game, key, 10_000)
    found = games.judge(game.event, scores, delta=0.05, confidence=1 - 1e-4)
    assert found.holds and found.measured > 0.1 * found.certified
    quiet = games.one_unit(
        scheme.SCHEME, dataclasses.replace(small, noise_multiplier=0.25), num_rounds=2
    )
    broken = games.play(quiet, jax.random.clone(key), 10_000)
    assert games.judge(game.event, broken, delta=0.05, confidence=1 - 1e-4).holds is False


@BOTH
def test_who_is_not_in_a_round_or_overflows_keeps_what_it_kept(scheme, config, key):
    data = the_clients()
    _, kept = several_rounds(scheme, config, data, COHORTS[:2], key)
    huge = data._replace(examples=data.examples | {"x": data.examples["x"].at[5].set(1e30)})
    ids = [4, 1, 0, -1, -1]  # row 5 is client 1's only one
    state, new = a_round(scheme, config, huge, ids, kept, key)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))
    for old, now in zip(jax.tree.leaves(kept), jax.tree.leaves(new), strict=True):
        assert np.asarray(old)[[1, 0, 0]].tobytes() == np.asarray(now)[[1, 3, 4]].tobytes()
        assert not np.array_equal(old[4], now[0])


@pytest.mark.slow(reason="compiles rounds for 8 devices")
@BOTH
def test_the_bits_are_the_same_on_eight_devices(scheme, config, key):
    """One device has another program, where XLA may round otherwise."""
    noisy, found = dataclasses.replace(config, noise_multiplier=1.0), []
    performance = Performance(groups=16, chunk_size=1)
    for devices in (1, 2, 8):
        with mesh.over(mesh.client_mesh(devices, groups=16)):
            compiled.cache_clear()
            end = several_rounds(
                scheme, noisy, the_clients(), COHORTS[:2], key, performance=performance
            )
            found.append([np.asarray(leaf) for leaf in jax.tree.leaves(end)])
    compiled.cache_clear()
    for one, two, eight in zip(*found, strict=True):
        assert two.tobytes() == eight.tobytes()
        np.testing.assert_allclose(one, two, rtol=0, atol=1e-6)


@pytest.mark.slow(reason="compiles one more round", but=["2-scaffold"])
@BOTH
@pytest.mark.parametrize("chunk_size", [2, 4])
def test_chunks_change_the_order_of_additions_only(scheme, config, chunk_size, key):
    one = several_rounds(scheme, config, the_clients(), COHORTS, key)
    chunked = Performance(chunk_size=chunk_size)
    other = several_rounds(scheme, config, the_clients(), COHORTS, key, performance=chunked)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)


@pytest.mark.slow(reason="compiles the rounds of one more scheme", but=["scaffold"])
@BOTH
def test_clients_of_whom_nothing_is_said_are_new(scheme, config, key):
    made, run = compiled(scheme, config)
    members = cohort(the_clients(), jnp.arange(N, dtype=jnp.int32))
    known = members._replace(kept=nothing_kept(scheme, config))
    ends = [run(made.init(start()), each, jax.random.clone(key)) for each in (members, known)]
    for a, b in zip(*[jax.tree.leaves((end[0], end[1].kept)) for end in ends], strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_a_control_variate_wants_plain_steps():
    with pytest.raises(ValueError, match="Expected local_optimizer=None, since a control variate"):
        dp_scaffold.make(SCAFFOLD, loss, num_units=10, local_optimizer=optax.adam(0.1))


@pytest.mark.parametrize("names", ["tail", "shared,head"])
def test_layers_that_are_not_there_or_all_of_them_are_refused(names):
    config = dataclasses.replace(FEDPER, personal_layers=names)
    with pytest.raises(ValueError, match="Expected personal_layers to name some of the layers"):
        dp_fedper.SCHEME.check_network(config, None, start(), None)
    with pytest.raises(ValueError, match="Expected personal_layers to name a layer"):
        dataclasses.replace(FEDPER, personal_layers=" , ")
