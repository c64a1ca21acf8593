"""Privacy-loss distributions of samples without replacement against the exact curve and a plain
convolution.
"""

import dataclasses
import math

import numpy as np
import pytest
from scipy import optimize, stats

from fljax import accounting
from fljax.accounting import events, gaussian
from fljax.accounting.pld import without_replacement
from fljax.accounting.renyi import conversion, rdp
from fljax.accounting.weighted_sums import rounds as weighted_rounds
from fljax.errors import UnsupportedEventError

NOISE, RATE, DELTA = 1.0, 0.1, 1e-5


def exact_one_round():
    """delta(eps) = q delta_Gauss(log(1 + (e^eps - 1) / q)), solved for eps."""

    def excess(epsilon):
        inner = math.log1p(math.expm1(epsilon) / RATE)
        return math.log(RATE) + float(gaussian.log_delta(1 / NOISE, inner)) - math.log(DELTA)

    return optimize.brentq(excess, 1e-3, 20.0, xtol=1e-13)


def convolved(num_rounds, step=1e-3, up=True):
    """Written apart: losses rounded up or down to a grid, an FFT of their masses, the hockey stick
    of the result.
    """
    x = np.linspace(1 / (2 * NOISE), 14.0, 1_000_001)  # losses >= 0
    loss = np.log1p(RATE * np.expm1(x / NOISE - 1 / (2 * NOISE**2)))
    shifted = 1 / NOISE
    cdf = (1 - RATE) * stats.norm.sf(x) + RATE * stats.norm.sf(x - shifted)
    mass, middle = cdf[:-1] - cdf[1:], loss[1:] if up else loss[:-1]
    n = 2**17
    grid = np.zeros(n)
    index = (np.ceil if up else np.floor)(middle / step).astype(int)
    np.add.at(grid, index, mass)
    other = (np.ceil if up else np.floor)(-(loss[:-1] if up else loss[1:]) / step).astype(int)
    quotient = stats.norm.sf(x)
    np.add.at(
        grid, other, quotient[:-1] - quotient[1:]
    )  # e^-loss of the mass at loss is the mass of Q there
    grid[0] += 1 - grid.sum()
    total = np.fft.irfft(np.fft.rfft(grid) ** num_rounds, n)
    losses = np.fft.fftfreq(n, 1 / n) * step
    missing = float(num_rounds * (cdf[-1] if up else 0.0))

    def excess(epsilon):
        return (
            np.sum(np.maximum(total, 0.0) * -np.expm1(np.minimum(epsilon - losses, 0.0)))
            + missing
            - DELTA
        )

    return optimize.brentq(excess, 1e-3, 30.0)


def test_one_round_is_the_exact_curve():
    exact = exact_one_round()
    found = without_replacement.sampled_epsilon(NOISE, RATE, 1, DELTA)
    assert exact <= found <= exact * (1 + 1e-3)


def test_twenty_rounds_lie_between_two_plain_convolutions():
    low, high = convolved(20, up=False), convolved(20)
    assert 0 < high - low < 0.05 * high
    found = without_replacement.sampled_epsilon(NOISE, RATE, 20, DELTA)
    assert low <= found <= high
    orders = tuple(float(a) for a in range(2, 64))
    curve = 20 * np.asarray(rdp.sampled_without_replacement(NOISE, RATE, orders))
    assert found < 0.7 * float(conversion.rdp_to_epsilon(curve, orders, DELTA))


def test_everybody_is_no_sample():
    full = without_replacement.sampled_epsilon(NOISE, 1.0, 4, DELTA)
    assert full == pytest.approx(float(gaussian.mu_to_epsilon(2.0, DELTA)), rel=1e-14)


