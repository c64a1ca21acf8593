"""The worst case over colluder sets, held against every set, by dense inverses written apart."""

import functools
import itertools
import math

import numpy as np
import pytest
from scipy import stats

from fljax import accounting
from fljax.accounting import events, gaussian
from fljax.accounting.shared_noise import colluders
from fljax.accounting.shared_noise import exact as view
from fljax_kernels.pairwise import graphs
from tests.accounting._graphs import FIVE, complete_edges, random_case, who
from tests.accounting.test_view_audit import area, uploads


def graph_of(edges, size, own=1.0, pair=100.0):
    return view.pair_graph(edges, num_clients=size, own_variance=own, pair_variance=pair)


def n_out(size, degree, pair=100.0):
    return graph_of(graphs.random_out(size, degree, np.random.default_rng(0)), size, pair=pair)


def regular(size, degree, pair=5.0):
    return graph_of(graphs.k_regular(size, degree, np.random.default_rng(0)), size, pair=pair)


def truth(graph, members):
    """Mu of every client at sensitivity 1 when these collude; 0 for them."""
    own, edges, pair = (np.asarray(v) for v in graph)
    size = own.size
    matrix = np.zeros((size, size))
    matrix[edges[:, 0], edges[:, 1]] = matrix[edges[:, 1], edges[:, 0]] = pair
    honest = np.setdiff1d(np.arange(size), members)
    between = matrix[np.ix_(honest, honest)]
    mu = np.zeros(size)
    covariance = np.diag(own[honest] + between.sum(1)) - between
    mu[honest] = np.sqrt(np.diagonal(np.linalg.inv(covariance)))
    return mu


def all_truths(graph, num_colluders):
    sets = itertools.combinations(range(len(graph.own_variance)), num_colluders)
    return np.stack([truth(graph, members) for members in sets])


def uneven(seed):
    """Own and pair variances over decades."""
    rng = np.random.default_rng(seed)
    edges = graphs.random_out(11, 3, rng)
    return graph_of(edges, 11, 10 ** rng.uniform(-1, 1, 11), 10 ** rng.uniform(-1, 2, len(edges)))


SMALL = {
    "regular_20_6": (regular(20, 6), 2),
    "regular_40_8": (regular(40, 8), 2),
    "n_out_20_5": (n_out(20, 5), 2),
    "n_out_20_5_strong": (n_out(20, 5, 1e4), 3),
    "n_out_60_5": (n_out(60, 5), 2),
    "ring_of_10": (graph_of(graphs.circulant(10, 2), 10), 1),
    "all_may_part": (regular(12, 3), 3),
}


@functools.cache
def worst_of_all(name):
    """Mu of every client of a small graph by its worst set."""
    return all_truths(*SMALL[name]).max(0)


@pytest.mark.parametrize("name", SMALL)
def test_the_worst_case_is_that_of_the_worst_set(name):
    graph, most = SMALL[name]
    found = colluders.worst_case(graph, num_colluders=most)
    expected = worst_of_all(name)
    assert found.exact
    assert found.mu.max() == pytest.approx(expected.max(), rel=1e-8)
    assert found.mu.max() >= expected.max() * (1 - 1e-12)
    assert np.all(found.mu >= expected * (1 - 1e-12))


@pytest.mark.slow(reason="tries all sets of more graphs", but=["0", "1", "2"])
@pytest.mark.parametrize("seed", range(6))
def test_no_client_exceeds_its_bound_whatever_the_variances(seed):
    graph = uneven(seed)
    move = np.random.default_rng(seed).uniform(0.5, 2.0, 11)
    for most in range(4):
        found = colluders.worst_case(graph, num_colluders=most, sensitivity=move)
        expected = move * all_truths(graph, most).max(0)
        assert np.all(found.mu >= expected * (1 - 1e-12))
        assert found.mu.max() <= np.max(
            view.certificate(graph, num_colluders=most, sensitivity=move)
        ) * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_clients_without_own_noise_are_served_too(seed):
    own, matrix = random_case(np.random.default_rng(seed))
    graph = view.from_matrix(own, matrix)
    for most in (0, 1, 2):
        found = colluders.worst_case(graph, num_colluders=most).mu
        sets = itertools.combinations(range(6), most)
        exact = np.stack([view.exact_mu(graph, colluders=who(*s, size=6)) for s in sets])
        finite = np.where(np.isnan(exact), 0.0, exact).max(0)
        assert np.all(found >= finite * (1 - 1e-12))


