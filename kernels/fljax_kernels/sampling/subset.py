"""Uniformly random ordered subsets without replacement."""

import jax
import jax.numpy as jnp

from fljax_kernels import _meshes

_PAIRS = 32  # entries that are compared each with each, in one pass, where a sort takes many


def sample(key: jax.Array, num: int, size: int) -> jax.Array:
    """int32 `[size]`, distinct, in [0, num): by redrawing where few of many are wanted, else by
    sorting all.
    """
    return by_redrawing(key, num, size) if 8 * size <= num else by_sorting(key, num, size)


def by_sorting(key: jax.Array, num: int, size: int) -> jax.Array:
    """Sorts all units by 64 random bits. Ties, of chance num**2 * 2**-65, are the only
    unevenness.
    """
    high, low = jax.random.bits(key, (2, num), jnp.uint32)
    return jax.lax.sort((high, low, jnp.arange(num, dtype=jnp.int32)), num_keys=2)[2][:size]


def by_redrawing(key: jax.Array, num: int, size: int) -> jax.Array:
    """Draws every entry, then again those that repeat an entry, until all are distinct: O(size) for
    num >= 8 * size.

    Exactly uniform over ordered subsets, given uniform bits: a draw is uniform (32 bits above the
    largest multiple of num are refused: `jax.random.randint` would keep them, which favours low
    units by num * 2**-32), and which entries are drawn again depends on who equals whom, never on
    the values. So renaming the units permutes the outcomes, and every ordered subset is a renaming
    of every other.
    """
    position = jnp.arange(size, dtype=jnp.int32)
    repeats = _by_pairs if size <= _PAIRS else _by_rank
    last_fair = max(2**32 // max(num, 1) * num - 1, 0)

    def draw(
        state: tuple[jax.Array, jax.Array, jax.Array],
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        turn, values, wanted = state
        bits = jax.random.bits(jax.random.fold_in(key, turn), (size,), jnp.uint32)
        fresh = (bits % jnp.uint32(max(num, 1))).astype(jnp.int32)
        # A refused draw stands as a negative number of its own.
        values = jnp.where(
            wanted, jnp.where(bits <= jnp.uint32(last_fair), fresh, -1 - position), values
        )
        return turn + 1, values, repeats(values, wanted)

    state = (jnp.int32(0), jnp.zeros(size, jnp.int32), jnp.ones(size, bool))
    return _meshes.while_loop(lambda state: jnp.any(state[2]), draw, state)[1]


def _by_pairs(values: jax.Array, wanted: jax.Array) -> jax.Array:
    """Which entries are drawn again: those that are no unit, and of equal ones all but the first
    that was kept, or else the first.

    wanted: which entries were drawn this turn.
    """
    place = jnp.where(wanted, values.size, 0) + jnp.arange(values.size, dtype=jnp.int32)
    again = values < 0
    for value, at in zip(values, place, strict=True):  # of equal entries the least place stays
        again |= (values == value) & (at < place)
    return again


def _by_rank(values: jax.Array, wanted: jax.Array) -> jax.Array:
    """The same of many entries: equal values lie side by side, an entry kept earlier first."""
    size = values.size
    position = jnp.arange(size, dtype=jnp.int32)
    ranked, _, owner = jax.lax.sort((values, wanted.astype(jnp.int32), position), num_keys=2)
    again = jnp.concatenate([jnp.zeros(min(size, 1), bool), ranked[1:] == ranked[:-1]])
    return jnp.zeros(size, bool).at[owner].set(again | (ranked < 0))
