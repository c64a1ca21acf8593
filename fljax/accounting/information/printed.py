"""Printed formulas that are no bounds, for the tests that show it and for reproducing figures.
Nothing is certified.

Source: Tan et al. (2024), arXiv:2403.01268, Eq. 20.
"""

from typing import Any

import numpy as np

from fljax.accounting.information.channels import checked_covariance
from fljax.accounting.information.results import positive_array


def printed_eq20(covariance: Any, weights: Any, noise_var: Any) -> np.ndarray:
    """Eq. 20 as printed: ln det(covariance + v diag(weights)) / (2 sum ln(v weights)), a quotient
    for a difference.

    It changes sign, has a pole, and tends to 1/2 for much noise; where it equals 1 on the 3 x 3
    example of the tests, the channel has 1.19 nats. Use `personalized`.

    Args:
      covariance: `[d, d]`. weights: `[d]`, > 0. noise_var: `[...]`, v > 0.
    """
    cov = checked_covariance(covariance)
    positive_array(weights=weights, noise_var=noise_var)
    v = np.asarray(noise_var, np.float64)[..., None]
    scaled = v * np.asarray(weights, np.float64)
    return np.asarray(
        np.linalg.slogdet(cov + scaled[..., None] * np.eye(cov.shape[0]))[1]
        / (2 * np.log(scaled).sum(-1))
    )
