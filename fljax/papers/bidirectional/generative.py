"""A search among the images that a generator makes: first over its latent vector, then over the
features of each layer on the way to the image, from where the last search ended; of all those the
image whose gradient fits best is kept.

The paper's attack has a GAN that was trained on photographs, and keeps features near where a search
began. Here the generator is the decoder of an autoencoder, trained on public examples of the
victims' kind, and nothing keeps them: an image is in the decoder's box whatever they are.

Source: Fang et al. (2023), "GIFD: A Generative Gradient Inversion Method with Feature Domain
Optimization", arXiv:2308.04699.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax import models
from fljax.attacks import _descent, gradient_inversion
from fljax.models.functions import Apply
from fljax.types import Params

LATENT, WIDTHS = 16, (64, 128)
STEPS, BATCH = 1500, 64
SEARCH = gradient_inversion.Settings(
    tv_weight=0.0, box=None, signed=False, learning_rate=0.05, num_iterations=150
)

Layers = list[tuple[jax.Array, jax.Array]]  # weights `[in, out]`, biases `[out]`


class Generator(NamedTuple):
    """layers: from features `[LATENT]` with mean 0 and variance 1 to an image, ReLU between them.
    box: of the image's values. shape: of an image.
    """

    layers: Layers
    box: tuple[float, float]
    shape: tuple[int, ...]

    def image(self, features: jax.Array, depth: int) -> jax.Array:
        """Of what goes into layer `depth`."""
        low, high = self.box
        for at, (weights, bias) in enumerate(self.layers[depth:], depth):
            features = features @ weights + bias
            if at < len(self.layers) - 1:
                features = jax.nn.relu(features)
        return (low + (high - low) * jax.nn.sigmoid(features)).reshape(self.shape)


def fit(public: np.ndarray, key: jax.Array, box: tuple[float, float]) -> Generator:
    """The decoder of an autoencoder of examples `[N, ...]` with values in `box`."""
    rows = jnp.asarray(public, jnp.float32).reshape(len(public), -1)
    down = (rows.shape[1], *reversed(WIDTHS), LATENT)
    up = (LATENT, *WIDTHS, rows.shape[1])
    keys = jax.random.split(key, 3)

    def fresh(widths: tuple[int, ...], key: jax.Array) -> Layers:
        return [
            (jax.random.normal(one, (a, b)) * math.sqrt(2 / a), jnp.zeros(b))
            for one, a, b in zip(
                jax.random.split(key, len(widths) - 1), widths[:-1], widths[1:], strict=True
            )
        ]

    def latent(layers: Layers, x: jax.Array) -> jax.Array:
        for at, (weights, bias) in enumerate(layers):
            x = x @ weights + bias[None]
            x = jax.nn.relu(x) if at < len(layers) - 1 else x
        # Whitened over the batch, number by number, so that the search knows what is likely.
        return (x - x.mean(axis=0, keepdims=True)) / (x.std(axis=0, keepdims=True) + 1e-3)

    def loss(both: tuple[Layers, Layers], x: jax.Array) -> jax.Array:
        made = Generator(both[1], box, x.shape[1:])
        return jnp.mean((jax.vmap(lambda z: made.image(z, 0))(latent(both[0], x)) - x) ** 2)

    @jax.jit
    def trained(both: tuple[Layers, Layers], key: jax.Array) -> tuple[Layers, Layers]:
        def step(both: tuple[Layers, Layers], key: jax.Array) -> Any:
            x = rows[jax.random.randint(key, (BATCH,), 0, len(rows))]
            return jax.value_and_grad(loss)(both, x)

        rates = np.full(STEPS, 2e-3)
        return _descent.adam(step, both, rates, jax.random.split(key, STEPS))[0]

    _, layers = trained((fresh(down, keys[0]), fresh(up, keys[1])), keys[2])
    return Generator(layers, box, tuple(np.shape(public)[1:]))


def search(
    model: models.Functional,
    generator: Generator,
    recovered: Params,
    y: jax.Array,
    key: jax.Array,
    settings: gradient_inversion.Settings = SEARCH,
) -> jax.Array:
    """The images `[T, ...]` of the generator, or of features near its own, whose gradients come
    closest to those of batches of one.

    Args:
      recovered: each leaf `[T, ...]`. y: labels `[T]`. key: for the starts.
    """
    shape = generator.shape
    return _search(model.apply, settings, shape, generator.box)(
        model.params, generator.layers, recovered, y, key
    )


@functools.lru_cache(maxsize=8)
def _search(
    apply: Apply,
    settings: gradient_inversion.Settings,
    shape: tuple[int, ...],
    box: tuple[float, float],
) -> Callable[..., jax.Array]:
    observe = gradient_inversion.gradient(models.squared_error(apply))

    @jax.jit
    def run(params: Params, layers: Layers, recovered: Params, y: jax.Array, key: Any) -> jax.Array:
        generator = Generator(layers, box, shape)
        size = jax.eval_shape(apply, params, jax.ShapeDtypeStruct(shape, jnp.float32)).shape[0]
        rows = jax.nn.one_hot(y, size)[:, None]
        starts = jnp.zeros((len(y), LATENT))
        best = jnp.zeros((len(y), *shape))
        least = jnp.full(len(y), jnp.inf)
        keys = jax.random.split(key, len(layers))
        for depth, (weights, bias) in enumerate(layers):
            make = jax.vmap(functools.partial(generator.image, depth=depth))

            def look(params: Params, features: jax.Array, y: jax.Array, make: Any = make) -> Params:
                return observe(params, make(features), y)

            def one(
                target: Params, y: jax.Array, start: jax.Array, key: jax.Array, look: Any = look
            ) -> Any:
                upload = jax.tree.map(lambda leaf: leaf[None], target)
                found = gradient_inversion.invert(
                    look,
                    params,
                    upload,
                    y[None],
                    key,
                    shape=(1, *start.shape),
                    settings=settings,
                    start=start[None],
                )
                return found.x[0, 0], found.loss[0]

            each = jax.random.split(keys[depth], len(y))
            features, loss = jax.vmap(one)(recovered, rows, starts, each)
            better = (loss < least).reshape(-1, *(1,) * len(shape))
            best, least = jnp.where(better, make(features), best), jnp.minimum(loss, least)
            starts = jax.nn.relu(features @ weights + bias[None])
        return best

    return run
