"""The printed privacy rule of pairwise noise, and where it stops to be one."""

import itertools
import math

import numpy as np
import pytest
from scipy import optimize

from fljax.accounting import gaussian
from fljax.accounting.shared_noise import exact as view
from fljax.accounting.shared_noise import printed
from tests.accounting._graphs import FIVE, complete_edges, random_case, who


def test_oracle_o2_loss_variance():
    found = printed.loss_variance(FIVE, seen=who(0, 1, 2), colluders=who(4))
    np.testing.assert_allclose(
        found, [0.812723988, 0.808948859, 0.755332420, 0.0, np.nan], rtol=2e-9
    )
    found = printed.loss_variance(FIVE, colluders=who(4))
    np.testing.assert_allclose(
        found[:4], [1.398058224, 1.084317693, 0.880735479, 1.322838872], rtol=2e-9
    )


def test_oracle_o2_disturbance_and_what_the_print_counts_twice():
    stragglers = {"responders": who(0, 1, 4), "colluders": who(4)}
    assert printed.disturbance(FIVE, **stragglers) == pytest.approx(0.261111111, rel=2e-9)
    assert printed.disturbance(FIVE, **stragglers, formula="paper") == pytest.approx(
        0.405555556, rel=2e-9
    )
    nobody = {"responders": who(0, 1, 2, 3, 4), "colluders": who(4)}
    assert printed.disturbance(FIVE, **nobody, formula="paper") == 0.0
    assert printed.disturbance(FIVE, **nobody) == pytest.approx(
        (0.5 + 0.8 + 1 + 0.6) / 25, rel=1e-14
    )


def test_oracle_o3_loss_variance_with_unseen_clients():
    cases = {
        (4, 0): 3.176331361,
        (3, 1): 2.364448738,
        (2, 2): 2.008912265,
        (1, 3): 1.818181818,
        (40, 0): 1.884013841,
        (30, 10): 0.310632526,
    }
    for (seen, unseen), value in cases.items():
        size = seen + unseen
        graph = view.pair_graph(
            complete_edges(size), num_clients=size, own_variance=0.25, pair_variance=0.1
        )
        found = printed.loss_variance(graph, seen=np.arange(size) < seen)
        np.testing.assert_allclose(found[:seen], value, rtol=2e-9)
        if not unseen:
            closed = float(printed.complete_loss_variance(0.4, size)) / 0.25
            assert closed == pytest.approx(value, rel=2e-9)


def test_the_dropped_covariances_err_on_the_safe_side():
    rng = np.random.default_rng(5)
    ratios = []
    for _ in range(40):
        own, matrix = random_case(rng)
        graph = view.from_matrix(own + 0.05, matrix)
        mu = view.exact_mu(graph)
        ratios.append(printed.loss_variance(graph) / mu**2)
    assert np.min(ratios) >= 1 - 1e-12
    assert np.max(ratios) > 1.5
    bare = view.pair_graph(
        [[0, 1], [1, 2]], num_clients=3, own_variance=[1.0, 2.0, 3.0], pair_variance=1.0
    )
    alone = {"seen": who(0, 2, size=3)}  # no pair noise between seen clients: nothing was dropped
    np.testing.assert_allclose(
        printed.loss_variance(bare, **alone),
        np.asarray(view.exact_mu(bare, **alone)) ** 2,
        rtol=1e-14,
    )


@pytest.mark.parametrize(
    ("delta", "dp", "tail"),
    [
        (1e-3, 8.512441, 6.303384),
        (1e-5, 9.391321, 6.677644),
        (1e-6, 9.732751, 6.821502),
        (1e-8, 10.297927, 7.057425),
    ],
)
def test_where_condition_14_stops_to_imply_privacy(delta, dp, tail):
    def excess(criterion):
        def of(epsilon):
            return math.log(
                criterion(math.sqrt(printed.largest_variance(epsilon, delta)), epsilon) / delta
            )

        return optimize.brentq(of, 2.0, 30.0, xtol=1e-10)

    assert excess(lambda mu, e: float(gaussian.mu_to_delta(mu, e))) == pytest.approx(dp, abs=1e-6)
    assert excess(lambda mu, e: float(printed.loss_tail(e, mu))) == pytest.approx(tail, abs=1e-6)
    limit = printed.largest_variance(dp - 1e-5, delta)
    assert printed.condition(limit, epsilon=dp - 1e-5, delta=delta).proves_dp
    beyond = printed.condition(0.5 * limit, epsilon=dp + 1e-5, delta=delta)
    assert beyond.holds and not beyond.proves_dp
    assert not printed.condition(1.01 * limit, epsilon=dp - 1e-5, delta=delta).holds


