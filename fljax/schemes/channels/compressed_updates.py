"""Compressed updates: clients send a share of the numbers of their update; no noise, NO guarantee.

What is not sent tells nothing, but what is sent tells all: without noise the information is
unbounded, and no epsilon and no nats are promised. It is what defences are compared with.

Source: Tan et al. (2024), "Defending Against Data Reconstruction Attacks in Federated Learning: An
Information Theory Approach", arXiv:2403.01268, appendix E (gradient compression); the largest
numbers: Aji, Heafield (2017), "Sparse Communication for Distributed Gradient Descent",
arXiv:1704.05021, without its memory of what was not sent.
"""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp

from fljax import _keys, _validate
from fljax.accounting import events
from fljax.local import steps
from fljax.local.sgd import LocalResult
from fljax.schemes import base
from fljax.schemes.central import round as central
from fljax.schemes.channels import round as channels
from fljax.server import costs as costs_lib
from fljax.server import optimizers
from fljax.server.rounds import Clients, Round
from fljax.types import Batch, LossFn, Params

START = channels.START | {"run": {"num_rounds": 40, "baseline": False}}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(optimizers.ServerSteps, steps.LocalSteps):
    """Public numbers of the scheme.

    Raises:
      ValueError: a number is out of its range.
    """

    kept: float = 0.1
    """Share of an update's numbers that is sent, in (0, 1]; one number at least."""
    choice: Literal["largest", "random"] = "largest"
    """largest: those of the largest size, whose places are sent too. random: places by the run's
    key, which the server knows.
    """
    sampling_prob: float = 1.0
    """Chance that one client joins one round, in (0, 1]."""
    local_batch_size: int = 10
    """Records in a step of a client's SGD."""
    num_local_epochs: int = 1
    """Passes of a client over its records in one round."""
    server_momentum: float = 0.9
    noise_multiplier: float = 0.0
    """Must be 0: this scheme adds no noise."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.probability(kept=self.kept, sampling_prob=self.sampling_prob)
        _validate.one_of(("largest", "random"), choice=self.choice)


def sent(config: Config, num_params: int) -> int:
    """How many numbers of an update are sent."""
    return max(1, round(config.kept * num_params))


def kept_part(config: Config, update: Params, key: jax.Array) -> Params:
    """One client's update with 0 for what is not sent. key: of its random places."""
    leaves, structure = jax.tree.flatten(update)
    widest = jnp.result_type(*leaves)
    flat = jnp.concatenate([leaf.reshape(-1).astype(widest) for leaf in leaves])
    sizes = jax.random.uniform(key, flat.shape) if config.choice == "random" else jnp.abs(flat)
    _, places = jax.lax.top_k(sizes, sent(config, flat.size))
    flat = jnp.zeros_like(flat).at[places].set(flat[places])
    parts, start = [], 0
    for leaf in leaves:
        parts.append(flat[start : start + leaf.size].reshape(leaf.shape).astype(leaf.dtype))
        start += leaf.size
    return jax.tree.unflatten(structure, parts)


@base.maker
def make(config: Config, loss: LossFn, given: base.Given) -> base.FederatedAlgorithm:
    """Builds the algorithm: local SGD, a share of each update, their mean.

    Guarantee: none. RoundInfo is not private.

    Args, Raises: as `base.Make`; ValueError also where noise_multiplier is not 0.
    """
    if config.noise_multiplier != 0:
        raise ValueError(
            "Expected noise_multiplier=0 for compressed_updates, which adds no noise, got "
            f"noise_multiplier={config.noise_multiplier!r}."
        )
    whole = steps.train(config, loss, optimizer=given.local_optimizer)

    def own(here: Round, clients: Clients) -> jax.Array:
        return here.client_keys(clients.ids, _keys.Purpose.CHANNEL)

    def train(
        params: Params, examples: Batch, rows: jax.Array, keys: jax.Array, own: jax.Array
    ) -> LocalResult:
        found = whole(params, examples, rows, keys)
        part = jax.vmap(lambda update, key: kept_part(config, update, key))(found.update, own)
        return found._replace(update=part)

    return central.client_level(train, channels._Central(config.sampling_prob), given, own=own)


def event(config: Config) -> events.PrivacyEvent:
    """A release without any guarantee."""
    del config
    return base.no_guarantee("client")


def non_private(config: Config) -> Config:
    """The same training with whole updates."""
    return dataclasses.replace(config, kept=1.0)


def costs(config: Config, num_params: int) -> costs_lib.Costs:
    """One client's round: 4 bytes a number, and 4 for the place of one that was chosen by size."""
    each = 8 if config.choice == "largest" else 4
    plain = costs_lib.plain(num_params)
    return plain._replace(upload_bytes=float(each * sent(config, num_params)))


SCHEME = base.Scheme(
    summary="clients send the largest or random numbers of their updates; no noise, no guarantee",
    promise="none",
    Config=Config,
    make=make,
    event=event,
    fitted=base.fitted,
    non_private=non_private,
    noise_at="client",
    start=START,
    costs=costs,
)
