"""The same draws by whole numbers: all 192 bits of each, compared as one integer on the host.

It defines the result of `alias.draw`, bits included.
"""

import jax
import numpy as np

from fljax_kernels.discrete import alias, laws


def draw(key: jax.Array, shape: tuple[int, ...], law: str, parameter: float) -> np.ndarray:
    """Int32 `shape`."""
    columns = alias.table(law, parameter)
    words = [
        np.asarray(jax.random.bits(jax.random.fold_in(key, word), shape, np.uint32)).ravel()
        for word in range(alias.WORDS)
    ]
    out = []
    for drawn in zip(*(each.tolist() for each in words), strict=True):
        whole = 0
        for word in drawn:
            whole = (whole << 32) | word
        column, rest = divmod(whole, 1 << (laws.BITS - columns.column_bits))
        threshold = int(columns.first[column])
        for word in columns.rest[:, column].tolist():
            threshold = (threshold << 32) | word
        out.append(columns.values[2 * column + (rest >= threshold)])
    return np.asarray(out, np.int32).reshape(shape)
