"""The non-private model beside a run: FedAvg for the task, whatever the scheme's own settings
are.
"""

import dataclasses
from types import SimpleNamespace

import pytest

from fljax import models
from fljax.schemes.central import dp_fedavg
from fljax.server.rounds import Performance
from fljax.simulation import baseline, job, run
from fljax.simulation.config import ModelConfig, from_sections

pytestmark = pytest.mark.usefixtures("compiled_once")


class Nobody:
    """Watches nothing."""

    def start(self, plan, rounds_done):
        pass

    round = stop = lambda self, *_: None


def finished(folder, scheme, **sections):
    config = from_sections({"scheme": scheme} | sections)
    short = dataclasses.replace(config.run, num_rounds=3, seed=0, eval_every=3, checkpoint_every=3)
    return run.start(dataclasses.replace(config, run=short), folder, Nobody())


@pytest.mark.slow(reason="a whole run and its baseline")
def test_it_learns_beside_a_scheme_that_takes_tiny_steps(tmp_path):
    scheme = {
        "scheme": "user_ldp",
        "num_local_steps": 1,
        "local_learning_rate": 1e-3,
        "noise_multiplier": 9.0,
    }
    last = finished(tmp_path / "run", scheme).records[-1]
    assert last["baseline_test_accuracy"] > 0.85 > 0.5 > last["test_accuracy"]


@pytest.mark.parametrize(
    "scheme", ["bidirectional", "dp_fedavg", "gd_dp", "he_dp", "user_ldp", "white_channel"]
)
def test_its_rounds_are_those_of_fedavg_whatever_the_scheme(monkeypatch, scheme):
    found = []
    monkeypatch.setattr(baseline.dp_fedavg, "make", lambda config, loss, **_: found.append(config))
    config = from_sections(
        {"scheme": {"scheme": scheme}, "model": {"model": "softmax", "loss": "squared"}}
    )
    noisy = SimpleNamespace(make=lambda *_, **__: SimpleNamespace(client_sampling_prob=0.5))
    plan = SimpleNamespace(scheme_config=config.scheme_config, num_units=50)
    job._algorithms(
        config, noisy, plan, SimpleNamespace(loss=None, canaries=None), {}, Performance()
    )
    assert found == [
        dp_fedavg.Config(
            sampling_prob=0.5,
            l2_clip_norm=1e30,
            noise_multiplier=0.0,
            local_learning_rate=0.1,
            local_batch_size=20,
            num_local_epochs=5,
            server_learning_rate=1.0,
            server_momentum=0.0,
        )
    ]


def test_every_model_has_settings_and_squared_loss_smaller_steps():
    for model in models.NAMES:
        for loss in models.LOSSES:
            found = baseline.settings(ModelConfig(model=model, loss=loss))
            assert 0 < found.learning_rate <= 0.3 and 0 <= found.server_momentum < 1
            assert loss != "squared" or found.learning_rate <= 0.1
