"""Who takes part: samples drawn on the device, in arrays of static shape."""

from fljax_kernels.sampling.api import (
    Sample,
    allocated_sample,
    fixed_size_sample,
    poisson_capacity,
    poisson_sample,
)

__all__ = ["Sample", "allocated_sample", "fixed_size_sample", "poisson_capacity", "poisson_sample"]
