"""What "Lightweight Federated Learning with Differential Privacy and Straggler Resilience" prints
and what holds.

50 clients, 10 colluders, 10 stragglers at most, delta 1e-5, sensitivity 1, unless said.
"""

import math

import numpy as np

from fljax import accounting
from fljax.accounting import gaussian
from fljax.accounting.shared_noise import exact, printed
from fljax.papers.errata import Erratum, Shown
from fljax.papers.lightdp import convergence

N, COLLUDERS, STRAGGLERS, DELTA = 50, 10, 10, 1e-5


def _epsilon(mu: float) -> float:
    with accounting.x64():
        return float(gaussian.mu_to_epsilon(mu, DELTA))


def _straggling(most: int) -> float:
    """M of Proposition 3 where 0 to `most` of N straggle, each number as often as any other."""
    s = np.arange(most + 1)
    return float((s / (N - s)).sum() / (1 / (N - s)).sum())


def _chosen(num_honest: int, epsilon: float = 3.0) -> tuple[float, float]:
    """The paper's ratio and own variance for an epsilon, by Proposition 3."""
    ratio = float(printed.best_ratio(num_honest, _straggling(STRAGGLERS)))
    with accounting.x64():
        loss = float(printed.complete_loss_variance(ratio, num_honest))
    return ratio, loss / printed.largest_variance(epsilon, DELTA)


def _e1() -> list[Shown]:
    ratio, own = _chosen(N - COLLUDERS)
    with accounting.x64():
        mu = float(exact.complete_mu(own, ratio * own, num_seen=N - COLLUDERS))
    return [Shown("epsilon at the noise of Proposition 3 for 3", 3.0, _epsilon(mu))]


def _e2() -> list[Shown]:
    found = []
    with accounting.x64():
        for epsilon in (9.0, 12.0):
            mu = math.sqrt(printed.largest_variance(epsilon, DELTA))
            what = f"delta at epsilon {epsilon:g}, where condition (14) just holds"
            found.append(Shown(what, DELTA, float(gaussian.mu_to_delta(mu, epsilon))))
    return found


def _e3() -> list[Shown]:
    with accounting.x64():
        mu = float(gaussian.epsilon_to_mu(9.0, DELTA))
        tail = float(printed.loss_tail(9.0, mu))
    what = "chance that the loss exceeds 9, of a mechanism that is (9, 1e-5)-private"
    return [Shown(what, DELTA, tail)]


def _e4() -> list[Shown]:
    rounds, mu = 150, math.sqrt(printed.largest_variance(3.0, DELTA))
    return [
        Shown("epsilon of 150 rounds of 3", 3.0, _epsilon(mu * math.sqrt(rounds))),
        Shown(
            "the same, variances times sqrt(150)",
            3.0,
            _epsilon(mu * math.sqrt(rounds / math.sqrt(rounds))),
        ),
        Shown("the same, variances times 150", 3.0, _epsilon(mu)),
    ]


def _e5() -> list[Shown]:
    graph = exact.PairGraph(np.full(4, 0.25), np.array([[0, 1], [0, 2], [1, 2]]), np.full(3, 0.1))
    nobody = np.zeros(4, bool)
    found = []
    for late in (0, 2):
        responders = np.arange(4) < 4 - late
        values = [
            printed.disturbance(graph, responders=responders, colluders=nobody, formula=formula)
            for formula in ("paper", "sound")
        ]
        found.append(Shown(f"noise variance of the average, {late} of 4 late", *values))
    return found


def _e7() -> list[Shown]:
    problem = convergence.Problem(smoothness=0.2, polyak_lojasiewicz=0.2, dissimilarity=1.0)
    size: dict[str, float | int] = {"lipschitz": 0.1, "dimension": 100, "variance": 1e-4}
    found = []
    for rounds in (20, 100):
        gap = 0.0  # of |w|^2 / 10, each client solving with a unit proximal weight
        for _ in range(rounds):
            gap = gap / 1.44 + 0.1 * 100 * 1e-4
        bound = convergence.printed(0.0, rounds, problem, **size)  # type: ignore[arg-type]
        found.append(Shown(f"bound on a gap after {rounds} rounds, beside the gap", bound, gap))
    return found


def _e9() -> list[Shown]:
    variance, dimension = 0.04, 10
    squared = dimension * variance
    what = "mean square of the noise's norm, from its mean"
    return [Shown(what, convergence.noise_norm(dimension, variance) ** 2, squared)]


def _e10() -> list[Shown]:
    honest, straggling = 10, _straggling(30)
    roots = np.roots(printed.quartic(honest, straggling))
    inside = roots[(abs(roots.imag) < 1e-9) & (roots.real > 0) & (roots.real < 1)]
    return [Shown("roots in (0, 1), 40 colluders and up to 30 stragglers", 1, len(inside))]


def _e11() -> list[Shown]:
    found = []
    for epsilon in (3.0, 9.0):
        stddev = math.sqrt(1.25 * math.log(2 / DELTA)) / epsilon
        what = f"epsilon of the baselines' noise for {epsilon:g}, as a standard deviation"
        found.append(Shown(what, epsilon, _epsilon(1 / stddev)))
    return found


def _e12() -> list[Shown]:
    def pair_stddev(colluders: int) -> float:
        ratio, own = _chosen(N - colluders)
        return math.sqrt(ratio * own)

    stddevs = [pair_stddev(colluders) for colluders in range(N - 1)]
    return [
        Shown("number of colluders at which pair noise is largest", 48, int(np.argmax(stddevs))),
        Shown("pair noise with 44 colluders", stddevs[37], stddevs[44]),
    ]


