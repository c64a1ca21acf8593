"""Least pairwise noise in the average at a given privacy, and what other schemes need for the same.

All clients share one own variance u and one pair variance p = gamma u on a complete or k-regular
graph. With S stragglers the average of N - S uploads carries noise of variance (u + S p) / (N - S)
per coordinate (complete graph); its expectation E[1 / (N - S)] u (1 + m gamma), m = E[S / (N - S)]
/ E[1 / (N - S)], is minimised. Which law S follows matters for utility only, never for privacy.

Source: Hong, Lin, Duan, "Lightweight Federated Learning with Differential Privacy and Straggler
Resilience", Proposition 3 and Example 1, with the exact view in place of its condition (14).
"""

import fractions
import math
from typing import Any, Literal, NamedTuple

import numpy as np

from fljax import _validate
from fljax.accounting import gaussian
from fljax.accounting.shared_noise import exact as view
from fljax.accounting.shared_noise import printed

MECHANISMS = ("pair_noise", "local", "secure_sum", "secure_sum_corrected", "central")
_MOST_RATIO = 1e4


class PairCalibration(NamedTuple):
    """Noise for one round of pairwise noise, common to all clients.

    Attributes:
      own_variance, pair_variance: per coordinate, in squared units of `sensitivity`.
      ratio: pair_variance / own_variance.
      expected_variance: of the noise in the average, per coordinate, expected over stragglers.
      mu: exact Gaussian-DP parameter of one round, for every view with at most the assumed
        colluders.
      epsilon: exact epsilon of all rounds at the target delta.
      certified: False for formula="paper".
      reason: how the noise was chosen.
    """

    own_variance: float
    pair_variance: float
    ratio: float
    expected_variance: float
    mu: float
    epsilon: float
    certified: bool
    reason: str


class StragglerMoments(NamedTuple):
    """E[1 / (N - S)] and m = E[S / (N - S)] / E[1 / (N - S)]."""

    inverse: float
    straggling: float


def straggler_moments(num_clients: int, straggler_pmf: Any) -> StragglerMoments:
    """What a law of the number of stragglers means for the average.

    Args:
      num_clients: N.
      straggler_pmf: `[s]`, chance of 0, 1, ... stragglers; sums to 1, at most N entries.

    Raises:
      ValueError: not a law, or with mass where nobody responds.
    """
    _validate.positive_int(num_clients=num_clients)
    pmf = np.asarray(straggler_pmf, np.float64)
    if pmf.ndim != 1 or not np.all(pmf >= 0) or not abs(pmf.sum() - 1) <= 1e-9:
        raise ValueError(
            f"Expected straggler_pmf [s] >= 0 with sum 1, got straggler_pmf={pmf.tolist()}."
        )
    if np.any(pmf[num_clients:] > 0):
        raise ValueError(
            f"Expected at most {num_clients - 1} of {num_clients} clients to straggle, got "
            f"straggler_pmf with mass at {num_clients + int(np.flatnonzero(pmf[num_clients:])[0])}."
        )
    pmf = pmf[:num_clients]
    count = np.arange(pmf.size)
    inverse = float((pmf / (num_clients - count)).sum())
    return StragglerMoments(inverse, float((pmf * count / (num_clients - count)).sum()) / inverse)


def best_ratio(
    num_honest: Any, straggling: Any, *, ways: Any = None, largest: float = _MOST_RATIO
) -> np.ndarray:
    """gamma* = pair_variance / own_variance `[...]` that minimises (1 + m gamma) (1 / n + (1 - 1 /
    n) / (1 + w gamma)).

    Args:
      num_honest: n = N less colluders.
      straggling: m of `straggler_moments`.
      ways: w, honest neighbours of a client; None: n, the complete graph.
      largest: cap. Without stragglers (m = 0) the infimum lies at infinity; at the cap the excess
        is below n / largest.

    Returns:
      0 where m >= w (1 - 1 / n): then local noise alone is best.
    """
    _validate.positive(largest=largest)
    _validate.each(_validate.positive, num_honest=num_honest)
    _validate.each(_validate.non_negative, straggling=straggling)
    _validate.each(_validate.positive, ways=num_honest if ways is None else ways)
    n, m = np.asarray(num_honest, np.float64), np.asarray(straggling, np.float64)
    w = n if ways is None else np.asarray(ways, np.float64)
    gain = np.maximum(w - w / n - m, 0.0)
    bottom = m * (w / n) + np.sqrt((m * (w / n)) ** 2 + m * (w**2 / n) * gain)
    ratio = np.divide(gain, bottom, out=np.where(gain > 0, np.inf, 0.0), where=bottom > 0)
    return np.minimum(ratio, largest)


