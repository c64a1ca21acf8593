"""Where the loss distributions of a composition are looked at: estimates against closed forms."""

import numpy as np
import pytest
from scipy import special

from fljax.accounting import _arrays
from fljax.accounting.pld import mechanisms, solve, window


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("prob", [1.0, 0.3])
def test_nodes_of_laplace_noise_have_the_mass_of_both_of_its_worlds(sign, prob):
    """Sum P = 1, and sum P e^-loss = sum Q = 1."""
    with _arrays.host():
        params = (np.asarray(0.7), np.asarray(prob))
        logs, loss = map(np.asarray, mechanisms._laplace_nodes(params, np.asarray(sign), None))
    assert np.exp(logs).sum() == pytest.approx(1, abs=1e-5)
    assert np.exp(logs - loss).sum() == pytest.approx(1, abs=1e-5)


def test_a_plan_finds_tilts_of_nearly_a_million():
    """One release of Gaussian noise of which little is needed: delta(epsilon) in closed form."""
    mu, epsilon = 1e-3, 0.8
    z = np.linspace(-10.0, 900.0, 4001)
    with _arrays.host():
        nodes = window.Nodes(np.asarray(-0.5 * z**2)[None], np.asarray(mu * z + 0.5 * mu**2)[None])
        found = window.find(nodes, np.ones(1), np.asarray(epsilon), True, np.asarray(1e-3))
        log_delta = float(found.log_delta)
    low, high = (special.log_ndtr(-epsilon / mu + sign * 0.5 * mu) for sign in (1, -1))
    assert log_delta == pytest.approx(low + np.log(-np.expm1(epsilon + high - low)), rel=1e-4)


def test_runs_on_lattices_of_a_usual_size_are_composed_sixteen_at_once():
    usual = solve.CHUNK_ELEMENTS // (2 * 2**12 + 2**13)
    assert [len(part) for part in solve._parts(np.arange(40), usual)] == [16, 16, 16]
    largest = solve.CHUNK_ELEMENTS // (2 * solve.LARGEST_LATTICE)
    assert [len(part) for part in solve._parts(np.arange(6), largest)] == [1] * 6
