"""The devices that share the clients of a round, of this process and of others."""

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from fljax import _validate
from fljax.server import aggregate
from fljax.server.aggregate import CLIENTS
from fljax.types import PyTree

_COPIES = "copies"  # devices of one place on this axis compute the same


def client_mesh(num_devices: int | None = None, *, groups: int | None = None) -> jax.sharding.Mesh:
    """A mesh with the axis "clients", over this machine's first `num_devices` devices, or all of all processes.

    Under `jax.set_mesh(client_mesh())` the round of every scheme deals its clients over these devices. Cohorts, noise
    and ledgers are the same bits whatever their number; sums over clients differ by the order of float additions,
    unless they are added up in groups.

    Args:
      num_devices: None takes all of them where they are accelerators or of several processes, and one on a CPU, whose
        cores XLA uses anyway.
      groups: as for `aggregate.in_groups`. Devices that do not divide it evenly compute what others do.

    Raises:
      ValueError: num_devices is not in 1..the number of devices, or leaves out a process.
    """
    devices = jax.devices()
    alone = jax.process_count() == 1
    if num_devices is None:
        num_devices = 1 if alone and devices[0].platform == "cpu" else len(devices)
    _validate.positive_int(devices=num_devices)
    if num_devices > len(devices):
        raise ValueError(f"Expected devices <= {len(devices)}, which this run has, got devices={num_devices}.")
    if not alone and num_devices < len(devices):
        raise ValueError(f"Expected devices={len(devices)}, all of all processes, got devices={num_devices}.")
    apart = num_devices if groups is None else math.gcd(num_devices, groups)
    auto = jax.sharding.AxisType.Auto
    return jax.make_mesh(
        (apart, num_devices // apart), (CLIENTS, _COPIES), axis_types=(auto, auto), devices=devices[:num_devices]
    )


@contextlib.contextmanager
def over(mesh: jax.sharding.Mesh, groups: int | None = None) -> Iterator[None]:
    """`jax.set_mesh(mesh)`, or nothing at all where that is one device; and `aggregate.in_groups(groups)`."""
    with jax.set_mesh(mesh) if mesh.size > 1 else contextlib.nullcontext(), aggregate.in_groups(groups):
        yield


def everywhere(mesh: jax.sharding.Mesh, tree: PyTree) -> PyTree:
    """Host arrays, the same in all processes, as arrays on all devices of the mesh; unchanged for one device."""
    if mesh.size == 1:
        return tree
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())

    def one(leaf: Any) -> jax.Array:
        host = np.asarray(leaf)
        return jax.make_array_from_callback(host.shape, whole, lambda at: host[at])

    return jax.tree.map(one, tree)


def here(tree: PyTree) -> PyTree:
    """Arrays that are on all devices, as host arrays where some of these devices belong to other processes."""
    if jax.process_count() == 1:
        return tree
    return jax.device_get(tree)


def jit(mesh: jax.sharding.Mesh, fun: Callable[..., Any], **options: Any) -> Any:
    """`jax.jit(fun)` whose results are whole on all devices of the mesh."""
    if mesh.size == 1:
        return jax.jit(fun, **options)
    return jax.jit(fun, out_shardings=jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec()), **options)
