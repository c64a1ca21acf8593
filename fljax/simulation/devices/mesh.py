"""The devices that share the clients of a round, of this process and of others."""

import contextlib
import functools
import math
import os
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax import _validate
from fljax.data.cohorts import DealtCohort
from fljax.server.aggregate import CLIENTS, MODEL
from fljax.types import PyTree

_FORCED = "xla_force_host_platform_device_count"
# devices that a CPU becomes unasked; asked for, it becomes more only where it has more cores
_MOST = 16
_SHARE = (
    4  # of the machine's memory, what their copies of a model may take unasked is one in so many
)
_COPIES_OF_A_MODEL = (
    5  # on a device that trains a client: parameters, the client's, gradient, update, a sum
)
_COPIES = "copies"  # devices of one place on this axis compute the same


def client_mesh(
    num_devices: int | None = None, *, groups: int | None = None, model_devices: int = 1
) -> jax.sharding.Mesh:
    """A mesh with the axes "clients" and "model", over this machine's first `num_devices` devices,
    or all of all processes.

    Under `jax.set_mesh(client_mesh())` the round of every scheme deals its clients over these
    devices. Cohorts, noise and ledgers are the same bits whatever their number; sums over clients
    differ by the order of float additions, unless they are added up in groups.

    Args:
      num_devices: None takes all of them where they are accelerators or of several processes, and
        one on a CPU, which `as_devices` divides.
      groups: as for the scheme's `make`. Devices that do not divide it evenly compute what others
        do.
      model_devices: devices that share each model, its state included: for models that one device
        cannot hold. It divides num_devices, and rounds sums in another order.

    Raises:
      ValueError: num_devices is not in 1..the number of devices, or leaves out a process;
        model_devices does not divide it.
    """
    devices = jax.devices()
    alone = jax.process_count() == 1
    if num_devices is None:
        num_devices = 1 if alone and devices[0].platform == "cpu" else len(devices)
    _validate.positive_int(devices=num_devices)
    if num_devices > len(devices):
        raise ValueError(
            f"Expected devices <= {len(devices)}, which this run has, got devices={num_devices}."
        )
    if not alone and num_devices < len(devices):
        raise ValueError(
            f"Expected devices={len(devices)}, all of all processes, got devices={num_devices}."
        )
    _validate.positive_int(model_devices=model_devices)
    if num_devices % model_devices:
        raise ValueError(
            f"Expected model_devices to divide devices={num_devices}, got "
            f"model_devices={model_devices}."
        )
    for_clients = num_devices // model_devices
    apart = for_clients if groups is None else math.gcd(for_clients, groups)
    auto = jax.sharding.AxisType.Auto
    return jax.make_mesh(
        (apart, for_clients // apart, model_devices),
        (CLIENTS, _COPIES, MODEL),
        axis_types=(auto, auto, auto),
        devices=devices[:num_devices],
    )


def cores() -> int:
    """How many devices a CPU is worth: the largest power of 2 of cores that this process may use,
    up to 16.
    """
    return 2 ** int(math.log2(min(available(), _MOST)))


def available() -> int:
    """Cores that this process may use."""
    free = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = _of_container(
        "cpu.max"
    ).split()  # microseconds of cores in so many microseconds, or "max"
    if len(share) == 2 and share[0].isdecimal():
        free = min(free, int(share[0]) // int(share[1]))
    return max(free, 1)


def _memory() -> float:
    """Bytes that this machine, or the container, has; infinity where neither says."""
    try:
        whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        whole = 0
    limit = _of_container("memory.max").strip()
    known = [float(size) for size in (whole, limit if limit.isdecimal() else 0) if float(size) > 0]
    return min(known, default=math.inf)


def _of_container(name: str) -> str:
    try:
        return pathlib.Path("/sys/fs/cgroup", name).read_text()
    except OSError:
        return ""


def side_by_side(num_params: int, groups: int | None) -> int | None:
    """How many devices a run takes that names none; None: as `client_mesh`.

    Of a CPU, where clients are added up in groups: as many as have a core and two groups or more
    each, divide the groups, and hold their copies of a model of `num_params` float32 numbers in a
    quarter of the machine's memory. XLA would make another program of a device's only group, and
    rounds some schemes otherwise there.
    """
    if groups is None or jax.process_count() > 1 or jax.default_backend() != "cpu":
        return None
    each = 4 * num_params * (_COPIES_OF_A_MODEL + groups)
    fit = _memory() / _SHARE / max(1, each)
    most = max(1, int(min(cores(), jax.device_count(), groups // 2, fit)))
    return max(count for count in range(1, most + 1) if groups % count == 0)


def as_devices(count: int) -> None:
    """Makes a CPU so many devices, unless JAX has started or somebody else has said how many there
    are.

    One device computes one client at a time and shares each operation among cores, which small ones
    do not repay. With a device a core, clients are trained side by side; more do not pay, and
    beyond 16 none is made that has no core. They share one copy of the data.

    Raises:
      ValueError: count is not an integer >= 1.
    """
    _validate.positive_int(devices=count)
    configured: int = jax.config.jax_num_cpu_devices  # type: ignore[attr-defined]
    said = configured > 0 or _FORCED in os.environ.get("XLA_FLAGS", "")
    if not said:
        with contextlib.suppress(RuntimeError):  # JAX has started
            jax.config.update("jax_num_cpu_devices", min(count, max(_MOST, available())))


def over(mesh: jax.sharding.Mesh) -> contextlib.AbstractContextManager[Any]:
    """`jax.set_mesh(mesh)`, or nothing at all where that is one device."""
    return jax.set_mesh(mesh) if mesh.size > 1 else contextlib.nullcontext()


def _whole(mesh: jax.sharding.Mesh) -> jax.sharding.NamedSharding:
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())


def _spread(mesh: jax.sharding.Mesh, leaf: Any) -> jax.sharding.NamedSharding:
    """The leaf's longest axis that the axis "model" divides, spread over it; whole where there is
    none.
    """
    fits = [
        axis for axis, length in enumerate(leaf.shape) if length and length % mesh.shape[MODEL] == 0
    ]
    if mesh.shape[MODEL] == 1 or not fits:
        return _whole(mesh)
    spec: list[str | None] = [None] * len(leaf.shape)
    spec[max(fits, key=lambda axis: leaf.shape[axis])] = MODEL
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))


def _put(leaf: Any, sharding: jax.sharding.NamedSharding) -> jax.Array:
    host = np.asarray(
        leaf if jax.default_backend() != "cpu" else jnp.asarray(leaf)
    )  # there devices share JAX's memory
    return jax.make_array_from_callback(host.shape, sharding, lambda at: host[at])


def everywhere(mesh: jax.sharding.Mesh, tree: PyTree) -> PyTree:
    """Host arrays, the same in all processes, as arrays on all devices of the mesh; unchanged for
    one device.
    """
    return tree if mesh.size == 1 else jax.tree.map(lambda leaf: _put(leaf, _whole(mesh)), tree)


def dealt(mesh: jax.sharding.Mesh, cohort: DealtCohort) -> DealtCohort:
    """A cohort of host arrays, each device with the examples of its own clients; unchanged for one
    device.
    """
    if mesh.size == 1:
        return cohort
    by_column = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, CLIENTS))
    examples = jax.tree.map(lambda leaf: _put(leaf, by_column), cohort.examples)
    return DealtCohort(examples, *everywhere(mesh, tuple(cohort)[1:]))


