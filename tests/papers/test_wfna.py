"""Water filling's reproduction: blocks as they are printed, and with weights of their own."""

import numpy as np
import pytest

from fljax import data
from fljax.papers.wfna import blocks, training


def test_blocks_that_share_weights_fall_below_the_floor_and_others_do_not():
    rows = np.array([[3.0, 0, 0, 0], [0, 1, 0, 0], [1, 1, 1, 0]])
    shared = blocks.lifted(rows, 2, scale=1 / 6, floor=0.25)
    # .119273235775, of the derivation, where the floor is .25
    assert shared.printed == pytest.approx(0.119273235775 / 0.25)
    assert shared.own == pytest.approx(1)
    # Nothing is added to the first block; to the second, of variances 1/6 and 0, 1/12 and 1/4.
    assert shared.added == pytest.approx(1 / 3)
    whole = blocks.lifted(rows, 1, scale=1 / 6, floor=0.25)
    assert whole.printed == whole.own == pytest.approx(1)


def test_two_equal_gradients_leave_a_direction_of_two_blocks_without_noise():
    twins = np.full((2, 2), 0.5**0.5)
    shared = blocks.lifted(twins, 2, scale=0.5, floor=0.25)
    assert shared.printed == pytest.approx(0, abs=1e-12) and shared.added == 0
    assert shared.own == pytest.approx(2)


def test_blocks_are_equal():
    with pytest.raises(ValueError, match="num_blocks to divide 4 coordinates, got num_blocks=3"):
        blocks.lifted(np.eye(4), 3, scale=1.0, floor=0.25)


def test_gradients_have_the_spectrum_of_their_client():
    dataset = data.load("digits")
    config = training.config_of(
        "GSGD-DP", dataset, batch_size=8, epsilon=10.0, epochs=100, l2_clip_norm=1.0
    )
    functional = training.Trainer("GSGD-DP", config, "softmax", dataset, 1).initial(0)
    rows = training.gradients(functional, dataset, config)
    assert rows.shape == (28, 650) and np.linalg.norm(rows, axis=1).max() <= 1 + 1e-12
    own = np.linalg.eigvalsh(rows @ rows.T / (8 * 28))
    assert own == pytest.approx(training.spectra(functional, dataset, config)[0], abs=1e-7)
