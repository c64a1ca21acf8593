"""The deterministic model of the specification's section 6.1, and networks of several kinds, all in
float64.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from fljax import models

WIDTHS = (4, 5, 3, 2)
R1 = 0.5 + 0.3 * np.arange(1, 6)
S1 = 1.7 - 0.2 * np.arange(1, 6)
R2 = 0.8 + 0.25 * np.arange(1, 4)
S2 = 1.9 - 0.35 * np.arange(1, 4)
ADDITIVE = np.array([1.4 * 0.5, -0.5 * 2.2])


def weights(bias=False):
    params = {}
    for k, (n_in, n_out) in enumerate(itertools.pairwise(WIDTHS), 1):
        i, j = np.arange(1, n_out + 1)[:, None], np.arange(1, n_in + 1)[None, :]
        params[f"w{k}"] = np.sin(k + 1.3 * i + 0.7 * j)
        if bias:
            params[f"b{k}"] = 0.1 * np.cos(k + np.arange(1, n_out + 1))
    return params


def apply(params, x):
    for k in (1, 2, 3):
        x = params[f"w{k}"] @ x
        if f"b{k}" in params:
            x = x + params[f"b{k}"]
        if k < 3:
            x = jax.nn.relu(x)
    return x


def samples(first, count):
    """Batch of the samples b = first, ..., numbered from 1."""
    b = np.arange(first, first + count)
    x = np.cos(0.5 * b[:, None] * np.arange(1, 5)[None])
    return {"x": x, "y": np.asarray((b - 1) % 2, np.int32)}


def true_loss(apply, c=0.5):
    def loss(params, batch):
        outputs = jax.vmap(apply, (None, 0))(params, batch["x"])
        targets = jax.nn.one_hot(batch["y"], outputs.shape[1], dtype=outputs.dtype)
        return c * jnp.mean(jnp.sum((outputs - targets) ** 2, axis=1))

    return loss


class Residual(nnx.Module):
    """Convolutions with stride, skips with and without projection, leaky ReLU, affine layers, both
    pools.
    """

    def __init__(self, rngs):
        def conv(i, o, k=3, s=1):
            return nnx.Conv(i, o, (k, k), strides=s, rngs=rngs)

        self.stem, self.a, self.b = conv(1, 4), conv(4, 4), conv(4, 4)
        self.c, self.d, self.skip = conv(4, 6, s=2), conv(6, 6), conv(4, 6, 1, 2)
        self.gain = nnx.Param(jnp.linspace(0.5, 1.5, 4))
        self.shift = nnx.Param(jnp.linspace(-0.2, 0.2, 4))
        self.logits = nnx.Linear(6, 3, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.stem(x))
        y = (
            self.b(nnx.leaky_relu(self.a(x))) * self.gain[...][None, None, None]
            + self.shift[...][None, None, None]
        )
        x = nnx.relu(x + y)
        x = nnx.relu(self.skip(x) + self.d(nnx.relu(self.c(x))))
        x = nnx.max_pool(x, (2, 2), (2, 2))
        return self.logits(x.mean((1, 2)))


def dense_concatenation(params, x):
    """Concatenations of a layer's fresh outputs with numbers that have passed a sum."""
    first = jax.nn.relu(params["a"] @ x)
    summed = first + jax.nn.relu(params["b"] @ first)
    joined = jnp.concatenate([summed, jax.nn.relu(params["c"] @ summed)])
    return params["o"] @ jax.nn.relu(params["d"] @ joined)


def network(name):
    """(params in float64 away from zero biases, apply, batch of 5)."""
    if name == "concatenation":
        shapes = {"a": (4, 3), "b": (4, 4), "c": (5, 4), "d": (6, 9), "o": (3, 6)}
        keys = jax.random.split(jax.random.key(2), len(shapes) + 1)
        params = {
            n: jax.random.normal(k, s, jnp.float64)
            for k, (n, s) in zip(keys[1:], shapes.items(), strict=True)
        }
        x = jax.random.normal(keys[0], (5, 3), jnp.float64)
        return params, dense_concatenation, {"x": x, "y": jnp.arange(5, dtype=jnp.int32) % 3}
    if name == "residual":
        model = models.functional(Residual(nnx.Rngs(0)))
        shape = (8, 8, 1)
    else:
        shape = (8, 8, 1)
        options = {"channels": (3, 4), "hidden": (6,), "implementation": "matmul"}
        model = models.create(
            name, example_shape=shape, num_classes=3, key=jax.random.key(0), **options
        )
    keys = iter(jax.random.split(jax.random.key(1), 100))
    params = jax.tree.map(
        lambda p: p.astype(jnp.float64) + 0.1 * jax.random.normal(next(keys), p.shape, jnp.float64),
        model.params,
    )
    x = jax.random.normal(next(keys), (5, *shape), jnp.float64)
    return params, model.apply, {"x": x, "y": jnp.arange(5, dtype=jnp.int32) % 3}
