"""Clipping styles and bounds that adapt, in the schemes with central noise: sums, sensitivities,
noise, checkpoints.
"""

import contextlib
import dataclasses
import functools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.data.cohorts import ClientData, cohort
from fljax.errors import PrivacyPreconditionError
from fljax.local import quantile
from fljax.schemes.central import dp_fedavg, dp_fedsgd
from fljax.server.rounds import Performance
from fljax.simulation.record.checkpoint import Checkpoints, Saved

NUM_UNITS, CLIP, RATE = 10, 0.7, 0.2
PARAMS = {"w": jnp.array([0.5, -1.0, 2.0]), "b": jnp.float32(0.3)}
FEDAVG = dp_fedavg.Config(
    sampling_prob=1.0,
    l2_clip_norm=CLIP,
    noise_multiplier=0.0,
    local_learning_rate=0.1,
    local_batch_size=8,
    num_local_epochs=1,
    server_learning_rate=1.0,
    server_momentum=0.0,
)
CLIENT = dp_fedsgd.Config(
    privacy_unit="client",
    sampling_prob=1.0,
    l2_clip_norm=CLIP,
    noise_multiplier=0.0,
    server_learning_rate=1.0,
    server_momentum=0.0,
)
EXAMPLE = dataclasses.replace(CLIENT, privacy_unit="example")
LEVELS = {
    "dp_fedavg": (dp_fedavg, FEDAVG),
    "client": (dp_fedsgd, CLIENT),
    "example": (dp_fedsgd, EXAMPLE),
}


def loss(params, example):
    return 0.5 * jnp.square(jnp.dot(params["w"], example["x"]) + params["b"] - example["y"])


@pytest.fixture
def clients():
    """Six clients of one record each, so that a client's mean gradient is its record's; the last
    record is zero.
    """
    rng = np.random.default_rng(7)
    x, y = rng.normal(size=(6, 3)).astype(np.float32), rng.normal(size=6).astype(np.float32)
    x[5], y[5] = 0, 0.3  # the prediction is 0.3 too: no gradient
    return ClientData(
        {"x": jnp.asarray(x), "y": jnp.asarray(y)}, jnp.arange(6, dtype=jnp.int32)[:, None]
    )


def rows64(data, scale=1.0):
    """Gradients `[6, 4]` of the records at PARAMS, times what the scheme makes of them."""
    x, y = (np.asarray(data.examples[name], np.float64) for name in ("x", "y"))
    error = x @ np.asarray(PARAMS["w"], np.float64) + 0.3 - y
    return scale * error[:, None] * np.concatenate([x, np.ones((6, 1))], axis=1)


def clipped64(rows, style, bound):
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    if style == "flat":
        return rows * np.minimum(1, bound / np.maximum(norms, 1e-30))
    if style == "auto_s":
        return rows * bound / (norms + 0.01)
    if style == "psac":
        return rows * bound / (norms + 0.1 / (norms + 0.1))
    parts = [rows[:, :3], rows[:, 3:]]  # per layer: two arrays
    return np.concatenate([clipped64(part, "flat", bound / math.sqrt(2)) for part in parts], axis=1)


@functools.cache  # one compilation a configuration
def compiled(scheme, config):
    performance = Performance(microbatch_size=4)  # two a round of records
    algorithm = scheme.make(config, loss, num_units=NUM_UNITS, performance=performance)
    return algorithm, jax.jit(algorithm.round)


def released(scheme, config, data, ids, key):
    """(the sum, the centred count that the new bound tells of) of one round without noise."""
    algorithm, round_fun = compiled(scheme, config)
    state, _ = round_fun(
        algorithm.init(PARAMS), cohort(data, jnp.asarray(ids)), jax.random.clone(key)
    )
    step = {
        k: np.asarray(PARAMS[k], np.float64) - np.asarray(state.params[k], np.float64)
        for k in PARAMS
    }
    total = np.append(step["w"], step["b"]) * NUM_UNITS
    if config.target_quantile is None:
        assert state.clipping == ()
        return total, 0.0
    log = math.log(float(state.clipping.l2_clip_norm) / CLIP)
    return total, (config.target_quantile - log / RATE - 0.5) * NUM_UNITS


EVERYONE = list(range(6))


