"""Natural channel: clients add noise of one variance to all numbers of their records; nats, not
epsilon.

Source: Tan et al. (2024), "Defending Against Data Reconstruction Attacks in Federated Learning: An
Information Theory Approach", arXiv:2403.01268, section 5.1 and Eq. 18; the range-certified form is
ours.
"""

import dataclasses
from typing import Literal

import jax.numpy as jnp

from fljax import _validate
from fljax.accounting import information
from fljax.data import channel
from fljax.data.dataset import Dataset
from fljax.data.law import Law
from fljax.schemes.channels import round as channels


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(channels.ChannelConfig):
    """As `ChannelConfig`, and where the variance comes from."""

    covariance_source: Literal["range", "public", "declared", "private"] = "range"
    """range: no data; records are clipped to the range of values and nats hold for any
    distribution. public: the covariance of held-out records, which stands in for the clients' own
    law and certifies only where that is known.
    declared: the same, and you vouch that no client's records vary more. private: that of each
    client's own, which certifies nothing.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.one_of(
            ("range", "public", "declared", "private"), covariance_source=self.covariance_source
        )


def solve(
    config: Config, dataset: Dataset, law: Law, value_range: tuple[float, float]
) -> channels.Solved:
    """Noise of one variance, for a range of values or for the spectrum of the records."""
    del dataset
    source = config.covariance_source
    if source == "range":
        solved = information.range_certified(
            *value_range, dimension=law.values.size, nats=config.nats
        )
    else:
        solved = information.natural(
            law.values,
            nats=config.nats,
            covariance_source=source,
            estimated_from=law.estimated_from,
        )
    noise = channel.RecordNoise(
        jnp.log(jnp.asarray(solved.noise_var, jnp.float32)),
        jnp.ones((), jnp.float32),
        value_range=value_range if source == "range" else None,
    )
    return noise, solved


inputs = channels.inputs_of(solve)

SCHEME = channels.scheme(
    summary="clients train on examples with noise of one variance; nats per example, no epsilon",
    Config=Config,
    inputs=inputs,
)
make, event, spent = channels.make, channels.event, channels.spent
fitted, non_private = SCHEME.fitted, SCHEME.non_private
