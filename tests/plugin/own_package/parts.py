"""A data set, a flax model and an attack of one's own."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from fljax import attacks, data


def rings():
    x = np.random.default_rng(7).normal(size=(600, 1, 2, 1)).astype(np.float32)
    y = (np.square(x).sum(axis=(1, 2, 3)) > 1.4).astype(np.int32)  # within a ring, or outside
    return data.Dataset({"x": x[:500], "y": y[:500]}, {"x": x[500:], "y": y[500:]}, 2, "rings")


class Quadratic(nnx.Module):
    def __init__(self, example_shape, num_classes, *, rngs):
        self.logits = nnx.Linear(2, num_classes, rngs=rngs)

    def __call__(self, x):
        return self.logits(4 * jnp.square(x.reshape(-1)))


def votes(scheme, config, *, num_rounds=1):
    def score(key, present):  # one client's bits, one by one
        lies = jax.random.bernoulli(key, scheme.event(config).mechanism.flip, (num_rounds,))
        return jnp.where(present, 1.0, -1.0) * jnp.sum(jnp.where(lies, -1.0, 1.0))

    return attacks.rounds.Game(score, scheme.event(config).repeat(num_rounds), "each bit")
