"""How a model serves each client: accuracy on the client's own examples, and its percentiles over clients."""

from typing import NamedTuple

import jax
import numpy as np

from fljax.data import ClientData, store
from fljax.models.losses import Apply
from fljax.types import Params

PERCENTILES = (5, 25, 50, 75, 95)
_AT_A_TIME, _FROM_DISK = 1024, 1000


class Accuracies(NamedTuple):
    """Of clients that hold something: client_ids int `[K]`, accuracy float `[K]` and examples int `[K]`."""

    client_ids: np.ndarray
    accuracy: np.ndarray
    examples: np.ndarray


def accuracies(apply: Apply, params: Params, client_data: ClientData | store.Store) -> Accuracies:
    """Accuracy on the examples that each client holds: all clients in memory, a thousand spread over those on disk.

    Not private: it is computed on the clients' own data without noise. Where these were trained on, it flatters.

    Raises:
      CorruptDataError: the bytes of a client on disk are damaged.
    """
    if isinstance(client_data, store.Store):
        chosen = np.unique(np.linspace(0, client_data.num_clients - 1, _FROM_DISK).astype(np.int64))
        examples, table, _ = store.read(client_data, chosen, max(1, client_data.most_examples))
    else:
        examples, table = client_data.examples, np.asarray(client_data.indices)
        chosen = np.arange(len(table))
    used = np.unique(table[table >= 0])
    if not used.size:
        return Accuracies(*(np.zeros(0, kind) for kind in (np.int64, np.float64, np.int64)))
    right = np.zeros(int(used[-1]) + 1, bool)
    for start in range(0, used.size, _AT_A_TIME):
        # The last rows are asked twice rather than compiling for another size.
        rows = used[max(0, min(start, used.size - _AT_A_TIME)) :][:_AT_A_TIME]
        right[rows] = np.asarray(_right(apply, params, examples["x"][rows], examples["y"][rows]))
    here = table >= 0
    counts = here.sum(axis=1)
    hits = (right[np.where(here, table, 0)] & here).sum(axis=1)
    some = counts > 0
    return Accuracies(chosen[some], hits[some] / counts[some], counts[some])


def _right_here(apply: Apply, params: Params, x: jax.Array, y: jax.Array) -> jax.Array:
    return jax.vmap(apply, (None, 0))(params, x).argmax(-1) == y


_right = jax.jit(_right_here, static_argnums=0)


def percentiles(found: Accuracies) -> np.ndarray:
    """Accuracy of the clients at each of `PERCENTILES`, `[5]`; NaN where no client holds anything."""
    if not found.accuracy.size:
        return np.full(len(PERCENTILES), np.nan)
    return np.percentile(found.accuracy, PERCENTILES)
