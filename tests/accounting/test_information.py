"""Channels, exposures and private SGD in nats: the spec's oracles, closed forms, errata shown
wrong, refusals.
"""

import math

import numpy as np
import pytest

from fljax.accounting import gaussian, information
from fljax.accounting.information import channels
from fljax.errors import PrivacyPreconditionError

LAM = np.array([4.0, 1.0, 0.25])
S3 = np.array([[4.0, 1.0, 0.5], [1.0, 2.0, 0.3], [0.5, 0.3, 1.0]])
BETA = np.array([1.0, 2.0, 5.0])
PUBLIC = {"covariance_source": "public"}
UPLOAD = {"l2_clip_norm": 2.0, "num_params": 100, "record_dimension": 64, "nats": 5.0}


def natural(nats=1.0, values=LAM):
    return information.natural(values, nats=nats, **PUBLIC)


def test_channels_meet_the_oracles():
    assert natural(3.0).noise_var == pytest.approx(0.172368123838, rel=1e-9)  # B1
    assert natural(300.0).log_noise_var == pytest.approx(-200, rel=1e-9)  # B2
    white = information.white(LAM, nats=1.0, floor=0.0, **PUBLIC)  # C1
    np.testing.assert_allclose(
        white.noise_values, [4.22059335924, 1.05514833981, 0.263787084952], rtol=1e-9
    )
    exact = information.personalized(S3, BETA, nats=1.0, **PUBLIC)  # D3, D4, D5
    bound = information.personalized(S3, BETA, nats=1.0, method="theorem3", **PUBLIC)
    assert exact.noise_var == pytest.approx(1.37342959406, rel=1e-9)
    assert bound.noise_var == pytest.approx(1.38117723796, rel=1e-9)
    assert bound.nats == pytest.approx(0.996486772366, rel=1e-9)
    ranged = information.range_certified(0.0, 1.0, dimension=3072, nats=300.0)  # N3
    assert ranged.noise_var == pytest.approx(1.15906642576, rel=1e-9)
    least = information.min_power(LAM, nats=1.0, **PUBLIC)  # F8
    np.testing.assert_allclose(
        least.noise_values, [1.92989129972, 1.26380594366, 0.729913944046], rtol=1e-9
    )
    for channel in (white, exact, ranged, least):
        one = information.after_uses(channel, 1, label_nats=0.0)
        assert one.nats == pytest.approx(channel.nats, rel=1e-11)
        assert one.certified and channel.one_use().nats == channel.nats


def test_a_covariance_of_one_coordinate_is_one():
    assert channels.checked_covariance([[2.0]]).tolist() == [[2.0]]
    with pytest.raises(ValueError, match=r"got shape \(0, 0\)"):
        channels.checked_covariance(np.zeros((0, 0)))


def test_clients_are_leading_axes():
    values = np.stack([LAM, 2 * LAM, LAM[::-1]])
    many = information.natural(values, nats=np.array([1.0, 3.0, 1.0]), **PUBLIC)
    np.testing.assert_allclose(
        np.exp(many.log_noise_var), [1.45863123592, 2 * 0.172368123838, 1.45863123592], rtol=1e-9
    )
    spent = information.after_uses(many, np.array([10, 0, 1]), label_nats=math.log(10))
    np.testing.assert_allclose(
        spent.nats, [3.20342110856 + math.log(10), 0, 1 + math.log(10)], rtol=1e-9
    )
    bound = information.distortion_rate(spent, values, data_model="gaussian")
    assert bound.mse.shape == (3,) and bound.certified
    assert bound.mse[1] == pytest.approx(3.5)  # no use, no information: the variance itself
    white = information.white(values, nats=1.0, **PUBLIC)
    np.testing.assert_allclose(white.floor, 1e-4 * values.mean(1))
    np.testing.assert_allclose(white.noise_values[0], (LAM + 1.75e-4) / np.expm1(2 / 3), rtol=1e-9)


def test_the_toy_example_of_the_paper():  # A1, A2, A3
    # gradient 2 W D at learning rate 1, D ~ N(-1, 1): variance 4 W^2
    at_two = natural(1.0, np.array([16.0]))
    assert at_two.noise_var == pytest.approx(2.50428228399, rel=1e-9)
    for w, nats in ((2.0, 1.0), (6.0, 2.03452623926), (0.5, 0.167991775111)):
        assert math.log1p(4 * w**2 / at_two.noise_var) / 2 == pytest.approx(nats, rel=1e-9)
    assert natural(1.0, np.array([1.0])).noise_var == pytest.approx(1 / math.expm1(2), rel=1e-9)


def test_the_printed_quotient_is_no_bound():  # D6, N1
    printed = information.printed.printed_eq20(S3, BETA, np.array([0.1, 0.5, 1, 1e6]))
    np.testing.assert_allclose(
        printed, [-0.264330926342, 8.42228074011, 1.02625078171, 0.50000005943], rtol=1e-9
    )
    low, high = 1.0, 2.0  # beyond the pole it falls to 1/2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (
            (middle, high)
            if information.printed.printed_eq20(S3, BETA, middle) > 1
            else (low, middle)
        )
    assert high == pytest.approx(1.02778069839, rel=1e-9)
    values = np.linalg.eigvals(S3 / BETA[:, None]).real
    truth = np.log1p(values / high).sum() / 2
    assert truth == pytest.approx(1.19239527029, rel=1e-9)
    assert truth > 1.19  # unsound: the budget was 1
    assert (
        np.log1p(values / information.personalized(S3, BETA, nats=1.0, **PUBLIC).noise_var).sum()
        / 2
        <= 1 + 1e-9
    )


