"""Renyi divergence of mixtures of Gaussians: brute force, quadrature, known special cases."""

import itertools
import math

import mpmath
import numpy as np
import pytest

from fljax import accounting
from fljax.accounting import events, mixture
from fljax.accounting.renyi import mixture_moments, rdp

WEIGHTS, AMOUNTS, NOISE = (0.3, 0.25, 0.15), (1.0, 2.0, 3.5), 2.5


def claim(mechanism, relation="ADD_OR_REMOVE_ONE"):
    return accounting.PrivacyEvent(
        mechanism=mechanism, privacy_unit="subject", neighboring_relation=relation
    )


@pytest.mark.parametrize("order", [2, 3, 5])
def test_whole_orders_are_not_below_the_sum_over_all_draws(order):
    """E_Q[(P / Q)^a] = E[exp(sum_{i<k} s_i s_k / sigma^2)] over a independent draws."""
    weights, amounts = (1 - sum(WEIGHTS), *WEIGHTS), (0.0, *AMOUNTS)
    total = 0.0
    for draw in itertools.product(range(4), repeat=order):
        pairs = sum(amounts[i] * amounts[k] for i, k in itertools.combinations(draw, 2))
        total += math.prod(weights[j] for j in draw) * math.exp(pairs / NOISE**2)
    expected = math.log(total) / (order - 1)
    found = rdp.gaussian_mixture(NOISE, AMOUNTS, WEIGHTS, (order,))[0]
    # Here, and in every case tried, P against Q is the larger direction.
    assert expected * (1 - 1e-13) <= found <= expected * (1 + 1e-10)


@pytest.mark.parametrize("order", [1.01, 1.7, 6.25])
@pytest.mark.parametrize("stays", [True, False])
def test_any_order_is_just_above_both_directions_by_quadrature(order, stays):
    weights = WEIGHTS if stays else tuple(w / sum(WEIGHTS) for w in WEIGHTS)
    found = rdp.gaussian_mixture(NOISE, AMOUNTS, weights, (order,))[0]
    terms = [(mpmath.mpf(1) - mpmath.fsum(weights), mpmath.mpf(0))] if stays else []
    terms += [(mpmath.mpf(w), mpmath.mpf(s) / NOISE) for w, s in zip(weights, AMOUNTS, strict=True)]

    def divergence(power):
        def integrand(z):
            ratio = mpmath.fsum(w * mpmath.exp(s * z - s**2 / 2) for w, s in terms)
            return mpmath.npdf(z) * ratio**power

        ends = [-40, -15, -5, 0, 5, 15, 40]
        return float(mpmath.log(mpmath.quad(integrand, ends)) / (order - 1))

    with mpmath.workdps(25):
        truth = max(divergence(mpmath.mpf(order)), divergence(1 - mpmath.mpf(order)))
    assert truth * (1 - 1e-12) <= found <= truth * (1 + 1e-8)


@pytest.mark.parametrize(("noise", "prob"), [(1.0, 0.01), (0.5, 0.3), (5.0, 1e-4), (100.0, 1e-6)])
def test_one_amount_is_the_sampled_gaussian(noise, prob):
    orders = (1.005, 1.5, 2.0, 4.7, 16.0, 63.0, 1024.0)
    expected = np.asarray(rdp.poisson_gaussian(noise, prob, orders))
    found = rdp.gaussian_mixture(noise, [1.0], [prob], orders)
    # The allowances of both for their quadrature: a few 1e-20 of E[R^a], E[1] and a E[R], over
    # order - 1.
    a = np.array(orders)
    assert np.all(np.abs(found - expected) <= 1e-9 * expected + 1e-19 * (2 + a) / (a - 1))


def test_events_are_answered_and_sampling_a_mixture_scales_its_weights():
    step = mixture.item_sum(5.0, 8, 0.05, cap=3)
    run = claim(events.SelfComposed(step, 500))
    renyi = accounting.epsilon(run, delta=1e-5, method="rdp")
    crude = claim(
        events.SelfComposed(
            mixture.two_point(5.0, mixture.subject_sampling_prob(8, 0.05), sensitivity=3.0), 500
        )
    )
    assert renyi <= accounting.epsilon(crude, delta=1e-5, method="rdp")
    sampled = claim(
        events.PoissonSampled(0.1, events.MixtureOfGaussians(1.0, (0.0, 2.0), (0.4, 0.6)))
    )
    plain = claim(events.MixtureOfGaussians(1.0, (0.0, 2.0), (0.94, 0.06)))
    one, other = (accounting.epsilon(e, delta=1e-5, method="rdp") for e in (sampled, plain))
    assert one == pytest.approx(other, rel=1e-12)


def test_corners():
    orders = (1.5, 4.0)
    assert np.all(rdp.gaussian_mixture(1.0, [0.0], [1.0], orders) == 0)
    np.testing.assert_allclose(
        rdp.gaussian_mixture(2.0, [1.0], [1.0], orders), np.array(orders) / 8, rtol=1e-9
    )
    assert (
        accounting.epsilon(
            claim(events.MixtureOfGaussians(0.0, (0.0, 1.0), (0.5, 0.5))), delta=1e-5
        )
        == math.inf
    )
    for wrong in (
        lambda: rdp.gaussian_mixture(0.0, [1.0], [0.5], orders),
        lambda: rdp.gaussian_mixture(1.0, [-1.0], [0.5], orders),
        lambda: rdp.gaussian_mixture(1.0, [1.0], [1.5], orders),
        lambda: rdp.gaussian_mixture(1.0, [1.0, 2.0], [0.5], orders),
    ):
        with pytest.raises(ValueError, match="Expected"):
            wrong()


@pytest.mark.parametrize("moment", ["_forward", "_backward"])
def test_steps_of_the_rule_are_as_long_as_a_negligible_error_allows(moment, monkeypatch):
    """Shorter ones would be as right, and take longer."""
    used = []
    error_of = mixture_moments.rule_error
    monkeypatch.setattr(mixture_moments, "rule_error", lambda *of: used.append(of) or error_of(*of))
    getattr(mixture_moments, moment)(np.asarray([2.0]), np.asarray([0.2]), np.asarray([0.6]))
    ((reach, step, log_factor),) = used
    assert step < 0.62  # no step is longer than 0.65
    negligible = 4 * math.exp(-mixture_moments.NEGLIGIBLE)
    assert error_of(reach, step, log_factor) <= negligible * (1 + 1e-9)
    assert error_of(reach, 1.05 * step, log_factor) > 1.5 * negligible


def test_where_nobody_stays_the_log_of_the_ratio_is_there_however_small_it_is():
    """One shift with all the weight is a plain Gaussian: log R = shift z - shift^2 / 2."""
    z = np.asarray([-60.0, -3.0, 0.5, 8.0])
    found, _ = mixture_moments.log_ratio(z, np.asarray([1.0]), np.asarray([20.0]))
    np.testing.assert_allclose(found, 20.0 * z - 200.0, rtol=1e-14)
    both, _ = mixture_moments.log_ratio(z, np.asarray([0.5, 0.5]), np.asarray([20.0, 20.0]))
    np.testing.assert_allclose(both, found, rtol=1e-14)
