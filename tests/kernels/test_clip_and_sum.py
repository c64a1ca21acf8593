"""clip_and_sum against float64, and what it must not do with bad rows."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from fljax_kernels.clipped_sum import api, reference
from fljax_kernels.clipped_sum.cases import CASES

optimized = pytest.mark.optimized(reason="compares bits or rounding errors of compiled programs")

# On a CPU "auto" is "matmul".
SLOW = pytest.mark.slow(reason="the same numbers by the name of the platform's choice")
both = pytest.mark.parametrize(
    "implementation",
    [pytest.param(name, marks=SLOW if name == "auto" else ()) for name in api.IMPLEMENTATIONS],
)


def flat64(tree):
    """[C, D] float64 rows of a tree with leading axis C."""
    leaves = [np.asarray(leaf.astype(jnp.float32), np.float64) for leaf in jax.tree.leaves(tree)]
    return np.concatenate(
        [leaf.reshape(leaf.shape[0], int(np.prod(leaf.shape[1:]))) for leaf in leaves], axis=1
    )


def flat_sum(tree):
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(tree)])


def clip_and_sum_float64(rows, clip):
    norms = np.linalg.norm(rows, axis=1)
    return (rows * np.minimum(1, clip / np.maximum(norms, 1e-300))[:, None]).sum(axis=0), norms


@optimized
@pytest.mark.parametrize("case", CASES, ids=str)
@both
def test_agrees_with_float64(case, implementation, key):
    rows = case.make(key)
    actual, norms = api.clip_and_sum(rows, 0.5, implementation=implementation)
    exact, exact_norms = clip_and_sum_float64(flat64(rows), 0.5)
    plain, _ = reference.clip_and_sum(rows, 0.5, jnp.ones(case.num_clients, bool))
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(actual))
    assert jax.tree.map(lambda r: r.shape[1:], rows) == jax.tree.map(lambda r: r.shape, actual)
    # Twice the error of plain float32: a fixed tolerance would hide a lost row. A product adds the
    # rows in another
    # order: C roundings of the partial sum, of either sign.
    order = np.sqrt(case.num_clients) * np.abs(exact).max() * 2**-24
    assert (
        np.abs(flat_sum(actual) - exact).max()
        <= 2 * np.abs(flat_sum(plain) - exact).max() + order + 1e-7
    )
    # Each clipped entry is at most 0.5; C sums of float32 round by at most C * 2**-24 of it,
    # factors by a few more.
    assert np.abs(flat_sum(plain) - exact).max() <= 0.5 * (case.num_clients + 16) * 2**-23
    np.testing.assert_allclose(norms, exact_norms, rtol=1e-5)


@optimized
@both
def test_one_client_moves_the_sum_by_at_most_l2_clip_norm(implementation, key):
    updates, mask = 100.0 * jax.random.normal(key, (8, 33)), jnp.ones(8, bool)
    with_all, _ = api.clip_and_sum(updates, 0.5, mask=mask, implementation=implementation)
    for client in range(8):
        without, _ = api.clip_and_sum(
            updates, 0.5, mask=mask.at[client].set(False), implementation=implementation
        )
        assert np.linalg.norm(with_all - without) <= 0.5 * (1 + 1e-5)


@optimized
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@both
def test_overshoot_after_rounding_stays_below_1e_5(implementation, dtype, key):
    # Entries of one sign and size are the worst case for a sequential sum of squares.
    rows = jnp.stack([3 * jax.random.normal(key, (1 << 20,)), jnp.full(1 << 20, 0.1)]).astype(dtype)
    for row in rows:
        clipped, _ = api.clip_and_sum(row[None], 1.0, implementation=implementation)
        assert np.linalg.norm(np.asarray(clipped, np.float64)) <= 1 + 1e-5


@optimized
@both
def test_a_row_within_the_bound_passes_unchanged(implementation, key):
    row = jax.random.normal(key, (1, 50))
    total, _ = api.clip_and_sum(row, 100.0, implementation=implementation)
    np.testing.assert_array_equal(total, row[0])


@optimized
@both
def test_a_row_that_is_not_finite_adds_zero(implementation, key):
    rows = jax.random.normal(key, (5, 9))
    bad = rows.at[2, 3].set(jnp.nan).at[0, 0].set(jnp.inf).at[4, 8].set(-jnp.inf)
    total, norms = api.clip_and_sum(bad, 0.5, implementation=implementation)
    others, _ = api.clip_and_sum(
        rows, 0.5, mask=jnp.arange(5) % 2 == 1, implementation=implementation
    )
    np.testing.assert_allclose(total, others, atol=2e-7)
    np.testing.assert_array_equal(np.isfinite(norms), [False, True, False, True, False])


@optimized
@both
def test_a_masked_row_adds_zero_even_when_nan(implementation, key):
    rows = jax.random.normal(key, (5, 9)).at[1].set(jnp.nan).at[4].set(jnp.inf)
    mask = jnp.array([True, False, True, True, False])
    total, norms = api.clip_and_sum(rows, 0.5, mask=mask, implementation=implementation)
    alone, _ = api.clip_and_sum(rows[jnp.array([0, 2, 3])], 0.5, implementation=implementation)
    np.testing.assert_allclose(total, alone, atol=2e-7)
    np.testing.assert_array_equal(np.asarray(norms)[[1, 4]], 0)


@optimized
@both
def test_a_masked_row_of_ordinary_numbers_adds_zero(implementation, key):
    rows, mask = jax.random.normal(key, (5, 9)), jnp.array([True, False, True, True, False])
    total, norms = api.clip_and_sum(rows, 0.5, mask=mask, implementation=implementation)
    exact, _ = clip_and_sum_float64(flat64(rows)[np.asarray(mask)], 0.5)
    np.testing.assert_allclose(total, exact, atol=2e-7)
    np.testing.assert_array_equal(np.asarray(norms)[[1, 4]], 0)


@both
def test_an_all_padding_batch_gives_zeros(implementation):
    rows = {"a": jnp.full((3, 4), jnp.nan), "b": jnp.full((3,), jnp.inf, jnp.bfloat16)}
    total, norms = api.clip_and_sum(
        rows, 1.0, mask=jnp.zeros(3, bool), implementation=implementation
    )
    for leaf in [*jax.tree.leaves(total), norms]:
        np.testing.assert_array_equal(leaf, np.zeros(leaf.shape))


@optimized
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@both
def test_a_finite_row_whose_square_overflows_is_clipped_not_dropped(implementation, dtype):
    huge = float(jnp.finfo(dtype).max)
    rows = jnp.array([[huge, -huge, huge, huge], [1e-30, 0, 0, 0], [3, 4, 0, 0]], dtype)
    total, norms = api.clip_and_sum(rows, 2.0, implementation=implementation)
    # (1, -1, 1, 1) plus nothing that float32 can see plus (1.2, 1.6, 0, 0)
    np.testing.assert_allclose(total, [2.2, 0.6, 1.0, 1.0], rtol=2e-6)
    assert norms[0] == np.inf  # twice the largest float32
    np.testing.assert_allclose(norms[1:], [1e-30, 5.0], rtol=1e-2)


@optimized
@both
def test_tiny_rows_and_tiny_bounds_are_clipped(implementation):
    rows = jnp.array([[3e-25, 4e-25], [3e-25, -4e-25]])
    total, _ = api.clip_and_sum(rows, 1e-25, implementation=implementation)
    np.testing.assert_allclose(total, [1.2e-25, 0], rtol=1e-5, atol=1e-31)


def test_one_segment_is_the_sum(key):
    rows = jax.random.normal(key, (4, 3))
    ids = jnp.zeros(4, jnp.int32)
    total, _ = api.clip_and_sum(rows, 1.0, segment_ids=ids, num_segments=1)
    np.testing.assert_allclose(total[0], api.clip_and_sum(rows, 1.0)[0], rtol=1e-6)


@optimized
@both
def test_segments_sum_their_own_rows_and_leave_out_foreign_ids(implementation, key):
    rows = {"w": jax.random.normal(key, (6, 2, 3)), "b": jnp.arange(6.0)}
    ids = jnp.array([2, 0, -1, 2, 3, 0], jnp.int32)
    total, norms = api.clip_and_sum(
        rows, 1.0, segment_ids=ids, num_segments=3, implementation=implementation
    )
    assert total["w"].shape == (3, 2, 3) and total["b"].shape == (3,)
    for segment in range(3):
        alone, _ = api.clip_and_sum(rows, 1.0, mask=ids == segment, implementation=implementation)
        jax.tree.map(
            lambda t, a, s=segment: np.testing.assert_allclose(t[s], a, atol=1e-6), total, alone
        )
    np.testing.assert_allclose(norms, np.linalg.norm(flat64(rows), axis=1), rtol=1e-6)


@optimized
@both
def test_jit_with_a_traced_bound_equals_the_plain_call(implementation, key):
    rows = jax.random.normal(key, (4, 10))
    traced, _ = jax.jit(lambda r, clip: api.clip_and_sum(r, clip, implementation=implementation))(
        rows, 0.7
    )
    plain, _ = api.clip_and_sum(rows, 0.7, implementation=implementation)
    np.testing.assert_allclose(traced, plain, atol=2e-7)


@optimized
@both
def test_vmap_over_batches_equals_a_loop(implementation, key):
    rows = jax.random.normal(key, (3, 4, 10)).at[1, 2, 0].set(jnp.nan)
    mapped, _ = jax.jit(
        jax.vmap(lambda r: api.clip_and_sum(r, 0.7, implementation=implementation))
    )(rows)
    looped = [api.clip_and_sum(r, 0.7, implementation=implementation)[0] for r in rows]
    np.testing.assert_allclose(mapped, np.stack(looped), atol=1e-6)


@both
def test_gradient_of_the_clipped_sum_is_that_of_the_projection(implementation):
    # d(clip * r/|r|)/dr along r is 0, across r it is clip/|r|; a short row passes its tangent.
    fun = lambda r: api.clip_and_sum(r, 1.0, implementation=implementation)[0]
    jacobian = jax.jit(jax.jacrev(fun))(jnp.array([[3.0, 4.0], [0.1, 0.2]]))
    across = np.array([4.0, -3.0]) / 5
    np.testing.assert_allclose(jacobian[:, 0], np.outer(across, across) / 5, atol=1e-6)
    np.testing.assert_allclose(jacobian[:, 1], np.eye(2), atol=1e-6)


@optimized
@both
def test_rows_sharded_over_devices_give_the_same_sum(implementation, key):
    rows = jax.random.normal(key, (16, 40)).at[3].set(jnp.nan)
    mesh = jax.make_mesh((8,), ("clients",), axis_types=(jax.sharding.AxisType.Auto,))
    spread = jax.device_put(rows, NamedSharding(mesh, PartitionSpec("clients")))
    total, norms = jax.jit(lambda r: api.clip_and_sum(r, 0.5, implementation=implementation))(
        spread
    )
    alone, alone_norms = api.clip_and_sum(rows, 0.5, implementation=implementation)
    np.testing.assert_allclose(total, alone, atol=1e-6)
    np.testing.assert_allclose(norms, alone_norms, rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"l2_clip_norm": -1.0}, "Expected l2_clip_norm > 0, got l2_clip_norm=-1.0"),
        ({"l2_clip_norm": float("nan")}, "Expected l2_clip_norm > 0"),
        ({"rows": jnp.ones((2, 3), jnp.int32)}, "floating dtype, got int32"),
        ({"rows": {}}, "at least one array"),
        ({"rows": jnp.float32(1)}, "leading axis C, got a scalar"),
        ({"rows": (jnp.ones((2, 3)), jnp.ones(3))}, "one leading axis C, got sizes"),
        ({"mask": jnp.ones(3, bool)}, "mask of shape"),
        ({"num_segments": 2}, "together"),
        (
            {"segment_ids": jnp.zeros(3, jnp.int32), "num_segments": 2},
            "segment_ids to be integers of shape",
        ),
        ({"implementation": "magic"}, "implementation to be one of"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        api.clip_and_sum(**{"rows": jnp.ones((2, 3)), "l2_clip_norm": 1.0, **arguments})


@pytest.mark.parametrize("implementation", api.IMPLEMENTATIONS)
def test_narrow_segment_ids_count_a_row_once(implementation):
    total, _ = api.clip_and_sum(
        jnp.ones((1, 2)),
        10.0,
        segment_ids=jnp.array([5], jnp.uint8),
        num_segments=300,
        implementation=implementation,
    )
    np.testing.assert_array_equal(np.flatnonzero(np.asarray(total)[:, 0]), [5])


def test_segment_ids_that_are_no_integers_are_refused():
    with pytest.raises(ValueError, match="segment_ids to be integers"):
        api.clip_and_sum(jnp.ones((1, 2)), 1.0, segment_ids=jnp.zeros(1), num_segments=2)
    with pytest.raises(ValueError, match="num_segments=0"):
        api.clip_and_sum(jnp.ones((1, 2)), 1.0, segment_ids=jnp.zeros(1, jnp.int32), num_segments=0)


@optimized
@pytest.mark.parametrize(("platform", "branches"), [("cpu", True), ("cuda", False), ("tpu", False)])
def test_accelerators_read_rows_twice_and_need_no_branch(platform, branches):
    rows = jnp.ones((16, 64))
    traced = jax.jit(lambda rows: api.clip_and_sum(rows, 0.5)).trace(rows)
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    # The choice of a platform is a branch by a constant; the matmul form has one by its data.
    assert (len(re.findall(r"stablehlo.case", text)) > 2) == branches


@optimized
def test_norms_of_two_reads_are_right_over_the_whole_range_of_float32(key):
    scale = 2.0 ** jnp.arange(-126, 121, 13, dtype=jnp.float32)
    rows = scale[:, None] * jax.random.uniform(key, (scale.size, 257), minval=0.5)
    mixed = jnp.concatenate([rows, rows[::-1] * 2.0**-20], axis=1)
    _, norms = api.clip_and_sum(mixed, 1.0, implementation="two_reads")
    exact = np.linalg.norm(np.asarray(mixed, np.float64), axis=1)
    np.testing.assert_allclose(norms, exact, rtol=1e-6)
