"""Array kernels for private federated learning: pure, jit/vmap-safe, jax and numpy only."""

from fljax_kernels.clip_and_sum.api import clip_and_sum
from fljax_kernels.per_example.api import PerExampleGrads, per_example_grads

__all__ = ["PerExampleGrads", "clip_and_sum", "per_example_grads"]
__version__ = "0.1.0"
