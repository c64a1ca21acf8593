"""Mechanisms of few outcomes and of bounded losses: divergences and losses against sums over their
outcomes written here, and the mechanisms themselves, run on neighbours.
"""

import math

import mpmath
import numpy as np
import pytest

from fljax import accounting
from fljax.accounting import events, finite_pairs
from fljax.accounting.renyi import repeat_select
from fljax.errors import UnsupportedEventError

ADD, REPLACE, SPECIAL = "ADD_OR_REMOVE_ONE", "REPLACE_ONE", "REPLACE_SPECIAL"
ORDERS = (1.5, 2.0, 7.0, 40.0)


def claim(mechanism, relation=ADD):
    return accounting.PrivacyEvent(
        mechanism=mechanism, privacy_unit="client", neighboring_relation=relation
    )


@pytest.mark.parametrize("delta", [0.0, 0.2])
def test_the_pair_of_all_that_is_epsilon_delta_has_that_delta_and_no_more(delta):
    p, q, _ = finite_pairs._pure_and_failure(1.5, delta)
    assert p.sum() == pytest.approx(1) and q.sum() == pytest.approx(1)
    for one, other in ((p, q), (q, p)):
        assert np.maximum(one - math.exp(1.5) * other, 0).sum() == pytest.approx(delta, abs=1e-15)
    assert np.maximum(p - math.exp(1.4) * q, 0).sum() > delta + 0.01


def curve(mechanism, relation=ADD, orders=ORDERS):
    from fljax.accounting import renyi_of_mechanism

    relation = accounting.NeighboringRelation(relation)
    return renyi_of_mechanism.curve(mechanism, relation, orders)


def divergence(p, q, order):
    """Of p from q `[J]`, the larger of both directions."""
    p, q = (np.asarray(x, np.float64) for x in (p, q))
    logs = np.log(p), np.log(q)
    both = [np.exp(order * a + (1 - order) * b).sum() for a, b in (logs, logs[::-1])]
    return math.log(max(both)) / (order - 1)


def hockey_stick(p, q, epsilon):
    p, q = np.asarray(p), np.asarray(q)
    return max(np.maximum(a - math.exp(epsilon) * b, 0).sum() for a, b in ((p, q), (q, p)))


def randomised_response(noise, buckets, replaced):
    """What a unit in bucket 0 publishes, and one in bucket 1, or the null unit."""
    p, q = np.full(buckets, noise / buckets), np.full(buckets, noise / buckets)
    p[0] += 1 - noise
    q[1] += 1 - noise
    return (p, q) if replaced else (p, np.full(buckets, 1 / buckets))


def discrete_laplace(noise, sensitivity):
    x = np.arange(-400, 400 + sensitivity)
    return tuple(
        math.tanh(noise / 2) * np.exp(-noise * abs(x - shift)) for shift in (0, sensitivity)
    )


def staircase(epsilon, gamma, shift=1.0, steps=60, cells=4000):
    """Chances of small cells, from the density as printed; `shift` in sensitivities."""
    x = (np.arange(-steps * cells, steps * cells) + 0.5) / cells
    height = -math.expm1(-epsilon) / (2 * (gamma + math.exp(-epsilon) * (1 - gamma)))

    def density(y):
        whole = np.floor(abs(y))
        return height * np.exp(-epsilon * (whole + (abs(y) - whole >= gamma)))

    return density(x) / cells, density(x - shift) / cells


WITH_OUTCOMES = [
    (events.RandomizedResponse(0.3, 10), REPLACE, randomised_response(0.3, 10, True)),
    (events.RandomizedResponse(0.3, 10), SPECIAL, randomised_response(0.3, 10, False)),
    (events.RandomizedResponse(0.01, 2), REPLACE, randomised_response(0.01, 2, True)),
    (events.DiscreteLaplace(0.5, 1), ADD, discrete_laplace(0.5, 1)),
    (events.DiscreteLaplace(0.3, 7), REPLACE, discrete_laplace(0.3, 7)),
    (events.Staircase(1.2, 0.375), ADD, staircase(1.2, 0.375)),
    (events.Staircase(0.7, 0.75), ADD, staircase(0.7, 0.75)),
]


