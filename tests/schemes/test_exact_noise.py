"""Noise in whole numbers: what one unit moves, what is drawn, and bits that no order changes."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax import data, errors, schemes
from fljax.attacks import rounds
from fljax.local import clipping
from fljax.schemes.base import Performance
from fljax.upload import exact_noise

N, DIM, CLIP = 8, 20, 0.5
PLAIN = Performance()
STEP = {"server_learning_rate": 1.0, "server_momentum": 0.0, "l2_clip_norm": CLIP}
UNITS = {
    "dp_fedavg": {"local_learning_rate": 1.0, "num_local_epochs": 1},
    "dp_fedsgd": {"privacy_unit": "client"},
    "examples": {"privacy_unit": "example"},
}


def config(case, **changes):
    made = {"noise": "exact", "noise_multiplier": 0.0, "sampling_prob": 1.0}
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
    pool = {"x": jnp.asarray(rows() if x is None else x)}
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


def grid(noise_multiplier=0.0):
    return exact_noise.grid(noise_multiplier, l2_clip_norm=CLIP, most_rows=N)


def unit(of):
    return CLIP / exact_noise.steps_of_norm(of, DIM)


@pytest.mark.parametrize("case", UNITS)
def test_without_noise_the_sum_is_that_of_clipped_rows_but_for_rounding(case, key):
    x = rows().astype(np.float64)
    clipped = x * np.minimum(1, CLIP / np.linalg.norm(x, axis=1, keepdims=True))
    got, info = released(case, key)
    # Each row is off by less than a step in each place; the model is of float32.
    assert np.abs(got - clipped.sum(axis=0)).max() <= N * unit(grid()) + 1e-6
    assert float(info.clipped_fraction) == np.mean(np.linalg.norm(x, axis=1) > CLIP)


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
        keys = jax.random.split(jax.random.fold_in(key, int(100 * multiplier)), N)
        for row in range(N):
            mask = jnp.arange(N) == row
            with jax.debug_key_reuse(False):
                total = exact_noise.total(of, {"w": jnp.asarray(x)}, factors, keys, mask)
            squared = int(np.sum(np.square(np.asarray(total["w"], np.int64))))
            assert squared <= of.most_squared_norm
            assert (squared == 0) == (row in (1, 3, 4, 5))


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


@pytest.mark.slow(reason="compiles rounds for 1, 2 and 8 devices")
@pytest.mark.parametrize("noise", ["exact", "float32"])
def test_bits_of_a_sum_depend_on_devices_and_chunks_in_floating_point_alone(noise, key):
    x = np.random.default_rng(1).normal(size=(N, DIM)).astype(np.float32)
    found = set()
    for chunk_size, devices in ((1, 1), (3, 1), (8, 1), (3, 2), (1, 8)):
        performance = Performance(chunk_size=chunk_size)
        given = {"performance": performance, "noise": noise, "noise_multiplier": 1.0}
        auto = (jax.sharding.AxisType.Auto,)
        some = jax.devices()[:devices]
        with jax.set_mesh(jax.make_mesh((devices,), ("clients",), axis_types=auto, devices=some)):
            found.add(released("dp_fedavg", key, x, **given)[0].tobytes())
    assert len(found) == 1 if noise == "exact" else len(found) > 1


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
        lambda: grid(1e-3),
        lambda: exact_noise.grid(1.0, l2_clip_norm=1e-31, most_rows=1),
        lambda: exact_noise.grid(1.0, l2_clip_norm=1.0, most_rows=2**20),
        lambda: exact_noise.steps_of_norm(grid(40.0), 10**6),
    ],
)
def test_what_is_out_of_range_is_refused(call):
    with pytest.raises(ValueError, match="Expected"):
        call()


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
