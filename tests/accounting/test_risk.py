"""Risks of runs: against closed forms, riskcal's values, and tests on neighbours themselves."""

import math
from statistics import NormalDist

import numpy as np
import pytest

from fljax import accounting, errors
from fljax.accounting import events, risk

N = NormalDist()


def run(noise, rate, rounds, relation="ADD_OR_REMOVE_ONE"):
    return accounting.PrivacyEvent(
        mechanism=events.SelfComposed(events.PoissonSampled(rate, events.Gaussian(noise)), rounds),
        privacy_unit="client",
        neighboring_relation=relation,
    )


# riskcal 1.5.1 at its default lattice: TPR - FPR, and FNR at FPR 0.001, 0.01, 0.1, 0.5.
RISKCAL = [
    (
        1.0,
        0.01,
        1000,
        0.16101842080506576,
        [0.9959861100758821, 0.9709002789031983, 0.8058213148382096, 0.3414338330559954],
    ),
    (
        2.0,
        0.1,
        100,
        0.20586119392401833,
        [0.994321617102382, 0.9622878121823437, 0.7724111715981118, 0.29977208307682507],
    ),
]
FPRS = (0.001, 0.01, 0.1, 0.5)


@pytest.mark.slow(reason="composes a thousand rounds", but=["(2.0, 0.1, 100)"])
@pytest.mark.parametrize("row", RISKCAL, ids=lambda row: str(row[:3]))
def test_advantage_and_error_rates_are_those_of_riskcal_and_never_more_private(row):
    noise, rate, rounds, advantage, fnrs = row
    event = run(noise, rate, rounds)
    found = risk.advantage(event)
    assert advantage * (1 - 1e-5) <= found <= advantage * (1 + 2e-3)
    for fpr, fnr in zip(FPRS[1:3], fnrs[1:3], strict=True):
        # theirs are of the discretised pair; ours are a bound from below
        assert fnr - 4e-4 <= risk.trade_off(event, fpr) <= fnr + 1e-6


@pytest.mark.parametrize("mu", [0.2, 1.0, 3.0])
def test_losses_come_within_a_thousandth_of_the_gaussian_closed_form(mu):
    event = run(1 / mu, 1.0, 1)
    assert risk.advantage(event) == pytest.approx(2 * N.cdf(mu / 2) - 1, rel=1e-12)
    for fpr in (1e-4, 0.01, 0.5, 0.9):
        exact = N.cdf(N.inv_cdf(fpr) + mu)
        assert risk.tpr_at_fpr(event, fpr) == pytest.approx(exact, rel=1e-9)
        assert exact <= risk.tpr_at_fpr(event, fpr, method="pld") <= exact * (1 + 1e-3)
        assert exact <= risk.tpr_at_fpr(event, fpr, method="rdp")
        assert risk.reconstruction(event, fpr) == risk.tpr_at_fpr(event, fpr)


def test_the_best_test_of_randomised_response_reaches_its_bound():
    noise, buckets, rounds = 0.5, 3, 2
    p = np.array([1 - noise + noise / 3, noise / 3, noise / 3])
    q = p[[1, 0, 2]]
    p, q = (np.outer(x, x).ravel() for x in (p, q))
    order = np.argsort(-p / q)
    tpr, fpr = np.cumsum(p[order]), np.cumsum(q[order])
    event = accounting.PrivacyEvent(
        mechanism=events.SelfComposed(events.RandomizedResponse(noise, buckets), rounds),
        privacy_unit="client",
        neighboring_relation="REPLACE_ONE",
    )
    reached = np.interp([0.05, 0.2, 0.6], np.append(0, fpr), np.append(0, tpr))
    for base, best in zip([0.05, 0.2, 0.6], reached, strict=True):
        assert best * (1 - 1e-9) <= risk.tpr_at_fpr(event, base, method="pld") <= best * 1.01
    # The control: with more noise than there is, the test beats the bound.
    noisier = accounting.PrivacyEvent(
        mechanism=events.SelfComposed(events.RandomizedResponse(0.7, buckets), rounds),
        privacy_unit="client",
        neighboring_relation="REPLACE_ONE",
    )
    assert risk.tpr_at_fpr(noisier, 0.2, method="pld") < reached[1]


