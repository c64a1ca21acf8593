"""Membership by what is inside the model: how much of each example's gradient is in the weights
(`pulls`, joined with confidences by `likelihood_ratio`), and an attack network that learns from
examples whose membership is known.

The network has two ways to know. Partial knowledge: of some examples of the target it is known
whether they were trained on. Surrogate: the attacker trains a model of its own on data of its own,
learns from that, and carries over. Both are `fit` on what is known, then the score that it returns.

Source of the network: Liu et al. (2022), ML-Doctor, arXiv:2102.02551, section 3.1;
arXiv:2403.01268, section 6.1.
"""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax import _validate
from fljax.attacks import _descent, _shadows
from fljax.types import Batch, LossFn, Params
from fljax_kernels import per_example_grads

Features = dict[str, jax.Array]
_EMBEDDING, _HIDDEN = 16, (64, 32, 16)
# What a coefficient of 1 costs beside a unit gradient that is missed.
_RIDGES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_LEAST_NORM = 1e-12  # an example without a gradient pulled nothing


def pulls(
    loss: LossFn, target: Params, shadows: Params, included: Any, pool: Batch
) -> tuple[np.ndarray, np.ndarray]:
    """How much each example pulled the target, `[N]`, and each shadow model, `[S, N]`: scores of
    membership by themselves, and what `membership.lira` takes.

    Training moves weights along the gradients of members. So what sets a model apart from the mean
    of shadow models is explained by gradients of all examples at once, taken at that mean and made
    as long as each other, as clipping makes them: a ridge regression, in which no example counts
    for what another one did. Of training that is linear, with noise that is Gaussian, these are
    the likeliest memberships. How much noise there is, shadow models say: of a few ridges the one
    counts by which they tell their own members best.

    Threat: the attacker has the model's weights, the pool with its labels, and shadow models that
      started where the target did; weights that started elsewhere have no common mean.

    Args:
      loss: `loss(params, example) -> []`.
      shadows: leaves `[S, ...]`. included: bool `[S, N]`, which examples each was trained on.
      pool: leaves `[N, ...]`.

    Raises:
      ValueError: included is not `[S, N]`, or an example is in all shadow models, or in none.

    Source: Nasr, Shokri, Houmansadr (2019), arXiv:1812.00910, section III (gradients of a white
      box); of its own: all examples' gradients in one regression.
    """
    inside = np.asarray(included, bool)
    sizes = tuple(len(jax.tree.leaves(tree)[0]) for tree in (shadows, pool))
    if inside.shape != sizes:
        raise ValueError(
            f"Expected included [S, N] = {list(sizes)}, got included of shape {inside.shape}."
        )
    _check_sides(inside)

    def products(target: Params, shadows: Params, pool: Batch) -> tuple[jax.Array, jax.Array]:
        mean = jax.tree.map(lambda leaf: jnp.mean(leaf, 0), shadows)
        gradients = per_example_grads(loss)(mean, pool)
        along = lambda model: gradients.matvec(jax.tree.map(jnp.subtract, mean, model))
        # One after the other: a model's product is a pass over the pool.
        everyone = jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), target, shadows)
        return gradients.gram(), jax.lax.map(along, everyone)

    gram, along = (np.asarray(v, np.float64) for v in jax.jit(products)(target, shadows, pool))
    norms = np.maximum(np.sqrt(np.diag(gram)), _LEAST_NORM)
    values, vectors = np.linalg.eigh(gram / norms / norms[:, None])
    turned = along / norms @ vectors

    def told(found: np.ndarray) -> float:
        """How far members of shadow models are from others, in standard deviations."""
        sides = [
            (np.where(where, found, 0).sum(0) / where.sum(0), where) for where in (inside, ~inside)
        ]
        spread = sum(np.square(np.where(where, found - mean, 0)).sum() for mean, where in sides)
        return float((sides[0][0] - sides[1][0]).mean() / np.sqrt(spread))

    each = [turned / (np.maximum(values, 0) + ridge) @ vectors.T for ridge in _RIDGES]
    best = max(each, key=lambda found: told(found[1:]))
    return best[0], best[1:]


def likelihood_ratio(target: Any, shadows: Any, included: Any) -> np.ndarray:
    """Log likelihood ratios `[N]` of "trained on" to "not", by several numbers of each example that
    are normal together.

    Each example has a level of its own, half way between the shadow models that have it and those
    that have not. How far these are apart, and the covariance about both, are those of all
    examples: of few shadow models an example's own gap is mostly chance.

    Args:
      target: `[N, A]`, A numbers of each example by the attacked model. shadows: `[S, N, A]`.
      included: bool `[S, N]`, which examples each of these was trained on.

    Raises:
      ValueError: shapes do not fit, or an example is in all shadow models, or in none.
    """
    values, own, inside = _shadows.arrays(target, shadows, included, several=True)
    _check_sides(inside)
    means, away = [], np.zeros_like(own)
    for where in (inside[..., None], ~inside[..., None]):
        means.append(np.where(where, own, 0).sum(0) / where.sum(0))
        away += np.where(where, own - means[-1], 0)
    gap = (means[0] - means[1]).mean(0)
    many = max(1, inside.size - 2 * inside.shape[1])
    covariance = np.einsum("sna,snb->ab", away, away) / many
    # What never varied is sure, but not beyond a thousand standard deviations.
    covariance += np.diag(1e-6 * gap**2 + 1e-30)
    return (values - sum(means) / 2) @ np.linalg.solve(covariance, gap)


