"""The same draws by whole numbers: all 192 bits of each, compared as one integer on the host.

It defines the result of `alias.draw`, bits included.
"""

import jax
import numpy as np

from fljax_kernels.discrete import alias, laws


def draw(key: jax.Array, shape: tuple[int, ...], law: str, parameter: float) -> np.ndarray:
    """Int32 `shape`."""
    columns = alias.table(law, parameter)
    size = int(np.prod(shape))
    first = jax.random.bits(jax.random.fold_in(key, 0), (size,), np.uint32)
    late = jax.random.fold_in(key, 1)
    of_place = lambda i: jax.random.bits(jax.random.fold_in(late, i), (alias.WORDS - 1,), np.uint32)
    beyond = jax.vmap(of_place)(np.arange(size))
    words = np.concatenate([np.asarray(first)[:, None], np.asarray(beyond)], axis=1)
    out = []
    for drawn in words.tolist():
        whole = 0
        for word in drawn:
            whole = (whole << 32) | word
        column, rest = divmod(whole, 1 << (laws.BITS - columns.column_bits))
        entry = int(columns.entries[column])
        threshold = entry >> columns.column_bits
        for word in columns.rest[:, column].tolist():
            threshold = (threshold << 32) | word
        other = entry % (1 << columns.column_bits)
        out.append(columns.least + (other if rest >= threshold else column))
    return np.asarray(out, np.int32).reshape(shape)
