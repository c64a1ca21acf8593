"""What clients keep, in the run folder: the rows of a cohort and no others, and as they were at any
checkpoint that a run goes on from.
"""

import contextlib
import functools
import json
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax.data import store
from fljax.errors import CorruptDataError
from fljax.simulation import run
from fljax.simulation.config import (
    Config,
    DataConfig,
    ModelConfig,
    PrivacyConfig,
    RunConfig,
)
from fljax.simulation.devices import processes
from fljax.simulation.record import checkpoint, client_states, folder
from fljax.simulation.record.client_states import ClientStates, Rows

FIRST = {"w": np.arange(3, dtype=np.float32), "n": np.int32(7), "h": jnp.ones(2, jnp.bfloat16)}
ROUNDS, CLIENTS = 7, 24


def tree(number):
    values = {"w": np.full(3, number, np.float32), "n": np.int32(number)}
    return values | {"h": np.full(2, number, FIRST["h"].dtype)}


def stacked(trees):
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def bits(states, count):
    kept = states.read(np.arange(count))
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(kept)]


def opened(path, done=0):
    return contextlib.closing(ClientStates(path, FIRST, done))


def written(states, done, rng, count=9):
    """A round of some clients; who is nobody changes nothing."""
    ids = np.append(rng.choice(count, 4, replace=False), -1)
    states.write(done, ids, stacked([tree(int(rng.integers(1, 100))) for _ in ids]))


def test_a_client_begins_as_all_do_and_gets_back_what_it_left(tmp_path):
    with opened(tmp_path) as states:
        states.write(1, np.array([4, -1, 2]), stacked([tree(4), tree(5), tree(6)]))
        found = states.read(np.array([2, 0, -1, 4]))
    wanted = stacked([tree(6), FIRST, FIRST, tree(4)])
    for name, leaf in wanted.items():
        assert found[name].dtype == leaf.dtype and found[name].tobytes() == leaf.tobytes()
    assert client_states.of_client(tmp_path, FIRST, 4)["n"] == 4
    assert (tmp_path / client_states.CLIENTS).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("seed", range(4))
def test_any_kept_checkpoint_can_be_gone_back_to(seed, tmp_path):
    """Against copies of all rows, with kills between the rows and the checkpoint."""
    rng = np.random.default_rng(seed)
    seen, done, checkpoints = {}, 0, [0]
    for _ in range(12):
        with opened(tmp_path, done) as states:
            assert done not in seen or bits(states, 9) == seen[done]
            seen[done] = bits(states, 9)
            for _ in range(int(rng.integers(1, 5))):
                done += 1
                written(states, done, rng)
                seen[done] = bits(states, 9)
                if rng.random() < 0.4:
                    states.checkpoint(done, checkpoints[0])
                    if rng.random() < 0.7:  # else killed before the checkpoint was there
                        checkpoints = [*checkpoints, done][-3:]
        done = int(rng.choice(checkpoints))
        checkpoints = [step for step in checkpoints if step <= done]
        seen = {step: rows for step, rows in seen.items() if step <= done}


def test_a_journal_that_was_cut_off_is_of_rows_that_were_not_overwritten(tmp_path):
    rng = np.random.default_rng(0)
    with opened(tmp_path) as states:
        written(states, 1, rng)
        states.checkpoint(1, 0)
        before = bits(states, 9)
        written(states, 2, rng)
    journal = tmp_path / client_states.CLIENTS / "before-1.bin"
    with journal.open("ab") as file:
        file.write(journal.read_bytes()[:20])
    with opened(tmp_path, 1) as states:
        assert bits(states, 9) == before


def test_a_round_that_cannot_be_gone_back_to_is_refused(tmp_path):
    with opened(tmp_path) as states:
        for done in (1, 2, 3):
            written(states, done, np.random.default_rng(done))
            states.checkpoint(done, done)
    for done in (0, 2, 4):
        with pytest.raises(ValueError, match=f"what clients kept after {done} rounds, got nothing"):
            ClientStates(tmp_path, FIRST, done)


