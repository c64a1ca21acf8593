"""The example behind a gradient without any search: layer by layer, by linear equations.

What goes into a layer obeys two sets of them: the layer makes of it what went into the next, and
its weights' gradient is made of it and of what comes back from the next. From the last layer, whose
gradient is one outer product, the first is reached by one least-squares problem a layer. Where
equations are too few something of the input stays open, and how much is told.

Threat: an observer of one example's gradient, who knows weights and label. The network is a chain
of layers that are linear in their input, with leaky ReLUs between, whose values tell their inputs.

Source: Zhu, Blaschko (2021), "R-GAP: Recursive Gradient Attack on Privacy", arXiv:2010.07733,
  sections 3.2 and 3.4.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import linalg, optimize, special

from fljax import _validate
from fljax.types import PyTree

Layer = Callable[[PyTree, jax.Array], jax.Array]
_NO_RANK = 1e-6  # of the largest pivot: below is float32's rounding
_SCALES = np.geomspace(1e-8, 1 - 1e-9, 4000)  # among which 1 - p of the label is looked for


class Found(NamedTuple):
    """x: the example. missing: of each layer, first to last but one, how many directions of its
    input no equation says anything of; 0 everywhere: all of it is told, to rounding.
    """

    x: np.ndarray
    missing: tuple[int, ...]


def invert(
    layers: Sequence[Layer],
    params: Sequence[PyTree],
    gradients: Sequence[PyTree],
    y: int,
    *,
    shape: tuple[int, ...],
    slope: float = 0.01,
) -> Found:
    """The example, `shape`, behind one example's gradient of softmax cross-entropy.

    Args:
      layers: hashable `(params of the layer, input) -> output`, linear in each but for a bias; the
        last one flattens its input and has params {"kernel": `[size, num_classes]`} and maybe
        "bias".
      params, gradients: of each layer, alike.
      y: the label.
      shape: of the example.
      slope: of the leaky ReLUs between the layers, in (0, 1].

    Raises:
      ValueError: lengths or shapes differ, fewer than two layers, a label or slope out of range, or
        a number that is not finite.
    """
    _check(layers, params, gradients, slope)
    each = [jax.eval_shape(lambda: jnp.zeros(shape, jnp.float32))]
    for layer, weights in zip(layers, params, strict=True):
        each.append(jax.eval_shape(layer, weights, each[-1]))
    kernel = np.asarray(params[-1]["kernel"], np.float64)
    if not 0 <= y < kernel.shape[1]:
        raise ValueError(f"Expected y in [0, {kernel.shape[1]}), got y={y!r}.")
    last = [jnp.asarray(part, jnp.float32) for part in _last(params[-1], gradients[-1], y)]
    after, back = last[0].reshape(each[-2].shape), last[1]
    missing = []
    for at in range(len(layers) - 2, -1, -1):
        _, pull = jax.vjp(layers[at + 1], params[at + 1], after)
        before = jnp.where(after >= 0, after, after / slope)
        back = pull(back)[1] * jnp.where(after >= 0, 1.0, slope)
        found, rank = _input(
            layers[at], params[at], gradients[at], before, back, tuple(each[at].shape)
        )
        missing.append(found.size - rank)
        after = jnp.asarray(found, jnp.float32)
    return Found(np.asarray(after), tuple(missing[::-1]))


def _check(layers: Any, params: Any, gradients: Any, slope: float) -> None:
    """Raises ValueError."""
    if not len(layers) == len(params) == len(gradients) >= 2:
        raise ValueError(
            "Expected layers, params and gradients of one length >= 2, got lengths "
            f"{len(layers)}, {len(params)}, {len(gradients)}."
        )
    _validate.positive(slope=slope)
    if slope > 1:
        raise ValueError(f"Expected slope in (0, 1], got slope={slope!r}.")
    shapes = [[np.shape(leaf) for leaf in jax.tree.leaves(tree)] for tree in (params, gradients)]
    if shapes[0] != shapes[1]:
        raise ValueError(f"Expected gradients of the shapes of params, got {shapes[1]}.")
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients)):
        raise ValueError("Expected gradients of finite numbers, got some that are not.")


def _last(weights: Any, gradient: Any, y: int) -> tuple[np.ndarray, np.ndarray]:
    """(Input, cotangent of the logits) of the last layer, whose kernel's gradient is their outer
    product. The cotangent is the bias's gradient; without a bias its size is what agrees with the
    softmax of the logits that follow from it.
    """
    kernel, moved = (np.asarray(tree["kernel"], np.float64) for tree in (weights, gradient))
    if "bias" in gradient:
        back = np.asarray(gradient["bias"], np.float64)
        return moved @ back / max(float(back @ back), 1e-300), back

    def probs(rest: float) -> np.ndarray:
        """Where the label has 1 - rest."""
        return special.softmax(moved[:, y] / -rest @ kernel)

    def gap(rest: float) -> float:
        return float(1 - rest - probs(rest)[y])

    gaps = np.asarray([gap(rest) for rest in _SCALES])
    turns = np.flatnonzero(np.sign(gaps[:-1]) * np.sign(gaps[1:]) <= 0)
    roots = [optimize.brentq(gap, _SCALES[at], _SCALES[at + 1], xtol=1e-14) for at in turns]
    roots = roots or [float(_SCALES[np.abs(gaps).argmin()])]

    def pair(rest: float) -> tuple[np.ndarray, np.ndarray]:
        back = probs(rest)
        back[y] -= 1
        return moved[:, y] / -rest, back

    off = [float(np.abs(np.outer(*pair(rest)) - moved).sum()) for rest in roots]
    return pair(roots[int(np.argmin(off))])


def _input(
    layer: Layer,
    weights: Any,
    gradient: Any,
    before: jax.Array,
    back: jax.Array,
    shape: tuple[int, ...],
) -> tuple[np.ndarray, int]:
    """(What went into a layer, the rank of the equations): it makes `before` of it, and with `back`
    its weights' gradient.
    """
    told = [np.asarray(leaf, np.float64).reshape(-1) for leaf in jax.tree.leaves(gradient)]
    matrices, sides = [], []
    values = (np.asarray(before).reshape(-1), np.concatenate(told))
    for (slopes, start), side in zip(_linear(layer, shape, weights, back), values, strict=True):
        matrix = np.asarray(slopes, np.float64).reshape(side.size, -1)
        # Gradients may be far smaller than values: both sets of equations count alike.
        size = max(float(np.linalg.norm(matrix)), 1e-300)
        matrices.append(matrix / size)
        sides.append((side - np.asarray(start, np.float64)) / size)
    found, _, rank, _ = linalg.lstsq(
        np.concatenate(matrices), np.concatenate(sides), cond=_NO_RANK, lapack_driver="gelsy"
    )
    return found.reshape(shape), int(rank)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _linear(
    layer: Layer, shape: tuple[int, ...], weights: Any, back: jax.Array
) -> tuple[tuple[jax.Array, jax.Array], ...]:
    """(Derivative by an input, value where that is zero) of what the layer makes of it, and of its
    weights' gradient.
    """

    def forth(x: jax.Array) -> jax.Array:
        return layer(weights, x).reshape(-1)

    def pulled(x: jax.Array) -> jax.Array:
        leaves = jax.tree.leaves(jax.vjp(lambda w: layer(w, x), weights)[1](back)[0])
        return jnp.concatenate([leaf.reshape(-1) for leaf in leaves])

    zero = jnp.zeros(shape, jnp.float32)
    return tuple((jax.jacfwd(make)(zero), make(zero)) for make in (forth, pulled))
