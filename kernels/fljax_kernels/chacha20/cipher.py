"""The cipher over many counters at once: 16 arrays, one a word, which a loop of ten double rounds
carries.

Written out, the sixteen words of one block would each be computed with all the others anew: XLA
fuses what one array needs. The loop's arrays are in memory once in every double round.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fljax_kernels.chacha20 import reference

WORDS = 16  # of a block


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
    given = [*np.array(reference.CONSTANTS, np.uint32), *key, counter, *nonce]
    shape = jnp.broadcast_shapes(*(jnp.shape(word) for word in given))
    first = tuple(jnp.broadcast_to(jnp.asarray(word, jnp.uint32), shape) for word in given)
    last = lax.fori_loop(0, 10, double_round, first)
    return tuple(now + was for now, was in zip(last, first, strict=True))
