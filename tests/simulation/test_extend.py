"""More rounds for a run that has ended: its own noise, its own budget, the bits of a longer run."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from fljax import accounting, cli, schemes
from fljax.simulation import run
from fljax.simulation.config import Config, DataConfig, ModelConfig, PrivacyConfig, RunConfig

NOISE, DELTA = 2.0, 0.01
pytestmark = pytest.mark.usefixtures("compiled_once")


class Silent:
    def start(self, plan, rounds_done):
        pass

    def round(self, record):
        pass

    def stop(self):
        pass


def config(num_rounds, noise_multiplier=NOISE, **privacy):
    scheme = schemes.get("dp_fedavg")
    return Config(
        scheme_config=scheme.Config(sampling_prob=0.25, noise_multiplier=noise_multiplier),
        data=DataConfig(num_clients=40),
        model=ModelConfig(model="softmax"),
        privacy=PrivacyConfig(
            **{"target_epsilon": 3.0, "target_delta": DELTA, "accountant": "rdp", **privacy}
        ),
        run=RunConfig(
            num_rounds=num_rounds, eval_every=4, checkpoint_every=2, seed=3, baseline=False
        ),
    )


@pytest.fixture(scope="module")
def four(tmp_path_factory, compiled_once):
    return run.start(config(4), tmp_path_factory.mktemp("four") / "run", Silent())


def copied(outcome, tmp_path):
    import shutil

    return shutil.copytree(outcome.run_dir, tmp_path / "run")


@pytest.mark.slow(reason="two more whole runs, to their bits")
def test_an_extended_run_has_the_bits_and_the_claim_of_a_longer_one(four, tmp_path):
    longer = run.start(config(8), tmp_path / "longer", Silent())
    extended = run.resume(copied(four, tmp_path), Silent(), num_rounds=8)
    pairs = zip(jax.tree.leaves(longer.params), jax.tree.leaves(extended.params), strict=True)
    assert all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)
    for name in ("config.toml", "privacy.json"):
        assert (longer.run_dir / name).read_bytes() == (extended.run_dir / name).read_bytes()
    assert [record["round"] for record in extended.records] == list(range(1, 9))
    event = schemes.get("dp_fedavg").event(longer.config.scheme_config).repeat(8)
    assert extended.plan.epsilons[8] == accounting.epsilon(event, delta=DELTA, method="rdp")


@pytest.mark.slow(reason="a whole run, interrupted")
def test_it_may_be_interrupted_and_goes_on(four, tmp_path):
    class Stop(Silent):
        def round(self, record):
            if record["round"] == 6:
                raise RuntimeError("killed")

    run_dir = copied(four, tmp_path)
    with pytest.raises(RuntimeError, match="killed"):
        run.resume(run_dir, Stop(), num_rounds=8)
    assert run.resume(run_dir, Silent()).rounds == 8


@pytest.mark.slow(reason="a whole run, and more rounds of it by the command")
def test_the_budget_says_how_many_rounds_are_left(four, tmp_path, capsys):
    run_dir = copied(four, tmp_path)
    event = schemes.get("dp_fedavg").event(four.config.scheme_config)
    allowed = max(
        n
        for n in range(1, 200)
        if accounting.epsilon(event.repeat(n), delta=DELTA, method="rdp") <= 3.0
    )
    before = {path.name: path.read_bytes() for path in run_dir.glob("*.*")}
    assert cli.main(["simulate", "--resume", str(run_dir), "--num-rounds", "150"]) != 0
    said = capsys.readouterr().err
    assert (
        f"num_rounds <= {allowed}" in said
        and f"({allowed - 4} more)" in said
        and said.count("\n") == 1
    )
    assert cli.main(["simulate", "--resume", str(run_dir), "--num-rounds", "4"]) != 0
    assert "num_rounds > 4" in capsys.readouterr().err
    assert before == {path.name: path.read_bytes() for path in run_dir.glob("*.*")}
    assert cli.main(["simulate", "--resume", str(run_dir), "--num-rounds", "5"]) == 0
    assert json.loads((run_dir / "privacy.json").read_text())["rounds"] == 5


@pytest.mark.slow(reason="whole runs")
def test_noise_that_was_calibrated_for_fewer_rounds_leaves_none(tmp_path):
    outcome = run.start(config(3, noise_multiplier=None), tmp_path / "run", Silent())
    with pytest.raises(ValueError, match=r"num_rounds <= 3, .*\(0 more\), got 6"):
        run.resume(outcome.run_dir, Silent(), num_rounds=6)
    assert run.resume(outcome.run_dir, Silent()).rounds == 3


def test_a_config_edited_by_hand_is_still_refused(four, tmp_path):
    run_dir = copied(four, tmp_path)
    path = run_dir / "config.toml"
    edited = path.read_text().replace("noise_multiplier = 2.0", "noise_multiplier = 1.9")
    path.write_text(edited)
    with pytest.raises(ValueError, match="another config"):
        run.resume(run_dir, Silent(), num_rounds=8)
    assert path.read_text() == edited  # a run that is refused is not given its rounds


@pytest.mark.slow(reason="whole runs")
def test_where_epsilons_are_asked_for_at_some_counts_only_a_longer_run_still_agrees(tmp_path):
    short = run.start(config(3, target_epsilon=None, accountant="pld"), tmp_path / "run", Silent())
    extended = run.resume(short.run_dir, Silent(), num_rounds=30)
    event = schemes.get("dp_fedavg").event(short.config.scheme_config)
    assert extended.plan.epsilons[30] == accounting.epsilon(
        event.repeat(30), delta=DELTA, method="pld"
    )
    assert dataclasses.replace(short.config.run, num_rounds=30) == extended.config.run
