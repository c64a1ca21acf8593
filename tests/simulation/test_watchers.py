"""Who else watches a run: what they write, and that they change nothing."""

import dataclasses
import json
import sys
import types

import numpy as np
import pytest

from fljax import cli, schemes
from fljax.simulation import run
from fljax.simulation.config import Config, DataConfig, ModelConfig, PrivacyConfig, RunConfig
from fljax.simulation.observers import trackers


def config(num_rounds=5):
    return Config(
        scheme_config=schemes.get("dp_fedavg").Config(noise_multiplier=2.0),
        data=DataConfig(num_clients=20),
        model=ModelConfig(model="softmax"),
        privacy=PrivacyConfig(target_epsilon=None),
        run=RunConfig(
            num_rounds=num_rounds, seed=0, eval_every=2, checkpoint_every=3, baseline=False
        ),
    )


class Keep:
    """What was called, in order."""

    def __init__(self):
        self.calls = []

    def start(self, plan, rounds_done):
        self.calls.append("start")

    def round(self, record):
        self.calls.append(record["round"])

    def stop(self):
        self.calls.append("stop")


pytestmark = pytest.mark.usefixtures("compiled_once")


@pytest.fixture(scope="module")
def alone(tmp_path_factory, compiled_once):
    return run.start(config(), tmp_path_factory.mktemp("alone"), Keep())


@pytest.mark.slow(reason="whole runs")
def test_tensorboard_holds_the_numbers_of_the_run_and_changes_none(alone, tmp_path):
    from tensorboardX.event_file_writer import EventFileWriter  # noqa: F401
    from tensorboardX.proto import event_pb2

    seen = [Keep(), Keep()]
    outcome = run.start(
        config(),
        tmp_path / "run",
        trackers.Several([seen[0], trackers.TensorBoard(tmp_path / "other"), seen[1]]),
    )
    assert outcome.records == alone.records and seen[0].calls == seen[1].calls == [
        "start",
        1,
        2,
        3,
        4,
        5,
        "stop",
    ]
    (path,) = (tmp_path / "other" / trackers.BOARD).iterdir()
    data, found = path.read_bytes(), {}
    while data:  # length (8 bytes), checksum (4), event, checksum (4)
        size = int.from_bytes(data[:8], "little")
        event = event_pb2.Event.FromString(data[12 : 12 + size])
        found |= {(value.tag, event.step): value.simple_value for value in event.summary.value}
        data = data[16 + size :]
    for record in outcome.records:
        for name in (
            "epsilon",
            "train_loss",
            *(["test_accuracy"] if "test_accuracy" in record else []),
        ):
            np.testing.assert_allclose(found[name, record["round"]], record[name], rtol=1e-6)


@pytest.mark.slow(reason="a profiled run")
@pytest.mark.parametrize("num_rounds", [1, 2, 5], ids="{} rounds".format)
def test_a_profile_is_written_and_ended_however_short_the_run(tmp_path, num_rounds):
    outcome = run.start(config(num_rounds), tmp_path / "run", trackers.Profiler(tmp_path / "run"))
    assert len(outcome.records) == num_rounds
    assert [p for p in (tmp_path / "run" / trackers.TRACE).rglob("*") if p.is_file()]


@pytest.mark.slow(reason="a whole run")
def test_wandb_gets_every_round_under_the_runs_own_name(monkeypatch, tmp_path, alone):
    """Against a stand-in: the service is not reachable from a test."""
    logged, calls = [], {}

    (tmp_path / "mine").mkdir()

    class Run:
        config = types.SimpleNamespace(update=lambda values, allow_val_change: calls.update(values))

        def log(self, numbers, step):
            logged.append((step, numbers))

        def finish(self):
            calls["finished"] = True

    def init(**options):
        calls.update(options)
        return Run()

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    watcher = trackers.WandB(tmp_path / "mine", "a project")
    assert not calls  # nothing before the run starts
    outcome = run.start(config(), tmp_path / "mine", watcher)
    assert outcome.records == alone.records
    assert (
        [step for step, _ in logged] == [1, 2, 3, 4, 5]
        and calls["name"] == "mine"
        and calls["resume"] == "allow"
    )
    first = calls["id"]
    assert len(first) == 16 and (tmp_path / "mine" / "wandb-id").read_text() == first
    trackers.WandB(tmp_path / "mine", "a project").start(outcome.plan, 5)
    assert (
        calls["id"] == first
    )  # a resumed run is the same one; a folder of that name elsewhere is not
    assert (
        calls["finished"] and calls["delta"] == outcome.plan.delta and "round" not in logged[0][1]
    )


