"""The image of `fljax attack` off a first layer that is dense, without a search."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax import models
from fljax.attacks import analytic

_PROBES = 4
_ROUNDING = 1e-3  # of values near 1, of which float32 sums thousands; another layer's are not near


def layer(model: models.Functional, shape: tuple[int, ...], num_classes: int) -> Any:
    """The path of the dense layer with a bias that reads an image flat: the one whose gradient
    gives back images that are drawn at random.

    Raises:
      ValueError: the model has none.
    """
    leaves = dict(jax.tree_util.tree_leaves_with_path(model.params))
    found = [
        path[:-1]
        for path, leaf in leaves.items()
        if path and path[-1] == jax.tree_util.DictKey("kernel")
        if leaf.ndim == 2 and len(leaf) == math.prod(shape)
        if _of(path[:-1], "bias") in leaves
    ]
    if found:  # by one program, whatever their number
        keys = jax.random.split(jax.random.key(0, impl="threefry2x32"), 2)
        x = jax.random.normal(keys[0], (_PROBES, *shape))
        y = jax.random.randint(keys[1], (_PROBES,), 0, num_classes)
        loss = models.softmax_cross_entropy(model.apply)
        gradients = jax.jit(jax.vmap(jax.grad(loss), (None, 0)))(model.params, {"x": x, "y": y})
        for path in found:
            if np.abs(_inputs(gradients, path) - x.reshape(_PROBES, -1)).max() < _ROUNDING:
                return path
    raise ValueError(
        "Expected a model with first_dense whose first layer reads an image flat and has a bias, "
        "as mlp, got another."
    )


def read(here: Any, together: Any, box: tuple[float, float] | None) -> np.ndarray:
    """The images behind uploads; NaN where one is not finite or its layer has no gradient."""
    found = _inputs(together, here.first_dense).reshape(-1, *here.truth.shape[1:])
    return found if box is None else np.clip(found, *box)


def _of(path: tuple[Any, ...], name: str) -> tuple[Any, ...]:
    return (*path, jax.tree_util.DictKey(name))


def _inputs(gradients: Any, path: Any) -> np.ndarray:
    """Of gradients with an axis before their own, of each what the layer had read, flat."""
    leaves = dict(jax.tree_util.tree_leaves_with_path(gradients))
    kernel, bias = (jnp.asarray(leaves[_of(path, name)]) for name in ("kernel", "bias"))
    return np.asarray(jax.vmap(analytic.first_dense)(kernel, bias))
