import functools
import itertools
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import models


def count(params):
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def dense_float64(params, x):
    return x @ np.asarray(params["kernel"], np.float64) + np.asarray(params["bias"], np.float64)


LARGE = ("alexnet", "vgg16", "decoder:gemma3_1b", "decoder:llama3.2_1b", "decoder:qwen3_0.6b")
SMALL = tuple(name for name in models.NAMES if name not in LARGE)
OF_SEQUENCES = ("token_lstm", "decoder:tiny")


@pytest.mark.release(reason="a deeper model of the same kind", ids=["resnet10", "resnet18"])
@pytest.mark.slow(
    reason="compiles each bundled model under jit, vmap and grad",
    but=["mlp"],
)
@pytest.mark.parametrize("name", SMALL)
def test_logits_are_float32_and_finite_for_one_example_and_under_transformations(name, key):
    looks_up = name == "lstm" or name in OF_SEQUENCES
    shape = (7,) if looks_up else {"lenet": (16, 17, 1)}.get(name, (8, 8, 1))
    params, whole = models.create(name, example_shape=shape, num_classes=10, key=key)
    apply = whole if name not in OF_SEQUENCES else lambda params, x: whole(params, x)[-1]
    x = jax.random.uniform(jax.random.key(1), (3, *shape))
    x = jnp.int32(10 * x) if looks_up else x
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


@pytest.mark.slow(reason="draws a large LSTM", ids=["leaf shakespeare"])
@pytest.mark.parametrize(
    ("name", "shape", "classes", "options", "expected"),
    [
        ("mlp", (784,), 10, {"hidden": (256, 128)}, 235_146),
        (
            "cnn",
            (28, 28, 1),
            62,
            {"channels": (32, 64), "kernel_size": 5, "hidden": (512,)},
            1_690_046,
        ),
        ("leaf_cnn", (28, 28, 1), 62, {}, 6_603_710),
        # An embedding of 8, gates of 256 cells twice, one dense layer of 80 to 80 symbols behind
        # them.
        ("lstm", (80,), 80, {"cells": (256, 256), "hidden": ()}, 640 + 271_360 + 525_312 + 20_560),
        ("mlp", (7,), 3, {"hidden": ()}, 24),
        ("cnn", (5, 4, 2), 3, {"channels": (), "hidden": ()}, 40 * 3 + 3),
    ],
    ids=["mlp", "femnist", "leaf femnist", "leaf shakespeare", "no hidden", "no convolution"],
)
def test_models_have_the_published_number_of_parameters(
    name, shape, classes, options, expected, key
):
    def build(key):
        return models.create(
            name, example_shape=shape, num_classes=classes, key=key, **options
        ).params

    assert count(jax.eval_shape(build, key)) == expected


@pytest.mark.slow(reason="compiles one more shape", ids=["(7, 5, 3)"])
@pytest.mark.parametrize("shape", [(8, 8, 1), (7, 5, 3)], ids=str)
def test_both_implementations_of_the_cnn_are_one_function(shape, key):
    build = {
        implementation: models.create(
            "cnn", example_shape=shape, num_classes=10, key=k, implementation=implementation
        )
        for implementation, k in zip(
            ("native", "matmul"), [key, jax.random.clone(key)], strict=True
        )
    }
    params = build["native"].params
    chex.assert_trees_all_equal(params, build["matmul"].params)
    x = jax.random.normal(jax.random.key(1), shape)

    def value_and_grad(implementation):
        return jax.jit(
            jax.value_and_grad(lambda p: jax.nn.logsumexp(build[implementation].apply(p, x)))
        )(params)

    native, matmul = value_and_grad("native"), value_and_grad("matmul")
    # Values are of size 1 and the deepest sum has 288 terms: 4 * 288 * 2^-24 = 7e-5, and less after
    # cancellation.
    for a, b in zip(jax.tree.leaves(native), jax.tree.leaves(matmul), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=7e-5 * max(1.0, float(jnp.abs(a).max())))


