"""Factorisations of one matrix, which on a CPU stay those of one matrix under `vmap`."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def _one_at_a_time(fun: Callable[..., Any]) -> Callable[..., Any]:
    """`fun`, one after the other under `vmap` on CPUs.

    There a call for many matrices deals them out to XLA's threads and waits for them, on one of
    those threads. As many such calls at a time as there are threads, from devices that are cores of
    one CPU or from programs side by side, wait for ever. A call for one matrix computes it itself.
    """
    serial = jax.custom_batching.sequential_vmap(fun)

    @functools.wraps(fun)
    def call(*args: jax.Array) -> Any:
        return jax.lax.platform_dependent(*args, cpu=serial, default=fun)

    return call


@_one_at_a_time
def _eigh(matrix: jax.Array) -> tuple[jax.Array, jax.Array]:
    values, vectors = jnp.linalg.eigh(matrix)
    return values, vectors


@_one_at_a_time
def _eigvalsh(matrix: jax.Array) -> jax.Array:
    return jnp.linalg.eigvalsh(matrix)


@jax.custom_jvp
def eigh(matrix: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Eigenvalues `[B]`, ascending, and eigenvectors `[B, B]` of a symmetric matrix `[B, B]`."""
    return _eigh(matrix)


@jax.custom_jvp
def eigvalsh(matrix: jax.Array) -> jax.Array:
    """Eigenvalues `[B]`, ascending, of a symmetric matrix `[B, B]`."""
    return _eigvalsh(matrix)


@eigh.defjvp
def _eigh_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[Any, Any]:
    """First-order perturbation: in the eigenbasis the change's diagonal moves values, the rest over
    gaps vectors.
    """
    values, vectors = eigh(*primals)
    change = vectors.T @ ((tangents[0] + tangents[0].T) / 2) @ vectors
    eye = jnp.eye(values.size, dtype=values.dtype)
    turn = (1 - eye) * change / (eye + values[None, :] - values[:, None])
    return (values, vectors), (jnp.diagonal(change), vectors @ turn)


@eigvalsh.defjvp
def _eigvalsh_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[Any, Any]:
    (values, _), (moved, _) = _eigh_jvp(primals, tangents)
    return values, moved
