"""White channel: clients add noise of their data's own shape, the same signal-to-noise ratio in
every direction; nats.

Source: Tan et al. (2024), "Defending Against Data Reconstruction Attacks in Federated Learning: An
Information Theory Approach", arXiv:2403.01268, section 5.2 and Eq. 19, with a floor under
directions without variance.
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
    """As `ChannelConfig`, with more nats: at equal nats this noise is stronger, and harder to
    remove.
    """

    nats: float = 20.0
    """As in `ChannelConfig`."""
    covariance_source: Literal["public", "declared", "private"] = "public"
    """public: the covariance of held-out records, which stands in for the clients' own law and
    certifies only where that is known. declared: the same, and you vouch that no client's records
    vary more. private: that of each client's own, which certifies nothing.
    """
    floor: float | None = None
    """Variance > 0 that the shape is lifted by in every direction. none: 1e-4 of the mean
    variance.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.one_of(
            ("public", "declared", "private"), covariance_source=self.covariance_source
        )
        if self.floor is not None:
            _validate.positive(floor=self.floor)


def solve(
    config: Config, dataset: Dataset, law: Law, value_range: tuple[float, float]
) -> channels.Solved:
    """Noise of the records' own shape, lifted by the floor."""
    del dataset, value_range
    floor = config.floor
    if floor is None and law.values.ndim == 2:
        # one for all clients, which no client's data decides alone
        floor = 1e-4 * float(law.values.mean())
    solved = information.white(
        law.values,
        nats=config.nats,
        covariance_source=config.covariance_source,
        floor=floor,
        estimated_from=law.estimated_from,
    )
    noise = channel.RecordNoise(
        jnp.log(jnp.asarray(solved.noise_var, jnp.float32)),
        jnp.asarray(np.max(solved.floor), jnp.float32),
        jnp.asarray(law.factor),
    )
    return noise, solved


inputs = channels.inputs_of(solve)

SCHEME = channels.scheme(
    summary="clients train on examples with noise shaped like them; nats per example, no epsilon",
    Config=Config,
    inputs=inputs,
)
make, event, spent = channels.make, channels.event, channels.spent
fitted, non_private = SCHEME.fitted, SCHEME.non_private
