"""clipped_grad against closed forms; its sensitivity, by replay; a jax_privacy example with another
import.
"""

import enum
import math
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from fljax import check_sensitivity, clipped_fun, clipped_grad
from fljax.local import quantile
from fljax.local.item import AuxiliaryOutput

B = 7


def squared_error(params, x, y):
    """Written for a batch, as most losses are; the gradient of one row is (x.w + b - y) (x, 1)."""
    return 0.5 * jnp.mean((x @ params["w"] + params["b"] - y) ** 2)


def one_row(params, x, y):
    return squared_error(params, x[None], y[None])


@pytest.fixture
def problem(key):
    return drawn(key)


@jax.jit
def drawn(key):
    k = jax.random.split(key, 4)
    params = {"w": jax.random.normal(k[0], (4,)), "b": jax.random.normal(k[1], ())}
    return params, 3 * jax.random.normal(k[2], (B, 4)), jax.random.normal(k[3], (B,))


def rows64(params, x, y):
    """Gradients `[B, 5]` and losses `[B]` in float64."""
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    error = x @ np.asarray(params["w"], np.float64) + float(params["b"]) - y
    return error[:, None] * np.concatenate([x, np.ones((len(x), 1))], axis=1), 0.5 * error**2


def flat(grad):
    return np.concatenate(
        [np.asarray(grad["w"], np.float64), np.asarray(grad["b"], np.float64)[None]]
    )


def clipped64(rows, clip):
    return rows * np.minimum(1, clip / np.linalg.norm(rows, axis=1))[:, None]


@pytest.mark.slow(
    reason="compiles one more setting",
    but=["0.0-None-False", "1.5-None-True", "1.5-3-False", "inf-3-True"],
)
@pytest.mark.parametrize("keep_batch_dim", [True, False])
@pytest.mark.parametrize("microbatch_size", [None, 3])
@pytest.mark.parametrize("clip", [0.0, 1.5, math.inf])
def test_returns_the_sum_of_clipped_gradients(clip, microbatch_size, keep_batch_dim, problem):
    g = clipped_grad(
        squared_error if keep_batch_dim else one_row,
        l2_clip_norm=clip,
        batch_argnums=(1, 2),
        keep_batch_dim=keep_batch_dim,
        microbatch_size=microbatch_size,
        normalize_by=5.0,
    )
    total = jax.jit(g)(*problem)
    rows, _ = rows64(*problem)
    expected = clipped64(rows, clip) if clip < math.inf else rows
    # Float32 rounding of 7 entries of size |row|.
    np.testing.assert_allclose(
        flat(total), expected.sum(axis=0) / 5, atol=1e-6 * np.abs(rows).sum() + 1e-12
    )


def test_values_norms_and_aux_come_per_row(problem):
    fun = lambda p, x, y: (squared_error(p, x, y), {"x": x, "sum": x.sum()})
    g = clipped_grad(
        fun,
        has_aux=True,
        l2_clip_norm=1.0,
        batch_argnums=(1, 2),
        return_values=True,
        return_grad_norms=True,
    )
    _, extra = jax.jit(g)(*problem)
    rows, losses = rows64(*problem)
    assert isinstance(extra, AuxiliaryOutput)
    np.testing.assert_allclose(extra.values, losses, rtol=1e-5)
    np.testing.assert_allclose(extra.grad_norms, np.linalg.norm(rows, axis=1), rtol=1e-5)
    np.testing.assert_array_equal(extra.aux["x"], problem[1])
    np.testing.assert_allclose(extra.aux["sum"], np.sum(problem[1], axis=1), rtol=1e-5)
    _, only = jax.jit(
        clipped_grad(squared_error, l2_clip_norm=1.0, batch_argnums=(1, 2), return_values=True)
    )(*problem)
    assert only.grad_norms is None and only.aux is None


