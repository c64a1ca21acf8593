"""What an update says of its data as a whole: a property that all of them share, the mix of labels.

The attacker computes updates of its own from public data, of which it knows the answer, and fits a
linear reading of updates to them; what it asks of is the update of a client. Where secure sums hide
single updates it asks of the sum, with sums of its own. A promise to examples, or to clients, says
nothing of a property that does not hang on one of them: noise hides it only as far as it hides all
of the update.

Source: Melis et al. (2019), "Exploiting Unintended Feature Leakage in Collaborative Learning",
  arXiv:1805.04049, section 4.3 (passive property inference); a ridge regression in place of a
  forest.
"""

from typing import Any

import jax
import numpy as np

from fljax.types import PyTree

_PENALTIES = np.geomspace(1e-6, 1e3, 28)  # of the regression, in units of the mean square length


def scores(known: PyTree, has: Any, asked: PyTree) -> np.ndarray:
    """How much each asked update looks like one of data with the property, `[T]`; high ones do.

    Args:
      known: the attacker's updates, leaves `[S, ...]`. has: bool `[S]`, whether the data behind
        each had it.
      asked: updates, leaves `[T, ...]`.

    Raises:
      ValueError: as `regress`; or all or none of `has`.
    """
    answers = np.asarray(has, bool)
    if answers.ndim != 1 or answers.all() or not answers.any():
        raise ValueError(
            f"Expected has to be bool [S] with both answers, got has of shape {answers.shape} with "
            f"{int(answers.sum())} that are true."
        )
    return regress(known, np.where(answers, 1.0, -1.0)[:, None], asked)[:, 0]


def label_shares(known: PyTree, shares: Any, asked: PyTree) -> np.ndarray:
    """The mix of labels behind each asked update, `[T, num_classes]`, each >= 0 and of sum 1.

    Args:
      known: as for `scores`. shares: `[S, num_classes]`, of the labels behind each.
      asked: as for `scores`.

    Raises:
      ValueError: as `regress`; or shares that are no distributions.
    """
    mixes = np.asarray(shares, np.float64)
    if mixes.ndim != 2 or (mixes < 0).any() or not np.allclose(mixes.sum(1), 1.0, atol=1e-5):
        raise ValueError(
            "Expected shares [S, num_classes] >= 0 with rows of sum 1, got shares of shape "
            f"{mixes.shape}."
        )
    found = regress(known, mixes, asked)
    # The nearest point of the simplex.
    falling = np.sort(found, 1)[:, ::-1]
    over = (np.cumsum(falling, 1) - 1) / np.arange(1, found.shape[1] + 1)
    last = found.shape[1] - 1 - np.argmax((falling > over)[:, ::-1], 1)
    return np.maximum(found - np.take_along_axis(over, last[:, None], 1), 0)


def regress(known: PyTree, answers: Any, asked: PyTree) -> np.ndarray:
    """Answers `[T, K]` to the asked updates, by the ridge regression of `answers` `[S, K]` on the
    known ones whose penalty is best where each of them is left out.

    Raises:
      ValueError: trees or leading axes do not fit, fewer than 4 known updates, or a number that is
        not finite.
    """
    values = np.asarray(answers, np.float64)
    rows, others = _rows(known=known), _rows(asked=asked)
    if len(rows) < 4 or values.ndim != 2 or len(values) != len(rows):
        raise ValueError(
            "Expected at least 4 known updates and one answer to each, got "
            f"{len(rows)} and answers of shape {values.shape}."
        )
    if rows.shape[1] != others.shape[1]:
        raise ValueError(
            f"Expected asked updates like the known ones, of {rows.shape[1]} numbers each, got "
            f"{others.shape[1]}."
        )
    if not np.isfinite(values).all():
        raise ValueError("Expected answers of finite numbers, got some that are not.")
    mean, level = rows.mean(0), values.mean(0)
    rows, others, values = rows - mean, others - mean, values - level
    inner = rows @ rows.T
    lengths, directions = np.linalg.eigh(inner)
    lengths = np.maximum(lengths, 0.0)
    unit = max(float(lengths.mean()), 1e-300)
    turned = directions.T @ values

    def left_out(penalty: float) -> float:
        """Squared error over the known, each without itself; the mean, which is fitted too, takes
        1 / S of each.
        """
        kept = lengths / (lengths + penalty * unit)
        gap = values - directions @ (kept[:, None] * turned)
        own = (np.square(directions) * kept).sum(1) + 1 / len(rows)
        return float(np.square(gap / np.maximum(1 - own, 1e-12)[:, None]).sum())

    penalty = min(_PENALTIES, key=left_out) * unit
    weights = directions @ (turned / (lengths + penalty)[:, None])
    return level + (others @ rows.T) @ weights


def _rows(**given: PyTree) -> np.ndarray:
    """`[N, size]`, float64, of the leaves of an argument."""
    ((name, tree),) = given.items()
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(tree)]
    if not leaves or len({leaf.shape[:1] for leaf in leaves}) != 1 or not leaves[0].ndim:
        raise ValueError(
            f"Expected {name} with one leading axis, got {name} with leaves of shapes "
            f"{[leaf.shape for leaf in leaves]}."
        )
    found = np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], 1)
    if not np.isfinite(found).all():
        raise ValueError(f"Expected {name} of finite numbers, got some that are not.")
    return found