@pytest.mark.parametrize(
    ("mechanism", "relation", "pair"),
    WITH_OUTCOMES,
    ids=lambda value: str(value) if not isinstance(value, tuple) else "",
)
def test_divergence_and_loss_are_sums_over_the_outcomes(mechanism, relation, pair):
    expected = [divergence(*pair, a) for a in ORDERS]
    np.testing.assert_allclose(curve(mechanism, relation), expected, rtol=2e-9)
    event = claim(mechanism, relation)
    for epsilon in (0.0, 0.2):
        found = accounting.delta(event, epsilon=epsilon, method="pld")
        assert found == pytest.approx(hockey_stick(*pair, epsilon), rel=2e-3)
    largest = np.abs(np.log(pair[0] / pair[1])).max()
    assert accounting.epsilon(event, delta=0) == pytest.approx(largest, rel=1e-9)


def test_two_rounds_are_the_sum_over_pairs_of_outcomes():
    p, q = randomised_response(0.4, 3, True)
    twice = [np.outer(x, x).ravel() for x in (p, q)]
    event = claim(events.RandomizedResponse(0.4, 3), REPLACE).repeat(2)
    for epsilon in (0.1, 1.0, 2.5):
        found = accounting.delta(event, epsilon=epsilon, method="pld")
        assert found == pytest.approx(hockey_stick(*twice, epsilon), rel=2e-3)


@pytest.mark.parametrize("shift", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("gamma", [0.25, 0.8])
def test_a_staircase_is_told_apart_best_at_the_full_sensitivity(gamma, shift):
    worst = claim(events.Staircase(1.0, gamma))
    for epsilon in (0.0, 0.3, 0.9):
        found = accounting.delta(worst, epsilon=epsilon, method="pld")
        assert hockey_stick(*staircase(1.0, gamma, shift), epsilon) <= found + 1e-9


def test_the_staircase_of_least_size_has_the_papers_gamma():
    sizes = {}
    for gamma in np.linspace(0.05, 0.95, 91):
        p, _ = staircase(1.0, gamma, cells=200)
        x = (np.arange(-60 * 200, 60 * 200) + 0.5) / 200
        sizes[gamma] = np.sum(p * abs(x))
    best = min(sizes, key=sizes.get)
    assert best == pytest.approx(1 / (1 + math.exp(0.5)), abs=0.011)
    default, named = (
        accounting.delta(claim(events.Staircase(1.0, g)), epsilon=0.1, method="pld")
        for g in (None, 1 / (1 + math.exp(0.5)))
    )
    assert default == named


def test_who_publishes_a_bucket_is_seen_to_be_there():
    for method in ("rdp", "pld"):
        with pytest.raises(UnsupportedEventError, match="seen to be there"):
            accounting.epsilon(claim(events.RandomizedResponse(0.3, 4)), delta=1e-5, method=method)


def bernoulli_ratio(epsilon, t):
    """Two outcomes of losses t and t - epsilon."""
    p = (1 - math.exp(t - epsilon)) / (1 - math.exp(-epsilon))
    return np.array([p, 1 - p]), np.array([p * math.exp(-t), (1 - p) * math.exp(epsilon - t)])


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 3.0])
def test_gumbel_noise_costs_the_worst_of_all_losses_within_its_range(epsilon):
    mechanism = events.NoisyMax(2 / epsilon)
    inside = np.linspace(0, epsilon, 2003)[1:-1]
    worst = [max(divergence(*bernoulli_ratio(epsilon, t), a) for t in inside) for a in ORDERS]
    np.testing.assert_allclose(curve(mechanism), worst, rtol=1e-5)
    for at in (0.0, 0.4 * epsilon):
        exact = max(hockey_stick(*bernoulli_ratio(epsilon, t), at) for t in inside)
        found = accounting.delta(claim(mechanism), epsilon=at, method="pld")
        assert exact * (1 - 1e-6) <= found <= exact * (1 + 1e-2)
    assert accounting.epsilon(claim(mechanism), delta=0) == pytest.approx(epsilon, rel=1e-14)


def test_gumbel_noise_is_an_eighth_of_its_range_squared_at_most():
    # Cesar, Rogers (2021), arXiv:2004.07223: (epsilon^2 / 8)-zCDP.
    for epsilon in (1e-3, 0.3, 2.0):
        found = curve(events.NoisyMax(2 / epsilon))
        bound = np.array(ORDERS) * epsilon**2 / 8
        assert np.all(found <= bound * (1 + 1e-12))
    np.testing.assert_allclose(curve(events.NoisyMax(2e3)), np.array(ORDERS) * 1e-6 / 8, rtol=1e-3)


