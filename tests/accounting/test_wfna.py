"""Gaussian-weighted sums and water filling: curves, rounds and the statements of the paper that are
false.
"""

import dataclasses
import math

import numpy as np
import pytest

from fljax import accounting
from fljax.accounting import gaussian
from fljax.accounting.renyi import conversion, kov, rdp
from fljax.accounting.weighted_sums import curves as weighted_curves
from fljax.accounting.weighted_sums import replaced_record, setups, spectrum
from fljax.accounting.weighted_sums import rounds as weighted_rounds
from fljax.errors import NoGuaranteeError, PrivacyPreconditionError

SIZES = {"l2_clip_norm": 10.0, "num_records": 1200.0, "batch_size": 32.0}
PAPER = weighted_rounds.Setup(
    num_clients=50, num_records=1200, batch_size=32, l2_clip_norm=10.0, noise_stddev=math.sqrt(1e-3)
)
FLOOR = {"floor": 50 * 1e-3, **SIZES}


def alone(divergence, top):
    """One formula without the minimum that the sound curve takes."""
    return weighted_rounds.Curve(divergence, top, "uniform", "test")


def best(curve, rounds=1, formula="paper"):
    return weighted_rounds.best_epsilon(
        curve, delta=1e-4, num_rounds=rounds, conversion_formula=formula
    )


def test_oracle_o1_divergence_of_unequal_gaussians():
    assert float(rdp.gaussian_pair(np.asarray([0.3]), 1.2, 1.0, [2.5])[0]) == pytest.approx(
        0.188445155297, rel=1e-11
    )
    found = rdp.gaussian_pair(
        np.asarray([0.5, -0.25]),
        np.asarray([[2, 0.3], [0.3, 1]]),
        np.asarray([[1.5, -0.2], [-0.2, 1.2]]),
        [2.0],
    )
    assert float(found[0]) == pytest.approx(0.549906538745, rel=1e-11)
    assert float(rdp.gaussian_pair(np.zeros(1), 2.0, 1.0, [2.0])[0]) == math.inf


def test_oracle_o1d_one_replaced_record():
    found = replaced_record.divergence(
        1.0, 1.0, 0.6, [3.0], floor=0.4, weight=0.05, num_records=10.0
    )
    assert float(found[0]) == pytest.approx(0.0446879746167, rel=1e-11)


def test_oracle_o2_theorem_2():
    found = weighted_curves.theorem_2([2.0], least_eigenvalue=0.5, **SIZES)
    assert float(found[0]) == pytest.approx(0.526666666667, rel=1e-11)
    instance = weighted_rounds.noiseless(
        least_eigenvalues=[0.25, 0.25],
        l2_clip_norm=10.0,
        num_records=1200,
        batch_size=32,
        scope="instance",
        formula="paper",
    )
    assert instance.largest_order == pytest.approx(6.0)
    assert math.isfinite(instance.divergence([5.999])[0]) and math.isinf(
        instance.divergence([6.0])[0]
    )
    rising = [
        float(weighted_curves.theorem_2([2.0], least_eigenvalue=value, **SIZES)[0])
        for value in (0.1, 0.5, 2.0, 1e9)
    ]
    assert np.all(np.diff(rising) < 0) and rising[0] == math.inf and 0 < rising[-1] < 1e-8


@pytest.mark.parametrize(
    ("dimension", "records", "printed", "order", "joint"),
    [
        (10, 1000, 0.0238095065507, 725.12, 0.0235726888889),
        (7850, 1200, 2.74005010955, 5.71830, 2.33109745693),
    ],
)
def test_oracle_o2_best_case(dimension, records, printed, order, joint):
    setup = {
        "least_eigenvalues": np.full(50, 1 / dimension),
        "l2_clip_norm": 1.0,
        "num_records": records,
        "batch_size": 32,
        "scope": "uniform",
    }
    found = best(weighted_rounds.noiseless(**setup, formula="paper"))
    assert found[0] == pytest.approx(printed, rel=1e-9) and found[1] == pytest.approx(
        order, rel=1e-4
    )

    def one(orders):
        return weighted_curves.joint(
            orders,
            floor=50 / dimension / 32,
            l2_clip_norm=1.0,
            num_records=float(records),
            batch_size=32.0,
        )

    top = 1 + 50 * records / dimension
    assert best(alone(one, top))[0] == pytest.approx(joint, rel=1e-9)
    assert best(weighted_rounds.noiseless(**setup))[0] <= joint * (1 + 1e-9)


