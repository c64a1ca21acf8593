"""Calibration of pairwise noise against the spec's figures, and the noise other schemes need for
the same privacy.
"""

import math

import numpy as np
import pytest
from scipy import optimize, stats

from fljax.accounting import gaussian
from fljax.accounting.shared_noise import exact as view
from fljax.accounting.shared_noise import least_noise, unequal_clients
from fljax.errors import PrivacyPreconditionError
from fljax.papers.lightdp import sensitivity
from tests.accounting._graphs import complete_edges


def uniform(most):
    return np.full(most + 1, 1 / (most + 1))


def truncated_links(num_clients, prob, most):
    pmf = stats.binom.pmf(np.arange(most + 1), num_clients, prob)
    return pmf / pmf.sum()


def calibrated(num_clients, colluders, most, epsilon, **options):
    return least_noise.pair_calibration(
        num_clients,
        colluders,
        uniform(most),
        epsilon=epsilon,
        delta=1e-5,
        **{"formula": "paper", **options},
    )


def test_oracle_o1_gaussian_dp():
    np.testing.assert_allclose(
        gaussian.mu_to_delta(
            np.asarray([0.5, 1.0, 1.0, 2.0, 0.1]), np.asarray([1.0, 3.0, 0.0, 9.0, 0.5])
        ),
        [6.829594983e-3, 1.537185369e-3, 0.3829249225, 7.875506063e-5, 6.856582456e-9],
        rtol=1e-9,
    )
    np.testing.assert_allclose(
        gaussian.mu_to_epsilon(np.asarray([0.1, 0.25, 0.5, 1.0, 2.0, 5.0]), 1e-5),
        [0.340669365, 0.926341504, 1.993091404, 4.377178096, 9.997256146, 33.103732336],
        rtol=2e-9,
    )
    np.testing.assert_allclose(
        gaussian.epsilon_to_mu(np.asarray([0.5, 1.0, 3.0, 6.0, 9.0]), 1e-5),
        [0.142210559, 0.268051123, 0.719117435, 1.309525839, 1.835718639],
        rtol=4e-9,
    )


def test_oracle_o4a_the_printed_rule_and_the_privacy_it_really_gives():
    assert least_noise.straggler_moments(50, uniform(10)).straggling == pytest.approx(
        5.223084587, rel=1e-9
    )
    found = calibrated(50, 10, 10, 3.0)
    assert not found.certified
    assert found.ratio == pytest.approx(0.079655555, rel=5e-9)
    assert math.sqrt(found.own_variance) == pytest.approx(0.947735351, rel=2e-9)
    assert math.sqrt(found.pair_variance) == pytest.approx(0.267482341, rel=2e-9)
    assert found.expected_variance == pytest.approx(2.840520135e-2, rel=1e-9)
    assert found.mu == pytest.approx(0.535851428, rel=2e-9)
    assert found.epsilon == pytest.approx(2.153547992, rel=1e-9)


def test_oracle_o4b_to_o4g_the_printed_rule():
    for epsilon, own, pair, true in (
        (6.0, 0.473867676, 0.133741170, 4.743496600),
        (9.0, 0.315911784, 0.089160780, 7.662520450),
    ):
        found = calibrated(50, 10, 10, epsilon)
        assert math.sqrt(found.own_variance) == pytest.approx(own, rel=5e-9)
        assert math.sqrt(found.pair_variance) == pytest.approx(pair, rel=1e-8)
        assert found.epsilon == pytest.approx(true, rel=1e-9)
    for colluders, ratio, own, pair in (
        (20, 0.082397501, 1.021643713, 0.293262470),
        (30, 0.082011111, 1.136938230, 0.325591620),
        (40, 0.057681492, 1.379716608, 0.331366143),
    ):
        found = calibrated(50, colluders, 10, 3.0)
        assert found.ratio == pytest.approx(ratio, rel=1e-8)
        assert math.sqrt(found.own_variance) == pytest.approx(own, rel=2e-9)
        assert math.sqrt(found.pair_variance) == pytest.approx(pair, rel=4e-9)
    for most, m, ratio, own, pair in (
        (0, 0.0, 0.138861259, 0.939350547, 0.350040457),
        (10, 5.223084587, 0.081155532, 0.981300442, 0.279551005),
        (20, 10.933978589, 0.058483215, 1.039133322, 0.251296762),
        (30, 17.418688227, 0.041767669, 1.113420900, 0.227551389),
    ):
        found = calibrated(50, 15, most, 3.0)
        assert least_noise.straggler_moments(50, uniform(most)).straggling == pytest.approx(
            m, rel=1e-9
        )
        assert found.ratio == pytest.approx(ratio, rel=2e-8)
        assert math.sqrt(found.own_variance) == pytest.approx(own, rel=2e-9)
        assert math.sqrt(found.pair_variance) == pytest.approx(pair, rel=4e-9)
    small = calibrated(10, 3, 2, 1.0)
    assert least_noise.straggler_moments(10, uniform(2)).straggling == pytest.approx(
        1.074380165, rel=1e-9
    )
    assert small.ratio == pytest.approx(0.145381332, rel=5e-9)
    assert math.sqrt(small.own_variance) == pytest.approx(4.019077302, rel=1e-9)
    assert math.sqrt(small.pair_variance) == pytest.approx(1.532430127, rel=1e-9)
    nothing = calibrated(50, 40, 30, 3.0)
    assert nothing.ratio == 0 and nothing.pair_variance == 0
    assert math.sqrt(nothing.own_variance) == pytest.approx(1.646954944, rel=1e-9)


