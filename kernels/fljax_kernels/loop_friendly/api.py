"""`loop_friendly(fun)`: the same function without convolutions, for use inside loops."""

import functools
from collections.abc import Callable
from typing import Any

from fljax_kernels.loop_friendly import walk


def loop_friendly(fun: Callable[..., Any], *, only_in_loops: bool = False) -> Callable[..., Any]:
    """The same function, with convolutions and pooling in the form that is fast inside loops.

    XLA on CPUs runs a convolution inside `scan` or `while_loop` 10 to 40 times slower than outside, and one with
    vmapped weights slow everywhere. In the function returned, each convolution (any number of spatial axes, strides,
    padding, dilation, groups) is slices, concatenations and one matrix product, and each max pool whose windows tile is
    a reshape and comparisons. Gradients of the result contain no convolution either, and `loop_friendly(grad(f))`
    rewrites the convolutions that are in `grad(f)` already. Patches cost memory: a k x k layer holds k * k times its
    input.

    Use it on CPUs. Outside loops the native convolution is the faster one (`python -m bench.loop_friendly` measures
    both), and on accelerators it is so everywhere.

    Args:
      fun: any JAX function. Array arguments are traced; Python scalars, strings and other leaves are passed as they
        are. Looked through: `jit`, `scan`, `while_loop`, `cond`, `switch`, `checkpoint`, `custom_jvp`, `custom_vjp`.
        Left native: convolutions of which both the kernel and the output exceed 64 places along their axes together,
        pools whose windows overlap or are padded, and everything inside other containers (`shard_map`, Pallas).
      only_in_loops: rewrite only what lies inside a `scan` or `while_loop` of `fun` itself. For a whole training
        program, of which the part outside loops keeps its native speed. The default suits a loss or a step that the
        caller puts into a loop.

    Returns:
      A function of the same arguments and results, which works under `jit`, `vmap`, `grad`, `scan`.

    Guarantee: results and gradients equal those of `fun` up to float rounding; ties and NaN in a max pool are treated
    as the native operation treats them.
    """
    return functools.wraps(fun)(walk.rewritten(fun, not only_in_loops))
