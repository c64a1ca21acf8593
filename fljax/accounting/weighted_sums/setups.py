"""Which of the six combinations of sampling and noise is private, and the Renyi curve of one round
of it.

Source: Zhang et al. (2024), arXiv:2405.04551, Table 1, Theorems 2 to 4.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from fljax import _validate
from fljax.accounting.weighted_sums import curves as weighted_curves
from fljax.errors import NoGuaranteeError, PrivacyPreconditionError

Sampling = Literal["subset", "none", "gaussian"]
Noise = Literal["isotropic", "water_filling"]
Formula = Literal["sound", "paper"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setup:
    """One round of secure summation.

    Attributes:
      num_clients: N, honest clients whose noise reaches the sum, the protected one included;
        subtract those that may drop out or collude.
      num_records: D, of each client.
      batch_size: B; with Gaussian weights any number > 0.
      l2_clip_norm: C, of one record's gradient.
      noise_stddev: of one client, in gradient units; the floor of water filling.
    """

    num_clients: int
    num_records: int
    batch_size: float
    l2_clip_norm: float
    noise_stddev: float

    def __post_init__(self) -> None:
        _validate.positive_int(num_clients=self.num_clients, num_records=self.num_records)
        _validate.positive(
            batch_size=self.batch_size,
            l2_clip_norm=self.l2_clip_norm,
            noise_stddev=self.noise_stddev,
        )

    @property
    def floor(self) -> float:
        """Least variance of the noise in the sum."""
        return self.num_clients * self.noise_stddev**2

    @property
    def _weighted(self) -> dict[str, float]:
        return {
            "floor": self.floor,
            "l2_clip_norm": self.l2_clip_norm,
            "num_records": float(self.num_records),
            "batch_size": float(self.batch_size),
        }


class Curve(NamedTuple):
    """Renyi curve of one round with what may be said of it.

    Attributes:
      divergence: orders `[K]` -> nats `[K]`.
      largest_order: from here on the divergence is infinite.
      scope: "uniform": for every data set. "instance": for one data set; no privacy claim, and
        itself private.
      reason: what proves it.
    """

    divergence: Callable[[Any], Any]
    largest_order: float
    scope: Literal["uniform", "instance"]
    reason: str


def curve(
    sampling: Sampling,
    noise: Noise,
    setup: Setup,
    *,
    formula: Formula = "sound",
    protocol: Literal["fedsgd", "fedavg"] = "fedsgd",
) -> Curve:
    """Renyi curve of one round of one cell of Table 1.

    Args:
      sampling: "subset" (B of D records without replacement), "none" (all records) or "gaussian"
        (Gaussian weights).
      noise: "isotropic" or "water_filling".
      setup: sizes and noise.
      formula: "paper" for `curves.isotropic_printed` and `curves.theorem_4`. For subsets the
        unsampled curve, to be amplified after conversion (`amplify`); the sound one needs no curve
        here: `epsilon` accounts sampling exactly.
      protocol: "fedavg" is refused: several local steps are not Gaussian, and no theorem holds.

    Raises:
      NoGuaranteeError: a cell without any guarantee.
    """
    check_cell(sampling, noise, formula, protocol)
    c, d = setup.l2_clip_norm, setup.num_records
    if sampling != "gaussian":
        # A replaced record moves a mean over B records by 2 C / B.
        divisor = float(setup.batch_size) if sampling == "subset" else float(d)
        fun = functools.partial(
            weighted_curves.unsampled, floor=setup.floor, l2_clip_norm=c, num_records=divisor
        )
        return Curve(fun, math.inf, "uniform", "Gaussian mechanism, exact")
    lifted = noise == "water_filling"
    weighted = setup._weighted
    top = weighted_curves.largest_order(**weighted, lifted=lifted)
    joint = functools.partial(weighted_curves.joint, **weighted, lifted=lifted)
    if lifted:
        if formula == "paper":
            printed = functools.partial(weighted_curves.theorem_4, **weighted)
            return Curve(
                printed,
                (top - 1) / math.sqrt(2),
                "uniform",
                "Theorem 4; its proof mended by the joint bound",
            )
        return Curve(joint, top, "uniform", "joint bound, Frobenius change of the lift")
    printed = functools.partial(weighted_curves.isotropic_printed, **weighted)
    if formula == "paper":
        return Curve(printed, top - 1, "uniform", "Table 1, Gaussian weights with isotropic noise")
    return Curve(
        lambda orders: np.minimum(joint(orders), printed(orders)),
        top,
        "uniform",
        "joint bound or Table 1",
    )


def check_cell(sampling: str, noise: str, formula: str, protocol: str) -> None:
    """Raises ValueError for an unknown name and NoGuaranteeError for a cell without any
    guarantee.
    """
    _validate.one_of(["subset", "none", "gaussian"], sampling=sampling)
    _validate.one_of(["isotropic", "water_filling"], noise=noise)
    _validate.one_of(["sound", "paper"], formula=formula)
    _validate.one_of(["fedsgd", "fedavg"], protocol=protocol)
    if protocol == "fedavg":
        raise NoGuaranteeError(
            'Expected protocol="fedsgd": several local steps are not Gaussian and no theorem '
            "covers them, "
            'got protocol="fedavg". Clip the whole update, add isotropic noise, use '
            "curves.clipped_update."
        )
    if noise == "water_filling" and sampling != "gaussian":
        raise NoGuaranteeError(
            'Expected sampling="gaussian" with noise="water_filling": in directions above the '
            f"floor nothing is added, got sampling={sampling!r}."
        )


def noiseless(
    *,
    least_eigenvalues: Any,
    l2_clip_norm: float,
    num_records: int,
    batch_size: float,
    scope: Literal["uniform", "instance"],
    formula: Formula = "sound",
    subspace_dimension: int | None = None,
    subspace_is_public: bool = False,
) -> Curve:
    """Renyi curve of Gaussian-weighted sums without added noise: Theorems 2 and 3.

    Args:
      least_eigenvalues: `[N]`, least eigenvalue of sum_j g_j g_j^T / D of each client; in a
        subspace, of the coordinates there. See `span.least_eigenvalue`.
      l2_clip_norm, num_records, batch_size: C, D, B.
      scope: "uniform" if these are lower bounds for EVERY data set, else "instance".
      formula: "paper" for the printed bound alone; "sound" takes the smaller of it and the joint
        bound. Both are sound.
      subspace_dimension: K* of Theorem 3; None: the gradients span everything.
      subspace_is_public: the subspace does not depend on private data and holds the gradient of
        every admissible record. A subspace found from the data does not qualify.

    Raises:
      NoGuaranteeError: a subspace that is not public.
      PrivacyPreconditionError: an eigenvalue that is not positive, or too small a sum: C^2 / D >=
        L.
    """
    _validate.positive(l2_clip_norm=l2_clip_norm, batch_size=batch_size)
    _validate.positive_int(num_records=num_records)
    _validate.one_of(["uniform", "instance"], scope=scope)
    _validate.one_of(["sound", "paper"], formula=formula)
    values = np.atleast_1d(np.asarray(least_eigenvalues, np.float64))
    if subspace_dimension is not None:
        _validate.positive_int(subspace_dimension=subspace_dimension)
        if not subspace_is_public:
            raise NoGuaranteeError(
                "Expected subspace_is_public=True for Theorem 3: a subspace found from private "
                "gradients tells of them, got subspace_is_public=False."
            )
        if subspace_dimension > num_records:
            raise PrivacyPreconditionError(
                f"Expected subspace_dimension <= num_records={num_records}, else no client's "
                f"gradients span it, got subspace_dimension={subspace_dimension}."
            )
    if not np.all(values > 0):
        raise PrivacyPreconditionError(
            "Expected least_eigenvalues > 0: every client's gradients must span all directions, "
            f"got {values.min()!r}."
        )
    total = float(values.sum())
    _validate.positive(least_eigenvalues=total)
    if not l2_clip_norm**2 / num_records < total:
        raise PrivacyPreconditionError(
            "Expected sum of least_eigenvalues > l2_clip_norm^2 / num_records = "
            f"{l2_clip_norm**2 / num_records:.6g}, "
            f"got {total:.6g}: the divergence is infinite at every order."
        )
    sizes = {
        "l2_clip_norm": l2_clip_norm,
        "num_records": float(num_records),
        "batch_size": float(batch_size),
    }
    printed = functools.partial(weighted_curves.theorem_2, least_eigenvalue=total, **sizes)
    top = num_records * total / l2_clip_norm**2
    if formula == "paper":
        return Curve(printed, top, scope, "Theorem 2")
    joint = functools.partial(
        weighted_curves.joint, floor=total / batch_size, **sizes, instance=scope == "instance"
    )
    top = max(top, top + (scope == "uniform"))
    return Curve(
        lambda orders: np.minimum(joint(orders), printed(orders)),
        top,
        scope,
        "joint bound or Theorem 2",
    )