@pytest.mark.release(reason="a deeper model of the same kind", ids=["resnet10", "resnet18"])
@pytest.mark.slow(
    reason="compiles each bundled model under jit, vmap and grad",
    ids=["resnet10", "resnet18", "resnet20", "small_vit", "lstm", "token_lstm", "decoder:tiny"],
)
@pytest.mark.parametrize("name", SMALL)
def test_the_key_decides_the_initial_weights(name, key):
    first, again, other = (
        models.create(
            name,
            example_shape={"lenet": (16, 16, 1)}.get(
                name, (4,) if name in ("lstm", *OF_SEQUENCES) else (4, 4, 1)
            ),
            num_classes=3,
            key=k,
        ).params
        for k in (key, jax.random.clone(key), jax.random.key(5))
    )
    chex.assert_trees_all_equal(first, again)
    assert all(
        not np.array_equal(a, b)
        for (path, a), b in zip(
            jax.tree_util.tree_leaves_with_path(first), jax.tree.leaves(other), strict=True
        )
        if "kernel" in jax.tree_util.keystr(path)
    )


def test_no_two_layers_start_alike(key):
    params, _ = models.create("mlp", example_shape=(4,), num_classes=4, key=key, hidden=(4, 4))
    kernels = [
        params["hidden"]["0"]["kernel"],
        params["hidden"]["1"]["kernel"],
        params["logits"]["kernel"],
    ]
    assert all(not np.array_equal(a, b) for a, b in itertools.combinations(kernels, 2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"name": "resnet"},
            r"name to be one of \['softmax', .*'weights:FOLDER'\], got name='resnet'",
        ),
        ({"num_classes": 0}, "num_classes=0"),
        ({"example_shape": (0,)}, "example_shape=0"),
        ({"hidden": (3,)}, r"options of softmax to be among \[\], got hidden=\(3,\)"),
        ({"name": "mlp", "hidden": (0,)}, "hidden=0"),
        (
            {"name": "cnn", "example_shape": (3, 8, 1)},
            r"height and width >= 4 for 2 pools.*\(3, 8, 1\)",
        ),
        ({"name": "cnn", "example_shape": (64,)}, r"example_shape=\(64,\)"),
        ({"name": "cnn", "kernel_size": 0}, "kernel_size=0"),
        ({"name": "cnn", "implementation": "fft"}, "implementation='fft'"),
        ({"name": "resnet20", "example_shape": (8, 8, 1), "blocks": 0}, "blocks=0"),
        ({"key": 3}, "typed PRNG key"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_input_names_argument_value_and_rule(arguments, message):
    whole = {
        "name": "softmax",
        "example_shape": (8, 8, 1),
        "num_classes": 10,
        "key": jax.random.key(0),
        **arguments,
    }
    with pytest.raises(ValueError, match=message) as error:
        models.create(whole.pop("name"), **whole)
    assert "\n" not in str(error.value)


def test_the_lstm_agrees_with_float64(key):
    params, apply = models.create(
        "lstm", example_shape=(5,), num_classes=7, key=key, embedding=3, cells=(4, 2), hidden=()
    )
    x = np.array([1, 6, 0, 3, 3])
    sequence = np.asarray(params["embedding"], np.float64)[x]
    for layer in ("0", "1"):
        weights = {
            name: np.asarray(leaf, np.float64) for name, leaf in params["lstm"][layer].items()
        }
        cells = weights["hidden"].shape[0]
        h, c, states = np.zeros(cells), np.zeros(cells), []
        for here in sequence:
            gates = here @ weights["input"] + h @ weights["hidden"] + weights["bias"]
            i, f, g, o = (gates[n * cells : (n + 1) * cells] for n in range(4))
            c = c / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
            h = np.tanh(c) / (1 + np.exp(-o))
            states.append(h)
        sequence = np.array(states)
    expected = dense_float64(params["head"]["logits"], sequence[-1])
    np.testing.assert_allclose(apply(params, jnp.int32(x)), expected, rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="x to hold symbols"):
        apply(params, jnp.zeros(5))
    with pytest.raises(ValueError, match=r"\[characters\].*example_shape=\(5, 2\)"):
        models.create("lstm", example_shape=(5, 2), num_classes=7, key=jax.random.clone(key))


def test_the_gradients_of_the_lstm_are_taken_without_one_copy_of_the_model_per_example(key):
    import fljax_kernels

    model = models.create(
        "lstm", example_shape=(5,), num_classes=7, key=key, embedding=3, cells=(4, 2), hidden=(3,)
    )
    loss = models.softmax_cross_entropy(model.apply)
    batch = {"x": jax.random.randint(jax.random.key(2), (6, 5), 0, 7), "y": jnp.arange(6)}

    @jax.jit
    def both(params):
        G = fljax_kernels.per_example_grads(loss, method="taps")(params, batch)
        rows = jax.vmap(jax.grad(loss), (None, 0))(params, batch)
        squares = sum(
            jnp.sum(jnp.square(leaf), axis=range(1, leaf.ndim)) for leaf in jax.tree.leaves(rows)
        )
        return G.row_norms(), jnp.sqrt(squares)

    got, expected = both(model.params)
    np.testing.assert_allclose(got, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("lenet", 62_006),
        ("resnet10", 4_903_242),
        ("resnet18", 11_173_962),
        ("resnet20", 272_474),
        ("alexnet", 35_855_178),
        ("vgg16", 134_301_514),
        # Patches and places, two blocks of two norms and four dense layers, norm and logits.
        ("small_vit", 4_704 + 6_144 + 2 * (384 + 27_936 + 9_312 + 18_624 + 18_528) + 192 + 970),
        ("resnet20, blocks=9", 855_770),  # ResNet56
    ],
)
def test_networks_for_images_have_the_published_number_of_parameters(name, expected):
    name, *blocks = name.split(", blocks=")
    given = {"example_shape": (32, 32, 3), "num_classes": 10}
    given |= {"blocks": int(blocks[0])} if blocks else {}

    def build(key):
        return models.create(name, key=key, **given).params

    assert count(jax.eval_shape(build, jax.random.key(0))) == expected


