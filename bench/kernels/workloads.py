"""The six models of the per-example benchmark, in plain jax.numpy and lax, each with one fixed
batch.

- a: MLP 784-256-128-10, ReLU; 235,146; 512
- b, b256: FEMNIST CNN: 5x5 convolutions 32 and 64, max pools, dense 512, 62 classes; 1,690,046; 64,
  256
- c: CIFAR-10 CNN with tanh: 3x3 convolutions 32, 32, 64, 64, 128, 128, dense 128; 550,570; 256
- d: 2-layer LSTM 256, embedding 8, vocabulary 90, 80 steps, a prediction at each step; 822,570; 32
- e: transformer, 4 layers, d 128, 4 heads, 128 tokens, vocabulary 1000; 1,066,728; 32
- f: ResNet20 with GroupNorm (8 groups), 32x32x3, projection shortcuts; 272,474; 64

`loss(params, example)` takes one example {"x", "y"} and gives a float32 scalar, as users of
`per_example_grads` write
it: no batch axis, a convolution adds its own axis of one. Weights are LeCun normal, data random:
speed and norms do not depend on what the pixels mean. Images are NHWC, kernels HWIO.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax


class Workload(NamedTuple):
    """name: the letter in the table. title: words. batch: {"x": [B, ...], "y": [B, ...]}."""

    name: str
    title: str
    loss: Callable[[Any, Any], jax.Array]
    params: Any
    batch: Any


def _dense_params(keys: Iterator[jax.Array], fan_in: int, fan_out: int) -> dict[str, jax.Array]:
    kernel = jax.random.normal(next(keys), (fan_in, fan_out)) / jnp.sqrt(fan_in)
    return {"kernel": kernel, "bias": jnp.zeros(fan_out)}


def _conv_params(
    keys: Iterator[jax.Array], size: int, fan_in: int, fan_out: int
) -> dict[str, jax.Array]:
    kernel = jax.random.normal(next(keys), (size, size, fan_in, fan_out)) / jnp.sqrt(
        size * size * fan_in
    )
    return {"kernel": kernel, "bias": jnp.zeros(fan_out)}


def _dense(params: Any, x: jax.Array) -> jax.Array:
    y = x @ params["kernel"]
    return y + jnp.broadcast_to(params["bias"], y.shape)


def _conv(params: Any, x: jax.Array, stride: int = 1, padding: str = "SAME") -> jax.Array:
    """[H, W, I] -> [H', W', O]."""
    y = lax.conv_general_dilated(
        x[None],
        params["kernel"],
        (stride, stride),
        padding,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )[0]
    return y + jnp.broadcast_to(params["bias"], y.shape) if "bias" in params else y


def _max_pool(x: jax.Array) -> jax.Array:
    """2x2 windows with stride 2."""
    return lax.reduce_window(x, -jnp.inf, lax.max, (2, 2, 1), (2, 2, 1), "VALID")


def _cross_entropy(logits: jax.Array, label: jax.Array) -> jax.Array:
    """Mean over all leading axes of the logits."""
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), label[..., None], axis=-1)
    return -picked.mean()


def _mlp_loss(params: Any, example: Any) -> jax.Array:
    x = example["x"]
    for layer in params[:-1]:
        x = jax.nn.relu(_dense(layer, x))
    return _cross_entropy(_dense(params[-1], x), example["y"])


def mlp(key: jax.Array, batch_size: int = 512) -> Workload:
    """784-256-128-10."""
    keys = iter(jax.random.split(key, 8))
    sizes = (784, 256, 128, 10)
    params = [_dense_params(keys, i, o) for i, o in itertools.pairwise(sizes)]
    batch = {
        "x": jax.random.uniform(next(keys), (batch_size, 784)),
        "y": _labels(next(keys), (batch_size,), 10),
    }
    return Workload("a", f"MLP 784-256-128-10, batch {batch_size}", _mlp_loss, params, batch)


def _femnist_loss(params: Any, example: Any) -> jax.Array:
    x = example["x"]
    for layer in params["conv"]:
        x = _max_pool(jax.nn.relu(_conv(layer, x)))
    x = jax.nn.relu(_dense(params["dense"], x.ravel()))
    return _cross_entropy(_dense(params["head"], x), example["y"])


def femnist(key: jax.Array, batch_size: int = 64) -> Workload:
    """The CNN of federated FEMNIST."""
    keys = iter(jax.random.split(key, 8))
    params = {
        "conv": [_conv_params(keys, 5, 1, 32), _conv_params(keys, 5, 32, 64)],
        "dense": _dense_params(keys, 7 * 7 * 64, 512),
        "head": _dense_params(keys, 512, 62),
    }
    batch = {
        "x": jax.random.uniform(next(keys), (batch_size, 28, 28, 1)),
        "y": _labels(next(keys), (batch_size,), 62),
    }
    return Workload("b", f"FEMNIST CNN, batch {batch_size}", _femnist_loss, params, batch)


def _cifar_loss(params: Any, example: Any) -> jax.Array:
    x = example["x"]
    for first, second in params["conv"]:
        x = _max_pool(jnp.tanh(_conv(second, jnp.tanh(_conv(first, x)))))
    x = jnp.tanh(_dense(params["dense"], x.ravel()))
    return _cross_entropy(_dense(params["head"], x), example["y"])


def cifar(key: jax.Array, batch_size: int = 256) -> Workload:
    """The tanh CNN common in private learning."""
    keys = iter(jax.random.split(key, 12))
    widths = ((3, 32, 32), (32, 64, 64), (64, 128, 128))
    params = {
        "conv": [(_conv_params(keys, 3, i, m), _conv_params(keys, 3, m, o)) for i, m, o in widths],
        "dense": _dense_params(keys, 4 * 4 * 128, 128),
        "head": _dense_params(keys, 128, 10),
    }
    batch = {
        "x": jax.random.normal(next(keys), (batch_size, 32, 32, 3)),
        "y": _labels(next(keys), (batch_size,), 10),
    }
    return Workload("c", f"CIFAR-10 tanh CNN, batch {batch_size}", _cifar_loss, params, batch)


def _pfl_cifar_loss(params: Any, example: Any) -> jax.Array:
    x = example["x"]
    for layer in params["conv"]:
        x = jax.nn.relu(_conv(layer, x, padding="VALID"))
    x = jax.nn.relu(_dense(params["dense"], _max_pool(x).ravel()))
    return _cross_entropy(_dense(params["head"], x), example["y"])


def pfl_cifar(key: jax.Array, batch_size: int = 10) -> Workload:
    """The CNN of pfl-research's CIFAR-10 benchmark, 1,626,442 parameters, without its dropout:
    rounds can be compared.

    Convolutions 3x3 of 32 and 64 without padding, one max pool, dense 128.
    """
    keys = iter(jax.random.split(key, 8))
    params = {
        "conv": [_conv_params(keys, 3, 3, 32), _conv_params(keys, 3, 32, 64)],
        "dense": _dense_params(keys, 14 * 14 * 64, 128),
        "head": _dense_params(keys, 128, 10),
    }
    batch = {
        "x": jax.random.uniform(next(keys), (batch_size, 32, 32, 3)),
        "y": _labels(next(keys), (batch_size,), 10),
    }
    return Workload(
        "pfl_cifar", f"pfl's CIFAR-10 CNN, batch {batch_size}", _pfl_cifar_loss, params, batch
    )


def _lstm_layer(params: Any, xs: jax.Array) -> jax.Array:
    """[T, I] -> [T, H]; gates in the order input, forget, cell, output, with two biases as in
    torch.
    """

    def step(
        carry: tuple[jax.Array, jax.Array], x: jax.Array
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        h, c = carry
        gates = (
            x @ params["input"]
            + params["input_bias"]
            + h @ params["hidden"]
            + params["hidden_bias"]
        )
        i, f, g, o = jnp.split(gates, 4)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zeros = jnp.zeros(params["hidden"].shape[0])
    return lax.scan(step, (zeros, zeros), xs)[1]


def _lstm_loss(params: Any, example: Any) -> jax.Array:
    x = params["embedding"][example["x"]]
    for layer in params["lstm"]:
        x = _lstm_layer(layer, x)
    return _cross_entropy(_dense(params["head"], x), example["y"])


def lstm(key: jax.Array, batch_size: int = 32) -> Workload:
    """Characters in, next characters out, at each of 80 steps."""
    keys = iter(jax.random.split(key, 12))
    hidden, embedding, vocabulary, steps = 256, 8, 90, 80

    def layer(fan_in: int) -> dict[str, jax.Array]:
        shapes = {"input": (fan_in, 4 * hidden), "hidden": (hidden, 4 * hidden)}
        weights = {
            name: jax.random.normal(next(keys), s) / jnp.sqrt(hidden) for name, s in shapes.items()
        }
        return {
            **weights,
            "input_bias": jnp.zeros(4 * hidden),
            "hidden_bias": jnp.zeros(4 * hidden),
        }

    params = {
        "embedding": jax.random.normal(next(keys), (vocabulary, embedding)),
        "lstm": [layer(embedding), layer(hidden)],
        "head": _dense_params(keys, hidden, vocabulary),
    }
    batch = {
        "x": _labels(next(keys), (batch_size, steps), vocabulary),
        "y": _labels(next(keys), (batch_size, steps), vocabulary),
    }
    return Workload(
        "d", f"2-layer LSTM 256, 80 steps, batch {batch_size}", _lstm_loss, params, batch
    )


def _layer_norm(params: Any, x: jax.Array) -> jax.Array:
    mean = x.mean(axis=-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
    y = (x - mean) * lax.rsqrt(variance + 1e-5)
    return y * jnp.broadcast_to(params["scale"], y.shape) + jnp.broadcast_to(
        params["bias"], y.shape
    )


def _attention(params: Any, x: jax.Array, heads: int = 4) -> jax.Array:
    """[S, D] -> [S, D], causal."""
    size, width = x.shape
    q, k, v = (
        _dense(params[name], x).reshape(size, heads, width // heads)
        for name in ("query", "key", "value")
    )
    scores = jnp.einsum("shd,thd->hst", q, k) / jnp.sqrt(width // heads)
    causal = jnp.tril(jnp.ones((size, size), bool))
    weights = jax.nn.softmax(jnp.where(causal[None], scores, -1e9))
    return _dense(params["out"], jnp.einsum("hst,thd->shd", weights, v).reshape(size, width))


def _transformer_loss(params: Any, example: Any) -> jax.Array:
    x = params["embedding"][example["x"]] + params["position"]
    for layer in params["layers"]:
        x = x + _attention(layer, _layer_norm(layer["norm1"], x))
        hidden = jax.nn.gelu(_dense(layer["up"], _layer_norm(layer["norm2"], x)))
        x = x + _dense(layer["down"], hidden)
    return _cross_entropy(_dense(params["head"], _layer_norm(params["norm"], x)), example["y"])


def transformer(key: jax.Array, batch_size: int = 32) -> Workload:
    """A pre-norm language model with learned positions and an untied output layer."""
    keys = iter(jax.random.split(key, 40))
    width, layers, vocabulary, size = 128, 4, 1000, 128

    def norm() -> dict[str, jax.Array]:
        return {"scale": jnp.ones(width), "bias": jnp.zeros(width)}

    def layer() -> dict[str, Any]:
        projections = {
            name: _dense_params(keys, width, width) for name in ("query", "key", "value", "out")
        }
        mlp_params = {
            "up": _dense_params(keys, width, 4 * width),
            "down": _dense_params(keys, 4 * width, width),
        }
        return {**projections, **mlp_params, "norm1": norm(), "norm2": norm()}

    params = {
        "embedding": 0.1 * jax.random.normal(next(keys), (vocabulary, width)),
        "position": 0.1 * jax.random.normal(next(keys), (size, width)),
        "layers": [layer() for _ in range(layers)],
        "norm": norm(),
        "head": _dense_params(keys, width, vocabulary),
    }
    batch = {
        "x": _labels(next(keys), (batch_size, size), vocabulary),
        "y": _labels(next(keys), (batch_size, size), vocabulary),
    }
    return Workload(
        "e", f"transformer 4x128, 128 tokens, batch {batch_size}", _transformer_loss, params, batch
    )


def _group_norm(params: Any, x: jax.Array, groups: int = 8) -> jax.Array:
    """Over height, width and the channels of a group."""
    height, width, channels = x.shape
    grouped = x.reshape(height, width, groups, channels // groups)
    mean = grouped.mean(axis=(0, 1, 3), keepdims=True)
    variance = ((grouped - mean) ** 2).mean(axis=(0, 1, 3), keepdims=True)
    y = ((grouped - mean) * lax.rsqrt(variance + 1e-5)).reshape(x.shape)
    return y * jnp.broadcast_to(params["scale"], y.shape) + jnp.broadcast_to(
        params["bias"], y.shape
    )


def _resnet_loss(params: Any, example: Any) -> jax.Array:
    x = jax.nn.relu(_group_norm(params["norm"], _conv(params["stem"], example["x"])))
    for index, block in enumerate(params["blocks"]):
        stride = 2 if index in (3, 6) else 1
        y = jax.nn.relu(_group_norm(block["norm1"], _conv(block["conv1"], x, stride)))
        y = _group_norm(block["norm2"], _conv(block["conv2"], y))
        shortcut = (
            _group_norm(block["norm"], _conv(block["shortcut"], x, stride))
            if "shortcut" in block
            else x
        )
        x = jax.nn.relu(y + shortcut)
    return _cross_entropy(_dense(params["head"], x.mean(axis=(0, 1))), example["y"])


def resnet20(key: jax.Array, batch_size: int = 64) -> Workload:
    """Three stages of three blocks, widths 16, 32, 64; convolutions have no bias."""
    keys = iter(jax.random.split(key, 32))

    def conv(size: int, fan_in: int, fan_out: int) -> dict[str, jax.Array]:
        return {"kernel": _conv_params(keys, size, fan_in, fan_out)["kernel"]}

    def norm(width: int) -> dict[str, jax.Array]:
        return {"scale": jnp.ones(width), "bias": jnp.zeros(width)}

    blocks = []
    fan_in = 16
    for width in (16, 16, 16, 32, 32, 32, 64, 64, 64):
        block = {"conv1": conv(3, fan_in, width), "norm1": norm(width)}
        block |= {"conv2": conv(3, width, width), "norm2": norm(width)}
        if width != fan_in:
            block |= {"shortcut": conv(1, fan_in, width), "norm": norm(width)}
        blocks.append(block)
        fan_in = width
    params = {
        "stem": conv(3, 3, 16),
        "norm": norm(16),
        "blocks": blocks,
        "head": _dense_params(keys, 64, 10),
    }
    batch = {
        "x": jax.random.normal(next(keys), (batch_size, 32, 32, 3)),
        "y": _labels(next(keys), (batch_size,), 10),
    }
    return Workload("f", f"ResNet20 GroupNorm, batch {batch_size}", _resnet_loss, params, batch)


def _labels(key: jax.Array, shape: tuple[int, ...], count: int) -> jax.Array:
    return jax.random.randint(key, shape, 0, count, jnp.int32)


MAKERS: dict[str, tuple[Callable[[jax.Array, int], Workload], int]] = {
    "a": (mlp, 512),
    "b": (femnist, 64),
    "b256": (femnist, 256),
    "c": (cifar, 256),
    "d": (lstm, 32),
    "e": (transformer, 32),
    "f": (resnet20, 64),
}


def make(name: str, times: int = 1) -> Workload:
    """The workload of this letter, from a fixed key; its batch `times` as large."""
    if name not in MAKERS:
        raise ValueError(f"Expected a workload of {', '.join(MAKERS)}, got {name!r}.")
    maker, batch_size = MAKERS[name]
    return maker(jax.random.key(20261121), times * batch_size)._replace(name=name)
