"""The accountants with dp_accounting's methods give its values, and refuse what is not proved."""

import math

import pytest

from fljax import accounting, errors
from fljax.accounting import events
from fljax.accounting.dp_accountants import PLDAccountant, RdpAccountant

them = pytest.importorskip("dp_accounting")
dp_event, N = them.dp_event, them.NeighboringRelation
GAUSSIAN = dp_event.GaussianDpEvent(1.0)
FIFTH = dp_event.PoissonSampledDpEvent(0.2, dp_event.GaussianDpEvent(2.0))
SAMPLED = dp_event.PoissonSampledDpEvent(0.1, dp_event.GaussianDpEvent(2.0))

# Values of dp-accounting 0.6.0's own tests, and of its PLD accountant at its default interval.
BY_LOSSES = [
    (
        N.ADD_OR_REMOVE_ONE,
        dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(3**0.5), 3),
        0.126936,
        1.0,
    ),
    (
        N.ADD_OR_REMOVE_ONE,
        dp_event.SelfComposedDpEvent(
            dp_event.PoissonSampledDpEvent(0.2, dp_event.GaussianDpEvent(0.5)), 3
        ),
        0.15594,
        1.0,
    ),
    (
        N.ADD_OR_REMOVE_ONE,
        dp_event.SelfComposedDpEvent(dp_event.LaplaceDpEvent(2.0), 10),
        1e-5,
        4.98996231698569,
    ),
    (
        N.ADD_OR_REMOVE_ONE,
        dp_event.SelfComposedDpEvent(dp_event.DiscreteLaplaceDpEvent(0.5, 3), 100),
        1e-5,
        117.04284003,
    ),
    (N.REPLACE_ONE, dp_event.SelfComposedDpEvent(FIFTH, 10), 1e-5, 2.640307343898897),
    (N.REPLACE_ONE, dp_event.SelfComposedDpEvent(FIFTH, 100), 1e-5, 9.838595396306212),
    (
        N.ADD_OR_REMOVE_ONE,
        dp_event.TruncatedSubsampledGaussianDpEvent(100, 0.1, 12, 2.0),
        1e-5,
        1.3167588350081698,
    ),
    (
        N.ADD_OR_REMOVE_ONE,
        dp_event.ComposedDpEvent(
            [
                dp_event.SelfComposedDpEvent(
                    dp_event.TruncatedSubsampledGaussianDpEvent(4, 0.5, 2, 1.0), 3
                ),
                dp_event.SelfComposedDpEvent(
                    dp_event.TruncatedSubsampledGaussianDpEvent(3, 0.5, 2, 1.0), 2
                ),
            ]
        ),
        1e-6,
        17.904330,
    ),
    (
        N.ADD_OR_REMOVE_ONE,
        dp_event.ComposedDpEvent(
            [
                dp_event.SelfComposedDpEvent(
                    dp_event.MixtureOfGaussiansDpEvent(1.0, [0.0, 1.0, 2.0], [0.2, 0.6, 0.2]), 3
                ),
                dp_event.SelfComposedDpEvent(
                    dp_event.MixtureOfGaussiansDpEvent(2.0, [0.0, 2.0, 3.0], [0.33, 0.34, 0.33]), 2
                ),
            ]
        ),
        1e-6,
        17.193115,
    ),
]


@pytest.mark.parametrize(
    ("relation", "event", "delta", "epsilon"), BY_LOSSES, ids=lambda v: type(v).__name__
)
def test_losses_give_the_epsilon_of_their_accountant(relation, event, delta, epsilon):
    found = PLDAccountant(relation, 1e-3).compose(event)
    assert found.get_epsilon(delta) == pytest.approx(epsilon, abs=2e-4, rel=2e-4)
    assert found.get_delta(epsilon) == pytest.approx(delta, rel=2e-3)


