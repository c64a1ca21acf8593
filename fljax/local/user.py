"""What one silo adds up in one step when it is one unit: the clipped gradient of its whole batch.

The query has the form of those in `fljax.local.subject`.
"""

import jax
import jax.numpy as jnp

import fljax_kernels
from fljax import _keys
from fljax.local import clipping, silo_query
from fljax.local.sgd import masked_mean_loss
from fljax.local.silo_query import AddUp, Query, SiloSum
from fljax.types import Batch, LossFn, Params
from fljax_kernels import _meshes


def clipped_batch_gradient(
    loss: LossFn,
    *,
    item_sampling_prob: float,
    l2_clip_norm: float,
    batch_size: int,
    add_up: AddUp | None = None,
) -> Query:
    """The clipped gradient of the mean loss over Poisson-sampled items: the silo is one unit. No
    per-example gradient.

    Guarantee: any two data sets of the silo give gradients at most 2 `l2_clip_norm` apart; a
    subject changes it by at most that, and by nothing if none of its items is sampled.
    (`l2_clip_norm` holds only against an empty sample.)

    Args, Raises: as `fljax.local.subject.item_sum`.

    Source: arXiv:2206.03617, Definition 3.8 and Algorithm 3; the sensitivity there is printed as
      half of this.
    """
    silo_query.check(item_sampling_prob, l2_clip_norm, batch_size)
    value_and_grad = jax.value_and_grad(masked_mean_loss(loss))

    def fun(
        params: Params,
        examples: Batch,
        rows: jax.Array,
        key: jax.Array,
        turn: jax.Array | None = None,
    ) -> SiloSum:
        if add_up is not None:
            key, round_key = jax.random.split(key)
        ids = silo_query.subject_ids(examples, rows, required=False)
        mask = silo_query.in_turn(rows, turn) & _keys.coins(key, rows.shape, item_sampling_prob)
        count = jnp.sum(mask)
        places = jnp.arange(rows.size, dtype=jnp.int32)
        batches = silo_query.batches(places, mask, -1, batch_size)

        def add(i: jax.Array, total: tuple[Params, jax.Array]) -> tuple[Params, jax.Array]:
            here = batches[i] >= 0
            value, grads = value_and_grad(
                params, silo_query.taken(loss, examples, rows, batches[i], key), here
            )
            share = jnp.sum(here).astype(jnp.float32)
            grads = jax.tree.map(lambda g: g.astype(jnp.float32) * share, grads)
            return jax.tree.map(jnp.add, total, (grads, value.astype(jnp.float32) * share))

        zero = (silo_query.zeros(params), jnp.zeros((), jnp.float32))
        grad_sum, loss_sum = _meshes.fori_loop(
            0, silo_query.num_batches(count, batch_size), add, zero
        )
        divisor = jnp.maximum(1, count).astype(jnp.float32)
        mean = jax.tree.map(lambda g: g / divisor, grad_sum)
        row = jax.tree.map(lambda g: g[None], mean)
        if add_up is None:
            # "reference": under vmap over silos the other form pays for both.
            clipped, (norm,) = fljax_kernels.clip_and_sum(
                row, l2_clip_norm, implementation="reference"
            )
        else:
            norms = clipping.joint_norm(clipping.leaf_norms(row))
            factors, (norm,) = clipping.flat(norms, l2_clip_norm), norms
            only = jnp.zeros(1, jnp.int32)
            clipped = add_up(row, factors, round_key, only, jnp.ones(1, bool))
        return silo_query.answer(
            clipped, loss_sum, ids, mask, (~(norm <= l2_clip_norm)).astype(jnp.float32)
        )

    return fun
