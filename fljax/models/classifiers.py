"""Small classifiers as flax nnx modules. Each takes ONE example and returns its logits
`[num_classes]`.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from fljax import _plugins, _validate
from fljax.models import _keras, decoder, image_nets, layers, others, vision_transformer, weights
from fljax.models import lora as adapter
from fljax.models.functions import Functional, functional
from fljax.types import Params

WEIGHTS = "weights:"  # before the folder of a published decoder
_LARGE = 2**24  # parameters, from which on a decoder computes in bfloat16 and layer by layer anew


class Softmax(nnx.Module):
    """Multinomial logistic regression on the flattened example."""

    def __init__(self, example_shape: Sequence[int], num_classes: int, *, rngs: nnx.Rngs) -> None:
        self.logits = nnx.Linear(math.prod(example_shape), num_classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.logits(x.reshape(-1))


class MLP(nnx.Module):
    """Dense layers with ReLU on the flattened example; `hidden` are their widths."""

    def __init__(
        self,
        example_shape: Sequence[int],
        num_classes: int,
        *,
        rngs: nnx.Rngs,
        hidden: Sequence[int] = (64,),
    ) -> None:
        for width in hidden:
            _validate.positive_int(hidden=width)
        widths = [math.prod(example_shape), *hidden]
        self.hidden = nnx.List(
            [nnx.Linear(*pair, rngs=rngs) for pair in itertools.pairwise(widths)]
        )
        self.logits = nnx.Linear(widths[-1], num_classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x.reshape(-1)
        for layer in self.hidden:
            x = nnx.relu(layer(x))
        return self.logits(x)


class CNN(nnx.Module):
    """Blocks of SAME convolution, ReLU and 2 x 2 max pool on `[H, W, channels]`, then an `MLP`.

    `channels=(32, 64), kernel_size=5` with 62 classes on `[28, 28, 1]` is the FEMNIST CNN of the
    LEAF benchmark (Caldas et al. 2018, arXiv:1812.01097): 6,603,710 parameters with
    `hidden=(2048,)` as in its code, which `create` calls "leaf_cnn"; 1,690,046 with the 512 of
    other federated benchmarks.
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
                "Expected example_shape to be [height, width, channels] with height and width >= "
                f"{shrink} for {len(channels)} pools, got example_shape={tuple(example_shape)}."
            )
        self.implementation = layers.check(implementation)
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


class StackedLSTM(nnx.Module):
    """Text to the next symbol: embedding, LSTM layers of `cells` units, then an `MLP` on the last
    state.

    `cells=(256, 256)` on 80 characters of 80 symbols is the language model of the LEAF benchmark
    (Caldas et al. 2018, arXiv:1812.01097) with one more dense layer, as in Marathe et al. (2022),
    arXiv:2206.03617.
    """

    def __init__(
        self,
        example_shape: Sequence[int],
        num_classes: int,
        *,
        rngs: nnx.Rngs,
        embedding: int = 8,
        cells: Sequence[int] = (64, 64),
        hidden: Sequence[int] = (64,),
    ) -> None:
        _validate.positive_int(embedding=embedding)
        for width in cells:
            _validate.positive_int(cells=width)
        if len(example_shape) != 1 or not cells:
            raise ValueError(
                "Expected example_shape to be [characters] and at least one LSTM layer, got "
                f"example_shape={tuple(example_shape)} and cells={tuple(cells)}."
            )
        self.embedding = nnx.Param(
            nnx.initializers.normal(1.0)(rngs.params(), (num_classes, embedding))
        )
        self.lstm = nnx.List(
            [layers.LSTM(*pair, rngs=rngs) for pair in itertools.pairwise([embedding, *cells])]
        )
        self.head = MLP((cells[-1],), num_classes, rngs=rngs, hidden=hidden)

    def states(self, x: jax.Array) -> jax.Array:
        """What the last LSTM layer holds after each symbol: `[T, cells]`."""
        if not jnp.issubdtype(x.dtype, jnp.integer):
            raise ValueError(
                f"Expected x to hold symbols, integers in [0, num_classes), got dtype {x.dtype}."
            )
        sequence = self.embedding[...][x]
        for layer in self.lstm:
            sequence = layer(sequence)
        return sequence

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.head(self.states(x)[-1])


class TokenLSTM(StackedLSTM):
    """Text to each next symbol: a `StackedLSTM` whose dense layers are asked after every symbol of
    `[T]`, which gives logits `[T, num_classes]`.
    """

    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.vmap(self.head)(self.states(x))


