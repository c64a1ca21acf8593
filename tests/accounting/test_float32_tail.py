"""The end of float32 normals: where it is, and that its delta is no less than the truth."""

import dataclasses
import itertools
import math

import jax
import mpmath
import numpy as np
import pytest
from scipy import integrate, stats

import fljax_kernels
from fljax import schemes
from fljax.accounting import events, float32_tail


def test_normals_end_where_the_largest_uniform_of_23_bits_does():
    """The largest uniform value is 1 - 3 * 2**-24, the least -1 + 2**-24."""
    above, below = stats.norm.isf(1.5 * 2.0**-24), stats.norm.isf(2.0**-25)
    assert above == pytest.approx(5.2201, abs=2e-4) and below == pytest.approx(5.42, abs=2e-4)
    assert float32_tail.END < above < below
    draws = np.concatenate(
        [
            np.asarray(
                fljax_kernels.add_gaussian_noise(jax.random.key(seed), np.zeros(2**21, "f4"), 1.0)
            )
            for seed in range(4)
        ]
    )
    # Of 2**23 draws some are beyond 5, and none beyond the ends.
    assert 5 < draws.max() <= above + 1e-4 and 5 < -draws.min() <= below + 1e-4


def normal(x, mean):
    """Density of a normal: by hand, for quadrature asks thousands of times."""
    return np.exp(-((x - mean) ** 2) / 2) / math.sqrt(2 * math.pi)


def cut(x, mean):
    """The same, cut off at END on either side."""
    inside = np.abs(x - mean) <= float32_tail.END
    return np.where(inside, normal(x, mean), 0) / (1 - math.erfc(float32_tail.END / math.sqrt(2)))


def divergence(p, q, epsilon, points):
    """Hockey-stick divergence of two densities, by quadrature between neighbouring `points`."""
    return sum(
        integrate.quad(
            lambda x: max(float(p(x) - math.exp(epsilon) * q(x)), 0.0),
            *pair,
            epsabs=1e-16,
            epsrel=1e-10,
            limit=200,
        )[0]
        for pair in itertools.pairwise(sorted(set(points)))
    )


