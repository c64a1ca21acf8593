"""R-GAP: an example by linear equations, layer by layer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.attacks import metrics, recursive

SLOPE, LABEL = 0.2, 3


def conv(stride):
    def layer(params, x):
        y = jax.lax.conv_general_dilated(
            x[None],
            params["kernel"],
            (stride, stride),
            "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )[0]
        return y + params["bias"][None, None] if "bias" in params else y

    return layer


def dense(params, x):
    y = x.reshape(-1) @ params["kernel"]
    return y + params["bias"] if "bias" in params else y


def network(channels, bias, key=0):
    """8 x 8: two convolutions, the second of stride 2, and a dense layer."""
    keys = iter(jax.random.split(jax.random.key(key), 6))
    shapes = [(3, 3, 1, channels), (3, 3, channels, channels), (16 * channels, 10)]
    params = []
    for shape in shapes:
        size = np.prod(shape[:-1])
        params.append({"kernel": jax.random.normal(next(keys), shape) / size**0.5})
        if bias:
            params[-1]["bias"] = 0.1 * jax.random.normal(next(keys), shape[-1:])
    return [conv(1), conv(2), dense], params


def gradients(layers, params, x):
    def loss(params):
        after = x
        for layer, weights in zip(layers[:-1], params[:-1], strict=True):
            after = jax.nn.leaky_relu(layer(weights, after), SLOPE)
        return -jax.nn.log_softmax(layers[-1](params[-1], after))[LABEL]

    return jax.jit(jax.grad(loss))(params)


def image():
    return jax.random.uniform(jax.random.key(9), (8, 8, 1))


@pytest.mark.slow(reason="one more network", ids=["False"])
@pytest.mark.parametrize("bias", [False, True])
def test_an_image_is_told_without_a_search_and_noise_hides_it(bias):
    layers, params = network(8, bias)
    x = image()
    found = gradients(layers, params, x)
    told = recursive.invert(layers, params, found, LABEL, shape=x.shape, slope=SLOPE)
    assert told.missing == (0, 0)
    assert metrics.psnr(told.x, x) > 50
    # Behind example-level DP: the gradient clipped to 1, noise multiplier 1.
    length = np.sqrt(sum(np.square(leaf).sum() for leaf in jax.tree.leaves(found)))
    rng = np.random.default_rng(0)
    noisy = jax.tree.map(
        lambda leaf: leaf / max(1.0, length) + rng.normal(size=leaf.shape).astype(np.float32), found
    )
    hidden = recursive.invert(layers, params, noisy, LABEL, shape=x.shape, slope=SLOPE)
    assert metrics.psnr(np.clip(hidden.x, 0, 1), x) < 15


def test_what_no_equation_says_is_counted():
    """One channel: 16 values behind the second convolution and 9 weights say 24 of its 64 inputs,
    since weights times their gradient are values times what comes back.
    """
    layers, params = network(1, bias=False)
    x = image()
    told = recursive.invert(
        layers, params, gradients(layers, params, x), LABEL, shape=x.shape, slope=SLOPE
    )
    assert told.missing[1] == 64 - 24 and told.missing[0] == 0
    assert metrics.psnr(np.clip(told.x, 0, 1), x) < 25


def test_bad_arguments_raise_in_one_line():
    layers, params = network(2, bias=False)
    moved = jax.tree.map(jnp.ones_like, params)
    good = {"layers": layers, "params": params, "gradients": moved, "y": 0}
    for change, text in (
        ({"layers": layers[:2]}, "of one length >= 2"),
        ({"y": 10}, r"y in \[0, 10\)"),
        ({"slope": 0.0}, "slope"),
        ({"slope": 1.5}, r"slope in \(0, 1\]"),
        ({"gradients": params[::-1]}, "shapes of params"),
        ({"gradients": jax.tree.map(lambda v: v * np.nan, params)}, "finite"),
    ):
        with pytest.raises(ValueError, match=text):
            recursive.invert(**(good | change), shape=(8, 8, 1))
