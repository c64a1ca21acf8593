"""Noise in whole numbers, of servers, silos and clients: what one unit moves, what is drawn, and
bits that no order changes.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
import fljax_kernels
from fljax import data, errors, schemes
from fljax.attacks import replay, rounds
from fljax.cli import simulate
from fljax.data.subjects import SUBJECT
from fljax.local import clipping, subject
from fljax.schemes import exact
from fljax.schemes.base import Performance
from fljax.simulation import config as config_lib
from fljax.upload import exact_noise

N, DIM, CLIP = 8, 20, 0.5
PLAIN = Performance()
STEP = {"server_learning_rate": 1.0, "server_momentum": 0.0, "l2_clip_norm": CLIP}
CLIENTS = {"local_learning_rate": 1.0, "num_local_epochs": 1}
SILOS = {"local_learning_rate": 1.0, "num_local_steps": 1, "num_parties": N}
SILOS |= {"item_sampling_prob": 1.0}
PARTIES = CLIENTS | {"num_parties": N, "max_stragglers": 0, "straggler_law": "fixed"}
UNITS = {
    "dp_fedavg": CLIENTS | {"sampling_prob": 1.0},
    "dp_fedbuff": PARTIES | {"buffer_size": N},
    "dp_fedsgd": {"privacy_unit": "client", "sampling_prob": 1.0},
    "examples": {"privacy_unit": "example", "sampling_prob": 1.0},
    "higradavg": SILOS | {"expected_subjects": 1.0, "max_items_per_subject": 4},
    "local_dp": PARTIES,
    "local_item_dp": SILOS | {"expected_items": 1.0},
    "user_ldp": SILOS,
}
# What a unit moves, in the longest rows that there are.
NORMS_MOVED = {"local_dp": 2.0, "user_ldp": 2.0}
FEW = [
    pytest.param(case, marks=pytest.mark.slow(reason="compiles rounds; others stand for it"))
    if case != "dp_fedavg"
    else case
    for case in UNITS
]
ALL = [name for name in schemes.NAMES if issubclass(schemes.get(name).Config, exact.ExactConfig)]


def config(case, **changes):
    made = {"noise": "exact", "noise_multiplier": 0.0}
    return scheme_of(case).Config(**{**STEP, **UNITS[case], **made, **changes})


def scheme_of(case):
    return schemes.get("dp_fedsgd" if case == "examples" else case)


def linear_loss(params, example):
    """Its gradient is the example."""
    return jnp.vdot(params["w"], example["x"])


@functools.cache
def rows():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, DIM)) * rng.lognormal(0, 2, (N, 1))
    return np.asarray(x, np.float32)


def cohort(x=None):
    pool = {"x": jnp.asarray(rows() if x is None else x), SUBJECT: jnp.arange(N)}
    table = jnp.arange(N, dtype=jnp.int32)[:, None]
    return data.cohort(data.ClientData(pool, table), jnp.arange(N))


@functools.cache
def jitted(case, changes, performance):
    made = config(case, **dict(changes))
    algorithm = scheme_of(case).make(made, linear_loss, num_units=N, performance=performance)
    return algorithm.init, jax.jit(algorithm.round)


def released(case, key, x=None, performance=PLAIN, **changes):
    """The round's mean, times the number of units: the sum that was released, in float64."""
    init, round_fun = jitted(case, tuple(sorted(changes.items())), performance)
    state, info = round_fun(init({"w": jnp.zeros(DIM)}), cohort(x), jax.random.clone(key))
    return -N * np.asarray(state.params["w"], np.float64), info


def grid(noise_multiplier=0.0, **changes):
    return exact_noise.grid(noise_multiplier, **{"l2_clip_norm": CLIP, "most_rows": N} | changes)


def unit(of):
    return CLIP / exact_noise.steps_of_norm(of, DIM)


@pytest.mark.parametrize("case", FEW)
def test_without_noise_the_sum_is_that_of_clipped_rows_but_for_rounding(case, key):
    x = rows().astype(np.float64)
    clipped = x * np.minimum(1, CLIP / np.linalg.norm(x, axis=1, keepdims=True))
    got, info = released(case, key)
    # Each row is off by less than a step in each place, and shorter by two, so that rounding does
    # not make it too long; the model is of float32.
    assert np.abs(got - clipped.sum(axis=0)).max() <= 3 * N * unit(grid()) + 2e-6
    assert float(info.clipped_fraction) == np.mean(np.linalg.norm(x, axis=1) > CLIP)


