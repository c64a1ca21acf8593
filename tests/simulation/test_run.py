"""The host loop: one compilation, true samples, the budget, and the same bits after any
interruption.
"""

import dataclasses
import json
import shutil
import signal

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax_kernels
from fljax import _keys, accounting, schemes
from fljax.simulation import budget, run, task
from fljax.simulation.config import Config, DataConfig, ModelConfig, PrivacyConfig, RunConfig
from fljax.simulation.record import folder


def config(scheme="dp_fedavg", **changes):
    """Small enough for a second; `changes` go to whichever section has the field."""
    sections = {
        "data": DataConfig(num_clients=40),
        "model": ModelConfig(model="softmax"),
        "privacy": PrivacyConfig(),
        "run": RunConfig(num_rounds=12, eval_every=4, checkpoint_every=5, seed=3),
        "scheme_config": schemes.get(scheme).Config(sampling_prob=0.25),
    }
    for name, section in sections.items():
        mine = {k: v for k, v in changes.items() if hasattr(section, k)}
        sections[name] = dataclasses.replace(section, **mine)
    return Config(scheme=scheme, **sections)


class Watch:
    """Keeps what it sees; calls `do` after round `at`."""

    def __init__(self, at=None, do=None):
        self.at, self.do, self.rounds, self.started = at, do, [], None

    def start(self, plan, rounds_done):
        self.started = rounds_done

    def round(self, record):
        self.rounds.append(record["round"])
        if record["round"] == self.at:
            self.do()

    def stop(self):
        self.stopped = True


def written(run_dir):
    """What must not differ between a run and the same run with interruptions."""
    return [
        (run_dir / name).read_bytes() for name in (folder.CONFIG, folder.METRICS, folder.PRIVACY)
    ]


def same(left, right):
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


pytestmark = pytest.mark.usefixtures("compiled_once")


@pytest.fixture(scope="module")
def finished(tmp_path_factory, compiled_once):
    return run.start(config(), tmp_path_factory.mktemp("reference"), Watch())


def test_the_run_folder_holds_what_happened(finished):
    records = finished.records
    assert [r["round"] for r in records] == list(range(1, 13))
    assert [r["round"] for r in records if "test_accuracy" in r] == [1, 4, 8, 12]
    assert {p.name for p in finished.run_dir.iterdir()} - {".lock"} == {
        "config.toml",
        "metrics.jsonl",
        "privacy.json",
        "checkpoints",
        "fingerprint.json",
        "model.json",
        "sessions.jsonl",
        "chain.jsonl",
    }
    assert records[-1]["test_loss"] < records[0]["test_loss"]
    assert len({r["cohort_size"] for r in records}) > 3


def test_epsilon_in_every_line_is_the_accountants(finished):
    claim = json.loads((finished.run_dir / folder.PRIVACY).read_text())
    event = finished.plan.event
    for record in finished.records:
        spent = accounting.epsilon(
            event.repeat(record["round"]), delta=claim["delta"], method=finished.plan.accountant
        )
        assert record["epsilon"] == spent
    assert claim["epsilon"] == finished.records[-1]["epsilon"] <= 8.0
    ledger = accounting.Ledger.from_json(claim["ledger"])
    assert ledger.epsilon(delta=claim["delta"], method=finished.plan.accountant) == claim["epsilon"]
    assert claim["delta"] < 1 / 40 and claim["privacy_unit"] == "client" and claim["certified"]


@pytest.mark.slow(reason="whole runs")
def test_the_same_seed_gives_the_same_bits_and_another_does_not(finished, tmp_path):
    again = run.start(config(), tmp_path / "again", Watch())
    assert written(again.run_dir) == written(finished.run_dir) and same(
        again.params, finished.params
    )
    other = run.start(config(seed=4), tmp_path / "other", Watch())
    assert not same(other.params, finished.params)


class Crash(Exception):
    pass


def crash():
    raise Crash