def spread(mesh: jax.sharding.Mesh, states: PyTree) -> PyTree:
    """As `everywhere`, but for states, which the axis "model" shares."""
    return (
        states
        if mesh.size == 1
        else jax.tree.map(lambda leaf: _put(leaf, _spread(mesh, leaf)), states)
    )


def here(mesh: jax.sharding.Mesh, tree: PyTree) -> PyTree:
    """Arrays on all devices, for one: as host arrays where parts are elsewhere. All processes must
    ask.
    """
    if jax.process_count() == 1:
        return jax.tree.map(_on_one_device, tree) if mesh.size > 1 else tree
    return jax.device_get(_gather(mesh)(tree))


def _on_one_device(leaf: jax.Array) -> Any:
    """What follows would else be computed on all of them."""
    return leaf.addressable_data(0) if leaf.is_fully_replicated else jax.device_get(leaf)


@functools.lru_cache(maxsize=1)
def _gather(mesh: jax.sharding.Mesh) -> Callable[[PyTree], PyTree]:
    gather: Callable[[PyTree], PyTree] = jax.jit(lambda leaves: leaves, out_shardings=_whole(mesh))
    return gather


def jit(
    mesh: jax.sharding.Mesh, fun: Callable[..., Any], states: PyTree, *, others: int, **options: Any
) -> Any:
    """`jax.jit(fun)` whose first result is spread as `states` are, and whose `others` are whole on
    all devices.
    """
    if mesh.size == 1:
        return jax.jit(fun, **options)
    placed = jax.tree.map(lambda leaf: _spread(mesh, leaf), states)
    return jax.jit(fun, out_shardings=(placed, *[_whole(mesh)] * others), **options)
