"""Renyi curves against high-precision integrals and closed forms."""

import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fljax import accounting
from fljax.accounting.renyi import conversion, rdp, without_replacement
from fljax.errors import PrivacyPreconditionError

ORDERS = (1.1, 1.5, 2.0, 3.7, 8.0, 33.0, 33.5, 200.0)
# (sampling_prob, noise_multiplier, order), with the corners: order near 1, tiny rates, little and
# much noise.
CASES = [
    (0.01, 1.0, 1.1),
    (0.01, 1.0, 7.0),
    (0.01, 1.0, 33.5),
    (1e-6, 0.3, 1.1),
    (1e-6, 0.3, 10.9),
    (1e-6, 2.0, 1.5),
    (0.5, 3.0, 1.3),
    (0.2, 20.0, 1.05),
    (1e-4, 0.5, 7.7),
    (0.1, 0.1, 1.5),
    (0.9, 1.0, 3.3),
    (1e-7, 5.0, 2.0),
    (0.3, 50.0, 1000.5),
    (0.01, 0.8, 10000.0),
]


def exact(q, noise, order):
    """The integral of arXiv:1908.10530, equation (2), by Gauss-Legendre panels in 30 digits."""
    with mpmath.workdps(30):
        q, s, a = mpmath.mpf(q), mpmath.mpf(noise), mpmath.mpf(order)
        middle = a / s if a / s > 200 else 0  # then only the upper bump counts
        points = [middle + p for p in np.arange(-12.0, float(a / s - middle) + 15, 3)]

        def integrand(t):
            return mpmath.npdf(t) * (1 - q + q * mpmath.e ** (t / s - 1 / (2 * s * s))) ** a

        total = mpmath.quad(integrand, points, method="gauss-legendre", maxdegree=4)
        return mpmath.log(total) / (a - 1)


@pytest.mark.parametrize(("q", "noise", "order"), CASES)
def test_sampled_gaussian_meets_the_integral(q, noise, order):
    truth = exact(q, noise, order)
    host = rdp.poisson_gaussian(noise, q, (order,))[0]
    program = rdp.poisson_gaussian(np.asarray([noise]), q, (order,))[0, 0]
    # The bound for the tails of the quadrature, 1e-21 of about 2 + the moment, is part of the
    # result.
    slack = 1e-9 * truth + 4e-21 / (order - 1)
    assert abs(host - truth) < slack
    assert abs(program - truth) < slack
    assert host >= truth * (1 - 1e-12) - 1e-14 / (
        order - 1
    )  # rounding of a log, and of a moment near 1


def test_traced_orders_agree_with_planned_ones():
    orders = (1.2, 2.0, 4.5, 9.0)
    with accounting.x64():
        traced = jax.jit(lambda a: rdp.poisson_gaussian(1.3, 0.02, a))(jnp.asarray(orders))
    np.testing.assert_allclose(traced, rdp.poisson_gaussian(1.3, 0.02, orders), rtol=1e-9)


def test_a_set_of_traced_orders_too_wide_for_its_nodes_is_infinite_not_wrong():
    with accounting.x64():
        traced = jax.jit(lambda a: rdp.poisson_gaussian(0.3, 0.02, a))(jnp.asarray((2.0, 1e5)))
    exact_low = rdp.poisson_gaussian(0.3, 0.02, (2.0,))[0]
    assert np.all(np.asarray(traced) >= exact_low)


def test_broadcasts_over_noise_and_rate_and_equals_single_calls():
    noise, q = np.geomspace(0.5, 8, 7)[:, None], np.asarray([0.0, 1e-4, 0.3, 1.0])
    got = rdp.poisson_gaussian(noise, q, ORDERS)
    assert got.shape == (7, 4, len(ORDERS))
    assert got.dtype == np.float64
    for i in range(7):
        for j in range(4):
            np.testing.assert_allclose(
                got[i, j],
                rdp.poisson_gaussian(float(noise[i, 0]), float(q[j]), ORDERS),
                rtol=1e-11,
                atol=1e-300,
            )


