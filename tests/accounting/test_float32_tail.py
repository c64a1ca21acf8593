"""The end of float32 normals: where it is, and that its delta is no less than the truth."""

import itertools
import math

import jax
import numpy as np
import pytest
from scipy import integrate, stats

import fljax_kernels
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


def cut(x, mean):
    """Density of a normal of this mean, cut off at END on either side."""
    inside = np.abs(x - mean) <= float32_tail.END
    return np.where(inside, stats.norm.pdf(x, mean), 0) / (1 - 2 * stats.norm.sf(float32_tail.END))


@pytest.mark.parametrize("shift", [0.01, 0.1, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_one_number_never_tells_more_than_delta_and_what_is_added(shift, epsilon):
    """Against the hockey-stick divergence of two normals that are cut off, by quadrature."""
    reach = float32_tail.END
    ends = [-reach, shift - reach, reach, shift + reach]
    crossing = epsilon / shift + shift / 2
    points = sorted({*ends, min(crossing, shift + reach)})
    truth = sum(
        integrate.quad(
            lambda x: max(float(cut(x, shift) - math.exp(epsilon) * cut(x, 0.0)), 0.0),
            *pair,
            epsabs=1e-16,
            epsrel=1e-10,
            limit=200,
        )[0]
        for pair in itertools.pairwise(points)
    )
    # Balle and Wang (2018), Theorem 5, of real-valued noise.
    real = stats.norm.sf(epsilon / shift - shift / 2) - math.exp(epsilon) * stats.norm.sf(
        epsilon / shift + shift / 2
    )
    added = float32_tail.delta([(1 / shift, 1)], num_coordinates=1, delta=float(real))
    assert real + added >= truth * (1 - 1e-9)


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
    assert float32_tail.releases(two) == [(2.0, 1), (4.0, 1)]
    assert float32_tail.releases(events.Laplace(1.0)) is None
    assert float32_tail.releases(events.Composed((gaussian, events.Laplace(1.0)))) is None
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
