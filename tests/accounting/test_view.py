"""Pairwise noise on graphs: the view's covariance and mu against closed forms, dense inverses and
simulation.
"""

import itertools
import math

import jax
import numpy as np
import pytest

from fljax import accounting
from fljax.accounting import gaussian
from fljax.accounting.shared_noise import exact as view
from fljax.accounting.shared_noise import sparse as sparse_views
from fljax.errors import NoGuaranteeError
from tests.accounting._graphs import FIVE, OWN, PAIR, circulant, complete_edges, random_case, who


def dense_mu(own, matrix, seen, colluders):
    """Written apart: LAPACK's inverse of the matrix of Lemma 1."""
    honest = ~colluders
    noise = np.where(honest[:, None] & honest, matrix, 0.0)
    a = np.flatnonzero(seen & honest)
    c = (np.diag(own + noise.sum(1)) - noise)[np.ix_(a, a)]
    mu = np.where(colluders, np.nan, 0.0)
    mu[a] = np.sqrt(np.diagonal(np.linalg.inv(c)))
    return mu


def test_oracle_o2_covariance_and_mu():
    c = view.covariance(FIVE, seen=who(0, 1, 2), colluders=who(4))
    np.testing.assert_allclose(
        c[:3, :3],
        [[1.5, -0.3, -0.2], [-0.3, 1.45, -0.1], [-0.2, -0.1, 1.45]],
        rtol=1e-15,
        atol=1e-15,
    )
    assert not c[3:].any() and not c[:, 3:].any()
    mu = view.exact_mu(FIVE, seen=who(0, 1, 2), colluders=who(4))
    np.testing.assert_allclose(mu, [0.843894897, 0.852421838, 0.842381183, 0.0, np.nan], rtol=1e-9)
    epsilon = gaussian.mu_to_epsilon(mu[:3], 1e-5)
    np.testing.assert_allclose(epsilon, [3.600227832, 3.641928583, 3.592834088], rtol=1e-8)
    mu = view.exact_mu(FIVE, colluders=who(4))
    np.testing.assert_allclose(
        mu[:4], [0.923577044, 0.887285735, 0.858039870, 0.912806210], rtol=1e-9
    )


def test_oracle_o2_averages_and_weaker_adversaries():
    assert float(view.average_variance(FIVE, who(0, 1, 2, 4))) == pytest.approx(0.246875, rel=1e-14)
    peers = view.sum_mu(FIVE, seen=who(0, 1, 2, 4), colluders=who(4))
    np.testing.assert_allclose(peers, [0.559016994] * 3 + [0.0, np.nan], rtol=1e-9)


def test_oracle_o2_worst_colluder_and_certificate():
    exact = view.worst_mu(FIVE, num_colluders=1)
    np.testing.assert_allclose(
        exact[:4], [0.932440565, 0.887285735, 0.858039870, 1.013277361], rtol=1e-9
    )
    bound = view.certificate(FIVE, num_colluders=1)
    np.testing.assert_allclose(
        bound[:4], [0.936834870, 0.892686479, 0.860106933, 1.016616346], rtol=1e-9
    )


@pytest.mark.parametrize(
    ("seen", "unseen", "square"),
    [
        (4, 0, 2.153846154),
        (3, 1, 1.978021978),
        (2, 2, 1.880341880),
        (1, 3, 1.818181818),
        (40, 0, 0.329411765),
        (30, 10, 0.254117647),
    ],
)
def test_oracle_o3_closed_form_and_dense_solve_agree(seen, unseen, square):
    assert float(
        view.complete_mu(0.25, 0.1, num_seen=seen, num_unseen=unseen)
    ) ** 2 == pytest.approx(square, rel=3e-9)
    size = seen + unseen
    graph = view.pair_graph(
        complete_edges(size), num_clients=size, own_variance=0.25, pair_variance=0.1
    )
    mu = view.exact_mu(graph, seen=np.arange(size) < seen)
    closed = float(view.complete_mu(0.25, 0.1, num_seen=seen, num_unseen=unseen))
    np.testing.assert_allclose(mu[:seen], closed, rtol=1e-13)


