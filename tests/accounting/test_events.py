"""Events are data: checked, hashable, exact in JSON."""

import json
import math

import pytest

from fljax import accounting
from fljax.accounting import events
from fljax.errors import NoGuaranteeError, UnsupportedEventError

GAUSSIAN = events.Gaussian(1.1)
EVERY_RECORD = [
    GAUSSIAN,
    events.Laplace(2.0),
    events.DiscreteGaussian(3.0, 2),
    events.MixtureOfGaussians(1.5, (0.0, 1.0), (0.9, 0.1)),
    events.PoissonSampled(0.1, GAUSSIAN),
    events.SampledWithoutReplacement(100, 7, GAUSSIAN),
    events.GaussianWeighted(10.0, 0.1, True),
    events.ZCdp(0.1, 0.2),
    events.EpsilonDelta(1.0, 1e-5),
    events.NonPrivate(),
    events.Composed((GAUSSIAN, events.Laplace(0.1 + 0.2))),
    events.SelfComposed(events.PoissonSampled(1 / 3, GAUSSIAN), 17),
]


def claim(mechanism, unit="client", relation="ADD_OR_REMOVE_ONE"):
    return accounting.PrivacyEvent(mechanism=mechanism, privacy_unit=unit, neighboring_relation=relation)


@pytest.mark.parametrize("mechanism", EVERY_RECORD, ids=lambda m: type(m).__name__)
def test_json_restores_every_record_exactly(mechanism):
    event = claim(mechanism)
    back = events.from_json(json.loads(json.dumps(events.to_json(event))))
    assert back == event
    assert hash(back) == hash(event)


def test_every_record_is_in_the_json_test():
    assert {type(m).__name__ for m in EVERY_RECORD} == set(events.RECORDS)


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"surplus": 1},
        {"privacy_unit": "household"},
        {"neighboring_relation": "NEARBY"},
        {"mechanism": {"type": "Quantum"}},
        {"mechanism": {"type": "Gaussian"}},
        {"mechanism": {"type": "Gaussian", "noise_multiplier": 1.0, "clip": 2.0}},
        {"mechanism": {"type": "Gaussian", "noise_multiplier": "1.0"}},
        {"mechanism": {"type": "Gaussian", "noise_multiplier": float("nan")}},
        {"mechanism": {"type": "SelfComposed", "event": 3, "count": 2}},
    ],
    ids=str,
)
def test_json_with_anything_unknown_or_out_of_range_is_refused(change):
    with pytest.raises(ValueError, match="Expected"):
        events.from_json({**events.to_json(claim(GAUSSIAN)), **change})


@pytest.mark.parametrize(
    "make",
    [
        lambda: events.Gaussian(-1.0),
        lambda: events.Gaussian(math.nan),
        lambda: events.Laplace(math.inf),
        lambda: events.DiscreteGaussian(0.0),
        lambda: events.DiscreteGaussian(1.0, 0),
        lambda: events.MixtureOfGaussians(1.0, (0.0, 1.0), (0.5, 0.4)),
        lambda: events.GaussianWeighted(1.0, 0.0, True),
        lambda: events.GaussianWeighted(-1.0, 0.1, True),
        lambda: events.GaussianWeighted(1.0, 0.1, "yes"),
        lambda: events.MixtureOfGaussians(1.0, (1.0, 1.0), (0.5, 0.5)),
        lambda: events.MixtureOfGaussians(1.0, (), ()),
        lambda: events.PoissonSampled(1.5, GAUSSIAN),
        lambda: events.PoissonSampled(0.5, "gaussian"),
        lambda: events.SampledWithoutReplacement(5, 6, GAUSSIAN),
        lambda: events.EpsilonDelta(1.0, 1.0),
        lambda: events.SelfComposed(GAUSSIAN, -1),
        lambda: events.SelfComposed(GAUSSIAN, 1.5),
        lambda: events.Composed((1.0,)),
        lambda: claim(GAUSSIAN, unit="household"),
        lambda: claim(GAUSSIAN, relation="NEARBY"),
    ],
)
def test_values_out_of_range_are_refused(make):
    with pytest.raises(ValueError, match="Expected"):
        make()


def test_events_of_different_claims_do_not_compose():
    with pytest.raises(NoGuaranteeError, match="privacy_unit"):
        accounting.compose([claim(GAUSSIAN), claim(GAUSSIAN, unit="example")])
    with pytest.raises(NoGuaranteeError, match="relation"):
        accounting.compose([claim(GAUSSIAN), claim(GAUSSIAN, relation="REPLACE_ONE")])
    with pytest.raises(ValueError, match="at least one"):
        accounting.compose([])


@pytest.mark.parametrize(
    "mechanism",
    [
        m
        for m in EVERY_RECORD
        if not isinstance(m, events.DiscreteGaussian | events.EpsilonDelta | events.GaussianWeighted)
    ],
    ids=lambda m: type(m).__name__,
)
def test_dp_accounting_events_go_there_and_back(mechanism):
    there = accounting.to_dp_event(claim(mechanism))
    back = accounting.from_dp_event(there, privacy_unit="client", neighboring_relation="ADD_OR_REMOVE_ONE")
    assert back == claim(mechanism)


def test_events_that_the_other_side_lacks_are_refused():
    from dp_accounting import NeighboringRelation, dp_event

    with pytest.raises(UnsupportedEventError):
        accounting.to_dp_event(events.DiscreteGaussian(1.0))
    with pytest.raises(UnsupportedEventError):
        accounting.to_dp_event(events.GaussianWeighted(1.0, 0.1, True))
    with pytest.raises(UnsupportedEventError):
        accounting.from_dp_event(
            dp_event.RepeatAndSelectDpEvent(dp_event.GaussianDpEvent(1.0), 2.0, 1.0),
            privacy_unit="client",
            neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
        )
