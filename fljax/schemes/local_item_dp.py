"""LocalItemDP: silos train with clipped gradients of single items; unit: one item, NOT all items of a person.

Source: Marathe et al. (2022), "Subject Granular Differential Privacy in Federated Learning", arXiv:2206.03617,
section 3.1, the baseline; Abadi et al. (2016), arXiv:1607.00133, Algorithm 1.
"""

import dataclasses

import optax

from fljax import _validate
from fljax.accounting import events
from fljax.local import subject
from fljax.schemes import _round, _silos
from fljax.types import LossFn

SUMMARY = "silos sum clipped gradients of items, local Gaussian noise; unit: example"
NOISE_AT = "silo"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(_silos.SiloConfig):
    """As `SiloConfig`; expected_items: public guess of the items in one step's batch; the sum is divided by it."""

    expected_items: float = 150.0

    def __post_init__(self) -> None:
        super().__post_init__()
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

    Guarantee: one round is one `event(config)` for the unit "example" under add-or-remove-one, towards a server that
    sees every silo's update. An item lies in one silo, so the number of silos does not enter.
    Idealisation: noise and samples are drawn in float32 with JAX's threefry generator, which is no cryptographic
    source. RoundInfo is not private.

    Args:
      config: its noise_multiplier must be set.
      loss: `loss(params, example) -> []`; examples carry their subject.
      num_units: items in the population, a published constant.
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
    )
    return _silos.private_silos(
        query,
        config,
        divisor=config.expected_items,
        max_items_per_subject=None,
        num_units=num_units,
        server_optimizer=server_optimizer,
        chunk_size=chunk_size,
    )


def event(config: Config) -> events.PrivacyEvent:
    """What one round does to one item's data. Raises ValueError if noise_multiplier is None."""
    step = events.PoissonSampled(config.item_sampling_prob, events.Gaussian(_round.noise_multiplier(config)))
    return events.PrivacyEvent(
        mechanism=events.SelfComposed(step, config.num_local_steps),
        privacy_unit="example",
        neighboring_relation=events.NeighboringRelation.ADD_OR_REMOVE_ONE,
    )


def non_private(config: Config) -> Config:
    """The same training with a clip that never binds and no noise."""
    return dataclasses.replace(config, l2_clip_norm=_round.NEVER_CLIPS, noise_multiplier=0.0)