def test_erratum_e12_pair_noise_is_not_monotone_in_colluders():
    pair = np.sqrt([calibrated(50, c, 10, 3.0).pair_variance for c in range(50)])
    assert int(pair.argmax()) == 37
    assert pair.max() == pytest.approx(0.343010, abs=1e-6)
    assert np.all(pair[44:] == 0) and pair[43] > 0


def test_oracle_o5a_the_exact_rule():
    for epsilon, own, pair, variance in (
        (3.0, 0.406626427, 0.249954608, 1.098041927e-2),
        (6.0, 0.223296207, 0.137260916, 3.311238140e-3),
        (9.0, 0.159290289, 0.097916267, 1.685024909e-3),
    ):
        found = calibrated(50, 10, 10, epsilon, formula="sound")
        assert found.certified
        assert found.ratio == pytest.approx(0.377860152, rel=2e-9)
        assert math.sqrt(found.own_variance) == pytest.approx(own, rel=5e-9)
        assert math.sqrt(found.pair_variance) == pytest.approx(pair, rel=5e-9)
        assert found.expected_variance == pytest.approx(variance, rel=1e-9)
        assert found.epsilon == pytest.approx(epsilon, rel=1e-9)
    # What the printed rule costs at the same nominal epsilon, and at the same true one.
    for epsilon, factor in ((3.0, 2.59), (6.0, 2.14), (9.0, 1.87)):
        printed = calibrated(50, 10, 10, epsilon)
        exact = calibrated(50, 10, 10, epsilon, formula="sound").expected_variance
        assert printed.expected_variance / exact == pytest.approx(factor, abs=5e-3)
        same = least_noise.expected_variance("pair_noise", 50, 10, uniform(10), mu=printed.mu)
        assert printed.expected_variance / same == pytest.approx(1.436, abs=5e-4)


def test_oracle_o5c_small():
    found = calibrated(10, 3, 2, 1.0, formula="sound")
    assert found.ratio == pytest.approx(0.678941627, rel=2e-9)
    assert math.sqrt(found.own_variance) == pytest.approx(2.015433178, rel=1e-9)
    assert math.sqrt(found.pair_variance) == pytest.approx(1.660674902, rel=1e-9)
    assert found.expected_variance == pytest.approx(0.7870535418, rel=1e-9)


def test_exact_ratio_is_the_minimum_and_its_caps_hold():
    for n, m in ((7, 0.3), (40, 5.2), (12, 10.5), (1000, 40.0)):
        best = optimize.minimize_scalar(
            lambda x, n=n, m=m: math.log(
                (1 + m * math.exp(x)) * (1 + math.exp(x)) / (1 + n * math.exp(x))
            ),
            bounds=(-12, 6),
            method="bounded",
            options={"xatol": 1e-9},
        )
        assert math.log(least_noise.best_ratio(n, m)) == pytest.approx(best.x, abs=1e-5)
    assert least_noise.best_ratio(10, 9.0) == 0.0
    assert least_noise.best_ratio(1, 0.0) == 0.0
    assert least_noise.best_ratio(10, 0.0) == 1e4
    never = least_noise.pair_calibration(20, 4, [1.0], epsilon=1.0, delta=1e-5)
    ideal = least_noise.expected_variance("secure_sum", 20, 4, [1.0], mu=never.mu)
    assert 1 < never.expected_variance / ideal < 1 + 16 / 1e4


