"""Who holds which example: tables of rows, and clients that a column of the data names."""

import numbers

import numpy as np


def table(groups: list[np.ndarray]) -> np.ndarray:
    """Rows of each client, one array `[n]` a client, as int32 `[num_clients, N]`, padded with
    -1.
    """
    rows = np.full((len(groups), max(group.size for group in groups)), -1, np.int32)
    for row, group in zip(rows, groups, strict=True):
        row[: group.size] = group
    return rows


def plain_ids(ids: np.ndarray, *, name: str = "ids") -> np.ndarray:
    """Ids of clients `[n]`, integers or strings, as NumPy holds them.

    Raises:
      ValueError: they are neither, or some are one and some the other; names the first.
    """
    ids = np.asarray(ids)
    if ids.ndim != 1:
        raise ValueError(
            f"Expected {name} to be ids [n], one an example, got shape {list(ids.shape)}."
        )
    if ids.dtype.kind == "O":
        kind = str if ids.size and isinstance(ids[0], str) else numbers.Integral
        for row, value in enumerate(ids):
            if not isinstance(value, kind) or isinstance(value, bool):
                raise ValueError(
                    f"Expected {name} to be all strings or all integers, got {value!r} in row "
                    f"{row}."
                )
        ids = np.asarray(ids.tolist())
    if ids.dtype.kind not in "iuU":
        raise ValueError(f"Expected {name} to be integers or strings, got dtype {ids.dtype}.")
    return ids


def by_column(ids: np.ndarray, *, name: str = "ids") -> tuple[np.ndarray, np.ndarray]:
    """Clients as a column of the examples names them.

    Args:
      ids: `[n]` of each example's client, integers or strings.
      name: of the column; errors use it.

    Returns:
      `(table, names)`: int32 `[num_clients, N]`, padded with -1, each client's examples in their
      order; and the `[num_clients]` ids, sorted.

    Raises:
      ValueError: the ids are neither integers nor strings.
    """
    names, owner = np.unique(plain_ids(ids, name=name), return_inverse=True)
    order = np.argsort(owner, kind="stable")
    return table(np.split(order, np.cumsum(np.bincount(owner))[:-1])), names
