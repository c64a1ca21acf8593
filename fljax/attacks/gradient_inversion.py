"""Reconstruction of training examples from what a client sends, by optimisation: all targets and
restarts at once.

The attacker knows the model, the loss, how the upload is computed from the client's examples, and
the upload. It looks for examples that would give the same upload. What defends the upload
(clipping, noise) needs no modelling: the observation is any pytree of arrays.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fljax_kernels
from fljax import _validate
from fljax.attacks import _descent
from fljax.types import LossFn, Params, PyTree

Observe = Callable[[Params, jax.Array, jax.Array], PyTree]
_DECAY_AT = (3 / 8, 5 / 8, 7 / 8)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """How to search. The defaults are those of inverting gradients (arXiv:2003.14053), with fewer
    iterations.

    Raises:
      ValueError: a number is out of its range.
    """

    distance: Literal["cosine", "l2", "tag"] = "cosine"
    """Between uploads: 1 - cosine; the sum of squares (DLG, arXiv:1906.08935); or that plus
    l1_weight times the sum of absolute values (TAG, arXiv:2103.06819).
    """
    l1_weight: float = 0.01
    """Of the distance "tag"."""
    tv_weight: float = 1e-4
    """Weight of the mean absolute difference of neighbouring pixels."""
    learning_rate: float = 0.1
    """Of Adam; times 0.1 at 3/8, 5/8 and 7/8 of the iterations."""
    optimizer: Literal["adam", "lbfgs"] = "adam"
    """lbfgs: DLG's, which takes a search along each direction in place of learning_rate and signed,
    and clamps to the box at its end alone.
    """
    num_iterations: int = 1000
    """Steps of Adam, or of L-BFGS."""
    signed: bool = True
    """Adam sees the sign of the gradient only."""
    num_restarts: int = 1
    """Random starts of each target; the one with the least loss is kept."""
    box: tuple[float, float] | None = (0.0, 1.0)
    """Range of the examples' values, which each step clamps to. None: no clamp."""
    fit_labels: bool = False
    """Look for the labels as well, as logits beside the examples (DLG). The start then counts for
    nothing.
    """

    def __post_init__(self) -> None:
        _validate.one_of(("cosine", "l2", "tag"), distance=self.distance)
        _validate.one_of(("adam", "lbfgs"), optimizer=self.optimizer)
        _validate.non_negative(l1_weight=self.l1_weight, tv_weight=self.tv_weight)
        _validate.positive(learning_rate=self.learning_rate)
        _validate.positive_int(num_iterations=self.num_iterations, num_restarts=self.num_restarts)
        if self.box is not None and not self.box[0] < self.box[1]:
            raise ValueError(
                f"Expected box to be (low, high) with low < high, got box={self.box!r}."
            )


class Found(NamedTuple):
    """x: `[T, ...]` reconstructions, y: their labels as probabilities; loss: `[T]`, of the restart
    that was kept.

    losses: `[T, restarts]`.
    """

    x: jax.Array
    y: jax.Array
    loss: jax.Array
    losses: jax.Array


def soft_cross_entropy(apply: Callable[[Params, Any], jax.Array]) -> LossFn:
    """`loss(params, {"x", "y"})` with labels as probabilities `[num_classes]`: differentiable in
    them too.
    """

    def loss(params: Params, example: Any) -> jax.Array:
        return -jnp.vdot(example["y"], jax.nn.log_softmax(apply(params, example["x"])))

    return loss


def gradient(loss: LossFn) -> Observe:
    """The upload is the gradient of the mean loss over the batch `[B]`."""
    # The search is a loop, where XLA on a CPU is slow at convolutions, and at their second
    # derivatives most of all.
    loss = fljax_kernels.loop_friendly(loss, inside_loop=True)

    def observe(params: Params, x: jax.Array, y: jax.Array) -> PyTree:
        mean = lambda p: jnp.mean(jax.vmap(loss, (None, 0))(p, {"x": x, "y": y}))
        return jax.grad(mean)(params)

    return observe


def local_update(
    loss: LossFn, *, learning_rate: float, batch_size: int, num_epochs: int = 1
) -> Observe:
    """The upload is server_params - client_params after SGD over the `[B]` examples in their order,
    unrolled.

    The attacker takes the order as given; its reconstruction is in an order of its own anyway.

    Args:
      learning_rate: > 0. batch_size: of a step, which must divide B. num_epochs: passes over the
        examples.

    Raises:
      ValueError: a number is out of range, or (while tracing) batch_size does not divide B.
    """
    _validate.positive(learning_rate=learning_rate)
    _validate.positive_int(batch_size=batch_size, num_epochs=num_epochs)
    step_gradient = gradient(loss)

    def observe(params: Params, x: jax.Array, y: jax.Array) -> PyTree:
        if len(x) % batch_size:
            raise ValueError(
                f"Expected batch_size to divide the {len(x)} examples, got batch_size={batch_size}."
            )
        now = params
        for _ in range(num_epochs):
            for at in range(0, len(x), batch_size):
                part = slice(at, at + batch_size)
                grads = step_gradient(now, x[part], y[part])
                now = jax.tree.map(lambda p, g: p - learning_rate * g, now, grads)
        return jax.tree.map(jnp.subtract, params, now)

    return observe


def aggregate(observe: Observe) -> Observe:
    """The upload is the mean over users: x and y get another leading axis, `[U, B, ...]`."""

    def mean(params: Params, x: jax.Array, y: jax.Array) -> PyTree:
        return jax.tree.map(
            lambda leaf: jnp.mean(leaf, 0), jax.vmap(observe, (None, 0, 0))(params, x, y)
        )

    return mean