def test_lenet_agrees_with_float64_written_apart(key):
    params, apply = models.create("lenet", example_shape=(20, 16, 2), num_classes=3, key=key)
    params = jax.tree.map(lambda p: p + 0.1 if p.ndim == 1 else p, params)  # biases start at 0
    x = np.random.default_rng(0).normal(size=(20, 16, 2))

    def block(image, layer):
        kernel = np.asarray(layer["kernel"], np.float64)
        windows = np.lib.stride_tricks.sliding_window_view(
            image, (5, 5), axis=(0, 1)
        )  # [H', W', I, 5, 5]
        image = np.maximum(
            np.einsum("hwiab,abio->hwo", windows, kernel) + np.asarray(layer["bias"], np.float64), 0
        )
        height, width = image.shape[0] // 2 * 2, image.shape[1] // 2 * 2
        image = image[:height, :width]
        return np.max([image[i::2, j::2] for i in (0, 1) for j in (0, 1)], axis=0)

    hidden = block(block(x, params["convs"]["0"]), params["convs"]["1"]).reshape(-1)
    for layer in ("0", "1"):
        hidden = np.maximum(dense_float64(params["hidden"][layer], hidden), 0)
    expected = dense_float64(params["logits"], hidden)
    np.testing.assert_allclose(apply(params, jnp.float32(x)), expected, rtol=0, atol=1e-4)


