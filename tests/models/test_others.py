"""Models by path, of any package: each gives what its own package computes, or is refused."""

import functools
import importlib.util
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

import fljax
from fljax import cli, models
from fljax.models import _keras

SHAPE, CLASSES = (8, 8, 1), 10


class WantsBatch(nnx.Module):
    def __init__(self, num_classes, *, rngs, width=4):
        self.conv = nnx.Conv(1, width, (3, 3), rngs=rngs)
        self.out = nnx.Linear(width * 64, num_classes, rngs=rngs)

    def __call__(self, x):
        return self.out(nnx.relu(self.conv(x)).reshape(x.shape[0], -1))


class OfOne(nnx.Module):
    def __init__(self, shape, classes, *, rngs):
        self.out = nnx.Linear(shape[0] * shape[1], classes, rngs=rngs)

    def __call__(self, x):
        return self.out(x.reshape(-1))


class Linen(linen.Module):
    num_classes: int

    @linen.compact
    def __call__(self, x):
        x = linen.relu(linen.Conv(4, (3, 3))(x))
        return linen.Dense(self.num_classes)(x.reshape(x.shape[0], -1))


class Mixing(nnx.Module):
    def __init__(self, num_classes, *, rngs):
        self.block = nnx.Sequential(nnx.Conv(1, 6, (3, 3), rngs=rngs))
        self.norm = nnx.BatchNorm(6, rngs=rngs)
        self.out = nnx.Linear(6 * 64, num_classes, rngs=rngs)

    def __call__(self, x):
        return self.out(self.norm(self.block(x)).reshape(x.shape[0], -1))


def made(name, **options):
    key = jax.random.key(0)
    path = f"{__name__}:{name}"
    return models.create(path, example_shape=SHAPE, num_classes=CLASSES, key=key, **options)


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__, sys.modules[__name__]))


@pytest.mark.parametrize("name", ["WantsBatch", "OfOne", "Linen"])
def test_a_class_by_path_takes_one_example_whatever_it_wants(name):
    model = made(name)
    x = jax.random.normal(jax.random.key(1), (3, *SHAPE))
    each = jax.jit(jax.vmap(model.apply, (None, 0)))(model.params, x)
    assert each.shape == (3, CLASSES)
    if name == "WantsBatch":
        whole = WantsBatch(CLASSES, rngs=nnx.Rngs(jax.random.key(0)))(x)
    elif name == "OfOne":
        module = OfOne(SHAPE, CLASSES, rngs=nnx.Rngs(jax.random.key(0)))
        whole = jnp.stack([module(one) for one in x])
    else:
        module = Linen(CLASSES)
        whole = module.apply(module.init(jax.random.key(0), x[:1]), x)
    np.testing.assert_allclose(each, whole, atol=1e-6)


def test_sizes_go_to_who_names_them():
    assert made("WantsBatch", width=7).params["conv"]["kernel"].shape[-1] == 7
    with pytest.raises(ValueError, match="to take width, it takes"):
        made("OfOne", width=7)


def test_batch_statistics_are_refused_and_group_norm_is_offered():
    with pytest.raises(ValueError, match=r"norm\..*fljax\.models\.replace_batch_norm"):
        made("Mixing")
    module = models.replace_batch_norm(Mixing(CLASSES, rngs=nnx.Rngs(0)))
    assert isinstance(module.norm, nnx.GroupNorm) and module.norm.num_groups == 2  # gcd(6, 32)
    model = models.functional(module)
    x = jax.random.normal(jax.random.key(1), (4, *SHAPE))
    each = jax.vmap(model.apply, (None, 0))(model.params, x)
    # What one example gives does not depend on the others: the reason for the replacement.
    np.testing.assert_allclose(each, module(x), atol=1e-5)
    with pytest.raises(ValueError, match="a flax nnx module that holds others"):
        models.replace_batch_norm(nnx.BatchNorm(3, rngs=nnx.Rngs(0)))


def test_a_model_of_another_number_of_outputs_is_refused():
    with pytest.raises(ValueError, match=r"a model that gives \[7\] logits"):
        models.create(
            f"{__name__}:Linen10", example_shape=SHAPE, num_classes=7, key=jax.random.key(0)
        )


Linen10 = Linen(10)


class Sizes(nnx.Module):
    """Made of two numbers, as layers are."""

    def __init__(self, din, dout, *, rngs):
        self.out = nnx.Linear(din, dout, rngs=rngs)

    def __call__(self, x):
        return self.out(x)


class Trained(linen.Module):
    """Wants to be told whether it trains."""

    @linen.compact
    def __call__(self, x, train):
        return linen.Dense(3)(x)


