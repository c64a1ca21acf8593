"""Models that the literature on reconstruction attacks: smooth ones, whose gradients tell most."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fljax import _validate
from fljax.models import Functional

_WIDTH, _KERNEL, _STRIDES = 12, 5, (2, 2, 1)
_MORE, _SLOPE = 6, 0.2  # channels of a leaky convolution for each that it reads


def smooth_lenet(
    *, example_shape: tuple[int, int, int], num_classes: int, key: jax.Array
) -> Functional:
    """The LeNet of DLG: three 5 x 5 convolutions of 12 channels (strides 2, 2, 1) with sigmoids,
    one dense layer.

    Weights start uniform in [-1/2, 1/2], as there: small ones would make gradients of early layers
    vanish.

    Args:
      example_shape: `[height, width, channels]`. num_classes: >= 1. key: for the weights.

    Raises:
      ValueError: an argument is out of range.

    Source: Zhu, Liu, Han (2019), Deep leakage from gradients, arXiv:1906.08935, section 4.
    """
    _validate.typed_key(key=key)
    _validate.positive_int(num_classes=num_classes)
    height, width, channels = example_shape
    keys = jax.random.split(key, 2 * len(_STRIDES) + 1)
    draw = lambda key, shape: jax.random.uniform(key, shape, minval=-0.5, maxval=0.5)
    params = {}
    for layer, stride in enumerate(_STRIDES):
        kernel = (_KERNEL, _KERNEL, channels, _WIDTH)
        params[f"conv{layer}"] = {
            "kernel": draw(keys[2 * layer], kernel),
            "bias": draw(keys[2 * layer + 1], (_WIDTH,)),
        }
        height, width, channels = math.ceil(height / stride), math.ceil(width / stride), _WIDTH
    shape = (height * width * channels, num_classes)
    params["dense"] = {"kernel": draw(keys[-1], shape), "bias": jnp.zeros(num_classes)}

    def apply(params: dict[str, dict[str, jax.Array]], x: jax.Array) -> jax.Array:
        x = x[None]
        for layer, stride in enumerate(_STRIDES):
            conv = params[f"conv{layer}"]
            x = jax.lax.conv_general_dilated(
                x,
                conv["kernel"],
                (stride, stride),
                "SAME",
                dimension_numbers=("NHWC", "HWIO", "NHWC"),
            )
            x = jax.nn.sigmoid(x + conv["bias"][None, None, None])
        return x.reshape(-1) @ params["dense"]["kernel"] + params["dense"]["bias"]

    return Functional(params, apply)


class Chain(NamedTuple):
    """functional: of params {"layer0", ...}. layers: of `recursive.invert`, for the parts of params
    in their order, with leaky ReLUs of `slope` between.
    """

    functional: Functional
    layers: tuple[Callable[[Any, jax.Array], jax.Array], ...]
    slope: float


def leaky_chain(*, example_shape: tuple[int, int, int], num_classes: int, key: jax.Array) -> Chain:
    """Two 3 x 3 convolutions of stride 2, each with six times as many channels as it reads, and one
    dense layer, leaky ReLUs between: each layer makes more numbers than it reads, so that R-GAP
    tells all of an example.

    Args:
      example_shape: `[height, width, channels]`. num_classes: >= 1. key: for the weights, whose
        variance is 1 / fan-in; biases are 0.

    Raises:
      ValueError: an argument is out of range.

    Source: Zhu, Blaschko (2021), R-GAP, arXiv:2010.07733, section 4 (networks of the same kind).
    """
    _validate.typed_key(key=key)
    _validate.positive_int(num_classes=num_classes)
    height, width, channels = example_shape
    keys = jax.random.split(key, 3)
    params: dict[str, Any] = {}
    for layer in range(2):
        shape = (3, 3, channels, _MORE * channels)
        kernel = jax.random.normal(keys[layer], shape) / math.prod(shape[:3]) ** 0.5
        params[f"layer{layer}"] = {"kernel": kernel, "bias": jnp.zeros(shape[-1])}
        height, width, channels = math.ceil(height / 2), math.ceil(width / 2), shape[-1]
    size = height * width * channels
    kernel = jax.random.normal(keys[2], (size, num_classes)) / size**0.5
    params["layer2"] = {"kernel": kernel, "bias": jnp.zeros(num_classes)}
    layers = (_halving, _halving, _flat_dense)

    def apply(params: dict[str, Any], x: jax.Array) -> jax.Array:
        for place, layer in enumerate(layers):
            x = layer(params[f"layer{place}"], x)
            if place < len(layers) - 1:
                x = jax.nn.leaky_relu(x, _SLOPE)
        return x

    return Chain(Functional(params, apply), layers, _SLOPE)


def _halving(layer: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """A convolution of stride 2."""
    numbers = ("NHWC", "HWIO", "NHWC")
    y = jax.lax.conv_general_dilated(
        x[None], layer["kernel"], (2, 2), "SAME", dimension_numbers=numbers
    )
    return y[0] + layer["bias"][None, None]


def _flat_dense(layer: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    return x.reshape(-1) @ layer["kernel"] + layer["bias"]