@pytest.mark.release(reason="one more round to crash in", but=["5", "8"])
@pytest.mark.slow(reason="whole runs, interrupted")
@pytest.mark.parametrize("at", [1, 5, 8, 11])
def test_a_crash_leaves_no_trace_after_resuming(finished, tmp_path, at):
    with pytest.raises(Crash):
        run.start(config(), tmp_path / "run", Watch(at, crash))
    watch = Watch()
    outcome = run.resume(tmp_path / "run", watch)
    assert watch.started == at - at % 5 - (
        5 if at % 5 == 0 else 0
    )  # the crash came before that round's checkpoint
    assert written(outcome.run_dir) == written(finished.run_dir)
    assert same(outcome.params, finished.params) and same(
        outcome.baseline_params, finished.baseline_params
    )


@pytest.mark.slow(reason="whole runs, in processes of their own")
def test_an_interrupt_stops_after_a_checkpoint_and_a_second_one_at_once(finished, tmp_path):
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(run.Interrupted, match="stopped after 7 of 12"):
        run.start(config(), tmp_path / "run", Watch(7, lambda: signal.raise_signal(signal.SIGINT)))
    watch = Watch()
    outcome = run.resume(tmp_path / "run", watch)
    assert watch.started == 7 and written(outcome.run_dir) == written(finished.run_dir)

    def twice():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as stopped:
        run.start(config(), tmp_path / "at-once", Watch(7, twice))
    assert not isinstance(stopped.value, run.Interrupted)
    assert signal.getsignal(signal.SIGINT) is handler


def test_resuming_a_finished_run_runs_nothing(finished):
    before, watch = written(finished.run_dir), Watch()
    outcome = run.resume(finished.run_dir, watch)
    assert (
        watch.rounds == []
        and written(finished.run_dir) == before
        and same(outcome.params, finished.params)
    )


@pytest.mark.slow(reason="whole runs, some of them interrupted")
def test_one_compilation_serves_a_run_in_which_cohorts_vary(monkeypatch, tmp_path):
    original = run.round_fun
    chex.clear_trace_counter()  # it goes by the name of a function
    monkeypatch.setattr(
        run, "round_fun", lambda *args: chex.assert_max_traces(original(*args), n=1)
    )
    outcome = run.start(config(sampling_prob=0.1, baseline=False), tmp_path / "run", Watch())
    sizes = {r["cohort_size"] for r in outcome.records}
    assert len(sizes) > 2


@pytest.mark.slow(reason="whole runs, some of them interrupted")
def test_a_sample_that_overflows_is_drawn_again_never_cut(monkeypatch, tmp_path):
    """Also with an interruption, after which every round must meet the capacity that it had."""
    monkeypatch.setattr(fljax_kernels, "poisson_capacity", lambda *_: 10)
    small = config(baseline=False)
    reference = run.start(small, tmp_path / "reference", Watch())
    with pytest.raises(Crash):
        run.start(small, tmp_path / "run", Watch(6, crash))
    assert written(run.resume(tmp_path / "run", Watch()).run_dir) == written(reference.run_dir)

    @jax.jit
    def count(done):
        key = _keys.server_key(reference.task.round_key, done, _keys.Purpose.SAMPLE_CLIENTS)
        return fljax_kernels.poisson_sample(key, 40, 0.25, 40).count

    counts = [int(count(done)) for done in range(12)]
    assert [r["cohort_size"] for r in reference.records] == counts
    assert min(counts) <= 10 < max(counts)


def test_rounds_stop_before_the_budget_is_overspent(tmp_path):
    outcome = run.start(
        config(noise_multiplier=1.0, target_epsilon=2.0, baseline=False), tmp_path / "run", Watch()
    )
    delta = outcome.plan.delta
    assert 0 < outcome.rounds < 12 and outcome.records[-1]["epsilon"] <= 2.0
    assert accounting.epsilon(outcome.plan.event.repeat(outcome.rounds + 1), delta=delta) > 2.0
    assert "test_accuracy" in outcome.records[-1]


def test_a_budget_below_one_round_is_refused_and_leaves_no_folder(tmp_path):
    with pytest.raises(ValueError, match=r"target_epsilon >= .*got target_epsilon=0\.01"):
        run.start(config(noise_multiplier=0.5, target_epsilon=0.01), tmp_path / "run", Watch())
    assert not (tmp_path / "run").exists()


