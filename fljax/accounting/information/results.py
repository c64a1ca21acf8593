"""The records that answers come in: each says whether it is proved, why, and where its covariance
came from.
"""

import dataclasses
import math
from typing import Any, Literal, get_args

import numpy as np

from fljax import _validate

CovarianceSource = Literal["public", "declared", "private"]
DataModel = Literal["gaussian", "unknown"]
Mode = Literal["joint", "linear", "once", "paper_linear", "one_use"]
Formula = Literal["sound", "paper"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """What every answer carries.

    Attributes:
      certified: True if the number is proved under the conditions that the function states.
      reason: how it was proved, or why not.
      covariance_source: "public" or "declared" knowledge about the data, or "private": estimated
        from the records that it is to protect, which no proof covers. A "public" covariance that
        was estimated certifies nothing either.
      formula: "sound", or "paper" for a printed form that was found wrong or too weak.
    """

    certified: bool
    reason: str
    covariance_source: CovarianceSource
    formula: Formula = "sound"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Leakage(Claim):
    """Upper bound in nats on what the transcript tells about a target.

    Attributes:
      nats: a number, or `[...]` one for each record or client. inf where there was no noise.
      dimension: coordinates of the target (of a record, of a whole batch).
      target: "record", "batch" or "batch_mean".
      mode: how several uses were added up.
    """

    nats: Any
    dimension: int
    mode: Mode
    target: str = "record"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ErrorBound(Claim):
    """Lower bound on the expected squared error per coordinate of any reconstruction of the target.

    Attributes:
      mse: a number or `[...]`, as the nats of the leakage; in the unit of the data, squared.
      leakage: what it was computed from.
    """

    mse: Any
    leakage: Leakage

    def psnr(self, data_range: float) -> Any:
        """The same bound as a ceiling in dB on the PSNR of the *expected* squared error; see
        `psnr_of_mse`.
        """
        return psnr_of_mse(self.mse, data_range)


def psnr_of_mse(mse: Any, data_range: float) -> Any:
    """10 log10(data_range^2 / mse) in dB; inf at mse = 0.

    A lower bound on an expected squared error is an upper bound on this number. It is not one on
    the mean of PSNRs of single images: the logarithm of a mean is not the mean of logarithms, and
    that mean may lie above.

    Args:
      mse: `[...]`, >= 0. data_range: greatest minus least value that a coordinate may take. > 0.
    """
    _validate.positive(data_range=data_range)
    mse = np.asarray(mse, np.float64)
    if not np.all(mse >= 0):
        raise ValueError(f"Expected mse >= 0, got mse={mse!r}.")
    with np.errstate(divide="ignore"):
        return plain(20 * math.log10(data_range) - 10 * np.log10(mse))


def check_source(source: CovarianceSource) -> None:
    """Raises ValueError unless it is one of the three."""
    _validate.one_of(get_args(CovarianceSource), covariance_source=source)


def proof(source: CovarianceSource, why: str, estimated_from: int | None = None) -> dict[str, Any]:
    """The fields of a claim that holds if the covariance, or an upper bound on it, is known without
    the data.

    `estimated_from`: how many public records the covariance was estimated from, None for one that
    is known. An estimate is neither the clients' own covariance nor above it, so it certifies
    nothing unless it is "declared" to be one.
    """
    check_source(source)
    if estimated_from is not None:
        _validate.positive_int(estimated_from=estimated_from)
    if source == "private":
        return {
            "certified": False,
            "reason": "the covariance was estimated from the records it protects",
            "covariance_source": source,
        }
    if source == "public" and estimated_from is not None:
        return {
            "certified": False,
            "reason": f"the covariance of {estimated_from} public records stands in for the "
            "clients' "
            "own law: declare "
            "it (covariance_source='declared') to take that on yourself",
            "covariance_source": source,
        }
    return {"certified": True, "reason": why, "covariance_source": source}


def inherit(claim: Claim, why: str, *, holds: bool = True) -> dict[str, Any]:
    """The fields of a claim that rests on another one; `holds` False: it fails for the reason
    `why`.
    """
    return {
        "certified": claim.certified and holds,
        "reason": why if claim.certified or not holds else claim.reason,
        "covariance_source": claim.covariance_source,
        "formula": claim.formula,
    }


def plain(value: Any) -> Any:
    """A float for a scalar, else a NumPy array in float64."""
    value = np.asarray(value, np.float64)
    return float(value) if value.ndim == 0 else value


def positive_array(**values: Any) -> None:
    """Raises ValueError unless every entry is > 0 and finite."""
    for name, value in values.items():
        if not np.all((np.asarray(value) > 0) & np.isfinite(value)):
            raise ValueError(f"Expected {name} > 0 and finite, got {name}={value!r}.")
