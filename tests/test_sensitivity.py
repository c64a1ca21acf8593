"""check_sensitivity: it passes what is true, and catches mechanisms known to be broken."""

import enum

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import check_sensitivity
from fljax.errors import SensitivityError
from fljax_kernels import add_gaussian_noise, clip_and_sum

CLIP = 0.5


class Relation(enum.Enum):
    REPLACE_ONE = 7


@pytest.fixture
def rows(key):
    return 10.0 * jax.random.normal(key, (6, 5)) + 3.0


def clipped_sum(data, mask):
    return clip_and_sum(data, CLIP, mask=mask)[0]


def test_a_clipped_sum_keeps_its_bound_and_reaches_it(rows):
    report = check_sensitivity(clipped_sum, rows, sensitivity=CLIP)
    assert report.holds and report.declared == CLIP
    # Every row is longer than the bound, so each moves the sum by exactly the bound.
    np.testing.assert_allclose(report.distances, CLIP, rtol=1e-5)
    assert report.distances[list(report.units).index(report.worst_unit)] == report.measured


def test_replacing_a_row_by_its_opposite_moves_the_sum_twice_as_far(rows):
    report = check_sensitivity(
        clipped_sum,
        rows,
        sensitivity=2 * CLIP,
        neighboring_relation=Relation.REPLACE_ONE,
        replacements=-rows,
    )
    np.testing.assert_allclose(report.measured, 2 * CLIP, rtol=1e-5)
    with pytest.raises(SensitivityError, match="under REPLACE_ONE"):
        check_sensitivity(
            clipped_sum,
            rows,
            sensitivity=CLIP,
            neighboring_relation="REPLACE_ONE",
            replacements=-rows,
        )


def test_noise_from_the_same_key_cancels(rows, key):
    def fun(data, mask):
        return add_gaussian_noise(jax.random.clone(key), clipped_sum(data, mask), 100.0)

    report = check_sensitivity(fun, rows, sensitivity=CLIP)
    assert report.measured == pytest.approx(CLIP, rel=1e-3)


def test_a_unit_may_be_a_client_or_a_subject_with_many_rows(rows):
    ids = np.array([4, 4, 4, 7, 7, -1])

    def average(data, mask):
        present = jnp.where(mask[:, None], data, 0)
        units = jnp.stack([present[:3].sum(axis=0), present[3:5].sum(axis=0)])
        return clip_and_sum(units, CLIP)[0]

    report = check_sensitivity(average, rows, sensitivity=CLIP, unit_ids=ids)
    assert report.units.tolist() == [4, 7] and report.holds
    with pytest.raises(SensitivityError, match="unit 4 moved it by"):
        check_sensitivity(clipped_sum, jnp.abs(rows), sensitivity=CLIP, unit_ids=ids)


def unclipped_sum(data, mask):
    return jnp.where(mask[:, None], data, 0).sum(axis=0)


def mean_by_the_actual_batch(data, mask):
    # Declares CLIP / 6, the public size, but divides by who came.
    return clipped_sum(data, mask) / jnp.sum(mask, dtype=jnp.float32)


def clip_before_padding(data, mask):
    # Each row is clipped, and then absent rows are filled up with the first present one.
    clipped = jax.vmap(lambda row: clip_and_sum(row[None], CLIP)[0])(data)
    return jnp.where(mask[:, None], clipped, clipped[jnp.argmax(mask)][None]).sum(axis=0)


def mask_by_multiplying(data, mask):
    # NaN * 0 is NaN.
    return clip_and_sum(data * mask[:, None].astype(data.dtype), CLIP)[0] + 0 * data.sum(axis=0)


def counts_the_batch(data, mask):
    return {"sum": clipped_sum(data, mask), "size": jnp.sum(mask, dtype=jnp.int32)}


@pytest.mark.parametrize(
    ("fun", "sensitivity"),
    [
        (unclipped_sum, CLIP),
        (mean_by_the_actual_batch, CLIP / 6),
        (clip_before_padding, CLIP),
        (mask_by_multiplying, CLIP),
        (counts_the_batch, CLIP),
        (lambda data, mask: 1.01 * clipped_sum(data, mask), CLIP),
    ],
    ids=[
        "unclipped_sum",
        "actual_batch",
        "clip_before_padding",
        "mask_by_multiplying",
        "count",
        "one_percent_more",
    ],
)
def test_a_broken_mechanism_is_caught(fun, sensitivity):
    # One row against five: where it leaves, the others' mean grows as well.
    rows = jnp.outer(jnp.array([1.0, -1.0, -1.0, -1.0, -1.0, -1.0]), jnp.array([3.0, 4.0]))
    check_sensitivity(clipped_sum, rows, sensitivity=CLIP)
    with pytest.raises(
        SensitivityError, match="Expected one unit to move the output by at most"
    ) as caught:
        check_sensitivity(fun, rows, sensitivity=sensitivity)
    assert not caught.value.report.holds


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sensitivity": -1.0}, "Expected sensitivity >= 0"),
        ({"neighboring_relation": "OTHER"}, "neighboring_relation to be one of"),
        ({"neighboring_relation": "REPLACE_ONE"}, "replacements with REPLACE_ONE"),
        ({"replacements": jnp.ones((6, 5))}, "replacements with REPLACE_ONE"),
        ({"unit_ids": np.zeros(3, int)}, "unit_ids to be int of shape"),
        ({"unit_ids": np.full(6, -1)}, "at least one unit"),
        ({"data": (jnp.ones(3), jnp.ones(4))}, "one leading axis N"),
        ({"data": {}}, "one leading axis N"),
    ],
)
def test_bad_arguments_are_named(arguments, message, rows):
    with pytest.raises(ValueError, match=message):
        check_sensitivity(clipped_sum, **{"data": rows, "sensitivity": CLIP, **arguments})