def _check_sides(inside: np.ndarray) -> None:
    if inside.all(0).any() or not inside.any(0).all():
        raise ValueError(
            "Expected each example to be in a shadow model and out of one at least, got one that "
            "is not."
        )


def features(
    apply: Callable[[Params, Any], jax.Array],
    params: Params,
    x: Any,
    y: jax.Array,
    *,
    last_layer: str | None,
) -> Features:
    """The four inputs of the attack, each `[N, width]`: posteriors in falling order, loss, last
    gradient, label.

    Args:
      apply: `(params, x) -> logits` of one example.
      x: `[N, ...]`. y: int `[N]`.
      last_layer: the key of `params`, a dictionary, whose gradient counts. None: leave that input
        out, as for an attacker that sees outputs only.

    Raises:
      ValueError: `params` has no such key.
    """
    if last_layer is not None and last_layer not in params:
        raise ValueError(
            f"Expected last_layer to be a key of params {sorted(params)}, got "
            f"last_layer={last_layer!r}."
        )

    def one(x: Any, y: jax.Array) -> Features:
        logits = apply(params, x)
        log_probs = jax.nn.log_softmax(logits)
        found = {
            "posteriors": jnp.sort(jnp.exp(log_probs))[::-1],
            "loss": -log_probs[y][None],
            "label": jax.nn.one_hot(y, len(logits)),
        }
        if last_layer is not None:
            rest = {name: value for name, value in params.items() if name != last_layer}
            loss = lambda layer: -jax.nn.log_softmax(apply(rest | {last_layer: layer}, x))[y]
            leaves = jax.tree.leaves(jax.grad(loss)(params[last_layer]))
            found["gradient"] = jnp.concatenate([leaf.reshape(-1) for leaf in leaves])
        return found

    return jax.vmap(one)(x, y)


def fit(
    known: Features,
    members: Any,
    key: jax.Array,
    *,
    num_steps: int = 500,
    learning_rate: float = 3e-3,
) -> Callable[[Features], jax.Array]:
    """Trains the attack network: one embedding for each input, their concatenation into four dense
    layers.

    Args:
      known: `features` of examples, `[N, width]` each.
      members: bool `[N]`, which of them were trained on; some of each.
      key: for the first weights.
      num_steps, learning_rate: of Adam on all examples at once.

    Returns:
      `score(features) -> [M]`: log odds of having been trained on. At 0 the network is undecided.

    Raises:
      ValueError: shapes do not fit, all examples are of one kind, or a number is out of range.
    """
    _validate.typed_key(key=key)
    _validate.positive_int(num_steps=num_steps)
    _validate.positive(learning_rate=learning_rate)
    inside = np.asarray(members, bool)
    if inside.ndim != 1 or any(len(value) != inside.size for value in known.values()):
        raise ValueError(
            f"Expected members [N] and features [N, width], got members of shape {inside.shape}."
        )
    if inside.all() or not inside.any():
        raise ValueError("Expected members to hold both kinds, got one.")
    # Inputs differ in scale by orders: standardised by what is known.
    centre = {name: (jnp.mean(v, 0), jnp.std(v, 0) + 1e-6) for name, v in known.items()}
    names = sorted(known)

    def dense(key: jax.Array, inputs: int, outputs: int) -> tuple[jax.Array, jax.Array]:
        return jax.random.normal(key, (inputs, outputs)) * (2 / inputs) ** 0.5, jnp.zeros(outputs)

    widths = [_EMBEDDING * len(names), *_HIDDEN, 1]
    keys = jax.random.split(key, len(names) + len(widths) - 1)
    start = {
        "embed": {
            n: dense(k, known[n].shape[1], _EMBEDDING) for n, k in zip(names, keys, strict=False)
        },
        "dense": [
            dense(k, *pair)
            for k, pair in zip(keys[len(names) :], itertools.pairwise(widths), strict=True)
        ],
    }

    def network(weights: Any, given: Features) -> jax.Array:
        parts = []
        for name in names:
            mean, scale = centre[name]
            kernel, bias = weights["embed"][name]
            parts.append(
                jax.nn.relu((given[name] - mean[None]) / scale[None] @ kernel + bias[None])
            )
        out = jnp.concatenate(parts, 1)
        for kernel, bias in weights["dense"][:-1]:
            out = jax.nn.relu(out @ kernel + bias[None])
        kernel, bias = weights["dense"][-1]
        return (out @ kernel + bias[None])[:, 0]

    sign = jnp.where(jnp.asarray(inside), 1.0, -1.0)
    # Both kinds weigh the same, whatever their numbers.
    weight = jnp.where(jnp.asarray(inside), 0.5 / inside.sum(), 0.5 / (~inside).sum())

    def objective(weights: Any, _: None) -> jax.Array:
        return jnp.sum(weight * jax.nn.softplus(-sign * network(weights, known)))

    train = jax.jit(
        lambda w: _descent.adam(
            jax.value_and_grad(objective), w, np.full(num_steps, learning_rate)
        )[0]
    )
    weights = train(start)
    return jax.jit(lambda given: network(weights, given))
