"""Units that take part in a fixed number of rounds, drawn at random for each of them."""

import jax
import jax.numpy as jnp

from fljax_kernels.sampling import subset


def joins(
    key: jax.Array, round_index: jax.Array | int, units: jax.Array, num_rounds: int, times: int
) -> jax.Array:
    """Bool `[...]`: which of `units`, uint32 `[...]`, are in this round. The same key in all of
    them.
    """

    def one(unit: jax.Array) -> jax.Array:
        mine = subset.sample(jax.random.fold_in(key, unit), num_rounds, times)
        return jnp.any(mine == jnp.int32(round_index))

    return jax.vmap(one)(units.ravel()).reshape(units.shape)


def placed(joined: jax.Array, capacity: int) -> tuple[jax.Array, jax.Array]:
    """(int32 `[capacity]` of the units that join, first ones first, then -1; their number)."""
    (num,) = joined.shape
    count = jnp.sum(joined, dtype=jnp.int32)
    (found,) = jnp.nonzero(joined, size=min(capacity, num), fill_value=-1)
    return found.astype(jnp.int32), count
