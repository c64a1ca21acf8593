"""Attacks that belong to text: canaries, reference models, symbols read off an update."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from fljax import cli
from fljax.attacks import analytic, membership, metrics, shadow
from fljax.models import classifiers, losses
from tests.models import test_weights


def test_the_confidence_of_a_text_is_that_of_its_mean_symbol(key):
    logits = jax.random.normal(key, (2, 3, 5, 7))  # models, texts
    y = jnp.asarray([[0, 1, 2, 3, 4], [6, 6, 6, -1, -1], [5, 0, 0, 0, -1]])
    apply = lambda params, x: jnp.einsum("n,ntv->tv", x, params)
    found = shadow.confidences(apply, logits, jnp.eye(3), y)
    nats = jax.vmap(lambda of: jax.vmap(losses.of_output("next_token"))(of, y))(logits)
    np.testing.assert_allclose(special.expit(found), np.exp(-nats), rtol=1e-5)


def test_a_reference_takes_away_how_hard_a_text_is():
    rng = np.random.default_rng(0)
    hard, included = rng.normal(0, 3, 400), rng.random((8, 400)) < 0.5
    included[0, 200:], included[0, :200] = False, True
    included[:2], included[-1] = included[:1], ~included[0]
    models = hard + 0.5 * included + 0.1 * rng.normal(size=included.shape)
    plain = membership.loss_threshold(models[0])
    taken = membership.reference(models[0], models[1:], included[1:])
    areas = [metrics.auc(s[included[0]], s[~included[0]]) for s in (plain, taken)]
    assert areas[0] < 0.65 and areas[1] > 0.8
    with pytest.raises(ValueError, match="out of a reference model"):
        membership.reference(models[0], models[:1], np.ones((1, 400), bool))


def test_exposure_is_the_rank_among_like_texts_in_bits():
    found = membership.exposure([5.0, -5.0, 2.0], np.arange(-3.0, 4.0))
    # Seven others: likelier than all, than none, and as likely as the second.
    np.testing.assert_allclose(found, [3, 0, 2])
    rng = np.random.default_rng(0)
    usual = membership.exposure(rng.normal(size=4000), rng.normal(size=4000))
    assert abs(usual.mean() - 1 / np.log(2)) < 5 * usual.std() / 4000**0.5
    with pytest.raises(ValueError, match=r"canaries \[N\]"):
        membership.exposure(np.zeros((2, 2)), np.zeros(3))


def test_inputs_of_a_layer_lie_in_the_span_of_its_gradient():
    rng = np.random.default_rng(0)
    rows, there = rng.normal(size=(30, 12)), np.array([3, 7, 7, 20])
    gradient = rows[there].T @ rng.normal(size=(4, 9))
    far = analytic.out_of_span(gradient, rows, 4)
    assert far[there].max() < 1e-12 and np.delete(far, there).min() > 0.1
    # As many directions as the layer is wide hold everything.
    noisy = gradient + rng.normal(size=gradient.shape)
    assert analytic.out_of_span(noisy, rows, 12).max() < 0.8


@pytest.mark.parametrize(
    ("gradient", "inputs", "message"),
    [
        (np.zeros((3, 2)), np.zeros((4, 2)), "inputs \\[V, in\\]"),
        (np.full((3, 2), np.nan), np.zeros((4, 3)), "kernel_gradient of finite"),
    ],
)
def test_a_span_of_what_does_not_fit_is_refused(gradient, inputs, message):
    with pytest.raises(ValueError, match=message):
        analytic.out_of_span(gradient, inputs, 2)


def rows(tmp_path, *flags):
    code = cli.main(["attack", *flags, "--run-dir", str(tmp_path / "run")])
    return code, json.loads((tmp_path / "run" / "attack.json").read_text())["rows"]


@pytest.fixture
def small(tmp_path):
    """Texts of 6 symbols, and a decoder of 13 symbols that is 8 wide."""
    x = np.random.default_rng(0).integers(0, 13, (60, 6)).astype(np.int32)
    np.savez(tmp_path / "texts.npz", x=x)
    (tmp_path / "weights").mkdir()
    arrays = {name: leaf / 2 for name, leaf in test_weights.published("qwen3").items()}
    test_weights.written(tmp_path / "weights", "qwen3", arrays)
    return f"npz:{tmp_path / 'texts.npz'}", f"weights:{tmp_path / 'weights'}"


@pytest.mark.release(reason="one more kind of update", ids=["lora"])
@pytest.mark.slow(reason="rounds of each text at each budget")
@pytest.mark.parametrize(
    ("scheme", "lora"),
    [("dp_fedavg", []), ("higradavg", ["--lora", "7"])],
    ids=["whole", "lora"],
)
def test_symbols_are_read_off_an_update_without_noise_and_not_within_a_small_epsilon(
    scheme, lora, small, tmp_path
):
    data, model = small
    flags = ["--attack", "symbols", "--scheme", scheme, "--dataset", data, "--model", model]
    code, (plain, low, high) = rows(
        tmp_path, *flags, *lora, "--targets", "6", "--repeats", "8", "--budgets", "0.5", "1e9"
    )
    assert code == 0 and plain["budget"] == "inf" and plain["noise"] == 0
    assert plain["picked"] == high["picked"] == 1.0 and plain["auc"] > 0.95
    # 48 updates: by chance 1 / 6 are told. The area of each has a standard error of 0.17 at most.
    assert low["picked"] < 0.5 and abs(low["auc"] - 0.5) < 5 * 0.17 / 48**0.5
    assert low["holds"] and 1 / 6 < low["bound"] < 0.4 and high["holds"] is None


@pytest.mark.release(reason="half a minute and more")
@pytest.mark.slow(reason="whole training through a scheme")
def test_canaries_of_subjects_are_exposed_without_noise_and_hidden_by_it(tmp_path):
    flags = ["--attack", "exposure", "--scheme", "higradavg", "--num-rounds", "50"]
    code, (plain, low) = rows(tmp_path, *flags, "--pool", "40", "--budgets", "1")
    assert code == 0 and plain["auc"] > 0.9 and plain["member_accuracy"] > plain["other_accuracy"]
    # Twenty of each: a standard error of 0.09 where nothing is told.
    assert abs(low["auc"] - 0.5) < 0.36 and low["holds"] and low["bound"] < 0.7


@pytest.mark.release(reason="half a minute and more")
@pytest.mark.slow(reason="whole training through a scheme, six times")
@pytest.mark.parametrize("attack", ["reference", "loss_threshold"])
def test_members_among_texts_are_told_without_noise_and_hidden_by_it(attack, tmp_path, monkeypatch):
    small = functools.partial(classifiers.TokenLSTM, cells=(32,), hidden=(16,))
    monkeypatch.setitem(classifiers._CLASSES, "token_lstm", small)
    flags = ["--attack", attack, "--dataset", "roles", "--model", "token_lstm", "--shadows", "4"]
    flags += ["--scheme", "higradavg", "--num-rounds", "60", "--pool", "24", "--budgets", "0.5"]
    code, (plain, low) = rows(tmp_path, *flags)
    assert code == 0 and plain["auc"] > 0.75
    # Twelve of each: a standard error of 0.12.
    assert abs(low["auc"] - 0.5) < 0.48 and low["auc"] < plain["auc"] and low["bound"] < 0.7


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["exposure", "--model", "mlp"], "a model of text for canaries"),
        (["label_only", "--dataset", "roles", "--model", "token_lstm"], "classes for label_only"),
        (["symbols", "--lora", "2", "--model", "token_lstm"], "token_lstm without lora"),
        (["symbols", "--dataset", "digits"], "x of digits to hold symbols"),
        (["decepticons", "--model", "token_lstm"], "model='decoder:tiny' without lora"),
        (["decepticons", "--lora", "2", "--model", "decoder:tiny"], "Expected model and an attack"),
        (["lira", "--lora", "2"], "Expected model and an attack on membership or symbols"),
    ],
)  # fmt: skip
def test_what_is_no_attack_on_text_is_refused(flags, message, tmp_path, capsys, monkeypatch):
    small = functools.partial(classifiers.TokenLSTM, cells=(4,), hidden=())
    monkeypatch.setitem(classifiers._CLASSES, "token_lstm", small)
    assert cli.main(["attack", "--attack", *flags, "--run-dir", str(tmp_path / "run")]) == 2
    assert not (tmp_path / "run").exists()
    assert message in capsys.readouterr().err
