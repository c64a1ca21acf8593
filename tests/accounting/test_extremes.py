"""Numbers at the ends of their ranges: bounds stay bounds, and no answer is NaN."""

import math
import warnings

import mpmath
import pytest

from fljax import accounting
from fljax.accounting import events
from fljax.accounting.renyi import rdp


def claim(mechanism):
    return accounting.PrivacyEvent(
        mechanism=mechanism, privacy_unit="client", neighboring_relation="ADD_OR_REMOVE_ONE"
    )


@pytest.mark.parametrize("noise", [1e3, 1e9, 1e12])
@pytest.mark.parametrize("rate", [0.5, 0.99, 1 - 1e-9])
@pytest.mark.parametrize("order", [2, 64, 200])
def test_a_sampled_gaussian_of_huge_noise_keeps_its_digits(noise, rate, order):
    with mpmath.workdps(60):
        q, s = mpmath.mpf(rate), mpmath.mpf(noise)
        moment = mpmath.fsum(
            mpmath.binomial(order, k)
            * (1 - q) ** (order - k)
            * q**k
            * mpmath.expm1(k * (k - 1) / (2 * s * s))
            for k in range(2, order + 1)
        )
        exact = mpmath.log1p(moment) / (order - 1)
        found = rdp.poisson_gaussian(noise, rate, (float(order),))[0]
        assert abs(float(found / exact - 1)) < 1e-12


@pytest.mark.parametrize("scale", [0.02, 0.3, 1.0, 1e4, 1e8, 1e16])
def test_laplace_noise_of_any_scale_keeps_its_digits(scale):
    orders = (1.005, 2.0, 64.0, 1024.0)
    with mpmath.workdps(80):
        epsilon = 1 / mpmath.mpf(scale)
        for order, found in zip(orders, rdp.laplace(scale, orders), strict=True):
            a = mpmath.mpf(order)
            moment = a * mpmath.exp((a - 1) * epsilon) + (a - 1) * mpmath.exp(-a * epsilon)
            exact = mpmath.log(moment / (2 * a - 1)) / (a - 1)
            assert abs(float(found / exact - 1)) < 2e-15


@pytest.mark.filterwarnings("ignore::fljax.accounting.OrderWarning")
@pytest.mark.parametrize("noise", [1e-154, 1e-160, 1e-200, 5e-324])
@pytest.mark.parametrize("method", accounting.ACCOUNTANTS)
def test_hardly_any_noise_has_no_bound_and_no_nan(noise, method):
    for delta in (1e-5, 5e-324):
        found = accounting.spent(claim(events.Gaussian(noise)), delta=delta, method=method)
        assert found.epsilon_upper >= 1e307
        assert 0 <= found.epsilon_lower <= found.epsilon_upper


def test_the_smallest_delta_of_all_is_answered():
    delta = 5e-324
    for mechanism in (
        events.SelfComposed(events.PoissonSampled(0.01, events.Gaussian(1.0)), 100),
        events.PoissonSampled(0.5, events.Gaussian(1.0)),
        events.SelfComposed(events.Laplace(1.0), 3),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            renyi = accounting.epsilon(claim(mechanism), delta=delta)
            found = accounting.spent(claim(mechanism), delta=delta, method="pld")
        assert 0 <= found.epsilon_lower <= found.epsilon_upper <= renyi * (1 + 1e-9)
        assert math.isfinite(found.epsilon_upper)
