"""Factorisations of one matrix, which on a CPU stay those of one matrix under `vmap`."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def _one_at_a_time(fun: Callable[..., Any]) -> Callable[..., Any]:
    """`fun`, one after the other under `vmap` on CPUs.

    There a call for many matrices deals them out to XLA's threads and waits for them, on one of those threads. As many
    such calls at a time as there are threads, from devices that are cores of one CPU or from programs side by side,
    wait for ever. A call for one matrix computes it itself.
    """
    serial = jax.custom_batching.sequential_vmap(fun)

    @functools.wraps(fun)
    def call(*args: jax.Array) -> Any:
        return jax.lax.platform_dependent(*args, cpu=serial, default=fun)

    return call


@_one_at_a_time
def eigh(matrix: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Eigenvalues `[B]`, ascending, and eigenvectors `[B, B]` of a symmetric matrix `[B, B]`."""
    values, vectors = jnp.linalg.eigh(matrix)
    return values, vectors


@_one_at_a_time
def eigvalsh(matrix: jax.Array) -> jax.Array:
    """Eigenvalues `[B]`, ascending, of a symmetric matrix `[B, B]`."""
    return jnp.linalg.eigvalsh(matrix)