@pytest.mark.parametrize(
    ("size", "hops", "square", "star"),
    [
        (12, (1,), 1.333984534, 1.714285714),
        (12, (1, 2), 0.799260799, 1.090909091),
        (40, (1, 2, 3, 4), 0.402901238, 0.631578947),
    ],
)
def test_oracle_o10_circulant_graphs(size, hops, square, star):
    graph = circulant(size, hops, 0.25, 0.5)
    np.testing.assert_allclose(view.exact_mu(graph) ** 2, square, rtol=2e-9)
    np.testing.assert_allclose(view.certificate(graph, num_colluders=0) ** 2, star, rtol=2e-9)
    for bound in sparse_views.mu_interval(graph):
        np.testing.assert_allclose(bound**2, square, rtol=4e-9)


def test_oracle_o10_colluding_neighbours_leave_own_noise_only():
    graph = circulant(12, (1,), 0.25, 0.5)
    assert float(view.exact_mu(graph, colluders=who(11, 1, size=12))[0]) ** 2 == pytest.approx(
        4.0, rel=1e-14
    )
    assert float(view.certificate(graph, num_colluders=2)[0]) ** 2 == pytest.approx(4.0, rel=1e-14)


def test_oracle_o11_adversaries_in_order():
    graph = view.pair_graph(complete_edges(6), num_clients=6, own_variance=0.25, pair_variance=0.4)
    for mu, value in (
        (view.exact_mu(graph), 0.990521113),
        (view.own_upload_mu(graph), 0.666666667),
        (view.sum_mu(graph), 0.816496581),
    ):
        np.testing.assert_allclose(mu, value, rtol=1e-9)


def test_oracle_o14_silent_clients_lower_the_realised_mu():
    own, pair = 0.947735351**2, 0.267482341**2
    for silent, mu in ((0, 0.535851428), (5, 0.530191151), (10, 0.527014188)):
        got = view.complete_mu(own, pair, num_seen=40 - silent, num_unseen=silent)
        assert float(got) == pytest.approx(mu, rel=4e-9)


def test_mu_of_random_graphs_is_that_of_a_dense_inverse_and_of_proved_intervals():
    rng = np.random.default_rng(1)
    spread = []
    for _ in range(60):
        own, matrix = random_case(rng)
        graph = view.from_matrix(own, matrix)
        colluders = np.zeros(6, bool)
        seen = rng.random(6) < 0.8
        if rng.random() < 0.5 and own[1:].max() > 0:
            colluders[0] = True
        mu = view.exact_mu(graph, seen=seen, colluders=colluders)
        lower, upper = sparse_views.mu_interval(graph, seen=seen, colluders=colluders)
        done = np.isfinite(mu)
        np.testing.assert_array_equal(np.isfinite(lower), done)
        np.testing.assert_array_equal(np.isnan(lower), colluders)
        assert np.all(lower[done] <= mu[done] * (1 + 1e-13)) and np.all(
            mu[done] <= upper[done] * (1 + 1e-13)
        )
        assert np.all(upper[done] <= lower[done] * (1 + 1e-9))
        if not np.any(np.isinf(mu)):
            np.testing.assert_allclose(mu, dense_mu(own, matrix, seen, colluders), rtol=1e-9)
            spread.extend(mu[done])
    assert max(spread) > 10 * np.median(spread)  # the cases are not all alike


