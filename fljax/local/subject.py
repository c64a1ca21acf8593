"""What one silo adds up in one step when a subject, not an item, is to be protected.

Each maker returns a query `fun(params, examples, rows, key, turn) -> SiloSum`: it samples the
silo's rows, takes per-example gradients in batches, and returns a SUM before noise. `rows` int32
`[N]` are the silo's rows of the pool `examples`, -1 is padding; `examples["subject"]` says whose
item it is; `turn` bool `[N]`, which of them may be sampled, None: all.
Weights are counted over the whole sample, so batches change speed and memory only. No buffer has a
row of D numbers for each subject.

How far one subject moves each sum is stated under Guarantee, for removing all the subject's rows
("zero-out", and add-or-remove, since every sum here is over a Poisson sample). An item or subject
with a gradient that is not finite adds zero. Keys are used once.

Source: Marathe et al. (2022), "Subject Granular Differential Privacy in Federated Learning",
  arXiv:2206.03617.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

import fljax_kernels
from fljax import _keys, _validate
from fljax.local import clipping, keyed, silo_query
from fljax.local.silo_query import AddUpGradients, Query, SiloSum
from fljax.types import Batch, LossFn, Params
from fljax_kernels import _meshes

_NOBODY = jnp.iinfo(jnp.int32).max
# A norm from a Gram matrix may come out too small where gradients cancel. Float32 dot products err
# by a few 1e-7 of ||g_i|| ||g_j||; this share of the squared mean norm is added, so that the clip
# binds in spite of that.
_GRAM_SLACK = 1e-5


def item_sum(
    loss: LossFn,
    *,
    item_sampling_prob: float,
    l2_clip_norm: float,
    batch_size: int,
    items_per_subject: int | None = None,
    clipping_style: clipping.Style = "flat",
    method: str = "auto",
    add_up: AddUpGradients | None = None,
) -> Query:
    """Sum of clipped gradients of Poisson-sampled items, with at most `items_per_subject` items of
    a subject.

    Guarantee: a subject with J sampled items moves the sum by at most `l2_clip_norm` * min(J,
    items_per_subject); one item moves the sum without a cap by at most `l2_clip_norm`.

    Args:
      loss: `loss(params, example) -> []`.
      item_sampling_prob: chance of each item, in (0, 1].
      l2_clip_norm: bound on one item's gradient, > 0.
      batch_size: items whose gradients are taken together.
      items_per_subject: public cap Z >= 1; surplus items of a subject in this sample are dropped at
        random. None: no cap.
      clipping_style: "flat", "auto_s" or "psac"; see `fljax.local.clipping`.
      method: how per-example gradients are computed; see `fljax_kernels.per_example_grads`.
      add_up: adds up the clipped gradients. None: float32.

    Raises:
      ValueError: an argument is out of range.

    Source: arXiv:2206.03617, Algorithm 1, with a public cap in place of the group size it reads
      from private data.
    """
    if items_per_subject is not None:
        _validate.positive_int(items_per_subject=items_per_subject)
    _validate.one_of(clipping.STYLES, clipping_style=clipping_style)

    def parts(ids: jax.Array, mask: jax.Array, key: jax.Array) -> jax.Array:
        if items_per_subject is None:
            return mask.astype(jnp.int32)
        rank = silo_query.group(ids, mask, jax.random.uniform(key, ids.shape)).rank
        return (mask & (rank < items_per_subject)).astype(jnp.int32)

    needs_subjects = items_per_subject is not None
    options = (item_sampling_prob, l2_clip_norm, batch_size, method)
    return _sum_of_parts(loss, parts, *options, needs_subjects, clipping_style, add_up)


def hierarchical_average(
    loss: LossFn,
    *,
    item_sampling_prob: float,
    l2_clip_norm: float,
    batch_size: int,
    method: str = "auto",
    add_up: AddUpGradients | None = None,
) -> Query:
    """Sum over subjects of the mean of the subject's clipped gradients, over Poisson-sampled items:
    HiGradAvg.

    It is a weighted sum over items: the weight is the clip factor / the number of the subject's
    items in the sample.

    Guarantee: a subject moves the sum by at most `l2_clip_norm`, and by nothing if none of its
    items is sampled. Divide by a public constant; the number of subjects in the sample is private.

    Args, Raises: as `item_sum`.

    Source: arXiv:2206.03617, Definition 3.5 and Algorithm 2, without its division by the realised
      number of subjects.
    """

    def parts(ids: jax.Array, mask: jax.Array, key: jax.Array) -> jax.Array:
        del key
        return silo_query.group(ids, mask).size

    options = (item_sampling_prob, l2_clip_norm, batch_size, method)
    return _sum_of_parts(loss, parts, *options, add_up=add_up)


def sampled_subjects(
    loss: LossFn,
    *,
    subject_sampling_prob: float,
    items_per_subject: int,
    l2_clip_norm: float,
    batch_size: int,
    method: str = "auto",
) -> Query:
    """Poisson-samples subjects, takes up to Z random items of each, averages their gradients and
    clips the average.

    Guarantee: a subject moves the sum by at most `l2_clip_norm`, with chance
    `subject_sampling_prob`, however many items it owns. Norms of averages come from Gram matrices
    of the batch, in float32, with a margin for cancellation.

    Args:
      loss: `loss(params, example) -> []`.
      subject_sampling_prob: chance of each subject, in (0, 1].
      items_per_subject: Z >= 1.
      l2_clip_norm: bound on one subject's averaged gradient, > 0.
      batch_size: items whose gradients are taken together; rounded to whole subjects, at least one.
      method: as in `item_sum`.

    Raises:
      ValueError: an argument is out of range.

    Source: Charles et al. (2024), "Fine-Tuning Large Language Models with User-Level Differential
      Privacy", arXiv:2407.07737, "user-level sampling".
    """
    _validate.probability(subject_sampling_prob=subject_sampling_prob)

    def sample(ids: jax.Array, mask: jax.Array, key: jax.Array) -> jax.Array:
        # One coin for each id: all items of a subject see the same one, wherever they stand.
        return mask & jax.vmap(
            lambda i: _keys.coins(jax.random.fold_in(key, i), (), subject_sampling_prob)
        )(ids)

    return _mean_then_clip(loss, sample, items_per_subject, l2_clip_norm, batch_size, method)


def average_then_clip(
    loss: LossFn,
    *,
    item_sampling_prob: float,
    items_per_subject: int,
    l2_clip_norm: float,
    batch_size: int,
    method: str = "auto",
) -> Query:
    """HiGradAvg in the other order: over Poisson-sampled items, average inside a subject first,
    then clip the average.

    Guarantee: as `hierarchical_average`. Clipped items that disagree cancel there; here the average
      keeps its length.

    Args, Raises: as `sampled_subjects`, with `item_sampling_prob` the chance of each item.
    """
    _validate.probability(item_sampling_prob=item_sampling_prob)

    def sample(ids: jax.Array, mask: jax.Array, key: jax.Array) -> jax.Array:
        return mask & _keys.coins(key, ids.shape, item_sampling_prob)

    return _mean_then_clip(loss, sample, items_per_subject, l2_clip_norm, batch_size, method)


def _sum_of_parts(
    loss: LossFn,
    parts_of: Callable[[jax.Array, jax.Array, jax.Array], jax.Array],
    item_sampling_prob: float,
    l2_clip_norm: float,
    batch_size: int,
    method: str,
    needs_subjects: bool = True,
    style: clipping.Style = "flat",
    add_up: AddUpGradients | None = None,
) -> Query:
    """sum_i f_i g_i / n_i over those of the sample with n_i > 0; `parts_of(ids, mask, key) -> [N]`
    integers n, f the clip factor.
    """
    silo_query.check(item_sampling_prob, l2_clip_norm, batch_size)
    if add_up is not None and method == "auto":
        method = "taps"  # rows of whole numbers are dear, however few
    per_example = fljax_kernels.per_example_grads(keyed.of_one(loss), method=method)

    def fun(
        params: Params,
        examples: Batch,
        rows: jax.Array,
        key: jax.Array,
        turn: jax.Array | None = None,
    ) -> SiloSum:
        coin_key, parts_key = jax.random.split(key)
        if add_up is not None:
            parts_key, round_key = jax.random.split(parts_key)
        ids = silo_query.subject_ids(examples, rows, required=needs_subjects)
        there = silo_query.in_turn(rows, turn)
        sampled = there & _keys.coins(coin_key, rows.shape, item_sampling_prob)
        parts = parts_of(ids, sampled, parts_key)
        used = parts > 0
        batches = silo_query.batches(jnp.arange(rows.size, dtype=jnp.int32), used, -1, batch_size)
        parts = silo_query.batches(parts, used, 1, batch_size)
        weights = 1 / parts.astype(jnp.float32)

        def add(i: jax.Array, total: tuple[Params, jax.Array]) -> tuple[Params, jax.Array]:
            here = batches[i] >= 0
            batch = silo_query.taken(loss, examples, rows, batches[i], key)
            G = per_example(params, batch, batch_mask=here)
            shrink = lambda n, w: w * clipping.to_bound(n, l2_clip_norm, style=style)
            if add_up is None:
                grads, norms = G.weighted_sum(shrink, weights[i])
                grads = jax.tree.map(lambda g: g.astype(jnp.float32), grads)
            else:
                grads, norms = add_up(G, shrink, round_key, batches[i], weights[i], parts=parts[i])
            clipped = jnp.sum(~(norms <= l2_clip_norm) & here).astype(jnp.float32)
            losses = G.values().astype(jnp.float32)
            stats = jnp.stack([jnp.sum(jnp.where(jnp.isfinite(losses), losses, 0)), clipped])
            return jax.tree.map(jnp.add, total, (grads, stats))

        count = jnp.sum(used)
        dtype = jnp.float32 if add_up is None else jnp.int32
        zero = (silo_query.zeros(params, dtype), jnp.zeros((2,), jnp.float32))
        num_batches = silo_query.num_batches(count, batch_size)
        grad_sum, stats = _meshes.fori_loop(0, num_batches, add, zero)
        return silo_query.answer(
            grad_sum, stats[0], ids, used, stats[1] / jnp.maximum(1, count).astype(jnp.float32)
        )

    return fun


def _mean_then_clip(
    loss: LossFn,
    sample: Callable[[jax.Array, jax.Array, jax.Array], jax.Array],
    items_per_subject: int,
    l2_clip_norm: float,
    batch_size: int,
    method: str,
) -> Query:
    _validate.positive_int(items_per_subject=items_per_subject)
    silo_query.check(1.0, l2_clip_norm, batch_size)
    per_example = fljax_kernels.per_example_grads(keyed.of_one(loss), method=method)
    places = items_per_subject
    together = max(1, batch_size // places)

    def fun(
        params: Params,
        examples: Batch,
        rows: jax.Array,
        key: jax.Array,
        turn: jax.Array | None = None,
    ) -> SiloSum:
        coin_key, rank_key = jax.random.split(key)
        ids = silo_query.subject_ids(examples, rows)
        sampled = sample(ids, silo_query.in_turn(rows, turn), coin_key)
        rank = silo_query.group(ids, sampled, jax.random.uniform(rank_key, ids.shape)).rank
        used = sampled & (rank < places)
        row_places = jnp.arange(rows.size, dtype=jnp.int32)
        table = _subject_table(row_places, ids, rank, used, places, together)
        num_subjects = jnp.sum(used & (rank == 0))

        def add(i: jax.Array, total: tuple[Params, jax.Array]) -> tuple[Params, jax.Array]:
            batch = table[i].reshape(-1)
            here = batch >= 0
            # Full float32 products: TF32 would be off by a thousandth, and these numbers bound the
            # sensitivity.
            with jax.default_matmul_precision("highest"):
                G = per_example(
                    params, silo_query.taken(loss, examples, rows, batch, key), batch_mask=here
                )
                gram = G.gram()
            each = jnp.arange(together)
            blocks = gram.reshape(together, places, together, places)[each, :, each]
            size = jnp.maximum(1, jnp.sum(table[i] >= 0, axis=1)).astype(gram.dtype)
            lengths = jnp.sqrt(jnp.maximum(0, jnp.diagonal(blocks, axis1=1, axis2=2)))
            squares = jnp.sum(blocks, axis=(1, 2)) + _GRAM_SLACK * jnp.square(
                jnp.sum(lengths, axis=1)
            )
            norms = jnp.sqrt(jnp.maximum(0, squares)) / size
            weights = clipping.flat(norms, l2_clip_norm) / size
            grads = G.rmatvec(jnp.repeat(weights, places, total_repeat_length=batch.size))
            clipped = jnp.sum(~(norms <= l2_clip_norm) & (table[i][:, 0] >= 0)).astype(jnp.float32)
            losses = G.values().astype(jnp.float32)
            stats = jnp.stack([jnp.sum(jnp.where(jnp.isfinite(losses), losses, 0)), clipped])
            return jax.tree.map(
                jnp.add, total, (jax.tree.map(lambda g: g.astype(jnp.float32), grads), stats)
            )

        zero = (silo_query.zeros(params), jnp.zeros((2,), jnp.float32))
        num_batches = silo_query.num_batches(num_subjects, together)
        grad_sum, stats = _meshes.fori_loop(0, num_batches, add, zero)
        return silo_query.answer(
            grad_sum,
            stats[0],
            ids,
            used,
            stats[1] / jnp.maximum(1, num_subjects).astype(jnp.float32),
        )

    return fun


def _subject_table(
    rows: jax.Array, ids: jax.Array, rank: jax.Array, used: jax.Array, places: int, together: int
) -> jax.Array:
    """Rows `[batches, together, places]`: a line for each subject with a used row, its rows first,
    -1 behind.
    """
    order = jnp.argsort(jnp.where(used, ids, _NOBODY), stable=True)
    ordered = jnp.where(used, ids, _NOBODY)[order]
    new = jnp.concatenate([jnp.ones((1,), bool), ordered[1:] != ordered[:-1]])
    line = jnp.cumsum(new.astype(jnp.int32)) - 1
    num_lines = rows.size + -rows.size % together  # as many subjects as rows, at worst
    place = jnp.where(used[order], line * places + rank[order], num_lines * places)
    table = jnp.full((num_lines * places,), -1, rows.dtype).at[place].set(rows[order], mode="drop")
    return table.reshape(-1, together, places)
