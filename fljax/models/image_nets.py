"""The convolutional networks of image papers as flax nnx modules; each takes ONE image `[32, 32,
channels]`.

Batch statistics mix examples and so break every claim about one of them: normalisation here is by
groups.
"""

import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from fljax import _validate

_GROUPS = 8
_SIZE = 32


class LeNet(nnx.Module):
    """Two 5 x 5 convolutions (6 and 16 channels), each with ReLU and a 2 x 2 max pool, then dense
    120, 84.

    62,006 parameters on `[32, 32, 3]` with 10 classes. Other sizes are welcome, as long as both
    convolutions fit.
    """

    def __init__(self, example_shape: Sequence[int], num_classes: int, *, rngs: nnx.Rngs) -> None:
        height, width, channels = _image(example_shape)
        height, width = (((side - 4) // 2 - 4) // 2 for side in (height, width))
        if min(height, width) < 1:
            raise ValueError(
                "Expected example_shape to be at least [16, 16, channels] for lenet, "
                f"got example_shape={tuple(example_shape)}."
            )
        self.convs = nnx.List(
            [
                nnx.Conv(i, o, (5, 5), padding="VALID", rngs=rngs)
                for i, o in ((channels, 6), (6, 16))
            ]
        )
        widths = [height * width * 16, 120, 84]
        self.hidden = nnx.List([nnx.Linear(i, o, rngs=rngs) for i, o in itertools.pairwise(widths)])
        self.logits = nnx.Linear(84, num_classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x[None]
        for conv in self.convs:
            x = _pooled(nnx.relu(conv(x)))
        return _dense(self.hidden, self.logits, x)


class AlexNet(nnx.Module):
    """AlexNet for 32 x 32 images: 3 x 3 convolutions 64, 192, 384, 256, 256, three pools, dense
    4096 twice.

    35,855,178 parameters on three channels with 10 classes.
    """

    def __init__(self, example_shape: Sequence[int], num_classes: int, *, rngs: nnx.Rngs) -> None:
        widths = [_image(example_shape, "alexnet")[2], 64, 192, 384, 256, 256]
        self.convs = nnx.List([_conv(i, o, rngs=rngs) for i, o in itertools.pairwise(widths)])
        self.hidden = nnx.List([nnx.Linear(4096, 4096, rngs=rngs) for _ in range(2)])
        self.logits = nnx.Linear(4096, num_classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x[None]
        for at, conv in enumerate(self.convs):
            x = nnx.relu(conv(x))
            x = _pooled(x) if at in (0, 1, 4) else x
        return _dense(self.hidden, self.logits, x)


class VGG16(nnx.Module):
    """VGG16 (configuration D) with its full head, whose 7 x 7 input repeats what 32 x 32 images
    leave: one place.

    134,301,514 parameters on three channels with 10 classes.
    """

    def __init__(self, example_shape: Sequence[int], num_classes: int, *, rngs: nnx.Rngs) -> None:
        width, blocks = _image(example_shape, "vgg16")[2], []
        for count, channels in ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)):
            block = []
            for _ in range(count):
                block.append(_conv(width, channels, rngs=rngs))
                width = channels
            blocks.append(nnx.List(block))
        self.blocks = nnx.List(blocks)
        self.hidden = nnx.List([nnx.Linear(i, 4096, rngs=rngs) for i in (49 * 512, 4096)])
        self.logits = nnx.Linear(4096, num_classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x[None]
        for block in self.blocks:
            for conv in block:
                x = nnx.relu(conv(x))
            x = _pooled(x)
        return _dense(self.hidden, self.logits, jnp.broadcast_to(x, (1, 7, 7, 512)))


class ResNet(nnx.Module):
    """Residual network of 3 x 3 convolutions with group normalisation; stages of `widths`, `blocks`
    blocks in each.

    `blocks=1, widths=(64, 128, 256, 512)` is ResNet10 (4,903,242 parameters on three channels with
    10 classes); `blocks=3, widths=(16, 32, 64)` is ResNet20, with `blocks=9` ResNet56.
    """

    def __init__(
        self,
        example_shape: Sequence[int],
        num_classes: int,
        *,
        rngs: nnx.Rngs,
        blocks: int,
        widths: Sequence[int],
    ) -> None:
        _validate.positive_int(blocks=blocks)
        self.stem = _conv(_image(example_shape)[2], widths[0], bias=False, rngs=rngs)
        self.norm = _norm(widths[0], rngs=rngs)
        stages, width = [], widths[0]
        for channels in widths:
            for at in range(blocks):
                stride = 2 if channels != widths[0] and at == 0 else 1
                stages.append(_Block(width, channels, stride, rngs=rngs))
                width = channels
        self.blocks = nnx.List(stages)
        self.logits = nnx.Linear(width, num_classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = nnx.relu(self.norm(self.stem(x[None])))
        for block in self.blocks:
            x = block(x)
        return self.logits(x.mean(axis=(1, 2)))[0]


class _Block(nnx.Module):
    def __init__(self, width: int, channels: int, stride: int, *, rngs: nnx.Rngs) -> None:
        self.conv1 = _conv(width, channels, stride=stride, bias=False, rngs=rngs)
        self.norm1 = _norm(channels, rngs=rngs)
        self.conv2 = _conv(channels, channels, bias=False, rngs=rngs)
        self.norm2 = _norm(channels, rngs=rngs)
        self.project = stride != 1 or width != channels
        if self.project:
            self.conv3 = nnx.Conv(
                width, channels, (1, 1), strides=stride, use_bias=False, rngs=rngs
            )
            self.norm3 = _norm(channels, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        y = self.norm2(self.conv2(nnx.relu(self.norm1(self.conv1(x)))))
        return nnx.relu(y + (self.norm3(self.conv3(x)) if self.project else x))


def _image(shape: Sequence[int], fixed: str | None = None) -> tuple[int, int, int]:
    """The shape, if it is that of an image; `fixed` names a network that wants 32 x 32."""
    if len(shape) != 3 or (fixed is not None and tuple(shape[:2]) != (_SIZE, _SIZE)):
        sides = "height, width" if fixed is None else f"{_SIZE}, {_SIZE}"
        raise ValueError(
            f"Expected example_shape to be [{sides}, channels]{f' for {fixed}' if fixed else ''}, "
            f"got example_shape={tuple(shape)}."
        )
    return shape[0], shape[1], shape[2]


def _conv(
    width: int, channels: int, *, stride: int = 1, bias: bool = True, rngs: nnx.Rngs
) -> nnx.Conv:
    padding = (
        (1, 1),
        (1, 1),
    )  # not "SAME": with a stride that pads to the right only, and no published network does
    return nnx.Conv(
        width, channels, (3, 3), strides=stride, padding=padding, use_bias=bias, rngs=rngs
    )


def _norm(channels: int, *, rngs: nnx.Rngs) -> nnx.GroupNorm:
    return nnx.GroupNorm(channels, num_groups=_GROUPS, rngs=rngs)


def _pooled(x: jax.Array) -> jax.Array:
    return nnx.max_pool(x, (2, 2), (2, 2))


def _dense(hidden: Sequence[nnx.Linear], logits: nnx.Linear, x: jax.Array) -> jax.Array:
    x = x.reshape(1, -1)
    for layer in hidden:
        x = nnx.relu(layer(x))
    return logits(x)[0]
