"""What all queries of a silo share: the sample's rows, its groups, and the form of the answer.

Source: Marathe et al. (2022), "Subject Granular Differential Privacy in Federated Learning",
  arXiv:2206.03617.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from fljax import _validate
from fljax.data.subjects import SUBJECT
from fljax.local import keyed
from fljax.local.sgd import take_examples
from fljax.types import Batch, Params
from fljax_kernels import PerExampleGrads


class SiloSum(NamedTuple):
    """One query's answer. Everything but a noised grad_sum is private.

    grad_sum: params-like, at least float32; int32 of an `AddUp`. loss: `[]`, mean over the sampled
    items. num_items, num_subjects: int32 `[]`, in the sample. largest_group: int32 `[]`, most items
    of one subject in it. clipped_fraction: `[]`, of what is clipped (items, subjects or the whole
    gradient). Where a query does without subjects and examples carry none, each item is its own.
    """

    grad_sum: Params
    loss: jax.Array
    num_items: jax.Array
    num_subjects: jax.Array
    largest_group: jax.Array
    clipped_fraction: jax.Array


class Query(Protocol):
    """A sum over a sample of a silo's `rows` int32 `[N]` of `examples`, -1: padding."""

    def __call__(
        self,
        params: Params,
        examples: Batch,
        rows: jax.Array,
        key: jax.Array,
        turn: jax.Array | None = None,
        /,
    ) -> SiloSum:
        """turn: bool `[N]`, the rows that may be in the sample; None: all of them."""


class AddUp(Protocol):
    """What adds up clipped rows otherwise than in floating point, as `fljax.upload.exact_noise`
    does: `total` of a grid. Then a query's grad_sum is in its steps.
    """

    def __call__(
        self, rows: Any, factors: jax.Array, key: jax.Array, places: jax.Array, mask: jax.Array
    ) -> Any: ...


class AddUpGradients(Protocol):
    """The same of per-example gradients: `total_of_gradients` of a grid."""

    def __call__(
        self,
        gradients: PerExampleGrads,
        factors: Callable[..., jax.Array],
        key: jax.Array,
        places: jax.Array,
        *per_example: Any,
        parts: jax.Array | None = None,
    ) -> tuple[Any, jax.Array]: ...


class Groups(NamedTuple):
    """Rows grouped by id. rank: int32 `[N]`, place among the rows of its id, from 0. size: int32
    `[N]`, their number.

    Both are 0 where the mask is False. A row's entries depend on the rows of its own id only.
    """

    rank: jax.Array
    size: jax.Array


def group(ids: jax.Array, mask: jax.Array, order_by: jax.Array | None = None) -> Groups:
    """Groups the rows with mask True by `ids` `[N]`, each group in ascending `order_by` `[N]`
    (None: as they stand).

    One sort, then linear work; no array is as long as there are subjects. Without `order_by` the
    sort does not depend on the mask: in a loop over samples of the same rows, XLA sorts once.
    """
    order = jnp.argsort(ids, stable=True) if order_by is None else jnp.lexsort((order_by, ids))
    ordered, kept = ids[order], mask[order].astype(jnp.int32)
    end = jnp.ones((1,), bool)
    first = jnp.concatenate([end, ordered[1:] != ordered[:-1]])
    through = jnp.cumsum(kept, dtype=jnp.int32)
    before = through - kept
    start = jax.lax.cummax(jnp.where(first, before, 0))
    # What is kept up to the end of the group: the same from behind.
    stop = jax.lax.cummin(
        jnp.where(jnp.concatenate([first[1:], end]), through, ids.size), reverse=True
    )
    back = jnp.zeros_like(through).at[order].set(jnp.arange(ids.size, dtype=jnp.int32))
    rank, size = (before - start)[back], (stop - start)[back]
    return Groups(jnp.where(mask, rank, 0), jnp.where(mask, size, 0))


def within_cap(rows: jax.Array, ids: jax.Array, max_items: int) -> jax.Array:
    """`rows` with all but the first `max_items` of each subject replaced by padding: what makes a
    public cap true.

    Guarantee: at most `max_items` rows of one subject remain, and which ones does not depend on
      other subjects.
    """
    mask = rows >= 0
    return jnp.where(mask & (group(ids, mask).rank < max_items), rows, -1)


def answer(
    grad_sum: Params, loss_sum: jax.Array, ids: jax.Array, used: jax.Array, clipped: jax.Array
) -> SiloSum:
    """The sum with what is known of its sample: `ids` `[N]` of the rows, `used` `[N]` those that
    count.
    """
    groups = group(ids, used)
    count = jnp.sum(used).astype(jnp.int32)
    num_subjects = jnp.sum(used & (groups.rank == 0)).astype(jnp.int32)
    mean_loss = loss_sum / jnp.maximum(1, count).astype(jnp.float32)
    return SiloSum(grad_sum, mean_loss, count, num_subjects, jnp.max(groups.size), clipped)


def subject_ids(examples: Any, rows: jax.Array, *, required: bool = True) -> jax.Array:
    """Of `rows` `[N]`; the row's own place where examples carry no subjects and none are
    `required`.
    """
    if not isinstance(examples, dict) or SUBJECT not in examples:
        if not required:
            return jnp.arange(rows.size, dtype=jnp.int32)
        raise ValueError(
            f"Expected examples to carry the key {SUBJECT!r}, got none: see fljax.data.subjects."
        )
    return jnp.take(jnp.asarray(examples[SUBJECT]), jnp.maximum(rows, 0), axis=0).astype(jnp.int32)


def batches(values: jax.Array, keep: jax.Array, fill: int, batch_size: int) -> jax.Array:
    """`[N]` -> `[S, batch_size]`: the kept values in their order, then `fill`."""
    padded = values.size + -values.size % batch_size
    place = jnp.where(keep, jnp.cumsum(keep.astype(jnp.int32)) - 1, padded)
    return (
        jnp.full((padded,), fill, values.dtype)
        .at[place]
        .set(values, mode="drop")
        .reshape(-1, batch_size)
    )


def taken(
    loss: Callable[..., Any], examples: Any, rows: jax.Array, places: jax.Array, key: jax.Array
) -> Any:
    """The examples at `places` `[B]` of `rows` `[N]`, -1: padding, as `keyed.of_one(loss)` wants
    them.

    key: of the query; a loss that draws has a stream of its own.
    """
    there = jnp.where(places >= 0, rows[jnp.maximum(places, 0)], -1)
    return keyed.drawing(loss, take_examples(examples, there), key, 0, places)


def in_turn(rows: jax.Array, turn: jax.Array | None) -> jax.Array:
    """Which of `rows` `[N]` may be sampled. Rows of another turn stay where they are, as padding
    would not: so their subjects' order is the same in each step of a loop, and is found once.
    """
    return rows >= 0 if turn is None else (rows >= 0) & turn


def num_batches(count: jax.Array, batch_size: int) -> jax.Array:
    """That hold `count` rows."""
    return (count + batch_size - 1) // batch_size


def zeros(params: Params, dtype: Any = jnp.float32) -> Params:
    """Zeros in the shape of the parameters."""
    return jax.tree.map(lambda p: jnp.zeros(p.shape, dtype), params)


def check(item_sampling_prob: float, l2_clip_norm: float, batch_size: int) -> None:
    """ValueError where an argument all queries take is out of range."""
    _validate.probability(item_sampling_prob=item_sampling_prob)
    _validate.positive(l2_clip_norm=l2_clip_norm)
    _validate.positive_int(batch_size=batch_size)
