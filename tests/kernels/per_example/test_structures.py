"""What the sites become: which forms are chosen, that forcing others changes nothing, and the known pitfalls."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax_kernels import per_example_grads
from fljax_kernels.per_example import api, plan, terms
from fljax_kernels.per_example.cases import CASES, B
from tests.kernels.per_example._exact import FAST, check

BY_NAME = {case.name: case for case in CASES}


@contextlib.contextmanager
def changed(owner, name, value):
    before = owner.__dict__[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@pytest.mark.parametrize("name", ["mlp", "conv_2d", "stacked_lstm", "scanned_layers", "tied_embedding"])
def test_forcing_the_fallback_gives_the_same_numbers(name):
    with changed(plan, "_rule", lambda *_: None):
        said = check(BY_NAME[name].loss, *BY_NAME[name].make(3), method="taps")
    assert "product" not in said
    assert "convolution" not in said


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("name", ["attention", "conv_2d_grouped", "stacked_lstm", "tied_autoencoder"])
def test_gram_and_rows_give_the_same_numbers(name, held):
    with changed(terms.Product, "held", held):
        said = check(BY_NAME[name].loss, *BY_NAME[name].make(3), method="taps")
    assert ("rows, kept" in said) == held


def form(name):
    params, batch = BY_NAME[name].make(0)
    return per_example_grads(BY_NAME[name].loss, method="taps")(params, batch).explain()


@pytest.mark.parametrize("name", ["joined_gate_kernels", "sliced_projection", "low_rank_adaptation", "gru", "remat"])
def test_what_only_rearranges_parameters_keeps_the_compact_form(name):
    assert "product" in form(name)


@pytest.mark.parametrize("name", ["tied_embedding", "tied_wide_embedding"])
def test_tied_embeddings_are_not_materialised(name):
    lines = form(name).split("table")[1].splitlines()
    assert any("gather" in line for line in lines)
    assert any("product" in line for line in lines)


def test_unused_parameters_have_zero_rows():
    assert "no gradient" in form("weight_decay_and_unused")


def test_auto_holds_small_matrices_and_taps_large_ones(monkeypatch):
    params, batch = BY_NAME["mlp"].make(0)
    assert per_example_grads(BY_NAME["mlp"].loss)(params, batch).explain().startswith("vmap")
    monkeypatch.setattr(api, "SMALL", 0)
    assert per_example_grads(BY_NAME["mlp"].loss)(params, batch).explain().startswith("taps")


def two_ways(loss, params, batch, c):
    def products(method):
        g = per_example_grads(loss, method=method)(params, batch)
        return g.row_norms(), g.rmatvec(c)

    taps, vmap = (jax.jit(products, static_argnums=0, compiler_options=FAST)(m) for m in ("taps", "vmap"))
    np.testing.assert_allclose(taps[0], vmap[0], rtol=1e-5, atol=1e-6)
    for a, b in zip(jax.tree.leaves(taps[1]), jax.tree.leaves(vmap[1]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["attention", "conv_2d", "stacked_lstm", "embedding_with_repeated_tokens", "mlp"])
def test_a_nan_example_of_weight_zero_leaves_the_others_alone(name):
    case = BY_NAME[name]
    params, batch = case.make(1)
    c = jnp.asarray([0.5, 0.0, 2.0])
    bad = jax.tree.map(lambda x: x.at[1].set(jnp.nan) if jnp.issubdtype(x.dtype, jnp.floating) else x, batch)

    @jax.jit
    def total(params, batch):
        g = per_example_grads(case.loss, method="taps")(params, batch)
        return g.rmatvec(c), g.row_norms()

    clean, _ = total(params, batch)
    dirty, norms = total(params, bad)
    if name != "embedding_with_repeated_tokens":
        assert not np.isfinite(norms[1])
    assert np.isfinite(norms[0])
    for a, b in zip(jax.tree.leaves(clean), jax.tree.leaves(dirty), strict=True):
        np.testing.assert_array_equal(a, b)


def test_an_infinite_row_with_weight_is_not_hidden():
    case = BY_NAME["attention"]
    params, batch = case.make(1)

    @jax.jit
    def total(params, batch):
        return per_example_grads(case.loss, method="taps")(params, batch).rmatvec(jnp.ones(B))

    assert not all(np.all(np.isfinite(x)) for x in jax.tree.leaves(total(params, batch.at[1].set(jnp.inf))))


def test_the_norm_of_a_zero_gradient_is_zero_not_nan():
    g = per_example_grads(lambda p, e: jnp.sum(jnp.tanh(e @ p)) * 0.0, method="taps")(
        jnp.ones((4, 4)), jnp.ones((B, 9, 4))
    )
    np.testing.assert_array_equal(g.row_norms(), np.zeros(B))


def test_a_tracer_closed_over_by_the_loss_does_not_leak():
    @jax.jit
    def round_(params, anchor, batch):
        def proximal(p, e):
            return jnp.sum(jnp.square(jnp.tanh(e @ p))) + jnp.sum(jnp.square(p - anchor))

        return per_example_grads(proximal, method="taps")(params, batch).rmatvec(jnp.ones(B))

    params, batch = jnp.ones((3, 2)), jnp.ones((B, 3))
    assert not np.array_equal(round_(params, 0 * params, batch), round_(params, 2 * params, batch))


def test_an_effect_in_the_loss_happens_once(capfd):
    def loss(p, e):
        jax.debug.print("seen {}", jnp.sum(p))
        return jnp.sum(jnp.tanh(e @ (p * 2.0)))

    @jax.jit
    def norms(p, e):
        return per_example_grads(loss, method="taps")(p, e).row_norms()

    jax.block_until_ready(norms(jnp.ones((3, 2)), jnp.ones((B, 3))))
    jax.effects_barrier()
    assert capfd.readouterr().out.count("seen") <= B


def test_products_work_outside_jit_and_do_not_retrace_under_it():
    traces = []

    def loss(p, e):
        traces.append(1)
        return jnp.sum(jnp.tanh(e @ p))

    p, e = jnp.ones((3, 2)), jnp.arange(9.0).reshape(B, 3)
    two_ways(lambda p, e: jnp.sum(jnp.tanh(e @ p)), p, e, jnp.ones(B))
    step = jax.jit(lambda p, e: per_example_grads(loss, method="taps")(p, e).row_norms())
    step(p, e)
    count = len(traces)
    step(2 * p, e + 1)
    assert len(traces) == count
    np.testing.assert_allclose(per_example_grads(loss, method="taps")(p, e).row_norms(), step(p, e), rtol=1e-6)


def test_bfloat16_parameters_are_summed_in_float32():
    params, batch = BY_NAME["mlp"].make(0)
    params = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)

    def loss(p, e):
        return BY_NAME["mlp"].loss(jax.tree.map(lambda x: x.astype(jnp.float32), p), e)

    def products(params, batch):
        g = per_example_grads(loss, method="taps")(params, batch)
        return g.rmatvec(jnp.ones(B)), g.row_norms()

    assert {x.dtype for x in jax.tree.leaves(jax.eval_shape(products, params, batch))} == {jnp.dtype("float32")}


def test_shard_map_does_not_sum_taps_over_devices():
    case = BY_NAME["scanned_layers"]
    params, batch = case.make(0)
    batch = jnp.concatenate([batch, batch[:1]])
    mesh = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec

    @jax.jit
    @jax.shard_map(mesh=mesh, in_specs=(spec(), spec("d")), out_specs=spec("d"))
    def norms(params, batch):
        return per_example_grads(case.loss, method="taps")(params, batch).row_norms()

    plain = per_example_grads(case.loss, method="vmap")(params, batch).row_norms()
    np.testing.assert_allclose(norms(params, batch), plain, rtol=1e-5)
