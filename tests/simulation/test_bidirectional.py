"""`fljax simulate` runs the bidirectional scheme as any other, and its report shows both
directions.
"""

import json

import pytest

from fljax.simulation import config as config_lib
from fljax.simulation import run
from fljax.simulation.record import folder
from fljax.simulation.report import run_page


class Silent:
    def start(self, plan, rounds_done):
        pass

    def round(self, record):
        pass

    def stop(self):
        pass


@pytest.mark.slow(reason="whole runs of the protocol")
@pytest.mark.parametrize("noise", ["r0_gaussian", "paper"])
def test_a_run_reports_what_each_side_can_learn(noise, tmp_path):
    sections = {
        "scheme": {
            "scheme": "bidirectional",
            "num_parties": 4,
            "local_batch_size": 8,
            "noise": noise,
        },
        "data": {"num_clients": 4},
        "run": {"num_rounds": 2, "seed": 0, "eval_every": 2, "baseline": False},
    }
    outcome = run.start(config_lib.from_sections(sections), tmp_path / "run", Silent())
    assert outcome.config.model.loss == "squared" and outcome.rounds == 2
    text = run_page.render(outcome)
    assert "What each side can learn" in text and "the server" in text and "a client" in text
    claim = json.loads(folder.read_text(outcome.run_dir / folder.PRIVACY))
    if noise == "paper":
        assert claim["epsilon"] == "inf" and claim["as_printed"]["certified"] is False
        assert (
            "NOT certified" in text
            and "uniform to the server" in text
            and "perturbation_leak" in text
        )
    else:
        assert 0 < claim["epsilon"] <= 8 and claim["certified"] is True
        assert "Who saw what" in text


def test_cross_entropy_is_refused_with_the_reason(tmp_path):
    sections = {
        "scheme": {"scheme": "bidirectional", "noise": "upload_gaussian"},
        "model": {"loss": "cross_entropy"},
        "run": {"num_rounds": 1},
    }
    with pytest.raises(ValueError, match="no polynomial of the residual"):
        run.start(config_lib.from_sections(sections), tmp_path / "run", Silent())
