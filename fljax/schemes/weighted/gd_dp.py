"""GD-DP: every client sends its mean clipped gradient with Gaussian noise through a secure sum;
unit: one example.

Source: Zhang et al. (2024), "Differentially Private Federated Learning without Noise Addition: When
is it Possible?", arXiv:2405.04551, Table 1, "GD" with isotropic noise. Accounted exactly, as
Gaussian DP.
"""

import dataclasses

import jax.numpy as jnp

from fljax.accounting import events
from fljax.local import gaussian_sampling
from fljax.local.gaussian_sampling import WeightedSum
from fljax.schemes import base
from fljax.schemes.weighted import round as weighted
from fljax.server.rounds import Performance
from fljax.types import LossFn


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(weighted.Config):
    """As `weighted.round.Config`; batch_size is not used."""

    def __post_init__(self) -> None:
        super().__post_init__()
        weighted.refuse_water_filling(self, "gradients of all records")


def client(config: Config, loss: LossFn, performance: Performance) -> weighted.Client:
    """(1/D) sum_j clip(g_j) + noise."""
    num_records = config.records
    clipped_sum = gaussian_sampling.clipped_sum(
        loss, l2_clip_norm=config.l2_clip_norm, batch_size=performance.microbatch_size
    )
    stddev = weighted.client_stddev(config, num_records)

    def step(at: weighted.Turn) -> WeightedSum:
        weights = jnp.full((num_records,), 1 / num_records)
        mean = clipped_sum(at.params, at.examples, at.rows, weights, at.sample_key)
        return weighted.add_isotropic(mean, at.noise_key, stddev)

    return step


def event(config: Config) -> events.PrivacyEvent:
    """What one round does to one record. Raises ValueError if noise_multiplier is None."""
    return weighted.event(events.Gaussian(base.noise_multiplier(config)))


SCHEME = weighted.scheme(
    summary=(
        "mean clipped gradients of all examples, Gaussian noise per client, secure sum; unit: "
        "example"
    ),
    Config=Config,
    make=weighted.maker(client),
    event=event,
    normals=weighted.shares,
)
make, fitted, non_private = SCHEME.make, SCHEME.fitted, SCHEME.non_private
