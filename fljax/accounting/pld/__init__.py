"""Privacy-loss distributions: certified upper and lower bounds on epsilon and delta, in float64 on
JAX.
"""

from fljax.accounting.pld.api import (
    delta,
    epsilon,
    estimate,
    interval,
    poisson_gaussian_delta,
    poisson_gaussian_epsilon,
    poisson_gaussian_interval,
)
from fljax.accounting.pld.closed import WideIntervalWarning

__all__ = [
    "WideIntervalWarning",
    "delta",
    "epsilon",
    "estimate",
    "interval",
    "poisson_gaussian_delta",
    "poisson_gaussian_epsilon",
    "poisson_gaussian_interval",
]