def test_oracle_o3a_curves():
    orders = [2.0, 5.0, 8.0]
    for found, expected in (
        (
            weighted_curves.theorem_4(orders, **FLOOR),
            [0.270175438596, 0.300724637681, 0.847619047619],
        ),
        (
            weighted_curves.isotropic_printed(orders, **FLOOR),
            [0.122480620155, 0.106807511737, 0.140136054422],
        ),
        (
            weighted_curves.unsampled(orders, floor=0.05, l2_clip_norm=10.0, num_records=1200.0),
            [0.00555555555556, 0.0138888888889, 0.0222222222222],
        ),
        (
            weighted_curves.joint(orders, **FLOOR, lifted=True),
            [0.00687097394469, 0.0252530147321, 0.0720253651434],
        ),
        (
            weighted_curves.joint(orders, **FLOOR),
            [0.00666047310443, 0.0213703447215, 0.0472052793455],
        ),
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-11)


def test_oracle_o3b_the_printed_interval_lacks_a_factor_and_is_empty():
    orders = 1 + np.asarray([1e-3, 1.0, 8.59, 8.61])
    assert np.all(np.isinf(weighted_curves.theorem_4(orders, **FLOOR, printed_interval=True)))
    np.testing.assert_array_equal(
        np.isfinite(weighted_curves.theorem_4(orders, **FLOOR)), [True, True, True, False]
    )


def test_oracle_o3c_epsilon_of_one_and_of_100_rounds():
    printed = weighted_rounds.curve("gaussian", "isotropic", PAPER, formula="paper")
    theorem = weighted_rounds.curve("gaussian", "water_filling", PAPER, formula="paper")
    lifted = weighted_rounds.curve("gaussian", "water_filling", PAPER)
    plain = weighted_rounds.curve("none", "isotropic", PAPER)
    for rounds, values in (
        (1, (0.322679505257, 1.05226743036, 2.04937514263, 1.17950469301)),
        (100, (3.47679505257, 12.9732965404, 28.1491944644, 4.74128568821)),
    ):
        for curve, value in zip((plain, printed, theorem, lifted), values, strict=True):
            assert best(curve, rounds)[0] == pytest.approx(value, rel=1e-9)
    assert best(lifted, 100, "sound")[0] == pytest.approx(4.04387752123, rel=1e-9)


def test_oracle_o3e_unsampled_noise_is_gaussian_dp():
    mu = 2 * 10 / 1200 / math.sqrt(0.05)
    assert float(gaussian.mu_to_epsilon(mu, 1e-4)) == pytest.approx(0.198104928729, rel=1e-10)
    assert float(gaussian.mu_to_epsilon(10 * mu, 1e-4)) == pytest.approx(2.69270731752, rel=1e-10)


def test_oracle_o3f_o3g_subsets_as_printed():
    for square, before, after in (
        (1e-3, 15.9025647805, 12.2782283754),
        (1.0, 0.383263032346, 0.0123781105074),
    ):
        setup = dataclasses.replace(PAPER, noise_stddev=math.sqrt(square))
        found, _ = best(weighted_rounds.curve("subset", "isotropic", setup, formula="paper"))
        assert found == pytest.approx(before, rel=1e-9)
        epsilon, delta = weighted_rounds.amplify(found, 1e-4, 32 / 1200)
        assert epsilon == pytest.approx(after, rel=1e-9) and epsilon <= found
        assert delta == pytest.approx(1e-4 * 32 / 1200)


