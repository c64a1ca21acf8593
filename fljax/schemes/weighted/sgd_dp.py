"""SGD-DP: every client sends the mean clipped gradient of a random subset with Gaussian noise;
unit: one example.

Source: Zhang et al. (2024), "Differentially Private Federated Learning without Noise Addition: When
is it Possible?", arXiv:2405.04551, Table 1, "IID" with isotropic noise. Accounted as sampling
without replacement under replace-one.
"""

import dataclasses
import math

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
    """As `weighted.round.Config`; batch_size, a whole number, is the size of a client's subset.

    It is at most records_per_client.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        weighted.refuse_water_filling(self, "subsets of the records")
        most = math.inf if self.records_per_client is None else self.records_per_client
        if self.batch_size != int(self.batch_size) or not self.batch_size <= most:
            raise ValueError(
                "Expected batch_size to be a whole number up to "
                f"records_per_client={self.records_per_client}, got batch_size={self.batch_size!r}."
            )


def client(config: Config, loss: LossFn, performance: Performance) -> weighted.Client:
    """(1/B) sum over a subset of clip(g_j) + noise."""
    batch_size = int(config.batch_size)
    clipped_sum = gaussian_sampling.clipped_sum(
        loss, l2_clip_norm=config.l2_clip_norm, batch_size=performance.microbatch_size
    )
    stddev = weighted.client_stddev(config, batch_size)

    def step(at: weighted.Turn) -> WeightedSum:
        places = gaussian_sampling.subset_places(at.sample_key, at.rows.size, batch_size)
        weights = jnp.full((batch_size,), 1 / batch_size)
        mean = clipped_sum(at.params, at.examples, at.rows[places], weights, at.sample_key, places)
        return weighted.add_isotropic(mean, at.noise_key, stddev)

    return step


def event(config: Config) -> events.PrivacyEvent:
    """What one round does to one record. Raises ValueError if noise_multiplier is None."""
    step = events.Gaussian(base.noise_multiplier(config))
    return weighted.event(
        events.SampledWithoutReplacement(config.records, int(config.batch_size), step)
    )


SCHEME = weighted.scheme(
    summary=(
        "mean clipped gradients of random subsets, Gaussian noise per client, secure sum; "
        "unit: example"
    ),
    Config=Config,
    make=weighted.maker(client),
    event=event,
    normals=weighted.shares,
)
make, fitted, non_private = SCHEME.make, SCHEME.fitted, SCHEME.non_private
