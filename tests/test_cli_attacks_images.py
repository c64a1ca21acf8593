"""`fljax attack` on images: what may be attacked, what is public, what decibels are of."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import attacks, data, models
from fljax.cli import _attack, _attack_first_dense, _attack_looks, attack


def dataset(x, held=None):
    train = {"x": np.asarray(x, np.float32), "y": np.arange(len(x)) % 2}
    return data.Dataset(train, train if held is None else held, 2, "own")


@pytest.mark.slow(
    reason="compiles a deep network's gradient", ids=["resnet10", "resnet18", "resnet20"]
)
@pytest.mark.parametrize("name", models.NAMES)
def test_first_dense_reads_networks_alone_whose_first_layer_is_dense(name):
    def read():
        victim = models.create(name, example_shape=(8, 8, 1), num_classes=10, key=jax.random.key(0))
        return _attack_first_dense.layer(victim, (8, 8, 1), 10)

    # Of cnn, resnets and small_vit other layers have 64 rows, or 64 numbers.
    dense = {"softmax": "['logits']", "mlp": "['hidden']['0']"}
    if name in dense:
        assert jax.tree_util.keystr(read()) == dense[name]
    else:
        with pytest.raises(ValueError, match=r"reads an image flat|example_shape"):
            read()


def test_first_dense_refuses_a_model_before_any_round():
    options = attack.Options(attack="first_dense", model="small_vit", dataset="digits", targets=2)
    with pytest.raises(ValueError, match="Expected a model with first_dense whose first layer"):
        _attack.world(options, None)


def test_public_images_are_of_all_the_training_split_though_it_is_sorted():
    there = dataset(np.repeat(np.arange(100.0), 30).reshape(-1, 1, 1, 1))
    found = _attack_looks.public(there).reshape(-1)
    assert found.size == 1000 and set(found) == set(range(100))
    assert _attack_looks.public(there, 5000).size == 3000  # each once
    np.testing.assert_array_equal(
        np.sort(_attack_looks.public(there, 5000).reshape(-1)), there.train["x"].reshape(-1)
    )


@pytest.mark.parametrize(("low", "wide"), [(0.0, 255.0), (-0.9, 1.8)])
def test_decibels_are_of_the_range_of_the_data(low, wide):
    rng = np.random.default_rng(0)
    truth = rng.random((2, 3, 3, 1), np.float32)
    truth[0, 0, 0, 0], truth[1, 0, 0, 0] = 0.0, 1.0
    found = truth + np.float32(0.1) * rng.standard_normal(truth.shape, np.float32)
    plain, other = (
        _attack_looks.beside(dataset(moved(truth)))(moved(found), moved(truth))
        for moved in (lambda x: x, lambda x: np.float32(low) + np.float32(wide) * x)
    )
    # SSIM has a term for brightness, which a shift of all values changes.
    names = ["psnr", "registered_psnr", "cw_ssim"] + ["ssim"] * (low == 0)
    for name in names:
        assert getattr(other, name) == pytest.approx(getattr(plain, name), rel=1e-3), name
    error = float(np.square(found - truth).mean())
    assert _attack.decibels(error, 1.0) == pytest.approx(-10 * np.log10(error))
    assert _attack.decibels(wide**2 * error, wide) == pytest.approx(-10 * np.log10(error))
    assert _attack.decibels(0.0, wide) == np.inf


@pytest.mark.parametrize(
    ("x", "name", "text"),
    [
        (np.arange(16.0).reshape(1, 4, 4, 1), "inversion", "with 1 training images"),
        (np.full((4, 4, 4, 1), np.nan), "inversion", "of finite numbers"),
        (np.ones((4, 4, 4, 1)), "inversion", "not all one"),
        (np.arange(48.0).reshape(4, 4, 3, 1), "inversion_feature_prior", "sides of 4 pixels"),
    ],
)
def test_images_of_which_nothing_can_be_learnt_are_refused_before_any_round(
    x, name, text, monkeypatch
):
    monkeypatch.setattr(_attack, "images", lambda *_: dataset(x))
    options = attack.Options(attack=name, dataset="digits", targets=2)
    with pytest.raises(ValueError, match=f"Expected dataset to have .*{text}.*"):
        _attack.world(options, None)


@pytest.mark.parametrize("name", attacks.SEARCHES)
def test_one_search_alone_has_the_prior_of_features(name, monkeypatch):
    model = models.create("mlp", example_shape=(4, 4, 1), num_classes=2, key=jax.random.key(0))
    there = dataset(np.random.default_rng(0).normal(size=(20, 4, 4, 1)))
    here = types.SimpleNamespace(
        dataset=there,
        truth=there.test["x"][:2],
        many={"x": jnp.asarray(there.test["x"][:2]), "y": jnp.zeros(2, jnp.int32)},
        sent=model,
        searched=model.apply,
        beside=None,
    )
    given, learnt = {}, []

    def invert(*args, **kwargs):
        given.update(kwargs, key=args[4])
        return jnp.zeros((2, 4, 4, 1))

    def usual(dataset, key):
        learnt.append(key)
        return "of features"

    monkeypatch.setattr(_attack.reconstruction, "invert", invert)
    monkeypatch.setattr(_attack_looks, "usual", usual)
    moved = [jax.tree.map(lambda leaf: jnp.zeros((2, *leaf.shape)), model.params)]
    options = attack.Options(attack=name, scheme="dp_fedsgd", dataset="digits", targets=2)
    _attack.inverted(options, here, None, moved, jax.random.key(3), channel=False)
    featured = name == "inversion_feature_prior"
    assert given["penalty"] == ("of features" if featured else None)
    bits = lambda key: tuple(jax.random.key_data(key).ravel().tolist())
    if featured:  # a key of its own, none that the search splits off
        starts = jax.random.split(given["key"], 2)
        assert bits(learnt[0]) not in {bits(given["key"]), *map(bits, starts)}
    else:  # as it was
        assert bits(given["key"]) == bits(jax.random.key(3))
