"""The cipher over many counters at once: 16 arrays, one a word.

Written out, the sixteen words of one block would each be computed with all the others anew: XLA
fuses what one array needs. So a loop of ten double rounds carries them, whose arrays are in memory
once in every double round. On a CPU that takes several times as long as the cipher itself, and one
operation gives XLA many results of one computation: a reduction over windows, here of one entry.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fljax_kernels import _platforms
from fljax_kernels.chacha20 import reference

WORDS = 16  # of a block
_CONSTANTS = tuple(np.array(reference.CONSTANTS, np.uint32))
_LANES = 16  # of other lengths LLVM makes no vectors here, at four times the time
_FEW = 64  # blocks: fewer are drawn by a loop sooner than the other form is compiled


def _rotated(word: jax.Array, by: int) -> jax.Array:
    return (word << np.uint32(by)) | (word >> np.uint32(32 - by))


def double_round(_: Any, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    """Columns, then diagonals, of the 16 words of each block; a body of `fori_loop`."""
    words = list(state)
    for a, b, c, d in reference.COLUMNS + reference.DIAGONALS:
        for one, two, three, by in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            words[one] = words[one] + words[two]
            words[three] = _rotated(words[three] ^ words[one], by)
    return tuple(words)


@functools.partial(jax.jit, inline=True)  # one dispatch where nobody has jitted
def blocks(
    key: jax.Array, counter: jax.Array, nonce: Sequence[jax.Array | int]
) -> tuple[jax.Array, ...]:
    """The 16 words of each block, as 16 arrays uint32 `[...]`.

    Args:
      key: uint32 `[8, ...]`, little-endian words, of all blocks or of each.
      counter: uint32 `[...]`. nonce: 3 words, uint32 `[...]`.
    """
    given = [*key, counter, *nonce]
    shape = jnp.broadcast_shapes(*(jnp.shape(word) for word in given))
    told = [jnp.broadcast_to(jnp.asarray(word, jnp.uint32), shape) for word in given]
    # Made of all of them: inside shard_map all 16 words differ between devices as any does.
    nothing = functools.reduce(jnp.bitwise_or, told) & np.uint32(0)
    told = [nothing | word for word in told]
    if math.prod(shape) < _FEW:
        return _by_loop(nothing, told)
    return _platforms.choose(nothing, told, cpu=_by_window, default=_by_loop)


def _by_loop(nothing: jax.Array, told: list[jax.Array]) -> tuple[jax.Array, ...]:
    first = (*(nothing | word for word in _CONSTANTS), *told)
    return _added(lax.fori_loop(0, 10, double_round, first), first)


def _by_window(nothing: jax.Array, told: list[jax.Array]) -> tuple[jax.Array, ...]:
    """A window has one entry, and its result is `_block(start, entry)`, in one pass over memory."""
    more = -nothing.size % _LANES
    entries = tuple(
        jnp.pad(word.reshape(-1), (0, more)) for word in [nothing] * len(_CONSTANTS) + told
    )
    start = (*_CONSTANTS, *(np.uint32(0),) * len(told))
    found = lax.reduce_window(entries, start, _block, (1,), (1,), "VALID")
    return tuple(word[: nothing.size].reshape(nothing.shape) for word in found)


def _block(start: tuple[jax.Array, ...], entry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    """The words of one block, written out: numbers, of which XLA makes vectors over blocks."""
    first = _added(start, entry)  # so that it does not matter which of them comes first
    words = first
    for _ in range(10):
        words = double_round(None, words)
    return _added(words, first)


def _added(these: Sequence[jax.Array], those: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
    return tuple(one + other for one, other in zip(these, those, strict=True))
