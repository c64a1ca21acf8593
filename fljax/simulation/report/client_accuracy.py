"""How a model serves each client: accuracy on the client's own examples, and its percentiles over clients."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax.data import ClientData, store
from fljax.models.losses import Apply
from fljax.types import Params

PERCENTILES = (5, 25, 50, 75, 95)
_AT_A_TIME, _FROM_DISK, _READ = 1024, 1000, 50  # examples; clients; of these in memory at a time


class Accuracies(NamedTuple):
    """Of clients that hold something: client_ids int `[K]`, accuracy float `[K]` and examples int `[K]`.

    damaged: ids of clients on disk that were left out because their bytes do not match.
    """

    client_ids: np.ndarray
    accuracy: np.ndarray
    examples: np.ndarray
    damaged: list[int]


def accuracies(apply: Apply, params: Params, client_data: ClientData | store.Store) -> Accuracies:
    """Accuracy on the examples that each client holds: all clients in memory, a thousand spread over those on disk.

    Not private: it is computed on the clients' own data without noise. Where these were trained on, it flatters.
    """
    if not isinstance(client_data, store.Store):
        return _of(apply, params, client_data, np.arange(len(client_data.indices)))
    chosen = np.unique(np.linspace(0, client_data.num_clients - 1, _FROM_DISK).astype(np.int64))
    parts, damaged = [], list[int]()
    for start in range(0, chosen.size, _READ):
        ids = chosen[start : start + _READ]
        places = max(1, int((client_data.offsets[ids + 1] - client_data.offsets[ids]).max()))
        examples, table, skipped = store.read(client_data, ids, places, skip_corrupt=True)
        parts.append(_of(apply, params, ClientData(examples, jnp.asarray(table)), ids))
        damaged += skipped
    return Accuracies(
        np.concatenate([part.client_ids for part in parts]),
        np.concatenate([part.accuracy for part in parts]),
        np.concatenate([part.examples for part in parts]),
        damaged,
    )


def _of(apply: Apply, params: Params, client_data: ClientData, chosen: np.ndarray) -> Accuracies:
    examples, table = client_data.examples, np.asarray(client_data.indices)
    used = np.unique(table[table >= 0])
    if not used.size:
        return Accuracies(np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.int64), [])
    right = np.zeros(int(used[-1]) + 1, bool)
    for start in range(0, used.size, _AT_A_TIME):
        # The last rows are asked twice rather than compiling for another size.
        rows = used[max(0, min(start, used.size - _AT_A_TIME)) :][:_AT_A_TIME]
        right[rows] = np.asarray(_right(apply, params, examples["x"][rows], examples["y"][rows]))
    here = table >= 0
    counts = here.sum(axis=1)
    hits = (right[np.where(here, table, 0)] & here).sum(axis=1)
    some = counts > 0
    return Accuracies(chosen[some], hits[some] / counts[some], counts[some], [])


def _right_here(apply: Apply, params: Params, x: jax.Array, y: jax.Array) -> jax.Array:
    return jax.vmap(apply, (None, 0))(params, x).argmax(-1) == y


_right = jax.jit(_right_here, static_argnums=0)


def percentiles(found: Accuracies) -> np.ndarray:
    """Accuracy of the clients at each of `PERCENTILES`, `[5]`; NaN where no client holds anything."""
    if not found.accuracy.size:
        return np.full(len(PERCENTILES), np.nan)
    return np.percentile(found.accuracy, PERCENTILES)
