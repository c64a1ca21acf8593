"""Several processes that compute one run together, on JAX's own distributed runtime.

The first process owns the run folder: it alone writes, and what it reads goes to the others. All of
them run the same program on the same rounds; each reads the data of its own clients.
"""

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from fljax import _validate
from fljax.types import PyTree

START_S = 120  # seconds that a process waits for the others to start
_OUR_OWN = (
    "RESOURCE_EXHAUSTED",
    "INVALID_ARGUMENT",
    "UNIMPLEMENTED",
)  # errors that no other process causes
# seconds of silence after which a process counts as dead; one whose sockets close is noticed at
# once
SILENT_S = 30


class PeerLostError(RuntimeError):
    """Another process of the run has died or cannot be reached."""


def join(coordinator: str | None, num_processes: int | None, process_id: int | None) -> None:
    """Makes this process one of several, before anything touches a device.

    Args:
      coordinator: HOST:PORT where the first process listens. num_processes: of the run. process_id:
        0 is the first. All None: what SLURM, Open MPI or Kubernetes put into the environment.

    Raises:
      ValueError: only some are given, a number is out of range, or the environment says nothing.
      PeerLostError: not all processes arrived within `START_S` seconds.
    """
    given = {"coordinator": coordinator, "num_processes": num_processes, "process_id": process_id}
    missing = [name for name, value in given.items() if value is None]
    if 0 < len(missing) < len(given):
        raise ValueError(
            "Expected coordinator, num_processes and process_id all given or none, got "
            f"{missing[0]}=None."
        )
    if num_processes is not None and process_id is not None:
        _validate.positive_int(num_processes=num_processes)
        _validate.non_negative_int(process_id=process_id)
        if process_id >= num_processes:
            raise ValueError(
                f"Expected process_id < num_processes={num_processes}, got process_id={process_id}."
            )
    try:
        jax.distributed.initialize(
            coordinator,
            num_processes,
            process_id,
            initialization_timeout=START_S,
            heartbeat_timeout_seconds=SILENT_S,
        )
    except ValueError as reason:
        raise ValueError(
            "Expected coordinator, num_processes and process_id, or a cluster that JAX knows "
            f"(SLURM, Open MPI, Kubernetes), got neither: {str(reason).splitlines()[0]}"
        ) from reason
    except RuntimeError as reason:
        raise PeerLostError(
            f"Expected {num_processes or 'all'} processes at {coordinator or 'the coordinator'} "
            f"within {START_S} s, got: {str(reason).splitlines()[0][:200]}"
        ) from reason


def alone() -> bool:
    """Whether this process is the only one."""
    return jax.process_count() == 1


def first() -> bool:
    """Whether this process owns the run folder."""
    return jax.process_index() == 0


def from_first(tree: PyTree) -> PyTree:
    """Host arrays, the same shapes in all processes, as the first process has them, bit for bit."""
    if alone():
        return tree
    leaves, structure = jax.tree.flatten(tree)
    hosts = [np.asarray(leaf) for leaf in leaves]
    # As bytes: adding zeros to floats, which a broadcast does, would lose the sign of zero.
    sent = np.frombuffer(b"".join(host.tobytes() for host in hosts), np.uint8)
    data = np.asarray(multihost_utils.broadcast_one_to_all(sent)).tobytes()
    received, at = [], 0
    for host in hosts:
        received.append(
            np.frombuffer(data[at : at + host.nbytes], host.dtype).reshape(host.shape).copy()
        )
        at += host.nbytes
    return jax.tree.unflatten(structure, received)


def words_from_first(words: Any) -> Any:
    """Plain data, of which JSON keeps all, as the first process has it."""
    if alone():
        return words
    text = np.frombuffer(json.dumps(words).encode(), np.uint8)
    size = int(multihost_utils.broadcast_one_to_all(np.int32(text.size)))
    padded = np.zeros(size, np.uint8)
    padded[: min(size, text.size)] = text[:size]
    return json.loads(np.asarray(multihost_utils.broadcast_one_to_all(padded)).tobytes())


def either(flag: np.ndarray | bool) -> np.ndarray:
    """Where any process says True, in all processes."""
    if alone():
        return np.asarray(flag)
    everybody: np.ndarray = np.asarray(multihost_utils.process_allgather(np.asarray(flag)))
    return np.asarray(everybody.any(axis=0))


def wait_for_all() -> None:
    """Returns when all processes have come here: one that ends early looks dead to the others."""
    either(False)


@contextlib.contextmanager
def losses_in_one_line() -> Iterator[None]:
    """What JAX raises where another process has gone becomes one `PeerLostError`."""
    try:
        yield
    except jax.errors.JaxRuntimeError as reason:
        if alone() or str(reason).startswith(_OUR_OWN):
            raise
        first_line = (str(reason).strip().splitlines() or [""])[0][:200]
        raise PeerLostError(
            f"Expected all {jax.process_count()} processes to stay, one of them is gone: "
            f"{first_line}"
        ) from reason


@contextlib.contextmanager
def leaving_on_failure() -> Iterator[None]:
    """Prints what went wrong and ends this process at once, since JAX's own end would wait for the
    other processes.
    """
    try:
        yield
    except BaseException as reason:
        what = " ".join(str(reason).split()) or type(reason).__name__
        interrupted = isinstance(reason, KeyboardInterrupt)
        print(f"fljax: {'' if interrupted else 'error: '}{what}", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(130 if interrupted else 2)
