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
from fljax.attacks import _descent, _lbfgs
from fljax.types import LossFn, Params, PyTree

Observe = Callable[[Params, jax.Array, jax.Array], PyTree]
_DECAY_AT = (3 / 8, 5 / 8, 7 / 8)
# The prior's weight, beside the upload's square, from the first step to the last.
_PRIOR_PATH = (1e-2, 1e-8)
_LOOKS = 1.25  # values and gradients that L-BFGS has to an iteration, as by default in torch
_FLAT = 1e-2  # a difference of neighbours that total variation takes for none


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
    optimizer: Literal["adam", "lbfgs", "gauss_newton"] = "adam"
    """lbfgs: DLG's, with a few trials along each direction, which may lead over what is worse.
    gauss_newton: damped steps on the difference of uploads itself, number by number; of distance
    cosine or l2, the sharpest with a prior, and on smooth networks without. Neither has a use for
    learning_rate and signed, and both clamp to the box at their end alone.
    """
    num_iterations: int = 1000
    """Steps of Adam, each one value and gradient of the distance; of L-BFGS 1.25 of these (a budget
    for directions and trials along them together, to the nearest whole number); of Gauss-Newton
    products with the Jacobian, 50 to a step.
    """
    signed: bool = True
    """Adam sees the sign of the gradient only."""
    num_restarts: int = 1
    """Random starts of each target; the one with the least loss is kept."""
    group_weight: float = 0.0
    """Weight of the mean squared distance of a target's restarts from their mean, which draws them
    together (See through gradients, arXiv:2104.07586, equation 10): of several restarts by Adam.
    """
    box: tuple[float, float] | None = (0.0, 1.0)
    """Range of the examples' values, which each step clamps to. None: no clamp."""
    fit_labels: bool = False
    """Look for the labels as well, as logits beside the examples (DLG). The start then counts for
    nothing.
    """

    def __post_init__(self) -> None:
        _validate.one_of(("cosine", "l2", "tag"), distance=self.distance)
        _validate.one_of(("adam", "lbfgs", "gauss_newton"), optimizer=self.optimizer)
        if self.optimizer == "gauss_newton" and self.distance == "tag":
            raise ValueError(
                "Expected distance to be cosine or l2, which are sums of squares, with "
                f"optimizer='gauss_newton', got distance={self.distance!r}."
            )
        _validate.non_negative(
            l1_weight=self.l1_weight, tv_weight=self.tv_weight, group_weight=self.group_weight
        )
        if self.group_weight and self.optimizer != "adam":
            raise ValueError(
                "Expected group_weight=0 without optimizer='adam', got "
                f"group_weight={self.group_weight!r} and optimizer={self.optimizer!r}."
            )
        _validate.positive(learning_rate=self.learning_rate)
        _validate.positive_int(num_iterations=self.num_iterations, num_restarts=self.num_restarts)
        if self.group_weight and self.num_restarts == 1:
            raise ValueError(
                "Expected num_restarts >= 2 for group_weight, which draws them together, got "
                f"num_restarts=1 and group_weight={self.group_weight!r}."
            )
        if self.box is not None and not self.box[0] < self.box[1]:
            raise ValueError(
                f"Expected box to be (low, high) with low < high, got box={self.box!r}."
            )


class Prior(NamedTuple):
    """What examples look like before one has seen an upload: Gaussian, of mean `[...]`, with
    `roots` `[k, ...]`, the k directions in which they differ most, each as long as its standard
    deviation, and `rest` `[]`, the standard deviation of each value about those.
    """

    mean: jax.Array
    roots: jax.Array
    rest: jax.Array


