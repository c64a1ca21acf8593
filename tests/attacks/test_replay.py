"""Grey-box replay: what a unit moves beside what the noise allows for, and a control that fails."""

import dataclasses
import json

import jax
import pytest

from fljax import cli, schemes
from fljax.attacks import replay, rounds
from fljax.schemes.central import dp_scaffold

# What a round of these shows is Gaussian, and as wide as their events say, in the smallest world.
# "neighbours" of tests/schemes/test_contracts.py replays all others, without a control.
EXACT = ("dp_fedavg", "dp_scaffold", "higradavg", "local_dp")


@pytest.mark.slow(reason="replays rounds, and compiles each scheme for that")
@pytest.mark.parametrize("name", EXACT)
def test_a_unit_moves_what_is_seen_as_far_as_declared_and_half_the_noise_is_caught(name, key):
    scheme = schemes.get(name)
    found = replay.replay(scheme, replay.least_config(scheme), key)
    assert found.holds is True
    assert 0.9 * found.declared < found.report.measured < found.report.declared
    assert found.control.measured == pytest.approx(2 * found.report.measured, rel=0.05)


@pytest.mark.slow(reason="replays rounds, and compiles each scheme for that")
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_a_replay_sees_half_the_noise_where_the_model_tells_an_audit_too_little(scale, key):
    scheme = schemes.get("bidirectional")

    def other(config, loss, **given):
        less = dataclasses.replace(config, noise_multiplier=scale * config.noise_multiplier)
        return scheme.make(less, loss, **given)

    told = replay.least_config(scheme)
    found = replay.replay(dataclasses.replace(scheme, make=other), told, key)
    assert found.holds is (scale == 1.0)


TURNS = {
    "dp_ftrl": {
        "min_separation": 2,
        "bands": 3,
        "rounds_per_start": 5,
        "server_learning_rate": 1.0,
        "server_momentum": 0.5,
    },
    "higradavg": {
        "correlation": "banded",
        "bands": 2,
        "item_sampling_prob": 0.5,
        "max_items_per_subject": 1,
        "server_momentum": 0.5,
    },
}


@pytest.mark.slow(reason="replays rounds, and compiles each scheme for that")
@pytest.mark.parametrize("name", TURNS)
def test_all_rounds_of_noise_that_is_correlated_over_them_are_replayed(name, key):
    """C^-1 z is told apart from the rounds' moves, whatever the server makes of both."""
    scheme = schemes.get(name)
    config = dataclasses.replace(replay.least_config(scheme), **TURNS[name])
    found = replay.replay(scheme, config, key)
    assert found.holds is True
    assert 0.85 * found.declared < found.report.measured < found.report.declared
    assert found.control.measured == pytest.approx(2 * found.report.measured, rel=0.05)


@pytest.mark.slow(reason="replays rounds, and compiles each scheme for that")
def test_data_in_rounds_of_anothers_turn_are_seen_by_a_replay_of_all_rounds(key):
    scheme = schemes.get("dp_ftrl")
    told = dataclasses.replace(replay.least_config(scheme), **TURNS["dp_ftrl"])

    def in_every_round(config, loss, **given):
        return scheme.make(dataclasses.replace(config, min_separation=1), loss, **given)

    found = replay.replay(dataclasses.replace(scheme, make=in_every_round), told, key)
    assert found.holds is False and found.report.measured > 1.2 * found.declared


@pytest.mark.slow(reason="compiles the rounds of one more scheme")
def test_a_scheme_that_moves_too_far_is_refuted(key):
    scheme = schemes.get("gd_dp")
    told = replay.least_config(scheme)

    def clips_late(config, loss, **given):
        wide = dataclasses.replace(
            config,
            l2_clip_norm=1.2 * config.l2_clip_norm,
            noise_multiplier=config.noise_multiplier / 1.2,
        )
        return scheme.make(wide, loss, **given)

    found = replay.replay(dataclasses.replace(scheme, make=clips_late), told, key)
    assert found.holds is False and found.report.measured > 1.1 * found.declared


@pytest.mark.slow(reason="compiles the rounds of one more scheme")
def test_what_is_released_beside_the_model_is_looked_at(key, monkeypatch):
    scheme, sound = schemes.get("dp_scaffold"), dp_scaffold.clipping.sum_updates

    def control_moves_further(sent, *given):
        total, norms = sound(sent, *given)
        return total | {"control": jax.tree.map(lambda leaf: 2 * leaf, total["control"])}, norms

    monkeypatch.setattr(dp_scaffold.clipping, "sum_updates", control_moves_further)
    found = replay.replay(scheme, replay.least_config(scheme), key)
    assert found.holds is False and found.report.measured > 1.4 * found.declared


