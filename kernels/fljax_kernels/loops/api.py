"""`loop_friendly(fun)`: the same function without what XLA is slow at, on CPUs, and on GPUs where
models are side by side.
"""

import functools
from collections.abc import Callable
from typing import Any

from fljax_kernels import _platforms
from fljax_kernels.loops import rewrite


def loop_friendly(
    fun: Callable[..., Any], *, inside_loop: bool = False, side_by_side: bool = False
) -> Callable[..., Any]:
    """The same function, with pools, split sums and the convolutions inside its loops in the form
    that is fast on CPUs.

    XLA on CPUs runs a convolution inside `scan` or `while_loop` 10 to 40 times slower than outside,
    and the gradient of a max pool 20 times slower than need be everywhere. In the function
    returned, each convolution inside a loop (any number of spatial axes, strides, padding,
    dilation, groups) is slices, concatenations and one matrix product; outside it stays native,
    which is faster there. Each max pool whose windows tile is a reshape and comparisons, and each
    sum over a short axis and a long one that lie apart (a group normalisation has many) one sum
    after the other, wherever they are. So wrap the whole training program, the gradients in it
    included:

        train = loop_friendly(lambda params, batches: jax.lax.scan(sgd_step, params, batches))

    A GPU has another weakness. A convolution that `vmap` gives a kernel for each model is one
    convolution in as many groups as models, and cuDNN computes the gradient of its kernels group by
    group, a launch for each. With side_by_side=True convolutions and pools are rewritten for GPUs
    too, and models side by side meet in products:

        step = jax.vmap(jax.grad(loop_friendly(loss, side_by_side=True)), (0, 0))

    For any other platform nothing is changed: that is decided where the program is lowered. A
    function without any of these costs a copy of its outermost equations while it is traced.
    Patches cost memory: a k x k layer holds k * k times its input, or k times where outputs are
    shifted.

    Args:
      fun: any JAX function. Array arguments are traced; Python scalars, strings and other leaves
        are passed as they are. Looked through: `jit`, `scan`, `while_loop`, `cond`, `switch`,
        `checkpoint`, `custom_jvp`, `custom_vjp`. Left native: convolutions of which both the kernel
        and the output exceed 64 places along their axes together, pools whose windows overlap or
        are padded, and everything inside other containers (`shard_map`, Pallas).
      inside_loop: whether `fun` itself is the body of a loop, or a part of one: everything in it is
        rewritten. Gradients of such a function contain no convolution either.
      side_by_side: whether `fun` will be mapped over its weights. It says nothing of CPUs.

    Returns:
      A function of the same arguments and results, which works under `jit`, `vmap`, `grad`, `scan`.

    Guarantee: results and gradients equal those of `fun` up to float rounding, also where windows
    of a max pool hold ties. Where one holds NaN the result is NaN as in `fun`, but its gradient may
    go to another element of it.
    """
    if isinstance(fun, LoopFriendly):  # once is enough
        inside_loop, side_by_side = inside_loop or fun.inside_loop, side_by_side or fun.side_by_side
        fun = fun.fun
    return LoopFriendly(fun, inside_loop, side_by_side)


class LoopFriendly:
    """`loop_friendly(fun)`, which knows what it was made of."""

    def __init__(self, fun: Callable[..., Any], inside_loop: bool, side_by_side: bool = False):
        functools.update_wrapper(self, fun)
        self.fun, self.inside_loop, self.side_by_side = fun, inside_loop, side_by_side
        self._rewritten = rewrite.rewritten(fun, inside_loop, side_by_side)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        changed = {"cpu", "cuda"} if self.side_by_side else {"cpu"}
        here = self._rewritten if changed & {*_platforms.candidates()} else self.fun
        return here(*args, **kwargs)

    def changes(self, jaxpr: Any) -> bool:
        """Whether a program, such as the function traced, has another form on CPUs."""
        return rewrite.holds_target(jaxpr, self.inside_loop)
