"""The kernel for a convolution's rows on CUDA, by Pallas's interpreter and lowered."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from fljax_kernels import _platforms, per_example_grads
from fljax_kernels.per_example import (
    conv_cuda,
    conv_kernel,
    conv_operands,
    conv_pallas,
    kernel_primitives,
    terms,
)
from tests.kernels.per_example.test_conv import ALL, B, case

KERNEL = kernel_primitives.CALL
# (samples, image, channels, features, kernel, strides, dilation, padding), by what is particular.
# More entries, or features, than a block holds: "several_blocks".
WINDOWS = {
    "same": (1, (6, 5), 4, 5, (3, 3), (1, 1), (1, 1), ((1, 1), (1, 1))),
    "one_channel": (1, (7, 9), 1, 33, (5, 3), (2, 1), (1, 2), ((2, 1), (0, 2))),
    "samples": (2, (5, 6), 3, 7, (2, 3), (1, 2), (1, 1), ((0, 1), (1, 1))),
    "several_blocks": (1, (5, 4), 20, 70, (2, 2), (1, 1), (1, 1), ((0, 1), (0, 0))),
    "cropped": (1, (7, 6), 2, 3, (3, 3), (1, 1), (1, 1), ((-1, 1), (2, -1))),
    "padding_wider_than_the_image": (1, (2, 2), 2, 3, (5, 5), (1, 1), (1, 1), ((4, 4), (4, 4))),
}


def arrays(name, examples=3, dtype=jnp.float32):
    """(inputs, cotangents, window, float64 rows of given operands)."""
    samples, image, channels, features, kernel, strides, dilation, padding = WINDOWS[name]
    out = tuple(
        (size + sum(pad) - (k - 1) * step - 1) // stride + 1
        for size, pad, k, step, stride in zip(
            image, padding, kernel, dilation, strides, strict=True
        )
    )
    window = conv_operands.Window(kernel, strides, dilation, tuple(p[0] for p in padding), out)
    draw = np.random.default_rng(len(name))
    x = jnp.asarray(draw.normal(size=(examples, samples, *image, channels)), dtype)
    y = jnp.asarray(draw.normal(size=(examples, samples, *out, features)), dtype)

    def seen(x, entry):
        """By each output position, zeros outside: by hand, one position after the other."""
        found = np.zeros((*x.shape[:2], *out, channels))
        for place in np.ndindex(*out):
            at = [
                p * s + k * d - low
                for p, s, k, d, (low, _) in zip(
                    place, strides, entry, dilation, padding, strict=True
                )
            ]
            if all(0 <= a < size for a, size in zip(at, image, strict=True)):
                found[:, :, *place] = x[:, :, *at]
        return found

    def of(x, y):
        x, y = (np.asarray(z, np.float64) for z in (x, y))
        parts = [seen(x, entry) for entry in np.ndindex(*kernel)]
        rows = np.stack([np.einsum("enhwc,enhwo->eco", part, y) for part in parts], axis=1)
        most = sum((part**2).sum(axis=(1, 2, 3, 4)) for part in parts)
        return rows, most * (y**2).sum(axis=(1, 2, 3, 4))

    return x, y, window, of


@pytest.mark.slow(reason="interprets two kernels", but=["same-f32", "one_channel-tf32"])
@pytest.mark.parametrize("kind", ["f32", "tf32", "bf16"])
@pytest.mark.parametrize("name", WINDOWS)
def test_the_kernels_are_exact_in_the_operands_that_they_multiply(name, kind):
    dtype = jnp.bfloat16 if kind == "bf16" else jnp.float32
    x, y, window, rows_of = arrays(name, dtype=dtype)
    exact = kind == "f32"
    rows, most = rows_of(*conv_operands.operands(x, y, exact))
    expected = (rows**2).sum(axis=(1, 2, 3))
    found = conv_pallas.squares(x, y, window=window, exact=exact, interpret=True)
    # Sums of at most some hundred products, each half a unit of 2^-23 off, and the room on top.
    assert np.all(expected * (1 - 1e-5) <= found)
    assert np.all(found <= (expected + terms.ROUNDING * most) * (1 + 1e-5))

    weights = np.float32([2, 0, -3])
    spoilt = x.at[1].set(jnp.nan), y.at[1].set(jnp.inf)
    total = conv_pallas.sums(
        *(z[None] for z in (*spoilt, weights)), window=window, exact=exact, interpret=True
    )
    expected = np.tensordot(weights, rows, 1)
    np.testing.assert_allclose(total[0], expected, atol=1e-5 * np.abs(rows).max())
    # And so is what stands in for them.
    found = conv_kernel._squares_by_products(x, y, window, exact)
    assert np.all((rows**2).sum(axis=(1, 2, 3)) * (1 - 1e-5) <= found)
    total = conv_kernel._sum_by_products(*(z[None] for z in (*spoilt, weights)), window, exact)
    np.testing.assert_allclose(total[0], expected, atol=1e-5 * np.abs(rows).max())


@pytest.mark.parametrize("where", ["input", "cotangent"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_seen_in_its_own_example_alone(where, bad):
    x, y, window, _ = arrays("same")
    if where == "input":
        x = x.at[1, 0, 0, 0, 0].set(bad)  # in a corner, next to what is masked
    else:
        y = y.at[1, 0, -1, -1, -1].set(bad)
    found = conv_pallas.squares(x, y, window=window, exact=False, interpret=True)
    np.testing.assert_array_equal(np.isfinite(found), [True, False, True])
    for weights, finite in (([1, 0, 2], True), ([1, 0.5, 2], False)):
        total = conv_pallas.sums(
            x[None], y[None], np.float32([weights]), window=window, exact=False, interpret=True
        )
        assert np.isfinite(total).all() == finite


def test_operands_have_ten_bits_to_nearest_and_what_is_not_finite_stays():
    draw = np.random.default_rng(0)
    x = np.float32(draw.normal(size=1000) * 10.0 ** draw.integers(-30, 30, 1000))
    np.testing.assert_array_equal(conv_operands.to_tf32(x), lax.reduce_precision(x, 8, 10))
    every = np.uint32([0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0x7FC00000]).view(np.float32)
    assert np.isnan(conv_operands.to_tf32(every)).all()
    edge = np.float32([np.inf, -np.inf, 0.0, -0.0])
    np.testing.assert_array_equal(conv_operands.to_tf32(edge), edge)


@pytest.mark.parametrize("exact", [False, True])
def test_a_row_that_the_second_kernel_scales_to_a_bound_is_within_it(exact):
    """Positions nearly alike, whose cotangents nearly cancel: what is rounded is large beside the
    row.
    """
    x, y, window, _ = arrays("same", examples=8)
    x, y = 1 + 0.2 * x, y - jnp.mean(y, axis=(2, 3), keepdims=True)
    squares = conv_pallas.squares(x, y, window=window, exact=exact, interpret=True)
    sums = jax.jit(
        lambda c: conv_pallas.sums(
            x[None], y[None], c[None], window=window, exact=exact, interpret=True
        )
    )
    for example in range(8):
        factor = 0.5 / jnp.sqrt(squares[example])
        row = np.asarray(sums(jnp.zeros(8).at[example].set(factor)), np.float64)
        # The margin that `sensitivity` states.
        assert 0.5 * (1 - 1e-3) <= np.linalg.norm(row) <= 0.5 * (1 + 1e-5)


@pytest.mark.slow(reason="interprets two kernels", but=["channels_first", "strided"])
@pytest.mark.parametrize(
    "name", ["same", "channels_first", "samples", "dilated_kernel", "strided", "cropped"]
)
def test_private_gradients_by_the_kernels_are_those_of_every_form(monkeypatch, name):
    monkeypatch.setattr(
        conv_kernel,
        "_squares",
        lambda x, y, window, exact: conv_pallas.squares(
            x, y, window=window, exact=exact, interpret=True
        ),
    )
    monkeypatch.setattr(
        conv_kernel,
        "_sum",
        lambda x, y, c, window, exact: conv_pallas.sums(
            x[None], y[None], c[None], window=window, exact=exact, interpret=True
        )[0],
    )
    monkeypatch.setattr(conv_cuda.CudaConv, "form", "kernel")
    loss, params, batch = case(name)
    weights = np.float32([1, 0, *range(3, 1 + B)])
    spoilt = np.array(batch)
    spoilt[1] = np.nan

    @jax.jit
    def both(params, batch, spoilt):
        grads = per_example_grads(loss, method="taps")
        return grads(params, batch).row_norms(), grads(params, spoilt).rmatvec(weights)

    with _platforms.only("cuda"), jax.default_matmul_precision("highest"):
        norms, total = both(params, batch, spoilt)
    with jax.enable_x64(True):
        wide = [np.asarray(z, np.float64) for z in (params, batch)]
        rows = np.asarray(jax.jit(jax.vmap(jax.grad(loss), (None, 0)))(*wide)).reshape(B, -1)
    # Room of 3 * 2^-24 of magnitudes, which are below 30 squared norms.
    np.testing.assert_allclose(norms, np.linalg.norm(rows, axis=1), rtol=2e-5)
    np.testing.assert_allclose(np.ravel(total), weights @ rows, atol=1e-5 * np.abs(rows).max())


def conv_loss(params, example):
    layout = ("NHWC", "HWIO", "NHWC")
    z = lax.conv_general_dilated(
        example[None], params["a"], (1, 1), "SAME", dimension_numbers=layout
    )
    z = lax.conv_general_dilated(jnp.tanh(z), params["b"], (2, 2), "SAME", dimension_numbers=layout)
    return jnp.sum(jnp.tanh(z))


PARAMS = {"a": jnp.full((3, 3, 3, 16), 0.1), "b": jnp.full((3, 3, 16, 24), 0.1)}
BATCH = np.random.default_rng(0).normal(size=(32, 8, 8, 3)).astype(np.float32)


def clipped(params, batch, mask=None):
    grads = per_example_grads(conv_loss)(params, batch, batch_mask=mask)
    return grads.weighted_sum(lambda norms: jnp.minimum(1.0, 1.0 / norms))


def lowered(fun, *arguments, platform="cuda"):
    # Triton asks which GPU it is, and there may be none.
    gpu = jax.sharding.AbstractDevice("NVIDIA H200", None, "cuda")
    mesh = jax.sharding.AbstractMesh((), (), abstract_device=gpu if platform == "cuda" else None)
    with jax.sharding.use_abstract_mesh(mesh):
        return here(fun, *arguments, platform=platform)


def here(fun, *arguments, platform="cuda"):
    """As where nobody names a GPU."""
    return jax.jit(fun).trace(*arguments).lower(lowering_platforms=(platform,)).as_text()


@pytest.fixture
def patched(monkeypatch):
    """`monkeypatch`, and nothing that is lowered meanwhile is kept."""
    yield monkeypatch
    jax.clear_caches()


@pytest.mark.filterwarnings("error")
def test_each_convolution_is_two_kernels_where_lowered_for_cuda_and_only_there(patched):
    assert lowered(clipped, PARAMS, BATCH).count(KERNEL) == 4
    assert KERNEL not in lowered(clipped, PARAMS, BATCH, platform="cpu")
    assert KERNEL not in lowered(clipped, PARAMS, BATCH, platform="tpu")
    # Exported programs may use no operation without a promise to later versions.
    exported = jax.export.export(jax.jit(clipped), platforms=("cuda",))(PARAMS, BATCH)
    assert KERNEL not in exported.mlir_module()
    several = jax.tree.map(lambda leaf: jnp.stack([leaf] * 2), (PARAMS, BATCH))
    assert lowered(jax.vmap(clipped), *several).count(KERNEL) == 4
    # As in a JAX whose Pallas has no Triton.
    patched.setitem(sys.modules, "fljax_kernels.per_example.conv_pallas", None)
    patched.delattr("fljax_kernels.per_example.conv_pallas")
    jax.clear_caches()
    assert KERNEL not in lowered(clipped, PARAMS, BATCH)


@pytest.mark.parametrize("check_vma", [True, False])
def test_shards_of_a_batch_have_kernels_of_their_own(check_vma):
    mesh = jax.make_mesh((1,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))

    def shard(params, batch):
        return lax.psum(clipped(params, batch)[0], "rows")

    fun = jax.shard_map(
        shard, mesh=mesh, in_specs=(P(), P("rows")), out_specs=P(), check_vma=check_vma
    )
    text = here(fun, PARAMS, BATCH)
    if KERNEL not in here(clipped, PARAMS, BATCH):
        pytest.skip("this JAX lowers no kernel without a GPU, and shards are of devices that are")
    assert text.count(KERNEL) == 4


def test_explain_tells_of_the_kernel_for_cuda_alone():
    grads = per_example_grads(conv_loss)(PARAMS, BATCH)
    assert grads.explain("cuda").count("Pallas kernel") == 2
    assert "Pallas" not in grads.explain("tpu") + grads.explain("cpu")


def test_explain_names_the_kernel_as_made_only_where_it_is(patched):
    made = "squared and weighed as a Pallas kernel makes them"
    grads = per_example_grads(conv_loss)(PARAMS, BATCH)
    assert (made in grads.explain("cuda")) == (KERNEL in lowered(clipped, PARAMS, BATCH))
    patched.setattr(kernel_primitives, "without_triton", lambda: True)
    jax.clear_caches()
    assert made not in grads.explain("cuda")
    assert grads.explain("cuda").count("stand in for a Pallas kernel") == 2


def test_products_stand_in_where_there_is_no_gpu_to_ask_and_other_errors_are_seen(patched):
    x, y, window, _ = arrays("same")

    def fails_with(text):
        def fails(*args, **params):
            raise RuntimeError(text)

        patched.setattr(conv_pallas, "squares", fails)
        jax.clear_caches()
        return lowered(lambda x, y: conv_kernel.squares(x, y, window, False), x, y)

    assert KERNEL not in fails_with("No supported GPU devices found, please specify one.")
    with pytest.raises(RuntimeError, match="of another kind"):
        fails_with("A fault of another kind.")


def test_an_overflow_beside_a_cotangent_of_zero_is_an_infinite_norm():
    x, y, window, _ = arrays("same")
    x, y = x.at[1].set(1e30), y.at[1].set(0.0)
    for found in (
        conv_pallas.squares(x, y, window=window, exact=False, interpret=True),
        jax.jit(lambda x, y: conv_kernel.squares(x, y, window, False))(x, y),
    ):
        np.testing.assert_array_equal(np.isinf(found), [False, True, False])
        assert not np.isnan(found).any()


@pytest.mark.parametrize("name", ALL)
def test_the_kernel_takes_plain_convolutions_over_two_axes(name):
    loss, params, batch = case(name)
    said = per_example_grads(loss, method="taps")(params, batch).explain("cuda")
    other = "dilated_input", "grouped", "one_dimension", "three_dimensions", "no_spatial_axes"
    assert "kernel" not in said if name in other else "MiB moved" in said and "kernel" in said


def test_side_by_side_masked_empty_and_differentiated():
    """What stands in on a CPU, through the same rules."""
    several = jax.tree.map(lambda leaf: jnp.stack([leaf, 0.5 * leaf]), (PARAMS, BATCH))
    with _platforms.only("cuda"):
        both = jax.jit(jax.vmap(clipped))(*several)
        for k in range(2):
            one = jax.jit(clipped)(*jax.tree.map(lambda leaf, k=k: leaf[k], several))
            for a, b in zip(jax.tree.leaves(both), jax.tree.leaves(one), strict=True):
                np.testing.assert_allclose(a[k], b, rtol=1e-4, atol=1e-4 * np.abs(b).max())
        for batch, mask in ((BATCH, np.zeros(32, bool)), (BATCH[:0], None)):
            total, norms = jax.jit(clipped)(PARAMS, batch, mask)
            assert not any(np.any(leaf) for leaf in [*jax.tree.leaves(total), norms])
        slope = jax.jit(jax.grad(lambda p: jnp.sum(clipped(p, BATCH)[1])))(PARAMS)
    expected = jax.jit(jax.grad(lambda p: jnp.sum(clipped(p, BATCH)[1])))(PARAMS)
    for a, b in zip(jax.tree.leaves(slope), jax.tree.leaves(expected), strict=True):
        # Operands that are rounded to ten bits.
        np.testing.assert_allclose(a, b, atol=2e-3 * np.abs(b).max())


def test_values_are_the_same_where_they_are_differentiated():
    """A bound that is learnt has a tangent, and the norms have none: both must see one row."""
    x, y, window, _ = arrays("same")
    squares = lambda x, y: conv_kernel.squares(x, y, window, False)
    rows_sum = lambda weights: conv_kernel.weighted_sum(x, y, weights, window, False)
    weights = jnp.asarray([0.5, 0.0, 2.0])
    for fun, given in ((squares, (x, y)), (rows_sum, (weights,))):
        plain = jax.jit(fun)(*given)
        with_tangents = jax.jit(lambda *given, fun=fun: jax.jvp(fun, given, given)[0])(*given)
        np.testing.assert_allclose(with_tangents, plain, rtol=1e-6, atol=1e-6 * np.abs(plain).max())
        exact = jax.jit(lambda *given, fun=fun: jax.jvp(fun, given, given)[1])(*given)
        assert np.isfinite(exact).all() and np.any(exact)
    # What it would be of operands that are not rounded.
    apart = conv_kernel.squares(x, y, window, True) / squares(x, y) - 1
    assert np.abs(apart).max() > 1e-5


def test_sums_by_several_bounds_read_the_same_rows():
    x, y, window, _ = arrays("same")
    fun = lambda weights: conv_kernel.weighted_sum(x, y, weights, window, False)
    weights = jnp.asarray(np.random.default_rng(3).normal(size=(4, 3)), jnp.float32)
    found = jax.jit(jax.vmap(fun))(weights)
    for one, given in zip(found, weights, strict=True):
        np.testing.assert_allclose(one, fun(given), rtol=1e-6, atol=1e-5)
    copied = "x".join(str(size) for size in (4, *x.shape))
    assert f"<{copied}x" not in lowered(jax.vmap(fun), weights)


def test_no_kernel_writes_where_32_bits_do_not_reach():
    window = conv_operands.Window((1, 1), (1, 1), (1, 1), (0, 0), (1, 1))
    fun = jax.vmap(lambda x, y, w: conv_kernel.weighted_sum(x, y, w, window, False))
    of = lambda groups: [
        jax.ShapeDtypeStruct((groups, *shape), jnp.float32)
        for shape in ((1, 1, 1, 1, 65), (1, 1, 1, 1, 65), (1,))
    ]
    assert KERNEL in lowered(fun, *of(1000))
    assert KERNEL not in lowered(fun, *of(262_146))


def test_a_gpu_that_triton_does_not_compile_for_has_no_kernel(patched):
    class Old:
        compute_capability = "7.5"

    patched.setattr("jax.extend.backend.backends", lambda: {"cpu": None, "cuda": None})
    patched.setattr(jax, "local_devices", lambda backend: [Old()])
    jax.clear_caches()
    assert KERNEL not in lowered(clipped, PARAMS, BATCH)
