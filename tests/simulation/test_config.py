"""Configs: one name for each number, one line for each mistake."""

import dataclasses

import pytest

from fljax import schemes
from fljax.cli import simulate
from fljax.simulation import config as config_lib
from fljax.simulation.config import Config, DataConfig, PrivacyConfig, RunConfig


@pytest.mark.parametrize("scheme", schemes.NAMES)
def test_toml_gives_back_an_equal_config(scheme):
    config = Config(
        scheme=scheme,
        scheme_config=schemes.get(scheme).Config(noise_multiplier=0.7),
        data=DataConfig(num_clients=17, partition="dirichlet", dirichlet_alpha=0.3),
        privacy=PrivacyConfig(target_epsilon=None, target_delta=1e-4),
        run=RunConfig(seed=2**32 - 1, baseline=False),
    )
    again = config_lib.from_sections(config_lib.from_toml(config_lib.to_toml(config)))
    assert again == config and config_lib.digest(again) == config_lib.digest(config)


def test_every_number_changes_the_digest():
    config = Config()
    other = dataclasses.replace(config, run=RunConfig(seed=1))
    assert config_lib.digest(config) != config_lib.digest(other)


def test_the_seed_is_random_unless_one_is_given():
    assert (
        Config().run.seed
        == simulate.parse([])[0].run.seed
        == simulate.parse(["--seed", "random"])[0].run.seed
    )
    assert (
        config_lib.from_sections({"run": {"seed": "random"}})
        == Config()
        != Config(run=RunConfig(seed=0))
    )
    assert 'seed = "random"' in config_lib.to_toml(Config())


def test_integers_serve_as_floats_and_none_is_a_word():
    config = config_lib.from_sections(
        {"privacy": {"target_epsilon": 3}, "scheme": {"noise_multiplier": "none"}}
    )
    assert (
        isinstance(config.privacy.target_epsilon, float)
        and config.scheme_config.noise_multiplier is None
    )


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ("[run]\nrounds = 3", ["'rounds'", "[run]", "num_rounds"]),
        ("[scheme]\nclip = 3", ["'clip'", "[scheme]", "l2_clip_norm"]),
        ("[training]\nrounds = 3", ["'training'", "scheme", "run"]),
        ("seed = 3", ["'seed'", "run"]),
        ("run = 3", ["run=3", "[run]"]),
        ("[run]\nseed = true", ["seed=True", "int"]),
        ("[run]\nnum_rounds = 2.5", ["num_rounds=2.5", "int"]),
        ("[run]\nseed = 'Random'", ["seed='Random'", "random", "2**32"]),
        ("[run]\nseed = -1", ["seed=-1", ">= 0"]),
        ("[run]\nseed = 4294967296", ["seed=4294967296", "2**32"]),
        ("[data]\ndataset = 7", ["dataset=7", "str"]),
        ("[data]\nnum_clients = 0", ["num_clients=0", ">= 1"]),
        ("[model]\nmodel = 'bert'", ["model='bert'", "mlp"]),
        ("[scheme]\nscheme = 'dp_sgdfed'", ["scheme='dp_sgdfed'", "dp_fedavg"]),
        ("[scheme]\nl2_clip_norm = -1.0", ["l2_clip_norm=-1.0", "> 0"]),
        ("[scheme]\nl2_clip_norm = nan", ["l2_clip_norm=nan", "> 0"]),
        ("[privacy]\ntarget_delta = 0.0", ["target_delta=0.0", "(0, 1)"]),
        ("[privacy]\ntarget_epsilon = 'none'", ["noise_multiplier", "target_epsilon"]),
        ("[run\n", ["TOML", "line 1"]),
    ],
)
def test_a_mistake_in_the_file_is_named_in_one_line(toml, words):
    with pytest.raises(ValueError) as error:
        config_lib.from_sections(config_lib.from_toml(toml))
    message = str(error.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_flags_override_the_file_and_the_file_the_defaults(tmp_path):
    path = tmp_path / "my.toml"
    path.write_text(
        "[run]\nseed = 5\nnum_rounds = 7\n[scheme]\nl2_clip_norm = 0.25\nsampling_prob = 0.125\n"
    )
    flags = [
        "--seed",
        "6",
        "--l2-clip-norm=0.5",
        "--no-baseline",
        "--target-epsilon",
        "none",
        "--noise-multiplier",
        "2",
    ]
    config, run_dir, devices = simulate.parse(
        [str(path), *flags, "--run-dir", "here", "--devices", "3"]
    )
    assert devices == simulate.Machine(devices=3)
    assert (config.run.seed, config.run.num_rounds, config.run.eval_every) == (
        6,
        7,
        RunConfig().eval_every,
    )
    assert (config.scheme_config.l2_clip_norm, config.scheme_config.sampling_prob) == (0.5, 0.125)
    assert (
        not config.run.baseline and config.privacy.target_epsilon is None and str(run_dir) == "here"
    )


def test_another_scheme_on_the_command_line_brings_its_own_settings(tmp_path):
    path = tmp_path / "my.toml"
    path.write_text("[scheme]\nnum_local_epochs = 5\n[run]\nseed = 5\n")
    config, _, _ = simulate.parse([str(path), "--scheme", "dp_fedsgd", "--privacy-unit", "client"])
    assert (
        config.scheme_config == schemes.get("dp_fedsgd").Config(privacy_unit="client")
        and config.run.seed == 5
    )


def test_delta_is_below_one_over_the_units():
    for num_units in (1, 2, 10, 400, 10**6):
        assert 0 < config_lib.default_delta(num_units) < 1 / num_units


def test_symbols_are_read_by_a_model_of_symbols_unless_another_is_named():
    data = {"dataset": "roles"}
    assert config_lib.from_sections({"data": data}).model.model == "lstm"
    assert config_lib.from_sections({"data": data, "model": {"model": "mlp"}}).model.model == "mlp"
    assert config_lib.from_sections({"data": data | {"task": "tokens"}}).model.model == "token_lstm"