def test_all_digits_hold_where_a_plain_inverse_loses_them():
    for ratio in (1e4, 1e10, 1e15):
        graph = view.pair_graph(
            complete_edges(12), num_clients=12, own_variance=1.0, pair_variance=ratio
        )
        closed = math.sqrt((1 + ratio) / (1 + 12 * ratio))
        np.testing.assert_allclose(view.exact_mu(graph), closed, rtol=1e-14)
        assert float(view.complete_mu(1.0, ratio, num_seen=12)) == pytest.approx(closed, rel=1e-14)
    # Each mu is 1 / sqrt(12) up to 1e-13 whatever the weights between clients, for they cancel in
    # the sum. Digits go when 1 is added to 1e14, and for some graphs the inverse is right all the
    # same, by luck: hence several.
    lost = []
    for seed in range(5):
        half = np.triu(1e13 * np.random.default_rng(seed).uniform(0.5, 1.5, (12, 12)), 1)
        plain = dense_mu(np.ones(12), half + half.T, np.ones(12, bool), np.zeros(12, bool))
        lost.append(np.abs(plain * math.sqrt(12) - 1).max())
    assert max(lost) > 1e-8


def test_limits_local_dp_and_ideal_secure_sum():
    assert float(view.complete_mu(0.3, 0.0, num_seen=9)) ** 2 == pytest.approx(1 / 0.3, rel=1e-14)
    assert float(view.complete_mu(0.3, 1e12, num_seen=9)) ** 2 == pytest.approx(
        1 / (9 * 0.3), rel=1e-11
    )
    assert float(view.complete_mu(0.3, 0.7, num_seen=1)) ** 2 == pytest.approx(1 / 0.3, rel=1e-14)


def test_more_seen_more_colluders_or_less_noise_never_lower_mu():
    rng = np.random.default_rng(2)
    moved = 0
    for _ in range(40):
        own, matrix = random_case(rng)
        graph = view.from_matrix(own + 0.01, matrix)
        seen = who(0, 1, 2, size=6)
        base = view.exact_mu(graph, seen=seen)[:3]
        slack = 1 - 1e-12
        for stronger in (
            view.exact_mu(graph, seen=who(0, 1, 2, 3, size=6)),
            view.exact_mu(graph, seen=seen, colluders=who(5, size=6)),
            view.exact_mu(
                graph._replace(own_variance=graph.own_variance * rng.uniform(0.5, 1, 6)), seen=seen
            ),
            view.exact_mu(
                graph._replace(
                    pair_variance=graph.pair_variance * rng.uniform(0.5, 1, len(graph.edges))
                ),
                seen=seen,
            ),
        ):
            assert np.all(stronger[:3] >= base * slack)
            moved += np.any(stronger[:3] > base * 1.01)
    assert moved > 40


def test_certificate_bounds_every_view_and_meets_complete_common_graphs():
    rng = np.random.default_rng(3)
    for _ in range(6):
        own, matrix = random_case(rng, 5, 0.8)
        graph = view.from_matrix(own + 0.01, matrix)
        for limit in (0, 1, 2):
            bound = view.certificate(graph, num_colluders=limit)
            for size in range(limit + 1):
                for members in itertools.combinations(range(5), size):
                    mu = view.exact_mu(graph, colluders=who(*members))
                    honest = ~who(*members)
                    assert np.all(mu[honest] <= bound[honest] * (1 + 1e-12))
        worst = view.worst_mu(graph, num_colluders=2)
        assert np.all(worst >= view.worst_mu(graph, num_colluders=1) * (1 - 1e-12))
        assert np.all(worst <= bound * (1 + 1e-12))
    graph = view.pair_graph(complete_edges(7), num_clients=7, own_variance=0.3, pair_variance=0.2)
    for limit in (0, 3, 6):
        closed = float(view.complete_mu(0.3, 0.2, num_seen=7 - limit))
        np.testing.assert_allclose(view.certificate(graph, num_colluders=limit), closed, rtol=1e-14)
    np.testing.assert_allclose(
        view.worst_mu(graph, num_colluders=3),
        float(view.complete_mu(0.3, 0.2, num_seen=4)),
        rtol=1e-14,
    )


