"""What the schemes with noise in the data share: plain federated averaging of clients that train on
noisy records.

Everything a client sends is computed from noisy copies of its records, so it tells no more about
them than those copies
do: nats, not epsilon. No update is clipped and none gets noise.

Source: Tan et al. (2024), "Defending Against Data Reconstruction Attacks in Federated Learning: An
Information Theory Approach", arXiv:2403.01268, section 5.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fljax import _validate
from fljax.accounting import events, information
from fljax.accounting.information import DataModel
from fljax.accounting.information import spent as spent_lib
from fljax.accounting.information.spent import Spent
from fljax.data import channel as record_noise
from fljax.data import law, store
from fljax.data.dataset import Dataset
from fljax.local import steps
from fljax.schemes import base
from fljax.schemes.central import round as central
from fljax.server import optimizers
from fljax.server.rounds import Clients, Performance, Round
from fljax.types import Batch, LossFn

START: dict[str, dict[str, Any]] = {
    "data": {"num_clients": 500},
    "privacy": {"target_epsilon": None},
    "run": {"num_rounds": 40},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChannelConfig(optimizers.ServerSteps, steps.LocalSteps):
    """Public numbers of a channel scheme; every one may be published.

    Raises:
      ValueError: a number is out of its range.
    """

    nats: float = 8.0
    """What one use of a record may tell about it, in nats; inf adds no noise, and nothing is
    promised.
    """
    noise_mode: Literal["fresh", "once"] = "fresh"
    """fresh: new noise at each use of a record. once: its noise is drawn once and kept."""
    data_model: DataModel = "unknown"
    """gaussian declares that records are Gaussian, which certifies the bound on reconstruction;
    unknown: only the nats are certified, and the bound is what it would be for Gaussian records,
    unless entropy_nats is known.
    """
    entropy_nats: float | None = None
    """A lower bound on the differential entropy of a record that you vouch for: it certifies the
    bound on reconstruction for records of any kind. none: unknown.
    """
    labels_public: bool = False
    """Labels go out as they are. False: ln(classes) nats are added to each record for its label."""
    sampling_prob: float = 1.0
    """Chance that one client joins one round, in (0, 1]."""
    local_batch_size: int = 10
    """Records in a step of a client's SGD."""
    num_local_epochs: int = 1
    """Passes of a client over its records in one round: uses of each record."""
    server_momentum: float = 0.9
    noise_multiplier: float = 0.0
    """Must be 0: the noise is in the records, not in the updates."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.probability(sampling_prob=self.sampling_prob)
        if self.entropy_nats is not None and not math.isfinite(self.entropy_nats):
            raise ValueError(
                "Expected entropy_nats to be finite or none, got "
                f"entropy_nats={self.entropy_nats!r}."
            )
        if not self.nats > 0:
            raise ValueError(
                f"Expected nats > 0, which no noise at all reaches at 0, got nats={self.nats!r}."
            )
        _validate.one_of(("fresh", "once"), noise_mode=self.noise_mode)
        _validate.one_of(("gaussian", "unknown"), data_model=self.data_model)


class Calibrated(NamedTuple):
    """A channel solved for a run's clients.

    noise: what clients add. capacity: what it is worth in nats. values: `[d]` or `[C, d]`,
    eigenvalues of the records' covariance, as far as it is known. num_classes: of the labels.
    value_range: least and greatest value.
    estimated_from: records that `values` were estimated from; None where they are known or
      declared.
    """

    noise: record_noise.RecordNoise
    capacity: information.Channel
    values: np.ndarray
    num_classes: int
    value_range: tuple[float, float]
    estimated_from: int | None = None


Solved = tuple[record_noise.RecordNoise, information.Channel]  # what clients add; its worth
Inputs = Callable[[Any, Any], dict[str, Any]]


def inputs_of(solve: Callable[[Any, Dataset, law.Law, tuple[float, float]], Solved]) -> Inputs:
    """`inputs` of a scheme from `solve(config, data set, law of records, their range)`."""

    def inputs(config: Any, task: Any) -> dict[str, Any]:
        """The channel for a run's data.

        Raises:
          ValueError: records are not floating numbers (for a mask: images of them), or all alike.
        """
        if math.isinf(config.nats):
            return {"channel": None}
        if task.dataset.task not in ("classes", "binary") and not config.labels_public:
            raise ValueError(
                f"Expected labels_public with task={task.dataset.task!r}, since nobody knows how "
                "much targets tell that are no classes, got labels_public=False."
            )
        data, value_range = task.dataset, law.value_range(task.dataset)
        known = law.of_records(data, task.client_data, config.covariance_source)
        noise, worth = solve(config, data, known, value_range)
        solution = Calibrated(
            noise, worth, known.values, data.num_classes, value_range, known.estimated_from
        )
        return {"channel": solution}

    return inputs


def make(
    config: ChannelConfig,
    loss: LossFn,
    *,
    num_units: int,
    channel: Calibrated | None,
    performance: Performance = Performance(),
    server_optimizer: optax.GradientTransformation | None = None,
    local_optimizer: optax.GradientTransformation | None = None,
) -> base.FederatedAlgorithm:
    """Builds the algorithm: clients train on noisy records, the server steps along their mean
    update.

    Guarantee: what the server ever sees of a client tells at most `spent(..)` about each of its
    records, in nats (mutual information, an average over records and noise), whatever the server
    sends: unit "example". It holds if the records' covariance is at most the one that `channel` was
    solved for, records are independent, and nothing but noisy records steers training: no statistic
    of clean batches, no loss on clean data. It is no differential privacy: it promises nothing
    about single records, membership, or labels. Idealisation: noise is drawn in float32 with the
    key's generator; threefry is no cryptographic source. RoundInfo is not private.

    Args, Raises: as `base.Make`; examples are {"x", ..}, and noise is added to "x" alone;
    ValueError also where nats and channel do not go together, or noise_multiplier is not 0.

      channel: of `inputs`. None where config.nats is inf: no noise.
    """
    if config.noise_multiplier != 0:
        raise ValueError(
            "Expected noise_multiplier=0, the noise being in the records, "
            f"got noise_multiplier={config.noise_multiplier!r}."
        )
    given = base.given(config, num_units, performance, server_optimizer, local_optimizer)
    silent = math.isinf(config.nats)
    if not silent and channel is None:
        raise ValueError(
            "Expected a channel (the scheme's `inputs`) where nats is finite, got channel=None."
        )
    fresh = config.noise_mode == "fresh"

    def own(here: Round, clients: Clients) -> Any:
        first_use = here.state.round.astype(jnp.int32) * config.num_local_epochs
        keys = record_noise.client_keys(here.key, clients.ids)
        return keys, clients.ids, jnp.broadcast_to(first_use, clients.ids.shape)

    def view(batch: Batch, places: jax.Array, own: Any, epoch: jax.Array) -> Batch:
        assert channel is not None
        key, client, first_use = own
        use = first_use + epoch.astype(jnp.int32) if fresh else 0
        noise = record_noise.of_client(channel.noise, jnp.maximum(client, 0))
        return {
            **batch,
            "x": record_noise.noisy(noise, batch["x"], record_noise.record_keys(key, places, use)),
        }

    train = steps.train(
        config, loss, view=None if silent else view, optimizer=given.local_optimizer
    )
    return central.client_level(
        train, _Central(config.sampling_prob), given, own=None if silent else own
    )


class _Central(NamedTuple):
    """What `central.round.client_level` reads: no clipping, no noise."""

    sampling_prob: float
    clipping_style: str = "flat"
    target_quantile: float | None = None
    l2_clip_norm: float = base.NEVER_CLIPS
    noise_multiplier: float = 0.0


def draws(config: ChannelConfig, num_rounds: int) -> int:
    """How often so many rounds draw noise for a record of a client that is in each of them."""
    return 1 if config.noise_mode == "once" else num_rounds * config.num_local_epochs


def event(config: ChannelConfig) -> events.PrivacyEvent:
    """A release without differential privacy: a channel's promise is in nats."""
    del config
    return base.no_guarantee("example")


