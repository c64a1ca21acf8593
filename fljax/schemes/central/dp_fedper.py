"""DP-FedPer: clients share all layers but some, which stay with each of them.

A client trains shared and personal layers together. Its update of the shared layers is clipped,
summed and noised as in DP-FedAvg; its personal layers never leave it.

Source: Arivazhagan, Aggarwal, Singh, Choudhary (2019), "Federated Learning with Personalization
Layers", arXiv:1912.00818, Algorithms 1 and 2; the private sum: McMahan et al. (2018),
arXiv:1710.06963.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from fljax import _validate
from fljax.local import personal, steps
from fljax.schemes import base
from fljax.schemes.central import dp_fedavg, turns
from fljax.schemes.central import round as central
from fljax.server.rounds import ClientState
from fljax.types import LossFn, Params


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(dp_fedavg.Config):
    """Public numbers of DP-FedPer: those of DP-FedAvg, and which layers are personal.

    Raises:
      ValueError: a number is out of its range, or no layer is named.
    """

    personal_layers: str = "logits"
    """Names of the layers that stay with each client, with commas between: an array of the model is
    personal if one of them stands in its path."""

    def __post_init__(self) -> None:
        super().__post_init__()
        # Clients with a state take no turns.
        _validate.one_of(("none",), correlation=self.correlation)
        _validate.one_of(("poisson",), sampling=self.sampling)
        if not self.names:
            raise ValueError(
                "Expected personal_layers to name a layer, got "
                f"personal_layers={self.personal_layers!r}: dp_fedavg has none."
            )

    @property
    def names(self) -> tuple[str, ...]:
        """Of the personal layers."""
        return tuple(name.strip() for name in self.personal_layers.split(",") if name.strip())


@base.maker
def make(config: Config, loss: LossFn, given: base.Given) -> base.FederatedAlgorithm:
    """Builds the algorithm; `num_units` are clients, by whose expected number the sum is divided.

    Guarantee: one round is one `event(config)` for the unit "client" under add-or-remove-one, if
    every client is put into the cohort independently with chance `sampling_prob`. Released are the
    shared layers after each round. What a client keeps is a function of its own data, of what was
    released, and of its own coins of earlier rounds; nobody is told any of it, and it moves nothing
    but the client's own clipped updates: docs/explain/client_state.md has the proof that rounds
    compose as if clients kept nothing. A model that a client makes of released and personal layers
    is its own: whoever publishes that, or predictions of it, publishes what no noise covers.
    Personal layers in the released model stay as they began, a public constant. Idealisation: as
    `dp_fedavg.make`.

    Args, Raises: as `base.Make`.
    """
    train = steps.train(
        config,
        loss,
        proximal=config.proximal,
        start=personal.merged,
        optimizer=given.local_optimizer,
    )

    def keep(update: Params, kept: dict[str, jax.Array]) -> tuple[Params, dict[str, jax.Array]]:
        moved = personal.by_path(update)
        new = {path: before.astype(jnp.float32) - moved[path] for path, before in kept.items()}
        return personal.merged(update, {path: jnp.zeros_like(moved[path]) for path in kept}), new

    def shared(total: Params) -> Params:
        return personal.merged(
            total, jax.tree.map(jnp.zeros_like, personal.layers(total, config.names))
        )

    return central.client_level(
        train,
        config,
        given,
        noise=turns.noise,
        own=lambda here, clients: clients.kept,
        keep=keep,
        released=shared,
        client_state=ClientState(
            lambda params: personal.layers(params, config.names), personal.merged
        ),
    )


def check_network(config: Config, apply: base.Apply, params: Params, example: Any) -> None:
    """Raises ValueError where no layer of the network is personal, or all are."""
    del apply, example
    paths, everything = personal.layers(params, config.names), list(personal.by_path(params))
    if not paths or len(paths) == len(everything):
        which = "all" if paths else "none"
        raise ValueError(
            f"Expected personal_layers to name some of the layers {everything}, and to leave some "
            f"to share, got personal_layers={config.personal_layers!r}, which names {which}."
        )


event = central.sampled_event

SCHEME = central.scheme(
    summary="as dp_fedavg, but some layers stay with each client; unit: client",
    Config=Config,
    make=make,
    event=event,
    non_private=central.non_private,
    check_network=check_network,
    # A client that keeps layers of its own needs examples enough to train them.
    start={
        "data": {"dataset": "writers", "num_clients": 400, "partition": "subject_uniform"},
        "privacy": {"target_delta": 2e-4},
    },
)
fitted, non_private = SCHEME.fitted, SCHEME.non_private
