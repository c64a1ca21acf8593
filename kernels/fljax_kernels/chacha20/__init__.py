"""ChaCha20 as a generator of JAX: keys of 256 bits, which no search finds."""

from fljax_kernels.chacha20.api import IMPL, PALLAS_IMPL, block, key

__all__ = ["IMPL", "PALLAS_IMPL", "block", "key"]
