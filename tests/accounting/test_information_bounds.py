"""Reconstruction bounds: met by the best estimator, broken by none, and the plug-in that is no
bound shown wrong.
"""

import math

import numpy as np
import pytest

from fljax.accounting import information
from fljax.errors import PrivacyPreconditionError

LAM = np.array([4.0, 1.0, 0.25])
PUBLIC = {"covariance_source": "public"}
GAUSSIAN = {"data_model": "gaussian"}
NUM_DRAWS, DIM = 60_000, 16


def natural(nats=1.0, values=LAM):
    return information.natural(values, nats=nats, **PUBLIC)


def leak(nats, dimension=3):
    """A leakage of so many nats about a record, by a channel of flat spectrum."""
    return information.natural(np.ones(dimension), nats=nats, **PUBLIC).one_use()


def test_the_bounds_meet_the_oracles():  # F1, F2, F3, F4, F5, F6, N4
    entropy = information.gaussian_entropy(LAM, **GAUSSIAN, **PUBLIC)
    assert entropy.nats == pytest.approx(4.25681559961, rel=1e-9)
    rows = {
        0.1: (None, 1.20644989071, 1.50830767077),
        1.0: (0.513417119033, 0.513417119033, 0.573839254895),
        3.0: (0.135335283237, 0.135335283237, 0.135335283237),
    }
    for nats, (plain, projected, rate) in rows.items():
        if plain:
            assert information.theorem1(leak(nats), entropy=entropy).mse == pytest.approx(
                plain, rel=1e-9
            )
        assert information.gaussian_projected(leak(nats), LAM, **GAUSSIAN).mse == pytest.approx(
            projected, rel=1e-9
        )
        assert information.distortion_rate(leak(nats), LAM, **GAUSSIAN).mse == pytest.approx(
            rate, rel=1e-9
        )
    nothing = information.after_uses(natural(), 0, label_nats=0.0)
    assert information.theorem1(nothing, entropy=entropy).mse == pytest.approx(1, rel=1e-9)
    uniform = information.after_uses(natural(1.0, np.array([1 / 12])), 0, label_nats=0.0)
    assert information.theorem1(uniform, entropy=0.0).mse == pytest.approx(
        0.0585498315243, rel=1e-9
    )
    for nats, at_natural, at_white in (
        (1.0, 0.625184301396, 0.898479958307),
        (3.0, 0.13809923275, 0.236836745664),
    ):
        white = information.white(LAM, nats=nats, floor=0.0, **PUBLIC)
        assert information.linear_error(natural(nats), values=LAM, **GAUSSIAN).mse == pytest.approx(
            at_natural, rel=1e-9
        )
        assert information.linear_error(white, values=LAM, **GAUSSIAN).mse == pytest.approx(
            at_white, rel=1e-9
        )


def test_entropies_of_projections_give_the_gaussian_form():
    top = np.array(
        [information.gaussian_entropy(LAM[:k], **GAUSSIAN, **PUBLIC).nats for k in (1, 2, 3)]
    )
    for nats in (0.1, 1.0):
        general = information.projected(leak(nats), entropies=top).mse
        assert general == pytest.approx(
            information.gaussian_projected(leak(nats), LAM, **GAUSSIAN).mse, rel=1e-12
        )
    # a constant coordinate: the whole has no density, its varying part has
    flat = information.projected(leak(0.1), entropies=np.array([top[0], top[1], -np.inf]))
    assert flat.mse > 0 and information.theorem1(leak(0.1), entropy=-math.inf).mse == 0


def test_a_gaussian_entropy_is_certified_for_declared_gaussians_only():
    guess = information.gaussian_entropy(LAM, data_model="unknown", **PUBLIC)
    bound = information.theorem1(leak(1.0), entropy=guess)
    assert not guess.certified and not bound.certified and "more entropy" in bound.reason
    assert information.theorem1(
        leak(1.0), entropy=information.gaussian_entropy(LAM, **GAUSSIAN, **PUBLIC)
    ).certified
    for answer in (information.distortion_rate, information.gaussian_projected):
        assert not answer(leak(1.0), LAM, data_model="unknown").certified
    assert not information.linear_error(natural(), values=LAM, data_model="unknown").certified
    private = information.gaussian_entropy(LAM, data_model="gaussian", covariance_source="private")
    assert not information.theorem1(leak(1.0), entropy=private).certified


