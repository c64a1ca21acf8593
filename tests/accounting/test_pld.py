"""Privacy-loss distributions: the interval holds the truth, and is narrow."""

import functools
import json
import math
import pathlib

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy import integrate, interpolate, optimize, stats

from fljax import accounting
from fljax.accounting import events, mixture, pld
from fljax.accounting.pld import discretise, pair_masses, solve
from fljax.errors import UnsupportedEventError


def claim(mechanism, relation="ADD_OR_REMOVE_ONE"):
    return accounting.PrivacyEvent(
        mechanism=mechanism, privacy_unit="client", neighboring_relation=relation
    )


# sampling_prob, noise, steps, delta, epsilon: dp-accounting 0.6.0 with grids of 1e-5 (row 1) and
# 1e-4, whose error is positive and below 5e-5 here but for case B (discretisation 4.8e-4); PRV
# accountant brackets.
GOLDEN = [
    (0.01, 1.0, 10000, 1e-5, 6.18771, (6.17739, 6.19804)),
    (256 / 60000, 1.1, 14062, 1e-5, 2.38160, (2.37146, 2.39174)),
    (4096 / 50000, 3.0, 2000, 1e-5, 5.77427, (5.76397, 5.78457)),
    (1e-3, 0.8, 5000, 1e-6, 0.73363, (0.72, 0.75)),
    (100 / 342477, 0.6, 1500, 1e-6, 0.92633, (0.91, 0.94)),
    (0.005, 0.8, 1000, 1e-6, 2.00411, (1.99392, 2.01430)),
    (0.001, 0.7, 100000, 1e-6, 4.135254, (4.125049, 4.145459)),  # case B
    (0.1, 2.0, 1000, 1e-5, 8.279291, (8.268880, 8.289703)),  # case C
]


def one_by_one(noise, prob, steps, delta, **kwargs):
    """As one call would, but with the programs of single runs: fewer to compile."""
    rows = np.broadcast(noise, prob, steps, delta)
    found = [pld.poisson_gaussian_interval(s, q, int(t), delta=d, **kwargs) for s, q, t, d in rows]
    return np.array(found, np.float64).T


@pytest.mark.release(reason="one more value", ids=["4.135254"])
@pytest.mark.slow(
    reason="compiles distributions of privacy losses, one program a shape",
    ids=["6.18771", "2.3816", "5.77427", "0.73363", "2.00411", "4.135254", "8.279291"],
)
@pytest.mark.parametrize("row", GOLDEN, ids=lambda row: str(row[4]))
def test_epsilon_meets_the_golden_value_to_four_decimals(row):
    q, noise, steps, delta, expected, (least, most) = row
    lower, upper = pld.poisson_gaussian_interval(noise, q, steps, delta=delta, accuracy=4e-5)
    assert upper - lower <= 4e-5 * upper and least <= lower and upper <= most
    # The table carries the peers' discretisation, up to 1e-4 on a grid of 1e-4 (row 4).
    assert lower <= expected + 5e-5 and abs((lower + upper) / 2 - expected) <= 1e-4


def test_the_default_width_is_a_thousandth_also_for_many_at_once():
    q, noise, steps, delta, expected, _ = (np.array(x) for x in zip(*GOLDEN[:3], strict=True))
    lower, upper = pld.poisson_gaussian_interval(noise, q, steps, delta=delta)
    assert np.all(upper - lower <= 1e-3 * upper)
    assert np.all((lower <= expected + 5e-5) & (expected - 1.5e-4 <= upper))


def test_a_width_of_one_in_a_hundred_thousand_can_be_asked_for():
    lower, upper = pld.poisson_gaussian_interval(2.0, 0.1, 1000, delta=1e-5, accuracy=1e-5)
    assert upper - lower <= 1e-5 * upper
    assert lower <= 8.279291 + 1e-6 and 8.279291 - 1e-6 <= upper  # the PRV estimate, case C


ORACLES = np.array(json.loads((pathlib.Path(__file__).parent / "oracles" / "pld.json").read_text()))
NUM_CORNERS = 9
# Their grid and truncation err upward, so that their epsilon is above our lower bound. Not so at
# tiny deltas, where the roundings of an FFT that is not tilted, about 1e-17 at each of 3e5 points,
# reach delta: (noise 0.5027, rate 3.08e-3, 2729 steps, delta 6.8e-12) is 16.089 there, and 16.10 by
# direct convolution of their own pmf.
SOUND_DELTA = 1e-10


