"""Secure sums in rounds by Flower: SecAgg and SecAgg+, a message each way for each of their steps.

A client trains before the first step, and sends its words in the third. Between steps its part of
the protocol is kept in the context of its own node, since the process of a ClientApp may end with
each message.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax import _keys
from fljax.interop.flower import records
from fljax.interop.flower.deployment import IN_THE_RING, Deployment
from fljax.local import clipping
from fljax.schemes.uploads import modular
from fljax.upload import integer_grid
from fljax.upload.secure_sum import secagg, secagg_plus, signing

if TYPE_CHECKING:
    from flwr.app import ConfigRecord, Context

STEPS = secagg.STEPS
Ask = Callable[[str, Mapping[int, bytes]], Mapping[int, bytes]]
_KEPT = "fljax secure sum"
_UNUSED = 0  # seed of a rotation that no grid here has


def setting(
    deployment: Deployment,
    num_params: int,
    roster: Mapping[int, bytes] | None,
    identities: Mapping[int, signing.Identity],
) -> tuple[integer_grid.Grid, secagg.SecAgg]:
    """The grid, and the protocol as one party has it.

    Raises:
      ValueError: there is no roster, or not one of all clients.
      SybilError, PrivacyPreconditionError: as `secagg.SecAgg`.
    """
    if roster is None:
        raise ValueError(
            f"Expected a roster of all clients' public keys for scheme={deployment.scheme!r}, got "
            "none."
        )
    config = deployment.config
    grid = modular.grid(config, IN_THE_RING[deployment.scheme], num_params, bits=config.bits)
    terms = modular.terms(config, grid.size, grid.bits)
    options = secagg_plus.options(terms) if config.protocol == "secagg_plus" else {}
    return grid, secagg.SecAgg(terms=terms, roster=roster, identities=identities, **options)


def words(
    deployment: Deployment, update: Mapping[str, Any], number: int, key: jax.Array, round_index: int
) -> np.ndarray:
    """What a client sends of its update under the masks: clipped, on the grid, with its noise.

    number, key: of whose streams it draws.
    """
    config, noise = deployment.config, IN_THE_RING[deployment.scheme]
    leaves = [jnp.asarray(leaf) for leaf in update.values()]
    grid = modular.grid(config, noise, sum(leaf.size for leaf in leaves), bits=config.bits)
    norm = clipping.joint_norm(clipping.leaf_norms([leaf[None] for leaf in leaves]))
    ids = jnp.asarray([number], jnp.int32)
    of_purpose = lambda purpose: _keys.client_keys(key, round_index, ids, purpose)[0]
    found = modular.words(
        config,
        noise,
        grid,
        leaves,
        clipping.flat(norm, config.l2_clip_norm)[0],
        rotation_key=jax.random.key(_UNUSED),
        key=of_purpose(_keys.Purpose.ROUND),
        noise_key=of_purpose(_keys.Purpose.NOISE),
    )
    return np.asarray(found)


def begin(
    deployment: Deployment,
    update: Mapping[str, Any],
    identity: signing.Identity | None,
    roster: Mapping[int, bytes] | None,
    key: jax.Array,
    round_index: int,
    context: "Context",
) -> bytes:
    """A client's message of the first step. Raises ValueError where it has no identity."""
    if identity is None:
        raise ValueError(
            f"Expected party with an identity for scheme={deployment.scheme!r}, got none."
        )
    number, size = identity.client, sum(leaf.size for leaf in update.values())
    _, made = setting(deployment, size, roster, {number: identity})
    mine = made.client(number, words(deployment, update, number, key, round_index), round_index)
    sent = mine.send(STEPS[0], b"")
    _keep(context, round_index, size, mine.state())
    return sent


def go_on(
    deployment: Deployment,
    told: "ConfigRecord",
    identity: signing.Identity | None,
    roster: Mapping[int, bytes] | None,
    context: "Context",
) -> bytes:
    """A client's message of a later step.

    Raises:
      ValueError: the client is in no such round, or has no identity.
      SecureSumError: the client takes no further part in the round; the kind of error says why.
    """
    kept = context.state.get(_KEPT)
    if kept is None or kept["round"] != told["round"] or identity is None:
        raise ValueError(f"Expected a step of a round that was begun, got round {told['round']}.")
    del context.state[_KEPT]  # used once, whatever comes of it
    _, made = setting(deployment, int(kept["size"]), roster, {identity.client: identity})
    mine = made.resumed(kept["state"])
    sent = mine.send(str(told["step"]), bytes(told["received"]))
    if told["step"] != STEPS[-1]:
        _keep(context, int(told["round"]), int(kept["size"]), mine.state())
    return sent


def _keep(context: "Context", round_index: int, size: int, state: bytes) -> None:
    flwr = records.app()
    context.state[_KEPT] = flwr.ConfigRecord({"round": round_index, "size": size, "state": state})


def total(
    deployment: Deployment,
    model: Mapping[str, np.ndarray],
    roster: Mapping[int, bytes] | None,
    round_index: int,
    ask: Ask,
) -> dict[str, np.ndarray]:
    """The mean update of the clients that are in the sum, by the server's part of the protocol.

    ask: (step, what each client gets) -> what each one sent.

    Raises:
      SecureSumError: the sum was aborted, and nothing is released; the kind of error says why.
    """
    grid, made = setting(deployment, sum(leaf.size for leaf in model.values()), roster, {})
    server = made.server(round_index)
    inbox: Mapping[int, bytes] = dict.fromkeys(range(deployment.num_clients), b"")
    for step in STEPS:
        inbox = server.collect(step, ask(step, inbox))
    ring_sum = jnp.asarray(server.total())
    decoded = integer_grid.decoded(grid, ring_sum, rotation_key=jax.random.key(_UNUSED))
    flat = np.asarray(decoded / jnp.float32(len(server.summed)))
    ends = np.cumsum([leaf.size for leaf in model.values()])[:-1]
    parts = np.split(flat, ends)
    return {
        name: part.reshape(leaf.shape)
        for part, (name, leaf) in zip(parts, model.items(), strict=True)
    }