def test_divergences_give_the_epsilon_of_their_accountant():
    # dp-accounting 0.6.0, tests of randomised response at orders 1.5 and infinity, in nats
    for relation, low, high in (
        (N.REPLACE_SPECIAL, 1.5030552584146897, 1.9878743481543455),
        (N.REPLACE_ONE, 2.6946320226546314, 3.1918471524802814),
    ):
        accountant = RdpAccountant([1.5, math.inf], relation)
        accountant.compose(dp_event.RandomizedResponseDpEvent(0.3, 10))
        assert accountant.get_epsilon(1e-300) == pytest.approx(high)
        assert accountant.get_epsilon(0) == pytest.approx(high)
        only = RdpAccountant([1.5], relation).compose(dp_event.RandomizedResponseDpEvent(0.3, 10))
        exact = low + math.log1p(-1 / 1.5) - (math.log(1e-5) + math.log(1.5)) / 0.5
        assert only.get_epsilon(1e-5) == pytest.approx(exact)
    # arXiv:2103.00039, StackOverflow: 1,600 steps with noise 8.83 are (2.04, 1e-6) by its table
    tree = dp_event.SingleEpochTreeAggregationDpEvent(8.83, 1600)
    accountant = RdpAccountant(neighboring_relation=N.REPLACE_SPECIAL).compose(tree)
    assert 1.5 < accountant.get_epsilon(1e-6) < 2.04


@pytest.mark.parametrize("accountant", [RdpAccountant, PLDAccountant])
def test_nothing_costs_nothing_and_no_guarantee_costs_everything(accountant):
    empty = accountant()
    assert [empty.get_epsilon(d) for d in (0, 1e-12, 1)] == [0, 0, 0]
    assert [empty.get_delta(e) for e in (0, 1e-12, math.inf)] == [0, 0, 0]
    assert isinstance(empty.ledger, dp_event.NoOpDpEvent)
    lost = accountant().compose(dp_event.ComposedDpEvent([dp_event.NonPrivateDpEvent()]))
    assert [lost.get_epsilon(d) for d in (0, 0.99, 1)] == [math.inf] * 3
    assert [lost.get_delta(e) for e in (0, 100, math.inf)] == [1, 1, 1]


def test_an_accountant_adds_up_and_keeps_a_ledger_of_theirs():
    accountant = RdpAccountant().compose(GAUSSIAN, 2).compose(SAMPLED)
    assert accountant.ledger == dp_event.ComposedDpEvent(
        [dp_event.SelfComposedDpEvent(GAUSSIAN, 2), SAMPLED]
    )
    both = accounting.from_dp_event(
        accountant.ledger, privacy_unit="example", neighboring_relation="ADD_OR_REMOVE_ONE"
    )
    assert accountant.get_epsilon(1e-5) == accounting.epsilon(both, delta=1e-5)
    assert accountant.event.privacy_unit == "example"
    ours = (
        RdpAccountant()
        .compose(events.Gaussian(1.0), 2)
        .compose(events.PoissonSampled(0.1, events.Gaussian(2.0)))
    )
    assert ours.get_epsilon(1e-5) == accountant.get_epsilon(1e-5)
    assert ours.ledger == accountant.ledger


def test_their_calibration_takes_our_accountant():
    noise = them.calibrate_dp_mechanism(
        RdpAccountant,
        lambda z: dp_event.SelfComposedDpEvent(
            dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(z)), 1000
        ),
        3.0,
        1e-5,
        them.ExplicitBracketInterval(0.5, 2.0),
    )
    assert noise == pytest.approx(0.864607, abs=2e-4)  # by dp-accounting's own, FIELD's workload


REFUSED = [  # dp-accounting 0.6.0 gives each of these a finite epsilon
    # a negative count pays back what was spent
    (
        RdpAccountant,
        N.ADD_OR_REMOVE_ONE,
        dp_event.ComposedDpEvent(
            [dp_event.SelfComposedDpEvent(GAUSSIAN, 10), dp_event.SelfComposedDpEvent(GAUSSIAN, -9)]
        ),
        "count",
    ),
    # a tree of no step costs nothing, and a noise of -1 as much as one of 1 in a sample
    (
        RdpAccountant,
        N.REPLACE_SPECIAL,
        dp_event.SingleEpochTreeAggregationDpEvent(1.0, [0]),
        "step_counts",
    ),
    (
        RdpAccountant,
        N.ADD_OR_REMOVE_ONE,
        dp_event.PoissonSampledDpEvent(
            0.1, dp_event.ComposedDpEvent([GAUSSIAN, dp_event.GaussianDpEvent(-1.0)])
        ),
        "noise_multiplier",
    ),
    # noise that is no number costs nothing
    (RdpAccountant, N.ADD_OR_REMOVE_ONE, dp_event.GaussianDpEvent(math.nan), "noise_multiplier"),
]