@pytest.mark.parametrize("microbatch_size", [None, 2])
@pytest.mark.parametrize(
    "transform", [None, lambda g: [2 * g["w"], g["b"]]], ids=["plain", "transformed"]
)
def test_padding_adds_nothing_even_when_nan(transform, microbatch_size, problem):
    params, x, y = problem
    padding = np.array([False, True, False, False, True, False, False])
    broken, far = np.array(x), np.array(y)
    broken[1], far[4] = np.nan, np.inf
    g = clipped_grad(
        squared_error,
        l2_clip_norm=1.0,
        batch_argnums=(1, 2),
        pre_clipping_transform=transform,
        microbatch_size=microbatch_size,
        return_values=True,
        return_grad_norms=True,
    )
    padded, extra = jax.jit(g)(params, broken, far, is_padding_example=padding)
    alone, alone_extra = jax.jit(g)(params, np.asarray(x)[~padding], np.asarray(y)[~padding])
    chex.assert_trees_all_close(padded, alone, rtol=1e-7, atol=1e-6)
    for got, want in [
        (extra.values, alone_extra.values),
        (extra.grad_norms, alone_extra.grad_norms),
    ]:
        np.testing.assert_allclose(np.asarray(got)[~padding], want, rtol=1e-6)
        np.testing.assert_array_equal(np.asarray(got)[padding], 0)


@pytest.mark.parametrize("microbatch_size", [None, 2])
def test_an_all_padding_batch_gives_zeros(microbatch_size, problem):
    g = clipped_grad(
        squared_error, l2_clip_norm=1.0, batch_argnums=(1, 2), microbatch_size=microbatch_size
    )
    total = jax.jit(g)(*problem, is_padding_example=np.ones(B, bool))
    np.testing.assert_array_equal(flat(total), 0)


def test_a_batch_of_no_rows_gives_zeros(problem):
    params, x, y = problem
    total = jax.jit(clipped_grad(squared_error, l2_clip_norm=1.0, batch_argnums=(1, 2)))(
        params, np.asarray(x)[:0], np.asarray(y)[:0]
    )
    np.testing.assert_array_equal(flat(total), 0)


def test_labels_that_are_not_among_the_batch_arguments_are_refused():
    def fun(w, x, y):
        return jnp.mean(jnp.square(x @ w - y))

    w, x, y = jnp.ones(3), jnp.ones((4, 3)), jnp.arange(4.0)
    g = clipped_grad(fun, l2_clip_norm=1.0)
    for labels in (
        y,
        jnp.arange(4),
        {"y": y},
        {"y": jnp.arange(4), "w": jnp.ones(2)},
        np.arange(4),
    ):
        with pytest.raises(
            ValueError, match=r"argument 2 of shape \(4,\): .*Add 2 to batch_argnums"
        ):
            jax.jit(g)(w, x, labels)
    whole = clipped_grad(fun, l2_clip_norm=1.0, batch_argnums=(1, 2))(w, x, y)
    np.testing.assert_allclose(
        whole, [0, 0, 0] + np.sum(np.sign(3 - np.arange(4)) / math.sqrt(3)), rtol=1e-6
    )
    # Frozen parameters, one of which has that length by chance, and numbers for all rows.
    frozen = {"a": jnp.ones((4, 2)), "b": jnp.zeros(3)}
    clipped_grad(lambda w, x, p: jnp.sum(x @ w) + p["b"][0], l2_clip_norm=1.0)(w, x, frozen)
    clipped_grad(lambda w, x, t: jnp.sum(x @ w) * t, l2_clip_norm=1.0)(w, x, 2.0)
    clipped_grad(fun, l2_clip_norm=1.0)(w, x[:1], y[:1])  # one row sees its own label only


@pytest.mark.parametrize("transform", [None, lambda grad: grad], ids=["plain", "transformed"])
def test_a_function_that_normalises_over_its_batch_is_refused(transform):
    def fun(w, x):
        hidden = x @ w
        return jnp.sum(jnp.square(hidden - jnp.mean(hidden, axis=0, keepdims=True)))

    with pytest.raises(
        ValueError, match="without batch statistics, got one that normalises over a batch axis"
    ):
        clipped_grad(fun, l2_clip_norm=1.0, pre_clipping_transform=transform)(
            jnp.ones((3, 2)), jnp.ones((4, 3))
        )