_CLASSES: dict[str, Callable[..., nnx.Module]] = {
    "softmax": Softmax,
    "mlp": MLP,
    "cnn": CNN,
    "leaf_cnn": functools.partial(CNN, channels=(32, 64), kernel_size=5, hidden=(2048,)),
    "lstm": StackedLSTM,
    "token_lstm": TokenLSTM,
    "lenet": image_nets.LeNet,
    "resnet10": functools.partial(image_nets.ResNet, blocks=1, widths=(64, 128, 256, 512)),
    "resnet18": functools.partial(image_nets.ResNet, blocks=2, widths=(64, 128, 256, 512)),
    "resnet20": functools.partial(image_nets.ResNet, blocks=3, widths=(16, 32, 64)),
    "alexnet": image_nets.AlexNet,
    "vgg16": image_nets.VGG16,
    "small_vit": vision_transformer.SmallViT,
    **{f"decoder:{name}": functools.partial(decoder.make, name) for name in decoder.SHAPES},
}
_OPTIONS: dict[str, set[str]] = {
    "mlp": {"hidden"},
    "cnn": {"channels", "kernel_size", "hidden", "implementation"},
    "leaf_cnn": {"implementation"},
    "lstm": {"embedding", "cells", "hidden"},
    "token_lstm": {"embedding", "cells", "hidden"},
    "resnet20": {"blocks"},
}
NAMES = tuple(_CLASSES)
_registry: _plugins.Registry[Callable[..., Any]] = _plugins.Registry(
    "models", "model", _CLASSES, others.check, also=(f"{WEIGHTS}FOLDER",)
)

# Those for images take grey ones without an axis of channels.
_NO_IMAGES = (
    *("softmax", "mlp", "lstm", "token_lstm"),
    *(f"decoder:{name}" for name in decoder.SHAPES),
)


def register(name: str, make: Callable[..., Any]) -> None:
    """Lets `create`, and so `fljax simulate --model NAME`, build a model of one's own.

    A package may instead name `make` under the entry-point group `fljax.models`; a dotted path to
    it works, too.

    Args:
      name: letters, digits, "_" and "."; none of NAMES.
      make: `make(example_shape, num_classes, *, rngs) -> nnx.Module` that gives the logits
        `[num_classes]` of one example, or those of a batch, with initial weights drawn from `rngs`.
        It is given what its signature names: `key` for a class of equinox. Also a linen class or
        module, a class, function or model of keras, what `haiku.transform` returns, or a function
        that returns a `Functional`.

    Raises:
      ValueError: a name that is taken or cannot be one.
    """
    _registry.register(name, make)


def names() -> tuple[str, ...]:
    """NAMES, then those that others brought."""
    return _registry.names()


def listed() -> Iterator[_plugins.Listed]:
    """All names with where they come from; one that cannot be loaded stops no other."""
    return _registry.listed()


def check_name(**given: str) -> None:
    """Raises ValueError, with the argument's name, unless `create` knows the model."""
    _keras.choose_jax()  # before somebody's module imports it
    for argument, name in given.items():
        if not name.startswith(WEIGHTS):
            _registry.check_name(**{argument: name})
            continue
        try:
            weights.shape_of(name.removeprefix(WEIGHTS))
        except ValueError as reason:
            raise ValueError(
                f"Expected {argument} to name the folder of a published decoder, got {name!r}: "
                f"{reason}"
            ) from reason


def is_own(name: str) -> bool:
    """Whether a model is of fljax's own code, whatever its weights."""
    return name in NAMES or name.startswith(WEIGHTS)


def tells_tokens(name: str) -> bool:
    """Whether a model of fljax's own tells each next symbol of a text."""
    return name == "token_lstm" or is_decoder(name)


def is_decoder(name: str) -> bool:
    """Whether a model is a `decoder.Decoder`."""
    return name.startswith(("decoder:", WEIGHTS))


def check_lora(name: str) -> None:
    """Raises ValueError for a model that `create` does not adapt."""
    if not is_own(name):
        raise ValueError(
            "Expected lora=none for a model of one's own, which fljax.models.lora.add adapts "
            f"before it is given, got model={name!r}."
        )


