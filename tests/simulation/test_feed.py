"""Runs on clients on disk: the same bits as in memory, damaged clients found, and no pass over
everybody.
"""

import dataclasses
import json
import os
import shutil

import jax
import numpy as np
import pytest

from fljax import schemes
from fljax.data import store
from fljax.errors import CorruptDataError
from fljax.simulation import run, task
from fljax.simulation.config import Config, DataConfig, ModelConfig, PrivacyConfig, RunConfig
from fljax.simulation.record import folder
from fljax.simulation.report import run_page

CLIENTS = 40


class Watch:
    def start(self, plan, rounds_done):
        pass

    def round(self, record):
        pass

    def stop(self):
        pass


def config(dataset="digits", **changes):
    return Config(
        scheme="dp_fedavg",
        scheme_config=schemes.get("dp_fedavg").Config(sampling_prob=0.25, noise_multiplier=2.0),
        data=DataConfig(num_clients=CLIENTS, dataset=dataset, **changes),
        model=ModelConfig(model="softmax"),
        privacy=PrivacyConfig(target_epsilon=None),
        run=RunConfig(num_rounds=8, eval_every=4, checkpoint_every=3, seed=3, baseline=False),
    )


@pytest.fixture(scope="module")
def disk(tmp_path_factory):
    """The digits of the same clients, client by client."""
    built = task.build(config())
    examples, table = built.dataset.train, np.asarray(built.client_data.indices)
    path = tmp_path_factory.mktemp("disk")
    store.write(
        path / "train", ({k: v[rows[rows >= 0]] for k, v in examples.items()} for rows in table)
    )
    store.write(path / "test", [built.dataset.test])
    return path


pytestmark = pytest.mark.usefixtures("compiled_once")


@pytest.fixture(scope="module")
def in_memory(tmp_path_factory, compiled_once):
    return run.start(config(), tmp_path_factory.mktemp("memory"), Watch())


