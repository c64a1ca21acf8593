"""A data set and a flax model of one's own."""

import jax.numpy as jnp
import numpy as np
from flax import nnx

from fljax import data


def rings():
    """Two rings around the origin, 600 points: class 0 inside, class 1 outside."""
    rng = np.random.default_rng(7)
    y = rng.integers(0, 2, 600).astype(np.int32)
    angle, radius = rng.uniform(0, 2 * np.pi, 600), 0.2 + 0.3 * y + rng.uniform(0, 0.1, 600)
    x = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).astype(np.float32)[:, None, :, None]
    return data.Dataset({"x": x[:500], "y": y[:500]}, {"x": x[500:], "y": y[500:]}, 2, "rings")


class Quadratic(nnx.Module):
    def __init__(self, example_shape, num_classes, *, rngs):
        self.logits = nnx.Linear(2, num_classes, rngs=rngs)

    def __call__(self, x):
        return self.logits(4 * jnp.square(x.reshape(-1)))