def honest_neighbors(
    num_clients: int, num_neighbors: int, num_colluders: int, failure_prob: float
) -> int:
    """Honest neighbours that all clients of a random regular graph have, but for a chance of
    `failure_prob`.

    For colluders fixed before the graph is drawn; then add `failure_prob` to delta, once per graph.

    Args:
      num_clients: N. num_neighbors: k <= N - 1. num_colluders: < N.
      failure_prob: >= 0. 0: all colluders may be neighbours.

    Returns:
      Largest h with N P(Hypergeometric < h) <= `failure_prob`, at least k - `num_colluders`.
    """
    _check_sizes(num_clients, num_colluders)
    _validate.positive_int(num_neighbors=num_neighbors)
    _validate.below_one(failure_prob=failure_prob)
    if not num_neighbors < num_clients:
        raise ValueError(
            f"Expected num_neighbors < {num_clients} clients, got num_neighbors={num_neighbors}."
        )
    honest, total = num_clients - 1 - num_colluders, math.comb(num_clients - 1, num_neighbors)
    least = max(num_neighbors - num_colluders, 0)
    below = 0
    for h in range(least, min(num_neighbors, honest)):
        # Exact integers: small tails do not cancel.
        below += math.comb(honest, h) * math.comb(num_colluders, num_neighbors - h)
        if num_clients * below > fractions.Fraction(failure_prob) * total:
            return h
    return min(num_neighbors, honest)


def pair_calibration(
    num_clients: int,
    num_colluders: int,
    straggler_pmf: Any,
    *,
    epsilon: float,
    delta: float,
    sensitivity: float = 1.0,
    num_rounds: int = 1,
    num_neighbors: int | None = None,
    failure_prob: float = 0.0,
    formula: Literal["sound", "paper"] = "sound",
    largest_ratio: float = _MOST_RATIO,
) -> PairCalibration:
    """Common variances of least expected noise in the average for (epsilon, delta)-DP of every
    honest client.

    Guarantee (formula="sound"): all rounds together are (epsilon, delta)-DP for each honest client
    towards the server and any `num_colluders` clients, whoever straggles, late uploads included;
    idealisations as in `view.exact_mu`.

    Args:
      num_clients: N. num_colluders: at most so many clients pool with the server; < N.
      straggler_pmf: as in `straggler_moments`.
      epsilon, delta: target for all rounds together.
      sensitivity: largest L2 move of one client's upload between neighbours.
      num_rounds: rounds with fresh noise; each gets mu / sqrt(num_rounds), that is `num_rounds`
        times the variance.
      num_neighbors: degree k of a regular graph; None: the complete graph.
      failure_prob: part of delta spent on the randomness of the graph, see `honest_neighbors`.
      formula: "paper" takes the ratio and scale of Proposition 3, and sqrt(num_rounds) times the
        variance for more rounds, as printed; never certified.
      largest_ratio: see `best_ratio`.

    Raises:
      ValueError: an argument out of range; as many colluders as neighbours, where only local noise
        would be left.
    """
    _check_sizes(num_clients, num_colluders)
    _validate.positive(epsilon=epsilon, sensitivity=sensitivity, largest_ratio=largest_ratio)
    _validate.open_unit(delta=delta)
    _validate.positive_int(num_rounds=num_rounds)
    _validate.non_negative(failure_prob=failure_prob)
    _validate.one_of(["sound", "paper"], formula=formula)
    if not failure_prob < delta:
        raise ValueError(
            f"Expected failure_prob < delta={delta!r}, got failure_prob={failure_prob!r}."
        )
    moments = straggler_moments(num_clients, straggler_pmf)
    honest, straggling = num_clients - num_colluders, moments.straggling
    if num_neighbors is not None:
        certified = honest_neighbors(num_clients, num_neighbors, num_colluders, failure_prob)
        if certified < 1:
            raise ValueError(
                f"Expected num_neighbors > num_colluders={num_colluders}, got "
                f"num_neighbors={num_neighbors}: all of a "
                "client's neighbours may collude, and pair noise gives nothing."
            )
        honest, straggling = certified + 1, straggling * num_neighbors / (num_clients - 1)
    if formula == "paper":
        ratio = float(printed.best_ratio(honest, straggling))
        scale = float(printed.complete_loss_variance(ratio, honest))
        own = (
            scale
            * sensitivity**2
            / printed.largest_variance(epsilon, delta)
            * math.sqrt(num_rounds)
        )
        reason = (
            "Proposition 3: condition (14), whose loss variance drops terms; rounds by its footnote"
        )
    else:
        ratio = float(best_ratio(honest, straggling, largest=largest_ratio))
        mu = float(gaussian.epsilon_to_mu(epsilon, delta - failure_prob)) / math.sqrt(num_rounds)
        own = sensitivity**2 / mu**2 * (1 + ratio) / (1 + honest * ratio)
        reason = "exact view: every colluder set, every straggler set"
    round_mu = float(view.complete_mu(own, ratio * own, num_seen=honest, sensitivity=sensitivity))
    return PairCalibration(
        own_variance=own,
        pair_variance=ratio * own,
        ratio=ratio,
        expected_variance=moments.inverse * own * (1 + straggling * ratio),
        mu=round_mu,
        epsilon=float(
            gaussian.mu_to_epsilon(round_mu * math.sqrt(num_rounds), delta - failure_prob)
        ),
        certified=formula == "sound",
        reason=reason,
    )