def non_private(config: Any) -> Any:
    """The same training on the records themselves."""
    return dataclasses.replace(config, nats=math.inf)


def spent(
    config: ChannelConfig, task: Any, inputs: dict[str, Any], num_rounds: int
) -> Spent | None:
    """What `num_rounds` rounds of a run on `task` tell about the records of its clients; None where
    there is no noise.

    A client is counted as if it had been in every round: an upper bound where it was not.

    Raises:
      ValueError: num_rounds is negative.
    """
    _validate.non_negative_int(num_rounds=num_rounds)
    channel: Calibrated | None = inputs["channel"]
    if channel is None:
        return None
    count = store.num_examples(task.client_data)
    uses = np.where(count > 0, num_rounds * config.num_local_epochs, 0)
    label_nats = 0.0 if config.labels_public else information.label_entropy(channel.num_classes)
    once = config.noise_mode == "once"
    leakage = information.after_uses(
        channel.capacity, uses, label_nats=label_nats, mode="once" if once else "joint"
    )
    linear = information.after_uses(
        channel.capacity, uses, label_nats=label_nats, mode="once" if once else "linear"
    )
    return spent_lib.of_run(
        leakage,
        linear.nats,
        label_nats,
        count,
        uses,
        channel.values,
        channel.value_range,
        config.data_model,
        config.entropy_nats,
        channel.estimated_from,
    )


scheme = functools.partial(
    base.Scheme,
    promise="nats",
    make=make,
    event=event,
    fitted=base.fitted,
    non_private=non_private,
    noise_at="client",
    start=START,
    spent=spent,
)
