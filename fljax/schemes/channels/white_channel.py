"""White channel: clients add noise of their data's own shape, the same signal-to-noise ratio in
every direction; nats.

Source: Tan et al. (2024), "Defending Against Data Reconstruction Attacks in Federated Learning: An
Information Theory Approach", arXiv:2403.01268, section 5.2 and Eq. 19, with a floor under
directions without variance.
"""

import dataclasses
import math
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

from fljax import _validate
from fljax.accounting import information
from fljax.data import channel
from fljax.schemes import base
from fljax.schemes.channels import round as channels

fitted = channels.fitted


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


def inputs(config: Config, task: Any) -> dict[str, Any]:
    """The channel for a run's data.

    Raises:
      ValueError: records are not floating numbers, or all alike.
    """
    if math.isinf(config.nats):
        return {"channel": None}
    value_range, law = channels.value_range(task), channels.law(task, config.covariance_source)
    floor = config.floor
    if floor is None and law.values.ndim == 2:
        floor = 1e-4 * float(
            law.values.mean()
        )  # one for all clients, which no client's data decides alone
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
    solution = channels.Calibrated(
        noise, solved, law.values, task.dataset.num_classes, value_range, law.estimated_from
    )
    return {"channel": solution}


make, event, non_private, spent = (
    channels.make,
    channels.event,
    channels.non_private,
    channels.spent,
)

SCHEME = base.Scheme(
    summary="clients train on examples with noise shaped like them; nats per example, no epsilon",
    promise="nats",
    Config=Config,
    make=make,
    event=event,
    fitted=fitted,
    non_private=non_private,
    noise_at="client",
    start=channels.START,
    inputs=inputs,
    spent=spent,
)
