"""Faults that libraries of this field have had, one by one: what keeps each out of here.

Each has the threads in which it was found, and the tests that would fail if we had it. Those that
no test elsewhere covers whole are tested here.
"""

import pathlib
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import fljax
import fljax_kernels
from fljax import _keys, schemes
from fljax.accounting import correlated, events, float32_tail
from fljax.simulation import budget
from fljax_kernels import chacha20

TESTS = pathlib.Path(__file__).parent


class Bug(NamedTuple):
    """what: went wrong. threads: where, by repository and number, or arXiv. tests: FILE::TEST."""

    what: str
    threads: tuple[str, ...]
    tests: tuple[str, ...]


HERE = "test_field_bugs.py::"
BUGS = {
    1: Bug(
        "shuffled batches under the epsilon of Poisson samples",
        (
            "pytorch/opacus#80",
            "pytorch/opacus#128",
            "lxuechen/private-transformers#7",
            "tensorflow/privacy#483",
            "arXiv:2411.04205",
        ),
        (
            HERE + "test_1_an_event_of_rarer_samples_than_are_drawn_is_refused",
            "kernels/test_sampling.py::test_every_unit_and_every_pair_has_its_poisson_chance",
            "schemes/test_central_noise.py::test_examples_are_sampled_by_their_own_coins",
        ),
    ),
    2: Bug(
        "noise for a sum added to a mean, or the reverse",
        ("google-deepmind/jax_privacy#383",),
        (
            "schemes/test_central_noise.py::test_the_noise_has_the_stddev_of_the_event",
            "schemes/test_central_noise.py::test_a_round_is_the_clipped_sum_over_a_public_constant",
        ),
    ),
    3: Bug(
        "a divisor that tells the size of the data",
        ("pytorch/opacus#571", "pytorch/opacus#819"),
        (
            "attacks/test_rounds.py::test_the_realised_batch_size_as_divisor_is_caught_by_the_length"
            "_of_the_release",
            "schemes/test_central_noise.py::test_a_round_is_the_clipped_sum_over_a_public_constant",
        ),
    ),
    4: Bug(
        "an empty batch, or a row of padding that counts",
        ("pytorch/opacus#161", "pytorch/opacus#806"),
        (
            "kernels/test_clip_and_sum.py::test_a_masked_row_adds_zero_even_when_nan",
            "kernels/test_clip_and_sum.py::test_an_all_padding_batch_gives_zeros",
            "local/test_outputs.py::test_an_empty_batch_sums_to_zero",
        ),
    ),
    5: Bug(
        "one record that is not finite spoils or shows itself",
        ("arXiv:1607.00133",),
        (
            "kernels/test_clip_and_sum.py::test_a_row_that_is_not_finite_adds_zero",
            "schemes/test_central_noise.py::test_a_client_that_is_not_finite_adds_zero",
            "schemes/test_central_noise.py::test_a_client_that_overflows_moves_the_sum_by_no_more_"
            "than_the_clip_norm",
        ),
    ),
    6: Bug(
        "noise drawn in 16 bits",
        ("google-deepmind/optax:contrib/_privacy.py",),
        ("kernels/test_gaussian.py::test_low_precision_noise_is_drawn_in_float32",),
    ),
    7: Bug(
        "normals of float32 end, and the end tells",
        ("arXiv:2207.13793",),
        (
            HERE + "test_7_a_claim_says_what_the_end_of_its_noise_adds",
            "accounting/test_float32_tail.py::test_one_number_never_tells_more_than_delta_and_what_"
            "is_added",
        ),
    ),
    8: Bug(
        "the lowest bits of floating-point noise tell",
        ("pytorch/opacus#616", "arXiv:2207.13793", "arXiv:2207.10635"),
        (
            "attacks/test_floating_point.py::test_float32_gives_sums_away_and_whole_numbers_do_not",
            "attacks/test_floating_point.py::test_large_noise_does_not_help_float32",
        ),
    ),
    9: Bug(
        "a clipped row that is too long once it is rounded",
        ("arXiv:2207.10635",),
        (
            "kernels/test_clip_and_sum.py::test_overshoot_after_rounding_stays_below_1e_5",
            "schemes/test_integer_sums.py::test_a_rounded_update_is_within_the_bound_at_nearly_the_"
            "first_draw",
        ),
    ),
    10: Bug(
        "few bits of seed, keys that are used twice, seeds in logs",
        ("google-deepmind/jax_privacy:auditing", "google/jax:jax.random.rbg"),
        (
            HERE + "test_10_no_two_draws_have_one_key",
            "simulation/test_seeds.py::test_the_seed_is_in_a_file_of_its_owner_alone_and_nowhere_else",
            "kernels/test_gaussian.py::test_clients_and_leaves_are_uncorrelated",
        ),
    ),
    11: Bug(
        "a clip norm of one neighbouring relation, an accountant of another",
        ("yuxiangw/autodp#33",),
        (
            "attacks/test_rounds.py::test_a_sensitivity_of_2c_taken_for_c_is_caught",
            "local/test_item.py::test_sensitivity_names_the_relation_and_includes_the_divisor",
        ),
    ),
    12: Bug(
        "microbatches whose means are clipped, read as rows",
        ("tensorflow/privacy#46", "tensorflow/privacy#135"),
        ("schemes/test_central_noise.py::test_the_chunk_size_changes_only_float_order",),
    ),
    13: Bug(
        "layers that mix the examples of a batch",
        ("pytorch/opacus:validators",),
        (
            HERE + "test_13_a_layer_that_mixes_examples_is_refused_by_a_run",
            "kernels/per_example/test_one_example.py::test_batch_normalisation_in_training_mode_is_"
            "refused_by_name",
            "kernels/per_example/test_one_example.py::test_batch_normalisation_of_nnx_is_refused_in_"
            "training_mode",
        ),
    ),
    14: Bug(
        "bounds by layer that add up to another norm",
        ("google-deepmind/jax_privacy#338", "pytorch/opacus#347", "pytorch/opacus#417"),
        (
            "kernels/per_example/test_api.py::test_per_leaf_clipping_and_extra_weights_in_one_pass",
            "local/test_clipping.py::test_no_update_moves_the_sum_by_more_than_the_bound_in_any_style",
        ),
    ),
    15: Bug(
        "ghost norms that miss biases, masks, repeated tokens",
        (
            "pytorch/opacus#751",
            "pytorch/opacus#808",
            "pytorch/opacus#598",
            "pytorch/opacus#825",
        ),
        ("kernels/per_example/test_api.py::test_products_are_those_of_the_matrix",),
    ),
    16: Bug(
        "noise for every part of a batch, or counted once",
        ("google-deepmind/jax_privacy#234", "pytorch/opacus#420", "pytorch/opacus#683"),
        (
            "schemes/test_central_noise.py::test_the_chunk_size_changes_only_float_order",
            "schemes/test_central_noise.py::test_the_noise_has_the_stddev_of_the_event",
        ),
    ),
    17: Bug(
        "the covariance of correlated noise transposed, rounds beyond its matrix",
        ("google-deepmind/jax_privacy#273",),
        (
            HERE + "test_17_correlated_noise_has_the_covariance_of_c_inverse_and_not_its_transpose",
            "accounting/test_correlated.py::test_no_set_of_rounds_moves_more_than_the_sensitivity",
        ),
    ),
    18: Bug(
        "a bound that adapts to private norms for nothing",
        ("pytorch/opacus#779", "pytorch/opacus#807"),
        (
            "local/test_clipping.py::test_the_count_takes_its_share_of_the_noise",
            "schemes/test_clipping_styles.py::test_one_unit_moves_sum_and_count_of_an_adaptive_round_"
            "by_at_most_the_bound_and_a_half",
        ),
    ),
    19: Bug(
        "clients that vanish take their noise along; sums that wrap around",
        ("google-research/federated:distributed_dp",),
        (
            "schemes/test_integer_sums.py::test_an_event_counts_the_noise_of_honest_clients_alone",
            "schemes/test_integer_sums.py::test_by_default_no_sum_can_wrap_around_and_one_bit_less_"
            "could",
        ),
    ),
    20: Bug(
        "weights by the number of examples",
        ("adap/flower#7934",),
        (
            "schemes/test_central_noise.py::test_removing_one_unit_moves_the_released_sum_by_at_most_"
            "the_clip_norm",
        ),
    ),
    21: Bug(
        "audits without a control that must fail",
        ("google-deepmind/jax_privacy#362",),
        (
            "attacks/test_audit.py::test_half_the_noise_is_caught_every_time",
            "attacks/test_audit.py::test_gaussian_audits_reach_80_percent_and_are_rarely_above_the_"
            "truth",
        ),
    ),
    22: Bug(
        "attacks that are given what no attacker has",
        ("JonasGeiping/breaching", "Princeton-SysML/GradAttack#3", "Princeton-SysML/GradAttack#4"),
        (
            HERE + "test_22_a_reconstruction_is_scored_image_by_image_in_any_order",
            "attacks/test_gradient_inversion.py::test_dlg_finds_image_and_label_together",
            "attacks/test_gradient_inversion.py::test_local_steps_and_sums_of_users_are_inverted_too",
        ),
    ),
    23: Bug(
        "a subject in many clients that is clipped in each",
        ("arXiv:2206.03617",),
        (
            "local/test_subject.py::test_replay_refutes_the_papers_sensitivity_of_a_batch_gradient",
            "local/test_subject.py::test_no_subject_moves_a_sum_by_more_than_stated",
        ),
    ),
    24: Bug(
        "a run that goes on with noise that it has drawn",
        ("google-deepmind/jax_privacy:training",),
        (
            "simulation/test_kill.py::test_a_run_killed_again_and_again_ends_as_if_it_had_not_been",
            "simulation/test_seeds.py::test_a_run_does_not_go_on_with_other_data",
        ),
    ),
    25: Bug(
        "losses, norms and choices that are released beside the model",
        ("arXiv:2110.03620",),
        (HERE + "test_25_what_a_claim_leaves_out_names_diagnostics_and_choices",),
    ),
    26: Bug(
        "a sensitivity that is declared and not measured",
        ("arXiv:2602.17454", "ObliviousAI/dp-recorder"),
        (
            HERE + "test_26_a_replay_refutes_a_round_that_forgets_to_clip",
            "test_sensitivity.py::test_a_broken_mechanism_is_caught",
        ),
    ),
}


