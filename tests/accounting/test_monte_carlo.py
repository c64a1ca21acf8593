"""Privacy losses that are drawn: what is reported is below the truth no more often than stated."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from fljax import accounting
from fljax.accounting import correlated, events, gaussian, mechanisms, monte_carlo
from fljax.errors import UnsupportedEventError
from fljax_kernels.correlated import Strategy

BANDS = (1.0, 0.5, 0.375)


def claim(mechanism, relation="ADD_OR_REMOVE_ONE"):
    return accounting.PrivacyEvent(
        mechanism=mechanism, privacy_unit="client", neighboring_relation=relation
    )


def bins(coefs, num_rounds, cycle, noise=1.0, kind="banded"):
    return events.SampledCorrelatedGaussian(noise, kind, coefs, num_rounds, cycle, "balls_in_bins")


def drawn(mechanism, epsilon, count=200_000, seed=0):
    """(lower, estimate, upper) of delta, five standard errors wide."""
    found = monte_carlo.delta(
        claim(mechanism),
        epsilon=epsilon,
        num_samples=count,
        rng=np.random.default_rng(seed),
        failure_prob=1e-6,
    )
    width = 5 * math.sqrt(found.estimate / count) + 1e-12
    return found.estimate - width, found.estimate, found.value


@pytest.mark.parametrize(
    ("seen", "coefs", "wanted"),
    [
        ([1.0, 1.0, 1.0, 1.0], (1.0, 1.0, 0.5, 0.5), 1.5799760835798948),
        ([1.0, 0.5, 1.0, 0.5], (1.0, 0.5), 0.9052974004451105),
        ([0.0, 1.0, 0.5, 1.0], (1.0, 0.5), 0.7802974004451104),
    ],
)
def test_the_loss_of_two_bins_is_that_of_jax_privacy(seen, coefs, wanted):
    columns = correlated.encoder(Strategy("banded", coefs, 4))
    means = np.stack([columns[:, first::2].sum(axis=1) for first in range(2)])
    mixture = monte_carlo.Mixture(np.full(2, 0.5), means)
    (found,) = monte_carlo.loss(mixture, np.array([seen]))
    assert found == pytest.approx(wanted, rel=1e-12)


def test_the_loss_does_not_depend_on_the_coordinates_that_it_is_told_in():
    (mixture,) = monte_carlo.mixtures(bins(BANDS, 7, 3, noise=1.5))
    columns = correlated.encoder(Strategy("banded", BANDS, 7)) / 1.5
    means = np.stack([columns[:, first::3].sum(axis=1) for first in range(3)])
    np.testing.assert_allclose(mixture.means @ mixture.means.T, means @ means.T, rtol=1e-12)
    assert mixture.means.shape == (3, 3)


@pytest.mark.parametrize("noise", [0.7, 2.0])
def test_a_gaussian_mechanism_has_its_own_delta_in_the_interval(noise):
    for epsilon in (0.2, 1.0):
        truth = float(gaussian.mu_to_delta(1 / noise, epsilon))
        low, _, high = drawn(events.Gaussian(noise), epsilon)
        assert low <= truth <= high <= truth * 1.1 + 1e-3


def test_one_of_two_bins_costs_what_quadrature_finds():
    noise, epsilon = 1.0, 0.5
    (mixture,) = monte_carlo.mixtures(bins((1.0, 0.5), 2, 2, noise))
    means = np.array([[1.0, 0.5], [0.0, 1.0]]) / noise
    np.testing.assert_allclose(mixture.means @ mixture.means.T, means @ means.T)

    def excess(y, x, way):
        seen = np.array([x, y])
        ratio = np.mean(np.exp(means @ seen - np.sum(means**2, axis=1) / 2))
        base = math.exp(-0.5 * (x * x + y * y)) / (2 * math.pi)
        first, second = (ratio, 1.0) if way else (1.0, ratio)
        return max(0.0, first - math.exp(epsilon) * second) * base

    truth = max(
        integrate.dblquad(excess, -9, 9, -9, 9, args=(way,), epsabs=1e-7, epsrel=1e-5)[0]
        for way in (True, False)
    )
    low, _, high = drawn(bins((1.0, 0.5), 2, 2, noise), epsilon)
    assert low <= truth <= high


def by_a_grid(means, weights, epsilon):
    """Delta, in both orders, of a mixture of normals around `means` `[S, 3]` against one."""
    line = np.linspace(-6, 8, 71)
    seen = np.stack(np.meshgrid(line, line, line, indexing="ij"), -1)
    base = np.exp(-np.sum(seen**2, axis=-1) / 2) * ((line[1] - line[0]) / math.sqrt(2 * np.pi)) ** 3
    exponents = seen @ means.T - np.sum(means**2, axis=1) / 2
    ratio = np.exp(exponents) @ np.asarray(weights)
    over = np.maximum(0, ratio - math.exp(epsilon)), np.maximum(0, 1 - math.exp(epsilon) * ratio)
    return max(float(np.sum(base * each)) for each in over)


@pytest.mark.slow(
    reason="a second of quadrature each",
    but=["balls_in_bins-2-coefs1", "cyclic_poisson-2-coefs1"],
)
@pytest.mark.parametrize("coefs", [(1.0, 0.5, 0.4), (1.0, -0.7, 0.4), (1.0, 0.2, 0.9)])
@pytest.mark.parametrize("cycle", [2, 5])
@pytest.mark.parametrize("sampling", ["balls_in_bins", "cyclic_poisson"])
def test_three_rounds_that_no_cycle_divides_cost_no_more_than_is_certified(coefs, cycle, sampling):
    """What a unit adds may have any sign in any round, or be nothing."""
    prob = 1.0 if sampling == "balls_in_bins" else 0.4
    event = events.SampledCorrelatedGaussian(1.0, "banded", coefs, 3, cycle, sampling, prob)
    high = drawn(event, 0.7, count=50_000)[2]
    matrix = correlated.encoder(Strategy("banded", coefs, 3))
    turns = np.arange(3) % cycle == np.arange(cycle)[:, None]
    for signs in ((1, 1, 1), (1, -1, 1), (1, 1, -1), (1, 0, 1)):
        if sampling == "balls_in_bins":
            pairs = [(turns, np.full(cycle, 1 / cycle))]
        else:
            coins = np.array(np.meshgrid([0, 1], [0, 1], [0, 1])).reshape(3, -1).T
            chances = np.prod(np.where(coins, prob, 1 - prob), axis=1)
            pairs = [(turns[turn] * coins, chances) for turn in range(min(cycle, 3))]
        for rounds, weights in pairs:
            truth = by_a_grid((rounds * np.array(signs)) @ matrix.T, weights, 0.7)
            assert truth <= high


@pytest.mark.parametrize(("epsilon", "theirs"), [(0.5, 0.32810), (1.0, 0.21383)])
def test_fewer_bins_than_bands_cost_what_jax_privacy_draws(epsilon, theirs):
    """jax_privacy 2.0.0, `get_privacy_loss_sample` of `BallsInBinsSampling(4, 10)`, 200,000 losses
    with the unit, whose standard error is below 0.0008.
    """
    coefs = (1.0, 0.5, 0.375, 0.3125, 0.25, 0.2)
    low, estimate, high = drawn(bins(coefs, 10, 4, noise=1.5), epsilon)
    assert abs(estimate - theirs) <= 5 * math.hypot(0.0008, math.sqrt(estimate / 200_000))
    assert low <= theirs + 0.004 and theirs - 0.004 <= high


def test_bins_without_bands_are_a_random_allocation_of_one_round():
    other = drawn(events.RandomAllocation(5, 1, 1.0), 0.7, seed=9)[1]
    for seed, mechanism in enumerate((bins((1.0,), 5, 5), events.RandomAllocation(5, 1, 1.0))):
        low, _, high = drawn(mechanism, 0.7, seed=seed)
        assert low <= other * 1.02 and other * 0.98 <= high
    # Renyi's bound of an allocation is above what is drawn of it.
    event = claim(events.RandomAllocation(10, 2, 1.5))
    rng = np.random.default_rng(1)
    found = monte_carlo.epsilon(event, delta=1e-2, num_samples=20_000, rng=rng)
    assert found.estimate <= found.value < accounting.epsilon(event, delta=1e-2, method="rdp")


def test_cyclic_poisson_with_no_more_bands_than_rounds_of_a_cycle_is_a_composition():
    """The rounds of a turn meet disjoint rows of C."""
    norm = math.hypot(*BANDS)
    # The last cycle's columns are cut: rounds are such that none of the first turn's is.
    mechanism = events.SampledCorrelatedGaussian(
        norm, "banded", BANDS, 12, 3, "cyclic_poisson", 0.3
    )
    plain = claim(events.SelfComposed(events.PoissonSampled(0.3, events.Gaussian(1.0)), 4))
    wanted = accounting.epsilon(plain, delta=1e-2, method="pld")
    rng = np.random.default_rng(0)
    found = monte_carlo.epsilon(claim(mechanism), delta=1e-2, num_samples=100_000, rng=rng)
    assert found.value >= wanted and found.estimate == pytest.approx(wanted, rel=0.03)
    assert found.value == pytest.approx(wanted, rel=0.07)
    # More bands than that: rounds of a turn add up, and a composition would claim too little.
    wide = (*BANDS, 0.3, 0.25, 0.2)
    more = events.SampledCorrelatedGaussian(
        math.hypot(*wide), "banded", wide, 12, 3, "cyclic_poisson", 0.3
    )
    assert drawn(more, wanted)[0] > 1e-2


def test_of_a_matrix_without_structure_the_worst_turn_counts():
    # Columns of .1 and 1 in turn: who has the second turn moves two rounds by 1 each.
    coefs = (0.1, 0.0, 1.0, 0.0, 0.1, 0.0, 1.0, 0.0)
    event = events.SampledCorrelatedGaussian(1.0, "dense_banded", coefs, 4, 2, "cyclic_poisson")
    found = monte_carlo.epsilon(
        claim(event), delta=1e-2, num_samples=100_000, rng=np.random.default_rng(0)
    )
    assert found.value >= float(gaussian.mu_to_epsilon(math.sqrt(2), 1e-2)) * (1 - 1e-6)


def test_starts_are_counted_and_chances_make_them_cheaper():
    rng = np.random.default_rng(0)
    one = bins(BANDS, 6, 3, noise=2.0)
    how = {"delta": 1e-2, "num_samples": 50_000, "rng": rng}
    single = monte_carlo.epsilon(claim(one), **how)
    double = monte_carlo.epsilon(claim(one).repeat(2), **how)
    assert single.value < double.value < 2 * single.value
    known = accounting.epsilon(claim(one).repeat(2), delta=1e-2, method="gdp")
    assert double.value < known
    # What others report is what holds where the bin is known.
    told = claim(mechanisms.told_when(one)).repeat(2)
    for method in ("gdp", "rdp", "pld"):
        assert accounting.epsilon(claim(one).repeat(2), delta=1e-2, method=method) == (
            pytest.approx(accounting.epsilon(told, delta=1e-2, method=method), rel=1e-9)
        )


def test_what_is_reported_is_below_the_truth_no_more_often_than_it_says():
    event, truth = claim(events.Gaussian(1.0)), None
    truth = float(gaussian.mu_to_delta(1.0, 1.0))
    below, points, runs = 0, 0, 400
    for seed in range(runs):
        found = monte_carlo.delta(
            event,
            epsilon=1.0,
            num_samples=500,
            rng=np.random.default_rng(seed),
            failure_prob=0.2,
        )
        below += found.value - found.failure_prob < truth
        points += found.estimate < truth
    # By chance 0.2 at most: five standard errors above.
    assert below <= runs * (0.2 + 5 * math.sqrt(0.2 * 0.8 / runs))
    # The control: the point estimate, were it reported, is.
    assert points > runs * 0.2


def test_noise_for_a_target_is_near_the_least_that_holds():
    exact = 1 / float(gaussian.epsilon_to_mu(1.0, 1e-2))
    how = {"epsilon": 1.0, "delta": 1e-2, "num_samples": 20_000, "rng": np.random.default_rng(0)}
    noise, _ = monte_carlo.calibrate(lambda value: claim(events.Gaussian(value)), **how, tries=3)
    assert noise == pytest.approx(exact, rel=1e-5)  # nothing proves more than the exact account
    bands = lambda value: claim(bins(BANDS, 12, 4, noise=value)).repeat(2)
    noise, found = monte_carlo.calibrate(bands, **how)
    known = accounting.calibrate(bands, epsilon=1.0, delta=1e-2, method="gdp")
    assert noise < 0.9 * known and found.value <= 1.0
    assert found.failure_prob == 1e-4 and found.num_samples == 20_000
    # Draws of their own say the same.
    rng = np.random.default_rng(5)
    again = monte_carlo.epsilon(bands(noise), delta=1e-2, num_samples=20_000, rng=rng)
    assert again.estimate < 1.0 and again.value > 0.8


def test_the_tries_of_a_calibration_share_what_may_fail(monkeypatch):
    """One of them fails with chance 1e-3 at most, each of whose two orders half of its share."""
    asked, upper = [], monte_carlo.upper_mean

    def noted(mean, count, error):
        asked.append(error)
        return upper(mean, count, error)

    monkeypatch.setattr(monte_carlo, "upper_mean", noted)
    noise, found = monte_carlo.calibrate(
        lambda value: claim(bins(BANDS, 12, 6, noise=value)),
        epsilon=1.0,
        delta=1e-2,
        num_samples=20_000,
        rng=np.random.default_rng(0),
        failure_prob=1e-3,
        tries=5,
    )
    assert set(asked) == {1e-3 / 5 / 2} and found.failure_prob == 1e-3 and noise > 0


def test_few_draws_leave_the_noise_without_chances():
    bands = lambda value: claim(bins(BANDS, 12, 4, noise=value))
    how = {"epsilon": 1.0, "delta": 1e-3, "num_samples": 100, "rng": np.random.default_rng(0)}
    noise, found = monte_carlo.calibrate(bands, **how)
    assert found.failure_prob == 0 and found.value <= 1.0
    assert accounting.epsilon(bands(noise), delta=1e-3, method="gdp") == found.value
    for bad in ({"epsilon": 0.0}, {"delta": 1.0}, {"tries": 0}, {"failure_prob": 1e-3}):
        with pytest.raises(ValueError, match="Expected"):
            monte_carlo.calibrate(bands, **how | bad)


@pytest.mark.parametrize("mean", [0.0, 1e-5, 0.3, 0.9, 1.0])
def test_the_interval_is_wider_than_that_of_clopper_and_pearson_and_not_much(mean):
    count, error = 10_000, 1e-4
    hits = round(mean * count)
    found = monte_carlo.upper_mean(hits / count, count, error)
    exact = stats.beta.ppf(1 - error, hits + 1, count - hits) if hits < count else 1.0
    assert exact * (1 - 1e-9) <= found <= min(1.0, 1.5 * exact)


SIGNS = (1.0, -0.6, 0.3, -0.2)


def attacked(coefs, patterns, weights, vectors, epsilon, noise, seed):
    """Delta of what one unit with these vectors `[T, 2]` shows, drawn with code of its own."""
    rng, count = np.random.default_rng(seed), 100_000
    rounds = len(vectors)
    columns = np.array(
        [
            [coefs[t - s] if 0 <= t - s < len(coefs) else 0.0 for s in range(rounds)]
            for t in range(rounds)
        ]
    )
    means = np.stack([(columns @ (p[:, None] * vectors)).ravel() for p in patterns]) / noise
    best = 0.0
    for there in (True, False):
        seen = rng.normal(size=(count, means.shape[1]))
        if there:
            seen += means[rng.choice(len(means), size=count, p=weights)]
        terms = np.exp(seen @ means.T - np.sum(means**2, axis=1) / 2) @ weights
        ratio = 1 / terms if there else terms
        best = max(best, np.mean(np.maximum(0, 1 - np.exp(epsilon) * ratio)))
    return best, 5 * math.sqrt(best / count)


@pytest.mark.slow(reason="draws for one more matrix", ids=["coefs1"])
@pytest.mark.parametrize("coefs", [BANDS, SIGNS, (1.0, 0.2, 0.9)])
def test_no_vectors_of_a_unit_show_more_than_is_certified(coefs):
    """Directions that turn, signs that follow C's, units that stay silent in some rounds."""
    rounds, cycle, noise, epsilon = 6, 2, 1.2, 0.5
    patterns = np.array([(np.arange(rounds) % cycle == i).astype(float) for i in range(cycle)])
    certified = drawn(bins(coefs, rounds, cycle, noise), epsilon, seed=3)[2]
    rng = np.random.default_rng(0)
    angles = [np.zeros(rounds), np.pi * np.arange(rounds), np.pi * (np.arange(rounds) // 2)]
    angles += [rng.uniform(0, 2 * np.pi, rounds) for _ in range(3)]
    for number, angle in enumerate(angles):
        vectors = np.stack([np.cos(angle), np.sin(angle)], axis=1)
        found, error = attacked(coefs, patterns, np.full(2, 0.5), vectors, epsilon, noise, number)
        assert found - error <= certified
    if coefs == BANDS:  # attained by equal vectors
        found, error = attacked(
            coefs, patterns, np.full(2, 0.5), np.eye(2)[np.zeros(rounds, int)], epsilon, noise, 7
        )
        assert found + error >= certified * 0.9


@pytest.mark.parametrize("method", ["gdp", "pld", "auto"])
def test_who_takes_bins_and_coins_for_known_bounds_epsilon_from_above_alone(method):
    """Draws prove less than what would be exact, were a unit's rounds known."""
    dealt = claim(bins(BANDS, 12, 4, noise=3.0))
    coins = events.SampledCorrelatedGaussian(3.0, "banded", BANDS, 12, 4, "cyclic_poisson", 0.3)
    proved = monte_carlo.epsilon(
        dealt, delta=1e-2, num_samples=20_000, rng=np.random.default_rng(0)
    ).value
    found = accounting.spent(dealt, delta=1e-2, method=method)
    assert found.epsilon_lower == 0 and proved < found.epsilon_upper
    assert "exact" not in found.reason
    for event in (dealt.repeat(2), claim(coins)):
        assert accounting.spent(event, delta=1e-2, method=method).epsilon_lower == 0
        assert accounting.spent(event, epsilon=0.5, method=method).delta_lower == 0
    # One bin holds everybody, and a coin of chance 1 lets in whose turn it is.
    sure = events.SampledCorrelatedGaussian(3.0, "banded", BANDS, 12, 4, "cyclic_poisson")
    for known in (bins(BANDS, 12, 1, noise=3.0), sure):
        found = accounting.spent(claim(known), delta=1e-2, method=method)
        assert found.epsilon_lower == found.epsilon_upper > 0


def test_a_sampled_part_beside_bins_leaves_no_lower_bound():
    parts = (bins(BANDS, 12, 4, noise=3.0), events.PoissonSampled(0.1, events.Gaussian(1.0)))
    found = accounting.spent(claim(events.Composed(parts)), delta=1e-2, method="pld")
    assert found.epsilon_lower == 0 < found.epsilon_upper


def test_what_cannot_be_drawn_is_refused():
    how = {"delta": 1e-2, "num_samples": 10, "rng": np.random.default_rng(0)}
    for mechanism, relation in (
        (events.Laplace(1.0), "ADD_OR_REMOVE_ONE"),
        (events.RandomAllocation(40, 10, 1.0), "ADD_OR_REMOVE_ONE"),
        (bins(BANDS, 8, 5000), "ADD_OR_REMOVE_ONE"),
        (bins(BANDS, 8, 2), "REPLACE_ONE"),
        (
            events.SampledCorrelatedGaussian(1.0, "tree", (), 40, 2, "cyclic_poisson", 0.5),
            "ADD_OR_REMOVE_ONE",
        ),
    ):
        with pytest.raises(UnsupportedEventError, match="Expected"):
            monte_carlo.epsilon(claim(mechanism, relation), **how)


def test_without_noise_or_with_few_draws_nothing_is_proved():
    how = {"num_samples": 100, "rng": np.random.default_rng(0)}
    for noise in (0.0, 1.0):
        found = monte_carlo.epsilon(claim(bins(BANDS, 6, 3, noise)), delta=1e-3, **how)
        assert found.value == math.inf


@pytest.mark.parametrize(
    "changes",
    [
        {"delta": 0.0},
        {"delta": 1.0},
        {"delta": math.nan},
        {"num_samples": 0},
        {"num_samples": 1.5},
        {"failure_prob": 0.0},
        {"failure_prob": 1e-2},
        {"failure_prob": math.nan},
    ],
)
def test_numbers_out_of_range_are_refused(changes):
    good = {"delta": 1e-2, "num_samples": 10, "rng": np.random.default_rng(0)}
    with pytest.raises(ValueError, match="Expected"):
        monte_carlo.epsilon(claim(bins(BANDS, 6, 3)), **good | changes)
    for arguments in ((math.nan, 10, 0.1), (0.5, 0, 0.1), (0.5, 10, 0.0), (1.5, 10, 0.1)):
        with pytest.raises(ValueError, match="Expected"):
            monte_carlo.upper_mean(*arguments)
    with pytest.raises(ValueError, match="Expected epsilon"):
        monte_carlo.delta(
            claim(bins(BANDS, 6, 3)),
            epsilon=-1.0,
            num_samples=10,
            rng=np.random.default_rng(0),
            failure_prob=0.1,
        )
