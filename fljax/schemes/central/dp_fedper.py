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
import optax

from fljax.accounting import events
from fljax.local import sgd
from fljax.schemes import base
from fljax.schemes.central import dp_fedavg
from fljax.schemes.central import round as central
from fljax.server.rounds import ClientState, Performance
from fljax.types import LossFn, Params

fitted = base.fitted


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
        if not self.names:
            raise ValueError(
                "Expected personal_layers to name a layer, got "
                f"personal_layers={self.personal_layers!r}: dp_fedavg has none."
            )

    @property
    def names(self) -> tuple[str, ...]:
        """Of the personal layers."""
        return tuple(name.strip() for name in self.personal_layers.split(",") if name.strip())


def _by_path(tree: Params) -> dict[str, Any]:
    """The arrays of a tree by their paths, whose names have slashes between."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def personal(params: Params, names: tuple[str, ...]) -> dict[str, jax.Array]:
    """The arrays of the named layers, by their paths."""
    return {
        path: leaf for path, leaf in _by_path(params).items() if set(names) & set(path.split("/"))
    }


def merged(params: Params, own: dict[str, Any]) -> Params:
    """The parameters, with a client's own in place of those that have their paths."""
    leaves = [own.get(path, leaf) for path, leaf in _by_path(params).items()]
    return jax.tree.unflatten(jax.tree.structure(params), leaves)


def make(
    config: Config,
    loss: LossFn,
    *,
    num_units: int,
    performance: Performance = Performance(),
    server_optimizer: optax.GradientTransformation | None = None,
    local_optimizer: optax.GradientTransformation | None = None,
) -> base.FederatedAlgorithm:
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
    train = sgd.local_sgd(
        loss,
        learning_rate=config.local_learning_rate,
        batch_size=config.local_batch_size,
        num_epochs=config.num_local_epochs,
        proximal=config.proximal,
        start=merged,
        optimizer=local_optimizer,
    )

    def keep(update: Params, kept: dict[str, jax.Array]) -> tuple[Params, dict[str, jax.Array]]:
        moved = _by_path(update)
        new = {path: before.astype(jnp.float32) - moved[path] for path, before in kept.items()}
        return merged(update, {path: jnp.zeros_like(moved[path]) for path in kept}), new

    def shared(total: Params) -> Params:
        return merged(total, jax.tree.map(jnp.zeros_like, personal(total, config.names)))

    return central.client_level(
        train,
        config,
        num_clients=num_units,
        server_optimizer=server_optimizer or base.server_optimizer(config, config.server_optimizer),
        performance=performance,
        own=lambda here, clients: clients.kept,
        keep=keep,
        released=shared,
        client_state=ClientState(lambda params: personal(params, config.names), merged),
    )


def event(config: Config) -> events.PrivacyEvent:
    """What one round does to one client's data.

    Raises:
      ValueError: noise_multiplier is None.
    """
    return central.sampled_gaussian_event(config, privacy_unit="client")


def non_private(config: Config) -> Config:
    """The same training with a clip that never binds and no noise."""
    found: Config = central.without_clipping(config)
    return found


def check_network(config: Config, apply: base.Apply, params: Params, example: Any) -> None:
    """Raises ValueError where no layer of the network is personal, or all are."""
    del apply, example
    paths, everything = personal(params, config.names), list(_by_path(params))
    if not paths or len(paths) == len(everything):
        which = "all" if paths else "none"
        raise ValueError(
            f"Expected personal_layers to name some of the layers {everything}, and to leave some "
            f"to share, got personal_layers={config.personal_layers!r}, which names {which}."
        )


SCHEME = base.Scheme(
    summary="as dp_fedavg, but some layers stay with each client; unit: client",
    promise="epsilon",
    Config=Config,
    make=make,
    event=event,
    fitted=fitted,
    non_private=non_private,
    check_network=check_network,
)