@pytest.mark.slow(reason="compiles the rounds of one more scheme")
def test_what_is_released_in_another_shape_is_not_replayed(key):
    scheme = schemes.get("dp_scaffold")
    other = dataclasses.replace(scheme, released=lambda state: state.clipping["w"][:1])
    with pytest.raises(ValueError, match="to have its shape"):
        replay.replay(other, replay.least_config(scheme), key)


def test_what_has_no_gaussian_event_is_not_replayed(key):
    for name, given, text in (
        ("gsgd_dp", key, "Gaussian mechanism"),
        ("fedavg", key, "promises an epsilon"),
        ("gd_dp", jax.numpy.zeros(2), "typed"),
    ):
        scheme = schemes.get(name)
        config = rounds.config(name, noise_multiplier=1.0)
        with pytest.raises(ValueError, match=text):
            replay.replay(scheme, config, given)


@pytest.mark.slow(
    reason="replays a round; the command does so with correlated noise in a quick test"
)
def test_the_command_writes_a_verdict(tmp_path, capsys):
    run_dir = tmp_path / "run"
    assert cli.main(["audit", "--replay", "gd_dp", "--run-dir", str(run_dir)]) == 0
    (row,) = json.loads((run_dir / "audit.json").read_text())["rows"]
    assert row["verdict"] == "holds" and row["holds"] is True and row["unit"] == "example"
    assert row["measured"] <= row["allowed"] < row["control"]
    assert "holds" in capsys.readouterr().out and (run_dir / "report.html").is_file()


@pytest.mark.slow(reason="replays rounds; tests/schemes/test_exact_noise.py does, too")
def test_the_command_replays_exact_rounds(tmp_path):
    args = ["audit", "--replay", "dp_fedsgd", "--noise", "exact", "--run-dir", str(tmp_path / "a")]
    assert cli.main(args) == 0
    (row,) = json.loads((tmp_path / "a" / "audit.json").read_text())["rows"]
    assert row["noise"] == "exact" and row["holds"] is True and row["control"] > row["allowed"]


@pytest.mark.release(reason="one more scheme", but=["lightdp-tree"])
@pytest.mark.slow(reason="compiles the rounds of one more scheme", but=["higradavg"])
@pytest.mark.parametrize(
    ("name", "correlation"),
    [
        ("higradavg", "banded"),
        ("dp_fedavg", "banded"),
        ("dp_ftrl", "tree"),
        ("lightdp", "tree"),
    ],
)
def test_the_command_replays_rounds_whose_noise_is_correlated(name, correlation, tmp_path):
    args = ["audit", "--replay", name, "--correlation", correlation]
    assert cli.main([*args, "--run-dir", str(tmp_path / "a")]) == 0
    (row,) = json.loads((tmp_path / "a" / "audit.json").read_text())["rows"]
    assert row["correlation"] == correlation and row["holds"] is True
    assert row["measured"] <= row["allowed"] < row["control"]


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--noise", "exact"], "without replay"),
        (["--correlation", "banded"], "without replay"),
        (["--correlation", "pink"], "to be one of"),
        (["--replay", "gd_dp", "--correlation", "banded"], "may be correlated over rounds"),
        (["--replay", "dp_fedavg", "--correlation", "tree"], "Expected correlation"),
        (["--replay", "gd_dp", "--noise", "exact"], "Expected a scheme that offers"),
        (["--replay", "nobody"], "to be one of"),
        (["--replay", "white_channel"], "promises an epsilon"),
        (["--replay", "gd_dp", "--all"], "counts no trials"),
        (["--replay", "gsgd_dp"], "Gaussian mechanism"),
    ],
)
def test_a_replay_that_cannot_be_says_so_in_one_line(args, text, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["audit", *args]) == 2
    err = capsys.readouterr().err
    assert text in err and err.count("\n") <= 2 and not list(tmp_path.glob("runs/*"))


@pytest.mark.slow(reason="compiles the rounds of one more scheme")
def test_a_round_of_more_than_one_event_may_move_more(key):
    scheme = schemes.get("higradavg")
    config = rounds.config(
        "higradavg",
        noise_multiplier=1.0,
        item_sampling_prob=0.5,
        num_local_steps=4,
        bands=2,
        banded_for=8,
        correlation="banded",
    )
    assert scheme.uses(config, 1) == 2
    found = replay.replay(scheme, config, key)
    assert found.holds is True and found.control.measured > found.report.declared
