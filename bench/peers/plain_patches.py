"""The CNNs of the bench with convolutions as patches and matrix products, in plain JAX: what a CPU
user would write.

XLA on CPUs runs `lax.conv` inside loops 20 times slower than outside, and the gradient of
`reduce_window` slower than that of a reshape and a maximum.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def _conv(params: Any, x: jax.Array, padding: int) -> jax.Array:
    """[H, W, I] -> [H', W', O], stride 1; `padding` on each side."""
    size, _, fan_in, fan_out = params["kernel"].shape
    x = jnp.pad(x, ((padding, padding), (padding, padding), (0, 0)))
    height, width = x.shape[0] - size + 1, x.shape[1] - size + 1
    # Along the width first, then the height: k + k slices in place of k * k.
    x = jnp.concatenate([x[:, j : j + width] for j in range(size)], axis=-1)
    x = jnp.concatenate([x[i : i + height] for i in range(size)], axis=-1)
    return x @ params["kernel"].reshape(size * size * fan_in, fan_out) + params["bias"]


def _pool(x: jax.Array) -> jax.Array:
    """2x2 windows with stride 2."""
    height, width, channels = x.shape
    return x.reshape(height // 2, 2, width // 2, 2, channels).max(axis=(1, 3))


def _head(params: Any, x: jax.Array, label: jax.Array) -> jax.Array:
    x = jax.nn.relu(x.ravel() @ params["dense"]["kernel"] + params["dense"]["bias"])
    return -jax.nn.log_softmax(x @ params["head"]["kernel"] + params["head"]["bias"])[label]


def _femnist(params: Any, example: Any) -> jax.Array:
    x = example["x"]
    for layer in params["conv"]:
        x = _pool(jax.nn.relu(_conv(layer, x, 2)))
    return _head(params, x, example["y"])


def _pfl_cifar(params: Any, example: Any) -> jax.Array:
    x = example["x"]
    for layer in params["conv"]:
        x = jax.nn.relu(_conv(layer, x, 0))
    return _head(params, _pool(x), example["y"])


LOSSES: dict[str, Callable[[Any, Any], jax.Array]] = {"ii": _femnist, "iii": _pfl_cifar}
