"""Many rows a few at a time, in one program."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np


def in_blocks(fun: Callable[..., Any], *, at_once: int) -> Callable[..., Any]:
    """`(rows, *rest) -> results`, of `fun(row, *rest)` for each row: pytrees of leaves `[N, ...]`,
    `at_once` rows side by side.

    In whole blocks, of which the last is filled up with rows again. A shorter one would be another
    program beside the first, which takes long to compile and may add up in another order.
    """

    @jax.jit
    def mapped(rows: Any, *rest: Any) -> Any:
        return jax.lax.map(lambda row: fun(row, *rest), rows, batch_size=at_once)

    def run(rows: Any, *rest: Any) -> Any:
        count = len(jax.tree.leaves(rows)[0])
        places = np.arange(-(-count // at_once) * at_once) % count
        found = mapped(jax.tree.map(lambda leaf: leaf[places], rows), *rest)
        return jax.tree.map(lambda leaf: leaf[:count], found)

    return run
