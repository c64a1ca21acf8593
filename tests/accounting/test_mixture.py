"""Subject-level mixtures: sampling probabilities, weights, and what they cost.

Oracle numbers: spec of subject-level
DP, section 6.
"""

import itertools
import math

import numpy as np
import pytest
from scipy import integrate, stats
from scipy.special import logsumexp

from fljax import accounting
from fljax.accounting import events, mixture, pld
from fljax.accounting.renyi import rdp

DELTA, Q, ITEMS = 1e-5, 0.02, 8
P = 0.1492369774


def cost(mechanism, steps=1, **kwargs):
    event = accounting.PrivacyEvent(
        mechanism=events.SelfComposed(mechanism, steps),
        privacy_unit="subject",
        neighboring_relation="ADD_OR_REMOVE_ONE",
    )
    return pld.interval(event, **kwargs)


def test_subject_sampling_probabilities():
    assert mixture.subject_sampling_prob(ITEMS, Q) == pytest.approx(P, rel=1e-9)
    assert mixture.subject_fixed_size_prob(8, 1000, 20) == pytest.approx(0.149725457, rel=1e-8)
    assert mixture.subject_fixed_size_prob(8, 20, 20) == 1.0
    assert mixture.subject_sampling_prob(1, 0.3) == pytest.approx(0.3, rel=1e-15)
    assert mixture.subject_sampling_prob(7, 1e-12) == pytest.approx(7e-12, rel=1e-9)


def test_probabilities_grow_with_items_and_rate_and_stay_below_the_union_bound():
    for q in (1e-6, 0.1, 0.9):
        found = [mixture.subject_sampling_prob(m, q) for m in range(1, 30)]
        assert all(a <= b for a, b in itertools.pairwise(found))
        assert all(p <= min(1.0, m * q * (1 + 1e-12)) for m, p in enumerate(found, start=1))


def test_count_distribution_capped_at_three():
    expected = [0.8507630226, 0.1389000853, 0.009921434666, 0.0004154574331]
    np.testing.assert_allclose(mixture.item_count_pmf(8, 0.02, 3), expected, rtol=1e-9)
    np.testing.assert_allclose(
        mixture.item_count_pmf(20, 0.3), stats.binom.pmf(np.arange(21), 20, 0.3), rtol=1e-12
    )
    np.testing.assert_array_equal(mixture.item_count_pmf(5, 1.0, 2), [0, 0, 1])


def mixture_delta(weights, epsilon, noise, remove):
    """Hockey-stick divergence of one release by integrating over the output."""

    def parts(x):
        q = stats.norm.pdf(x, scale=noise)
        p = sum(w * stats.norm.pdf(x, loc=j, scale=noise) for j, w in enumerate(weights))
        return max((p - math.exp(epsilon) * q) if remove else (q - math.exp(epsilon) * p), 0.0)

    return integrate.quad(parts, -12, 20, limit=800, epsabs=1e-14, points=list(range(9)))[0]


@pytest.mark.parametrize(
    ("epsilon", "expected"),
    [(0.05, 0.04719827394), (0.5, 0.009503102616), (1.0, 0.00258145997), (2.0, 0.0003318717321)],
)
def test_delta_of_one_item_sum(
    epsilon, expected
):  # oracles 18, 19; "remove" is the larger direction
    lower, upper = cost(mixture.item_sum(1.0, ITEMS, Q), epsilon=epsilon)
    assert lower <= expected * (1 + 1e-9) and expected * (1 - 1e-9) <= upper
    assert upper - lower <= 1e-3 * upper
    weights = mixture.item_count_pmf(ITEMS, Q)
    assert mixture_delta(weights, epsilon, 1.0, True) == pytest.approx(expected, rel=1e-6)


def test_delta_of_one_two_point_release():  # oracle 20
    lower, upper = cost(mixture.two_point(1.0, P), epsilon=1.0)
    assert lower <= 0.0008770755571 * (1 + 1e-9) and 0.0008770755571 * (1 - 1e-9) <= upper


# noise, cap, steps, epsilon: oracles 27 to 31. Their lattice of 1e-4 errs upward, by less than 2e-4
# (4e-4 at 80,000 steps).
COMPOSED = [
    (1.6973, 8, 5000, 57.88729),
    (4.964, 8, 5000, 11.98661),
    (4.964, 3, 5000, 11.98545),
    (12.28, 3, 5000, 3.999048),
    (4.964, 3, 20000, 29.63487),
    (11.45, 1, 5000, 3.999261),
    (11.45, 1, 20000, 9.072036),
    (11.45, 1, 4800, 3.906583),
    (11.45, 1, 80000, 21.91210),
]


@pytest.mark.parametrize(("noise", "cap", "steps", "expected"), COMPOSED)
def test_epsilon_of_composed_releases(noise, cap, steps, expected):
    lower, upper = cost(mixture.item_sum(noise, ITEMS, Q, cap=cap), steps, delta=DELTA)
    slack = 5e-4 if steps > 20000 else 2e-4
    assert lower <= expected <= upper + slack
    assert upper - lower <= 1e-3 * upper


