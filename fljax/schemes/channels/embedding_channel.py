"""Embedding channel: clients train on their records' first principal directions alone, with noise
of one variance along them; nats, not epsilon.

The embedding is linear and public, made of held-out records, and taken back to the records' shape,
so that any model trains on it. What it leaves out is what compression of records leaves out.

Source: Tan et al. (2024), "Defending Against Data Reconstruction Attacks in Federated Learning: An
Information Theory Approach", arXiv:2403.01268, section 5.1 (noise on embeddings) and Figures 7 and
8 (directions that are not sent); principal directions for the embedding are ours.
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
    """As `ChannelConfig`, and how much of a record is sent."""

    kept: float = 0.25
    """Share of the principal directions that are sent, in (0, 1]; those of the largest variance."""
    covariance_source: Literal["public", "declared"] = "public"
    """public: the covariance of held-out records, which stands in for the clients' own law and
    certifies only where that is known. declared: the same, and you vouch that no client's records
    vary more along any of these directions.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.probability(kept=self.kept)
        _validate.one_of(("public", "declared"), covariance_source=self.covariance_source)


def solve(
    config: Config, dataset: Dataset, law: Law, value_range: tuple[float, float]
) -> channels.Solved:
    """Noise of one variance along the directions that are kept."""
    del value_range
    size = law.values.size
    count = max(1, round(config.kept * size))
    directions = np.linalg.svd(law.factor.astype(np.float64), full_matrices=True)[0][:, :count]
    # What is left out tells nothing: a spectrum of zeros there.
    solved = information.natural(
        np.where(np.arange(size) < count, law.values, 0),
        nats=config.nats,
        covariance_source=config.covariance_source,
        estimated_from=law.estimated_from,
    )
    centre = np.asarray(dataset.test["x"], np.float64).mean(axis=0).reshape(-1)
    noise = channel.RecordNoise(
        jnp.log(jnp.asarray(solved.noise_var, jnp.float32)),
        jnp.zeros((), jnp.float32),
        jnp.asarray(directions, jnp.float32),
        centre=jnp.asarray(centre, jnp.float32),
    )
    return noise, solved


inputs = channels.inputs_of(solve)

SCHEME = channels.scheme(
    summary="clients train on noisy principal directions of examples; nats per example, no epsilon",
    Config=Config,
    inputs=inputs,
)
make, event, spent = channels.make, channels.event, channels.spent
fitted, non_private = SCHEME.fitted, SCHEME.non_private