@pytest.mark.slow(reason="replays rounds of one more unit", but=["dp_fedavg"])
@pytest.mark.parametrize("case", ["dp_fedavg", "examples"])
def test_a_replay_moves_the_sum_by_no_more_than_the_noise_is_for(case, key):
    multiplier = 2.0
    of = grid(multiplier)
    init, round_fun = jitted(case, (("noise_multiplier", multiplier),), PLAIN)

    def sum_in_steps(x, mask):
        made = cohort(jnp.where(mask[:, None], x, 0.0))
        ids = jnp.where(mask, made.client_ids, -1)
        with jax.debug_key_reuse(False):
            state, _ = round_fun(init({"w": jnp.zeros(DIM)}), made._replace(client_ids=ids), key)
        return -N * state.params["w"] / unit(of)

    declared = exact_noise.STDDEV / multiplier
    found = fljax.check_sensitivity(
        sum_in_steps, 100 * rows(), sensitivity=declared, neighboring_relation="ADD_OR_REMOVE_ONE"
    )
    assert 0.98 * declared <= found.measured
    with pytest.raises(errors.SensitivityError):
        fljax.check_sensitivity(sum_in_steps, 100 * rows(), sensitivity=0.9 * declared)


def test_no_row_is_longer_than_noise_is_sized_for_whatever_it_holds(key):
    for multiplier in (0.05, 1.0, 7.3):
        of = grid(multiplier)
        assert multiplier * math.sqrt(of.most_squared_norm) <= exact_noise.STDDEV
        assert multiplier * math.sqrt(of.most_squared_norm + 1) >= exact_noise.STDDEV
        x = rows() * np.float32([1, 1e-30, 1e30, np.inf, np.nan, 0, 1e6, 1])[:, None]
        factors = clipping.flat(clipping.joint_norm(clipping.leaf_norms({"w": x})), CLIP)
        made, places = jax.random.fold_in(key, int(100 * multiplier)), jnp.arange(N)
        total = jax.jit(functools.partial(exact_noise.total, of))
        for row in range(N):
            mask = jnp.arange(N) == row
            with jax.debug_key_reuse(False):
                found = total({"w": jnp.asarray(x)}, factors, made, places, mask)
            squared = int(np.sum(np.square(np.asarray(found["w"], np.int64))))
            assert squared <= of.most_squared_norm
            assert (squared == 0) == (row in (1, 3, 4, 5))


def test_rows_of_factors_have_1024_steps_or_noise_has_8192():
    for multiplier in (0.05, 1.0, 2.0, 2.01, 8.1, 300.0):
        for changes in ({}, {"norms_moved": 2.0}, {"most_parts": 3}):
            of = grid(multiplier, of_factors=True, **changes)
            moved = multiplier * changes.get("norms_moved", 1.0)
            # What privacy rests on, whatever the noise's steps.
            assert moved * math.sqrt(of.most_squared_norm) <= of.stddev
            assert moved * math.sqrt(of.most_squared_norm + 1) >= of.stddev
            row = math.sqrt(of.most_squared_norm) / of.most_parts
            assert of.stddev in (2048, 4096, 8192) and (row >= 1023 or of.stddev == 8192)
            assert of.stddev == 2048 or row < 2048
            assert grid(multiplier, **changes).stddev == 2048


def test_little_noise_on_many_parts_has_as_many_steps_as_a_whole_row_may_have():
    for multiplier, parts, stddev in ((0.1, 50, 4096), (0.05, 100, 2048), (0.2, 50, 8192)):
        of = grid(multiplier, of_factors=True, most_parts=parts)
        assert of.stddev == stddev and of.most_squared_norm <= 65535**2
        assert multiplier * math.sqrt(of.most_squared_norm) <= stddev


@pytest.mark.slow(reason="compiles the round of one more scheme", but=["user_ldp"])
@pytest.mark.parametrize("case", ["local_dp", "user_ldp"])
def test_every_silo_and_client_has_noise_for_what_its_own_unit_moves(case, key):
    multiplier = 3.0
    draws = (jax.random.fold_in(key, i) for i in range(60))
    one = lambda key: released(case, key, 0 * rows(), noise_multiplier=multiplier)[0]
    noise = np.concatenate([one(key) for key in draws])
    moved = NORMS_MOVED[case]
    of = grid(multiplier, norms_moved=moved, of_factors=case != "local_dp")
    stddev = math.sqrt(N) * of.stddev * unit(of)
    assert abs(noise.std() / stddev - 1) <= 5 / math.sqrt(2 * noise.size)
    assert abs(noise.mean()) <= 5 * stddev / math.sqrt(noise.size)
    assert 1 <= stddev / (math.sqrt(N) * moved * multiplier * CLIP) <= 1.02