def test_relabelling_clients_permutes_mu():
    order = np.asarray([3, 0, 4, 1, 2])
    shuffled = view.from_matrix(OWN[order], PAIR[np.ix_(order, order)])
    mu = view.exact_mu(FIVE, seen=who(0, 1, 2), colluders=who(4))
    np.testing.assert_allclose(
        view.exact_mu(shuffled, seen=who(0, 1, 2)[order], colluders=who(4)[order]),
        mu[order],
        rtol=1e-13,
    )


def test_simulated_noise_has_the_covariance_of_the_view():
    rng = np.random.default_rng(4)
    draws, colluder, unseen = 200_000, 4, 3
    own = rng.normal(size=(draws, 5)) * np.sqrt(OWN)
    masks = own.copy()
    for i, j in itertools.combinations(range(5), 2):
        noise = rng.normal(size=draws) * math.sqrt(PAIR[i, j])
        if colluder in (i, j):
            continue  # known to the adversary, and subtracted
        masks[:, i] += noise
        masks[:, j] -= noise
    masks = np.delete(masks, [unseen, colluder], 1)
    c = view.covariance(FIVE, seen=who(0, 1, 2), colluders=who(4))[:3, :3]
    found = masks.T @ masks / draws
    # The sample covariance of Gaussians has variance (c_ii c_jj + c_ij^2) / draws.
    error = np.sqrt((np.outer(np.diagonal(c), np.diagonal(c)) + c**2) / draws)
    assert np.all(np.abs(found - c) <= 5 * error)
    # Control: nobody's view has the covariance with client 3's upload seen, or with the colluder
    #   honest.
    for other in (
        view.covariance(FIVE, seen=who(0, 1, 2)),
        view.covariance(FIVE, colluders=who(3, 4)),
    ):
        assert np.any(np.abs(found - other[:3, :3]) > 5 * error)


def test_one_program_answers_many_views():
    seen = np.asarray([who(0, 1, 2), who(0, 1), who(0, 1, 2, 3, 4)])
    with accounting.x64():
        many = jax.vmap(lambda s: view.exact_mu(FIVE, seen=s, sensitivity=2.0))(seen)
    for row, s in zip(many, seen, strict=True):
        np.testing.assert_allclose(row, 2 * view.exact_mu(FIVE, seen=s), rtol=1e-14)
    with pytest.raises(RuntimeError, match="float64"):
        jax.vmap(lambda s: view.exact_mu(FIVE, seen=s))(seen)


def test_large_sparse_graph_lies_between_certificate_and_own_upload():
    size = 20_000
    graph = circulant(size, (1, 7, 50, 391, 2711, 9001), 0.25, 0.5)
    clients = np.asarray([0, 1, 12_345])
    lower, upper = sparse_views.mu_interval(graph, clients, tolerance=1e-9)
    assert np.all(upper <= lower * (1 + 1e-9))
    assert np.ptp(lower) <= 1e-9  # a circulant looks the same from everywhere
    # The exact value, from the eigenvalues of the circulant.
    angle = 2 * np.pi * np.arange(size) / size
    eigenvalues = 0.25 + sum(2 * 0.5 * (1 - np.cos(h * angle)) for h in (1, 7, 50, 391, 2711, 9001))
    exact = math.sqrt(np.mean(1 / eigenvalues))
    assert np.all((lower <= exact) & (exact <= upper))
    assert np.all(view.certificate(graph, num_colluders=0)[clients] >= upper)


def test_sparse_without_own_noise_somewhere_is_proved_too():
    graph = circulant(60, (1, 5), np.where(np.arange(60) % 7 == 0, 0.4, 0.0), 0.5)
    lower, upper = sparse_views.mu_interval(graph)
    mu = view.exact_mu(graph)
    assert np.all(
        (lower <= mu * (1 + 1e-13)) & (mu <= upper * (1 + 1e-13)) & (upper <= lower * (1 + 1e-9))
    )


