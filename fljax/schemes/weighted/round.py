"""The round that the schemes with a secure sum over equal clients share: one clipped gradient step,
noised per client.

Source: Zhang et al. (2024), "Differentially Private Federated Learning without Noise Addition: When
is it Possible?", arXiv:2405.04551, sections 2 and 5.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

import fljax_kernels
from fljax import _keys, _validate, errors
from fljax.accounting import events
from fljax.data import parties
from fljax.data.cohorts import Cohort
from fljax.data.facts import Facts
from fljax.errors import PrivacyPreconditionError
from fljax.local.gaussian_sampling import WeightedSum
from fljax.schemes import base
from fljax.server import optimizers, rounds
from fljax.server.rounds import Clients, Performance, Release, Round
from fljax.types import Batch, LossFn, Params

# What `fljax simulate` starts from: 50 equal clients and a linear model, as in the paper's Figure
# 5.
START: dict[str, dict[str, Any]] = {
    "data": {"num_clients": 50, "partition": "iid"},
    "model": {"model": "softmax"},
    "scheme": {"num_parties": None, "records_per_client": None},
    "privacy": {"target_delta": 5e-5},
    "run": {"num_rounds": 100},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(optimizers.ServerSteps, base.NoiseConfig, parties.Parties):
    """Public numbers; every one may be published without loss of privacy.

    Raises:
      ValueError: a number is out of its range.
      NoGuaranteeError: water-filling noise on a sampling that is not Gaussian.
    """

    records_per_client: int | None = 29
    """D, places for records of each client; the mean divides by it. none: the most records that a
    client has.
    """
    batch_size: float = 8.0
    """B: records of a subset, or the scale of the Gaussian weights, whose covariance is G^T G / (B
    D).
    """
    l2_clip_norm: float = 1.0
    """Bound on one record's gradient."""
    noise_multiplier: float | None = None
    """Root of the lowest variance of the noise in the sum over clients / how far one replaced
    record moves its mean.
    None: calibrated for the target epsilon.
    """
    noise: Literal["isotropic", "water_filling"] = "isotropic"
    """What a client adds: the same in all directions, or what its own sampling noise lacks."""
    server_learning_rate: float = 1.0
    """Step size of the server along the mean gradient."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.records_per_client is not None:
            _validate.positive_int(records_per_client=self.records_per_client)
        _validate.positive(batch_size=self.batch_size)
        _validate.one_of(("isotropic", "water_filling"), noise=self.noise)

    @property
    def records(self) -> int:
        """`records_per_client`. Raises ValueError where it is none."""
        return parties.known(records_per_client=self.records_per_client)


def population(config: Config) -> base.Population:
    """All clients join every round, each with so many places for records."""
    return base.Population(num_clients=config.num_parties, places=config.records_per_client)


def fitted(config: Any, facts: Facts) -> Any:
    """`config` with num_parties and records_per_client from the data.

    Raises:
      PrivacyPreconditionError: num_parties is not the number of clients, or a client has more
        records than places.
      ValueError: batches are larger than clients.
    """
    config = parties.fitted(config, facts)
    if config.records_per_client is None:
        return dataclasses.replace(config, records_per_client=max(1, facts.most_examples))
    if config.records_per_client < facts.most_examples:
        raise PrivacyPreconditionError(
            f"Expected records_per_client >= {facts.most_examples}, the most records that a client "
            f"has, got records_per_client={config.records_per_client}."
        )
    return config


def refuse_water_filling(config: Config, sampling: str) -> None:
    """Raises NoGuaranteeError for water-filling noise beside a sampling that is not Gaussian."""
    if config.noise == "water_filling":
        raise errors.NoGuaranteeError(
            f'Expected noise="isotropic" with {sampling}, got noise="water_filling": in directions '
            "above the floor nothing is added, and the sum there is not random enough for any "
            "guarantee."
        )


def client_stddev(config: Config, divisor: float) -> float:
    """Noise standard deviation of one client, for sums that a replaced record moves by 2
    l2_clip_norm / divisor.
    """
    noise = base.noise_multiplier(config) * 2 * config.l2_clip_norm
    return noise / divisor / math.sqrt(config.parties)


class Turn(NamedTuple):
    """What a client works with in one round; rows `[D]`, -1 where it has no record."""

    params: Params
    examples: Batch
    rows: jax.Array
    sample_key: jax.Array
    noise_key: jax.Array


Client = Callable[[Turn], WeightedSum]


def add_isotropic(step: WeightedSum, key: jax.Array, stddev: float) -> WeightedSum:
    """The step with Gaussian noise of `stddev` in every direction."""
    if stddev == 0:
        return step
    return step._replace(sum=fljax_kernels.add_gaussian_noise(key, step.sum, stddev))


def maker(client: Callable[[Any, LossFn, Performance], Client]) -> base.Make:
    """`make` of a scheme in which each client sends what `client(config, loss, performance)`
    computes.
    """

    @base.maker
    def make(config: Any, loss: LossFn, given: base.Given) -> base.FederatedAlgorithm:
        """Builds the algorithm: clients send noised mean gradients, the server steps along the mean
        of their sum.

        Guarantee: one round is one `event(config)` of the scheme, for one record exchanged for
        another, towards a server that sees the sum over clients and nothing else (an ideal secure
        sum over the reals), if all `num_parties` clients take part, none of which the server has
        corrupted: the noise of one that is missing is missing in the sum. Idealisation: noise and
        samples are drawn in float32 with the key's generator; threefry is no cryptographic
        source. RoundInfo is not private.

        Args, Raises: as `base.Make`.
        """
        base.no_local_steps(given.local_optimizer)
        send = client(config, loss, given.performance)

        def of_client(here: Round, client: Clients) -> tuple[Params, jax.Array]:
            sample_key = here.client_keys(client.ids, _keys.Purpose.SAMPLE_EXAMPLES)
            noise_key = here.client_keys(client.ids, _keys.Purpose.NOISE)
            turn = Turn(here.state.params, here.examples, client.rows, sample_key, noise_key)
            step = send(turn)
            return step.sum, jnp.stack([step.loss, step.clipped_fraction])

        algorithm = rounds.federated(
            rounds.each(of_client),
            lambda here, _, sums: Release(sums.total, float(config.parties)),
            choose=functools.partial(_places, config),
            server_optimizer=given.server_optimizer,
            performance=given.performance,
            in_place=True,
        )
        # Chunks of clients are a loop.
        return algorithm._replace(round=fljax_kernels.loop_friendly(algorithm.round))

    return make


def _places(config: Config, here: Round, cohort: Cohort) -> tuple[Round, Clients]:
    """All clients, with rows `[C, D]`, -1 where one has no record."""
    if cohort.client_ids.shape[0] != config.parties:
        raise ValueError(
            f"Expected num_parties={config.parties} clients in the round, got "
            f"{cohort.client_ids.shape[0]}: the noise in the sum is sized for that many."
        )
    width = cohort.indices.shape[1]
    if width > config.records:
        raise ValueError(
            f"Expected at most records_per_client={config.records} records of a client, "
            f"got room for {width} in cohort.indices."
        )
    here, clients = rounds.everybody(here, cohort)
    rows = jnp.pad(clients.rows, ((0, 0), (0, config.records - width)), constant_values=-1)
    return here, clients._replace(rows=rows)


def shares(config: Config, num_params: int) -> int:
    """Normals in the sum's noise: each client adds its share."""
    return config.parties * num_params


def event(mechanism: events.Mechanism) -> events.PrivacyEvent:
    """One round, towards a server that sees the sum over clients: one record exchanged for
    another.
    """
    return events.PrivacyEvent(
        mechanism=mechanism,
        privacy_unit="example",
        neighboring_relation=events.NeighboringRelation.REPLACE_ONE,
    )


scheme = functools.partial(
    base.Scheme,
    promise="epsilon",
    fitted=fitted,
    non_private=base.non_private,
    noise_at="client",
    start=START,
    population=population,
)
