"""fljax: federated learning under differential privacy as one XLA program."""

from fljax._sensitivity import check_sensitivity
from fljax.local.item import clipped_grad
from fljax.upload.gaussian import gaussian_privatizer

__all__ = ["check_sensitivity", "clipped_grad", "gaussian_privatizer"]
__version__ = "0.1.0"
