"""The devices that share the clients of a round."""

import contextlib

import jax

from fljax import _validate
from fljax.server.aggregate import CLIENTS


def client_mesh(num_devices: int | None = None) -> jax.sharding.Mesh:
    """A mesh of one axis, "clients", over this machine's first `num_devices` devices.

    Under `jax.set_mesh(client_mesh())` the round of every scheme deals its clients over these devices. Cohorts, noise
    and ledgers are the same bits whatever their number; sums over clients differ by the order of float additions.

    Args:
      num_devices: None takes all of them where they are accelerators, and one on a CPU, whose cores XLA uses anyway.

    Raises:
      ValueError: num_devices is not in 1..the number of devices.
    """
    devices = jax.devices()
    if num_devices is None:
        num_devices = 1 if devices[0].platform == "cpu" else len(devices)
    _validate.positive_int(devices=num_devices)
    if num_devices > len(devices):
        raise ValueError(f"Expected devices <= {len(devices)}, which this process has, got devices={num_devices}.")
    return jax.make_mesh(
        (num_devices,), (CLIENTS,), axis_types=(jax.sharding.AxisType.Auto,), devices=devices[:num_devices]
    )


def over(num_devices: int | None) -> contextlib.AbstractContextManager[object]:
    """`jax.set_mesh(client_mesh(num_devices))`, or nothing at all where that is one device."""
    mesh = client_mesh(num_devices)
    return jax.set_mesh(mesh) if mesh.size > 1 else contextlib.nullcontext()
