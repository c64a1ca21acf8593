"""The round that the schemes with a secure sum over equal clients share: one clipped gradient step, noised per client.

Source: Zhang et al. (2024), "Differentially Private Federated Learning without Noise Addition: When is it Possible?",
arXiv:2405.04551, sections 2 and 5.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

import fljax_kernels
from fljax import _keys, _validate, errors
from fljax.accounting import events
from fljax.data.cohorts import Cohort
from fljax.data.facts import Facts
from fljax.errors import PrivacyPreconditionError
from fljax.local.gaussian_sampling import WeightedSum
from fljax.local.sgd import map_clients
from fljax.schemes import base
from fljax.server import aggregate
from fljax.types import Batch, LossFn, Params

# What `fljax simulate` starts from: 50 equal clients and a linear model, as in the paper's Figure 5.
START: dict[str, dict[str, Any]] = {
    "data": {"num_clients": 50, "partition": "iid"},
    "model": {"model": "softmax"},
    "scheme": {"num_parties": None, "records_per_client": None},
    "privacy": {"target_delta": 5e-5},
    "run": {"num_rounds": 100},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Public numbers; every one may be published without loss of privacy.

    Raises:
      ValueError: a number is out of its range.
      NoGuaranteeError: water-filling noise on a sampling that is not Gaussian.
    """

    num_parties: int | None = 50
    """N, all of which join every round. none: as many as the data have."""
    records_per_client: int | None = 29
    """D, places for records of each client; the mean divides by it. none: the most records that a client has."""
    batch_size: float = 8.0
    """B: records of a subset, or the scale of the Gaussian weights, whose covariance is G^T G / (B D)."""
    l2_clip_norm: float = 1.0
    """Bound on one record's gradient."""
    noise_multiplier: float | None = None
    """Root of the lowest variance of the noise in the sum over clients / how far one replaced record moves its mean.
    None: calibrated for the target epsilon."""
    noise: Literal["isotropic", "water_filling"] = "isotropic"
    """What a client adds: the same in all directions, or what its own sampling noise lacks."""
    microbatch_size: int = 64
    """Records whose gradients are taken together; only speed and memory depend on it. Water filling takes all."""
    server_learning_rate: float = 1.0
    """Step size of the server along the mean gradient."""
    server_momentum: float = 0.0
    """Momentum of the server, in [0, 1)."""

    def __post_init__(self) -> None:
        _validate.positive_int(microbatch_size=self.microbatch_size)
        if self.num_parties is not None:
            _validate.positive_int(num_parties=self.num_parties)
        if self.records_per_client is not None:
            _validate.positive_int(records_per_client=self.records_per_client)
        _validate.positive(
            batch_size=self.batch_size,
            l2_clip_norm=self.l2_clip_norm,
            server_learning_rate=self.server_learning_rate,
        )
        if self.noise_multiplier is not None:
            _validate.non_negative(noise_multiplier=self.noise_multiplier)
        _validate.one_of(("isotropic", "water_filling"), noise=self.noise)
        _validate.non_negative(server_momentum=self.server_momentum)
        if not self.server_momentum < 1:
            raise ValueError(f"Expected server_momentum < 1, got server_momentum={self.server_momentum!r}.")

    @property
    def parties(self) -> int:
        """`num_parties`. Raises ValueError where it is none."""
        return base.known(num_parties=self.num_parties)

    @property
    def records(self) -> int:
        """`records_per_client`. Raises ValueError where it is none."""
        return base.known(records_per_client=self.records_per_client)


def population(config: Config) -> base.Population:
    """All clients join every round, each with so many places for records."""
    return base.Population(num_clients=config.num_parties, places=config.records_per_client)


def fitted(config: Any, facts: Facts) -> Any:
    """`config` with num_parties and records_per_client from the data.

    Raises:
      PrivacyPreconditionError: num_parties is not the number of clients, or a client has more records than places.
      ValueError: batches are larger than clients.
    """
    config = base.fitted_clients(config, facts, num_parties=config.num_parties)
    if config.records_per_client is None:
        return dataclasses.replace(config, records_per_client=max(1, facts.most_examples))
    if config.records_per_client < facts.most_examples:
        raise PrivacyPreconditionError(
            f"Expected records_per_client >= {facts.most_examples}, the most records that a client has, "
            f"got records_per_client={config.records_per_client}."
        )
    return config


def refuse_water_filling(config: Config, sampling: str) -> None:
    """Raises NoGuaranteeError for water-filling noise beside a sampling that is not Gaussian."""
    if config.noise == "water_filling":
        raise errors.NoGuaranteeError(
            f'Expected noise="isotropic" with {sampling}, got noise="water_filling": in directions above the floor '
            "nothing is added, and the sum there is not random enough for any guarantee."
        )


def client_stddev(config: Config, divisor: float) -> float:
    """Noise standard deviation of one client, for sums that a replaced record moves by 2 l2_clip_norm / divisor."""
    return base.noise_multiplier(config) * 2 * config.l2_clip_norm / divisor / math.sqrt(config.parties)


Client = Callable[[Params, Batch, jax.Array, jax.Array, jax.Array], WeightedSum]


def add_isotropic(step: WeightedSum, key: jax.Array, stddev: float) -> WeightedSum:
    """The step with Gaussian noise of `stddev` in every direction."""
    return step if stddev == 0 else step._replace(sum=fljax_kernels.add_gaussian_noise(key, step.sum, stddev))


