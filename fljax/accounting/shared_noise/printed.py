"""Privacy rules for shared noise as papers print them, beside what they prove. Nothing here is a
guarantee.

Lemma 2 drops the cross-covariances of the log-likelihood ratio (that makes its variance V_i too
large, hence safe); Proposition 1 then drops the mean of the ratio (unsafe for large epsilon).
`view.exact_mu` is right and never weaker.

Source: Hong, Lin, Duan, "Lightweight Federated Learning with Differential Privacy and Straggler
Resilience", equations (6), (10), (14) and (16), Lemma 2, Propositions 1 and 3; and, from
`complete_theta` on, Yang et al., "Efficiently Achieving Secure Model Training and Secure
Aggregation to Ensure Bidirectional Privacy-Preservation in Federated Learning", Theorems 10 and 11
and equation (23).
"""

import math
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr

from fljax import _validate
from fljax.accounting import _x64, gaussian, rounding, search
from fljax.accounting.shared_noise import exact as view
from fljax.accounting.shared_noise import star_mesh
from fljax.accounting.shared_noise.exact import PairGraph
from fljax.errors import PrivacyPreconditionError

# What the printed claims of bidirectional privacy rest on, beside what holds.
ERRATA = {
    "E2": "draws the secret scales with either sign, which breaks ReLU",
    "E3": "takes noise whose entries share factors for independent normal noise",
    "E5": (
        "counts noise as normal that is uniform to the server, which knows the factor in "
        "front of it"
    ),
    "E6": "forgets squares in the theta of its Theorem 10",
    "E7": "calls a guarantee local that ends when the other clients collude",
    "E8": "sends Psi and Phi without any noise",
    "E9": "counts one round, however many there are",
    "E12": (
        "clips a gradient that clients cannot know, and lets one client move it by the clip "
        "norm, not twice that"
    ),
}


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
def loss_variance(
    graph: PairGraph, *, seen: Any = None, colluders: Any = None, sensitivity: Any = 1.0
) -> jax.Array:
    """V_i `[N]` of Lemma 2, at least `view.exact_mu` squared; arguments and special values as
    there.
    """
    ground, conductance, active = view._network(graph, seen, colluders)
    inverse = star_mesh.inverse(ground, conductance)
    found = (inverse**2 * (ground + conductance.sum(1))).sum(1) * _x64.non_negative(
        sensitivity
    ) ** 2
    colluding = view._who(colluders, False, active.size)
    return jnp.where(colluding, jnp.nan, jnp.where(active, found, 0.0))


@view.checks_graph
def worst_loss_variance(
    graph: PairGraph, *, num_colluders: int, sensitivity: Any = 1.0
) -> np.ndarray:
    """V_i `[N]` that condition (14) must hold for: the largest over every set of at most
    `num_colluders` colluders.

    All such sets are tried, with all honest uploads seen: V_i, unlike mu_i, may fall when more
    clients collude (Proposition 3 takes the largest set for the worst), but no case is known in
    which it rises when fewer are seen.

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
        return jnp.where(
            colluders, 0.0, loss_variance(graph, colluders=colluders, sensitivity=sensitivity)
        )

    return jax.lax.map(one, jnp.asarray(sets), batch_size=min(256, len(sets))).max(0)


@_x64.float64
@jax.jit
def complete_loss_variance(ratio: Any, num_honest: Any) -> jax.Array:
    """V * own_variance / sensitivity^2 of the complete graph, all honest uploads seen: equation
    (16).

    Args:
      ratio: pair_variance / own_variance. num_honest: clients less colluders. Arrays broadcast.
    """
    g, n = _x64.non_negative(ratio), _x64.as64(num_honest)
    n = jnp.where((n >= 1) & jnp.isfinite(n), n, jnp.nan)
    return ((n - 1) * g + 1) * (n * g**2 + 2 * g + 1) / (n * g + 1) ** 2


@_x64.float64
@jax.jit
def loss_tail(epsilon: Any, mu: Any) -> jax.Array:
    """Chance that the log-likelihood ratio leaves [-epsilon, epsilon]: the criterion (6),
    sufficient for DP only.
    """
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

    V_i is at least mu_i^2, so the condition proves (epsilon, delta)-DP just while a mechanism with
    mu^2 at its limit has it: up to epsilon 9.39 at delta 1e-5.

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
            True,
            False,
            f"at its limit the condition allows delta {rounding.at_most(true_delta)}, not "
            f"{delta!r}",
        )
    return Verdict(
        True, True, "V >= mu^2, and mu at the limit of the condition meets (epsilon, delta)"
    )


@view.checks_graph
def disturbance(
    graph: PairGraph, *, responders: Any, colluders: Any, formula: str = "sound"
) -> float:
    """Noise variance, per coordinate, that colluders cannot subtract from the average of
    responders: equation (10).

    Args:
      graph: the noise.
      responders, colluders: `[N]` bool.
      formula: "sound", or "paper", which counts each own noise once per honest straggler, hence not
        at all without one.

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
    total = (
        np.asarray(graph.own_variance)[first].sum() * own_times
        + np.asarray(graph.pair_variance)[across].sum()
    )
    return float(total / responders.sum() ** 2)


