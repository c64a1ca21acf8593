"""Each client sends one bit a round, which may lie: does its loss rise along a public direction?"""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp

from fljax import accounting, errors
from fljax.accounting import events
from fljax.schemes import base


@dataclasses.dataclass(frozen=True)
class Bit(events.Mechanism):
    """A bit that arrives flipped with chance `flip`."""

    flip: float


def pair(bit, relation):
    if relation != events.NeighboringRelation.REPLACE_ONE:
        raise errors.UnsupportedEventError(f"Expected REPLACE_ONE, got {relation}: absence is seen.")
    return accounting.Pair((1 - bit.flip, bit.flip), (bit.flip, 1 - bit.flip))


accounting.register(Bit, describe=lambda bit: f"a bit that is flipped with chance {bit.flip:.3g}", pld=pair)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    noise_multiplier: float | None = None
    """A bit lies with chance 1 / (1 + exp(1 / noise_multiplier))."""
    step: float = 0.4
    """How far the model goes where all clients agree."""


def flip(config):
    noise = base.noise_multiplier(config)
    return 1 / (1 + math.exp(1 / noise)) if noise else 0.0


class State(NamedTuple):
    params: dict
    round: jax.Array


def make(config, loss, *, num_units, performance=None):
    def play(state, cohort, key):
        flat, unflatten = jax.flatten_util.ravel_pytree(state.params)
        direction_key, flip_key = jax.random.split(jax.random.fold_in(key, state.round))
        direction = jax.random.normal(direction_key, flat.shape)

        def client(rows):
            batch = jax.tree.map(lambda leaf: leaf[jnp.maximum(rows, 0)], cohort.examples)
            there = jnp.where(rows >= 0, 1.0, 0.0)
            share = there / jnp.maximum(jnp.sum(there), 1.0)
            mean = lambda flat: jnp.vdot(share, jax.vmap(loss, (None, 0))(unflatten(flat), batch))  # noqa: E731
            return jax.jvp(mean, (flat,), (direction,))

        here = jnp.where(cohort.client_ids >= 0, 1.0, 0.0)
        losses, slopes = jax.vmap(client)(cohort.indices)
        votes = (slopes > 0) ^ jax.random.bernoulli(flip_key, flip(config), slopes.shape)
        total = jnp.vdot(here, jnp.where(votes, 1.0, -1.0))  # whole numbers: the same in any order
        moved = flat - config.step * total / ((1 - 2 * flip(config)) * num_units) * direction
        info = base.RoundInfo(jnp.vdot(here, losses) / num_units, jnp.sum(here), jnp.zeros(()))
        return State(unflatten(moved), state.round + 1), info

    return base.FederatedAlgorithm(lambda params: State(params, jnp.zeros((), jnp.int32)), play, 1.0)


SCHEME = base.Scheme(
    summary="one bit a client, which lies now and then; unit: client",
    promise="epsilon",
    Config=Config,
    make=make,
    event=lambda config: accounting.PrivacyEvent(
        mechanism=Bit(flip(config)), privacy_unit="client", neighboring_relation="REPLACE_ONE"
    ),
    fitted=lambda config, facts: config,
    non_private=lambda config: dataclasses.replace(config, noise_multiplier=0.0),
    noise_at="client",
    start={"data": {"num_clients": 50}, "run": {"num_rounds": 16}, "privacy": {"target_delta": 1e-3}},
)
