"""Noise that is correlated over rounds: what it promises, and its checks."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fljax_kernels import _meshes
from fljax_kernels.correlated import reference
from fljax_kernels.correlated.strategies import MOST_GROWN, Strategy, grown
from fljax_kernels.gaussian import api as gaussian
from fljax_kernels.gaussian.reference import drawn_in


class State(NamedTuple):
    """step: int32 `[]`, rounds since the strategy began. buffers: tree of `[K, ...]`, K =
    `strategy.num_buffers`, float32 (float64 for leaves of it).
    """

    step: jax.Array
    buffers: Any


def init(strategy: Strategy, like: Any) -> State:
    """The state before the first round, for trees like `like`. Memory: K times theirs."""

    def zeros(leaf: Any) -> jax.Array:
        return jnp.zeros((strategy.num_buffers, *jnp.shape(leaf)), drawn_in(leaf))

    return State(jnp.zeros((), jnp.int32), jax.tree.map(zeros, like))


def add_noise(
    strategy: Strategy, key: jax.Array, tree: Any, stddev: float | jax.Array, state: State
) -> tuple[Any, State]:
    """Adds this round's row of stddev * C^-1 z to a tree, and moves the state on.

    Guarantee: over the rounds of one strategy the noise is stddev * C^-1 z, z independent N(0, 1)
    for keys that differ. So if one unit moves column by column C times the trees by at most s in
    L2 norm, over all rounds together, they are released by one Gaussian mechanism with noise
    multiplier stddev / s, also where later trees depend on earlier releases. After `num_rounds`
    rounds C begins anew with independent noise. The noise of a round depends on the keys since
    then alone: from a state that was kept, equal keys give equal bits. Idealisation: that of
    `gaussian_noise`, and sums of float32. Drawn and added in float32 at least, cast to the leaf's
    dtype last.

    Args:
      strategy: C. Static under `jit`.
      key: typed PRNG key, one for each round.
      tree: pytree of floating arrays.
      stddev: scalar, of z, in the unit of `tree`, the same in all rounds. >= 0.
      state: from `init` or the round before.

    Returns:
      `(tree with noise, next state)`; shapes and dtypes stay.

    Raises:
      ValueError: an argument is out of range or not of the stated kind, `state` is of another
        strategy or tree, or C^-1 makes noise more than 1024 times as large as what its round
        draws: sums of float32 would lose that, and what it hides would be seen.

    Source: Denisov et al. (2022), arXiv:2202.08312, Theorem 2.1: adaptive rounds.
    """
    gaussian.check_floating("tree", tree)
    _check_state(strategy, tree, state)
    like = jax.tree.map(lambda leaf: jnp.zeros(jnp.shape(leaf), drawn_in(leaf)), tree)
    fresh = gaussian.add_gaussian_noise(key, like, stddev)

    def add(tree: Any, fresh: Any, state: State) -> tuple[Any, State]:
        noise, after = _row(strategy, fresh, state)

        def added(x: Any, noise: jax.Array) -> jax.Array:
            return (jnp.asarray(x).astype(noise.dtype) + noise).astype(jnp.result_type(x))

        return jax.tree.map(added, tree, noise), after

    at = _meshes.home(tree)
    if at is None:
        return add(tree, fresh, state)
    noisy, after = _meshes.compute(at, add, tree, fresh, state)
    kept = jax.tree.map(
        lambda x, leaf: at.leave(x, (None, *_meshes.spec(leaf))), after.buffers, tree
    )
    noisy = jax.tree.map(lambda x, leaf: at.leave(x, _meshes.spec(leaf)), noisy, tree)
    return noisy, State(at.leave(after.step, ()), kept)


def correlate(strategy: Strategy, fresh: Any, state: State) -> tuple[Any, State]:
    """Correlates what was drawn: the round's row of C^-1 z from z of the round.

    Each entry is taken alone, so that what cancels in a sum of z does in the same sum of noise, up
    to rounding: noise that pairs of clients share stays shared. Made for many parties: a CPU has it
    in memory before it writes a buffer, and so writes buffers that were donated in place.

    Args:
      strategy: C. Static under `jit`.
      fresh: z of this round, a tree of float32 arrays `[N, ...]`, or float64.
      state: from `init(strategy, fresh)` or the round before.

    Returns:
      `(noise, next state)`, noise like `fresh`.

    Raises:
      ValueError: as `add_noise`.
    """
    gaussian.check_floating("fresh", fresh)
    _check_state(strategy, fresh, state)
    return _row(strategy, fresh, state, of_parties=True)


def _check_state(strategy: Strategy, tree: Any, state: State) -> None:
    if not grown(strategy) <= MOST_GROWN:
        raise ValueError(
            f"Expected a strategy whose noise is at most {MOST_GROWN:g} times as large as what a "
            "round draws, which sums of float32 lose beyond that, got "
            f"{grown(strategy):.3g} times with strategy={strategy!r}."
        )
    wanted = jax.tree.map(lambda leaf: (strategy.num_buffers, *jnp.shape(leaf)), tree)
    given = jax.tree.map(jnp.shape, state.buffers)
    if wanted != given:
        raise ValueError(
            f"Expected state to be of this strategy and tree, buffers of shapes {wanted}, "
            f"got {given}."
        )


def _row(
    strategy: Strategy, fresh: Any, state: State, *, of_parties: bool = False
) -> tuple[Any, State]:
    leaves, treedef = jax.tree.flatten(fresh)
    found = [
        reference.correlated(strategy, state.step, z, kept, of_parties=of_parties)
        for z, kept in zip(leaves, jax.tree.leaves(state.buffers), strict=True)
    ]
    step = (state.step + 1) % strategy.num_rounds
    after = State(step, jax.tree.unflatten(treedef, [kept for _, kept in found]))
    return jax.tree.unflatten(treedef, [noise for noise, _ in found]), after