def test_pure_mechanisms_have_the_line_of_their_largest_loss():
    event = accounting.PrivacyEvent(
        mechanism=events.EpsilonDelta(1.0),
        privacy_unit="client",
        neighboring_relation="REPLACE_ONE",
    )
    assert risk.tpr_at_fpr(event, 0.1, method="pld") == pytest.approx(0.1 * math.e, rel=5e-3)
    line = 1 - math.exp(-1.0) * (1 - 0.9)
    assert risk.tpr_at_fpr(event, 0.9, method="pld") == pytest.approx(line, rel=1e-3)
    for fpr in (0.0, 1.0):
        assert risk.tpr_at_fpr(event, fpr, method="pld") == pytest.approx(fpr, abs=1e-3)


def test_nothing_costs_nothing_and_no_guarantee_gives_all_away():
    def of(mechanism):
        return accounting.PrivacyEvent(
            mechanism=mechanism, privacy_unit="client", neighboring_relation="ADD_OR_REMOVE_ONE"
        )

    nothing, everything = of(events.Composed(())), of(events.NonPrivate())
    assert risk.advantage(nothing) == 0
    assert risk.tpr_at_fpr(nothing, 0.2) == pytest.approx(0.2, rel=1e-12)
    assert risk.advantage(everything) == risk.tpr_at_fpr(everything, 0.01) == 1
    assert risk.trade_off(everything, 0.01) == 0


def test_noise_for_a_risk_meets_it_and_is_riskcals():
    # riskcal 1.5.1: 1.422456 for an advantage of 0.1 over 1,000 rounds at rate 0.01
    noise = risk.calibrate(lambda z: run(z, 0.01, 1000), advantage=0.1, tolerance=1e-3)
    assert 1.422456 * (1 - 1e-4) <= noise <= 1.422456 * (1 + 3e-3)
    assert risk.advantage(run(noise, 0.01, 1000)) <= 0.1


def test_noise_for_error_rates_and_reconstruction_is_the_gaussians():
    for target in ({"tpr": 0.1, "fpr": 0.01}, {"reconstruction": 0.1, "prior": 0.01}):
        noise = risk.calibrate(lambda z: run(z, 1.0, 4), **target)
        mu = N.inv_cdf(0.1) - N.inv_cdf(0.01)
        assert noise == pytest.approx(math.sqrt(4) / mu, rel=1e-4)
        assert risk.tpr_at_fpr(run(noise, 1.0, 4), 0.01) <= 0.1


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ({}, "one target"),
        ({"advantage": 0.1, "tpr": 0.2, "fpr": 0.1}, "one target"),
        ({"tpr": 0.2}, "one target"),
        ({"prior": 0.2, "advantage": 0.1}, "one target"),
        ({"tpr": 0.1, "fpr": 0.1}, "tpr > fpr=0.1"),
        ({"reconstruction": 0.1, "prior": 0.2}, "reconstruction > prior=0.2"),
        ({"advantage": 1.5}, "advantage in"),
        ({"advantage": math.nan}, "advantage in"),
    ],
    ids=str,
)
def test_what_is_no_target_is_refused(target, told):
    with pytest.raises(ValueError, match=f"Expected {told}"):
        risk.calibrate(lambda z: run(z, 1.0, 1), **target)
    event = run(1.0, 0.1, 1)
    for bad in (math.nan, -0.1, 1.1, "0.1"):
        for of in (risk.tpr_at_fpr, risk.trade_off, risk.reconstruction):
            with pytest.raises(ValueError, match="Expected"):
                of(event, bad)
    with pytest.raises(errors.UnsupportedEventError):
        risk.tpr_at_fpr(event, 0.1, method="gdp")
