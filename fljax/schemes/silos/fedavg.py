"""FedAvg with silos as clients: plain local SGD, the plain mean of the silos' models; NO privacy:
the baseline.

Source: McMahan et al. (2017), "Communication-Efficient Learning of Deep Networks from Decentralized
Data", arXiv:1602.05629; as in Marathe et al. (2022), arXiv:2206.03617.
"""

import dataclasses

from fljax.accounting import events
from fljax.local import user
from fljax.schemes import base
from fljax.schemes.silos import round as silos
from fljax.server.rounds import Performance
from fljax.types import LossFn

START = silos.START | {
    "scheme": silos.START["scheme"] | {"local_learning_rate": 2.0},  # without noise, longer steps
    "privacy": {"target_epsilon": None},
    "run": {"num_rounds": 30, "baseline": False},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(silos.TrainingConfig):
    """As `TrainingConfig`; noise_multiplier must be 0: this scheme adds no noise."""

    noise_multiplier: float = 0.0
    """Must be 0: this scheme adds no noise."""


def silo(config: Config, loss: LossFn, performance: Performance) -> silos.Silo:
    """The gradient of the mean loss of a Poisson sample, as it is."""
    if config.noise_multiplier != 0:
        raise ValueError(
            "Expected noise_multiplier=0 for fedavg, which adds no noise, got "
            f"{config.noise_multiplier!r}."
        )
    query = user.clipped_batch_gradient(
        loss,
        item_sampling_prob=config.item_sampling_prob,
        l2_clip_norm=base.NEVER_CLIPS,
        batch_size=performance.microbatch_size,
    )
    return silos.Silo(query, divisor=1.0, stddev=0.0)


def event(config: Config) -> events.PrivacyEvent:
    """A release without any guarantee, for whatever unit."""
    del config
    return base.no_guarantee("example")


SCHEME = silos.scheme(
    summary="silos train by plain SGD; no clipping, no noise, no guarantee",
    promise="none",
    Config=Config,
    make=silos.maker(silo),
    event=event,
    non_private=lambda config: config,  # there is nothing to switch off
    start=START,
)
make, fitted, non_private = SCHEME.make, SCHEME.fitted, SCHEME.non_private
