"""Array kernels for private federated learning: pure, jit/vmap-safe, jax and numpy only."""

from fljax_kernels.clip_and_sum.api import clip_and_sum
from fljax_kernels.gaussian.api import add_gaussian_noise, gaussian_noise
from fljax_kernels.per_example.api import PerExampleGrads, per_example_grads

__all__ = ["PerExampleGrads", "add_gaussian_noise", "clip_and_sum", "gaussian_noise", "per_example_grads"]
__version__ = "0.1.0"