def test_item_view_of_a_calibrated_noise():  # oracles 27, 28
    q = events.PoissonSampled(Q, events.Gaussian(1.6973))
    lower, upper = cost(q, 5000, delta=DELTA)
    assert lower <= 3.997749 <= upper + 2e-4
    lower, upper = cost(
        events.PoissonSampled(Q, events.Gaussian(4.964)), 5000, delta=2.316115041e-07
    )
    assert lower <= 1.333107 <= upper + 2e-4


def test_cap_one_is_the_mean_per_subject_and_one_item_is_poisson_sampling():
    capped, mean = (
        mixture.item_sum(3.0, ITEMS, Q, cap=1),
        mixture.two_point(3.0, mixture.subject_sampling_prob(ITEMS, Q)),
    )
    assert capped.sensitivities == mean.sensitivities
    np.testing.assert_allclose(capped.sampling_probs, mean.sampling_probs, rtol=1e-12)
    one = cost(mixture.item_sum(3.0, 1, Q), 100, delta=DELTA)
    sampled = cost(events.PoissonSampled(Q, events.Gaussian(3.0)), 100, delta=DELTA)
    assert one == pytest.approx(sampled, rel=2e-3)


def test_everybody_sampled_is_the_gaussian_of_all_items():
    lower, upper = cost(mixture.item_sum(10.0, 4, 1.0), delta=DELTA)
    exact = float(accounting.gaussian.mu_to_epsilon(0.4, DELTA))
    assert lower <= exact * (1 + 1e-12) and exact * (1 - 1e-12) <= upper


def test_capped_costs_no_more_than_uncapped_than_all_items_at_once():
    p = mixture.subject_sampling_prob(ITEMS, Q)
    order = [
        cost(mixture.item_sum(6.0, ITEMS, Q, cap=3), 200, delta=DELTA),
        cost(mixture.item_sum(6.0, ITEMS, Q), 200, delta=DELTA),
        cost(mixture.two_point(6.0, p, sensitivity=8.0), 200, delta=DELTA),
    ]
    assert all(a[0] <= b[1] for a, b in itertools.pairwise(order))


def test_spreading_a_subject_over_silos_does_not_raise_the_item_sum():  # section 3.7
    expected = [(1, 8, 11.98661), (2, 4, 7.8142), (8, 1, 3.4610)]
    for silos, items, value in expected:
        lower, upper = cost(mixture.item_sum(4.964, items, Q), 5000 * silos, delta=DELTA)
        assert lower - 1e-4 <= value <= upper + 2e-4


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: mixture.subject_sampling_prob(0, 0.1), "num_items"),
        (lambda: mixture.subject_sampling_prob(3, 0.0), "item_sampling_prob"),
        (lambda: mixture.subject_fixed_size_prob(30, 20, 5), "population"),
        (lambda: mixture.item_count_pmf(3, 0.5, 0), "cap"),
        (lambda: mixture.two_point(1.0, 1.5), "subject_prob"),
        (lambda: mixture.item_sum(-1.0, 3, 0.1), "noise_multiplier"),
    ],
)
def test_bad_arguments_are_named(call, name):
    with pytest.raises(ValueError, match=name):
        call()


def test_replacing_a_subject_is_bounded_as_in_oracle_21_and_above_an_example():
    pmf = mixture.item_count_pmf(8, 0.02)
    amounts, probs = np.arange(1.0, 9.0), np.asarray(pmf)[1:]
    bound = rdp.replaced_gaussian_mixture(2.0, amounts, probs, (2.0, 4.0))
    np.testing.assert_allclose(bound, [32.70393591, 117.5679387], rtol=1e-9)

    # Two data sets it must cover: the subject moves the sum one way, or the other way.
    x = np.linspace(-60, 60, 24001)
    moves = np.arange(9.0)[:, None]
    up, down = (
        logsumexp(np.log(pmf)[:, None] + stats.norm.logpdf(x, side * moves, 2.0), axis=0)
        for side in (1, -1)
    )
    for order, most in zip((2.0, 4.0), bound, strict=True):
        actual = (logsumexp(order * up + (1 - order) * down) + math.log(x[1] - x[0])) / (order - 1)
        assert 0.004 < actual < most
    assert rdp.replaced_gaussian_mixture(2.0, [0.0], [0.5], (2.0,))[0] == 0
    exact = rdp.replaced_gaussian_mixture(2.0, [1.5], [1.0], (3.0,))
    np.testing.assert_allclose(
        exact, 3 * 3.0**2 / (2 * 2.0**2), rtol=1e-12
    )  # N(1.5, 4) against N(-1.5, 4)
    assert rdp.replaced_gaussian_mixture(1e-160, [1.0], [0.5], (2.0,))[0] == math.inf