@pytest.mark.parametrize("keep_batch_dim", [False, True])
def test_a_function_of_another_shape_is_named(keep_batch_dim):
    what = "a batch of one row, got shape (1, 2)" if keep_batch_dim else "one row, got shape (2,)"
    g = clipped_grad(lambda w, x: x @ w, l2_clip_norm=1.0, keep_batch_dim=keep_batch_dim)
    with pytest.raises(ValueError, match=f"Expected fun to return a scalar for {re.escape(what)}"):
        g(jnp.ones((3, 2)), jnp.ones((4, 3)))


@pytest.mark.parametrize("keep_batch_dim", [True, False])
def test_what_a_function_of_one_row_raises_says_that_it_got_a_batch(keep_batch_dim):
    def loss(params, row):
        raise TypeError("rows have one axis here")

    for transform in (clipped_grad, clipped_fun):
        with pytest.raises(TypeError, match="one axis here") as raised:
            transform(loss, l2_clip_norm=1.0, keep_batch_dim=keep_batch_dim)(
                jnp.ones(3), jnp.ones((4, 3))
            )
        notes = getattr(raised.value, "__notes__", [])
        assert (sum("wants keep_batch_dim=False" in note for note in notes) == 1) == keep_batch_dim


@pytest.mark.parametrize("microbatch_size", [None, 2])
@pytest.mark.parametrize(
    "transform", [None, lambda grad: jax.tree.map(lambda g: 2 * g, grad)], ids=["plain", "twice"]
)
def test_padding_by_zeros_is_harmless_to_a_loss_without_a_gradient_there(
    transform, microbatch_size
):
    def fun(w, x):
        return jnp.vdot(w, x[0] / jnp.linalg.norm(x[0]))

    g = clipped_grad(
        fun,
        l2_clip_norm=10.0,
        pre_clipping_transform=transform,
        microbatch_size=microbatch_size,
        return_values=True,
    )
    x = np.float32([[3, 4], [0, -2], [5, 12], [0, 0], [0, 0]])
    found, aux = jax.jit(g)(np.ones(2, np.float32), x, is_padding_example=np.arange(5) >= 3)
    factor = 1 if transform is None else 2
    np.testing.assert_allclose(
        found, factor * np.array([0.6 + 5 / 13, 0.8 - 1 + 12 / 13]), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(aux.values, [1.4, -1, 17 / 13, 0, 0], rtol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("transform", [None, lambda g: g], ids=["plain", "transformed"])
def test_a_gradient_that_is_not_finite_adds_zero_unless_told_otherwise(bad, transform, problem):
    params, x, y = problem
    options = {"l2_clip_norm": 1.0, "batch_argnums": (1, 2), "pre_clipping_transform": transform}
    broken, broken_by_nan = np.array(x), np.array(x)
    broken[2, 0], broken_by_nan[2, 0] = bad, np.nan
    total = jax.jit(clipped_grad(squared_error, **options))(params, broken, y)
    others = jax.jit(clipped_grad(squared_error, **options))(
        params, x, y, is_padding_example=np.arange(B) == 2
    )
    np.testing.assert_allclose(flat(total), flat(others), atol=1e-6)
    unsafe = jax.jit(clipped_grad(squared_error, nan_safe=False, **options))(
        params, broken_by_nan, y
    )
    assert np.isnan(flat(unsafe)).any()


def test_rescaling_divides_by_the_bound_and_small_bounds_keep_the_direction(problem):
    rows, _ = rows64(*problem)
    make = lambda clip: clipped_grad(
        squared_error, l2_clip_norm=clip, rescale_to_unit_norm=True, batch_argnums=(1, 2)
    )
    np.testing.assert_allclose(
        flat(jax.jit(make(2.0))(*problem)), clipped64(rows, 2.0).sum(axis=0) / 2, atol=1e-5
    )
    directions = (rows / np.linalg.norm(rows, axis=1)[:, None]).sum(axis=0)
    np.testing.assert_allclose(flat(jax.jit(make(0.0))(*problem)), directions, atol=1e-5)
    assert make(2.0).l2_norm_bound == 1.0


@pytest.mark.parametrize("microbatch_size", [None, 3])
@pytest.mark.parametrize("transform", [None, lambda g: dict(g)], ids=["plain", "transformed"])
def test_a_tree_of_bounds_clips_each_part_to_its_own(transform, microbatch_size, problem):
    bounds = {"w": 3.0, "b": 0.4}
    g = clipped_grad(
        squared_error,
        l2_clip_norm=bounds,
        batch_argnums=(1, 2),
        return_grad_norms=True,
        pre_clipping_transform=transform,
        microbatch_size=microbatch_size,
    )
    total, extra = jax.jit(g)(*problem)
    rows, _ = rows64(*problem)
    np.testing.assert_allclose(total["w"], clipped64(rows[:, :4], 3.0).sum(axis=0), atol=1e-5)
    np.testing.assert_allclose(total["b"], clipped64(rows[:, 4:], 0.4).sum(), atol=1e-5)
    np.testing.assert_allclose(extra.grad_norms, np.linalg.norm(rows, axis=1), rtol=1e-5)
    assert g.l2_norm_bound == math.hypot(3.0, 0.4)


def test_one_bound_for_a_subtree_is_the_bound_of_its_joint_norm(problem):
    params, x, y = problem
    fun = lambda both, x, y: squared_error(both["layer"], x, y) + both["other"] ** 2
    both = {"layer": params, "other": jnp.float32(5)}
    g = clipped_grad(
        fun,
        l2_clip_norm={"layer": 1.5, "other": 2.0},
        batch_argnums=(1, 2),
        rescale_to_unit_norm=True,
    )
    total = jax.jit(g)(both, x, y)
    rows, _ = rows64(params, x, y)
    np.testing.assert_allclose(
        flat(total["layer"]), clipped64(rows, 1.5).sum(axis=0) / 1.5, atol=1e-5
    )
    np.testing.assert_allclose(
        total["other"], B, rtol=1e-6
    )  # each gradient is 10, clipped to 2, rescaled to 1
    assert g.l2_norm_bound == math.sqrt(2)


def test_subjects_count_once_however_many_rows_they_have(problem):
    params, x, y = problem
    subjects = jnp.array([5, 5, 9, 5, 2, 9, 5])
    padding = jnp.arange(B) == 6
    g = clipped_grad(
        lambda p, x, y, _: squared_error(p, x, y),
        l2_clip_norm=1.5,
        batch_argnums=(1, 2, 3),
        subject_ids=lambda x, y, subjects: subjects,
    )
    total = jax.jit(g)(params, x, y, subjects, is_padding_example=padding)
    rows = clipped64(rows64(*problem)[0], 1.5)
    expected = rows[[0, 1, 3]].mean(axis=0) + rows[[2, 5]].mean(axis=0) + rows[4]
    np.testing.assert_allclose(flat(total), expected, atol=1e-5)


def test_16_bit_parameters_give_a_float32_sum_unless_dtype_says_otherwise(problem):
    params, x, y = jax.tree.map(lambda leaf: np.asarray(leaf).astype(jnp.bfloat16), problem)
    half = lambda p, x, y: one_row(p, x, y)
    options = {"l2_clip_norm": 1e-3, "batch_argnums": (1, 2), "keep_batch_dim": False}
    total = jax.jit(clipped_grad(half, **options))(params, x, y)
    assert total["w"].dtype == jnp.float32 and np.linalg.norm(flat(total)) > 0
    only = jax.jit(clipped_grad(half, **options))
    for row in range(B):
        alone = only(params, x, y, is_padding_example=np.arange(B) != row)
        # The row's own 16-bit rounding is before the clip; the bound holds to float32.
        assert np.linalg.norm(flat(alone)) <= 1e-3 * (1 + 1e-5)
    narrow = jax.eval_shape(clipped_grad(half, dtype=jnp.bfloat16, **options), params, x, y)
    assert narrow["w"].dtype == jnp.bfloat16


def test_several_argnums_give_a_tuple(problem):
    params, x, y = problem
    fun = lambda w, x, b, y: squared_error({"w": w, "b": b}, x, y)
    w, b = jax.jit(clipped_grad(fun, (0, 2), l2_clip_norm=1.5, batch_argnums=(1, 3)))(
        params["w"], x, params["b"], y
    )
    rows, _ = rows64(*problem)
    np.testing.assert_allclose(flat({"w": w, "b": b}), clipped64(rows, 1.5).sum(axis=0), atol=1e-5)


def test_each_row_gets_its_own_key_and_keyword_arguments_are_per_row(problem, key):
    params, x, _ = problem
    fun = lambda p, x, key, *, weight: (p["b"] * weight, jax.random.uniform(key))
    g = clipped_grad(fun, has_aux=True, l2_clip_norm=math.inf, prng_argnum=2)
    total, extra = g(params, x, jax.random.clone(key), weight=jnp.arange(7.0))
    assert float(total["b"]) == 21.0
    expected = jax.vmap(jax.random.uniform)(jax.random.split(jax.random.clone(key), B))
    np.testing.assert_array_equal(extra.aux, expected)


def test_vmap_over_clients_with_their_own_parameters(problem):
    params, x, y = problem
    many = jax.tree.map(lambda p: jnp.stack([p, 2 * p]), params)
    g = clipped_grad(squared_error, l2_clip_norm=1.5, batch_argnums=(1, 2))
    mapped = jax.jit(jax.vmap(g, in_axes=(0, None, None)))(many, x, y)
    for i in range(2):
        alone = jax.jit(g)(jax.tree.map(lambda p, i=i: np.asarray(p)[i], many), x, y)
        jax.tree.map(
            lambda m, a, i=i: np.testing.assert_allclose(m[i], a, atol=1e-5), mapped, alone
        )


def test_a_batch_sharded_over_devices_gives_the_same_sum(key):
    params = {"w": jnp.ones(4), "b": jnp.zeros(())}
    x = jax.random.normal(key, (16, 4))
    mesh = jax.make_mesh((8,), ("b",), axis_types=(jax.sharding.AxisType.Auto,))
    spread = jax.device_put(x, NamedSharding(mesh, PartitionSpec("b")))
    g = jax.jit(clipped_grad(squared_error, l2_clip_norm=0.5, batch_argnums=(1, 2)))
    np.testing.assert_allclose(
        flat(g(params, spread, jnp.zeros(16))), flat(g(params, x, jnp.zeros(16))), atol=1e-5
    )


@pytest.mark.parametrize(("style", "stability"), [("auto_s", 0.01), ("psac", 0.1)])
def test_styles_give_the_sums_of_their_papers(style, stability, problem):
    rows, _ = rows64(*problem)
    norms = np.linalg.norm(rows, axis=1)
    divisor = norms + (stability if style == "auto_s" else stability / (norms + stability))
    options = {"clipping_style": style, "batch_argnums": (1, 2), "return_grad_norms": True}
    total, extra = jax.jit(clipped_grad(squared_error, l2_clip_norm=1.5, **options))(*problem)
    np.testing.assert_allclose(flat(total), (1.5 * rows / divisor[:, None]).sum(axis=0), atol=1e-5)
    np.testing.assert_allclose(extra.grad_norms, norms, rtol=1e-5)
    parts = {"w": np.linalg.norm(rows[:, :4], axis=1), "b": np.abs(rows[:, 4])}
    parts = {
        k: n + (stability if style == "auto_s" else stability / (n + stability))
        for k, n in parts.items()
    }
    g = clipped_grad(
        squared_error, l2_clip_norm={"w": 3.0, "b": 0.4}, rescale_to_unit_norm=True, **options
    )
    total, _ = jax.jit(g)(*problem)
    np.testing.assert_allclose(
        total["w"], (rows[:, :4] / parts["w"][:, None]).sum(axis=0), atol=1e-5
    )
    np.testing.assert_allclose(total["b"], (rows[:, 4] / parts["b"]).sum(), atol=1e-5)
    assert g.l2_norm_bound == math.sqrt(2)


def test_a_traced_bound_follows_a_quantile_of_the_norms(problem, key):
    norms = np.linalg.norm(rows64(*problem)[0], axis=1)

    @jax.jit
    def step(state, key):
        g = clipped_grad(
            squared_error,
            l2_clip_norm=state.l2_clip_norm,
            batch_argnums=(1, 2),
            return_grad_norms=True,
        )
        _, extra = g(*problem)
        count = quantile.centred_count(state, extra.grad_norms, jnp.ones(B, bool))
        new = quantile.update(
            key, state, count, expected_count=float(B), count_stddev=0.0, target_quantile=0.5
        )
        return new, new.l2_clip_norm

    # Without noise the bound ends up around the median of seven norms, the fourth, to both sides of
    # which the fraction is off by 1/14: a step of 0.2 / 14 = 0.0143 in the logarithm.
    _, bounds = jax.lax.scan(
        step, quantile.init(1e-3), jax.random.split(jax.random.clone(key), 300)
    )
    assert abs(math.log(float(bounds[-1]) / np.sort(norms)[3])) <= 0.0144


class ForeignRelation(enum.Enum):
    ADD_OR_REMOVE_ONE = 1
    REPLACE_ONE = 2
    REPLACE_SPECIAL = 3


def test_sensitivity_names_the_relation_and_includes_the_divisor():
    g = clipped_grad(squared_error, l2_clip_norm=3.0, normalize_by=6.0)
    assert g.l2_norm_bound == g.sensitivity() == g.sensitivity("ADD_OR_REMOVE_ONE") == 0.5
    assert g.sensitivity(ForeignRelation.REPLACE_ONE) == 1.0
    assert g.sensitivity(ForeignRelation.REPLACE_SPECIAL) == 0.5
    assert not g.has_aux
    with pytest.raises(ValueError, match="neighboring_relation to be one of"):
        g.sensitivity("ADD_ONE")


@pytest.mark.slow(
    reason="compiles one more setting",
    but=[
        "flat",
        "l2_clip_norm0",
        "microbatch_size",
        "clipping_style",
        "clipping_style,pre_clipping_transform",
    ],
)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"normalize_by": 4.0},
        {"l2_clip_norm": 0.3, "rescale_to_unit_norm": True},
        {"l2_clip_norm": {"w": 1.0, "b": 2.0}},
        {"pre_clipping_transform": lambda g: {"twice": 2 * g["w"]}},
        {"microbatch_size": 3},
        {"clipping_style": "auto_s"},
        {"clipping_style": "psac", "l2_clip_norm": {"w": 1.0, "b": 2.0}},
        {
            "clipping_style": "psac",
            "rescale_to_unit_norm": True,
            "normalize_by": 4.0,
            "microbatch_size": 3,
        },
        {"clipping_style": "auto_s", "pre_clipping_transform": lambda g: {"twice": 2 * g["w"]}},
        {"l2_clip_norm": 1e-20},
    ],
    ids=lambda o: ",".join(o) or "flat",
)
def test_replay_confirms_the_declared_sensitivity(options, problem):
    params, x, y = problem
    g = clipped_grad(squared_error, **{"l2_clip_norm": 1.5, "batch_argnums": (1, 2), **options})
    fun = lambda data, mask: g(params, *data, is_padding_example=~mask)
    data = (x.at[3].mul(1e6), y)
    report = check_sensitivity(fun, data, sensitivity=g.sensitivity("ADD_OR_REMOVE_ONE"))
    assert report.measured >= 0.5 * report.declared  # the data do reach the bound, or nearly
    check_sensitivity(
        fun,
        data,
        sensitivity=g.sensitivity("REPLACE_ONE"),
        neighboring_relation="REPLACE_ONE",
        replacements=(-x, y + 1e4),
    )


