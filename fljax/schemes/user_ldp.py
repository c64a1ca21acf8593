"""UserLDP: silos train with clipped batch gradients; unit: a whole silo (local DP), or all items of a subject.

Source: Marathe et al. (2022), "Subject Granular Differential Privacy in Federated Learning", arXiv:2206.03617,
Algorithm 3. Two batch gradients clipped to C can be 2C apart; the paper accounts for C.
"""

import dataclasses
from typing import Literal

import optax

from fljax import _validate
from fljax.accounting import events
from fljax.local import subject
from fljax.schemes import _round, _silos
from fljax.types import LossFn

SUMMARY = "silos clip each batch gradient as a whole, local Gaussian noise; unit: client (silo) or subject"
NOISE_AT = "silo"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(_silos.SubjectConfig):
    """As `SubjectConfig`; privacy_unit: "client", any two data sets of a silo are neighbours, or "subject"."""

    privacy_unit: Literal["client", "subject"] = "client"

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.one_of(("client", "subject"), privacy_unit=self.privacy_unit)


def make(
    config: Config,
    loss: LossFn,
    *,
    num_units: int,
    server_optimizer: optax.GradientTransformation | None = None,
    chunk_size: int | None = None,
) -> _round.FederatedAlgorithm:
    """Builds the algorithm.

    Guarantee: one round is one `event(config)`, towards a server that sees every silo's update: for clients under
    replace-one (whole data sets exchanged), for subjects under add-or-remove-one, if at most `silos_per_subject` silos
    hold items of one subject.
    Idealisation: noise and samples are drawn in float32 with JAX's threefry generator, which is no cryptographic
    source. RoundInfo is not private.

    Args:
      config: its noise_multiplier must be set.
      loss: `loss(params, example) -> []`; examples carry their subject.
      num_units: clients or subjects in the population, a published constant.
      server_optimizer: any optax optimizer in place of SGD with the configured rate and momentum.
      chunk_size: silos that train side by side; only speed and memory depend on it.

    Raises:
      ValueError: noise_multiplier is None, num_units < 1, or chunk_size < 1.
    """
    query = subject.clipped_batch_gradient(
        loss,
        item_sampling_prob=config.item_sampling_prob,
        l2_clip_norm=config.l2_clip_norm,
        batch_size=config.batch_size,
    )
    return _silos.private_silos(
        query,
        config,
        divisor=1.0,
        max_items_per_subject=config.max_items_per_subject,
        num_units=num_units,
        server_optimizer=server_optimizer,
        chunk_size=chunk_size,
    )


def event(config: Config) -> events.PrivacyEvent:
    """What one round does to one unit's data. Raises ValueError if noise_multiplier is None."""
    if config.privacy_unit == "subject":
        return _silos.subject_event(config, _silos.present_step(config, move=2))
    step = events.Gaussian(_round.noise_multiplier(config) / 2)  # the sensitivity is twice the clip norm
    return events.PrivacyEvent(
        mechanism=events.SelfComposed(step, config.num_local_steps),
        privacy_unit="client",
        neighboring_relation=events.NeighboringRelation.REPLACE_ONE,
    )


def non_private(config: Config) -> Config:
    """The same training with a clip that never binds and no noise."""
    return dataclasses.replace(config, l2_clip_norm=_round.NEVER_CLIPS, noise_multiplier=0.0)
