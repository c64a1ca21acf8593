"""Cohorts from disk, read one round ahead while the device computes."""

import concurrent.futures
import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

import fljax_kernels
from fljax import _keys
from fljax.data import Cohort, store
from fljax.schemes._round import FederatedAlgorithm
from fljax.types import PyTree


class Fed(NamedTuple):
    """A cohort in memory, and the ids of sampled clients that were left out because their bytes are damaged."""

    cohort: Cohort
    skipped: list[int]


class FromDisk:
    """Rounds of `algorithms` on cohorts of the clients in `clients`, the same cohorts as of clients in memory.

    Who is sampled in a round depends on the run's key and the round alone, so the next cohort is read in a thread of
    its own.
    """

    def __init__(
        self,
        algorithms: tuple[FederatedAlgorithm, ...],
        clients: store.Store,
        key: jax.Array,
        capacity: int,
        *,
        num_rounds: int,
        skip_corrupt: bool,
    ) -> None:
        self._algorithms, self._clients, self._key, self._skip = algorithms, clients, key, skip_corrupt
        self._num_rounds = num_rounds
        self._capacity, self._places = capacity, max(1, clients.most_examples)
        self._thread = concurrent.futures.ThreadPoolExecutor(1)
        self._ahead: tuple[int, concurrent.futures.Future[Fed]] | None = None
        self._sample: Callable[..., Any] = jax.jit(self._sampled, static_argnames="capacity")
        self._round: Callable[..., Any] = jax.jit(self._rounds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(cancel_futures=True)

    def _sampled(self, round_index: jax.Array, capacity: int) -> Any:
        key = _keys.server_key(self._key, round_index, _keys.Purpose.SAMPLE_CLIENTS)
        prob = self._algorithms[0].client_sampling_prob
        return fljax_kernels.poisson_sample(key, self._clients.num_clients, prob, capacity)

    def _rounds(self, states: tuple[PyTree, ...], cohort: Cohort) -> tuple[tuple[PyTree, ...], tuple[Any, ...]]:
        results = [a.round(s, cohort, self._key) for a, s in zip(self._algorithms, states, strict=True)]
        return tuple(state for state, _ in results), tuple(info for _, info in results)

    def read(self, round_index: int) -> Fed:
        """The cohort of one round, into memory."""
        capacity = self._capacity
        while True:
            sample = self._sample(jnp.int32(round_index), capacity=capacity)
            if not sample.overflow:
                break
            # As for clients in memory: the same key draws the same number again, now with room for all.
            capacity = min(2 * capacity, self._clients.num_clients)
        ids = np.asarray(sample.indices)
        examples, indices, skipped = store.read(self._clients, ids, self._places, skip_corrupt=self._skip)
        cohort = Cohort(jax.tree.map(jnp.asarray, examples), jnp.asarray(indices), jnp.asarray(ids))
        return Fed(cohort, skipped)

    def __call__(self, states: tuple[PyTree, ...], done: int) -> tuple[tuple[PyTree, ...], tuple[Any, ...], list[int]]:
        """Round number `done` (from 0): `(states, infos, ids of sampled clients that were left out)`.

        Raises:
          CorruptDataError: the bytes of a sampled client are damaged, and they are not to be skipped.
        """
        ahead = self._ahead[1] if self._ahead is not None and self._ahead[0] == done else None
        fed = self.read(done) if ahead is None else ahead.result()
        if done + 1 < self._num_rounds:
            self._ahead = done + 1, self._thread.submit(functools.partial(self.read, done + 1))
        states, infos = self._round(states, fed.cohort)
        return states, infos, fed.skipped