def test_rounds_of_the_three_samplings():
    setup = weighted_rounds.Setup(
        num_clients=25, num_records=100, batch_size=10, l2_clip_norm=1.0, noise_stddev=0.04
    )
    run = {"num_rounds": 20, "delta": DELTA, "composition": "pld"}
    # Noise 5 * 0.04 in the sum over a move of 2 / 10: multiplier 1.
    sampled = weighted_rounds.epsilon("subset", "isotropic", setup, **run)
    assert sampled == pytest.approx(
        without_replacement.sampled_epsilon(NOISE, RATE, 20, DELTA), rel=1e-9
    )
    everybody = weighted_rounds.epsilon("none", "isotropic", setup, **run)
    assert everybody == pytest.approx(
        float(gaussian.mu_to_epsilon(math.sqrt(20) * 0.02 / 0.2, DELTA)), rel=1e-12
    )
    with pytest.raises(UnsupportedEventError, match="covariance"):
        weighted_rounds.epsilon("gaussian", "isotropic", setup, **run)
    with pytest.raises(ValueError, match="batch_size"):
        weighted_rounds.epsilon(
            "subset", "isotropic", dataclasses.replace(setup, batch_size=2.5), **run
        )


def rounds(noise, count=20, relation="REPLACE_ONE"):
    mechanism = events.SelfComposed(
        events.SampledWithoutReplacement(100, 10, events.Gaussian(noise)), count
    )
    return events.PrivacyEvent(
        mechanism=mechanism, privacy_unit="example", neighboring_relation=relation
    )


def test_delta_is_the_curve_of_epsilon():
    for epsilon in (0.0, 1.0, 4.0):
        inner = math.log1p(math.expm1(epsilon) / RATE)
        exact = RATE * math.exp(float(gaussian.log_delta(1 / NOISE, inner)))
        assert (
            exact * (1 - 1e-12)
            <= without_replacement.delta(NOISE, RATE, 1, epsilon)
            <= exact * (1 + 2e-3)
        )
    epsilon = without_replacement.sampled_epsilon(NOISE, RATE, 20, DELTA)
    # The curve falls by about 10 % of delta for 1 % of epsilon here: a thousandth of either is
    # about as much.
    assert (
        DELTA * (1 - 0.02)
        <= without_replacement.delta(NOISE, RATE, 20, epsilon)
        <= DELTA * (1 + 2e-3)
    )
    assert without_replacement.delta(NOISE, 1.0, 4, 1.0) == pytest.approx(
        float(gaussian.mu_to_delta(2.0, 1.0)), rel=1e-14
    )
    assert without_replacement.delta(0.01, 0.5, 4, 1.0) == 1.0 and without_replacement.delta(
        0.01, 0.1, 4, 1.0
    ) == pytest.approx(0.4)


def test_events_of_samples_without_replacement_are_answered_by_privacy_losses():
    found = accounting.spent(rounds(NOISE), delta=DELTA, method="pld")
    assert (
        found.epsilon_upper == without_replacement.sampled_epsilon(NOISE, RATE, 20, DELTA)
        and found.epsilon_lower == 0
    )
    assert found.certified and "arXiv:2106.08567" in found.reason
    back = accounting.delta(rounds(NOISE), epsilon=2.0, method="pld")
    assert back == without_replacement.delta(NOISE, RATE, 20, 2.0)
    noise = accounting.calibrate(rounds, epsilon=2.0, delta=DELTA, method="pld")
    spent = accounting.epsilon(rounds(noise), delta=DELTA, method="pld")
    assert 2.0 * (1 - 3e-3) <= spent <= 2.0
    assert noise < accounting.calibrate(rounds, epsilon=2.0, delta=DELTA)
    assert accounting.epsilon(rounds(0.0), delta=DELTA, method="pld") == math.inf
    assert accounting.epsilon(rounds(NOISE, count=0), delta=DELTA, method="pld") == 0
    with pytest.raises(UnsupportedEventError, match="ADD_OR_REMOVE_ONE"):
        accounting.epsilon(rounds(NOISE, relation="ADD_OR_REMOVE_ONE"), delta=DELTA, method="pld")


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((0.0, 0.1, 1, 1e-5), "noise_multiplier"),
        ((1.0, 0.0, 1, 1e-5), "sampling_rate"),
        ((1.0, 0.1, 0, 1e-5), "num_rounds"),
        ((1.0, 0.1, 1, 0.0), "delta"),
    ],
)
def test_bad_arguments_are_refused_by_name(arguments, name):
    with pytest.raises(ValueError, match=name):
        without_replacement.sampled_epsilon(*arguments)