def test_joint_nats_of_many_uses():  # J2, J3, J4, B3's zeros
    uses = np.array([1, 2, 10, 100])
    joint = information.after_uses(natural(), uses, label_nats=0.0)
    np.testing.assert_allclose(
        joint.nats, [1, 1.51377550922, 3.20342110856, 6.37892130134], rtol=1e-9
    )
    linear = information.after_uses(natural(), uses, label_nats=0.0, mode="linear")
    np.testing.assert_allclose(linear.nats, uses)
    white = information.white(np.ones(3072), nats=300.0, **PUBLIC)
    joint = information.after_uses(white, np.array([13, 10_000]), label_nats=0.0)
    np.testing.assert_allclose(joint.nats, [2052.16987623, 11791.710189], rtol=1e-9)
    np.testing.assert_allclose(np.exp(-2 * joint.nats / 3072), [0.262883, 4.634e-4], rtol=2e-4)
    once = information.after_uses(white, np.array([0, 13, 10_000]), label_nats=0.0, mode="once")
    np.testing.assert_array_equal(once.nats, [0, 300, 300])
    shapes = information.mixed(
        S3, [np.eye(3), 2 * np.eye(3), np.diag(BETA)], [1, 1, 1], label_nats=0.0, **PUBLIC
    )
    assert shapes.nats == pytest.approx(2.42940789193, rel=1e-9)
    same = information.mixed(
        np.diag(LAM), [natural().noise_var * np.eye(3)], [10], label_nats=0.5, **PUBLIC
    )
    assert same.nats == pytest.approx(3.20342110856 + 0.5, rel=1e-9)


def test_the_chain_rule_is_an_inequality():  # J1
    channel = information.natural(np.array([1.0]), nats=math.log(2) / 2, **PUBLIC)  # SNR 1
    one, two = information.after_uses(channel, np.array([1, 2]), label_nats=0.0).nats
    assert (one, two) == (pytest.approx(0.346573590280), pytest.approx(0.549306144334))
    assert two - one == pytest.approx(
        0.202732554054
    )  # what the second upload adds; the printed sum counts `one` again
    # The truth, from the joint Gaussian law of (D, Y1, Y2)
    cov = np.ones((3, 3)) + np.diag([0, 1, 1])
    log_det = [np.linalg.slogdet(m)[1] for m in (cov[:1, :1], cov[1:, 1:], cov)]
    assert (log_det[0] + log_det[1] - log_det[2]) / 2 == pytest.approx(two)
    assert information.after_uses(channel, 2, label_nats=0.0, mode="linear").nats == pytest.approx(
        0.693147180560
    )


def test_exposures_count_uses_of_records():
    weak, strong = natural(1.0), natural(3.0)
    exposure = information.start(4)
    exposure = information.spend(exposure, [0, 1, 1], weak)
    exposure = information.spend(exposure, np.array([[1, 3]]), strong)
    np.testing.assert_array_equal(exposure.uses, [1, 3, 0, 1])
    spent = information.total(exposure, weak, label_nats=0.25)
    precision = 2 / weak.noise_var + 1 / strong.noise_var
    expected = [1, np.log1p(LAM * precision).sum() / 2, 0, 3]
    np.testing.assert_allclose(spent.nats, expected + 0.25 * (exposure.uses > 0), rtol=1e-9)
    assert spent.mode == "joint" and spent.certified
    np.testing.assert_allclose(
        information.total(exposure, weak, label_nats=0.0, mode="linear").nats, [1, 5, 0, 3]
    )
    by_counts = information.expose(information.start(4), np.array([1, 2, 0, 0]), weak)
    np.testing.assert_array_equal(
        by_counts.precision_sum, information.spend(information.start(4), [0, 1, 1], weak)[0]
    )


def test_many_records_are_counted_as_each_alone():
    uses = np.arange(200)
    spent = information.total(
        information.expose(information.start(200), uses, natural()), natural(), label_nats=0.0
    )
    np.testing.assert_allclose(
        spent.nats, information.after_uses(natural(), uses, label_nats=0.0).nats, rtol=1e-12
    )


