"""Personalized channel: clients add more noise where a mask says that a record is to be protected
more; nats.

Source: Tan et al. (2024), "Defending Against Data Reconstruction Attacks in Federated Learning: An
Information Theory Approach", arXiv:2403.01268, section 5.3 and appendix B; Eq. 20 as a difference,
which its printed quotient is not.
"""

import dataclasses
from typing import Literal

import jax.numpy as jnp
import numpy as np

from fljax import _validate
from fljax.accounting import information
from fljax.data import channel
from fljax.data.dataset import Dataset
from fljax.data.law import Law
from fljax.schemes.channels import round as channels


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(channels.ChannelConfig):
    """As `ChannelConfig`, and the mask."""

    covariance_source: Literal["public", "declared"] = "public"
    """public: the covariance of held-out records, which stands in for the clients' own law and
    certifies only where that is known. declared: the same, and you vouch that no client's records
    vary more.
    """

    mask_weight: float = 50.0
    """Noise variance in the middle block of the image, relative to elsewhere; > 0, 1 gives the
    natural channel.
    """
    method: Literal["exact", "theorem3"] = "exact"
    """theorem3: the paper's bound, with more noise than the same nats need."""
    floor: float = 1e-4
    """Variance > 0 that is added to every coordinate before solving, since theorem3 divides by the
    least one.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.positive(mask_weight=self.mask_weight, floor=self.floor)
        _validate.one_of(("exact", "theorem3"), method=self.method)
        _validate.one_of(("public", "declared"), covariance_source=self.covariance_source)


def solve(
    config: Config, dataset: Dataset, law: Law, value_range: tuple[float, float]
) -> channels.Solved:
    """Noise whose variance follows the mask; records are images `[height, width, channels]`."""
    del value_range
    weights = channel.eye_mask(np.shape(dataset.test["x"])[1:], config.mask_weight)
    factor = law.factor.astype(np.float64)
    solved = information.personalized(
        factor @ factor.T + config.floor * np.eye(factor.shape[0]),
        weights,
        nats=config.nats,
        covariance_source=config.covariance_source,
        method=config.method,
        estimated_from=law.estimated_from,
    )
    noise = channel.RecordNoise(
        jnp.log(jnp.asarray(solved.noise_var, jnp.float32)), jnp.asarray(weights, jnp.float32)
    )
    return noise, solved


inputs = channels.inputs_of(solve)

SCHEME = channels.scheme(
    summary="clients train on examples with more noise behind a mask; nats per example, no epsilon",
    Config=Config,
    inputs=inputs,
)
make, event, spent = channels.make, channels.event, channels.spent
fitted, non_private = SCHEME.fitted, SCHEME.non_private
