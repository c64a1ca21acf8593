"""Theta of pair noise on graphs: the specification's oracles C1 to C11, and its properties 7 to
9.
"""

import math

import numpy as np
import pytest

from fljax.accounting import gaussian
from fljax.accounting.renyi import conversion
from fljax.accounting.shared_noise import exact as view
from fljax.accounting.shared_noise import printed as view_paper
from fljax.accounting.shared_noise import sparse as sparse_views
from fljax.accounting.shared_noise import theta as bidirectional
from fljax.accounting.shared_noise import unequal_clients
from fljax.errors import NoGuaranteeError, PrivacyPreconditionError
from fljax.server import recovery
from fljax_kernels.pairwise import graphs

DELTA = 1e-5


def exact_epsilon(theta, delta=DELTA):
    return float(gaussian.mu_to_epsilon(math.sqrt(theta), delta))


def dense_theta(edges, num, own, pair):
    """By a dense inverse, written apart."""
    lap = np.zeros((num, num))
    for a, b in np.asarray(edges).reshape(-1, 2):
        lap[[a, b], [a, b]] += 1
        lap[a, b] -= 1
        lap[b, a] -= 1
    return np.linalg.inv(pair**2 * lap + own**2 * np.eye(num)).diagonal().max()


def test_oracles_c1_and_c2():
    with pytest.warns(UserWarning, match="squares"):
        printed = view_paper.theorem_10(5, 1.0, 2.0, formula="paper")
    sound, exact = (
        view_paper.theorem_10(5, 1.0, 2.0),
        bidirectional.theta(graphs.complete(5), 5, 1.0, 2.0),
    )
    np.testing.assert_allclose([printed, sound, exact], [0.3, 0.25, 0.2380952381], rtol=1e-9)
    assert float(view_paper.complete_theta(5, 1.0, 2.0)) == pytest.approx(exact, rel=1e-13)
    epsilons = view_paper.printed_epsilon([printed, sound, exact], DELTA)
    np.testing.assert_allclose(epsilons, [2.7523605568, 2.5006192995, 2.4374146667], rtol=1e-9)
    assert exact_epsilon(exact) == pytest.approx(1.9395537318, rel=1e-9)
    # What the print hides: noise of 1/2 at both.
    with pytest.warns(UserWarning, match="squares"):
        small = view_paper.theorem_10(5, 0.5, 0.5, formula="paper")
    assert (small, view_paper.theorem_10(5, 0.5, 0.5)) == pytest.approx((0.8, 1.6))
    np.testing.assert_allclose(
        view_paper.printed_epsilon([0.8, 1.6], DELTA), [4.65, 6.81], atol=0.005
    )


def test_oracles_c3_the_inverse_and_least_noise():
    thetas = view_paper.printed_theta([1.0, 3.0], DELTA)
    np.testing.assert_allclose(thetas, [0.0424382314, 0.3531352706], rtol=1e-8)
    found = [view_paper.own_stddev_for(float(t), k) for t in thetas for k in (5, 100)]
    np.testing.assert_allclose(
        found, [2.1708827083, 0.4854241307, 0.7525657506, 0.1682788176], rtol=1e-9
    )


def test_oracles_c4_and_c5_random_graphs():
    bounds = view_paper.theorem_11_conditions(100, DELTA)
    np.testing.assert_allclose(bounds, [62.8505221714, 21.0393473839, 31.2136634524], rtol=1e-10)
    theta, total_delta = view_paper.theorem_11(100, 63, 0.5, 5.0, DELTA)
    assert (theta, total_delta) == pytest.approx((0.0579576716, 3e-5), rel=1e-9)
    assert float(view_paper.printed_epsilon(theta, DELTA)) == pytest.approx(1.1728110020, rel=1e-9)
    for clients, degree in ((100, 5), (100, 62), (80, 79)):
        with pytest.raises(PrivacyPreconditionError, match="exact theta"):
            view_paper.theorem_11(clients, degree, 0.5, 5.0, DELTA)
    assert view_paper.expected_degree(100, 5) == pytest.approx(9.7474747475, rel=1e-10)
    degrees = [
        2 * len(graphs.random_out(100, 5, np.random.default_rng(s))) / 100 for s in range(30)
    ]
    assert abs(np.mean(degrees) - 9.7474747475) < 5 * np.std(degrees) / math.sqrt(30)
    # Property 7 on graphs that meet the conditions, and the paper's own graph, which does not.
    for seed in range(5):
        edges = graphs.random_out(100, 63, np.random.default_rng(seed))
        assert bidirectional.theta(edges, 100, 0.5, 5.0) <= theta
    sparse = graphs.random_out(100, 5, np.random.default_rng(0))
    found = bidirectional.theta(sparse, 100, 0.5, 5.0)
    assert found == pytest.approx(dense_theta(sparse, 100, 0.5, 5.0), rel=1e-9)
    assert 0.04 < found < 0.055  # 0.047416 on one such graph; the limit is 0.04