def test_the_weight_of_a_small_neighbourhood_is_its_largest_eigenvalue():
    rng = np.random.default_rng(5)
    factor = rng.normal(size=(9, 9))
    spread, pairs = factor @ factor.T, np.triu(rng.uniform(0.5, 2, (9, 9)), 1)
    pairs = np.where(np.arange(9) % 3 == 0, 0.0, pairs + pairs.T)
    pairs = np.minimum(pairs, pairs.T)  # every third client shares no noise
    found = colluders._weights(spread, 0.0, pairs)
    for row, weight in zip(pairs, found, strict=True):
        root = np.sqrt(row)
        largest = np.linalg.eigvalsh(root[:, None] * spread * root).max()
        assert weight >= largest and weight == pytest.approx(largest, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", ["regular_20_6", "regular_40_8", "n_out_20_5", "n_out_60_5"])
def test_expansion_alone_is_near_the_truth_and_never_below(name, monkeypatch):
    monkeypatch.setattr(colluders, "_SEARCH_WORK", 0.0)
    graph, most = SMALL[name]
    found = colluders.worst_case(graph, num_colluders=most)
    expected = worst_of_all(name)
    assert not found.exact and found.reason == "expansion of the graph"
    assert np.all(found.mu >= expected * (1 - 1e-12))
    assert found.mu.max() <= 1.06 * expected.max()
    assert np.max(view.certificate(graph, num_colluders=most)) > 1.4 * expected.max()


# Graph, colluders, star: 40 sets of neighbours tried elsewhere reached the last number.
LARGE = {
    "n_out_100_5": (n_out(100, 5), 1, 0.410, 0.111),
    "n_out_100_10": (n_out(100, 10), 4, 0.318, 0.108),
    "n_out_500_12": (n_out(500, 12), 5, 0.290, 0.054),
}


@pytest.mark.slow(reason="one more graph", ids=["n_out_500_12"])
@pytest.mark.parametrize("name", LARGE)
def test_large_sparse_graphs_cost_a_quarter_of_the_star(name):
    graph, most, star, reached = LARGE[name]
    found = colluders.worst_case(graph, num_colluders=most)
    assert np.max(view.certificate(graph, num_colluders=most)) == pytest.approx(star, abs=6e-4)
    assert found.mu.max() == pytest.approx(reached, rel=0.02)
    size = len(found.mu)
    edges = np.asarray(graph.edges)
    client = int(np.argmin(np.bincount(edges.ravel(), minlength=size)))
    near = np.unique(edges[(edges == client).any(1)])
    some = truth(graph, near[near != client][:most])
    assert some[client] <= found.mu.max() * (1 + 1e-12)
    assert found.mu.max() <= 1.03 * some[client]
    # The bound by the second eigenvalue (Fiedler) is never better.
    laplacian = np.zeros((size, size))
    laplacian[edges[:, 0], edges[:, 1]] = laplacian[edges[:, 1], edges[:, 0]] = -100.0
    np.fill_diagonal(laplacian, -laplacian.sum(1))
    gap = max(0.0, np.linalg.eigvalsh(laplacian)[1] - 100.0 * most)
    honest = size - most
    assert found.mu.max() ** 2 <= 1 / honest + (1 - 1 / honest) / (1 + gap)


def test_complete_graphs_are_in_closed_form():
    graph = graph_of(complete_edges(30), 30, 0.5, 0.3)
    found = colluders.worst_case(graph, num_colluders=6)
    expected = float(view.complete_mu(0.5, 0.3, num_seen=24))
    assert found.exact
    np.testing.assert_allclose(found.mu, expected, rtol=1e-10)


@pytest.mark.slow(reason="searches a graph of 1,224 edges")
def test_near_complete_graphs_fall_little_behind():
    """Of more edges than eigenvalues are computed for."""
    expected = float(view.complete_mu(0.5, 0.3, num_seen=40))
    edges = complete_edges(50)[1:]
    near = colluders.worst_case(graph_of(edges, 50, 0.5, 0.3), num_colluders=10)
    assert expected < near.mu.max() < 1.02 * expected


def test_beyond_dense_matrices_the_star_serves():
    size = 3001
    edges = graphs.circulant(size, 4)
    found = colluders.worst_case(graph_of(edges, size), num_colluders=1)
    assert not found.exact
    expected = 1 / math.sqrt(1 + 3 * 100 / 101)
    np.testing.assert_allclose(found.mu, expected, rtol=1e-10)


def test_the_best_attack_on_the_worst_set_reaches_what_is_certified_and_half_the_noise_exceeds_it():
    graph, most, shift = regular(20, 6), 2, 6.0
    found = colluders.worst_case(graph, num_colluders=most, sensitivity=shift)
    values = all_truths(graph, most)
    place, client = np.unravel_index(np.argmax(values), values.shape)
    members = next(itertools.islice(itertools.combinations(range(20), most), int(place), None))
    held = np.setdiff1d(np.arange(20), members)
    rng = np.random.default_rng(7)
    for scale, exceeds in ((1.0, False), (0.5, True)):
        noisy = view.PairGraph(scale * graph.own_variance, graph.edges, scale * graph.pair_variance)
        draws = uploads(rng, noisy, 40_000, who(*members, size=20))[:, held]
        covariance = np.cov(draws.T)
        weights = np.linalg.solve(covariance, (held == client).astype(float))
        score = draws @ weights
        moved = score + shift * weights[held == client]
        reached = stats.norm.ppf(area(score, moved)) * math.sqrt(2)
        # An AUC of 40,000 against 40,000 lies within 0.005 of its mean.
        allowed = math.sqrt(2) * stats.norm.ppf(
            min(1 - 1e-9, stats.norm.cdf(found.mu.max() / math.sqrt(2)) + 0.005)
        )
        assert (reached > allowed) == exceeds
        if not exceeds:
            assert reached > 0.97 * found.mu.max()


@pytest.mark.slow(reason="draws sets at one more share", but=["0.2"])
@pytest.mark.parametrize("failure", [0.02, 0.2, 0.5])
def test_sets_drawn_by_chance_exceed_the_bound_no_more_often_than_stated(failure):
    graph, most = regular(16, 6), 4
    found = colluders.worst_case(graph, num_colluders=most, failure_prob=failure).mu
    values = all_truths(graph, most)
    # By symmetry the colluders are a uniform set, whatever the graph.
    assert np.mean(np.any(values > found * (1 + 1e-12), axis=1)) <= failure
    sure = colluders.worst_case(graph, num_colluders=most).mu
    assert np.all(found <= sure) and np.all(sure >= values.max(0) * (1 - 1e-12))


@pytest.mark.slow(reason="eigenvalues of a large graph")
def test_a_tenth_of_a_large_sparse_cohort_may_collude():
    graph = regular(1000, 60, pair=13.0)
    assert np.max(view.certificate(graph, num_colluders=100)) == 1.0  # all neighbours may collude
    found = colluders.worst_case(graph, num_colluders=100, failure_prob=1e-9)
    rng = np.random.default_rng(3)
    worst = max(truth(graph, rng.choice(1000, 100, replace=False)).max() for _ in range(3))
    assert worst <= found.mu.max() <= 1.15 * worst
    # 26 of 60 neighbours collude with no more chance than that.
    assert stats.hypergeom(999, 100, 60).sf(26) * 1000 <= 1e-9
    assert 1 / 900 + 1 / (34 * 13.0) < found.mu.max() ** 2 < 1 / 900 + 1.2 / (34 * 13.0)


def test_a_failing_graph_costs_delta_and_nothing_else():
    event = events.PrivacyEvent(
        mechanism=colluders.or_fails(events.Gaussian(2.0), 1e-6),
        privacy_unit="client",
        neighboring_relation="REPLACE_ONE",
    ).repeat(4)
    found = accounting.spent(event, delta=1e-5, method="auto")
    least = float(gaussian.mu_to_epsilon(1.0, 1e-5 - 4e-6))
    assert least * (1 - 1e-6) <= found.epsilon_upper <= least * 1.001


def test_numbers_out_of_range_are_refused():
    with pytest.raises(ValueError, match="num_colluders < 5 clients"):
        colluders.worst_case(FIVE, num_colluders=5)
    with pytest.raises(ValueError, match=r"failure_prob in \[0, 1\)"):
        colluders.worst_case(FIVE, num_colluders=1, failure_prob=1.0)
    with pytest.raises(ValueError, match="sensitivity >= 0"):
        colluders.worst_case(FIVE, num_colluders=1, sensitivity=-1.0)
