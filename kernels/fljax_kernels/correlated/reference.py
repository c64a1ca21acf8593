"""One round's noise from this round's draw and what is kept. It defines the result.

Buffers are places of one array: where one is written, the others stay where they are.
"""

import jax
import jax.numpy as jnp
import numpy as np

from fljax_kernels import _platforms
from fljax_kernels.correlated.strategies import Strategy


def plan(strategy: Strategy, step: jax.Array) -> tuple[jax.Array, jax.Array]:
    """How much of each buffer is subtracted, float32 `[K]`, and which one is written (K: none)."""
    count, kind = strategy.num_buffers, strategy.kind
    places = np.arange(count)
    if kind == "tree":
        # Before round t stand the nodes of the set bits of t. The trailing ones end in this node,
        # which takes their place.
        rest = step + 1
        level = jax.lax.population_count((rest & -rest) - 1)
        return jnp.where(places < level, 1.0, 0.0), level
    if kind == "buffered":
        return jnp.asarray(strategy.coefs[count:], jnp.float32), jnp.int32(count)
    # Place j was written i rounds ago, 1 <= i <= K.
    if kind == "dense_banded":
        table = np.asarray(strategy.coefs, np.float32).reshape(strategy.num_rounds, -1)
        coefs = jnp.asarray(table)[step, 1:]
    else:
        coefs = jnp.asarray(strategy.coefs[1 : count + 1], jnp.float32)
    coefs = -coefs if kind == "banded_inverse" else coefs
    ago = (step - 1 - places) % count
    # What was written before the correlation began anew stays until overwritten, uncounted.
    return jnp.where(ago < step, coefs[ago], 0.0), step % count


def correlated(
    strategy: Strategy,
    step: jax.Array,
    fresh: jax.Array,
    buffers: jax.Array,
    *,
    of_parties: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """The noise of round `step`, like `fresh`, and the next buffers `[K, ...]`.

    of_parties: `fresh` is `[N, ...]`, so large that a copy of the buffers is dear.
    """
    count = strategy.num_buffers
    if count == 0 and strategy.kind != "dense_banded":
        return fresh, buffers
    if strategy.kind == "dense_banded":
        own = np.asarray(strategy.coefs, np.float64)[:: count + 1]
        scale = jnp.asarray(1 / own, fresh.dtype)[step]
        if count == 0:
            return scale * fresh, buffers
    if strategy.kind == "buffered":
        buffers = jnp.where(step == 0, 0, buffers)
    weights, place = plan(strategy, step)
    if of_parties:
        noise = _taken_in_memory(fresh, weights, buffers, step)
    else:
        noise = _taken(fresh, weights, buffers)
    if strategy.kind == "buffered":
        decay = jnp.asarray(strategy.coefs[:count], fresh.dtype)
        kept = decay.reshape(-1, *[1] * fresh.ndim) * buffers
        return noise, kept + jnp.expand_dims(noise, 0)
    if strategy.kind == "dense_banded":
        noise = scale * noise
    new = fresh if strategy.kind in ("banded_inverse", "tree") else noise
    if strategy.kind == "tree":  # some rounds write nothing
        return noise, buffers.at[place].set(new, mode="drop")
    return noise, _written(buffers, new, place)


def _taken(fresh: jax.Array, weights: jax.Array, buffers: jax.Array) -> jax.Array:
    """`fresh` less the buffers, so much of each."""
    noise = fresh
    for j in range(len(buffers)):  # in one order: the sum has the same bits on any device
        noise = noise - weights[j].astype(fresh.dtype) * buffers[j]
    return noise


def _taken_in_memory(
    fresh: jax.Array, weights: jax.Array, buffers: jax.Array, step: jax.Array
) -> jax.Array:
    """The same, for a CPU in a loop of one turn, whose result is in memory before a buffer is
    written.

    Else XLA computes the noise again wherever it is read, which is after that, from copies of all
    buffers.
    """

    def loop(
        fresh: jax.Array, weights: jax.Array, buffers: jax.Array, step: jax.Array
    ) -> jax.Array:
        turns = jnp.where(step < 0, 2, 1)  # one, unknown to XLA: of a loop it knows it makes none
        # Of each turn its own: products that are those of all turns XLA makes and keeps beforehand.
        each = jnp.stack([weights, weights])
        take = lambda turn, noise: _taken(noise, each[turn], buffers)
        return jax.lax.fori_loop(0, turns, take, fresh)

    def plain(
        fresh: jax.Array, weights: jax.Array, buffers: jax.Array, step: jax.Array
    ) -> jax.Array:
        return _taken(fresh, weights, buffers)

    return _platforms.choose(fresh, weights, buffers, step, cpu=loop, default=plain)


@jax.custom_batching.custom_vmap
def _written(buffers: jax.Array, new: jax.Array, place: jax.Array) -> jax.Array:
    """Buffers `[K, ...]` with `new` at `place`, which is one of theirs."""
    return jax.lax.dynamic_update_index_in_dim(buffers, new, place, 0)


@_written.def_vmap  # type: ignore[untyped-decorator]
def _written_each(
    size: int, batched: list[bool], buffers: jax.Array, new: jax.Array, place: jax.Array
) -> tuple[jax.Array, bool]:
    """Of many, each with a place of its own: a scatter would go number by number."""
    given = (buffers, new, place)
    wide = [
        x if mapped else jnp.broadcast_to(x, (size, *x.shape))
        for x, mapped in zip(given, batched, strict=True)
    ]
    here = jnp.arange(wide[0].shape[1])[None] == wide[2][:, None]
    here = here.reshape(*here.shape, *[1] * (wide[1].ndim - 1))
    return jnp.where(here, wide[1][:, None], wide[0]), True
