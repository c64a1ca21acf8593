"""Gaussian random fields: what is drawn has the law that is stated."""

import math

import numpy as np
import pytest
from scipy import stats

from fljax import data
from fljax.data.sources import fields


@pytest.fixture(scope="module")
def drawn():
    return data.load("fields")


def test_fields_have_the_promised_shapes_and_the_same_values_each_time(drawn):
    for part, count in ((drawn.train, 4000), (drawn.test, 1000)):
        assert part["x"].shape == (count, 16, 16, 1) and part["x"].dtype == np.float32
        assert part["y"].shape == (count,) and part["y"].dtype == np.int32
        data.check_examples(part, num_classes=drawn.num_classes)
        # Quarters of the records, five standard errors.
        assert np.abs(np.bincount(part["y"]) / count - 0.25).max() <= 5 * math.sqrt(0.1875 / count)
    np.testing.assert_array_equal(data.load("fields").train["x"], drawn.train["x"])
    assert not (drawn.train["x"][:1000] == drawn.test["x"]).all(axis=(1, 2, 3)).any()


@pytest.mark.parametrize("side", [4, 16, 32])
def test_the_basis_is_orthonormal_and_frequencies_grow(side):
    rows = fields.basis(side)
    np.testing.assert_allclose(rows @ rows.T, np.eye(side * side), atol=1e-12)
    # The sum of squared differences of neighbours is a cosine's eigenvalue, 4 - 2 cos - 2 cos: by
    # growing frequency.
    image = rows.reshape(-1, side, side)
    rough = sum((np.diff(image, axis=axis) ** 2).sum(axis=(1, 2)) for axis in (1, 2))
    assert (
        rough[0] <= 1e-12
        and rough[1] == pytest.approx(2 - 2 * math.cos(math.pi / side))
        and rough[-1] == max(rough)
    )


def test_records_are_gaussian_with_the_stated_mean_and_covariance(drawn):
    x = np.concatenate([drawn.train["x"], drawn.test["x"]]).reshape(5000, -1).astype(np.float64)
    z = x @ fields.basis().T / np.sqrt(fields.spectrum())
    # Independent standard normals, but for float32's 3e-8 beside the least standard deviation of
    # 2e-3.
    assert np.abs(z.mean(axis=0)).max() <= 5 / math.sqrt(5000)
    cov = z.T @ z / 5000
    assert np.abs(np.diag(cov) - 1).max() <= 5 * math.sqrt(2 / 5000)
    assert np.abs(cov - np.diag(np.diag(cov))).max() <= 6 / math.sqrt(5000)  # of 32,640 pairs
    assert stats.kstest(z.reshape(-1)[:100_000], "norm").pvalue > 1e-4


def test_spectrum_and_entropy_are_those_of_a_power_law():
    values = fields.spectrum(32)
    assert values.mean() == pytest.approx(0.04) and values[9] == pytest.approx(values[0] / 100)
    by_scipy = stats.multivariate_normal(cov=np.diag(fields.spectrum(8))).entropy()
    assert fields.entropy(8) == pytest.approx(by_scipy, rel=1e-12)


def test_labels_can_be_learned_by_a_linear_model(drawn):
    """They are signs of linear functions of the record, so that least squares on the train part
    tells them apart.
    """

    def rows(part):
        x = part["x"].reshape(len(part["y"]), -1).astype(np.float64)
        return x @ fields.basis()[:16].T, np.stack(
            [part["y"] // 2, part["y"] % 2], axis=1
        ) * 2.0 - 1

    (x, y), (test_x, test_y) = rows(drawn.train), rows(drawn.test)
    weights = np.linalg.lstsq(x, y, rcond=None)[0]
    assert (np.sign(test_x @ weights) == test_y).all(axis=1).mean() > 0.9


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fields.spectrum(3), "side >= 4, got side=3"),
        (lambda: fields.make(np.random.default_rng(0), side=2), "side >= 4, got side=2"),
        (lambda: fields.make(np.random.default_rng(0), num_test=0), "num_test=0"),
    ],
    ids=range(3),
)
def test_bad_input_names_argument_value_and_rule(call, message):
    with pytest.raises(ValueError, match=message):
        call()