def total_variation(x: jax.Array) -> jax.Array:
    """Mean absolute difference of neighbours along the two axes before the last, `[]`; x is `[...,
    H, W, channels]`.
    """
    rows, columns = jnp.diff(x, axis=-3), jnp.diff(x, axis=-2)
    return sum((jnp.mean(jnp.abs(d)) for d in (rows, columns) if d.size), jnp.zeros((), x.dtype))


def invert(
    observe: Observe,
    params: Params,
    observed: PyTree,
    y: jax.Array,
    key: jax.Array,
    *,
    shape: tuple[int, ...],
    settings: Settings = Settings(),
    start: jax.Array | None = None,
) -> Found:
    """Reconstructs the examples of T uploads. Pure; to be jitted by the caller, with `shape` and
    `settings` static.

    Threat: an observer of the upload (an honest but curious server, or whoever reads the traffic)
    which knows `params`, the labels unless they are fitted, how many examples there were, and how
    clients compute.

    Args:
      observe: what an upload would be, `(params, x, y) -> pytree`.
      params: of the model, the same for all targets.
      observed: the uploads, each leaf with a leading axis T.
      y: labels as probabilities `[T, ..., num_classes]`, or what `observe` takes; with fit_labels
        its shape counts.
      key: for the starts.
      shape: of the examples behind one upload: `[B, H, W, channels]`, with users before B for an
        aggregate, or `[B, length, embedding]`.
      settings: of the search.
      start: where to look first, of `shape`: every restart begins there, moved at random by at most
        a twentieth of the box's length. None: anywhere in the box. Deep networks on small images
        have local minima everywhere, and a mean of public examples is a better start than noise.

    Raises:
      ValueError: the key is not a typed key, leading axes differ, or `start` has not that shape or
        is not finite (which is seen where it is not traced).
    """
    _validate.typed_key(key=key)
    lengths = {leaf.shape[:1] for leaf in jax.tree.leaves((observed, y))}
    if len(lengths) != 1:
        raise ValueError(f"Expected one leading axis T on observed and y, got {sorted(lengths)}.")
    ((num_targets,),) = lengths
    if start is not None:
        if jnp.shape(start) != tuple(shape):
            raise ValueError(
                f"Expected start of shape {tuple(shape)}, got start of shape {jnp.shape(start)}."
            )
        if not isinstance(start, jax.core.Tracer) and not np.isfinite(start).all():
            raise ValueError("Expected start to be finite, got start with a number that is not.")
    low, high = settings.box or (-1.0, 1.0)
    share = np.arange(settings.num_iterations) / settings.num_iterations
    rates = settings.learning_rate * 0.1 ** np.searchsorted(_DECAY_AT, share, "right")

    def project(variables: PyTree) -> PyTree:
        return (
            variables
            if settings.box is None
            else variables | {"x": jnp.clip(variables["x"], low, high)}
        )

    def one(target: PyTree, y: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """One target from one start: (x, y, loss)."""
        scale = jnp.sqrt(_square(target))

        def objective(variables: PyTree) -> jax.Array:
            labels = jax.nn.softmax(variables["y"]) if settings.fit_labels else y
            gap = _distance(observe(params, variables["x"], labels), target, scale, settings)
            variation = total_variation(variables["x"]) if settings.tv_weight else jnp.zeros(())
            return gap + settings.tv_weight * variation

        x_key, y_key = jax.random.split(key)
        anywhere = jax.random.uniform(x_key, shape)
        first = (
            low + (high - low) * anywhere
            if start is None
            else start + 0.1 * (high - low) * (anywhere - 0.5)
        )
        variables = {"x": first}
        if settings.fit_labels:
            variables["y"] = jax.random.normal(y_key, y.shape)

        if settings.optimizer == "lbfgs":
            best, loss = _descent.lbfgs(objective, project(variables), settings.num_iterations)
            best = project(best)
            return best["x"], jax.nn.softmax(best["y"]) if settings.fit_labels else y, loss
        both = lambda variables, _: jax.value_and_grad(objective)(variables)
        _, best, loss = _descent.adam(
            both, project(variables), rates, signed=settings.signed, project=project
        )
        return best["x"], jax.nn.softmax(best["y"]) if settings.fit_labels else y, loss

    keys = jax.random.split(key, (num_targets, settings.num_restarts))
    x, labels, losses = jax.vmap(jax.vmap(one, (None, None, 0)))(observed, y, keys)
    kept = jnp.argmin(losses, 1)
    pick = jax.vmap(lambda rows, at: rows[at])
    return Found(pick(x, kept), pick(labels, kept), pick(losses, kept), losses)


def _square(tree: PyTree) -> jax.Array:
    return sum((jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(tree)), jnp.zeros(()))


def _distance(found: PyTree, target: PyTree, scale: jax.Array, settings: Settings) -> jax.Array:
    """Between two uploads; sums of squares and absolute values are relative to the target's norm
    `scale`.
    """
    if settings.distance == "cosine":
        inner = sum(
            (
                jnp.vdot(a, b)
                for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(target), strict=True)
            ),
            jnp.zeros(()),
        )
        return 1 - inner / jnp.maximum(jnp.sqrt(jnp.maximum(_square(found), 1e-30)) * scale, 1e-30)
    gap = jax.tree.map(jnp.subtract, found, target)
    value = _square(gap) / jnp.maximum(scale**2, 1e-30)
    if settings.distance == "tag":
        value += (
            settings.l1_weight
            * sum(jnp.sum(jnp.abs(g)) for g in jax.tree.leaves(gap))
            / jnp.maximum(scale, 1e-30)
        )
    return value