def test_oracle_o4_conversions_and_o18_compositions():
    assert float(conversion.rdp_to_epsilons([0.5], [10.0], 1e-5)[0]) == pytest.approx(
        1.41801063678, rel=1e-11
    )
    assert 0.5 + math.log(1e5) / 9 == pytest.approx(1.77921394055, rel=1e-11)
    assert kov.grid(0.1, 0.0, 100, 1e-5)[0] == pytest.approx(4.4, rel=1e-12)
    assert kov.simplified(0.1, 0.0, 100, 1e-5)[0] == pytest.approx(5.29810966177, rel=1e-11)
    assert kov.real(0.1, 0.0, 100, 1e-5)[0] == pytest.approx(4.30679137252, rel=1e-11)
    epsilon, delta = kov.grid(0.1, 1e-7, 10, 1e-3)
    assert epsilon == pytest.approx(0.8, rel=1e-12) and delta == pytest.approx(
        0.00100099899955, rel=1e-9
    )


def test_compositions_come_in_their_order_and_agree_with_the_frontier():
    for epsilon, count, slack in (
        (0.1, 100, 1e-5),
        (0.01, 3000, 1e-6),
        (2.0, 7, 1e-3),
        (0.5, 2, 1e-9),
    ):
        real, grid, simple = (
            form(epsilon, 0.0, count, slack)[0] for form in (kov.real, kov.grid, kov.simplified)
        )
        assert real <= grid <= count * epsilon * (1 + 1e-12)
        assert real <= simple * (1 + 1e-12)
        assert kov.exact_slack(epsilon, count, count * epsilon) == 0.0
    for total, delta in conversion.compose_optimal(0.3, 0.0, 9):
        assert kov.exact_slack(0.3, 9, total) == pytest.approx(delta, rel=1e-9, abs=1e-15)


def test_oracle_o12_and_the_table_of_calibrated_noise():
    closed = (
        2
        * 100
        * 100
        / (1200**2 * 50 * (math.sqrt(math.log(1e4) + 1) - math.sqrt(math.log(1e4))) ** 2)
    )
    assert closed == pytest.approx(0.0107821107359, rel=1e-11)
    columns = (
        ("none", "isotropic", "rdp", 100, 1e-6, (0.0107821, 0.000772251, 0.000152844)),
        ("gaussian", "water_filling", "rdp", 100, 1e-6, (0.0311016, 0.00585523, 0.00236094)),
        ("gaussian", "isotropic", "rdp", 100, 1e-6, (0.0213638, 0.00339537, 0.00127890)),
        ("subset", "isotropic", "kov", 100, 2e-3, (0.412, 0.0936, 0.0457)),
        ("subset", "isotropic", "kov", 3800, 5e-3, (10.3, 1.25, 0.411)),
        ("none", "isotropic", "kov", 100, 4e-3, (0.187, 0.0162, 0.00344)),
        ("gaussian", "water_filling", "kov", 100, 4e-3, (0.289, 0.0441, 0.0158)),
    )
    for sampling, noise, composition, rounds, digits, values in columns:
        for target, value in zip((1.0, 4.0, 10.0), values, strict=True):
            run = {
                "num_rounds": rounds,
                "delta": 1e-4,
                "composition": composition,
                "formula": "paper",
            }
            found = weighted_rounds.least_noise_stddev(
                sampling, noise, PAPER, target_epsilon=target, **run
            )
            assert found**2 == pytest.approx(value, rel=2 * digits + 3e-6)
            setup = dataclasses.replace(PAPER, noise_stddev=found)
            assert weighted_rounds.epsilon(sampling, noise, setup, **run) <= target
    # The joint bound with the paper's conversion, its own column.
    for target, value in ((1.0, 0.0121328), (4.0, 0.00122765), (10.0, 0.000455532)):
        curve = weighted_rounds.curve(
            "gaussian", "water_filling", dataclasses.replace(PAPER, noise_stddev=math.sqrt(value))
        )
        assert best(curve, 100)[0] == pytest.approx(target, rel=1e-5)


def test_oracle_o13_worst_pair_of_records():
    found = replaced_record.worst([2.0, 5.0, 8.0], **FLOOR)
    np.testing.assert_allclose(found, [0.0059651485, 0.0153748480, 0.0263249905], rtol=1e-5)
    assert np.all(
        found
        <= np.minimum(weighted_curves.joint([2.0, 5.0, 8.0], **FLOOR), [0.1224, 0.1068, 0.1401])
    )