def quartic(num_honest: Any, straggling: Any) -> np.ndarray:
    """Coefficients `[5, ...]` k4..k0 of the quartic of Proposition 3, whose root in (0, 1) is its
    ratio gamma_0.

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
    """gamma_0 of Proposition 3 `[...]`, by bisection; 0 where m >= n - 1, where no root exists and
    local DP is best.
    """
    coefficients = quartic(num_honest, straggling)
    low, high = np.zeros(coefficients.shape[1:]), np.ones(coefficients.shape[1:])

    def below(ratio: np.ndarray) -> np.ndarray:
        return np.asarray(np.polyval(coefficients, ratio) < 0)

    low, high = search.bisect(below, low, high, 100)
    return np.where(coefficients[-1] < 0, (low + high) / 2, 0.0)


def complete_theta(num_clients: int, own_stddev: Any, pair_stddev: Any) -> np.ndarray:
    """`theta.theta` of the complete graph, in closed form; arrays broadcast."""
    _validate.positive_int(num_clients=num_clients)
    _validate.each(_validate.non_negative, own_stddev=own_stddev, pair_stddev=pair_stddev)
    own, pair = np.asarray(own_stddev, np.float64) ** 2, np.asarray(pair_stddev, np.float64) ** 2
    return np.asarray(view.complete_mu(own, pair, num_seen=num_clients)) ** 2


def theorem_10(
    num_clients: int, own_stddev: float, pair_stddev: float, *, formula: str = "sound"
) -> float:
    """An upper bound on `complete_theta`: Theorem 10.

    Args:
      num_clients: K. own_stddev, pair_stddev: > 0.
      formula: "sound"; or "paper", which forgets to square the standard deviations, hence too small
        below 1.
    """
    _validate.one_of(("sound", "paper"), formula=formula)
    _validate.positive(own_stddev=own_stddev, pair_stddev=pair_stddev)
    _validate.positive_int(num_clients=num_clients)
    if formula == "paper":
        warnings.warn(
            "Theorem 10 as printed lacks squares: it is too small for noise below 1.", stacklevel=2
        )
        return (1 / own_stddev + 1 / pair_stddev) / num_clients
    return (1 / own_stddev**2 + 1 / pair_stddev**2) / num_clients


def theorem_11_conditions(num_clients: int, delta: float) -> tuple[float, float, float]:
    """The three lower bounds on the out-degree n."""
    _validate.positive_int(num_clients=num_clients)
    _validate.open_unit(delta=delta)
    return (
        4 * math.log(2 * num_clients / (3 * delta)),
        6 * math.log(num_clients / 3),
        1.5 + 9 / 4 * math.log(2 * math.e / delta),
    )


def theorem_11(
    num_clients: int, out_degree: int, own_stddev: float, pair_stddev: float, delta: float
) -> tuple[float, float]:
    """(theta, 3 delta): a bound on `theta.theta` of a random n-out graph, up to a chance counted in
    delta.

    Raises:
      PrivacyPreconditionError: K < 81, or n is below one of the theorem's bounds; `theta.theta` has
        no such conditions.
    """
    _validate.positive(own_stddev=own_stddev, pair_stddev=pair_stddev)
    _validate.positive_int(out_degree=out_degree)
    least = max(theorem_11_conditions(num_clients, delta))
    if num_clients < 81 or not out_degree >= least or (out_degree - 1) // 3 < 2:
        raise PrivacyPreconditionError(
            f"Expected num_clients >= 81 and out_degree >= {math.ceil(max(least, 7))} for Theorem "
            f"11, got num_clients={num_clients} and out_degree={out_degree}: use the exact theta "
            "of the graph."
        )
    edges_part = 1 / ((out_degree - 1) // 3 - 1) + (12 + 6 * math.log(num_clients)) / num_clients
    return 1 / (num_clients * own_stddev**2) + edges_part / pair_stddev**2, 3 * delta


def claimed_theta(
    num_clients: int,
    out_degree: int | None,
    *,
    noise_multiplier: float,
    variance_ratio: float,
    delta: float,
) -> float:
    """The paper's theta of a round, S and clip norm taken for one: Theorem 10 as printed, or
    Theorem 11.

    Args:
      num_clients: of the round.
      out_degree: peers that each client picks, Theorem 11. None: all pairs, Theorem 10.
      noise_multiplier, variance_ratio: without own or pair noise theta is infinite.
      delta: of the whole claim; Theorem 11, which spends it three times, gets a third.

    Raises:
      PrivacyPreconditionError: the graph does not meet the conditions of Theorem 11.
      ValueError: a number is out of range.
    """
    _validate.positive_int(num_clients=num_clients)
    _validate.non_negative(noise_multiplier=noise_multiplier, variance_ratio=variance_ratio)
    _validate.open_unit(delta=delta)
    own, pair = noise_multiplier, noise_multiplier * math.sqrt(variance_ratio)
    if not (own and pair):
        return math.inf
    if out_degree is None:
        return (1 / own + 1 / pair) / num_clients
    return theorem_11(num_clients, out_degree, own, pair, delta / 3)[0]


def expected_degree(num_clients: int, out_degree: int) -> float:
    """Neighbours of a client in a random n-out graph, on average: 2 n - n^2 / (K - 1)."""
    _validate.positive_int(num_clients=num_clients, out_degree=out_degree)
    if not out_degree < num_clients:
        raise ValueError(
            f"Expected out_degree < {num_clients} clients, got out_degree={out_degree}."
        )
    return 2 * out_degree - out_degree**2 / (num_clients - 1)


def _tail(delta: Any) -> np.ndarray:
    _validate.each(_validate.open_unit, delta=delta)
    return np.maximum(
        1.0, np.sqrt(np.maximum(0, 2 * np.log(2 / (np.asarray(delta) * math.sqrt(2 * math.pi)))))
    )


def printed_epsilon(theta: Any, delta: Any) -> np.ndarray:
    """Equation (23) solved for epsilon: theta / 2 + c sqrt(theta). Sound, and never below
    `gaussian.mu_to_epsilon`.
    """
    theta = np.asarray(theta, np.float64)
    # Infinite is what no noise gives, and stays so.
    _validate.each(_validate.non_negative, theta=np.where(np.isposinf(theta), 0.0, theta))
    return theta / 2 + _tail(delta) * np.sqrt(theta)


def printed_theta(epsilon: Any, delta: Any) -> np.ndarray:
    """The largest theta that equation (23) allows for epsilon, delta."""
    _validate.each(_validate.non_negative, epsilon=epsilon)
    c = _tail(delta)
    return (np.sqrt(c**2 + 2 * np.asarray(epsilon, np.float64)) - c) ** 2


def own_stddev_for(theta: float, num_clients: int) -> float:
    """The least sigma_eta that reaches theta over K clients, with pair noise without bound: 1 /
    sqrt(K theta).
    """
    _validate.positive(theta=theta)
    _validate.positive_int(num_clients=num_clients)
    return 1 / math.sqrt(num_clients * theta)


def bounded_noise_delta(shift: float, stddev: float, multiplier: float = 1.0) -> float:
    """Least delta, at any epsilon, of uniform noise DN(stddev, 1) times a known multiplier, one
    coordinate moved.
    """
    _validate.positive(stddev=stddev, multiplier=multiplier)
    _validate.non_negative(shift=abs(shift))
    return min(1.0, abs(shift) / (2 * math.sqrt(2) * stddev * multiplier))
