"""Audits of mechanisms whose epsilon is known: close to it, and above it no more often than their
confidence allows.
"""

import numpy as np
import pytest
from scipy import optimize, special, stats

from fljax.accounting import gaussian
from fljax.attacks import audit, metrics, one_run

TRIALS = 10_000
REPEATS = 400


def gaussian_runs(mu, noise=1.0, seed=0, repeats=REPEATS, trials=TRIALS):
    """(present, absent): `repeats` audits of a Gaussian mechanism that claims `mu`, its noise
    scaled by `noise`.
    """
    rng = np.random.default_rng([seed, round(100 * mu), round(100 * noise)])
    absent, present = rng.normal(scale=noise, size=(2, repeats, trials))
    return present + mu, absent


@pytest.mark.slow(reason="tries one more separation", but=["2.0"])
@pytest.mark.parametrize("mu", [1.0, 2.0, 4.0])
def test_gaussian_audits_reach_80_percent_and_are_rarely_above_the_truth(mu):
    confidence, delta = 0.95, 1e-5
    found = audit.two_worlds(*gaussian_runs(mu), delta=delta, confidence=confidence)
    exact = float(gaussian.mu_to_epsilon(mu, delta))
    assert np.quantile(found.gdp_epsilon, 0.05) > 0.8 * exact
    # The number of audits that are wrong is at most binomial(REPEATS, 1 - confidence).
    allowed = stats.binom.ppf(1 - 1e-6, REPEATS, 1 - confidence)
    assert (found.mu > mu).sum() <= allowed and (found.epsilon > exact).sum() <= allowed
    # Control: against a truth a little smaller than it is, the same check fails.
    assert (found.mu > 0.85 * mu).mean() > 0.9


@pytest.mark.slow(reason="tries one more separation", but=["2.0-0.1"])
@pytest.mark.parametrize(("mu", "delta"), [(1.0, 0.05), (2.0, 0.1)])
def test_clopper_pearson_reaches_80_percent_where_rates_can_be_counted(mu, delta):
    found = audit.two_worlds(*gaussian_runs(mu, seed=1), delta=delta)
    exact = float(gaussian.mu_to_epsilon(mu, delta))
    assert np.median(found.epsilon) > 0.8 * exact
    assert (found.epsilon > exact).sum() <= stats.binom.ppf(1 - 1e-6, REPEATS, 0.05)


def test_half_the_noise_is_caught_every_time():
    claimed = float(gaussian.mu_to_epsilon(1.0, 0.05))
    found = audit.two_worlds(*gaussian_runs(1.0, noise=0.5, seed=2, repeats=50), delta=0.05)
    assert (found.epsilon > claimed).all() and (found.mu > 1.5).all()


def test_worlds_that_are_the_same_give_nothing_and_order_does_not_matter():
    present, absent = gaussian_runs(0.0, seed=3, repeats=REPEATS)
    found = audit.two_worlds(present, absent, delta=1e-5)
    assert (found.mu > 0).sum() <= stats.binom.ppf(1 - 1e-6, REPEATS, 0.05)
    # Scores may say little about presence and all about absence: the opposite test is tried as
    # well.
    mu = 1.0
    present, absent = gaussian_runs(mu, seed=4, repeats=20)
    there, back = (
        audit.two_worlds(*pair, delta=0.05) for pair in ((present, absent), (-absent, -present))
    )
    np.testing.assert_allclose(np.median(back.epsilon), np.median(there.epsilon), rtol=0.1)


