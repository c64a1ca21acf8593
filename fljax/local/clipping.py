"""Clipping styles: from the norms of rows to the coefficients of their sum, and the sums
themselves.
"""

import dataclasses
import functools
import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

import fljax_kernels
from fljax import _validate
from fljax_kernels.clipped_sum import reference

Style = Literal["flat", "auto_s", "psac"]
STYLES = ("flat", "auto_s", "psac")
UnitStyle = Literal["flat", "per_layer", "auto_s", "psac"]
UNIT_STYLES = ("flat", "per_layer", "auto_s", "psac")
STABILITY = {"auto_s": 0.01, "psac": 0.1}

# Squares below float32's range are lost, so a norm is known down to about 2**-63 * sqrt(D): 2**-47
# for D = 2**32. Any norm counts as at least this much, beside which what was lost is less than one
# rounding.
LEAST_NORM = 2.0**-39


def flat(norms: jax.Array, l2_clip_norm: float | jax.Array) -> jax.Array:
    """min(1, l2_clip_norm / norm) for each of `norms` `[B]`; 0 where a norm is not finite.

    Guarantee: each row times its coefficient has norm at most `l2_clip_norm` (>= 0, may be
    infinite), up to one float32 rounding. Below 2**-39, where norms are not known to float32's
    precision, rows are scaled down further.

    Source: Abadi et al. (2016), "Deep Learning with Differential Privacy", arXiv:1607.00133,
      Algorithm 1.
    """
    return to_bound(norms, l2_clip_norm)


def auto_s(
    norms: jax.Array, l2_clip_norm: float | jax.Array, *, stability: float = STABILITY["auto_s"]
) -> jax.Array:
    """Automatic clipping: l2_clip_norm / (norm + stability); 0 where a norm is not finite.

    Guarantee: each row times its coefficient is shorter than `l2_clip_norm`, up to float32
    rounding. Long rows all come to nearly that length, so `l2_clip_norm` only scales the sum and
    needs no tuning; `stability` (> 0, in the unit of the norms) keeps short rows short.

    Source: Bu et al. (2022), "Automatic Clipping", arXiv:2206.07136, AUTO-S.
    """
    return to_bound(norms, l2_clip_norm, style="auto_s", stability=stability)


def psac(
    norms: jax.Array, l2_clip_norm: float | jax.Array, *, stability: float = STABILITY["psac"]
) -> jax.Array:
    """Per-sample adaptive clipping: l2_clip_norm / (norm + r / (norm + r)), r = stability; 0 where
    not finite.

    Guarantee: each row times its coefficient is shorter than `l2_clip_norm`, up to float32
    rounding. Unlike `auto_s`, it gives rows near zero coefficients near `l2_clip_norm`, not
    l2_clip_norm / stability. `stability` > 0.

    Source: Xia et al. (2022), "Differentially Private Learning with Per-Sample Adaptive Clipping",
      arXiv:2212.00328.
    """
    return to_bound(norms, l2_clip_norm, style="psac", stability=stability)


def to_bound(
    norms: jax.Array,
    l2_clip_norm: float | jax.Array,
    *,
    style: Style = "flat",
    stability: float | None = None,
    rescale_to_unit_norm: bool = False,
    nan_safe: bool = True,
) -> jax.Array:
    """The style's coefficients, with options: divided by `l2_clip_norm`, or not 0 where a norm is
    not finite.
    """
    clip = jnp.asarray(l2_clip_norm, norms.dtype)
    least = jnp.maximum(norms, jnp.asarray(LEAST_NORM, norms.dtype))
    if style == "flat":
        one = jnp.ones((), norms.dtype)
        # where, not minimum: with a zero or infinite bound, clip / norm may be NaN where it is not
        # needed.
        factor = (
            one / jnp.maximum(least, clip)
            if rescale_to_unit_norm
            else jnp.where(least > clip, clip / least, one)
        )
    else:
        stability = STABILITY[style] if stability is None else stability
        _validate.positive(stability=stability)
        r = jnp.asarray(stability, norms.dtype)
        divisor = least + r if style == "auto_s" else least + r / (least + r)
        factor = (jnp.ones((), norms.dtype) if rescale_to_unit_norm else clip) / divisor
    return (
        jnp.where(jnp.isfinite(norms), factor, jnp.zeros((), norms.dtype)) if nan_safe else factor
    )


