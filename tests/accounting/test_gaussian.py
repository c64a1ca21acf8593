"""Gaussian DP against high-precision values."""

import math

import jax
import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fljax import accounting
from fljax.accounting import gaussian

GRID = [
    (mu, epsilon)
    for mu in (1e-4, 0.01, 0.5, 1.0, 1.5, 3.0, 10.0, 60.0)
    for epsilon in (0.0, 1e-3, 0.1, 1.0, 5.0, 30.0, 200.0)
    if epsilon / mu <= 200
]


def exact_log_delta(mu, epsilon):
    """Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu), whose terms cancel, in 400 digits."""
    with mpmath.workdps(400):
        mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
        value = mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.e**epsilon * mpmath.ncdf(
            -mu / 2 - epsilon / mu
        )
        return float(mpmath.log(value))


def test_log_delta_is_exact_from_1_down_to_below_the_range_of_floats():
    mu, epsilon = np.asarray(GRID).T
    truth = np.asarray([exact_log_delta(*pair) for pair in GRID])
    got = gaussian.log_delta(mu, epsilon)
    assert truth.min() < -1e4
    np.testing.assert_allclose(got, truth, rtol=1e-13, atol=1e-14)


def test_epsilon_and_mu_invert_delta_down_to_1e_minus_300():
    for log10_delta in (-1, -5, -20, -100, -300):
        for mu in (1e-3, 0.3, 1.0, 5.0, 40.0):
            target = log10_delta * math.log(10)
            epsilon = float(gaussian.mu_to_epsilon(mu, log_delta=target))
            if epsilon == 0:
                assert gaussian.log_delta(mu, 0.0) <= target
                continue
            assert float(gaussian.log_delta(mu, epsilon)) == pytest.approx(target, rel=1e-12)
            assert float(gaussian.epsilon_to_mu(epsilon, log_delta=target)) == pytest.approx(
                mu, rel=1e-11
            )


def test_known_values():
    # Balle, Wang (2018), arXiv:1805.06530: sigma of the analytic Gaussian mechanism at (1, 1e-5).
    assert 1 / float(gaussian.epsilon_to_mu(1.0, 1e-5)) == pytest.approx(3.730632, abs=1e-6)
    assert float(gaussian.advantage(1.0)) == pytest.approx(math.erf(0.5 / math.sqrt(2)), rel=1e-14)
    assert float(gaussian.compose([3.0, 4.0])) == 5.0
    assert float(gaussian.mu_to_delta(1.0, 0.0)) == pytest.approx(
        float(gaussian.advantage(1.0)), rel=1e-14
    )


def test_no_privacy_and_no_release():
    assert float(gaussian.mu_to_epsilon(0.0, 1e-5)) == 0.0
    assert float(gaussian.mu_to_epsilon(math.inf, 1e-5)) == math.inf
    assert float(gaussian.mu_to_delta(math.inf, 3.0)) == 1.0
    assert float(gaussian.mu_to_delta(0.0, 3.0)) == 0.0
    for bad in (math.nan, -1.0):
        assert math.isnan(float(gaussian.mu_to_epsilon(bad, 1e-5)))


def test_one_call_answers_a_grid():
    got = gaussian.mu_to_epsilon(np.asarray([0.5, 1.0])[:, None], np.asarray([1e-3, 1e-5, 1e-9]))
    assert got.shape == (2, 3)
    assert float(got[1, 1]) == float(gaussian.mu_to_epsilon(1.0, 1e-5))


def test_trade_off_is_the_dual_of_delta():
    # delta(eps) = max over fpr of 1 - f(fpr) - e^eps fpr, attained at fpr = Phi(-eps/mu - mu/2).
    mu, epsilon = 1.3, 0.7
    best = float(mpmath.ncdf(-epsilon / mu - mu / 2))
    dual = 1 - float(gaussian.trade_off(mu, best)) - math.exp(epsilon) * best
    assert dual == pytest.approx(float(gaussian.mu_to_delta(mu, epsilon)), rel=1e-12)
    fpr = np.asarray([0.0, 1e-12, 0.01, 0.5, 1.0])
    np.testing.assert_allclose(
        gaussian.tpr_at_fpr(mu, fpr), 1 - gaussian.trade_off(mu, fpr), atol=1e-14
    )
    np.testing.assert_allclose(gaussian.tpr_at_fpr(0.0, fpr), fpr, rtol=1e-12)


@pytest.mark.slow(reason="compiles derivatives in float64")
def test_derivatives_are_those_of_finite_differences():
    with accounting.x64():
        for fun, at in (
            (lambda mu: gaussian.mu_to_epsilon(mu, 1e-5), 1.0),
            (lambda e: gaussian.epsilon_to_mu(e, 1e-5), 1.0),
            (lambda mu: gaussian.log_delta(mu, 1.0), 1.0),
            (lambda mu: gaussian.log_delta(mu, 0.01), 2.0),
        ):
            step = 1e-5
            slope = (float(fun(at + step)) - float(fun(at - step))) / (2 * step)
            assert float(jax.grad(fun)(at)) == pytest.approx(slope, rel=1e-7)


@given(mu=st.floats(1e-3, 50.0), epsilon=st.floats(0.0, 100.0), more=st.floats(1.0, 2.0))
def test_delta_falls_with_epsilon_and_grows_with_mu(mu, epsilon, more):
    base = float(gaussian.log_delta(mu, epsilon))
    slack = 1e-12 * (1 + abs(base))
    assert base <= 1e-15
    assert float(gaussian.log_delta(mu, epsilon * more)) <= base + slack
    assert float(gaussian.log_delta(mu * more, epsilon)) >= base - slack