def test_corners_of_the_sampled_gaussian():
    full = np.asarray(ORDERS) / 2
    for args in ((1.0, 1.0), (np.asarray([1.0]), 1.0)):
        np.testing.assert_allclose(np.ravel(rdp.poisson_gaussian(*args, ORDERS)), full, rtol=1e-14)
    for zero in (0.0, np.asarray([0.0])):
        assert np.all(np.isinf(rdp.poisson_gaussian(zero, 0.1, ORDERS)))
        assert np.all(rdp.poisson_gaussian(zero, 0.0, ORDERS) == 0)
    assert np.all(np.isnan(rdp.poisson_gaussian(1.0, 1.5, ORDERS)))
    assert np.all(np.isnan(rdp.poisson_gaussian(np.asarray([-1.0]), 0.5, ORDERS)))
    with pytest.raises(ValueError, match="orders"):
        rdp.poisson_gaussian(1.0, 0.1, (1.0,))


def test_gradients_are_those_of_finite_differences_and_finite_in_corners():
    orders = (1.5, 2.0, 33.0)
    with accounting.x64():
        grad = jax.jit(jax.jacfwd(lambda p: rdp.poisson_gaussian(p[0], p[1], orders)))
        point, step = np.asarray([1.1, 0.02]), 1e-5
        found = np.asarray(grad(jnp.asarray(point)))
        for axis in range(2):
            move = step * point * np.eye(2)[axis]
            high = rdp.poisson_gaussian(*(point + move), orders)
            low = rdp.poisson_gaussian(*(point - move), orders)
            np.testing.assert_allclose(found[:, axis], (high - low) / (2 * move[axis]), rtol=1e-6)
        for corner in ((0.3, 1e-6), (50.0, 0.9), (1.0, 1.0), (1.0, 0.0)):
            assert np.all(np.isfinite(grad(jnp.asarray(corner))))
        reverse = jax.jit(jax.grad(lambda s: rdp.poisson_gaussian(s, 0.02, orders).sum()))(1.1)
        assert float(reverse) == pytest.approx(found[:, 0].sum(), rel=1e-9)


def test_vmap_equals_broadcasting():
    noise = jnp.asarray([0.7, 1.0, 2.0])
    with accounting.x64():
        mapped = jax.vmap(lambda s: rdp.poisson_gaussian(s, 0.05, (1.5, 2.0, 16.0)))(
            jnp.asarray(noise, jnp.float64)
        )
    np.testing.assert_allclose(
        mapped, rdp.poisson_gaussian(np.asarray(noise), 0.05, (1.5, 2.0, 16.0)), rtol=1e-6
    )


def test_tracing_without_float64_raises():
    for fun in (
        lambda s: rdp.poisson_gaussian(s, 0.1, (2.0,)),
        lambda s: rdp.gaussian(s, (2.0,)),
        lambda s: accounting.gaussian.mu_to_epsilon(s, 1e-5),
        lambda s: accounting.conversion.zcdp_to_epsilon(s, 1e-5),
    ):
        with pytest.raises(RuntimeError, match="float64"):
            jax.jit(fun)(1.0)
    assert jnp.asarray(1.0).dtype == jnp.float32


@given(
    q=st.floats(1e-6, 0.99),
    noise=st.floats(0.3, 30.0),
    order=st.sampled_from(ORDERS),
    worse=st.floats(1.001, 3.0),
)
def test_divergence_grows_with_rate_order_and_less_noise(q, noise, order, worse):
    base = rdp.poisson_gaussian(noise, q, (order,))[0]
    slack = base * 1e-9
    assert 0 <= base <= order / (2 * noise**2) * (1 + 1e-9)
    assert rdp.poisson_gaussian(noise / worse, q, (order,))[0] >= base - slack
    assert rdp.poisson_gaussian(noise, min(q * worse, 1.0), (order,))[0] >= base - slack
    assert rdp.poisson_gaussian(noise, q, (order * worse,))[0] >= base - slack


def test_laplace_meets_its_integral():
    with mpmath.workdps(30):
        for b, a in ((2.0, 1.5), (0.5, 4.0), (20.0, 30.0)):
            inner = mpmath.quad(
                lambda x, a=a, b=b: (
                    mpmath.e ** (-(a * abs(x) + (1 - a) * abs(x - 1)) / b) / (2 * b)
                ),
                [-mpmath.inf, 0, 1, mpmath.inf],
            )
            assert float(rdp.laplace(b, (a,))[0]) == pytest.approx(
                float(mpmath.log(inner) / (a - 1)), rel=1e-12
            )
    assert np.all(np.isinf(rdp.laplace(0.0, (2.0,))))