def to_bounds(
    norms: Any,
    l2_clip_norms: Any,
    *,
    style: Style = "flat",
    rescale_to_unit_norm: bool = False,
    nan_safe: bool = True,
) -> Any:
    """One bound per subtree: `l2_clip_norms` is a prefix of `norms`, a tree of `[B]`; so is the
    result.

    Guarantee: the row stays within sqrt(sum_l C_l**2) (rescaled: within sqrt(number of bounds)); a
    row which is not finite anywhere gets 0 everywhere.
    """
    finite = jnp.isfinite(joint_norm(norms))
    options: dict[str, Any] = {
        "style": style,
        "rescale_to_unit_norm": rescale_to_unit_norm,
        "nan_safe": nan_safe,
    }

    def group(clip: Any, part: Any) -> Any:
        factor = to_bound(joint_norm(part), clip, **options)
        factor = jnp.where(finite, factor, jnp.zeros((), factor.dtype)) if nan_safe else factor
        return jax.tree.map(lambda _: factor, part)

    return jax.tree.map(group, l2_clip_norms, norms)


def check_bounds(style: Style = "flat", **bounds: Any) -> None:
    """Raises ValueError unless each value is a bound, or a tree of them, that `style` can keep.

    A traced bound cannot be looked at.
    """
    _validate.one_of(STYLES, clipping_style=style)
    for name, tree in bounds.items():
        leaves = jax.tree.leaves(tree)
        if not leaves:
            raise ValueError(
                f"Expected {name} to be a bound or a tree of bounds, got an empty tree."
            )
        for bound in leaves:
            if isinstance(bound, jax.core.Tracer):
                continue
            # `not >=` so that NaN fails; np, as in a traced function comparisons are traced too.
            if not (_validate.is_number(bound) and np.asarray(bound) >= 0):
                raise ValueError(f"Expected {name} >= 0, got {name}={bound!r}.")
            if style != "flat" and not np.isfinite(bound):
                raise ValueError(
                    f"Expected {name} to be finite with {style!r}, got {name}={bound!r}."
                )


def bound_of_all(l2_clip_norms: Any, rescale_to_unit_norm: bool) -> Any:
    """The L2 bound of a row whose parts keep these bounds, or 1 each where they are rescaled."""
    bounds = jax.tree.leaves(l2_clip_norms)
    if rescale_to_unit_norm:
        return math.sqrt(len(bounds))
    if len(bounds) == 1:
        return bounds[0]
    if any(isinstance(c, jax.Array) for c in bounds):
        return jnp.sqrt(sum(jnp.square(jnp.asarray(c, jnp.float32)) for c in bounds))
    return math.hypot(*bounds)


def weigh(l2_clip_norms: Any, norms: Any, weights: jax.Array, **options: Any) -> Any:
    """Coefficients of rows that also have weights `[B]`; `options` are those of `to_bound`.

    norms: `[B]` for one bound, a tree of `[B]` for a tree of bounds; so is the result.
    """
    one = jax.tree_util.all_leaves([l2_clip_norms])
    coefficients = (to_bound if one else to_bounds)(norms, l2_clip_norms, **options)
    return jax.tree.map(lambda c: c * weights.astype(c.dtype), coefficients)


def leaf_norms(rows: Any) -> Any:
    """A tree of `[B]`: the norm of each leaf of each row of `[B, ...]`, in float32 at least."""

    def norm(leaf: jax.Array) -> jax.Array:
        squares, exponent = reference.scaled_squares(leaf)
        return jnp.ldexp(jnp.sqrt(squares), exponent)

    return jax.tree.map(norm, rows)


def joint_norm(norms: Any) -> jax.Array:
    """`[B]`: the norm of rows whose parts have these norms, a tree of `[B]`; finite wherever that
    is in range.
    """
    parts = jax.tree.leaves(norms)
    dtype = jnp.float64 if any(n.dtype == jnp.float64 for n in parts) else jnp.float32
    parts = [n.astype(dtype) for n in parts]

    # A square overflows where its root is far from doing so. A traced number divides: XLA would
    # move a constant out of the square.
    largest = functools.reduce(jnp.maximum, parts)
    unit = jnp.where((largest > 2.0**40) & jnp.isfinite(largest), largest, jnp.ones((), dtype))
    return unit * jnp.sqrt(functools.reduce(jnp.add, [jnp.square(n / unit) for n in parts]))