def test_oracle_o14_most_of_the_noise_that_water_filling_can_save():
    dimension, records = 7850, 1200
    kov_run = {"num_rounds": 100, "delta": 1e-4, "composition": "kov", "formula": "paper"}
    paper = [
        weighted_rounds.least_noise_stddev(
            "gaussian", "water_filling", PAPER, target_epsilon=e, **kov_run
        )
        ** 2
        for e in (1.0, 10.0)
    ]
    for floor, value, digits in (
        (paper[0], 0.0014, 5e-5),
        (paper[1], 0.025, 5e-4),
        (0.0121328, 0.033, 5e-4),  # the joint bound, epsilon 1 and 10
        (0.000455532, 0.153, 5e-4),
    ):
        # The trace of a client's covariance is at most C^2 / B, its rank at most D: best spent on
        # values at the floor.
        room = 10**2 / 32 / floor
        most = min(room, records) / dimension
        assert most == pytest.approx(value, abs=digits)
        values = np.zeros(records)
        values[: min(int(room), records)] = floor
        assert float(spectrum.savings(values, floor, dimension).fraction) == pytest.approx(
            most, abs=1 / dimension
        )
        others = np.random.default_rng(3).dirichlet(np.full(records, 0.1), 20) * 10**2 / 32
        assert np.all(
            np.asarray(spectrum.savings(others, np.full(20, floor), dimension).fraction)
            <= most * (1 + 1e-9)
        )


def test_oracle_o16_where_the_covariance_costs_only_the_smaller_denominator():
    orders, kinds = 1 + 10 ** np.linspace(-2, 2, 50), np.zeros(3)
    for batch in (4.0, 32.0, 50.0, 400.0):
        sizes = {**FLOOR, "batch_size": batch}
        q = 1 / (batch * 1200)
        low = 0.05 - (orders - 1) * math.sqrt(2) * q * 100
        moved = orders * 100 / 1200**2 / np.where(low > 0, low, np.nan)
        spread = orders / 2 * (q * 100) ** 2 / np.where(low > 0, low, np.nan) ** 2
        cheap = low >= (10 / batch) ** 2
        np.testing.assert_array_equal(cheap[low > 0], (moved >= 2 * spread)[low > 0])
        found = np.asarray(weighted_curves.joint(orders, **sizes, lifted=True))
        np.testing.assert_allclose(found[cheap], 2 * moved[cheap], rtol=1e-12)
        dear = ~cheap & (low > 0)
        assert np.all(found[dear] > 2 * moved[dear]) and np.all(np.isinf(found[low <= 0]))
        kinds += [np.sum(cheap), np.sum(dear), np.sum(low <= 0)]
    assert np.all(kinds > 10)


@pytest.mark.parametrize("formula", ["sound", "paper"])
@pytest.mark.parametrize("noise", ["isotropic", "water_filling"])
def test_a_curve_is_finite_just_below_its_largest_order(noise, formula):
    curve = setups.curve("gaussian", noise, PAPER, formula=formula)
    top = curve.largest_order
    below, at = np.asarray(curve.divergence([top * (1 - 1e-9), top * (1 + 1e-9)]))
    assert np.isfinite(below) and np.isinf(at)


def test_oracle_o15_no_noise_at_all_leaves_a_least_epsilon():
    curve = weighted_rounds.noiseless(
        least_eigenvalues=np.full(50, 1 / 7850),
        l2_clip_norm=1.0,
        num_records=1200,
        batch_size=1e9,
        scope="uniform",
        formula="paper",
    )
    least = math.log(1e4) / (curve.largest_order - 1)
    assert least == pytest.approx(1.38640789875, rel=1e-11)
    assert best(curve)[0] > least


def test_oracle_o17_joint_bound_without_noise():
    one = {"floor": 0.5 / 32, **SIZES}
    assert float(weighted_curves.joint([2.0], **one, instance=True)[0]) == pytest.approx(
        0.0765444444444, rel=1e-11
    )
    assert float(weighted_curves.joint([2.0], **one)[0]) == pytest.approx(
        0.0513777777778, rel=1e-11
    )


