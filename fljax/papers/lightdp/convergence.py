"""Bounds on the optimality gap of federated training under a noise of known variance in the
average.

`printed` is the bound as published and is no bound: the bracket with the noise carries a power t,
so that it falls below a gap that noise keeps open. `corrected` and `sharpened` are sound for the
recursion they state, `gradient_steps` for the algorithm people run. All need conditions that
training of neural networks does not meet: for test problems.

Source: Hong, Lin, Duan, "Lightweight Federated Learning with Differential Privacy and Straggler
Resilience", Proposition 2, equation (15).
"""

import math
from typing import NamedTuple

from fljax import _validate


class Problem(NamedTuple):
    """Constants of the objective F and of the clients' F_i.

    Attributes:
      smoothness: rho, of F and of every F_i.
      polyak_lojasiewicz: l, with |grad F|^2 >= 2 l (F - min F); at most rho.
      dissimilarity: B >= 1, with E |grad F_i|^2 <= B^2 |grad F|^2.
    """

    smoothness: float
    polyak_lojasiewicz: float
    dissimilarity: float


def noise_norm(dimension: int, variance: float) -> float:
    """E |n| of n ~ N(0, variance I): sqrt(2 variance) Gamma((d + 1) / 2) / Gamma(d / 2)."""
    _validate.positive_int(dimension=dimension)
    _validate.non_negative(variance=variance)
    return math.sqrt(2 * variance) * math.exp(
        math.lgamma((dimension + 1) / 2) - math.lgamma(dimension / 2)
    )


def _lambdas(problem: Problem) -> tuple[float, float, float]:
    """(lambda0, lambda1, q) of Proposition 2, checked."""
    rho, l, b = problem
    _validate.positive(smoothness=rho, polyak_lojasiewicz=l, dissimilarity=b)
    if not l <= rho:
        raise ValueError(
            f"Expected polyak_lojasiewicz <= smoothness={rho!r}, got polyak_lojasiewicz={l!r}."
        )
    if not b >= 1:
        raise ValueError(f"Expected dissimilarity >= 1, got dissimilarity={b!r}.")
    bend = -1 + rho * b + rho * b**2 / 2
    if not bend < 0:
        raise ValueError(
            f"Expected rho B + rho B^2 / 2 < 1 for a contraction, got {bend + 1:.6g} with "
            f"smoothness={rho!r} and dissimilarity={b!r}."
        )
    return rho / 2, 1 + rho * b, 1 + 2 * l * bend


def _bracket(
    problem: Problem, lipschitz: float, dimension: int, variance: float
) -> tuple[float, float]:
    lambda0, lambda1, q = _lambdas(problem)
    _validate.non_negative(lipschitz=lipschitz)
    return lambda1 * lipschitz * noise_norm(dimension, variance) + lambda0 * dimension * variance, q


def printed(
    gap: float,
    num_rounds: int,
    problem: Problem,
    *,
    lipschitz: float,
    dimension: int,
    variance: float,
) -> float:
    """Equation (15) as printed. NOT a bound: use `corrected` or `sharpened`.

    Args:
      gap: F(w_0) - min F, >= 0.
      num_rounds: T >= 1.
      problem: constants of the objective.
      lipschitz: beta, of every F_i.
      dimension: d.
      variance: of the noise in the average, per coordinate.

    Raises:
      ValueError: constants that cannot be, or for which nothing contracts.
    """
    bracket, q = _bracket(problem, lipschitz, dimension, variance)
    _start(gap, num_rounds)
    return q**num_rounds * gap + sum(
        bracket**t * q ** (num_rounds - t) for t in range(1, num_rounds + 1)
    )


def corrected(
    gap: float,
    num_rounds: int,
    problem: Problem,
    *,
    lipschitz: float,
    dimension: int,
    variance: float,
) -> float:
    """Bound on E F(w_T) - min F by the printed recursion, its noise bracket without the power;
    arguments as `printed`.

    For clients that solve F_i + |w - w_t|^2 / 2, or take one full-batch step of size 1; stragglers
    exchangeable.
    """
    bracket, q = _bracket(problem, lipschitz, dimension, variance)
    _start(gap, num_rounds)
    return q**num_rounds * gap + bracket * _geometric(q, num_rounds)


def sharpened(
    gap: float, num_rounds: int, problem: Problem, *, dimension: int, variance: float
) -> float:
    """As `corrected`, without the cross term: the noise has mean zero and is independent of the
    step.
    """
    lambda0, _, q = _lambdas(problem)
    _start(gap, num_rounds)
    _validate.positive_int(dimension=dimension)
    _validate.non_negative(variance=variance)
    return q**num_rounds * gap + lambda0 * dimension * variance * _geometric(q, num_rounds)


def sampling_excess(num_clients: int, num_stragglers: int, dissimilarity: float) -> float:
    """Zeta = S (B^2 - 1) / ((N - S)(N - 1)): relative variance of the mean gradient of uniformly
    random responders.
    """
    _validate.positive_int(num_clients=num_clients)
    _validate.non_negative_int(num_stragglers=num_stragglers)
    _validate.positive(dissimilarity=dissimilarity)
    if not dissimilarity >= 1:
        raise ValueError(f"Expected dissimilarity >= 1, got dissimilarity={dissimilarity!r}.")
    if not num_stragglers < num_clients:
        raise ValueError(
            f"Expected num_stragglers < {num_clients} clients, got num_stragglers={num_stragglers}."
        )
    if num_stragglers == 0:
        return 0.0
    return (
        num_stragglers
        * (dissimilarity**2 - 1)
        / ((num_clients - num_stragglers) * (num_clients - 1))
    )


def gradient_steps(
    gap: float,
    num_rounds: int,
    problem: Problem,
    *,
    learning_rate: float,
    dimension: int,
    variance: float,
    num_clients: int,
    num_stragglers: int,
) -> float:
    """Bound on E F(w_T) - min F for one full-batch step of size `learning_rate` per client and
    round.

    Args:
      gap, num_rounds, dimension: as in `printed`.
      problem: here rho and l are those of F.
      learning_rate: eta, at most 1 / (rho (1 + zeta)), zeta of `sampling_excess`.
      variance: of the noise in the average, per coordinate, expected over stragglers.
      num_clients, num_stragglers: N and the largest number of stragglers, a uniformly random set
        each round.

    Raises:
      ValueError: `learning_rate` is too large, or constants that cannot be.
    """
    rho, l, b = problem
    _validate.positive(smoothness=rho, polyak_lojasiewicz=l, learning_rate=learning_rate)
    if not l <= rho:
        raise ValueError(
            f"Expected polyak_lojasiewicz <= smoothness={rho!r}, got polyak_lojasiewicz={l!r}."
        )
    _start(gap, num_rounds)
    _validate.positive_int(dimension=dimension)
    _validate.non_negative(variance=variance)
    largest = 1 / (rho * (1 + sampling_excess(num_clients, num_stragglers, b)))
    if not learning_rate <= largest * (1 + 1e-12):
        raise ValueError(
            f"Expected learning_rate <= {largest:.6g} for this problem, got "
            f"learning_rate={learning_rate!r}."
        )
    q = 1 - learning_rate * l
    return q**num_rounds * gap + rho / 2 * dimension * variance * _geometric(q, num_rounds)


def _start(gap: float, num_rounds: int) -> None:
    _validate.non_negative(gap=gap)
    _validate.positive_int(num_rounds=num_rounds)


def _geometric(q: float, terms: int) -> float:
    """1 + q + ... + q^(terms - 1)."""
    return sum(q**k for k in range(terms))
