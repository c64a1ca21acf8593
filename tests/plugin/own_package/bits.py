"""Each client sends one bit a round, which may lie: does its loss rise along a public direction?"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import optax

from fljax import accounting, errors
from fljax.accounting import events
from fljax.local import sgd
from fljax.schemes import base
from fljax.server import rounds

START = {"data": {"num_clients": 50}, "run": {"num_rounds": 16}, "privacy": {"target_delta": 1e-3}}


@dataclasses.dataclass(frozen=True)
class Bit(events.Mechanism):
    flip: float  # chance that the bit arrives flipped


def pair(bit, relation):
    if relation != events.NeighboringRelation.REPLACE_ONE:
        raise errors.UnsupportedEventError(f"Expected REPLACE_ONE, got {relation}.")
    return accounting.Pair((1 - bit.flip, bit.flip), (bit.flip, 1 - bit.flip))


accounting.register(Bit, describe=lambda bit: f"a bit flipped with chance {bit.flip:.3g}", pld=pair)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    noise_multiplier: float | None = None
    """A bit lies with chance 1 / (1 + exp(1 / noise_multiplier))."""
    step: float = 0.4
    """How far the model goes where all clients agree."""


def flip(config):
    noise = base.noise_multiplier(config)
    return 1 / (1 + math.exp(1 / noise)) if noise else 0.0


def make(config, loss, *, num_units, performance=rounds.Performance()):
    mean_loss = sgd.masked_mean_loss(loss)

    def direction(here):
        return optax.tree.random_like(here.server_key(rounds.Purpose.PERTURB), here.state.params)

    def client(here, one):
        batch, mask = sgd.take_examples(here.examples, one.rows), one.rows >= 0
        of_params = lambda params: mean_loss(params, batch, mask)
        value, slope = jax.jvp(of_params, (here.state.params,), (direction(here),))
        lies = jax.random.bernoulli(here.client_keys(one.ids, rounds.Purpose.NOISE), flip(config))
        return jnp.where((slope > 0) ^ lies, 1.0, -1.0), jnp.stack([value, jnp.zeros_like(value)])

    def release(here, clients, sums):
        step = jax.tree.map(lambda leaf: sums.total * leaf, direction(here))
        return rounds.Release(step, (1 - 2 * flip(config)) * num_units)

    how = {"server_optimizer": optax.sgd(config.step), "performance": performance}
    return rounds.federated(rounds.each(client), release, **how)


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
    start=START,
)
