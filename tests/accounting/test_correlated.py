"""Strategies of correlated noise: errors and sensitivities by definition, and jax_privacy's."""

import itertools

import numpy as np
import pytest
from scipy import linalg

from fljax import accounting
from fljax.accounting import correlated, events
from fljax_kernels.correlated import Strategy
from fljax_kernels.correlated.cases import CASES
from fljax_kernels.correlated.strategies import KINDS

# jax_privacy, optimize_banded_toeplitz: (rounds, bands, what is least) -> mean and largest squared
# error times the squared sensitivity, one participation.
TOEPLITZ = {
    (128, 8, "max"): (11.931871659966388, 20.62705459618581),
    (256, 16, "mean"): (13.23194332709246, 22.82173531394305),
    (256, 16, "max"): (13.443755616975276, 22.512554800455664),
}


# jax_privacy, dense.optimize(32, bands=4, equal_norm=True), for the mean and for the maximum.
DENSE = {"mean": 5.924133335575917, "max": 10.514163317842435}


def ones(count):
    return np.tri(count)


def brute_force(matrix, separation, most):
    """By all sets of rounds: of non-negative products the unit's vectors are best all alike."""
    count, best = len(matrix), 0.0
    gram = np.abs(matrix.T @ matrix)
    for size in range(1, most + 1):
        for rounds in itertools.combinations(range(count), size):
            if all(b - a >= separation for a, b in itertools.pairwise(rounds)):
                best = max(best, gram[np.ix_(rounds, rounds)].sum())
    return np.sqrt(best)


@pytest.mark.parametrize(("case", "wanted"), TOEPLITZ.items(), ids=str)
def test_errors_of_the_best_bands_are_those_of_jax_privacy(case, wanted):
    rounds, bands, error = case
    strategy = correlated.banded(rounds, bands, error=error)
    errors = correlated.squared_errors(strategy)
    moved = correlated.sensitivity(strategy, min_separation=rounds) ** 2
    found = np.array([errors.mean(), errors.max()]) * moved
    best = 0 if error == "mean" else 1
    np.testing.assert_allclose(found[best], wanted[best], rtol=1e-6)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_buffers_and_inverse_bands_leave_what_those_of_jax_privacy_do():
    # buffered_toeplitz.optimize(n=64, two buffers), optimize_banded_inverse_toeplitz(64, 4, 8).
    two = correlated.buffered(64, 2)
    moved = correlated.sensitivity(two, min_separation=64) ** 2
    error = correlated.squared_errors(two).max() * moved
    np.testing.assert_allclose(error, 2.401557023928433 * 2.381162989168197, rtol=1e-6)
    inverse = correlated.banded_inverse(64, 4, min_separation=8)
    np.testing.assert_allclose(
        inverse.coefs, [1.0, -0.6038266752, -0.181258128, 0.0411439469], atol=1e-6
    )
    peer = Strategy("banded_inverse", (1.0, -0.6038266752, -0.181258128, 0.0411439469), 64)
    column = correlated.encoder(peer)[:, 0]
    moved = np.linalg.norm(sum(np.roll(column, 8 * i) * (np.arange(64) >= 8 * i) for i in range(8)))
    np.testing.assert_allclose(moved**2, 20.293598304299618, rtol=1e-6)
    np.testing.assert_allclose(correlated.squared_errors(peer).mean(), 3.136524886788118, rtol=1e-6)


def test_the_square_root_has_the_error_and_sensitivities_of_jax_privacy():
    root = correlated.square_root(64)
    np.testing.assert_allclose(correlated.squared_errors(root).max(), 2.388848108295434, rtol=1e-6)
    for options, squared in (
        ({"min_separation": 64}, 2.388848108295435),
        ({"min_separation": 8}, 50.15585143397344),
        ({"min_separation": 8, "participations": 3}, 12.936953309984117),
    ):
        found = correlated.sensitivity(root, **options) ** 2
        np.testing.assert_allclose(found, squared, rtol=1e-6)


