"""Integer noise, rotation, rounding to a grid, and the ring of sums: what they promise, and their
checks.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax_kernels import _check
from fljax_kernels.discrete import alias, laws, rotation, rounding, sums


def discrete_gaussian_noise(key: jax.Array, shape: Sequence[int], stddev: float) -> jax.Array:
    """Independent integers of mass proportional to exp(-x**2 / (2 stddev**2)).

    Guarantee: given uniform random bits, each draw is within 2**-160 of this law in total
    variation, for the fraction that `stddev` is: no float is in the law. 2**60 draws of a run add
    less than 2**-100 to delta, which no float64 delta above 1e-14 shows. A draw depends on the key
    and its place alone: the same bits under `jit` and `vmap` and over any devices. Its size is
    below 18 stddev + 1. How long a call takes depends on ties of random bits, not on the noise.

    Args:
      key: `[]` typed PRNG key, used once.
      shape: of the result.
      stddev: the parameter of the formula, in [2**-6, 4096]; a host number, as its table is made
        when traced. The standard deviation of the noise is never above it.

    Returns:
      int32 `shape`.

    Raises:
      ValueError: an argument is out of range or traced.

    Source: Canonne, Kamath, Steinke (2020), arXiv:2004.00010, for the law; drawn by alias tables.
    """
    _check_number("stddev", stddev, laws.LARGEST_STDDEV)
    return _drawn(key, shape, "discrete_gaussian", stddev)


def rounded_gaussian_noise(key: jax.Array, shape: Sequence[int], stddev: float) -> jax.Array:
    """Independent whole numbers, each the one next to a draw from N(0, stddev**2).

    Added to whole numbers x, they are x + N(0, stddev**2), rounded: a function of what a Gaussian
    mechanism releases. So all that is proved of that mechanism holds, sampled or composed, by any
    accountant.

    Guarantee: as `discrete_gaussian_noise`, of this law; its size is below 18 stddev + 1, its
    variance stddev**2 + 1/12 to within 1e-6.

    Args:
      key: `[]` typed PRNG key, used once.
      shape: of the result.
      stddev: before rounding, in [1, 8192]; a host number. Its table takes a second at 2048, and
        three at 8192.

    Returns:
      int32 `shape`.

    Raises:
      ValueError: an argument is out of range or traced.
    """
    _check_number("stddev", stddev, laws.LARGEST_ROUNDED, least=1.0)
    return _drawn(key, shape, "rounded_gaussian", stddev)


def skellam_noise(key: jax.Array, shape: Sequence[int], variance: float) -> jax.Array:
    """Independent differences of two Poisson counts of mean variance / 2.

    N of variance v add up to one of variance N v, exactly: so a sum of clients' noise may be drawn
    at once.

    Guarantee: as `discrete_gaussian_noise`, of this law; its size is below 18 stddev + 100.

    Args:
      key: `[]` typed PRNG key, used once.
      shape: of the result.
      variance: in [2**-6, 2**24]; a host number.

    Returns:
      int32 `shape`.

    Raises:
      ValueError: an argument is out of range or traced.

    Source: Agarwal, Kairouz, Liu (2021), arXiv:2110.04995, for its use.
    """
    _check_number("variance", variance, laws.LARGEST_STDDEV**2)
    return _drawn(key, shape, "skellam", variance)


def rotate(key: jax.Array, x: jax.Array) -> jax.Array:
    """A vector with its length spread over all entries: random signs, then Walsh-Hadamard.

    It is orthogonal up to float32 rounding, and public: the server has the key, too.

    Args:
      key: `[]` typed PRNG key, the same for all vectors that are added up.
      x: float32 `[..., P]`, P a power of two: pad with zeros.

    Returns:
      float32 `[..., P]`.

    Raises:
      ValueError: P is no power of two, or key is not one typed key.

    Source: Kairouz, Liu, Steinke (2021), arXiv:2102.06387, section 4.2.
    """
    _check.one_key(key)
    _check_power_of_two(x)
    return rotation.transform(x * _row(rotation.signs(key, x.shape[-1]), x))


def rotate_back(key: jax.Array, x: jax.Array) -> jax.Array:
    """The inverse of `rotate` with the same key, float32 `[..., P]`.

    Raises:
      ValueError: P is no power of two, or key is not one typed key.
    """
    _check.one_key(key)
    _check_power_of_two(x)
    return rotation.transform(x) * _row(rotation.signs(key, x.shape[-1]), x)


def grid_round(key: jax.Array, x: jax.Array, most_squared_norm: int) -> jax.Array:
    """Integers about `x`, each entry rounded up with the chance that keeps its mean, drawn anew
    until the squared norm of all is at most `most_squared_norm`.

    Guarantee: that bound, in whole numbers, for any x: after 64 draws that failed, entries are cut
    towards 0, and where that is still too long, or x is not finite, what is left is 0. So one
    vector moves an integer sum by at most the root of the bound in L2 norm, and by at most the
    bound in L1 norm, whatever float32 did before.

    Args:
      key: `[]` typed PRNG key, used once.
      x: float32 `[P]`, in steps of the grid.
      most_squared_norm: an integer in [0, 2**32 - 2].

    Returns:
      int32 `[P]`.

    Raises:
      ValueError: an argument is out of range.

    Source: Kairouz, Liu, Steinke (2021), arXiv:2102.06387, section 4.1, conditional rounding.
    """
    _check.one_key(key)
    if jnp.ndim(x) != 1 or jnp.result_type(x) != jnp.float32:
        raise ValueError(
            f"Expected x to be float32 [P], got {jnp.result_type(x)} of shape {np.shape(x)}."
        )
    good = isinstance(most_squared_norm, int | np.integer)
    if isinstance(most_squared_norm, bool) or not (
        good and 0 <= most_squared_norm <= rounding.MOST
    ):
        raise ValueError(
            "Expected most_squared_norm to be an integer in [0, 2**32 - 2], got "
            f"most_squared_norm={most_squared_norm!r}."
        )
    return rounding.conditional(key, jnp.asarray(x), int(most_squared_norm))


def grid_sum(
    key: jax.Array,
    rows: Any,
    coefficients: jax.Array,
    most_squared_norms: jax.Array | int,
    places: jax.Array,
) -> Any:
    """The sum of whole numbers about rows, each times its coefficient, every entry rounded up with
    the chance that keeps its mean.

    A row that comes out too long is made shorter, by 1/64 first and at last by half; if it still is
    too long, it is 0. A random number is one of the row's own, drawn, plus a hash of the entry's
    place and a drawn word: any two rows are rounded independently, cheaper than by `grid_round`.

    Guarantee: each row adds whole numbers whose squared norm is at most its number of
    `most_squared_norms`, whatever it holds, which depend on the row, its coefficient, bound and
    place, and on the key alone. Entries that are not finite count as 0, and a row whose coefficient
    is not > 0 adds 0. No order changes the sum.

    Args:
      key: `[]` typed PRNG key, used for nothing else; the same for rows of all calls that make one
        sum.
      rows: tree of floating `[B, ...]`.
      coefficients: `[B]`, >= 0, into steps of the grid.
      most_squared_norms: uint32 `[B]`, or a number for all, which is faster below 2**24; at most
        2**32 - 2.
      places: int `[B]`, a number for each row, another for each of those in one sum.

    Returns:
      int32, a tree of `[...]`.

    Raises:
      ValueError: a shape or a dtype is another, or a number is out of range.
    """
    _check.one_key(key)
    leaves, tree = jax.tree.flatten(rows)
    size = np.shape(coefficients)
    if len(size) != 1 or {np.shape(leaf)[:1] for leaf in leaves} != {size}:
        raise ValueError(
            "Expected rows to be a tree of [B, ...] and coefficients [B], got rows of shapes "
            f"{[np.shape(leaf) for leaf in leaves]} and coefficients of shape {size}."
        )
    sums.check(most_squared_norms, places, size[0])
    flat = [jnp.reshape(leaf, (*size, math.prod(leaf.shape[1:]))) for leaf in leaves]
    parts, c = [sums.Part(y.astype(jnp.float32)) for y in flat], coefficients.astype(jnp.float32)
    totals = sums.add_up(parts, c, most_squared_norms, key, places)
    shaped = [total.reshape(leaf.shape[1:]) for total, leaf in zip(totals, leaves, strict=True)]
    return jax.tree.unflatten(tree, shaped)


def to_ring(x: jax.Array, bits: int) -> jax.Array:
    """Integers modulo 2**bits, uint32 of int32: what a client sends.

    A secure sum must take sums modulo 2**bits before anybody sees them: modulo 2**32 they also tell
    how many clients sent a negative number.

    Raises:
      ValueError: bits is not in [1, 32], or x is not int32.
    """
    _check_bits(bits)
    _check_dtype(x, jnp.int32)
    return jax.lax.bitcast_convert_type(x, jnp.uint32) & np.uint32(2**bits - 1)


def from_ring(words: jax.Array, bits: int) -> jax.Array:
    """The integers in [-2**(bits - 1), 2**(bits - 1)) that uint32 words modulo 2**bits stand for,
    int32.

    Raises:
      ValueError: bits is not in [1, 32], or words are not uint32.
    """
    _check_bits(bits)
    _check_dtype(words, jnp.uint32)
    unused = 32 - bits
    top = jax.lax.bitcast_convert_type(words << np.uint32(unused), jnp.int32)
    return top >> np.int32(unused)


def _drawn(key: jax.Array, shape: Sequence[int], law: str, parameter: float) -> jax.Array:
    _check.one_key(key)
    return alias.draw(key, tuple(shape), alias.table(law, float(parameter)))


def _row(signs: jax.Array, x: jax.Array) -> jax.Array:
    return signs.reshape((1,) * (x.ndim - 1) + signs.shape)


def _check_number(name: str, value: Any, most: float, least: float = 2.0**-6) -> None:
    if isinstance(value, jax.core.Tracer):
        raise ValueError(f"Expected {name} to be a number known before tracing, got a traced one.")
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise ValueError(f"Expected {name} to be a number, got {name}={value!r}.")
    if not least <= value <= most:
        raise ValueError(f"Expected {name} in [{least:g}, {most:g}], got {name}={value!r}.")


def _check_power_of_two(x: jax.Array) -> None:
    if jnp.ndim(x) < 1 or rotation.size(np.shape(x)[-1]) != np.shape(x)[-1]:
        raise ValueError(
            f"Expected x of shape [..., P], P a power of two, got shape {np.shape(x)}."
        )
    _check_dtype(x, jnp.float32)


def _check_bits(bits: Any) -> None:
    if isinstance(bits, bool) or not isinstance(bits, int | np.integer) or not 1 <= bits <= 32:
        raise ValueError(f"Expected bits to be an integer in [1, 32], got bits={bits!r}.")


def _check_dtype(x: Any, dtype: Any) -> None:
    if jnp.result_type(x) != dtype:
        raise ValueError(f"Expected {np.dtype(dtype)}, got {jnp.result_type(x)}.")