def gaussian_prior(public: Any, *, rank: int = 300) -> Prior:
    """The prior of examples like `public`, `[N, ...]`: their mean and principal components.

    Args:
      rank: components at most; of N examples N - 2, the last of which leaves something to the rest.
        >= 1.

    Raises:
      ValueError: rank < 1, fewer than 3 examples, or a number that is not finite.
    """
    _validate.positive_int(rank=rank)
    rows = np.asarray(public, np.float64).reshape(len(public), -1)
    if len(rows) < 3 or not np.isfinite(rows).all():
        raise ValueError(
            "Expected public to be at least 3 examples of finite numbers, got public of shape "
            f"{np.shape(public)}{'' if len(rows) < 3 else ' with a number that is not'}."
        )
    mean = rows.mean(0)
    _, lengths, directions = np.linalg.svd((rows - mean) / (len(rows) - 1) ** 0.5, False)
    kept = min(rank, len(rows) - 2, rows.shape[1])
    # At least a five-hundredth of the examples' spread: what they do not show is not impossible.
    floor = 2e-3 * np.linalg.norm(lengths)
    rest = max(float(np.linalg.norm(lengths[kept:])), float(floor)) / rows.shape[1] ** 0.5
    shape = np.shape(public)[1:]
    roots = (lengths[:kept, None] * directions[:kept]).reshape(kept, *shape)
    as_floats = lambda values: jnp.asarray(values, jnp.float32)
    return Prior(as_floats(mean.reshape(shape)), as_floats(roots), as_floats(rest))


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


def clipped(observe: Observe) -> Observe:
    """The upload is the mean of what each of the `[B]` examples, or of an aggregate each of the
    `[U]` users, would send alone, scaled to length 1: clipped each by itself, all of them longer
    than the bound.
    """

    def mean(params: Params, x: jax.Array, y: jax.Array) -> PyTree:
        def one(x: jax.Array, y: jax.Array) -> PyTree:
            sent = observe(params, x[None], y[None])
            length = jnp.sqrt(jnp.maximum(_descent.square(sent), 1e-30))
            return jax.tree.map(lambda leaf: leaf / length, sent)

        return jax.tree.map(lambda leaf: jnp.mean(leaf, 0), jax.vmap(one)(x, y))

    return mean


