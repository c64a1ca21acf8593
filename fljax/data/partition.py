"""Splits one dataset into clients: labels in, a table of rows out.

Every function returns an int32 table `[num_clients, N]` of rows of the dataset, N the largest
client, padded with -1 at the end of each row. Every example belongs to exactly one client and every
client has at least one example. Everything happens on the host, by a `np.random.Generator` that the
caller passes.
"""

import numpy as np

from fljax import _validate
from fljax.data import client_ids

NAMES = ("iid", "dirichlet", "shards", "power_law")


def _check(labels: np.ndarray, num_clients: int, per_client: int = 1) -> np.ndarray:
    """Labels as an array `[n]` with n >= num_clients * per_client."""
    _validate.positive_int(num_clients=num_clients)
    labels = np.asarray(labels)
    if labels.ndim != 1:
        raise ValueError(f"Expected labels of shape [n], got labels of shape {list(labels.shape)}.")
    if labels.size < num_clients * per_client:
        raise ValueError(
            f"Expected num_clients <= {labels.size // per_client} ({labels.size} examples, at "
            f"least {per_client} for each client), got num_clients={num_clients}."
        )
    return labels


def _sizes(weights: np.ndarray, total: int) -> np.ndarray:
    """Integers that sum to `total`, as near to proportional to `weights` as rounding by largest
    remainder allows.
    """
    exact = weights / weights.sum() * total
    sizes = np.floor(exact).astype(np.int64)
    # Stable, so that equal remainders are settled in the same way everywhere.
    largest = np.argsort(sizes - exact, kind="stable")
    sizes[largest[: total - sizes.sum()]] += 1
    return sizes


def iid(labels: np.ndarray, num_clients: int, rng: np.random.Generator) -> np.ndarray:
    """Shuffles and deals: client sizes differ by at most one.

    Args:
      labels: `[n]`; only their number matters.
      num_clients: >= 1 and <= n.
      rng: consumed.

    Returns:
      int32 `[num_clients, N]`, padded with -1.

    Raises:
      ValueError: an argument is out of range.
    """
    labels = _check(labels, num_clients)
    return client_ids.table(np.array_split(rng.permutation(labels.size), num_clients))


def dirichlet(
    labels: np.ndarray, num_clients: int, rng: np.random.Generator, *, alpha: float
) -> np.ndarray:
    """Skews labels and sizes: each class is divided over the clients by its own Dirichlet(alpha)
    proportions.

    A small alpha gives clients of one or two classes and of very different sizes; a large one
    approaches iid. A client that the draw left empty is given one random example of the then
    largest client.

    Args:
      labels: integers `[n]`.
      num_clients: >= 1 and <= n.
      rng: consumed.
      alpha: concentration. > 0.

    Returns:
      int32 `[num_clients, N]`, padded with -1.

    Raises:
      ValueError: an argument is out of range.

    Source: Yurochkin et al. (2019), arXiv:1905.12022, section 4; Li et al. (2021),
      arXiv:2102.02079, "label skew".
    """
    labels = _check(labels, num_clients)
    _validate.positive(alpha=alpha)
    owner = np.empty(labels.size, np.int64)
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        # For a tiny alpha every gamma draw can underflow to 0 and the proportions to NaN: one
        # client takes all.
        proportions = rng.dirichlet(np.full(num_clients, alpha))
        if not np.isfinite(proportions).all():
            proportions = np.eye(num_clients)[rng.integers(num_clients)]
        owner[members] = np.repeat(np.arange(num_clients), _sizes(proportions, members.size))
    counts = np.bincount(owner, minlength=num_clients)
    for client in np.flatnonzero(counts == 0):
        giver = counts.argmax()  # has two or more: n >= num_clients and somebody is empty
        owner[rng.choice(np.flatnonzero(owner == giver))] = client
        counts[giver] -= 1
        counts[client] += 1
    order = rng.permutation(labels.size)
    order = order[np.argsort(owner[order], kind="stable")]
    return client_ids.table(np.split(order, np.cumsum(counts)[:-1]))


def shards(
    labels: np.ndarray, num_clients: int, rng: np.random.Generator, *, shards_per_client: int
) -> np.ndarray:
    """Sorts by label, cuts into equal shards and deals `shards_per_client` to each client: few
    classes per client.

    Args:
      labels: integers `[n]`.
      num_clients: >= 1; num_clients * shards_per_client <= n.
      rng: consumed.
      shards_per_client: >= 1; a client sees about this many classes.

    Returns:
      int32 `[num_clients, N]`, padded with -1.

    Raises:
      ValueError: an argument is out of range.

    Source: McMahan et al. (2017), arXiv:1602.05629, section 3, "pathological non-IID".
    """
    _validate.positive_int(shards_per_client=shards_per_client)
    labels = _check(labels, num_clients, shards_per_client)
    # Shuffled first: the sort is stable, and the order within a class should not be the order of
    # the file.
    order = rng.permutation(labels.size)
    order = order[np.argsort(labels[order], kind="stable")]
    pieces = np.array_split(order, num_clients * shards_per_client)
    deal = rng.permutation(len(pieces)).reshape(num_clients, shards_per_client)
    return client_ids.table(
        [rng.permutation(np.concatenate([pieces[piece] for piece in row])) for row in deal]
    )


def power_law(
    labels: np.ndarray, num_clients: int, rng: np.random.Generator, *, exponent: float
) -> np.ndarray:
    """Skews sizes only: the client of rank r (from 1) gets a share proportional to r ** -exponent
    of shuffled data.

    Every client first gets one example, the rest is divided by the law; ranks are dealt to clients
    at random.

    Args:
      labels: `[n]`; only their number matters.
      num_clients: >= 1 and <= n.
      rng: consumed.
      exponent: >= 0; at 0 all sizes are equal, at 1 it is Zipf's law.

    Returns:
      int32 `[num_clients, N]`, padded with -1.

    Raises:
      ValueError: an argument is out of range.
    """
    labels = _check(labels, num_clients)
    _validate.non_negative(exponent=exponent)
    weights = np.arange(1, num_clients + 1, dtype=np.float64) ** -exponent
    sizes = rng.permutation(1 + _sizes(weights, labels.size - num_clients))
    return client_ids.table(np.split(rng.permutation(labels.size), np.cumsum(sizes)[:-1]))
