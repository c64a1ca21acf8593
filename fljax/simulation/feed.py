"""Feeds rounds with cohorts: sampled on the device from memory, or read from disk a round ahead."""

import concurrent.futures
import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np

import fljax_kernels
from fljax import _keys, data
from fljax.data import ClientData, Cohort, DealtCohort, store
from fljax.schemes.base import FederatedAlgorithm
from fljax.simulation.devices import mesh, processes
from fljax.types import PyTree


class HostCohort(NamedTuple):
    """A `data.DealtCohort` in host memory.

    examples: filled where the client's device is of this process. num_examples, client_ids: of all
    processes. damaged: bool `[C]`, clients that this process found damaged and left out.
    """

    examples: dict[str, np.ndarray]
    num_examples: np.ndarray
    client_ids: np.ndarray
    damaged: np.ndarray


def rounds(
    algorithms: tuple[FederatedAlgorithm, ...],
    key: jax.Array,
    states: tuple[PyTree, ...],
    cohort: Cohort | DealtCohort,
) -> tuple[tuple[PyTree, ...], tuple[Any, ...]]:
    """One round of all `algorithms` on the same cohort: `(states, infos)`."""

    def seen_by(algorithm: FederatedAlgorithm) -> Cohort | DealtCohort:
        seen = cohort
        if isinstance(cohort, DealtCohort) and not algorithm.takes_dealt:
            seen = data.pooled(cohort)
        return seen if algorithm.client_state is not None else seen._replace(kept=())

    results = [a.round(s, seen_by(a), key) for a, s in zip(algorithms, states, strict=True)]
    return tuple(state for state, _ in results), tuple(info for _, info in results)


def round_fun(
    algorithms: tuple[FederatedAlgorithm, ...], num_clients: int
) -> Callable[
    [tuple[PyTree, ...], ClientData, jax.Array, int],
    tuple[tuple[PyTree, ...], tuple[Any, ...], jax.Array],
]:
    """One round of all `algorithms` on one cohort, sampled on the device; jit it, `capacity`
    static.

    Returns:
      `(states, client_data, key, capacity) -> (states, infos, overflow)`. Where `overflow` is True
      the sample had more than `capacity` clients: the states are of a truncated cohort and must be
      thrown away.
    """
    sampling_prob = algorithms[0].client_sampling_prob

    def fun(
        states: tuple[PyTree, ...], client_data: ClientData, key: jax.Array, capacity: int
    ) -> tuple[tuple[PyTree, ...], tuple[Any, ...], jax.Array]:
        sample_key = _keys.server_key(key, states[0].round, _keys.Purpose.SAMPLE_CLIENTS)
        sample = fljax_kernels.poisson_sample(sample_key, num_clients, sampling_prob, capacity)
        cohort = data.cohort(client_data, sample.indices)
        return *rounds(algorithms, key, states, cohort), sample.overflow

    return fun


# One program for all runs of a process. The key is an argument: as a constant it would stand in the
#   program, and in caches on the disk.
@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _sampled(
    sampling_prob: float, num_clients: int, capacity: int, key: jax.Array, round_index: jax.Array
) -> Any:
    key = _keys.server_key(key, round_index, _keys.Purpose.SAMPLE_CLIENTS)
    return fljax_kernels.poisson_sample(key, num_clients, sampling_prob, capacity)


def host_sampler(
    sampling_prob: float, num_clients: int, key: jax.Array, capacity: int
) -> Callable[[int], np.ndarray]:
    """`round -> client ids [C]`, as `round_fun` samples them, for the host; -1 is padding."""

    def sample(round_index: int) -> np.ndarray:
        room = capacity
        while True:
            found = _sampled(sampling_prob, num_clients, room, key, jnp.int32(round_index))
            if not found.overflow:
                return np.asarray(found.indices).astype(np.int32)
            # As in `round_fun`'s caller: the same key draws the same number again, now with room
            # for all.
            room = min(2 * room, num_clients)

    return sample


def kept_round(
    algorithms: tuple[FederatedAlgorithm, ...],
    states: tuple[PyTree, ...],
    client_data: ClientData,
    key: jax.Array,
    client_ids: jax.Array,
    kept: PyTree,
) -> tuple[tuple[PyTree, ...], tuple[Any, ...]]:
    """`rounds` of the clients `[C]` in memory, with what they kept, a tree of `[C, ...]`."""
    return rounds(algorithms, key, states, data.cohort(client_data, client_ids)._replace(kept=kept))


class KeptStates(Protocol):
    """Where rounds find what clients keep, and leave it: a tree of `[C, ...]` of the clients
    `[C]`.
    """

    def read(self, client_ids: np.ndarray) -> PyTree:
        """What they kept."""

    def write(self, done: int, client_ids: np.ndarray, kept: PyTree) -> None:
        """What they keep after `done` rounds."""


