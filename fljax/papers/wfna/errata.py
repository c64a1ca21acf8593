"""What "Differentially Private Federated Learning without Noise Addition: When is it Possible?",
arXiv:2405.04551, prints and what holds.
"""

import math

import numpy as np

from fljax import accounting
from fljax.accounting.renyi import rdp
from fljax.accounting.weighted_sums import curves
from fljax.papers.errata import Erratum, Shown

_SIZES = {"floor": 50 * 1e-3, "l2_clip_norm": 10.0, "num_records": 1200.0, "batch_size": 32.0}


def _lifted(covariance: np.ndarray, floor: float) -> np.ndarray:
    """The covariance with its eigenvalues raised to `floor`."""
    values, vectors = np.linalg.eigh(covariance)
    return (vectors * np.maximum(values, floor)) @ vectors.T


def _e7() -> list[Shown]:
    records, gradients = 1000, np.eye(10).repeat(100, axis=0) * math.sqrt(0.1)
    second = gradients.T @ gradients
    sizes = {"l2_clip_norm": 1.0, "num_records": float(records), "batch_size": 32.0}
    orders = np.geomspace(1.01, 4000.0, 400)
    found = []
    with accounting.x64():
        for matrix in (second, second / records):
            least = 50 * float(np.linalg.eigvalsh(matrix)[0])
            curve = np.asarray(curves.theorem_2(orders, least_eigenvalue=least, **sizes))
            found.append(float(np.min(curve + math.log(1e4) / (orders - 1))))
    return [Shown("epsilon of one round at delta 1e-4, 50 clients, 10 parameters", *found)]


def _e10() -> list[Shown]:
    d, b, c, m = (_SIZES[key] for key in ("num_records", "batch_size", "l2_clip_norm", "floor"))
    return [Shown("largest order of Theorem 4", m * d / (2 * c**2), m * b * d / (2 * c**2))]


def _e11() -> list[Shown]:
    rows = np.array([[0.16, 0.98], [-0.88, 0.46]])
    other = np.array([[-0.53, 0.84], [-0.88, 0.46]])
    before, after = rows.T @ rows / 2, other.T @ other / 2
    change = (_lifted(after, 0.34) - after) - (_lifted(before, 0.34) - before)
    least = np.linalg.eigvalsh(np.outer(rows[0], rows[0]) / 2 - change)[0]
    return [Shown("least eigenvalue of what the proof calls positive", 0.0, float(least))]


def _e14() -> list[Shown]:
    records, floor, order = 127, 61 / 127, 60.0
    e1, e2 = np.eye(2)
    common = [math.sqrt(64.28 / 65) * e1] * 65 + [math.sqrt(60.28 / 61) * e2] * 61
    last = np.array([math.cos(0.5), math.sin(0.5)])
    new = np.array([-math.sin(0.5), math.cos(0.5)])
    worlds = []
    for record in (last, new):
        rows = np.array([*common, record])
        worlds.append(_lifted(rows.T @ rows / records, floor))
    sizes = {"floor": floor, "l2_clip_norm": 1.0, "num_records": float(records), "batch_size": 1.0}
    with accounting.x64():
        claimed = float(np.asarray(curves.isotropic_printed([order], **sizes))[0])
        true = float(rdp.gaussian_pair((last - new) / records, *worlds, [order])[0])
    return [Shown("Renyi divergence of order 60 after one replaced record of 127", claimed, true)]


def _e15() -> list[Shown]:
    rows, floor = np.array([[3, 0, 0, 0], [0, 1, 0, 0], [1, 1, 1, 0]]), 0.25
    covariance = rows.T @ rows / 6
    drawn = covariance.copy()
    for block in (slice(0, 2), slice(2, 4)):
        own = covariance[block, block]
        drawn[block, block] += _lifted(own, floor) - own
    twins = np.full((2, 2), 0.5)  # two equal gradients: each block of one sees .5 and adds nothing
    return [
        Shown("least variance of any direction", floor, float(np.linalg.eigvalsh(drawn)[0])),
        Shown(
            "the same of two equal gradients", floor, max(0.0, float(np.linalg.eigvalsh(twins)[0]))
        ),
    ]


def _e17() -> list[Shown]:
    batch = 2
    gradients = np.array([1.0, 2.0, 3.0, 5.0, 8.0, 13.0])
    pairs = [(gradients[i] + gradients[j]) / 2 for i in range(6) for j in range(i)]
    what = "variance of the mean of 2 of 6 gradients"
    return [Shown(what, float((gradients**2).sum() / (batch * 6)), float(np.var(pairs)))]


ERRATA = (
    Erratum(
        "E1", "Definition 1", "differential privacy", "a set is missing on the right-hand side"
    ),
    Erratum(
        "E2",
        "sections 4 and 5",
        "one symbol for the covariance",
        "it is scaled by 1 / D in one section and by 1 / (B D) in the other",
    ),
    Erratum("E3", "equation (18)", "L_i under a sum over j", "L_j"),
    Erratum(
        "E4",
        "Theorem 1",
        "the span condition is needed for delta up to the chance that a record is used",
        "below that chance: at it the noiseless sum is private without any condition",
    ),
    Erratum(
        "E5",
        "section 3.3",
        "all weights of all clients sum to 1",
        "each client's do, so that all sum to the number of clients",
    ),
    Erratum("E6", "lemma on singular values", "a product g g^T", "g is transposed"),
    Erratum(
        "E7",
        "Assumption 4",
        "the covariance in a subspace, without 1 / D",
        "with it; else L is D times too large and epsilon far too small. 'Orthogonal' means "
        "orthonormal",
        _e7,
    ),
    Erratum("E8", "Theorem 3", "a condition on L", "on L of the subspace"),
    Erratum("E9", "section 5", "a non-singular covariance", "a singular one is meant"),
    Erratum(
        "E10",
        "Theorem 4",
        "orders up to N sigma^2 D / (2 C^2)",
        "B times as many; as printed hardly any order is left",
        _e10,
    ),
    Erratum(
        "E11",
        "proof of Theorem 4, equations (38) and (41)",
        "what a record changes of the added noise lies between two matrices of rank one",
        "it does not; the theorem's value holds by a bound in the Frobenius norm",
        _e11,
    ),
    Erratum("E12", "equation (40)", "a factor 1 / B", "none"),
    Erratum("E13", "equation (43)", "a denominator 2 a C^2 / D, and '='", "with B, and '<='"),
    Erratum(
        "E14",
        "Table 1, last row",
        "water filling costs what isotropic noise costs",
        "false: the divergence can be infinite; Theorem 4 holds, and `curves.joint` is below it",
        _e14,
    ),
    Erratum(
        "E15",
        "section 5.3",
        "block-wise decomposition does not affect epsilon",
        "with shared weights blocks are correlated, and directions fall below the floor; with "
        "weights of its own for each block it is true",
        _e15,
    ),
    Erratum(
        "E16",
        "section 5.2",
        "'Theorem 19' and 'Theorem 31'",
        "Theorems 2 and 3, and where a necessary condition is meant, Theorem 1",
    ),
    Erratum(
        "E17",
        "footnote 2",
        "one covariance for Gaussian weights and for subsets",
        "subsets subtract the mean, and have a factor for a finite population",
        _e17,
    ),
    Erratum("E18", "proofs", "a union over D_-i", "its index is another one"),
    Erratum(
        "E19",
        "remark after Theorem 1",
        "noise of others is independent of a client",
        "assumed, not proved: not so where clients share seeds",
    ),
)