def test_pure_dp_is_randomised_response():
    for epsilon, a in ((0.1, 2.0), (1.0, 1.5), (3.0, 20.0)):
        p = 1 / (1 + math.exp(-epsilon))
        moment = p**a * (1 - p) ** (1 - a) + (1 - p) ** a * p ** (1 - a)
        assert float(rdp.pure(epsilon, (a,))[0]) == pytest.approx(
            math.log(moment) / (a - 1), rel=1e-12
        )
        assert float(rdp.laplace(1 / epsilon, (a,))[0]) <= float(rdp.pure(epsilon, (a,))[0])


@pytest.mark.parametrize("epsilon", [1e-300, 1e-20, 1e-9, 0.1, 5.0, 1e3])
@pytest.mark.parametrize("a", [1 + 1e-9, 1.005, 2.0, 63.0, 1e6])
def test_pure_dp_keeps_its_digits(epsilon, a):
    with mpmath.workdps(700):
        e, order = mpmath.mpf(epsilon), mpmath.mpf(a)
        moment = mpmath.cosh((order - 0.5) * e) / mpmath.cosh(e / 2)
        exact = float(mpmath.log(moment) / (order - 1))
    assert float(rdp.pure(epsilon, (a,))[0]) == pytest.approx(exact, rel=1e-12, abs=0)


def test_central_moments_bound_the_exact_ones_tightly():
    powers = np.asarray([2, 4, 16, 64, 128])
    for noise in (0.5, 1.0, 5.0, 50.0):
        with accounting.x64():
            got = np.asarray(without_replacement._log_even_moments(jnp.asarray(1 / noise), powers))
        for power, value in zip(powers, got, strict=True):
            with mpmath.workdps(600):  # an alternating sum: at noise 50 it cancels 500 digits
                s2 = mpmath.mpf(noise) ** 2
                terms = (
                    mpmath.binomial(int(power), i)
                    * (-1) ** (int(power) - i)
                    * mpmath.exp((i * i - i) / (2 * s2))
                    for i in range(power + 1)
                )
                truth = mpmath.log(mpmath.fsum(terms))
            assert -1e-12 * abs(truth) <= value - truth <= 1e-10


def test_sampling_without_replacement_agrees_with_dp_accounting_where_that_is_sound():
    from dp_accounting.rdp import rdp_privacy_accountant

    orders = [1.5, 2, 3, 4.5, 8, 20, 64]
    for q, noise in ((0.01, 2.0), (0.1, 1.0), (1e-3, 5.0)):
        theirs = rdp_privacy_accountant._compute_rdp_sample_wor_gaussian(q, noise, orders)
        np.testing.assert_allclose(
            rdp.sampled_without_replacement(noise, q, orders), theirs, rtol=1e-11
        )


def test_sampling_without_replacement_at_its_ends():
    orders = (1.5, 2.0, 10.0)
    np.testing.assert_allclose(
        rdp.sampled_without_replacement(2.0, 1.0, orders), np.asarray(orders) / 8
    )
    assert np.all(rdp.sampled_without_replacement(2.0, 0.0, orders) == 0)
    assert np.all(np.isinf(rdp.sampled_without_replacement(0.0, 0.5, orders)))
    grid = rdp.sampled_without_replacement(
        np.asarray([0.3, 1.0, 9.0])[:, None], np.asarray([0.1, 0.6]), orders
    )
    assert grid.shape == (3, 2, 3)
    assert np.all(grid <= rdp.gaussian(np.asarray([0.3, 1.0, 9.0]), orders)[:, None] * (1 + 1e-12))


def test_field_value_of_sampling_without_replacement():
    event = accounting.PrivacyEvent(
        mechanism=accounting.events.SampledWithoutReplacement(
            60000, 600, accounting.events.Gaussian(2.0)
        ),
        privacy_unit="example",
        neighboring_relation="REPLACE_ONE",
    )
    assert accounting.epsilon(event.repeat(1000), delta=1e-5) == pytest.approx(1.4453, abs=2e-3)


