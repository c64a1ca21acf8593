"""One unit of a Poisson sample replaced: Renyi bounds against quadrature of 40 digits, against the
privacy losses, and against all neighbours of small data sets.
"""

import collections
import itertools
import math

import mpmath
import numpy as np
import pytest

from fljax import accounting, errors
from fljax.accounting import events
from fljax.accounting.renyi import rdp, replaced_unit
from fljax.accounting.renyi_of_mechanism import curve

REPLACE = events.NeighboringRelation.REPLACE_ONE


def claim(mechanism):
    return accounting.PrivacyEvent(
        mechanism=mechanism, privacy_unit="client", neighboring_relation=REPLACE
    )


def divergence(p, q, order):
    """Of mixtures of normals of stddev 1, lists of (weight, mean), by the trapezoid rule, which for
    functions as smooth as these errs by less than e^-60.
    """
    with mpmath.workdps(40):
        a, most = mpmath.mpf(order), max(abs(m) for _, m in [*p, *q])
        step, reach = mpmath.mpf(1) / (20 * max(1, math.ceil(most))), 2 * order * most + 13

        def density(parts, z):
            return mpmath.fsum(w * mpmath.exp(-((z - m) ** 2) / 2) for w, m in parts)

        # 1 - q is rounded in floats: weights that add up to 1 again
        whole = [mpmath.fsum(w for w, _ in law) for law in (p, q)]
        p, q = (
            [(w / sum_, mpmath.mpf(m)) for w, m in law]
            for law, sum_ in zip((p, q), whole, strict=True)
        )
        count = int(reach / step)
        nodes = [k * step for k in range(-count, count + 1)]
        total = mpmath.fsum(density(p, z) ** a * density(q, z) ** (1 - a) for z in nodes)
        return float(mpmath.log(total * step / mpmath.sqrt(2 * mpmath.pi)) / (a - 1))


@pytest.mark.parametrize(
    ("prob", "shift"), [(0.01, 0.5), (0.3, 1.0), (0.9, 2.0), (1e-4, 0.05), (1 - 1e-9, 0.7)]
)
@pytest.mark.parametrize("order", [1.01, 2.0, 4.5, 32.0])
def test_the_worst_pair_is_bounded_from_above_and_within_a_millionth(prob, shift, order):
    p = [(1 - prob, 0.0), (prob, shift)]
    q = [(1 - prob, 0.0), (prob, -shift)]
    truth = divergence(p, q, order)
    found = float(replaced_unit.curve(np.array([order]), prob, shift)[0])
    assert truth <= found * (1 + 1e-14) and found <= truth * (1 + 1e-6)
    # The control: what a unit that is added costs is less than what one replaced does.
    added = float(rdp.poisson_gaussian(1 / shift, prob, (order,))[0])
    assert added < truth


@pytest.mark.parametrize("moves", [(1.0, 0.0), (1.0, 0.5), (1.0, -0.5), (0.3, -1.0)])
def test_no_other_exchange_costs_more(moves):
    prob, shift, order = 0.2, 1.5, 3.0
    p, q = ([(1 - prob, 0.0), (prob, shift * m)] for m in moves)
    bound = replaced_unit.curve(np.array([order]), prob, shift)[0]
    assert divergence(p, q, order) <= bound
    assert divergence(q, p, order) <= bound


def test_far_orders_and_samples_of_nearly_all_cost_no_more_than_without_sampling():
    orders = np.array([1.5, 64.0, 4096.0, 16384.0])
    unsampled = orders * 2 * 0.7**2
    assert np.all(replaced_unit.curve(orders, 0.5, 0.7) <= unsampled)
    np.testing.assert_allclose(replaced_unit.curve(orders, 1.0, 0.7), unsampled, rtol=1e-14)
    assert np.all(replaced_unit.curve(orders, 1 - 1e-15, 0.7) <= unsampled)
    assert not replaced_unit.curve(orders, 0.0, 0.7).any()
    tiny = replaced_unit.curve(np.array([2.0]), 1e-9, 1.0)  # e q^2 (A - B)^2 / 2 and its like
    assert tiny[0] == pytest.approx(1e-18 * (math.e - math.exp(-1)), rel=1e-4)


@pytest.mark.parametrize(("prob", "noise", "rounds"), [(0.05, 1.0, 200), (0.5, 4.0, 20)])
def test_epsilon_is_above_that_of_the_privacy_losses_and_near_it(prob, noise, rounds):
    event = claim(events.PoissonSampled(prob, events.Gaussian(noise))).repeat(rounds)
    losses = accounting.epsilon(event, delta=1e-5, method="pld")
    renyi = accounting.epsilon(event, delta=1e-5, method="rdp")
    assert losses <= renyi <= 1.2 * losses


def samples(values, prob, most, noise):
    """Law of the sum / noise of a Poisson sample of the units, cut to `most`, as (chance, mean)."""
    law = collections.Counter()
    units = range(len(values))
    for size in range(len(values) + 1):
        chance = prob**size * (1 - prob) ** (len(values) - size)
        for chosen in itertools.combinations(units, size):
            kept = list(itertools.combinations(chosen, min(size, most)))
            for some in kept:
                law[sum(values[i] for i in some) / noise] += chance / len(kept)
    return [(weight, mean) for mean, weight in law.items()]


