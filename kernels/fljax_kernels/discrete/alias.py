"""Draws from a law of whole numerators: alias tables on the host, one look-up on the device.

A draw reads 32 random bits: the first k say which of 2**k columns, the others are compared with the
first bits of the column's threshold. Only where they are equal, bits beyond decide, and those are
drawn for this one draw. So each draw is that of a uniform number of 192 bits, and nearly all cost
32 of them; time depends on how often numbers meet the first bits of thresholds, not on the noise.

Source: Walker (1977), Vose (1991), in integers.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fljax_kernels import _threefry
from fljax_kernels.discrete import laws

WORDS = laws.BITS // 32
_SHORT = 2**12  # below, a loop takes longer than what it saves


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
    """Random uint32 `shape`: array number `word` of a key."""
    return _threefry.uint32s(_threefry.fold_in(key, word), int(np.prod(shape))).reshape(shape)


def once(
    fun: Callable[..., jax.Array], key: jax.Array, word: jax.Array | int, *given: jax.Array
) -> jax.Array:
    """`fun(bits, *given)` of `bits(key, word, (P,))` and arrays `[P]`, entry by entry, in memory.

    On a CPU, XLA would draw threefry's bits anew for each use of the result, and a barrier does not
    hinder it. A loop over two halves does, as do the loops in which other generators draw.
    """
    key, (size,) = _threefry.fold_in(key, word), given[0].shape
    if size < _SHORT or not _threefry.covers(key):
        return fun(_threefry.uint32s(key, size), *given)
    half = -(-size // 2)
    halves = [jnp.pad(each, (0, 2 * half - size)).reshape(2, half) for each in given]
    places = lax.iota(jnp.uint32, 2 * half).reshape(2, half)
    data = jax.random.key_data(key)
    both = lax.map(lambda part: fun(_threefry.bits(data, part[0]), *part[1]), (places, halves))
    return both.reshape(2 * half)[:size]


def beyond(key: jax.Array, place: jax.Array | int) -> jax.Array:
    """Random uint32 `[5]`: the words beyond the first of the draw at `place`."""
    return bits(_threefry.fold_in(key, 1), place, (WORDS - 1,))


def draw(key: jax.Array, shape: tuple[int, ...], columns: Table) -> jax.Array:
    """Independent draws, int32 `shape`."""
    size = int(np.prod(shape))
    if not size:
        return jnp.zeros(shape, jnp.int32)
    rest_bits = 32 - columns.column_bits
    places = lax.iota(jnp.int32, size)

    def look_up(drawn: jax.Array, _: jax.Array) -> jax.Array:
        """4 column + 2 (whether from the threshold on) + (whether bits beyond decide that)."""
        column = (drawn >> np.uint32(rest_bits)).astype(jnp.int32)
        threshold = _at(columns.first, column)
        drawn &= np.uint32((1 << rest_bits) - 1)
        above, equal = (
            (drawn >= threshold).astype(jnp.int32),
            (drawn == threshold).astype(jnp.int32),
        )
        return 4 * column + 2 * above + equal

    def undecided(found: jax.Array) -> jax.Array:
        """The last place with bits to look at; -1 where there is none."""
        return jnp.max(jnp.where(found & 1 == 1, places, -1))

    def decide(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        """One place, of which there are a few in a million."""
        place, found = state
        column, above = found[place] >> 2, jnp.ones((), bool)
        drawn, bounds = beyond(key, place), jnp.asarray(columns.rest)[:, column]
        for word in reversed(range(WORDS - 1)):
            above = (drawn[word] > bounds[word]) | ((drawn[word] == bounds[word]) & above)
        found = found.at[place].set(4 * column + 2 * above.astype(jnp.int32))
        return undecided(found), found

    found = once(look_up, key, 0, places)
    found = lax.while_loop(lambda state: state[0] >= 0, decide, (undecided(found), found))[1]
    return _at(columns.values, found >> 1).reshape(shape)


def _at(entries: np.ndarray, places: jax.Array) -> jax.Array:
    found: jax.Array = jnp.asarray(entries).at[places].get(mode="promise_in_bounds")
    return found
