"""Which key serves whom: the run's key, then the round, then the client (or the server), then the
purpose.

No key is drawn from twice, and a resumed run finds the same keys because nothing here depends on
history.
"""

import enum
import math

import jax
import jax.numpy as jnp

from fljax_kernels import _threefry  # the bits of jax.random, without its loops on a CPU

SERVER = 0xFFFFFFFF  # no client has this id: ids are non-negative int32
_ABSENT = 0xFFFFFFFE  # what padding (id -1) maps to; its draws are masked away


class Purpose(enum.IntEnum):
    """What a key is drawn for; one number per purpose, for ever (a change would break resuming old
    runs).
    """

    SAMPLE_CLIENTS = 0
    SAMPLE_EXAMPLES = 1
    SHUFFLE = 2
    NOISE = 3
    STRAGGLE = 4
    CHANNEL = 5
    PERTURB = 6
    CHOOSE_CLIENTS = 7
    ROTATE = 8
    ROUND = 9
    ALLOCATE = 10


def server_key(key: jax.Array, round_index: jax.Array | int, purpose: Purpose) -> jax.Array:
    """Key `[]` of the server in one round."""
    return _threefry.fold_in(
        _threefry.fold_in(_threefry.fold_in(key, round_index), SERVER), int(purpose)
    )


def client_keys(
    key: jax.Array, round_index: jax.Array | int, client_ids: jax.Array, purpose: Purpose
) -> jax.Array:
    """Keys `[C]`, one for each id in `client_ids` `[C]`; the same client gets the same key in any
    cohort.
    """
    round_key = _threefry.fold_in(key, round_index)
    ids = jnp.where(client_ids < 0, jnp.uint32(_ABSENT), client_ids.astype(jnp.uint32))
    return jax.vmap(lambda i: _threefry.fold_in(_threefry.fold_in(round_key, i), int(purpose)))(ids)


def coins(key: jax.Array, shape: tuple[int, ...], prob: float) -> jax.Array:
    """Independent coins, bool `shape`, True with chance floor(prob * 2**32) / 2**32: never more
    than `prob` claims.

    A float32 uniform below `prob` would come up more often than `prob`, and for small ones by much.
    """
    if prob >= 1:
        return jnp.ones(shape, bool)
    return jax.random.bits(key, shape, jnp.uint32) < jnp.uint32(math.floor(prob * 2.0**32))
