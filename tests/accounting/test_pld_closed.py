"""Where lattices in float64 resolve nothing: the exact curve of one step in 60 digits, and words
for wide bounds.
"""

import mpmath
import numpy as np
import pytest

from fljax import accounting
from fljax.accounting import events, pld
from fljax.accounting.pld import closed, without_replacement

RARE = [
    (1e-30, 1.0, 1e-300),
    (1e-30, 1.0, 1e-40),
    (1e-10, 0.5, 1e-250),
    (0.01, 3.0, 1e-300),
    (1e-9, 1.0, 1e-20),
]


def exact_delta(q, noise, epsilon):
    """Of one step: q times that of the Gaussian at log(1 + (e^epsilon - 1) / q)."""
    with mpmath.workdps(60):
        q, mu = mpmath.mpf(q), 1 / mpmath.mpf(noise)
        inner = mpmath.log1p(mpmath.expm1(mpmath.mpf(epsilon)) / q)
        phi = mpmath.ncdf
        return q * (phi(mu / 2 - inner / mu) - mpmath.exp(inner) * phi(-inner / mu - mu / 2))


@pytest.mark.parametrize(("q", "noise", "delta"), RARE)
def test_one_step_is_tight_where_no_lattice_resolves_it(q, noise, delta):
    some = np.array([noise]), np.array([q]), np.array([1])
    (lower, upper), *_ = closed.steps_interval(*some, np.log([delta]), for_delta=False)
    assert lower < upper < lower * (1 + 1e-8)
    assert exact_delta(q, noise, upper) < delta < exact_delta(q, noise, lower)
    (low, high), *_ = closed.steps_interval(*some, np.array([upper]), for_delta=True)
    truth = float(mpmath.log(exact_delta(q, noise, upper)))
    assert truth - 1e-7 < low <= truth <= high < truth + 1e-7


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0])
def test_delta_of_some_steps_lies_between_that_of_one_and_their_sum(epsilon):
    noise, count = 2.0, 4  # of everybody: four steps are one of half the noise
    some = np.array([noise]), np.array([1.0]), np.array([count])
    (low, high), *_ = closed.steps_interval(*some, np.array([epsilon]), for_delta=True)
    truth = float(mpmath.log(exact_delta(1, noise / 2, epsilon)))
    assert low == pytest.approx(float(mpmath.log(exact_delta(1, noise, epsilon))), abs=1e-7)
    assert low < truth < high


def test_the_interval_of_a_rare_step_is_tight_without_a_warning():
    lower, upper = pld.poisson_gaussian_interval(1.0, 1e-30, 1, delta=1e-300)
    assert 2.70111568e-15 < lower < upper < 2.70111569e-15
    sampled = events.PoissonSampled(1e-30, events.Gaussian(1.0))
    event = events.PrivacyEvent(
        mechanism=sampled,
        privacy_unit="client",
        neighboring_relation=events.NeighboringRelation.ADD_OR_REMOVE_ONE,
    )
    assert accounting.interval(event, delta=1e-300, method="pld") == (lower, upper)


def test_many_rare_steps_have_bounds_and_a_warning_that_names_the_cause():
    with pytest.warns(pld.WideIntervalWarning, match="resolve neither deltas below"):
        lower, upper = pld.poisson_gaussian_interval(1.0, 1e-30, 1000, delta=1e-300)
    one = pld.poisson_gaussian_interval(1.0, 1e-30, 1, delta=1e-303)[1]
    assert 2.7e-15 < lower < upper <= 1000 * one * (1 + 1e-8)


def test_renyi_divergences_close_an_interval_without_an_upper_end():
    lower, upper = pld.poisson_gaussian_interval(1.0, 0.01, 100, delta=1e-300)
    assert 70 < lower < upper < 1.02 * lower


def test_samples_without_replacement_at_a_tiny_delta():
    found = without_replacement.sampled_epsilon(1.0, 1e-30, 1, 1e-300)
    assert 2.70111568e-15 < found < 2.70111569e-15
    with pytest.warns(pld.WideIntervalWarning):
        assert without_replacement.sampled_epsilon(
            0.01, 0.5, 4, 1e-5
        ) >= without_replacement.sampled_epsilon(0.01, 0.5, 1, 1e-5)
