"""Printed bounds: never stronger than what was computed, and exact numbers stay as they are."""

import math
import re

from hypothesis import example, given
from hypothesis import strategies as st

from fljax import accounting
from fljax.accounting import events, words
from fljax.simulation import budget
from fljax.simulation.observers import progress

BOUNDS = st.floats(
    min_value=0, exclude_min=True, allow_nan=False, allow_infinity=False, allow_subnormal=False
)


@given(value=BOUNDS, digits=st.integers(1, 12))
@example(value=0.001, digits=3)
@example(value=9.9999999, digits=3)
@example(value=math.nextafter(4.0, 5.0), digits=6)
@example(value=1e-5, digits=1)
@example(value=123456789.5, digits=4)
def test_upper_bounds_are_printed_rounded_up_and_lower_ones_down_by_less_than_a_digit(
    value, digits
):
    last = 10.0 ** (1 - digits)
    for shown in (words.rounded_up(value, digits), words.at_most(value, digits)):
        assert value <= float(shown) <= value * (1 + 1.0001 * last)
    assert value * (1 - 1.0001 * last) <= float(words.at_least(value, digits)) <= value


@given(exact=st.integers(1, 999), exponent=st.integers(-12, 6))
@example(exact=1, exponent=-3)
def test_a_number_that_is_exact_at_these_digits_stays(exact, exponent):
    value = float(f"{exact}e{exponent}")
    for shown in (words.rounded_up(value, 3), words.at_most(value, 3), words.at_least(value, 3)):
        assert float(shown) == value
    assert float(budget.shown_epsilon(value)) == value


def test_printed_forms():
    assert words.rounded_up(0.001, 3) == "0.00100" and words.at_most(0.001, 3) == "0.001"
    assert words.at_most(1e-5) == words.at_least(1e-5) == "1e-05" and words.at_most(4.0) == "4"
    assert words.at_most(2.0000001) == "2.00001" and words.at_least(1.9999999) == "1.99999"
    assert [words.at_most(v) for v in (0.0, math.inf)] == ["0", "inf"]


@given(epsilon=st.floats(1e-9, 1e12))
@example(epsilon=0.0001)
@example(epsilon=9.987e-05)
@example(epsilon=3.0)
def test_the_epsilon_of_a_run_is_never_shown_smaller_nor_much_larger(epsilon):
    shown = float(budget.shown_epsilon(epsilon))
    assert epsilon <= shown <= epsilon + min(0.001, 0.01 * epsilon) + 1e-12 * epsilon
    (in_line,) = re.findall(r"epsilon (\S+)", progress.describe({"epsilon": epsilon}))
    assert float(in_line) == shown


@given(noise=st.floats(0.3, 30), delta=st.floats(1e-12, 0.5))
@example(noise=1.0, delta=1.23456789e-6)
def test_a_statement_claims_no_more_than_was_computed(noise, delta):
    event = events.PrivacyEvent(
        mechanism=events.Gaussian(noise),
        privacy_unit="client",
        neighboring_relation="ADD_OR_REMOVE_ONE",
    )
    text = accounting.statement(event, delta=delta, method="gdp")
    epsilon, shown_delta = map(
        float, re.match(r"\((\S+), (\S+)\)-differential privacy", text).groups()
    )
    exact = accounting.epsilon(event, delta=delta, method="gdp")
    assert exact <= epsilon <= exact * 1.00002 and delta <= shown_delta <= delta * 1.00002


@given(value=st.floats(1e-9, 100), delta=st.floats(1e-12, 0.5))
def test_a_mechanism_of_given_epsilon_is_described_with_no_less(value, delta):
    text = words.describe(events.EpsilonDelta(value, delta))
    epsilon, shown_delta = map(float, re.search(r"\((\S+), (\S+)\)-DP", text).groups())
    assert value <= epsilon and delta <= shown_delta
    (xi, rho) = map(
        float,
        re.search(r"\((\S+), (\S+)\)-zCDP", words.describe(events.ZCdp(value, delta))).groups(),
    )
    assert delta <= xi and value <= rho


