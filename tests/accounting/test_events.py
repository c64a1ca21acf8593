"""Events are data: checked, hashable, exact in JSON."""

import copy
import json
import math
import pickle

import jax.numpy as jnp
import numpy as np
import pytest

from fljax import accounting
from fljax.accounting import events
from fljax.errors import NoGuaranteeError, UnsupportedEventError

GAUSSIAN = events.Gaussian(1.1)
EVERY_RECORD = [
    GAUSSIAN,
    events.Laplace(2.0),
    events.DiscreteGaussian(3.0, 2),
    events.DiscreteGaussianSum(3.0, 10, 40.5, 90.0, 64),
    events.Skellam(9.0, 4.5),
    events.DiscreteLaplace(0.3, 4),
    events.RandomizedResponse(0.3, 5),
    events.Staircase(0.7),
    events.NoisyMax(4.0, "exponential", True),
    events.SparseVector(2.0, 3.0, 5),
    events.TreeAggregation(4.0, (100, 30)),
    events.CorrelatedGaussian(4.0, "banded", (1.0, 0.5), 30, 5, True),
    events.SampledCorrelatedGaussian(4.0, "banded", (1.0, 0.5), 30, 5, "cyclic_poisson", 0.5),
    events.RepeatAndSelect(GAUSSIAN, 10.0),
    events.MixtureOfGaussians(1.5, (0.0, 1.0), (0.9, 0.1)),
    events.PoissonSampled(0.1, GAUSSIAN),
    events.SampledWithoutReplacement(100, 7, GAUSSIAN),
    events.SampledWithReplacement(100, 7, GAUSSIAN),
    events.TruncatedPoissonGaussian(100, 0.1, 12, 2.0),
    events.RandomAllocation(20, 3, 2.0),
    events.GaussianWeighted(10.0, 0.1, True),
    events.ZCdp(0.1, 0.2),
    events.EpsilonDelta(1.0, 1e-5),
    events.NonPrivate(),
    events.Composed((GAUSSIAN, events.Laplace(0.1 + 0.2))),
    events.SelfComposed(events.PoissonSampled(1 / 3, GAUSSIAN), 17),
]


def claim(mechanism, unit="client", relation="ADD_OR_REMOVE_ONE"):
    return accounting.PrivacyEvent(
        mechanism=mechanism, privacy_unit=unit, neighboring_relation=relation
    )


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
        lambda: events.DiscreteGaussianSum(0.0, 3, 2.0),
        lambda: events.DiscreteGaussianSum(1.0, 0, 2.0),
        lambda: events.DiscreteGaussianSum(1.0, 2, math.nan),
        lambda: events.DiscreteGaussianSum(1.0, 2, 2.0, 0.0),
        lambda: events.RandomAllocation(3, 4, 1.0),
        lambda: events.RandomAllocation(3, 1, -1.0),
        lambda: events.Skellam(-1.0, 2.0),
        lambda: events.Skellam(1.0, 0.0),
        lambda: events.Skellam(1.0, 2.0, None, 0),
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
        lambda: events.DiscreteLaplace(1.0, 1.5),
        lambda: events.RandomizedResponse(1.5, 3),
        lambda: events.Staircase(0.0),
        lambda: events.NoisyMax(1.0, "normal"),
        lambda: events.SparseVector(1.0, 1.0, 0),
        lambda: events.TreeAggregation(1.0, (3, 0)),
        lambda: events.TreeAggregation(1.0, ()),
        lambda: events.CorrelatedGaussian(-1.0, "tree", (), 8, 8),
        lambda: events.CorrelatedGaussian(1.0, "tree", (), 0, 8),
        lambda: events.CorrelatedGaussian(1.0, "tree", (), 8, 0),
        lambda: events.CorrelatedGaussian(1.0, "banded", (0.5,), 8, 8),
        lambda: events.CorrelatedGaussian(1.0, "banded", (1.0, math.nan), 8, 8),
        lambda: events.CorrelatedGaussian(1.0, "sparse", (1.0,), 8, 8),
        lambda: events.CorrelatedGaussian(1.0, "tree", (), 8, 8, "yes"),
        lambda: events.SampledCorrelatedGaussian(1.0, "tree", (), 8, 8, "poisson"),
        lambda: events.SampledCorrelatedGaussian(1.0, "tree", (), 8, 0, "balls_in_bins"),
        lambda: events.SampledCorrelatedGaussian(1.0, "tree", (), 8, 8, "balls_in_bins", 0.5),
        lambda: events.SampledCorrelatedGaussian(1.0, "tree", (), 8, 8, "cyclic_poisson", 1.5),
        lambda: events.RepeatAndSelect(GAUSSIAN, 0.5, 1.0),
        lambda: events.RepeatAndSelect(GAUSSIAN, 2.0, -0.5),
        lambda: events.TruncatedPoissonGaussian(10, 1.5, 3, 1.0),
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
        if not isinstance(
            m,
            events.DiscreteGaussian
            | events.DiscreteGaussianSum
            | events.Skellam
            | events.CorrelatedGaussian  # goes there as the Gaussian mechanism that it is
            | events.SampledCorrelatedGaussian
            | events.EpsilonDelta
            | events.GaussianWeighted
            | events.RandomAllocation
            | events.Staircase
            | events.NoisyMax
            | events.SparseVector,
        )
    ],
    ids=lambda m: type(m).__name__,
)
def test_dp_accounting_events_go_there_and_back(mechanism):
    there = accounting.to_dp_event(claim(mechanism))
    back = accounting.from_dp_event(
        there, privacy_unit="client", neighboring_relation="ADD_OR_REMOVE_ONE"
    )
    assert back == claim(mechanism)


