"""Subjects: people whose items lie in several silos at once.

A silo is a client. Examples carry the integer id of their subject under the key `SUBJECT`, so that
whatever gathers examples gathers the ids with them. The functions here split subjects over silos,
count, cap and check. All of it happens on the host; observed counts are private data, caps are
public numbers.
"""

import math
from typing import Any

import numpy as np

from fljax import _validate
from fljax.errors import PrivacyPreconditionError

SUBJECT = "subject"
SPLITS = ("uniform", "power_law")


def subject_ids(examples: Any) -> np.ndarray:
    """The subject of each example, int32 `[M]`.

    Raises:
      PrivacyPreconditionError: examples carry no subjects, or some example has none (a negative
        id). Nothing is said about a subject whose items cannot be told from another's: treat a
        whole silo as one subject instead.
    """
    if not isinstance(examples, dict) or SUBJECT not in examples:
        keys = sorted(examples) if isinstance(examples, dict) else type(examples).__name__
        raise PrivacyPreconditionError(
            f"Expected examples to carry the key {SUBJECT!r}, got {keys}: subjects unknown."
        )
    ids = np.asarray(examples[SUBJECT])
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise PrivacyPreconditionError(
            f"Expected examples[{SUBJECT!r}] to be integers of shape [M], got {ids.dtype} of shape "
            f"{list(ids.shape)}."
        )
    if (ids < 0).any():
        raise PrivacyPreconditionError(
            f"Expected every example to have a subject (an id >= 0), got {ids[ids < 0][0]} in row "
            f"{int(np.flatnonzero(ids < 0)[0])} and {int((ids < 0).sum())} such rows."
        )
    return ids.astype(np.int32)


def with_subjects(examples: dict[str, Any], ids: np.ndarray) -> dict[str, Any]:
    """`examples` with the subject of each, `ids` integers `[M]`; the ids are checked as in
    `subject_ids`.

    Raises:
      ValueError: the number of ids is not the number of examples.
      PrivacyPreconditionError: some example has no subject.
    """
    rows = len(next(iter(examples.values())))
    checked = subject_ids({SUBJECT: ids})
    if checked.size != rows:
        raise ValueError(
            f"Expected one subject for each of {rows} examples, got ids of shape [{checked.size}]."
        )
    return {**examples, SUBJECT: checked}


def power_law_probabilities(num_silos: int, alpha: float) -> np.ndarray:
    """Chances `[num_silos]` that an item lands in each silo: bins of equal width under the density
    a x^(a-1) on [0, 1].

    Raises:
      ValueError: alpha is not > 0, or num_silos < 1.
    """
    _validate.positive_int(num_silos=num_silos)
    _validate.positive(alpha=alpha)
    return np.diff((np.arange(num_silos + 1) / num_silos) ** alpha)


def uniform(ids: np.ndarray, num_silos: int, rng: np.random.Generator) -> np.ndarray:
    """Spreads each subject evenly: its item counts at any two silos differ by at most one.

    Args:
      ids: subject of each example, integers `[n]`.
      num_silos: >= 1, and at most the number of subjects.
      rng: consumed.

    Returns:
      int32 table `[num_silos, N]` of rows, padded with -1 at the end of each row.

    Raises:
      ValueError: an argument is out of range.
    """
    ids = _check(ids, num_silos)
    order, start, sizes = _by_subject(ids, rng)
    # Each subject's deal starts at a random silo: otherwise low silos would collect every
    # remainder.
    first = np.repeat(rng.integers(num_silos, size=sizes.size), sizes)
    position = np.arange(ids.size) - np.repeat(start, sizes)
    return _table(order, (first + position) % num_silos, num_silos, rng)


def power_law(
    ids: np.ndarray,
    num_silos: int,
    rng: np.random.Generator,
    *,
    alpha: float,
    same_order: bool = False,
) -> np.ndarray:
    """Skews each subject over the silos: each item goes to silo floor(num_silos * x), x of density
    a x^(a-1) on [0, 1].

    At alpha = 1 items fall evenly; at 16 nearly two thirds of a subject lie in one of 16 silos.

    Args:
      ids: subject of each example, integers `[n]`.
      num_silos: >= 1, and at most the number of subjects.
      rng: consumed.
      alpha: exponent of the law. > 0.
      same_order: True lets one silo be the richest for every subject. By default each subject ranks
        the silos at random, which alone reproduces the batch group sizes of the paper.

    Returns:
      int32 table `[num_silos, N]` of rows, padded with -1 at the end of each row. A steep law can
      leave a silo empty.

    Raises:
      ValueError: an argument is out of range.

    Source: Marathe et al. (2022), "Subject Granular Differential Privacy in Federated Learning",
      arXiv:2206.03617, section 5.
    """
    _validate.positive(alpha=alpha)
    ids = _check(ids, num_silos)
    order, _, sizes = _by_subject(ids, rng)
    x = rng.random(ids.size) ** (1.0 / alpha)
    bins = np.minimum((x * num_silos).astype(np.int64), num_silos - 1)
    if not same_order:
        ranking = rng.permuted(np.tile(np.arange(num_silos), (sizes.size, 1)), axis=1)
        bins = ranking[np.repeat(np.arange(sizes.size), sizes), bins]
    return _table(order, bins, num_silos, rng)


