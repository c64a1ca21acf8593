"""Without added noise a replaced record must stay in the span of all gradients: the check, and the
attack.

These need raw gradients, which a server must never see: for simulation, tests and attacks only.

Source: Zhang et al. (2024), arXiv:2405.04551, Theorem 1 and Figure 3.
"""

from typing import Any, Literal, NamedTuple

import numpy as np

from fljax import _validate

IN_SPAN = (
    1e-6  # relative to the vector; cancellation in the Gram form limits residuals to a few 1e-8
)


class SpanVerdict(NamedTuple):
    """Whether Theorem 1's necessary condition holds for one replacement.

    Attributes:
      new_residual: length of the new record's gradient outside the span of the data with the old
        one.
      old_residual: the same with the roles exchanged; neighbouring is symmetric.
      holds: both vanish. If not, no (epsilon, delta) with delta < `least_delta` holds.
      generic_failure: fewer gradients than parameters, so that records in general position fail.
    """

    new_residual: float
    old_residual: float
    holds: bool
    generic_failure: bool


def _finite(**arrays: np.ndarray) -> None:
    for name, values in arrays.items():
        if not np.all(np.isfinite(values)):
            raise ValueError(
                f"Expected {name} to be finite, got {name}={values[~np.isfinite(values)][0]!r}."
            )


def residual(rows: Any, vector: Any, *, rtol: float = 1e-10) -> float:
    """Length of what is left of `vector` `[K]` after projection on the span of `rows` `[M, K]`, in
    float64.

    Args:
      rtol: eigenvalues of the Gram matrix below rtol times the largest count as zero.
    """
    rows, vector = np.asarray(rows, np.float64), np.asarray(vector, np.float64)
    _finite(rows=rows, vector=vector)
    if rows.ndim != 2 or vector.shape != rows.shape[1:]:
        raise ValueError(
            f"Expected rows [M, K] and vector [K], got shapes {rows.shape} and {vector.shape}."
        )
    _validate.positive(rtol=rtol)
    values, vectors = np.linalg.eigh(rows @ rows.T)
    kept = values > rtol * max(values[-1], 0.0)
    explained = (vectors[:, kept].T @ (rows @ vector)) ** 2 / values[kept]
    return float(np.sqrt(max(vector @ vector - explained.sum(), 0.0)))


def condition(
    gradients: Any,
    client: int,
    record: int,
    replacement: Any,
    *,
    scope: Literal["all", "others"] = "all",
) -> SpanVerdict:
    """Theorem 1's condition for replacing one record of one client.

    Args:
      gradients: `[N, D, K]`, clipped.
      client, record: which is replaced.
      replacement: `[K]`, gradient of the new record.
      scope: "all": the span of all clients' gradients, what is necessary. "others": without the
        client's own; the paper also states this stronger form, which is not necessary.
    """
    gradients, new = np.asarray(gradients, np.float64), np.asarray(replacement, np.float64)
    _validate.one_of(["all", "others"], scope=scope)
    _finite(gradients=gradients, replacement=new)
    if gradients.ndim != 3 or new.shape != gradients.shape[2:]:
        raise ValueError(
            f"Expected gradients [N, D, K] and replacement [K], got shapes {gradients.shape} and "
            f"{new.shape}."
        )
    clients, records, size = gradients.shape
    old = gradients[client, record]
    others = np.delete(gradients, client, 0).reshape(-1, size)
    with_new = gradients.copy()
    with_new[client, record] = new
    before = others if scope == "others" else gradients.reshape(-1, size)
    after = others if scope == "others" else with_new.reshape(-1, size)
    if not len(before):
        before = after = np.zeros((1, size))
    left, back = residual(before, new), residual(after, old)
    holds = left <= IN_SPAN * float(np.linalg.norm(new)) and back <= IN_SPAN * float(
        np.linalg.norm(old)
    )
    return SpanVerdict(left, back, holds, clients * records < size)


def least_delta(
    sampling: Literal["subset", "gaussian"], batch_size: float, num_records: int
) -> float:
    """Chance that a record counts: B / D for subsets, 1 for Gaussian weights.

    Where the condition fails, (epsilon, delta)-DP needs at least this delta. A subset without noise
    always is (0, B / D)-DP, by total variation, and generic gradients allow nothing less.
    """
    _validate.one_of(["subset", "gaussian"], sampling=sampling)
    _validate.positive(batch_size=batch_size)
    _validate.positive_int(num_records=num_records)
    return 1.0 if sampling == "gaussian" else min(batch_size / num_records, 1.0)


def distinguish(known: Any, aggregate: Any, *, threshold: float) -> tuple[float, bool]:
    """The span attack: (length of the observed sum outside the span of the known gradients, is it
    above `threshold`).

    Args:
      known: `[M, K]`, gradients of all records but the one in question.
      aggregate: `[K]`, the sum the server saw.
      threshold: in gradient units; without noise anything above rounding.
    """
    _validate.non_negative(threshold=threshold)
    outside = residual(known, aggregate)
    return outside, outside > threshold


def least_eigenvalue(gradients: Any, basis: Any = None) -> float:
    """Least eigenvalue of sum_j g_j g_j^T / D of one client, for `rounds.noiseless`; 0 where
    rounding hides it.

    Args:
      gradients: `[D, K]`, clipped.
      basis: `[K, K*]` with orthonormal columns, a public subspace; None: all directions.
    """
    g = np.asarray(gradients, np.float64)
    _finite(gradients=g)
    if basis is not None:
        basis = np.asarray(basis, np.float64)
        if basis.ndim != 2 or not np.allclose(basis.T @ basis, np.eye(basis.shape[1]), atol=1e-8):
            raise ValueError(
                f"Expected basis with orthonormal columns, got basis of shape {basis.shape}."
            )
        g = g @ basis
    records, size = g.shape
    if size > records:
        return 0.0
    values = np.linalg.eigvalsh(g.T @ g / records)
    return float(values[0]) if values[0] > np.finfo(np.float64).eps * size * values[-1] else 0.0