@pytest.mark.slow(reason="compiles distributions of privacy losses, one program a shape")
def test_agrees_with_dp_accounting_on_a_random_grid():
    rows = ORACLES[NUM_CORNERS:]
    rows = rows[
        rows[:, 0] >= 2.0
    ]  # with less noise, some need large lattices, each with minutes of compilation
    *arguments, theirs = rows.T
    lower, upper = one_by_one(*arguments)
    assert len(rows) > 80 and np.all(lower <= upper)
    assert np.mean(upper - lower > 1e-3 * upper) <= 0.03
    sound = arguments[3] >= SOUND_DELTA
    assert sound.sum() > 60
    assert np.all(lower[sound] <= theirs[sound] * (1 + 1e-7) + 1e-9)
    assert np.all(upper[sound] <= theirs[sound] * (1 + 1e-3) + 1e-9)
    assert np.all(lower <= theirs * 1.01) and np.all(upper <= theirs * 1.01 + 1e-9)


@pytest.mark.slow(reason="compiles distributions of privacy losses, one program a shape")
def test_agrees_with_dp_accounting_on_all_200_also_with_little_noise():
    """Those with noise below 2 too: some need large lattices, each with its compilation."""
    rows = ORACLES[NUM_CORNERS:]
    *arguments, theirs = rows[rows[:, 0] < 2.0].T
    lower, upper = one_by_one(*arguments, accuracy=1e-2)
    sound = arguments[3] >= SOUND_DELTA
    assert sound.sum() > 40 and np.all(lower <= upper)
    assert np.all(lower[sound] <= theirs[sound] * (1 + 1e-7) + 1e-9)
    assert np.all(upper[sound] <= theirs[sound] * (1 + 1.2e-2) + 1e-9)


@pytest.mark.slow(reason="composes distributions at their extremes")
def test_agrees_with_dp_accounting_in_the_corners():
    """Noise 0.3, rates of 1e-6, a million steps, delta of 1e-12, rate 1."""
    *arguments, theirs = ORACLES[:NUM_CORNERS].T
    lower, upper = one_by_one(*arguments, accuracy=1e-2)
    assert np.all(lower <= upper)
    assert np.all(lower <= theirs * (1 + 1e-7) + 1e-9)
    # At rates of 1e-6 their grid of 1e-4 is wider than the losses: above, nothing can be compared
    # (rows 4 and 5).
    assert np.all(upper <= theirs * 1.01)


@pytest.mark.release(reason="half a minute and more")
@pytest.mark.slow(reason="compiles distributions of privacy losses, one program a shape")
def test_one_step_holds_its_closed_form_at_extremes():
    cases = [
        (0.1, 0.5, 1e-13),
        (0.3, 1 - 1e-12, 1e-9),
        (0.5, 0.999, 1e-15),
        (1.0, 1 - 1e-9, 1e-2),
        (1.23, 1.7e-4, 3.6e-15),
        (3.0, 0.9999, 1e-12),
        (25.0, 8e-8, 1e-14),
        (270.0, 0.0115, 1.9e-10),
        (1000.0, 0.3, 1e-7),
        (1.0, 1e-8, 1e-2),  # more delta than anything can need
    ]
    for noise, prob, delta in cases:
        with mpmath.workdps(60):
            truth = exact_epsilon(mpmath.mpf(noise), mpmath.mpf(prob), mpmath.mpf(delta))
        for accuracy in (1e-2, 1e-4):
            lower, upper = pld.poisson_gaussian_interval(
                noise, prob, 1, delta=delta, accuracy=accuracy
            )
            assert lower <= truth <= upper, (noise, prob, delta, lower, truth, upper)


def exact_epsilon(noise, prob, delta):
    """Root of the closed form of one Poisson-sampled Gaussian, the larger of both directions, in
    mpmath.
    """

    def tail(x):
        return mpmath.erfc(x / mpmath.sqrt(2)) / 2

    def excess(epsilon, remove):
        ratio = (mpmath.exp(epsilon if remove else -epsilon) - (1 - prob)) / prob
        if ratio <= 0:
            return -delta + (mpmath.mpf(0) if not remove else 1 - mpmath.exp(epsilon))
        z = noise * mpmath.log(ratio) + 1 / (2 * noise)
        if remove:
            return (
                (1 - prob) * tail(z)
                + prob * tail(z - 1 / noise)
                - mpmath.exp(epsilon) * tail(z)
                - delta
            )
        below = (1 - prob) * tail(-z) + prob * tail(1 / noise - z)
        return tail(-z) - mpmath.exp(epsilon) * below - delta

    roots = [mpmath.mpf(0)]
    for remove in (True, False):
        low, high = mpmath.mpf(0), mpmath.mpf(512)
        if excess(low, remove) > 0:
            for _ in range(180):
                middle = (low + high) / 2
                low, high = (middle, high) if excess(middle, remove) > 0 else (low, middle)
            roots.append(high)
    return max(roots)


