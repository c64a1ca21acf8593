"""Host checks of data, before anything is traced."""

from typing import Any

import jax
import numpy as np


def _first_bad_row(bad: np.ndarray) -> int:
    return int(np.flatnonzero(bad.reshape(bad.shape[0], -1).any(axis=1))[0])


def check_examples(examples: Any, *, num_classes: int | None = None, name: str = "examples") -> int:
    """Refuses data that a private run must not start with. Reads every value: call it once, on the
    host.

    Rules: at least one array; all arrays share a leading axis of length >= 1; floating values are
    finite; where `num_classes` is given, `examples["y"]` holds integers in `[0, num_classes)`.

    Args:
      examples: a pytree of arrays `[M, ...]`.
      num_classes: how many labels there are, or None where `examples` has no labels.
      name: what the caller's argument is called; errors use it.

    Returns:
      M.

    Raises:
      ValueError: a rule is broken; one line with the name of the array, the first bad row and its
        value, the rule.
    """
    leaves = [
        (name + jax.tree_util.keystr(path), np.asarray(leaf))
        for path, leaf in jax.tree_util.tree_leaves_with_path(examples)
    ]
    if not leaves:
        raise ValueError(f"Expected {name} to hold at least one array, got {name}={examples!r}.")
    for leaf_name, leaf in leaves:
        if leaf.ndim == 0:
            raise ValueError(
                f"Expected {leaf_name} to have a leading axis of examples, got a scalar {leaf!r}."
            )
    first_name, first = leaves[0]
    if not first.shape[0]:
        raise ValueError(
            f"Expected {first_name} to hold at least one example, got shape {first.shape}."
        )
    for leaf_name, leaf in leaves:
        if leaf.shape[0] != first.shape[0]:
            raise ValueError(
                f"Expected {leaf_name} to have as many rows as {first_name} ({first.shape[0]}), "
                f"got {leaf.shape[0]}."
            )
        if jax.dtypes.issubdtype(leaf.dtype, np.inexact):
            bad = ~np.isfinite(leaf)
            if bad.any():
                row = _first_bad_row(bad)
                value = leaf[row][bad[row]].flat[0] if leaf.ndim > 1 else leaf[row]
                raise ValueError(f"Expected {leaf_name} to be finite, got {value} in row {row}.")
    if num_classes is not None:
        _check_labels(examples, num_classes, name)
    return int(first.shape[0])


def _check_labels(examples: Any, num_classes: int, name: str) -> None:
    labels = np.asarray(examples["y"])
    if labels.dtype.kind not in "iu":
        raise ValueError(f"Expected {name}['y'] to hold integer labels, got dtype {labels.dtype}.")
    bad = (labels < 0) | (labels >= num_classes)
    if bad.any():
        row = _first_bad_row(bad)
        value = labels[row][bad[row]].flat[0] if labels.ndim > 1 else labels[row]
        raise ValueError(
            f"Expected {name}['y'] to be in [0, num_classes={num_classes}), got {value} in row "
            f"{row}."
        )


def check_partition(indices: Any, num_examples: int) -> None:
    """Refuses a table of clients' rows in which an example stands twice. Call it once, on the host.

    A guarantee for records rests on this: each place flips a coin of its own, so a record in two
    places joins a round more often than claimed, and counts twice where both come up.

    Args:
      indices: integers `[num_clients, N]`, rows of the pool of examples; negative: padding.
      num_examples: rows in the pool.

    Raises:
      ValueError: an index is outside the pool, or stands in two places; one line that names it and
        its clients.
    """
    table = np.asarray(indices)
    if table.ndim != 2 or table.dtype.kind != "i":
        raise ValueError(
            f"Expected indices to be int [num_clients, N], got {table.dtype} of shape "
            f"{table.shape}."
        )
    clients, _ = np.nonzero(table >= 0)
    rows = table[table >= 0]
    if rows.size and rows.max() >= num_examples:
        raise ValueError(f"Expected indices < num_examples={num_examples}, got {rows.max()}.")
    order = np.argsort(rows, kind="stable")
    twice = np.flatnonzero(rows[order][1:] == rows[order][:-1])
    if twice.size:
        first, second = order[twice[0]], order[twice[0] + 1]
        raise ValueError(
            f"Expected each example at most once in indices, got row {rows[first]} at clients "
            f"{clients[first]} and "
            f"{clients[second]}: the privacy of a record counts on one place in one client."
        )
