"""Integer noise of exact laws, and what brings vectors to the integers that it is added to."""

from fljax_kernels.discrete.api import (
    discrete_gaussian_noise,
    from_ring,
    grid_round,
    grid_sum,
    rotate,
    rotate_back,
    rounded_gaussian_noise,
    skellam_noise,
    to_ring,
)

__all__ = [
    "discrete_gaussian_noise",
    "from_ring",
    "grid_round",
    "grid_sum",
    "rotate",
    "rotate_back",
    "rounded_gaussian_noise",
    "skellam_noise",
    "to_ring",
]
