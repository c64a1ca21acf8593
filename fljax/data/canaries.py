"""Canaries: privacy units whose gradient is designed, so that the best test for them is known.

A canary is an example with a linear loss. Its gradient is the same whatever the parameters are, and
it meets clipping, averaging, sampling and noise like any other example: a scheme needs no change to
be audited. In the implicit matrix of gradients canaries are rows: `rmatvec` adds them to a clipped
sum, `matvec` scores what was released.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fljax_kernels
from fljax import _validate
from fljax.types import Batch, LossFn, Params

CANARY = "canary"
Direction = Callable[[Params, jax.Array], Params]


def axes(
    num_canaries: int, params: Params, *, l2_norm: float, places: np.ndarray | None = None
) -> Direction:
    """Canary i moves one parameter, a different one for each, by `l2_norm`: exactly orthogonal, and
    sparse.

    Args:
      num_canaries: >= 1, at most as many as parameters.
      params: for their shapes.
      l2_norm: of each gradient, > 0; above the clipping norm, so that a canary counts fully.
      places: int `[num_canaries]`, which of all parameters, counted leaf after leaf, such as
        `quiet` finds. None: spread evenly.

    Raises:
      ValueError: a number is out of range, or places are not so many different parameters.
    """
    _validate.positive_int(num_canaries=num_canaries)
    _validate.positive(l2_norm=l2_norm)
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    if num_canaries > size:
        raise ValueError(
            f"Expected num_canaries <= {size}, the number of parameters, got "
            f"num_canaries={num_canaries}."
        )
    at = np.arange(num_canaries) * (size // num_canaries) if places is None else places
    if np.shape(at) != (num_canaries,) or np.unique(at).size != num_canaries:
        raise ValueError(
            f"Expected places of {num_canaries} different parameters, got places={places!r}."
        )
    if not (np.min(at) >= 0 and np.max(at) < size):
        raise ValueError(f"Expected places in [0, {size}), got places={places!r}.")
    table = jnp.asarray(at, jnp.int32)

    def direction(params: Params, canary: jax.Array) -> Params:
        leaves, tree = jax.tree.flatten(params)
        place, found = table[canary], []
        for leaf in leaves:
            found.append(
                jnp.where(jnp.arange(leaf.size) == place, l2_norm, 0.0)
                .reshape(leaf.shape)
                .astype(leaf.dtype)
            )
            place = place - leaf.size
        return jax.tree.unflatten(tree, found)

    return direction


def sphere(key: jax.Array, *, l2_norm: float) -> Direction:
    """Canary i has a random direction, drawn from `key` and i: nearly orthogonal where parameters
    are many.

    Raises:
      ValueError: `key` is no typed key, or l2_norm is not > 0.
    """
    _validate.typed_key(key=key)
    _validate.positive(l2_norm=l2_norm)

    def direction(params: Params, canary: jax.Array) -> Params:
        leaves, tree = jax.tree.flatten(params)
        keys = jax.random.split(jax.random.fold_in(key, canary), len(leaves))
        drawn = [
            jax.random.normal(k, leaf.shape, jnp.float32)
            for k, leaf in zip(keys, leaves, strict=True)
        ]
        norm = jnp.sqrt(sum((jnp.vdot(v, v) for v in drawn), jnp.zeros(())))
        return jax.tree.unflatten(
            tree,
            [
                (v * (l2_norm / norm)).astype(leaf.dtype)
                for v, leaf in zip(drawn, leaves, strict=True)
            ],
        )

    return direction


def quiet(loss: LossFn, params: Params, examples: Batch, num_canaries: int) -> np.ndarray:
    """The parameters along which examples pull least, int `[num_canaries]`: there a canary is
    hidden by noise and by little else.

    Args:
      loss: of one example. params: where it is looked at. examples: leaves `[M, ...]`.
      num_canaries: at most as many as parameters.

    Raises:
      ValueError: more canaries than parameters.
    """
    _validate.positive_int(num_canaries=num_canaries)
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    if num_canaries > size:
        raise ValueError(
            f"Expected num_canaries <= {size}, the number of parameters, got "
            f"num_canaries={num_canaries}."
        )

    def add(total: jax.Array, example: Any) -> tuple[jax.Array, None]:
        leaves = jax.tree.leaves(jax.grad(loss)(params, example))
        rows = [jnp.square(leaf.astype(jnp.float32)).ravel() for leaf in leaves]
        return total + jnp.concatenate(rows), None

    pulls = jax.jit(lambda examples: jax.lax.scan(add, jnp.zeros(size), examples)[0])(examples)
    return np.argsort(np.asarray(pulls), kind="stable")[:num_canaries]


def with_canaries(loss: LossFn, direction: Direction) -> LossFn:
    """`loss` for examples that carry CANARY, int `[]`: -1 for an ordinary one, else which canary it
    is.

    A canary's loss is 0, and its gradient the direction. Its other entries do not matter, as long
    as `loss` and its gradient are finite there.
    """

    def combined(params: Params, example: Any) -> jax.Array:
        canary = example[CANARY]
        rows = direction(jax.lax.stop_gradient(params), jnp.maximum(canary, 0))
        pairs = zip(jax.tree.leaves(params), jax.tree.leaves(rows), strict=True)
        linear = sum((jnp.vdot(p, r).astype(jnp.float32) for p, r in pairs), jnp.zeros(()))
        ordinary = loss(params, {name: value for name, value in example.items() if name != CANARY})
        linear = linear - jax.lax.stop_gradient(linear)
        return jnp.where(canary >= 0, linear, ordinary.astype(jnp.float32))

    return combined


def without_canaries(loss: LossFn) -> LossFn:
    """`loss` for examples that carry CANARY, of which canaries count nothing."""

    def combined(params: Params, example: Any) -> jax.Array:
        ordinary = loss(params, {name: value for name, value in example.items() if name != CANARY})
        return jnp.where(example[CANARY] >= 0, 0.0, ordinary.astype(jnp.float32))

    return combined


def _rows(direction: Direction, params: Params, ids: jax.Array) -> Any:
    """The implicit matrix whose rows are the canaries' gradients."""
    loss = with_canaries(lambda params, example: jnp.zeros(()), direction)
    return fljax_kernels.per_example_grads(
        loss, method="microbatch", microbatch_size=min(64, len(ids))
    )(params, {CANARY: ids})


def insert(
    clipped_sum: Params, direction: Direction, params: Params, ids: jax.Array, included: jax.Array
) -> Params:
    """The sum with the canaries `ids` `[m]` added where `included` `[m]`: what it would be had they
    been there.

    For a sum that clips each unit: give directions of the clipping norm.
    """
    added = _rows(direction, params, ids).rmatvec(included.astype(jnp.float32))
    return jax.tree.map(jnp.add, clipped_sum, added)


def scores(released: Params, direction: Direction, params: Params, ids: jax.Array) -> jax.Array:
    """<canary, released>, `[m]`: the likelihood-ratio statistic of each canary under equal
    independent noise.
    """
    return _rows(direction, params, ids).matvec(released)