def test_all_26_are_here():
    assert sorted(BUGS) == list(range(1, 27))
    assert all(bug.threads and bug.tests for bug in BUGS.values())


@pytest.mark.parametrize("number", BUGS)
def test_what_keeps_it_out_is_there_and_is_not_left_out(number):
    for name in BUGS[number].tests:
        path, _, test = name.partition("::")
        text = (TESTS / path).read_text()
        assert re.search(rf"^def {test}\(", text, flags=re.MULTILINE), name
        above = text.partition(f"def {test}(")[0].rpartition("\n\n\n")[2]
        assert not re.search(r"mark\.(skip|xfail)\b", above), name


def test_1_an_event_of_rarer_samples_than_are_drawn_is_refused():
    """A loop that takes all clients in each round cannot claim that a tenth joins by chance."""
    scheme = schemes.get("dp_fedavg")
    whole = scheme.Config(sampling_prob=1.0, noise_multiplier=2.0, num_local_epochs=1)
    params = {"w": np.zeros(3, np.float32)}

    def loss(params, example):
        return (jnp.vdot(params["w"], example["x"]) - example["y"]) ** 2

    algorithm = scheme.make(whole, loss, num_units=8)
    tenth = events.PrivacyEvent(
        mechanism=events.PoissonSampled(0.1, events.Gaussian(2.0)),
        privacy_unit="client",
        neighboring_relation="ADD_OR_REMOVE_ONE",
    )
    table = {"x": np.ones((16, 3), np.float32), "y": np.ones(16, np.float32)}
    with pytest.raises(
        fljax.errors.PrivacyPreconditionError, match=r"client_sampling_prob <= 0\.1"
    ):
        fljax.simulate(
            algorithm,
            data=table,
            clients=[[2 * at, 2 * at + 1] for at in range(8)],
            test_data=table,
            model=(params, lambda params, x: jnp.vdot(params["w"], x)),
            loss=loss,
            event=tenth,
        )