@pytest.mark.slow(reason="optimises two matrices", but=["mean"])
@pytest.mark.parametrize("error", ["mean", "max"])
def test_bands_of_each_round_leave_no_more_than_toeplitz_bands_and_those_of_jax_privacy(error):
    strategy = correlated.dense_banded(32, 4, error=error)
    measure = np.mean if error == "mean" else np.max
    moved = correlated.sensitivity(strategy, min_separation=32) ** 2
    assert moved == pytest.approx(1.0, rel=1e-7)
    found = measure(correlated.squared_errors(strategy)) * moved
    toeplitz = correlated.banded(32, 4, error=error)
    plain = measure(correlated.squared_errors(toeplitz))
    plain *= correlated.sensitivity(toeplitz, min_separation=32) ** 2
    assert found < 0.99 * plain
    assert found <= DENSE[error] * (1 + 1e-6)
    # Participations four rounds apart meet columns that are orthogonal.
    several = correlated.sensitivity(strategy, min_separation=4)
    assert several == pytest.approx(np.sqrt(8), rel=1e-7)


@pytest.mark.parametrize("name", CASES)
def test_errors_are_the_rows_of_a_c_inverse(name):
    strategy = CASES[name]
    matrix = correlated.encoder(strategy)
    rows = ones(len(matrix)) @ np.linalg.inv(matrix)
    np.testing.assert_allclose(
        correlated.squared_errors(strategy), np.sum(rows**2, axis=1), rtol=1e-12
    )


def test_matrices_are_those_that_the_papers_draw():
    tree = [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 0, 1, 0, 0], [1, 1, 1, 1, 0], [0, 0, 0, 0, 1]]
    np.testing.assert_array_equal(correlated.encoder(correlated.tree(5)), tree)
    two = correlated.encoder(Strategy("banded", (1.0, 0.5), 3))
    np.testing.assert_array_equal(two, [[1, 0, 0], [0.5, 1, 0], [0, 0.5, 1]])
    inverse = correlated.encoder(Strategy("banded_inverse", (1.0, -0.5), 3))
    np.testing.assert_allclose(inverse, [[1, 0, 0], [0.5, 1, 0], [0.25, 0.5, 1]])
    buffers = correlated.encoder(Strategy("buffered", (0.5, 0.25, 0.5, 0.25), 4))
    column = [1, 0.75, 0.5 * 0.5 + 0.25 * 0.25, 0.5 * 0.25 + 0.25 * 0.0625]
    np.testing.assert_allclose(buffers, np.tril(linalg.toeplitz(column)))


def test_a_tree_costs_its_floors_as_its_event_says():
    for rounds, floors in ((1, 1), (7, 3), (8, 4), (100, 7)):
        moved = correlated.sensitivity(correlated.tree(rounds), min_separation=rounds)
        assert moved == pytest.approx(floors**0.5, rel=1e-12)


MATRICES = {
    **CASES,
    "square_root": correlated.square_root(11),
    "rising": Strategy("banded", (1.0, 0.2, 0.9), 11),
    "signs": Strategy("banded", (1.0, -0.5, 0.4, -0.1), 11),
}


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize(("separation", "most"), [(1, 2), (3, 2), (3, None), (4, None), (11, None)])
def test_no_set_of_rounds_moves_more_than_the_sensitivity(name, separation, most):
    strategy = MATRICES[name]
    matrix = correlated.encoder(strategy)
    count = correlated.most_participations(len(matrix), separation, most)
    truth = brute_force(matrix, separation, count)
    found = correlated.sensitivity(strategy, min_separation=separation, participations=most)
    assert found >= truth * (1 - 1e-12)
    column = matrix[:, 0]
    toeplitz = strategy.kind != "tree" and (column >= 0).all() and (np.diff(column) <= 0).all()
    narrow = strategy.kind == "banded" and len(strategy.coefs) <= separation
    if toeplitz or narrow:  # then it is exact
        assert found <= truth * (1 + 1e-9)
    # Vectors of random directions move no more than parallel ones.
    rng = np.random.default_rng(0)
    rounds = np.arange(0, len(matrix), separation)[:count]
    units = rng.normal(size=(len(rounds), 3))
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    assert np.linalg.norm(matrix[:, rounds] @ units) <= found * (1 + 1e-12)