def test_a_damaged_row_is_refused_by_its_client(tmp_path):
    with opened(tmp_path) as states:
        states.write(1, np.array([0, 1]), stacked([tree(1), tree(2)]))
    path = tmp_path / client_states.CLIENTS / "rows.bin"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with contextlib.closing(Rows(tmp_path, FIRST)) as rows:
        assert rows.one(0)["n"] == 1
        with pytest.raises(CorruptDataError, match="what client 1 kept"):
            rows.one(1)


def test_a_round_of_a_million_clients_reads_and_writes_its_cohort(tmp_path, monkeypatch):
    calls = {"pread": 0, "pwrite": 0}
    ids = np.array([999_999, 0, 500_000, 123_456])
    for name in calls:
        real = getattr(os, name)

        def counted(*args, name=name, real=real):
            calls[name] += 1
            return real(*args)

        monkeypatch.setattr(client_states.os, name, counted)
    with opened(tmp_path) as states:
        states.read(ids)
        states.write(1, ids, stacked([tree(i) for i in range(4)]))
        assert calls == {"pread": 8, "pwrite": 4}
    path = tmp_path / client_states.CLIENTS / "rows.bin"
    assert path.stat().st_size == 1_000_000 * (12 + 20)
    assert path.stat().st_blocks * 512 < 2**16  # the rest is a hole


class Watch:
    def start(self, plan, rounds_done): ...

    def round(self, record): ...

    def stop(self): ...


def config(dataset="digits", scheme="dp_scaffold", **changes):
    found = fljax.schemes.get(scheme).Config(sampling_prob=0.3, **changes)
    return Config(
        scheme=scheme,
        scheme_config=found,
        data=DataConfig(dataset=dataset, num_clients=CLIENTS),
        model=ModelConfig(model="mlp"),
        privacy=PrivacyConfig(target_epsilon=8.0, target_delta=0.01),
        run=RunConfig(num_rounds=ROUNDS, seed=3, eval_every=4, checkpoint_every=2, baseline=False),
    )


SCHEMES = pytest.mark.parametrize("scheme", ["dp_scaffold", "dp_fedper"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory, compiled_once):
    """The run of a scheme, without an interruption."""

    @functools.cache
    def run_of(scheme):
        path = tmp_path_factory.mktemp(scheme) / "run"
        return run.start(config(scheme=scheme), path, Watch())

    return run_of


def ended(outcome):
    rows = (outcome.run_dir / client_states.CLIENTS / "rows.bin").read_bytes()
    params = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(outcome.params)]
    metrics = (outcome.run_dir / folder.METRICS).read_bytes()
    return rows, params, metrics


@pytest.mark.release(reason="one more round to be killed in", but=["5-dp_scaffold", "5-dp_fedper"])
@pytest.mark.slow(reason="a whole run, stopped and resumed")
@SCHEMES
@pytest.mark.parametrize("after", [1, 5])
def test_a_run_that_was_killed_ends_in_the_same_bits(scheme, after, whole, tmp_path):
    class Stop(Watch):
        def round(self, record):
            if record["round"] == after:
                raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        run.start(config(scheme=scheme), tmp_path / "run", Stop())
    assert ended(run.resume(tmp_path / "run", Watch())) == ended(whole(scheme))


@pytest.mark.slow(reason="kills runs in processes of their own")
@SCHEMES
def test_a_kill_between_the_rows_and_their_checkpoint_ends_in_the_same_bits(
    scheme, whole, tmp_path, monkeypatch
):
    real = checkpoint.Checkpoints.save

    def save(self, step, saved):
        if step == 4:
            raise RuntimeError("killed")
        real(self, step, saved)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.Checkpoints, "save", save)
        with pytest.raises(RuntimeError, match="killed"):
            run.start(config(scheme=scheme), tmp_path / "run", Watch())
    assert (tmp_path / "run" / client_states.CLIENTS / "before-4.bin").exists()
    assert ended(run.resume(tmp_path / "run", Watch())) == ended(whole(scheme))


