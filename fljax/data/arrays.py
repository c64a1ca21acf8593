"""A caller's own arrays as a data set: checked on the host, whole or client by client."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax.data import client_ids
from fljax.data.check import check_examples, check_partition
from fljax.data.dataset import Dataset
from fljax.data.subjects import SUBJECT

Examples = Mapping[str, Any]  # name -> array [M, ...]


def dataset(
    examples: Examples | Sequence[Examples],
    test: Examples | None,
    *,
    num_classes: int | None = None,
    column: str | None = None,
) -> tuple[Dataset, np.ndarray | None]:
    """The caller's arrays as a data set; where they come client by client, the table of rows too.

    Args:
      examples: name -> `[M, ...]`, or a list of such, one a client.
      test: held-out examples, of the same fields.
      num_classes: labels "y" must be below it. None: not said, and 0 in the data set.
      column: the field that holds clients' ids, which held-out examples need not have, as little
        as subjects.

    Raises:
      ValueError: arrays do not go together, or hold NaN or infinity; a client holds nothing; labels
        are out of range.
    """
    table = None
    if not isinstance(examples, Mapping):
        examples, table = _pooled(examples)
    if column is not None and column not in examples:
        raise ValueError(
            f"Expected clients to name a field of data, {sorted(examples)}, got clients={column!r}."
        )
    train = _arrays(examples, "data", column)
    if test is None:
        raise ValueError(
            "Expected test_data, held-out {name: array [M, ...]}, with data of your own, got None."
        )
    held_out = _arrays(test, "test_data", column)
    needed = set(train) - ({column, SUBJECT} - set(held_out))
    if needed != set(held_out):
        raise ValueError(
            f"Expected test_data to have the fields {sorted(needed)}, as data, got "
            f"{sorted(held_out)}."
        )
    for name in held_out:
        ours, theirs = train[name], held_out[name]
        if ours.shape[1:] != theirs.shape[1:] or ours.dtype.kind != theirs.dtype.kind:
            raise ValueError(
                f"Expected {name} of data and of test_data to be alike, got "
                f"{ours.dtype}{list(ours.shape[1:])} and {theirs.dtype}{list(theirs.shape[1:])}."
            )
    for name, arrays in (("data", train), ("test_data", held_out)):
        check_examples(arrays, num_classes=num_classes, name=name)
    return Dataset(train, held_out, num_classes or 0, "arrays"), table


def _arrays(examples: Examples, name: str, column: str | None = None) -> dict[str, np.ndarray]:
    """Host arrays of numbers as JAX has them, 32 bits unless told otherwise; ids as they are."""
    if not isinstance(examples, Mapping) or not all(isinstance(key, str) for key in examples):
        raise ValueError(
            f"Expected {name} to be arrays by name, {{'x': .., 'y': ..}}, got "
            f"{type(examples).__name__}."
        )
    found = {}
    for key, given in examples.items():
        array = np.asarray(given)
        if key == column or array.dtype.kind == "O":
            found[key] = client_ids.plain_ids(array, name=f"{name}[{key!r}]")
            continue
        if not (jnp.issubdtype(array.dtype, jnp.number) or array.dtype == bool):
            raise ValueError(
                f"Expected {name}[{key!r}] to hold numbers, or ids that clients= names, got dtype "
                f"{array.dtype}."
            )
        dtype = jax.dtypes.canonicalize_dtype(array.dtype)
        if array.dtype.kind in "iu" and array.size and array.dtype != dtype:
            least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
            if array.min() < least or array.max() > most:
                raise ValueError(
                    f"Expected {name}[{key!r}] to fit {dtype}, got {array.min()} to {array.max()}."
                )
        found[key] = array.astype(dtype)
    return found


def _pooled(clients: Sequence[Examples]) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Clients' examples one after the other, and their rows."""
    if isinstance(clients, str | bytes) or not isinstance(clients, Sequence) or not clients:
        raise ValueError(
            "Expected data to be arrays by name, or a list of these, one a client, got "
            f"{clients!r}."
        )
    each = [_arrays(client, f"data[{number}]") for number, client in enumerate(clients)]
    for number, client in enumerate(each):
        if sorted(client) != sorted(each[0]):
            raise ValueError(
                f"Expected data[{number}] to have the fields {sorted(each[0])}, got "
                f"{sorted(client)}."
            )
        for name, array in client.items():
            like = each[0][name]
            if array.ndim == 0 or (array.shape[1:], array.dtype.kind) != (
                like.shape[1:],
                like.dtype.kind,
            ):
                raise ValueError(
                    f"Expected data[{number}][{name!r}] to be like data[0]'s, "
                    f"{like.dtype}{list(like.shape[1:])}, "
                    f"got {array.dtype} of shape {list(array.shape)}."
                )
        check_examples(client, name=f"data[{number}]")
    sizes = [len(next(iter(client.values()))) for client in each]
    rows = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    pool = {name: np.concatenate([client[name] for client in each]) for name in each[0]}
    return pool, client_ids.table(rows)


def client_table(clients: Any, num_examples: int) -> np.ndarray:
    """The caller's assignment as int32 `[num_clients, N]`: such a table, or a list of the rows of
    each client.

    Raises:
      ValueError: it is neither, a row is outside the examples or stands twice, or a client has
        none.
    """
    if isinstance(clients, np.ndarray | jax.Array) and np.ndim(clients) == 2:
        given = np.asarray(clients)
        if given.dtype.kind not in "iu":
            raise ValueError(
                f"Expected clients to hold rows of the examples, integers, got dtype {given.dtype}."
            )
        rows = [row[row >= 0] for row in given.astype(np.int64)]
    elif isinstance(clients, Sequence) and len(clients):
        rows = [np.asarray(row) for row in clients]
        for number, row in enumerate(rows):
            if row.ndim != 1 or (row.size and row.dtype.kind not in "iu"):
                raise ValueError(
                    f"Expected clients[{number}] to be integers [n], rows of the examples, got "
                    f"{row!r}."
                )
            if row.size and row.min() < 0:
                raise ValueError(f"Expected clients[{number}] to be rows >= 0, got {row.min()}.")
    else:
        raise ValueError(
            "Expected clients to be the name of a column, integers [num_clients, N], or a list of "
            "the rows of each "
            f"client, got {type(clients).__name__} of shape {list(np.shape(clients))}."
        )
    for number, row in enumerate(rows):
        if not row.size:
            raise ValueError(
                f"Expected each client to hold an example, got none at client {number}."
            )
    table = client_ids.table(rows)
    check_partition(table, num_examples)
    return table