def gaussian_delta(mu, log_ratio):
    """Exact delta of one Gaussian mechanism, and 1 - e^log_ratio below -inf's reach."""
    return stats.norm.sf(log_ratio / mu - mu / 2) - np.exp(log_ratio) * stats.norm.sf(
        log_ratio / mu + mu / 2
    )


def one_step_delta(q, noise, epsilon, remove):
    """Exact hockey-stick divergence at any real epsilon of a Poisson-sampled Gaussian."""
    tau = math.expm1(epsilon if remove else -epsilon) / q + 1
    if remove:
        return q * gaussian_delta(1 / noise, math.log(tau)) if tau > 0 else -math.expm1(epsilon)
    # (Q - e^eps P)_+ : Q > e^eps P where the ratio is below e^-eps; by P's and Q's masses below the
    # cut.
    if tau <= 0:
        return 0.0
    cut = noise * math.log(tau) + 1 / (2 * noise)
    p_below = (1 - q) * stats.norm.cdf(cut) + q * stats.norm.cdf(cut - 1 / noise)
    return stats.norm.cdf(cut) - math.exp(epsilon) * p_below


def composed_delta(q, noise, epsilon, steps, remove):
    """By quadrature over the output of the first step; for three steps over a spline through the
    values of two.
    """
    inner = functools.partial(one_step_delta, q, noise, remove=remove)
    if steps == 1:
        return inner(epsilon)
    if steps == 3:
        grid = np.linspace(epsilon - 8, epsilon + 3, 221)
        inner = interpolate.CubicSpline(
            grid, [composed_delta(q, noise, e, 2, remove) for e in grid]
        )

    def integrand(z):
        ratio = (1 - q) + q * math.exp(z / noise - 0.5 / noise**2)
        density = stats.norm.pdf(z) * (ratio if remove else 1.0)
        loss = math.log(ratio) * (1 if remove else -1)
        return density * inner(epsilon - loss)

    top = 9 + 1 / noise if remove else 9
    return integrate.quad(
        integrand, -9, top, epsabs=1e-12, epsrel=1e-9, limit=200, points=[0, 1 / noise]
    )[0]


@pytest.mark.release(reason="a third of a minute", ids=["0.3-1.0-1.0-3"])
@pytest.mark.slow(
    reason="compiles distributions of privacy losses, one program a shape",
    ids=["0.2-1.0-0.7-1", "0.01-0.5-1.5-1", "0.3-1.0-1.0-3"],
)
@pytest.mark.parametrize(
    ("q", "noise", "epsilon", "steps"),
    [
        (0.2, 1.0, 0.7, 1),
        (0.01, 0.5, 1.5, 1),
        (0.5, 0.8, 2.0, 2),
        (0.1, 1.0, 0.3, 2),
        (0.3, 2.0, 0.05, 2),
        (0.3, 1.0, 1.0, 3),
    ],
)
def test_delta_holds_the_integral_for_few_compositions(q, noise, epsilon, steps):
    truth = max(composed_delta(q, noise, epsilon, steps, remove) for remove in (True, False))
    tolerance = 1e-8 if steps < 3 else 1e-5  # of the quadrature, see composed_delta
    lower, upper = pld.poisson_gaussian_interval(noise, q, steps, epsilon=epsilon)
    assert lower * (1 - tolerance) <= truth <= upper * (1 + tolerance)
    assert upper - lower <= 2e-3 * upper


def test_epsilon_of_one_composition_is_the_root_of_its_closed_form():
    q, noise, delta = 0.05, 0.7, 1e-6
    roots = [
        optimize.brentq(
            lambda e, r=remove: one_step_delta(q, noise, e, r) - delta, 0, 10, xtol=1e-12
        )
        for remove in (True, False)
    ]
    lower, upper = pld.poisson_gaussian_interval(noise, q, 1, delta=delta, accuracy=1e-5)
    assert lower <= max(roots) + 1e-10 and max(roots) - 1e-10 <= upper
    assert upper - lower <= 1e-5 * upper


