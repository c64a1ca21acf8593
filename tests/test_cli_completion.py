"""Completion as a shell would ask for it, and one vocabulary over verbs."""

import json
import shutil
import subprocess

import pytest

from fljax import cli, schemes
from fljax.cli import completion, simulate


@pytest.fixture(scope="module")
def script():
    return completion.script("bash")


def completed(script, *words):
    """What bash offers for the last of the words."""
    line = " ".join(f"'{word}'" for word in ("fljax", *words))
    ask = f"COMP_WORDS=({line}); COMP_CWORD={len(words)}; _fljax; echo ${{COMPREPLY[@]}}"
    done = subprocess.run(["bash", "-c", script + ask], capture_output=True, text=True, check=True)
    assert not done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["sim"], {"simulate"}),
        (["simulate", "--target-e"], {"--target-epsilon"}),
        (["simulate", "--no-base"], {"--no-baseline"}),
        (["account", "--noise-mu"], {"--noise-multiplier"}),
        (["simulate", "--scheme", "higra"], {"higradavg", "higradavg_sum"}),
        (["simulate", "--dataset", "bre"], {"breast_cancer"}),
        (["export", "run", "--to", "s"], {"safetensors"}),
    ],
)
def test_bash_completes_commands_flags_and_names(script, words, offered):
    assert completed(script, *words) == offered


def test_all_commands_and_all_schemes_are_offered(script):
    assert completed(script, "") == set(cli.COMMANDS)
    assert completed(script, "simulate", "--scheme", "") >= set(schemes.NAMES)


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_read_theirs(shell):
    text = completion.script(shell)
    assert "simulate" in text and "target-epsilon" in text
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=text, text=True, check=True)


def test_no_such_shell_costs_one_line(capsys):
    assert cli.main(["completion", "tcsh"]) == 2
    assert "a shell among ['bash', 'zsh', 'fish']" in capsys.readouterr().err


def test_simulate_knows_epsilon_delta_and_rounds_by_the_names_of_account():
    config, *_ = simulate.parse(["--epsilon", "3", "--delta=1e-4", "--rounds", "7"])
    assert (config.privacy.target_epsilon, config.privacy.target_delta) == (3.0, 1e-4)
    assert config.run.num_rounds == 7


def epsilon(capsys, *args):
    assert cli.main(["account", *args, "--accountant", "rdp", "--json"]) == 0
    return json.loads(capsys.readouterr().out)["result"]["rows"][0]["epsilon_upper"]


def test_epochs_are_steps_at_the_chance_of_a_batch(capsys):
    noise = ["--noise-multiplier", "1.1"]
    by_hand = epsilon(capsys, *noise, "--sampling-prob", "0.01", "--steps", "250")
    size = ["--dataset-size", "60000", "--batch-size", "600", "--epochs", "2.5"]
    assert epsilon(capsys, *noise, *size) == by_hand
    assert epsilon(capsys, *noise, *size, "--target-delta", "1e-5") == by_hand


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--dataset-size", "100"], "together, got dataset_size=100, batch_size=None"),
        (["--dataset-size=9", "--batch-size=10", "--epochs=1"], "batch_size <= dataset_size=9"),
        (["--steps=2", "--dataset-size=9", "--batch-size=1", "--epochs=1"], "got both"),
    ],
)
def test_half_a_training_run_is_refused(args, words, capsys):
    assert cli.main(["account", "--noise-multiplier", "1", *args]) == 2
    assert words in capsys.readouterr().err


def test_a_run_is_accounted_from_its_own_ledger(tmp_path, capsys):
    from fljax import accounting
    from fljax.accounting import events

    one = events.PrivacyEvent(
        mechanism=events.Gaussian(2.0), privacy_unit="client", neighboring_relation="REPLACE_ONE"
    )
    ledger = accounting.Ledger(privacy_unit="client", neighboring_relation="REPLACE_ONE")
    ledger.append(one, 5)
    (tmp_path / "privacy.json").write_text(json.dumps({"ledger": ledger.to_json()}))
    wanted = accounting.epsilon(one.repeat(5), delta=1e-4, method="rdp")
    for where in (tmp_path, tmp_path / "privacy.json"):
        assert epsilon(capsys, "--event", str(where), "--delta", "1e-4") == wanted
    # At the run's own delta, where it says one and none is named.
    told = {"ledger": ledger.to_json(), "delta": 1e-3}
    (tmp_path / "privacy.json").write_text(json.dumps(told))
    assert epsilon(capsys, "--event", str(tmp_path)) == accounting.epsilon(
        one.repeat(5), delta=1e-3, method="rdp"
    )
    assert epsilon(capsys, "--event", str(tmp_path), "--delta", "1e-4") == wanted
    (tmp_path / "privacy.json").write_text(json.dumps(told | {"delta": [1]}))
    assert cli.main(["account", "--event", str(tmp_path)]) == 2
    assert "delta as a number, got [1]" in capsys.readouterr().err
