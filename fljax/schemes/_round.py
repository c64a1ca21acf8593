"""The round that client-level schemes share: local work, clip, add up, noise, server step."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

import fljax_kernels
from fljax import _keys, _validate
from fljax.accounting import events
from fljax.data.cohort import Cohort
from fljax.local.sgd import LocalResult
from fljax.server import aggregate
from fljax.types import Batch, Params

NEVER_CLIPS = 1e30  # above the norm of any update that training survives, and far from float32's overflow


class RoundInfo(NamedTuple):
    """Diagnostics of one round, each `[]`. They are exact, hence NOT private: release none of them.

    loss: mean training loss; cohort_size: clients present; clipped_fraction: share of units that were clipped.
    """

    loss: jax.Array
    cohort_size: jax.Array
    clipped_fraction: jax.Array


class FederatedAlgorithm(NamedTuple):
    """A federated algorithm as pure functions.

    init: `params -> state`. round: `(state, cohort, key) -> (state, info)`, to be jitted by the caller; `key` is the
    run's key and the same in every round, since the round folds `state.round` into it. client_sampling_prob: with which
    chance each client must be put into each cohort, independently, for the scheme's event to be true.
    """

    init: Callable[[Params], aggregate.ServerState]
    round: Callable[[aggregate.ServerState, Cohort, jax.Array], tuple[aggregate.ServerState, RoundInfo]]
    client_sampling_prob: float


def check_config(config: Any) -> None:
    """Range checks of the fields that the schemes with central noise share."""
    _validate.probability(sampling_prob=config.sampling_prob)
    _validate.positive(l2_clip_norm=config.l2_clip_norm, server_learning_rate=config.server_learning_rate)
    if config.noise_multiplier is not None:
        _validate.non_negative(noise_multiplier=config.noise_multiplier)
    _validate.non_negative(server_momentum=config.server_momentum)
    if not config.server_momentum < 1:
        raise ValueError(f"Expected server_momentum < 1, got server_momentum={config.server_momentum!r}.")


def check_round(cohort: Cohort, key: jax.Array) -> None:
    """Shapes and dtypes of a round's arguments; they are static, so this costs nothing under jit."""
    _validate.threefry_key(key=key)
    if cohort.client_ids.ndim != 1 or cohort.client_ids.shape[0] < 1:
        raise ValueError(f"Expected cohort.client_ids of shape [C], C >= 1, got shape {cohort.client_ids.shape}.")
    if cohort.indices.ndim != 2 or cohort.indices.shape[0] != cohort.client_ids.shape[0]:
        raise ValueError(
            f"Expected cohort.indices of shape [C, N] with C = {cohort.client_ids.shape[0]}, "
            f"got shape {cohort.indices.shape}."
        )


def noise_multiplier(config: Any) -> float:
    """The configured noise multiplier. Raises ValueError if it is still to be calibrated."""
    if config.noise_multiplier is None:
        raise ValueError(
            "Expected noise_multiplier to be a number, got noise_multiplier=None: calibrate it first "
            "(fljax.accounting.calibrate)."
        )
    return float(config.noise_multiplier)


def sampled_gaussian_event(config: Any, *, privacy_unit: Literal["client", "example"]) -> events.PrivacyEvent:
    """One Poisson-sampled Gaussian mechanism on the configured numbers, under add-or-remove-one."""
    return events.PrivacyEvent(
        mechanism=events.PoissonSampled(config.sampling_prob, events.Gaussian(noise_multiplier(config))),
        privacy_unit=privacy_unit,
        neighboring_relation=events.NeighboringRelation.ADD_OR_REMOVE_ONE,
    )


def server_optimizer(config: Any) -> optax.GradientTransformation:
    """SGD with the configured learning rate and momentum."""
    return optax.sgd(config.server_learning_rate, momentum=config.server_momentum or None)


def client_level(
    local_fun: Callable[[Params, Batch, jax.Array, jax.Array], LocalResult],
    config: Any,
    *,
    num_clients: int,
    optimizer: optax.GradientTransformation | None,
    chunk_size: int | None,
) -> FederatedAlgorithm:
    """Clients' updates, each clipped to `l2_clip_norm`, summed, with central Gaussian noise on the sum.

    Guarantee: adding or removing one client moves the sum by at most `l2_clip_norm`, so the round is one
    Poisson-sampled Gaussian mechanism if each client is in it with chance `sampling_prob`. An update that is not
    finite adds zero. The divisor is `sampling_prob * num_clients`, a public constant.
    """
    check_config(config)
    _validate.positive_int(num_units=num_clients)
    if chunk_size is not None:
        _validate.positive_int(chunk_size=chunk_size)
    stddev = noise_multiplier(config) * config.l2_clip_norm
    divisor = config.sampling_prob * num_clients
    optimizer = server_optimizer(config) if optimizer is None else optimizer

    def round_fun(
        state: aggregate.ServerState, cohort: Cohort, key: jax.Array
    ) -> tuple[aggregate.ServerState, RoundInfo]:
        check_round(cohort, key)
        present = cohort.client_ids >= 0
        indices = jnp.where(present[:, None], cohort.indices, -1)
        num_params = sum(leaf.size for leaf in jax.tree.leaves(state.params))
        size = aggregate.default_chunk_size(num_params) if chunk_size is None else chunk_size

        def chunk(clients: tuple[jax.Array, jax.Array], chunk_present: jax.Array) -> tuple[Params, jax.Array]:
            chunk_indices, chunk_ids = clients
            keys = _keys.client_keys(key, state.round, chunk_ids, _keys.Purpose.SHUFFLE)
            local = local_fun(state.params, cohort.examples, chunk_indices, keys)
            update = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), local.update)
            clipped, norms = fljax_kernels.clip_and_sum(update, config.l2_clip_norm, mask=chunk_present)
            # `~(<=)` counts a client that is not finite as clipped.
            was_clipped = ~(norms <= config.l2_clip_norm) & chunk_present
            losses = jnp.where(chunk_present & jnp.isfinite(local.loss), local.loss, 0.0)
            return clipped, jnp.stack([jnp.sum(losses), jnp.sum(was_clipped).astype(jnp.float32)])

        update_sum, stats = aggregate.sum_in_chunks(chunk, (indices, cohort.client_ids), present, chunk_size=size)
        noise_key = _keys.server_key(key, state.round, _keys.Purpose.NOISE)
        noisy_sum = fljax_kernels.add_gaussian_noise(noise_key, update_sum, stddev)
        count = jnp.sum(present)
        loss, clipped_fraction = stats / jnp.maximum(1, count).astype(jnp.float32)
        state = aggregate.step(state, noisy_sum, divisor=divisor, server_optimizer=optimizer)
        return state, RoundInfo(loss, count, clipped_fraction)

    return FederatedAlgorithm(
        lambda params: aggregate.init(params, optimizer), round_fun, client_sampling_prob=config.sampling_prob
    )