# Medians over seeds 0 to 7 of what jax_privacy 2.0's CanaryScoreAuditor reports of these scores at
# 95 %: epsilon by all thresholds (two sides), by a split, by a named threshold of 1.5; by GDP. Its
# correction for all thresholds counts those that the same scores have left on a hull, so that its
# confidence is not proved; ours is.
JAX_PRIVACY = {
    (1.0, 1000, 600, 0.05): (0.9162, 0.6921, 0.9605, 1.1282),
    (2.0, 1000, 1000, 1e-5): (3.2596, 2.6421, 2.0559, 8.8137),
    (1.0, 5000, 5000, 0.05): (1.2390, 1.1714, 1.2096, 1.3258),
    (2.0, 300, 3000, 0.01): (3.2683, 2.9324, 2.1312, 5.0980),
}


@pytest.mark.parametrize("case", JAX_PRIVACY, ids=str)
def test_unequal_numbers_of_scores_prove_what_jax_privacys_auditor_says_of_them_and_more(case):
    mu, present, absent, delta = case
    found = []
    for seed in range(8):
        rng = np.random.default_rng([seed, round(10 * mu), present, absent])
        scores = rng.normal(size=present) + mu, rng.normal(size=absent)
        chosen = audit.two_worlds(*scores, delta=delta)
        named = audit.two_worlds(*scores, delta=delta, threshold=1.5)
        assert named.trials == (present, absent)
        assert chosen.trials == (present * 9 // 10, absent * 9 // 10)
        found.append([chosen.epsilon, chosen.epsilon, named.epsilon, chosen.gdp_epsilon])
    ours, theirs = np.median(found, axis=0), JAX_PRIVACY[case]
    assert (ours[:2] > theirs[:2]).all() and ours[3] > 0.985 * theirs[3]
    assert ours[2] == pytest.approx(theirs[2], abs=1e-4)  # the same bound, to their digits


@pytest.mark.parametrize(
    ("mu", "canaries", "theirs"), [(1.0, 1000, (0.9826, 1.3085)), (2.0, 2000, (2.6167, 4.7268))]
)
def test_one_run_proves_more_than_jax_privacys_auditor_says_of_the_same_canaries(
    mu, canaries, theirs
):
    """Theirs: median of seeds 0 to 3, its bound by epsilon and delta, and the better of two by GDP.
    It guesses who was in, and never who was out.
    """
    found = []
    for seed in range(4):
        rng = np.random.default_rng([seed, round(10 * mu), canaries])
        included = rng.integers(0, 2, canaries).astype(bool)
        one = one_run.audit(rng.normal(size=canaries) + mu * included, included, delta=1e-5)
        found.append([one.epsilon, one.gdp_epsilon])
    assert (np.median(found, axis=0) > 1.1 * np.asarray(theirs)).all()


def test_scores_that_are_not_normal_choose_a_threshold_by_counting():
    """Randomised response, whose scores are bits; and a tail that a normal would not have."""
    rng, confidence = np.random.default_rng(8), 0.95
    told = [rng.random((100, 4000)) < rate for rate in (0.75, 0.25)]
    found = audit.two_worlds(*told, delta=0.0, confidence=confidence)
    assert np.median(found.epsilon) > 0.9 * np.log(3)
    allowed = stats.binom.ppf(1 - 1e-6, 100, 1 - confidence)
    assert (found.epsilon > np.log(3)).sum() <= allowed
    present, absent = rng.normal(size=(2, 100, 4000))
    present = np.where(rng.random(present.shape) < 0.2, 1e30, present)  # seen one time in five
    found = audit.two_worlds(present, absent, delta=0.0, confidence=confidence)
    # Few scores choose, so that a threshold is not always above all but the tail.
    assert np.median(found.epsilon) > 3


def test_of_a_mixture_that_looks_normal_the_wider_worlds_tail_is_counted():
    """A unit that half the runs sample, and the same with the worlds and scores turned round."""
    rng = np.random.default_rng(9)
    present, absent = rng.normal(size=(2, 40, 20_000))
    present = present + 1.2 * (rng.random(present.shape) < 0.5)
    # By quadrature: the largest log((TPR - delta) / FPR) over thresholds, either side of the test.
    at, delta = np.linspace(-2, 4, 600), 0.05
    above = [(special.ndtr(1.2 - at) + special.ndtr(-at)) / 2, special.ndtr(-at)]
    high = np.log(np.maximum(above[0] - delta, 1e-9) / above[1]).max()
    low = np.log(np.maximum(1 - above[1] - delta, 1e-9) / (1 - above[0])).max()
    assert low < 0.6 * high
    for worlds in ((present, absent), (-absent, -present)):
        found = audit.two_worlds(*worlds, delta=delta, confidence=0.95).epsilon
        assert found.min() > low and np.median(found) > 0.75 * high


def test_a_bootstrap_is_as_wide_as_the_statistic_scatters_and_holds_the_truth():
    draw = lambda rng: (rng.normal(size=400) + 1, rng.normal(size=200))
    truth = stats.norm.cdf(1 / np.sqrt(2))
    rng, hits, widths, found = np.random.default_rng(9), 0, [], []
    for seed in range(40):
        scores = draw(np.random.default_rng(seed))
        low, high = audit.bootstrap(metrics.auc, *scores, rng, num_resamples=200)
        hits += low <= truth <= high
        widths.append(high - low)
        found.append(metrics.auc(*scores))
    assert hits >= stats.binom.ppf(1e-3, 40, 0.95)
    assert np.mean(widths) == pytest.approx(2 * 1.96 * np.std(found), rel=0.35)
    # The peer's, of the same statistic on the same scores, is (0.747, 0.792) about a hull's area,
    # which is 0.006 above the scores' own.
    rng = np.random.default_rng([0, 10, 1000, 600])
    scores = rng.normal(size=1000) + 1, rng.normal(size=600)
    low, high = audit.bootstrap(metrics.auc, *scores, np.random.default_rng(0))
    assert low == pytest.approx(0.741, abs=0.004) and high == pytest.approx(0.789, abs=0.004)


def test_clopper_pearson_is_the_inverse_of_the_binomial():
    low, high = audit.clopper_pearson(np.asarray([0, 3, 10]), 10, 0.01)
    assert low[0] == 0.0 and high[2] == 1.0
    np.testing.assert_allclose(stats.binom.sf(2, 10, low[1]), 0.01, rtol=1e-9)
    np.testing.assert_allclose(stats.binom.cdf(3, 10, high[1]), 0.01, rtol=1e-9)
    np.testing.assert_allclose((1 - high[0]) ** 10, 0.01, rtol=1e-9)


def test_likelihood_ratio_of_a_joint_view_has_the_mu_of_its_mahalanobis_distance():
    rng = np.random.default_rng(5)
    root, shift = rng.normal(size=(6, 6)), rng.normal(size=6)
    covariance = root @ root.T + np.eye(6)
    direction, mu = audit.directions(covariance, shift)
    assert mu**2 == pytest.approx(shift @ np.linalg.inv(covariance) @ shift)
    views = rng.multivariate_normal(np.zeros(6), covariance, size=2 * TRIALS)
    absent, present = views[:TRIALS], views[TRIALS:] + shift
    found = audit.two_worlds(present @ direction, absent @ direction, delta=1e-5)
    assert 0.85 * mu < found.mu < mu
    one = audit.two_worlds(present[:, 0] * shift[0], absent[:, 0] * shift[0], delta=1e-5)
    assert one.mu < 0.7 * mu  # one coordinate is not the view


@pytest.mark.slow(reason="tries one more separation", but=["2.0"])
@pytest.mark.parametrize("mu", [1.0, 2.0])
def test_one_run_bounds_are_rarely_above_the_truth_and_say_something(mu):
    rng, repeats, canaries = np.random.default_rng(6), 60, 500
    included = rng.integers(0, 2, (repeats, canaries)).astype(bool)
    scores = rng.normal(size=(repeats, canaries)) + mu * included
    found = [one_run.audit(s, i, delta=1e-5) for s, i in zip(scores, included, strict=True)]
    exact = float(gaussian.mu_to_epsilon(mu, 1e-5))
    assert sum(f.mu > mu or f.epsilon > exact for f in found) <= stats.binom.ppf(
        1 - 1e-6, repeats, 0.05
    )
    # The refinement is what it is for: well above the bound that knows epsilon and delta alone.
    assert np.median([f.mu for f in found]) > 0.4 * mu
    assert np.median([f.gdp_epsilon for f in found]) > 1.2 * np.median([f.epsilon for f in found])


def test_one_run_of_10_000_canaries_reaches_what_the_method_can():
    mu, found, single = 1.0, [], []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        included = rng.integers(0, 2, TRIALS).astype(bool)
        scores = rng.normal(size=TRIALS) + mu * included
        found.append(one_run.audit(scores, included, delta=1e-5).gdp_epsilon)
        single.append(one_run.audit(scores, included, delta=1e-5, shares=[0.05]).gdp_epsilon)
    # No audit of one run could reach 80 % (the next test).
    assert 0.58 * 4.377 < np.median(found) < 4.377 and 0.62 * 4.377 < np.median(single) < 4.377
    # Control: half the noise is caught.
    broken = one_run.audit(0.5 * rng.normal(size=TRIALS) + mu * included, included, delta=1e-5)
    assert broken.gdp_epsilon > 4.377


# Where a leaky run's log-odds bend, in epsilons, and their slope from there.
SHARE, SLOPE = 0.52, 0.7


def leaky(mu, bend):
    """Log-odds of a leaky run as a function of the score z: those of the mu-Gaussian pair, bent at
    +-bend.
    """
    return lambda z: np.sign(z) * np.minimum(np.abs(mu * z), bend + SLOPE * (np.abs(mu * z) - bend))


@pytest.mark.slow(reason="tries one more separation", but=["1.0"])
@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0])
def test_no_audit_of_one_run_whatever_it_looks_at_could_reach_80_percent(mu):
    """A mechanism of 79 % of the epsilon would be rejected in over 5 % of its runs by any audit
    that reports more.

    With a chance it makes a leaky run (scores like the Gaussian mechanism's, each coin right with
    bent log-odds), else one that says nothing. Its curve is chance times a leaky run's. Leaky and
    honest runs of 10,000 canaries are so alike that an event of half the honest runs (that an audit
    reports more than 79 %) has too many leaky ones.
    """
    exact = float(gaussian.mu_to_epsilon(mu, 1e-5))
    less = optimize.brentq(
        lambda m: float(gaussian.mu_to_epsilon(m, 1e-5)) - 0.79 * exact, 0.1 * mu, mu
    )
    bent = leaky(mu, SHARE * exact)
    z, step = np.linspace(-12, 12, 3_001, retstep=True)
    weight = step * (stats.norm.pdf(z - mu / 2) + stats.norm.pdf(z + mu / 2)) / 2
    # The leaky pair's hockey sticks, and the chance of such runs that keeps them under those of
    # less-GDP.
    epsilons = np.linspace(0, 0.95 * bent(z).max(), 400)
    right, wrong = 2 * weight * special.expit(bent(z)), 2 * weight * special.expit(-bent(z))
    sticks = np.array([np.maximum(right - np.exp(e) * wrong, 0).sum() for e in epsilons])
    allowed = np.asarray(gaussian.mu_to_delta(less, epsilons))
    seen = (
        sticks > 1e-14
    )  # below it rounding decides, and the leaky tail, of the slope, falls faster than allowed
    assert SLOPE * mu < less and epsilons[seen][-1] > exact
    chance = np.min(allowed[seen] / sticks[seen])
    # Neyman and Pearson: the least of leaky runs is in the half of honest ones with the largest
    # ratio honest / leaky.
    ratio = np.concatenate(
        [special.log_expit(c * mu * z) - special.log_expit(c * bent(z)) for c in (-1, 1)]
    )

    def law(odds):
        """Standard deviation and survival function of the sum of 10,000 log ratios, by its
        characteristic function.
        """
        prob = np.concatenate([weight * special.expit(c * odds) for c in (-1, 1)])
        prob, here = prob[ratio != 0], ratio[ratio != 0]
        frequency = np.arange(0.05, 250, 0.1)
        one = 1 + np.array([(prob * np.expm1(1j * t * here)).sum() for t in frequency])
        transform = np.exp(TRIALS * np.log(one))
        assert np.abs(transform[-1]) < 1e-2  # over 250, what is cut off does not matter

        def sf(x):  # Gil-Pelaez, by the midpoint rule
            return 0.5 + 0.1 / np.pi * np.sum(
                np.imag(np.exp(-1j * frequency * x) * transform) / frequency
            )

        return np.sqrt(TRIALS * (prob * here**2).sum()), sf

    (plain_stddev, plain), (leaky_stddev, leaking) = law(mu * z), law(bent(z))
    median = optimize.brentq(lambda x: plain(x) - 0.5, -2, 2)
    # As docs/explain/attacks.md says.
    assert 0.15 < chance < 0.3 and 0.25 < plain_stddev < leaky_stddev < 0.75
    assert chance * leaking(median) > 0.053


