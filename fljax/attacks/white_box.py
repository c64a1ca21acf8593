"""Membership by an attack network that sees inside the model: it learns from examples whose
membership is known.

Two ways to know. Partial knowledge: of some examples of the target it is known whether they were
trained on. Surrogate: the attacker trains a model of its own on data of its own, learns from that,
and carries over. Both are `fit` on what is known, then the score that it returns.

Source: Liu et al. (2022), ML-Doctor, arXiv:2102.02551, section 3.1; arXiv:2403.01268, section 6.1.
"""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax import _validate
from fljax.attacks import _descent
from fljax.types import Params

Features = dict[str, jax.Array]
_EMBEDDING, _HIDDEN = 16, (64, 32, 16)


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