def test_a_run_from_disk_has_the_bits_of_one_from_memory(in_memory, disk, tmp_path):
    outcome = run.start(config(f"disk:{disk}"), tmp_path / "run", Watch())
    left, right = (json.dumps(o.records, sort_keys=True) for o in (outcome, in_memory))
    assert left == right
    for a, b in zip(
        jax.tree.leaves(outcome.params), jax.tree.leaves(in_memory.params), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    assert f"{CLIENTS} clients on disk" in run_page.render(outcome)


@pytest.mark.slow(reason="whole runs, from disk and from memory")
@pytest.mark.parametrize("mode", ["fresh", "once"])
def test_a_record_has_the_same_noise_on_disk_and_in_memory(disk, mode, tmp_path):
    """Clients stand in another place of the cohort each round: a record is named by its place in
    its client.
    """
    scheme = schemes.get("natural_channel")
    found = []
    for dataset, folder_name in (("digits", "memory"), (f"disk:{disk}", "disk")):
        chosen = dataclasses.replace(
            config(dataset),
            scheme="natural_channel",
            scheme_config=scheme.Config(noise_mode=mode, sampling_prob=0.25),
            privacy=PrivacyConfig(target_epsilon=None),
        )
        found.append(run.start(chosen, tmp_path / folder_name, Watch()))
    for a, b in zip(
        jax.tree.leaves(found[0].params), jax.tree.leaves(found[1].params), strict=True
    ):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow(reason="whole runs")
def test_a_run_from_disk_resumes_to_the_same_bits(in_memory, disk, tmp_path):
    class Stop(Watch):
        def round(self, record):
            if record["round"] == 5:
                raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        run.start(config(f"disk:{disk}"), tmp_path / "run", Stop())
    outcome = run.resume(tmp_path / "run", Watch())
    for a, b in zip(
        jax.tree.leaves(outcome.params), jax.tree.leaves(in_memory.params), strict=True
    ):
        np.testing.assert_array_equal(a, b)


@pytest.fixture
def damaged(disk, tmp_path):
    """A copy with one bit of client 7 flipped."""
    path = shutil.copytree(disk, tmp_path / "damaged")
    opened = store.open_store(path / "train")
    data = bytearray((path / "train" / "x.bin").read_bytes())
    data[int(opened.offsets[7]) * 64 * 4 + 2] ^= 1
    (path / "train" / "x.bin").write_bytes(data)
    return path


@pytest.mark.slow(reason="whole runs")
def test_a_damaged_client_stops_the_run_when_it_is_sampled_and_the_run_goes_on_once_mended(
    in_memory, disk, damaged, tmp_path
):
    with pytest.raises(CorruptDataError, match="client 7 "):
        run.start(config(f"disk:{damaged}"), tmp_path / "run", Watch())
    (damaged / "train" / "x.bin").write_bytes((disk / "train" / "x.bin").read_bytes())
    outcome = run.resume(tmp_path / "run", Watch())
    for a, b in zip(
        jax.tree.leaves(outcome.params), jax.tree.leaves(in_memory.params), strict=True
    ):
        np.testing.assert_array_equal(a, b)


def test_a_damaged_client_may_be_skipped_and_the_claim_stays(in_memory, damaged, tmp_path):
    outcome = run.start(
        config(f"disk:{damaged}", corrupt_clients="skip"), tmp_path / "run", Watch()
    )
    skipped = [record.get("skipped_clients", []) for record in outcome.records]
    assert [7] in skipped and all(s in ([], [7]) for s in skipped)
    claims = [json.loads((o.run_dir / folder.PRIVACY).read_text()) for o in (outcome, in_memory)]
    assert claims[0] == claims[1]
    assert [r["cohort_size"] for r in outcome.records] == [
        r["cohort_size"] for r in in_memory.records
    ]


def test_the_number_of_clients_must_be_the_folders(disk, tmp_path):
    wrong = dataclasses.replace(
        config(f"disk:{disk}"), data=DataConfig(num_clients=41, dataset=f"disk:{disk}")
    )
    with pytest.raises(ValueError, match="num_clients=40"):
        run.start(wrong, tmp_path / "run", Watch())
    with pytest.raises(ValueError, match="clients on disk"):
        run.start(config(f"disk:{tmp_path}"), tmp_path / "run2", Watch())


def test_labels_and_shapes_of_both_folders_are_checked(disk, tmp_path):
    y = np.array([0, 3], np.int32)
    for name, held_out, message in (
        ("labels", {"x": np.zeros((2, 8, 8, 1), np.float32), "y": y - 1}, "labels|num_classes"),
        ("shapes", {"x": np.zeros((2, 4, 4, 1), np.float32), "y": y}, "to be alike"),
    ):
        folder_ = tmp_path / name
        store.write(folder_ / "train", [{"x": np.zeros((2, 8, 8, 1), np.float32), "y": y}] * 2)
        store.write(folder_ / "test", [held_out])
        chosen = dataclasses.replace(
            config(), data=DataConfig(num_clients=2, dataset=f"disk:{folder_}")
        )
        with pytest.raises(ValueError, match=message):
            task.build(chosen)
    few = tmp_path / "few"
    store.write(few / "train", [{"x": np.zeros((2, 8, 8, 1), np.float32), "y": y + 4}] * 2)
    store.write(few / "test", [{"x": np.zeros((2, 8, 8, 1), np.float32), "y": y}])
    chosen = dataclasses.replace(config(), data=DataConfig(num_clients=2, dataset=f"disk:{few}"))
    assert task.build(chosen).dataset.num_classes == 8  # a label that only clients have


class Killed(Watch):
    def round(self, record):
        if record["round"] == 5:  # the newest checkpoint knows of three rounds
            raise RuntimeError("killed")


def killed_in(run_dir, of, **changes):
    with pytest.raises(RuntimeError, match="killed"):
        run.start(config(f"disk:{of}", **changes), run_dir, Killed())


def flip(path, client):
    """One bit of a client's first number; with the file's times as they were."""
    opened, file = store.open_store(path), path / "x.bin"
    times, data = file.stat(), bytearray(file.read_bytes())
    data[int(opened.offsets[client]) * 64 * 4 + 2] ^= 1
    file.write_bytes(data)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.slow(reason="whole runs")
@pytest.mark.parametrize("mode", ["stop", "skip"])
def test_a_run_does_not_go_on_with_clients_whose_bytes_have_changed(disk, mode, tmp_path):
    """Also where damaged ones are skipped: rounds after the checkpoint would be taken again without
    the client.
    """
    mine = shutil.copytree(disk, tmp_path / "mine")
    killed_in(tmp_path / "run", mine, corrupt_clients=mode)
    flip(mine / "train", 7)
    with pytest.raises(
        ValueError,
        match="client 7 " if mode == "stop" else r"damaged clients \(\[\] before, \[7\] now",
    ):
        run.resume(tmp_path / "run", Watch())
    flip(mine / "train", 7)
    assert run.resume(tmp_path / "run", Watch()).rounds == 8


@pytest.mark.slow(reason="whole runs")
def test_a_run_does_not_go_on_with_clients_that_were_written_anew(in_memory, disk, tmp_path):
    mine = shutil.copytree(disk, tmp_path / "mine")
    killed_in(tmp_path / "run", mine)
    before = store.open_store(mine / "train")
    cuts = list(zip(before.offsets[:-1], before.offsets[1:], strict=True))
    everybody = [
        {name: field[a:b].copy() for name, field in before.fields.items()} for a, b in cuts
    ]
    everybody[7]["x"][0, 0, 0, 0] += 0.5
    shutil.rmtree(mine / "train")
    store.write(mine / "train", everybody)
    with pytest.raises(ValueError, match=r"another clients on disk \(client 7\): .*noise"):
        run.resume(tmp_path / "run", Watch())
    everybody[7]["x"][0, 0, 0, 0] -= 0.5
    shutil.rmtree(mine / "train")
    store.write(mine / "train", everybody)  # the same clients, in other files
    outcome = run.resume(tmp_path / "run", Watch())
    for a, b in zip(
        jax.tree.leaves(outcome.params), jax.tree.leaves(in_memory.params), strict=True
    ):
        np.testing.assert_array_equal(a, b)
