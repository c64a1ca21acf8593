"""Natural channel: clients add noise of one variance to all numbers of their records; nats, not
epsilon.

Source: Tan et al. (2024), "Defending Against Data Reconstruction Attacks in Federated Learning: An
Information Theory Approach", arXiv:2403.01268, section 5.1 and Eq. 18; the range-certified form is
ours.
"""

import dataclasses
import math
from typing import Any, Literal

import jax.numpy as jnp

from fljax import _validate
from fljax.accounting import information
from fljax.data import channel
from fljax.schemes import base
from fljax.schemes.channels import round as channels

fitted = channels.fitted


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


def inputs(config: Config, task: Any) -> dict[str, Any]:
    """The channel for a run's data.

    Raises:
      ValueError: records are not floating numbers, or all alike.
    """
    if math.isinf(config.nats):
        return {"channel": None}
    source, value_range = config.covariance_source, channels.value_range(task)
    law = channels.law(task, source)
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
    summary="clients train on examples with noise of one variance; nats per example, no epsilon",
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