def test_the_noise_of_a_round_is_the_configured_multiple_of_what_a_unit_moves(key):
    multiplier = 3.0
    noise = np.concatenate(
        [
            released("dp_fedavg", jax.random.fold_in(key, i), 0 * rows(), noise_multiplier=3.0)[0]
            for i in range(60)
        ]
    )
    stddev = exact_noise.STDDEV * unit(grid(multiplier))
    assert abs(noise.std() / stddev - 1) <= 5 / math.sqrt(2 * noise.size)
    assert abs(noise.mean()) <= 5 * stddev / math.sqrt(noise.size)
    # No longer than the clip norm times the noise multiplier, but for what rounding takes.
    assert 1 <= stddev / (multiplier * CLIP) <= 1.01
    # Whole numbers of steps, as far as float32 tells.
    steps = noise / unit(grid(multiplier))
    assert np.abs(steps - np.round(steps)).max() <= 1e-2


def on_devices(case, count, key, x, **given):
    auto, some = (jax.sharding.AxisType.Auto,), jax.devices()[:count]
    with jax.set_mesh(jax.make_mesh((count,), ("clients",), axis_types=auto, devices=some)):
        return released(case, key, x, noise_multiplier=1.0, **given)[0].tobytes()


@pytest.mark.slow(reason="compiles rounds for 1, 2 and 8 devices")
@pytest.mark.parametrize(
    ("case", "noise"), [("dp_fedavg", "exact"), ("dp_fedavg", "float32"), ("local_dp", "exact")]
)
def test_bits_of_a_sum_depend_on_devices_and_chunks_in_floating_point_alone(case, noise, key):
    x = np.random.default_rng(1).normal(size=(N, DIM)).astype(np.float32)
    found = set()
    for chunk_size, devices in ((1, 1), (8, 1), (3, 2), (1, 8)):
        performance = Performance(chunk_size=chunk_size)
        found.add(on_devices(case, devices, key, x, performance=performance, noise=noise))
    assert len(found) == 1 if noise == "exact" else len(found) > 1


@pytest.mark.slow(reason="compiles rounds for 1, 2 and 8 devices")
def test_uploads_of_silos_have_the_same_bits_on_any_number_of_devices(key):
    x = np.random.default_rng(1).normal(size=(N, DIM)).astype(np.float32)
    # What silos upload is noised, and their mean a function of that: in an order that is fixed.
    given = {"performance": Performance(groups=8)}
    found = {on_devices("higradavg", devices, key, x, **given) for devices in (1, 2, 8)}
    assert len(found) == 1


def layer_loss(params, example):
    """Its gradient is x (outer) y."""
    return jnp.vdot(example["x"] @ params["w"], example["y"])


def silo_of_layers():
    """Examples whose gradients are clipped, or are not; 4 subjects have 2, 3, 1 and 2."""
    rng = np.random.default_rng(3)
    x, y = (rng.normal(size=(N, size)).astype(np.float32) for size in (DIM, 9))
    x *= rng.lognormal(-2, 2, (N, 1)).astype(np.float32)
    x[5], x[6] = x[4], -x[4]  # alike, the worst case for rounding, and opposed
    pool = {"x": jnp.asarray(x), "y": jnp.asarray(y)}
    return pool | {SUBJECT: jnp.asarray([0, 0, 1, 1, 1, 2, 3, 3])}


@pytest.mark.slow(reason="compiles the sum of one more query", but=["True"])
@pytest.mark.parametrize("per_subject", [True, False])
def test_a_silos_sum_moves_by_no_more_than_one_longest_row_whoever_is_left_out(per_subject, key):
    """The same keys, without noise: of whole numbers, in whole numbers."""
    of = grid(1.7, most_parts=4 if per_subject else 1)
    options = {"item_sampling_prob": 0.9, "l2_clip_norm": CLIP, "batch_size": 3}
    options["add_up"] = functools.partial(exact_noise.total_of_gradients, of)
    make = subject.hierarchical_average if per_subject else subject.item_sum
    query, examples = make(layer_loss, **options), silo_of_layers()

    @jax.jit
    def sums(key, without):
        mine = examples[SUBJECT] if per_subject else jnp.arange(N)
        rows = jnp.where(mine == without, -1, jnp.arange(N, dtype=jnp.int32))
        return query({"w": jnp.zeros((DIM, 9))}, examples, rows, key).grad_sum["w"]

    largest = 0
    for i in range(40):
        made = jax.random.fold_in(key, i)
        with jax.debug_key_reuse(False):
            found = [np.asarray(sums(made, unit), np.int64) for unit in range(-1, N)]
        moved = [np.sum(np.square(one - found[0])) for one in found[1:]]
        largest = max(largest, *moved)
    assert 0.9 * of.most_squared_norm <= largest <= of.most_squared_norm


