"""Units that are in k of t rounds: which, who knows, and what all rounds of a cycle tell of one."""

import dataclasses
import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import accounting
from fljax.accounting import correlated, events, monte_carlo
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
# Bins are fewer than bands, and the last cycle of a strategy is cut.
LENGTH = 10
DEALT = {
    **MADE,
    "sampling_prob": 1 / COUNT,
    "correlation": "banded",
    "bands": 6,
    "banded_for": LENGTH,
    "noise_multiplier": 1.5,
}
BANDED = {
    "clients": (dp_fedavg, dp_fedavg.Config(**DEALT)),
    "examples": (dp_fedsgd, dp_fedsgd.Config(privacy_unit="example", **DEALT)),
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
        lambda: dataclasses.replace(BANDED["clients"][1], sampling_prob=0.5),
        lambda: dataclasses.replace(BANDED["clients"][1], target_quantile=0.5),
        lambda: dataclasses.replace(BANDED["clients"][1], noise="exact"),
        lambda: dp_fedper.Config(sampling="allocation"),
    ],
)
def test_settings_that_cannot_be_are_refused(make):
    with pytest.raises(ValueError, match="Expected"):
        make()


@pytest.mark.release(reason="ten seconds")
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


@pytest.mark.slow(reason="compiles rounds of examples, too", but=["clients"])
@pytest.mark.parametrize("name", BANDED)
def test_replayed_a_unit_in_a_bin_moves_c_times_all_rounds_by_its_bins_columns(name, key):
    """With equal keys noise is equal: what is left is the unit's own, in all rounds of its bin,
    which is dealt anew when noise begins anew.
    """
    scheme, config = BANDED[name]
    made, released = program(scheme, config, 4 * LENGTH)
    assert made.client_sampling_prob == 1.0
    matrix = correlated.encoder(correlated.banded(LENGTH, config.bands))
    bins = np.stack([np.arange(LENGTH) % COUNT == number for number in range(COUNT)])
    (pair,) = monte_carlo.mixtures(scheme.event(config).mechanism)
    lengths = config.noise_multiplier * np.linalg.norm(pair.means, axis=1)
    found = []
    with jax.debug_key_reuse(False):
        without = np.asarray(released(jnp.zeros((N, DIM)), key), np.float64)
        assert np.abs(without).max() > 0.01  # the noise, which is in both
        for unit in range(N):
            moved = np.asarray(released(alone(unit), key), np.float64) - without
            for start in moved.reshape(4, LENGTH, DIM) / config.l2_clip_norm:
                number = int(np.flatnonzero(np.abs(start[:, 0]) > 0.01)[0])
                np.testing.assert_allclose(start[:, 0], 1.0 * bins[number], atol=1e-5)
                # The record's pair is moved as far, in units of its noise.
                of_all = np.linalg.norm(matrix @ start)
                assert of_all == pytest.approx(lengths[number], rel=1e-5)
                found.append(number)
    dealt = np.reshape(found, (N, 4))
    # All of four draws of one of four the same, or all units alike: a chance of 4**-3 each unit.
    assert sum(len(set(unit)) > 1 for unit in dealt) >= N - 1
    assert len({tuple(unit) for unit in dealt}) > 1


def test_bins_are_as_likely_as_each_other_and_each_start_deals_apart(key):
    config, ids, one = BANDED["clients"][1], jnp.arange(4000), jnp.zeros(1, jnp.int32)

    @jax.jit
    def joined(number, key):
        here = Round(SimpleNamespace(round=number), None, key)
        return turns.allocated(config, here, ids, one)[:, 0]

    with jax.debug_key_reuse(False):
        seen = np.stack([joined(jnp.int32(number), key) for number in range(2 * LENGTH)])
    starts = seen.reshape(2, LENGTH, -1)
    np.testing.assert_array_equal(starts[:, :COUNT].sum(axis=1), 1)
    np.testing.assert_array_equal(starts[:, COUNT:], starts[:, : LENGTH - COUNT])
    pairs = np.einsum("iu,ju->ij", *starts[:, :COUNT].astype(float)) / ids.size
    # 16 pairs of bins, each with a chance of 1 / 16: five standard errors.
    assert np.abs(pairs - 1 / 16).max() < 5 * math.sqrt(15 / 256 / ids.size)


def test_a_run_with_bins_and_bands_counts_its_starts_and_chances_make_it_cheaper():
    scheme, config = BANDED["clients"]
    chosen = correlated.banded(LENGTH, 6)
    assert dp_fedavg.event(config).mechanism == events.SampledCorrelatedGaussian(
        1.5, "banded", chosen.coefs, LENGTH, COUNT, "balls_in_bins"
    )
    assert [dp_fedavg.uses(config, n) for n in (0, 1, 10, 11, 40)] == [0, 1, 1, 2, 4]
    run = scheme.SCHEME.run_event(config, 2 * LENGTH)
    rng = np.random.default_rng(0)
    drawn = monte_carlo.epsilon(run, delta=1e-2, num_samples=50_000, rng=rng)
    known = accounting.epsilon(run, delta=1e-2, method="gdp")
    assert drawn.estimate < drawn.value < 0.9 * known


@pytest.mark.slow(reason="plays thousands of runs; replays of the same rounds are not")
def test_the_best_attack_on_bins_and_bands_finds_what_is_certified_and_no_more(key):
    """C times all releases is the pair: whoever sees them has the likelihood of each bin."""
    scheme, config = BANDED["clients"]
    matrix = correlated.encoder(correlated.banded(LENGTH, config.bands))
    columns = np.stack([matrix[:, number::COUNT].sum(axis=1) for number in range(COUNT)])
    runs, epsilon = 4000, 0.5
    bound = monte_carlo.delta(
        scheme.event(config),
        epsilon=epsilon,
        num_samples=100_000,
        rng=np.random.default_rng(0),
        failure_prob=1e-6,
    )

    def measured(config):
        _, released = program(scheme, config, LENGTH)
        many = jax.jit(jax.vmap(released, in_axes=(None, 0)))
        keys = jax.random.split(jax.random.clone(key), 2 * runs)
        with jax.debug_key_reuse(False):
            worlds = [many(alone(0), keys[:runs]), many(jnp.zeros((N, DIM)), keys[runs:])]
        # In units of what one unit moves.
        seen = [np.asarray(w, np.float64)[..., 0] / config.l2_clip_norm @ matrix.T for w in worlds]
        scores = [
            np.mean(np.exp((z @ columns.T - np.sum(columns**2, axis=1) / 2) / 1.5**2), axis=1)
            for z in seen
        ]
        caught = np.mean(scores[0] > math.exp(epsilon))
        return caught - math.exp(epsilon) * np.mean(scores[1] > math.exp(epsilon))

    # Two shares of 4000 runs each: five standard errors.
    wide = 5 * math.sqrt(0.25 / runs) * (1 + math.exp(epsilon))
    found = measured(config)
    assert found <= bound.value + wide and found >= bound.estimate - wide
    # The control: half the noise is caught.
    assert measured(dataclasses.replace(config, noise_multiplier=0.75)) > bound.value + wide
