"""Search against the bounds on water filling and Gaussian weights, and the printed statements that
fail.
"""

import itertools
import math

import jax
import numpy as np
import pytest

from fljax import accounting
from fljax.accounting import information
from fljax.accounting.renyi import rdp
from fljax.accounting.weighted_sums import curves as weighted_curves
from fljax.accounting.weighted_sums import replaced_record, span, spectrum


def lifted(covariance, floor):
    values, vectors = np.linalg.eigh(covariance)
    return (vectors * np.maximum(values, floor)) @ vectors.T


def in_ball(rng, *shape):
    """Vectors of norm <= 1, many of norm 1."""
    g = rng.normal(size=shape)
    length = np.minimum(1.0, rng.uniform(0, 1.6, shape[:-1]))
    return g / np.linalg.norm(g, axis=-1, keepdims=True) * length[..., None]


def pairs(shift, first, second, orders):
    """Exact divergences `[M]` of M pairs, one order each, one program."""
    with accounting.x64():
        return np.asarray(
            jax.vmap(lambda s, a, b, o: rdp.gaussian_pair(s, a, b, o[None])[0])(
                shift, first, second, orders
            )
        )


def test_properties_of_the_divergence_of_two_gaussians():
    rng = np.random.default_rng(18)
    count, size = 200, 3
    shift, order = rng.normal(size=(count, size)), 1 + 10 ** rng.uniform(-1, 1, count)
    first, second = (
        np.einsum("mij,mkj->mik", a, a) + np.eye(size)
        for a in 0.5 * rng.normal(size=(2, count, size, size))
    )
    here = pairs(shift, first, second, order)
    finite = np.isfinite(here)
    assert finite.sum() > 100 and np.all(here >= 0)
    # Orders rise.
    assert np.all(pairs(shift, first, second, 1.1 * order) >= here * (1 - 1e-12))
    # Of x -> A x it knows nothing.
    a = rng.normal(size=(count, size, size)) + 3 * np.eye(size)
    moved = [np.einsum("mij,mjk,mlk->mil", a, s, a) for s in (first, second)]
    there = pairs(np.einsum("mij,mj->mi", a, shift), *moved, order)
    np.testing.assert_allclose(there[finite], here[finite], rtol=1e-8)
    # Noise common to both hides.
    common = np.einsum("mij,mkj->mik", a, a)
    assert np.all(pairs(shift, first + common, second + common, order) <= here * (1 + 1e-12))
    # Equal covariances s^2 I.
    equal = np.broadcast_to(2.5 * np.eye(size), (count, size, size))
    np.testing.assert_allclose(
        pairs(shift, equal, equal, order), order * (shift**2).sum(1) / 5, rtol=1e-12
    )


def test_no_pair_of_records_in_10000_settings_exceeds_the_sound_bound_and_some_come_close():
    rng = np.random.default_rng(9)
    size = 10_000
    c = 10 ** rng.uniform(-1, 1, size)
    d = np.floor(10 ** rng.uniform(0, 3, size))
    b = 10 ** rng.uniform(0, 2, size)
    ratio = 10 ** rng.uniform(-1, 4, size)  # m / (q C^2)
    floor = ratio * c**2 / (b * d)
    order = 1 + ratio * 10 ** rng.uniform(-4, 0, size) * rng.uniform(0, 1, size)
    left, right = rng.uniform(0, 1, (2, size)) ** rng.choice([0.0, 0.3, 1.0], (2, size))
    cosine = np.where(rng.random(size) < 0.3, -1.0, rng.uniform(-1, 1, size))

    def one(a, *arguments):
        floor, c, d, b, left, right, cosine = arguments
        products = (c * left) ** 2, (c * right) ** 2, c**2 * left * right * cosine
        sizes = {"floor": floor, "l2_clip_norm": c, "num_records": d, "batch_size": b}
        exact = replaced_record.divergence(
            *products, a[None], floor=floor, weight=1 / (b * d), num_records=d
        )[0]
        joint, printed = (
            weighted_curves.joint(a[None], **sizes)[0],
            weighted_curves.isotropic_printed(a[None], **sizes)[0],
        )
        return exact, joint, printed

    with accounting.x64():
        exact, joint, printed = (
            np.asarray(v) for v in jax.vmap(one)(order, floor, c, d, b, left, right, cosine)
        )
    for bound in (joint, printed):
        finite = np.isfinite(bound)
        assert finite.sum() > 5000
        assert np.all(exact[finite] <= bound[finite] * (1 + 1e-9))
    assert np.max(exact[np.isfinite(joint)] / joint[np.isfinite(joint)]) > 0.9
    far = np.isfinite(joint) & (order - 1 > 0.05 * ratio)
    assert far.sum() > 300 and np.max(exact[far] / joint[far]) > 0.5


