"""Tight accounting of Gaussian noise on a fixed-size sample without replacement, one unit replaced.

For losses >= 0 the worst case of one round is (1 - q) N(0, 1) + q N(shift, 1) against N(0, 1),
whichever data set comes first; a replaced unit has no "add" and "remove", so for losses < 0 the
curve is that of the same pair swapped. The distribution of the loss is thus symmetric: mass p at
loss l > 0 goes with p e^-l at -l, and the rest lies at 0.

Source: Zhu, Dong, Wang (2021), arXiv:2106.08567, subset sampling under replacement. Discretisation,
composition and their error bounds are those of `fljax.accounting.pld`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from fljax import _validate
from fljax.accounting import events, gaussian
from fljax.accounting._arrays import compiled, host, jax, jnp, logsumexp, tree_map
from fljax.accounting.mechanisms import effective_noise
from fljax.accounting.pld import closed, compose, discretise, mechanisms, pair_masses, solve
from fljax.accounting.pld import window as plan

_SMALL = 1e-5  # epsilons from here down may be rounding of the lattice
_ZERO_RESERVE = 1e-12  # added at loss 0 for what outward rounding elsewhere took from it


class Rounds(NamedTuple):
    """Equal rounds: noise_multiplier >= 0, sampling_rate in (0, 1), count >= 0."""

    noise_multiplier: float
    sampling_rate: float
    num_rounds: int


def rounds_of(event: events.PrivacyEvent) -> Rounds | None:
    """The arguments of `epsilon` for an event that is rounds of one sampled Gaussian under
    REPLACE_ONE, else None.
    """
    mechanism: events.Mechanism = event.mechanism
    count = 1
    while isinstance(mechanism, events.SelfComposed):
        count *= mechanism.count
        mechanism = mechanism.event
    if event.neighboring_relation != events.NeighboringRelation.REPLACE_ONE:
        return None
    if (
        not isinstance(mechanism, events.SampledWithoutReplacement)
        or mechanism.sample_size >= mechanism.population
    ):
        return None
    noise = effective_noise(mechanism.event)
    if noise is None or noise == math.inf:
        return None
    return Rounds(noise, mechanism.sample_size / mechanism.population, count)


def sampled_epsilon(
    noise_multiplier: float,
    sampling_rate: float,
    num_rounds: int,
    delta: float,
    *,
    accuracy: float = solve.ACCURACY,
) -> float:
    """Upper bound on epsilon of `num_rounds` rounds, for REPLACE_ONE.

    Guarantee: the true epsilon is not larger; for the worst case of the sampled mechanism it is
    within about `accuracy` of the result.

    Args:
      noise_multiplier: noise standard deviation / L2 sensitivity under REPLACE_ONE, > 0.
      sampling_rate: sample size / population, in (0, 1].
      num_rounds: >= 1.
      delta: in (0, 1).
      accuracy: relative.

    Returns:
      Epsilon. Where the lattice cannot hold or resolve it (losses of one round beyond 600, a tiny
      delta or rate) rounds times the epsilon of one at delta / rounds counts, with a
      WideIntervalWarning unless that is within twice the epsilon of one.
    """
    _check(noise_multiplier, sampling_rate, num_rounds, accuracy)
    _validate.open_unit(delta=delta)
    if sampling_rate == 1:
        return float(gaussian.mu_to_epsilon(math.sqrt(num_rounds) / noise_multiplier, delta))
    found = _upper(noise_multiplier, sampling_rate, num_rounds, math.log(delta), False, accuracy)
    if found is not None and _SMALL < found < math.inf:
        return found
    known = _closed(noise_multiplier, sampling_rate, num_rounds, math.log(delta), False)
    upper = min(math.inf if found is None else max(found, 0.0), float(known[0, 1]))
    closed.warn_of_wide(np.array([[known[0, 0], upper]]), for_delta=False)
    return upper


def delta(
    noise_multiplier: float,
    sampling_rate: float,
    num_rounds: int,
    epsilon: float,
    *,
    accuracy: float = solve.ACCURACY,
) -> float:
    """Upper bound on delta at `epsilon` >= 0; other arguments and guarantee as in `epsilon`, 1
    instead of +inf.
    """
    _check(noise_multiplier, sampling_rate, num_rounds, accuracy)
    _validate.non_negative(epsilon=epsilon)
    if sampling_rate == 1:
        return float(gaussian.mu_to_delta(math.sqrt(num_rounds) / noise_multiplier, epsilon))
    found = _upper(noise_multiplier, sampling_rate, num_rounds, epsilon, True, accuracy)
    # Total variation adds up over rounds and bounds delta at every epsilon; the lattice gives
    # nothing at epsilon 0 where one round's loss lies at 0 for the most part.
    variation = num_rounds * sampling_rate * float(gaussian.mu_to_delta(1 / noise_multiplier, 0.0))
    if found is None:
        found = float(_closed(noise_multiplier, sampling_rate, num_rounds, epsilon, True)[0, 1])
    return min(math.exp(found), variation, 1.0)


def _closed(
    noise_multiplier: float, sampling_rate: float, num_rounds: int, target: float, for_delta: bool
) -> Any:
    """Bounds `[1, 2]` without a lattice."""
    numbers = (np.array([float(v)]) for v in (noise_multiplier, sampling_rate, num_rounds, target))
    return closed.steps_interval(*numbers, for_delta=for_delta)


def estimate(rounds: Rounds, delta: float) -> float:
    """Epsilon by a saddle-point formula: within a percent or so, NOT a bound; +inf without
    noise.
    """
    _validate.non_negative(noise_multiplier=rounds.noise_multiplier)
    _validate.probability(sampling_rate=rounds.sampling_rate)
    _validate.positive_int(num_rounds=rounds.num_rounds)
    _validate.open_unit(delta=delta)
    if rounds.noise_multiplier == 0:
        return math.inf
    with host():
        return float(
            _plan(*_arguments(rounds), math.log(delta), solve.ACCURACY, for_delta=False)[0].epsilon
        )


def _check(noise_multiplier: float, sampling_rate: float, num_rounds: int, accuracy: float) -> None:
    _validate.positive(noise_multiplier=noise_multiplier, accuracy=accuracy)
    _validate.probability(sampling_rate=sampling_rate)
    _validate.positive_int(num_rounds=num_rounds)


def _arguments(rounds: Rounds) -> tuple[Any, jax.Array]:
    params = (
        jnp.asarray([[float(rounds.sampling_rate)]]),
        jnp.asarray([[1 / rounds.noise_multiplier]]),
    )
    return params, jnp.asarray([rounds.num_rounds], jnp.int64)


def _upper(
    noise_multiplier: float,
    sampling_rate: float,
    num_rounds: int,
    target: float,
    for_delta: bool,
    accuracy: float,
) -> float | None:
    """Epsilon at log delta = `target`, or log delta at epsilon = `target`; None beyond the
    lattice.
    """
    with host():
        params, counts = _arguments(Rounds(noise_multiplier, sampling_rate, num_rounds))
        found, high = _plan(params, counts, target, accuracy, for_delta=for_delta)
        if not float(high) <= solve.LARGEST_LOSS:
            return None
        spread = max(float(found.spread), 1e-300)
        if for_delta:
            wanted = accuracy / max(abs(float(found.tilts.middle)), 1 / spread)
        else:
            wanted = accuracy * max(float(found.epsilon), 1e-3 * spread)
        h = min(math.sqrt(2.0 * wanted / float(found.curvature)), spread / 4.0)
        window = np.asarray(found.window)
        sizes = np.asarray([window[1] - window[0], float(high)]) / h + 6
        sizes = np.maximum(sizes, [2048.0, 1024.0])  # few sizes: few programs
        n, half = (int(size) for size in solve._power_of_two(sizes))
        if max(n, half) > solve.LARGEST_LATTICE:
            return None
        return float(_bound(n, half, for_delta, params, counts, target, found, h, high))


@compiled(static_argnames="for_delta")
def _plan(
    params: Any, counts: jax.Array, target: Any, accuracy: Any, *, for_delta: bool
) -> tuple[plan.Plan, jax.Array]:
    times = counts.astype(jnp.float64)

    def look(log_delta: jax.Array) -> tuple[plan.Plan, jax.Array]:
        budget = mechanisms.log_budget(times, log_delta)
        one = mechanisms.nodes("mixture", params, jnp.asarray(1.0), budget)
        positive = one.loss > 0
        logs = jnp.where(positive, one.logs - logsumexp(one.logs), -jnp.inf)
        loss = jnp.where(positive, one.loss, 0.0)
        rest = jnp.log(
            jnp.maximum(1 - jnp.sum(jnp.exp(logs) * (1 + jnp.exp(-loss)), 1, keepdims=True), 1e-300)
        )
        both = plan.Nodes(
            jnp.concatenate([logs, logs - loss, rest], 1),
            jnp.concatenate([loss, -loss, jnp.zeros_like(rest)], 1),
        )
        return plan.find(both, times, target, for_delta, accuracy), budget

    found, budget = look(jnp.asarray(solve.LOG_DELTA_UNKNOWN) if for_delta else target)
    if for_delta:
        found, _ = look(jnp.clip(found.log_delta, solve.LOG_DELTA_UNKNOWN, 0.0))
        budget = mechanisms.log_budget(
            times, jnp.clip(found.log_delta, solve.LOG_DELTA_UNKNOWN, 0.0)
        )
    _, high = mechanisms.loss_range("mixture", params, jnp.asarray(1.0), budget)
    return found, high[0]


@compiled(static_argnums=(0, 1, 2))
def _bound(
    n: int,
    half: int,
    for_delta: bool,
    params: Any,
    counts: jax.Array,
    target: Any,
    found: plan.Plan,
    h: Any,
    high: jax.Array,
) -> jax.Array:
    """Epsilon or log delta by lattices of `half` points on each side and `n` points for the
    composition.
    """
    zero = jnp.zeros(1)
    tilt = found.tilts.middle
    last = jnp.ceil(high / h)[None] + 1.0
    # Lattice of the pair from loss -h on: points from h on have no part of losses below 0.
    sign = jnp.asarray(1.0)
    pair = pair_masses.mixture_cells(
        params[0][0], params[1][0], sign, h, zero[0] - 1.0, zero[0], half
    )
    one = discretise.bracket(pair, sign, h, zero[0] - 1.0, last[0], zero[0], tilt)
    up = one.masses[0][2:]  # at h, 2 h, ...
    infinite = one.infinite[0]
    index = 1.0 + jnp.arange(float(up.size))
    down = up * jnp.exp(-index * h)
    rest = jnp.maximum(1.0 - jnp.sum(up) - jnp.sum(down) - infinite, 0.0) + _ZERO_RESERVE
    masses = jnp.concatenate([down[::-1], rest[None], up])
    masses = jnp.concatenate([masses, jnp.zeros(2 * half - masses.size)])
    curves = compose.compose(
        jnp.stack([masses, masses])[:, None],
        jnp.broadcast_to(one.offsets[:1], (2, 1)),
        jnp.broadcast_to(infinite, (2, 1)),
        zero - float(up.size),
        counts,
        h,
        found.tilts,
        found.window,
        found.epsilon,
        n,
    )
    upper = tree_map(lambda x: x[0], curves)
    return (compose.log_delta_of if for_delta else compose.epsilon_of)(upper, target, h, True)
