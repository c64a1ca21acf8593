"""Convolution and pooling in two forms of the same function.

XLA's CPU backend runs a convolution or a `reduce_window` 20 to 30 times slower inside a loop
(`scan`, `while`) than outside, and a federated client is a loop. Lowered for CPUs the layers here
become slices + one matrix product, and reshape + max; for any other platform they stay native.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from fljax import _validate
from fljax_kernels import _platforms

IMPLEMENTATIONS = ("native", "matmul")


def check(implementation: str | None) -> str | None:
    """`implementation` itself. None: the form that is fast inside loops on the platform that is
    lowered for.

    Raises:
      ValueError: it is neither None nor one of IMPLEMENTATIONS.
    """
    if implementation is not None:
        _validate.one_of(IMPLEMENTATIONS, implementation=implementation)
    return implementation


def patches(x: jax.Array, kernel_size: int) -> jax.Array:
    """`[H, W, I]` -> `[H, W, kernel_size^2 * I]`: what each place of a SAME convolution with stride
    1 sees.
    """
    height, width, _ = x.shape
    before = (kernel_size - 1) // 2
    after = kernel_size - 1 - before
    x = jnp.pad(x, ((before, after), (before, after), (0, 0)))
    offsets = [(i, j) for i in range(kernel_size) for j in range(kernel_size)]
    return jnp.concatenate([x[i : i + height, j : j + width] for i, j in offsets], axis=-1)


def conv(x: jax.Array, kernel: jax.Array, implementation: str | None) -> jax.Array:
    """SAME convolution with stride 1 of one image: `[H, W, I]`, `[k, k, I, O]` -> `[H, W, O]`."""
    if implementation is None:
        return _platforms.choose(x, kernel, cpu=_matmul_conv, default=_native_conv)
    return {"native": _native_conv, "matmul": _matmul_conv}[implementation](x, kernel)


def _native_conv(x: jax.Array, kernel: jax.Array) -> jax.Array:
    dimensions = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x[None], kernel, (1, 1), "SAME", dimension_numbers=dimensions)[
        0
    ]


def _matmul_conv(x: jax.Array, kernel: jax.Array) -> jax.Array:
    height, width, _ = x.shape
    rows = patches(x, kernel.shape[0]).reshape(height * width, -1)
    return (rows @ kernel.reshape(-1, kernel.shape[-1])).reshape(height, width, -1)


def max_pool(x: jax.Array, implementation: str | None) -> jax.Array:
    """Largest of each 2 x 2 window of one image, `[H, W, C]` -> `[H // 2, W // 2, C]`; an odd last
    row is dropped.

    Where two entries of a window are equal the two implementations may take different subgradients.
    """
    if implementation is None:
        return _platforms.choose(x, cpu=_matmul_pool, default=_native_pool)
    return {"native": _native_pool, "matmul": _matmul_pool}[implementation](x)


def _native_pool(x: jax.Array) -> jax.Array:
    return nnx.max_pool(x, (2, 2), (2, 2))


def _matmul_pool(x: jax.Array) -> jax.Array:
    height, width, channels = x.shape[0] // 2, x.shape[1] // 2, x.shape[2]
    return x[: 2 * height, : 2 * width].reshape(height, 2, width, 2, channels).max(axis=(1, 3))


class Conv(nnx.Module):
    """`conv` with a bias: one image `[H, W, I]` -> `[H, W, O]`; `implementation` as in `check`."""

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
        self.implementation = check(implementation)

    def __call__(self, x: jax.Array) -> jax.Array:
        return conv(x, self.kernel[...], self.implementation) + self.bias[...].reshape(1, 1, -1)


class LSTM(nnx.Module):
    """One LSTM layer over one sequence: `[T, I]` -> `[T, H]`; gates in the order input, forget,
    cell, output.

    The forget gate's bias starts at 1, so that gradients reach back from the start.
    """

    def __init__(self, in_features: int, cells: int, *, rngs: nnx.Rngs) -> None:
        initial = nnx.initializers.lecun_normal()
        self.input = nnx.Param(initial(rngs.params(), (in_features, 4 * cells)))
        self.hidden = nnx.Param(nnx.initializers.orthogonal()(rngs.params(), (cells, 4 * cells)))
        self.bias = nnx.Param(jnp.zeros(4 * cells).at[cells : 2 * cells].set(1.0))

    def __call__(self, x: jax.Array) -> jax.Array:
        inputs, hidden, bias = self.input[...], self.hidden[...], self.bias[...]

        def step(
            carry: tuple[jax.Array, jax.Array], here: jax.Array
        ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
            h, c = carry
            i, f, g, o = jnp.split(here @ inputs + h @ hidden + bias, 4)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros(hidden.shape[0], inputs.dtype)
        return lax.scan(step, (zeros, zeros), x)[1]
