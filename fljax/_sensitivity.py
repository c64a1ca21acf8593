"""Grey-box replay: is a function's declared sensitivity true on these neighbours?"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax import _validate, errors

_RELATIONS = ("ADD_OR_REMOVE_ONE", "REPLACE_ONE", "REPLACE_SPECIAL")


class SensitivityReport(NamedTuple):
    """declared, measured: L2 distances; worst_unit: the unit that moved the output most; holds: was
    the bound kept.

    distances: `[U]`, the L2 distance that each unit made; units: `[U]`, their ids.
    """

    declared: float
    measured: float
    worst_unit: int
    holds: bool
    units: np.ndarray
    distances: np.ndarray


def check_sensitivity(
    fun: Callable[[Any, jax.Array], Any],
    data: Any,
    *,
    sensitivity: float,
    neighboring_relation: Any = "ADD_OR_REMOVE_ONE",
    unit_ids: Any = None,
    replacements: Any = None,
    rtol: float = 1e-4,
) -> SensitivityReport:
    """Runs `fun` on `data` and on each of its neighbours, with the same keys, and compares
    distances with the bound.

    A replay can refute a sensitivity, never prove it: it sees these data and their neighbours only.
    Give it data on which the mechanism is at its worst: rows far above the clipping norm, units of
    very different size, padding. Noise cancels if `fun` holds its keys (closes over them), so a
    whole private update can be replayed.

    To remove a unit, its rows are made absent in the mask AND filled with NaN (integers: with their
    smallest value): what is absent must not matter, whatever it holds.

    Args:
      fun: (data, mask) -> pytree of arrays, jittable and deterministic; mask is bool `[N]`, True
        where a row counts. It must return what is released and nothing else.
      data: pytree of `[N, ...]`: rows, clients, or whatever carries the units.
      sensitivity: the declared L2 sensitivity under this relation. >= 0.
      neighboring_relation: ADD_OR_REMOVE_ONE or REPLACE_SPECIAL (remove one unit), or REPLACE_ONE;
        an enumeration member or its name.
      unit_ids: int `[N]`, the privacy unit of each row; negative: no unit, absent throughout
        (padding). None: each row is its own unit.
      replacements: for REPLACE_ONE, pytree like `data`: the rows that take the place of a unit's
        rows.
      rtol: relative slack for rounding. On top of it, 8 units in the last place of the output's
        norm are granted.

    Returns:
      `SensitivityReport`.

    Raises:
      SensitivityError: a neighbour is further away than declared, or its output is not finite;
        `.report` has it all.
      ValueError: an argument is out of range, or replacements are missing.

    Source: the idea of replaying with recorded randomness, Re:cord-play, arXiv:2602.17454.
    """
    _validate.non_negative(sensitivity=sensitivity, rtol=rtol)
    relation = getattr(neighboring_relation, "name", neighboring_relation)
    if relation not in _RELATIONS:
        raise ValueError(
            f"Expected neighboring_relation to be one of {list(_RELATIONS)}, got {relation!r}."
        )
    if (relation == "REPLACE_ONE") != (replacements is not None):
        raise ValueError(f"Expected replacements with REPLACE_ONE and only there, got {relation}.")
    leaves = jax.tree.leaves(data)
    if not leaves or len({np.shape(leaf)[:1] for leaf in leaves}) != 1 or np.ndim(leaves[0]) == 0:
        raise ValueError("Expected data with one leading axis N on every leaf.")
    num_rows = np.shape(leaves[0])[0]
    ids = np.arange(num_rows) if unit_ids is None else np.asarray(unit_ids)
    if ids.shape != (num_rows,) or not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(
            f"Expected unit_ids to be int of shape ({num_rows},), got {ids.dtype} of shape "
            f"{ids.shape}."
        )
    units = np.unique(ids[ids >= 0])
    if len(units) == 0:
        raise ValueError("Expected at least one unit, got none.")
    other = jax.tree.map(_poison, data) if replacements is None else replacements
    data, other = jax.tree.map(jnp.asarray, data), jax.tree.map(jnp.asarray, other)
    present = jnp.asarray(ids >= 0)

    @jax.jit
    def neighbour(moved: jax.Array) -> Any:
        swap = lambda x, y: jnp.where(moved.reshape((-1,) + (1,) * (x.ndim - 1)), y, x)
        return fun(
            jax.tree.map(swap, data, other),
            present if relation == "REPLACE_ONE" else present & ~moved,
        )

    original = _flat(neighbour(jnp.zeros(num_rows, bool)))
    distances = np.array(
        [np.linalg.norm(_flat(neighbour(jnp.asarray(ids == unit))) - original) for unit in units]
    )
    # A distance which is not finite is the worst of all.
    worst = int(np.argmax(np.where(np.isfinite(distances), distances, np.inf)))
    measured = float(distances[worst])
    rounding = 8 * float(np.finfo(np.float32).eps) * float(np.linalg.norm(original))
    holds = math.isfinite(measured) and measured <= sensitivity * (1 + rtol) + rounding
    report = SensitivityReport(
        float(sensitivity), measured, int(units[worst]), holds, units, distances
    )
    if not holds:
        raise errors.SensitivityError(
            f"Expected one unit to move the output by at most sensitivity={sensitivity:.6g} under "
            f"{relation}, but unit {report.worst_unit} moved it by {measured:.6g}.",
            report,
        )
    return report


def _poison(x: Any) -> jax.Array:
    x = jnp.asarray(x)
    if jnp.issubdtype(x.dtype, jnp.inexact):
        return jnp.full_like(x, jnp.nan)
    if jnp.issubdtype(x.dtype, jnp.integer):
        return jnp.full_like(x, jnp.iinfo(x.dtype).min)
    return jnp.zeros_like(x) if x.dtype == jnp.bool_ else x


def _flat(tree: Any) -> np.ndarray:
    """float64 `[D]`."""
    leaves = [
        np.asarray(jnp.asarray(x).astype(jnp.float32) if x.dtype.itemsize < 4 else x)
        for x in jax.tree.leaves(tree)
    ]
    return (
        np.concatenate([leaf.astype(np.float64).ravel() for leaf in leaves])
        if leaves
        else np.zeros(0)
    )
