"""Models that the literature on reconstruction attacks: smooth ones, whose gradients tell most."""

import math

import jax
import jax.numpy as jnp

from fljax import _validate
from fljax.models import Functional

_WIDTH, _KERNEL, _STRIDES = 12, 5, (2, 2, 1)


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
