"""Array kernels for private federated learning: pure, jit/vmap-safe, jax and numpy only."""

from fljax_kernels import chacha20, correlated, discrete, spectral
from fljax_kernels._version import __version__ as __version__
from fljax_kernels.clipped_sum.api import clip_and_sum
from fljax_kernels.gaussian.api import add_gaussian_noise, gaussian_noise
from fljax_kernels.loops.api import loop_friendly
from fljax_kernels.pairwise.api import client_pair_noise, joint_pair_noise, pair_keys, pair_noise
from fljax_kernels.per_example.api import PerExampleGrads, per_example_grads
from fljax_kernels.sampling.api import (
    Sample,
    allocated_sample,
    fixed_size_sample,
    poisson_capacity,
    poisson_sample,
)

__all__ = [
    "PerExampleGrads",
    "Sample",
    "add_gaussian_noise",
    "allocated_sample",
    "chacha20",
    "client_pair_noise",
    "clip_and_sum",
    "correlated",
    "discrete",
    "fixed_size_sample",
    "gaussian_noise",
    "joint_pair_noise",
    "loop_friendly",
    "pair_keys",
    "pair_noise",
    "per_example_grads",
    "poisson_capacity",
    "poisson_sample",
    "spectral",
]