def test_events_that_the_other_side_lacks_are_refused():
    from dp_accounting import NeighboringRelation, dp_event

    with pytest.raises(UnsupportedEventError):
        accounting.to_dp_event(events.DiscreteGaussian(1.0))
    with pytest.raises(UnsupportedEventError):
        accounting.to_dp_event(events.GaussianWeighted(1.0, 0.1, True))
    with pytest.raises(UnsupportedEventError):
        accounting.from_dp_event(
            dp_event.ComposedDpEvent([dp_event.UnsupportedDpEvent()]),
            privacy_unit="client",
            neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
        )


WRITE_CLAIM = (
    r"write PrivacyEvent\(mechanism=\.\.\., privacy_unit=\.\.\., neighboring_relation=\.\.\.\)"
)
WRITE_FROM = (
    r"write accounting\.from_dp_event\(event, privacy_unit=\.\.\., neighboring_relation=\.\.\.\)"
)


def test_a_mechanism_that_is_repeated_says_what_to_write():
    for mechanism in EVERY_RECORD:
        with pytest.raises(ValueError, match=WRITE_CLAIM + r"\.repeat\(10\), or SelfComposed\("):
            mechanism.repeat(10)


def test_a_claim_by_position_says_what_to_write():
    with pytest.raises(
        TypeError, match=r"privacy_unit=\.\.\., .*each by its name, got 3 without a name"
    ):
        accounting.PrivacyEvent(GAUSSIAN, "client", "REPLACE_ONE")
    event = claim(GAUSSIAN)
    assert pickle.loads(pickle.dumps(event)) == event == copy.deepcopy(event)


