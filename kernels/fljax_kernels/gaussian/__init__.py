"""Gaussian noise for many clients, and for a finished sum."""

from fljax_kernels.gaussian.api import add_gaussian_noise, gaussian_noise

__all__ = ["add_gaussian_noise", "gaussian_noise"]