def test_order_scaling_and_limits_of_the_bounds():
    rng = np.random.default_rng(8)
    floor, c, d, b = (
        10 ** rng.uniform(lo, hi, 200) for lo, hi in ((-3, 3), (-1, 1), (0, 3), (0, 2))
    )
    sizes = {"floor": floor, "l2_clip_norm": c, "num_records": d, "batch_size": b}
    orders = 1 + 10 ** np.linspace(-2, 3, 40)
    plain = weighted_curves.unsampled(orders, floor=floor, l2_clip_norm=c, num_records=d)
    joint, lifted = (
        weighted_curves.joint(orders, **sizes),
        weighted_curves.joint(orders, **sizes, lifted=True),
    )
    theorem = weighted_curves.theorem_4(orders, **sizes)
    slack = 1 + 1e-12
    assert (
        np.all(plain <= joint * slack)
        and np.all(joint <= lifted * slack)
        and np.all(lifted <= theorem * slack)
    )
    assert np.isfinite(lifted).sum() > 1000 and np.sum(lifted < 0.9 * theorem) > 1000
    for curve in (joint, lifted, theorem):
        more = {**sizes, "floor": 1.3 * floor}
        fun = {
            id(joint): weighted_curves.joint,
            id(lifted): weighted_curves.joint,
            id(theorem): weighted_curves.theorem_4,
        }[id(curve)]
        extra = {"lifted": True} if curve is lifted else {}
        assert np.all(fun(orders, **more, **extra) <= curve)
        # (C, stddev) may be scaled together.
        scaled = {**sizes, "floor": 9 * floor, "l2_clip_norm": 3 * c}
        np.testing.assert_allclose(fun(orders, **scaled, **extra), curve, rtol=1e-9)
    many = {**sizes, "batch_size": np.full_like(b, 1e15)}
    for limit in (
        weighted_curves.joint(orders, **many, lifted=True),
        weighted_curves.theorem_4(orders[10:], **many),
    ):
        np.testing.assert_allclose(limit, plain[:, -limit.shape[1] :], rtol=1e-5)


def test_curve_in_units_of_the_sensitivity_is_the_curve():
    orders = np.asarray([1.5, 3.0, 6.0])
    z, rate = math.sqrt(0.05) / (20 / 1200), 32 / 1200
    np.testing.assert_allclose(
        weighted_curves.gaussian_weights(z, rate, orders, lifted=True),
        weighted_curves.joint(orders, **FLOOR, lifted=True),
        rtol=1e-12,
    )
    np.testing.assert_allclose(
        weighted_curves.gaussian_weights(z, rate, orders),
        np.asarray(weighted_rounds.curve("gaussian", "isotropic", PAPER).divergence(orders)),
        rtol=1e-12,
    )
    assert np.all(np.isinf(weighted_curves.gaussian_weights(0.0, rate, orders)))


def test_the_six_cells_and_fedavg():
    for sampling in ("subset", "none"):
        for call in (
            lambda s=sampling: weighted_rounds.curve(s, "water_filling", PAPER),
            lambda s=sampling: weighted_rounds.epsilon(
                s, "water_filling", PAPER, num_rounds=1, delta=1e-4
            ),
        ):
            with pytest.raises(NoGuaranteeError, match="nothing is added"):
                call()
    for sampling, noise in (
        ("subset", "isotropic"),
        ("none", "isotropic"),
        ("gaussian", "isotropic"),
    ):
        assert math.isfinite(
            weighted_rounds.epsilon(sampling, noise, PAPER, num_rounds=1, delta=1e-4)
        )
    with pytest.raises(NoGuaranteeError, match="fedavg"):
        weighted_rounds.curve("gaussian", "water_filling", PAPER, protocol="fedavg")
    # What is supported instead: a clipped update of a client, sensitivity 2 C, one client's noise
    # without a secure sum.
    assert float(
        weighted_curves.clipped_update([3.0], floor=4.0, l2_clip_norm=3.0)[0]
    ) == pytest.approx(float(rdp.gaussian(2.0 / 6.0, [3.0])[0]))