@pytest.mark.slow(reason="goes over all samples, at a fine grid", but=["0.6-1-2.0"])
@pytest.mark.parametrize(("prob", "most", "noise"), [(0.3, 2, 1.0), (0.6, 1, 2.0), (0.2, 3, 0.7)])
def test_cut_samples_cost_no_neighbours_more_than_the_bound(prob, most, noise):
    order, population = 2.5, 3
    event = events.TruncatedPoissonGaussian(population, prob, most, noise)
    bound = float(curve(event, REPLACE, (order,))[0])
    found = []
    for others in ((1.0, 1.0), (1.0, -1.0), (0.0, 0.0)):
        laws = [samples((unit, *others), prob, most, noise) for unit in (1.0, -1.0)]
        found.append(divergence(*laws, order))
        found.append(divergence(*laws[::-1], order))
    assert max(found) <= bound
    special = events.NeighboringRelation.REPLACE_SPECIAL
    null = float(curve(event, special, (order,))[0])
    for others in ((1.0, 1.0), (1.0, -1.0)):
        laws = [samples((unit, *others), prob, most, noise) for unit in (1.0, 0.0)]
        assert divergence(*laws, order) <= null
    # The control: the least noise for which the bound holds is not far below.
    quieter = events.TruncatedPoissonGaussian(population, prob, most, 4 * noise)
    assert float(curve(quieter, REPLACE, (order,))[0]) < max(found)


@pytest.mark.parametrize(("prob", "most", "noise"), [(0.5, 1, 1.0), (0.7, 2, 1.2), (0.9, 1, 0.7)])
def test_a_unit_that_leaves_a_cut_sample_tells_no_more_than_the_larger_population_says(
    prob, most, noise
):
    """It leaves its place to another, who may move the sum to where nobody did."""
    x = np.linspace(-16, 16, 6401)

    def density(values):
        parts = samples(values, prob, most, noise)
        return sum(w * np.exp(-((x - m) ** 2) / 2) for w, m in parts) / math.sqrt(2 * math.pi)

    def told(count, epsilon):
        mechanism = events.TruncatedPoissonGaussian(count, prob, most, noise)
        event = accounting.PrivacyEvent(
            mechanism=mechanism,
            privacy_unit="client",
            neighboring_relation="ADD_OR_REMOVE_ONE",
        )
        return accounting.delta(event, epsilon=epsilon, method="pld")

    caught = []
    for epsilon in (0.5, 1.5):
        for count in (most + 1, most + 2):
            worst = 0.0
            for others in itertools.product([-1.0, 0.0, 1.0], repeat=count - 1):
                pair = density((1.0, *others)), density(others)
                for p, q in (pair, pair[::-1]):
                    over = np.maximum(0, p - math.exp(epsilon) * q)
                    worst = max(worst, float(np.sum(over)) * (x[1] - x[0]))
            assert worst <= told(count, epsilon) + 1e-6
            caught.append(worst > told(count - 1, epsilon))
    # The control: with the number of the smaller neighbour it would not hold.
    assert any(caught)


def test_a_sample_with_room_for_all_is_a_plain_one():
    plain = curve(events.PoissonSampled(0.1, events.Gaussian(1.0)), REPLACE, (2.0, 8.0))
    roomy = events.TruncatedPoissonGaussian(100, 0.1, 100, 2.0)
    np.testing.assert_allclose(curve(roomy, REPLACE, (2.0, 8.0)), plain, rtol=1e-12)
    cut = curve(events.TruncatedPoissonGaussian(100, 0.1, 12, 2.0), REPLACE, (2.0, 8.0))
    assert np.all(cut > plain)


def test_cut_samples_cost_what_the_privacy_losses_say_or_little_more():
    event = accounting.PrivacyEvent(
        mechanism=events.TruncatedPoissonGaussian(100, 0.1, 12, 2.0),
        privacy_unit="client",
        neighboring_relation="ADD_OR_REMOVE_ONE",
    ).repeat(20)
    losses, renyi = (accounting.epsilon(event, delta=1e-5, method=m) for m in ("pld", "rdp"))
    assert losses <= renyi <= 1.25 * losses


def test_what_is_no_gaussian_is_refused_by_name():
    for inner in (events.Laplace(1.0), events.MixtureOfGaussians(1.0, (1.0,), (1.0,))):
        with pytest.raises(errors.UnsupportedEventError, match="of Poisson samples"):
            accounting.epsilon(claim(events.PoissonSampled(0.1, inner)), delta=1e-5, method="rdp")


def test_no_noise_costs_everything_and_no_sample_nothing():
    assert math.isinf(curve(events.PoissonSampled(0.1, events.Gaussian(0.0)), REPLACE, (2.0,))[0])
    assert curve(events.PoissonSampled(0.0, events.Gaussian(1.0)), REPLACE, (2.0,))[0] == 0


@pytest.mark.parametrize("relation", list(events.NeighboringRelation))
def test_at_delta_0_a_cut_sample_costs_everything_or_was_never_drawn(relation):
    for mechanism, wanted in (
        (events.TruncatedPoissonGaussian(4, 0.5, 2, 1.0), math.inf),
        (events.TruncatedPoissonGaussian(4, 0.5, 2, 0.0), math.inf),
        (events.TruncatedPoissonGaussian(4, 0.5, 0, 0.0), 0.0),
        (events.TruncatedPoissonGaussian(4, 0.0, 2, 0.0), 0.0),
    ):
        event = accounting.PrivacyEvent(
            mechanism=mechanism, privacy_unit="client", neighboring_relation=relation
        )
        assert accounting.epsilon(event, delta=0.0) == wanted
