"""What is particular to TPUs: forms by modelled time, operands rounded once, batches by halves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.interpreters import mlir

from fljax_kernels import _platforms, _rounding, per_example_grads
from fljax_kernels.per_example import tpu

TOKENS = 16


def loss(params, tokens):
    hidden = jnp.tanh(tokens @ params["up"] + jnp.broadcast_to(params["bias"], (TOKENS, 24)))
    return jnp.sum(jnp.sin(hidden @ params["down"]))


def arguments(size=100):
    draw = np.random.default_rng(0)
    shapes = {"up": (32, 24), "bias": (24,), "down": (24, 12)}
    params = {k: jnp.asarray(0.3 * draw.normal(size=s), jnp.float32) for k, s in shapes.items()}
    return params, jnp.asarray(draw.normal(size=(size, TOKENS, 32)), jnp.float32)


def clipped(params, batch):
    grads = per_example_grads(loss)(params, batch)
    return grads.weighted_sum(lambda norms: jnp.minimum(1.0, 2.0 / norms))


def lowered(platform):
    traced = jax.jit(clipped).trace(*arguments())
    return traced.lower(lowering_platforms=(platform,)).as_text()


def test_the_form_is_that_of_least_modelled_time():
    # 128 tokens, 128 x 512: numbers in and out, of a row, of pairs; by hand.
    x, y, row, pairs = 128 * 128, 128 * 512, 128 * 512, 128 * 128
    found = tpu.forms(x, y, 128 * row, row, pairs, pairs * (128 + 512), True)
    met = 2 * (x + y) / tpu.BYTES
    one = 128 * row / tpu.MULTIPLY_ADDS
    assert one < met < 3 * one
    np.testing.assert_allclose(found["held"], met + 2 * 4 * row / tpu.BYTES)
    np.testing.assert_allclose(found["rows"], met + 3 * one)
    assert min(found, key=found.get) == "rows"
    # Many positions of narrow layers: rows are smaller than what they are made of.
    narrow = tpu.forms(1024 * 16, 1024 * 16, 1024 * 256, 256, 2**20, 2**20 * 32, True)
    assert min(narrow, key=narrow.get) == "held"
    # A rounded input is written for the forms of a convolution that read it twice.
    sizes = 256 * 32, 256 * 32, 256 * 9216, 9216, 2**20
    plain, conv = tpu.forms(*sizes, 2**26, True), tpu.conv_forms(*sizes, 2**26, True)
    assert plain["held"] == conv["held"]
    np.testing.assert_allclose(conv["rows"] - plain["rows"], 2 * 256 * 32 / tpu.BYTES)
    assert (min(plain, key=plain.get), min(conv, key=conv.get)) == ("rows", "held")
    # Few positions of wide layers: inner products of positions are less work than rows.
    wide = tpu.forms(4 * 2048, 4 * 2048, 4 * 2**22, 2**22, 16, 16 * 4096, True)
    assert min(wide, key=wide.get) == "pairs"


@pytest.fixture
def as_on_a_tpu(monkeypatch):
    """A CPU that takes what is for a TPU, in programs and outside them."""

    def lower(rule):
        mlir.register_lowering(
            _rounding._rounded, mlir.lower_fun(rule, multiple_results=True), platform="cpu"
        )

    def choose(*arguments, default, **forms):
        return forms.get("tpu", default)(*arguments)

    monkeypatch.setattr(jax.lax, "platform_dependent", choose)
    jax.clear_caches()
    lower(_rounding._on_tpus)
    yield
    lower(_rounding._elsewhere)
    jax.clear_caches()


def one_position(params, x):
    return jnp.sum(jnp.sin(x @ params))


def clipped_rows(params, batch):
    grads = per_example_grads(one_position, method="taps")(params, batch)
    return grads.weighted_sum(lambda norms: jnp.minimum(1.0, 2.0 / norms))


def test_what_is_not_compiled_is_clipped_too(as_on_a_tpu):
    draw = np.random.default_rng(0)
    params, batch = (draw.normal(size=size).astype(np.float32) for size in ((60, 50), (8, 60)))
    slopes = np.cos(batch @ params)
    expected = np.linalg.norm(batch, axis=1) * np.linalg.norm(slopes, axis=1)
    for run in (jax.jit(clipped_rows), clipped_rows, jax.disable_jit()(clipped_rows)):
        total, norms = run(params, batch)
        np.testing.assert_allclose(norms, expected, rtol=1e-2)
        assert 0 < np.linalg.norm(total) <= 8 * 2.0


def test_whoever_took_another_platforms_sums_of_squares_would_clip_to_nothing(as_on_a_tpu):
    jax.clear_caches()
    mlir.register_lowering(
        _rounding._rounded,
        mlir.lower_fun(_rounding._elsewhere, multiple_results=True),
        platform="cpu",
    )
    draw = np.random.default_rng(0)
    params, batch = (draw.normal(size=size).astype(np.float32) for size in ((60, 50), (8, 60)))
    total, norms = clipped_rows(params, batch)
    assert not np.isfinite(norms).any()
    np.testing.assert_array_equal(total, 0)


def test_what_xla_makes_no_matrix_product_of_is_not_rounded():
    x = np.random.default_rng(0).normal(size=(8, 512)).astype(np.float32)
    w = np.random.default_rng(1).normal(size=(512, 1)).astype(np.float32)

    def regression(w, example):
        return jnp.sum(jnp.square(example["x"] @ w - example["y"]))

    # Near the optimum what rounding moves is larger than the residual.
    batch = {"x": x, "y": x @ w + 1e-3}
    with _platforms.only("tpu"):
        found = per_example_grads(regression, method="taps")(w, batch).rmatvec(np.ones(8))
    expected = jax.vmap(jax.grad(regression), (None, 0))(w, batch).sum(0)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_explain_has_the_modelled_times_for_a_tpu_alone():
    matrix = per_example_grads(loss)(*arguments(200))
    assert "modelled us on a v5e: held " in matrix.explain("tpu")
    assert "modelled" not in matrix.explain("cuda") + matrix.explain("cpu")


def test_operands_are_rounded_once_each_and_for_tpus_alone():
    # Two inputs and two cotangents.
    assert lowered("tpu").count("stablehlo.reduce_precision") == 4
    assert lowered("tpu").count("stablehlo.optimization_barrier") == 4
    for platform in ("cpu", "cuda"):
        assert "reduce_precision" not in lowered(platform)


def test_a_product_that_names_its_precision_keeps_its_operands():
    with jax.default_matmul_precision("highest"):
        assert "reduce_precision" not in lowered("tpu")


def test_what_a_product_is_added_to_gets_its_cotangent_whole():
    """The bias's gradient is that of float32, up to what the forward pass rounded."""
    params, batch = arguments()
    with _platforms.only("tpu"):
        found = per_example_grads(lambda p, x: loss(p, x), method="taps")(params, batch)
        bias = found.materialize()["bias"]

    def of_rounded(params, tokens):
        def rounded(x):
            return jax.lax.reduce_precision(x, 8, 7)

        x = rounded(tokens)
        z = jnp.broadcast_to(params["bias"], (TOKENS, 24)) + x @ params["up"]
        y = rounded(jnp.tanh(z)) @ params["down"]
        back = rounded(jnp.cos(y)) @ params["down"].T
        return jnp.sum(back * (1 - jnp.tanh(z) ** 2), axis=0)

    exact = jax.vmap(of_rounded, (None, 0))(params, batch)
    np.testing.assert_allclose(bias, exact, atol=2e-6 * np.abs(exact).max())


