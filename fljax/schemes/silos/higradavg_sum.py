"""HiGradAvg behind a secure sum: the server sees the mean of all silos and none of them alone;
unit: all items of a subject.

Each silo takes one step in a round. What hides a subject then is the noise of all silos together,
so that each may add less.

Source: Marathe et al. (2022), "Subject Granular Differential Privacy in Federated Learning",
arXiv:2206.03617, Algorithm 2; the view of the mean alone is ours.
"""

import dataclasses
import math

import jax.numpy as jnp

from fljax import _validate
from fljax.accounting import events, mixture
from fljax.local import subject
from fljax.schemes import base
from fljax.schemes.silos import round as silos
from fljax.server.rounds import Clients, Performance, Release, Round, Sums
from fljax.types import LossFn


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(silos.SubjectCaps, silos.NoisyConfig):
    """Public numbers of the scheme; each may be published.

    Raises:
      ValueError: a number is out of its range; or a silo takes several steps in a round, through
        which noise goes where no sum shows it.
    """

    num_local_steps: int = 1
    """Must be 1: what comes of a silo's later steps is no sum of its noises."""
    expected_subjects: float = 70.0
    """Public guess of the subjects in one batch of a silo; its sum is divided by it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.positive(expected_subjects=self.expected_subjects)
        if self.num_local_steps != 1:
            raise ValueError(
                "Expected num_local_steps=1 where the mean alone is seen, got "
                f"num_local_steps={self.num_local_steps!r}."
            )


def silo(config: Config, loss: LossFn, performance: Performance) -> silos.Silo:
    """The sum over subjects of the mean of their clipped gradients."""
    query = subject.hierarchical_average(loss, **silos.items(config, performance, None))
    cap = config.max_items_per_subject
    return silos.Silo(query, config.expected_subjects, silos.stddev(config), cap)


def in_round(config: Config) -> int:
    """Silos of one round."""
    return config.parties if config.silos_per_round is None else config.silos_per_round


def release(config: Config, here: Round, present: Clients, sums: Sums) -> Release:
    """Their mean, where all silos of the round are there: without one, its noise is missing."""
    found = silos.mean(here, present, sums)
    return found._replace(counts=jnp.equal(sums.num_present, in_round(config)))


def event(config: Config) -> events.PrivacyEvent:
    """What one round does to one subject's data: it moves the sum of the silos by as many clip
    norms as silos have it in their batches, behind the noise of all of them. Raises ValueError if
    noise_multiplier is None.
    """
    factors = sorted(config.noise_factors)[: in_round(config)]
    together = base.noise_multiplier(config) * math.sqrt(sum(factor**2 for factor in factors))
    prob = mixture.subject_sampling_prob(config.max_items_per_subject, config.item_sampling_prob)
    return events.PrivacyEvent(
        mechanism=mixture.item_sum(together, silos.met(config, config.holders), prob),
        privacy_unit="subject",
        neighboring_relation=events.NeighboringRelation.ADD_OR_REMOVE_ONE,
    )


_START = silos.subject_start("expected_subjects")
# One step in a round may be twice as long as each of four.
_OWN = {"num_local_steps": 1, "l2_clip_norm": 0.66}
SCHEME = silos.subject_scheme(
    summary="silos average clipped gradients inside each subject, and a server sees their mean "
    "alone; unit: subject",
    Config=Config,
    make=silos.maker(silo, release),
    event=event,
    start=_START | {"scheme": _START["scheme"] | _OWN},
    uploads_seen=False,
)
make, fitted, non_private = SCHEME.make, SCHEME.fitted, SCHEME.non_private
