"""What "Efficiently Achieving Secure Model Training and Secure Aggregation to Ensure Bidirectional
Privacy-Preservation in Federated Learning" prints and what holds.

delta is 1e-5 unless said; r is the server's secret scale, eta a client's noise.
"""

import math
import warnings

import numpy as np

from fljax import accounting
from fljax.accounting import gaussian
from fljax.accounting.shared_noise import printed
from fljax.papers.errata import Erratum, Shown

DELTA = 1e-5


def _epsilon(theta: float) -> float:
    with accounting.x64():
        return float(gaussian.mu_to_epsilon(math.sqrt(theta), DELTA))


def _scales(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """|DN*(1)|: the root of a Gamma(3/2) variable."""
    return np.sqrt(rng.gamma(1.5, size=shape))


def _e2() -> list[Shown]:
    rng = np.random.default_rng(2)
    x, first, second = rng.normal(size=8), rng.normal(size=(16, 8)), rng.normal(size=(4, 16))
    r = _scales(rng, 16) * rng.choice([-1, 1], 16)
    true = second @ np.maximum(first @ x, 0)
    found = (second / r) @ np.maximum((r[:, None] * first) @ x, 0)
    what = "error of a disguised network's output, signed scales, relative"
    return [Shown(what, 0.0, float(np.linalg.norm(found - true) / np.linalg.norm(true)))]


def _e3() -> list[Shown]:
    rng = np.random.default_rng(3)
    noise = _scales(rng, 200_000, 1) * rng.uniform(-math.sqrt(2), math.sqrt(2), (200_000, 2))
    found = np.asarray(np.corrcoef((noise**2).T))[0, 1]
    return [Shown("correlation of squares in a row of the noise, 200,000 drawn", 0.0, float(found))]


def _e4() -> list[Shown]:
    rng, clients = np.random.default_rng(4), 100
    each = rng.uniform(-math.sqrt(2), math.sqrt(2), (50_000, clients)).mean(axis=1)
    noise = _scales(rng, 50_000) * each
    found = np.mean(noise**4) / np.mean(noise**2) ** 2
    return [
        Shown("kurtosis of the aggregated noise of 100 clients, 50,000 drawn", 3.0, float(found))
    ]


def _e5() -> list[Shown]:
    with accounting.x64():
        claimed = float(gaussian.mu_to_delta(0.1, 3.0))
    what = "delta at epsilon 3 to who knows r = 1, a coordinate moved by .1 standard deviations"
    return [Shown(what, claimed, printed.bounded_noise_delta(0.1, 1.0))]


def _e6() -> list[Shown]:
    found = []
    for stddev in (0.5, 2.0):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the printed one is too small is what is shown
            thetas = [
                printed.theorem_10(5, stddev, stddev, formula=formula)
                for formula in ("paper", "sound")
            ]
        what = f"epsilon by Theorem 10 and equation (23), 5 clients, noises {stddev:g}"
        found.append(Shown(what, *(float(printed.printed_epsilon(t, DELTA)) for t in thetas)))
    return found


def _e7() -> list[Shown]:
    theta = float(printed.printed_theta(3.0, DELTA))
    return [
        Shown(
            f"epsilon left when {clients - 1} of {clients} collude", 3.0, _epsilon(clients * theta)
        )
        for clients in (5, 100)
    ]


def _e8() -> list[Shown]:
    """A batch of one example: a row of Phi of the first layer is a multiple of the input."""
    rng = np.random.default_rng(8)
    x, first = rng.uniform(size=64), rng.normal(size=(32, 64))
    hidden = first @ x
    alpha, slope = np.maximum(hidden, 0).sum(), (hidden > 0).astype(float)
    phi = alpha * slope[:, None] * x  # the gradient of alpha^2 / 2
    row = phi[np.argmax(np.linalg.norm(phi, axis=1))]
    cosine = float(row @ x / (np.linalg.norm(row) * np.linalg.norm(x)))
    return [Shown("cosine between the input and what is sent without noise", 0.0, cosine)]


def _e9() -> list[Shown]:
    theta = float(printed.printed_theta(3.0, DELTA))
    return [Shown("epsilon of 100 rounds of 3", 3.0, _epsilon(100 * theta))]


def _e12() -> list[Shown]:
    theta = float(printed.printed_theta(3.0, DELTA))
    return [Shown("epsilon when a client's data are replaced", 3.0, _epsilon(4 * theta))]


def _e18() -> list[Shown]:
    parts = (0.81, 5.48, 0.23, 1.53, 23.15, 4.70)
    return [Shown("seconds of TP-SMC in Table V, CIFAR-10, 5 clients", 34.37, sum(parts))]


def _e19() -> list[Shown]:
    hours, minutes = 3600.0, 60.0
    times = {
        "TP-SMC": (36.69 * minutes, 2.03 * minutes),
        "HybridAlpha": (20.29 * hours, 2.03 * minutes),
        "PILE": (40.40 * hours, 2.03 * minutes),
    }
    return [
        Shown(f"times faster than {name}, Table I, CIFAR-10, 5 clients", said, theirs / ours)
        for (name, (theirs, ours)), said in zip(times.items(), (200, 200, 1000), strict=True)
    ]


ERRATA = (
    Erratum("E1", "Theorems 1, 4, 13", "Psi has the shape of a weight", "one for each output"),
    Erratum(
        "E2",
        "equation (13), Theorem 3",
        "secret scales of either sign",
        "positive ones: ReLU is not homogeneous for negative scales",
        _e2,
    ),
    Erratum(
        "E3",
        "Theorems 5 and 6",
        "the noise matrix is independent normal",
        "each entry is, averaged over r; entries of a row or column share factors",
        _e3,
    ),
    Erratum(
        "E4",
        "equation (22), text",
        "the aggregated noise is Gaussian",
        "all clients share r, so its tails are heavier",
        _e4,
    ),
    Erratum(
        "E5",
        "section 5.2",
        "the noise is Gaussian to the server",
        "the server knows r: given r the noise is uniform, and bounded noise proves nothing",
        _e5,
    ),
    Erratum(
        "E6",
        "Theorem 10",
        "theta = 1 / (K sigma_eta) + 1 / (K sigma_Delta)",
        "with squares; as printed too small below 1 and too large above",
        _e6,
    ),
    Erratum(
        "E7",
        "abstract, section 5.2",
        "local differential privacy",
        "only while the other clients do not collude",
        _e7,
    ),
    Erratum(
        "E8",
        "Algorithms 2 and 4",
        "Psi and Phi are sent without noise",
        "they hold the gradient: a first layer's input is read off",
        _e8,
    ),
    Erratum(
        "E9",
        "sections 5.2 and 6",
        "one guarantee, whatever the number of rounds",
        "rounds add up in theta",
        _e9,
    ),
    Erratum(
        "E10",
        "appendix A.1",
        "n copies of one variable divided by n",
        "n independent variables of shape 1 / n",
    ),
    Erratum(
        "E11",
        "Theorems 2, 7, 8, 9",
        "a model cannot be found since many models fit",
        "known laws of the scales make some far likelier; rows of the first layer keep their "
        "direction",
    ),
    Erratum(
        "E12",
        "equation (2), footnote 2",
        "an L1 sensitivity of B for Gaussian noise",
        "L2, and 2 B where data are replaced; a client does not know the gradient it would clip",
        _e12,
    ),
    Erratum("E13", "Algorithm 3, step 3", "layers l < L are updated", "l <= L"),
    Erratum("E14", "appendix A.3, case 2", "1 < l < L - 1", "1 < l <= L - 1"),
    Erratum(
        "E15",
        "appendix A.2",
        "two identities of matrices and one index",
        "true on the diagonal only; conclusions stand",
    ),
    Erratum("E16", "Algorithm 4, line 6", "one sigma^2", "two: of own and of pair noise"),
    Erratum("E17", "Theorem 11", "DP_Client", "DDP_Client"),
    Erratum(
        "E18",
        "Tables I and V",
        "totals",
        "parts do not add up to eight of the totals",
        _e18,
    ),
    Erratum(
        "E19",
        "abstract",
        "200 or 1,000 times faster",
        "13 to 33 times than TP-SMC, 600 to 3,243 times than the others, by the printed times",
        _e19,
    ),
    Erratum(
        "E20",
        "section 6.3",
        "the naive scheme blows noise up",
        "by 1.5 with the law of equation (13); by much where r spreads widely, as in equation (4)",
    ),
)
