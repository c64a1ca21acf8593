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

import fljax_kernels
from fljax import _keys, _validate
from fljax.local import clipping, steps
from fljax.schemes import base, exact
from fljax.schemes.central import round as central
from fljax.server import optimizers, rounds
from fljax.server.rounds import Clients, ClientState, Release, Round, Sums
from fljax.types import LossFn, Params


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(optimizers.ServerSteps, steps.LocalSteps, exact.ExactConfig, central.SampledConfig):
    """Public numbers of DP-SCAFFOLD; every one may be published without loss of privacy.

    Raises:
      ValueError: a number is out of its range.
    """

    l2_clip_norm: float = 0.5
    """Bound on a client's update and scaled change of its control variate, taken together."""
    control_scale: float = 0.5
    """What the change of a control variate, a gradient, is multiplied by before it is clipped with
    the update. A client's step size times its usual number of steps makes the two of one size."""
    server_learning_rate: float = 0.3
    server_momentum: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.positive(control_scale=self.control_scale)


def _zeros(params: Params) -> Params:
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), params)


@base.maker
def make(config: Config, loss: LossFn, given: base.Given) -> base.FederatedAlgorithm:
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
    float32 (in whole numbers where it is "exact") with the key's generator; threefry is no
    cryptographic source. RoundInfo is not private.

    Args, Raises: as `base.Make`; a local_optimizer is refused, since a control variate is the mean
    gradient of plain steps.
    """
    if given.local_optimizer is not None:
        raise ValueError(
            "Expected local_optimizer=None, since a control variate is read off plain steps of "
            "SGD, got one."
        )
    scale = config.control_scale
    expected = config.sampling_prob * given.num_units
    stddev = base.noise_multiplier(config) * config.l2_clip_norm
    in_integers = central.exact_sums(config, expected) if exact.asked(config) else None
    train = steps.train(
        config,
        loss,
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
        if in_integers is None:
            total, norms = clipping.sum_updates(sent, config.l2_clip_norm, "flat", present)
        else:
            assert in_integers.add_up is not None  # of `exact_sums`
            total, norms = in_integers.add_up(here, clients.ids, sent, present)
        shrunk = clipping.flat(norms, config.l2_clip_norm)
        new = jax.tree.map(lambda mine, leaf: mine + per_client(shrunk, leaf) * leaf, own, change)
        stats = central.unit_stats(found.loss, norms, config.l2_clip_norm, present)
        return total, stats, new

    def release(here: Round, clients: Clients, sums: Sums) -> Release:
        if in_integers is None:
            key = here.server_key(_keys.Purpose.NOISE)
            noisy = fljax_kernels.add_gaussian_noise(key, sums.total, stddev)
        else:
            noisy = in_integers.release(here, sums).total
        control = jax.tree.map(
            lambda c, change: c + change / jnp.float32(scale * given.num_units),
            here.state.clipping,
            noisy["control"],
        )
        return Release(noisy["update"], expected, clipping=control)

    algorithm = rounds.federated(
        local,
        release,
        server_optimizer=given.server_optimizer,
        performance=given.performance,
        client_sampling_prob=config.sampling_prob,
        client_state=ClientState(_zeros),
    )

    def init(params: Params) -> rounds.ServerState:
        return algorithm.init(params)._replace(clipping=_zeros(params))

    return algorithm._replace(init=init)


event = central.sampled_event

SCHEME = central.scheme(
    summary="SCAFFOLD's control variates, clipped with the updates, central noise; unit: client",
    Config=Config,
    make=make,
    event=event,
    non_private=base.non_private,
    released=lambda state: state.clipping,  # the server's control variate
    normals=lambda config, num_params: 2 * num_params,  # of the update and the control variate
    # Controls are clipped by a multiple of the updates' bound: where that is small they are all
    # noise, and training drifts away with them.
    start={"scheme": {"server_learning_rate": 0.1, "control_scale": 2.0}},
)
fitted, non_private = SCHEME.fitted, SCHEME.non_private