def test_subsets_of_everybody_are_everybody_and_smaller_ones_cost_less():
    everyone = dataclasses.replace(PAPER, batch_size=1200)
    run = {"num_rounds": 10, "delta": 1e-4}
    full = float(gaussian.mu_to_epsilon(math.sqrt(10) * 20 / 1200 / math.sqrt(0.05), 1e-4))
    found = weighted_rounds.epsilon("subset", "isotropic", everyone, **run)
    # The Renyi conversion gives away a tenth at one order.
    assert full <= found <= 1.15 * full
    # As printed: the first row of Table 1 with B = D is the third.
    orders = np.asarray([1.5, 4.0, 30.0])
    first, third = (
        weighted_rounds.curve(s, "isotropic", everyone, formula="paper") for s in ("subset", "none")
    )
    np.testing.assert_allclose(first.divergence(orders), third.divergence(orders), rtol=1e-14)
    assert weighted_rounds.amplify(0.7, 1e-4, 1.0) == pytest.approx((0.7, 1e-4), rel=1e-14)
    noisy = dataclasses.replace(PAPER, noise_stddev=0.5)
    event = weighted_rounds.event(noisy)
    assert str(event.neighboring_relation) == "REPLACE_ONE"
    sampled = weighted_rounds.epsilon("subset", "isotropic", noisy, **run)
    assert sampled == accounting.epsilon(event.repeat(10), delta=1e-4)
    printed = weighted_rounds.epsilon(
        "subset", "isotropic", noisy, **run, composition="kov", formula="paper"
    )
    assert sampled < 0.5 * printed
    for batch in (32.5, 1300):
        with pytest.raises(ValueError, match="batch_size"):
            weighted_rounds.epsilon(
                "subset", "isotropic", dataclasses.replace(PAPER, batch_size=batch), **run
            )


def test_values_for_one_data_set_are_labelled_and_never_composed():
    good = {
        "least_eigenvalues": [0.3, 0.2],
        "l2_clip_norm": 10.0,
        "num_records": 1200,
        "batch_size": 32,
        "scope": "instance",
    }
    curve = weighted_rounds.noiseless(**good)
    assert curve.scope == "instance" and curve.divergence([2.0])[0] == pytest.approx(
        0.0765444444444
    )
    with pytest.raises(NoGuaranteeError, match="one data set"):
        weighted_rounds.best_epsilon(curve, delta=1e-4)
    for change, error, words in (
        ({"least_eigenvalues": [0.3, 0.0]}, PrivacyPreconditionError, "> 0"),
        ({"least_eigenvalues": [0.05, 0.03]}, PrivacyPreconditionError, "infinite"),
        ({"subspace_dimension": 20}, NoGuaranteeError, "subspace_is_public"),
        (
            {"subspace_dimension": 2000, "subspace_is_public": True},
            PrivacyPreconditionError,
            "subspace_dimension",
        ),
        ({"scope": "data"}, ValueError, "scope"),
    ):
        with pytest.raises(error, match=words):
            weighted_rounds.noiseless(**{**good, **change})
    public = weighted_rounds.noiseless(**good, subspace_dimension=20, subspace_is_public=True)
    assert public.divergence([2.0])[0] == curve.divergence([2.0])[0]


@pytest.mark.parametrize(
    "change",
    [
        {"num_clients": 0},
        {"num_records": 0},
        {"batch_size": 0},
        {"l2_clip_norm": -1},
        {"noise_stddev": 0.0},
    ],
)
def test_bad_setups_are_refused_by_name(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        dataclasses.replace(PAPER, **change)


def test_noise_out_of_reach_is_infinite_not_small():
    little = dataclasses.replace(PAPER, noise_stddev=1e-5)
    run = {"num_rounds": 1, "delta": 1e-4}
    assert weighted_rounds.epsilon("gaussian", "water_filling", little, **run) == math.inf
    assert (
        weighted_rounds.epsilon("gaussian", "water_filling", little, **run, composition="kov")
        == math.inf
    )