def total_variation(x: jax.Array) -> jax.Array:
    """Mean absolute difference of neighbours along the two axes before the last, `[]`; x is `[...,
    H, W, channels]`.
    """
    return sum((jnp.mean(jnp.abs(d)) for d in _changes(x)), jnp.zeros((), x.dtype))


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
    prior: Prior | None = None,
    penalty: Callable[[jax.Array], jax.Array] | None = None,
) -> Found:
    """Reconstructs the examples of T uploads. Pure; to be jitted by the caller, with `shape` and
    `settings` static.

    Threat: an observer of the upload (an honest but curious server, or whoever reads the traffic)
    which knows `params`, the labels unless they are fitted, how many examples there were, and how
    clients compute.

    Args:
      observe: what an upload would be, `(params, x, y) -> pytree`.
      params: of the model, the same for all targets.
      observed: the uploads, each leaf with a leading axis T. Where one is of float64, so is the
        search; else it is of float32.
      y: labels as probabilities `[T, ..., num_classes]`, or what `observe` takes; with fit_labels
        its shape counts.
      key: for the starts.
      shape: of the examples behind one upload: `[B, H, W, channels]`, with users before B for an
        aggregate, or `[B, length, embedding]`.
      settings: of the search.
      start: where to look first, of `shape`: every restart begins there, moved at random by at most
        a twentieth of the box's length. None: anywhere in the box (of gauss_newton so near its
        middle). Deep networks on small images have local minima everywhere, and a mean of public
        examples is a better start than noise.
      prior: of optimizer gauss_newton: what an attacker with examples like those knows of one, of
        the shape of its mean. Its weight falls by a path until it meets what the difference of
        uploads says of their noise, so that with noise the result is near the most likely one. The
        search starts near its mean.
      penalty: of optimizers adam and lbfgs: of the examples, `shape -> []`, added to what is
        minimised, such as `perceptual.feature_prior` times a weight.

    Raises:
      ValueError: the key is not a typed key, leading axes differ, `start` has not that shape or is
        not finite (which is seen where it is not traced), or there is a prior beside a start, with
        another optimizer, or of another shape, or a penalty with gauss_newton.
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
    if prior is not None:
        _check_prior(prior, shape, settings, start)
    if penalty is not None:
        if settings.optimizer == "gauss_newton":
            raise ValueError(
                "Expected no penalty with optimizer='gauss_newton', which takes a prior, got one."
            )
        penalty = fljax_kernels.loop_friendly(penalty, inside_loop=True)
    # With jax_enable_x64 uploads may be of float64, and the search is, too.
    observed = jax.tree.map(jnp.asarray, observed)
    wide = any(leaf.dtype == jnp.float64 for leaf in jax.tree.leaves(observed))
    dtype = jnp.float64 if wide else jnp.float32
    if prior is not None:
        prior = jax.tree.map(lambda leaf: leaf.astype(dtype), prior)
    low, high = settings.box or (-1.0, 1.0)
    if settings.optimizer == "gauss_newton" and start is None:
        start = jnp.full(shape, 0.5 * (low + high), dtype)
    share = np.arange(settings.num_iterations) / settings.num_iterations
    rates = settings.learning_rate * 0.1 ** np.searchsorted(_DECAY_AT, share, "right")

    def project(variables: PyTree) -> PyTree:
        return (
            variables
            if settings.box is None
            else variables | {"x": jnp.clip(variables["x"], low, high)}
        )

    def begin(key: jax.Array) -> Any:
        if prior is not None:
            lead = tuple(shape)[: len(shape) - prior.mean.ndim]
            along = 0.1 * jax.random.normal(key, (*lead, len(prior.roots)), dtype)
            return {"along": along, "about": jnp.zeros(shape, dtype)}
        anywhere = jax.random.uniform(key, shape, dtype)
        if start is None:
            return low + (high - low) * anywhere
        return jnp.asarray(start, dtype) + 0.1 * (high - low) * (anywhere - 0.5)

    def first(y: jax.Array, key: jax.Array) -> dict[str, Any]:
        x_key, y_key = jax.random.split(key)
        variables: dict[str, Any] = {"x": begin(x_key)}
        if settings.fit_labels:
            variables["y"] = jax.random.normal(y_key, y.shape, dtype)
        return variables

    def objective_of(target: PyTree, y: jax.Array) -> Callable[[PyTree], jax.Array]:
        scale = jnp.sqrt(_descent.square(target))

        def objective(variables: PyTree) -> jax.Array:
            labels = jax.nn.softmax(variables["y"]) if settings.fit_labels else y
            gap = _distance(observe(params, variables["x"], labels), target, scale, settings)
            if settings.tv_weight:
                gap += settings.tv_weight * total_variation(variables["x"])
            return gap if penalty is None else gap + penalty(variables["x"])

        return objective

    def drawn_together(target: PyTree, y: jax.Array, keys: jax.Array) -> Any:
        """One target from all of its starts: (x, y, loss), each with a leading axis."""
        objective = objective_of(target, y)
        start = project(jax.vmap(first, (None, 0))(y, keys))

        def total(variables: PyTree, _: None) -> jax.Array:
            x = variables["x"]
            apart = jnp.mean(jnp.square(x - jnp.mean(x, 0, keepdims=True))) * len(keys)
            return jnp.sum(jax.vmap(objective)(variables)) + settings.group_weight * apart

        both = jax.value_and_grad(total)
        _, best, _ = _descent.adam(both, start, rates, signed=settings.signed, project=project)
        labels = jax.nn.softmax(best["y"]) if settings.fit_labels else jnp.stack([y] * len(keys))
        return best["x"], labels, jax.vmap(objective)(best)

    def one(target: PyTree, y: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """One target from one start: (x, y, loss)."""
        objective, variables = objective_of(target, y), first(y, key)
        if settings.optimizer == "gauss_newton":
            return _by_gauss_newton(observe, params, target, y, variables, settings, prior)
        if settings.optimizer == "lbfgs":
            looks = round(_LOOKS * settings.num_iterations)
            best, loss = _lbfgs.lbfgs(objective, project(variables), looks)
            best = project(best)
            return best["x"], jax.nn.softmax(best["y"]) if settings.fit_labels else y, loss
        both = lambda variables, _: jax.value_and_grad(objective)(variables)
        _, best, loss = _descent.adam(
            both, project(variables), rates, signed=settings.signed, project=project
        )
        return best["x"], jax.nn.softmax(best["y"]) if settings.fit_labels else y, loss

    keys = jax.random.split(key, (num_targets, settings.num_restarts))
    each = drawn_together if settings.group_weight else jax.vmap(one, (None, None, 0))
    x, labels, losses = jax.vmap(each)(observed, y, keys)
    kept = jnp.argmin(losses, 1)
    pick = jax.vmap(lambda rows, at: rows[at])
    return Found(pick(x, kept), pick(labels, kept), pick(losses, kept), losses)


def _check_prior(
    prior: Prior, shape: tuple[int, ...], settings: Settings, start: jax.Array | None
) -> None:
    """Raises ValueError."""
    if settings.optimizer != "gauss_newton" or start is not None:
        raise ValueError(
            "Expected a prior with optimizer='gauss_newton' and no start, got "
            f"optimizer={settings.optimizer!r} and {'no' if start is None else 'a'} start."
        )
    example = tuple(np.shape(prior.mean))
    if tuple(shape)[len(shape) - len(example) :] != example:
        raise ValueError(
            f"Expected a prior of examples as in shape={tuple(shape)}, got prior.mean of shape "
            f"{example}."
        )


def _by_gauss_newton(
    observe: Observe,
    params: Params,
    target: PyTree,
    y: jax.Array,
    variables: dict[str, Any],
    settings: Settings,
    prior: Prior | None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(x, y, loss) of one target from one start: the difference of uploads, the prior and total
    variation as one sum of squares.
    """
    size = sum(leaf.size for leaf in jax.tree.leaves(target))
    length = jnp.maximum(jnp.sqrt(_descent.square(target)), 1e-30)

    def examples(x: Any) -> jax.Array:
        if prior is None:
            return x
        near = jnp.tensordot(x["along"], prior.roots, 1)
        return jnp.broadcast_to(prior.mean, near.shape) + near + prior.rest * x["about"]

    def labels(variables: Any) -> jax.Array:
        return jax.nn.softmax(variables["y"]) if settings.fit_labels else y

    def gap(variables: Any) -> PyTree:
        found = observe(params, examples(variables["x"]), labels(variables))
        if settings.distance == "l2":
            return jax.tree.map(lambda a, b: (a - b) / length, found, target)
        own = jnp.sqrt(jnp.maximum(_descent.square(found), 1e-30))
        # Half the square of this is 1 - cosine.
        return jax.tree.map(lambda a, b: (a / own - b / length) * 0.5**0.5, found, target)

    def weigh(variables: Any, path: jax.Array) -> dict[str, Any]:
        weights: dict[str, Any] = {}
        if settings.tv_weight:
            changes = _changes(examples(variables["x"]))
            flat = lambda d: jnp.sqrt(settings.tv_weight / (d.size * (jnp.abs(d) + _FLAT)))
            weights["variation"] = [flat(change) for change in changes]
        if prior is not None:
            # The noise's variance in units of the upload's square, as far as the gap tells it.
            noise = _descent.square(gap(variables)) / size
            weights["prior"] = jnp.sqrt(jnp.maximum(noise, path))
        return weights

    def residual(variables: Any, weights: dict[str, Any]) -> PyTree:
        parts = {"gap": gap(variables)}
        if settings.tv_weight:
            changes = _changes(examples(variables["x"]))
            parts["variation"] = jax.tree.map(jnp.multiply, weights["variation"], changes)
        if prior is not None:
            parts["prior"] = jax.tree.map(lambda v: weights["prior"] * v, variables["x"])
        return parts

    steps = _descent.num_steps(settings.num_iterations)
    path = jnp.asarray(np.geomspace(*_PRIOR_PATH, steps), jax.tree.leaves(variables)[0].dtype)
    best, loss = _descent.gauss_newton(residual, variables, settings.num_iterations, weigh, path)
    x = examples(best["x"])
    return x if settings.box is None else jnp.clip(x, *settings.box), labels(best), loss


def _changes(x: jax.Array) -> list[jax.Array]:
    """Differences of neighbours along the two axes before the last, those there are."""
    return [d for d in (jnp.diff(x, axis=-3), jnp.diff(x, axis=-2)) if d.size]


def _distance(found: PyTree, target: PyTree, scale: jax.Array, settings: Settings) -> jax.Array:
    """Between two uploads; sums of squares and absolute values are relative to the target's norm
    `scale`.
    """
    if settings.distance == "cosine":
        inner = sum(
            (
                jnp.sum(a * b)  # of a vdot's flat vectors, XLA transposes matrices
                for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(target), strict=True)
            ),
            0.0,
        )
        return 1 - inner / jnp.maximum(
            jnp.sqrt(jnp.maximum(_descent.square(found), 1e-30)) * scale, 1e-30
        )
    gap = jax.tree.map(jnp.subtract, found, target)
    value = _descent.square(gap) / jnp.maximum(scale**2, 1e-30)
    if settings.distance == "tag":
        value += (
            settings.l1_weight
            * sum(jnp.sum(jnp.abs(g)) for g in jax.tree.leaves(gap))
            / jnp.maximum(scale, 1e-30)
        )
    return value
