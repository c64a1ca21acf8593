"""Sums over axes that lie apart, as one sum after the other.

XLA on CPUs adds up neighbouring axes an order of magnitude faster than axes with others between them, which is what the
means of a group normalisation over `[height, width, groups, channels of a group]` ask for, and their gradients.
"""

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def apart(operand: Any, axes: tuple[int, ...]) -> bool:
    """Whether this `reduce_sum` runs over axes with others between them. Stages would round bfloat16 more."""
    return (
        operand.dtype in (np.float32, np.float64)
        and 0 not in operand.shape
        and sum(summed for summed, _ in _runs(operand.shape, axes)) > 1
    )


def sum_in_stages(operand: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """`jnp.sum(operand, axes)`: first over the axes in front, with all that lies behind them as one axis."""
    kept = [size for axis, size in enumerate(operand.shape) if axis not in axes]
    runs = _runs(operand.shape, axes)
    while sum(summed for summed, _ in runs) > 1:
        at = [summed for summed, _ in runs].index(True)
        ahead, behind = [size for _, size in runs[:at]], [size for _, size in runs[at + 1 :]]
        partial = jnp.sum(operand.reshape(*ahead, runs[at][1], math.prod(behind)), axis=at)
        # Else XLA makes one sum of both again.
        operand = lax.optimization_barrier(partial)
        runs = _runs([*ahead, *behind], [k for k, (summed, _) in enumerate(runs[:at] + runs[at + 1 :]) if summed])
    at = [summed for summed, _ in runs].index(True)
    return jnp.sum(operand.reshape([size for _, size in runs]), axis=at).reshape(kept)


def _runs(shape: Any, axes: Any) -> list[tuple[bool, int]]:
    """Neighbours that are all summed, or all kept, as one axis: (summed, size); axes of length 1 are none."""
    sizes = [(axis in axes, size) for axis, size in enumerate(shape) if size > 1]
    runs = itertools.groupby(sizes, key=lambda pair: pair[0])
    return [(summed, math.prod(size for _, size in run)) for summed, run in runs]
