"""Secure sums of records with Gaussian weights: GD-DP, SGD-DP and GSGD-DP."""

from typing import TYPE_CHECKING

from fljax import _rooms

if TYPE_CHECKING:
    from fljax.schemes.weighted import gd_dp as gd_dp
    from fljax.schemes.weighted import gsgd_dp as gsgd_dp
    from fljax.schemes.weighted import round as round
    from fljax.schemes.weighted import sgd_dp as sgd_dp
else:
    __getattr__, __dir__ = _rooms.doors(__name__)