def exponential_mechanism(scores, scale):
    weights = np.exp(np.asarray(scores) / scale)
    return weights / weights.sum()


@pytest.mark.parametrize("monotonic", [False, True])
def test_the_exponential_mechanism_on_neighbours_is_within_its_bounds(monotonic):
    rng = np.random.default_rng(3)
    mechanism = events.NoisyMax(2.5, monotonic=monotonic)
    bound = curve(mechanism)
    deltas = {e: accounting.delta(claim(mechanism), epsilon=e, method="pld") for e in (0.0, 0.1)}
    worst = 0.0
    for _ in range(200):
        scores = rng.normal(size=4) * rng.choice([0.1, 3.0])
        moves = rng.choice([0.0, 1.0] if monotonic else [-1.0, 1.0], size=4)
        pair = [exponential_mechanism(s, 2.5) for s in (scores, scores + moves)]
        for order, most in zip(ORDERS, bound, strict=True):
            assert divergence(*pair, order) <= most * (1 + 1e-9)
        assert all(hockey_stick(*pair, e) <= most + 1e-12 for e, most in deltas.items())
        worst = max(worst, divergence(*pair, 2.0) / bound[1])
    assert worst > 0.6  # the control: the bound is near what neighbours reach


def test_monotonic_scores_cost_half_and_other_noises_are_pure():
    def pure(**fields):
        return accounting.epsilon(claim(events.NoisyMax(4.0, **fields)), delta=0)

    assert pure() == 2 * pure(monotonic=True) == pure(noise="laplace") == 0.5
    assert pure(noise="exponential", monotonic=True) == 0.25
    assert accounting.epsilon(claim(events.NoisyMax(0.0)), delta=0.1, method="pld") == math.inf


def test_the_sparse_vector_run_on_neighbours_stays_within_its_bound():
    """Three queries, most_above 1: the chances of the four outputs, by quadrature over the
    threshold's noise.
    """
    rho, nu = 1.0, 2.0
    mechanism = events.SparseVector(rho, nu, 1)
    epsilon = accounting.epsilon(claim(mechanism), delta=0)
    assert epsilon == 1 / rho + 2 / nu
    x = np.linspace(-60, 60, 240_001)
    weight = np.exp(-abs(x) / rho) / (2 * rho) * (x[1] - x[0])

    def above(query):
        z = query - x
        return np.where(z > 0, 1 - 0.5 * np.exp(-abs(z) / nu), 0.5 * np.exp(-abs(z) / nu))

    def outputs(queries):
        found, silent = [], np.ones_like(x)
        for query in queries:
            found.append(np.sum(weight * silent * above(query)))
            silent = silent * (1 - above(query))
        return np.array([*found, np.sum(weight * silent)])

    losses = []
    for queries, moves in [
        ((0.0, 0.0, 0.0), (1, 1, -1)),
        ((-8.0, -8.0, 9.0), (1, 1, -1)),
        ((12.0, 0, 0), (-1, 1, 1)),
        ((-30.0, -30, -3), (1, 1, -1)),
    ]:
        p, q = outputs(queries), outputs(np.array(queries) + moves)
        losses.append(np.abs(np.log(p / q)).max())
    assert 0.5 * epsilon < max(losses) <= epsilon
    # The control: an algorithm that forgets the threshold's noise for later queries costs more,
    # and half the noise breaks the bound.
    half = accounting.epsilon(claim(events.SparseVector(2 * rho, 2 * nu, 1)), delta=0)
    assert max(losses) > half


