"""What "Subject Granular Differential Privacy in Federated Learning", arXiv:2206.03617, prints and
what holds.

The claims that are recomputed are of (4, 1e-5) for 5,000 steps at an item's sampling rate of .02,
8 items of a subject in a silo, 16 silos: see `claims`.
"""

import functools
import math

import numpy as np

from fljax import accounting
from fljax.accounting import events, groups, mixture
from fljax.accounting.subjects import printed
from fljax.papers.errata import Erratum, Shown
from fljax.papers.subject_dp import utility
from fljax.papers.subject_dp.claimed import (
    CLAIMED_EPSILON,
    DELTA,
    NUM_ITEMS,
    NUM_SILOS,
    NUM_STEPS,
    SAMPLING_PROB,
    claims,
)


@functools.cache
def _claimed() -> dict[str, float]:
    """The larger ends of what is true of each claim, by the errata that it rests on."""
    return {claim.errata: claim.upper for claim in claims()}


def _e1() -> list[Shown]:
    what = "epsilon of HiGradAvg, 100 / sqrt(16) rounds in each of 16 silos"
    rounds = printed.square_root_rounds(100 // NUM_SILOS, NUM_SILOS)
    return [
        Shown(what, CLAIMED_EPSILON, _claimed()["E1"]),
        Shown("rounds that 6 rounds of 16 silos count as", rounds, 6 * NUM_SILOS),
    ]


def _e2() -> list[Shown]:
    return [Shown("epsilon of LocalGroupDP, groups of 3", CLAIMED_EPSILON, _claimed()["E2"])]


def _e3() -> list[Shown]:
    what = "nats that one step's noise scale tells: variance ratio 1.5^2, 1,000 parameters"
    return [Shown(what, 0.0, utility.scale_leak(1.5**2, 1000))]


def _e4() -> list[Shown]:
    ratio = (26 / 25) ** 2  # of the noise of the average, with 25 subjects and with 26
    what = "nats that one step's divisor tells: 25 or 26 subjects, 62,006 parameters"
    return [Shown(what, 0.0, utility.scale_leak(ratio, 62_006))]


def _e5() -> list[Shown]:
    batch = np.ones((5, 1))  # gradients at the clip norm 1; the first three are one subject's
    refilled = np.concatenate([-np.ones((3, 1)), batch[3:]])
    what = "move of a sum of 5 clipped gradients whose 3 of one subject leave, in clip norms"
    return [Shown(what, 3.0, float(np.linalg.norm(batch.sum(0) - refilled.sum(0))))]


def _e6() -> list[Shown]:
    found = []
    for num_items in (NUM_ITEMS, 80):
        chance = mixture.subject_sampling_prob(num_items, SAMPLING_PROB)
        what = f"chance that a subject of {num_items} items is in the batch"
        found.append(Shown(what, num_items * SAMPLING_PROB, float(chance)))
    return found


def _e7() -> list[Shown]:
    return [Shown("epsilon of UserLDP", CLAIMED_EPSILON, _claimed()["E7"])]


def _e8() -> list[Shown]:
    found = []
    with accounting.x64():
        for epsilon in (CLAIMED_EPSILON, 12.0):
            enough = 2 / float(accounting.gaussian.epsilon_to_mu(epsilon, DELTA))
            what = f"noise standard deviation / C for one release at epsilon {epsilon:g}"
            found.append(Shown(what, printed.least_noise(epsilon, DELTA), enough))
    return found


def _e9() -> list[Shown]:
    rate, steps = 0.1, 50
    noise = np.random.default_rng(9).normal(size=(20_000, steps))
    variance = float((rate * noise).sum(axis=1).var())
    what = "variance of 50 steps of rate .1 with unit noise, 20,000 drawn"
    return [Shown(what, rate * steps, variance)]


def _e15() -> list[Shown]:
    one = CLAIMED_EPSILON / math.sqrt(NUM_STEPS)
    what = "delta of 3 items after composition, in deltas of one item"
    before = groups.group_delta(one, DELTA, 3, form="paper") / DELTA
    return [
        Shown(what, before, groups.group_delta(CLAIMED_EPSILON, DELTA, 3, form="paper") / DELTA)
    ]


def _e21() -> list[Shown]:
    with accounting.x64():
        noise = 1 / float(accounting.gaussian.epsilon_to_mu(CLAIMED_EPSILON, DELTA))
    # a subject in h silos is a group of h users: h times the move, hence h^2 as many releases
    whole = events.PrivacyEvent(
        mechanism=events.SelfComposed(events.Gaussian(NUM_SILOS * noise), NUM_SILOS**2),
        privacy_unit="subject",
        neighboring_relation=events.NeighboringRelation.ADD_OR_REMOVE_ONE,
    )
    what = "epsilon of a subject in 16 silos under user-level noise that is 16 times as much"
    return [Shown(what, math.inf, accounting.epsilon(whole, delta=DELTA))]


ERRATA = (
    Erratum(
        "E1",
        "Theorem 3.13, appendix A.4",
        "s silos may each run R / sqrt(s) rounds",
        "R / s: a subject in all silos meets s mechanisms a round",
        _e1,
    ),
    Erratum(
        "E2",
        "Algorithm 1, its accounting",
        "group privacy for the group size in a batch, with the sampling rate of items",
        "a subject owns more items than are in one batch, and may be met by any of them",
        _e2,
    ),
    Erratum(
        "E3",
        "Algorithm 1",
        "noise is scaled by the largest group of the batch",
        "that scale depends on private data, and gives away who is in the batch",
        _e3,
    ),
    Erratum(
        "E4",
        "Algorithm 2",
        "the sum is divided by the realised number of subjects",
        "the divisor depends on private data; it must be public",
        _e4,
    ),
    Erratum(
        "E5",
        "Algorithms 1 and 2",
        "a batch is a sample of fixed size",
        "taking a subject out lets others in: sums move by 2 J C, not J C; items are "
        "Poisson-sampled here",
        _e5,
    ),
    Erratum(
        "E6",
        "Theorem 3.7",
        "items of a subject times their sampling rate is the chance that it is in the batch",
        "1 - (1 - q)^m; the product can exceed 1",
        _e6,
    ),
    Erratum(
        "E7",
        "Lemma 3.9",
        "a silo's clipped gradient has sensitivity C",
        "2 C: any two data sets are neighbours",
        _e7,
    ),
    Erratum(
        "E8",
        "Theorem 3.11, appendix A.2",
        "a least noise, from norms of means as if they were densities",
        "the proof is void: the noise is far more than enough at a small epsilon and too little "
        "at a large one",
        _e8,
    ),
    Erratum(
        "E9",
        "section 3.3",
        "the noise of T steps has a variance proportional to the step size",
        "to its square",
        _e9,
    ),
    Erratum(
        "E10",
        "Lemma 4.3",
        "a condition that holds 'only if'",
        "the argument from symmetry does not apply to a supremum; `utility.excess_empirical` "
        "proves its bound without it",
    ),
    Erratum(
        "E11",
        "Lemma 4.5",
        "uniform stability of the average iterate",
        "its 1 / T and the smoothness that it needs are missing; see `utility.stability`",
    ),
    Erratum(
        "E12",
        "Lemma 4.7",
        "excess loss with the noise multiplier as standard deviation",
        "the clip norm is missing, and epsilon and delta are put in the wrong way round",
    ),
    Erratum(
        "E13",
        "Theorem 4.9",
        "the largest group of a batch enters the loss of UserLDP",
        "its Algorithm 3 does not use groups",
    ),
    Erratum(
        "E14",
        "Lemma 4.10",
        "a step of eta / k",
        "Algorithm 2 divides by the number of subjects",
    ),
    Erratum(
        "E15",
        "section 3.1",
        "delta of a group grows with the epsilon of one step",
        "with that of all steps composed",
        _e15,
    ),
    Erratum(
        "E16",
        "section 3.4 against appendix A.4",
        "a round has epsilon / sqrt(R), and E / R",
        "neither is used here: rounds are composed by accountants",
    ),
    Erratum(
        "E17",
        "Theorem 3.12, appendix A.3",
        "silos train disjoint parameters",
        "all silos move all parameters; the composition of E1 needs no such argument",
    ),
    Erratum(
        "E18",
        "text",
        "a sign in equation (4), two names of one algorithm, a factor p, T for steps and rounds",
        "slips of the pen",
    ),
    Erratum(
        "E19",
        "Theorems 3.1, 3.7, 3.10",
        "constants c1 and c2",
        "not given; accountants compute the noise",
    ),
    Erratum(
        "E20",
        "all algorithms",
        "sampling rates and group sizes computed from the data",
        "they are private; here they are public parameters",
    ),
    Erratum(
        "E21",
        "sections 1 and 3.3",
        "central user-level privacy gives a subject nothing",
        "group privacy over the silos of a subject gives it a guarantee, at that many times the "
        "noise",
        _e21,
    ),
    Erratum(
        "E22",
        "section 5",
        "step sizes with eta C = 1e-5 and 1e-7",
        "plain gradient steps then move by at most .0125 in 25 rounds of 50; local steps a round, "
        "optimizer and the sampling rate of users are not given",
    ),
)
