"""The convolution's term in each of its forms, over the parameters of a convolution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax_kernels import _platforms, loop_friendly, per_example_grads
from fljax_kernels.per_example import conv, conv_native, plan, terms
from fljax_kernels.per_example.cases import B
from tests.kernels.per_example._exact import check

LAST, FIRST = ("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW")
# (example's shape with its sample axis, kernel's shape, specification, options), by what is
# particular.
BY_ROWS = {
    "same": ((1, 6, 5, 4), (3, 3, 4, 5), LAST, {}),
    "channels_first": ((1, 4, 6, 5), (5, 4, 3, 2), FIRST, {}),
    "one_dimension": ((1, 7, 9), (3, 9, 2), ("NWC", "WIO", "NWC"), {}),
    "three_dimensions": ((1, 5, 3, 4, 4), (3, 2, 2, 4, 2), ("NDHWC", "DHWIO", "NDHWC"), {}),
    "samples": ((3, 6, 5, 4), (3, 3, 4, 5), LAST, {}),
    "asymmetric_padding": ((1, 6, 5, 4), (4, 3, 4, 5), LAST, {"padding": ((3, 0), (0, 2))}),
    "cropped_along_the_row": ((1, 9, 5, 4), (3, 3, 4, 3), LAST, {"padding": ((2, 1), (1, -1))}),
    "dilated_kernel": (
        (1, 8, 7, 4),
        (3, 2, 4, 3),
        LAST,
        {"padding": ((2, 2), (1, 1)), "rhs_dilation": (2, 2)},
    ),
    "dilated_input": (
        (1, 4, 3, 6),
        (3, 3, 6, 2),
        LAST,
        {"padding": ((1, 2), (2, 1)), "lhs_dilation": (2, 2)},
    ),
    "strided_along_the_row": ((1, 6, 7, 4), (3, 3, 4, 5), LAST, {"window_strides": (1, 2)}),
    "kernel_past_the_image": ((1, 2, 5, 9), (7, 3, 9, 2), LAST, {"padding": ((6, 6), (1, 1))}),
    "kernel_rows_below_the_image": (
        (1, 2, 5, 9),
        (7, 3, 9, 2),
        LAST,
        {"padding": ((1, 6), (1, 1))},
    ),
    "kernel_rows_above_the_image": (
        (1, 2, 5, 9),
        (7, 3, 9, 2),
        LAST,
        {"padding": ((6, 1), (1, 1))},
    ),
}
BY_PATCHES = {
    "few_channels": ((1, 6, 5, 1), (3, 3, 1, 5), LAST, {}),
    "strided": ((1, 6, 7, 4), (3, 3, 4, 5), LAST, {"window_strides": (2, 1)}),
    "grouped": ((1, 6, 7, 8), (3, 3, 4, 6), LAST, {"feature_group_count": 2}),
    # Rows that meet no other would not show that they are not finite.
    "cropped": ((1, 9, 5, 4), (3, 3, 4, 3), LAST, {"padding": ((2, -1), (1, -1))}),
    "rows_of_padding": ((1, 9, 5, 4), (3, 3, 4, 3), LAST, {"padding": ((4, 1), (1, 1))}),
    "valid": ((1, 6, 7, 4), (5, 3, 4, 5), LAST, {"padding": "VALID"}),
    "no_spatial_axes": ((2, 4), (4, 3), ("NC", "IO", "NC"), {"window_strides": (), "padding": ()}),
}
ALL = BY_ROWS | BY_PATCHES


def case(name):
    shape, kernel, spec, options = ALL[name]
    options = {"window_strides": (1,) * (len(shape) - 2), "padding": "SAME"} | options

    def loss(params, example):
        out = jax.lax.conv_general_dilated(example, params, dimension_numbers=spec, **options)
        return 0.5 * jnp.mean(jnp.sin(out) + jnp.square(out))

    draw = np.random.default_rng(len(name))
    return loss, *(jnp.asarray(draw.normal(size=s), jnp.float32) for s in (kernel, (B, *shape)))


def terms_of(monkeypatch, name, platform):
    found = []
    before = conv.ConvProduct.__init__

    def init(self, *arguments):
        before(self, *arguments)
        found.append(self._by_rows)

    monkeypatch.setattr(conv.ConvProduct, "__init__", init)
    loss, params, batch = case(name)
    with _platforms.only(platform):
        jax.eval_shape(
            lambda p, b: per_example_grads(loss, method="taps")(p, b).row_norms(), params, batch
        )
    return found


@pytest.mark.parametrize("platform", _platforms.PLATFORMS)
@pytest.mark.parametrize("name", ALL)
def test_the_form_is_what_moves_fewer_numbers(monkeypatch, name, platform):
    assert terms_of(monkeypatch, name, platform) == [name in BY_ROWS and platform == "cpu"]


@pytest.mark.slow(
    reason="compiles a loss in float32 and float64",
    but=[
        "True-same",
        "True-one_dimension",
        "True-samples",
        "True-dilated_input",
        "True-kernel_past_the_image",
        "True-strided",
        "True-grouped",
        "True-no_spatial_axes",
        "False-channels_first",
        "False-three_dimensions",
        "False-dilated_kernel",
        "False-strided_along_the_row",
        "False-rows_of_padding",
        "False-cropped",
        "False-few_channels",
    ],
)
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("held", [True, False])
def test_all_products_are_exact_with_rows_held_or_not(monkeypatch, name, held):
    monkeypatch.setattr(terms.Product, "held", held)
    # Where rows would be held of themselves, the sum over all pairs of positions rounds more often
    # than the bound has.
    check(*case(name), method="taps", leave_out=() if held else ("gram",))


@pytest.mark.slow(reason="compiles a loss in float32 and float64", but=["grouped"])
@pytest.mark.parametrize(
    "name", ["same", "channels_first", "dilated_input", "strided", "grouped", "valid"]
)
def test_products_of_a_loss_whose_convolutions_are_patches_already(name):
    loss, params, batch = case(name)
    said = check(loop_friendly(loss, inside_loop=True), params, batch, method="taps")
    if jax.default_backend() == "cpu":  # its patches serve the gradient; no row is rearranged
        assert "convolution" not in said and "through" not in said


@pytest.mark.slow(reason="compiles a loss in float32 and float64", but=["same", "strided"])
@pytest.mark.parametrize("name", ["same", "samples", "dilated_input", "strided"])
def test_blocks_of_examples_give_the_same_numbers(monkeypatch, name):
    monkeypatch.setattr(conv, "CACHED_PATCHES", 1)
    monkeypatch.setattr(conv, "CACHED_COPIES", 1)
    check(*case(name), method="taps")


@pytest.mark.parametrize("name", ["same", "strided"])
def test_huge_rows_count_and_rows_that_are_not_finite_count_where_they_have_weight(name):
    """A sum of squares past float32's range is not a reason to drop a row."""
    loss, params, batch = case(name)
    grads = jax.jit(lambda b, w: per_example_grads(loss, method="taps")(params, b).rmatvec(w))
    norms = jax.jit(lambda b: per_example_grads(loss, method="taps")(params, b).row_norms())
    each = jax.jit(jax.vmap(jax.grad(loss), (None, 0)))
    huge = np.array(batch)
    huge[1] *= 1e13  # gradients of about 1e25, whose squares are infinite
    rows, row = np.asarray(each(params, batch)), np.asarray(each(params, huge))[1]
    with np.errstate(over="ignore"):
        assert np.isfinite(row).all() and np.isinf(np.square(row)).any()
    np.testing.assert_allclose(
        grads(huge, np.float32([0, 1, 0])), row, rtol=1e-4, atol=1e-5 * np.abs(row).max()
    )
    for bad in (np.inf, np.nan, 1e30):
        broken = np.array(batch)
        broken[1] = bad
        expected = rows[0] - 2.0 * rows[2]
        kept = grads(broken, np.float32([1, 0, -2]))
        np.testing.assert_allclose(kept, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())
        assert not np.isfinite(grads(broken, np.float32([1, 0.5, -2]))).any()
        np.testing.assert_array_equal(np.isfinite(norms(broken)), [True, False, True])