def test_oracle_o5b_baselines():
    tight = float(gaussian.epsilon_to_mu(3.0, 1e-5))
    printed = 3 / math.sqrt(2 * math.log(2e5))
    for mu, local, secure in (
        (tight, 4.318631920e-2, 1.439543973e-3),
        (printed, 6.057720955e-2, 2.019240318e-3),
    ):
        assert least_noise.expected_variance("local", 50, 10, uniform(10), mu=mu) == pytest.approx(
            local, rel=1e-9
        )
        found = least_noise.expected_variance("secure_sum", 50, 10, uniform(10), mu=mu)
        assert found == pytest.approx(secure, rel=1e-9)


@pytest.mark.parametrize(
    ("pmf", "paper", "exact"),
    [
        (uniform(10), 14.067271, 7.627707),
        (uniform(38), 1.678388, 1.479787),
        (uniform(39), 0.852809, 0.759570),
        (truncated_links(50, 0.05, 10), 11.803048, 4.856284),
        (truncated_links(50, 0.05, 30), 3.934445, 1.618880),
        (truncated_links(50, 0.05, 35), 1.967222, 0.809440),
    ],
    ids=["u10", "u38", "u39", "l10", "l30", "l35"],
)
def test_oracle_o19_lightdp_over_secure_sum(pmf, paper, exact):
    mu = float(gaussian.epsilon_to_mu(3.0, 1e-5))
    ours = least_noise.expected_variance("pair_noise", 50, 10, pmf, mu=mu)
    assert ours / least_noise.expected_variance("secure_sum", 50, 10, pmf, mu=mu) == pytest.approx(
        exact, rel=1e-6
    )
    printed = least_noise.pair_calibration(
        50, 10, pmf, epsilon=3.0, delta=1e-5, formula="paper"
    ).expected_variance
    mu = 3 / math.sqrt(2 * math.log(2e5))
    assert printed / least_noise.expected_variance(
        "secure_sum", 50, 10, pmf, mu=mu
    ) == pytest.approx(paper, rel=1e-6)


def test_order_of_the_schemes_at_equal_privacy():
    for most in (0, 3, 10):
        central, corrected, secure, pairs, local = (
            least_noise.expected_variance(name, 50, 10, uniform(most), mu=1.0)
            for name in ("central", "secure_sum_corrected", "secure_sum", "pair_noise", "local")
        )
        assert central < corrected <= secure < pairs < local


def test_oracle_o7_rounds_need_their_number_times_the_variance():
    base = 0.607181152
    for factor, epsilon in ((1, 58.577014), (math.sqrt(150), 10.774566), (150, 2.477877)):
        assert float(gaussian.mu_to_epsilon(base * math.sqrt(150 / factor), 1e-5)) == pytest.approx(
            epsilon, rel=1e-7
        )
    many = calibrated(50, 10, 10, 3.0, formula="sound", num_rounds=150)
    once = calibrated(50, 10, 10, 3.0, formula="sound")
    assert many.own_variance == pytest.approx(150 * once.own_variance, rel=1e-12)
    assert many.epsilon == pytest.approx(3.0, rel=1e-9)
    # As printed (variance times the root of the rounds; with local noise alone V is mu^2, as in the
    # oracle).
    printed = calibrated(50, 40, 30, 3.0, num_rounds=150)
    assert printed.ratio == 0 and printed.epsilon == pytest.approx(10.774566, rel=1e-6)


def test_oracle_o9_truncated_link_law():
    pmf = truncated_links(50, 0.05, 10)
    m = least_noise.straggler_moments(50, pmf).straggling
    assert m == pytest.approx(2.550763977, rel=1e-9)
    assert least_noise.best_ratio(40, m) == pytest.approx(0.573216870, rel=2e-9)
    found = least_noise.pair_calibration(50, 10, pmf, epsilon=3.0, delta=1e-5, formula="paper")
    assert found.ratio == pytest.approx(0.096732447, rel=1e-8)