def create(
    name: str,
    *,
    example_shape: Sequence[int],
    num_classes: int,
    key: jax.Array,
    dtype: Any = jnp.float32,
    lora: int | None = None,
    base: Params | None = None,
    **options: Any,
) -> Functional:
    """Builds a model and returns its functional view.

    Args:
      name: "softmax", "mlp", "cnn", "leaf_cnn" (the CNN of LEAF's FEMNIST task, dense layer of
        2048), "lstm", "token_lstm" (logits `[T, num_classes]` of a sequence), "decoder:NAME" of
        `decoder.SHAPES` (logits `[T, num_classes]`, too), "weights:FOLDER" of a decoder as it is
        published (logits `[T, vocabulary]`; see `models.weights`), or one of the networks for
        images:
        "lenet", "resnet10", "resnet18", "resnet20" (group normalisation), "alexnet", "vgg16",
        "small_vit"; or
        one that was registered, or "PACKAGE.MODULE:NAME" of what `register` takes.
      example_shape: shape of one `x`, without a batch axis; those for images want `[height, width]`
        or `[height, width, channels]`, of which alexnet and vgg16 `[32, 32, channels]`,
        small_vit sides that 4 divides; lstms and
        decoders `[characters]` with integers in `[0, num_classes)`.
      num_classes: number of logits. >= 1.
      key: typed key for the initial weights (LeCun normal; biases start at 0).
      dtype: of an example, for models of one's own.
      lora: rank of the matrices that `models.lora.add` puts beside each linear layer, of a model of
        fljax's own; they alone are trained. None: all is trained.
      base: weights in place of the initial ones, like the params of the same model without lora.
      **options: `hidden`: widths of the dense layers (mlp, cnn, lstm). `channels`: widths of the
        convolutions, `kernel_size` (cnn); `implementation`: "native" or "matmul", by default what
        the backend wants (cnns). `embedding`, `cells`: widths of the embedding and of the LSTM
        layers (lstm). `blocks`: of each of three stages (resnet20, where 3 make 20 layers, 9 56).

    Returns:
      `Functional(params, apply)`; `apply(params, x)` gives the float32 logits `[num_classes]` of
      one example.

    Raises:
      ValueError: an argument is out of range, the model has no such option, or base is of another
        model.
    """
    check_name(name=name)
    _validate.positive_int(num_classes=num_classes)
    for size in example_shape:
        _validate.positive_int(example_shape=size)
    _validate.typed_key(key=key)
    check_options(name, options)
    if lora is not None or base is not None:
        check_lora(name)
    shape = tuple(example_shape)
    grey = False
    if name.startswith(WEIGHTS):
        module: nnx.Module = _published(name.removeprefix(WEIGHTS), shape, num_classes)
    else:
        maker = _registry.get(name)
        if name not in NAMES:
            return others.made(maker, example_shape, num_classes, key, options, dtype)
        grey = len(shape) == 2 and name not in _NO_IMAGES
        module = maker((*shape, 1) if grey else shape, num_classes, rngs=nnx.Rngs(key), **options)
    if base is not None:
        _put(module, base, name)
    if lora is not None:
        adapter.add(module, lora, rngs=nnx.Rngs(jax.random.fold_in(key, 1)))
    found = functional(module, batched=False)
    if not grey:
        return found
    return Functional(found.params, lambda params, x: found.apply(params, x[..., None]))


def _published(folder: str, example_shape: tuple[int, ...], num_classes: int) -> nnx.Module:
    """The decoder of a folder, for data of no more symbols than it tells."""
    shape = weights.shape_of(folder)
    if len(example_shape) != 1 or num_classes > shape.vocabulary:
        raise ValueError(
            f"Expected examples [tokens] of at most {shape.vocabulary} symbols, as the model in "
            f"{folder} has, got shape {list(example_shape)} of {num_classes}."
        )
    small = shape.num_params < _LARGE
    return weights.load(folder, dtype=jnp.float32 if small else jnp.bfloat16, remat=not small)


def _put(module: nnx.Module, base: Params, name: str) -> None:
    """The arrays of `base` in place of the module's parameters."""
    state = nnx.state(module, nnx.Param)
    left = len(jax.tree.leaves(base))
    for path, variable in nnx.to_flat_state(state):
        found: Any = base
        for step in map(str, path):
            found = found.get(step) if isinstance(found, Mapping) else None
        if found is None or jnp.shape(found) != variable.shape:
            raise ValueError(
                f"Expected base to have {'.'.join(map(str, path))} of {list(variable.shape)}, as "
                f"{name!r} has, got {None if found is None else list(jnp.shape(found))}."
            )
        variable.set_value(jnp.asarray(found, variable.dtype))
        left -= 1
    if left:
        raise ValueError(f"Expected base to have the arrays of {name!r} alone, got {left} more.")
    nnx.update(module, state)


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """Raises ValueError for a size that a model of fljax's own does not have."""
    allowed = sorted(_OPTIONS.get(name, set()))
    unknown = sorted(set(options) - set(allowed))
    if unknown and is_own(name):
        raise ValueError(
            f"Expected options of {name} to be among {allowed}, got "
            f"{unknown[0]}={options[unknown[0]]!r}."
        )
