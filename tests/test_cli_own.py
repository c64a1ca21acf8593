"""`--settings` of audits and attacks: the scheme of a run or of a TOML, with its own numbers, few
clients.
"""

import dataclasses
import functools
import json

import jax
import numpy as np
import pytest

from fljax import cli, models, schemes
from fljax.attacks import rounds
from fljax.cli import _attack_membership, _attack_noise, _attack_symbols, _own, attack
from fljax.models import weights

TOML = '[scheme]\nscheme = "gd_dp"\nl2_clip_norm = 2.0\nnum_parties = 300\n{}\n'


@pytest.fixture
def run(tmp_path):
    """A folder as a run leaves it that calibrated its noise."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text(TOML.format(""))
    (tmp_path / "run" / "privacy.json").write_text(json.dumps({"noise_multiplier": 1.25}))
    return tmp_path / "run"


def test_a_run_is_audited_with_its_own_numbers_and_few_clients(run):
    found = _own.read(run)
    few = rounds.config("gd_dp", noise_multiplier=1.0)
    assert found.scheme == "gd_dp" and found.config.noise_multiplier == 1.25
    assert found.config.l2_clip_norm == 2.0
    assert found.config.num_parties == few.num_parties == 4


def test_what_hangs_on_the_number_of_clients_goes_with_it(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        '[scheme]\nscheme = "higradavg"\nsilo_noise = [1.0, 1.0, 2.0]\nnum_parties = 3\n'
        "silos_per_subject = 3\nitem_sampling_prob = 0.25\nnoise_multiplier = 2.0\n"
    )
    config = _own.read(path).config
    assert (config.num_parties, config.silo_noise, config.holders) == (2, (), 2)
    assert (config.item_sampling_prob, config.noise_multiplier) == (0.25, 2.0)


@pytest.mark.parametrize("records", [1000, None])
def test_a_batch_is_the_part_of_a_clients_records_that_it_is_in_the_run(records, tmp_path):
    told = dataclasses.replace(
        rounds.config("sgd_dp", noise_multiplier=1.0), records_per_client=1000, num_parties=300
    )
    lines = [f'scheme = "sgd_dp"\nbatch_size = {told.batch_size}\nnoise_multiplier = 1.0']
    lines.append('records_per_client = "none"' if records is None else "records_per_client = 1000")
    path = tmp_path / "mine.toml"
    path.write_text("\n".join(["[scheme]", *lines, "num_parties = 300\n"]))
    if records is None:
        with pytest.raises(ValueError, match="Expected records_per_client"):
            _own.read(path)
        return
    found, event = _own.read(path).config, schemes.get("sgd_dp").event
    assert found.num_parties == 4 and event(found) == event(told)


@pytest.mark.slow(reason="attacks by the command, from training to report")
def test_the_command_takes_the_noise_of_the_run(run, tmp_path):
    flags = ["--settings", str(run), "--trials", "16", "--run-dir", str(tmp_path / "audit")]
    assert cli.main(["audit", *flags]) == 0
    (row,) = json.loads((tmp_path / "audit" / "audit.json").read_text())["rows"]
    assert row["scheme"] == "gd_dp" and row["noise_multiplier"] == 1.25
    assert row["verdict"] == "cannot tell" and row["holds"] is None
    assert f'settings = "{run}"' in (tmp_path / "audit" / "config.toml").read_text()


@pytest.mark.parametrize(
    ("text", "flags", "told"),
    [
        (TOML.format(""), [], "noise_multiplier or epsilon with settings"),
        (TOML.format("noise_multiplier = 1.0"), ["--all"], "neither all nor replay"),
        ('[scheme]\nscheme = "white_channel"\n', [], "promises an epsilon"),
        ("[scheme]\nscheem = 1\n", [], "scheem"),
        (None, [], "a run's folder or a TOML"),
    ],
)
def test_settings_that_cannot_be_audited_say_so(text, flags, told, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.toml"
    if text is not None:
        path.write_text(text)
    assert cli.main(["audit", "--settings", str(path), *flags]) == 2
    assert told in capsys.readouterr().err and not list(tmp_path.glob("runs/*"))


OWN = """
[scheme]
scheme = "dp_fedsgd"
noise_multiplier = 4.0
l2_clip_norm = 0.7
sampling_prob = 0.5
[data]
dataset = "breast_cancer"
[model]
model = "mlp"
hidden = [5]
"""


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(OWN)
    return path


def test_an_attack_is_on_the_scheme_the_data_and_the_model_of_the_settings(mine):
    asked, own = attack.Options(attack="lira", settings=mine), _own.read(mine)
    found = attack._settled(asked, own)
    assert (found.scheme, found.dataset, found.model) == ("dp_fedsgd", "breast_cancer", "mlp")
    assert own.model.options == {"hidden": (5,)} and own.config.l2_clip_norm == 0.7
    plain = attack._settled(attack.Options(attack="lira"), None)
    assert (plain.scheme, plain.dataset, plain.model) == ("higradavg", "digits", "mlp")
    other = attack.Options(attack="lira", settings=mine, dataset="digits", model="softmax")
    assert attack._settled(other, own).dataset == "digits"


OF_TEXT = """
[scheme]
scheme = "higradavg"
noise_multiplier = 4.0
[data]
dataset = "roles"
[model]
model = "token_lstm"
embedding = 4
cells = [4]
hidden = [5]
"""


@pytest.mark.parametrize("name", ["loss_threshold", "symbols"])
def test_an_attack_is_on_the_sizes_and_beside_the_frozen_weights_of_the_run(
    name, tmp_path, monkeypatch
):
    (tmp_path / "config.toml").write_text(OF_TEXT + "lora = 2\n" * (name != "symbols"))
    sizes = {"embedding": 4, "cells": (4,), "hidden": (5,)}
    made = functools.partial(
        models.create, "token_lstm", example_shape=(20,), num_classes=80, **sizes
    )
    base = made(key=jax.random.key(7)).params
    if name != "symbols":  # which cannot read this model's update with LoRA
        named = jax.tree_util.tree_leaves_with_path(base)
        path = lambda place: jax.tree_util.keystr(place, simple=True, separator=".")
        arrays = {path(place): np.asarray(leaf) for place, leaf in named}
        (tmp_path / "base.safetensors").write_bytes(weights.to_bytes(arrays))
    given = []

    def create(*args, **how):
        given.append(how)
        raise KeyboardInterrupt  # a model is all that is asked for

    own = _own.read(tmp_path)
    options = attack._settled(attack.Options(attack=name, settings=tmp_path, num_rounds=1), own)
    monkeypatch.setattr(models, "create", create)
    kind = _attack_symbols if name == "symbols" else _attack_membership
    with pytest.raises(KeyboardInterrupt):
        kind.run(options, own, print)
    (how,) = given
    assert {size: how[size] for size in sizes} == sizes
    if name == "symbols":
        return
    assert how["lora"] == 2
    kept = made(key=jax.random.key(1), base=how["base"]).params
    jax.tree.map(np.testing.assert_array_equal, kept, base)


def test_without_budgets_the_budget_is_what_the_noise_of_the_settings_spends(mine):
    scheme, own = schemes.get("dp_fedsgd"), _own.read(mine)
    over = {"num_rounds": 3, "delta": 1e-5}
    ((epsilon, noise, event),) = _attack_noise.noises(scheme, own.config, None, **over)
    assert noise == 4.0 and event == scheme.event(own.config).repeat(3)
    ((_, calibrated, _),) = _attack_noise.noises(scheme, own.config, (epsilon,), **over)
    assert calibrated == pytest.approx(noise, rel=1e-3)


@pytest.mark.slow(reason="attacks by the command, from training to report")
@pytest.mark.parametrize("name", ["one_unit", "loss_threshold", "inversion"])
def test_the_command_attacks_the_noise_of_the_settings(name, mine, tmp_path):
    if name == "inversion":  # of images
        mine.write_text(OWN.replace("breast_cancer", "digits"))
    flags = f"--attack {name} --trials 64 --num-rounds 2 --targets 2 --repeats 1 --iterations 5"
    told = ["--settings", str(mine), "--run-dir", str(tmp_path / "attack")]
    assert cli.main(["attack", *flags.split(), *told]) == 0
    plain, own = json.loads((tmp_path / "attack" / "attack.json").read_text())["rows"]
    assert plain["budget"] == "inf" and own["noise"] == 4.0 and 0.1 < own["budget"] < 2.0
    if name == "one_unit":  # told by every run that draws it, and with noise as certified at most
        assert plain["rates"][0]["tpr"] > 0.4
        assert own["rates"][0]["low"] <= own["largest_tpr"] < 0.5
    assert 'scheme = "dp_fedsgd"' in (tmp_path / "attack" / "config.toml").read_text()


@pytest.mark.parametrize(
    ("text", "flags", "told"),
    [
        (TOML.format(""), [], "budgets with settings"),
        (OWN, ["--attack", "one_unit", "--dataset", "digits"], "no dataset with a game"),
        (OWN, ["--model", "mlp"], "Expected a dataset of images"),
        (OWN, ["--attack", "one_unit", "--model", "mlp"], "no model"),
        (OWN, ["--attack", "lira", "--learning-rate", "2"], "no learning_rate with settings"),
        (OWN + "lora = 2\n", ["--attack", "lira"], "what LoRA is trained beside"),
        (OWN.replace("dp_fedsgd", "dp_fedavg"), ["--attack", "lira"], "examples or subjects"),
        ('[scheme]\nscheme = "white_channel"\n', [], "promises an epsilon"),
    ],
)
def test_settings_that_cannot_be_attacked_say_so(text, flags, told, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(text)
    assert cli.main(["attack", "--settings", "mine.toml", *flags]) == 2
    assert told in capsys.readouterr().err and not list(tmp_path.glob("runs/*"))
