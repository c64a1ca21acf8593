"""NumPy and JAX compute the same from the same lines, and a single number imports no JAX."""

import subprocess
import sys

import numpy as np
import pytest
import scipy.special
from hypothesis import given
from hypothesis import strategies as st

from fljax import accounting
from fljax.accounting import _arrays, events, gaussian, x64
from fljax.accounting.pld import solve
from fljax.accounting.renyi import conversion, rdp

ADD, REPLACE = "ADD_OR_REMOVE_ONE", "REPLACE_ONE"


def claim(mechanism, relation=ADD):
    return events.PrivacyEvent(
        mechanism=mechanism, privacy_unit="example", neighboring_relation=relation
    )


RUNS = {
    "sampled": claim(events.SelfComposed(events.PoissonSampled(0.02, events.Gaussian(1.1)), 300)),
    "laplace": claim(events.SelfComposed(events.Laplace(7.0), 20)),
    "discrete": claim(events.SelfComposed(events.DiscreteGaussian(4.0, 1), 12)),
    "pair": claim(events.SelfComposed(events.EpsilonDelta(0.2, 1e-7), 9)),
    "mixture": claim(
        events.SelfComposed(events.MixtureOfGaussians(3.0, (0.0, 1.0, 2.0), (0.9, 0.07, 0.03)), 40)
    ),
    "mixed": claim(
        events.Composed(
            (
                events.SelfComposed(events.PoissonSampled(0.1, events.Gaussian(2.0)), 30),
                events.Laplace(5.0),
            )
        )
    ),
}


@pytest.mark.slow(reason="compiles a program for each distribution")
@pytest.mark.parametrize("name", ["sampled", "laplace", "discrete", "pair", "mixture", "mixed"])
def test_losses_composed_by_numpy_and_by_programs_give_bounds_that_meet(name, monkeypatch):
    asked = [{"delta": 1e-6}, {"epsilon": 0.8}]
    here = [accounting.pld.interval(RUNS[name], **ask) for ask in asked]
    monkeypatch.setattr(solve, "MOST_ON_HOST", 0)
    there = [accounting.pld.interval(RUNS[name], **ask) for ask in asked]
    for ours, theirs in zip(here, there, strict=True):
        assert ours[0] <= theirs[1] and theirs[0] <= ours[1]  # one truth lies in both
        np.testing.assert_allclose(ours, theirs, rtol=3e-3)


def test_gaussian_numbers_of_numpy_are_those_of_the_program():
    mu = np.array([1e-3, 0.1, 1.0, 3.0, 40.0])
    with x64():
        epsilon = np.asarray(gaussian.mu_to_epsilon(mu, 1e-6))
        delta = np.asarray(gaussian.log_delta(mu, 0.5))
        back = np.asarray(gaussian.epsilon_to_mu(epsilon[1:], 1e-6))
    np.testing.assert_allclose(gaussian.mu_to_epsilon(mu, 1e-6), epsilon, rtol=1e-12)
    np.testing.assert_allclose(gaussian.log_delta(mu, 0.5), delta, rtol=1e-12)
    np.testing.assert_allclose(gaussian.epsilon_to_mu(epsilon[1:], 1e-6), back, rtol=1e-12)


def test_renyi_numbers_of_numpy_are_those_of_the_program():
    orders = rdp.DEFAULT_ORDERS
    with x64():
        curves = [np.asarray(rdp.gaussian(0.7, orders)), np.asarray(rdp.laplace(2.0, orders))]
        pure = np.asarray(rdp.pure(0.3, orders))
        sampled = np.asarray(rdp.sampled_without_replacement(1.5, 0.1, orders[:150]))
        epsilons = np.asarray(conversion.rdp_to_epsilons(curves[0], orders, 1e-5))
        zcdp = np.asarray(conversion.zcdp_to_epsilon(0.2, 1e-6))
    np.testing.assert_allclose(rdp.gaussian(0.7, orders), curves[0], rtol=1e-14)
    np.testing.assert_allclose(rdp.laplace(2.0, orders), curves[1], rtol=1e-12)
    np.testing.assert_allclose(rdp.pure(0.3, orders), pure, rtol=1e-12)
    np.testing.assert_allclose(
        rdp.sampled_without_replacement(1.5, 0.1, orders[:150]), sampled, rtol=1e-11
    )
    np.testing.assert_allclose(
        conversion.rdp_to_epsilons(curves[0], orders, 1e-5), epsilons, rtol=1e-13
    )
    np.testing.assert_allclose(conversion.zcdp_to_epsilon(0.2, 1e-6), zcdp, rtol=1e-13)


def test_erfc_of_numpy_is_as_exact_as_the_error_bounds_of_lattices_take_it_to_be():
    mpmath = pytest.importorskip("mpmath")
    z = np.concatenate([np.linspace(0, 8, 801), np.linspace(8, 37.5, 300)])
    found = scipy.special.erfc(z / np.sqrt(2.0))
    with mpmath.workdps(40):
        exact = np.array([float(mpmath.erfc(mpmath.mpf(x) / mpmath.sqrt(2))) for x in z])
    # pair_masses allows 4 (1 + z^2) units; its own comment promises 3.
    assert np.all(np.abs(found - exact) <= 3 * (1 + z**2) * 2.0**-52 * exact + 1e-305)


@given(values=st.lists(st.floats(-700, 700), min_size=1, max_size=20))
def test_sums_of_exponentials_agree_with_scipy(values):
    x = np.array([values, values[::-1]])
    with _arrays.host():
        np.testing.assert_allclose(
            _arrays.logsumexp(x, axis=1), scipy.special.logsumexp(x, axis=1), rtol=1e-13, atol=1e-13
        )
        none = _arrays.logsumexp(np.full(3, -np.inf))
    assert none == -np.inf


def test_one_epsilon_by_any_accountant_imports_no_jax():
    code = """
import sys
sys.path[:0] = ['.', 'kernels']
from fljax import accounting
from fljax.accounting import events
def run(noise):
    step = events.PoissonSampled(0.01, events.Gaussian(noise))
    return events.PrivacyEvent(mechanism=events.SelfComposed(step, 100), privacy_unit='client',
                               neighboring_relation='ADD_OR_REMOVE_ONE')
for method in ('rdp', 'pld'):
    print(accounting.statement(run(1.0), delta=1e-5, method=method))
    print(accounting.calibrate(run, epsilon=2.0, delta=1e-5, method=method))
gauss = events.PrivacyEvent(mechanism=events.Gaussian(2.0), privacy_unit='client',
                            neighboring_relation='REPLACE_ONE')
print(accounting.epsilon(gauss, delta=1e-5, method='gdp'))
assert 'jax' not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
