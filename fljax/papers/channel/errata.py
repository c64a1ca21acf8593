"""What "Defending Against Data Reconstruction Attacks in Federated Learning: An Information Theory
Approach", arXiv:2403.01268, prints and what holds.
"""

import math

import numpy as np
from scipy import integrate, optimize, stats

from fljax.accounting.information import clipped, printed
from fljax.papers.errata import Erratum, Shown

_COVARIANCE = np.array([[4.0, 1.0, 0.5], [1.0, 2.0, 0.3], [0.5, 0.3, 1.0]])
_WEIGHTS = np.array([1.0, 2.0, 5.0])


def _nats(variance: float) -> float:
    """Capacity of the personalised channel of the example, by determinants."""
    scaled = variance * _WEIGHTS
    whole = np.linalg.slogdet(_COVARIANCE + np.diag(scaled))[1]
    return float(whole - np.log(scaled).sum()) / 2


def _e1() -> list[Shown]:
    def excess(variance: float) -> float:
        return float(printed.printed_eq20(_COVARIANCE, _WEIGHTS, variance)) - 1

    variance = float(optimize.brentq(excess, 1.0, 2.0, xtol=1e-14))
    what = "nats of a channel whose variance solves equation (20) for 1"
    return [Shown(what, 1.0, _nats(variance))]


def _e3() -> list[Shown]:
    settings = {"noise_multiplier": 0.8, "batch_size": 64, "target": "batch_mean"}
    settings |= {"record_dimension": 64, "assume_iid": True}
    nats = [
        float(np.max(clipped.private_sgd_nats(**settings, formula=formula).nats))  # type: ignore
        for formula in ("paper", "sound")
    ]
    return [Shown("nats of a sum of 64 clipped gradients, noise multiplier .8", *nats)]


def _entropy(grid: np.ndarray, density: np.ndarray) -> float:
    """Nats of a density on an even grid."""
    terms = np.where(density > 0, density * np.log(np.maximum(density, 1e-300)), 0.0)
    return -float(integrate.trapezoid(terms, grid))


def _e4() -> list[Shown]:
    count, noise = 1000, 10.0
    values, seen = np.linspace(-8.0, 8.0, 1601), np.linspace(-30.0, 30.0, 1201)
    inside = stats.norm.cdf(abs(values)) - stats.norm.cdf(-abs(values))
    largest = count * stats.norm.pdf(values) * inside ** (count - 1)
    behind = stats.norm.pdf(seen[:, None], values, math.sqrt(noise))
    density = np.asarray(integrate.trapezoid(behind * largest, values, axis=1))
    value_nats = _entropy(seen, density) - math.log(2 * math.pi * math.e * noise) / 2
    what = "nats of the largest in size of 1,000 normals, behind noise, with its place"
    return [Shown(what, math.log(count) + math.log1p(1 / noise) / 2, math.log(count) + value_nats)]


def _e5() -> list[Shown]:
    two = 0.5 * math.log(1 + 2.0)
    return [Shown("nats of one value sent twice behind noise of its variance", math.log(2.0), two)]


def _e6() -> list[Shown]:
    values, n = np.array([4.0, 1.0, 0.25]), 100
    variance = float(optimize.brentq(lambda v: np.log1p(values / v).sum() / 2 - 1, 1e-3, 1e3))
    together = float(np.log1p(n * values / variance).sum() / 2)
    return [Shown("nats of 100 uses of one nat each", float(n), together)]


def _e7() -> list[Shown]:
    spread = 0.05
    grid = np.linspace(-1.5, 1.5, 20_001)
    mixture = (stats.norm.pdf(grid, -1, spread) + stats.norm.pdf(grid, 1, spread)) / 2
    gaussian = math.log(2 * math.pi * math.e * (1 + spread**2)) / 2
    entropies = (gaussian, _entropy(grid, mixture))
    floors = [math.exp(2 * entropy) / (2 * math.pi * math.e) for entropy in entropies]
    return [Shown("squared error of any reconstruction of a mixture at -1 and 1", *floors)]


ERRATA = (
    Erratum(
        "E1",
        "equation (20), and U after Theorem 3",
        "a quotient of log-determinants is the capacity",
        "half their difference; the quotient has a pole, and tends to 1/2 for much noise",
        _e1,
    ),
    Erratum(
        "E2",
        "Theorem 3",
        "its last term uses all of beta",
        "the first i of them; covariance and beta positive definite",
    ),
    Erratum(
        "E3",
        "Theorem 4",
        "B S^2 / sigma",
        "half of that, for independent records",
        _e3,
    ),
    Erratum(
        "E4",
        "appendix E",
        "a mask chosen from the data costs the capacity of what is kept, and the choice",
        "the capacity of all coordinates: selection changes the law of what is kept",
        _e4,
    ),
    Erratum(
        "E5",
        "equation (9)",
        "information of rounds adds up to the total",
        "to no less than the total, and only with fresh noise",
        _e5,
    ),
    Erratum(
        "E6",
        "section 4",
        "n uses of kappa nats tell n kappa",
        "less: uses of one record tell of the same record",
        _e6,
    ),
    Erratum(
        "E7",
        "Theorem 1, its use",
        "entropy of unknown data may be taken as a Gaussian's, for the worst case",
        "a Gaussian has the largest entropy, which makes the bound on errors too good",
        _e7,
    ),
    Erratum(
        "E8",
        "Lemma 1",
        "a variance for every kappa >= 0",
        "kappa = 0 takes an infinite one, and data that do not vary have none",
    ),
    Erratum(
        "E9",
        "section 4",
        "the covariance of a client's gradients is that of what is sent",
        "the attacker's covariance is that given all it has seen; clip, and the trace is bounded "
        "whatever it has seen",
    ),
    Erratum("E10", "proof of Theorem 1", "E[D] before its third step", "E[D | W]"),
)
