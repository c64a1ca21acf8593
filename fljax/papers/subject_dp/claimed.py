"""Claims of arXiv:2206.03617 against what is true of them, recomputed by certified privacy-loss
distributions.

Source: Marathe et al. (2022), "Subject Granular Differential Privacy in Federated Learning",
  arXiv:2206.03617.
"""

from typing import NamedTuple

from fljax import accounting
from fljax.accounting import events, mixture

CLAIMED_EPSILON, DELTA = 4.0, 1e-5
NUM_STEPS, NUM_SILOS, NUM_ITEMS, SAMPLING_PROB = 5000, 16, 8, 0.02


class Claim(NamedTuple):
    """One claim of (CLAIMED_EPSILON, DELTA) for a subject.

    case: words. errata: why it fails, "-" where another unit was meant, "none" where it holds.
    noise_multiplier: that the claim rests on. lower, upper: what epsilon truly is, certified.
    """

    case: str
    errata: str
    noise_multiplier: float
    lower: float
    upper: float


def claims() -> list[Claim]:
    """All of them: q = 0.02, 8 items of a subject in a silo, 5000 steps (100 rounds of 50) unless
    said.
    """
    present = mixture.subject_sampling_prob(NUM_ITEMS, SAMPLING_PROB)

    def sums(noise: float, cap: int | None) -> events.Mechanism:
        return mixture.item_sum(noise, NUM_ITEMS, SAMPLING_PROB, cap=cap)

    def averages(noise: float) -> events.Mechanism:
        return events.PoissonSampled(present, events.Gaussian(noise))

    paper_steps = NUM_STEPS // 4 * NUM_SILOS  # R / sqrt(16) rounds, in each of 16 silos
    sound_steps = NUM_STEPS // 100 * (100 // NUM_SILOS) * NUM_SILOS  # R / 16 rounds
    with accounting.x64():
        one_release = 1 / float(accounting.gaussian.epsilon_to_mu(CLAIMED_EPSILON, DELTA))
    cases: list[tuple[str, str, float, events.Mechanism, int, accounting.accountant.Method]] = [
        (
            "LocalItemDP's claim for items, read for subjects",
            "-",
            1.6973,
            sums(1.6973, None),
            NUM_STEPS,
            "pld",
        ),
        (
            "LocalGroupDP: group privacy on top of item sampling, Z = 3",
            "E2",
            4.964,
            sums(4.964, 3),
            NUM_STEPS,
            "pld",
        ),
        (
            "the same, R / sqrt(s) rounds of 16 silos",
            "E1, E2",
            4.964,
            sums(4.964, 3),
            paper_steps,
            "pld",
        ),
        ("HiGradAvg, one silo, public divisor", "none", 11.45, averages(11.45), NUM_STEPS, "pld"),
        (
            "HiGradAvg, R / sqrt(s) rounds of 16 silos",
            "E1",
            11.45,
            averages(11.45),
            paper_steps,
            "pld",
        ),
        ("HiGradAvg, R / s rounds of 16 silos", "none", 11.45, averages(11.45), sound_steps, "pld"),
        (
            "UserLDP: sensitivity C in place of 2 C",
            "E7",
            one_release,
            events.Gaussian(one_release / 2),
            1,
            "gdp",
        ),
    ]
    found = []
    for case, errata, noise, step, steps, method in cases:
        event = events.PrivacyEvent(
            mechanism=events.SelfComposed(step, steps),
            privacy_unit="subject",
            neighboring_relation=events.NeighboringRelation.ADD_OR_REMOVE_ONE,
        )
        lower, upper = accounting.interval(event, delta=DELTA, method=method)
        found.append(Claim(case, errata, noise, lower, upper))
    return found