def test_batches_that_fast_memory_does_not_hold_go_by_halves():
    # 1 MB an example: 96 MiB hold 100 of 800 examples.
    assert tpu.examples_at_once(800, 1e6, 10**6, False) == 100
    assert tpu.examples_at_once(100, 1e6, 10**6, False) == 100
    # Of a convolutional network 100 examples would leave lanes empty.
    assert tpu.examples_at_once(800, 1e6, 10**6, True) == 800
    assert tpu.examples_at_once(800, 5e5, 10**6, True) == 200
    # The weights of each part would be more than what is saved.
    assert tpu.examples_at_once(800, 1e6, 10**8, False) == 800
    # Not one of the smallest parts would fit.
    assert tpu.examples_at_once(800, 1e9, 1, False) == 800


@pytest.mark.parametrize("size", [100, 101])
def test_a_sum_by_parts_is_that_of_the_whole_batch(monkeypatch, size):
    params, batch = arguments(size)
    with _platforms.only("tpu"):
        whole = jax.jit(clipped)(params, batch)
        monkeypatch.setattr(tpu, "FAST", 400_000)
        jax.clear_caches()
        by_parts = jax.jit(lambda p, b: clipped(p, b))(params, batch)
    assert f"2 chunks of {-(-size // 2)}" in per_example_grads(loss)(params, batch).explain("tpu")
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), whole, by_parts
    )