class FromDisk:
    """Rounds of `algorithms` on cohorts of the clients in `clients`, the same cohorts as of clients
    in memory.

    Who is sampled in a round depends on the run's key and the round alone, so the next cohort is
    read in a thread of its own.
    """

    def __init__(
        self,
        algorithms: tuple[FederatedAlgorithm, ...],
        clients: store.Store,
        states: tuple[PyTree, ...],
        key: jax.Array,
        capacity: int,
        *,
        num_rounds: int,
        skip_corrupt: bool,
        device_mesh: jax.sharding.Mesh,
        groups: int | None = None,
    ) -> None:
        self._algorithms, self._clients, self._key, self._skip = (
            algorithms,
            clients,
            key,
            skip_corrupt,
        )
        self._num_rounds, self._mesh = num_rounds, device_mesh
        for_clients = device_mesh.shape[mesh.CLIENTS]
        # As many as a round deals its clients to; on one device they lie in their order.
        self._columns = 1 if device_mesh.size == 1 else groups or for_clients
        self._places = max(1, clients.most_examples)
        self._thread = concurrent.futures.ThreadPoolExecutor(1)
        self._ahead: tuple[int, concurrent.futures.Future[HostCohort]] | None = None
        prob = algorithms[0].client_sampling_prob
        self._sample = host_sampler(prob, clients.num_clients, key, capacity)
        one_round = functools.partial(rounds, algorithms)
        self._round = mesh.jit(device_mesh, one_round, states, others=1, donate_argnums=1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._thread.shutdown(cancel_futures=True)

    def read(self, round_index: int) -> HostCohort:
        """The cohort of one round, into memory: of its clients those whose devices are of this
        process.

        In a thread of its own, outside any mesh: what it samples with runs on one device of this
        process.
        """
        ids = self._sample(round_index)
        places, columns = self._places, self._columns
        # Room for as many clients in each column; present ones stand first, so that all devices get
        # their share of them.
        everybody = np.concatenate([ids, np.full(-ids.size % columns, -1, np.int32)])
        everybody = everybody.reshape(-1, columns)
        mine = np.full_like(everybody, -1)
        for block in self._by_column().addressable_devices_indices_map(everybody.shape).values():
            mine[block] = everybody[block]
        rows, _, skipped = store.read(
            self._clients, mine.reshape(-1), places, skip_corrupt=self._skip
        )
        examples = {
            name: field.reshape(*everybody.shape, places, *field.shape[1:])
            for name, field in rows.items()
        }
        known, offsets = np.maximum(ids, 0), self._clients.offsets
        sizes = np.where(ids < 0, 0, offsets[known + 1] - offsets[known]).astype(np.int32)
        return HostCohort(examples, sizes, ids, np.isin(ids, skipped) & (ids >= 0))

    def _by_column(self) -> jax.sharding.NamedSharding:
        """Each process reads the clients that its own devices compute, and no others."""
        return jax.sharding.NamedSharding(
            self._mesh, jax.sharding.PartitionSpec(None, mesh.CLIENTS)
        )

    def _on_devices(self, cohort: HostCohort, damaged: np.ndarray) -> Cohort | DealtCohort:
        sizes = np.where(damaged, 0, cohort.num_examples)
        if self._mesh.size == 1:  # as `data.pooled`, on the host
            first, inside = np.arange(sizes.size)[:, None] * self._places, np.arange(self._places)
            indices = np.where(inside < sizes[:, None], first + inside, -1).astype(np.int32)
            pool = {k: v.reshape(-1, *v.shape[3:]) for k, v in cohort.examples.items()}
            return Cohort(*jax.tree.map(jnp.asarray, (pool, indices, cohort.client_ids)))
        on_host: Any = (cohort.examples, sizes, cohort.client_ids)
        return mesh.dealt(self._mesh, DealtCohort(*on_host))

    def __call__(
        self, states: tuple[PyTree, ...], done: int, clients: KeptStates | None = None
    ) -> tuple[tuple[PyTree, ...], tuple[Any, ...], list[int]]:
        """Round number `done` (from 0): `(states, infos, ids of sampled clients that were left
        out)`.

        clients: what they keep between rounds, where they do.

        Raises:
          CorruptDataError: the bytes of a sampled client are damaged, and they are not to be
            skipped.
        """
        if self._ahead is None or self._ahead[0] != done:
            self._ahead = done, self._thread.submit(self.read, done)
        cohort = self._ahead[1].result()
        if done + 1 < self._num_rounds:
            self._ahead = done + 1, self._thread.submit(self.read, done + 1)
        # Only where damage is not an error have processes anything to tell each other.
        damaged = processes.either(cohort.damaged) if self._skip else cohort.damaged
        here = self._on_devices(cohort, damaged)
        if clients is not None:
            here = here._replace(kept=mesh.everywhere(self._mesh, clients.read(cohort.client_ids)))
        with mesh.over(self._mesh):
            states, infos = self._round(self._key, states, here)
        if clients is not None:
            clients.write(done + 1, cohort.client_ids, jax.device_get(infos[0].kept))
        return states, infos, [int(client) for client in cohort.client_ids[damaged]]