def test_what_is_no_event_says_what_to_write_wherever_events_go():
    them = pytest.importorskip("dp_accounting")
    theirs = them.PoissonSampledDpEvent(0.1, them.GaussianDpEvent(1.0))
    ledger = accounting.Ledger(privacy_unit="client", neighboring_relation="ADD_OR_REMOVE_ONE")
    takers = [
        lambda event: accounting.epsilon(event, delta=1e-5),
        lambda event: accounting.delta(event, epsilon=1.0),
        lambda event: accounting.interval(event, delta=1e-5, method="pld"),
        lambda event: accounting.calibrate(lambda noise: event, epsilon=1.0, delta=1e-5),
        lambda event: accounting.statement(event, delta=1e-5),
        lambda event: accounting.table(event, delta=1e-5),
        lambda event: accounting.pld.interval(event, delta=1e-5),
        lambda event: accounting.pld.estimate(event, 1e-5),
        lambda event: accounting.compose([event]),
        ledger.append,
        lambda event: ledger.would_exceed(event, target_epsilon=1.0, delta=1e-5),
        events.to_json,
    ]
    for take in takers:
        for event, advice in ((theirs, WRITE_FROM), (GAUSSIAN, WRITE_CLAIM), (None, "got event")):
            with pytest.raises(
                ValueError, match=rf"^Expected events? to be a PrivacyEvent .*{advice}"
            ):
                take(event)
    inner = [
        lambda event: claim(event),
        lambda event: events.PoissonSampled(0.1, event),
        lambda event: events.SampledWithoutReplacement(10, 2, event),
        lambda event: events.SelfComposed(event, 3),
        lambda event: events.Composed((event,)),
    ]
    for make in inner:
        with pytest.raises(
            ValueError, match=rf"to be a mechanism record .*{WRITE_FROM}\.mechanism"
        ):
            make(theirs)
        with pytest.raises(ValueError, match=r"to be a mechanism record .*: write its \.mechanism"):
            make(claim(GAUSSIAN))
    for alone in (claim(GAUSSIAN), GAUSSIAN, theirs):
        with pytest.raises(ValueError, match=r"write compose\(\[event\]\)"):
            accounting.compose(alone)
    with pytest.raises(ValueError, match="events to be a tuple of mechanism records"):
        events.Composed(GAUSSIAN)
    with pytest.raises(ValueError, match="event_fn to be a function"):
        accounting.calibrate(claim(GAUSSIAN), epsilon=1.0, delta=1e-5)


NO_NUMBERS = ("1", np.str_("1"), b"1", True, np.bool_(True), np.array([1.0]), [1.0], 1j)


@pytest.mark.parametrize("value", [*NO_NUMBERS, None], ids=repr)
def test_what_is_no_number_is_refused_where_an_event_wants_one(value):
    event = claim(GAUSSIAN)
    for make in (
        events.Gaussian,
        events.Laplace,
        events.DiscreteGaussian,
        lambda v: events.DiscreteGaussianSum(v, 3, 2.0),
        lambda v: events.Skellam(4.0, v),
        events.ZCdp,
        events.EpsilonDelta,
        lambda v: events.EpsilonDelta(1.0, v),
        lambda v: events.PoissonSampled(v, GAUSSIAN),
        lambda v: events.SampledWithoutReplacement(10, v, GAUSSIAN),
        lambda v: events.SelfComposed(GAUSSIAN, v),
        lambda v: events.GaussianWeighted(1.0, v, True),
        lambda v: events.MixtureOfGaussians(v, (1.0,), (1.0,)),
        lambda v: events.MixtureOfGaussians(1.0, (v,), (1.0,)),
        event.repeat,
        lambda v: accounting.calibrate(lambda _: event, epsilon=v, delta=1e-5),
        lambda v: accounting.calibrate(lambda _: event, epsilon=1.0, delta=1e-5, bracket=(v, 2.0)),
    ):
        with pytest.raises(ValueError, match=r"^Expected "):
            make(value)


@pytest.mark.parametrize("orders", [("2",), (True,), (2j,), (None,), b"2"], ids=repr)
def test_orders_are_numbers(orders):
    with pytest.raises(ValueError, match=r"^Expected orders > 1 and finite"):
        accounting.epsilon(claim(GAUSSIAN), delta=1e-5, orders=orders)


@pytest.mark.parametrize(
    "value", [2, 2.0, np.float32(2), np.int64(2), np.array(2.0), jnp.float32(2), jnp.bfloat16(2)]
)
def test_numbers_of_every_library_are_numbers(value):
    assert events.Gaussian(value).noise_multiplier == 2


def _wrapped(kind, inner):
    from dp_accounting import dp_event

    return {
        "bare": inner,
        "repeated": dp_event.SelfComposedDpEvent(inner, 3),
        "composed": dp_event.ComposedDpEvent([dp_event.NoOpDpEvent(), inner]),
        "sampled": dp_event.SampledWithoutReplacementDpEvent(100, 10, inner),
        "poisson": dp_event.PoissonSampledDpEvent(0.1, dp_event.ComposedDpEvent([inner])),
    }[kind]


