"""Array kernels for private federated learning: pure, jit/vmap-safe, jax and numpy only."""

__version__ = "0.1.0"
