"""Parameter channel: clients noise the gradient that they send, as much as a budget of nats needs.

By the clip norm, which bounds the trace of what is sent under any history, the budget is proved; by
a covariance that each client estimates from its own gradients, as the paper has it, nothing is.

Source: Tan et al. (2024), "Defending Against Data Reconstruction Attacks in Federated Learning: An
Information Theory Approach", arXiv:2403.01268, equations (11) to (15), the controlled channel of
parameters; noise by the clip norm is ours.
"""

import dataclasses
import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

import fljax_kernels
from fljax import _validate
from fljax._keys import Purpose
from fljax.accounting import events, information
from fljax.accounting.information import DataModel
from fljax.accounting.information import spent as spent_lib
from fljax.accounting.information.spent import Spent
from fljax.data import law, store
from fljax.data.facts import Facts
from fljax.errors import PrivacyPreconditionError
from fljax.local import keyed, sgd
from fljax.schemes import base
from fljax.schemes.channels import round as channels
from fljax.server import optimizers, rounds
from fljax.server.rounds import Clients, Release, Round, Sums
from fljax.types import LossFn
from fljax.upload.controlled_channel import controlled_channel


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(optimizers.ServerSteps):
    """Public numbers of the scheme; every one may be published.

    Raises:
      ValueError: a number is out of its range.
    """

    nats: float = 8.0
    """What one upload may tell about its client's records together, and so about each; inf adds no
    noise and clips nothing, and nothing is promised.
    """
    noise_from: Literal["clip_norm", "covariance"] = "clip_norm"
    """clip_norm: noise for any gradients within it, which is proved. covariance: the paper's, noise
    for the covariance of the client's own gradients, unclipped, which certifies nothing.
    """
    l2_clip_norm: float = 1.0
    """Bound on the gradient of each record, where noise is from the clip norm."""
    records_per_client: int | None = None
    """Most records of a client, which gradients add up and are divided by. none: of the data."""
    sampling_prob: float = 1.0
    """Chance that one client joins one round, in (0, 1]."""
    data_model: DataModel = "unknown"
    """gaussian declares that records are Gaussian, which certifies the bound on reconstruction
    where their spectrum is known; unknown: only the nats are certified.
    """
    entropy_nats: float | None = None
    """A lower bound on the differential entropy of a record that you vouch for: it certifies the
    bound on reconstruction for records of any kind. none: unknown.
    """
    server_learning_rate: float = 2.0
    """Step size of the server along the mean of the uploads."""
    server_momentum: float = 0.9
    noise_multiplier: float = 0.0
    """Must be 0: the noise follows from the nats."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.probability(sampling_prob=self.sampling_prob)
        _validate.positive(l2_clip_norm=self.l2_clip_norm)
        if self.records_per_client is not None:
            _validate.positive_int(records_per_client=self.records_per_client)
        if self.entropy_nats is not None and not math.isfinite(self.entropy_nats):
            raise ValueError(
                "Expected entropy_nats to be finite or none, got "
                f"entropy_nats={self.entropy_nats!r}."
            )
        if not self.nats > 0:
            raise ValueError(
                f"Expected nats > 0, which no noise at all reaches at 0, got nats={self.nats!r}."
            )
        _validate.one_of(("clip_norm", "covariance"), noise_from=self.noise_from)
        _validate.one_of(("gaussian", "unknown"), data_model=self.data_model)


@base.maker
def make(config: Config, loss: LossFn, given: base.Given) -> base.FederatedAlgorithm:
    """Builds the algorithm: each client sends the mean gradient of its records with noise, the
    server steps along the mean upload.

    Guarantee: with noise_from="clip_norm" one upload tells at most `nats` about the client's
    records together (mutual information, an average over noise), labels included, whatever was sent
    before and whatever the server sends; uploads add up. With "covariance" nothing is proved.
    Neither is an epsilon. Left out of the nats is whether an upload was sent at all: a sum of
    gradients that is not finite sends zeros. Idealisation: noise is drawn in float32 with the
    key's generator; threefry is no cryptographic source. RoundInfo is not private.

    Args, Raises: as `base.Make`; ValueError also where records_per_client is none or
      noise_multiplier is not 0.
    """
    base.no_local_steps(given.local_optimizer)
    if config.noise_multiplier != 0:
        raise ValueError(
            "Expected noise_multiplier=0, the noise following from the nats, got "
            f"noise_multiplier={config.noise_multiplier!r}."
        )
    if config.records_per_client is None:
        raise ValueError("Expected records_per_client to be a number, got none.")
    most = config.records_per_client
    one = keyed.of_one(loss)
    if math.isinf(config.nats):
        upload = None
        gradients = fljax_kernels.per_example_grads(one)
    else:
        upload = controlled_channel(
            one,
            nats=config.nats,
            learning_rate=1.0,
            batch_size=most,
            l2_clip_norm=config.l2_clip_norm if config.noise_from == "clip_norm" else None,
        )

    def of_client(here: Round, client: Clients) -> tuple[Any, jax.Array]:
        mask = client.rows >= 0
        count = jnp.maximum(1, mask.sum()).astype(jnp.float32)
        shuffled = here.client_keys(client.ids, Purpose.SHUFFLE)
        batch = keyed.drawing(
            loss, sgd.take_examples(here.examples, client.rows), shuffled, 0, jnp.arange(mask.size)
        )
        if upload is None:
            rows = gradients(here.state.params, batch, batch_mask=mask)
            total, _ = rows.weighted_sum(lambda norms: jnp.full_like(norms, 1 / most))
            losses = jnp.where(mask, rows.values().astype(jnp.float32), jnp.float32(0))
            return total, jnp.stack([losses.sum() / count, jnp.zeros((), jnp.float32)])
        sent = upload(
            here.state.params,
            batch,
            key=here.client_keys(client.ids, Purpose.NOISE),
            round_index=here.state.round,
            batch_mask=mask,
        )
        return sent.update, jnp.stack([sent.loss, sent.clipped / count])

    def release(here: Round, clients: Clients, sums: Sums) -> Release:
        del here, clients
        return Release(sums.total, config.sampling_prob * given.num_units)

    algorithm = rounds.federated(
        rounds.each(of_client),
        release,
        server_optimizer=given.server_optimizer,
        performance=given.performance,
        client_sampling_prob=config.sampling_prob,
    )
    return algorithm._replace(round=fljax_kernels.loop_friendly(algorithm.round))


def fitted(config: Config, facts: Facts) -> Config:
    """`config` with records_per_client from the data.

    Raises:
      PrivacyPreconditionError: a client has more records.
    """
    if config.records_per_client is None:
        return dataclasses.replace(config, records_per_client=max(1, facts.most_examples))
    if config.records_per_client < facts.most_examples:
        raise PrivacyPreconditionError(
            f"Expected records_per_client >= {facts.most_examples}, the most records that a client "
            f"has, got records_per_client={config.records_per_client}."
        )
    return config


def inputs(config: Config, task: Any) -> dict[str, Any]:
    """Nothing: the noise is solved for what is sent, and for no data.

    Raises:
      ValueError: records are not floating numbers, or all alike.
    """
    del config
    law.value_range(task.dataset)
    return {}


def spent(config: Config, task: Any, inputs: dict[str, Any], num_rounds: int) -> Spent | None:
    """What `num_rounds` rounds of a run on `task` tell about the records of its clients; None where
    there is no noise.

    A client is counted as if it had been in every round: an upper bound where it was not. Gradients
    take labels in, so that their entropy is not added.

    Raises:
      ValueError: num_rounds is negative.
    """
    del inputs
    _validate.non_negative_int(num_rounds=num_rounds)
    if math.isinf(config.nats):
        return None
    source = "public"
    known = law.of_records(task.dataset, task.client_data, source)
    count = store.num_examples(task.client_data)
    uses = np.where(count > 0, num_rounds, 0)
    size = known.values.size
    if config.noise_from == "covariance":
        one = information.estimated_upload(nats=config.nats, record_dimension=size)
    else:
        one = information.clipped_upload(
            l2_clip_norm=config.l2_clip_norm,
            num_params=1,  # the budget is met with any number of them
            record_dimension=size,
            nats=config.nats,
            space="gradient",
        ).one_use()
    leakage = dataclasses.replace(one, nats=config.nats * uses, mode="linear")
    return spent_lib.of_run(
        leakage,
        leakage.nats,
        0.0,
        count,
        uses,
        known.values,
        law.value_range(task.dataset),
        config.data_model,
        config.entropy_nats,
        known.estimated_from,
    )


def event(config: Config) -> events.PrivacyEvent:
    """A release without differential privacy: the promise is in nats."""
    del config
    return base.no_guarantee("example")


def non_private(config: Config) -> Config:
    """The same training without clipping or noise."""
    return dataclasses.replace(config, nats=math.inf)


SCHEME = base.Scheme(
    summary="clients send gradients with noise; nats per upload, no epsilon",
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
    uploads_seen=True,
)