def test_group_curve_bounds_the_exact_one_of_a_gaussian():
    orders = np.asarray([2.0, 3.0, 8.0, 64.0])
    curve, left = rdp.group(rdp.gaussian(4.0, orders), orders, 1)
    np.testing.assert_allclose(left, [4.0, 32.0])
    assert np.all(curve >= rdp.gaussian(2.0, left))
    with pytest.raises(PrivacyPreconditionError):
        rdp.group(curve, [2.0, 3.0], 1)


def pair(shift, first, second, a):
    """The textbook formula in NumPy."""
    mixed = a * second + (1 - a) * first
    if np.linalg.eigvalsh(mixed).min() <= 0:
        return np.inf
    sign_free = [np.linalg.slogdet(m)[1] for m in (mixed, first, second)]
    logs = sign_free[0] - (1 - a) * sign_free[1] - a * sign_free[2]
    return a / 2 * shift @ np.linalg.solve(mixed, shift) - logs / (2 * (a - 1))


PAIR_ORDERS = np.asarray([1.01, 1.5, 2.0, 3.0, 8.0, 100.0])


def make_pairs():
    rng = np.random.default_rng(0)
    size = 6
    shift, a, b = rng.normal(size=size), rng.normal(size=(size, 2)), rng.normal(size=(size, 1))
    diagonals = np.exp(0.3 * rng.normal(size=(2, size)))
    eye = np.eye(size)
    first, second = rdp.LowRank(0.3 * a, 0.8), rdp.LowRank(b, 1.0)
    dense = [c.scale * eye + c.factor @ c.factor.T for c in (first, second)]
    return {
        "scalar": (shift, 0.9, 1.0, 0.9 * eye, eye),
        "diagonal": (shift, *diagonals, *(np.diag(d) for d in diagonals)),
        "scalar and diagonal": (shift, 0.7, diagonals[1], 0.7 * eye, np.diag(diagonals[1])),
        "dense": (shift, *dense, *dense),
        "low rank": (shift, first, second, *dense),
        "scalar and low rank": (shift, 0.9, second, 0.9 * eye, dense[1]),
        "low rank as wide as the space": (
            shift,
            rdp.LowRank(rng.normal(size=(size, 4)), 1.0),
            rdp.LowRank(rng.normal(size=(size, 5)), 2.0),
            None,
            None,
        ),
    }


@pytest.mark.parametrize("case", make_pairs())
def test_divergence_of_a_pair_meets_the_formula(case):
    shift, first, second, dense1, dense2 = make_pairs()[case]
    if dense1 is None:
        dense1, dense2 = (c.scale * np.eye(6) + c.factor @ c.factor.T for c in (first, second))
    truth = [pair(shift, dense1, dense2, a) for a in PAIR_ORDERS]
    got = rdp.gaussian_pair(shift, first, second, PAIR_ORDERS)
    np.testing.assert_allclose(got, truth, rtol=1e-10, atol=1e-12)


def test_divergence_of_a_nearly_equal_pair_keeps_its_digits():
    # To second order in the excess e of one variance: a e^2 / 4.
    got = rdp.gaussian_pair(np.zeros(1), 1 + 1e-7, 1.0, (2.0, 5.0))
    np.testing.assert_allclose(got, np.asarray([2.0, 5.0]) * 1e-14 / 4, rtol=1e-6)


def test_low_rank_never_builds_the_square():
    size = 200_000  # a square of this size would need 320 GB
    shift = np.full(size, 1e-3)
    factor = np.zeros((size, 2))
    factor[0, 0] = factor[1, 1] = 1.0
    got = rdp.gaussian_pair(shift, 1.0, rdp.LowRank(factor, 1.0), (2.0,))[0]
    inside = np.diag([2.0, 2.0])
    expected = pair(shift[:2], np.eye(2), inside, 2.0) + 2.0 / 2 * (size - 2) * 1e-6
    assert got == pytest.approx(expected, rel=1e-10)