def maker(client: Callable[[Any, LossFn], Client]) -> Callable[..., base.FederatedAlgorithm]:
    """`make` of a scheme in which each client sends what `client(config, loss)` computes."""

    def make(
        config: Any,
        loss: LossFn,
        *,
        num_units: int,
        server_optimizer: optax.GradientTransformation | None = None,
        chunk_size: int | None = None,
        groups: int | None = None,
    ) -> base.FederatedAlgorithm:
        """Builds the algorithm: clients send noised mean gradients, the server steps along the mean of their sum.

        Guarantee: one round is one `event(config)` of the scheme, for one record exchanged for another, towards a
        server that sees the sum over clients and nothing else (an ideal secure sum over the reals), if all
        `num_parties` clients take part, none of which the server has corrupted: the noise of one that is missing is
        missing in the sum. Idealisation: noise and samples are drawn in float32 with JAX's threefry generator, which
        is no cryptographic source. RoundInfo is not private.

        Args:
          config: its noise_multiplier must be set.
          loss: `loss(params, example) -> []`.
          num_units: records of all clients, a published constant.
          server_optimizer: any optax optimizer in place of SGD with the configured rate and momentum.
          chunk_size: clients that work side by side; only speed and memory depend on it.
          groups: as for `aggregate.sum_in_chunks`; only the order of additions depends on it.

        Raises:
          ValueError: noise_multiplier is None, num_units < 1, chunk_size < 1, or groups < 1.
        """
        _validate.positive_int(num_units=num_units)
        aggregate.check_sizes(chunk_size, groups)
        optimizer = base.server_optimizer(config) if server_optimizer is None else server_optimizer
        return _secure_sum_round(client(config, loss), config, optimizer, chunk_size, groups)

    return make


def _secure_sum_round(
    client: Client, config: Config, optimizer: optax.GradientTransformation, chunk_size: int | None, groups: int | None
) -> base.FederatedAlgorithm:
    def round_fun(
        state: aggregate.ServerState, cohort: Cohort, key: jax.Array
    ) -> tuple[aggregate.ServerState, base.RoundInfo]:
        base.check_round(cohort, key)
        rows = _places(cohort, config)
        present = cohort.client_ids >= 0
        num_params = sum(leaf.size for leaf in jax.tree.leaves(state.params))
        size = aggregate.default_chunk_size(num_params) if chunk_size is None else chunk_size

        def chunk(
            clients: tuple[jax.Array, jax.Array], chunk_present: jax.Array, params: Params, examples: Batch
        ) -> tuple[Params, jax.Array]:
            chunk_rows, chunk_ids = clients
            keys = [
                _keys.client_keys(key, state.round, chunk_ids, purpose)
                for purpose in (_keys.Purpose.SAMPLE_EXAMPLES, _keys.Purpose.NOISE)
            ]
            step = map_clients(client, (None, None, 0, 0, 0))(params, examples, chunk_rows, *keys)

            def add(leaf: jax.Array) -> jax.Array:
                mask = chunk_present.reshape((-1,) + (1,) * (leaf.ndim - 1))
                return jnp.sum(jnp.where(mask, leaf, 0), axis=0)

            return jax.tree.map(add, step.sum), jnp.stack([add(step.loss), add(step.clipped_fraction)])

        total, stats = aggregate.sum_in_chunks(
            chunk,
            (rows, cohort.client_ids),
            present,
            chunk_size=size,
            groups=groups,
            shared=(state.params, cohort.examples),
        )
        count = jnp.sum(present)
        loss, clipped_fraction = base.averages(stats, count)
        state = aggregate.step(state, total, divisor=float(config.parties), server_optimizer=optimizer)
        return state, base.RoundInfo(loss, count, clipped_fraction)

    return base.FederatedAlgorithm(
        lambda params: aggregate.init(params, optimizer),
        fljax_kernels.loop_friendly(round_fun),  # chunks of clients are a loop
        client_sampling_prob=1.0,
    )


def _places(cohort: Cohort, config: Config) -> jax.Array:
    """Rows `[C, D]`, -1 where a client has no record."""
    if cohort.client_ids.shape[0] != config.parties:
        raise ValueError(
            f"Expected num_parties={config.parties} clients in the round, got {cohort.client_ids.shape[0]}: "
            "the noise in the sum is sized for that many."
        )
    width = cohort.indices.shape[1]
    if width > config.records:
        raise ValueError(
            f"Expected at most records_per_client={config.records} records of a client, "
            f"got room for {width} in cohort.indices."
        )
    rows = jnp.where((cohort.client_ids >= 0)[:, None], cohort.indices, -1)
    return jnp.pad(rows, ((0, 0), (0, config.records - width)), constant_values=-1)


def event(mechanism: events.Mechanism) -> events.PrivacyEvent:
    """One round, towards a server that sees the sum over clients: one record exchanged for another."""
    return events.PrivacyEvent(
        mechanism=mechanism,
        privacy_unit="example",
        neighboring_relation=events.NeighboringRelation.REPLACE_ONE,
    )


def non_private(config: Any) -> Any:
    """The same training with a clip that never binds and no noise."""
    return dataclasses.replace(config, l2_clip_norm=base.NEVER_CLIPS, noise_multiplier=0.0)