@pytest.mark.parametrize("sampling_prob", [1e-5, 0.1, 0.7])
@pytest.mark.parametrize("scale", [0.3, 2.0])
def test_sampled_laplace_noise_is_the_integral_of_its_two_densities(scale, sampling_prob):
    mechanism = events.PoissonSampled(sampling_prob, events.Laplace(scale))
    q = mpmath.mpf(sampling_prob)

    def moment(order, add):
        def ratio(x):
            loss = (abs(x) - abs(x - 1)) / mpmath.mpf(scale)
            return 1 - q + q * mpmath.exp(loss)

        def inside(x):
            power = 1 - order if add else order
            return (
                mpmath.exp(-abs(x) / mpmath.mpf(scale))
                / (2 * mpmath.mpf(scale))
                * ratio(x) ** power
            )

        points = [-60 * scale, 0, 1, 1 + 60 * scale]
        return mpmath.quad(inside, points)

    with mpmath.workdps(25):
        for order, found in zip((2.0, 7.0), curve(mechanism, orders=(2.0, 7.0)), strict=True):
            exact = max(mpmath.log(moment(order, add)) / (order - 1) for add in (False, True))
            assert float(exact) * (1 - 1e-9) <= found <= float(exact) * (1 + 1e-6) + 1e-25
        for order in (1.5, 6.5):  # between whole orders a chord lies above
            (found,) = curve(mechanism, orders=(order,))
            exact = max(mpmath.log(moment(order, add)) / (order - 1) for add in (False, True))
            assert float(exact) * (1 - 1e-9) <= found <= 2.1 * float(exact)
    # delta of one step: q times that of Laplace noise at log(1 + (e^epsilon - 1) / q)
    at = 0.4 * math.log1p(sampling_prob * math.expm1(1 / scale))
    inner = math.log1p(math.expm1(at) / sampling_prob)
    exact = sampling_prob * -math.expm1((inner - 1 / scale) / 2)
    lower, upper = accounting.pld.interval(claim(mechanism), epsilon=at)
    assert lower <= exact * (1 + 1e-12) and exact * (1 - 1e-12) <= upper
    assert upper <= exact * 1.01


def test_two_rounds_of_sampled_laplace_noise_hold_dp_accountings_value():
    # dp-accounting 0.6.0: three rounds of noise 0.5, rate 0.2, have epsilon 2.46964 at delta 1e-14
    run = claim(events.PoissonSampled(0.2, events.Laplace(0.5))).repeat(3)
    assert accounting.epsilon(run, delta=1e-14, method="pld") == pytest.approx(2.46964, abs=1e-3)


def sampled_discrete_gaussian(stddev, sensitivity, q):
    y = np.arange(-2000, 2001)
    f = np.exp(-0.5 * (y / stddev) ** 2)
    moved = np.exp(-0.5 * ((y - sensitivity) / stddev) ** 2)
    there = (f > 1e-280) & (moved > 1e-280)
    f, moved = f[there] / f.sum(), moved[there] / f.sum()
    return (1 - q) * f + q * moved, f


@pytest.mark.parametrize(
    ("stddev", "sensitivity", "q"), [(2.0, 1, 0.1), (0.7, 2, 0.3), (20.0, 5, 0.1)]
)
def test_sampled_discrete_gaussians_hold_the_sum_over_integers(stddev, sensitivity, q):
    mechanism = events.PoissonSampled(q, events.DiscreteGaussian(stddev, sensitivity))
    pair = sampled_discrete_gaussian(stddev, sensitivity, q)
    for order, found in zip((2.0, 5.0), curve(mechanism, orders=(2.0, 5.0)), strict=True):
        assert divergence(*pair, order) * (1 - 1e-9) <= found
        if stddev >= 2:  # there the continuous twin is all but the same
            assert found <= divergence(*pair, order) * (1 + 1e-3)
    for epsilon in (0.01, 0.1):
        exact = hockey_stick(*pair, epsilon)
        lower, upper = accounting.pld.interval(claim(mechanism), epsilon=epsilon)
        assert lower <= exact * (1 + 1e-9) and exact * (1 - 1e-9) <= upper <= exact * 1.01 + 1e-12


def test_composed_sampled_discrete_gaussians_hold_their_convolution():
    stddev, sensitivity, q = 1.5, 1, 0.2
    run = claim(events.PoissonSampled(q, events.DiscreteGaussian(stddev, sensitivity))).repeat(2)
    p, f = sampled_discrete_gaussian(stddev, sensitivity, q)
    heavy = (p > 1e-16) | (f > 1e-16)
    pair = [np.outer(x[heavy], x[heavy]).ravel() for x in (p, f)]
    for epsilon in (0.1, 0.5):
        lower, upper = accounting.pld.interval(run, epsilon=epsilon)
        assert lower <= hockey_stick(*pair, epsilon) * (1 + 1e-9)
        assert hockey_stick(*pair, epsilon) * (1 - 1e-9) <= upper


@pytest.mark.filterwarnings("ignore::fljax.accounting.pld.WideIntervalWarning")
def test_a_pair_that_is_sampled_almost_never_costs_something():
    for inner in (events.EpsilonDelta(1.0), events.Staircase(1.0, 0.5)):
        found = accounting.delta(
            claim(events.PoissonSampled(1e-18, inner)), epsilon=0.0, method="pld"
        )
        assert 1e-18 * math.tanh(0.5) <= found <= 1e-12


