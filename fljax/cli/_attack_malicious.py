"""What the malicious server of `fljax attack` sends to clients, and how it reads what they send."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax import data
from fljax.attacks import fishing, imprint
from fljax.models import Functional
from fljax.types import PyTree

_BINS, _SCALE = 16, 10.0  # bins for each image of the batch; the layer's share of a clipped upload


def beside(options: Any, dataset: data.Dataset, count: int) -> PyTree | None:
    """The other images of each of `count` batches, of the training split, leaves `[count, B - 1,
    ...]`; None of batches of one.
    """
    if options.batch_size == 1:
        return None
    rng = np.random.default_rng([options.seed, 4])
    rows = rng.integers(0, len(dataset.train["y"]), (count, options.batch_size - 1))
    return {name: jnp.asarray(dataset.train[name][rows]) for name in ("x", "y")}


def sent(options: Any, victim: Functional, dataset: data.Dataset) -> tuple[Functional, Any]:
    """(The model that clients are sent, what an inversion compares with).

    Who fishes calls the class of its image 0, as `relabelled` does. Of batches with more images
    than there are classes it takes those with so much of a feature that one of a class is left.
    """
    if options.attack == "imprint":
        bins = _BINS * options.batch_size
        model = imprint.imprinted(victim, dataset.train["x"], bins, scale=_SCALE)
        return model, model.apply
    classes = dataset.num_classes
    bare = fishing.fished(victim, 0, classes)
    if options.batch_size <= classes:
        return bare, bare.apply
    logits = jax.jit(jax.vmap(victim.apply, (None, 0)))(victim.params, dataset.train["x"])
    least = np.quantile(np.asarray(logits)[:, 0], 1 - classes / options.batch_size)
    return fishing.fished(victim, 0, classes, threshold=float(least)), bare.apply


def relabelled(examples: PyTree, target: jax.Array, num_classes: int) -> PyTree:
    """The same with classes counted from `target` `[T]`: to the head all are alike."""
    y = examples["y"]
    own = target.reshape(-1, *(1,) * (y.ndim - 1))
    return {"x": examples["x"], "y": (y - own) % num_classes}


def read(layers: PyTree, candidates: np.ndarray, box: tuple[float, float] | None) -> np.ndarray:
    """Of each of T uploads of the layer the image that is nearest to any of the candidates, `[T,
    ...]`; NaN where there is none. The other images of a batch are no candidates, so that this is a
    guess, made without the truth.
    """
    flat = candidates.reshape(len(candidates), -1).astype(np.float64)
    kernels, biases = np.asarray(layers["kernel"]), np.asarray(layers["bias"])
    found = np.full((len(kernels), flat.shape[1]), np.nan)
    for place, (kernel, bias) in enumerate(zip(kernels, biases, strict=True)):
        if not (np.isfinite(kernel).all() and np.isfinite(bias).all()):
            continue
        rows = imprint.read(kernel, bias)
        rows = rows[np.isfinite(rows).all(1)]
        if not len(rows):
            continue
        rows = rows if box is None else np.clip(rows, *box)
        far = np.square(rows[:, None] - flat[None]).sum(-1).min(1)
        found[place] = rows[np.argmin(far)]
    return found.reshape(-1, *candidates.shape[1:]).astype(np.float32)