def client_variance(
    mechanism: str,
    num_clients: int,
    num_colluders: int,
    num_stragglers: int,
    *,
    mu: float,
    sensitivity: float = 1.0,
) -> float:
    """Noise variance that each client adds under a scheme without pair noise, sized for the worst
    case.

    Args:
      mechanism: "local": each upload is private alone. "secure_sum": the sum over at least N -
        `num_stragglers` uploads is, less what `num_colluders` know. "central": 0, the server adds.
      num_clients, num_colluders, num_stragglers: N and the bounds.
      mu: Gaussian-DP parameter of one round.
      sensitivity: as in `pair_calibration`.

    Raises:
      ValueError: "secure_sum" with nobody honest left to add noise.
    """
    _check_sizes(num_clients, num_colluders)
    _validate.non_negative_int(num_stragglers=num_stragglers)
    _validate.positive(mu=mu, sensitivity=sensitivity)
    _validate.one_of(["local", "secure_sum", "central"], mechanism=mechanism)
    local = (sensitivity / mu) ** 2
    if mechanism == "secure_sum":
        return local / _survivors(num_clients, num_colluders, num_stragglers)
    return local if mechanism == "local" else 0.0


def expected_variance(
    mechanism: str,
    num_clients: int,
    num_colluders: int,
    straggler_pmf: Any,
    *,
    mu: float,
    sensitivity: float = 1.0,
) -> float:
    """Expected noise variance in the average, per coordinate, at the same exact mu per round.

    Args:
      mechanism: "pair_noise" (complete graph, best ratio), "local", "secure_sum" (ideal secure sum,
        noise sized for the largest number of stragglers in the law), "secure_sum_corrected" (the
        surplus of noise removed in a further round) or "central" (a trusted server adds the noise).
      num_clients, num_colluders, straggler_pmf, sensitivity: as in `pair_calibration`.
      mu: Gaussian-DP parameter of one round, > 0.

    Raises:
      ValueError: a secure sum with nobody honest left to add noise, or an argument out of range.
    """
    _validate.one_of(MECHANISMS, mechanism=mechanism)
    _check_sizes(num_clients, num_colluders)
    _validate.positive(mu=mu, sensitivity=sensitivity)
    moments = straggler_moments(num_clients, straggler_pmf)
    local = (sensitivity / mu) ** 2
    if mechanism == "pair_noise":
        ratio, honest = (
            float(best_ratio(num_clients - num_colluders, moments.straggling)),
            num_clients - num_colluders,
        )
        return (
            moments.inverse
            * local
            * (1 + ratio)
            / (1 + honest * ratio)
            * (1 + moments.straggling * ratio)
        )
    if mechanism == "local":
        return moments.inverse * local
    pmf = np.asarray(straggler_pmf, np.float64)
    count = np.flatnonzero(pmf)
    left = num_clients - count
    if mechanism == "central":
        return float((pmf[count] * local / left**2).sum())
    survivors = _survivors(num_clients, num_colluders, int(count.max()))
    if mechanism == "secure_sum":
        return moments.inverse * local / survivors
    return float((pmf[count] * local / ((left - num_colluders) * left)).sum())


def _survivors(num_clients: int, num_colluders: int, num_stragglers: int) -> int:
    left = num_clients - num_colluders - num_stragglers
    if not left >= 1:
        raise ValueError(
            f"Expected num_colluders + num_stragglers < {num_clients} clients for a secure sum, "
            f"got num_colluders={num_colluders} and num_stragglers={num_stragglers}: nobody honest "
            "adds noise."
        )
    return left


def _check_sizes(num_clients: int, num_colluders: int) -> None:
    _validate.positive_int(num_clients=num_clients)
    view._colluders_in_range(num_colluders, num_clients)