def runs_law(mean, shape, most=4000):
    """Chances of 0, 1, ... runs, by the paper's definition."""
    k = np.arange(most)
    log_factorial = np.array([math.lgamma(n + 1) for n in k])
    if shape == "poisson":
        return np.exp(k * math.log(mean) - mean - log_factorial)
    low, high = 1e-9, 1 - 1e-12
    for _ in range(200):
        gamma = math.sqrt(low * high)
        if shape == 0:
            law = np.where(k > 0, (1 - gamma) ** k / np.maximum(k, 1) / -math.log(gamma), 0)
        else:
            logs = [math.lgamma(n + shape) - math.lgamma(shape) for n in k]
            law = np.exp(np.array(logs) - log_factorial + k * math.log1p(-gamma))
            law = np.where(k > 0, law / (gamma**-shape - 1), 0)
        low, high = (gamma, high) if np.sum(law * k) > mean else (low, gamma)
    return law


@pytest.mark.slow(
    reason="draws thousands of runs of one more mean",
    but=["1.5-0", "1.5-1", "1.5-2.0", "1.5-poisson"],
)
@pytest.mark.parametrize("shape", [0, 0.5, 1, 2.0, "poisson"])
@pytest.mark.parametrize("mean", [1.5, 6.0])
def test_runs_are_drawn_from_the_law_that_is_paid_for(mean, shape):
    points = 200
    drawn = [repeat_select.num_runs(mean, shape, (i + 0.5) / points) for i in range(points)]
    found = np.bincount(drawn)
    law = runs_law(mean, shape)[: found.size]
    # a quantile at equally spaced points counts each number to one
    assert np.abs(np.cumsum(found) / points - np.cumsum(law)).max() <= 1 / points
    assert repeat_select.num_runs(1.0, shape, 0.999) == 1 or shape == "poisson"


def best_of(single, law):
    """Chances of the best of a random number of runs: outcomes in the order of goodness, the last
    best; the first entry is no run at all.
    """
    below = np.concatenate([[0.0], np.cumsum(single)])
    none_better = np.array([np.sum(law * b ** np.arange(len(law))) for b in np.minimum(below, 1)])
    return np.concatenate([[law[0]], np.diff(none_better)])


@pytest.mark.slow(reason="sums one more law", but=["1.5-0", "1.5-1", "1.5-2.0", "1.5-poisson"])
@pytest.mark.parametrize("shape", [0, 0.5, 1, 2.0, "poisson"])
@pytest.mark.parametrize("mean", [1.5, 6.0])
def test_the_best_of_random_runs_is_within_its_bound_and_not_far_below(mean, shape):
    """The law of the best run is computed from that of one run, for runs that are randomised
    response and release the better outcome seldom: what the search favours.
    """
    epsilon = 0.8
    high = 1 / (1 + math.exp(-epsilon))
    law = runs_law(mean, shape)
    assert np.sum(law * np.arange(len(law))) == pytest.approx(mean, rel=1e-4)
    mechanism = events.RepeatAndSelect(events.EpsilonDelta(epsilon), mean, shape)
    bound = curve(mechanism)
    losses = []
    for p, q in (((high, 1 - high), (1 - high, high)), ((1 - high, high), (high, 1 - high))):
        best = best_of(np.array(p), law), best_of(np.array(q), law)
        keep = best[0] > 1e-300
        best = best[0][keep], best[1][keep]
        for order, most in zip(ORDERS, bound, strict=True):
            assert divergence(*best, order) <= most * (1 + 1e-9)
        losses.append(np.abs(np.log(best[0] / best[1])).max())
    largest = accounting.epsilon(claim(mechanism), delta=0)
    assert max(losses) <= largest
    one = accounting.epsilon(claim(events.EpsilonDelta(epsilon)), delta=0)
    assert max(losses) > one  # the control: a search costs more than one of its runs


def test_repeated_and_selected_gaussians_hold_the_papers_corollary():
    # Papernot, Steinke (2022), arXiv:2110.03620, Corollary 4, at orders where it is one formula.
    rho, mean = 0.1, 1 / 0.1
    mechanism = events.RepeatAndSelect(events.Gaussian(math.sqrt(0.5 / rho)), mean, 1)
    orders = (10.0, 100.0)
    exact = [
        rho * (a - 1) + math.log(mean) / (a - 1) + 4 * math.sqrt(rho * math.log(mean)) - rho
        for a in orders
    ]
    found = curve(mechanism, orders=orders)
    assert np.all(found >= np.array(exact) * (1 - 1e-9))
    np.testing.assert_allclose(found, exact, rtol=2e-4)
    assert (
        accounting.epsilon(claim(events.RepeatAndSelect(events.Laplace(1.0), 50.0, 2.0)), delta=0)
        == 4
    )


