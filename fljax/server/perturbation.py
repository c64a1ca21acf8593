"""Multiplicative model perturbation: secret scales for the units of a network, and a secret vector
on its last layer.

What a client is sent computes the true output plus alpha(x) r, alpha the sum of the last layer's
perturbed inputs (plus 1 for a bias). This is an exact algebraic disguise, not cryptography: with
ten labelled examples a client finds r (`fljax.papers.bidirectional.known_network`), rows of the
first layer keep their direction, transitions publish r s.

Source: Yang et al., "Efficiently Achieving Secure Model Training and Secure Aggregation to Ensure
Bidirectional Privacy-Preservation in Federated Learning", Algorithm 1, equations (4) to (6) and
(12) to (15), Theorem 3. Positive values are taken where equation (13) would give either sign, which
breaks ReLU.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from fljax import _validate
from fljax.models.scaling import Plan
from fljax.types import Params

Form = Literal["transitional", "base"]
Law = Literal["dn", "log_uniform"]
TERMS = 32  # of the series for DN*(m), m > 1; the rest is drawn as one normal


class Secrets(NamedTuple):
    """scales: `[1 + num_branches + num_streams]`, > 0, the first is 1. additive: r `[n_L]`."""

    scales: jax.Array
    additive: jax.Array


class OneTime:
    """Hands out the key of a round's secrets, once: a client that sees two models under the same
    scales sees their difference up to those scales.
    """

    def __init__(self, key: jax.Array) -> None:
        _validate.typed_key(key=key)
        self._key, self._used = key, set[int]()

    def take(self, round_index: int) -> jax.Array:
        """Key `[]`. Raises ValueError if this round has had its own."""
        _validate.non_negative_int(round_index=round_index)
        if round_index in self._used:
            raise ValueError(
                f"Expected a round that has no secrets yet, got round_index={round_index} again."
            )
        self._used.add(round_index)
        return jax.random.fold_in(self._key, round_index)


def dn_star(key: jax.Array, shape: Sequence[int], m: int, dtype: Any = jnp.float32) -> jax.Array:
    """Absolute values of DN*(m): m of them, times one of DN(sigma, 1), are N(0, sigma^2) in
    absolute value.

    m = 1 is the length of three standard normals over sqrt(2). Larger m come from `TERMS` terms of
    the series and one normal with the mean and variance of the others.

    Args:
      key: `[]`. shape: of the result. m: >= 1. dtype: floating.

    Source: Theorem 3; the closed form and the tail are ours.
    """
    _validate.positive_int(m=m)
    if m == 1:
        return jnp.sqrt(jnp.sum(jnp.square(jax.random.normal(key, (3, *shape), dtype)), axis=0) / 2)
    series_key, tail_key = jax.random.split(key)
    gammas = (
        jnp.square(jax.random.normal(series_key, (TERMS, *shape), dtype)) / 2
        if m == 2
        else jax.random.gamma(series_key, 1 / m, (TERMS, *shape), dtype)
    )
    mean, variance = series_tail(TERMS, m)
    tail = mean + math.sqrt(variance) * jax.random.normal(tail_key, shape, dtype)
    return series(gammas, m) * jnp.exp(-tail)


def series(gammas: jax.Array, m: int) -> jax.Array:
    """The first T terms of DN*(m) in absolute value, from `gammas` `[T, ...]`, Gamma(1 / m, 1)
    each.
    """
    index = np.arange(1, gammas.shape[0] + 1)
    terms = jnp.tensordot(jnp.asarray(1 / (2 * index + 1), gammas.dtype), gammas, axes=1)
    return jnp.exp(float(np.log1p(1 / index).sum()) / (2 * m) - terms)


def series_tail(terms: int, m: int) -> tuple[float, float]:
    """Mean and variance of what the exponent loses by stopping after `terms` terms."""
    mean = (math.log(terms + 1) - float(special.digamma(terms + 1.5))) / (2 * m)
    return mean, float(special.polygamma(1, terms + 1.5)) / (4 * m)


def draw(
    plan: Plan,
    key: jax.Array,
    *,
    additive_norm: float,
    form: Form = "transitional",
    law: Law = "dn",
    scale_range: tuple[float, float] | None = None,
    constant_additive: bool = False,
    dtype: Any = jnp.float32,
) -> Secrets:
    """One round's secrets.

    Args:
      plan: of the network.
      key: `[]`, of this round's secrets and nothing else.
      additive_norm: ||r||, so that v = additive_norm**2, >= 0. Large values cost noise (1 + v + v^2
        under `upload_gaussian`) and digits (`recovery.lost_digits`); the direction is uniform.
      form: "transitional": branches and streams have scales of their own (equations (12) to (15));
        "base": one each (equation (4)).
      law: "dn": DN*(1) for the first layer's branches and the last layer's streams, DN*(2) between,
        so that their products with uniform noise have normal entries; "log_uniform" in
        `scale_range`, which it needs.
      scale_range: bounds that scales are clipped to. None: none.
      constant_additive: r = a (1, ..., 1), the one direction that a softmax does not see.
      dtype: of the scales.

    Raises:
      ValueError: a number is out of range.
    """
    _validate.non_negative(additive_norm=additive_norm)
    _validate.one_of(("transitional", "base"), form=form)
    _validate.one_of(("dn", "log_uniform"), law=law)
    if scale_range is not None:
        _validate.positive(scale_range=scale_range[0])
        if not (scale_range[0] <= scale_range[1] < math.inf):
            raise ValueError(
                f"Expected scale_range=(low, high) with low <= high, got scale_range={scale_range}."
            )
    elif law == "log_uniform":
        raise ValueError("Expected scale_range for law='log_uniform', got scale_range=None.")
    single = np.zeros(1 + plan.num_branches + plan.num_streams, bool)
    for layer in plan.layers:
        if layer.first:
            single[layer.branches] = True
            single[layer.streams] |= form == "base"
        if layer.last:
            single[layer.streams] = True
    one_key, two_key, additive_key = jax.random.split(key, 3)
    if law == "dn":
        # Equation (13) asks for as many factors as a weight has: one in the first and last layer,
        # two between.
        s = jnp.where(
            jnp.asarray(single),
            dn_star(one_key, single.shape, 1, dtype),
            dn_star(two_key, single.shape, 2, dtype),
        )
    else:
        low, high = (math.log(bound) for bound in scale_range or (1.0, 1.0))
        s = jnp.exp(jax.random.uniform(one_key, single.shape, dtype, low, high))
    # 0 only by underflow; a scale that small would not survive float32 either.
    s = jnp.maximum(s, 1e-6) if scale_range is None else jnp.clip(s, *scale_range)
    branches, streams = s[1 : 1 + plan.num_branches], s[1 + plan.num_branches :]
    if form == "transitional":
        streams = 1 / streams
    scales = _scales(plan, branches, streams, form)
    direction = jax.random.normal(additive_key, (plan.num_outputs,), dtype)
    if constant_additive:
        direction = jnp.ones_like(direction)
    length = jnp.sqrt(jnp.sum(jnp.square(direction)))
    return Secrets(scales, direction * (additive_norm / jnp.where(length > 0, length, 1)))


def _scales(plan: Plan, branches: jax.Array, streams: jax.Array, form: Form) -> jax.Array:
    scales = jnp.concatenate([jnp.ones(1, branches.dtype), branches, streams])
    if form == "base":
        scales = scales.at[1 : 1 + plan.num_branches].set(scales[_stream_of(plan)])
    return scales


def _stream_of(plan: Plan) -> np.ndarray:
    """`[num_branches]` positions in the scale vector."""
    result = np.zeros(plan.num_branches, np.int64)
    for layer in plan.layers:
        result[layer.branches - 1] = layer.streams
    return result


def given(
    plan: Plan, *, out_scales: Sequence[Any], in_scales: Sequence[Any] | None = None, additive: Any
) -> Secrets:
    """Secrets from vectors of the user's own.

    Args:
      plan: of the network.
      out_scales: for each of `plan.layers` the vector r > 0 `[n]` of its branches.
      in_scales: for each the vector s > 0 `[n]` by which what reads it multiplies: its streams
        carry 1 / s. None: the base form, s = 1 / r.
      additive: r `[n_L]`.

    Raises:
      ValueError: a wrong length, a scale that is not > 0 and finite, or two layers that share a
        stream (a sum joins them) with different scales there.
    """
    outs = [np.asarray(r, np.float64) for r in out_scales]
    going = (
        [1 / r for r in outs]
        if in_scales is None
        else [np.asarray(s, np.float64) for s in in_scales]
    )
    additive = np.asarray(additive, np.float64)
    if not len(outs) == len(going) == len(plan.layers) or additive.shape != (plan.num_outputs,):
        raise ValueError(
            f"Expected scales for {len(plan.layers)} layers and additive [{plan.num_outputs}], got "
            f"{len(outs)}, {len(going)} and additive of shape {additive.shape}."
        )
    if not np.all(np.isfinite(additive)):
        raise ValueError("Expected additive to be finite, got a number that is not.")
    scales = np.full(1 + plan.num_branches + plan.num_streams, np.nan)
    scales[0] = 1
    for layer, r, s in zip(plan.layers, outs, going, strict=True):
        for name, vector in (("out_scales", r), ("in_scales", s)):
            if vector.shape != layer.branches.shape or not np.all(
                (vector > 0) & np.isfinite(vector)
            ):
                raise ValueError(
                    f"Expected {name} > 0 and finite, {layer.branches.size} of them for "
                    f"{layer.name}, since ReLU keeps "
                    f"positive scales only, got {name}={vector.tolist()}."
                )
        scales[layer.branches] = r
        known = scales[layer.streams]
        if np.any(~np.isnan(known) & ~np.isclose(known, 1 / s, rtol=1e-12)):
            raise ValueError(
                "Expected one scale on all streams that meet in a sum, got another one for "
                f"{layer.name}: a skip connection cannot change the scale."
            )
        scales[layer.streams] = np.where(np.isnan(known), 1 / s, known)
    return Secrets(jnp.asarray(scales), jnp.asarray(additive))


def multipliers(plan: Plan, secrets: Secrets) -> list[jax.Array]:
    """For each parameter array (of `jax.tree.leaves`) its multiplier, which broadcasts to its
    shape.
    """
    return [
        secrets.scales[leaf.numerator] / secrets.scales[leaf.denominator] for leaf in plan.leaves
    ]


def multiplied(plan: Plan, secrets: Secrets, tree: Params) -> Params:
    """Each array of a params-like tree times its multiplier."""
    leaves = zip(jax.tree.leaves(tree), multipliers(plan, secrets), strict=True)
    return jax.tree.unflatten(plan.structure, [leaf * factor for leaf, factor in leaves])


def transition(plan: Plan, secrets: Secrets) -> jax.Array:
    """Diagonals of the transitional layers, `[num_branches]`: stream / branch, 1 / (r s). Part of
    what clients get.
    """
    return secrets.scales[_stream_of(plan)] / secrets.scales[1 : 1 + plan.num_branches]


def perturb(plan: Plan, params: Params, secrets: Secrets) -> tuple[Params, jax.Array]:
    """What a client is sent: parameters, and `transition`.

    Guarantee: none of secrecy; see the module. Over the reals the client's network computes y +
      alpha r.
    """
    sent = []
    for leaf, info, multiplier in zip(
        jax.tree.leaves(params), plan.leaves, multipliers(plan, secrets), strict=True
    ):
        value = leaf * multiplier.astype(leaf.dtype)
        if info.classes is not None:
            value = value + secrets.additive[info.classes].astype(leaf.dtype)
        sent.append(value)
    return jax.tree.unflatten(plan.structure, sent), transition(plan, secrets)