def test_the_noise_that_is_counted_is_the_noise_that_was_spent():
    spent = information.spend(information.start(1), [0], natural())
    weighted = information.personalized(np.diag(LAM), BETA, nats=1.0, **PUBLIC)
    whitened = information.white(LAM, nats=1.0, **PUBLIC)
    ranged = information.range_certified(-2.0, 2.0, dimension=3, nats=1.0)
    upload = information.clipped_upload(
        **UPLOAD | {"record_dimension": 3, "nats": 1.0}, space="gradient"
    )
    others = (
        natural(values=LAM / 100),  # joint nats 0.04 where the channel told 1
        natural(values=LAM[:2]),
        weighted,
        whitened,
        ranged,
        information.min_power(LAM, nats=1.0, **PUBLIC),
        upload,
    )
    with pytest.raises(PrivacyPreconditionError, match="shape"):
        information.total(spent, information.without_noise(LAM / 100, **PUBLIC), label_nats=0.0)
    for other in others:
        for call in (
            lambda other=other: information.total(spent, other, label_nats=0.0),
            lambda other=other: information.spend(spent, [0], other),
        ):
            with pytest.raises(PrivacyPreconditionError, match="shape"):
                call()
    # white noises of two covariances have the same values: the shape is in the noise
    crossed = information.spend(information.start(1), [0], whitened)
    for other in (
        information.white(LAM[::-1], nats=1.0, **PUBLIC),
        information.white(LAM, nats=1.0, floor=1.0, **PUBLIC),
    ):
        with pytest.raises(PrivacyPreconditionError, match="shape"):
            information.total(crossed, other, label_nats=0.0)
    # another strength of the same shape is as good
    for channel, strong in (
        (natural(), natural(3.0)),
        (weighted, information.personalized(np.diag(LAM), BETA, nats=3.0, **PUBLIC)),
        (whitened, information.white(LAM, nats=3.0, **PUBLIC)),
        (ranged, information.range_certified(-2.0, 2.0, dimension=3, nats=3.0)),
    ):
        exposure = information.spend(information.start(1), [0], channel)
        assert information.total(exposure, strong, label_nats=0.0).nats[0] == pytest.approx(
            1.0, rel=1e-9
        )
    # uploads are counted by their nats, whatever their strength
    later = information.clipped_upload(
        **UPLOAD | {"record_dimension": 3, "nats": 2.0}, space="gradient"
    )
    exposure = information.spend(information.spend(information.start(1), [0], upload), [0], later)
    assert information.total(exposure, upload, label_nats=0.0).nats[0] == 3.0


def test_a_channel_that_certifies_nothing_is_not_washed_clean():
    private = information.natural(LAM, nats=1.0, covariance_source="private")
    for order in ((private, natural()), (natural(), private)):
        exposure = information.start(1)
        for channel in order:
            exposure = information.spend(exposure, [0], channel)
        spent = information.total(exposure, natural(), label_nats=0.0)
        assert (
            not spent.certified
            and spent.covariance_source == "private"
            and "estimated" in spent.reason
        )
    exposure = information.spend(information.start(1), [0], natural())
    assert information.total(exposure, natural(), label_nats=0.0).certified


def test_noise_that_is_kept_costs_once():
    exposure = information.start(3, noise="once")
    for _ in range(5):
        exposure = information.spend(exposure, [0, 1], natural())
    spent = information.total(exposure, natural(), label_nats=0.0)
    np.testing.assert_allclose(spent.nats, [1, 1, 0])
    assert spent.mode == "once"
    with pytest.raises(PrivacyPreconditionError, match="drawn once"):
        information.spend(exposure, [1], natural(0.5))
    with pytest.raises(PrivacyPreconditionError, match="mode='once'"):
        information.total(exposure, natural(), label_nats=0.0, mode="joint")
    with pytest.raises(PrivacyPreconditionError, match="mode='once'"):
        information.total(information.start(3), natural(), label_nats=0.0, mode="once")


def test_no_noise_is_infinitely_many_nats_for_those_who_used_it():
    open_channel = information.without_noise(LAM, **PUBLIC)
    exposure = information.spend(information.start(2), [1], open_channel)
    spent = information.total(exposure, natural(), label_nats=0.0)
    np.testing.assert_array_equal(spent.nats, [0, np.inf])
    np.testing.assert_array_equal(
        information.total(exposure, natural(), label_nats=0.0, mode="linear").nats, [0, np.inf]
    )
    assert information.distortion_rate(spent, LAM, data_model="gaussian").mse[1] == 0
    assert information.without_noise(np.zeros(3), **PUBLIC).nats == 0


def test_adaptive_noise_is_certified_at_a_cap_only():
    exposure = information.expose(information.start(2), np.array([3, 1]), natural())
    assert not information.total(exposure, natural(), label_nats=0.0, adaptive=True).certified
    capped = information.total(
        exposure, natural(), label_nats=0.0, adaptive=True, precision_cap=10 / natural().noise_var
    )
    assert capped.certified
    np.testing.assert_allclose(capped.nats, 3.20342110856, rtol=1e-9)
    with pytest.raises(PrivacyPreconditionError, match="precision_cap"):
        information.total(
            exposure,
            natural(),
            label_nats=0.0,
            adaptive=True,
            precision_cap=2 / natural().noise_var,
        )


def test_dependent_records_add_what_the_others_tell():
    exposure = information.expose(information.start(3), np.array([10, 1, 0]), natural())
    with pytest.warns(information.CorrelatedRecordsWarning, match="groups of 3"):
        spent = information.total(exposure, natural(), label_nats=0.0, group_size=3)
    np.testing.assert_allclose(
        spent.nats, np.array([1, 0, 0]) * 3.20342110856 + [0, 1, 0] + 2 * 3.20342110856, rtol=1e-9
    )
    # g copies of one record, each used m times, are one record used g m times: less than was
    # counted
    assert information.after_uses(natural(), 30, label_nats=0.0).nats < spent.nats[0]