def test_the_gaussian_plug_in_is_broken_by_a_mixture():  # G, G1, G2
    # D = +-1 + N(0, 0.05^2), noise variance 0.2, by the trapezoid rule on a fine grid
    y, step = np.linspace(-6, 6, 48_001, retstep=True)

    def normal(x, var):
        return np.exp(-(x**2) / (2 * var)) / np.sqrt(2 * np.pi * var)

    def entropy_of(var):
        density = (normal(y - 1, var) + normal(y + 1, var)) / 2
        return (
            -np.sum(np.where(density > 0, density * np.log(np.maximum(density, 1e-300)), 0)) * step
        )

    h, true_nats = (
        entropy_of(0.05**2),
        entropy_of(0.2 + 0.05**2) - np.log(2 * np.pi * np.e * 0.2) / 2,
    )
    seen = 0.2 + 0.05**2
    density = (normal(y - 1, seen) + normal(y + 1, seen)) / 2
    side = normal(y - 1, seen) / (2 * density)
    mean = side * (1 + 0.05**2 / seen * (y - 1)) + (1 - side) * (-1 + 0.05**2 / seen * (y + 1))
    mmse = 1 + 0.05**2 - np.sum(density * mean**2) * step
    np.testing.assert_allclose(
        [true_nats, h, mmse], [0.663737288619, -0.883646559787, 0.041338197346], rtol=1e-6
    )
    variance = np.array([1 + 0.05**2])
    capacity = math.log1p(variance[0] / 0.2) / 2
    assert capacity == pytest.approx(0.896920317716)
    leakage = natural(capacity, variance).one_use()
    plug_in = information.theorem1(
        leakage, entropy=information.gaussian_entropy(variance, data_model="unknown", **PUBLIC)
    )
    assert plug_in.mse == pytest.approx(0.1667360, rel=1e-6) and not plug_in.certified
    assert plug_in.mse > 4 * mmse  # broken by the posterior mean
    at_truth = natural(true_nats, variance).one_use()
    worse = information.theorem1(
        at_truth, entropy=information.gaussian_entropy(variance, data_model="unknown", **PUBLIC)
    )
    assert worse.mse == pytest.approx(0.2658089, rel=1e-6)
    honest = information.theorem1(leakage, entropy=h)
    assert (
        honest.mse == pytest.approx(0.0016632, rel=1e-4) and honest.certified and honest.mse <= mmse
    )


def test_bounds_are_ordered_on_random_spectra():  # P4
    rng = np.random.default_rng(5)
    values = np.exp(rng.normal(size=(300, 8)) * rng.uniform(0, 3, (300, 1)))
    channel = information.natural(values, nats=10 ** rng.uniform(-2, 1.5, 300), **PUBLIC)
    uses = rng.integers(1, 50, 300)
    spent = information.after_uses(channel, uses, label_nats=0.0)
    entropy = information.gaussian_entropy(values, **GAUSSIAN, **PUBLIC)
    chain = np.stack(
        [
            information.theorem1(spent, entropy=entropy).mse,
            information.gaussian_projected(spent, values, **GAUSSIAN).mse,
            information.distortion_rate(spent, values, **GAUSSIAN).mse,
            information.linear_error(channel, values=values, uses=uses, **GAUSSIAN).mse,
        ]
    )
    assert np.all(np.diff(chain, axis=0) >= -1e-10 * chain[:-1])
    assert (np.diff(chain, axis=0) > 1e-3 * chain[:-1]).any(1).all()  # and strictly somewhere


def test_the_dense_form_of_the_linear_error_is_the_diagonal_one():
    dense = information.linear_error(natural(), covariance=np.diag(LAM), uses=3, **GAUSSIAN).mse
    assert dense == pytest.approx(
        information.linear_error(natural(), values=LAM, uses=3, **GAUSSIAN).mse, rel=1e-12
    )
    weighted = information.personalized(np.diag(LAM), np.array([1.0, 2, 5]), nats=1.0, **PUBLIC)
    noise = weighted.noise_var * np.array([1.0, 2, 5])
    found = information.linear_error(weighted, covariance=np.diag(LAM), **GAUSSIAN).mse
    assert found == pytest.approx(np.mean(LAM * noise / (LAM + noise)), rel=1e-12)


