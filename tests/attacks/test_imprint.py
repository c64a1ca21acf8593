"""A malicious layer reads most of a batch of colour images off its gradient, and none through a
clipped sum with noise.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax import models
from fljax.attacks import imprint
from fljax.models import Functional
from fljax.papers.channel.rounds import photographs

BATCH, SHAPE = 64, (32, 32, 3)


def network():
    weights = {"a": jax.random.normal(jax.random.key(2), (3072, 10)) / 50}
    return Functional(weights, lambda p, x: jnp.tanh(x.reshape(-1)) @ p["a"])


def least_errors(found, truth):
    """Of each true image, in dB, the nearest of what was found."""
    found = np.clip(np.nan_to_num(np.asarray(found, np.float64), nan=0.5), 0, 1)
    flat = truth.reshape(len(truth), -1).astype(np.float64)
    # All distances by one product, whose rounding is far below the 1e-12.
    squares = np.square(flat).sum(1)[:, None] + np.square(found).sum(1) - 2 * flat @ found.T
    return -10 * np.log10(np.maximum(squares.min(1), 0) / flat.shape[1] + 1e-12)


def test_most_of_a_batch_is_read_and_nothing_through_noise():
    public, others = photographs()
    picks = np.random.default_rng(0).choice(len(others["y"]), BATCH, replace=False)
    x, y = jnp.asarray(others["x"][picks]), jnp.asarray(np.arange(BATCH) % 10)
    model = imprint.imprinted(network(), public["x"], 512, scale=10.0)
    loss = models.softmax_cross_entropy(model.apply)
    batch = {"x": x, "y": y}
    mean = lambda params: jnp.mean(jax.vmap(loss, (None, 0))(params, batch))
    seen = jax.jit(jax.grad(mean))(model.params)["imprint"]
    read = imprint.read(seen["kernel"], seen["bias"])
    assert read.shape == (512, 3072)
    good = least_errors(read, np.asarray(x)) > 40
    assert good.sum() >= BATCH / 2
    # The same layer behind example-level DP with noise multiplier 1.
    clipped = fljax.clipped_grad(loss, l2_clip_norm=1.0, keep_batch_dim=False)
    total = jax.jit(clipped)(model.params, batch)
    rng = np.random.default_rng(1)
    noisy = [np.asarray(total["imprint"][k]) for k in ("kernel", "bias")]
    noisy = [leaf + rng.normal(size=leaf.shape) for leaf in noisy]
    assert (least_errors(imprint.read(*noisy), np.asarray(x)) < 20).all()


def test_a_bin_holds_one_example_several_or_none():
    examples = np.asarray([[0.1, 0.3], [0.4, 0.6], [0.5, 0.7], [0.9, 0.9]])
    thresholds, weights = np.asarray([0.0, 0.35, 0.7, 0.8]), np.asarray([1.0, -2.0, 3.0, 0.5])
    above = examples.mean(1)[:, None] >= thresholds
    kernel = np.einsum("b,bi,bk->ik", weights, examples, above)
    read = imprint.read(kernel, weights @ above)
    np.testing.assert_allclose(read[0], examples[0])
    np.testing.assert_allclose(read[1], -2 * examples[1] + 3 * examples[2])
    assert np.isnan(read[2]).all()
    np.testing.assert_allclose(read[3], examples[3])
    assert np.isnan(imprint.read(np.zeros((2, 3)), np.zeros(3))).all()


def test_bad_arguments_raise():
    public = np.zeros((4, 8, 8, 1))
    for change, text in (
        ({"num_bins": 1}, "num_bins >= 2"),
        ({"num_bins": 0}, "num_bins"),
        ({"scale": 0.0}, "scale"),
        ({"public": public * np.nan}, "finite"),
        ({"public": public[:0]}, "public of shape"),
    ):
        with pytest.raises(ValueError, match=text):
            imprint.imprinted(network(), **({"public": public, "num_bins": 4} | change))
    for kernel, bias, text in (
        (np.zeros((2, 3)), np.zeros(2), "got shapes"),
        (np.full((2, 3), np.inf), np.zeros(3), "kernel_gradient of finite"),
        (np.zeros((2, 3)), np.full(3, np.nan), "bias_gradient of finite"),
    ):
        with pytest.raises(ValueError, match=text):
            imprint.read(kernel, bias)