def test_7_a_claim_says_what_the_end_of_its_noise_adds():
    scheme = schemes.get("dp_fedavg")
    config = scheme.Config(sampling_prob=1.0, noise_multiplier=4.0)
    event = scheme.event(config)
    plan = budget.Plan(
        config,
        event,
        100,
        1e-5,
        "gdp",
        None,
        2,
        (0.0, 1.0, 1.5),
        "server",
        num_params=650,
        normals=651,
    )
    claim = budget.certified_claim(plan, 2)
    added = claim["float32_tail_delta"]
    # Two releases of 651 numbers: at least what a move of equal parts has out of reach.
    s = 0.25 / np.sqrt(651)
    end = float32_tail.END
    least = 2 * 651 * (stats.norm.sf(end - s) - stats.norm.sf(end))
    assert least < added < 3 * least
    assert any("end at 5.22" in sentence for sentence in claim["statement"]["not_covered"])
    # A control variate beside the model is of the same release: 650 numbers are too few.
    scaffold = schemes.get("dp_scaffold")
    assert scaffold.num_normals(scaffold.Config(), 650) == 1300
    more = budget.certified_claim(plan._replace(normals=1300), 2)
    assert more["float32_tail_delta"] > 1.2 * added
    untold = budget.certified_claim(plan._replace(normals=None), 2)
    assert untold["float32_tail_delta"] is None
    assert any("is not counted" in sentence for sentence in untold["statement"]["not_covered"])
    exact = plan._replace(scheme_config=scheme.Config(noise="exact", noise_multiplier=4.0))
    assert budget.tail_delta(exact, 2) is None