def test_a_class_of_two_numbers_gets_the_features_and_the_classes():
    made = functools.partial(models.create, num_classes=3, key=jax.random.key(0))
    assert made(f"{__name__}:Sizes", example_shape=(6,)).params["out"]["kernel"].shape == (6, 3)
    with pytest.raises(ValueError, match=r"Sizes to be made with rngs after .*got TypeError"):
        made(f"{__name__}:Sizes", example_shape=SHAPE)


def test_what_a_module_raises_is_said_once():
    with pytest.raises(ValueError, match=r"got Trained: TypeError: .*'train'") as refused:
        models.create(
            f"{__name__}:Trained", example_shape=(6,), num_classes=3, key=jax.random.key(0)
        )
    assert str(refused.value).count("TypeError") == 1


def test_a_softmax_before_a_loss_that_has_one_is_refused():
    def odds(params, x):
        return jax.nn.softmax(x @ params["w"])

    rows = {"x": np.ones((12, 2), np.float32), "y": np.arange(12) % 3}
    with pytest.raises(ValueError, match=r"logits, got outputs that are probabilities"):
        fljax.simulate(
            "dp_fedavg",
            data=rows,
            test_data=rows,
            num_classes=3,
            model=({"w": jnp.zeros((2, 3))}, odds),
            loss="cross_entropy",
            num_clients=4,
            partition="iid",
        )


EQUINOX = importlib.util.find_spec("equinox") is not None
HAIKU = importlib.util.find_spec("haiku") is not None


@pytest.mark.skipif(not EQUINOX, reason="needs equinox")
def test_a_class_of_equinox_gives_what_equinox_computes(monkeypatch):
    import equinox as eqx

    def net(example_shape, num_classes, key):
        layers = [eqx.nn.Lambda(jnp.ravel), eqx.nn.Linear(64, num_classes, key=key)]
        return eqx.nn.Sequential(layers)

    monkeypatch.setattr(sys.modules[__name__], "net", net, raising=False)
    model = made("net")
    x = jax.random.normal(jax.random.key(1), SHAPE)
    whole = net(SHAPE, CLASSES, jax.random.key(0))
    np.testing.assert_array_equal(model.apply(model.params, x), whole(x))
    assert all(isinstance(leaf, jax.Array) for leaf in model.params.values())
    mixing = eqx.nn.Sequential([eqx.nn.BatchNorm(1, "batch", mode="batch"), whole])
    monkeypatch.setattr(sys.modules[__name__], "net", lambda key: mixing)
    with pytest.raises(ValueError, match="without state, got a BatchNorm"):
        made("net")


@pytest.mark.skipif(not HAIKU, reason="needs dm-haiku")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_model_of_haiku_gives_what_haiku_computes(monkeypatch):
    import haiku as hk

    def forward(x):
        return hk.Linear(CLASSES)(x.reshape(x.shape[0], -1))

    x = jax.random.normal(jax.random.key(1), (3, *SHAPE))
    for net in (hk.transform(forward), hk.without_apply_rng(hk.transform(forward))):
        monkeypatch.setattr(sys.modules[__name__], "net", net, raising=False)
        model = made("net")
        whole = hk.without_apply_rng(hk.transform(forward)).apply(model.params, x)
        each = jax.vmap(model.apply, (None, 0))(model.params, x)
        np.testing.assert_allclose(each, whole, atol=1e-6)
    monkeypatch.setattr(sys.modules[__name__], "net", hk.transform_with_state(forward))
    with pytest.raises(ValueError, match="a haiku model without state"):
        made("net")