def _e13() -> list[Shown]:
    with accounting.x64():
        alone, all_honest = (float(printed.complete_loss_variance(1.0, n)) for n in (1, 3))
    what = "largest V_i of 3 clients with equal noises of 1, at most 2 colluding"
    return [Shown(what, alone, all_honest)]


def _e15() -> list[Shown]:
    weights, pair = np.array([1, 2, 3]) / 6, [(0, 1), (0, 2), (1, 2)]
    variance = sum((weights[i] - weights[j]) ** 2 for i, j in pair)
    return [Shown("variance that unit pair noise leaves in a weighted average", 0.0, variance)]


def _e20() -> list[Shown]:
    responding = N - np.arange(STRAGGLERS + 1)
    ratio, own = _chosen(N - COLLUDERS)
    ours = np.mean(1 / responding) * own * (1 + _straggling(STRAGGLERS) * ratio)
    # in a secure sum those who neither collude nor straggle share the noise of one
    share = 1 / printed.largest_variance(3.0, DELTA) / (N - COLLUDERS - STRAGGLERS)
    theirs = np.mean(1 / responding) * share
    what = "noise variance of LightDP-FL's average / that of a secure sum's"
    return [Shown(what, 1.0, float(ours / theirs))]


def _e21() -> list[Shown]:
    return [Shown("clients left to share a secure sum's noise, 40 colluders", 1, N - 40 - 10)]


ERRATA = (
    Erratum(
        "E1",
        "Lemma 2",
        "V_i is the variance of the log-likelihood ratio",
        "cross-covariances are dropped; V_i is too large, without limit as pair noise grows, which "
        "is safe and wastes noise",
        _e1,
    ),
    Erratum(
        "E2",
        "Proposition 1, condition (14)",
        "the condition gives (epsilon, delta)",
        "the mean of the ratio is dropped: only up to epsilon 9.39 at delta 1e-5",
        _e2,
    ),
    Erratum(
        "E3",
        "equation (6)",
        "a bound on the tail of the ratio is the same as differential privacy",
        "it is enough, and not needed",
        _e3,
    ),
    Erratum(
        "E4",
        "footnote on rounds",
        "T rounds multiply variances by sqrt(T)",
        "by T",
        _e4,
    ),
    Erratum(
        "E5",
        "equation (10)",
        "noise of honest responders counts each own noise once a straggler",
        "once; as printed there is none where nobody straggles",
        _e5,
    ),
    Erratum(
        "E6",
        "equation (10)",
        "a sum of uploads beside the noise of an average",
        "one scale for both",
    ),
    Erratum(
        "E7",
        "Proposition 2, equation (15)",
        "the noise term carries a power t",
        "it carries none: as printed the bound tends to 0 under a gap that stays open",
        _e7,
    ),
    Erratum(
        "E8",
        "Proposition 2",
        "constants without the step size and the epochs of the algorithm",
        "they belong to clients that solve with a proximal weight of 1; bounded gradients and the "
        "Polyak-Lojasiewicz inequality hold together on a bounded set only",
    ),
    Erratum(
        "E9",
        "Proposition 3",
        "least mean norm of the noise is least mean square",
        "the square is what the bound needs, and is minimised",
        _e9,
    ),
    Erratum(
        "E10",
        "Proposition 3",
        "the best ratio always exists in (0, 1)",
        "not when m >= N - C - 1; then no pair noise is best",
        _e10,
    ),
    Erratum(
        "E11",
        "section on baselines",
        "noise of sqrt(1.25 log(2 / delta)) / epsilon, called a variance",
        "the usual constant has 2 and 1.25 the other way round and is a standard deviation; as one "
        "this is too small",
        _e11,
    ),
    Erratum(
        "E12",
        "Example 1",
        "pair noise rises with the number of colluders",
        "up to 37 of 50, then it falls, to 0 from 44",
        _e12,
    ),
    Erratum(
        "E13",
        "Proposition 3",
        "V_i is largest when as many collude as may",
        "not with strong pair noise; the exact bound has its worst case there",
        _e13,
    ),
    Erratum(
        "E14", "equation (13)", "a density of uploads", "it lacks the power d of d coordinates"
    ),
    Erratum(
        "E15",
        "Algorithm 1",
        "uploads may be averaged with weights",
        "then noise that pairs share no longer cancels, unless weights come before the noise",
        _e15,
    ),
    Erratum(
        "E16",
        "experiments",
        "epsilon",
        "no clip norm, sensitivity or delta is given",
    ),
    Erratum("E17", "Table I", "a reference for SecAgg", "another one in the text"),
    Erratum("E18", "Definition 1", "neighbouring data sets", "which relation is not said"),
    Erratum(
        "E19",
        "Tables II and III",
        "accuracy for 15 colluders and 10 stragglers",
        "it does not lie between the columns for 10 and for 20 colluders of the other table",
    ),
    Erratum(
        "E20",
        "Fig. 3",
        "LightDP-FL is above a secure sum with noise",
        "its average has more noise wherever a secure sum works",
        _e20,
    ),
    Erratum(
        "E21",
        "Fig. 3",
        "a secure sum with 40 colluders and 10 stragglers",
        "nobody is left to add the noise",
        _e21,
    ),
)
