"""Metrics against the specification's oracles, closed forms and float64 code written apart."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import signal, stats

from fljax.attacks import metrics

X = np.arange(16) / 15
Z = np.clip(X + 0.1 * np.where(np.arange(16) % 2 == 0, 1, -1), 0, 1)


def test_oracle_k1():
    found = [np.asarray(v, np.float32).reshape(4, 4, 1) for v in (X, Z)]
    assert float(metrics.mse(*found)) == pytest.approx(0.00930555555556, rel=1e-5)
    assert float(metrics.psnr(*found)) == pytest.approx(20.3125769373, rel=1e-5)
    assert float(metrics.ssim(*found)) == pytest.approx(0.950716450408, rel=1e-5)
    assert float(metrics.cosine(*found)) == pytest.approx(0.98647382992, rel=1e-5)


def test_oracle_k2():
    mia, dra = metrics.imp_mia(0.8, 0.55), metrics.imp_dra(0.02, 0.08)
    assert (mia, dra, metrics.gdc(mia, dra)) == pytest.approx((0.3125, 0.75, 0.53125))
    assert metrics.imp_dra(0.0, 0.1) == 1.0


def ssim_float64(x, y, data_range):
    """By scipy's convolution, with moments of centred images: a different way to the same
    numbers.
    """
    at = np.arange(11) - 5
    window = np.exp(-(at**2) / 4.5)
    window = np.outer(window, window) / np.outer(window, window).sum()
    c1, c2 = (0.01 * data_range) ** 2, (0.03 * data_range) ** 2
    values = []
    for channel in range(x.shape[2]):
        a, b = x[..., channel], y[..., channel]
        for i, j in itertools.product(range(x.shape[0] - 10), range(x.shape[1] - 10)):
            p, q = a[i : i + 11, j : j + 11], b[i : i + 11, j : j + 11]
            mp, mq = (window * p).sum(), (window * q).sum()
            vp, vq = (window * (p - mp) ** 2).sum(), (window * (q - mq) ** 2).sum()
            cov = (window * (p - mp) * (q - mq)).sum()
            values.append(
                (2 * mp * mq + c1) * (2 * cov + c2) / ((mp**2 + mq**2 + c1) * (vp + vq + c2))
            )
    assert window.sum() == pytest.approx(1) and signal.convolve2d(a, window, "valid").shape == (
        i + 1,
        j + 1,
    )
    return float(np.mean(values))


@pytest.mark.parametrize(("shape", "data_range"), [((16, 14, 3), 1.0), ((11, 11, 1), 255.0)])
def test_ssim_agrees_with_float64(shape, data_range):
    rng = np.random.default_rng(1)
    x = rng.random(shape) * data_range
    y = np.clip(0.7 * x + 0.3 * rng.random(shape) * data_range, 0, data_range)
    found = float(metrics.ssim(x.astype(np.float32), y.astype(np.float32), data_range=data_range))
    assert found == pytest.approx(ssim_float64(x, y, data_range), abs=2e-5)
    assert float(metrics.ssim(x, x, data_range=data_range)) == pytest.approx(1.0, abs=1e-6)


def test_ssim_agrees_with_scikit_image():
    from skimage.metrics import structural_similarity

    rng = np.random.default_rng(2)
    x, y = rng.random((2, 20, 17, 3))
    expected = structural_similarity(
        x,
        y,
        data_range=1.0,
        channel_axis=2,
        gaussian_weights=True,
        sigma=1.5,
        use_sample_covariance=False,
    )
    assert float(metrics.ssim(x, y)) == pytest.approx(expected, abs=2e-5)


def test_psnr_is_infinite_for_equal_images_and_6_db_for_half_the_range():
    x = jnp.zeros((4, 4, 1))
    assert float(metrics.psnr(x, x)) == math.inf
    assert float(metrics.psnr(x, x + 0.5)) == pytest.approx(20 * math.log10(2), rel=1e-6)
    assert float(metrics.psnr(x, x + 127.5, data_range=255.0)) == pytest.approx(
        20 * math.log10(2), rel=1e-6
    )


def test_cosine_of_zero_is_zero_and_of_small_trees_does_not_underflow():
    tree = {"a": jnp.full(3, 1e-15), "b": jnp.full((2, 2), -1e-15)}
    assert float(metrics.cosine(tree, jax.tree.map(jnp.zeros_like, tree))) == 0.0
    assert float(metrics.cosine(tree, jax.tree.map(lambda v: -2 * v, tree))) == pytest.approx(
        -1.0, rel=1e-6
    )


def test_feature_mse_is_the_mse_of_the_features():
    found = metrics.feature_mse(lambda x: x.sum(0), jnp.ones((3, 2)), jnp.zeros((3, 2)))
    assert float(found) == 9.0


def test_distances_are_the_same_under_jit_and_vmap():
    rng = np.random.default_rng(3)
    x, y = jnp.asarray(rng.random((2, 3, 12, 12, 1)), jnp.float32)
    for distance in (metrics.mse, metrics.psnr, metrics.ssim, metrics.cosine):
        alone = [float(distance(a, b)) for a, b in zip(x, y, strict=True)]
        np.testing.assert_allclose(jax.jit(jax.vmap(distance))(x, y), alone, rtol=1e-5)


def test_assignment_finds_a_permutation_and_leaves_what_is_not_finite_for_last():
    rng = np.random.default_rng(4)
    truth = rng.random((6, 5, 2))
    order = rng.permutation(6)
    np.testing.assert_array_equal(
        metrics.assignment(truth[order] + 0.01 * rng.random((6, 5, 2)), truth), order
    )
    found = truth[order].copy()
    found[2] = np.nan
    np.testing.assert_array_equal(metrics.assignment(found, truth), order)


def test_auc_counts_pairs_with_ties_half():
    rng = np.random.default_rng(5)
    yes, no = rng.integers(0, 6, 40), rng.integers(0, 5, 31)
    pairs = [(a > b) + 0.5 * (a == b) for a in yes for b in no]
    assert metrics.auc(yes, no) == pytest.approx(np.mean(pairs), abs=1e-15)
    assert metrics.auc([1, np.inf], [-np.inf, 0]) == 1.0


def test_tpr_never_uses_a_threshold_with_more_false_positives():
    members, others = [3, 2, 2, 0], [2, 1, 1, 0, -1]
    assert metrics.tpr_at_fpr(members, others, 0.0) == 0.25
    assert metrics.tpr_at_fpr(members, others, 0.19) == 0.25
    assert metrics.tpr_at_fpr(members, others, 0.2) == 0.75  # one of five others, 2, may be above 1
    assert metrics.tpr_at_fpr(members, others, 1.0) == 1.0


def test_asr_is_the_balanced_accuracy():
    assert metrics.asr([1, 1, -1], [-1, -1, -1, 1]) == pytest.approx((2 / 3 + 3 / 4) / 2)


def test_bad_arguments_raise_in_one_line():
    for call, text in (
        (lambda: metrics.imp_mia(0.0, 0.5), "auc_without > 0"),
        (lambda: metrics.imp_dra(0.1, 0.0), "mse_with > 0"),
        (lambda: metrics.imp_dra(math.nan, 0.1), "mse_without >= 0"),
        (lambda: metrics.imp_dra(0.1, math.nan), "mse_with > 0"),
        (lambda: metrics.auc([], [1.0]), "members to hold scores"),
        (lambda: metrics.auc([1.0], [math.nan]), "others to hold scores"),
        (lambda: metrics.tpr_at_fpr([1.0], [0.0], 1.5), "fpr in"),
        (lambda: metrics.mse(jnp.zeros((3, 1)), jnp.zeros(3)), "one shape"),
        (lambda: metrics.psnr(jnp.zeros((3, 1)), jnp.zeros((3, 3))), "one shape"),
        (lambda: metrics.ssim(jnp.zeros((4, 4, 1)), jnp.zeros((1, 4, 1))), "one shape"),
    ):
        with pytest.raises(ValueError, match=text):
            call()


@pytest.mark.parametrize("fpr", [0.01, 0.1])
def test_an_interval_of_true_positives_holds_the_rate_at_the_true_rate_of_false_ones(fpr):
    mu, confidence, repeats = 1.5, 0.9, 200
    truth = stats.norm.cdf(stats.norm.ppf(fpr) + mu)
    rng = np.random.default_rng(12)
    ends = np.array(
        [
            metrics.tpr_interval(
                rng.normal(size=500) + mu, rng.normal(size=800), fpr, confidence=confidence
            )
            for _ in range(repeats)
        ]
    )
    allowed = stats.binom.ppf(1 - 1e-4, repeats, (1 - confidence) / 2)
    assert (ends[:, 0] > truth).sum() <= allowed and (ends[:, 1] < truth).sum() <= allowed
    assert 0.3 * truth < np.median(ends[:, 0]) < truth < np.median(ends[:, 1]) < 2 * truth
    # Of few others the highest may be above more than so many, whatever the scores.
    assert metrics.tpr_interval(np.ones(500), np.zeros(20), fpr)[0] == 0.0
    low, high = metrics.tpr_interval(np.ones(500), np.zeros(800), fpr)
    assert low > 0.98 and high == 1.0