def test_oracle_o17_sensitivities():
    arguments = {
        "learning_rate": 0.5,
        "lipschitz": 1.0,
        "smoothness": 2.0,
        "num_epochs": 3,
        "batch_size": 8,
    }
    assert sensitivity.convex_sgd(**arguments, convex=True) == 0.375
    for change in ({"convex": False}, {"convex": True, "learning_rate": 1.01}):
        with pytest.raises(PrivacyPreconditionError):
            sensitivity.convex_sgd(**{**arguments, **change})
    assert sensitivity.full_batch_step(learning_rate=0.5, l2_clip_norm=2.0, num_examples=8) == 0.25


def test_convex_sgd_sensitivity_holds_on_logistic_losses():
    rng = np.random.default_rng(6)
    worst = 0.0
    for _ in range(30):
        x = rng.normal(size=(16, 3))
        x /= np.linalg.norm(x, axis=1, keepdims=True)  # gradients of norm < 1, curvature <= 1/4
        y = rng.choice([-1.0, 1.0], 16)
        other_x, other_y = x.copy(), y.copy()
        other_y[5] = -other_y[5]

        def train(x, y):
            w = np.zeros(3)
            for _ in range(2):
                for start in range(0, 16, 4):
                    b = slice(start, start + 4)
                    w = w - 2.0 * np.mean(
                        (-y[b] / (1 + np.exp(y[b] * (x[b] @ w))))[:, None] * x[b], 0
                    )
            return w

        worst = max(worst, float(np.linalg.norm(train(x, y) - train(other_x, other_y))))
    bound = sensitivity.convex_sgd(
        learning_rate=2.0, lipschitz=1.0, smoothness=0.25, num_epochs=2, batch_size=4, convex=True
    )
    assert 0.1 * bound < worst <= bound


def test_regular_graphs_count_on_honest_neighbours():
    found = least_noise.pair_calibration(
        40, 2, uniform(4), epsilon=2.0, delta=1e-5, num_neighbors=8
    )
    i = np.arange(40)
    ring = np.concatenate([np.stack([i, (i + h) % 40], 1) for h in (1, 2, 3, 4)])
    graph = view.pair_graph(
        ring, num_clients=40, own_variance=found.own_variance, pair_variance=found.pair_variance
    )
    bound = view.certificate(graph, num_colluders=2)
    np.testing.assert_allclose(bound, found.mu, rtol=1e-12)
    # Expected variance of the average, by the law of each pair: a neighbour straggles with chance S
    # / (N - 1).
    average = sum(
        0.2 * (found.own_variance + 8 * s / 39 * found.pair_variance) / (40 - s) for s in range(5)
    )
    assert found.expected_variance == pytest.approx(average, rel=1e-12)
    with pytest.raises(ValueError, match="num_neighbors > num_colluders"):
        least_noise.pair_calibration(40, 8, uniform(4), epsilon=2.0, delta=1e-5, num_neighbors=8)


def test_random_graphs_have_honest_neighbours_but_for_the_stated_chance():
    for failure in (1e-12, 1e-6, 1e-2):
        h = least_noise.honest_neighbors(500, 30, 50, failure)
        chance = 500 * stats.hypergeom(499, 449, 30).cdf(np.asarray([h - 1, h]))
        assert chance[0] <= failure < chance[1]
    # All five colluders among ten neighbours: C(44, 5) of C(49, 10) sets.
    just = 50 * math.comb(44, 5) / math.comb(49, 10)
    assert least_noise.honest_neighbors(50, 10, 5, just * (1 + 1e-9)) == 6
    assert least_noise.honest_neighbors(50, 10, 5, just * (1 - 1e-9)) == 5
    assert least_noise.honest_neighbors(500, 30, 50, 0.0) == 0
    assert least_noise.honest_neighbors(500, 60, 50, 0.0) == 10
    assert least_noise.honest_neighbors(500, 30, 0, 0.0) == 30
    spent = least_noise.pair_calibration(
        500, 50, uniform(20), epsilon=2.0, delta=1e-5, num_neighbors=40, failure_prob=1e-6
    )
    assert float(gaussian.mu_to_epsilon(spent.mu, 9e-6)) == pytest.approx(2.0, rel=1e-9)


