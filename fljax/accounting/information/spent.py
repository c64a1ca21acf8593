"""What a run told about its records, client by client, and the error that is left to whoever
reconstructs them.
"""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from fljax.accounting.information import reconstruction
from fljax.accounting.information.results import CovarianceSource, DataModel, Leakage


class Spent(NamedTuple):
    """What a run told about each record, client by client: `[C]` numbers, alike for all records of
    a client.

    num_records; uses: of each record. nats, linear_nats: joint, and added up use by use; labels
    included.
    label_nats: of them. mse: lower bound on the expected squared error per coordinate of any
      reconstruction.
    psnr: the same in dB, an upper bound. certified, reason: of the nats. mse_certified, mse_reason:
      of the bound.
    """

    num_records: np.ndarray
    uses: np.ndarray
    nats: np.ndarray
    linear_nats: np.ndarray
    label_nats: float
    mse: np.ndarray
    psnr: np.ndarray
    certified: bool
    reason: str
    covariance_source: CovarianceSource
    mse_certified: bool
    mse_reason: str


def of_run(
    leakage: Leakage,
    linear_nats: Any,
    label_nats: float,
    count: np.ndarray,
    uses: np.ndarray,
    values: np.ndarray,
    value_range: tuple[float, float],
    data_model: DataModel = "unknown",
    entropy_nats: float | None = None,
    estimated_from: int | None = None,
) -> Spent:
    """The record of a run, with the bound on reconstruction that its nats imply for these
    eigenvalues, or entropy.
    """
    if entropy_nats is None:
        bound = reconstruction.distortion_rate(leakage, values, data_model=data_model)
        if bound.certified and estimated_from is not None:
            why = (
                f"the spectrum of {estimated_from} held-out records stands in for the law of "
                "records"
            )
            bound = dataclasses.replace(bound, certified=False, reason=why)
    else:
        bound = reconstruction.theorem1(leakage, entropy=entropy_nats)
    low, high = value_range

    def each(x: Any) -> np.ndarray:
        return np.broadcast_to(np.asarray(x, np.float64), count.shape)

    return Spent(
        count,
        uses,
        each(leakage.nats),
        each(linear_nats),
        label_nats,
        each(bound.mse),
        each(bound.psnr(high - low)),
        leakage.certified,
        leakage.reason,
        leakage.covariance_source,
        bound.certified,
        bound.reason,
    )
