import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import models


def count(params):
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def dense_float64(params, x):
    return x @ np.asarray(params["kernel"], np.float64) + np.asarray(params["bias"], np.float64)


@pytest.mark.parametrize("name", models.NAMES)
def test_logits_are_float32_and_finite_for_one_example_and_under_transformations(name, key):
    params, apply = models.create(name, example_shape=(8, 8, 1), num_classes=10, key=key)
    x = jax.random.uniform(jax.random.key(1), (3, 8, 8, 1))
    logits = jax.jit(jax.vmap(apply, (None, 0)))(params, x)
    assert logits.shape == (3, 10) and logits.dtype == jnp.float32
    np.testing.assert_allclose(logits[1], apply(params, x[1]), rtol=0, atol=1e-5)
    gradient = jax.jit(jax.grad(lambda p: apply(p, x[0])[3]))(params)
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves((logits, gradient)))


def test_softmax_is_an_affine_map(key):
    params, apply = models.create("softmax", example_shape=(2, 3), num_classes=4, key=key)
    x = np.arange(6.0).reshape(2, 3)
    expected = dense_float64(params["logits"], x.reshape(-1))
    np.testing.assert_allclose(apply(params, jnp.float32(x)), expected, rtol=0, atol=1e-5)
    assert count(params) == 6 * 4 + 4


def test_mlp_agrees_with_float64(key):
    params, apply = models.create("mlp", example_shape=(6,), num_classes=4, key=key, hidden=(5, 3))
    x = np.linspace(-1, 1, 6)
    hidden = x
    for layer in ("0", "1"):
        hidden = np.maximum(dense_float64(params["hidden"][layer], hidden), 0)
    expected = dense_float64(params["logits"], hidden)
    np.testing.assert_allclose(apply(params, jnp.float32(x)), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "options", "expected"),
    [
        ("mlp", (784,), 10, {"hidden": (256, 128)}, 235_146),
        ("cnn", (28, 28, 1), 62, {"channels": (32, 64), "kernel_size": 5, "hidden": (512,)}, 1_690_046),
        ("mlp", (7,), 3, {"hidden": ()}, 24),
        ("cnn", (5, 4, 2), 3, {"channels": (), "hidden": ()}, 40 * 3 + 3),
    ],
    ids=["mlp", "femnist", "no hidden", "no convolution"],
)
def test_models_have_the_published_number_of_parameters(name, shape, classes, options, expected, key):
    assert count(models.create(name, example_shape=shape, num_classes=classes, key=key, **options).params) == expected


@pytest.mark.parametrize("shape", [(8, 8, 1), (7, 5, 3)], ids=str)
def test_both_implementations_of_the_cnn_are_one_function(shape, key):
    build = {
        implementation: models.create("cnn", example_shape=shape, num_classes=10, key=k, implementation=implementation)
        for implementation, k in zip(("native", "matmul"), [key, jax.random.clone(key)], strict=True)
    }
    params = build["native"].params
    jax.tree.map(np.testing.assert_array_equal, params, build["matmul"].params)
    x = jax.random.normal(jax.random.key(1), shape)

    def value_and_grad(implementation):
        return jax.jit(jax.value_and_grad(lambda p: jax.nn.logsumexp(build[implementation].apply(p, x))))(params)

    native, matmul = value_and_grad("native"), value_and_grad("matmul")
    # Values are of size 1 and the deepest sum has 288 terms: 4 * 288 * 2^-24 = 7e-5, and less after cancellation.
    for a, b in zip(jax.tree.leaves(native), jax.tree.leaves(matmul), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=7e-5 * max(1.0, float(jnp.abs(a).max())))


@pytest.mark.parametrize("name", models.NAMES)
def test_the_key_decides_the_initial_weights(name, key):
    first, again, other = (
        models.create(name, example_shape=(4, 4, 1), num_classes=3, key=k).params
        for k in (key, jax.random.clone(key), jax.random.key(5))
    )
    jax.tree.map(np.testing.assert_array_equal, first, again)
    assert all(
        not np.array_equal(a, b)
        for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(first), jax.tree.leaves(other), strict=True)
        if "kernel" in jax.tree_util.keystr(path)
    )


def test_no_two_layers_start_alike(key):
    params, _ = models.create("mlp", example_shape=(4,), num_classes=4, key=key, hidden=(4, 4))
    kernels = [params["hidden"]["0"]["kernel"], params["hidden"]["1"]["kernel"], params["logits"]["kernel"]]
    assert all(not np.array_equal(a, b) for a, b in itertools.combinations(kernels, 2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "resnet"}, r"name to be one of \['softmax', 'mlp', 'cnn'\], got name='resnet'"),
        ({"num_classes": 0}, "num_classes=0"),
        ({"example_shape": (0,)}, "example_shape=0"),
        ({"hidden": (3,)}, r"options of softmax to be among \[\], got hidden=\(3,\)"),
        ({"name": "mlp", "hidden": (0,)}, "hidden=0"),
        ({"name": "cnn", "example_shape": (3, 8, 1)}, r"height and width >= 4 for 2 pools.*\(3, 8, 1\)"),
        ({"name": "cnn", "example_shape": (64,)}, r"example_shape=\(64,\)"),
        ({"name": "cnn", "kernel_size": 0}, "kernel_size=0"),
        ({"name": "cnn", "implementation": "fft"}, "implementation='fft'"),
        ({"key": 3}, "typed PRNG key"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_input_names_argument_value_and_rule(arguments, message):
    whole = {"name": "softmax", "example_shape": (8, 8, 1), "num_classes": 10, "key": jax.random.key(0), **arguments}
    with pytest.raises(ValueError, match=message) as error:
        models.create(whole.pop("name"), **whole)
    assert "\n" not in str(error.value)
