"""The pairwise-noise privacy rule as it was printed, beside what it proves. Nothing here is a guarantee.

Lemma 2 drops the cross-covariances of the log-likelihood ratio (that makes its variance V_i too large, hence safe);
Proposition 1 then drops the mean of the ratio (unsafe for large epsilon). `view.exact_mu` is right and never weaker.

Source: Hong, Lin, Duan, "Lightweight Federated Learning with Differential Privacy and Straggler Resilience", equations
(6), (10), (14) and (16), Lemma 2, Propositions 1 and 3.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr

from fljax import _validate
from fljax.accounting import _x64, gaussian, words
from fljax.accounting.shared_noise import exact as view
from fljax.accounting.shared_noise import star_mesh
from fljax.accounting.shared_noise.exact import PairGraph


class Verdict(NamedTuple):
    """What condition (14) says of one client and what it proves.

    Attributes:
      holds: the printed inequality holds.
      proves_dp: it holds, and at this (epsilon, delta) it implies (epsilon, delta)-DP.
      reason: why.
    """

    holds: bool
    proves_dp: bool
    reason: str


@view.checks_graph
@_x64.float64
@jax.jit
def loss_variance(graph: PairGraph, *, seen: Any = None, colluders: Any = None, sensitivity: Any = 1.0) -> jax.Array:
    """V_i `[N]` of Lemma 2, at least `view.exact_mu` squared; arguments and special values as there."""
    ground, conductance, active = view._network(graph, seen, colluders)
    inverse = star_mesh.inverse(ground, conductance)
    found = (inverse**2 * (ground + conductance.sum(1))).sum(1) * _x64.non_negative(sensitivity) ** 2
    colluding = view._who(colluders, False, active.size)
    return jnp.where(colluding, jnp.nan, jnp.where(active, found, 0.0))


@view.checks_graph
def worst_loss_variance(graph: PairGraph, *, num_colluders: int, sensitivity: Any = 1.0) -> np.ndarray:
    """V_i `[N]` that condition (14) must hold for: the largest over every set of at most `num_colluders` colluders.

    All such sets are tried, with all honest uploads seen: V_i, unlike mu_i, may fall when more clients collude
    (Proposition 3 takes the largest set for the worst), but no case is known in which it rises when fewer are seen.

    Raises:
      ValueError: `num_colluders` is not in [0, N - 1], or there are more than 200,000 sets.
    """
    size = len(np.asarray(graph.own_variance))
    view._colluders_in_range(num_colluders, size)
    sets = view._colluder_sets(size, range(num_colluders + 1))
    return np.asarray(_largest(graph, sets, np.asarray(sensitivity, np.float64)))


@_x64.float64
@jax.jit
def _largest(graph: PairGraph, sets: Any, sensitivity: Any) -> jax.Array:
    def one(colluders: jax.Array) -> jax.Array:
        return jnp.where(colluders, 0.0, loss_variance(graph, colluders=colluders, sensitivity=sensitivity))

    return jax.lax.map(one, jnp.asarray(sets), batch_size=min(256, len(sets))).max(0)


@_x64.float64
@jax.jit
def complete_loss_variance(ratio: Any, num_honest: Any) -> jax.Array:
    """V * own_variance / sensitivity^2 of the complete graph, all honest uploads seen: equation (16).

    Args:
      ratio: pair_variance / own_variance. num_honest: clients less colluders. Arrays broadcast.
    """
    g, n = _x64.non_negative(ratio), _x64.as64(num_honest)
    n = jnp.where((n >= 1) & jnp.isfinite(n), n, jnp.nan)
    return ((n - 1) * g + 1) * (n * g**2 + 2 * g + 1) / (n * g + 1) ** 2


@_x64.float64
@jax.jit
def loss_tail(epsilon: Any, mu: Any) -> jax.Array:
    """Chance that the log-likelihood ratio leaves [-epsilon, epsilon]: the criterion (6), sufficient for DP only."""
    epsilon, mu = _x64.non_negative(epsilon), _x64.non_negative(mu)
    safe = jnp.where(mu > 0, mu, 1.0)
    tail = ndtr(safe / 2 - epsilon / safe) + ndtr(-epsilon / safe - safe / 2)
    return jnp.where(mu > 0, tail, jnp.where((mu == 0) & (epsilon >= 0), 0.0, jnp.nan))


def largest_variance(epsilon: float, delta: float) -> float:
    """The right-hand side epsilon^2 / (2 log(2 / delta)) of condition (14)."""
    _validate.positive(epsilon=epsilon)
    _validate.open_unit(delta=delta)
    return epsilon**2 / (2 * math.log(2 / delta))


def condition(variance: float, *, epsilon: float, delta: float) -> Verdict:
    """Condition (14) for one client with V_i = `variance`.

    V_i is at least mu_i^2, so the condition proves (epsilon, delta)-DP just while a mechanism with mu^2 at its limit
    has it: up to epsilon 9.39 at delta 1e-5.

    Raises:
      ValueError: `variance` < 0, `epsilon` <= 0 or `delta` not in (0, 1).
    """
    _validate.non_negative(variance=variance)
    limit = largest_variance(epsilon, delta)
    true_delta = float(gaussian.mu_to_delta(math.sqrt(limit), epsilon))
    if not variance <= limit:
        return Verdict(False, False, f"V={variance:.6g} exceeds {limit:.6g}")
    if not true_delta <= delta:
        return Verdict(
            True, False, f"at its limit the condition allows delta {words.at_most(true_delta)}, not {delta!r}"
        )
    return Verdict(True, True, "V >= mu^2, and mu at the limit of the condition meets (epsilon, delta)")


@view.checks_graph
def disturbance(graph: PairGraph, *, responders: Any, colluders: Any, formula: str = "sound") -> float:
    """Noise variance, per coordinate, that colluders cannot subtract from the average of responders: equation (10).

    Args:
      graph: the noise.
      responders, colluders: `[N]` bool.
      formula: "sound", or "paper", which counts each own noise once per honest straggler, hence not at all without one.

    Raises:
      ValueError: nobody responds, or another `formula`.
    """
    _validate.one_of(["sound", "paper"], formula=formula)
    view._in_range(graph, 1.0)
    responders, colluders = np.asarray(responders, bool), np.asarray(colluders, bool)
    if not responders.any():
        raise ValueError("Expected at least one responder, got responders all False.")
    first, second = responders & ~colluders, ~responders & ~colluders
    low, high = np.asarray(graph.edges).reshape(-1, 2).T
    across = (first[low] & second[high]) | (second[low] & first[high])
    own_times = second.sum() if formula == "paper" else 1
    total = np.asarray(graph.own_variance)[first].sum() * own_times + np.asarray(graph.pair_variance)[across].sum()
    return float(total / responders.sum() ** 2)


def quartic(num_honest: Any, straggling: Any) -> np.ndarray:
    """Coefficients `[5, ...]` k4..k0 of the quartic of Proposition 3, whose root in (0, 1) is its ratio gamma_0.

    Args:
      num_honest: n, clients less colluders.
      straggling: m = E[S / (N - S)] / E[1 / (N - S)].
    """
    _validate.each(_validate.positive, num_honest=num_honest)
    _validate.each(_validate.non_negative, straggling=straggling)
    n, m = np.asarray(num_honest, np.float64), np.asarray(straggling, np.float64)
    return np.stack(
        np.broadcast_arrays(
            2 * m * n**3 - 2 * m * n**2,
            n**3 - n**2 + 7 * m * n**2 - 6 * m * n,
            3 * n**2 - 3 * n + 9 * m * n - 6 * m,
            -(n**2) + 5 * n - 4 + m * n + 2 * m,
            -n + 1 + m,
        )
    )


def best_ratio(num_honest: Any, straggling: Any) -> np.ndarray:
    """gamma_0 of Proposition 3 `[...]`, by bisection; 0 where m >= n - 1, where no root exists and local DP is best."""
    coefficients = quartic(num_honest, straggling)
    low, high = np.zeros(coefficients.shape[1:]), np.ones(coefficients.shape[1:])
    for _ in range(100):
        middle = (low + high) / 2
        value = np.zeros_like(middle)
        for coefficient in coefficients:
            value = value * middle + coefficient
        low, high = np.where(value < 0, middle, low), np.where(value < 0, high, middle)
    return np.where(coefficients[-1] < 0, (low + high) / 2, 0.0)