def test_a_budget_allows_so_many_uses():
    assert information.max_uses(natural(), total_nats=1.0, label_nats=0.0) == 1
    assert information.max_uses(natural(), total_nats=3.20342110857, label_nats=0.0) == 10
    assert (
        information.max_uses(natural(), total_nats=3.2 + math.log(10), label_nats=math.log(10)) == 9
    )
    assert information.max_uses(natural(), total_nats=3.3, label_nats=0.0, mode="linear") == 3
    assert information.max_uses(natural(), total_nats=0.9, label_nats=0.0) == 0
    assert information.max_uses(natural(), total_nats=1.0, label_nats=0.0, mode="once") == math.inf
    white = information.white(np.ones(3072), nats=300.0, **PUBLIC)
    assert information.max_uses(white, total_nats=2052.16987623, label_nats=0.0) == 13
    # (3/2) ln(1 + m / noise_var) = 1e4 at ln m = 20000 / 3 + ln noise_var, far beyond floats
    flat = natural(1.0, np.ones(3))
    assert information.max_uses(flat, total_nats=1e4, label_nats=0.0) == pytest.approx(
        math.exp(700)
    )
    many = information.max_uses(
        flat, total_nats=1e3, label_nats=0.0
    )  # and this one is a float still
    assert math.log(many) == pytest.approx(2000 / 3 + flat.log_noise_var, rel=1e-9)
    weak = natural(1e-300, np.ones(3))
    assert information.max_uses(
        weak, total_nats=1e300, label_nats=0.0, mode="linear"
    ) == pytest.approx(math.exp(700))
    still = information.without_noise(np.zeros(3), **PUBLIC)
    assert information.max_uses(still, total_nats=1.0, label_nats=0.0) == math.inf
    # N2: 3 nats in 3 uses
    per_use = {
        mode: information.per_use(LAM, total_nats=3.0, uses=3, mode=mode)
        for mode in ("joint", "linear")
    }
    assert math.exp(per_use["joint"]) == pytest.approx(0.517104, rel=1e-6)
    assert math.exp(per_use["linear"]) == pytest.approx(1.45863123592, rel=1e-9)


def test_the_papers_count_is_marked():
    count = information.paper_linear(natural(300.0), num_steps=10_000)
    assert count.nats == 3e6 and not count.certified and count.formula == "paper"
    assert [information.paper_rounds(total, 300) for total in (5e5, 1e6, 2e6, 3e6)] == [
        1666,
        3333,
        6666,
        10000,
    ]
    assert information.theorem1(count, entropy=0.0).certified is False


def test_private_sgd_in_nats():  # H1, H2
    def nats(noise_multiplier=0.8, target="batch", **options):
        options = {"batch_size": 64, "assume_iid": True, "record_dimension": 3072} | options
        return information.private_sgd_nats(
            noise_multiplier=noise_multiplier, target=target, **options
        )

    paper = [nats(z, formula="paper").nats for z in (0.8, 0.57, 0.46, 0.2066, 1.3)]
    np.testing.assert_allclose(
        paper, [100, 196.983687288, 302.457466919, 1499.40632881, 37.8698224852], rtol=1e-9
    )
    assert not nats(formula="paper").certified and nats().certified
    assert nats().nats == pytest.approx(50) and nats(num_params=62006).nats == pytest.approx(
        49.959724618, rel=1e-9
    )
    assert nats(assume_iid=False).nats == pytest.approx(50 * 64)
    assert nats().dimension == 64 * 3072 and nats(target="batch_mean").dimension == 3072
    assert nats(target="record").nats == pytest.approx(50 / 64)
    # a larger batch tells less about each record, more about itself
    record = [nats(target="record", batch_size=b, num_params=1000).nats for b in (1, 8, 64)]
    batch = [nats(batch_size=b, num_params=1000).nats for b in (1, 8, 64)]
    assert record[0] > record[1] > record[2] and batch[0] < batch[1] < batch[2]
    # who knows the rest of the batch gains nothing from its size, and never less than who does not
    known = [
        nats(target="record", batch_size=b, num_params=1000, side_info="rest_of_batch").nats
        for b in (1, 8, 64)
    ]
    assert known[0] == known[1] == known[2] == pytest.approx(record[0])
    options = {
        "calibration": "classical",
        "batch_size": 64,
        "target": "batch",
        "record_dimension": 64,
        "assume_iid": True,
    }
    half = information.private_sgd_nats_from_epsilon(0.5, 1e-5, **options)
    printed = information.private_sgd_nats_from_epsilon(0.5, 1e-5, formula="paper", **options)
    np.testing.assert_allclose(
        [printed.nats, half.nats], [0.681659249694, 0.340829624847], rtol=1e-9
    )


