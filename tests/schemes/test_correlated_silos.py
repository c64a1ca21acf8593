"""Noise that is correlated over all steps of a silo: which subjects are in a step, what one of them
moves of what a silo releases, what the silo keeps to itself.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import accounting, schemes
from fljax.accounting import correlated, events, mechanisms
from fljax.data.cohorts import ClientData, cohort
from fljax.local import silo
from fljax.schemes.silos import higradavg, subject_ledger
from fljax.schemes.silos import round as silos

SUBJECTS, DIM, ROUNDS, BANDS = 6, 3, 4, 3
CONFIG = higradavg.Config(
    num_parties=2,
    max_items_per_subject=2,
    item_sampling_prob=1 / BANDS,
    num_local_steps=2,
    local_learning_rate=1.0,
    expected_subjects=1.0,
    l2_clip_norm=0.5,
    noise_multiplier=1.0,
    correlation="banded",
    bands=BANDS,
    banded_for=8,
    server_learning_rate=1.0,
    server_momentum=0.0,
)
STEPS = ROUNDS * CONFIG.num_local_steps


def loss(params, example):
    return jnp.vdot(params["w"], example["x"])


@functools.cache
def program(config):
    """`(x [SUBJECTS, DIM], key) -> what silo 1 released [ROUNDS, DIM], what it kept`; silo 0 is
    absent.
    """
    made = higradavg.make(config, loss, num_units=SUBJECTS)
    rows = jnp.tile(jnp.arange(SUBJECTS, dtype=jnp.int32), (2, 1))

    @jax.jit
    def released(x, key):
        examples = {"x": x, "subject": jnp.arange(SUBJECTS, dtype=jnp.int32)}
        start = made.init({"w": jnp.zeros(DIM)})
        first = jax.tree.map(
            lambda leaf: jnp.stack([leaf] * 2), made.client_state.init(start.params)
        )

        def one(carry, _):
            state, kept = carry
            here = cohort(ClientData(examples, rows), jnp.array([-1, 1]))._replace(kept=kept)
            after, info = made.round(state, here, key)
            return (after, info.kept), state.params["w"] - after.params["w"]

        (_, kept), seen = jax.lax.scan(one, (start, first), None, length=ROUNDS)
        return seen, kept

    return released


def one_subject(number):
    return jnp.zeros((SUBJECTS, DIM)).at[number, 0].set(100.0)


def shown():
    """A round shows the sum of its steps: `[ROUNDS, STEPS]`."""
    return np.kron(np.eye(ROUNDS), np.ones((1, CONFIG.num_local_steps)))


def encoder():
    return correlated.encoder(dataclasses.replace(silos.strategy(CONFIG), num_rounds=STEPS))


def test_a_subject_is_in_the_steps_of_its_turn_alone_whatever_the_round(key):
    released = program(CONFIG)
    with jax.debug_key_reuse(False):
        without, _ = released(jnp.zeros((SUBJECTS, DIM)), key)
        for subject in range(SUBJECTS):
            moved = np.asarray(released(one_subject(subject), key)[0] - without)[:, 0]
            steps = np.zeros(STEPS)
            steps[subject % BANDS :: BANDS] = 0.5  # the clip; nobody tosses a coin here
            np.testing.assert_allclose(moved, shown() @ steps, atol=1e-5)


@pytest.mark.slow(reason="plays all rounds of thousands of keys")
def test_what_a_silo_releases_has_the_noise_of_c_inverse_over_all_of_its_steps(key):
    keys = jax.random.split(key, 4000)
    seen = jax.jit(jax.vmap(lambda k: program(CONFIG)(jnp.zeros((SUBJECTS, DIM)), k)[0]))(keys)
    flat = np.moveaxis(np.asarray(seen, np.float64), 1, 2).reshape(-1, ROUNDS)
    loads = shown() @ np.linalg.inv(encoder()) * silos.stddev(CONFIG)
    # A sample covariance of 12,000 draws: six standard errors of the largest entry.
    wanted = loads @ loads.T
    limit = 6 * wanted.max() * np.sqrt(2 / len(flat))
    np.testing.assert_allclose(flat.T @ flat / len(flat), wanted, atol=limit)
    # The control: independent noise of this size has another covariance.
    independent = np.diag(np.full(ROUNDS, CONFIG.num_local_steps * silos.stddev(CONFIG) ** 2))
    assert np.abs(wanted - independent).max() > 2 * limit


def test_no_subject_moves_what_two_silos_release_by_more_than_the_event_says():
    """Exactly, in float64: of rounds, and of single steps, which say more."""
    event = higradavg.SCHEME.run_event(CONFIG, ROUNDS)
    one = event.mechanism.event
    assert event.mechanism.count == higradavg.SCHEME.uses(CONFIG, ROUNDS) == -(-STEPS // BANDS)
    assert one == events.SelfComposed(events.PoissonSampled(1.0, events.Gaussian(1.0)), 2)
    declared = 1 / mechanisms.effective_noise(event.mechanism)
    noise = np.linalg.inv(encoder()) * silos.stddev(CONFIG)
    for view in (np.eye(STEPS), shown()):
        precision = np.linalg.inv(view @ noise @ noise.T @ view.T)
        worst = 0.0
        for turn in range(BANDS):
            own = np.arange(turn, STEPS, BANDS)
            for signs in np.stack(np.meshgrid(*[[-1, 1]] * len(own)), -1).reshape(-1, len(own)):
                steps = np.zeros(STEPS)
                steps[own] = 0.5 * signs
                moved = view @ steps
                worst = max(worst, 2 * moved @ precision @ moved)  # two silos hold it
        assert np.sqrt(worst) <= declared * (1 + 1e-9)
        if len(view) == STEPS:
            # The last steps' columns are cut; a claim of one step less would be refuted.
            assert np.sqrt(worst) > declared * np.sqrt(1 - 1 / event.mechanism.count)


def test_a_silo_keeps_its_noise_and_one_that_is_absent_keeps_what_it_had(key):
    _, kept = program(CONFIG)(jnp.zeros((SUBJECTS, DIM)), key)
    assert kept.step.tolist() == [0, STEPS]
    assert kept.buffers["w"].shape == (2, BANDS - 1, DIM)
    assert not np.any(kept.buffers["w"][0]) and np.all(kept.buffers["w"][1] != 0)


def test_the_event_of_a_step_is_of_a_turns_chance():
    event = higradavg.event(dataclasses.replace(CONFIG, item_sampling_prob=0.1))
    chance = 1 - (1 - 0.3) ** 2
    sampled = event.mechanism.event
    assert sampled.sampling_prob == pytest.approx(chance, rel=1e-12)
    plain = dataclasses.replace(CONFIG, correlation="none", item_sampling_prob=0.1)
    assert higradavg.SCHEME.uses(plain, ROUNDS) == ROUNDS
    assert higradavg.event(plain).mechanism.count == 2 * CONFIG.num_local_steps


def test_a_subjects_ledger_counts_the_steps_of_its_turn():
    counts = np.array([[2, 2], [1, 0]])
    found = subject_ledger.epsilons(higradavg, CONFIG, counts, num_rounds=ROUNDS, delta=1e-3)
    event = higradavg.SCHEME.run_event(CONFIG, ROUNDS)
    spent = accounting.epsilon(event, delta=1e-3, method="rdp")
    assert found[0] == pytest.approx(spent, rel=1e-6) and 0 < found[1] < found[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"bands": 4},
        {"bands": 0},
        {"banded_for": 0},
        {"correlation": "pink"},
        {"formula": "paper"},
    ],
)
def test_settings_that_cannot_be_are_refused(changes):
    with pytest.raises(ValueError, match="Expected"):
        dataclasses.replace(CONFIG, **changes)


def test_steps_refuse_noise_that_no_bands_can_correlate():
    for strategy, stddev in (
        (correlated.tree(8), 1.0),
        (correlated.banded(8, 2), lambda answer: answer.loss),
    ):
        with pytest.raises(ValueError, match="Expected strategy to be banded"):
            silo.noisy_steps(
                lambda *given: None,
                num_steps=1,
                learning_rate=1.0,
                stddev=stddev,
                divisor=1.0,
                strategy=strategy,
            )


def test_the_scheme_is_the_one_that_the_command_line_knows():
    assert schemes.get("higradavg").uses is higradavg.SCHEME.uses
