"""Sums over axes that lie apart, as one sum after the other.

XLA on CPUs adds up neighbouring axes up to ten times faster than axes with others between them,
which is what the means of a group normalisation over `[height, width, groups, channels of a group]`
ask for, and their gradients.
"""

import itertools
import math
from typing import Any

import jax
import numpy as np
from jax import lax

# A stage writes its sums to memory. It pays where they are few, and what is left to add up is
# short.
FEWEST, LONGEST = 8, 64


def apart(operand: Any, params: dict[str, Any]) -> bool:
    """Whether this `reduce_sum` is faster in stages: many numbers, then some kept, then a few
    numbers.

    Only float32 and float64: with fewer bits stages would round more. Nothing whose sharding is
    part of its type.
    """
    if operand.dtype not in (np.float32, np.float64) or not all(
        isinstance(size, int) for size in operand.shape
    ):
        return False
    if params.get("out_sharding") is not None or any(
        part is not None for part in operand.sharding.spec
    ):
        return False
    summed = [size for is_summed, size in _runs(operand.shape, params["axes"]) if is_summed]
    return (
        len(summed) > 1 and 0 not in operand.shape and summed[0] >= FEWEST and summed[-1] <= LONGEST
    )


def sum_in_stages(operand: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """The sum over `axes`: first over those in front, with all that lies behind them as one
    axis.
    """
    kept = [size for axis, size in enumerate(operand.shape) if axis not in axes]
    runs = _runs(operand.shape, axes)
    while sum(summed for summed, _ in runs) > 1:
        at = [summed for summed, _ in runs].index(True)
        ahead, behind = [size for _, size in runs[:at]], [size for _, size in runs[at + 1 :]]
        partial = lax.reduce_sum(operand.reshape(*ahead, runs[at][1], math.prod(behind)), (at,))
        # Else XLA makes one sum of both again.
        operand = lax.optimization_barrier(partial)
        runs = _runs(
            [*ahead, *behind],
            [k for k, (summed, _) in enumerate(runs[:at] + runs[at + 1 :]) if summed],
        )
    at = [summed for summed, _ in runs].index(True)
    return lax.reduce_sum(operand.reshape([size for _, size in runs]), (at,)).reshape(kept)


def _runs(shape: Any, axes: Any) -> list[tuple[bool, int]]:
    """Neighbours that are all summed, or all kept, as one axis: (summed, size); axes of length 1
    are none.
    """
    sizes = [(axis in axes, size) for axis, size in enumerate(shape) if size > 1]
    runs = itertools.groupby(sizes, key=lambda pair: pair[0])
    return [(summed, math.prod(size for _, size in run)) for summed, run in runs]