def test_an_equal_share_of_the_batch_needs_records_of_one_law():
    # Independent, not identically distributed: one gradient is +-1, seven are 0. It has all of the
    # nats, not an eighth.
    z, y = 2.0, np.linspace(-16, 16, 4001)
    given = np.exp(-((y - np.array([[-1.0], [1.0]])) ** 2) / (2 * z**2)) / math.sqrt(
        2 * math.pi * z**2
    )
    seen = given.mean(0)
    truth = np.sum(given * np.log(given / seen)) / 2 * (y[1] - y[0])
    options = {"noise_multiplier": z, "batch_size": 8, "record_dimension": 1, "num_params": 1}
    share = information.private_sgd_nats(target="record", assume_iid=True, **options)
    assert share.nats == pytest.approx(math.log(3) / 2 / 8) and share.nats < truth
    assert "identically distributed" in share.reason
    declared_not = information.private_sgd_nats(target="record", assume_iid=False, **options)
    batch = information.private_sgd_nats(target="batch", assume_iid=True, **options)
    for sound in (declared_not, batch):
        assert sound.nats >= truth and "identically" not in sound.reason


def test_a_million_clients_of_one_spectrum_take_little_memory(monkeypatch):
    kernels = information.budget._kernels
    sizes = []

    def watch(name):
        fun = getattr(kernels, name)

        def watched(*args):
            values, numbers = args
            sizes.append(np.shape(numbers)[: -1 if name == "mse_linear" else None])
            return fun(values, numbers)

        monkeypatch.setattr(kernels, name, watched)

    for name in ("capacity", "mse_distortion_rate", "mse_projected", "mse_linear"):
        watch(name)
    uses = np.arange(1_000_000).reshape(1000, 1000) % 150
    spent = information.after_uses(natural(), uses, label_nats=0.5)
    rates = {
        name: getattr(information, name)(spent, LAM, data_model="gaussian")
        for name in ("distortion_rate", "gaussian_projected")
    }
    exact = information.linear_error(natural(), values=LAM, uses=uses + 1, data_model="gaussian")
    assert (
        all(math.prod(size) <= 64 for size in sizes) and len(sizes) == 5 * 3
    )  # 150 distinct, by 64
    assert spent.nats.shape == exact.mse.shape == uses.shape
    for c in (0, 1, 149, 150):
        alone = information.after_uses(natural(), c % 150, label_nats=0.5)
        assert spent.nats.flat[c] == pytest.approx(alone.nats, rel=1e-13)
        noise = natural().noise_var / (c % 150 + 1)
        assert exact.mse.flat[c] == pytest.approx(np.mean(LAM * noise / (LAM + noise)), rel=1e-12)
        for name, found in rates.items():
            one = getattr(information, name)(alone, LAM, data_model="gaussian").mse
            assert found.mse.shape == uses.shape and found.mse.flat[c] == pytest.approx(
                one, rel=1e-13
            )
    assert information.after_uses(natural(), np.zeros(0), label_nats=0.5).nats.shape == (0,)


def test_epsilon_alone_does_not_fix_the_nats():  # H3
    stddev = 1 / gaussian.epsilon_to_mu(np.array([0.1, 0.5, 1.0]), 1e-5)
    np.testing.assert_allclose(stddev, [30.749566132, 7.03182667558, 3.73063163482], rtol=1e-9)
    from_noise = 1 / (2 * stddev[0] ** 2)
    printed = 0.1**2 / (2 * math.log(1.25 / 1e-5))
    assert (from_noise, printed) == (
        pytest.approx(5.288007e-4, rel=1e-6),
        pytest.approx(4.260370e-4, rel=1e-6),
    )
    # (2) as printed, even with its spare factor 2, is below the truth of a mechanism with this very
    # claim
    assert from_noise > printed
    for epsilon, delta in ((1.0, 1e-5), (10.0, 1e-5), (0.5, 0.0), (0.5, 1.0), (math.nan, 0.1)):
        with pytest.raises(PrivacyPreconditionError, match="classical"):
            information.private_sgd_nats_from_epsilon(
                epsilon,
                delta,
                calibration="classical",
                batch_size=1,
                target="batch",
                record_dimension=1,
                assume_iid=True,
            )


def test_clipping_certifies_an_upload():
    one = information.clipped_upload(**UPLOAD, space="gradient")
    assert 50 * math.log1p(4.0 / (100 * one.noise_var)) == pytest.approx(5.0)
    far = information.clipped_upload(**UPLOAD, num_local_steps=4, learning_rate=0.1)
    assert far.noise_var == pytest.approx(one.noise_var * (4 * 0.1) ** 2)
    # any covariance of that trace has at most that capacity: Jensen
    rng = np.random.default_rng(0)
    for _ in range(50):
        values = rng.exponential(size=100) ** rng.uniform(0.1, 4)
        assert np.log1p(4.0 * values / values.sum() / one.noise_var).sum() / 2 <= 5 + 1e-12
    spent = information.total(information.expose(information.start(1), 3, one), one, label_nats=0.0)
    assert spent.mode == "linear" and spent.nats[0] == pytest.approx(15) and spent.certified
    with pytest.raises(PrivacyPreconditionError, match="parameter space"):
        information.total(information.start(1), one, label_nats=0.0, mode="joint")
    with pytest.raises(PrivacyPreconditionError, match="local steps"):
        information.clipped_upload(**UPLOAD, num_local_steps=2, space="gradient")
    with pytest.raises(ValueError, match="learning_rate"):
        information.clipped_upload(**UPLOAD)