def test_the_vision_transformer_agrees_with_float64_written_apart(key):
    params, apply = models.create("small_vit", example_shape=(8, 12, 2), num_classes=3, key=key)
    rng = np.random.default_rng(0)
    # Scales start at 1, biases at 0.
    moved = lambda leaf: leaf + 0.3 * rng.normal(size=leaf.shape) if leaf.ndim == 1 else leaf
    params = jax.tree.map(lambda leaf: np.asarray(moved(leaf), np.float64), params)
    x = rng.normal(size=(8, 12, 2))

    def normed(layer, x):
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + 1e-5)
        return x * layer["scale"] + layer["bias"]

    def attended(q, k, v):
        weights = np.exp(q @ k.T / np.sqrt(q.shape[1]))
        return weights / weights.sum(1, keepdims=True) @ v

    places = [(i, j) for i in (0, 4) for j in (0, 4, 8)]
    tokens = np.stack([x[i : i + 4, j : j + 4].reshape(-1) for i, j in places])
    tokens = dense_float64(params["patches"], tokens) + params["places"]
    for name in ("0", "1"):
        layer = params["blocks"][name]
        qkv = dense_float64(layer["qkv"], normed(layer["norm1"], tokens))
        # Of each head its query, key and value, of 32 numbers each, lie together.
        heads = [np.split(one, 3, 1) for one in np.split(qkv, 3, 1)]
        mixed = np.concatenate([attended(*head) for head in heads], 1)
        tokens = tokens + dense_float64(layer["out"], mixed)
        up = dense_float64(layer["up"], normed(layer["norm2"], tokens))
        gelu = up / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (up + 0.044715 * up**3)))
        tokens = tokens + dense_float64(layer["down"], gelu)
    expected = dense_float64(params["logits"], normed(params["norm"], tokens).mean(0))
    single = jax.tree.map(jnp.float32, params)
    np.testing.assert_allclose(apply(single, jnp.float32(x)), expected, rtol=0, atol=1e-4)


def test_grey_images_need_no_axis_of_channels(key):
    grey, plain = (
        models.create(
            "cnn", example_shape=shape, num_classes=3, key=key, channels=(2,), hidden=(3,)
        )
        for shape in ((8, 6), (8, 6, 1))
    )
    chex.assert_trees_all_equal(grey.params, plain.params)
    x = jax.random.normal(key, (8, 6))
    np.testing.assert_array_equal(
        grey.apply(grey.params, x), plain.apply(plain.params, x[..., None])
    )


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("lenet", (15, 32, 3)),
        ("alexnet", (28, 28, 1)),
        ("resnet20", (8,)),
        ("small_vit", (8, 6, 1)),
    ],
)
def test_networks_for_images_name_the_shape_they_want(name, shape, key):
    with pytest.raises(ValueError, match=r"Expected example_shape to be .* got"):
        models.create(name, example_shape=shape, num_classes=10, key=key)


@pytest.mark.parametrize(
    ("made", "given"), [((8, 12, 1), (12, 8, 1)), ((8, 8, 4), (16, 16, 1)), ((8, 8, 1), (8, 8))]
)
def test_a_vision_transformer_takes_no_image_of_as_many_numbers(made, given, key):
    params, apply = models.create("small_vit", example_shape=made, num_classes=3, key=key)
    text = re.escape(f"Expected x of shape {made}, got x of shape {given}")
    with pytest.raises(ValueError, match=text):
        jax.eval_shape(apply, params, jnp.zeros(given))


def test_a_model_is_made_with_small_matrices_beside_given_weights(key):
    make = functools.partial(models.create, "mlp", example_shape=(3,), num_classes=2, hidden=(5,))
    base = jax.tree.map(lambda leaf: leaf + 1, make(key=key).params)
    adapted = make(key=key, lora=2, base=base)
    shapes = [leaf.shape for leaf in jax.tree.leaves(adapted.params)]
    assert sorted(shapes) == [(2, 2), (2, 5), (3, 2), (5, 2)]
    x = jnp.arange(3.0)
    # What is added starts at 0.
    whole = make(key=jax.random.key(7), base=base)
    np.testing.assert_array_equal(adapted.apply(adapted.params, x), whole.apply(base, x))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda base: {"logits": base["logits"]}, r"base to have hidden\.0\.bias of \[5\], as"),
        (lambda base: base | {"more": jnp.zeros(1)}, "arrays of 'mlp' alone, got 1 more"),
    ],
)
def test_weights_of_another_model_are_refused(change, message, key):
    make = functools.partial(models.create, "mlp", example_shape=(3,), num_classes=2, hidden=(5,))
    base = change(make(key=key).params)
    with pytest.raises(ValueError, match=message):
        make(key=key, base=base)
