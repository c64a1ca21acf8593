"""Runs that train small matrices beside frozen weights, and the folder of such a run."""

import dataclasses
import json
import math
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

import fljax
from fljax import cli, data, models
from fljax.models import decoder, tasks
from fljax.simulation import base_model, run, trained
from fljax.simulation import config as config_lib
from tests.models import test_weights

pytestmark = pytest.mark.usefixtures("compiled_once")
SYMBOLS, LENGTH = 13, 6


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A file of sequences that belong to 12 subjects, and a folder of published weights."""
    where, rng = tmp_path_factory.mktemp("texts"), np.random.default_rng(0)
    x = rng.integers(0, SYMBOLS, (96, LENGTH)).astype(np.int32)
    whose = np.repeat(np.arange(12), 8).astype(np.int32)
    np.savez(where / "texts.npz", x=x, who=whose)
    (where / "weights").mkdir()
    arrays = {name: leaf / 5 for name, leaf in test_weights.published("qwen3").items()}
    test_weights.written(where / "weights", "qwen3", arrays)
    return where


def settings(texts, **changes):
    found = {
        "data": f"npz:{texts / 'texts.npz'}",
        "label_column": None,
        "subject_column": "who",
        "model": f"weights:{texts / 'weights'}",
        "lora": 2,
        "num_clients": 3,
        "num_rounds": 3,
        "checkpoint_every": 1,
        "noise_multiplier": 2.0,
        "target_epsilon": None,
        "seed": 0,
    }
    return found | changes


@pytest.fixture(scope="module")
def finished(texts, tmp_path_factory, compiled_once):
    run_dir = tmp_path_factory.mktemp("lora") / "run"
    return fljax.simulate("higradavg", run_dir=run_dir, **settings(texts))


def leaves(tree):
    return {
        jax.tree_util.keystr(path): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


@pytest.mark.slow(reason="whole runs")
def test_only_the_small_matrices_are_trained_and_the_claim_says_what_is_frozen(finished, texts):
    names = {name.rsplit("'", 2)[1] for name in leaves(finished.params)}
    assert names == {"a", "b"}
    assert any(
        np.abs(leaf).max() > 0
        for name, leaf in leaves(finished.params).items()
        if name.endswith("['b']")
    )
    assert str(texts / "weights") in finished.statement and "public" in finished.statement
    claim = json.loads((finished.run_dir / "privacy.json").read_text())
    assert claim["privacy_unit"] == "subject" and math.isfinite(claim["epsilon"])
    assert not (finished.run_dir / "base.safetensors").exists()  # the weights have a folder


@pytest.mark.slow(reason="whole runs")
def test_the_model_of_the_folder_tells_what_the_run_measured(finished, texts):
    found = trained.load(finished.run_dir)
    apply = trained.apply_of(found)
    x = np.load(texts / "texts.npz")["x"]
    assert apply(found.params, jnp.asarray(x[0, :-1])).shape == (LENGTH - 1, SYMBOLS)
    held_out = data.load(
        f"npz:{texts / 'texts.npz'}", data.tables.Columns(None, None, "who", "tokens")
    )
    again = tasks.measure(apply, found.params, held_out.test, task="tokens")
    assert again["perplexity"] == pytest.approx(finished.metrics["perplexity"], rel=1e-5)


class Stops:
    """Ends a run, as a kill would, after so many rounds."""

    def __init__(self, rounds):
        self.rounds = rounds

    def start(self, plan, rounds_done):
        pass

    def round(self, record):
        if record["round"] == self.rounds:
            raise KeyboardInterrupt

    def stop(self):
        pass


def interrupted(texts, run_dir, **changes):
    with pytest.raises(KeyboardInterrupt):
        fljax.simulate(
            "higradavg", run_dir=run_dir, observers=[Stops(2)], **settings(texts, **changes)
        )


@pytest.mark.slow(reason="whole runs")
def test_a_run_that_was_cut_off_goes_on_to_the_same_bits_and_is_verified(
    finished, texts, tmp_path, capsys
):
    interrupted(texts, tmp_path / "run")
    again = fljax.simulate("higradavg", run_dir=tmp_path / "run", **settings(texts))
    one, other = leaves(finished.params), leaves(again.params)
    assert all(one[name].tobytes() == other[name].tobytes() for name in one)
    assert cli.main(["verify", str(tmp_path / "run"), "--data"]) == 0, capsys.readouterr().out


@pytest.mark.slow(reason="whole runs")
def test_other_weights_in_the_folder_are_refused_by_a_run_that_goes_on_and_by_its_model(
    texts, tmp_path
):
    copied = tmp_path / "texts"
    shutil.copytree(texts, copied)
    interrupted(copied, tmp_path / "run")
    path = copied / "weights" / "model.safetensors"
    arrays = dict(safetensors.numpy.load_file(path))
    arrays["model.norm.weight"] = arrays["model.norm.weight"] + 1
    safetensors.numpy.save_file(arrays, path)
    with pytest.raises(ValueError, match="go on as it began, got another frozen weights"):
        fljax.simulate("higradavg", run_dir=tmp_path / "run", **settings(copied))
    with pytest.raises(ValueError, match=r"frozen weights of .* that the run began with"):
        trained.apply_of(trained.load(tmp_path / "run"))


@pytest.mark.release(reason="ten seconds")
@pytest.mark.slow(reason="whole runs")
def test_all_of_a_published_decoder_is_trained_without_lora(texts, tmp_path):
    whole = fljax.simulate("higradavg", run_dir=tmp_path / "run", **settings(texts, lora=None))
    assert "embedding" in whole.params and "taken to be public" in whole.statement
    found = trained.load(tmp_path / "run")
    assert trained.apply_of(found)(found.params, jnp.zeros(LENGTH, jnp.int32)).shape == (6, SYMBOLS)


SMALL = {"model": "token_lstm", "embedding": 4, "cells": (4,), "hidden": (5,), "lora": 2}


def on_roles(**changes):
    found = {"data": "roles", "num_clients": 2, "num_rounds": 2, "checkpoint_every": 1}
    found |= {"noise_multiplier": 2.0, "target_epsilon": None, "seed": 0, "baseline": False}
    return found | SMALL | changes


@pytest.mark.release(reason="a quarter of a minute")
@pytest.mark.slow(reason="whole runs")
def test_what_is_frozen_has_read_public_text_and_is_kept_in_the_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(base_model, "STEPS", 60)
    ended = fljax.simulate("higradavg", run_dir=tmp_path / "run", **on_roles())
    assert "1,920 public texts of roles" in ended.statement
    kept = base_model.read(tmp_path / "run")
    plain = models.create(
        "token_lstm", example_shape=(20,), num_classes=80, key=jax.random.key(0),
        embedding=4, cells=(4,), hidden=(5,),
    )  # fmt: skip
    test = data.targets.settled(data.load("roles"), "tokens").test
    of = lambda params: tasks.measure(plain.apply, params, test, task="tokens")["perplexity"]
    assert of(kept) < 0.8 * of(plain.params)
    # A run that goes on takes it from there.
    monkeypatch.setattr(base_model, "_trained", lambda *_: pytest.fail("trained anew"))
    ended = fljax.simulate("higradavg", run_dir=tmp_path / "run", more_rounds=1, **on_roles())
    assert ended.rounds == 3
    path = tmp_path / "run" / "base.safetensors"
    path.write_bytes(path.read_bytes()[:-4] + bytes(4))
    with pytest.raises(ValueError, match=r"base\.safetensors to be what the run began with"):
        trained.load(tmp_path / "run")


@pytest.mark.release(reason="ten seconds")
@pytest.mark.slow(reason="whole runs")
def test_the_model_of_another_run_may_be_what_is_frozen(tmp_path):
    plain = on_roles(lora=None, noise_multiplier=2.0, target_epsilon=None)
    fljax.simulate("higradavg", run_dir=tmp_path / "first", **plain)
    second = on_roles(init=str(tmp_path / "first"))
    ended = fljax.simulate("higradavg", run_dir=tmp_path / "second", **second)
    assert "with that of another run" in ended.statement
    first = trained.load(tmp_path / "first").params
    kept = leaves(base_model.read(tmp_path / "second"))
    assert all(kept[name].tobytes() == leaf.tobytes() for name, leaf in leaves(first).items())


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"lora": 0}, "lora to be an integer >= 1, got lora=0"),
        ({"lora": 9}, r"rank <= 4 for the layer 'head.hidden.0' of 4 inputs and 5 outputs, got"),
        ({"model": "tests.models.test_others:Trained"}, "lora=none for a model of one's own"),
        ({"model": "weights:/nowhere", "embedding": None, "cells": (), "hidden": ()},
         "model to name the folder of a published decoder, got 'weights:/nowhere'"),
    ],
)  # fmt: skip
def test_what_cannot_be_adapted_is_refused(model, message):
    given = {"model": SMALL | model, "data": {"dataset": "roles", "task": "tokens"}}
    with pytest.raises(ValueError, match=message):
        run.prepare(config_lib.from_sections(given | {"scheme": {"scheme": "higradavg"}}))


def test_lora_beside_weights_that_are_drawn_is_refused():
    given = {"model": {"model": "mlp", "lora": 2}, "data": {"dataset": "digits"}}
    with pytest.raises(ValueError, match="beside drawn weights it would learn next to nothing"):
        run.prepare(config_lib.from_sections(given))


def test_data_of_more_symbols_than_a_published_decoder_are_refused(texts):
    with pytest.raises(ValueError, match=r"at most 13 symbols, as the model in .* of 80"):
        fljax.simulate("higradavg", **settings(texts, data="roles", subject_column=None))


def test_a_decoder_starts_as_text_does():
    given = {"model": {"model": "decoder:tiny", "lora": 8}, "data": {"dataset": "roles"}}
    found = config_lib.from_sections({**given, "scheme": {"scheme": "higradavg"}})
    assert (found.data.task, found.model.loss, found.run.baseline) == (
        "tokens",
        "next_token",
        False,
    )
    assert found.data.num_clients == 4 and found.scheme_config.num_local_steps == 1
    assert decoder.SHAPES["tiny"].num_params > 0


@pytest.fixture(scope="module")
def small_preset():
    """`decoder:tiny` of one narrow layer, which reads public text once for all runs."""
    with pytest.MonkeyPatch.context() as patch:
        smaller = dataclasses.replace(
            decoder.SHAPES["tiny"], width=64, hidden=128, layers=1, head_width=16
        )
        patch.setitem(decoder.SHAPES, "tiny", smaller)
        patch.setattr(base_model, "_RATE", 1e-2)
        trained_once, found = base_model._trained, []

        def once(*args):
            if not found:
                found.append(trained_once(*args))
            return found[0]

        patch.setattr(base_model, "_trained", once)
        yield smaller


@pytest.mark.release(reason="half a minute and more")
@pytest.mark.slow(reason="a small decoder reads public text first")
@pytest.mark.parametrize(
    "flags",
    ["--scheme higradavg --num-rounds 10", "--scheme dp_fedavg --num-rounds 1 --num-clients 100"],
)
def test_a_decoder_tells_roles_far_better_than_their_frequencies(
    flags, small_preset, tmp_path, capsys
):
    args = ["simulate", "--model", "decoder:tiny", "--lora", "8", "--dataset", "roles"]
    assert cli.main([*args, *flags.split(), "--run-dir", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    y = data.targets.settled(data.load("roles"), "tokens").test["y"].ravel()
    shares = np.bincount(y) / y.size
    unigram = float(np.exp(-(shares[shares > 0] * np.log(shares[shares > 0])).sum()))
    assert last["test_perplexity"] < 0.5 * unigram
    assert f"{unigram:.2f}" in said and "epsilon" in said and "LoRA of rank 8" in said
