"""A scheme of one's own: each client sends its mean gradient, clipped; the server adds noise to their sum."""

import dataclasses

import jax
import jax.numpy as jnp
import optax

import fljax_kernels
from fljax.accounting import events
from fljax.schemes import base
from fljax.server import aggregate

SUMMARY = "one clipped mean gradient a client, central Gaussian noise; unit: client"
PROMISE = "epsilon"
SIMULATION = {"data": {"num_clients": 50, "partition": "iid"}, "run": {"num_rounds": 8}}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    sampling_prob: float = 0.5
    """Chance that one client joins one round."""
    l2_clip_norm: float = 0.5
    """Bound on a client's gradient."""
    noise_multiplier: float | None = None
    """Noise standard deviation / l2_clip_norm."""
    server_learning_rate: float = 2.0
    """Step size of the server."""


def make(config, loss, *, num_units, groups=None):  # all clients at once: no sums in groups
    optimizer = optax.sgd(config.server_learning_rate)

    def client(params, examples, rows):
        def mean_loss(params):
            losses = jax.vmap(lambda row: loss(params, jax.tree.map(lambda x: x[jnp.maximum(row, 0)], examples)))(rows)
            return jnp.sum(jnp.where(rows >= 0, losses, 0.0)) / jnp.maximum(jnp.sum(rows >= 0), 1).astype(jnp.float32)

        return jax.value_and_grad(mean_loss)(params)

    def round_fun(state, cohort, key):
        present = cohort.client_ids >= 0
        losses, grads = jax.vmap(client, (None, None, 0))(state.params, cohort.examples, cohort.indices)
        total, norms = fljax_kernels.clip_and_sum(grads, config.l2_clip_norm, mask=present)
        noise_key = jax.random.fold_in(key, state.round)
        noisy = fljax_kernels.add_gaussian_noise(noise_key, total, config.noise_multiplier * config.l2_clip_norm)
        state = aggregate.step(state, noisy, divisor=config.sampling_prob * num_units, server_optimizer=optimizer)
        count = jnp.maximum(jnp.sum(present), 1).astype(jnp.float32)
        clipped = jnp.sum((present & (norms > config.l2_clip_norm)).astype(jnp.float32)) / count
        return state, base.RoundInfo(jnp.sum(jnp.where(present, losses, 0.0)) / count, jnp.sum(present), clipped)

    return base.FederatedAlgorithm(
        lambda params: aggregate.init(params, optimizer), round_fun, client_sampling_prob=config.sampling_prob
    )


def event(config):
    return events.PrivacyEvent(
        mechanism=events.PoissonSampled(config.sampling_prob, events.Gaussian(config.noise_multiplier)),
        privacy_unit="client",
        neighboring_relation=events.NeighboringRelation.ADD_OR_REMOVE_ONE,
    )


def fitted(config, facts):
    return config


def non_private(config):
    return dataclasses.replace(config, l2_clip_norm=1e30, noise_multiplier=0.0)