@pytest.mark.parametrize("shift", [0.01, 0.1, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_one_number_never_tells_more_than_delta_and_what_is_added(shift, epsilon):
    """Against the hockey-stick divergence of two normals that are cut off, by quadrature."""
    reach = float32_tail.END
    ends = [-reach, shift - reach, reach, shift + reach]
    crossing = min(epsilon / shift + shift / 2, shift + reach)
    truth = divergence(lambda x: cut(x, shift), lambda x: cut(x, 0.0), epsilon, [*ends, crossing])
    # Balle and Wang (2018), Theorem 5, of real-valued noise.
    real = stats.norm.sf(epsilon / shift - shift / 2) - math.exp(epsilon) * stats.norm.sf(
        epsilon / shift + shift / 2
    )
    added = float32_tail.delta([(1 / shift, 1)], num_coordinates=1, delta=float(real))
    assert real + added >= truth * (1 - 1e-9)


MIXTURES = {  # moves, in standard deviations, with their chances; the release of what else is there
    "sampled": (((0.0, 0.8), (1.0, 0.2)), events.PoissonSampled(0.2, events.Gaussian(1.0))),
    "counted": (
        ((0.0, 0.7), (0.5, 0.2), (1.0, 0.1)),
        events.MixtureOfGaussians(2.0, (0.0, 1.0, 2.0), (0.7, 0.2, 0.1)),
    ),
    "counted, nobody left out": (
        ((0.5, 0.9), (1.5, 0.1)),
        events.MixtureOfGaussians(2.0, (1.0, 3.0), (0.9, 0.1)),
    ),
    "replaced": (((0.0, 0.5), (0.5, 0.5)), events.PoissonSampled(0.5, events.Gaussian(1.0))),
    "of fixed size": (
        ((0.0, 0.8), (0.5, 0.2)),
        events.SampledWithoutReplacement(5, 1, events.Gaussian(1.0)),
    ),
}


@pytest.mark.slow(
    reason="a second of quadrature each", but=[f"{name}-1.0-remove" for name in MIXTURES]
)
@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("name", MIXTURES)
def test_one_sampled_number_never_tells_more_than_delta_and_what_is_added(name, epsilon, direction):
    """Both directions; of replaced units the two are on either side of what else is there."""
    (moves, mechanism), replaced = MIXTURES[name], name in ("replaced", "of fixed size")
    other = tuple((-move, chance) for move, chance in moves) if replaced else ((0.0, 1),)
    relation = "REPLACE_ONE" if replaced else "ADD_OR_REMOVE_ONE"

    def density(of, at):
        return lambda x: sum(chance * at(x, move) for move, chance in of)

    pair = (moves, other) if direction == "remove" else (other, moves)
    ends = [move + side * float32_tail.END for move, _ in (*moves, *other) for side in (-1, 1)]
    grid = np.linspace(-7, 7, 60)
    truth, real = (
        divergence(density(pair[0], at), density(pair[1], at), epsilon, [*points, *grid])
        for at, points in ((cut, ends), (normal, (-12, 12)))
    )
    event = events.PrivacyEvent(
        mechanism=mechanism,
        privacy_unit="client",
        neighboring_relation=events.NeighboringRelation(relation),
    )
    added = float32_tail.of_event(event, 1, real)
    assert 0 < added < 1e-3 and real + added >= truth * (1 - 1e-9)


@pytest.mark.parametrize("num_shares", [2, 3])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
def test_a_sum_of_shares_never_tells_more_than_delta_and_what_is_added(
    num_shares, epsilon, monkeypatch
):
    """The density of a sum of normals that are cut off, by convolution on a grid. They end at 3, so
    that what is added is far above the grid's error.
    """
    monkeypatch.setattr(float32_tail, "END", 3.0)
    step, shift = 2.0**-9, 0.5  # of one share's standard deviation
    one = cut(np.arange(-7, 7, step), 0.0)
    mass = one / one.sum()
    for _ in range(num_shares - 1):
        mass = np.convolve(mass, one / one.sum())
    moved = round(shift / step)
    p = np.concatenate([np.zeros(moved), mass])
    q = np.concatenate([mass, np.zeros(moved)])
    truth = np.maximum(p - math.exp(epsilon) * q, 0).sum()
    mu = shift / math.sqrt(num_shares)
    real = stats.norm.sf(epsilon / mu - mu / 2) - math.exp(epsilon) * stats.norm.sf(
        epsilon / mu + mu / 2
    )
    added = float32_tail.delta([(1 / mu, 1)], num_coordinates=num_shares, delta=float(real))
    error = 2e-6  # of the grid
    assert real + added >= truth - error
    if epsilon < 1:  # the control: with nothing added
        assert real < truth - 10 * error


def out_of_reach(shifts):
    """Chance that a vector, cut off and moved by `shifts`, is out of reach unmoved: one less the
    product of what each coordinate keeps.
    """
    top = float32_tail.END
    lost = (stats.norm.sf(top - shifts) - stats.norm.sf(top)) / (1 - 2 * stats.norm.sf(top))
    return -math.expm1(np.sum(np.log1p(-lost)))


@pytest.mark.parametrize("dimension", [1, 30, 1000, 10**6])
@pytest.mark.parametrize("noise_multiplier", [0.3, 1.0, 5.0])
def test_no_direction_of_the_move_is_out_of_reach_more_often(dimension, noise_multiplier):
    rng = np.random.default_rng(0)
    added = float32_tail.delta([(noise_multiplier, 1)], num_coordinates=dimension, delta=0.0)
    least = []
    for few in {1, min(3, dimension), min(30, dimension), dimension}:
        for move in (np.ones(few), np.abs(rng.normal(size=few)), rng.exponential(size=few) ** 2):
            least.append(out_of_reach(move / np.linalg.norm(move) / noise_multiplier))
    mixed = np.full(dimension, 1 / math.sqrt(2 * dimension))
    mixed[0] = math.sqrt(0.5)
    least.append(out_of_reach(mixed / np.linalg.norm(mixed) / noise_multiplier))
    assert max(least) <= added <= 4 * max(least)


def test_a_million_parameters_lose_more_than_many_a_delta():
    added = float32_tail.delta([(1.0, 1)], num_coordinates=10**6, delta=1e-5)
    assert 4.8e-4 < added < 5.6e-4  # phi(5.22) * sqrt(1e6) = 4.8e-4, which the page rounds up


def test_releases_add_up_and_other_noise_has_no_number():
    gaussian = events.Gaussian(2.0)
    one = float32_tail.delta([(2.0, 1)], num_coordinates=100, delta=0.0)
    event = events.PrivacyEvent(
        mechanism=events.PoissonSampled(0.1, gaussian),
        privacy_unit="client",
        neighboring_relation="ADD_OR_REMOVE_ONE",
    )
    assert float32_tail.of_event(event.repeat(30), 100, 0.0) == pytest.approx(30 * one)
    two = events.Composed((gaussian, events.Gaussian(4.0)))
    of = lambda mechanism: float32_tail.releases(dataclasses.replace(event, mechanism=mechanism))
    assert of(two) == [(2.0, 1, 1, 1), (4.0, 1, 1, 1)]
    assert of(events.Laplace(1.0)) is None
    assert of(events.Composed((gaussian, events.Laplace(1.0)))) is None
    assert of(events.Composed((gaussian, events.EpsilonDelta(0.0, 1e-6)))) == [(2.0, 1, 1, 1)]
    assert of(events.Composed((gaussian, events.EpsilonDelta(0.1, 1e-6)))) is None
    assert of(events.RandomAllocation(5, 2, 3.0)) == [(3.0, 5, 1, 1)]
    # All rounds are one release, of as many times the numbers.
    rounds = events.CorrelatedGaussian(2.0, "banded", (1.0, 0.5), 7, 7)
    ((noise, count, times, reaches),) = of(rounds)
    assert (count, times, reaches) == (1, 7, 1) and 1.0 < noise <= 2.0
    dealt = events.SampledCorrelatedGaussian(2.0, "banded", (1.0, 0.5), 7, 3, "balls_in_bins")
    ((noise, *counts),) = of(dealt)  # of three bins the one that moves most
    assert counts == [1, 7, 3] and noise == pytest.approx(2.0 / math.sqrt(2 * 1.25 + 1.0))
    coins = events.SampledCorrelatedGaussian(2.0, "banded", (1.0,), 7, 3, "cyclic_poisson", 0.5)
    assert of(coins) is None
    mixture = events.MixtureOfGaussians(3.0, (0.0, 1.0, 2.0), (0.5, 0.3, 0.2))
    assert of(events.SelfComposed(mixture, 4)) == [(1.5, 4, 1, 2)]
    fixed = events.SampledWithoutReplacement(9, 3, gaussian)
    assert of(fixed) is None  # of a unit that is there or not: no accountant has it
    replaced = dataclasses.replace(event, mechanism=fixed, neighboring_relation="REPLACE_ONE")
    assert float32_tail.releases(replaced) == [(2.0, 1, 1, 2)]
    whole = float32_tail.delta([(0.1, 1)], num_coordinates=3, delta=0.25)
    assert whole == 0.75  # never a delta above 1


@pytest.mark.parametrize(
    "wrong",
    [{"num_coordinates": 0}, {"delta": 1.0}, {"delta": math.nan}, {"releases": [(0.0, 1)]}],
)
def test_arguments_out_of_range_are_named(wrong):
    given = {"releases": [(1.0, 1)], "num_coordinates": 3, "delta": 1e-5} | wrong
    with pytest.raises(ValueError, match="Expected"):
        float32_tail.delta(given.pop("releases"), **given)


def test_as_many_normals_as_a_scheme_draws():
    """Numbers of one release: of silos as at a server; of clients, of all that is hidden from."""
    of = lambda name, **settings: schemes.get(name).num_normals(
        schemes.get(name).Config(**settings), 100
    )
    assert of("dp_fedavg") == of("higradavg") == of("user_ldp") == of("item_sum_cap") == 101
    assert of("dp_fedavg", correlation="banded", bands=4, sampling_prob=0.1) == 404
    assert of("dp_scaffold") == 200
    assert of("local_dp", num_parties=30) == 100
    assert of("secagg_dp", num_parties=30) == 3000
    assert of("lightdp", num_parties=30) == (30 + 435) * 100
    regular = {"graph": "k_regular", "degree": 10, "num_parties": 30}
    assert of("lightdp", **regular) == (30 + 150) * 100
    assert of("bidirectional", num_parties=10, noise="r0_gaussian") == (10 + 45) * 100
    assert of("bidirectional", num_parties=10, noise="upload_gaussian") is None
    assert of("gd_dp", num_parties=30) == of("sgd_dp", num_parties=30) == 3000
    assert of("gsgd_dp") is None


def test_chances_are_of_double_precision_whatever_jax_computes_in():
    assert not jax.config.jax_enable_x64
    for at in (0.3, 4.1, float32_tail.END):
        exact = float(mpmath.ncdf(-mpmath.mpf(at)))
        assert float(float32_tail._above(at)) == pytest.approx(exact, rel=1e-12)
