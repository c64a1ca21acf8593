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

from fljax_kernels import _meshes, _threefry
from fljax_kernels.discrete import laws

WORDS = laws.BITS // 32
_SHORT = 2**12  # below, a loop takes longer than what it saves
_BLOCK = 1024  # draws that are searched for ties together
_TIE = -(2**31)  # plus a column: no value of a law is as small


class Table(NamedTuple):
    """column_bits: k. least: what column 0 gives below its threshold, and column i gives i more.
    entries: uint32 `[2**k]`, the first 32 - k bits of a column's threshold, then in k bits the
    column whose value it gives from there on. rest: uint32 `[5, 2**k]`, the words of the threshold
    beyond.
    """

    column_bits: int
    least: int
    entries: np.ndarray
    rest: np.ndarray


@functools.lru_cache(maxsize=32)
def table(law: str, parameter: float) -> Table:
    """The columns of a law of `laws`, by its name."""
    reach, numerators = laws.LAWS[law](parameter)
    column_bits = max(1, (len(numerators) - 1).bit_length())
    columns = 1 << column_bits
    capacity = 1 << (laws.BITS - column_bits)
    left = numerators + [0] * (columns - len(numerators))
    other, threshold = list(range(columns)), [0] * columns
    small = [i for i, mass in enumerate(left) if mass < capacity]
    large = [i for i, mass in enumerate(left) if mass >= capacity]
    while small:  # all masses sum to the columns' capacity, so that no small one is ever alone
        i, j = small.pop(), large[-1]
        threshold[i], other[i] = left[i], j
        left[j] -= capacity - left[i]
        if left[j] < capacity:
            small.append(large.pop())
    # Big-endian words of 192 bits, of which the first holds 32 - k.
    words = np.frombuffer(b"".join(t.to_bytes(4 * WORDS, "big") for t in threshold), ">u4")
    words = words.reshape(columns, WORDS).T.astype(np.uint32)
    entries = (words[0] << np.uint32(column_bits)) | np.asarray(other, np.uint32)
    return Table(column_bits, -reach, entries, words[1:].copy())


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
    impl = jax.random.key_impl(key)

    # Keys of a vmap are drawn from together, so that one loop settles the ties of all.
    @jax.custom_batching.custom_vmap
    def of_all(data: jax.Array) -> jax.Array:
        return _drawn(jax.random.wrap_key_data(data, impl=impl), size, columns)

    @of_all.def_vmap
    def of_more(count: int, batched: list[bool], data: jax.Array) -> tuple[jax.Array, bool]:
        found = of_all(data.reshape(-1, *data.shape[2:]))
        return found.reshape(count, -1, size), True

    return of_all(jax.random.key_data(key)[None]).reshape(shape)


def _drawn(keys: jax.Array, size: int, columns: Table) -> jax.Array:
    """Int32 `[C, size]` of keys `[C]`."""
    bits_of_rest = np.uint32(32 - columns.column_bits)
    others = np.uint32((1 << columns.column_bits) - 1)
    # In memory first: a look-up in the cipher's loop would keep XLA from vectors.
    drawn = lax.map(lambda k: once(lambda b, _: b, k, 0, lax.iota(jnp.int32, size)), keys)
    drawn = drawn.reshape(-1)
    column = (drawn >> bits_of_rest).astype(jnp.int32)
    entry = _at(columns.entries, column)
    shifted = drawn << np.uint32(columns.column_bits)  # as the threshold stands in an entry
    other = (entry & others).astype(jnp.int32)
    value = jnp.where(shifted < (entry & ~others), column, other) + np.int32(columns.least)
    tied = (shifted ^ entry) <= others
    first = jnp.where(tied, column + _TIE, value)  # is only read below: a loop writes in place then

    def decide(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        """The last tie of a block that has one; one draw in 2**(32 - k) is a tie."""
        ties, found = state
        block = jnp.argmax(ties > 0).astype(jnp.int32)
        start = jnp.minimum(block * width, first.size - width)
        row = lax.dynamic_slice_in_dim(first, start, width)
        at = jnp.argmax(jnp.cumsum(_is_tie(row), dtype=jnp.int32) == ties[block]).astype(jnp.int32)
        column, place, above = row[at] - _TIE, start + at, jnp.ones((), bool)
        drawn = beyond(keys[place // size], place % size)
        bounds = jnp.asarray(columns.rest)[:, column]
        for word in reversed(range(WORDS - 1)):
            above = (drawn[word] > bounds[word]) | ((drawn[word] == bounds[word]) & above)
        other = (_at(columns.entries, column) & others).astype(jnp.int32)
        value = jnp.where(above, other, column) + np.int32(columns.least)
        return ties.at[block].add(-1), found.at[place].set(value)

    # The last block, of the same width, begins within the one before.
    width = min(_BLOCK, first.size)
    count = lambda rows: jnp.sum(_is_tie(rows), axis=-1, dtype=jnp.int32)
    whole = first[: first.size // width * width].reshape(-1, width)
    ties = jnp.concatenate([count(whole), count(first[None, -width:])])
    found = _meshes.while_loop(lambda state: jnp.any(state[0] > 0), decide, (ties, first))[1]
    return found.reshape(-1, size)


def _is_tie(found: jax.Array) -> jax.Array:
    return found < np.int32(_TIE // 2)


def _at(entries: np.ndarray, places: jax.Array) -> jax.Array:
    found: jax.Array = jnp.asarray(entries).at[places].get(mode="promise_in_bounds")
    return found
