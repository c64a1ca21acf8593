"""The data of all clients, and the view of it that one round sees."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fljax.types import Batch


class ClientData(NamedTuple):
    """All clients. Examples are stored once; a client is a row of indices into them.

    examples: a pytree of arrays `[M, ...]`.
    indices: int32 `[num_clients, N]`, rows of `examples`; -1 is padding and stands at the end of a
      row.
    """

    examples: Batch
    indices: jax.Array


class Cohort(NamedTuple):
    """The clients of one round, at a static capacity C.

    examples: a pytree of arrays `[M, ...]`, not copied from the `ClientData`.
    indices: int32 `[C, N]`, rows of `examples`; -1 is padding, and a row of an absent client is all
      -1.
    client_ids: int32 `[C]`; -1 where there is no client.
    kept: tree of `[C, ...]`, what each client kept of its last round, where the algorithm has a
      `ClientState`; (): nobody has been in a round.
    """

    examples: Batch
    indices: jax.Array
    client_ids: jax.Array
    kept: Any = ()


class DealtCohort(NamedTuple):
    """The clients of one round with their own examples, laid out as clients are dealt over devices.

    Place i of the cohort has its examples at `[i // G, i modulo G]`, where G is the number of
    devices, or of groups where client sums are added up in groups. With the axis G spread over the
    devices each holds the examples of the clients that it computes, and no others.

    examples: a pytree of arrays `[R, G, N, ...]`, R * G >= C.
    num_examples: int32 `[C]`: of the client's N places so many are filled, the first ones; 0 where
      there is no client.
    client_ids, kept: as in `Cohort`.
    """

    examples: Batch
    num_examples: jax.Array
    client_ids: jax.Array
    kept: Any = ()


def dealt(cohort: Cohort, num_groups: int) -> DealtCohort:
    """The same cohort with every client's examples at its own place.

    Args:
      cohort: its rows of padding stand at their ends.
      num_groups: G, of devices or groups: see `DealtCohort`.
    """
    pad = -len(cohort.client_ids) % num_groups
    rows = jnp.pad(cohort.indices, ((0, pad), (0, 0)), constant_values=-1)

    def own(leaf: jax.Array) -> jax.Array:
        found = jnp.take(leaf, jnp.maximum(rows, 0), axis=0)
        return found.reshape(-1, num_groups, *found.shape[1:])

    count = jnp.sum(cohort.indices >= 0, axis=1, dtype=jnp.int32)
    return DealtCohort(jax.tree.map(own, cohort.examples), count, cohort.client_ids, cohort.kept)


def pooled(dealt: DealtCohort) -> Cohort:
    """The same cohort with one pool of examples, client after client."""
    places = jax.tree.leaves(dealt.examples)[0].shape[2]
    inside = jnp.arange(places, dtype=jnp.int32)[None]
    first = places * jnp.arange(len(dealt.client_ids), dtype=jnp.int32)[:, None]
    return Cohort(
        jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[3:]), dealt.examples),
        jnp.where(inside < dealt.num_examples[:, None], first + inside, -1),
        dealt.client_ids,
        dealt.kept,
    )


def cohort(client_data: ClientData, client_ids: jax.Array) -> Cohort:
    """The clients named by `client_ids`, in that order. Works under jit; shapes depend on shapes
    only.

    Args:
      client_data: all clients.
      client_ids: integers `[C]`. -1 means that the place stays empty. An id outside `[0,
        num_clients)` is treated in the same way: clamping it would let one client count twice.

    Returns:
      A `Cohort` of capacity C. A client named twice counts twice; samplers in `fljax_kernels` name
      nobody twice.
    """
    table = jnp.asarray(client_data.indices, jnp.int32)
    client_ids = jnp.asarray(client_ids).astype(jnp.int32)
    present = (client_ids >= 0) & (client_ids < table.shape[0])
    rows = table[jnp.where(present, client_ids, 0)]
    return Cohort(
        examples=client_data.examples,
        indices=jnp.where(present[:, None], rows, -1),
        client_ids=jnp.where(present, client_ids, -1),
    )


def map_clients(fun: Callable[..., Any], in_axes: Any) -> Callable[..., Any]:
    """`vmap` over a chunk of clients, except that a chunk of one runs without a client axis.

    XLA on CPU is markedly slower at matrix products that carry a batch axis, even one of length 1.
    """

    def mapped(*args: Any) -> Any:
        size = next(
            jax.tree.leaves(a)[0].shape[0]
            for a, axis in zip(args, in_axes, strict=True)
            if axis == 0
        )
        if size != 1:
            return jax.vmap(fun, in_axes=in_axes)(*args)
        squeezed = [
            jax.tree.map(lambda leaf: leaf[0], a) if axis == 0 else a
            for a, axis in zip(args, in_axes, strict=True)
        ]
        return jax.tree.map(lambda leaf: leaf[None], fun(*squeezed))

    return mapped