def test_an_upload_tells_about_records_of_their_own_dimension():
    # 5 nats about a record of entropy -100 in 64 coordinates, by an upload of 10000 parameters
    mse = math.exp(2 * (-100 - 5) / 64) / (2 * math.pi * math.e)
    assert mse == pytest.approx(0.0022, rel=0.01)
    clipped = information.clipped_upload(**UPLOAD | {"num_params": 10_000}, space="gradient")
    assert 5_000 * math.log1p(4.0 / (10_000 * clipped.noise_var)) == pytest.approx(
        5
    )  # the noise is the upload's
    guess = information.estimated_upload(nats=5.0, record_dimension=64)
    sent = information.Uploads((clipped.one_use(),), frozenset())
    exposure = information.spend(information.start(1), [0], clipped)
    for leakage in (
        clipped.one_use(),
        guess,
        information.uploads_total(sent),
        information.after_uses(clipped, 1, label_nats=0.0, mode="linear"),
        information.total(exposure, clipped, label_nats=0.0),
    ):
        assert leakage.dimension == 64
        np.testing.assert_allclose(
            information.theorem1(leakage, entropy=-100.0).mse, mse, rtol=1e-12
        )
    assert "0.07813 per coordinate" in information.statement(clipped.one_use())  # 5 / 64
    white = information.distortion_rate(clipped.one_use(), np.ones(64), data_model="gaussian")
    assert white.mse == pytest.approx(math.exp(-2 * 5 / 64))
    with pytest.raises(ValueError, match="one dimension"):
        information.uploads_total(information.Uploads((guess, natural().one_use())))


def test_noise_that_is_kept_certifies_no_uploads():
    upload = information.clipped_upload(**UPLOAD, space="gradient")
    # Two uploads with one draw: (x + n, 2 x + n) gives x away. Its joint law is singular, the nats
    # are infinite.
    seen = np.array([[1.0, 2.0], [2.0, 4.0]]) + upload.noise_var
    given_x = np.full((2, 2), upload.noise_var)
    assert np.linalg.det(seen) > 0 and np.linalg.det(given_x) == 0
    zero = {"label_nats": 0.0}
    kept, fresh = information.start(1, noise="once"), information.start(1)
    for call in (
        lambda: information.spend(kept, [0], upload),
        lambda: information.total(kept, upload, **zero),
        lambda: information.total(kept, upload, mode="once", **zero),
        lambda: information.after_uses(upload, 2, mode="once", **zero),
        lambda: information.max_uses(upload, total_nats=20.0, mode="once", **zero),
    ):
        with pytest.raises(PrivacyPreconditionError, match="fresh noise in parameter space"):
            call()
    for call in (
        lambda: information.total(fresh, upload, mode="joint", **zero),
        lambda: information.after_uses(upload, 2, **zero),
        lambda: information.max_uses(upload, total_nats=20.0, **zero),
    ):
        with pytest.raises(PrivacyPreconditionError, match="mode='linear' in parameter space"):
            call()
    assert information.max_uses(upload, total_nats=20.0, mode="linear", **zero) == 4
    assert information.max_uses(natural(), total_nats=20.0, mode="once", **zero) == math.inf


def test_compression_and_large_batches():  # H4, I1
    keep = np.array([True, True, False])
    small = information.compressed(
        S3, noise_var=0.5, keep_mask=keep, mask_from_data=False, **PUBLIC
    )
    assert small.left.nats == pytest.approx(1.85678603335, rel=1e-9)
    assert small.dropped == pytest.approx(0.524984227628, rel=1e-9)
    chosen = information.compressed(
        S3, noise_var=0.5, keep_mask=keep, mask_from_data=True, **PUBLIC
    )
    assert chosen.left.nats == pytest.approx(1.85678603335 + 0.524984227628 + math.log(3), rel=1e-9)
    assert chosen.dropped == 0.0 and chosen.left.certified
    none = information.compressed(
        S3, noise_var=0.5, keep_mask=np.zeros(3, bool), mask_from_data=True, **PUBLIC
    )
    assert none.left.nats == 0.0
    assert information.selection_nats(62006, 620) == pytest.approx(3468.03, abs=0.01)
    bare = information.compressed(S3, noise_var=0.0, keep_mask=keep, mask_from_data=False, **PUBLIC)
    assert bare.left.nats == math.inf
    batches = information.large_batch(
        LAM, noise_var=0.1, batch_size=np.array([1, 8, 64]), assume_iid=True, **PUBLIC
    )
    np.testing.assert_allclose(
        batches.nats, [3.682115154, 1.43731170046, 0.334504344964], rtol=1e-9
    )
    alone = information.large_batch(LAM, noise_var=0.1, batch_size=64, assume_iid=False, **PUBLIC)
    assert alone.nats == pytest.approx(3.682115154, rel=1e-9)


