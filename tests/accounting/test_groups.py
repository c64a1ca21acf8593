import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fljax import accounting
from fljax.accounting import events, groups, mixture
from fljax.errors import NoGuaranteeError

EPSILONS = st.just(0.0) | st.floats(1e-6, 3)
SIZES = st.integers(1, 12)


@pytest.mark.parametrize(
    ("form", "expected"),
    [("tight", 3.119287485e-05), ("paper", 8.034214769e-05), ("vadhan", 2.183926001e-04)],
)
def test_group_delta_matches_oracle_1(form, expected):
    np.testing.assert_allclose(groups.group_delta(1.0, 1e-6, 4, form=form), expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("size", "form", "expected"),
    [
        (3, "paper", 2.316115041e-07),
        (3, "tight", 5.212246865e-07),
        (2, "paper", 6.766764162e-07),
        (2, "tight", 1.192029220e-06),
    ],
)
def test_budget_split_matches_oracles_2_and_3(size, form, expected):
    epsilon, delta = groups.split_budget(4.0, 1e-5, size, form=form)
    np.testing.assert_allclose([epsilon, delta], [4 / size, expected], rtol=1e-9)


def test_the_direct_gaussian_beats_the_conversion_by_as_much_as_oracle_4_says():
    def epsilon(noise, delta):
        event = events.PrivacyEvent(
            mechanism=events.Gaussian(noise),
            privacy_unit="subject",
            neighboring_relation="ADD_OR_REMOVE_ONE",
        )
        return accounting.epsilon(event, delta=delta, method="gdp")

    np.testing.assert_allclose(epsilon(4.0 / 4, 1e-5), 4.377178096, rtol=1e-8)
    # k eps where eps and delta of one item meet the group's delta of 1e-5: a fixed point.
    group = 4.0
    for _ in range(60):
        group = 4 * epsilon(4.0, groups.split_budget(group, 1e-5, 4)[1])
    np.testing.assert_allclose(group, 4.562020868, rtol=1e-7)


def test_presence_matches_oracles_8_and_9():
    np.testing.assert_allclose(mixture.subject_sampling_prob(8, 0.02), 0.1492369774, rtol=1e-9)
    np.testing.assert_allclose(mixture.subject_fixed_size_prob(8, 1000, 20), 0.149725457, rtol=1e-8)
    np.testing.assert_allclose(
        3500 * mixture.subject_sampling_prob(9, 512 / 31500), 479.9440704, rtol=1e-9
    )


@given(st.integers(1, 30), st.floats(1e-6, 1.0))
def test_presence_grows_and_stays_below_the_union_bound(num_items, prob):
    here = mixture.subject_sampling_prob(num_items, prob)
    assert here <= min(1.0, num_items * prob) * (1 + 1e-12)
    assert here <= mixture.subject_sampling_prob(num_items + 1, prob) * (1 + 1e-12)
    np.testing.assert_allclose(mixture.subject_sampling_prob(1, prob), prob, rtol=1e-12)
    np.testing.assert_allclose(here, stats.binom.sf(0, num_items, prob), rtol=1e-9)


@given(st.integers(1, 20), st.integers(1, 60))
def test_presence_in_a_sample_of_fixed_size_is_hypergeometric(num_items, sample_size):
    here = mixture.subject_fixed_size_prob(num_items, 60, sample_size)
    np.testing.assert_allclose(
        here, stats.hypergeom.sf(0, 60, num_items, sample_size), rtol=1e-9, atol=1e-12
    )


@given(EPSILONS, st.floats(1e-12, 1e-3), SIZES)
def test_forms_are_ordered_and_one_item_is_itself(epsilon, delta, size):
    tight, paper, vadhan = (
        groups.group_delta(epsilon, delta, size, form=form) for form in groups.FORMS
    )
    assert (
        delta * (1 - 1e-12) <= tight <= paper * (1 + 1e-12)
        and paper <= vadhan * (1 + 1e-12)
        and vadhan <= 1
    )
    np.testing.assert_allclose(groups.group_delta(epsilon, delta, 1), delta, rtol=1e-12)
    np.testing.assert_allclose(
        groups.group_delta(0.0, delta, size), min(1, size * delta), rtol=1e-12
    )
    summed = delta * math.fsum(math.exp(i * epsilon) for i in range(size))
    np.testing.assert_allclose(tight, min(1.0, summed), rtol=1e-9)


@given(EPSILONS, st.floats(1e-12, 0.5), SIZES, st.sampled_from(groups.FORMS))
def test_splitting_and_regrouping_gives_the_budget_back(epsilon, delta, size, form):
    one_epsilon, one_delta = groups.split_budget(epsilon, delta, size, form=form)
    np.testing.assert_allclose(one_epsilon * size, epsilon, rtol=1e-12)
    np.testing.assert_allclose(
        groups.group_delta(one_epsilon, one_delta, size, form=form), delta, rtol=1e-12
    )


@pytest.mark.parametrize(("rounds", "paper", "sound"), [(100, 25, 6), (200, 50, 12)])
def test_rounds_of_16_silos_match_oracle_33(rounds, paper, sound):
    assert groups.rounds_within(rounds, 16) == sound
    assert groups.rounds_within(rounds, 16, law="paper_sqrt", allow_unsound=True) == paper


@given(st.integers(1, 400), st.integers(1, 40))
def test_linear_rounds_are_the_most_that_stay_within_the_budget(rounds, silos):
    fit = groups.rounds_within(rounds, silos)
    assert fit * silos <= rounds < (fit + 1) * silos
    assert groups.rounds_within(rounds, 1) == rounds


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: groups.group_delta(-1.0, 1e-5, 2), ValueError, "epsilon=-1.0"),
        (lambda: groups.group_delta(1.0, 1.0, 2), ValueError, r"delta in \[0, 1\), got delta=1.0"),
        (lambda: groups.group_delta(1.0, 1e-5, 2.5), ValueError, "size=2.5"),
        (lambda: groups.group_delta(1.0, 1e-5, 2, form="loose"), ValueError, "form='loose'"),
        (lambda: groups.split_budget(float("nan"), 1e-5, 2), ValueError, "epsilon=nan"),
        (lambda: mixture.subject_sampling_prob(0, 0.1), ValueError, "num_items=0"),
        (lambda: mixture.subject_sampling_prob(1, 1.1), ValueError, "item_sampling_prob=1.1"),
        (
            lambda: mixture.subject_fixed_size_prob(9, 8, 2),
            ValueError,
            "num_items and batch_size <= population=8, got num_items=9",
        ),
        (lambda: groups.rounds_within(0, 1), ValueError, "num_rounds=0"),
        (lambda: groups.rounds_within(9, 4, law="paper_sqrt"), NoGuaranteeError, "overspends"),
    ],
    ids=range(10),
)
def test_bad_input_names_argument_value_and_rule(call, error, message):
    with pytest.raises(error, match=message):
        call()