def sum_gradients(
    matrix: fljax_kernels.PerExampleGrads, l2_clip_norm: float | jax.Array, style: UnitStyle
) -> tuple[Any, jax.Array]:
    """(sum of the clipped rows of a gradient matrix, in float32 at least; their norms before that,
    `[B]`).

    Guarantee: as `sum_updates`.
    """
    if style == "per_layer":

        def weigh(norms: Any) -> Any:
            leaves = jax.tree.leaves(norms)
            share = l2_clip_norm / math.sqrt(len(leaves))
            return to_bounds(norms, jax.tree.map(lambda _: share, norms))

        total, norms = matrix.weighted_sum(weigh, per_leaf=True)
        return total, joint_norm(norms)
    return matrix.weighted_sum(lambda norms: to_bound(norms, l2_clip_norm, style=style))


def sum_updates(
    rows: Any, l2_clip_norm: float | jax.Array, style: UnitStyle, mask: jax.Array
) -> tuple[Any, jax.Array]:
    """(sum of the clipped rows, norms before that `[C]`) of a tree of `[C, ...]`; `mask` `[C]`:
    True where one counts.

    Guarantee: adding or removing one row moves the sum by at most `l2_clip_norm * (1 + 1e-5)` in L2
    norm. A row that is not finite adds zero; a finite one is clipped, however long. "per_layer"
    clips each of L arrays to l2_clip_norm / sqrt(L).

    Source: per layer: McMahan et al. (2018), arXiv:1710.06963, Section 2.
    """
    if style == "flat":
        return fljax_kernels.clip_and_sum(rows, l2_clip_norm, mask=mask)
    squares, exponent = reference.scaled_squares(rows)
    down = jnp.maximum(
        exponent - 40, 0
    )  # beyond 2**40 rows are scaled to there, so that no finite one overflows
    norms = jnp.ldexp(jnp.sqrt(squares), exponent - down)
    seen = jnp.ldexp(norms, down)
    if style == "per_layer":
        mask &= jnp.isfinite(squares)
        share = l2_clip_norm / math.sqrt(len(jax.tree.leaves(rows)))
        return jax.tree.map(
            lambda x: fljax_kernels.clip_and_sum(x, share, mask=mask)[0], rows
        ), seen
    factor = to_bound(norms, l2_clip_norm, style=style)
    mask &= factor > 0
    factors = jnp.stack([jnp.ldexp(jnp.ones_like(factor), -down), factor])

    def scale(x: jax.Array) -> jax.Array:
        first, second = factors.reshape((2, -1) + (1,) * (x.ndim - 1)).astype(x.dtype)
        return x * first * second

    # Once more, for the bound itself: the norms above are not exact where squares underflow.
    return fljax_kernels.clip_and_sum(jax.tree.map(scale, rows), l2_clip_norm, mask=mask)[0], seen


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClippingConfig(_validate.Checked):
    """How the contributions of units are clipped; public numbers, all of them.

    Raises:
      ValueError: a number is out of its range, or a bound that adapts is asked for in another style
        than "flat".
    """

    clipping_style: UnitStyle = "flat"
    """"flat" scales contributions longer than l2_clip_norm down to it, "per_layer" each of L
    parameter arrays to l2_clip_norm / sqrt(L); "auto_s" and "psac" bring all of them to nearly
    l2_clip_norm.
    """
    target_quantile: float | None = None
    """The bound follows this quantile of the norms from round to round, starting at l2_clip_norm.
    None: a constant.
    """
    quantile_learning_rate: float = 0.2
    """Step size of the logarithm of a bound that adapts."""
    count_stddev: float | None = None
    """Noise on the count of norms within a bound that adapts, in units. None: a 20th of the units
    expected a round.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.one_of(UNIT_STYLES, clipping_style=self.clipping_style)
        _validate.positive(quantile_learning_rate=self.quantile_learning_rate)
        if self.count_stddev is not None:
            _validate.positive(count_stddev=self.count_stddev)
        if self.target_quantile is not None:
            _validate.open_unit(target_quantile=self.target_quantile)
            if self.clipping_style != "flat":
                raise ValueError(
                    "Expected clipping_style='flat' with a target_quantile: other styles need no "
                    f"bound that adapts, got clipping_style={self.clipping_style!r}."
                )