def counts(ids: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Items of each subject at each silo, int64 `[num_subjects, num_silos]`; num_subjects = largest
    id + 1. Private.
    """
    ids, indices = np.asarray(ids), np.asarray(indices)
    num_subjects, num_silos = int(ids.max()) + 1, indices.shape[0]
    silo, column = np.nonzero(indices >= 0)
    cell = ids[indices[silo, column]].astype(np.int64) * num_silos + silo
    return np.bincount(cell, minlength=num_subjects * num_silos).reshape(num_subjects, num_silos)


def largest_group_cdf(
    num_subjects: int, num_items: int, item_sampling_prob: float, size: int
) -> float:
    """Chance that nobody has more than `size` items in a Poisson sample, subjects owning
    `num_items` each.

    Raises:
      ValueError: a number is not an integer >= 1 (size: >= 0), or item_sampling_prob is not in (0,
        1].
    """
    _validate.positive_int(num_subjects=num_subjects, num_items=num_items)
    _validate.probability(item_sampling_prob=item_sampling_prob)
    _validate.non_negative_int(size=size)
    if size >= num_items:
        return 1.0
    if item_sampling_prob == 1:
        return 0.0
    logs = [
        math.lgamma(num_items + 1)
        - math.lgamma(j + 1)
        - math.lgamma(num_items - j + 1)
        + j * math.log(item_sampling_prob)
        + (num_items - j) * math.log1p(-item_sampling_prob)
        for j in range(size + 1)
    ]
    return min(1.0, math.fsum(map(math.exp, logs))) ** num_subjects


def check_cap(ids: np.ndarray, indices: np.ndarray, *, max_items: int) -> None:
    """Refuses silos in which a subject owns more items than the public cap that the accounting
    relies on.

    Raises:
      ValueError: max_items is not an integer >= 1.
      PrivacyPreconditionError: some subject is larger; the message names it (it is private: show it
        to the silo only).
    """
    _validate.positive_int(max_items=max_items)
    table = counts(ids, indices)
    subject, silo = np.unravel_index(table.argmax(), table.shape)
    if table[subject, silo] > max_items:
        raise PrivacyPreconditionError(
            f"Expected every subject to own at most max_items={max_items} items in a silo, got "
            f"{table[subject, silo]} of subject {subject} in silo {silo}: raise the public cap, or "
            "drop items with cap_items."
        )


def cap_items(
    ids: np.ndarray, indices: np.ndarray, *, max_items: int, rng: np.random.Generator
) -> tuple[np.ndarray, int]:
    """Drops random items of every subject that owns more than `max_items` in a silo.

    Guarantee: the result passes `check_cap`, and what is kept of one subject does not depend on any
      other subject.

    Returns:
      the smaller table int32 `[num_silos, N']`, and how many items were dropped (private).

    Raises:
      ValueError: max_items is not an integer >= 1.
    """
    _validate.positive_int(max_items=max_items)
    ids, indices = np.asarray(ids), np.asarray(indices)
    silo, column = np.nonzero(indices >= 0)
    rows = indices[silo, column]
    order = np.lexsort((rng.random(rows.size), ids[rows], silo))
    rows, silo = rows[order], silo[order]
    new_group = np.append(True, (np.diff(silo) != 0) | (np.diff(ids[rows]) != 0))
    start = np.flatnonzero(new_group)
    rank = np.arange(rows.size) - np.repeat(start, np.diff(np.append(start, rows.size)))
    keep = rank < max_items
    return _table(rows[keep], silo[keep], indices.shape[0], rng), int((~keep).sum())


def _check(ids: np.ndarray, num_silos: int) -> np.ndarray:
    _validate.positive_int(num_silos=num_silos)
    ids = subject_ids({SUBJECT: np.asarray(ids)})
    num_subjects = np.unique(ids).size
    if num_silos > num_subjects:
        raise ValueError(
            f"Expected num_silos <= {num_subjects} (the number of subjects), got "
            f"num_silos={num_silos}."
        )
    return ids


def _by_subject(
    ids: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows grouped by subject, in random order within one; where each group starts; how long it
    is.
    """
    order = np.lexsort((rng.random(ids.size), ids))
    _, start, sizes = np.unique(ids[order], return_index=True, return_counts=True)
    return order, start, sizes


def _table(
    rows: np.ndarray, silo: np.ndarray, num_silos: int, rng: np.random.Generator
) -> np.ndarray:
    sizes = np.bincount(silo, minlength=num_silos)
    order = np.lexsort((rng.random(rows.size), silo))
    table = np.full((num_silos, sizes.max()), -1, np.int32)
    table[np.arange(sizes.max()) < sizes[:, None]] = rows[order]
    return table