@pytest.mark.parametrize("delta", [1e-1, 1e-5, 1e-12, 1e-100])
def test_gaussian_compositions_hold_the_exact_value_at_any_delta(delta):
    # Through the FFT, not through the exact formula that `interval` would use.
    from fljax.accounting.pld import of_mechanism, solve

    batch = of_mechanism.batch(
        {of_mechanism.mixture((1.0,), (0.1,)): 300, of_mechanism.mixture((1.0,), (0.4,)): 7}
    )
    mu = math.sqrt(300 * 0.1**2 + 7 * 0.4**2)
    exact = float(accounting.gaussian.mu_to_epsilon(mu, delta))
    lower, upper = solve.solve(
        batch, np.array([math.log(delta)]), for_delta=False, symmetric=True, accuracy=1e-3
    )[0]
    assert lower <= exact * (1 + 1e-12) and exact * (1 - 1e-12) <= upper
    assert upper - lower <= (1e-3 if delta > 1e-50 else 0.1) * upper


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 0.99])
def test_laplace_holds_its_closed_form(epsilon):
    lower, upper = pld.interval(claim(events.Laplace(1.0)), epsilon=epsilon)
    truth = -math.expm1((epsilon - 1) / 2)
    assert lower <= truth * (1 + 1e-12) and truth <= upper * (1 + 1e-12)
    assert upper - lower <= 1e-3 * upper


@pytest.mark.parametrize(
    ("stddev", "sensitivity", "steps"), [(1.0, 1, 1), (3.0, 2, 1), (2.0, 1, 2)]
)
def test_discrete_gaussian_holds_the_sum_over_integers(stddev, sensitivity, steps):
    x = np.arange(-60, 61)
    mass = np.exp(-0.5 * (x / stddev) ** 2)
    mass /= mass.sum()
    loss = sensitivity * (2 * x + sensitivity) / (2 * stddev**2)
    total, weight = loss, mass
    for _ in range(steps - 1):
        total, weight = np.add.outer(total, loss).ravel(), np.multiply.outer(weight, mass).ravel()
    for epsilon in (0.1, 1.0):
        truth = np.sum(weight * np.maximum(-np.expm1(epsilon - total), 0.0))
        event = claim(events.SelfComposed(events.DiscreteGaussian(stddev, sensitivity), steps))
        lower, upper = pld.interval(event, epsilon=epsilon)
        assert lower <= truth * (1 + 1e-9) and truth <= upper * (1 + 1e-9)
        assert upper - lower <= 1e-3 * upper


@pytest.mark.slow(
    reason="lattices of many steps", ids=["0.3-0.9-1000-1e-12", "20.0-0.001-1000000-1e-12"]
)
@pytest.mark.parametrize(
    ("noise", "q", "steps", "delta"),
    [
        (0.3, 0.01, 1, 1e-12),
        (0.3, 0.9, 1000, 1e-12),
        (1.0, 1e-6, 1, 1e-5),
        (50.0, 0.5, 1, 0.9),
        (20.0, 0.001, 10**6, 1e-12),
    ],
)
def test_extremes_give_honest_intervals(noise, q, steps, delta):
    lower, upper = pld.poisson_gaussian_interval(noise, q, steps, delta=delta)
    assert 0 <= lower <= upper < math.inf
    assert upper - lower <= 1e-3 * upper
    rdp = accounting.epsilon(
        claim(events.SelfComposed(events.PoissonSampled(q, events.Gaussian(noise)), steps)),
        delta=delta,
        method="rdp",
    )
    assert lower <= rdp * (1 + 1e-9)


def test_an_extreme_without_sampling_is_that_of_the_closed_form():
    assert pld.poisson_gaussian_interval(0.3, 1.0, 10**6, delta=1e-12)[1] == pytest.approx(
        float(accounting.gaussian.mu_to_epsilon(1e3 / 0.3, 1e-12))
    )


def test_too_little_noise_raises_instead_of_overflowing():
    with pytest.raises(ValueError, match="600"):
        pld.poisson_gaussian_epsilon(0.01, 0.5, 10, 1e-5)


def test_no_noise_and_no_participation():
    assert pld.interval(claim(events.PoissonSampled(0.0, events.Gaussian(1.0))), delta=1e-5) == (
        0.0,
        0.0,
    )
    assert pld.interval(claim(events.PoissonSampled(0.5, events.Gaussian(0.0))), delta=1e-5) == (
        math.inf,
        math.inf,
    )
    assert pld.interval(claim(events.NonPrivate()), epsilon=1.0) == (1.0, 1.0)
    assert pld.interval(claim(events.Composed(())), delta=0.1) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("mechanism", "relation"),
    [
        (events.PoissonSampled(0.1, events.Laplace(1.0)), "REPLACE_ONE"),
        (events.MixtureOfGaussians(1.0, (0.0, 1.0), (0.5, 0.5)), "REPLACE_ONE"),
        (events.PoissonSampled(0.1, events.ZCdp(0.1)), "ADD_OR_REMOVE_ONE"),
        (events.SampledWithoutReplacement(10, 2, events.Gaussian(1.0)), "REPLACE_ONE"),
        (events.ZCdp(0.1), "ADD_OR_REMOVE_ONE"),
        (events.Composed((events.Gaussian(1.0), events.ZCdp(1.0))), "ADD_OR_REMOVE_ONE"),
    ],
)
def test_events_without_a_distribution_raise(mechanism, relation):
    with pytest.raises(UnsupportedEventError):
        pld.interval(claim(mechanism, relation), delta=1e-5)