@pytest.mark.slow(reason="compiles rounds in every clipping style")
@pytest.mark.parametrize("style", ["flat", "per_layer", "auto_s", "psac"])
@pytest.mark.parametrize("level", LEVELS)
def test_a_round_is_the_sum_in_the_configured_style_and_one_unit_moves_it_by_at_most_the_bound(
    level, style, clients, key
):
    scheme, config = LEVELS[level]
    config = dataclasses.replace(config, clipping_style=style)
    scale = config.local_learning_rate if level == "dp_fedavg" else 1.0
    # Read back from float32 parameters of order 2, times 10.
    expected = clipped64(rows64(clients, scale), style, CLIP).sum(axis=0)
    np.testing.assert_allclose(
        released(scheme, config, clients, EVERYONE, key)[0], expected, rtol=1e-5, atol=5e-6
    )
    large = clients._replace(examples=jax.tree.map(lambda leaf: 100 * leaf, clients.examples))
    total, _ = released(scheme, config, large, EVERYONE, key)
    free, _ = released(scheme, scheme.non_private(config), large, EVERYONE, key)
    moves, control = [], []
    for unit in EVERYONE:
        ids = [i if i != unit else -1 for i in EVERYONE]
        moves.append(np.linalg.norm(total - released(scheme, config, large, ids, key)[0]))
        control.append(
            np.linalg.norm(free - released(scheme, scheme.non_private(config), large, ids, key)[0])
        )
    assert 0.98 * CLIP <= max(moves) <= CLIP + 2e-5
    assert max(control) > 10 * CLIP  # the check can fail


@pytest.mark.slow(reason="compiles rounds in every clipping style")
@pytest.mark.parametrize("level", LEVELS)
def test_one_unit_moves_sum_and_count_of_an_adaptive_round_by_at_most_the_bound_and_a_half(
    level, clients, key
):
    scheme, config = LEVELS[level]
    config = dataclasses.replace(config, target_quantile=0.7)
    scale = config.local_learning_rate if level == "dp_fedavg" else 1.0
    norms = np.linalg.norm(rows64(clients, scale), axis=1)
    total, count = released(scheme, config, clients, EVERYONE, key)
    np.testing.assert_allclose(
        total, clipped64(rows64(clients, scale), "flat", CLIP).sum(axis=0), atol=5e-6
    )
    # Six bits, each 1/2 or -1/2; read back through a float32 logarithm, over a rate of 0.2 / 10.
    assert count == pytest.approx(np.where(norms <= CLIP, 0.5, -0.5).sum(), abs=1e-4)
    assert (norms <= CLIP).any() and (level == "dp_fedavg" or (norms > CLIP).any())
    for unit in EVERYONE:
        without, fewer = released(
            scheme, config, clients, [i if i != unit else -1 for i in EVERYONE], key
        )
        assert np.linalg.norm(total - without) <= CLIP + 2e-5
        assert abs(count - fewer) == pytest.approx(0.5, abs=1e-4)


def distinguishing_mu(config, clients):
    """How far apart 4,000 rounds with and without one unit lie, for who sees the model and the new
    bound.
    """
    algorithm = dp_fedavg.make(config, loss, num_units=NUM_UNITS)
    state = algorithm.init(PARAMS)

    def view(key, members):
        new, _ = algorithm.round(state, members, key)
        return jnp.concatenate(
            [new.params["w"], new.params["b"][None], jnp.log(new.clipping.l2_clip_norm)[None]]
        )

    many = jax.jit(jax.vmap(view, (0, None)))
    worlds = []
    for world, ids in enumerate([[0, 1, 2], [-1, 1, 2]]):
        keys = jax.vmap(jax.random.key)(jnp.arange(4000) + 10_000 * world)
        worlds.append(np.asarray(many(keys, cohort(clients, jnp.asarray(ids))), np.float64))
    covariance = (np.cov(worlds[0].T) + np.cov(worlds[1].T)) / 2
    # The best direction is known without looking at the draws: that of the exact difference of the
    # means.
    clean = dp_fedavg.make(
        dataclasses.replace(config, noise_multiplier=0.0), loss, num_units=NUM_UNITS
    )
    ends = []
    for ids in ([0, 1, 2], [-1, 1, 2]):
        new, _ = clean.round(state, cohort(clients, jnp.asarray(ids)), jax.random.key(0))
        ends.append(
            np.array(
                [*new.params["w"], new.params["b"], jnp.log(new.clipping.l2_clip_norm)], np.float64
            )
        )
    direction = np.linalg.solve(covariance, ends[0] - ends[1])
    gap = (worlds[0].mean(axis=0) - worlds[1].mean(axis=0)) @ direction
    return gap / math.sqrt(direction @ covariance @ direction)