@pytest.mark.slow(reason="a whole run of the command")
def test_the_command_finds_a_model_in_the_working_folder_and_sizes_by_flags(
    tmp_path, monkeypatch, capsys, compiled_once
):
    (tmp_path / "my_nets_for_a_test.py").write_text(
        "from flax import nnx\n"
        "class Net(nnx.Module):\n"
        "    def __init__(self, num_classes, *, rngs, hidden=(3,)):\n"
        "        self.a = nnx.Linear(64, hidden[0], rngs=rngs)\n"
        "        self.b = nnx.Linear(hidden[0], num_classes, rngs=rngs)\n"
        "    def __call__(self, x):\n"
        "        return self.b(nnx.relu(self.a(x.reshape(x.shape[0], -1))))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    quick = "--num-clients 20 --num-rounds 1 --no-baseline --seed 0 --noise-multiplier 2"
    call = ["simulate", "--model", "my_nets_for_a_test:Net", "--hidden", "5", *quick.split()]
    assert cli.main([*call, "--run-dir", "run", "--quiet"]) == 0
    capsys.readouterr()
    assert cli.main(["export", "run", "--to", "npz"]) == 0
    assert np.load("run/model.npz")["a.kernel"].shape == (64, 5)
    again = ["--model", "my_nets_for_a_test:Net"]
    assert cli.main(["predict", "run", "digits", *again]) == 0  # made again, of the same sizes
    assert cli.main(["simulate", "--model", "softmax", "--hidden", "5"]) == 2
    assert "options of softmax" in capsys.readouterr().err


def test_a_model_of_symbols_may_give_logits_after_each():
    def tokens(example_shape, num_classes, *, key):
        table = jax.random.normal(key, (num_classes, num_classes))
        return models.Functional(table, lambda params, x: params[x])

    class Tokens(nnx.Module):
        def __init__(self, example_shape, num_classes, *, rngs):
            self.table = nnx.Embed(num_classes, num_classes, rngs=rngs)

        def __call__(self, x):
            return self.table(x)

    for maker in (tokens, Tokens):
        made = models.others.made(maker, (4,), 7, jax.random.key(0), {}, jnp.int32)
        assert made.apply(made.params, jnp.arange(4)).shape == (4, 7)


@pytest.fixture
def keras():
    """Keras on JAX; its own code promotes dtypes and ranks as numpy does."""
    _keras.choose_jax()
    found = pytest.importorskip("keras", reason="needs keras")
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield found


def of_keras(maker, shape=SHAPE, num_classes=CLASSES, key=0, dtype=jnp.float32):
    return models.others.made(maker, shape, num_classes, jax.random.key(key), {}, dtype)


@pytest.mark.slow(reason="imports Keras")
def test_a_model_of_keras_gives_what_keras_computes(keras):
    def net(example_shape, num_classes):
        layers = [keras.layers.Conv2D(4, 3, activation="relu"), keras.layers.Flatten()]
        return keras.Sequential([keras.Input(example_shape), *layers, keras.layers.Dense(CLASSES)])

    model, x = of_keras(net), jax.random.normal(jax.random.key(1), (3, *SHAPE))
    assert list(model.params) == ["0.kernel", "1.bias", "2.kernel", "3.bias"]
    again, other = of_keras(net), of_keras(net, key=1)  # drawn by the key alone
    np.testing.assert_array_equal(model.params["2.kernel"], again.params["2.kernel"])
    assert np.any(model.params["2.kernel"] != other.params["2.kernel"])

    whole = net(SHAPE, CLASSES)
    whole.set_weights(list(model.params.values()))
    each = jax.vmap(model.apply, (None, 0))(model.params, x)
    np.testing.assert_allclose(each, whole(x), atol=1e-5)
    given = of_keras(whole)  # a model that is built already
    np.testing.assert_array_equal(given.params["0.kernel"], model.params["0.kernel"])

    def loss(params, one):
        return jnp.sum(model.apply(params, one) ** 2)

    rows = jax.vmap(jax.grad(loss), (None, 0))(model.params, x)
    assert rows["0.kernel"].shape == (3, 3, 3, 1, 4)


def test_a_class_of_keras_that_builds_itself_when_called(keras):
    class Net(keras.Model):
        def __init__(self, num_classes):
            super().__init__()
            self.norm = keras.layers.GroupNormalization(1)
            self.out = keras.layers.Dense(num_classes)

        def call(self, x):
            return self.out(keras.ops.reshape(self.norm(x), (-1, 64)))

    model = of_keras(Net)
    assert model.apply(model.params, jnp.ones(SHAPE)).shape == (CLASSES,)


def test_what_mixes_examples_in_keras_is_refused_by_its_name(keras):
    def net(*layers, trainable=True):
        found = keras.Sequential(
            [keras.Input((4,)), *layers, keras.layers.Dense(CLASSES, name="last")]
        )
        for layer in layers:
            layer.trainable = trainable
        return found

    norm = keras.layers.BatchNormalization
    with pytest.raises(ValueError, match=r"moving_mean.*GroupNormalization"):
        of_keras(net(norm()), (4,))
    with pytest.raises(ValueError, match=r"seed_generator.*leave Dropout out"):
        of_keras(net(keras.layers.Dropout(0.5)), (4,))
    with pytest.raises(ValueError, match="with a regularizer"):
        of_keras(net(keras.layers.Dense(3, kernel_regularizer="l2")), (4,))
    frozen = of_keras(net(norm(), trainable=False), (4,))
    assert list(frozen.params) == ["0.kernel", "1.bias"]


def test_a_keras_on_another_backend_is_refused(keras, monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "torch")
    with pytest.raises(ValueError, match="set KERAS_BACKEND=jax before"):
        of_keras(keras.Sequential([keras.Input((4,)), keras.layers.Dense(CLASSES)]), (4,))
