"""What compression and large batches take from a channel's nats: analyses, at noise that is there
already.

Source: Tan et al. (2024), arXiv:2403.01268, sections 5.1 and 5.2, Eq. 24 and Eq. 52. A mask that
looks at the data takes nothing off that could be proved; see `compressed`.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from fljax import _validate
from fljax.accounting.information import _kernels
from fljax.accounting.information.channels import checked_covariance, spectrum
from fljax.accounting.information.results import CovarianceSource, Leakage, plain, proof


class Compressed(NamedTuple):
    """left: Leakage of what is sent; dropped: nats by which it is below the whole (inf or NaN
    without noise).

    dropped is 0 for a mask that looked at the data: nothing is proved to be saved.
    """

    left: Leakage
    dropped: float


def compressed(
    covariance: Any,
    *,
    noise_var: float,
    keep_mask: Any,
    mask_from_data: bool,
    covariance_source: CovarianceSource,
    estimated_from: int | None = None,
) -> Compressed:
    """Nats that are left when only some coordinates are sent with their noise.

    For a mask fixed beforehand: the capacity of what is kept. For one that looks at the data, the
    capacity of *all* coordinates and ln binomial(d, k) for the choice, since all noisy coordinates
    and the mask tell no less than what is sent. To take the capacity of the kept ones and add the
    choice (the paper's App. E, with the logarithm) is no
    bound: selection changes the law of what is kept. The largest of 1000 standard normals, sent
    behind noise of variance 10, tells 7.286 nats with its place; that formula says 6.955.

    Args:
      covariance: `[d, d]`, of what is sent. noise_var: >= 0; without noise infinite nats are left,
        however few coordinates go out.
      keep_mask: `[d]`, bool.
      mask_from_data: the mask was chosen by looking at the data (the k largest entries), with k
        fixed beforehand.
      covariance_source, estimated_from: as in `natural`.
    """
    cov = checked_covariance(covariance)
    _validate.non_negative(noise_var=noise_var)
    keep = np.asarray(keep_mask, bool)
    if keep.shape != cov.shape[:1]:
        raise ValueError(f"Expected keep_mask of shape {cov.shape[:1]}, got shape {keep.shape}.")
    dropped, chosen, why = 0.0, 0.0, "capacity of the coordinates that are sent"
    counted = keep
    if mask_from_data:
        chosen, why = (
            selection_nats(cov.shape[0], int(keep.sum())),
            "capacity of all coordinates, and their choice",
        )
        counted = np.ones_like(keep) if keep.any() else keep  # nothing sent is nothing told
    else:
        dropped = float(_kernels.drop(cov, noise_var, keep))
    kept = np.linalg.eigvalsh(cov[np.ix_(counted, counted)]) if counted.any() else np.zeros(1)
    with np.errstate(divide="ignore"):
        left = float(
            _kernels.capacity(
                np.where(kept <= 1e-15 * cov.max(), 0, kept), np.log(np.float64(noise_var))
            )
        )
    leakage = Leakage(
        nats=left + chosen,
        dimension=cov.shape[0],
        mode="one_use",
        **proof(covariance_source, why, estimated_from),
    )
    return Compressed(leakage, dropped)


def selection_nats(num_coordinates: int, num_kept: int) -> float:
    """Ln binomial(num_coordinates, num_kept): the most that the choice of coordinates can tell."""
    _validate.positive_int(num_coordinates=num_coordinates)
    _validate.non_negative_int(num_kept=num_kept)
    if num_kept > num_coordinates:
        raise ValueError(f"Expected num_kept <= {num_coordinates}, got num_kept={num_kept}.")
    rest = num_coordinates - num_kept
    return math.lgamma(num_coordinates + 1) - math.lgamma(num_kept + 1) - math.lgamma(rest + 1)


def large_batch(
    values: Any,
    *,
    noise_var: float,
    batch_size: Any,
    assume_iid: bool,
    covariance_source: CovarianceSource,
    estimated_from: int | None = None,
) -> Leakage:
    """Nats that a mean over a batch with constant noise tells about that mean: (1/2) sum ln(1 +
    values / (B v)).

    Args:
      values: `[d]`, eigenvalues of one gradient's covariance. noise_var: v, on the *mean*. > 0.
      batch_size: B, `[...]`. assume_iid: records are independent; False takes no credit for B.
      covariance_source, estimated_from: as in `natural`. A covariance of gradients estimated from
        them is "private".
    """
    values = spectrum(values)
    _validate.positive(noise_var=noise_var)
    batch_size = np.asarray(batch_size, np.float64)
    if not np.all(batch_size >= 1):
        raise ValueError(f"Expected batch_size >= 1, got batch_size={batch_size!r}.")
    log_noise = np.log(noise_var) + (
        np.log(batch_size) if assume_iid else np.zeros_like(batch_size)
    )
    return Leakage(
        nats=plain(_kernels.capacity(values, log_noise)),
        dimension=values.shape[-1],
        target="batch_mean",
        mode="one_use",
        **proof(covariance_source, "capacity of a mean with constant noise", estimated_from),
    )