@pytest.mark.parametrize("kind", ["bare", "repeated", "composed", "sampled", "poisson"])
@pytest.mark.parametrize("name", ["GaussianDpEvent", "LaplaceDpEvent"])
def test_a_replaced_unit_has_its_noise_convention_stated(kind, name):
    from dp_accounting import NeighboringRelation, dp_event

    given = _wrapped(kind, getattr(dp_event, name)(2.0))
    for relation in (
        "REPLACE_ONE",
        NeighboringRelation.REPLACE_ONE,
        accounting.NeighboringRelation.REPLACE_ONE,
    ):
        unit = {"privacy_unit": "client", "neighboring_relation": relation}
        with pytest.raises(
            ValueError, match=r"Expected noise_relative_to to say .* got noise_relative_to=None"
        ):
            accounting.from_dp_event(given, **unit)
        same = accounting.from_dp_event(given, **unit, noise_relative_to="REPLACE_ONE")
        for stated in ("ADD_OR_REMOVE_ONE", NeighboringRelation.REPLACE_SPECIAL):
            half = accounting.from_dp_event(given, **unit, noise_relative_to=stated)
            shown = str(half.mechanism)
            assert "noise_multiplier=1.0" in shown and "noise_multiplier=2.0" not in shown
        assert (
            same.mechanism
            == accounting.from_dp_event(
                given, privacy_unit="client", neighboring_relation="ADD_OR_REMOVE_ONE"
            ).mechanism
        )
        assert "noise_multiplier=2.0" in str(same.mechanism)


def test_an_imported_gaussian_agrees_with_the_accountant_whose_convention_was_stated():
    import dp_accounting
    from dp_accounting import dp_event, pld, rdp

    given, relation = dp_event.GaussianDpEvent(1.0), dp_accounting.NeighboringRelation.REPLACE_ONE
    unit = {"privacy_unit": "client", "neighboring_relation": relation}
    theirs = pld.PLDAccountant(relation).compose(given).get_epsilon(1e-5)
    halved = accounting.from_dp_event(given, **unit, noise_relative_to="ADD_OR_REMOVE_ONE")
    assert accounting.epsilon(halved, delta=1e-5, method="gdp") == pytest.approx(theirs, rel=1e-3)
    theirs = rdp.RdpAccountant(neighboring_relation=relation).compose(given).get_epsilon(1e-5)
    same = accounting.from_dp_event(given, **unit, noise_relative_to="REPLACE_ONE")
    assert accounting.epsilon(same, delta=1e-5) == pytest.approx(theirs, rel=2e-2)
    assert accounting.to_dp_event(same) == given


def test_a_noise_convention_that_does_not_apply_is_refused():
    from dp_accounting import dp_event

    for relation in ("ADD_OR_REMOVE_ONE", "REPLACE_SPECIAL"):
        with pytest.raises(ValueError, match="noise_relative_to other than REPLACE_ONE"):
            accounting.from_dp_event(
                dp_event.GaussianDpEvent(1.0),
                privacy_unit="client",
                neighboring_relation=relation,
                noise_relative_to="REPLACE_ONE",
            )
    unit = {"privacy_unit": "client", "neighboring_relation": "REPLACE_ONE"}
    with pytest.raises(ValueError, match="noise_relative_to to be one of"):
        accounting.from_dp_event(dp_event.GaussianDpEvent(1.0), **unit, noise_relative_to="removal")
    mixture = dp_event.MixtureOfGaussiansDpEvent(1.0, [0.0, 1.0], [0.5, 0.5])
    with pytest.raises(ValueError, match="noise_relative_to"):
        accounting.from_dp_event(mixture, **unit)
    with pytest.raises(UnsupportedEventError, match="sensitivities under REPLACE_ONE"):
        accounting.from_dp_event(mixture, **unit, noise_relative_to="ADD_OR_REMOVE_ONE")
    # What adds no noise has nothing to state.
    assert accounting.from_dp_event(dp_event.ZCDpEvent(0.5, 0.0), **unit).mechanism == events.ZCdp(
        0.5
    )
