"""From Renyi curves and (epsilon, delta) pairs to what they prove."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fljax.accounting import gaussian
from fljax.accounting.renyi import conversion, rdp
from fljax.errors import PrivacyPreconditionError

ORDERS = np.asarray(rdp.DEFAULT_ORDERS)


def test_agrees_with_dp_accounting_on_its_own_curves():
    from dp_accounting.rdp import rdp_privacy_accountant as theirs

    for noise in (0.5, 2.0, 30.0):
        curve = rdp.gaussian(noise, ORDERS)
        for delta in (1e-12, 1e-5, 0.1):
            expected, _ = theirs.compute_epsilon(ORDERS, curve, delta)
            assert float(conversion.rdp_to_epsilon(curve, ORDERS, delta)) == pytest.approx(
                expected, rel=1e-12
            )
        for epsilon in (0.0, 0.5, 5.0):
            expected, _ = theirs.compute_delta(ORDERS, curve, epsilon)
            assert float(conversion.rdp_to_delta(curve, ORDERS, epsilon)) == pytest.approx(
                expected, rel=1e-10
            )


@given(noise=st.floats(0.3, 300.0), log_delta=st.floats(-60.0, -1.0))
def test_the_renyi_bound_is_never_below_the_exact_epsilon(noise, log_delta):
    bound = float(
        conversion.rdp_to_epsilon(rdp.gaussian(noise, ORDERS), ORDERS, math.exp(log_delta))
    )
    assert bound >= float(gaussian.mu_to_epsilon(1 / noise, math.exp(log_delta))) * (1 - 1e-12)


def test_budget_per_order_inverts_the_conversion():
    budget = conversion.epsilon_to_rdp(2.0, 1e-5, ORDERS)
    good = budget > 0.1
    back = conversion.rdp_to_epsilons(np.where(good, budget, 1.0), ORDERS, 1e-5)
    np.testing.assert_allclose(back[good], 2.0, rtol=1e-12)


def test_shapes_broadcast_over_curves_and_deltas():
    curves = rdp.gaussian(np.asarray([1.0, 2.0, 4.0]), ORDERS)
    assert conversion.rdp_to_epsilon(curves, ORDERS, 1e-5).shape == (3,)
    assert conversion.rdp_to_epsilon(curves[:, None], ORDERS, np.asarray([1e-5, 1e-6])).shape == (
        3,
        2,
    )


def test_zcdp_takes_the_best_of_all_real_orders():
    for rho in (1e-6, 0.01, 0.5, 20.0):
        orders = 1 + np.geomspace(1e-3, 1e7, 20001)
        grid = float(conversion.rdp_to_epsilon(rho * orders, orders, 1e-6))
        found = float(conversion.zcdp_to_epsilon(rho, 1e-6))
        assert found == pytest.approx(grid, rel=1e-5)
        assert found <= rho + 2 * math.sqrt(
            rho * math.log(1e6)
        )  # Bun, Steinke (2016), Proposition 1.3
    assert float(conversion.zcdp_to_epsilon(0.0, 1e-6)) == 0.0


def test_group_privacy_is_the_composed_chain():
    epsilon, delta = 0.3, 1e-6
    chain = 0.0
    for _ in range(5):  # one neighbour after the other: delta_k = e^eps delta_{k-1} + delta
        chain = math.exp(epsilon) * chain + delta
    found = conversion.group_privacy(epsilon, delta, 5)
    assert found == (pytest.approx(1.5), pytest.approx(chain))
    assert conversion.group_privacy(epsilon, delta, 1) == (epsilon, delta)
    assert conversion.group_privacy(5.0, 0.5, 1000)[1] == 1.0


def test_optimal_composition_is_that_of_randomised_response():
    epsilon, count = 0.4, 6
    p = math.exp(epsilon) / (1 + math.exp(epsilon))
    pmf = [math.comb(count, i) * p**i * (1 - p) ** (count - i) for i in range(count + 1)]
    for total, delta in conversion.compose_optimal(epsilon, 0.0, count):
        # Loss of i truths among count: (2 i - count) epsilon.
        losses = [(2 * i - count) * epsilon for i in range(count + 1)]
        terms = (
            mass * max(0.0, -math.expm1(total - loss))
            for mass, loss in zip(pmf, losses, strict=True)
        )
        assert delta == pytest.approx(math.fsum(terms), abs=1e-14)
    assert conversion.compose_optimal(1.0, 1e-6, 1) == [(1.0, pytest.approx(1e-6))]


def test_optimal_composition_beats_advanced_and_basic():
    epsilon, delta, count = 0.1, 1e-8, 200
    advanced = conversion.compose_advanced(epsilon, delta, count, 1e-6)
    frontier = conversion.compose_optimal(epsilon, delta, count)
    assert frontier[0] == (pytest.approx(count * epsilon), pytest.approx(count * delta, rel=1e-5))
    assert min(e for e, d in frontier if d <= advanced[1]) < advanced[0]
    assert advanced == pytest.approx((7.4338528 + 2.1034184, 3e-6))  # by a pocket calculator


def test_the_classic_gaussian_needs_more_noise_and_a_small_epsilon():
    for epsilon in (0.1, 0.5, 0.99):
        assert conversion.classic_gaussian_noise(epsilon, 1e-5) > 1 / float(
            gaussian.epsilon_to_mu(epsilon, 1e-5)
        )
    with pytest.raises(PrivacyPreconditionError, match="epsilon"):
        conversion.classic_gaussian_noise(1.0, 1e-5)


def test_reconstruction_is_bounded_by_the_trade_off_at_the_prior():
    mu, prior = 1.0, 0.01
    bound = conversion.reconstruction_bound(lambda a: gaussian.trade_off(mu, a), prior)
    assert bound == pytest.approx(float(gaussian.tpr_at_fpr(mu, prior)), rel=1e-12)
    # Without a release the attack has its prior; with pure DP at most e^eps times that.
    assert conversion.reconstruction_bound(lambda a: 1 - a, prior) == pytest.approx(prior)
    pure = conversion.reconstruction_bound(
        lambda a: conversion.epsilon_delta_trade_off(0.5, 0.0, a), prior
    )
    assert pure == pytest.approx(prior * math.exp(0.5))
    with pytest.raises(ValueError, match="prior"):
        conversion.reconstruction_bound(lambda a: 1 - a, 1.5)


def test_group_privacy_of_a_billion_is_the_closed_form():
    size = 10**9
    assert conversion.group_privacy(0.0, 1e-15, size) == (0.0, pytest.approx(1e-6, rel=1e-12))
    epsilon, delta = conversion.group_privacy(1e-9, 1e-15, size)
    assert epsilon == pytest.approx(1.0)
    assert delta == pytest.approx(1e-15 * math.expm1(1.0) / math.expm1(1e-9), rel=1e-9)
    # delta times a factor that no float holds: e^-713.8 e^(705 + log(1 / (e - 1)))
    grown = conversion.group_privacy(1.0, 1e-310, 706)[1]
    assert grown == pytest.approx(
        math.exp(math.log(1e-310) + 706 - math.log(math.expm1(1.0))), rel=1e-6
    )