def any_strategy(rng):
    """Of any kind, with numbers of any sign, more bands than rounds among them."""
    count, kind = int(rng.integers(1, 7)), str(rng.choice(KINDS))
    size = int(rng.integers(1, count + 3))
    rest = rng.choice([0.3, 1.0, 3.0]) * rng.normal(size=size)
    if kind in ("banded", "banded_inverse"):
        return Strategy(kind, (1.0, *rest[1:].tolist()), count)
    if kind == "buffered":
        return Strategy(kind, (*rng.random(size).tolist(), *rest.tolist()), count)
    if kind == "tree":
        return Strategy(kind, (), count)
    rows = rng.normal(size=(count, min(size, count)))
    rows[:, 0] = np.abs(rows[:, 0]) + 0.1
    own = np.arange(rows.shape[1]) <= np.arange(count)[:, None]
    return Strategy(kind, tuple(np.where(own, rows, 0.0).ravel().tolist()), count)


def test_no_matrix_no_rounds_and_no_signs_move_more_than_the_sensitivity():
    """All sets of rounds and all signs of what a unit adds, of matrices that are drawn; of those
    with turns all starts, too.
    """
    rng = np.random.default_rng(0)
    for _ in range(60):
        strategy = any_strategy(rng)
        count, separation = strategy.num_rounds, int(rng.integers(1, 8))
        most = None if rng.random() < 0.5 else int(rng.integers(1, 4))
        cyclic = bool(rng.integers(2))
        found = correlated.sensitivity(
            strategy, min_separation=separation, participations=most, cyclic=cyclic
        )
        # Numbers of all rounds, in {-1, 0, 1}.
        x = np.array(list(itertools.product((-1.0, 0.0, 1.0), repeat=count)))
        there = x != 0
        near = np.zeros(len(x), bool)
        for apart in range(1, min(separation, count)):
            near |= (there[:, apart:] & there[:, :-apart]).any(axis=1)
        turns = np.arange(count) % separation
        sides = sum(there[:, turns == turn].any(axis=1).astype(int) for turn in range(separation))
        allowed = ~near & (there.sum(axis=1) <= (most or count)) & ((sides <= 1) | (not cyclic))
        moved = np.linalg.norm(x[allowed] @ correlated.encoder(strategy).T, axis=1)
        assert moved.max() <= found * (1 + 1e-12)
        # `moved` knows the rounds.
        known = correlated.moved(strategy, there[allowed].T)
        assert (moved <= known * (1 + 1e-12)).all()


@pytest.mark.parametrize("name", MATRICES)
def test_clients_that_take_turns_move_no_more_than_their_own_sensitivity(name):
    strategy = MATRICES[name]
    matrix = correlated.encoder(strategy)
    found = correlated.sensitivity(strategy, min_separation=3, cyclic=True)
    for first in range(3):
        rounds = np.arange(first, len(matrix), 3)
        gram = np.abs(matrix.T @ matrix)[np.ix_(rounds, rounds)]
        assert np.sqrt(gram.sum()) <= found * (1 + 1e-12)
    assert found <= correlated.sensitivity(strategy, min_separation=3) * (1 + 1e-12)


def test_a_client_that_skips_a_turn_is_within_its_sensitivity():
    """Rounds 0 and 2 of C's columns (1, 0, 1, 0), .. move 2 at round 2, and 1 at rounds 0 and 4."""
    strategy = Strategy("banded", (1.0, 0.0, 1.0), 4)
    found = correlated.sensitivity(strategy, min_separation=1, participations=2, cyclic=True)
    assert found >= np.sqrt(5)