@pytest.mark.parametrize("name", ["same", "strided"])
def test_clients_side_by_side_of_whom_one_has_a_row_that_is_not_finite(name):
    loss, params, batch = case(name)
    weights = np.float32([1, 0, -2])

    @jax.jit
    def client(params, batch):
        return per_example_grads(loss, method="taps")(params, batch).rmatvec(weights)

    several = np.stack([params, 0.5 * np.asarray(params)])
    batches = np.stack([batch, batch])
    batches[1, 1] = np.nan
    sums = jax.jit(jax.vmap(client))(several, batches)
    for k in range(2):
        expected = client(several[k], batch)
        np.testing.assert_allclose(sums[k], expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


@pytest.mark.slow(
    reason="compiles a loss in float32 and float64",
    but=["strided-rows tpu", "grouped-gram", "dilated_kernel-held", "same-rows"],
)
@pytest.mark.parametrize("form", ["held", "held tpu", "rows", "rows tpu", "gram"])
@pytest.mark.parametrize("name", ["same", "strided", "dilated_kernel", "dilated_input", "grouped"])
def test_all_forms_for_accelerators_are_exact(monkeypatch, name, form):
    form, _, platform = form.partition(" ")
    if form == "gram" and name == "grouped":
        pytest.skip("inner products of positions are for one group")
    monkeypatch.setattr(conv_native.NativeConv, "form", form)
    monkeypatch.setattr(
        conv_native, "CACHED_ON_GPUS", 2000
    )  # blocks of 2 for most, the last not full
    loss, params, batch = case(name)
    weights = np.array([1, 0, *range(3, 1 + B)], np.float32)
    spoilt = np.array(batch)
    spoilt[1] = np.nan

    @jax.jit
    def both(params, batch, spoilt, weights):
        grads = per_example_grads(loss, method="taps")
        return grads(params, batch).row_norms(), grads(params, spoilt).rmatvec(weights)

    # By default a TPU's forms round operands, as its products do.
    with _platforms.only(platform or "cuda"), jax.default_matmul_precision("highest"):
        norms, total = both(params, batch, spoilt, weights)
    with jax.enable_x64(True):
        wide = [np.asarray(z, np.float64) for z in (params, batch)]
        rows = np.asarray(jax.jit(jax.vmap(jax.grad(loss), (None, 0)))(*wide)).reshape(B, -1)
    # A Gram form's terms cancel: 2^-24 of their sum, which here is below 30 squared norms.
    np.testing.assert_allclose(norms, np.linalg.norm(rows, axis=1), rtol=2e-5)
    np.testing.assert_allclose(
        np.ravel(total), np.asarray(weights) @ rows, atol=1e-5 * np.abs(rows).max()
    )


def clipped_on_a_tpu(monkeypatch, form):
    """(the program's text, the kernel, the inputs)."""
    monkeypatch.setattr(conv_native.NativeConv, "form", form)
    loss, params, batch = case("same")

    def clipped(params, batch):
        grads = per_example_grads(loss, method="taps")(params, batch)
        return grads.weighted_sum(lambda norms: jnp.minimum(1.0, 1.0 / norms))[0]

    with _platforms.only("tpu"):
        return str(jax.make_jaxpr(clipped)(params, batch)), params, batch


def test_on_a_tpu_held_rows_lie_side_by_side(monkeypatch):
    """With an axis for examples beside one of few features, a TPU would pad them."""
    text, params, _ = clipped_on_a_tpu(monkeypatch, "held")
    window, channels, features = params.shape[:2], params.shape[2], params.shape[3]
    side_by_side = ",".join(map(str, (*window, channels, B * features)))
    assert f"f32[{side_by_side}] = conv_general_dilated" in text
    each = [(*window, channels, B, features), (B, *params.shape)]
    assert not any(f"[{','.join(map(str, shape))}]" in text for shape in each)


@pytest.mark.parametrize(("features", "beside"), [(127, True), (128, False)])
def test_on_a_tpu_rows_of_as_many_features_as_lanes_have_an_axis_for_examples(
    monkeypatch, features, beside
):
    """They pad nothing: to lay them side by side only costs."""
    monkeypatch.setattr(conv_native.NativeConv, "form", "held")

    def loss(kernel, x):
        made = jax.lax.conv(x[None], kernel, (1, 1), "VALID")
        return jnp.sum(jnp.sin(made))

    def clipped(kernel, batch):
        return per_example_grads(loss, method="taps")(kernel, batch).weighted_sum(lambda n: 1 / n)

    kernel, batch = jnp.ones((features, 2, 1, 1)), jnp.ones((B, 2, 3, 3))
    with _platforms.only("tpu"):
        text = str(jax.make_jaxpr(clipped)(kernel, batch))
    assert (f"[1,1,2,{B * features}] = conv_general_dilated" in text) == beside


@pytest.mark.parametrize(("form", "planned"), [("held", True), ("rows", True), ("rows", False)])
def test_on_a_tpu_an_input_is_rounded_for_good_where_norm_and_sum_both_read_it(
    monkeypatch, form, planned
):
    """Held rows are what norm and sum both read: of them each reader may round the input anew."""
    monkeypatch.setattr(plan, "_holds_rows", lambda eqn, position: planned)
    text, _, batch = clipped_on_a_tpu(monkeypatch, form)
    inputs = f"bf16[{','.join(map(str, batch.shape))}] = optimization_barrier"
    assert (inputs in text) == (form == "rows")


@pytest.mark.parametrize("form", ["held", "rows"])
@pytest.mark.parametrize(
    "name", ["strided", "dilated_input", "dilated_kernel", "cropped", "samples", "no_spatial_axes"]
)
def test_on_a_tpu_rows_are_those_of_operands_rounded_to_bfloat16(monkeypatch, name, form):
    """In float64, the rounding by hand, of the input and of the cotangent that it leads to."""
    monkeypatch.setattr(conv_native.NativeConv, "form", form)
    shape, _, spec, options = ALL[name]
    options = {"window_strides": (1,) * (len(shape) - 2), "padding": "SAME"} | options
    loss, params, batch = case(name)
    spoilt = np.array(batch)
    spoilt[1] = np.nan
    weights = np.array([1, 0, *range(3, 1 + B)], np.float32)
    with _platforms.only("tpu"):
        grads = per_example_grads(loss, method="taps")
        norms = grads(params, batch).row_norms()
        total = grads(params, spoilt).rmatvec(weights)

    def rounded(z):
        return np.asarray(z, np.float32).astype(jnp.bfloat16).astype(np.float64)

    with jax.enable_x64(True):
        rows = []
        for example in rounded(batch):

            def convolve(params, example=example):
                return jax.lax.conv_general_dilated(
                    example, params, dimension_numbers=spec, **options
                )

            out, back = jax.vjp(convolve, np.asarray(params, np.float64))
            y = jax.grad(lambda z: 0.5 * jnp.mean(jnp.sin(z) + jnp.square(z)))(out)
            rows.append(np.ravel(back(jnp.asarray(rounded(y)))[0]))
    rows = np.array(rows)
    # Rounding what is exact would move them by 2^-9.
    np.testing.assert_allclose(norms, np.linalg.norm(rows, axis=1), rtol=2e-5)
    np.testing.assert_allclose(np.ravel(total), weights @ rows, atol=1e-5 * np.abs(rows).max())


def test_accelerators_take_the_form_that_moves_fewest_numbers():
    """Early layers have many positions and small kernels, late ones the reverse."""
    numbers = jax.lax.ConvDimensionNumbers((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))

    def form(side, fan_in, fan_out):
        params = {
            "dimension_numbers": numbers,
            "feature_group_count": 1,
            "batch_group_count": 1,
            "window_strides": (1, 1),
            "padding": ((1, 1), (1, 1)),
            "lhs_dilation": (1, 1),
            "rhs_dilation": (1, 1),
            "precision": None,
            "preferred_element_type": None,
        }
        inputs = jnp.zeros((2, 1, side, side, fan_in))
        cotangent = jnp.zeros((2, 1, side, side, fan_out))
        term = conv_native.NativeConv(inputs, cotangent, (3, 3, fan_in, fan_out), params, 0)
        moved = term.moved
        # 3 of a row; 2 of a row and 3 of input and output; by hand.
        row, both = 9 * fan_in * fan_out, side * side * (fan_in + fan_out)
        assert moved["held"] == 3 * row and moved["rows"] == 2 * row + 3 * both
        assert moved["gram"] == (side + 2) ** 4 + 11 * side**4 + 3 * both
        return term.form

    assert form(32, 32, 32) == "held"
    assert form(8, 128, 128) == "gram"
