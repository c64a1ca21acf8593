"""GSGD-DP: clients weigh their records by Gaussian numbers and add what that noise lacks (WF-NA);
unit: one example.

Source: Zhang et al. (2024), "Differentially Private Federated Learning without Noise Addition: When
is it Possible?", arXiv:2405.04551, section 5 and Table 1. The covariance of what is sent depends on
the data, and that is accounted for.
"""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp

from fljax.accounting import events
from fljax.local import gaussian_sampling
from fljax.local.gaussian_sampling import WeightedSum
from fljax.schemes import base
from fljax.schemes.weighted import round as weighted
from fljax.server.rounds import Performance
from fljax.types import LossFn
from fljax.upload import water_filling


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(weighted.Config):
    """As `weighted.round.Config`; batch_size > 0 sets the scale of the weights and need not be a
    whole number.
    """

    noise: Literal["isotropic", "water_filling"] = "water_filling"
    per_leaf: bool = False
    """Weigh and lift each parameter array by itself: cheaper where arrays are smaller than
    records_per_client.
    """


def client(config: Config, loss: LossFn, performance: Performance) -> weighted.Client:
    """sum_j (1/D + xi_j / sqrt(B D)) clip(g_j), xi ~ N(0, I), + noise."""
    num_records, batch_size = config.records, config.batch_size
    stddev = weighted.client_stddev(config, num_records)
    clipped_sum = gaussian_sampling.clipped_sum(
        loss, l2_clip_norm=config.l2_clip_norm, batch_size=performance.microbatch_size
    )
    clipped_gradients = gaussian_sampling.clipped_gradients(loss, l2_clip_norm=config.l2_clip_norm)

    def isotropic(at: weighted.Turn) -> WeightedSum:
        weights = gaussian_sampling.gaussian_weights(at.sample_key, num_records, batch_size)
        mean = clipped_sum(at.params, at.examples, at.rows, weights, at.sample_key)
        return weighted.add_isotropic(mean, at.noise_key, stddev)

    scale = 1 / (batch_size * num_records)
    lift = water_filling.lifted_per_leaf if config.per_leaf else water_filling.lifted

    def filled(at: weighted.Turn) -> WeightedSum:
        matrix = clipped_gradients(at.params, at.examples, at.rows, at.sample_key)
        # One draw with the law of the sampling noise and of what fills it up, instead of two.
        noise = lift(matrix, at.noise_key, at.params, scale=scale, stddev=stddev)
        step = matrix.weighted_sum(jax.tree.map(lambda w: 1 / num_records + w, noise.weights))
        return step._replace(sum=jax.tree.map(jnp.add, step.sum, noise.direct))

    return filled if config.noise == "water_filling" and stddev > 0 else isotropic


def event(config: Config) -> events.PrivacyEvent:
    """What one round does to one record, the change of the covariance included.

    The bound is `fljax.accounting.weighted_sums.curves.joint`.

    Raises:
      ValueError: noise_multiplier is None.
    """
    rate = config.batch_size / config.records
    lifted = config.noise == "water_filling"
    return weighted.event(events.GaussianWeighted(base.noise_multiplier(config), rate, lifted))


SCHEME = weighted.scheme(
    summary=(
        "Gaussian-weighted clipped gradients lifted by water-filling noise, secure sum; unit: "
        "example"
    ),
    Config=Config,
    make=weighted.maker(client),
    event=event,
)
make, fitted, non_private = SCHEME.make, SCHEME.fitted, SCHEME.non_private
