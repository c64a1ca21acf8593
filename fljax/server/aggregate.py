"""The server: adds up what the clients of a cohort send, chunk by chunk, and takes one optimizer
step.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fljax import _validate
from fljax.types import Params, PyTree
from fljax_kernels import _meshes, _platforms

CLIENTS = "clients"  # the mesh axis that clients are dealt over
MODEL = "model"  # the mesh axis that XLA may spread each client's model over


class ServerState(NamedTuple):
    """params; opt_state of the server's optimizer; round: int32 `[]`, rounds done; clipping: what
    adapts a bound, or correlates noise.

    All of it goes into a checkpoint. `clipping` is () where there is nothing of the kind.
    """

    params: Params
    opt_state: Any
    round: jax.Array
    clipping: Any = ()


def init(
    params: Params, server_optimizer: optax.GradientTransformation, clipping: Any = ()
) -> ServerState:
    """The state before the first round."""
    return ServerState(params, server_optimizer.init(params), jnp.zeros((), jnp.int32), clipping)


def step(
    state: ServerState,
    update_sum: Params,
    *,
    divisor: float,
    server_optimizer: optax.GradientTransformation,
) -> ServerState:
    """One step of the server's optimizer along `update_sum / divisor`, which it takes for a
    gradient.

    Guarantee: post-processing only. `divisor` must be a public constant (the expected cohort size,
    never the true one), otherwise the step leaks how many clients took part.

    Raises:
      ValueError: `divisor` is not > 0 and finite.
    """
    _validate.positive(divisor=divisor)
    # Cast last: a sum over many clients may overflow the 16 bits in which their mean is well
    # represented.
    mean = jax.tree.map(
        lambda leaf, p: (leaf / jnp.asarray(divisor, leaf.dtype)).astype(p.dtype),
        update_sum,
        state.params,
    )
    updates, opt_state = server_optimizer.update(mean, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    return state._replace(params=params, opt_state=opt_state, round=state.round + 1)


def sum_in_chunks(
    chunk_fun: Callable[..., PyTree],
    clients: PyTree,
    present: jax.Array,
    *,
    chunk_size: int,
    groups: int | None = None,
    shared: tuple[Any, ...] = (),
    kept: PyTree = None,
    brought: PyTree = None,
) -> PyTree:
    """Adds up `chunk_fun(chunk, present, *shared)` over chunks of clients, in cohort order, one
    chunk at a time.

    The result does not depend on `chunk_size` beyond the order of float additions. Chunks behind
    the last present client are not run, so a cohort of fixed capacity costs what its present
    clients cost, without recompiling.

    Under a mesh with an axis "clients" (`jax.set_mesh`) every device takes every n-th client, in
    chunks of its own, and the sums are added over devices: again the order of float additions is
    all that changes, since whatever a client draws is keyed by its own number. With `groups` that
    order is the same on any number of devices.

    Args:
      chunk_fun: `(chunk of clients [K, ...], present [K], *shared) -> tree`, already summed over
        the chunk's present clients.
      clients: tree of arrays `[C, ...]`.
      present: bool `[C]`.
      chunk_size: K, >= 1.
      groups: place i of the cohort belongs to group i modulo `groups`, wherever it is computed, and
        the groups' sums are added up in their order: the same bits on any number of devices that
        divides `groups`. Of several devices each holds `groups` sums of a model's size. None: one
        sum for each device.
      shared: trees of arrays that all chunks see whole: the model, the pool of examples.
        `chunk_fun` should not close over traced arrays instead. On a mesh those keep the mesh from
        outside, which JAX refuses in some operations.
      kept: tree of `[C, ...]`, a row for each client. Where it is given, `chunk_fun` returns
        `(sums, rows [K, ...])`, and the rows of its clients take the place of these.
      brought: tree of `[R, G, N, ...]`, examples of each client as in `data.DealtCohort`: they stay
        on the devices that compute their clients. Where it is given, a chunk is a pair, of the
        clients and of the row `[K]` with which the examples of each begin; and the pool of these
        rows, `[M, ...]`, which is the device's own, is the last argument of `chunk_fun`.

    Returns:
      a tree like `chunk_fun`'s sums; with `kept`, `(sums, tree like kept)`.

    Raises:
      ValueError: `chunk_size` or `groups` is not an integer >= 1, the devices do not divide
        `groups`, or the cohort has no slot (C = 0).
    """
    check_sizes(chunk_size, groups)
    (capacity,) = present.shape
    if capacity == 0:
        raise ValueError(
            "Expected a cohort with at least one client slot, got present of shape (0,)."
        )
    if kept is None:

        def both(*args: Any) -> tuple[PyTree, PyTree]:
            return chunk_fun(*args), ()
    else:
        both = chunk_fun
    sums, rows = _dealt_sum(
        both,
        clients,
        present,
        shared,
        () if kept is None else kept,
        () if brought is None else brought,
        chunk_size=chunk_size,
        groups=groups,
    )
    return sums if kept is None else (sums, rows)


def _dealt_sum(
    chunk_fun: Callable[..., tuple[PyTree, PyTree]],
    clients: PyTree,
    present: jax.Array,
    shared: tuple[Any, ...],
    kept: PyTree,
    brought: PyTree,
    *,
    chunk_size: int,
    groups: int | None,
) -> tuple[PyTree, PyTree]:
    """The sums, and the rows that clients keep, of all devices."""
    (capacity,) = present.shape
    devices, mapped = client_devices(), _on_a_mesh()
    if groups is not None and groups % devices:
        raise ValueError(
            f"Expected groups to be a multiple of the {devices} devices of the mesh, got "
            f"groups={groups}."
        )
    if devices == 1 and groups is None:  # maybe spread over an axis "model", by XLA
        begin, pool = _own_pool(brought, capacity)
        mine = clients if pool is None else (clients, begin)
        seen = shared if pool is None else (*shared, pool)
        return _sum_here(chunk_fun, mine, present, seen, kept, chunk_size=chunk_size)
    columns = devices if groups is None else groups
    pad = -capacity % columns

    def dealt(leaf: jax.Array) -> jax.Array:
        """`[C, ...]` -> `[C / columns, columns, ...]`: present clients stand first, so each column
        gets its share.
        """
        rows = jnp.concatenate([leaf, *[leaf[:1]] * pad]) if pad else leaf
        return rows.reshape(-1, columns, *leaf.shape[1:])

    def back(leaf: jax.Array) -> jax.Array:
        """The inverse of `dealt`."""
        return leaf.reshape(-1, *leaf.shape[2:])[:capacity]

    def at_home(leaf: jax.Array) -> jax.Array:
        """What is laid out for another number of columns is dealt anew."""
        return leaf if leaf.shape[1] == columns else dealt(back(leaf))

    of_group = functools.partial(_sum_here, chunk_fun, chunk_size=chunk_size)

    def on_one(
        mine: PyTree, here: jax.Array, shared: tuple[Any, ...], old: PyTree, brought: PyTree
    ) -> tuple[PyTree, PyTree]:
        begin, pool = _own_pool(brought, here.size)
        if pool is not None:
            mine, shared = (mine, begin.reshape(here.shape)), (*shared, pool)
        if groups is None:
            mine, here, old = jax.tree.map(
                lambda leaf: jnp.squeeze(leaf, axis=1), (mine, here, old)
            )
            sums, rows = of_group(mine, here, shared, old)
            return jax.lax.psum(sums, CLIENTS), jax.tree.map(lambda leaf: leaf[:, None], rows)
        by_group = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), (mine, here, old))

        def one_group(group: Any) -> tuple[PyTree, PyTree]:
            mine, here, old = group
            return of_group(mine, here, shared, old)

        if mapped:
            sums, rows = jax.lax.map(one_group, by_group)
            gathered = jax.lax.all_gather(sums, CLIENTS, tiled=True)
            total = jax.tree.map(_in_order, gathered)
        else:
            like, _ = jax.eval_shape(
                lambda: one_group(jax.tree.map(lambda leaf: leaf[0], by_group))
            )
            zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)

            def add(total: PyTree, group: Any) -> tuple[PyTree, PyTree]:
                sums, rows = one_group(group)
                return jax.tree.map(jnp.add, total, sums), rows

            total, rows = jax.lax.scan(add, zero, by_group)
        return total, jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), rows)

    dealt_clients, dealt_kept = jax.tree.map(dealt, (clients, kept))
    dealt_present = jnp.pad(present, (0, pad)).reshape(-1, columns)
    at_place = jax.tree.map(at_home, brought)
    if not mapped:
        total, rows = on_one(dealt_clients, dealt_present, shared, dealt_kept, at_place)
        return total, jax.tree.map(back, rows)
    spec = jax.sharding.PartitionSpec(None, CLIENTS)
    everywhere = jax.sharding.PartitionSpec()
    by_hand = set(jax.sharding.get_abstract_mesh().axis_names) - {MODEL}
    over_devices = jax.shard_map(
        on_one,
        in_specs=(spec, spec, everywhere, spec, spec),
        out_specs=(everywhere, spec),
        check_vma=False,
        axis_names=by_hand,
    )
    total, rows = over_devices(dealt_clients, dealt_present, shared, dealt_kept, at_place)
    return total, jax.tree.map(back, rows)


def _own_pool(brought: PyTree, count: int) -> tuple[Any, PyTree]:
    """(first rows `[count]`, pool `[M, ...]`) of examples `[R, G, N, ...]`; None for the pool where
    there are none.
    """
    leaves = jax.tree.leaves(brought)
    if not leaves:
        return (), None
    pool = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[3:]), brought)
    return leaves[0].shape[2] * jnp.arange(count, dtype=jnp.int32), pool


def _in_order(parts: jax.Array) -> jax.Array:
    """`[G, ...]` added up one after the other: a reduction may choose another order on other
    devices.
    """
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def client_devices() -> int:
    """Devices of the ambient mesh's axis "clients"; 1 without such a mesh, or inside a function
    mapped over it.
    """
    return int(jax.sharding.get_abstract_mesh().shape[CLIENTS]) if _on_a_mesh() else 1


def _on_a_mesh() -> bool:
    """Whether clients can be dealt over the ambient mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or CLIENTS not in mesh.axis_names:
        return False
    return bool(mesh.axis_types[mesh.axis_names.index(CLIENTS)] != jax.sharding.AxisType.Manual)