def draws(values, noise_var, uses=1):
    """Gaussian records `[N, d]` and the mean of `uses` noisy copies, in eigencoordinates."""
    rng = np.random.default_rng(11)
    x = rng.normal(size=(NUM_DRAWS, values.size)) * np.sqrt(values)
    return x, x + rng.normal(size=x.shape) * np.sqrt(noise_var / uses)


def measured(estimate, x):
    """Mean squared error per coordinate, and five standard errors of it."""
    errors = np.mean((estimate - x) ** 2, axis=1)
    return errors.mean(), 5 * errors.std() / math.sqrt(errors.size)


POWER_LAW = np.arange(1, DIM + 1.0) ** -2
CHANNELS = {
    "natural": lambda nats: information.natural(POWER_LAW, nats=nats, **PUBLIC),
    "white": lambda nats: information.white(POWER_LAW, nats=nats, floor=0.0, **PUBLIC),
    "min_power": lambda nats: information.min_power(POWER_LAW, nats=nats, **PUBLIC),
}


@pytest.mark.parametrize("nats", [1.0, 8.0, 30.0])
@pytest.mark.parametrize("kind", CHANNELS)
def test_the_best_estimator_meets_the_gaussian_answer_and_none_breaks_a_bound(kind, nats):
    channel = CHANNELS[kind](nats)
    noise = np.broadcast_to(
        channel.noise_var if channel.noise_values is None else channel.noise_values, DIM
    )
    x, seen = draws(POWER_LAW, noise)
    exact = information.linear_error(channel, values=POWER_LAW, **GAUSSIAN)
    found, error = measured(seen * POWER_LAW / (POWER_LAW + noise), x)
    # Errors of the posterior mean are independent N(0, v_i): the standard error is known beforehand
    # too.
    v = POWER_LAW * noise / (POWER_LAW + noise)
    assert error == pytest.approx(5 * np.sqrt(2 * np.sum(v**2) / NUM_DRAWS) / DIM, rel=0.05)
    assert error <= 0.02 * exact.mse and abs(found - exact.mse) <= min(error, 0.01 * exact.mse)
    # Not one estimator is below the optimum, and so not below any bound.
    ridge = [
        measured(seen * POWER_LAW / (POWER_LAW + c * noise), x)[0] for c in np.geomspace(0.2, 5, 9)
    ]
    estimators = {
        "record as seen": seen,
        "zero": np.zeros_like(x),
        "shrunk": 0.5 * seen,
        "clipped": np.clip(seen, -1, 1),
        "largest directions": seen * (np.arange(DIM) < 4),
    }
    bounds = [
        information.distortion_rate(channel.one_use(), POWER_LAW, **GAUSSIAN).mse,
        information.gaussian_projected(channel.one_use(), POWER_LAW, **GAUSSIAN).mse,
    ]
    assert min(ridge) >= exact.mse - error
    for estimate in estimators.values():
        mse, spread = measured(estimate, x)
        assert mse >= exact.mse - spread and mse >= max(bounds)
    # The control: who gets sixteen draws of noise breaks the bound for one, and not the bound for
    # sixteen.
    x, more = draws(POWER_LAW, noise, uses=16)
    mse, spread = measured(more * POWER_LAW / (POWER_LAW + noise / 16), x)
    assert mse < exact.mse - spread
    sixteen = information.linear_error(channel, values=POWER_LAW, uses=16, **GAUSSIAN)
    joint = information.after_uses(channel, 16, label_nats=0.0)
    assert mse >= sixteen.mse - spread
    assert mse >= information.distortion_rate(joint, POWER_LAW, **GAUSSIAN).mse


@pytest.mark.parametrize("nats", [15.0, 40.0])
def test_the_distortion_rate_bound_is_met_within_one_percent(nats):
    # Noise that leaves the error theta in each direction, 1/theta = 1/lam + 1/noise: (1/2) sum
    # ln(lam / theta) nats.
    values = np.linspace(0.5, 2, DIM)
    theta = np.exp(np.log(values).mean() - 2 * nats / DIM)
    assert theta < values.min()
    noise = theta * values / (values - theta)
    spent = information.mixed(np.diag(values), [np.diag(noise)], [1], label_nats=0.0, **PUBLIC)
    assert spent.nats == pytest.approx(nats, rel=1e-10)
    bound = information.distortion_rate(spent, values, **GAUSSIAN)
    assert bound.mse == pytest.approx(theta, rel=1e-9)
    x, seen = draws(values, noise)
    found, error = measured(seen * values / (values + noise), x)
    assert abs(found / bound.mse - 1) <= min(error / bound.mse, 0.01)
    assert error / bound.mse <= 0.011  # 5 sqrt(2 / (N d)), so that one percent means something


