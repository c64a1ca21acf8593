"""Capped item sum: silos train with at most Z clipped gradients of each subject in a batch; unit: subject.

Source: Marathe et al. (2022), "Subject Granular Differential Privacy in Federated Learning", arXiv:2206.03617,
Algorithm 1 (LocalGroupDP), with a public cap Z in place of the group size that the paper reads from each private batch,
one noise scale, and the exact mixture of counts in place of group privacy on top of item sampling.
"""

import dataclasses

import optax

from fljax import _validate
from fljax.accounting import events
from fljax.local import subject
from fljax.schemes import _round, _silos
from fljax.types import LossFn

SUMMARY = "silos sum clipped gradients, at most Z of each subject, local Gaussian noise; unit: subject"
NOISE_AT = "silo"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(_silos.SubjectConfig):
    """As `SubjectConfig`; items_per_subject: Z, most items of one subject in one batch, >= 1. expected_items: public
    guess of the items in one batch, the divisor of the sum.
    """

    items_per_subject: int = 2
    expected_items: float = 150.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.positive_int(items_per_subject=self.items_per_subject)
        _validate.positive(expected_items=self.expected_items)


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
    query = subject.item_sum(
        loss,
        item_sampling_prob=config.item_sampling_prob,
        l2_clip_norm=config.l2_clip_norm,
        batch_size=config.batch_size,
        items_per_subject=config.items_per_subject,
    )
    return _silos.private_silos(
        query,
        config,
        divisor=config.expected_items,
        max_items_per_subject=config.max_items_per_subject,
        num_units=num_units,
        server_optimizer=server_optimizer,
        chunk_size=chunk_size,
    )


def event(config: Config) -> events.PrivacyEvent:
    """What one round does to one subject's data. Raises ValueError if noise_multiplier is None."""
    return _silos.subject_event(config, _silos.counted_step(config, config.items_per_subject))


def non_private(config: Config) -> Config:
    """The same training with a clip that never binds and no noise."""
    return dataclasses.replace(config, l2_clip_norm=_round.NEVER_CLIPS, noise_multiplier=0.0)
