"""DP-SCAFFOLD: control variates that clients keep take the drift out of their local steps.

A client's steps go along `gradient - c_i + c`, with its own control variate `c_i` and the server's
`c`. It sends its update and the change of `c_i`, clipped together; the sums of both are noised.

Source: Karimireddy et al. (2020), "SCAFFOLD: Stochastic Controlled Averaging for Federated
Learning", arXiv:1910.06378, Algorithm 1 with option II. Clipping and noise: Abadi et al. (2016),
arXiv:1607.00133.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

import fljax_kernels
from fljax import _keys, _validate
from fljax.accounting import events
from fljax.local import clipping, sgd, steps
from fljax.schemes import base
from fljax.schemes.central import round as central
from fljax.server import rounds
from fljax.server.rounds import Clients, ClientState, Performance, Release, Round, Sums
from fljax.types import LossFn, Params

fitted = base.fitted


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(steps.LocalSteps):
    """Public numbers of DP-SCAFFOLD; every one may be published without loss of privacy.

    Raises:
      ValueError: a number is out of its range.
    """

    sampling_prob: float = 0.5
    """Chance that one client joins one round, in (0, 1]."""
    l2_clip_norm: float = 0.5
    """Bound on a client's update and scaled change of its control variate, taken together."""
    control_scale: float = 0.5
    """What the change of a control variate, a gradient, is multiplied by before it is clipped with
    the update. A client's step size times its usual number of steps makes the two of one size."""
    noise_multiplier: float | None = None
    """Noise standard deviation / bound, of the whole round. None: calibrated for the target
    epsilon.
    """
    server_learning_rate: float = 0.3
    """Step size of the server along the mean update."""
    server_momentum: float = 0.9
    """Momentum of the server, in [0, 1)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        central.check_config(self)
        _validate.positive(control_scale=self.control_scale)


def _zeros(params: Params) -> Params:
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), params)


def make(
    config: Config,
    loss: LossFn,
    *,
    num_units: int,
    performance: Performance = Performance(),
    server_optimizer: optax.GradientTransformation | None = None,
    local_optimizer: optax.GradientTransformation | None = None,
) -> base.FederatedAlgorithm:
    """Builds the algorithm; `num_units` are clients.

    A client keeps its control variate, which grows by the change that it sent after clipping, so
    that the server's is the mean of the clients' and what noise has added to it. `state.clipping`
    is the server's.

    Guarantee: one round is one `event(config)` for the unit "client" under add-or-remove-one, if
    every client is put into the cohort independently with chance `sampling_prob`: the update and
    `control_scale` times the change are one vector, clipped to l2_clip_norm, and one Gaussian
    mechanism releases the sum of these vectors. Released are the model and the server's control
    variate after each round. What a client keeps is a function of its own data, of what was
    released, and of its own coins; nobody is told any of it, and it moves nothing but the client's
    own clipped vector: docs/explain/client_state.md has the proof that rounds compose as if clients
    kept nothing. The server that adds up is trusted: it sees every clipped vector, and with all of
    a client's the client's control variate. Divisors are public. Idealisation: noise is drawn in
    float32 with JAX's threefry generator, which is no cryptographic source. RoundInfo is not
    private.

    Args, Raises: as `base.Make`; a local_optimizer is refused, since a control variate is the mean
    gradient of plain steps.
    """
    if local_optimizer is not None:
        raise ValueError(
            "Expected local_optimizer=None, since a control variate is read off plain steps of "
            "SGD, got one."
        )
    _validate.positive_int(num_units=num_units)
    scale = config.control_scale
    stddev = base.noise_multiplier(config) * config.l2_clip_norm
    train = sgd.local_sgd(
        loss,
        learning_rate=config.local_learning_rate,
        batch_size=config.local_batch_size,
        num_epochs=config.num_local_epochs,
        correct=lambda grads, drift: jax.tree.map(lambda g, d: g + d.astype(g.dtype), grads, drift),
    )

    def local(here: Round, clients: Clients) -> tuple[Any, jax.Array, Params]:
        control, own, present = here.state.clipping, clients.kept, clients.present
        drift = jax.tree.map(lambda c, mine: c[None] - mine, control, own)
        keys = here.client_keys(clients.ids, _keys.Purpose.SHUFFLE)
        found = train(here.state.params, here.examples, clients.rows, keys, drift)
        examples = jnp.sum(clients.rows >= 0, axis=1)
        taken = config.num_local_epochs * (-(-examples // config.local_batch_size))
        length = config.local_learning_rate * jnp.maximum(1, taken).astype(jnp.float32)

        def per_client(values: jax.Array, leaf: jax.Array) -> jax.Array:
            return values.reshape((-1,) + (1,) * (leaf.ndim - 1))

        def changed(update: jax.Array, c: jax.Array) -> jax.Array:
            """Option II: c_i of the next round less that of this one, for clients with examples."""
            change = update / per_client(length, update) - c[None]
            return jnp.where(per_client(taken > 0, update), change, 0.0)

        update = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), found.update)
        change = jax.tree.map(changed, update, control)
        sent = {"update": update, "control": jax.tree.map(lambda leaf: scale * leaf, change)}
        total, norms = clipping.sum_updates(sent, config.l2_clip_norm, "flat", present)
        shrunk = clipping.flat(norms, config.l2_clip_norm)
        new = jax.tree.map(lambda mine, leaf: mine + per_client(shrunk, leaf) * leaf, own, change)
        losses = jnp.where(present & jnp.isfinite(found.loss), found.loss, 0.0)
        was_clipped = ~(norms <= config.l2_clip_norm) & present
        stats = jnp.stack([jnp.sum(losses), jnp.sum(was_clipped).astype(jnp.float32)])
        return total, stats, new

    def release(here: Round, clients: Clients, sums: Sums) -> Release:
        key = here.server_key(_keys.Purpose.NOISE)
        noisy = fljax_kernels.add_gaussian_noise(key, sums.total, stddev)
        control = jax.tree.map(
            lambda c, change: c + change / jnp.float32(scale * num_units),
            here.state.clipping,
            noisy["control"],
        )
        return Release(noisy["update"], config.sampling_prob * num_units, clipping=control)

    algorithm = rounds.federated(
        local,
        release,
        server_optimizer=server_optimizer or base.server_optimizer(config),
        performance=performance,
        client_sampling_prob=config.sampling_prob,
        client_state=ClientState(_zeros),
    )

    def init(params: Params) -> rounds.ServerState:
        return algorithm.init(params)._replace(clipping=_zeros(params))

    return algorithm._replace(init=init)


def event(config: Config) -> events.PrivacyEvent:
    """What one round does to one client's data, its update and its control variate together.

    Raises:
      ValueError: noise_multiplier is None.
    """
    return central.sampled_gaussian_event(config, privacy_unit="client")


def non_private(config: Config) -> Config:
    """The same training with a clip that never binds and no noise."""
    return dataclasses.replace(config, l2_clip_norm=base.NEVER_CLIPS, noise_multiplier=0.0)


SCHEME = base.Scheme(
    summary="SCAFFOLD's control variates, clipped with the updates, central noise; unit: client",
    promise="epsilon",
    Config=Config,
    make=make,
    event=event,
    fitted=fitted,
    non_private=non_private,
)
