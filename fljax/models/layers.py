"""Convolution and pooling in two forms of the same function.

XLA's CPU backend runs a convolution or a `reduce_window` 20 to 30 times slower inside a loop (`scan`, `while`) than
outside, and a federated client is a loop. There the layers here become slices + one matrix product, and reshape + max.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from fljax import _validate

IMPLEMENTATIONS = ("native", "matmul")


def choose(implementation: str | None) -> str:
    """`implementation` itself, or where it is None the one that is fast inside loops on the default backend."""
    if implementation is None:
        return "matmul" if jax.default_backend() == "cpu" else "native"
    _validate.one_of(IMPLEMENTATIONS, implementation=implementation)
    return implementation


def patches(x: jax.Array, kernel_size: int) -> jax.Array:
    """`[H, W, I]` -> `[H, W, kernel_size^2 * I]`: what each place of a SAME convolution with stride 1 sees."""
    height, width, _ = x.shape
    before = (kernel_size - 1) // 2
    after = kernel_size - 1 - before
    x = jnp.pad(x, ((before, after), (before, after), (0, 0)))
    offsets = [(i, j) for i in range(kernel_size) for j in range(kernel_size)]
    return jnp.concatenate([x[i : i + height, j : j + width] for i, j in offsets], axis=-1)


def conv(x: jax.Array, kernel: jax.Array, implementation: str) -> jax.Array:
    """SAME convolution with stride 1 of one image: `[H, W, I]`, `[k, k, I, O]` -> `[H, W, O]`."""
    if implementation == "native":
        dimensions = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x[None], kernel, (1, 1), "SAME", dimension_numbers=dimensions)[0]
    height, width, _ = x.shape
    rows = patches(x, kernel.shape[0]).reshape(height * width, -1)
    return (rows @ kernel.reshape(-1, kernel.shape[-1])).reshape(height, width, -1)


def max_pool(x: jax.Array, implementation: str) -> jax.Array:
    """Largest of each 2 x 2 window of one image, `[H, W, C]` -> `[H // 2, W // 2, C]`; an odd last row is dropped.

    Where two entries of a window are equal the two implementations may take different subgradients.
    """
    if implementation == "native":
        return nnx.max_pool(x, (2, 2), (2, 2))
    height, width, channels = x.shape[0] // 2, x.shape[1] // 2, x.shape[2]
    return x[: 2 * height, : 2 * width].reshape(height, 2, width, 2, channels).max(axis=(1, 3))


class Conv(nnx.Module):
    """`conv` with a bias: one image `[H, W, I]` -> `[H, W, O]`; `implementation` as in `choose`."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        rngs: nnx.Rngs,
        implementation: str | None = None,
    ) -> None:
        shape = (kernel_size, kernel_size, in_channels, out_channels)
        self.kernel = nnx.Param(nnx.initializers.lecun_normal()(rngs.params(), shape))
        self.bias = nnx.Param(jnp.zeros(out_channels))
        self.implementation = choose(implementation)

    def __call__(self, x: jax.Array) -> jax.Array:
        return conv(x, self.kernel[...], self.implementation) + self.bias[...].reshape(1, 1, -1)
