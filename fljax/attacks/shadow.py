"""Many models trained on subsets of one pool of examples, in one program: shadow models, reference
models, a target.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax import _validate
from fljax.attacks import _descent
from fljax.models.losses import of_output
from fljax.types import Batch, LossFn, Params


def halves(key: jax.Array, num_models: int, num_examples: int) -> jax.Array:
    """Which examples each model is trained on, bool `[num_models, num_examples]`: random halves, in
    complement pairs.

    Every example is in one of each pair, so that as many models have it as have it not (within
    one).
    """
    _validate.typed_key(key=key)
    _validate.positive_int(num_models=num_models, num_examples=num_examples)
    keys = jax.random.split(key, -(-num_models // 2))
    first = jax.vmap(lambda k: jax.random.permutation(k, num_examples) < num_examples // 2)(keys)
    return jnp.stack([first, ~first], 1).reshape(-1, num_examples)[:num_models]


def trainer(
    loss: LossFn,
    init: Callable[[jax.Array], Params],
    *,
    num_steps: int,
    batch_size: int | None = None,
    learning_rate: float = 1e-2,
    models_at_once: int | None = None,
) -> Callable[[Batch, jax.Array, jax.Array], Params]:
    """Training of many models by Adam, each on its own members of a shared pool.

    Args:
      loss: `loss(params, example) -> []`.
      init: key -> parameters; every model starts from its own.
      num_steps: of Adam.
      batch_size: examples of the pool that a step draws, with replacement, before those that are no
        members are left out; None: all of them.
      learning_rate: > 0.
      models_at_once: models side by side; the others follow in the same program. None: all of them.

    Returns:
      `train(examples, members, keys) -> params`, pure, to be jitted: examples `[N, ...]`, members
      bool `[S, N]`, keys `[S]`; parameters with a leading axis S.

    Raises:
      ValueError: a number is out of range.
    """
    _validate.positive_int(num_steps=num_steps)
    _validate.positive(learning_rate=learning_rate)
    for name, value in (("batch_size", batch_size), ("models_at_once", models_at_once)):
        if value is not None:
            _validate.positive_int(**{name: value})

    def one(examples: Batch, members: jax.Array, key: jax.Array) -> Params:
        init_key, rows_key = jax.random.split(key)

        def objective(params: Params, rows: jax.Array | None) -> jax.Array:
            taken = (
                (examples, members)
                if rows is None
                else jax.tree.map(lambda v: v[rows], (examples, members))
            )
            losses = jax.vmap(loss, (None, 0))(params, taken[0])
            count = jnp.maximum(1, jnp.sum(taken[1])).astype(losses.dtype)
            return jnp.sum(jnp.where(taken[1], losses, 0)) / count

        rows = None
        if batch_size is not None:
            rows = jax.random.randint(rows_key, (num_steps, batch_size), 0, len(members))
        rates = np.full(num_steps, learning_rate)
        return _descent.adam(jax.value_and_grad(objective), init(init_key), rates, rows)[0]

    def train(examples: Batch, members: jax.Array, keys: jax.Array) -> Params:
        size = len(members) if models_at_once is None else models_at_once
        if size >= len(members):
            return jax.vmap(one, (None, 0, 0))(examples, members, keys)
        return jax.lax.map(lambda pair: one(examples, *pair), (members, keys), batch_size=size)

    return train


def confidences(
    apply: Callable[[Params, Any], jax.Array], params: Params, x: Any, y: jax.Array
) -> jax.Array:
    """log(p / (1 - p)) of the true label's probability p, `[S, N]`, for S models and N examples:
    nearly normal. Of a text p is the geometric mean over its symbols.

    Args:
      apply: `(params, x) -> logits`. params: leading axis S. x: `[N, ...]`. y: int `[N]`, or
        symbols `[N, T]`.

    Source: Carlini et al. (2022), Membership inference attacks from first principles,
      arXiv:2112.03570, section IV-C.
    """

    def one(params: Params, x: Any, y: jax.Array) -> jax.Array:
        logits = apply(params, x)
        if y.ndim:
            nats = of_output("next_token")(logits, y)
            return -nats - jnp.log(-jnp.expm1(-nats))
        # Not 1 - p, which rounds to 0 where the model is sure.
        return logits[y] - jax.nn.logsumexp(
            jnp.where(jnp.arange(len(logits)) == y, -jnp.inf, logits)
        )

    return jax.vmap(jax.vmap(one, (None, 0, 0)), (0, None, None))(params, x, y)