def test_equal_scores_prove_nothing_in_one_run_whatever_their_order():
    for included in (np.arange(1000) < 500, np.arange(1000) >= 500):
        found = one_run.audit(np.zeros(1000), included, delta=1e-5)
        assert found.epsilon == found.mu == found.correct == 0
        # Some scores tell, and are counted: 100 of each kind.
        scores = np.where(np.arange(1000) % 5 == 0, 2.0 * included - 1, 0.0)
        some = one_run.audit(scores, included, delta=1e-5)
        assert some.guesses == some.correct == 200 and some.epsilon > 2


@pytest.mark.parametrize("canaries", [2, 3, 7])
def test_one_share_of_all_canaries_guesses_about_as_many_as_go_in_pairs(canaries):
    included = np.arange(canaries) % 2 == 0
    assert (
        one_run.audit(np.where(included, 1.0, -1.0), included, delta=0.0, shares=[1.0]).guesses
        == canaries // 2 * 2
    )


@pytest.mark.parametrize(
    "curve",
    [
        ([0.0, 0.5], [1.0, -0.1]),
        ([0.0, 0.5], [1.5, 0.1]),
        ([0.0, 0.5], [np.nan, 0.1]),
        ([0.0, 1.5], [1.0, 0.0]),
        ([0.1, 0.5], [0.9, 0.5]),
        ([0.0, 0.5], [1.0]),
    ],
)
def test_a_curve_that_is_none_is_refused(curve):
    with pytest.raises(ValueError, match="curve"):
        one_run.audit(np.arange(4.0), [True, False, True, True], delta=1e-5, curve=curve)