def test_oracles_c6_rings_and_no_graph():
    ring = [[k, (k + 1) % 6] for k in range(6)]
    assert bidirectional.theta(ring, 6, 1.0, 1.0) == pytest.approx(0.45, rel=1e-12)
    assert bidirectional.theta([], 4, 2.0, 1.0) == pytest.approx(0.25, rel=1e-12)


def test_oracle_c7_the_classical_formula_below_1_only():
    assert conversion.classic_gaussian_noise(0.5, DELTA) == pytest.approx(9.6896105252, rel=1e-10)
    for epsilon in (1.0, 3.0):
        with pytest.raises(PrivacyPreconditionError, match="epsilon < 1"):
            conversion.classic_gaussian_noise(epsilon, DELTA)


def test_oracles_c8_c9_b11():
    assert exact_epsilon(100 * 0.002) == pytest.approx(1.7600571495, rel=1e-9)
    assert bidirectional.upload_gain(math.sqrt(1.7), 1.5) == pytest.approx(8.385, rel=1e-12)
    assert bidirectional.upload_gain(math.sqrt(0.1)) == pytest.approx(1.11, rel=1e-12)
    assert view_paper.bounded_noise_delta(0.1, 1.0) == pytest.approx(0.0353553391, rel=2e-9)
    assert view_paper.bounded_noise_delta(100.0, 1.0) == 1.0


def test_oracle_c11_collusion():
    (theta,) = view_paper.printed_theta([3.0], DELTA)
    for clients, epsilon in ((5, 6.1045187469), (100, 42.2492842022)):
        own = view_paper.own_stddev_for(float(theta), clients)
        assert bidirectional.theta(graphs.complete(clients), clients, own, 1e6) == pytest.approx(
            theta, rel=1e-9
        )
        alone = np.arange(clients) > 0
        left = bidirectional.theta(graphs.complete(clients), clients, own, 1e6, colluders=alone)
        assert left == pytest.approx(clients * theta, rel=1e-12)
        assert exact_epsilon(left) == pytest.approx(epsilon, rel=1e-9)
    # Colluders may cut the graph: each part is summed apart.
    path = [[0, 1], [1, 2], [2, 3], [3, 4]]
    cut = bidirectional.theta(path, 5, 1.0, 1e6, colluders=np.arange(5) == 1)
    assert cut == pytest.approx(1.0, rel=1e-6)  # client 0 stands alone
    assert bidirectional.theta(path, 5, 1.0, 1e6) == pytest.approx(1 / 5, rel=1e-6)


def test_property_7_theta_falls_with_noise_and_with_edges_to_its_limit():
    edges = graphs.random_out(12, 3, np.random.default_rng(1))
    thetas = [bidirectional.theta(edges, 12, 0.7, pair) for pair in (0.0, 0.3, 1.0, 10.0, 1e5)]
    assert np.all(np.diff(thetas) < 0)
    assert thetas[0] == pytest.approx(1 / 0.49, rel=1e-12) and thetas[-1] == pytest.approx(
        1 / (12 * 0.49), rel=1e-6
    )
    fewer = bidirectional.theta(edges[:-3], 12, 0.7, 1.0)
    assert thetas[2] <= fewer <= 1 / 0.49
    for own, pair in ((0.3, 0.2), (1.0, 2.0), (5.0, 0.1)):
        for k in (2, 5, 50):
            assert float(view_paper.complete_theta(k, own, pair)) <= view_paper.theorem_10(
                k, own, pair
            )


def test_properties_8_and_9_the_printed_epsilon_is_sound_and_inverts():
    thetas, deltas = np.logspace(-6, 2, 60)[:, None], np.array([1e-10, 1e-5, 0.01, 0.1, 0.3, 0.49])
    printed = view_paper.printed_epsilon(thetas, deltas)
    exact = np.asarray(gaussian.mu_to_epsilon(np.sqrt(thetas), deltas))
    assert np.all(printed >= exact)
    np.testing.assert_allclose(
        view_paper.printed_theta(printed, deltas), np.broadcast_to(thetas, printed.shape), rtol=1e-7
    )


