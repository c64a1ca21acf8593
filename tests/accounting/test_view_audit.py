"""The best attack on views simulated apart from the kernels: as good as mu says, and better than
the print allows.

Settings that `tests/schemes/test_pair_noise_audit` lacks; there the noise is drawn by the kernels.
"""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from fljax.accounting.shared_noise import exact as view
from fljax.accounting.shared_noise import printed
from tests.accounting._graphs import FIVE, circulant, complete_edges, who

DRAWS = 60_000


def uploads(rng, graph, draws, colluders):
    """Noise of every client's upload, coordinate by coordinate of the mechanism, less what
    colluders know.
    """
    own, edges, pair = (np.asarray(v) for v in graph)
    noise = rng.normal(size=(draws, own.size)) * np.sqrt(own)
    for (i, j), variance in zip(edges, pair, strict=True):
        if not (colluders[i] or colluders[j]):
            shared = rng.normal(size=draws) * math.sqrt(variance)
            noise[:, i] += shared
            noise[:, j] -= shared
    return noise


def area(negative, positive):
    """AUC by ranks."""
    ranks = stats.rankdata(np.concatenate([negative, positive]))[negative.size :]
    return (ranks.sum() - positive.size * (positive.size + 1) / 2) / (negative.size * positive.size)


SETTINGS = {
    "five_clients": (FIVE, who(0, 1, 2), who(4), 0, 1.0),
    "ring": (circulant(12, (1, 2), 0.25, 0.5), ~who(5, size=12), who(0, 7, size=12), 3, 0.8),
    "strong_pairs": (
        view.pair_graph(complete_edges(8), num_clients=8, own_variance=0.25, pair_variance=50.0),
        ~who(7, size=8),
        who(2, 7, size=8),
        0,
        1.0,
    ),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_likelihood_ratio_attack_is_as_good_as_mu_says(name):
    graph, seen, colluders, target, shift = SETTINGS[name]
    rng = np.random.default_rng(16)
    mu = float(view.exact_mu(graph, seen=seen, colluders=colluders, sensitivity=shift)[target])
    held = np.flatnonzero(seen & ~colluders)
    covariance = view.covariance(graph, seen=seen, colluders=colluders)[np.ix_(held, held)]
    direction = np.linalg.solve(covariance, (held == target).astype(float))
    negative, positive = (uploads(rng, graph, DRAWS, colluders)[:, held] for _ in range(2))
    positive[:, held == target] += shift
    found = area(negative @ direction, positive @ direction)
    expected = stats.norm.cdf(mu / math.sqrt(2))
    # The variance of an AUC of m against m draws is at most A (1 - A) / m.
    error = math.sqrt(expected * (1 - expected) / DRAWS)
    assert abs(found - expected) <= 5 * error
    assert abs(found / expected - 1) <= 0.02
    # Control: the upload alone, without the others' correlated noise, tells less.
    alone = area(negative[:, held == target].ravel(), positive[:, held == target].ravel())
    single = float(view.own_upload_mu(graph, colluders=colluders, sensitivity=shift)[target])
    assert abs(alone - stats.norm.cdf(single / math.sqrt(2))) <= 5 * error
    if name == "strong_pairs":
        assert alone < expected - 0.05


def test_the_printed_criterion_fails_at_epsilon_9():
    # Without pair noise V is mu^2, and condition (14) is met with equality. Epsilon 12:
    # `test_pair_noise_audit`.
    rng = np.random.default_rng(17)
    draws, delta, epsilon = 4_000_000, 1e-5, 9.0
    variance = printed.largest_variance(epsilon, delta)
    assert printed.condition(variance, epsilon=epsilon, delta=delta).holds
    mu = math.sqrt(variance)
    lost = np.sum(np.abs(mu * rng.normal(size=draws) + mu**2 / 2) >= epsilon)
    assert (
        delta
        < stats.beta.ppf(1e-6, lost, draws - lost + 1)
        < float(printed.loss_tail(epsilon, mu))
        < 4 * delta
    )


def test_weights_after_masking_leave_noise_and_before_masking_none():
    # Oracle O12: three clients, weights (1, 2, 3) / 6, pair variance 1.
    weights = np.asarray([1.0, 2.0, 3.0]) / 6
    left = sum((weights[i] - weights[j]) ** 2 for i, j in itertools.combinations(range(3), 2))
    assert left == pytest.approx(1 / 6)
    laplacian = 3 * np.eye(3) - 1
    assert weights @ laplacian @ weights == pytest.approx(left)
    graph = view.pair_graph(complete_edges(3), num_clients=3, own_variance=0.0, pair_variance=1.0)
    np.testing.assert_allclose(view.covariance(graph), laplacian, atol=1e-15)
    assert float(view.average_variance(graph, np.ones(3, bool))) == 0.0