def test_replay_confirms_the_subject_bound_and_refutes_it_without_the_averages(problem):
    params, x, y = problem
    subjects = jnp.array([5, 5, 9, 5, 2, 9, 5])
    options = {"l2_clip_norm": 1.5, "batch_argnums": (1, 2)}
    averaged = clipped_grad(squared_error, subject_ids=lambda x, y: subjects, **options)
    same = (jnp.abs(x[:1]) * jnp.arange(1.0, 8.0)[:, None], y - 100)  # rows that all point one way
    run = lambda g: lambda data, mask: g(params, *data, is_padding_example=~mask)
    report = check_sensitivity(run(averaged), same, sensitivity=1.5, unit_ids=subjects)
    assert report.measured > 1.4
    with pytest.raises(AssertionError, match="unit 5 moved it by"):
        check_sensitivity(
            run(clipped_grad(squared_error, **options)), same, sensitivity=1.5, unit_ids=subjects
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"l2_clip_norm": -1.0}, "Expected l2_clip_norm >= 0, got l2_clip_norm=-1.0"),
        ({"l2_clip_norm": math.nan}, "Expected l2_clip_norm >= 0"),
        ({"l2_clip_norm": {}}, "tree of bounds, got an empty tree"),
        ({"clipping_style": "automatic"}, "Expected clipping_style to be one of"),
        (
            {"clipping_style": "psac", "l2_clip_norm": math.inf},
            "Expected l2_clip_norm to be finite with 'psac'",
        ),
        ({"normalize_by": 0.0}, "Expected normalize_by > 0"),
        ({"batch_argnums": ()}, "not empty"),
        ({"batch_argnums": -1}, "batch_argnums to be an integer >= 0"),
        ({"argnums": "0"}, "Expected argnums to be an integer >= 0, got argnums='0'"),
        ({"batch_argnums": (1, None)}, "Expected batch_argnums to be an integer >= 0"),
        ({"l2_clip_norm": "1"}, "Expected l2_clip_norm >= 0, got l2_clip_norm='1'"),
        ({"l2_clip_norm": True}, "Expected l2_clip_norm >= 0, got l2_clip_norm=True"),
        ({"l2_clip_norm": {"w": "1"}}, "Expected l2_clip_norm >= 0, got l2_clip_norm='1'"),
        ({"normalize_by": "8"}, "Expected normalize_by > 0"),
        ({"microbatch_size": "2"}, "microbatch_size to be an integer >= 1"),
        ({"batch_argnums": (0, 1)}, "argnums without a batch axis"),
        ({"microbatch_size": 0}, "microbatch_size to be an integer >= 1"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        clipped_grad(squared_error, **{"l2_clip_norm": 1.0, **options})


def test_bad_arguments_are_named(problem):
    params, x, y = problem
    g = clipped_grad(squared_error, l2_clip_norm=1.0, batch_argnums=(1, 2))
    with pytest.raises(ValueError, match="at least 3 arguments, got 2"):
        g(params, x)
    with pytest.raises(ValueError, match="one leading axis B"):
        g(params, x, y[:3])
    with pytest.raises(NotImplementedError, match="spmd_axis_name"):
        clipped_grad(squared_error, l2_clip_norm=1.0, spmd_axis_name="data")


# A DP-SGD training loop as a user of jax_privacy writes it; the first two lines are all that
# changes.
IMPORTS = {
    "fljax": "from fljax import clipped_grad\nfrom fljax import gaussian_privatizer\n",
    "jax_privacy": (
        "from jax_privacy import clipped_grad\nfrom jax_privacy.noise_addition import "
        "gaussian_privatizer\n"
    ),
}
EXAMPLE = """
def train(images, labels, padding, key, noise_multiplier, num_steps):
    key_params, key_noise = jax.random.split(key)
    kernel = 0.1 * jax.random.normal(key_params, (images.shape[-1], 3))
    params = {"dense": {"kernel": kernel, "bias": jnp.zeros(3)}}

    def loss_fn(params, images, labels):
        logits = images @ params["dense"]["kernel"] + params["dense"]["bias"]
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
        return loss, {"correct": (jnp.argmax(logits, axis=-1) == labels).mean()}

    grad_fn = clipped_grad(
        loss_fn, has_aux=True, l2_clip_norm=0.5, batch_argnums=(1, 2),
        normalize_by=images.shape[1] / 2,
        return_values=True, return_grad_norms=True, microbatch_size=4,
    )
    stddev = noise_multiplier * grad_fn.sensitivity()
    privatizer = gaussian_privatizer(stddev=stddev, prng_key=key_noise)
    optimizer = optax.chain(privatizer, optax.sgd(0.5, momentum=0.9))

    @jax.jit
    def step(params, opt_state, images, labels, padding):
        grads, aux = grad_fn(params, images, labels, is_padding_example=padding)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, aux

    opt_state = optimizer.init(params)
    for i in range(num_steps):
        params, opt_state, aux = step(params, opt_state, images[i], labels[i], padding[i])
    return params, aux
"""


def run_example(library, key, noise_multiplier):
    k = jax.random.split(jax.random.clone(key), 3)
    labels = jax.random.randint(k[0], (20, 16), 0, 3)
    images = 2 * jax.nn.one_hot(labels, 6) + jax.random.normal(k[1], (20, 16, 6))
    padding = jnp.asarray(np.arange(16) >= np.arange(20)[:, None] % 5 + 11)
    scope = {"jax": jax, "jnp": jnp, "optax": optax}
    exec(IMPORTS[library] + EXAMPLE, scope)
    with (
        jax.numpy_rank_promotion("allow"),
        jax.numpy_dtype_promotion("standard"),
    ):  # as a user has it
        return scope["train"](images, labels, padding, k[2], noise_multiplier, 20)


def test_a_jax_privacy_example_ports_by_its_imports(key):
    params, aux = run_example("fljax", key, 0.5)
    assert aux.values.shape == aux.grad_norms.shape == aux.aux["correct"].shape == (16,)
    learnt, _ = run_example("fljax", key, 0.0)
    # The same noise-free loop in float64: per-row softmax gradients, written out.
    np.testing.assert_allclose(learnt["dense"]["kernel"], train64(key)["kernel"], atol=1e-4)
    np.testing.assert_allclose(learnt["dense"]["bias"], train64(key)["bias"], atol=1e-4)
    assert np.abs(params["dense"]["kernel"] - learnt["dense"]["kernel"]).max() > 1e-3


def test_the_ported_example_agrees_with_jax_privacy(key):
    pytest.importorskip("jax_privacy", reason="jax_privacy is not installed")
    theirs, theirs_aux = run_example("jax_privacy", key, 0.0)
    ours, ours_aux = run_example("fljax", key, 0.0)
    chex.assert_trees_all_close(theirs, ours, rtol=1e-7, atol=1e-5)
    real = np.arange(16) < 19 % 5 + 11
    np.testing.assert_allclose(theirs_aux.values[real], ours_aux.values[real], atol=1e-5)


def train64(key):
    k = jax.random.split(jax.random.clone(key), 3)
    labels = np.asarray(jax.random.randint(k[0], (20, 16), 0, 3))
    images = np.asarray(
        2 * jax.nn.one_hot(labels, 6) + jax.random.normal(k[1], (20, 16, 6)), np.float64
    )
    kernel = np.asarray(0.1 * jax.random.normal(jax.random.split(k[2])[0], (6, 3)), np.float64)
    bias, trace = np.zeros(3), np.zeros((7, 3))
    for i in range(20):
        x, y = images[i][: i % 5 + 11], labels[i][: i % 5 + 11]
        logits = x @ kernel + bias
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        error = p / p.sum(axis=1, keepdims=True) - np.eye(3)[y]
        rows = np.concatenate([x, np.ones((len(x), 1))], axis=1)[:, :, None] * error[:, None, :]
        norms = np.sqrt((rows**2).sum(axis=(1, 2)))
        trace = 0.9 * trace + (rows * np.minimum(1, 0.5 / norms)[:, None, None]).sum(axis=0) / 8
        kernel, bias = kernel - 0.5 * trace[:6], bias - 0.5 * trace[6]
    return {"kernel": kernel, "bias": bias}
