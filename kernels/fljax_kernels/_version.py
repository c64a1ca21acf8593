"""The version of fljax and of its kernels. It stands nowhere else."""

__version__ = "0.1.0"