def test_a_uniform_record_obeys_theorem_1():
    # d = 1, uniform on [0, 1], entropy 0, not Gaussian: the posterior mean by the trapezoid rule.
    grid = np.linspace(0, 1, 2001)
    rng = np.random.default_rng(2)
    x = rng.uniform(size=4000)
    for nats in (0.2, 1.0, 2.5):
        channel = natural(nats, np.array([1 / 12]))
        seen = x + rng.normal(size=x.size) * math.sqrt(channel.noise_var)
        weight = np.exp(-((seen[:, None] - grid) ** 2) / (2 * channel.noise_var))
        weight[:, [0, -1]] /= 2
        mse, spread = measured((weight @ grid / weight.sum(1))[:, None], x[:, None])
        bound = information.theorem1(channel.one_use(), entropy=0.0)
        assert bound.certified and mse >= bound.mse - spread
        # and the Gaussian answer, which is not certified, is indeed no bound but near
        assert (
            bound.mse
            < information.distortion_rate(
                channel.one_use(), np.array([1 / 12]), data_model="unknown"
            ).mse
        )


def test_psnr_of_a_mean_error_is_not_the_mean_psnr():
    assert information.psnr_of_mse(0.01, 1.0) == pytest.approx(20)
    assert information.psnr_of_mse(0.0, 1.0) == math.inf
    np.testing.assert_allclose(
        information.psnr_of_mse(np.array([1.0, 0.1]), 255.0), 20 * np.log10(255) + [0, 10]
    )
    x, seen = draws(np.ones(2), 0.5)
    errors = np.mean((seen / 1.5 - x) ** 2, axis=1)
    bound = information.linear_error(
        information.natural(np.ones(2), nats=math.log(3), **PUBLIC), values=np.ones(2), **GAUSSIAN
    )
    assert errors.mean() == pytest.approx(bound.mse, rel=0.02)
    mean_of_psnr = np.mean(information.psnr_of_mse(errors, 1.0))
    assert (
        mean_of_psnr > bound.psnr(1.0) + 1
    )  # the ceiling holds for the mean error, not for the mean of PSNRs


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: information.theorem1(leak(1.0), entropy=math.nan), "entropy"),
        (lambda: information.theorem1(leak(1.0), entropy=math.inf), "entropy"),
        (lambda: information.projected(leak(1.0), entropies=np.zeros(2)), "entropies of shape"),
        (lambda: information.distortion_rate(leak(1.0), np.ones(4), **GAUSSIAN), "3 eigenvalues"),
        (lambda: information.distortion_rate(leak(1.0), LAM, data_model="normal"), "data_model"),
        (lambda: information.linear_error(natural(), **GAUSSIAN), "one of values, covariance"),
        (lambda: information.linear_error(natural(), values=LAM, uses=0, **GAUSSIAN), "uses > 0"),
        (lambda: information.psnr_of_mse(-1.0, 1.0), "mse >= 0"),
        (lambda: information.psnr_of_mse(1.0, 0.0), "data_range"),
        (
            lambda: information.theorem1(
                leak(1.0), entropy=information.gaussian_entropy(np.ones(2), **GAUSSIAN, **PUBLIC)
            ),
            "dimension 3",
        ),
        (
            lambda: information.distortion_rate(
                information.private_sgd_nats(
                    noise_multiplier=1.0,
                    batch_size=2,
                    target="batch_mean",
                    record_dimension=3,
                    assume_iid=True,
                ),
                LAM,
                **GAUSSIAN,
            ),
            "about a record",
        ),
    ],
)
def test_bad_input_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_an_upload_is_no_noisy_record():
    upload = information.clipped_upload(
        l2_clip_norm=1.0, num_params=9, record_dimension=3, nats=1.0, space="gradient"
    )
    with pytest.raises(PrivacyPreconditionError, match="data space"):
        information.linear_error(upload, values=LAM, **GAUSSIAN)