def test_units_and_modes():
    found = [
        bidirectional.sensitivity(u, 0.5, 64)
        for u in ("client_addremove", "client_replace", "example_replace")
    ]
    assert found == [0.5, 1.0, 1 / 64]
    for mode in ("upload_gaussian", "r0_gaussian"):
        bidirectional.check_mode(mode)
    for mode, why in (("paper", "bounded"), ("oracle_clip", "clip")):
        with pytest.raises(NoGuaranteeError, match=why):
            bidirectional.check_mode(mode)
    with pytest.raises(ValueError, match="noise"):
        bidirectional.check_mode("none")


RING = [(i, (i + 1) % 6) for i in range(6)]


def test_theta_of_a_ring_is_the_closed_form_whichever_way_its_edges_are_written():
    # Inverse of a circulant: mean over its eigenvalues own^2 + pair^2 (2 - 2 cos(2 pi k / 6)).
    exact = np.mean(1 / (1.0 + 1.0 * (2 - 2 * np.cos(2 * np.pi * np.arange(6) / 6))))
    for edges in (RING, np.asarray(RING)[::-1, ::-1], np.asarray(RING, np.uint8)):
        assert bidirectional.theta(edges, 6, 1.0, 1.0) == pytest.approx(exact, rel=1e-12)


BAD_EDGES = {
    "a symmetric adjacency": (
        np.argwhere(np.eye(6, k=1) + np.eye(6, k=-1)),
        r"every pair once in edges, got \[0, 1\]",
    ),
    "an edge repeated": ([*RING, (2, 3)], r"every pair once in edges, got \[2, 3\]"),
    "a loop": ([*RING, (4, 4)], r"edges\[6\]=\[4, 4\]"),
    "a client too large": ([*RING, (0, 6)], r"clients 0\.\.5, got 0\.\.6"),
    "a negative client": ([*RING, (-1, 2)], r"clients 0\.\.5, got -1\.\.5"),
    "a flat list": ([0, 1, 2, 3], r"integers \[E, 2\]"),
    "fractions": ([(0.5, 1.0)], r"integers \[E, 2\]"),
}


def _by_hand(edges):
    return view.PairGraph(np.ones(6), edges, np.ones(len(edges)))


@pytest.mark.parametrize(
    "call",
    [
        lambda edges: bidirectional.theta(edges, 6, 1.0, 1.0),
        lambda edges: view.exact_mu(_by_hand(edges)),
        lambda edges: view.covariance(_by_hand(edges)),
        lambda edges: view.certificate(_by_hand(edges), num_colluders=1),
        lambda edges: view.sum_mu(_by_hand(edges)),
        lambda edges: view.own_upload_mu(_by_hand(edges)),
        lambda edges: view.average_variance(_by_hand(edges), np.ones(6, bool)),
        lambda edges: view.worst_mu(_by_hand(edges), num_colluders=1),
        lambda edges: view.assess(_by_hand(edges), num_colluders=1),
        lambda edges: view_paper.loss_variance(_by_hand(edges)),
        lambda edges: view_paper.worst_loss_variance(_by_hand(edges), num_colluders=1),
        lambda edges: view_paper.disturbance(
            _by_hand(edges), responders=np.ones(6), colluders=np.zeros(6)
        ),
        lambda edges: sparse_views.mu_interval(_by_hand(edges)),
        lambda edges: unequal_clients.average_costs(edges, np.zeros((1, 6), bool), [1.0]),
        lambda edges: recovery.check_present(edges, np.ones(6, bool)),
        lambda edges: recovery.left_over_variance(edges, np.ones(6, bool), pair_stddev=1.0),
    ],
)
@pytest.mark.parametrize(("edges", "words"), BAD_EDGES.values(), ids=BAD_EDGES)
def test_edges_that_claim_noise_nobody_adds_are_refused(call, edges, words):
    with pytest.raises(ValueError, match=words):
        call(edges)


def test_theta_asks_for_somebody_honest():
    one_left = bidirectional.theta(RING, 6, 0.5, 1.0, colluders=np.arange(6) > 0)
    assert one_left == pytest.approx(4.0, rel=1e-12)  # its own noise only: 1 / 0.5**2
    with pytest.raises(
        ValueError, match="Expected an honest client, got colluders with all 6 clients"
    ):
        bidirectional.theta(RING, 6, 0.5, 1.0, colluders=np.ones(6, bool))
    for mask in ([True], [0, 1, 2, 3, 4, 5], np.zeros(7, bool), [[True] * 6]):
        with pytest.raises(
            ValueError, match="Expected colluders to be a bool for each of 6 clients"
        ):
            bidirectional.theta(RING, 6, 0.5, 1.0, colluders=mask)
