"""What is said on the way: the time that is left, and numbers that follow from the data."""

import json

import pytest

from fljax import accounting, cli
from fljax.accounting import events
from fljax.cli import _output


def test_each_step_but_the_last_says_how_long_the_rest_will_take(monkeypatch, capsys):
    times = iter([0.0, 10.0, 30.0, 33.0])
    monkeypatch.setattr(_output.time, "monotonic", lambda: next(times))
    say = _output.steps(3)
    for name in ("one", "two", "three"):
        say(name)
    # After 10 s two more of 10 s each; after 30 s one more of 15 s.
    assert capsys.readouterr().out == "one  20 s left\ntwo  15 s left\nthree\n"


@pytest.fixture
def laplace(tmp_path):
    event = accounting.PrivacyEvent(
        mechanism=events.Laplace(2.0),
        privacy_unit="example",
        neighboring_relation=accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    )
    path = tmp_path / "laplace.json"
    path.write_text(json.dumps(events.to_json(event)))
    return path


def test_a_bounded_loss_has_an_epsilon_at_delta_0(laplace, capsys):
    cli.main(["account", "--event", str(laplace), "--rounds", "3", "--delta", "0", "--json"])
    found = json.loads(capsys.readouterr().out)["result"]
    assert found["rows"][0]["epsilon_upper"] == pytest.approx(1.5, rel=1e-9)  # 3 times 1 / 2
    flags = ["--event", str(laplace), "--epsilon", "0.25", "--delta", "0", "--json"]
    cli.main(["calibrate", *flags])
    found = json.loads(capsys.readouterr().out)["result"]
    assert found["rows"][0]["value"] == pytest.approx(4.0, rel=1e-5)


@pytest.mark.slow(reason="a whole run")
def test_a_run_says_which_numbers_of_its_scheme_follow_from_the_data(tmp_path, capsys):
    flags = [
        "--scheme",
        "gsgd_dp",
        "--num-clients",
        "20",
        "--num-rounds",
        "1",
        "--no-baseline",
        "--seed",
        "0",
    ]
    assert cli.main(["simulate", *flags, "--run-dir", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out
    assert "of the data        num_parties 20" in said
    assert "of the data        records_per_client 72" in said  # ceil(1438 digits / 20)
