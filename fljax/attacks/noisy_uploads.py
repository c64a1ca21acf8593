"""A channel of parameters attacked at its sharpest: records read off noisy gradients of a linear
model.

The attacker knows the label, hence the direction among classes that the first gradient of a linear
model lies in, and reads along it the record, scaled to the clip norm, behind the upload's noise.
Records of the same variance in all directions leave such noise the most to tell. What is made of
them is as in `noisy_records`.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax import models
from fljax.attacks import reconstruction
from fljax.attacks.noisy_records import World
from fljax.data import Dataset

_RECORDS, _CLASSES = 1600, 10


def records(side: int) -> Dataset:
    """Images `[N, side, side, 1]` of independent normal pixels, with labels that say nothing."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(_RECORDS, side, side, 1)).astype(np.float32)
    examples = {"x": x, "y": rng.integers(0, _CLASSES, _RECORDS).astype(np.int32)}
    return Dataset(examples, examples, _CLASSES, "normals", covariance=np.eye(side * side))


def worlds(name: str, config: Any, key: jax.Array, dataset: Dataset) -> tuple[World, ...]:
    """Rounds of a scheme whose uploads have noise, each with one record.

    Args:
      name, config: the scheme.
      key: of the rounds.
      dataset: of `records`; the held-out ones are attacked.
    """
    x, y = dataset.test["x"], dataset.test["y"]
    flat = x.astype(np.float64).reshape(len(x), -1)
    params = {
        "kernel": jnp.zeros((flat.shape[1], dataset.num_classes)),
        "bias": jnp.zeros(dataset.num_classes),
    }
    loss = models.softmax_cross_entropy(
        lambda params, x: x.reshape(-1) @ params["kernel"] + params["bias"]
    )
    examples = {"x": jnp.asarray(x), "y": jnp.asarray(y)}
    away = 1 / dataset.num_classes - np.eye(dataset.num_classes)[y]
    away /= np.linalg.norm(away, axis=1, keepdims=True)

    def told(played: Any, key: jax.Array) -> np.ndarray:
        every = jax.random.split(key, len(x))
        moved = reconstruction.updates(name, played, loss, params, examples, every, dataset)
        return np.einsum("tdk,tk->td", np.asarray(moved["kernel"], np.float64), away)

    keys = jax.random.split(key)
    noisy = told(config, keys[0])
    # Noise a million times less than the signal in each number: none, but clipped all the same.
    next_to_none = 14.0 * sum(leaf.size for leaf in params.values())
    bare = told(dataclasses.replace(config, nats=next_to_none), keys[1])
    scale = float(np.sum(bare * flat) / np.sum(np.square(bare)))
    straight = np.eye(flat.shape[1])
    return (World(flat, scale * noisy, scale * bare, dataset.covariance, None, straight),)
