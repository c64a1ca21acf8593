"""Numbers of each client's own examples: the mean over its examples, or one number of them all.

Not private: they are computed on the clients' own data, without noise.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax.data import ClientData, store
from fljax.types import Batch, Params

PERCENTILES = (5, 25, 50, 75, 95)
MOST_ON_DISK, MOST_WHOLE = 1000, 200  # clients that are asked, spread over all
_AT_A_TIME, _READ = 1024, 50  # examples; clients from disk in memory at a time

OfBatch = Callable[[Params, Batch], jax.Array]
OwnModels = Callable[[int], Params]  # of clients that do not use the released model as it is


class ClientValues(NamedTuple):
    """Of clients that hold something: client_ids int, values float, examples int, each `[K]`.

    damaged: ids of clients on disk that were left out because their bytes do not match.
    """

    client_ids: np.ndarray
    values: np.ndarray
    examples: np.ndarray
    damaged: list[int]


def of_rows(
    fun: OfBatch, params: Params, examples: Mapping[str, jax.Array], rows: np.ndarray
) -> np.ndarray:
    """`fun(params, batch [n, ...]) -> [n]` of each of the rows: float64 `[rows.size]`."""
    values = np.zeros(rows.size)
    for start in range(0, rows.size, _AT_A_TIME):
        # The last rows are asked twice rather than compiling for another size.
        start = max(0, min(start, rows.size - _AT_A_TIME))
        some = rows[start : start + _AT_A_TIME]
        batch = {name: field[some] for name, field in examples.items()}
        values[start : start + some.size] = np.asarray(fun(params, batch))
    return values


def means(
    fun: OfBatch,
    params: Params,
    client_data: ClientData | store.Store,
    own: OwnModels | None = None,
) -> ClientValues:
    """The mean of `fun` over each client's examples: all in memory, or 1000 of those on disk."""
    if isinstance(client_data, store.Store):
        chosen = spread(client_data.num_clients, MOST_ON_DISK)
    elif own is not None:
        chosen = spread(len(client_data.indices), MOST_ON_DISK)
    else:
        chosen = np.arange(len(client_data.indices))
    return _joined([_means(fun, params, own, *part) for part in _parts(client_data, chosen)])


def wholes(
    fun: OfBatch,
    params: Params,
    client_data: ClientData | store.Store,
    own: OwnModels | None = None,
) -> ClientValues:
    """`fun(params, all examples of a client) -> []` of up to 200 clients, spread over all.

    No more, since each size that a client can have is compiled apart.
    """
    chosen = spread(store.num_examples(client_data).size, MOST_WHOLE)
    return _joined([_wholes(fun, params, own, *part) for part in _parts(client_data, chosen)])


def percentiles(values: np.ndarray) -> np.ndarray:
    """The values of the clients at each of `PERCENTILES`, `[5]`; NaN where nobody has one."""
    return np.percentile(values, PERCENTILES) if values.size else np.full(len(PERCENTILES), np.nan)


def spread(count: int, most: int) -> np.ndarray:
    """Up to `most` of `count` clients, spread over all."""
    return np.unique(np.linspace(0, count - 1, most).astype(np.int64))


_Part = tuple[Batch, np.ndarray, np.ndarray, list[int]]


def _parts(client_data: ClientData | store.Store, chosen: np.ndarray) -> Iterator[_Part]:
    """(examples, table of their rows, ids, damaged ids) of some of the chosen clients at a time."""
    if not isinstance(client_data, store.Store):
        yield client_data.examples, np.asarray(client_data.indices)[chosen], chosen, []
        return
    for start in range(0, chosen.size, _READ):
        ids = chosen[start : start + _READ]
        places = max(1, int((client_data.offsets[ids + 1] - client_data.offsets[ids]).max()))
        examples, table, skipped = store.read(client_data, ids, places, skip_corrupt=True)
        yield jax.tree.map(jnp.asarray, examples), table, ids, skipped


def _means(
    fun: OfBatch,
    params: Params,
    own: OwnModels | None,
    examples: Batch,
    table: np.ndarray,
    ids: np.ndarray,
    bad: list[int],
) -> ClientValues:
    here = table >= 0
    used, counts = np.unique(table[here]), here.sum(axis=1)
    some = counts > 0
    if own is not None:
        means = [
            # Rows over and over up to one size, so that it is compiled once.
            of_rows(fun, own(int(client)), examples, np.resize(row[row >= 0], row.size))[
                :count
            ].mean()
            for client, row, count in zip(ids[some], table[some], counts[some], strict=True)
        ]
        return ClientValues(ids[some], np.asarray(means, np.float64), counts[some], bad)
    values = np.zeros(int(used[-1]) + 1 if used.size else 1)
    values[used] = of_rows(fun, params, examples, used)
    sums = np.where(here, values[np.where(here, table, 0)], 0).sum(axis=1)
    return ClientValues(ids[some], sums[some] / counts[some], counts[some], bad)


def _wholes(
    fun: OfBatch,
    params: Params,
    own: OwnModels | None,
    examples: Batch,
    table: np.ndarray,
    ids: np.ndarray,
    bad: list[int],
) -> ClientValues:
    counts = (table >= 0).sum(axis=1)
    some = counts > 0
    values = [
        float(
            fun(
                params if own is None else own(int(client)),
                {name: field[row[row >= 0]] for name, field in examples.items()},
            )
        )
        for client, row in zip(ids[some], table[some], strict=True)
    ]
    return ClientValues(ids[some], np.asarray(values, np.float64), counts[some], bad)


def _joined(parts: list[ClientValues]) -> ClientValues:
    return ClientValues(
        np.concatenate([part.client_ids for part in parts]),
        np.concatenate([part.values for part in parts]),
        np.concatenate([part.examples for part in parts]),
        [client for part in parts for client in part.damaged],
    )
