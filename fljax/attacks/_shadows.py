"""What attacks with shadow models are given: arrays whose shapes fit."""

from typing import Any

import numpy as np


def arrays(
    target: Any, shadows: Any, included: Any, *, several: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(float64 `[N]`, float64 `[S, N]`, bool `[S, N]`): of N examples what the target says, what S
    shadow models say, and which of them had each. several: A numbers of each example, `[N, A]` and
    `[S, N, A]`.

    Raises:
      ValueError: shapes do not fit.
    """
    values, own = np.asarray(target, np.float64), np.asarray(shadows, np.float64)
    inside = np.asarray(included, bool)
    more = ", A" if several else ""
    fits = values.ndim == 1 + several and own.shape[1:] == values.shape
    if not fits or inside.shape != own.shape[:2]:
        raise ValueError(
            f"Expected target [N{more}], shadows [S, N{more}] and included [S, N], got shapes "
            f"{values.shape}, {own.shape}, {inside.shape}."
        )
    return values, own, inside


def at_least_two(where: np.ndarray, side: str) -> np.ndarray:
    """How many models `where`, bool `[S, N]`, has for each example, `[N]`; side: what these are to
    it, "in" or "out of".

    Raises:
      ValueError: of an example fewer than 2, which have no variance.
    """
    count = np.asarray(where.sum(0))
    if not (count >= 2).all():
        raise ValueError(
            f"Expected each example to be {side} at least 2 shadow models, got one with "
            f"{count.min()}."
        )
    return count