def test_one_run_bound_is_tight_for_randomised_response():
    # Each coin is told with a lie of chance 1 / (1 + e^epsilon): the number of right guesses is
    # binomial.
    epsilon, guesses, correct = 1.5, 50, 44
    exact = stats.binom.sf(correct - 1, guesses, 1 / (1 + np.exp(-epsilon)))
    p = one_run.p_value(canaries=80, guesses=guesses, correct=correct, epsilon=epsilon, delta=0.0)
    assert float(p) == pytest.approx(exact)
    lower = one_run.epsilon_lower(
        canaries=80, guesses=guesses, correct=correct, delta=0.0, confidence=0.95
    )
    assert stats.binom.sf(correct - 1, guesses, 1 / (1 + np.exp(-lower))) == pytest.approx(
        0.05, rel=1e-3
    )


def test_delta_can_reveal_one_canary_in_so_many():
    # With chance delta a mechanism tells everything: the bound must allow for at least that.
    p = one_run.p_value(canaries=20, guesses=20, correct=20, epsilon=0.0, delta=0.01)
    assert 0.01 <= float(p) <= 1.0 and float(p) > 2.0**-20


@pytest.mark.parametrize(("canaries", "guesses", "correct"), [(12, 12, 10), (40, 20, 17)])
def test_one_run_mu_is_where_the_linear_program_says(canaries, guesses, correct):
    confidence = 0.95
    mu = one_run.mu_lower(
        canaries=canaries, guesses=guesses, correct=correct, confidence=confidence
    )
    # Maximise P(at least `correct`) over laws p_0 .. p_g, with the concave curve as the least of
    # its tangents.
    at = stats.norm.cdf(np.linspace(-7, 7, 2001))
    value = stats.norm.cdf(stats.norm.ppf(at) + mu)
    slope = stats.norm.pdf(stats.norm.ppf(at) + mu) / stats.norm.pdf(stats.norm.ppf(at))
    j = np.arange(guesses + 1)
    rows, limits = [], []
    for i in range(1, correct + 1):
        right, wrong = (j >= i) * j / canaries, (j >= i - 1) * (guesses - j) / canaries
        rows.append(right[None] - slope[:, None] * wrong[None])
        limits.append(value - slope * at)
    best = optimize.linprog(
        -(j >= correct).astype(float),
        A_ub=np.concatenate(rows),
        b_ub=np.concatenate(limits),
        A_eq=np.ones((1, guesses + 1)),
        b_eq=[1.0],
    )
    assert -best.fun == pytest.approx(1 - confidence, rel=5e-3)


