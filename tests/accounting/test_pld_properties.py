"""What holds for the true epsilon of any run must hold for its certified bounds."""

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fljax import accounting
from fljax.accounting import events, pld

ACCURACY = 1e-2  # few sizes of lattices, few programs


@st.composite
def runs(draw):
    """(noise, rate, steps, delta) with an epsilon between about 0.05 and 50."""
    noise = draw(st.floats(1.0, 4.0))
    prob = draw(st.sampled_from([0.01, 0.1, 0.5]))
    steps = draw(st.sampled_from([1, 8, 60]))
    return noise, prob, steps, 10.0 ** draw(st.floats(-9.0, -4.0))


@functools.cache
def bounds(noise, prob, steps, delta):
    lower, upper = pld.poisson_gaussian_interval(noise, prob, steps, delta=delta, accuracy=ACCURACY)
    assert 0 <= lower <= upper
    return float(lower), float(upper)


def slack(upper):
    return 2 * ACCURACY * upper + 1e-12


def examples(number):
    return settings(max_examples=number, deadline=None, derandomize=True)


@pytest.mark.slow(
    reason="Hypothesis over privacy-loss distributions: a program for each number of steps"
)
@examples(20)
@given(runs())
def test_epsilon_falls_with_noise_and_delta_and_rises_with_rate_and_steps(run):
    noise, prob, steps, delta = run
    here = bounds(*run)
    less = [
        bounds(1.15 * noise, prob, steps, delta),
        bounds(noise, prob, steps, min(10 * delta, 1e-3)),
    ]
    more = [
        bounds(noise, min(1.0, 1.3 * prob), steps, delta),
        bounds(noise, prob, 2 * steps, delta),
    ]
    for other in less:
        assert other[0] <= here[1]
        # The steps are large enough for the intervals to lie apart, and not only for their far ends
        # to be in order.
        assert other[1] <= max(here[0], 0.0) + slack(here[1])
    for other in more:
        assert here[0] <= other[1]
        assert here[1] <= other[0] + slack(other[1])


@examples(15)
@given(runs(), st.sampled_from([1, 8]), st.floats(0.1, 0.9))
def test_a_composition_costs_no_more_than_its_parts(run, more_steps, share):
    noise, prob, steps, delta = run
    whole = bounds(noise, prob, steps + more_steps, delta)
    parts = (
        bounds(noise, prob, steps, share * delta)[1]
        + bounds(noise, prob, more_steps, (1 - share) * delta)[1]
    )
    assert whole[0] <= parts


@examples(20)
@given(runs())
def test_epsilon_is_at_most_what_renyi_bounds_say(run):
    noise, prob, steps, delta = run
    mechanism = events.SelfComposed(events.PoissonSampled(prob, events.Gaussian(noise)), steps)
    event = accounting.PrivacyEvent(
        mechanism=mechanism, privacy_unit="client", neighboring_relation="ADD_OR_REMOVE_ONE"
    )
    renyi = accounting.epsilon(event, delta=delta, method="rdp")
    lower, upper = bounds(*run)
    assert lower <= renyi and upper <= renyi * (1 + ACCURACY) + 1e-9


@examples(20)
@given(runs())
def test_delta_at_the_epsilon_found_is_the_delta_asked_for(run):
    noise, prob, steps, delta = run
    lower, upper = bounds(*run)
    at_upper = pld.poisson_gaussian_interval(noise, prob, steps, epsilon=upper, accuracy=ACCURACY)
    assert at_upper[0] <= delta
    if lower > 1e-6:
        assert (
            delta
            <= pld.poisson_gaussian_interval(noise, prob, steps, epsilon=lower, accuracy=ACCURACY)[
                1
            ]
        )
    assert np.all(np.diff(at_upper) >= 0)
