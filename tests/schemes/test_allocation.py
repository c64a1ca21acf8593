"""Units that are in k of t rounds: which, who knows, and what all rounds of a cycle tell of one."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import accounting
from fljax.accounting import events
from fljax.attacks import rounds
from fljax.data.cohorts import ClientData, cohort
from fljax.schemes import dp_fedavg, dp_fedper, dp_fedsgd
from fljax.schemes.central import turns
from fljax.server.rounds import Round

N, DIM, COUNT = 6, 4, 4
STEP = {"server_learning_rate": 1.0, "server_momentum": 0.0, "l2_clip_norm": 0.5}
MADE = {
    "sampling": "allocation",
    "allocation_rounds": COUNT,
    "sampling_prob": 0.5,
    "noise_multiplier": 0.0,
    **STEP,
}
CONFIGS = {
    "clients": (dp_fedavg, dp_fedavg.Config(**MADE)),
    "gradients": (dp_fedsgd, dp_fedsgd.Config(privacy_unit="client", **MADE)),
    "examples": (dp_fedsgd, dp_fedsgd.Config(privacy_unit="example", **MADE)),
}


def test_who_sits_out_has_no_rows():
    members = cohort(
        ClientData({"x": jnp.zeros(4)}, jnp.asarray([[0], [1], [2], [3]])),
        jnp.asarray([0, 1, 3, -1]),
    )
    here = Round(SimpleNamespace(round=jnp.int32(1)), members.examples, None)
    _, chosen = turns.choose(2)(here, members)
    assert chosen.rows.tolist() == [[1], [3], [-1], [-1]]
    assert chosen.present.tolist() == [True, True, False, False]


def loss(params, example):
    """Its gradient is the example."""
    return jnp.vdot(params["w"], example["x"])


def program(scheme, config, num_rounds):
    """`(x [N, DIM], ids, key) -> what rounds released, [num_rounds, DIM]`, times their divisor."""
    made = scheme.make(config, loss, num_units=N)
    shape = (2, 3) if getattr(config, "privacy_unit", "") == "example" else (N, 1)
    table = jnp.arange(N, dtype=jnp.int32).reshape(shape)

    @jax.jit
    def released(x, key):
        here = cohort(ClientData({"x": x}, table), jnp.arange(len(table)))

        def one(state, _):
            after, _ = made.round(state, here, key)
            return after, (state.params["w"] - after.params["w"]) * N * config.sampling_prob

        return jax.lax.scan(one, made.init({"w": jnp.zeros(DIM)}), None, length=num_rounds)[1]

    return made, released


def alone(unit):
    """Only this unit has a gradient: the bound, along the first entry."""
    return jnp.zeros((N, DIM)).at[unit, 0].set(100.0)


@pytest.mark.slow(reason="compiles rounds of one more unit", but=["clients"])
@pytest.mark.parametrize("name", CONFIGS)
def test_each_unit_is_in_exactly_its_number_of_rounds_of_each_cycle_drawn_anew(name, key):
    made, released = program(*CONFIGS[name], 6 * COUNT)
    rounds_of = []
    with jax.debug_key_reuse(False):
        for unit in range(N):
            moved = np.asarray(released(alone(unit), key))[:, 0]
            np.testing.assert_allclose(moved[moved != 0], 0.5 * np.sign(moved[moved != 0]), 1e-5)
            joined = (moved != 0).reshape(6, COUNT)
            np.testing.assert_array_equal(joined.sum(axis=1), 2)
            rounds_of.append(joined)
    assert made.client_sampling_prob == 1.0
    # Six draws of one of 6 sets are all the same with a chance of 6**-5.
    assert all(len({cycle.tobytes() for cycle in unit}) > 1 for unit in rounds_of)
    assert all(len({unit[i].tobytes() for unit in rounds_of}) > 1 for i in range(6))


def test_a_unit_that_is_removed_changes_no_other_units_rounds(key):
    _, released = program(*CONFIGS["clients"], 2 * COUNT)
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(N, DIM)), jnp.float32) * 100
    with jax.debug_key_reuse(False):
        everybody = released(x, key)
        for unit in range(N):
            without = released(x.at[unit].set(0.0), key)
            change = np.linalg.norm(everybody - without, axis=1)
            assert np.sum(change > 0.01) == 4
            np.testing.assert_allclose(change[change > 0.01], 0.5, 1e-4)


def test_a_run_counts_cycles_that_it_begins():
    config = dataclasses.replace(CONFIGS["clients"][1], noise_multiplier=1.5)
    assert dp_fedavg.event(config).mechanism == events.RandomAllocation(COUNT, 2, 1.5)
    assert [dp_fedavg.uses(config, n) for n in (0, 1, 4, 5, 12)] == [0, 1, 1, 2, 3]
    # Nobody knows which rounds: less than to be in a known half of them.
    known = accounting.PrivacyEvent(
        mechanism=events.Gaussian(1.5),
        privacy_unit="client",
        neighboring_relation="ADD_OR_REMOVE_ONE",
    )
    spent = accounting.epsilon(dp_fedavg.SCHEME.run_event(config, 12), delta=1e-5)
    assert spent < accounting.epsilon(known.repeat(6), delta=1e-5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: dataclasses.replace(CONFIGS["clients"][1], sampling_prob=0.3),
        lambda: dataclasses.replace(CONFIGS["clients"][1], sampling_prob=0.1),
        lambda: dataclasses.replace(CONFIGS["clients"][1], allocation_rounds=0),
        lambda: dataclasses.replace(CONFIGS["clients"][1], sampling="shuffle"),
        lambda: dataclasses.replace(CONFIGS["clients"][1], correlation="banded", bands=2),
        lambda: dp_fedper.Config(sampling="allocation"),
    ],
)
def test_settings_that_cannot_be_are_refused(make):
    with pytest.raises(ValueError, match="Expected"):
        make()


@pytest.mark.slow(reason="plays thousands of runs; replays of the same rounds are not")
def test_the_best_attack_on_balls_in_bins_finds_no_more_than_is_certified(key):
    """One round of four, and whoever sees all four knows the likelihood of each."""
    scheme = dp_fedavg
    config = dataclasses.replace(CONFIGS["clients"][1], sampling_prob=0.25, noise_multiplier=1.0)

    def scores(config):
        _, released = program(scheme, config, COUNT)
        many = jax.jit(jax.vmap(released, in_axes=(None, 0)))
        keys = jax.random.split(jax.random.clone(key), 2 * 4000)
        with jax.debug_key_reuse(False):
            worlds = [
                many(alone(0), keys[:4000])[..., 0],
                many(jnp.zeros((N, DIM)), keys[4000:])[..., 0],
            ]
        # In units of the noise that is claimed.
        found = [np.asarray(world, np.float64) / 0.5 for world in worlds]
        return tuple(np.log(np.mean(np.exp(w - 0.5), axis=1)) for w in found)

    event = scheme.SCHEME.run_event(config, COUNT)
    verdict = rounds.judge(event, scores(config), delta=0.05, confidence=0.99)
    assert verdict.holds and verdict.measured > 0.1 * verdict.certified
    # The control: half the noise is caught.
    half = dataclasses.replace(config, noise_multiplier=0.5)
    assert not rounds.judge(event, scores(half), delta=0.05, confidence=0.99).holds
