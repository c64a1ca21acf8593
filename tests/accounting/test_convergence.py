"""Convergence bounds on quadratics whose gap is known, and the printed one below the truth."""

import math

import numpy as np
import pytest

from fljax.papers.lightdp import convergence
from fljax.papers.lightdp.convergence import Problem

PROBLEM = Problem(smoothness=0.2, polyak_lojasiewicz=0.2, dissimilarity=1.0)


def true_gap(rounds):
    """Unit proximal steps on 0.1 |w|^2 in 100 dimensions from the optimum, noise 1e-4 per
    coordinate.
    """
    gap = 0.0
    for _ in range(rounds):
        gap = gap / 1.44 + 0.1 * 100 * 1e-4
    return gap


def test_oracle_o8_the_printed_bound_falls_below_the_truth():
    noise = {"dimension": 100, "variance": 1e-4}
    expected = {
        5: (2.744163547e-3, 3.549489619e-3, 3.735872304e-2, 2.880386560e-3),
        20: (3.270500582e-3, 2.571303598e-5, 4.625663600e-2, 3.566422559e-3),
    }
    for rounds, (true, literal, first, second) in expected.items():
        assert true_gap(rounds) == pytest.approx(true, rel=1e-9)
        assert convergence.printed(0.0, rounds, PROBLEM, lipschitz=0.1, **noise) == pytest.approx(
            literal, rel=1e-9
        )
        assert convergence.corrected(0.0, rounds, PROBLEM, lipschitz=0.1, **noise) == pytest.approx(
            first, rel=1e-9
        )
        assert convergence.sharpened(0.0, rounds, PROBLEM, **noise) == pytest.approx(
            second, rel=1e-9
        )
    # Erratum E7: far below a gap that never closes.
    assert (
        convergence.printed(0.0, 100, PROBLEM, lipschitz=0.1, **noise)
        < 1e-15
        < 1e-3
        < true_gap(100)
    )
    for rounds in (1, 5, 20, 100):
        assert true_gap(rounds) <= convergence.sharpened(0.0, rounds, PROBLEM, **noise)


def test_oracle_o8_norm_of_a_gaussian():
    assert convergence.noise_norm(1, 1.0) == pytest.approx(0.7978845608, rel=1e-9)
    assert convergence.noise_norm(10, 0.04) == pytest.approx(0.6168655520, rel=1e-9)
    assert convergence.noise_norm(10**6, 1.0) == pytest.approx(1000.0, rel=1e-6)


def test_oracle_o18_gradient_steps_with_random_stragglers():
    scale = np.asarray([0.5, 0.8, 1.2, 1.5])
    b = math.sqrt(np.mean(scale**2)) / np.mean(scale)
    assert b**2 == pytest.approx(1.145)
    zeta = convergence.sampling_excess(4, 1, b)
    assert zeta == pytest.approx(0.0161111111, rel=1e-8)
    problem = Problem(smoothness=1.0, polyak_lojasiewicz=1.0, dissimilarity=b)
    most = 1 / (1 + zeta)
    assert most == pytest.approx(0.9841443412, rel=1e-9)

    def true(eta):
        """Every coordinate: w <- (1 - eta mean of the responders' scales) w + noise; S is 0 or 1,
        equally likely.
        """
        second = 0.5 * (1 - eta * scale.mean()) ** 2
        second += 0.5 * np.mean([(1 - eta * np.delete(scale, i).mean()) ** 2 for i in range(4)])
        square = 4.0
        for _ in range(15):
            square = second * square + 20 * 0.01
        return square / 2

    for eta, gap, bound in ((0.3, 0.1963991317, 0.3412459358), (most, 0.1008118916, 0.1016111111)):
        assert true(eta) == pytest.approx(gap, rel=1e-9)
        found = convergence.gradient_steps(
            2.0,
            15,
            problem,
            learning_rate=eta,
            dimension=20,
            variance=0.01,
            num_clients=4,
            num_stragglers=1,
        )
        assert found == pytest.approx(bound, rel=1e-9) and found >= gap
    with pytest.raises(ValueError, match="learning_rate"):
        convergence.gradient_steps(
            2.0,
            15,
            problem,
            learning_rate=1.0,
            dimension=20,
            variance=0.01,
            num_clients=4,
            num_stragglers=1,
        )


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (Problem(0.2, 0.3, 1.0), "polyak_lojasiewicz <="),
        (Problem(0.2, 0.2, 0.9), "dissimilarity >= 1"),
        (Problem(0.7, 0.2, 1.0), "contraction"),
        (Problem(-1.0, 0.2, 1.0), "smoothness"),
    ],
)
def test_constants_that_prove_nothing_are_refused(problem, words):
    for bound in (convergence.printed, convergence.corrected):
        with pytest.raises(ValueError, match=words):
            bound(1.0, 5, problem, lipschitz=0.1, dimension=10, variance=0.1)
    with pytest.raises(ValueError, match=words):
        convergence.sharpened(1.0, 5, problem, dimension=10, variance=0.1)