@pytest.mark.slow(reason="integrates a law of many numbers")
def test_choosing_the_largest_coordinate_tells_more_than_its_capacity_and_its_place():
    # The largest |x_i| of n = 1000 independent N(0, 1), sent as x_i + N(0, 10) with its place i. By
    # symmetry the place tells ln n, the noisy value h(Y) - h(noise) on top; the law of x_i is
    # exact, Y's entropy by the trapezoid rule.
    n, noise_var = 1000, 10.0
    grid, step = np.linspace(-30, 30, 3001, retstep=True)
    inside = np.array([math.erf(abs(x) / math.sqrt(2)) for x in grid])
    law = n * np.exp(-(grid**2) / 2) / math.sqrt(2 * math.pi) * inside ** (n - 1)
    assert np.sum(law) * step == pytest.approx(1, rel=1e-6)
    noise = np.exp(-(grid**2) / (2 * noise_var)) / math.sqrt(2 * math.pi * noise_var)
    seen = np.maximum(np.convolve(law, noise, mode="same") * step, 1e-300)
    gained = -np.sum(seen * np.log(seen)) * step - math.log(2 * math.pi * math.e * noise_var) / 2
    truth = math.log(n) + gained
    assert truth == pytest.approx(7.2857, abs=1e-4)
    rng = np.random.default_rng(3)  # the same by drawing: mean of ln p(y | x_i) - ln p(y)
    x = rng.normal(size=(4000, n))
    x = x[np.arange(4000), np.abs(x).argmax(1)]
    sent = rng.normal(size=4000) * math.sqrt(noise_var)
    given_x = -(sent**2) / (2 * noise_var) - math.log(2 * math.pi * noise_var) / 2
    told = given_x - np.log(np.interp(x + sent, grid, seen))
    spread = told.std() / math.sqrt(4000)
    assert abs(told.mean() - gained) <= 5 * spread
    one = {"noise_var": noise_var, "keep_mask": np.arange(n) == 0, **PUBLIC}
    fixed = information.compressed(np.eye(n), mask_from_data=False, **one).left.nats
    assert fixed == pytest.approx(math.log(1.1) / 2)
    assert fixed + information.selection_nats(n, 1) == pytest.approx(
        6.9554, abs=1e-4
    )  # App. E, below the truth
    assert fixed < told.mean() - 5 * spread
    chosen = information.compressed(np.eye(n), mask_from_data=True, **one).left
    assert (
        chosen.certified
        and chosen.nats == pytest.approx(500 * math.log(1.1) + math.log(n))
        and chosen.nats > truth
    )


def test_a_covariance_from_private_data_certifies_nothing():
    private = information.natural(LAM, nats=1.0, covariance_source="private")
    spent = information.after_uses(private, 3, label_nats=0.0)
    bound = information.distortion_rate(spent, LAM, data_model="gaussian")
    for claim in (private, spent, bound):
        assert (
            not claim.certified
            and claim.covariance_source == "private"
            and "estimated" in claim.reason
        )
    assert "NOT proved" in information.statement(spent, bound)
    # A channel that needs no covariance certifies its nats; the error they leave rests on one all
    # the same.
    ranged = information.range_certified(0.0, 1.0, dimension=3, nats=1.0)
    one = information.after_uses(ranged, 1, label_nats=0.0)
    for source, certified in (("private", False), ("declared", True)):
        rests = {"data_model": "gaussian", "covariance_source": source}
        claims = (
            information.distortion_rate(one, LAM, **rests),
            information.linear_error(ranged, values=LAM, **rests),
        )
        assert [(c.certified, c.covariance_source) for c in claims] == [(certified, source)] * 2
    rests = {"data_model": "gaussian", "covariance_source": "public"}
    assert not information.distortion_rate(spent, LAM, **rests).certified
    assert "NOT proved" not in information.statement(
        information.after_uses(natural(), 3, label_nats=0.0)
    )


def test_a_covariance_estimated_from_public_records_certifies_nothing_unless_it_is_declared():
    def channels(source):
        known = {"nats": 1.0, "covariance_source": source, "estimated_from": 60}
        yield information.natural(LAM, **known)
        yield information.white(LAM, **known)
        yield information.personalized(S3, BETA, **known)
        yield information.min_power(LAM, **known)

    for channel in channels("public"):
        spent = information.after_uses(channel, 3, label_nats=0.0)
        bound = information.distortion_rate(spent, LAM, data_model="gaussian")
        for claim in (channel, spent, bound):
            assert not claim.certified and claim.covariance_source == "public"
            assert "covariance of 60 public records" in claim.reason
    assert all(channel.certified for channel in channels("declared"))
    assert all("records it protects" in channel.reason for channel in channels("private"))
    # A channel that needs no covariance: the bound rests on the estimate alone.
    ranged = information.range_certified(0.0, 1.0, dimension=3, nats=1.0)
    for source, certified in (("public", False), ("declared", True)):
        rests = {"data_model": "gaussian", "covariance_source": source, "estimated_from": 60}
        entropy = information.gaussian_entropy(LAM, **rests)
        for bound in (
            information.theorem1(ranged.one_use(), entropy=entropy),
            information.gaussian_projected(ranged.one_use(), LAM, **rests),
            information.distortion_rate(ranged.one_use(), LAM, **rests),
            information.linear_error(ranged, values=LAM, **rests),
        ):
            assert bound.certified is certified and ("60 public" in bound.reason) is not certified
        known = {"covariance_source": source, "estimated_from": 60}
        for leakage in (
            information.mixed(S3, [np.eye(3)], [1], label_nats=0.0, **known),
            information.compressed(
                S3, noise_var=1.0, keep_mask=BETA > 1, mask_from_data=False, **known
            ).left,
            information.large_batch(LAM, noise_var=1.0, batch_size=8, assume_iid=True, **known),
        ):
            assert (
                leakage.certified is certified and ("60 public" in leakage.reason) is not certified
            )


