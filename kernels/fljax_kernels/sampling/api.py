"""Poisson and fixed-size samples: what they promise, and their checks."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax_kernels import _check
from fljax_kernels.sampling import allocation, binomial, subset


class Sample(NamedTuple):
    """One drawn batch.

    indices: int32 `[capacity]`; the sampled units first, each once, in random order; then -1.
    count: int32 `[]`, the number sampled, which may exceed the capacity. Secret, as the indices
      are.
    overflow: bool `[]`, True if count > capacity: then `indices` holds a uniformly random part of
      the sample.
    """

    indices: jax.Array
    count: jax.Array  # type: ignore[assignment]  # hides tuple.count
    overflow: jax.Array


def poisson_sample(key: jax.Array, num: int, prob: float, capacity: int) -> Sample:
    """Takes each of `num` units independently with probability `prob`.

    Draws the number of units, Binomial(num, prob), and then a uniformly random set of that size:
    the same law as one coin per unit, at a cost of O(capacity), not O(num), where capacity is at
    most num / 8.

    Guarantee: given uniform random bits, the law of the sample is within 1e-10 of Poisson sampling
    in total variation (the table of the count is float64; the set is as in `fixed_size_sample`).
    Where `overflow` is True the sample is
    truncated: account for truncated Poisson sampling, or add the chance of it to delta.
    `poisson_capacity` makes that chance negligible.

    Args:
      key: typed PRNG key, used once.
      num: number of units, a public constant. In [0, 2**31).
      prob: chance of each unit. In [0, 1]; a host number, as the table of the count is made when
        traced.
      capacity: length of the result. In [0, num].

    Returns:
      `Sample`; shapes depend on `capacity` only.

    Raises:
      ValueError: an argument is out of range.

    Source: Zhu and Wang (2019), "Poisson Subsampled Renyi Differential Privacy", for what needs
      this law.
    """
    _check.one_key(key)
    _check_int("num", num, 2**31 - 1)
    _check_int("capacity", capacity, num)
    _check_prob(prob)
    key_count, key_subset = jax.random.split(key)
    first, below = binomial.thresholds(num, float(prob))
    count = first + binomial.invert(jax.random.bits(key_count, (2,), jnp.uint32), below)
    chosen = subset.sample(key_subset, num, capacity)
    indices = jnp.where(jnp.arange(capacity, dtype=jnp.int32) < count, chosen, -1)
    return Sample(indices=indices, count=count, overflow=count > capacity)


def fixed_size_sample(key: jax.Array, num: int, size: int) -> jax.Array:
    """Draws `size` of `num` units without replacement, every ordered choice with the same chance.

    Guarantee: given uniform random bits, exactly uniform for size <= num / 8, otherwise within
    num**2 * 2**-65 in total variation (ties in a sort by 64 bits). Neighbouring data sets have the
    same `num` here: account under REPLACE_ONE.

    Args:
      key: typed PRNG key, used once.
      num: number of units. In [0, 2**31).
      size: in [0, num].

    Returns:
      int32 `[size]`, distinct, in random order.

    Raises:
      ValueError: an argument is out of range.
    """
    _check.one_key(key)
    _check_int("num", num, 2**31 - 1)
    _check_int("size", size, num)
    return subset.sample(key, num, size)


def allocated_sample(
    key: jax.Array,
    round_index: jax.Array | int,
    num: int,
    num_rounds: int,
    times: int,
    capacity: int,
) -> Sample:
    """The units of one round where each is in exactly `times` of `num_rounds` rounds.

    Guarantee: given uniform random bits, each unit's rounds are a uniform set of that size, apart
    from the others', as near as `fixed_size_sample` is. Account for a run by
    `accounting.events.RandomAllocation`. Indices are in the order of units, and where `overflow` is
    True the last ones are missing, which no accountant covers: take the capacity that
    `poisson_capacity(num, times / num_rounds)` says. Costs O(num times) a round, and a sort of
    num_rounds for each unit where times > num_rounds / 8.

    Args:
      key: typed PRNG key, the same for all rounds of a run, of which nothing else is drawn.
      round_index: integer in [0, num_rounds); may be traced.
      num: number of units. In [0, 2**31).
      num_rounds: in [1, 2**31).
      times: in [0, num_rounds].
      capacity: length of the result. In [0, num].

    Raises:
      ValueError: an argument is out of range.

    Source: Feldman, Shenfeld (2025), arXiv:2502.08202, for what needs this law.
    """
    _check.one_key(key)
    _check_int("num", num, 2**31 - 1)
    _check_int("num_rounds", num_rounds, 2**31 - 1)
    _check_int("times", times, num_rounds)
    _check_int("capacity", capacity, num)
    units = jnp.arange(num, dtype=jnp.uint32)
    joined = allocation.joins(key, round_index, units, num_rounds, times)
    indices, count = allocation.placed(joined, capacity)
    return Sample(indices=indices, count=count, overflow=count > capacity)


def poisson_capacity(num: int, prob: float, tail_prob: float = 1e-12) -> int:
    """Smallest capacity which a Poisson sample passes with a chance of `tail_prob` at most, per
    draw.

    Exact binomial tail in float64 (relative error below 1e-9), on the host.

    Args:
      num: number of units. In [0, 2**31).
      prob: chance of each unit. In [0, 1].
      tail_prob: in (0, 1). Over T rounds the chance of any overflow is at most T times as large:
        add it to delta.

    Raises:
      ValueError: an argument is out of range.
    """
    _check_int("num", num, 2**31 - 1)
    _check_prob(prob)
    if not 0 < tail_prob < 1:
        raise ValueError(f"Expected tail_prob in (0, 1), got tail_prob={tail_prob!r}.")
    return binomial.capacity(num, float(prob), tail_prob)


def _check_int(name: str, value: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value <= most:
        raise ValueError(f"Expected {name} to be an integer in [0, {most}], got {name}={value!r}.")


def _check_prob(prob: float) -> None:
    if isinstance(prob, jax.core.Tracer):
        raise ValueError("Expected prob to be a number known before tracing, got a traced value.")
    if not 0 <= prob <= 1:
        raise ValueError(f"Expected prob in [0, 1], got prob={prob!r}.")
