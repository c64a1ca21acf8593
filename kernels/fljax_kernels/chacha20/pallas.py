"""The cipher as a Pallas kernel: the sixteen words of a block stay in registers for all rounds, and
are written once.

One kernel for TPUs (Mosaic) and for CUDA (Triton), over blocks of counters. It has run on an H200,
to the bits of XLA's form; for TPUs it has been compiled and run by the interpreter alone: that is
why a key asks for it. JAX 0.12 warns where it is lowered for CUDA that Pallas is to lose Triton.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl

from fljax_kernels.chacha20 import cipher, reference

LANES = 128  # counters side by side
ROWS = {"tpu": 32, "cuda": 2}  # of them, of one step of the grid


def _kernel(key_ref: Any, out_ref: Any, *, nonce: tuple[int, ...]) -> None:
    _, rows, lanes = out_ref.shape
    of_rows = lax.broadcasted_iota(jnp.uint32, (rows, lanes), 0) * np.uint32(lanes)
    first = (pl.program_id(0) * (rows * lanes)).astype(jnp.uint32)
    counter = of_rows + lax.broadcasted_iota(jnp.uint32, (rows, lanes), 1) + first
    given = [
        *np.array(reference.CONSTANTS, np.uint32),
        *(key_ref[i] for i in range(8)),
        counter,
        *np.array(nonce, np.uint32),
    ]
    start = tuple(jnp.broadcast_to(jnp.asarray(word), (rows, lanes)) for word in given)
    last = lax.fori_loop(0, 10, cipher.double_round, start)
    for word, (now, was) in enumerate(zip(last, start, strict=True)):
        out_ref[word] = now + was


def words(
    key: jax.Array, count: int, nonce: tuple[int, ...], platform: str, *, interpret: bool = False
) -> jax.Array:
    """The words of the blocks of counters 0 to count - 1.

    Args:
      key: uint32 `[8]`. count: >= 1. nonce: 3 words below 2**32. platform: of `ROWS`.
      interpret: on any platform, slowly.

    Returns:
      uint32 `[16, count]`.
    """
    rows = ROWS[platform]
    options: dict[str, Any] = {}
    if platform == "tpu":
        from jax.experimental.pallas import tpu

        options["in_specs"] = [pl.BlockSpec(memory_space=tpu.SMEM)]
    else:
        from jax.experimental.pallas import triton

        options["compiler_params"] = triton.CompilerParams(num_warps=4, num_stages=1)
    steps = -(-count // (rows * LANES))
    blocks = steps * rows * LANES
    made = pl.pallas_call(
        functools.partial(_kernel, nonce=nonce),
        grid=(steps,),
        out_specs=pl.BlockSpec((cipher.WORDS, rows, LANES), lambda step: (0, step, 0)),
        out_shape=jax.ShapeDtypeStruct((cipher.WORDS, steps * rows, LANES), jnp.uint32),
        cost_estimate=pl.CostEstimate(
            flops=blocks * cipher.WORDS * 60,
            bytes_accessed=4 * cipher.WORDS * blocks + 32,
            transcendentals=0,
        ),
        interpret=interpret,
        **options,
    )(key)
    found: jax.Array = made.reshape(cipher.WORDS, blocks)[:, :count]
    return found