@pytest.mark.slow(reason="compiles two rounds; an audit of lowest bits plays the same orders")
@pytest.mark.parametrize("noise", ["exact", "float32"])
def test_the_order_of_a_silos_sum_shows_in_floating_point_alone(noise, key):
    x = np.random.default_rng(1).normal(size=(N, DIM)).astype(np.float32)
    pool = {"x": jnp.asarray(x), SUBJECT: jnp.arange(N) // 2}
    table = jnp.full((N, N), -1, jnp.int32).at[0].set(jnp.arange(N))
    found = set()
    for size in (1, 3):
        performance = Performance(microbatch_size=size)
        given = (("noise", noise), ("noise_multiplier", 1.0))
        init, round_fun = jitted("higradavg", given, performance)
        alone = data.cohort(data.ClientData(pool, table), jnp.where(jnp.arange(N) == 0, 0, -1))
        state, _ = round_fun(init({"w": jnp.zeros(DIM)}), alone, jax.random.clone(key))
        found.add(np.asarray(state.params["w"]).tobytes())
    assert len(found) == 1 if noise == "exact" else len(found) > 1


def test_a_row_is_shortened_by_what_rounding_its_own_entries_may_add(key):
    of = grid(20.0)
    longest = math.sqrt(of.most_squared_norm)
    only = jnp.zeros(1, jnp.int32), jnp.ones(1, bool)
    draw = lambda key, x: exact_noise.total(of, x, jnp.ones(1), key, *only)
    draws = jax.jit(jax.vmap(draw, (0, None)))
    for count in (1, 100, 7000):
        x = np.where(np.arange(7000) < count, CLIP / math.sqrt(count), 0.0)[None]
        with jax.debug_key_reuse(False):
            z = np.asarray(draws(jax.random.split(key, 200), x.astype(np.float32)), np.int64)
        assert (np.sum(z**2, axis=1) <= of.most_squared_norm).all() and z.any(axis=1).all()
        length = np.linalg.norm(z.mean(axis=0)[:count])
        # Squares are smaller by a quarter of each entry that is not 0 and four standard deviations.
        shorter = (count / 4 + 4 * (longest + math.sqrt(7000) / 2)) / (2 * longest)
        error = math.sqrt(count) * 0.5 / math.sqrt(200)  # of a mean of 200 roundings
        assert longest - 1.1 * shorter - error <= length <= longest + error


def test_parts_of_a_row_are_together_no_longer_than_one(key):
    parts = jnp.asarray([1, 2, 2, 4, 4, 4, 4, 70_000])
    for multiplier in (1.0, 7.3):
        of = grid(multiplier, most_parts=4)
        # All of one direction, the worst case, and longer than they should be.
        x = {"x": jnp.tile(jnp.asarray(rows()[:1]), (N, 1))}
        factors = lambda norms: 1.001 * CLIP / (norms * parts.astype(jnp.float32))
        longest = math.sqrt(of.most_squared_norm)

        def sums(key, mask, of=of, factors=factors, x=x):
            G = fljax_kernels.per_example_grads(linear_loss)
            made = G({"w": jnp.zeros(DIM)}, x, batch_mask=mask)
            places = jnp.arange(N)
            return exact_noise.total_of_gradients(of, made, factors, key, places, parts=parts)[0]

        sums = jax.jit(sums)
        for count in (1, 2, 4, 70_000):
            mask, found = parts == count, []
            for i in range(8):
                keys = jax.random.fold_in(key, int(100 * multiplier) + 8 * count + i)
                found.append(np.linalg.norm(np.asarray(sums(keys, mask)["w"], np.float64)))
            assert max(found) <= longest
            assert max(found) >= 0.95 * longest or count > 4


def test_epsilon_is_that_of_the_same_noise_in_floating_point():
    for case in UNITS:
        both = [
            scheme_of(case).event(config(case, noise=noise, noise_multiplier=1.1))
            for noise in ("exact", "float32")
        ]
        assert both[0] == both[1]


def test_a_model_without_privacy_is_not_rounded():
    for case in UNITS:
        assert scheme_of(case).non_private(config(case)).noise == "float32"


@pytest.mark.parametrize(
    "call",
    [
        lambda: config("dp_fedavg", target_quantile=0.5),
        lambda: config("dp_fedavg", correlation="banded", sampling_prob=0.2),
        lambda: config("dp_fedsgd", clipping_style="per_layer"),
        lambda: config("dp_fedsgd", noise="integer"),
        lambda: config("higradavg", silo_noise=(1.0, *[2.0] * (N - 1))),
        lambda: config("higradavg", formula="paper"),
        lambda: grid(1.0, most_rows=10**5, noise_of_each=True),
        lambda: exact_noise.steps_of_norm(grid(4.0, most_parts=16), 10**4),
        lambda: grid(1e-3),
        lambda: exact_noise.grid(1.0, l2_clip_norm=1e-31, most_rows=1),
        lambda: exact_noise.grid(1.0, l2_clip_norm=1.0, most_rows=2**20),
        lambda: exact_noise.steps_of_norm(grid(40.0), 10**6),
    ],
)
def test_what_is_out_of_range_is_refused(call):
    with pytest.raises(ValueError, match="Expected"):
        call()


def test_a_scheme_without_exact_noise_refuses_only_what_says_how_noise_is_drawn():
    scheme = schemes.get("lightdp")
    exact.check_known(scheme, {"l2_clip_norm": 1.0})
    with pytest.raises(ValueError, match="Expected a scheme that offers noise='exact'"):
        exact.check_known(scheme, {"noise": "exact"})


def test_wrapping_around_is_refused_where_a_silo_has_too_many_rows(key):
    made = config("local_item_dp", noise_multiplier=0.04, num_parties=1)
    of = schemes.get("local_item_dp").make(made, linear_loss, num_units=1)
    table = jnp.zeros((1, 2**16), jnp.int32)
    many = data.cohort(data.ClientData({"x": jnp.zeros((1, DIM))}, table), jnp.arange(1))
    with pytest.raises(ValueError, match="wrap around"):
        jax.eval_shape(of.round, of.init({"w": jnp.zeros(DIM)}), many, key)


@pytest.mark.parametrize("name", ["lightdp", "skellam", "dp_ftrl"])
def test_schemes_without_it_say_so_by_name_and_value(name):
    assert name not in ALL
    sections = {"scheme": {"scheme": name, "noise": "exact"}}
    why = "several clients" if schemes.get(name).noise_at == "client" else "float32 alone"
    with pytest.raises(ValueError, match=f"offers noise='exact', got noise='exact' .*{why}"):
        config_lib.from_sections(sections)
    with pytest.raises(ValueError, match=why):
        simulate.parse(["--scheme", name, "--noise", "exact"])


def test_every_scheme_with_gaussian_noise_of_one_draw_has_it():
    assert ALL == [
        "dp_fedavg",
        "dp_fedbuff",
        "dp_fedper",
        "dp_fedsgd",
        "dp_psac",
        "dp_scaffold",
        "dp_sgd",
        "higradavg",
        "item_sum_cap",
        "local_dp",
        "local_group_dp",
        "local_item_dp",
        "user_ldp",
    ]


# One for each kind of row; "neighbours" of test_contracts.py is a replay of all, without a control.
OF_EACH_KIND = ("dp_fedavg", "dp_fedsgd", "dp_sgd", "higradavg", "user_ldp", "local_dp")


@pytest.mark.slow(reason="replays rounds, and compiles each scheme for that")
@pytest.mark.parametrize("name", OF_EACH_KIND)
def test_a_replay_of_exact_rounds_holds_and_half_the_noise_is_caught(name, key):
    scheme = schemes.get(name)
    found = replay.replay(
        scheme, dataclasses.replace(replay.least_config(scheme), noise="exact"), key
    )
    assert found.holds is True
    assert found.control.measured > 1.8 * found.report.measured


@pytest.mark.slow(reason="plays a game of thousands of rounds; a replay of the same rounds is not")
def test_an_attacker_tells_no_more_apart_than_is_certified_and_half_the_noise_is_caught(key):
    scheme = schemes.get("dp_fedavg")
    made = dataclasses.replace(
        rounds.config("dp_fedavg", noise_multiplier=1.0), noise="exact", sampling_prob=1.0
    )
    scores, found = rounds.play(rounds.one_unit(scheme, made), key, 4000), []
    for told in (made, dataclasses.replace(made, noise_multiplier=2.0)):
        found.append(rounds.judge(scheme.event(told), scores, delta=0.05, confidence=0.99))
    assert found[0].holds and not found[1].holds
    assert found[0].measured > 0.1 * found[0].certified