@pytest.mark.slow(reason="a whole run")
def test_without_noise_epsilon_is_infinite_and_says_so(tmp_path):
    outcome = run.start(
        config(noise_multiplier=0.0, target_epsilon=None, num_rounds=2, baseline=False),
        tmp_path / "run",
        Watch(),
    )
    claim = json.loads((tmp_path / "run" / folder.PRIVACY).read_text())
    assert claim["epsilon"] == outcome.records[-1]["epsilon"] == "inf"
    assert "None" in claim["statement"]["guarantee"] and outcome.baseline_params is None


@pytest.mark.slow(reason="whole runs, some of them interrupted")
def test_records_are_the_unit_where_the_scheme_says_so(tmp_path):
    outcome = run.start(
        config("dp_fedsgd", privacy_unit="example", num_rounds=3, baseline=False),
        tmp_path / "run",
        Watch(),
    )
    num_examples = outcome.task.dataset.train["y"].size
    assert outcome.plan.num_units == num_examples and outcome.plan.delta < 1 / num_examples
    assert {r["cohort_size"] for r in outcome.records} == {40}
    assert "example" in budget.statement(outcome.plan, 3)["guarantee"]


def test_nan_data_is_refused_before_a_round(monkeypatch, tmp_path):
    original = task.data.load

    def load(name):
        dataset = original(name)
        dataset.train["x"][5, 2, 3, 0] = np.nan
        return dataset

    monkeypatch.setattr(task.data, "load", load)
    with pytest.raises(ValueError, match=r"train\['x'\] to be finite, got nan in row 5"):
        run.start(config(), tmp_path / "run", Watch())


def test_a_foreign_config_in_the_folder_is_refused(finished, tmp_path):
    shutil.copytree(finished.run_dir, tmp_path / "run")
    path = tmp_path / "run" / folder.CONFIG
    path.write_text(path.read_text().replace("seed = 3", "seed = 4"))
    with pytest.raises(ValueError, match="another config"):
        run.resume(tmp_path / "run", Watch())
    assert (tmp_path / "run" / folder.METRICS).read_bytes() == (
        finished.run_dir / folder.METRICS
    ).read_bytes()


def test_a_diverged_loss_is_written_as_a_word():
    assert budget.number(jnp.float32(jnp.nan)) == "nan" and budget.number(np.float32(1.5)) == 1.5


def test_a_stop_right_after_a_lost_start_can_be_resumed(tmp_path):
    """A crash before the first checkpoint, then a resume that is stopped before its first round,
    then another.
    """
    from fljax.simulation.record import folder

    (tmp_path / folder.METRICS).write_bytes(b'{"round": 1}\n')
    metrics = folder.Metrics(tmp_path, 0)
    assert metrics.length == 0
    metrics.append("{}")
    assert metrics.length == 3
    metrics.close()
    assert (tmp_path / folder.METRICS).read_bytes() == b"{}\n"


@pytest.mark.slow(reason="whole runs, some of them interrupted")
def test_a_run_goes_on_over_another_number_of_devices(finished, tmp_path):
    """Cohorts and the ledger are the same bits; parameters differ by the rounding of sums alone."""
    with pytest.raises(Crash):
        run.start(config(), tmp_path / "run", Watch(7, crash), devices=8)
    watch = Watch()
    outcome = run.resume(tmp_path / "run", watch, devices=2)
    assert watch.started == 5
    assert [r["cohort_size"] for r in outcome.records] == [
        r["cohort_size"] for r in finished.records
    ]
    assert (outcome.run_dir / folder.PRIVACY).read_bytes() == (
        finished.run_dir / folder.PRIVACY
    ).read_bytes()
    for a, b in zip(jax.tree.leaves(outcome.params), jax.tree.leaves(finished.params), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-4)  # 12 rounds of SGD carry 2**-24 forward


def test_more_devices_than_there_are_leave_no_folder(tmp_path):
    with pytest.raises(ValueError, match="devices=99"):
        run.start(config(), tmp_path / "run", Watch(), devices=99)
    assert not (tmp_path / "run").exists() or not any((tmp_path / "run").iterdir())