def test_rounds_compose_and_an_excess_of_colluders_voids_the_bound():
    rounds = [
        view.assess(FIVE, num_colluders=1, seen=who(0, 1, 2), colluders=who(4)),
        view.assess(FIVE, num_colluders=1, colluders=who(4)),
    ]
    assert all(r.certified for r in rounds)
    total = gaussian.compose(np.stack([r.mu for r in rounds], -1))
    assert float(total[0]) == pytest.approx(math.hypot(0.843894897, 0.923577044), rel=1e-9)
    assert float(total[3]) == pytest.approx(0.912806210, rel=1e-9)
    assert np.all(rounds[1].mu[:4] <= rounds[1].worst_mu[:4])
    void = view.assess(FIVE, num_colluders=1, colluders=who(2, 3, 4))
    assert not void.certified and "3 clients" in void.reason
    assert void.mu[0] > void.worst_mu[0]


def test_no_noise_of_ones_own_is_no_privacy():
    bare = view.pair_graph(complete_edges(4), num_clients=4, own_variance=0.0, pair_variance=1.0)
    assert np.all(np.isinf(view.exact_mu(bare)))
    assert np.all(np.isinf(view.certificate(bare, num_colluders=0)))
    for bound in sparse_views.mu_interval(bare):
        assert np.all(np.isinf(bound))
    with pytest.raises(NoGuaranteeError, match="singular"):
        view.assess(bare, num_colluders=0)
    with pytest.raises(NoGuaranteeError, match="singular"):
        view.worst_mu(bare, num_colluders=1)
    # One client with own noise grounds all of them; an honest straggler whose upload never leaves
    # does so too.
    mixed = bare._replace(own_variance=np.asarray([0.0, 0.0, 0.0, 1.0]))
    assert np.all(np.isfinite(view.exact_mu(mixed)))
    assert np.all(np.isfinite(view.exact_mu(bare, seen=who(0, 1, 2, size=4))))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"edges": [[0, 1], [2, 3]]}, "no path from client 0 to client 2"),
        ({"edges": [[0, 1], [1, 0], [1, 2], [2, 3]]}, r"\[0, 1\] twice"),
        ({"edges": [[0, 1], [1, 1], [1, 2], [2, 3]]}, "between two clients"),
        ({"edges": [[0, 4]]}, "clients 0..3"),
        ({"edges": [[0.0, 1.0]]}, "integers"),
        ({"own_variance": -1.0}, "own_variance >= 0"),
        ({"own_variance": [1.0, 1.0]}, "own_variance of shape"),
        ({"pair_variance": math.nan}, "pair_variance >= 0"),
        ({"pair_variance": [1.0, 1.0, 0.0]}, "no path"),
        ({"num_clients": 0}, "num_clients"),
    ],
)
def test_bad_graphs_are_refused_with_the_reason(change, words):
    good = {
        "edges": [[0, 1], [1, 2], [2, 3]],
        "num_clients": 4,
        "own_variance": 1.0,
        "pair_variance": 1.0,
    }
    assert len(view.pair_graph(**good).edges) == 3
    with pytest.raises(ValueError, match=words):
        view.pair_graph(**{**good, **change})


def test_bad_matrices_and_colluders_are_refused_with_the_reason():
    uneven = PAIR.copy()
    uneven[0, 1] = 0.31
    for matrix, words in (
        (uneven, "both ends"),
        (PAIR + np.eye(5), "diagonal"),
        (PAIR[:3], "shape"),
    ):
        with pytest.raises(ValueError, match=words):
            view.from_matrix(OWN, matrix)
    for call in (view.assess, view.worst_mu):
        with pytest.raises(ValueError, match="num_colluders < 5"):
            call(FIVE, num_colluders=5)
        with pytest.raises(ValueError, match="num_colluders"):
            call(FIVE, num_colluders=-1)
    with pytest.raises(ValueError, match=r"clients in 0\.\.4"):
        sparse_views.mu_interval(FIVE, [5])
