"""A unit in k of t rounds costs no more than is counted, either way."""

import itertools
import math

import numpy as np
import pytest
from scipy import integrate

from fljax import accounting
from fljax.accounting import events
from fljax.accounting.renyi import allocation
from fljax.errors import UnsupportedEventError


def claim(mechanism, relation="ADD_OR_REMOVE_ONE"):
    return accounting.PrivacyEvent(
        mechanism=mechanism, privacy_unit="client", neighboring_relation=relation
    )


def two_rounds(noise, order, *, removed):
    """The divergence of a unit in one of two rounds, by quadrature over both outputs."""

    def density(y, x):
        ratio = 0.5 * sum(math.exp(z / noise**2 - 0.5 / noise**2) for z in (x, y))
        power = order if removed else 1 - order
        return ratio**power * math.exp(-0.5 * (x * x + y * y) / noise**2) / (2 * math.pi * noise**2)

    far = noise * 9 + 2 * order
    moment, _ = integrate.dblquad(density, -far, far, -far, far, epsabs=1e-9, epsrel=1e-7)
    return math.log(moment) / (order - 1)


@pytest.mark.parametrize("order", [1.5, 3.0])
def test_one_of_two_rounds_costs_what_quadrature_finds_or_more(order):
    (found,) = allocation.gaussian(1.5, 2, 1, [order])
    removed, added = (two_rounds(1.5, order, removed=way) for way in (True, False))
    assert max(removed, added) <= found * (1 + 1e-6)
    if order == 3.0:  # whole: the moment of the first is exact
        (plain,) = allocation.gaussian(1.5, 1, 1, [order])
        assert found < 0.8 * plain


@pytest.mark.parametrize(("num_rounds", "times"), [(4, 2), (5, 2), (6, 3), (3, 1), (4, 4)])
@pytest.mark.parametrize("order", [2, 3])
def test_the_moment_of_k_of_t_rounds_is_below_the_bound(num_rounds, times, order):
    noise = 1.2
    choices = [frozenset(c) for c in itertools.combinations(range(num_rounds), times)]
    total = 0.0
    # E_Q of a product of ratios: exp of the shared rounds of each pair, over noise**2.
    for drawn in itertools.product(choices, repeat=order):
        shared = sum(len(one & other) for one, other in itertools.combinations(drawn, 2))
        total += math.exp(shared / noise**2) / len(choices) ** order
    truth = math.log(total) / (order - 1)
    (found,) = allocation.gaussian(noise, num_rounds, times, [float(order)])
    assert truth <= found * (1 + 1e-9)
    if num_rounds == times:
        assert found == pytest.approx(truth, rel=1e-9)


def test_choosing_a_round_of_many_costs_less_than_being_in_a_known_one():
    orders = np.array([1.5, 4.0, 16.0, 100.0, 500.0])
    plain = allocation.gaussian(1.0, 1, 1, orders)
    np.testing.assert_allclose(plain, orders / 2, rtol=1e-11)
    few, many = (allocation.gaussian(1.0, m, 1, orders) for m in (4, 400))
    assert (many <= few).all() and (few <= plain).all() and many[2] < 0.3 * plain[2]
    run = claim(events.RandomAllocation(400, 4, 1.5))
    known = claim(events.Gaussian(1.5)).repeat(4)
    assert accounting.epsilon(run, delta=1e-6) < 0.7 * accounting.epsilon(known, delta=1e-6)


def test_what_nobody_proved_of_it_is_refused():
    with pytest.raises(UnsupportedEventError, match="random allocation is analysed"):
        accounting.epsilon(claim(events.RandomAllocation(4, 1, 1.0), "REPLACE_ONE"), delta=1e-5)
    with pytest.raises(UnsupportedEventError, match="RandomAllocation has none"):
        accounting.epsilon(claim(events.RandomAllocation(4, 1, 1.0)), delta=1e-5, method="pld")
    assert accounting.epsilon(claim(events.RandomAllocation(4, 1, 0.0)), delta=1e-5) == math.inf