def test_the_normal_tail_is_as_accurate_as_the_error_bounds_say():
    z = np.concatenate([np.linspace(0, 2, 101), np.linspace(2, 37, 101)])
    with accounting.x64():
        tail, bound = (np.asarray(x) for x in pair_masses._tail(jnp.asarray(z), 0.0))
    mpmath.mp.dps = 40
    truth = [mpmath.erfc(mpmath.mpf(float(x)) / mpmath.sqrt(2)) / 2 for x in z]
    errors = [abs(mpmath.mpf(float(t)) - e) for t, e in zip(tail, truth, strict=True)]
    assert all(error <= limit for error, limit in zip(errors, bound, strict=True))


def test_heterogeneous_composition_equals_repeated_composition():
    part = events.PoissonSampled(0.02, events.Gaussian(1.0))
    almost = events.PoissonSampled(0.02 * (1 + 1e-12), events.Gaussian(1.0))
    apart = claim(events.Composed((events.SelfComposed(part, 70), events.SelfComposed(almost, 30))))
    together = claim(events.SelfComposed(part, 100))
    one, other = (pld.interval(e, delta=1e-5) for e in (apart, together))
    assert max(one[0], other[0]) <= min(one[1], other[1])


def test_global_flags_stay():
    before = jax.config.jax_enable_x64
    pld.poisson_gaussian_epsilon(1.0, 0.2, 1, 1e-5)
    assert jax.config.jax_enable_x64 == before


@pytest.mark.slow(reason="compiles distributions of privacy losses, one program a shape")
def test_a_mixture_of_more_terms_compiles_only_what_sees_its_terms(monkeypatch):
    monkeypatch.setattr(solve, "MOST_ON_HOST", 0)  # one run alone compiles nothing

    def bounds(num_items):
        event = events.PrivacyEvent(
            mechanism=mixture.item_sum(2.0, num_items, 0.01),
            privacy_unit="client",
            neighboring_relation=events.NeighboringRelation.ADD_OR_REMOVE_ONE,
        )
        return pld.interval(event.repeat(100), delta=1e-5)

    long = (solve._found, solve._bracketed, solve._composed)
    first = bounds(3)
    compiled = [fun.program()._cache_size() for fun in long]
    assert any(compiled)
    more = bounds(5)
    assert [fun.program()._cache_size() for fun in long] == compiled
    assert first[1] < more[0] < more[1] < 1.002 * more[0]


def test_the_upper_masses_hold_what_errors_could_have_lost():
    q = jnp.array([0.1, 0.2, 0.3, 0.2, 0.1, 0.1])
    u, zero = q / 2, jnp.zeros(6)
    moved, slack, sign = jnp.float32(0.3), jnp.float32(0.0), jnp.float32(1.0)
    totals = []
    for u_error, q_error in ((zero, zero), (zero + 0.01, zero), (zero, zero + 0.01)):
        cells = pair_masses.Cells(q, u, q_error, u_error, slack, moved)
        masses, infinite = discretise._upper(
            cells, sign, jnp.array([0.0, 0.5]), jnp.float32(0.5), slack
        )
        totals.append(float(masses.sum() + infinite))
    # An atom (u, q) has the mass u + (1 - moved) q.
    assert totals == pytest.approx([0.5 + 0.7, 1.2 + 0.06, 1.2 + 0.7 * 0.06], rel=1e-5)


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_the_rounding_error_of_a_line_counts_the_parts_of_its_slope(sign):
    rho, moved = jnp.array([-0.5, -0.1, 0.2, 3.0]), jnp.float32(0.3)
    line = discretise._line(jnp.float32(sign), rho, moved)
    parts = [np.abs(rho), 0.3] if sign > 0 else [0.3, 0.7 * np.abs(rho)]
    np.testing.assert_allclose(line.size, parts[0] + parts[1], rtol=1e-6)
    assert np.all(line.size >= jnp.abs(line.b))