@pytest.mark.parametrize("error", ["max", "mean"])
def test_what_is_chosen_is_better_than_what_is_near(error):
    def loss(strategy, separation):
        errors = correlated.squared_errors(strategy)
        left = errors.max() if error == "max" else errors.mean()
        return left * correlated.sensitivity(strategy, min_separation=separation) ** 2

    chosen = {
        12: correlated.banded(40, 4, error=error),
        8: correlated.banded_inverse(40, 4, min_separation=8, error=error),
        10: correlated.buffered(40, 2, min_separation=10, error=error),
    }
    for separation, strategy in chosen.items():
        least = loss(strategy, separation)
        for i in range(strategy.kind != "buffered", len(strategy.coefs)):
            for step in (-5e-4, 5e-4):
                coefs = list(strategy.coefs)
                coefs[i] += step
                if strategy.kind == "buffered" and i < len(coefs) // 2 and coefs[i] >= 1:
                    continue  # the end of the range
                near = Strategy(strategy.kind, tuple(coefs), 40)
                assert loss(near, separation) >= least * (1 - 1e-8), (strategy.kind, i)


def test_correlated_noise_leaves_less_than_independent_noise_and_trees():
    rounds = 64
    one = lambda s: (
        correlated.squared_errors(s).max() * correlated.sensitivity(s, min_separation=rounds) ** 2
    )
    found = [
        one(s)
        for s in (
            correlated.square_root(rounds),
            correlated.buffered(rounds, 3),
            correlated.banded(rounds, 16, error="max"),
            correlated.tree(rounds),
            correlated.banded(rounds, 1),
        )
    ]
    assert found == sorted(found)
    assert found[1] < 1.01 * found[0]
    assert found[-1] == pytest.approx(rounds, rel=1e-9)


def claim(mechanism, relation="ADD_OR_REMOVE_ONE"):
    return accounting.PrivacyEvent(
        mechanism=mechanism, privacy_unit="client", neighboring_relation=relation
    )


@pytest.mark.parametrize("method", ["gdp", "pld", "rdp", "auto"])
def test_a_matrix_mechanism_costs_what_its_one_gaussian_mechanism_costs(method):
    # Four participations, whose columns of norm sqrt(1.25) are orthogonal: C moves by sqrt(5).
    banded = events.CorrelatedGaussian(4.0, "banded", (1.0, 0.5), 20, 5)
    one = events.Gaussian(4.0 / (3 * 1.25 + 1.25) ** 0.5)
    for relation in accounting.NeighboringRelation:
        found, wanted = (
            accounting.epsilon(claim(m, relation), delta=1e-5, method=method) for m in (banded, one)
        )
        assert found == pytest.approx(wanted, rel=1e-9) and found >= wanted * (1 - 1e-12)
        twice = claim(banded, relation).repeat(2)
        assert accounting.epsilon(twice, delta=1e-5, method=method) > found


def test_a_tree_costs_what_its_own_event_says():
    # dp_accounting's event: 8 floors of 200 rounds.
    tree = events.CorrelatedGaussian(4.0, "tree", (), 200, 200)
    other = events.TreeAggregation(4.0, (200,))
    found, wanted = (
        accounting.epsilon(claim(m, "REPLACE_SPECIAL"), delta=1e-6, method="pld")
        for m in (tree, other)
    )
    assert found == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize(
    ("noise", "rounds", "delta", "wanted"),
    [
        (8.83, 1600, 1e-6, 1.8003114111793908),
        (8.83, 1600, 1e-3, 1.1205552843387085),
        (4.0, 200, 1e-6, 3.543049895416111),
        (2.0, 13, 1e-3, 3.552804900168968),
    ],
)
def test_a_tree_costs_what_dp_accounting_says(noise, rounds, delta, wanted):
    # dp-accounting 0.6.0, SingleEpochTreeAggregationDpEvent under REPLACE_SPECIAL
    orders = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
    tree = claim(events.CorrelatedGaussian(noise, "tree", (), rounds, rounds), "REPLACE_SPECIAL")
    found = accounting.epsilon(tree, delta=delta, method="rdp", orders=orders)
    assert found == pytest.approx(wanted, rel=1e-9) and found >= wanted


def test_it_goes_to_dp_accounting_as_a_gaussian_mechanism_and_has_words():
    event = claim(events.CorrelatedGaussian(4.0, "tree", (), 8, 8))
    there = accounting.to_dp_event(event)
    assert there.noise_multiplier == pytest.approx(4.0 / 4**0.5, rel=1e-12)
    said = accounting.statement(event, delta=1e-5, method="gdp")
    assert "correlated over rounds (tree)" in said and "at least 8 apart" in said
