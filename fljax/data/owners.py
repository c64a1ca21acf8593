"""Examples that several users own: which of them to train on, such that no user owns many."""

from typing import Any, Literal

import numpy as np

from fljax import _validate


def bound_owned(
    owners: Any,
    *,
    most: int,
    rng: np.random.Generator,
    choice: Literal["greedy", "maximum"] = "greedy",
) -> np.ndarray:
    """Rows such that each user owns at most `most` of them: an e-mail belongs to all its readers, a
    photograph to whoever is on it.

    "greedy" takes rows with few owners first and leaves out what would pass a bound: no further row
    fits, and there are at least 1 / M of the most possible. "maximum" finds as many as there can
    be, by integer programming, whose time may grow exponentially.

    Guarantee: the bound, whoever owns what. So leaving out all that one user owns is leaving out
    at most `most` examples, and exchanging them for others is twice as many changes under
    add-or-remove-one: claims about groups of that size are claims about users. Who owns which row
    must be public: the choice depends on it, and without one user it might take other rows.

    Args:
      owners: int `[N, M]`, users of each row; negative: no further owner. One named twice counts
        once; a row that nobody owns is taken.
      most: rows of one user, >= 1.
      rng: puts rows with as many owners in random order.

    Returns:
      int `[R]`, rows in ascending order.

    Raises:
      ValueError: an argument is out of range.

    Source: "It's My Data Too: Private ML for Datasets with Multi-User Training Examples" (2025),
      arXiv:2503.03622, contribution bounding in the fixed-graph setting.
    """
    _validate.positive_int(most=most)
    _validate.one_of(("greedy", "maximum"), choice=choice)
    table = np.asarray(owners)
    if table.ndim != 2 or not np.issubdtype(table.dtype, np.integer):
        raise ValueError(
            f"Expected owners to be int [N, M], got {table.dtype} of shape {table.shape}."
        )
    of_row = [np.unique(row[row >= 0]) for row in table]
    if choice == "maximum":
        return _maximum(of_row, most)
    places = rng.permutation(len(of_row))
    order = places[np.argsort([len(of_row[row]) for row in places], kind="stable")]
    owned: dict[int, int] = {}
    taken = []
    for row in order:
        users = of_row[row].tolist()
        if all(owned.get(user, 0) < most for user in users):
            taken.append(int(row))
            owned.update((user, owned.get(user, 0) + 1) for user in users)
    return np.sort(np.asarray(taken, dtype=np.int64))


def _maximum(of_row: list[np.ndarray], most: int) -> np.ndarray:
    from scipy import optimize, sparse

    sizes = [len(users) for users in of_row]
    if not sum(sizes):
        return np.arange(len(of_row))
    users, places = np.unique(np.concatenate(of_row), return_inverse=True)
    rows = np.repeat(np.arange(len(of_row)), sizes)
    entries = (np.ones(len(rows)), (places, rows))
    owned = sparse.csr_array(entries, shape=(len(users), len(of_row)))
    found = optimize.milp(
        -np.ones(len(of_row)),
        integrality=np.ones(len(of_row)),
        bounds=optimize.Bounds(0, 1),
        constraints=optimize.LinearConstraint(owned, ub=most),
    )
    if found.x is None:
        raise ValueError(f"Expected a program that can be solved, got: {found.message}")
    return np.flatnonzero(found.x > 0.5)