def test_variances_scale_with_sensitivity_squared():
    one, two = (
        calibrated(50, 10, 10, 3.0, formula=f, sensitivity=s)
        for f, s in (("sound", 1.0), ("sound", 2.0))
    )
    assert two.own_variance == pytest.approx(
        4 * one.own_variance, rel=1e-12
    ) and two.mu == pytest.approx(one.mu)
    one, two = calibrated(50, 10, 10, 3.0), calibrated(50, 10, 10, 6.0)
    assert one.own_variance == pytest.approx(4 * two.own_variance, rel=1e-12)


STRAGGLERS = np.concatenate([np.zeros((1, 6), bool), np.eye(6, dtype=bool)])
CHANCES = np.asarray([0.4, 0.3, 0.1, 0.05, 0.05, 0.05, 0.05])


def test_equal_clients_need_no_more_than_common_variances():
    even = np.full(7, 1 / 7)
    for colluders in (0, 1):
        found = unequal_clients.heterogeneous(
            complete_edges(6), STRAGGLERS, even, mu=0.8, sensitivity=1.5, num_colluders=colluders
        )
        closed = least_noise.expected_variance(
            "pair_noise", 6, colluders, [1 / 7, 6 / 7], mu=0.8, sensitivity=1.5
        )
        assert found.expected_variance == pytest.approx(closed, rel=1e-5)
        assert found.lower_bound <= closed * (1 + 1e-12)


def test_the_best_variances_are_found_by_newtons_method(monkeypatch):
    """With another Hessian the same optimum takes two to four times as many steps."""
    steps, solve = [], np.linalg.solve
    monkeypatch.setattr(np.linalg, "solve", lambda *of: steps.append(0) or solve(*of))
    for colluders in (0, 1):
        steps.clear()
        unequal_clients.heterogeneous(
            complete_edges(6), STRAGGLERS, CHANCES, mu=0.8, sensitivity=1.5, num_colluders=colluders
        )
        assert 0 < len(steps) < 90


def test_clients_that_differ_need_less_than_common_variances():
    moves = np.asarray([1.0, 0.7, 0.5, 0.3, 0.2, 0.2])
    found = unequal_clients.heterogeneous(
        complete_edges(6), STRAGGLERS, CHANCES, mu=0.8, sensitivity=moves, num_colluders=1
    )
    worst = view.worst_mu(found.graph, num_colluders=1, sensitivity=moves)
    assert np.all(worst <= 0.8 * (1 + 1e-12)) and worst.max() == pytest.approx(0.8, rel=1e-9)
    assert found.lower_bound <= found.expected_variance <= found.lower_bound * (1 + 1e-5)
    # Simulation-free check of the cost: equation (9) for each set of stragglers.
    cost = sum(
        p * float(view.average_variance(found.graph, ~s))
        for p, s in zip(CHANCES, STRAGGLERS, strict=True)
    )
    assert found.expected_variance == pytest.approx(cost, rel=1e-12)
    common = unequal_clients.heterogeneous(
        complete_edges(6), STRAGGLERS, CHANCES, mu=0.8, sensitivity=1.0, num_colluders=1
    )
    assert found.expected_variance < 0.6 * common.expected_variance
    # No nearby choice that keeps the target costs less.
    rng = np.random.default_rng(7)
    for _ in range(30):
        own = found.graph.own_variance * np.exp(0.1 * rng.normal(size=6))
        pair = found.graph.pair_variance * np.exp(0.1 * rng.normal(size=len(found.graph.edges)))
        near = view.PairGraph(own, found.graph.edges, pair)
        scale = (view.worst_mu(near, num_colluders=1, sensitivity=moves).max() / 0.8) ** 2
        own_cost, pair_cost = unequal_clients.average_costs(near.edges, STRAGGLERS, CHANCES)
        assert scale * (own_cost @ own + pair_cost @ pair) >= found.lower_bound


def _is_a_design(found, mu, moves, colluders=0):
    worst = view.worst_mu(found.graph, num_colluders=colluders, sensitivity=moves)
    assert np.all(worst <= mu * (1 + 1e-12)) and worst.max() == pytest.approx(mu, rel=1e-9)
    assert found.lower_bound <= found.expected_variance <= found.lower_bound * (1 + 1e-5)


