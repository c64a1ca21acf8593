"""Losses that draw: `loss(params, example, key)`, for dropout or augmentation.

A loss says that it wants a key by the name of its third parameter, `key`. The key is a function of
the run's key, the client, its step and the example's place among the client's own: the same bits on
any number of devices, in chunks of any size, from memory or from disk. A key travels with its
example, so that per-example gradients see it as data, and clipping bounds what an example adds
whatever the loss has drawn.
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax.types import Batch, Example, LossFn, Params
from fljax_kernels import _threefry  # the bits of jax.random, without its loops on a CPU
from fljax_kernels.per_example import one_example

_STREAM = 2**31  # other draws from the same key fold in, or count, numbers below this one


class Drawing(NamedTuple):
    """An example, or a batch, with a key for each."""

    example: Example
    key: jax.Array


def draws(loss: Callable[..., Any]) -> bool:
    """Whether the loss wants a key: its third parameter is named `key`."""
    try:
        names = list(inspect.signature(loss).parameters)
    except (TypeError, ValueError):  # some callables have no signature
        return False
    return len(names) >= 3 and names[2] == "key"


def of_one(loss: Callable[..., Any]) -> LossFn:
    """The loss as a function of parameters and one example; of a `Drawing` where it wants a key.

    Raises:
      ValueError: it is neither `loss(params, example)` nor `loss(params, example, key)`.
    """
    if not draws(loss):
        one_example.check_signature(loss)
        return loss

    def of_drawing(params: Params, drawing: Drawing) -> jax.Array:
        value: jax.Array = loss(params, drawing.example, drawing.key)
        return value

    return of_drawing


def settled(loss: Callable[..., Any]) -> LossFn:
    """`(params, example) -> []` of any loss, with one fixed key: to measure a model by, not to
    train it.
    """
    if not draws(loss):
        return loss

    def of_example(params: Params, example: Example) -> jax.Array:
        value: jax.Array = loss(params, example, jax.random.key(0))
        return value

    return of_example


def keys(key: jax.Array, step: Any, places: jax.Array) -> jax.Array:
    """Keys `[B]` of examples at `places` `[B]` of a client's row, in one of its steps.

    Args:
      key: of the client in the round; the stream that is taken from it serves nothing else.
      step: integer `[]` >= 0.
      places: int32, >= 0.
    """
    root = _threefry.fold_in(key, jnp.asarray(step, jnp.uint32) + np.uint32(_STREAM))
    return jax.vmap(lambda place: _threefry.fold_in(root, place))(places.astype(jnp.uint32))


def drawing(loss: Callable[..., Any], batch: Batch, key: jax.Array, step: Any, places: Any) -> Any:
    """The batch as `of_one(loss)` wants it; places below 0 are padding."""
    return Drawing(batch, keys(key, step, jnp.maximum(places, 0))) if draws(loss) else batch