def water_filled(rng, count, dimension, clients, records):
    """`count` random data sets and neighbours: shift, both covariances of the lifted sum."""
    g = in_ball(rng, count, clients, records, dimension)
    if records > 1:  # repeated directions near the floor are where the lift moves most
        g[: count // 2, :, 1:] = g[: count // 2, :, :1] * rng.uniform(
            0.5, 1, (count // 2, clients, records - 1, 1)
        )
    other = g.copy()
    other[:, 0, 0] = in_ball(rng, count, dimension)
    opposite = rng.random(count) < 0.3
    other[opposite, 0, 0] = -g[opposite, 0, 0]
    b = 10 ** rng.uniform(0, 2, count)
    q = 1 / (b * records)
    stddev_square = q * 10 ** rng.uniform(-0.5, 3, count)
    out = []
    for data in (g, other):
        covariance = np.einsum("mnjk,mnjl->mnkl", data, data) * q[:, None, None, None]
        out.append(
            np.asarray(
                [
                    sum(lifted(s, f) for s in per_client)
                    for per_client, f in zip(covariance, stddev_square, strict=True)
                ]
            )
        )
    shift = (g[:, 0, 0] - other[:, 0, 0]) / records
    return shift, *out, b, clients * stddev_square


def test_water_filling_never_exceeds_the_joint_bound_in_either_direction():
    rng = np.random.default_rng(10)
    near, far = 0.0, 0.0
    for dimension, clients, records in ((1, 1, 1), (2, 1, 4), (2, 3, 2), (3, 2, 5)):
        shift, first, second, b, floor = water_filled(rng, 500, dimension, clients, records)
        top = floor * b * records / math.sqrt(2)
        order = 1 + top * 10 ** rng.uniform(-3, 0, 500) * rng.uniform(0, 1, 500)
        sizes = {
            "floor": floor,
            "l2_clip_norm": np.ones(500),
            "num_records": np.full(500, float(records)),
        }
        with accounting.x64():
            bound = jax.vmap(
                lambda a, f, c, d, b: weighted_curves.joint(
                    a[None], floor=f, l2_clip_norm=c, num_records=d, batch_size=b, lifted=True
                )[0]
            )(order, sizes["floor"], sizes["l2_clip_norm"], sizes["num_records"], b)
        bound = np.asarray(bound)
        assert np.all(np.isfinite(bound))
        for one, two in ((first, second), (second, first)):
            exact = pairs(shift, one, two, order)
            assert np.all(exact <= bound * (1 + 1e-9) + 1e-12)
            near = max(near, np.max(exact / bound))
            far = max(far, np.max(np.where(order - 1 > 0.05 * top, exact / bound, 0)))
    assert 0.9 < near <= 1 + 1e-9
    assert 0.3 < far < 0.96


def test_theorem_2_and_the_joint_bound_hold_without_noise():
    rng = np.random.default_rng(11)
    clients, records, dimension, count = 2, 12, 2, 500
    g = in_ball(rng, count, clients, records, dimension)
    other = g.copy()
    other[:, 0, 0] = in_ball(rng, count, dimension)
    b = 10 ** rng.uniform(0, 2, count)
    least = [
        np.asarray([sum(span.least_eigenvalue(client) for client in data) for data in world])
        for world in (g, other)
    ]
    covariance = [
        np.einsum("mnjk,mnjl->mkl", world, world) / (b * records)[:, None, None]
        for world in (g, other)
    ]
    both = np.minimum(*least)
    shift = (g[:, 0, 0] - other[:, 0, 0]) / records
    order = 1 + (records * both - 1) * rng.uniform(0, 1, count) ** 2
    keep = order > 1.001
    assert keep.sum() > 300

    def bounds(a, l, b, uniform):
        sizes = {"l2_clip_norm": 1.0, "num_records": float(records), "batch_size": b}
        printed = weighted_curves.theorem_2(a[None], least_eigenvalue=l, **sizes)[0]
        return printed, weighted_curves.joint(a[None], floor=uniform / b, **sizes)[0]

    with accounting.x64():
        printed, joint = (np.asarray(v) for v in jax.vmap(bounds)(order, least[0], b, both))
        instance = np.asarray(
            jax.vmap(
                lambda a, l, b: weighted_curves.joint(
                    a[None],
                    floor=l / b,
                    l2_clip_norm=1.0,
                    num_records=float(records),
                    batch_size=b,
                    instance=True,
                )[0]
            )(order, least[0], b)
        )
    for one, two in (covariance, covariance[::-1]):
        exact = pairs(shift, one, two, order)
        for bound in (
            printed,
            joint,
            instance,
        ):  # printed and instance know the least eigenvalue of one world only
            good = keep & np.isfinite(bound)
            assert np.all(exact[good] <= bound[good] * (1 + 1e-9))
        assert np.max(exact[keep] / printed[keep]) > 0.3


def test_closed_form_of_one_record_is_the_dense_divergence():
    rng = np.random.default_rng(12)
    a, b = in_ball(rng, 200, 3), in_ball(rng, 200, 3)
    floor, q, d = (
        10 ** rng.uniform(-1, 1, 200),
        10 ** rng.uniform(-3, 0, 200),
        rng.integers(1, 20, 200).astype(float),
    )
    order = 1 + 10 ** rng.uniform(-1, 1, 200)
    eye = np.eye(3)
    dense = pairs(
        (a - b) / d[:, None],
        floor[:, None, None] * eye + q[:, None, None] * a[:, :, None] * a[:, None, :],
        floor[:, None, None] * eye + q[:, None, None] * b[:, :, None] * b[:, None, :],
        order,
    )
    with accounting.x64():
        closed = np.asarray(
            jax.vmap(
                lambda aa, bb, ab, o, m, q, d: replaced_record.divergence(
                    aa, bb, ab, o[None], floor=m, weight=q, num_records=d
                )[0]
            )((a**2).sum(1), (b**2).sum(1), (a * b).sum(1), order, floor, q, d)
        )
    np.testing.assert_array_equal(np.isfinite(closed), np.isfinite(dense))
    assert np.isinf(closed).any() and np.isfinite(closed).sum() > 100
    np.testing.assert_allclose(closed, dense, rtol=1e-9)
    # Common noise hides: never more divergence with a larger floor.
    more = replaced_record.divergence(
        1.0, 1.0, 0.6, [3.0], floor=np.asarray([0.4, 0.5, 5.0]), weight=0.05, num_records=10.0
    )
    assert np.all(np.diff(more[:, 0]) < 0)


def test_small_changes_of_covariance_keep_their_digits():
    # a = -b: the covariances agree and only the mean moves, 2 a |a|^2 / (D^2 (m + q |a|^2)).
    found = replaced_record.divergence(
        1.0, 1.0, -1.0, [5.0], floor=1.0, weight=1e-9, num_records=1e3
    )
    assert float(found[0]) == pytest.approx(2 * 5 / 1e6 / (1 + 1e-9), rel=1e-12)
    # b = 0 at vanishing q: KL-like expansion a/2 (1 + q) ... of one eigenvalue, against 50 digits.
    import mpmath

    with mpmath.workdps(60):
        q, order = mpmath.mpf("1e-7"), mpmath.mpf(5)
        mixed = 1 + (1 - order) * q
        logs = ((1 - order) * mpmath.log(1 + q) - mpmath.log(mixed)) / (2 * (order - 1))
        truth = float(logs + order / 2 / mixed * mpmath.mpf(10) ** -24)
    found = replaced_record.divergence(
        1.0, 0.0, 0.0, [5.0], floor=1.0, weight=1e-7, num_records=1e12
    )
    assert float(found[0]) == pytest.approx(truth, rel=1e-12)


ROWS = np.asarray([[3.0, 0, 0, 0], [0, 1, 0, 0], [1, 1, 1, 0]])


def test_oracle_o5_lift_and_its_draws():
    gram = ROWS @ ROWS.T / 6
    values, vectors = np.linalg.eigh(gram)
    np.testing.assert_allclose(values, [0.061658641244, 0.395236125262, 1.709771900161], rtol=1e-10)
    lift = spectrum.lift(values, 0.25)
    np.testing.assert_allclose(lift.lifted, [0.25, *values[1:]], rtol=1e-14)
    np.testing.assert_allclose(
        lift.fill, [1.070683148193, 1.265066546407, 0.292436669449], rtol=1e-11
    )
    np.testing.assert_allclose(lift.draw, [0, 0.325572662469, 0.472333452155], rtol=1e-11)
    saved = spectrum.savings(values, 0.25, 4)
    for found, value in (
        (saved.total, 2.60500802542),
        (saved.added, 0.438341358756),
        (saved.saved, 0.561658641244),
    ):
        assert float(found) == pytest.approx(value, rel=1e-11)
    assert float(saved.fraction) == pytest.approx(0.561658641244, rel=1e-11)
    z = np.asarray([1.0, -1.0, 0.5, 2.0])
    projected = vectors.T @ (ROWS @ z)
    added = 0.5 * z - ROWS.T @ (vectors @ (lift.fill * projected)) / 6
    np.testing.assert_allclose(
        added, [-0.014427488706, -0.197619692647, 0.33655710361, 1], rtol=1e-9
    )
    draw = ROWS.mean(0) + 0.5 * z + ROWS.T @ (vectors @ (lift.draw * projected)) / 6
    np.testing.assert_allclose(draw, [2.574165915921, 0.179219387943, 0.6224619641, 1], rtol=1e-9)


def test_lift_of_any_spectrum():
    values = np.asarray([[0.0, 0.0, 0.1], [0.25, 0.25, 9.0], [1.0, 2.0, 3.0]])
    lift = spectrum.lift(values, np.full(3, 0.25))
    assert np.all(lift.lifted >= 0.25) and np.all(lift.fill <= 2.0 + 1e-15)
    np.testing.assert_allclose(lift.draw[:2, :2], 0.0, atol=1e-15)
    # What the factors do to an eigenvalue: (s - fill l)^2 + l and (s + draw l)^2 are the lifted
    # one.
    np.testing.assert_allclose((0.5 - lift.fill * values) ** 2 + values, lift.lifted, rtol=1e-13)
    np.testing.assert_allclose(
        (0.5 + lift.draw * values) ** 2, np.maximum(lift.lifted, 0.25), rtol=1e-13
    )
    saved = spectrum.savings(values, np.full(3, 0.25), 10)
    np.testing.assert_allclose(saved.added + saved.saved, 2.5, rtol=1e-14)
    np.testing.assert_allclose(saved.saved, [0.1, 0.75, 0.75], rtol=1e-14)
    assert np.all(saved.total >= 2.5)


def test_erratum_blocks_with_shared_weights_fall_below_the_floor():
    covariance = ROWS.T @ ROWS / 6
    true = covariance.copy()
    for block in (slice(0, 2), slice(2, 4)):
        own = covariance[block, block]
        true[block, block] += lifted(own, 0.25) - own
    assert np.linalg.eigvalsh(true)[0] == pytest.approx(0.119273235775, rel=1e-10)  # O5j
    independent = np.zeros((4, 4))
    for block in (slice(0, 2), slice(2, 4)):
        independent[block, block] = lifted(covariance[block, block], 0.25)
    assert np.linalg.eigvalsh(independent)[0] >= 0.25 - 1e-15
    # O5k: two equal gradients. Each block sees 0.5, adds nothing, and one direction has no noise at
    #   all.
    g = np.full((2, 2), math.sqrt(0.5))
    shared = g.T @ g / 2
    assert (
        np.all(np.diagonal(shared) == pytest.approx(0.5))
        and abs(np.linalg.eigvalsh(shared)[0]) < 1e-15
    )


def test_erratum_the_printed_proof_of_theorem_4_fails_and_the_frobenius_bound_holds():
    # O6a: the change of the added noise is not below q g g^T.
    g = np.asarray([[0.16, 0.98], [-0.88, 0.46]])
    other = np.asarray([[-0.53, 0.84], [-0.88, 0.46]])
    q, floor = 1 / 2, 0.34
    before, after = q * g.T @ g, q * other.T @ other
    change = (lifted(after, floor) - after) - (lifted(before, floor) - before)
    claimed = q * np.outer(g[0], g[0]) - change
    assert np.linalg.eigvalsh(claimed)[0] == pytest.approx(-0.118371034763, rel=1e-9)
    moved = np.linalg.norm(lifted(after, floor) - lifted(before, floor))
    assert moved <= np.linalg.norm(after - before) <= math.sqrt(2) * q


def test_erratum_the_last_row_of_table_1_is_false():
    # O7: C = B = N = 1, D = 127.
    records, floor, order = 127, 61 / 127, 60.0
    e1, e2 = np.eye(2)
    common = [math.sqrt(64.28 / 65) * e1] * 65 + [math.sqrt(60.28 / 61) * e2] * 61
    last = np.asarray([math.cos(0.5), math.sin(0.5)])
    new = np.asarray([-math.sin(0.5), math.cos(0.5)])
    world = [
        lifted(np.asarray([*common, g]).T @ np.asarray([*common, g]) / records, floor)
        for g in (last, new)
    ]
    sizes = {"floor": floor, "l2_clip_norm": 1.0, "num_records": float(records), "batch_size": 1.0}
    claimed = float(weighted_curves.isotropic_printed([order], **sizes)[0])
    assert claimed == pytest.approx(1.96183104231, rel=1e-10)
    mixed = (1 - order) * world[0] + order * world[1]
    assert np.linalg.eigvalsh(mixed)[0] == pytest.approx(-2.30440332651 / records, rel=1e-9)
    shift = (last - new) / records
    assert float(rdp.gaussian_pair(shift, world[0], world[1], [order])[0]) == math.inf
    assert float(rdp.gaussian_pair(shift, world[1], world[0], [order])[0]) == pytest.approx(
        0.0164451595, rel=1e-8
    )
    assert np.isinf(weighted_curves.joint([order], **sizes, lifted=True)[0]) and np.isinf(
        weighted_curves.theorem_4([order], **sizes)[0]
    )


def test_erratum_theorem_3_without_its_1_over_d_claims_less_than_is_lost():
    # All gradients 1 but one, which goes from 1 to -1: the covariance stays, the mean moves by 2 /
    # D.
    records, batch, order = 40, 1000.0, 2.0
    ones = np.ones((records, 1))
    least = span.least_eigenvalue(ones)
    exact = float(
        rdp.gaussian_pair(np.asarray([2 / records]), least / batch, least / batch, [order])[0]
    )
    assert least == 1 and exact == pytest.approx(order / 2 * (2 / records) ** 2 * batch)
    sizes = {"l2_clip_norm": 1.0, "num_records": float(records), "batch_size": batch}
    printed, literal = (
        float(weighted_curves.theorem_2([order], least_eigenvalue=value, **sizes)[0])
        for value in (least, records * least)
    )
    assert literal < 0.05 * exact and exact <= printed


def test_oracle_o9_subsets_do_not_have_the_covariance_of_footnote_2():
    rng = np.random.default_rng(17)
    g, size, batch = rng.normal(size=(6, 3)), 6, 2
    sums = np.asarray(
        [g[list(s)].sum(0) / batch for s in itertools.combinations(range(size), batch)]
    )
    exact = np.cov(sums.T, bias=True)
    mean = g.mean(0)
    centred = (size - batch) / (batch * size * (size - 1)) * (g.T @ g - size * np.outer(mean, mean))
    np.testing.assert_allclose(centred, exact, rtol=1e-12, atol=1e-14)
    footnote = g.T @ g / (batch * size)
    np.testing.assert_allclose(
        footnote - np.outer(mean, mean) / batch,
        exact * (size - 1) / (size - batch),
        rtol=1e-12,
        atol=1e-14,
    )
    assert np.linalg.norm(footnote - exact) > 0.2 * np.linalg.norm(exact)


def test_oracle_o8_subsets_without_noise_are_zero_and_a_third():
    rng = np.random.default_rng(13)
    data = rng.normal(size=6)
    other = data.copy()
    other[2] = rng.normal()
    sums = [
        {round(sum(world[list(s)]) / 2, 12) for s in itertools.combinations(range(6), 2)}
        for world in (data, other)
    ]
    assert len(sums[0]) == len(sums[1]) == 15
    variation = len(sums[0] - sums[1]) / 15
    assert variation == pytest.approx(1 / 3) == pytest.approx(span.least_delta("subset", 2, 6))
    assert span.least_delta("gaussian", 2, 6) == 1.0


def test_oracle_o10_span_residual():
    rows = np.asarray([[1.0, 0, 0, 0], [0, 1, 0, 0], [1, 1, 0, 0]])
    assert span.residual(rows, [1.0, 2.0, 0.0, 0.5]) == pytest.approx(0.5, rel=1e-12)
    assert span.residual(rows, [1.0, 2.0, 0.0, 0.0]) <= 1e-7
    assert span.residual(np.zeros((2, 4)), [0.0, 3.0, 0.0, 4.0]) == pytest.approx(5.0)


def test_span_condition_in_both_directions_and_scopes():
    g = np.zeros((2, 2, 4))
    g[0, 0, 0], g[0, 1, 1], g[1, 0, 2], g[1, 1, :2] = 1.0, 1.0, 1.0, 0.5
    inside = span.condition(g, 0, 0, [0.5, 0.5, 0.0, 0.0])
    assert inside.holds and not inside.generic_failure
    outside = span.condition(g, 0, 0, [0.5, 0.0, 0.0, 0.1])
    assert not outside.holds and outside.new_residual == pytest.approx(0.1)
    # The old record left the span that the new data have: only the way back shows it.
    lost = span.condition(g, 1, 0, [1.0, 0.0, 0.0, 0.0])
    assert lost.new_residual <= 1e-7 and lost.old_residual == pytest.approx(1.0) and not lost.holds
    # Necessary is the span of all; the client's own other records may cover.
    own = np.zeros((2, 2, 2))
    own[0, 0, 0], own[0, 1], own[1, 0, 0], own[1, 1, 0] = 0.5, [0.3, 0.6], 1.0, 0.2
    assert span.condition(own, 0, 0, [0.0, 0.5]).holds
    assert not span.condition(own, 0, 0, [0.0, 0.5], scope="others").holds
    assert span.condition(np.ones((1, 1, 3)), 0, 0, np.ones(3)).generic_failure


def test_figure_3_the_span_attack_wins_without_noise_and_not_with_it():
    rng = np.random.default_rng(14)
    g = rng.normal(size=(4, 6, 32))
    g[:3, :, 24:] = 0.0  # three clients never touch the last quarter
    g[3, 1:, 24:] = 0.0  # and only one record of the fourth does
    target = g[3, 0]
    known = np.delete(g.reshape(-1, 32), 18, 0)
    wins = 0
    for _ in range(20):
        weights = 1 / 6 + rng.normal(size=24) / math.sqrt(3 * 6)
        with_target = weights @ np.insert(known, 18, target, 0)
        without = weights[:23] @ known
        found, there = span.distinguish(known, with_target, threshold=1e-4)
        _, absent = span.distinguish(known, without, threshold=1e-4)
        wins += there and not absent
        assert found == pytest.approx(abs(weights[18]) * span.residual(known, target), rel=1e-5)
    assert wins == 20
    noisy = [
        span.distinguish(known, without + rng.normal(size=32), threshold=1e-4)[1] for _ in range(5)
    ]
    assert all(noisy)  # with noise everything is outside, with or without the record


def test_least_eigenvalue_of_a_softmax_layer_needs_its_public_subspace():
    rng = np.random.default_rng(15)
    x, p = rng.normal(size=(40, 2)), rng.dirichlet(np.ones(3), 40)
    error = p - np.eye(3)[rng.integers(0, 3, 40)]  # rows sum to zero
    g = (x[:, :, None] * error[:, None, :]).reshape(40, 6)
    assert span.least_eigenvalue(g) == 0.0
    contrast = np.linalg.svd(np.ones((1, 3)))[2][1:].T
    basis = np.kron(np.eye(2), contrast)
    assert span.least_eigenvalue(g, basis) == pytest.approx(
        np.linalg.eigvalsh((g @ basis).T @ (g @ basis) / 40)[0]
    )
    assert span.least_eigenvalue(g[:3]) == 0.0  # fewer records than directions
    with pytest.raises(ValueError, match="orthonormal"):
        span.least_eigenvalue(g, 2 * basis)


def test_oracle_o11_mutual_information_is_a_diagnostic():
    assert information.secure_sum_leakage(50, 7850, batch_size=32, constant=0.0) == pytest.approx(
        79.2956262213
    )
    with pytest.raises(TypeError):
        information.secure_sum_leakage(50, 7850, batch_size=32)
    with pytest.raises(ValueError, match="num_clients"):
        information.secure_sum_leakage(1, 7850, batch_size=32, constant=0.0)