def test_undefined_divergences_are_infinite_and_equal_ones_zero():
    shift = np.zeros(3)
    assert rdp.gaussian_pair(shift, 2.0, 1.0, (3.0,))[0] == np.inf  # 3 - 2 * 2 < 0
    assert rdp.gaussian_pair(shift, 0.0, 1.0, (3.0,))[0] == np.inf
    assert rdp.gaussian_pair(shift, 1.0, 0.0, (3.0,))[0] == np.inf
    singular = np.diag([1.0, 1.0, 0.0])
    assert rdp.gaussian_pair(shift, np.eye(3), singular, (3.0,))[0] == np.inf
    assert rdp.gaussian_pair(shift, np.eye(3), np.eye(3), (3.0,))[0] == 0.0
    for bad in (np.ones(2), np.ones((3, 2)), np.ones((2, 2))):
        with pytest.raises(ValueError, match="cov1"):
            rdp.gaussian_pair(shift, bad, 1.0, (3.0,))
    with pytest.raises(ValueError, match="LowRank"):
        rdp.gaussian_pair(shift, np.eye(3), rdp.LowRank(np.ones((3, 1)), 1.0), (3.0,))
    with pytest.raises(ValueError, match="mean_shift"):
        rdp.gaussian_pair(np.zeros((2, 2)), 1.0, 1.0, (3.0,))


@pytest.mark.parametrize("kind", [tuple, list, np.asarray])
def test_a_great_many_orders_are_one_argument(kind):
    grid = np.linspace(1.01, 1000.0, 99_000)
    np.testing.assert_allclose(rdp.gaussian(2.0, kind(grid.tolist())), grid / 8, rtol=1e-14)
    found = conversion.rdp_to_epsilon(kind((grid / 8).tolist()), kind(grid.tolist()), 1e-5)
    assert found == pytest.approx(conversion.zcdp_to_epsilon(1 / 8, 1e-5), rel=1e-6)


@pytest.mark.parametrize("shape", [(), (1,)])
def test_of_a_great_many_orders_those_between_come_from_chords_above(shape):
    noise, q = np.full(shape, 1.3), 0.02
    orders = np.concatenate([np.linspace(1.001, 16.0, 2000), np.arange(2.0, 40.0), [1.001, 70.0]])
    found = rdp.poisson_gaussian(noise if shape else 1.3, q, orders)
    few = np.array([5, 11, 460, 999, 1733, 2010, 2038])
    exact = rdp.poisson_gaussian(noise if shape else 1.3, q, orders[few])
    assert found.shape == (*shape, orders.size)
    assert np.all(found[..., few] >= exact * (1 - 1e-10))  # rounding on other nodes
    np.testing.assert_allclose(found[..., few], exact, rtol=1e-3)


def test_chords_of_a_mixture_lie_above_it_and_near():
    args = 1.3, np.array([1.0, 2.0]), np.array([0.02, 0.001])
    orders = np.linspace(1.01, 40.0, 1500)
    few = np.array([3, 700, 1444])
    exact = rdp.gaussian_mixture(*args, orders[few])
    found = rdp.gaussian_mixture(*args, orders)[few]
    assert np.all(found >= exact * (1 - 1e-12))
    np.testing.assert_allclose(found, exact, rtol=2e-4)


@pytest.mark.parametrize("order", [20_000.0, 1e12, 1e100])
def test_an_order_beyond_all_sums_has_a_bound(order):
    noise, q = 2.0, 0.01
    full = order / (2 * noise**2)
    sampled, grid = (
        rdp.poisson_gaussian(noise, q, (2.0, order)),
        rdp.poisson_gaussian(np.array([noise]), q, (order,)),
    )
    # The largest term of the binomial sum alone: order log q + order (order - 1) / (2 noise^2).
    assert full + order / (order - 1) * math.log(q) <= sampled[1] <= full * (1 + 1e-12)
    assert grid[0, 0] == pytest.approx(sampled[1], rel=1e-12)
    assert (
        full * (1 - 1e-12)
        <= rdp.sampled_without_replacement(noise, q, (2.0, order))[1]
        <= full * (1 + 1e-12)
    )
    assert rdp.gaussian_mixture(noise, [1.0, 2.0], [0.01, 0.01], (order,))[0] >= full