def test_the_statement_says_what_is_not_promised():
    spent = information.after_uses(natural(), 1, label_nats=0.0)
    words = information.statement(
        spent, information.distortion_rate(spent, LAM, data_model="gaussian"), data_range=4.0
    )
    psnr = 10 * math.log10(16 / 0.573839254895)
    assert "0.573839" in words and f"{math.ceil(100 * psnr) / 100:.4g} dB" in words
    for promise in information.NOT_PROMISED:
        assert promise in words
    with pytest.raises(ValueError, match="one target"):
        information.statement(information.after_uses(natural(), np.arange(2), label_nats=0.0))


BAD = {
    "kappa 0": (lambda: natural(0.0), "nats > 0"),
    "kappa inf": (lambda: natural(math.inf), "nats > 0"),
    "kappa nan": (lambda: natural(math.nan), "nats > 0"),
    "one of many": (
        lambda: information.natural(np.ones((2, 3)), nats=np.array([1.0, -1.0]), **PUBLIC),
        "nats > 0",
    ),
    "zero covariance": (lambda: natural(values=np.zeros(3)), "not all zero"),
    "negative eigenvalue": (
        lambda: natural(values=np.array([1.0, -1e-5])),
        "positive semidefinite",
    ),
    "nan eigenvalue": (lambda: natural(values=np.array([1.0, math.nan])), "finite eigenvalues"),
    "no spectrum": (lambda: natural(values=np.ones((2, 0))), "shape"),
    "not symmetric": (
        lambda: information.personalized(np.triu(S3), BETA, nats=1.0, **PUBLIC),
        "symmetric",
    ),
    "not psd": (
        lambda: information.personalized(S3 - 4 * np.eye(3), BETA, nats=1.0, **PUBLIC),
        "semidefinite",
    ),
    "beta zero": (
        lambda: information.personalized(S3, BETA * [1, 0, 1], nats=1.0, **PUBLIC),
        "weights > 0",
    ),
    "beta short": (
        lambda: information.personalized(S3, BETA[:2], nats=1.0, **PUBLIC),
        "weights of shape",
    ),
    "singular theorem 3": (
        lambda: information.personalized(
            np.ones((3, 3)), BETA, nats=1.0, method="theorem3", **PUBLIC
        ),
        "positive definite",
    ),
    "white without floor": (
        lambda: information.white(LAM * [1, 1, 0], nats=1.0, floor=0.0, **PUBLIC),
        "floor > 0",
    ),
    "negative floor": (
        lambda: information.white(LAM, nats=1.0, floor=-1.0, **PUBLIC),
        "floor >= 0",
    ),
    "min power flat": (
        lambda: information.min_power(LAM * [1, 1, 0], nats=1.0, **PUBLIC),
        "without variance",
    ),
    "underflow": (lambda: natural(300.0).noise_var, "float32 can hold"),
    "underflow by direction": (
        lambda: information.min_power(LAM, nats=300.0, **PUBLIC),
        "float32 can hold",
    ),
    "empty range": (
        lambda: information.range_certified(1.0, 1.0, dimension=2, nats=1.0),
        "low < high",
    ),
    "source": (
        lambda: information.natural(LAM, nats=1.0, covariance_source="mine"),
        "covariance_source",
    ),
    "estimated from none": (
        lambda: information.natural(LAM, nats=1.0, estimated_from=0, **PUBLIC),
        "estimated_from",
    ),
    "estimated from, of which": (
        lambda: information.distortion_rate(
            natural().one_use(), LAM, data_model="gaussian", estimated_from=5
        ),
        "with a covariance_source",
    ),
    "record id": (lambda: information.spend(information.start(2), [2], natural()), "record_ids"),
    "fractional record id": (
        lambda: information.spend(information.start(2), [0.5], natural()),
        "record_ids",
    ),
    "uses": (lambda: information.after_uses(natural(), -1, label_nats=0.0), "uses >= 0"),
    "labels": (lambda: information.after_uses(natural(), 1, label_nats=-1.0), "label_nats"),
    "singular noise": (
        lambda: information.mixed(S3, [np.diag([1.0, 1, 0])], [1], label_nats=0.0, **PUBLIC),
        "positive definite noise",
    ),
    "batch": (
        lambda: information.private_sgd_nats(
            noise_multiplier=1.0, batch_size=0, target="batch", record_dimension=1, assume_iid=True
        ),
        "batch_size",
    ),
    "noise": (
        lambda: information.private_sgd_nats(
            noise_multiplier=0.0, batch_size=1, target="batch", record_dimension=1, assume_iid=True
        ),
        "noise_multiplier",
    ),
    "side information": (
        lambda: information.private_sgd_nats(
            noise_multiplier=1.0,
            batch_size=2,
            target="batch",
            record_dimension=1,
            assume_iid=True,
            side_info="rest_of_batch",
        ),
        "target='record'",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused(name):
    call, words = BAD[name]
    with pytest.raises(ValueError, match=words):
        call()