def test_oracle_o1d_and_o6_claims_and_truth():
    for epsilon, mu in ((1, 0.202393717), (3, 0.607181152), (9, 1.821543456)):
        assert math.sqrt(printed.largest_variance(epsilon, 1e-5)) == pytest.approx(mu, rel=2e-9)
    mu = math.sqrt(printed.largest_variance(9.0, 1e-5))
    assert float(gaussian.mu_to_delta(mu, 9.0)) == pytest.approx(8.156122e-6, rel=1e-6)
    assert float(printed.loss_tail(9.0, mu)) == pytest.approx(2.787982e-5, rel=1e-6)
    # The refuted statement: (14) holds at epsilon 12, and delta is 3.6 times what was claimed.
    mu = math.sqrt(printed.largest_variance(12.0, 1e-5))
    assert printed.condition(mu**2, epsilon=12.0, delta=1e-5).holds
    assert float(gaussian.mu_to_delta(mu, 12.0)) == pytest.approx(3.606895e-5, rel=1e-6)


def test_oracle_o4f_and_o5d_quartic_has_its_root_where_the_printed_objective_is_least():
    np.testing.assert_allclose(printed.quartic(35, 0.0), [0, 41650, 3570, -1054, -34], rtol=1e-14)
    n = np.asarray([10, 40, 100, 1000])
    ratio = printed.best_ratio(n, 0.0)
    np.testing.assert_allclose(
        ratio, [0.210548262, 0.131762070, 0.089599600, 0.030607962], rtol=2e-8
    )
    np.testing.assert_allclose(
        printed.complete_loss_variance(ratio, n),
        [0.559654665, 0.305691107, 0.197207411, 0.063152709],
        rtol=2e-8,
    )
    for n, m in ((7, 0.3), (35, 5.2), (40, 12.0), (12, 10.5)):
        root = float(printed.best_ratio(n, m))
        best = optimize.minimize_scalar(
            lambda g, n=n, m=m: (1 + m * g) * float(printed.complete_loss_variance(g, n)),
            bounds=(0, 1),
            method="bounded",
            options={"xatol": 1e-10},
        )
        assert root == pytest.approx(best.x, abs=1e-6)
        scale = np.abs(printed.quartic(n, m)) @ (root ** np.arange(4, -1, -1))
        assert abs(np.polyval(printed.quartic(n, m), root)) <= 1e-13 * scale
    assert printed.best_ratio(10, 9.0) == 0.0


def test_erratum_e13_the_printed_worst_case_is_not_the_smallest_honest_set():
    found = printed.complete_loss_variance(1.0, np.arange(1, 5))
    np.testing.assert_allclose(found, [1, 1.111111, 1.125, 1.12], atol=1e-6)
    grows = printed.complete_loss_variance(2.0, np.arange(1, 30))
    assert np.all(np.diff(grows) > 0)


def test_condition_14_must_hold_for_every_number_of_colluders():
    # With strong pair noise, nobody colluding is the worst.
    graph = view.pair_graph(complete_edges(5), num_clients=5, own_variance=0.5, pair_variance=1.0)
    found = printed.worst_loss_variance(graph, num_colluders=3, sensitivity=2.0)
    closed = float(printed.complete_loss_variance(2.0, 5))
    np.testing.assert_allclose(found, 4 * closed / 0.5, rtol=1e-12)
    for limit in (0, 2):
        tried = [
            printed.loss_variance(FIVE, colluders=who(*members))
            for size in range(limit + 1)
            for members in itertools.combinations(range(5), size)
        ]
        found = printed.worst_loss_variance(FIVE, num_colluders=limit)
        np.testing.assert_allclose(found, np.nanmax(tried, axis=0), rtol=1e-12)
        assert np.all(found >= np.square(view.worst_mu(FIVE, num_colluders=limit)) * (1 - 1e-12))


def test_bad_arguments_are_refused_by_name():
    with pytest.raises(ValueError, match="variance"):
        printed.condition(-1.0, epsilon=1.0, delta=1e-5)
    with pytest.raises(ValueError, match="epsilon"):
        printed.largest_variance(0.0, 1e-5)
    with pytest.raises(ValueError, match="num_colluders < 5"):
        printed.worst_loss_variance(FIVE, num_colluders=5)
    with pytest.raises(ValueError, match="responder"):
        printed.disturbance(FIVE, responders=who(), colluders=who())
    with pytest.raises(ValueError, match="formula"):
        printed.disturbance(FIVE, responders=who(1), colluders=who(), formula="print")
