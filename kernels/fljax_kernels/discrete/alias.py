"""Draws from a law of whole numerators: alias tables on the host, one look-up on the device.

A draw reads 32 random bits: the first k say which of 2**k columns, the others are compared with the
first bits of the column's threshold. Only where they are equal, bits beyond decide, and more are
drawn. So each draw is that of a uniform number of 192 bits, and nearly all cost 32 of them; time
depends on how near numbers are to thresholds, not on the noise.

Source: Walker (1977), Vose (1991), in integers.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fljax_kernels import _threefry
from fljax_kernels.discrete import laws

WORDS = laws.BITS // 32


class Table(NamedTuple):
    """column_bits: k. values: int32 `[2**(k + 1)]`, what a column gives below its threshold and
    from it on. first: uint32 `[2**k]`, the first 32 - k bits of the threshold; rest: uint32
    `[5, 2**k]`, the words beyond.
    """

    column_bits: int
    values: np.ndarray
    first: np.ndarray
    rest: np.ndarray


@functools.lru_cache(maxsize=32)
def table(law: str, parameter: float) -> Table:
    """The columns of a law of `laws`, by its name."""
    reach, numerators = laws.LAWS[law](parameter)
    column_bits = max(1, (len(numerators) - 1).bit_length())
    columns = 1 << column_bits
    capacity = 1 << (laws.BITS - column_bits)
    left = numerators + [0] * (columns - len(numerators))
    owner, other, threshold = list(range(columns)), list(range(columns)), [0] * columns
    small = [i for i, mass in enumerate(left) if mass < capacity]
    large = [i for i, mass in enumerate(left) if mass >= capacity]
    while small:  # all masses sum to the columns' capacity, so that no small one is ever alone
        i, j = small.pop(), large[-1]
        threshold[i], other[i] = left[i], j
        left[j] -= capacity - left[i]
        if left[j] < capacity:
            small.append(large.pop())
    values = np.stack([np.asarray(owner, np.int32), np.asarray(other, np.int32)], 1).ravel() - reach
    # Big-endian words of 192 bits, of which the first holds 32 - k.
    words = np.frombuffer(b"".join(t.to_bytes(4 * WORDS, "big") for t in threshold), ">u4")
    words = words.reshape(columns, WORDS).T.astype(np.uint32)
    return Table(column_bits, values, words[0].copy(), words[1:].copy())


def bits(key: jax.Array, word: jax.Array | int, shape: tuple[int, ...]) -> jax.Array:
    """Random uint32 `shape`: word number `word` of each draw."""
    key = _threefry.fold_in(key, word)
    if not _threefry.covers(key):
        return jax.random.bits(key, shape, jnp.uint32)
    size = int(np.prod(shape))
    position = lax.iota(jnp.uint32, size).reshape(shape)
    return _threefry.bits(jax.random.key_data(key), position)


def draw(key: jax.Array, shape: tuple[int, ...], columns: Table) -> jax.Array:
    """Independent draws, int32 `shape`."""
    rest_bits = 32 - columns.column_bits
    drawn = bits(key, 0, shape)
    column = (drawn >> np.uint32(rest_bits)).astype(jnp.int32)
    drawn &= np.uint32((1 << rest_bits) - 1)
    threshold = jnp.asarray(columns.first)[column]
    beyond = jnp.asarray(columns.rest)

    def more(state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        word, equal, above = state
        drawn, threshold = bits(key, word, shape), beyond[word - 1, column]
        return word + 1, equal & (drawn == threshold), jnp.where(equal, drawn >= threshold, above)

    state: tuple[jax.Array, ...] = (jnp.int32(1), drawn == threshold, drawn >= threshold)
    wanted = lambda state: jnp.any(state[1]) & (state[0] < WORDS)
    above = lax.while_loop(wanted, more, state)[2]
    return jnp.asarray(columns.values)[2 * column + above.astype(jnp.int32)]
