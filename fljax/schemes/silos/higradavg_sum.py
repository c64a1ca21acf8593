"""HiGradAvg behind a secure sum: the server sees the mean of all silos and none of them alone;
unit: all items of a subject.

Each silo takes one step in a round. What hides a subject then is the noise of all silos together,
so that each may add less.

Source: Marathe et al. (2022), "Subject Granular Differential Privacy in Federated Learning",
arXiv:2206.03617, Algorithm 2; the view of the mean alone is ours.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from fljax import _validate
from fljax.accounting import events, mixture
from fljax.local import subject
from fljax.schemes import base
from fljax.schemes.silos import round as silos
from fljax.server.rounds import Clients, Performance, Release, Round, Sums
from fljax.types import LossFn, Params


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


@base.maker
def make(config: Config, loss: LossFn, given: base.Given) -> base.FederatedAlgorithm:
    """Builds the algorithm: all silos, or those that the server draws, send one noised step each,
    and it steps along their mean, where all of them are there.

    Guarantee: one round is one `event(config)`, for a subject, added or removed, towards whoever
    sees the sum of the silos and the models, and is none of them, if at most `silos_per_subject`
    silos hold items of one subject. A silo that takes part knows its own noise: towards it, or
    towards a server that it tells, that of the others alone hides a subject, which is not counted
    here (`higradavg` counts each silo's alone). What the sum and the model are made into is
    post-processing.
    Idealisation: an ideal secure sum over the reals; noise is drawn in float32 with the key's
    generator, and threefry is no cryptographic source. RoundInfo is not private.

    Args, Raises: as `base.Make`; and ValueError for a local_optimizer, whose step would be taken
      before the sum, and for parameters that are not float32, which each silo would round its step
      to: neither is a function of the sum. Examples carry their subject.
    """
    if given.local_optimizer is not None:
        raise ValueError(
            "Expected local_optimizer=None: a silo's step through it is no part of a sum of noised "
            "gradients; server_optimizer takes the step along their mean."
        )
    found = silos.build(config, silo(config, loss, given.performance), given, release)

    def init(params: Params) -> Any:
        dtypes = {str(jnp.result_type(leaf)) for leaf in jax.tree.leaves(params)}
        if dtypes != {"float32"}:
            raise ValueError(
                "Expected params in float32, which a silo's step is not rounded to before it is "
                f"summed, got dtypes {sorted(dtypes)}."
            )
        return found.init(params)

    return found._replace(init=init)


_START = silos.subject_start("expected_subjects")
# One step in a round may be twice as long as each of four.
_OWN = {"num_local_steps": 1, "l2_clip_norm": 0.66}
SCHEME = silos.subject_scheme(
    summary="silos average clipped gradients inside each subject, and a server sees their mean "
    "alone; unit: subject",
    Config=Config,
    make=make,
    event=event,
    start=_START | {"scheme": _START["scheme"] | _OWN},
    uploads_seen=False,
)
fitted, non_private = SCHEME.fitted, SCHEME.non_private
