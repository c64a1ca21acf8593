"""Clips rows to an L2 norm and sums them."""

from fljax_kernels.clipped_sum.api import IMPLEMENTATIONS, clip_and_sum

__all__ = ["IMPLEMENTATIONS", "clip_and_sum"]