@given(
    epsilon=st.floats(1e-9, 1e6),
    delta=st.floats(1e-300, 0.5),
    relation=st.sampled_from(["ADD_OR_REMOVE_ONE", "REPLACE_ONE", "REPLACE_SPECIAL"]),
    unit=st.sampled_from(["client", "example", "subject"]),
)
@example(epsilon=math.nextafter(4.0, 5.0), delta=1e-5, relation="REPLACE_ONE", unit="example")
def test_the_sentence_of_a_claim_names_no_less_than_was_found(epsilon, delta, relation, unit):
    event = events.PrivacyEvent(
        mechanism=events.Gaussian(1.0), privacy_unit=unit, neighboring_relation=relation
    )
    found = accounting.Spent(0.0, epsilon, delta, delta, "pld", True, "a proof")
    text = words.claim(event, found, released="models, ")
    shown, shown_delta = map(
        float, re.match(r"\((\S+), (\S+)\)-differential privacy", text).groups()
    )
    assert epsilon <= shown <= epsilon * 1.00002 and delta <= shown_delta <= delta * 1.00002
    assert all(
        part in text
        for part in (unit, relation, "PLD", "a proof", "Released: models, Gaussian noise")
    )


PLAN = budget.Plan(
    scheme_config=None,
    event=events.PrivacyEvent(
        mechanism=events.Gaussian(1.0),
        privacy_unit="client",
        neighboring_relation="ADD_OR_REMOVE_ONE",
    ),
    num_units=10,
    delta=1e-5,
    accountant="gdp",
    target_epsilon=None,
    num_rounds=1,
    epsilons=(0.0, 1.0),
    noise_at="server",
)


@given(epsilon=st.floats(1e-9, 1e6), delta=st.floats(1e-12, 0.5))
def test_a_run_claims_in_its_record_and_report_what_the_one_writer_wrote(epsilon, delta):
    plan = PLAN._replace(epsilons=(0.0, epsilon), delta=delta)
    text = budget.statement(plan, 1)["guarantee"]
    found = accounting.Spent(0.0, epsilon, delta, delta, "gdp", True, "exact: 1-GDP")
    assert text.startswith(
        words.claim(plan.event.repeat(1), found, released="the model after each of 1 rounds, ")
    )


@given(noise=st.floats(1e-6, 1e6), prob=st.floats(1e-9, 1.0))
def test_a_mechanism_is_described_with_no_more_noise_and_no_less_sampling_than_it_has(noise, prob):
    text = words.describe(events.PoissonSampled(prob, events.Gaussian(noise)))
    shown, shown_prob = map(float, re.search(r"of (\S+) times .* chance (\S+)\)", text).groups())
    assert noise * (1 - 1.1e-5) <= shown <= noise and prob <= shown_prob <= prob * (1 + 1.1e-5)


def test_a_sample_of_many_rounds_is_said_to_be_drawn_once():
    correlated = events.CorrelatedGaussian(1.0, "tree", (), 8, 8)
    once = "on a Poisson sample that is drawn once for all rounds"
    for inner in (correlated, events.SelfComposed(events.Gaussian(1.0), 3)):
        assert once in words.describe(events.PoissonSampled(0.1, inner))
    each = events.SelfComposed(events.PoissonSampled(0.1, events.Gaussian(1.0)), 3)
    assert "on a Poisson sample (each unit joins" in words.describe(each)


def test_what_is_taken_on_trust_of_silos_is_told():
    alone = PLAN._replace(noise_at="silo")
    told = [
        budget.statement(plan, 1)["not_covered"] for plan in (alone, alone._replace(alone=False))
    ]
    need_not = ["The server need not be." in " ".join(each) for each in told]
    on_trust = ["more than the mean of all silos is taken on trust" in " ".join(t) for t in told]
    assert need_not == [True, False] and on_trust == [False, True]