# Without its centre a star is in pieces.
@pytest.mark.parametrize(
    ("edges", "colluders"),
    [(complete_edges(5), 0), (complete_edges(5), 1), ([[0, i] for i in range(1, 5)], 0)],
)
def test_where_nobody_straggles_all_honest_clients_share_one_noise(edges, colluders):
    moves = np.asarray([1.0, 0.7, 0.5, 0.3, 0.2])
    for probabilities in ([1.0], [1.0, 0.0]):
        silent = np.zeros((len(probabilities), 5), bool)
        silent[1:, 3] = True  # may straggle, but never does
        found = unequal_clients.heterogeneous(
            edges, silent, probabilities, mu=0.8, sensitivity=moves, num_colluders=colluders
        )
        _is_a_design(found, 0.8, moves, colluders)
        if not colluders:
            # Pair noise is free, so what is left is the sum of own noises, which hides the largest
            # move: over N^2.
            assert found.expected_variance == pytest.approx((1.0 / 0.8) ** 2 / 25, rel=1e-5)
    even = unequal_clients.heterogeneous(
        edges, [[False] * 5], [1.0], mu=0.8, sensitivity=1.0, num_colluders=colluders
    )
    assert even.expected_variance == pytest.approx(
        (1 / 0.8) ** 2 / 25 * 5 / (5 - colluders), rel=1e-5
    )


@pytest.mark.parametrize("colluders", [0, 1])
def test_two_that_always_straggle_together_are_the_limit_of_two_that_nearly_do(colluders):
    silent = np.zeros((5, 6), bool)
    silent[1, [0, 1]] = silent[2, 2] = silent[3, [3, 4]] = silent[4, 0] = True
    moves = np.asarray([1.0, 0.4, 0.6, 0.5, 0.9, 0.2])
    rest = {"mu": 0.8, "sensitivity": moves, "num_colluders": colluders}
    costs = []
    for alone in (0.0, 1e-9, 1e-4):
        law = np.asarray([0.5 - alone, 0.2, 0.2, 0.1, alone])
        found = unequal_clients.heterogeneous(complete_edges(6), silent, law, **rest)
        _is_a_design(found, 0.8, moves, colluders)
        costs.append(found.expected_variance)
    assert costs[0] <= costs[1] * (1 + 1e-5) and costs[1] <= costs[2] * (1 + 1e-5)
    assert costs[2] == pytest.approx(costs[0], rel=5e-2)


def test_a_client_that_always_straggles_hides_behind_noise_of_its_own_that_costs_nothing():
    silent = np.zeros((2, 5), bool)
    silent[:, 3], silent[1, 0] = True, True
    for colluders in (0, 1, 4):  # of 4, one set leaves only that client
        found = unequal_clients.heterogeneous(
            complete_edges(5), silent, [0.6, 0.4], mu=1.0, sensitivity=1.0, num_colluders=colluders
        )
        _is_a_design(found, 1.0, 1.0, colluders)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_colluders": 50}, "num_colluders < 50"),
        ({"straggler_pmf": uniform(50)}, "at most 49 of 50"),
        ({"straggler_pmf": [0.5, 0.4]}, "sum 1"),
        ({"straggler_pmf": [1.5, -0.5]}, "sum 1"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"delta": 1.0}, "delta"),
        ({"sensitivity": 0.0}, "sensitivity"),
        ({"formula": "print"}, "formula"),
        ({"failure_prob": 1e-3}, "failure_prob < delta"),
        ({"num_neighbors": 50}, "num_neighbors < 50"),
    ],
)
def test_bad_arguments_are_refused_by_name(change, words):
    arguments = {
        "num_clients": 50,
        "num_colluders": 10,
        "straggler_pmf": uniform(10),
        "epsilon": 3.0,
        "delta": 1e-5,
    }
    with pytest.raises(ValueError, match=words):
        least_noise.pair_calibration(**{**arguments, **change})


def test_erratum_e21_a_secure_sum_without_honest_noise_is_refused():
    for call in (
        lambda: least_noise.expected_variance("secure_sum", 50, 40, uniform(10), mu=1.0),
        lambda: least_noise.client_variance("secure_sum", 50, 40, 10, mu=1.0),
    ):
        with pytest.raises(ValueError, match="nobody honest"):
            call()
    assert least_noise.client_variance("secure_sum", 50, 10, 10, mu=0.5) == pytest.approx(4 / 30)
    assert least_noise.client_variance("local", 50, 10, 10, mu=0.5) == 4.0
