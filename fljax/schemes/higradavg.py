"""HiGradAvg: silos train with clipped gradients averaged inside each subject; unit: all items of a subject.

Source: Marathe et al. (2022), "Subject Granular Differential Privacy in Federated Learning", arXiv:2206.03617,
Algorithm 2. Here the divisor is public, the batch a Poisson sample, and the chance that a subject is in it exact.
"""

import dataclasses

import optax

from fljax import _validate
from fljax.accounting import events
from fljax.local import subject
from fljax.schemes import _round, _silos
from fljax.types import LossFn

SUMMARY = "silos average clipped gradients inside each subject, local Gaussian noise; unit: subject"
NOISE_AT = "silo"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(_silos.SubjectConfig):
    """As `SubjectConfig`; expected_subjects: public guess of the subjects in one batch, the divisor of the sum."""

    expected_subjects: float = 100.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.positive(expected_subjects=self.expected_subjects)


def make(
    config: Config,
    loss: LossFn,
    *,
    num_units: int,
    server_optimizer: optax.GradientTransformation | None = None,
    chunk_size: int | None = None,
) -> _round.FederatedAlgorithm:
    """Builds the algorithm.

    Guarantee: one round is one `event(config)` for the unit "subject" under add-or-remove-one, towards a server that
    sees every silo's update, if at most `silos_per_subject` silos hold items of one subject.
    Idealisation: noise and samples are drawn in float32 with JAX's threefry generator, which is no cryptographic
    source. RoundInfo is not private.

    Args:
      config: its noise_multiplier must be set.
      loss: `loss(params, example) -> []`; examples carry their subject.
      num_units: subjects in the population, a published constant.
      server_optimizer: any optax optimizer in place of SGD with the configured rate and momentum.
      chunk_size: silos that train side by side; only speed and memory depend on it.

    Raises:
      ValueError: noise_multiplier is None, num_units < 1, or chunk_size < 1.
    """
    query = subject.hierarchical_average(
        loss,
        item_sampling_prob=config.item_sampling_prob,
        l2_clip_norm=config.l2_clip_norm,
        batch_size=config.batch_size,
    )
    return _silos.private_silos(
        query,
        config,
        divisor=config.expected_subjects,
        max_items_per_subject=config.max_items_per_subject,
        num_units=num_units,
        server_optimizer=server_optimizer,
        chunk_size=chunk_size,
    )


def event(config: Config) -> events.PrivacyEvent:
    """What one round does to one subject's data. Raises ValueError if noise_multiplier is None."""
    return _silos.subject_event(config, _silos.present_step(config, move=1))


def non_private(config: Config) -> Config:
    """The same training with a clip that never binds and no noise."""
    return dataclasses.replace(config, l2_clip_norm=_round.NEVER_CLIPS, noise_multiplier=0.0)