@pytest.mark.parametrize(("num_rounds", "ends"), [(1, 1), (2, 2), (4, 3), (6, 3)])
def test_a_trace_is_of_three_rounds_after_the_first_and_ends_with_the_run(
    num_rounds, ends, monkeypatch, tmp_path
):
    done, seen = [], []
    monkeypatch.setattr(trackers.jax.profiler, "start_trace", lambda _: seen.append(len(done)))
    monkeypatch.setattr(trackers.jax.profiler, "stop_trace", lambda: seen.append(len(done)))
    watcher = trackers.Several([trackers.Profiler(tmp_path)])
    watcher.start(None, 0)
    for number in range(num_rounds):
        watcher.round({"round": number + 1})
        done.append(number)
    watcher.stop()
    assert seen == [0, ends]


def test_a_resumed_run_goes_on_under_its_own_name_at_wandb(monkeypatch, tmp_path):
    calls, logged = [], []
    update = lambda values, allow_val_change: calls.append(values)
    service = types.SimpleNamespace(config=types.SimpleNamespace(update=update))
    service.log = lambda numbers, step: logged.append((step, numbers))
    service.finish = lambda: calls.append("finished")
    init = lambda **options: calls.append(options) or service
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    plan = types.SimpleNamespace(delta=1e-5, num_units=7)
    for done in (0, 1):
        watcher = trackers.WandB(tmp_path, "a project")
        watcher.start(plan, done)
        watcher.round({"round": done + 1, "epsilon": "inf", "train_loss": 0.5})
        watcher.stop()
    first, told, ended, again, *_ = calls
    assert first["id"] == again["id"] == (tmp_path / "wandb-id").read_text()
    assert first["name"] == tmp_path.name and first["resume"] == "allow"
    assert told == {"delta": 1e-5, "num_units": 7} and ended == "finished"
    assert logged == [(1, {"train_loss": 0.5}), (2, {"train_loss": 0.5})]


def test_infinities_are_left_out_of_what_is_plotted():
    assert trackers._numbers(json.loads('{"round": 3, "epsilon": "inf", "train_loss": 0.5}')) == {
        "train_loss": 0.5
    }


@pytest.mark.slow(reason="a run for one more tracker", but=["--tensorboard-tensorboardX"])
@pytest.mark.parametrize(
    ("flag", "package"), [("--tensorboard", "tensorboardX"), ("--wandb=x", "wandb")]
)
def test_a_missing_tracker_is_one_line_and_leaves_no_folder(
    monkeypatch, capsys, tmp_path, flag, package
):
    monkeypatch.setitem(sys.modules, package, None)
    code = cli.main(["simulate", "--run-dir", str(tmp_path / "run"), flag])
    error = capsys.readouterr().err
    assert code == 2 and package in error and "fljax[trackers]" in error and error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_the_config_does_not_know_who_watches():
    assert not {"profile", "tensorboard", "wandb", "devices"} & {
        field.name for part in (RunConfig, DataConfig, Config) for field in dataclasses.fields(part)
    }


def test_tensorboard_forgets_what_an_interrupted_process_wrote_of_later_rounds(alone, tmp_path):
    """TensorBoard drops events of steps at or after a session's purge step, which a writer says by
    a START event.
    """
    from tensorboardX.proto import event_pb2

    for done in (0, 3):
        board = trackers.TensorBoard(tmp_path)
        board.start(alone.plan, done)
        board.stop()
    starts = []
    for path in sorted((tmp_path / trackers.BOARD).iterdir()):
        data = path.read_bytes()
        while data:
            size = int.from_bytes(data[:8], "little")
            event = event_pb2.Event.FromString(data[12 : 12 + size])
            starts += [event.step] if event.HasField("session_log") else []
            data = data[16 + size :]
    assert starts == [4]


def test_one_watcher_that_fails_leaves_no_other_open():
    class Fails(Keep):
        def start(self, plan, rounds_done):
            raise RuntimeError("no service")

    first, last = Keep(), Keep()
    with pytest.raises(RuntimeError, match="no service"):
        trackers.Several([first, Fails(), last]).start(None, 0)
    assert first.calls == ["start", "stop"] and last.calls == []