def test_10_no_two_draws_have_one_key():
    for key in (jax.random.key(0), chacha20.key(bytes(range(32)))):
        found = [
            _keys.server_key(key, number, purpose)
            for number in range(4)
            for purpose in _keys.Purpose
        ]
        found += [
            one
            for number in range(4)
            for purpose in _keys.Purpose
            for one in _keys.client_keys(key, number, jnp.arange(4), purpose)
        ]
        words = {np.asarray(jax.random.key_data(one)).tobytes() for one in found}
        assert len(words) == len(found)
    noise = fljax_kernels.add_gaussian_noise(
        jax.random.key(1), {"a": jnp.zeros(500), "b": jnp.zeros(500)}, 1.0
    )
    assert abs(np.corrcoef(noise["a"], noise["b"])[0, 1]) < 5 / np.sqrt(500)


def test_13_a_layer_that_mixes_examples_is_refused_by_a_run():
    from flax import linen

    class Mixes(linen.Module):
        @linen.compact
        def __call__(self, x):
            return linen.BatchNorm(use_running_average=False)(linen.Dense(2)(x))

    table = {"x": np.ones((8, 3), np.float32), "y": np.arange(8) % 2}
    with pytest.raises(ValueError, match=r"batch|mutable|running"):
        fljax.simulate(
            "dp_fedavg",
            data=table,
            clients=[[at] for at in range(8)],
            test_data=table,
            num_classes=2,
            model=Mixes(),
            noise_multiplier=1.0,
            target_epsilon=None,
            num_rounds=1,
        )


def test_17_correlated_noise_has_the_covariance_of_c_inverse_and_not_its_transpose():
    """The law of four rounds: C^-1 C^-T, of which the transposed product is another matrix."""
    strategy = correlated.banded(4, 2)
    rounds, numbers = 4, 20_000
    like = jnp.zeros(numbers)
    state, rows = fljax_kernels.correlated.init(strategy, like), []
    for key in jax.random.split(jax.random.key(0), rounds):
        noise, state = fljax_kernels.correlated.add_noise(strategy, key, like, 1.0, state)
        rows.append(np.asarray(noise))
    inverse = np.linalg.inv(np.asarray(correlated.encoder(strategy), np.float64))
    right, wrong = inverse @ inverse.T, inverse.T @ inverse
    bound = 5 * np.sqrt(2 / numbers) * np.abs(right).max()  # five standard errors of a covariance
    measured = np.cov(np.stack(rows))
    assert np.abs(measured - right).max() < bound < np.abs(measured - wrong).max()


def test_22_a_reconstruction_is_scored_image_by_image_in_any_order():
    from fljax.attacks import metrics

    truth = np.random.default_rng(0).uniform(size=(4, 8, 8, 1)).astype(np.float32)
    order = [2, 0, 3, 1]
    matched = metrics.assignment(truth[order], truth)
    np.testing.assert_array_equal(truth[matched], truth[order])


def test_25_what_a_claim_leaves_out_names_diagnostics_and_choices():
    scheme = schemes.get("dp_fedavg")
    config = scheme.Config(sampling_prob=1.0, noise_multiplier=4.0)
    plan = budget.Plan(
        config, scheme.event(config), 100, 1e-5, "gdp", None, 1, (0.0, 1.0), "server"
    )
    said = " ".join(budget.statement(plan, 1)["not_covered"])
    for word in ("training loss", "cohort size", "clipped fraction", "not for release"):
        assert word in said
    assert "Trying several configurations on the same data spends budget of its own" in said
    page = (TESTS.parent / "docs/explain/runs.md").read_text()
    assert re.search(r"an N that was not chosen by looking at the models", page)


def test_26_a_replay_refutes_a_round_that_forgets_to_clip():
    rows = 3 * jax.random.normal(jax.random.key(0), (12, 5))

    def clipped(rows, mask):
        return fljax_kernels.clip_and_sum(rows, 1.0, mask=mask)[0]

    def forgets(rows, mask):
        return jnp.where(mask[:, None], rows, 0).sum(axis=0)

    assert fljax.check_sensitivity(clipped, rows, sensitivity=1.0).holds
    with pytest.raises(fljax.errors.SensitivityError):
        fljax.check_sensitivity(forgets, rows, sensitivity=1.0)