def test_one_run_of_a_search_costs_what_the_run_does():
    inner = events.PoissonSampled(0.1, events.Gaussian(2.0))
    for shape in (0, 1, 3.0):
        once = events.RepeatAndSelect(inner, 1, shape)
        np.testing.assert_allclose(curve(once), curve(inner), rtol=1e-9)


def test_trees_are_one_gaussian_of_the_depth_and_exchange_null_units_only():
    tree = events.TreeAggregation(4.0, (1600, 3))
    gaussian = claim(events.SelfComposed(events.Gaussian(4.0), 11), SPECIAL)  # 2^11 > 1600
    for method in ("rdp", "pld"):
        found = accounting.epsilon(claim(tree, SPECIAL), delta=1e-6, method=method)
        assert found == pytest.approx(
            accounting.epsilon(gaussian, delta=1e-6, method=method), rel=2e-3
        )
        for relation in (ADD, REPLACE):
            with pytest.raises(UnsupportedEventError, match="REPLACE_SPECIAL"):
                accounting.epsilon(claim(tree, relation), delta=1e-6, method=method)


def test_epsilon_at_delta_0_is_the_largest_loss():
    run = claim(
        events.Composed((events.SelfComposed(events.Laplace(2.0), 3), events.ZCdp(0.0, 0.25)))
    )
    assert accounting.epsilon(run, delta=0) == 1.75
    assert accounting.epsilon(claim(events.Gaussian(1.0)), delta=0) == math.inf
    assert accounting.epsilon(claim(events.Composed(())), delta=0) == 0
    sampled = claim(events.PoissonSampled(0.25, events.EpsilonDelta(1.0)))
    assert accounting.epsilon(sampled, delta=0) == pytest.approx(math.log1p(0.25 * math.expm1(1)))
    batch = claim(events.SampledWithoutReplacement(8, 2, events.Laplace(1.0)), REPLACE)
    assert accounting.epsilon(batch, delta=0) == pytest.approx(math.log1p(0.25 * math.expm1(1)))
    # also the Renyi bound at infinity, which small deltas take
    assert accounting.epsilon(claim(events.Laplace(2.0)), delta=1e-300) == 0.5
    found = accounting.spent(claim(events.Laplace(2.0)), delta=1e-5, orders=(1, 2, math.inf))
    assert (found.epsilon_upper, found.order) == (0.5, math.inf)
    assert accounting.delta(claim(events.Laplace(2.0)), epsilon=0.5, orders=(math.inf,)) == 0
    noise = accounting.calibrate(
        lambda b: claim(events.Laplace(b)).repeat(10), epsilon=2.0, delta=0
    )
    assert noise == pytest.approx(5.0, rel=2e-6) and noise >= 5.0
    for method in accounting.ACCOUNTANTS:
        with pytest.raises(ValueError, match=r"Expected delta in \[0, 1\)"):
            accounting.epsilon(run, delta=1.0, method=method)


def test_claims_with_a_delta_stand_beside_renyi_divergences():
    gaussians = events.SelfComposed(events.Gaussian(4.0), 10)
    block = events.EpsilonDelta(0.5, 1e-6)
    both = claim(events.Composed((gaussians, events.SelfComposed(block, 2))))
    pure = claim(events.Composed((gaussians, events.EpsilonDelta(0.5), events.EpsilonDelta(0.5))))
    found = accounting.epsilon(both, delta=1e-5)
    assert found == pytest.approx(accounting.epsilon(pure, delta=1e-5 - 2e-6), rel=1e-12)
    assert found >= accounting.epsilon(both, delta=1e-5, method="pld")
    assert accounting.epsilon(both, delta=2e-6) == math.inf
    assert accounting.delta(both, epsilon=5.0) == pytest.approx(
        accounting.delta(pure, epsilon=5.0) + 2e-6
    )
    ledger = accounting.Ledger(privacy_unit="client", neighboring_relation=ADD)
    ledger.append(claim(gaussians))
    ledger.append(claim(block), 2)
    assert ledger.epsilon(delta=1e-5) == found