def test_bad_arguments_raise_in_one_line():
    good = np.zeros(16)
    for call, text in (
        (lambda: audit.two_worlds(good, good[:4], delta=0.1), "n, m >= 8"),
        (lambda: audit.two_worlds(good[:4], good, delta=0.1), "n, m >= 8"),
        (lambda: audit.two_worlds(good + np.nan, good, delta=0.1), "without NaN"),
        (lambda: audit.two_worlds(good, good, delta=1.0), "delta in"),
        (lambda: audit.two_worlds(good, good, delta=0.1, threshold=np.nan), "threshold"),
        (
            lambda: audit.bootstrap(metrics.auc, good, good[:0], np.random.default_rng(0)),
            "one score at least",
        ),
        (
            lambda: audit.bootstrap(
                metrics.auc, good, good, np.random.default_rng(0), num_resamples=9
            ),
            "num_resamples",
        ),
        (
            lambda: audit.bootstrap(
                metrics.auc, good, good, np.random.default_rng(0), confidence=0.999
            ),
            r"confidence\) / 2 \* num_resamples >= 1.*confidence=0.999 and num_resamples=1000",
        ),
        (lambda: audit.two_worlds(good, good, delta=0.1, confidence=1.0), "confidence in"),
        (lambda: audit.clopper_pearson(3, 2, 0.1), "successes <= trials"),
        (lambda: audit.directions(np.eye(2), np.ones(3)), r"shift \[d\]"),
        (lambda: audit.directions(-np.eye(2), np.ones(2)), "positive definite"),
        (lambda: one_run.audit(good, good[:3] > 0, delta=0.1), "included"),
        (lambda: one_run.audit(good, good > 0, delta=0.1, shares=()), "shares"),
        (lambda: one_run.audit(good, good > 0, delta=0.1, shares=[1.5]), "shares"),
        (
            lambda: one_run.p_value(canaries=3, guesses=4, correct=1, epsilon=1.0, delta=0.0),
            "guesses <= canaries",
        ),
        (
            lambda: one_run.epsilon_lower(
                canaries=4, guesses=4, correct=1, delta=1.0, confidence=0.9
            ),
            "delta in",
        ),
    ):
        with pytest.raises(ValueError, match=text):
            call()
