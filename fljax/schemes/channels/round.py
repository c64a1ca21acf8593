"""What the schemes with noise in the data share: plain federated averaging of clients that train on
noisy records.

Everything a client sends is computed from noisy copies of its records, so it tells no more about
them than those copies
do: nats, not epsilon. No update is clipped and none gets noise.

Source: Tan et al. (2024), "Defending Against Data Reconstruction Attacks in Federated Learning: An
Information Theory Approach", arXiv:2403.01268, section 5.
"""

import dataclasses
import math
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fljax import _validate
from fljax.accounting import events, information
from fljax.accounting.information import CovarianceSource, DataModel
from fljax.data import channel as record_noise
from fljax.data import store
from fljax.local import sgd
from fljax.schemes import base
from fljax.schemes.central import round as central
from fljax.server.rounds import Clients, Performance, Round
from fljax.types import Batch, LossFn

START: dict[str, dict[str, Any]] = {
    "data": {"num_clients": 50},
    "privacy": {"target_epsilon": None},
    "run": {"num_rounds": 40},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChannelConfig:
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
    local_learning_rate: float = 0.5
    """Step size of a client's SGD."""
    local_batch_size: int = 10
    """Records in a step of a client's SGD."""
    num_local_epochs: int = 1
    """Passes of a client over its records in one round: uses of each record."""
    server_learning_rate: float = 1.0
    """Step size of the server along the mean update; 1 (with server_momentum 0) is FedAvg."""
    server_momentum: float = 0.9
    """Momentum of the server, in [0, 1)."""
    noise_multiplier: float = 0.0
    """Must be 0: the noise is in the records, not in the updates."""

    def __post_init__(self) -> None:
        central.check_config(_central(self))
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
        _validate.positive(local_learning_rate=self.local_learning_rate)
        _validate.positive_int(
            local_batch_size=self.local_batch_size, num_local_epochs=self.num_local_epochs
        )


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
    about single records, membership, or labels. Idealisation: noise is drawn in float32 with JAX's
    threefry generator, which is no cryptographic source. RoundInfo is not private.

    Args, Raises: as `base.Make`; examples are {"x", ..}, and noise is added to "x" alone;
    ValueError also where nats and channel do not go together, or noise_multiplier is not 0.

      channel: of `inputs`. None where config.nats is inf: no noise.
    """
    if config.noise_multiplier != 0:
        raise ValueError(
            "Expected noise_multiplier=0, the noise being in the records, "
            f"got noise_multiplier={config.noise_multiplier!r}."
        )
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

    train = sgd.local_sgd(
        loss,
        learning_rate=config.local_learning_rate,
        batch_size=config.local_batch_size,
        num_epochs=config.num_local_epochs,
        view=None if silent else view,
        optimizer=local_optimizer,
    )
    return central.client_level(
        train,
        _central(config),
        num_clients=num_units,
        server_optimizer=server_optimizer,
        performance=performance,
        own=None if silent else own,
    )


class _Central(NamedTuple):
    """What `central.round.client_level` reads: no clipping, no noise."""

    sampling_prob: float
    server_learning_rate: float
    server_momentum: float
    clipping_style: str = "flat"
    target_quantile: float | None = None
    l2_clip_norm: float = base.NEVER_CLIPS
    noise_multiplier: float = 0.0


def _central(config: ChannelConfig) -> _Central:
    return _Central(config.sampling_prob, config.server_learning_rate, config.server_momentum)


fitted = base.fitted


def event(config: ChannelConfig) -> events.PrivacyEvent:
    """A release without differential privacy: a channel's promise is in nats."""
    del config
    return base.no_guarantee("example")


def non_private(config: Any) -> Any:
    """The same training on the records themselves."""
    return dataclasses.replace(config, nats=math.inf)


class Spent(NamedTuple):
    """What a run told about each record, client by client: `[C]` numbers, alike for all records of
    a client.

    num_records; uses: of each record. nats, linear_nats: joint, and added up use by use; labels
    included.
    label_nats: of them. mse: lower bound on the expected squared error per coordinate of any
      reconstruction.
    psnr: the same in dB, an upper bound. certified, reason: of the nats. mse_certified, mse_reason:
      of the bound.
    """

    num_records: np.ndarray
    uses: np.ndarray
    nats: np.ndarray
    linear_nats: np.ndarray
    label_nats: float
    mse: np.ndarray
    psnr: np.ndarray
    certified: bool
    reason: str
    covariance_source: CovarianceSource
    mse_certified: bool
    mse_reason: str


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
    return as_spent(
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


def as_spent(
    leakage: information.Leakage,
    linear_nats: Any,
    label_nats: float,
    count: np.ndarray,
    uses: np.ndarray,
    values: np.ndarray,
    value_range: tuple[float, float],
    data_model: DataModel = "unknown",
    entropy_nats: float | None = None,
    estimated_from: int | None = None,
) -> Spent:
    """The record of a run, with the bound on reconstruction that its nats imply for these
    eigenvalues, or entropy.
    """
    if entropy_nats is None:
        bound = information.distortion_rate(leakage, values, data_model=data_model)
        if bound.certified and estimated_from is not None:
            why = (
                f"the spectrum of {estimated_from} held-out records stands in for the law of "
                "records"
            )
            bound = dataclasses.replace(bound, certified=False, reason=why)
    else:
        bound = information.theorem1(leakage, entropy=entropy_nats)
    low, high = value_range

    def each(x: Any) -> np.ndarray:
        return np.broadcast_to(np.asarray(x, np.float64), count.shape)

    return Spent(
        count,
        uses,
        each(leakage.nats),
        each(linear_nats),
        label_nats,
        each(bound.mse),
        each(bound.psnr(high - low)),
        leakage.certified,
        leakage.reason,
        leakage.covariance_source,
        bound.certified,
        bound.reason,
    )


class Law(NamedTuple):
    """What a channel is solved from: one covariance for all clients, or one for each.

    values: `[d]` or `[C, d]`, eigenvalues, descending. factor: any `[d, k]` or `[C, d, k]` with
    factor factor^T the covariance. estimated_from: records that it was estimated from; None where
    it is known or declared.
    """

    values: np.ndarray
    factor: np.ndarray
    estimated_from: int | None


def value_range(task: Any) -> tuple[float, float]:
    """Least and greatest value in the held-out records, which are public.

    Raises:
      ValueError: records are not floating numbers, or all values are alike.
    """
    test = np.asarray(task.dataset.test["x"])
    if not np.issubdtype(test.dtype, np.floating):
        raise ValueError(
            f"Expected records of floating numbers for a channel, got dtype {test.dtype}."
        )
    low, high = float(test.min()), float(test.max())
    if not low < high:
        raise ValueError(
            "Expected held-out records that are not all zero or all alike, got only the value "
            f"{low!r}."
        )
    return low, high


def law(task: Any, source: str) -> Law:
    """Of the data set, where it is known; else of the held-out records; or, "private", of each
    client's own.

    Raises:
      ValueError: a client has fewer than two records, or alike ones, or is on disk, where its own
        are asked for.
    """
    known, test = task.dataset.covariance, np.asarray(task.dataset.test["x"])
    if source != "private":
        if known is not None:
            values, vectors = np.linalg.eigh(known)
            roots = np.sqrt(np.maximum(values, 0))
            return Law(np.maximum(values, 0)[::-1], (vectors * roots).astype(np.float32), None)
        estimated = None if source == "declared" else len(test)
        return Law(record_noise.spectrum(test), record_noise.data_factor(test), estimated)
    if isinstance(task.client_data, store.Store):
        raise ValueError(
            "Expected covariance_source other than 'private' for clients on disk, got 'private'."
        )
    train = np.asarray(task.dataset.train["x"])
    spectra: list[np.ndarray] = []
    factors: list[np.ndarray] = []
    for client, row in enumerate(np.asarray(task.client_data.indices)):
        own = train[row[row >= 0]]
        spectrum = record_noise.spectrum(own) if len(own) > 1 else np.zeros(1)
        if not spectrum.max() > 0:
            raise ValueError(
                "Expected clients of at least two records that differ for "
                f"covariance_source='private', got client {client} with {len(own)}."
            )
        spectra.append(spectrum)
        factors.append(record_noise.data_factor(own))
    width = max(factor.shape[1] for factor in factors)
    padded = [np.pad(factor, ((0, 0), (0, width - factor.shape[1]))) for factor in factors]
    return Law(np.stack(spectra), np.stack(padded), None)
