"""The round that the subject-level schemes share: every silo trains privately, the server takes the plain mean."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import optax

from fljax import _keys, _validate
from fljax.accounting import events
from fljax.data.cohort import Cohort
from fljax.data.subjects import SUBJECT
from fljax.local.sgd import map_clients
from fljax.local.silo import Number, noisy_steps
from fljax.local.subject import Query, within_cap
from fljax.schemes import _round
from fljax.server import aggregate
from fljax.types import Params


@dataclasses.dataclass(frozen=True, kw_only=True)
class SiloConfig:
    """Public numbers that all schemes with private silos share; each may be published without loss of privacy.

    num_silos: silos, all of which join every round. item_sampling_prob: chance of each item to be in one local step's
    batch, in (0, 1]. num_local_steps: noisy steps of a silo in one round. l2_clip_norm: > 0. noise_multiplier: noise
    standard deviation on the sum / l2_clip_norm, >= 0; None: still to be calibrated. local_learning_rate: > 0.
    server_learning_rate, server_momentum: the server's SGD on the mean update; 1 and 0 give the plain mean of the
    silos' models. batch_size: items whose gradients a silo takes together; only speed and memory depend on it.

    Raises:
      ValueError: a number is out of its range.
    """

    num_silos: int = 16
    item_sampling_prob: float = 0.1
    num_local_steps: int = 5
    l2_clip_norm: float = 1.0
    noise_multiplier: float | None = None
    local_learning_rate: float = 0.5
    server_learning_rate: float = 1.0
    server_momentum: float = 0.0
    batch_size: int = 64

    def __post_init__(self) -> None:
        _validate.positive_int(
            num_silos=self.num_silos, num_local_steps=self.num_local_steps, batch_size=self.batch_size
        )
        _validate.probability(item_sampling_prob=self.item_sampling_prob)
        _validate.positive(
            l2_clip_norm=self.l2_clip_norm,
            local_learning_rate=self.local_learning_rate,
            server_learning_rate=self.server_learning_rate,
        )
        _validate.non_negative(server_momentum=self.server_momentum)
        if not self.server_momentum < 1:
            raise ValueError(f"Expected server_momentum < 1, got server_momentum={self.server_momentum!r}.")
        if self.noise_multiplier is not None:
            _validate.non_negative(noise_multiplier=self.noise_multiplier)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SubjectConfig(SiloConfig):
    """As `SiloConfig`, and the two caps that a guarantee for subjects rests on.

    max_items_per_subject: most items of one subject in one silo; a silo leaves surplus items out. silos_per_subject:
    most silos that hold items of one subject, which no silo can see for itself; None: all of them.
    """

    max_items_per_subject: int = 16
    silos_per_subject: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.positive_int(max_items_per_subject=self.max_items_per_subject)
        if self.silos_per_subject is not None:
            _validate.positive_int(silos_per_subject=self.silos_per_subject)
            if self.silos_per_subject > self.num_silos:
                raise ValueError(
                    f"Expected silos_per_subject <= num_silos={self.num_silos}, "
                    f"got silos_per_subject={self.silos_per_subject}."
                )


def private_silos(
    query: Query,
    config: SiloConfig,
    *,
    divisor: Number,
    max_items_per_subject: int | None,
    num_units: int,
    server_optimizer: optax.GradientTransformation | None,
    chunk_size: int | None,
) -> _round.FederatedAlgorithm:
    """Every silo takes noisy steps along `query` from the server's model; the server steps along the mean update.

    Guarantee: each silo's steps are Gaussian mechanisms on the query's sums, for data in which no subject owns more
    than `max_items_per_subject` items, whatever the data: surplus items are left out, by an order that depends on the
    subject's own items alone. (None leaves nothing out: a cap lets one item push out another, which claims about
    single items do not allow for.) Averaging is post-processing. The number of silos in a round is public.
    """
    _validate.positive_int(num_units=num_units)
    train = noisy_steps(
        query,
        num_steps=config.num_local_steps,
        learning_rate=config.local_learning_rate,
        stddev=_round.noise_multiplier(config) * config.l2_clip_norm,
        divisor=divisor,
    )
    optimizer = _round.server_optimizer(config) if server_optimizer is None else server_optimizer

    def round_fun(
        state: aggregate.ServerState, cohort: Cohort, key: jax.Array
    ) -> tuple[aggregate.ServerState, _round.RoundInfo]:
        _round.check_round(cohort, key)
        if cohort.client_ids.shape[0] > config.num_silos:
            raise ValueError(
                f"Expected at most num_silos={config.num_silos} silos in a round, got {cohort.client_ids.shape[0]}."
            )
        present = cohort.client_ids >= 0
        rows = jnp.where(present[:, None], cohort.indices, -1)
        if not isinstance(cohort.examples, dict) or SUBJECT not in cohort.examples:
            raise ValueError(f"Expected examples to carry the key {SUBJECT!r}, got none: see fljax.data.subjects.")
        if max_items_per_subject is not None:
            ids = jnp.take(cohort.examples[SUBJECT], jnp.maximum(rows, 0), axis=0).astype(jnp.int32)
            rows = jax.vmap(lambda r, i: within_cap(r, i, max_items_per_subject))(rows, ids)
        num_params = sum(leaf.size for leaf in jax.tree.leaves(state.params))
        size = aggregate.default_chunk_size(num_params) if chunk_size is None else chunk_size

        def chunk(silos: tuple[jax.Array, jax.Array], chunk_present: jax.Array) -> tuple[Params, jax.Array]:
            chunk_rows, chunk_ids = silos
            keys = [
                _keys.client_keys(key, state.round, chunk_ids, purpose)
                for purpose in (_keys.Purpose.SAMPLE_EXAMPLES, _keys.Purpose.NOISE)
            ]
            result = map_clients(train, (None, None, 0, 0, 0))(state.params, cohort.examples, chunk_rows, *keys)

            def add(leaf: jax.Array) -> jax.Array:
                mask = chunk_present.reshape((-1,) + (1,) * (leaf.ndim - 1))
                return jnp.sum(jnp.where(mask, leaf, 0), axis=0)

            losses = jnp.where(jnp.isfinite(result.loss), result.loss, 0)
            return jax.tree.map(add, result.update), jnp.stack([add(losses), add(result.clipped_fraction)])

        update_sum, stats = aggregate.sum_in_chunks(chunk, (rows, cohort.client_ids), present, chunk_size=size)
        count = jnp.sum(present)
        share = 1 / jnp.maximum(1, count).astype(jnp.float32)
        mean = jax.tree.map(lambda u, p: (u * share).astype(p.dtype), update_sum, state.params)
        loss_mean, clipped_fraction = stats * share
        state = aggregate.step(state, mean, divisor=1.0, server_optimizer=optimizer)
        return state, _round.RoundInfo(loss_mean, count, clipped_fraction)

    return _round.FederatedAlgorithm(
        lambda params: aggregate.init(params, optimizer), round_fun, client_sampling_prob=1.0
    )


def subject_event(config: SubjectConfig, step: events.Mechanism) -> events.PrivacyEvent:
    """One round at subject level; `step` is what one local step of one silo does to its largest subject.

    The server sees every silo's update, so that a subject in h silos meets h mechanisms in each local step.
    """
    holders = config.num_silos if config.silos_per_subject is None else config.silos_per_subject
    return events.PrivacyEvent(
        mechanism=events.SelfComposed(step, config.num_local_steps * holders),
        privacy_unit="subject",
        neighboring_relation=events.NeighboringRelation.ADD_OR_REMOVE_ONE,
    )


def counted_step(config: SubjectConfig, cap: int | None) -> events.MixtureOfGaussians:
    """A step in which a subject moves the sum by min(J, cap) clip norms, J ~ Binomial(m, q) its items in the batch."""
    most, prob = config.max_items_per_subject, config.item_sampling_prob
    pmf = [math.comb(most, j) * prob**j * (1 - prob) ** (most - j) for j in range(most + 1)]
    cap = most if cap is None else min(cap, most)
    chances = [*pmf[:cap], math.fsum(pmf[cap:])]
    kept = [j for j, chance in enumerate(chances) if chance > 0]
    return events.MixtureOfGaussians(
        _round.noise_multiplier(config), tuple(float(j) for j in kept), tuple(chances[j] for j in kept)
    )


def present_step(config: SubjectConfig, *, move: float) -> events.PoissonSampled:
    """A step in which a subject moves the sum by `move` clip norms if any of its m items is in the batch."""
    present = 1 - (1 - config.item_sampling_prob) ** config.max_items_per_subject
    return events.PoissonSampled(present, events.Gaussian(_round.noise_multiplier(config) / move))