@pytest.mark.slow(reason="two whole runs")
@SCHEMES
def test_clients_on_disk_keep_the_same_bits_as_clients_in_memory(scheme, whole, tmp_path):
    digits = whole(scheme).task
    for name, table, examples in (
        ("train", np.asarray(digits.client_data.indices), digits.dataset.train),
        ("test", np.arange(len(digits.dataset.test["y"]))[None], digits.dataset.test),
    ):
        rows = [row[row >= 0] for row in table]
        store.write(
            tmp_path / "disk" / name, [{k: v[r] for k, v in examples.items()} for r in rows]
        )
    outcome = run.start(config(f"disk:{tmp_path / 'disk'}", scheme), tmp_path / "run", Watch())
    assert ended(outcome) == ended(whole(scheme))
    assert (whole(scheme).own_models is None) == (scheme == "dp_scaffold")


def test_evaluations_use_the_models_of_the_clients(whole):
    outcome = whole("dp_fedper")
    last, test = json.loads(ended(outcome)[2].splitlines()[-1]), outcome.task.dataset.test
    own = [
        outcome.own_models(int(i)) for i in np.unique(np.linspace(0, CLIENTS - 1, 20).astype(int))
    ]
    apply = jax.jit(jax.vmap(outcome.task.model.apply, (None, 0)))
    right = [np.mean(np.argmax(apply(each, test["x"]), -1) == test["y"]) for each in own]
    assert last["test_accuracy"] == pytest.approx(np.mean(right), rel=1e-6)
    shared, heads = outcome.params["hidden"], [each["logits"]["bias"] for each in own]
    for each in own:
        jax.tree.map(np.testing.assert_array_equal, each["hidden"], shared)
    assert len({np.asarray(head).tobytes() for head in heads}) > 10


@pytest.mark.slow(reason="whole runs")
def test_the_call_from_python_gives_each_client_its_model(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2)).astype(np.float32)
    whose = np.arange(60) // 6
    y = (x @ np.array([1.0, 2.0]) + whose).astype(np.float32)  # an offset of each client's own
    apply = lambda params, x: jnp.vdot(params["w"], x) + params["offset"]
    loss = lambda params, e: jnp.square(apply(params, e["x"]) - e["y"])

    def mse(params, apply, e):
        return jnp.square(jax.vmap(apply, (None, 0))(params, e["x"]) - e["y"])

    result = fljax.simulate(
        "dp_fedper", data={"x": x, "y": y}, clients=[np.flatnonzero(whose == i) for i in range(10)],
        test_data={"x": x, "y": y}, loss=loss, metrics={"mse": mse}, run_dir=tmp_path / "run",
        model=({"w": np.zeros(2, np.float32), "offset": np.zeros((), np.float32)}, apply),
        personal_layers="offset", noise_multiplier=0.5, target_epsilon=None, sampling_prob=1.0,
        local_learning_rate=0.05, num_local_epochs=5, server_learning_rate=1.0, l2_clip_norm=1.0,
        server_momentum=0.0, num_rounds=15, seed=1, baseline=False, target_delta=0.01,
    )  # fmt: skip
    offsets = [float(result.client_params(i)["offset"]) for i in range(10)]
    assert np.all(np.diff(offsets) > 0.5) and float(result.params["offset"]) == 0
    # By its own model a client is served; the released one misses its offset.
    assert np.mean(list(result.client_metrics["mse"].values())) < 1 < result.metrics["mse"]


def test_names_without_a_layer_and_several_processes_are_refused_before_anything_is_written(
    tmp_path, monkeypatch
):
    with pytest.raises(ValueError, match="personal_layers='tail', which names none"):
        run.start(config(scheme="dp_fedper", personal_layers="tail"), tmp_path / "a", Watch())
    monkeypatch.setattr(processes, "alone", lambda: False)
    with pytest.raises(ValueError, match="Expected one process for scheme='dp_scaffold'"):
        run.start(config(), tmp_path / "b", Watch())
    assert not list(tmp_path.iterdir())