@pytest.mark.slow(reason="compiles rounds in every clipping style")
def test_an_audit_of_model_and_bound_together_finds_the_certified_separation_and_no_more(
    clients, monkeypatch
):
    # Every unit joins: a round is exactly mu-GDP with mu = 1 / noise multiplier, bound and count
    # together.
    large = clients._replace(
        examples={**clients.examples, "y": clients.examples["y"].at[0].set(100.0)}
    )
    config = dataclasses.replace(
        FEDAVG, noise_multiplier=2.0, target_quantile=0.5, count_stddev=1.2
    )
    # Standard error of a difference of two means of 4,000, in pooled deviations: sqrt(2 / 4000) =
    # 0.0224.
    assert abs(distinguishing_mu(config, large) - 0.5) <= 5 * 0.0224
    # Positive control: a sum that keeps all of the noise multiplier, as if the count were free, is
    # found out: sqrt(1 / 2**2 + 1 / 2.4**2) = 0.65.
    monkeypatch.setattr(
        quantile, "sum_noise_multiplier", lambda noise_multiplier, count_stddev: noise_multiplier
    )
    assert distinguishing_mu(config, large) > 0.5 + 5 * 0.0224


@pytest.mark.slow(reason="compiles rounds in every clipping style")
def test_a_bound_that_adapts_travels_through_checkpoints_bit_for_bit(clients, key, tmp_path):
    config = dataclasses.replace(
        EXAMPLE, noise_multiplier=0.5, target_quantile=0.4, server_momentum=0.9
    )
    algorithm, round_fun = compiled(dp_fedsgd, config)
    everyone = cohort(clients, jnp.arange(6))

    def rounds(state, number):
        for _ in range(number):
            state, _ = round_fun(state, everyone, jax.random.clone(key))
        return state

    start = algorithm.init(PARAMS)
    half = rounds(start, 2)
    with contextlib.closing(Checkpoints(tmp_path, "config")) as checkpoints:
        checkpoints.save(2, Saved(half, {}, 0))
    with contextlib.closing(Checkpoints(tmp_path, "config")) as checkpoints:
        restored = checkpoints.restore(algorithm.init(PARAMS)).state
    assert float(restored.clipping.l2_clip_norm) != CLIP
    resumed, straight = rounds(restored, 2), rounds(start, 4)
    chex.assert_trees_all_equal(resumed, straight)
    # Control: without the bound that had adapted, another model comes out.
    lost = rounds(restored._replace(clipping=start.clipping), 2)
    assert np.abs(lost.params["w"] - straight.params["w"]).max() > 1e-4


@pytest.mark.slow(reason="compiles rounds in every clipping style")
@pytest.mark.parametrize("level", LEVELS)
def test_bad_clipping_is_named_and_the_event_is_one_gaussian(level):
    scheme, config = LEVELS[level]
    with pytest.raises(ValueError, match="clipping_style='mean'"):
        dataclasses.replace(config, clipping_style="mean")
    with pytest.raises(ValueError, match=r"target_quantile=1\.0"):
        dataclasses.replace(config, target_quantile=1.0)
    with pytest.raises(ValueError, match="got clipping_style='psac'"):
        dataclasses.replace(config, target_quantile=0.5, clipping_style="psac")
    adaptive = dataclasses.replace(config, target_quantile=0.5, noise_multiplier=3.0)
    assert scheme.event(adaptive) == scheme.event(dataclasses.replace(config, noise_multiplier=3.0))
    # A 20th of ten expected units is 0.5.
    with pytest.raises(
        PrivacyPreconditionError, match=r"count_stddev=0\.5 and noise_multiplier=3\.0"
    ):
        scheme.make(adaptive, loss, num_units=NUM_UNITS)
    plain = scheme.non_private(dataclasses.replace(adaptive, count_stddev=4.0))
    assert (plain.clipping_style, plain.target_quantile, plain.noise_multiplier) == (
        "flat",
        None,
        0.0,
    )