def _sum_here(
    chunk_fun: Callable[..., tuple[PyTree, PyTree]],
    clients: PyTree,
    present: jax.Array,
    shared: tuple[Any, ...],
    kept: PyTree,
    *,
    chunk_size: int,
) -> tuple[PyTree, PyTree]:
    (capacity,) = present.shape
    chunk_size = min(chunk_size, capacity)
    pad = -capacity % chunk_size

    def chunked(leaf: jax.Array) -> jax.Array:
        # Repeats rows rather than inventing values that a client could not have; `present` masks
        # the copies.
        rows = jnp.concatenate([leaf, leaf[:pad]]) if pad else leaf
        return rows.reshape(-1, chunk_size, *leaf.shape[1:])

    chunks, old = jax.tree.map(chunked, (clients, kept))
    present_chunks = jnp.pad(present, (0, pad)).reshape(-1, chunk_size)
    last = jnp.max(jnp.where(present, jnp.arange(1, capacity + 1), 0))
    traced_once = jax.jit(chunk_fun, inline=True)  # for its shape, and for the loop

    def take(i: jax.Array | int) -> tuple[PyTree, jax.Array]:
        return jax.tree.map(lambda leaf: leaf[i], chunks), present_chunks[i]

    def body(i: jax.Array, carry: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
        total, rows = carry
        sums, new = traced_once(*take(i), *shared)
        rows = jax.tree.map(lambda all_, some: all_.at[i].set(some), rows, new)
        return jax.tree.map(jnp.add, total, sums), rows

    like, _ = jax.eval_shape(lambda: traced_once(*take(0), *shared))
    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)
    # Chunks of nobody count for nothing, also where others still have some: not each chunk_fun
    # looks who is present.
    num_chunks = (last + chunk_size - 1) // chunk_size
    total, rows = _meshes.fori_loop(0, num_chunks, body, (zero, old))
    return total, jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:capacity], rows)


def check_sizes(chunk_size: int | None, groups: int | None) -> None:
    """Raises ValueError where one of them is neither None nor an integer >= 1."""
    for name, size in (("chunk_size", chunk_size), ("groups", groups)):
        if size is not None:
            _validate.positive_int(**{name: size})


def default_chunk_size(num_params: int, platform: str | None = None) -> int:
    """How many clients a chunk vmaps: on a CPU as many small models as fit its cache, elsewhere up
    to 64. platform: "cpu", "cuda" or "tpu"; None is that of JAX's default backend.

    Measured in `bench/rounds/round.py`: a CPU is fastest with one client at a time as soon as a
    model outgrows the cache.
    """
    _validate.positive_int(num_params=num_params)
    if _platforms.named(platform) == "cpu":
        return int(min(32, max(1, 2**14 // num_params)))
    return 64
