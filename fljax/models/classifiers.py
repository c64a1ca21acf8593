"""Small classifiers as flax nnx modules. Each takes ONE example and returns its logits `[num_classes]`."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
from flax import nnx

from fljax import _validate
from fljax.models import layers
from fljax.models.functional import Functional, functional


class Softmax(nnx.Module):
    """Multinomial logistic regression on the flattened example."""

    def __init__(self, example_shape: Sequence[int], num_classes: int, *, rngs: nnx.Rngs) -> None:
        self.logits = nnx.Linear(math.prod(example_shape), num_classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.logits(x.reshape(-1))


class MLP(nnx.Module):
    """Dense layers with ReLU on the flattened example; `hidden` are their widths."""

    def __init__(
        self, example_shape: Sequence[int], num_classes: int, *, rngs: nnx.Rngs, hidden: Sequence[int] = (64,)
    ) -> None:
        for width in hidden:
            _validate.positive_int(hidden=width)
        widths = [math.prod(example_shape), *hidden]
        self.hidden = nnx.List([nnx.Linear(*pair, rngs=rngs) for pair in itertools.pairwise(widths)])
        self.logits = nnx.Linear(widths[-1], num_classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x.reshape(-1)
        for layer in self.hidden:
            x = nnx.relu(layer(x))
        return self.logits(x)


class CNN(nnx.Module):
    """Blocks of SAME convolution, ReLU and 2 x 2 max pool on `[H, W, channels]`, then an `MLP`.

    `channels=(32, 64), kernel_size=5, hidden=(512,)` with 62 classes on `[28, 28, 1]` is the FEMNIST CNN of the LEAF
    benchmark (Caldas et al. 2018, arXiv:1812.01097): 1,690,046 parameters.
    """

    def __init__(
        self,
        example_shape: Sequence[int],
        num_classes: int,
        *,
        rngs: nnx.Rngs,
        channels: Sequence[int] = (16, 32),
        kernel_size: int = 3,
        hidden: Sequence[int] = (64,),
        implementation: str | None = None,
    ) -> None:
        _validate.positive_int(kernel_size=kernel_size)
        for width in channels:
            _validate.positive_int(channels=width)
        shrink = 2 ** len(channels)
        if len(example_shape) != 3 or min(example_shape[:2]) < shrink:
            raise ValueError(
                f"Expected example_shape to be [height, width, channels] with height and width >= {shrink} for "
                f"{len(channels)} pools, got example_shape={tuple(example_shape)}."
            )
        self.implementation = layers.choose(implementation)
        widths = [example_shape[2], *channels]
        self.convs = nnx.List(
            [
                layers.Conv(i, o, kernel_size, rngs=rngs, implementation=self.implementation)
                for i, o in itertools.pairwise(widths)
            ]
        )
        pooled = (example_shape[0] // shrink, example_shape[1] // shrink, widths[-1])
        self.head = MLP(pooled, num_classes, rngs=rngs, hidden=hidden)

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.convs:
            x = layers.max_pool(nnx.relu(layer(x)), self.implementation)
        return self.head(x)


_CLASSES: dict[str, type[nnx.Module]] = {"softmax": Softmax, "mlp": MLP, "cnn": CNN}
_OPTIONS = {
    "softmax": set[str](),
    "mlp": {"hidden"},
    "cnn": {"channels", "kernel_size", "hidden", "implementation"},
}
NAMES = tuple(_CLASSES)


def create(name: str, *, example_shape: Sequence[int], num_classes: int, key: jax.Array, **options: Any) -> Functional:
    """Builds a model and returns its functional view.

    Args:
      name: "softmax", "mlp" or "cnn".
      example_shape: shape of one `x`, without a batch axis; the cnn wants `[height, width, channels]`.
      num_classes: number of logits. >= 1.
      key: typed key for the initial weights (LeCun normal; biases start at 0).
      **options: `hidden`: widths of the dense layers (mlp, cnn). `channels`: widths of the convolutions, `kernel_size`,
        `implementation`: "native" or "matmul", by default what the backend wants (cnn).

    Returns:
      `Functional(params, apply)`; `apply(params, x)` gives the float32 logits `[num_classes]` of one example.

    Raises:
      ValueError: an argument is out of range, or the model has no such option.
    """
    _validate.one_of(NAMES, name=name)
    _validate.positive_int(num_classes=num_classes)
    for size in example_shape:
        _validate.positive_int(example_shape=size)
    _validate.typed_key(key=key)
    unknown = sorted(set(options) - _OPTIONS[name])
    if unknown:
        allowed = sorted(_OPTIONS[name])
        raise ValueError(f"Expected options of {name} to be among {allowed}, got {unknown[0]}={options[unknown[0]]!r}.")
    module = _CLASSES[name](tuple(example_shape), num_classes, rngs=nnx.Rngs(key), **options)
    return functional(module, batched=False)