@pytest.mark.parametrize(
    ("accountant", "relation", "event", "told"), REFUSED, ids=lambda v: getattr(v, "__name__", "")
)
def test_what_they_accept_without_a_proof_is_refused_with_its_reason(
    accountant, relation, event, told
):
    theirs = them.rdp.RdpAccountant(neighboring_relation=relation).compose(event)
    assert theirs.get_epsilon(1e-5) < 10
    with pytest.raises(ValueError, match=f"Expected {told} "):
        accountant(neighboring_relation=relation).compose(event)


def test_randomised_response_costs_as_often_as_it_ran():
    event = dp_event.RandomizedResponseDpEvent(0.5, 4)
    ten = dp_event.SelfComposedDpEvent(event, 10)
    one_by_one = them.pld.PLDAccountant(N.REPLACE_ONE)
    one_by_one.compose(dp_event.ComposedDpEvent([event] * 10))
    theirs = them.pld.PLDAccountant(N.REPLACE_ONE).compose(ten)
    assert theirs.get_epsilon(1e-5) < 0.2 * one_by_one.get_epsilon(1e-5)  # they count it once
    ours = PLDAccountant(N.REPLACE_ONE, 1e-3).compose(ten)
    assert ours.get_epsilon(1e-5) == pytest.approx(one_by_one.get_epsilon(1e-5), rel=1e-3)


@pytest.mark.parametrize("accountant", [RdpAccountant, PLDAccountant])
def test_an_unsupported_event_is_told_before_and_raises_both_errors(accountant):
    for event in (
        dp_event.UnsupportedDpEvent(),
        dp_event.SelfComposedDpEvent(dp_event.SampledWithReplacementDpEvent(1000, 10, GAUSSIAN), 3),
        dp_event.ComposedDpEvent(
            [dp_event.NoOpDpEvent(), dp_event.RandomizedResponseDpEvent(0.1, 3)]
        ),
    ):
        one = accountant()
        assert not one.supports(event) and one.supports(SAMPLED)
        for error in (them.UnsupportedEventError, errors.UnsupportedEventError):
            with pytest.raises(error, match="Expected"):
                one.compose(event)
        assert isinstance(one.ledger, dp_event.NoOpDpEvent)
    with pytest.raises(TypeError, match="Expected event"):
        accountant().compose("gaussian")
    for count in (0, -1):
        with pytest.raises(ValueError, match="count"):
            accountant().compose(GAUSSIAN, count)


def test_a_replaced_unit_is_counted_as_each_of_their_accountants_does():
    for ours, theirs in (
        (RdpAccountant, them.rdp.RdpAccountant),
        (PLDAccountant, them.pld.PLDAccountant),
    ):
        found = ours(neighboring_relation=N.REPLACE_ONE).compose(GAUSSIAN).get_epsilon(1e-5)
        expected = theirs(neighboring_relation=N.REPLACE_ONE).compose(GAUSSIAN).get_epsilon(1e-5)
        assert found == pytest.approx(expected, rel=2e-2 if ours is RdpAccountant else 1e-4)
    empty = dp_event.SampledWithoutReplacementDpEvent(1000, 0, GAUSSIAN)
    assert RdpAccountant(neighboring_relation=N.REPLACE_ONE).compose(empty).get_epsilon(0) == 0
    double = dp_event.DiscreteLaplaceDpEvent(0.5, 1)  # an exchange moves the query by 2
    assert PLDAccountant(N.REPLACE_ONE).compose(double).get_epsilon(0) == 1.0
