import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.signal import correlate2d

from fljax.models import layers


def conv_float64(x, kernel):
    """SAME correlation by scipy, in float64; for an even kernel XLA pads one more at the end."""
    x, kernel = np.asarray(x, np.float64), np.asarray(kernel, np.float64)
    size = kernel.shape[0]
    before = (size - 1) // 2
    x = np.pad(x, ((before, size - 1 - before), (before, size - 1 - before), (0, 0)))
    channels = [
        sum(correlate2d(x[..., i], kernel[..., i, o], "valid") for i in range(x.shape[2]))
        for o in range(kernel.shape[3])
    ]
    return np.stack(channels, axis=-1)


@pytest.mark.slow(
    reason="compiles one more convolution",
    but=[
        "(8, 8, 1)-1-native",
        "(5, 7, 3)-3-native",
        "(2, 3, 4)-5-native",
        "(8, 8, 1)-5-matmul",
        "(5, 7, 3)-1-matmul",
        "(5, 7, 3)-2-matmul",
        "(2, 3, 4)-3-matmul",
    ],
)
@pytest.mark.parametrize("implementation", layers.IMPLEMENTATIONS)
@pytest.mark.parametrize("kernel_size", [1, 2, 3, 5])
@pytest.mark.parametrize("shape", [(8, 8, 1), (5, 7, 3), (2, 3, 4)], ids=str)
def test_convolution_agrees_with_float64(shape, kernel_size, implementation, key):
    keys = jax.random.split(key)
    x = jax.random.normal(keys[0], shape)
    kernel = jax.random.normal(keys[1], (kernel_size, kernel_size, shape[2], 6))
    # A float32 dot product of n terms of size about 1 errs by less than n * 2^-24 * (sum of
    # |terms|) < n^2 * 2^-22.
    terms = kernel_size**2 * shape[2]
    actual = layers.conv(x, kernel, implementation)
    np.testing.assert_allclose(
        actual, conv_float64(x, kernel), rtol=0, atol=max(terms**2, 8) * 2.0**-22
    )


@pytest.mark.parametrize("shape", [(8, 8, 3), (5, 7, 2), (2, 2, 1)], ids=str)
def test_pooling_agrees_with_a_loop(shape, key):
    x = jax.random.normal(key, shape)
    expected = np.empty((shape[0] // 2, shape[1] // 2, shape[2]), np.float32)
    for i, j in np.ndindex(expected.shape[:2]):
        expected[i, j] = np.asarray(x)[2 * i : 2 * i + 2, 2 * j : 2 * j + 2].max(axis=(0, 1))
    for implementation in layers.IMPLEMENTATIONS:
        np.testing.assert_array_equal(layers.max_pool(x, implementation), expected)


def test_gradients_of_the_two_implementations_agree(key):
    keys = jax.random.split(key)
    x, kernel = jax.random.normal(keys[0], (6, 7, 2)), jax.random.normal(keys[1], (3, 3, 2, 4))

    def loss(implementation, x, kernel):
        y = layers.max_pool(layers.conv(x, kernel, implementation), implementation)
        return (y**2).sum()

    native, matmul = (
        jax.grad(loss, argnums=(1, 2))(implementation, x, kernel)
        for implementation in layers.IMPLEMENTATIONS
    )
    # Sums of at most 6 * 7 * 9 products of size about 10: relative error below 378 * 2^-24 of the
    # largest.
    for a, b in zip(native, matmul, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=float(jnp.abs(a).max()) * 378 * 2.0**-24)


@pytest.mark.parametrize(("platform", "native"), [("cpu", 0), ("cuda", 1), ("tpu", 1)])
def test_by_default_the_layers_are_native_where_a_program_is_lowered_for_accelerators(
    platform, native
):
    def layer(x, kernel):
        return layers.max_pool(layers.conv(x, kernel, None), None)

    traced = jax.jit(layer).trace(jnp.ones((4, 4, 1)), jnp.ones((3, 3, 1, 2)))
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert text.count("stablehlo.convolution") == native
    assert text.count('"stablehlo.reduce_window"') == native


@pytest.mark.parametrize(
    "primitive", ["conv_general_dilated", "reduce_window", "select_and_scatter_add"]
)
def test_the_matmul_form_contains_no_convolution_or_window(primitive):
    def loss(kernel, x):
        return layers.max_pool(layers.conv(x, kernel, "matmul"), "matmul").sum()

    text = str(
        jax.make_jaxpr(jax.grad(loss, argnums=(0, 1)))(jnp.ones((3, 3, 1, 2)), jnp.ones((4, 4, 1)))
    )
    assert primitive not in text


def test_an_unknown_implementation_is_refused():
    with pytest.raises(
        ValueError, match=r"implementation to be one of \['native', 'matmul'\], got .*'im2col'"
    ):
        layers.check("im2col")
